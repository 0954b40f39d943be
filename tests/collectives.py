"""Reads which collectives of a compiled program a device may begin at the same time."""

from __future__ import annotations

import re
from functools import cache

COLLECTIVES = ("collective-permute", "all-gather", "all-reduce")


def unordered(program: str) -> list[tuple[str, str]]:
    """The pairs of instructions in XLA's text of a program of which neither follows from the
    other, and which both are collectives, or loops or branches with collectives in them."""
    by_name = {name: _instructions(lines) for name, lines in computations(program).items()}

    @cache
    def meets(computation: str) -> bool:
        """Has it collectives?"""
        return any(map(is_meeting, by_name[computation].values()))

    def is_meeting(instruction: tuple[str, list[str]]) -> bool:
        operation, names = instruction
        inside = [name for name in names if name in by_name]
        return operation.startswith(COLLECTIVES) or any(map(meets, inside))

    pairs = []
    for instructions in by_name.values():
        behind: dict[str, set[str]] = {}  # what each instruction follows from; XLA lists that first
        meetings: list[str] = []
        for name, (operation, names) in instructions.items():
            inputs = [x for x in names if x in behind]
            behind[name] = set(inputs).union(*(behind[x] for x in inputs))
            if is_meeting((operation, names)):
                pairs += [(other, name) for other in meetings if other not in behind[name]]
                meetings.append(name)
    return pairs


def computations(program: str) -> dict[str, list[str]]:
    """The lines of each computation in XLA's text of a program, in order, by the names."""
    found: dict[str, list[str]] = {}
    for line in program.splitlines():
        if head := re.match(r"(?:ENTRY )?%([\w.-]+) \(.*\{$", line):
            lines = found.setdefault(head[1], [])
        elif line.startswith(" "):
            lines.append(line)
    return found


def _instructions(lines: list[str]) -> dict[str, tuple[str, list[str]]]:
    """A computation's instructions in order, each with its operation and all names that its line
    has (inputs, and the computations that it calls)."""
    found: dict[str, tuple[str, list[str]]] = {}
    for line in lines:
        if known := re.match(r"\s+(?:ROOT )?%([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)", line):
            found[known[1]] = known[3], re.findall(r"%([\w.-]+)", known[4])
    return found
