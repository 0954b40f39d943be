"""Digests, by which runs are compared to the last bit without their checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from jaxrl_scale.records.pieces import named_leaves
from jaxrl_scale.types import PyTree


def of_tree(tree: PyTree) -> str:
    """The SHA-256, in hexadecimal digits, of a tree of arrays on the host: of the leaves' names,
    dtypes, shapes and bytes.

    All NaNs count as one. A sum of two has the bits of the first, and each device adds its own
    first, so that the copies of an agent that has failed differ in these bits.
    """
    digest = hashlib.sha256()
    for name, leaf in named_leaves(tree).items():
        x = np.asarray(leaf)
        if x.dtype.kind == "f":
            x = np.where(np.isnan(x), x.dtype.type(np.nan), x)
        digest.update(f"{name} {x.dtype.name}{list(x.shape)}\n".encode())
        digest.update(np.ascontiguousarray(x).data.cast("B") if x.size else b"")
    return digest.hexdigest()


def of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """The SHA-256 of named arrays, as ``run.json`` has it of the policy that a run began from, and
    the zoo of its files. What is written there is compared with it, so that it cannot become that
    of `of_tree`, in which names, dtypes and shapes are written in another way."""
    digest = hashlib.sha256()
    for name, x in sorted(arrays.items()):
        digest.update(f"{name} {x.dtype} {x.shape}".encode() + np.ascontiguousarray(x).tobytes())
    return digest.hexdigest()


def of_run(agents: Mapping[int, str]) -> str:
    """The digest of a run from those of its agents, by their indices."""
    return hashlib.sha256("\n".join(agents[k] for k in sorted(agents)).encode()).hexdigest()
