"""Reads which collectives of a compiled program a device may begin at the same time."""

from __future__ import annotations

import re
from functools import cache

COLLECTIVES = ("collective-permute", "all-gather", "all-reduce")


def unordered(program: str) -> list[tuple[str, str]]:
    """The pairs of instructions in XLA's text of a program of which neither follows from the
    other, and which both are collectives, or loops or branches with collectives in them."""
    computations = _computations(program)

    @cache
    def meets(computation: str) -> bool:
        """Has it collectives?"""
        return any(map(is_meeting, computations[computation].values()))

    def is_meeting(instruction: tuple[str, list[str]]) -> bool:
        operation, names = instruction
        called = [name for name in names if name in computations]
        return operation.startswith(COLLECTIVES) or any(map(meets, called))

    pairs = []
    for instructions in computations.values():
        behind: dict[str, set[str]] = {}  # what each instruction follows from; XLA lists that first
        meetings: list[str] = []
        for name, (operation, names) in instructions.items():
            inputs = [x for x in names if x in behind]
            behind[name] = set(inputs).union(*(behind[x] for x in inputs))
            if is_meeting((operation, names)):
                pairs += [(other, name) for other in meetings if other not in behind[name]]
                meetings.append(name)
    return pairs


def _computations(program: str) -> dict[str, dict[str, tuple[str, list[str]]]]:
    """By the computations' names: their instructions in order, each with its operation and all
    names that its line has (inputs, and the computations that it calls)."""
    found: dict[str, dict[str, tuple[str, list[str]]]] = {}
    for line in program.splitlines():
        if head := re.match(r"(?:ENTRY )?%([\w.-]+) \(.*\{$", line):
            instructions = found.setdefault(head[1], {})
        elif known := re.match(r"\s+(?:ROOT )?%([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)", line):
            instructions[known[1]] = known[3], re.findall(r"%([\w.-]+)", known[4])
    return found
