"""A wall that XLA does not fuse across."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_scale.types import PyTree


def walled(f: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """``f`` as a branch, whose results always reach memory, under a condition that always holds and
    that XLA cannot see through.

    Without it XLA fuses the operations of ``f`` with whatever is done with its results, and which
    products become fused multiply-adds then depends on what that is. XLA:CPU drops
    ``optimization_barrier`` before it fuses, but after it has looked for branches never taken.
    """

    def behind(*args: PyTree) -> PyTree:
        traced_once = jax.jit(f, inline=True)  # for its shapes and for the branch

        def nothing(*args: PyTree) -> PyTree:
            shapes = jax.eval_shape(traced_once, *args)
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        always = jax.lax.optimization_barrier(jnp.int32(1))
        return jax.lax.cond(always == 1, traced_once, nothing, *args)

    return behind
