"""Stepping through an environment with a debugger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.envs.check import best, check_object, on_host
from jaxrl_scale.errors import RunError
from jaxrl_scale.options import given_number
from jaxrl_scale.types import (
    Array,
    Discrete,
    Environment,
    EnvSpec,
    Key,
    MultiDiscrete,
    PyTree,
    TimeStep,
)


class Transition(NamedTuple):
    """One step of one environment: from which state and observation it was made, with which action,
    and what it returned."""

    state: PyTree
    obs: Array  # [*observation_shape]
    action: Array  # [*action.shape] as the environment was given it
    step: TimeStep  # truncated by the time limit, too


def play(
    env: Environment,
    steps: int = 20,
    policy: Callable[[Array], Any] | None = None,
    seed: int = 0,
) -> list[Transition]:
    """Step an environment as plain Python, where ``breakpoint()`` and ``print`` in its methods see
    numbers.

    In a run the methods are traced once and compiled: what stands in them sees arrays that have no
    values yet. Here nothing is compiled or batched, loops of `jax.lax` included, so that a step
    takes milliseconds to seconds. The environment is not checked (`check_env` does that), and its
    errors come with their tracebacks.

    Args:
      env: one that runs on the devices. One on the host is plain Python as it is.
      steps: how many to make. Where an episode ends, by its time limit too, the next one begins.
      policy: ``obs [*observation_shape] -> action [*action.shape]``; by default actions are random,
        of those that an action mask allows. Those outside of a `Box` are clipped, as in a run.
      seed: of all random numbers, from 0.

    Returns:
      A `Transition` for each step.

    Raises:
      RunError: if the environment runs on the host, or is none.
    """
    check_object(env)
    steps = given_number("steps", steps, 0)
    if on_host(env):
        raise RunError(f"{env.spec.id} runs on the host: its simulator can be stepped as it is")
    space, limit = env.spec.action, env.spec.max_episode_steps
    keys = jax.random.split(jax.random.key(seed), (steps, 3))
    drawn = [_random(env.spec, key[0]) for key in keys]  # here, where code is compiled
    made: list[Transition] = []
    ended, length = True, 0
    with jax.disable_jit():
        for random, (_, key_reset, key_step) in zip(drawn, keys, strict=True):
            if ended:
                (state, obs), length = env.reset(key_reset), 0
            chosen = policy(obs) if policy else _allowed(env.spec, obs, random)
            action = space.clip(jnp.asarray(chosen, space.dtype))
            following, step = env.step(key_step, state, action)
            length += 1
            if limit and length >= limit:
                step = step._replace(truncated=jnp.ones((), bool))
            made.append(Transition(state, obs, action, step))
            state, obs, ended = following, step.obs, bool(step.terminated | step.truncated)
    return made


def _random(spec: EnvSpec, key: Key) -> Array:
    """An action; where an observation has a mask, a number for each that `_allowed` chooses by."""
    space = spec.action
    if spec.action_mask:
        return jax.random.uniform(key, (sum(space.sizes),))
    if isinstance(space, Discrete):
        return jax.random.randint(key, (), 0, space.n)
    if isinstance(space, MultiDiscrete):
        return jax.random.randint(key, space.shape, 0, jnp.asarray(space.sizes))
    if np.isinf([space.low, space.high]).any():
        return jax.random.normal(key, space.shape)
    return jax.random.uniform(key, space.shape, minval=space.low, maxval=space.high)


def _allowed(spec: EnvSpec, obs: Array, random: Array) -> Any:
    """The action that `_random` drew; of masked ones that with the largest of its numbers."""
    if not spec.action_mask:
        return random
    return best(spec.action, np.asarray(random) + np.asarray(obs)[-len(random) :])
