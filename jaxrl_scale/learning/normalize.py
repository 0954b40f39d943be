"""Running statistics: count, mean and squared deviations, pooled over all shards.

They are frozen for an iteration, acting and loss use the same ones, and what an iteration
saw is merged once, at its end. The merge is Chan, Golub and LeVeque's ("Updating formulae and
a pairwise algorithm for computing sample variances", 1979, equation 2.1); raw sums of squares
would lose their digits in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_scale.types import Array, Pool


class Statistics(NamedTuple):
    """Moments of what was seen so far. The count is two int32 words, ``high * 2**30 + low``,
    so that it stays exact past 2³¹."""

    low: Array  # [] int32, below 2**30
    high: Array  # [] int32
    mean: Array  # [...] float32
    variance: Array  # [...] float32


_WORD = 2**30


def init_statistics(shape: tuple[int, ...] = ()) -> Statistics:
    """Nothing seen yet: mean 0 and variance 1, so that `normalize` changes nothing."""
    zero = jnp.zeros((), jnp.int32)
    return Statistics(zero, zero, jnp.zeros(shape), jnp.ones(shape))


def pooled_moments(
    pool: Pool, x: Array, mask: Array, axes: tuple[int, ...] | None = None
) -> tuple[Array, Array, Array]:
    """Count, mean and variance of the unmasked samples of all shards; two collectives.

    Args:
      x: ``[S, *samples, *shape]``.
      mask: ``[S, *samples]`` bool.
      axes: which of ``samples`` to reduce, as axes of one shard's mask; default: all.

    Returns:
      count (int32), mean and (biased) variance, of the axes that are left; 0 where nothing
      counts.
    """
    axes = tuple(range(mask.ndim - 1)) if axes is None else axes

    def trailing(x: Array, like: Array) -> Array:
        return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))

    def shard_sum(x: Array, mask: Array) -> tuple[Array, Array]:
        total = jnp.where(trailing(mask, x), x, 0.0).sum(axes)
        return mask.sum(axes, dtype=jnp.int32), total

    count, total = pool.sum(pool.map(shard_sum, x, mask))
    # A product, not a division: XLA may or may not turn a division by a broadcast number into
    # one, by what surrounds it, and the bits would depend on the number of devices.
    share = trailing(1.0 / jnp.maximum(count, 1), total)
    mean = total * share

    def shard_squares(x: Array, mask: Array) -> Array:
        deviation = x - jnp.expand_dims(mean, axes)
        return jnp.where(trailing(mask, x), jnp.square(deviation), 0.0).sum(axes)

    squares = pool.sum(pool.map(shard_squares, x, mask))
    return count, mean, squares * share


def merge(old: Statistics, count: Array, mean: Array, variance: Array) -> Statistics:
    """``old`` and a batch of ``count`` samples with the given moments, together.

    Computed in a loop over two copies, which XLA neither inlines nor fuses with what stands
    around it: which of these products become fused multiply-adds would otherwise depend on
    that, and a member of a population would differ from the single run.
    """
    twice = jax.tree.map(lambda x: jnp.stack([x, x]), (old, count, mean, variance))
    return jax.tree.map(lambda x: x[0], jax.lax.map(lambda args: _merge(*args), twice))


def _merge(old: Statistics, count: Array, mean: Array, variance: Array) -> Statistics:
    before = old.high.astype(jnp.float32) * _WORD + old.low.astype(jnp.float32)
    share = count / jnp.maximum(before + count, 1.0)  # the batch's weight in the whole
    delta = mean - old.mean
    low = old.low + count
    return Statistics(
        low=low % _WORD,
        high=old.high + low // _WORD,
        mean=old.mean + share * delta,
        variance=(1 - share) * old.variance
        + share * variance
        + share * (1 - share) * jnp.square(delta),
    )


def normalize(statistics: Statistics, x: Array, clip: float = 10.0) -> Array:
    """``x [..., *shape]`` to mean 0 and deviation 1, clipped to ``±clip``."""
    scale = 1.0 / jnp.sqrt(statistics.variance + 1e-8)
    return jnp.clip((x - statistics.mean) * scale, -clip, clip)
