"""Return and advantage estimators: pure functions of ``[T, B]`` arrays, each written once."""

from __future__ import annotations

from typing import Protocol

import chex
import jax
import jax.numpy as jnp

from jaxrl_scale.types import Array


class Steps(Protocol):
    """What the estimators read of a `jaxrl_scale.types.Rollout`, all ``[T, B]``."""

    @property
    def reward(self) -> Array: ...
    @property
    def terminated(self) -> Array: ...
    @property
    def truncated(self) -> Array: ...
    @property
    def valid(self) -> Array: ...


def gae(value: Array, steps: Steps, gamma: Array | float, gae_lambda: Array | float) -> Array:
    """Generalised advantage estimation, https://arxiv.org/abs/1506.02438, equations 11 and 16.

    A terminated step has no successor: its target is the reward alone. A truncated one
    bootstraps from the value of its true last observation, which next-step auto-reset keeps
    at ``t + 1``. Neither lets the sum run on into the next episode.

    Args:
      value: ``V(obs[t])``, ``[T + 1, B]``.
      steps: ``[T, B]``.
      gamma, gae_lambda: scalars.

    Returns:
      Advantages ``[T, B]``; 0 where ``valid`` is False.
    """
    delta = temporal_difference(value, steps, gamma)
    decay = jnp.where(runs_on(steps), gamma * gae_lambda, 0.0)

    def backward(advantage_tp1: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        delta_t, decay_t = step
        advantage_t = delta_t + decay_t * advantage_tp1
        return advantage_t, advantage_t

    _, advantage = jax.lax.scan(backward, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)
    return advantage


def lambda_returns(
    value: Array, steps: Steps, gamma: Array | float, return_lambda: Array | float
) -> Array:
    """λ-returns, https://arxiv.org/abs/2407.04811 (PQN), section 3.

    ``G[t] = r[t] + gamma * ((1 - λ) * value[t + 1] + λ * G[t + 1])``; the reward alone where
    the task ended, ``r[t] + gamma * value[t + 1]`` where the episode was cut and at the
    rollout's end. Less ``value[t]`` this is the recursion of `gae`.

    Args:
      value: ``max_a Q(obs[t], a)`` for Q-learning, ``[T + 1, B]``.
      steps: ``[T, B]``.
      gamma, return_lambda: scalars.

    Returns:
      Targets ``[T, B]``; the value itself where ``valid`` is False.
    """
    return value[:-1] + gae(value, steps, gamma, return_lambda)


def vtrace(
    value: Array,
    ratio: Array,
    steps: Steps,
    gamma: Array | float,
    vtrace_lambda: Array | float,
    rho_clip: Array | float,
    c_clip: Array | float,
) -> tuple[Array, Array]:
    """V-trace, https://arxiv.org/abs/1802.01561: values and advantages of the current policy
    from steps that another one took.

    With ``ρ = min(rho_clip, ratio)``, ``c = λ min(c_clip, ratio)`` and the temporal difference
    ``δ[t] = r[t] + gamma * V[t + 1] - V[t]`` the targets are (equation 1 and remark 1)
    ``v[t] = V[t] + ρ[t] δ[t] + gamma * c[t] * (v[t + 1] - V[t + 1])``, and the advantages
    ``ρ[t] * (r[t] + gamma * q[t + 1] - V[t])`` (section 4.2), where ``q = λ v + (1 - λ) V`` as
    in rlax, so that with ratios of 1 both are those of `gae`; the paper has λ = 1.

    Args:
      value: ``V(obs[t])`` of the current parameters, ``[T + 1, B]``.
      ratio: current over acting policy's probability of the action, ``[T, B]``.
      steps: ``[T, B]``.
      gamma: scalar, or a discount of each step, ``[T, B]``.
      vtrace_lambda, rho_clip, c_clip: scalars.

    Returns:
      Targets ``[T, B]``, the value itself where ``valid`` is False, and advantages ``[T, B]``,
      0 there.
    """
    chex.assert_equal_shape([ratio, steps.reward])
    rho, c = jnp.minimum(rho_clip, ratio), vtrace_lambda * jnp.minimum(c_clip, ratio)
    delta = temporal_difference(value, steps, gamma)
    discount = jnp.where(runs_on(steps), gamma, 0.0)

    def backward(excess_tp1: Array, step: tuple[Array, ...]) -> tuple[Array, Array]:
        """``excess = v - V``."""
        rho_delta_t, decay_t = step
        excess_t = rho_delta_t + decay_t * excess_tp1
        return excess_t, excess_t

    _, excess = jax.lax.scan(
        backward, jnp.zeros_like(delta[0]), (rho * delta, discount * c), reverse=True
    )
    excess_tp1 = jnp.concatenate([excess[1:], jnp.zeros_like(excess[:1])])
    return value[:-1] + excess, rho * (delta + discount * vtrace_lambda * excess_tp1)


def temporal_difference(value: Array, steps: Steps, gamma: Array | float) -> Array:
    """``r[t] + gamma * V[t + 1] - V[t]``, ``[T, B]``: without ``V[t + 1]`` where the task ended,
    and 0 where ``valid`` is False."""
    chex.assert_rank([value, steps.reward], 2)
    chex.assert_equal_shape(
        [value[1:], steps.reward, steps.terminated, steps.truncated, steps.valid]
    )
    bootstrap = jnp.where(steps.terminated, 0.0, value[1:])
    return jnp.where(steps.valid, steps.reward + gamma * bootstrap - value[:-1], 0.0)


def runs_on(steps: Steps) -> Array:
    """Whether the step behind one belongs to the same episode, ``[T, B]``."""
    return ~(steps.terminated | steps.truncated) & steps.valid


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
    chex.assert_equal_shape([reward, ended])
    chex.assert_equal_shape([start, reward[0]])

    def forward(total: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        reward_t, ended_t = step
        total = gamma * total + reward_t
        return jnp.where(ended_t, 0.0, total), total

    carried, totals = jax.lax.scan(forward, start, (reward, ended))
    return totals, carried
