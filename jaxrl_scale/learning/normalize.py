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
from jaxrl_scale.learning.masks import trailing
from jaxrl_scale.types import Array, Pool, Rollout


class Statistics(NamedTuple):
    """Moments of what was seen so far. The count is two int32 words, ``high * 2**30 + low``,
    so that it stays exact past 2³¹."""

    low: Array  # [] int32, below 2**30
    high: Array  # [] int32
    mean: Array  # [...] float32
    variance: Array  # [...] float32


_WORD = 2**30

Numbers = Array | tuple[Array, ...]
"""``[n, *shape]``, or several such arrays of the same samples."""


def init(on: bool, shape: tuple[int, ...] = ()) -> Statistics | None:
    """Statistics of which nothing has been seen yet, with mean 0 and variance 1, so that `apply`
    changes nothing; None where they are switched off."""
    zero = jnp.zeros((), jnp.int32)
    return Statistics(zero, zero, jnp.zeros(shape), jnp.ones(shape)) if on else None


class Moments(NamedTuple):
    """Of the unmasked samples of a batch; 0 where nothing counts."""

    number: Array  # int32, of samples
    mean: Array  # float32
    variance: Array  # float32, biased


def pooled_moments(pool: Pool, *batches: tuple[Numbers, Array]) -> list[Moments]:
    """The moments of each batch over all shards; two collectives, for all batches together.

    Args:
      batches: of each `Numbers` with a leading axis of shards, ``[S, n, *shape]``, and a mask,
        bool, with as many of these axes as there are numbers to count: ``[S, n]`` where all numbers
        of a sample count together.

    Returns:
      For each the mean and the variance, ``[*shape]``, or of several arrays one vector; and the
      number, which has the mask's axes.
    """

    def shard_sums(*batches: tuple[Numbers, Array]) -> list[tuple[Array, Array]]:
        rows = ((_in_one(numbers), mask) for numbers, mask in batches)
        return [
            (mask.sum(0, dtype=jnp.int32), jnp.where(trailing(mask, x), x, 0.0).sum(0))
            for x, mask in rows
        ]

    for numbers, mask in batches:
        chex.assert_equal_shape_prefix([*jax.tree.leaves(numbers), mask], mask.ndim)
    sums = pool.sum(pool.map(shard_sums, *batches))
    # A product, not a division: XLA may or may not turn a division by a broadcast number into
    # one, by what surrounds it, and the bits would depend on the number of devices.
    shares = [
        trailing(1.0 / jnp.maximum(count, 1).astype(jnp.float32), total) for count, total in sums
    ]
    means = [total * share for (_, total), share in zip(sums, shares, strict=True)]

    def shard_squares(*batches: tuple[Numbers, Array]) -> list[Array]:
        squares = (
            jnp.square(_in_one(numbers) - mean[None])
            for (numbers, _), mean in zip(batches, means, strict=True)
        )
        return [
            jnp.where(trailing(mask, square), square, 0.0).sum(0)
            for (_, mask), square in zip(batches, squares, strict=True)
        ]

    squares = pool.sum(pool.map(shard_squares, *batches))
    return [
        Moments(count, mean, total * share)
        for (count, _), mean, total, share in zip(sums, means, squares, shares, strict=True)
    ]


def _in_one(numbers: Numbers) -> Array:
    """One float32 array, with one vector for each sample where there are several."""
    if not isinstance(numbers, tuple):
        return numbers.astype(jnp.float32)
    return jnp.concatenate([x.reshape(len(x), -1) for x in numbers], 1, dtype=jnp.float32)


def _samples(numbers: Numbers, mask: Array) -> tuple[Numbers, Array]:
    """`Numbers` ``[S, *samples, *shape]`` and their mask ``[S, *samples]`` with one axis for the
    samples."""
    shards, axes = len(mask), mask.ndim
    numbers = jax.tree.map(lambda x: x.reshape(shards, -1, *x.shape[axes:]), numbers)
    return numbers, mask.reshape(shards, -1)


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
      x: ``[S, *samples, *shape]``; an action mask behind that does not count.
      mask: ``[S, *samples]`` bool.
    """
    if statistics is None:
        return None
    (moments,) = pooled_moments(pool, _samples(_split(statistics, x)[0], mask))
    return merge(statistics, *moments)


def apply(statistics: Statistics | None, x: Array) -> Array:
    """``x [..., *shape]`` with mean 0 and standard deviation 1, clipped to ±10; without statistics
    ``x`` itself. An action mask, which ``x`` may have behind that, stays as it is."""
    if statistics is None:
        return x
    x, mask = _split(statistics, x)
    scale = 1.0 / jnp.sqrt(statistics.variance + 1e-8)
    mean, scale = (jnp.broadcast_to(y, x.shape) for y in (statistics.mean, scale))
    numbers = jnp.clip((x - mean) * scale, -10.0, 10.0)
    if mask is None:
        return numbers
    return jnp.concatenate([numbers, mask.astype(numbers.dtype)], -1)


def _split(statistics: Statistics, x: Array) -> tuple[Array, Array | None]:
    """The numbers of ``x`` that the statistics are of, and the action mask behind them; None where
    there is none."""
    shape = statistics.mean.shape
    if not shape or x.shape[-1] == shape[-1]:
        return x, None
    return x[..., : shape[-1]], x[..., shape[-1] :]


def scale_rewards(
    pool: Pool,
    statistics: Statistics | None,
    running: Array,
    rollout: Rollout,
    gamma: Array | float,
) -> tuple[Rollout, Array, Statistics | None]:
    """The rollout with its rewards divided by the deviation of the running discounted return, and
    clipped to ±10, as VecNormalize of OpenAI Baselines does; without statistics the rollout itself.

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
    (moments,) = pooled_moments(pool, _samples(totals, rollout.valid))
    statistics = merge(statistics, *moments)
    scale = 1 / jnp.sqrt(statistics.variance + 1e-8)
    reward = pool.map(lambda reward: jnp.clip(reward * scale, -10.0, 10.0), rollout.reward)
    return rollout._replace(reward=reward), running, statistics


class Learned(Protocol):
    """What a value function learned from, of every sample: ``[S, L, n]``."""

    @property
    def obs(self) -> Array:
        """Not normalized, ``[S, L, n, *shape]``."""
        ...

    @property
    def advantage(self) -> Array:
        """Target less value."""
        ...

    @property
    def target(self) -> Array: ...
    @property
    def valid(self) -> Array: ...


class Advantages(NamedTuple):
    """What normalizes the advantages of each batch that is learned from, ``[...]`` of all batches,
    and how good the values are that they were made with."""

    mean: Array  # 0 where normalizing is switched off
    scale: Array  # one over the standard deviation; 1 where normalizing is switched off
    explained_variance: Array  # [] how much of the targets' variance the values explain: 1 is all


def advantages(
    pool: Pool,
    samples: Learned,
    normalized: bool,
    observation: Statistics | None,
    orders: Array | None = None,
) -> tuple[Advantages, Statistics | None]:
    """The moments of the valid advantages of each minibatch, over all shards, and what `update`
    makes of the statistics of observations.

    Advantages and observations do not change within an iteration, so all moments that it needs
    travel together, before the first gradient step.

    Args:
      samples: ``[S, L, n]``.
      normalized: whether advantages are to be normalized.
      observation: statistics of the observations so far; None stays None.
      orders: the indices, of ``n``, that make up each minibatch, ``[S, steps, m]``; None: all
        samples are one batch.

    Returns:
      The mean and the scale ``[steps]``, or ``[]`` of the one batch; and the statistics with the
      observations of these samples, for the next iteration.
    """
    shards = samples.valid.shape[0]
    observed = () if observation is None else (_split(observation, samples.obs)[0],)
    batches = [_samples((samples.advantage, samples.target, *observed), samples.valid)]
    if normalized and orders is not None:
        advantage, valid = (  # [S, L, m, steps]
            jax.vmap(lambda x, order: x[:, order.T])(x, orders)
            for x in (samples.advantage, samples.valid)
        )
        steps = orders.shape[1]
        batches.append((advantage.reshape(shards, -1, steps), valid.reshape(shards, -1, steps)))
    whole, *others = pooled_moments(pool, *batches)
    if observation is not None:
        mean, variance = (x[2:].reshape(observation.mean.shape) for x in whole[1:])
        observation = merge(observation, whole.number, mean, variance)
    explained = 1 - whole.variance[0] / jnp.maximum(whole.variance[1], 1e-8)
    if not normalized:
        shape = () if orders is None else orders.shape[1]
        return Advantages(jnp.zeros(shape), jnp.ones(shape), explained), observation
    mean, variance = whole.mean[0], whole.variance[0]
    if others:  # of minibatches
        _, mean, variance = others[0]
    return Advantages(mean, 1 / (jnp.sqrt(variance) + 1e-8), explained), observation
