"""Distributions of actions, as functions of what a network returns: a categorical one, several of
these side by side, a Gaussian one, and the squashed Gaussian of SAC."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.types import ActionSpace, Array, Box, Discrete, Key, MultiDiscrete


class Distribution(NamedTuple):
    """What a distribution of actions can do, as functions of the network's ``policy`` output."""

    size: int
    free: int
    """How many of the ``size`` do not depend on the observation: a Gaussian's deviations"""
    sample: Callable[[Key, Array], Array]
    """``(key, policy [..., size]) -> action [..., *action.shape]``"""
    mode: Callable[[Array], Array]
    """``(policy) -> action``, the most probable"""
    log_prob: Callable[[Array, Array], Array]
    """``(policy, action) -> [...]``"""
    entropy: Callable[[Array], Array]
    """``(policy) -> [...]``"""
    parameters: Callable[[Array], dict[str, Array]]
    """``(policy) -> {"probabilities": [..., n]}``, of actions of several parts ``[..., parts,
    n]`` where ``n`` is the largest size and smaller parts have zeros behind theirs, or ``{"mean":
    [..., *action.shape], "std": the same}`` of continuous actions"""

    def choose(self, key: Key, policy: Array, greedy: bool) -> Array:
        """A sample, or the most probable action; ``greedy`` is a Python bool."""
        return self.mode(policy) if greedy else self.sample(key, policy)


def of(action: ActionSpace, masked: bool = False) -> Distribution:
    """That of an environment's actions. ``masked``: those with a logit of -inf must not be drawn,
    not even once in ten million times."""
    if isinstance(action, Box):
        return gaussian(action)
    if isinstance(action, MultiDiscrete):
        return independent(action, masked)
    return categorical(action, masked)


def categorical(action: Discrete, masked: bool = False) -> Distribution:
    """Actions ``0 … n - 1`` with the network's output as logits."""

    def sample(key: Key, logits: Array) -> Array:
        # By the inverse of the cumulative distribution: one random number an action where
        # the Gumbel trick takes n and as many logarithms.
        cumulative = jnp.cumsum(jax.nn.softmax(logits), -1)
        u = jax.random.uniform(key, logits.shape[:-1])[..., None] * cumulative[..., -1:]
        drawn = jnp.minimum((u >= cumulative).sum(-1, dtype=jnp.int32), action.n - 1)
        if not masked:
            return drawn
        # The sums are rounded, so that one may grow where nothing was added.
        chosen = jax.nn.one_hot(drawn, action.n, dtype=bool)
        return jnp.where((chosen & (logits == -jnp.inf)).any(-1), mode(logits), drawn)

    def mode(logits: Array) -> Array:
        return logits.argmax(-1)

    def log_probs(logits: Array) -> Array:
        # A network may mask an action with a logit of -inf; 0 * -inf would be NaN below.
        return jnp.maximum(jax.nn.log_softmax(logits), jnp.finfo(logits.dtype).min)

    def log_prob(logits: Array, a: Array) -> Array:
        # A product with one-hot rows instead of a gather: faster, and so is its gradient.
        chosen = jax.nn.one_hot(a, action.n, dtype=logits.dtype)
        return (log_probs(logits) * chosen).sum(-1)

    def entropy(logits: Array) -> Array:
        log_p = log_probs(logits)
        return -(jnp.exp(log_p) * log_p).sum(-1)

    def parameters(logits: Array) -> dict[str, Array]:
        return {"probabilities": jax.nn.softmax(logits)}

    return Distribution(action.n, 0, sample, mode, log_prob, entropy, parameters)


def independent(action: MultiDiscrete, masked: bool = False) -> Distribution:
    """Actions of several parts, of which each is `categorical` by itself: the network's output is
    the logits of the first part, then those of the second, and so on."""
    sizes = np.array(action.sizes, np.int32)
    each = categorical(Discrete(int(sizes.max())), masked)
    number = np.arange(sizes.max())
    there = number < sizes[:, None]  # [parts, widest]
    starts = np.cumsum(sizes) - sizes
    at = np.where(there, starts[:, None] + number, 0).astype(np.int32)

    def rows(logits: Array) -> Array:
        """``[..., parts, widest]``, with logits of -inf behind those of a smaller part: so that all
        parts are computed as one array, however many there are."""
        shape = (*logits.shape[:-1], *there.shape)
        if there.all():
            return logits.reshape(shape)
        found = jnp.take(logits, at, axis=-1, mode="clip")
        return jnp.where(jnp.broadcast_to(there, shape), found, -jnp.inf)

    def sample(key: Key, logits: Array) -> Array:
        drawn = each.sample(key, rows(logits))
        # Its sums are rounded, so that a draw may fall behind a smaller part's last number.
        return jnp.minimum(drawn, jnp.broadcast_to(sizes - 1, drawn.shape))

    return Distribution(
        size=int(sizes.sum()),
        free=0,
        sample=sample,
        mode=lambda logits: each.mode(rows(logits)),
        log_prob=lambda logits, a: each.log_prob(rows(logits), a).sum(-1),
        entropy=lambda logits: each.entropy(rows(logits)).sum(-1),
        parameters=lambda logits: each.parameters(rows(logits)),
    )


def gaussian(action: Box) -> Distribution:
    """A diagonal Gaussian: the network's output is mean and log standard deviation.

    Samples are not bounded; `jaxrl_scale.loop.rollout` clips what the environment sees to the
    box, the likelihood is that of the unclipped action (as CleanRL and SB3 do).
    """
    size = math.prod(action.shape)

    def split(policy: Array) -> tuple[Array, Array]:
        return policy[..., :size], policy[..., size:]

    def shaped(x: Array) -> Array:
        return x.reshape(*x.shape[:-1], *action.shape)

    def sample(key: Key, policy: Array) -> Array:
        mean, log_std = split(policy)
        return shaped(mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape))

    def log_prob(policy: Array, a: Array) -> Array:
        mean, log_std = split(policy)
        z = (a.reshape(mean.shape) - mean) * jnp.exp(-log_std)
        return (-0.5 * jnp.square(z) - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(policy: Array) -> Array:
        return (split(policy)[1] + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def mode(policy: Array) -> Array:
        return shaped(split(policy)[0])

    def parameters(policy: Array) -> dict[str, Array]:
        return {"mean": mode(policy), "std": shaped(jnp.exp(split(policy)[1]))}

    return Distribution(2 * size, size, sample, mode, log_prob, entropy, parameters)


LOG_STD = -20.0, 2.0
"""Bounds of the log standard deviation of a squashed Gaussian, as published."""


def gaussian_of(policy: Array) -> tuple[Array, Array]:
    """Mean and log standard deviation, ``[..., n]`` each, of the Gaussian numbers that `squashed`
    makes actions of."""
    mean, log_std = jnp.split(policy, 2, axis=-1)
    return mean, jnp.clip(log_std, *LOG_STD)


def squashed(policy: Array, noise: Array) -> tuple[Array, Array]:
    """Actions of a squashed Gaussian, the hyperbolic tangent of Gaussian numbers, and the logarithm
    of their density between -1 and 1 (https://arxiv.org/abs/1812.05905, appendix C).

    Args:
      policy: means and log standard deviations, ``[..., 2 n]``.
      noise: standard normal, ``[..., n]``.

    Returns:
      ``[..., n]`` and ``[...]``.
    """
    mean, log_std = gaussian_of(policy)
    gaussian = mean + jnp.exp(log_std) * noise
    log_density = -0.5 * jnp.square(noise) - log_std - 0.5 * math.log(2 * math.pi)
    return jnp.tanh(gaussian), (log_density - log_slope(gaussian)).sum(-1)


@jax.custom_jvp
def log_slope(x: Array) -> Array:
    """``log(1 - tanh(x)²)``, which far from 0 would be the logarithm of a rounding error.

    Its derivative is -2 tanh(x). By itself JAX would take the formula's, which costs more; and XLA
    would vectorize its kernel, or not, by where the program has left its inputs in memory, so that
    SAC on Pendulum had other bits on two devices than on one (jaxlib 0.11.2).
    """
    return 2 * (math.log(2) - x - jax.nn.softplus(-2 * x))


@log_slope.defjvp
def _log_slope_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return log_slope(*primals), -2 * jnp.tanh(primals[0]) * tangents[0]
