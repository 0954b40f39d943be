"""Initial weights that are a function of the key alone."""

from __future__ import annotations

import functools
from math import prod

import jax
import jax.numpy as jnp
from flax.typing import Initializer

from jaxrl_scale.types import Array, Key

_USUAL_WIDTHS = (64, 128, 256, 512)


def orthogonal(gain: float = 1.0) -> Initializer:
    """Orthogonal weights (https://arxiv.org/abs/1312.6120), times ``gain``: of a kernel
    ``[..., n]`` either the columns are orthonormal or the rows, whichever are fewer.

    Within rounding they are those of `flax.linen.initializers.orthogonal`, whose last bits come
    from the QR decomposition of the BLAS that SciPy brings. That one has a kernel for every kind of
    processor and lets environment variables choose, so that two processes of one run may differ.
    """

    def init(key: Key, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Array:
        rows, columns = prod(shape[:-1]), shape[-1]
        vectors = _random_orthonormal(key, max(rows, columns), min(rows, columns), dtype)
        return gain * (vectors.T if rows >= columns else vectors).reshape(shape)

    return init


@functools.partial(jax.jit, static_argnums=(1, 2, 3))  # layers of one shape are traced once
def _random_orthonormal(key: Key, longer: int, shorter: int, dtype: jnp.dtype) -> Array:
    """``[shorter, longer]``"""
    # For hidden layers of the usual widths it is filled up to a square: then neighbouring layers
    # have equal kernels, which XLA compiles once. CartPole starts a quarter of a second earlier for
    # it, of five. Two rows at least: XLA does away with a loop of one round, and then fuses what
    # stands in it with what is done with the weights (docs/exactness.md).
    rows = longer if longer in _USUAL_WIDTHS else max(shorter, 2)
    numbers = jax.random.normal(key, (longer * rows,), dtype)
    vectors = numbers[: longer * shorter].reshape(longer, shorter).T
    filled = jnp.pad(vectors, ((0, rows - shorter), (0, 0)), constant_values=1)
    return orthonormalized(filled, shorter)[:shorter]


def orthonormalized(vectors: Array, count: int) -> Array:
    """The first ``count`` rows of ``[n, m]`` made orthonormal from the first to the last, by the
    method of Gram and Schmidt, twice for each, which makes up for rounding; ``count <= m``."""

    def orthonormalize(k: Array, done: Array) -> Array:
        earlier = jnp.where(jnp.arange(len(done))[:, None] < k, done, 0.0)
        vector = jax.lax.dynamic_index_in_dim(done, k, keepdims=False)
        for _ in range(2):
            along = (earlier * vector[None]).sum(1, keepdims=True)
            vector = vector - (along * earlier).sum(0)
        vector = vector * jax.lax.rsqrt(jnp.square(vector).sum())
        return jax.lax.dynamic_update_index_in_dim(done, vector, k, 0)

    rounds = min(max(count, 2), len(vectors))  # one round would have kernels of its own
    return jax.lax.fori_loop(0, rounds, orthonormalize, vectors)
