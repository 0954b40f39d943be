"""Reads what the kernels of a compiled program compute: they should not depend on the devices."""

from __future__ import annotations

import re
from collections import Counter

import collectives

_LOOP = re.compile(r" while\(.*body=%([\w.-]+)")
_FUSION = re.compile(r" fusion\(.*kind=(?!kCustom).*calls=%([\w.-]+)")
_MATRICES = re.compile(r" dot\(|kind=kCustom")  # a library's kernels are kCustom
_PRODUCT = re.compile(r"f\d+\[.* multiply\(")
_SUM = re.compile(r"f\d+\[.* (add|subtract|reduce)\(")
_ASIDE = r", (metadata=\{[^}]*\}|backend_config=.*|(calls|to_apply)=[^,]+)|/\*index=\d+\*/"


def rounding(program: str, num_shards: int) -> Counter[str]:
    """In XLA's text of a program, the kernels in which a product can become a fused multiply-add,
    of all loops with matrix products in them, which are those over shards, and of the loops inside.

    Each is the list of its instructions. Left out is what does not change how it rounds: names, the
    order of its inputs, and how many of ``num_shards`` shards a device holds.
    """
    computations = collectives.computations(program)
    loops = set(_LOOP.findall(program))
    found = [name for name in loops if _MATRICES.search("\n".join(computations[name]))]
    for name in found:  # which grows meanwhile
        inside = _LOOP.findall("\n".join(computations[name]))
        found += [loop for loop in inside if loop not in found]
    called = [_FUSION.search(line) for name in found for line in computations[name]]
    kernels = [_anonymous(computations[fusion[1]], num_shards) for fusion in called if fusion]
    return Counter(x for x in kernels if _PRODUCT.search(x) and _SUM.search(x))


def _anonymous(lines: list[str], num_shards: int) -> str:
    names: dict[str, str] = {}
    text = "\n".join(re.sub(_ASIDE, "", line) for line in lines)
    text = re.sub(r"parameter\(\d+\)", "parameter()", text)
    counts = [2**i for i in range(num_shards.bit_length())]
    text = re.sub(rf"\[({'|'.join(map(str, counts))})([,\]])", r"[S\2", text)
    return re.sub(r"%[\w.-]+", lambda x: names.setdefault(x[0], f"%{len(names)}"), text)
