"""Return and advantage estimators: pure functions of ``[T, B]`` arrays, each written once."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_scale.types import Array


def gae(
    value: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    gamma: Array | float,
    gae_lambda: Array | float,
) -> Array:
    """Generalised advantage estimation, https://arxiv.org/abs/1506.02438, equations 11 and 16.

    A terminated step has no successor: its target is the reward alone. A truncated one
    bootstraps from the value of its true last observation, which next-step auto-reset keeps
    at ``t + 1``. Neither lets the sum run on into the next episode.

    Args:
      value: ``V(obs[t])``, ``[T + 1, B]``.
      reward, terminated, truncated, valid: ``[T, B]``; see `jaxrl_scale.types.Rollout`.
      gamma, gae_lambda: scalars.

    Returns:
      Advantages ``[T, B]``; 0 where ``valid`` is False.
    """
    bootstrap = jnp.where(terminated, 0.0, value[1:])
    delta = jnp.where(valid, reward + gamma * bootstrap - value[:-1], 0.0)
    decay = jnp.where(terminated | truncated | ~valid, 0.0, gamma * gae_lambda)

    def backward(advantage_tp1: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        delta_t, decay_t = step
        advantage_t = delta_t + decay_t * advantage_tp1
        return advantage_t, advantage_t

    _, advantage = jax.lax.scan(backward, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)
    return advantage


def running_discounted_return(
    start: Array, reward: Array, ended: Array, gamma: Array | float
) -> tuple[Array, Array]:
    """The discounted sum of past rewards of each episode, for reward scaling.

    ``R[t] = gamma * R[t - 1] + r[t]``, begun anew after an episode's end.

    Args:
      start: the sum carried over from the rollout before, ``[B]``.
      reward, ended: ``[T, B]``; ``ended`` is terminated or truncated.
      gamma: the same discount that the returns use.

    Returns:
      ``R`` of every step, ``[T, B]``, and what to carry on, ``[B]``.
    """

    def forward(total: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        reward_t, ended_t = step
        total = gamma * total + reward_t
        return jnp.where(ended_t, 0.0, total), total

    carried, totals = jax.lax.scan(forward, start, (reward, ended))
    return totals, carried
