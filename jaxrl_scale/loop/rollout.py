"""Many environments at once: batching, next-step auto-reset, time limits, collection by scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.learning.masks import trailing
from jaxrl_scale.types import (
    OWN_NUMBERS,
    Algorithm,
    Array,
    Environment,
    Key,
    Metrics,
    Played,
    PyTree,
    Rollout,
    TimeStep,
)


class Environments(NamedTuple):
    """The ``B`` environments of one shard between two steps."""

    state: PyTree  # [B, ...] the environments' own
    obs: Array  # [B, *observation_shape] what the next action is chosen from
    is_first: Array  # [B] bool: obs opens an episode
    ended: Array  # [B] bool: obs closed an episode, so the next step resets
    episode_return: Array  # [B] float32, undiscounted, of the episode at hand
    episode_length: Array  # [B] int32


class Outcome(NamedTuple):
    """What one step of ``B`` environments adds to a `Rollout`, each ``[B]``, and ``info``, the
    environment's own numbers, ``[B]`` each, which mean nothing where the step is not valid."""

    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    info: Metrics


class Ended(NamedTuple):
    """The episodes that ended at the steps of a rollout, each ``[T, B]``; 0 where none did."""

    ended: Array  # bool
    episode_return: Array  # float32
    episode_length: Array  # int32


class Episodes(NamedTuple):
    """Sums over the episodes that ended in a rollout, and its valid steps; all scalars."""

    ended: Array  # int32, how many
    total_return: Array  # float32
    total_length: Array  # float32: int32 would overflow when many long episodes end together
    steps: Array  # int32, valid ones


def reset(env: Environment, key: Key, num_envs: int) -> Environments:
    """``num_envs`` fresh episodes."""
    state, obs = jax.vmap(env.reset)(jax.random.split(key, num_envs))
    return Environments(
        state=state,
        obs=obs,
        is_first=jnp.ones(num_envs, bool),
        ended=jnp.zeros(num_envs, bool),
        episode_return=jnp.zeros(num_envs),
        episode_length=jnp.zeros(num_envs, jnp.int32),
    )


def step(
    env: Environment,
    keys: Key,
    envs: Environments,
    action: Array,
    fresh: tuple[PyTree, Array] | None = None,
) -> tuple[Environments, Outcome]:
    """Step the running environments, reset the ended ones.

    A batched program steps every environment, and resets all of them where any has ended; what is
    not needed is thrown away. Where an episode has ended it is the fresh state that is stepped:
    `Environment.step` never sees an ended one, from which it might not return.

    Args:
      keys: ``[B, 2]``, for the reset and for the step.
      action: ``[B, *action.shape]``; clipped to the box, ignored where an episode ended.
      fresh: the states ``[B, ...]`` and observations that ended environments are given, where
        nobody looks at what they do next; None: those of new episodes.
    """
    running, limit = ~envs.ended, env.spec.max_episode_steps

    def choose(running_value: Array, reset_value: Array) -> Array:
        return jnp.where(trailing(running, running_value), running_value, reset_value)

    action = env.spec.action.clip(action)
    if fresh is None:
        fresh = _begin(env, envs.ended, keys[:, 0])
    fresh_state, fresh_obs = fresh
    before = jax.tree.map(choose, envs.state, fresh_state)
    state, seen = jax.vmap(env.step)(keys[:, 1], before, action)
    seen = TimeStep(*seen)

    length = jnp.where(running, envs.episode_length + 1, 0)
    truncated = seen.truncated | (length >= limit) if limit else seen.truncated
    outcome = Outcome(
        reward=jnp.where(running, seen.reward, 0.0).astype(jnp.float32),
        terminated=running & seen.terminated,
        truncated=running & truncated,
        valid=running,
        info=seen.info or {},
    )
    following = Environments(
        state=jax.tree.map(choose, state, fresh_state),
        obs=choose(seen.obs, fresh_obs),
        is_first=envs.ended,
        ended=outcome.terminated | outcome.truncated,
        episode_return=jnp.where(running, envs.episode_return, 0.0) + outcome.reward,
        episode_length=length,
    )
    return following, outcome


RESETS_AT_ONCE = 4
"""Environments that begin side by side where a reset is costly: of 128 of Craftax rarely more than
one has ended, and resetting all of them took two thirds of the time of a rollout."""


def _begin(env: Environment, ended: Array, keys: Key) -> tuple[PyTree, Array]:
    """States and observations of new episodes for the environments that have ``ended [B]``; what
    others are given means nothing."""
    reset = jax.vmap(env.reset)

    def nothing(keys: Key) -> PyTree:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(reset, keys))

    if not env.spec.costly_reset:
        # LunarLander's steps its bodies once, which in every step of a rollout took a fifth of the
        # time of an iteration.
        return jax.lax.cond(ended.any(), reset, nothing, keys)
    ended_first, few = jnp.argsort(~ended), min(RESETS_AT_ONCE, len(ended))

    def begin_few(i: Array, begun: PyTree) -> PyTree:
        which = jax.lax.dynamic_slice_in_dim(ended_first, i * few, few)
        return jax.tree.map(lambda x, new: x.at[which].set(new), begun, reset(keys[which]))

    return jax.lax.fori_loop(0, -(-ended.sum() // few), begin_few, nothing(keys))


def collect(
    env: Environment,
    algo: Algorithm,
    length: int,
    actor: PyTree,
    local: PyTree,
    carry: PyTree,
    envs: Environments,
    key: Key,
) -> tuple[PyTree, Environments, Rollout, Episodes, Metrics]:
    """``length`` steps of one shard's environments under the algorithm's policy.

    Returns:
      The policy's memory and the environments after the last step, the rollout ``[T, B]``,
      the sums over the episodes that ended in it, and those of the environment's own numbers.
    """
    num_envs = envs.is_first.shape[0]
    keys = jax.random.split(key, (length, 1 + 2 * num_envs))
    act_keys, env_keys = keys[:, 0], keys[:, 1:].reshape(length, num_envs, 2)

    def one_step(moving: tuple[PyTree, Environments], keys: tuple[Key, Key]) -> tuple[tuple, tuple]:
        carry, envs = moving
        action, carry, extras = algo.act(actor, local, carry, envs.obs, envs.is_first, keys[0])
        following, outcome = step(env, keys[1], envs, action)
        ended = following.ended
        episode = Ended(
            ended,
            jnp.where(ended, following.episode_return, 0.0),
            jnp.where(ended, following.episode_length, 0),
        )
        return (carry, following), (envs.obs, envs.is_first, action, outcome, extras, episode)

    (last_carry, last), (obs, is_first, action, outcome, extras, episode) = jax.lax.scan(
        one_step, (carry, envs), (act_keys, env_keys)
    )
    rollout = Rollout(
        obs=jnp.concatenate([obs, last.obs[None]]),
        is_first=jnp.concatenate([is_first, last.is_first[None]]),
        action=action,
        reward=outcome.reward,
        terminated=outcome.terminated,
        truncated=outcome.truncated,
        valid=outcome.valid,
        carry=carry,
        extras=extras,
    )
    info = sum_info(outcome.info, outcome.valid, episode.ended)
    return last_carry, last, rollout, sum_episodes(episode, outcome.valid), info


def sum_episodes(episode: Ended, valid: Array) -> Episodes:
    """Over a rollout whose steps were ``valid [T, B]``."""
    return Episodes(
        ended=episode.ended.sum(dtype=jnp.int32),
        total_return=episode.episode_return.sum(),
        total_length=episode.episode_length.astype(jnp.float32).sum(),
        steps=valid.sum(dtype=jnp.int32),
    )


def sum_info(info: Metrics, valid: Array, ended: Array) -> Metrics:
    """The sums of an environment's own numbers ``[T, B]``, float32: over the ``valid`` steps and
    over those that ``ended`` an episode, by the prefixes of `OWN_NUMBERS`."""
    masks = dict(zip(OWN_NUMBERS, (valid, ended), strict=True))
    return {
        prefix + name: jnp.where(mask, x.astype(jnp.float32), 0.0).sum()
        for name, x in info.items()
        for prefix, mask in masks.items()
    }


def play_episodes(
    env: Environment,
    play: Callable[..., tuple[Array, PyTree]],
    actor: PyTree,
    carry: PyTree,
    num_episodes: int,
    limit: int,
    key: Key,
) -> Played:
    """One whole episode in each of ``num_episodes`` environments.

    Args:
      play: ``(actor, carry, obs, is_first, key) -> (action, carry)``.
      limit: steps after which an episode without end is cut, as if it ended there.

    Returns:
      What was played, ``[num_episodes]`` each.
    """
    key_reset, key_steps = jax.random.split(key)
    first = reset(env, key_reset, num_episodes)

    @partial(jax.jit, inline=True)  # traced once, for the shapes of `info` and for the loop
    def advance(t: Array, carry: PyTree, envs: Environments) -> Any:
        key_act, key_env = jax.random.split(jax.random.fold_in(key_steps, t))
        action, carry = play(actor, carry, envs.obs, envs.is_first, key_act)
        env_keys = jax.random.split(key_env, (num_episodes, 2))
        # Only first episodes count, so that no other reset has to be compiled.
        return carry, *step(env, env_keys, envs, action, (first.state, first.obs))

    def running(moving: tuple) -> Array:
        t, _, _, done, _ = moving
        return (t < limit) & ~done.all()

    def one_step(moving: tuple) -> tuple:
        t, carry, envs, done, played = moving
        carry, envs, outcome = advance(t, carry, envs)
        played = Played(
            returns=played.returns + jnp.where(done, 0.0, outcome.reward),
            lengths=played.lengths + jnp.where(done, 0, 1),
            info=add_info(played.info, outcome.info, done),
        )
        return t + 1, carry, envs, done | envs.ended, played

    start, nothing = jnp.zeros((), jnp.int32), jnp.zeros(num_episodes)
    *_, outcome = jax.eval_shape(advance, start, carry, first)
    played = nothing_played(nothing, outcome.info)
    moving = start, carry, first, nothing.astype(bool), played
    *_, played = jax.lax.while_loop(running, one_step, moving)
    return played


def nothing_played(nothing: Any, names: Iterable[str]) -> Played:
    """Before the first step: ``nothing`` is float32 zeros, and ``names`` are those of ``info``."""
    info = {prefix + name: nothing for name in names for prefix in OWN_NUMBERS}
    return Played(returns=nothing, lengths=nothing.astype(np.int32), info=info)


def add_info(
    before: dict[str, Any], info: dict[str, Any], done: Any, where: Any = jnp.where
) -> dict[str, Any]:
    """`Played.info` of episodes ``[num_episodes]`` after a step with this ``info``, which counts
    where they were not ``done`` before. ``where``: JAX's, or NumPy's for arrays of the host."""
    steps, end = OWN_NUMBERS
    after = {}
    for name, x in info.items():
        x = x.astype(np.float32)
        after[steps + name] = before[steps + name] + where(done, np.float32(0), x)
        after[end + name] = where(done, before[end + name], x)
    return after
