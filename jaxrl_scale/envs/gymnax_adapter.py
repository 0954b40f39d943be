"""Environments of gymnax (>= 1.0.1), adapted to the contract of `jaxrl_scale.types.Environment`.

The adapter uses gymnax's ``reset_env`` and ``step_env``, which do not reset by themselves.
``step_env`` reports only the natural end of an episode (``terminated``); ``is_truncated`` reports
the time limit. ``spec.max_episode_steps`` holds the same limit. gymnax counts steps as this
package does, so both cut an episode at the same step.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.envs.libraries import check_parameters, defaults_of, fields_of, settled
from jaxrl_scale.errors import RunError, closest
from jaxrl_scale.types import Array, Box, Discrete, EnvSpec, Key, PyTree, TimeStep
from jaxrl_scale.user_code import errors_in_one_line


def make(name: str, **kwargs: Any) -> GymnaxEnv:
    """The gymnax environment ``name``. ``kwargs`` are arguments of its class or fields of its
    params."""
    import gymnax  # takes seconds, because it imports plotting libraries

    if name not in gymnax.registered_envs:
        known = list(gymnax.registered_envs)
        near = closest(name, known, cutoff=0.0)
        raise RunError(
            f"gymnax has no environment {name!r}. Did you mean 'gymnax:{near}'? "
            f"It has {', '.join(known)}"
        )
    env, params = gymnax.make(name)
    arguments = defaults_of(type(env))
    what = f"environment 'gymnax:{name}'"
    check_parameters(what, kwargs, arguments | fields_of(params))
    with errors_in_one_line(what):
        if given := {k: x for k, x in kwargs.items() if k in arguments}:
            env, params = gymnax.make(name, **given)
        others = {k: x for k, x in kwargs.items() if k not in arguments}
        params = dataclasses.replace(params, **others)
        adapted = GymnaxEnv(f"gymnax:{name}", env, params)
    if len(adapted.spec.observation_shape) == 3:
        return GymnaxImageEnv(f"gymnax:{name}", env, params)
    return adapted


class GymnaxEnv:
    """One environment of gymnax. A discrete observation becomes a one-hot vector."""

    def __init__(self, name: str, env: Any, params: Any) -> None:
        self._env, self._params = env, params
        self._classes = getattr(env.observation_space(params), "n", None)
        _, obs = jax.eval_shape(self.reset, jax.random.key(0))
        if not hasattr(obs, "shape"):
            raise RunError(
                f"{name} observes {obs}; only one array, or one discrete value, is supported"
            )
        limit = getattr(params, "max_steps_in_episode", None)
        self.spec = EnvSpec(
            id=name,
            observation_shape=obs.shape,
            action=_action(name, env.action_space(params)),
            max_episode_steps=None if limit is None else int(limit),
            observation_dtype=np.dtype(obs.dtype),
        )

    def reset(self, key: Key) -> tuple[PyTree, Array]:
        obs, state = self._env.reset_env(key, self._params)
        return jax.tree.map(settled, state), self._encoded(obs)

    def step(self, key: Key, state: PyTree, action: Array) -> tuple[PyTree, TimeStep]:
        obs, state, reward, terminated, _ = self._env.step_env(key, state, action, self._params)
        terminated = jnp.asarray(terminated, bool)
        truncated = jnp.asarray(self._env.is_truncated(state, self._params), bool)
        return jax.tree.map(settled, state), TimeStep(
            obs=self._encoded(obs),
            reward=jnp.asarray(reward).astype(jnp.float32),
            terminated=terminated,
            truncated=truncated & ~terminated,
        )

    def _encoded(self, obs: Any) -> Any:
        if self._classes is None:
            return settled(obs)
        return jax.nn.one_hot(obs, self._classes, dtype=jnp.float32)


class GymnaxImageEnv(GymnaxEnv):
    """An environment that observes a stack of planes, ``[height, width, planes]``, as MinAtar's
    do."""

    def render(self, state: PyTree) -> np.ndarray:
        """A uint8 frame of about 400 x 400 pixels, with one colour per plane on black.

        Where planes overlap, the first one is drawn. In MinAtar that is the player.
        """
        obs = np.asarray(self._env.observe(jax.random.key(0), state, None, self._params))
        first = np.where((obs > 0).any(axis=2), (obs > 0).argmax(axis=2), obs.shape[2])
        colours = np.vstack([_hues(obs.shape[2]), np.zeros(3)]).astype(np.uint8)
        side = max(1, 400 // max(obs.shape[:2]))
        return np.repeat(np.repeat(colours[first], side, axis=0), side, axis=1)


def _hues(count: int) -> np.ndarray:
    """``count`` bright colours, evenly spaced on the colour circle, ``[count, 3]`` in 0 … 255."""
    phase = np.arange(count)[:, None] / count + np.array([0.0, 1 / 3, 2 / 3])
    return 150 + 105 * np.cos(2 * np.pi * phase)


def _action(name: str, space: Any) -> Discrete | Box:
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    if not hasattr(space, "low"):
        raise RunError(f"{name} acts in {space}; Discrete and Box are supported")
    low, high = np.unique(space.low), np.unique(space.high)
    if low.size > 1 or high.size > 1:
        raise RunError(
            f"{name} has actions of different bounds ({low} … {high}); only one pair of bounds for "
            "all actions is supported"
        )
    return Box(float(low[0]), float(high[0]), tuple(space.shape))
