"""Environments of Jumanji (>= 1.1, https://arxiv.org/abs/2306.09884), adapted to the contract of
`jaxrl_scale.types.Environment`.

What one of them observes is a tree of arrays; an agent sees their numbers as one vector, with the
``action_mask`` at its end. A mask that has a number for each combination of an action's parts, such
as Tetris's rotations and columns, makes each combination an action of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.envs import libraries
from jaxrl_scale.errors import RunError
from jaxrl_scale.types import Array, Discrete, EnvSpec, Key, MultiDiscrete, PyTree, TimeStep
from jaxrl_scale.user_code import errors_in_one_line


def make(name: str, **kwargs: Any) -> JumanjiEnv:
    """The Jumanji environment ``name``. ``kwargs`` are arguments of its class, such as
    ``time_limit``."""
    what = f"environment 'jumanji:{name}'"
    jumanji = libraries.imported("Jumanji", "jumanji", "jumanji", what)
    libraries.check_known("Jumanji", name, tuple(jumanji.registered_environments()))
    with errors_in_one_line(what):
        env = jumanji.make(name)
        if kwargs:
            libraries.check_parameters(what, kwargs, libraries.defaults_of(type(env)))
            env = jumanji.make(name, **kwargs)
        return JumanjiEnv(f"jumanji:{name}", env)


class JumanjiEnv:
    """One environment of Jumanji."""

    def __init__(self, name: str, env: Any) -> None:
        what = f"environment {name!r}"
        state, begun = jax.eval_shape(env.reset, jax.random.key(0))
        if begun.reward.shape:
            raise RunError(
                f"{what} has rewards {list(begun.reward.shape)}, one for each of its agents; a run "
                "trains one agent"
            )
        self._env, self._parts = env, libraries.Parts(state)
        mask = next(iter(_seen(begun.observation)[1]), None)
        action, self._taken = _actions(what, env.action_spec, mask)
        self.spec = EnvSpec(
            id=name,
            observation_shape=jax.eval_shape(_vector, begun.observation).shape,
            action=action,
            action_mask=mask is not None,
        )

    def reset(self, key: Key) -> tuple[list[Array], Array]:
        state, begun = self._env.reset(key)
        return self._parts.of(state), _vector(begun.observation)

    def step(self, key: Key, state: list[Array], action: Array) -> tuple[list[Array], TimeStep]:
        after, seen = self._env.step(self._parts.together(state), self._taken(action))
        ended, terminated = seen.last(), seen.last() & (seen.discount == 0)
        return self._parts.of(after), TimeStep(
            obs=_vector(seen.observation),
            reward=jnp.asarray(seen.reward, jnp.float32),
            terminated=terminated,
            truncated=ended & ~terminated,
            info={name: x for name, x in (seen.extras or {}).items() if jnp.shape(x) == ()},
        )


def _seen(observation: PyTree) -> tuple[list[Any], list[Any]]:
    """The arrays of an observation, and its mask, if it has one."""
    arrays: list[Any] = []
    mask: list[Any] = []
    for path, x in jax.tree_util.tree_leaves_with_path(observation):
        (mask if getattr(path[-1], "name", None) == "action_mask" else arrays).append(x)
    return arrays, mask


def _vector(observation: PyTree) -> Array:
    """All numbers of an observation, its mask at the end."""
    arrays, mask = _seen(observation)
    return jnp.concatenate([jnp.ravel(x).astype(jnp.float32) for x in (*arrays, *mask)])


def _actions(
    what: str, spec: Any, mask: Any
) -> tuple[Discrete | MultiDiscrete, Callable[[Array], Array]]:
    """The actions, and what makes Jumanji's of one of ours."""
    if not hasattr(spec, "num_values"):
        raise RunError(
            f"{what} acts in a {type(spec).__name__}; DiscreteArray and MultiDiscreteArray are "
            "supported"
        )
    sizes = tuple(np.ravel(spec.num_values).tolist())
    if spec.shape == ():
        return Discrete(sizes[0]), lambda action: action.astype(spec.dtype)
    if mask is None or mask.size == sum(sizes):
        return MultiDiscrete(sizes), lambda action: action.astype(spec.dtype)
    if mask.shape != sizes:
        raise RunError(f"{what} has an action_mask {list(mask.shape)} of actions {list(sizes)}")

    def taken(action: Array) -> Array:
        return jnp.stack(jnp.unravel_index(action, sizes)).astype(spec.dtype)

    return Discrete(math.prod(sizes)), taken
