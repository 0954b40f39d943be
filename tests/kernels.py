"""Reads what the kernels of a compiled program compute: they should not depend on the devices."""

from __future__ import annotations

import re
from collections import Counter

_ASIDE = r", (metadata=\{[^}]*\}|backend_config=.*|(calls|to_apply)=[^,]+)|/\*index=\d+\*/"


def rounding(program: str, num_shards: int) -> Counter[str]:
    """In XLA's text of a program, the kernels in which a product can become a fused multiply-add,
    of all loops with matrix products in them, which are those over shards.

    Each is the list of its instructions. Left out is what does not change how it rounds: names, the
    order of its inputs, and how many of ``num_shards`` shards a device holds.
    """
    computations = _computations(program)
    bodies = set(re.findall(r" while\(.*body=%([\w.-]+)", program))
    products = re.compile(r" dot\(|kind=kCustom")  # a library's kernels are kCustom
    loops = [lines for name in bodies if products.search("\n".join(lines := computations[name]))]
    fusion = re.compile(r" fusion\(.*kind=(?!kCustom).*calls=%([\w.-]+)")
    called = [fusion.search(line) for lines in loops for line in lines]
    kernels = [_anonymous(computations[found[1]], num_shards) for found in called if found]
    return Counter(x for x in kernels if re.search(r"f\d+\[.* multiply\(", x) and _SUM.search(x))


_SUM = re.compile(r"f\d+\[.* (add|subtract|reduce)\(")


def _computations(program: str) -> dict[str, list[str]]:
    """The lines of each, by its name."""
    found: dict[str, list[str]] = {}
    for line in program.splitlines():
        if head := re.match(r"(?:ENTRY )?%([\w.-]+) \(.*\{$", line):
            lines = found.setdefault(head[1], [])
        elif line.startswith(" "):
            lines.append(line)
    return found


def _anonymous(lines: list[str], num_shards: int) -> str:
    names: dict[str, str] = {}
    text = "\n".join(re.sub(_ASIDE, "", line) for line in lines)
    text = re.sub(r"parameter\(\d+\)", "parameter()", text)
    counts = [2**i for i in range(num_shards.bit_length())]
    text = re.sub(rf"\[({'|'.join(map(str, counts))})([,\]])", r"[S\2", text)
    return re.sub(r"%[\w.-]+", lambda x: names.setdefault(x[0], f"%{len(names)}"), text)
