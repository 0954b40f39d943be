"""The leaves of a tree as named arrays, each of them in pieces that several processes hold.

A piece is described by plain data: the array's dtype, its whole shape, and the box that is held of
it, ``(start, stop)`` for each axis. The second half of an array of 2 agents and 8 shards is
``{"dtype": "float32", "shape": [2, 8], "box": [[0, 2], [4, 8]]}``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_scale.errors import RunError
from jaxrl_scale.records import array_folder
from jaxrl_scale.records.array_folder import Damage
from jaxrl_scale.types import Part, PyTree

Box = list[tuple[int, int]]


def described(
    state: PyTree, parts: PyTree, only_parts: bool
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The pieces that a process holds, by name, and a description of each.

    Args:
      state: a tree of arrays, of each the part that this process holds.
      parts: the same tree with a `Part` for each array; ``None`` if all are held whole.
      only_parts: leave out the arrays that are held whole.
    """
    held = _named_parts(parts, state)
    arrays, descriptions = {}, {}
    for name, leaf in named_leaves(state).items():
        x, spans = np.asarray(leaf), held[name].spans
        shape = [span.whole for span in spans] + list(x.shape[len(spans) :])
        box = _box(shape, held[name])
        if only_parts and box == _box(shape, Part()):
            continue
        arrays[name] = x
        descriptions[name] = {"dtype": x.dtype.name, "shape": shape, "box": box}
    return arrays, descriptions


def assemble(folders: Sequence[tuple[Path, str]], target: PyTree, parts: PyTree) -> PyTree:
    """Read a tree, of each array the part that this process is to hold, from several folders.

    Args:
      folders: each with the id in its record. One that is not there may lie on another disk; one
        with another id was left by a killed run. Both are passed over.
      target: a tree of arrays or `jax.ShapeDtypeStruct` with the whole shapes.
      parts: the same tree with a `Part` for each array; ``None`` if all are to be held whole.

    Raises:
      Damage: a folder is damaged, or pieces are missing.
    """
    wanted, held = named_leaves(target), _named_parts(parts, target)
    boxes = {name: _box(x.shape, held[name]) for name, x in wanted.items()}
    arrays = {n: np.empty([j - i for i, j in box], wanted[n].dtype) for n, box in boxes.items()}
    missing = {name: x.size for name, x in arrays.items() if x.size}  # numbers still to be read
    for folder, its_id in folders:
        if not missing or not folder.exists():
            continue
        record = array_folder.read_record(folder)
        if record["id"] != its_id:
            continue
        saved = {name: x["box"] for name, x in record["arrays"].items() if name in missing}
        common = {name: _overlap(box, boxes[name]) for name, box in saved.items()}
        dtypes = {name: wanted[name].dtype for name, box in common.items() if _size(box)}
        for name, x in array_folder.read_arrays(folder, dtypes):
            arrays[name][_within(boxes[name], common[name])] = x[_within(saved[name], common[name])]
            missing[name] -= _size(common[name])
        missing = {name: numbers for name, numbers in missing.items() if numbers}
    for name in missing:
        raise Damage(f"{name} is not whole in the folders that can be seen here")
    return jax.tree.unflatten(jax.tree.structure(target), [arrays[name] for name in wanted])


def cut(whole: PyTree, parts: PyTree) -> PyTree:
    """The part that a process holds of each array, from a tree of whole arrays.

    Args:
      parts: the same tree with a `Part` for each array; ``None`` if all are held whole.
    """
    if parts is None:
        return whole

    def held(x: np.ndarray, part: Part) -> np.ndarray:
        return x[tuple(slice(span.start, span.stop) for span in part.spans)]

    return jax.tree.map(held, whole, parts)


def check_fits(path: Path, descriptions: dict[str, Any], target: PyTree) -> None:
    """Raise `RunError` if the checkpoint in ``path`` holds other arrays than ``target``."""
    there = {name: _type(x["shape"], x["dtype"]) for name, x in descriptions.items()}
    here = {n: _type(x.shape, np.dtype(x.dtype).name) for n, x in named_leaves(target).items()}
    for name in [*here, *there]:
        if here.get(name) != there.get(name):
            raise RunError(
                f"checkpoint {path} is of another config, or code of your own has changed since: "
                f"{name} is {there.get(name, 'missing')} in it and "
                f"{here.get(name, 'missing')} in this run"
            )


def _type(shape: Sequence[int], dtype: str) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """The leaves of a tree under names such as ``shared/algo/params/kernel``."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}
    if len(named) != len(leaves):
        raise ValueError("two leaves of the state have the same name")
    return named


def _named_parts(parts: PyTree, state: PyTree) -> dict[str, Part]:
    names = named_leaves(state).keys()
    if parts is None:
        return dict.fromkeys(names, Part())
    named = named_leaves(parts)
    if named.keys() != names:
        raise ValueError("the tree of parts does not have the leaves of the state")
    return named


def _box(shape: Sequence[int], part: Part) -> Box:
    """The box that a part is of an array with this whole shape."""
    held = [(span.start, span.stop) for span in part.spans]
    return held + [(0, n) for n in shape[len(held) :]]


def _overlap(one: Box, other: Box) -> Box:
    pairs = zip(one, other, strict=True)
    return [(max(a, c), min(b, d)) for (a, b), (c, d) in pairs]


def _size(box: Box) -> int:
    return math.prod(max(0, stop - start) for start, stop in box)


def _within(box: Box, inner: Box) -> tuple[slice, ...]:
    """The index of ``inner`` in an array that holds only ``box``."""
    pairs = zip(box, inner, strict=True)
    return tuple(slice(start - first, stop - first) for (first, _), (start, stop) in pairs)
