"""Running statistics: count, mean and squared deviations, pooled over all shards.

They are frozen for an iteration, acting and loss use the same ones, and what an iteration
saw is merged once, at its end. The merge is Chan, Golub and LeVeque's ("Updating formulae and
a pairwise algorithm for computing sample variances", 1979, equation 2.1); raw sums of squares
would lose their digits in float32.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp

from jaxrl_scale.learning import returns
from jaxrl_scale.types import Array, Pool, Rollout


class Statistics(NamedTuple):
    """Moments of what was seen so far. The count is two int32 words, ``high * 2**30 + low``,
    so that it stays exact past 2³¹."""

    low: Array  # [] int32, below 2**30
    high: Array  # [] int32
    mean: Array  # [...] float32
    variance: Array  # [...] float32


_WORD = 2**30


def init(on: bool, shape: tuple[int, ...] = ()) -> Statistics | None:
    """Statistics of which nothing has been seen yet, with mean 0 and variance 1, so that `apply`
    changes nothing; None where they are switched off."""
    zero = jnp.zeros((), jnp.int32)
    return Statistics(zero, zero, jnp.zeros(shape), jnp.ones(shape)) if on else None


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
    chex.assert_equal_shape_prefix([x, mask], mask.ndim)
    axes = tuple(range(mask.ndim - 1)) if axes is None else axes

    def trailing(x: Array, like: Array) -> Array:
        return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))

    def shard_sum(x: Array, mask: Array) -> tuple[Array, Array]:
        total = jnp.where(trailing(mask, x), x, 0.0).sum(axes)
        return mask.sum(axes, dtype=jnp.int32), total

    count, total = pool.sum(pool.map(shard_sum, x, mask))
    # A product, not a division: XLA may or may not turn a division by a broadcast number into
    # one, by what surrounds it, and the bits would depend on the number of devices.
    share = trailing(1.0 / jnp.maximum(count, 1).astype(jnp.float32), total)
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
    that, and an agent of a population would differ from the single run.
    """
    twice = jax.tree.map(lambda x: jnp.stack([x, x]), (old, count, mean, variance))
    return jax.tree.map(lambda x: x[0], jax.lax.map(lambda args: _merge(*args), twice))


def _merge(old: Statistics, count: Array, mean: Array, variance: Array) -> Statistics:
    before = old.high.astype(jnp.float32) * _WORD + old.low.astype(jnp.float32)
    new = count.astype(jnp.float32)
    share = new / jnp.maximum(before + new, 1.0)  # the batch's weight in the whole
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


def update(pool: Pool, statistics: Statistics | None, x: Array, mask: Array) -> Statistics | None:
    """The statistics with the unmasked samples of all shards; None stays None.

    Args:
      x: ``[S, *samples, *shape]``.
      mask: ``[S, *samples]`` bool.
    """
    if statistics is None:
        return None
    return merge(statistics, *pooled_moments(pool, x, mask))


def apply(statistics: Statistics | None, x: Array, clip: float = 10.0) -> Array:
    """``x [..., *shape]`` with mean 0 and standard deviation 1, clipped to ``±clip``; without
    statistics ``x`` itself."""
    if statistics is None:
        return x
    scale = 1.0 / jnp.sqrt(statistics.variance + 1e-8)
    mean, scale = (jnp.broadcast_to(y, x.shape) for y in (statistics.mean, scale))
    return jnp.clip((x - mean) * scale, -clip, clip)


def scale_rewards(
    pool: Pool,
    statistics: Statistics | None,
    running: Array,
    rollout: Rollout,
    gamma: Array | float,
) -> tuple[Rollout, Array, Statistics | None]:
    """The rollout with its rewards divided by the deviation of the running discounted return;
    without statistics the rollout itself.

    Args:
      statistics: of the discounted returns of all steps so far.
      running: the discounted returns so far of the episodes at hand, ``[S, B]``.
      rollout: ``[S, T, B]``.

    Returns:
      The rollout ``[S, T, B]``, and ``running`` and ``statistics`` to carry on.
    """
    if statistics is None:
        return rollout, running, None
    totals, running = pool.map(
        lambda start, reward, ended: returns.running_discounted_return(start, reward, ended, gamma),
        running,
        rollout.reward,
        rollout.terminated | rollout.truncated,
    )
    # Nothing acts on scaled rewards, so this rollout's own moments may count already.
    statistics = merge(statistics, *pooled_moments(pool, totals, rollout.valid))
    scale = 1 / jnp.sqrt(statistics.variance + 1e-8)
    reward = pool.map(lambda reward: reward * scale, rollout.reward)
    return rollout._replace(reward=reward), running, statistics


class Learned(Protocol):
    """What a value function learned from, of every sample: ``[S, ...]``."""

    @property
    def advantage(self) -> Array:
        """Target less value."""
        ...

    @property
    def target(self) -> Array: ...
    @property
    def valid(self) -> Array: ...


def explained_variance(pool: Pool, samples: Learned) -> Array:
    """How much of the targets' variance the values explain: 1 is all, 0 no more than a mean."""
    pair = jnp.stack([samples.advantage, samples.target], -1)
    _, _, variance = pooled_moments(pool, pair, samples.valid)
    return 1 - variance[0] / jnp.maximum(variance[1], 1e-8)


def batch_moments(pool: Pool, samples: Learned, orders: Array, on: bool) -> tuple[Array, Array]:
    """Mean, and one over the standard deviation, of the valid advantages of each minibatch, over
    all shards: what normalizes them. Where that is switched off, 0 and 1.

    Advantages do not change within an iteration, so the moments of all its minibatches travel
    together, before the first gradient step.

    Args:
      samples: ``[S, L, n]``.
      orders: the indices, of ``n``, that make up each minibatch, ``[S, steps, m]``.

    Returns:
      Both ``[steps]``.
    """
    steps = orders.shape[1]
    if not on:
        return jnp.zeros(steps), jnp.ones(steps)
    x, mask = (  # [S, L, steps, m]
        jax.vmap(lambda x, order: x[:, order])(x, orders)
        for x in (samples.advantage, samples.valid)
    )
    _, mean, variance = pooled_moments(pool, x, mask, axes=(0, 2))
    return mean, 1 / (jnp.sqrt(variance) + 1e-8)
