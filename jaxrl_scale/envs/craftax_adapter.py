"""Environments of Craftax (>= 1.6, https://arxiv.org/abs/2402.16801), adapted to the contract of
`jaxrl_scale.types.Environment`.

Craftax's ``step_env`` reports one end for all reasons. Here that of the time limit,
``max_timesteps``, alone is a truncation. What it tells of the achievements of an episode that has
ended, in percent, is ``env_end/collect_wood`` and so on in the metrics.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.envs import libraries
from jaxrl_scale.options import INT32_MAX
from jaxrl_scale.types import Array, Discrete, EnvSpec, Key, TimeStep
from jaxrl_scale.user_code import errors_in_one_line

NAMES = (
    *("Craftax-Symbolic-v1", "Craftax-Pixels-v1"),
    *("Craftax-Classic-Symbolic-v1", "Craftax-Classic-Pixels-v1"),
)


def make(name: str, **kwargs: Any) -> CraftaxEnv:
    """The Craftax environment ``name``. ``kwargs`` are fields of its params, such as
    ``max_timesteps``."""
    what = f"environment 'craftax:{name}'"
    libraries.check_known("Craftax", name, NAMES)
    craftax = libraries.imported("Craftax", "craftax", "craftax.craftax_env", what)
    with errors_in_one_line(what):
        env = craftax.make_craftax_env_from_name(name, auto_reset=False)
        params = env.default_params
    libraries.check_parameters(what, kwargs, libraries.fields_of(params))
    with errors_in_one_line(what):
        return CraftaxEnv(f"craftax:{name}", env, dataclasses.replace(params, **kwargs))


class CraftaxEnv:
    """One environment of Craftax."""

    def __init__(self, name: str, env: Any, params: Any) -> None:
        self._env, self._params = env, params
        self._unlimited = dataclasses.replace(params, max_timesteps=INT32_MAX)
        seen, state = jax.eval_shape(env.reset_env, jax.random.key(0), params)
        self._parts = libraries.Parts(state)
        self.spec = EnvSpec(
            id=name,
            observation_shape=seen.shape,
            action=Discrete(int(env.action_space(params).n)),
            max_episode_steps=int(params.max_timesteps),
            observation_dtype=np.dtype(seen.dtype),
            costly_reset=True,  # it generates a world
        )

    def reset(self, key: Key) -> tuple[list[Array], Array]:
        obs, state = self._env.reset_env(key, self._params)
        return self._parts.of(state), obs

    def step(self, key: Key, state: list[Array], action: Array) -> tuple[list[Array], TimeStep]:
        before = self._parts.together(state)
        obs, after, reward, done, info = self._env.step_env(key, before, action, self._params)
        terminated = jnp.asarray(self._env.is_terminal(after, self._unlimited), bool)
        told = {name.rpartition("/")[2]: x for name, x in info.items() if name != "discount"}
        return self._parts.of(after), TimeStep(
            obs=obs,
            reward=jnp.asarray(reward, jnp.float32),
            terminated=terminated,
            truncated=done & ~terminated,
            info=told,
        )

    def render(self, state: list[Array]) -> np.ndarray:
        """A uint8 frame with Craftax's textures, of which each pixel is drawn as nine."""
        frame = np.asarray(self._draw(state)).round().astype(np.uint8)
        return frame.repeat(3, axis=0).repeat(3, axis=1)

    @functools.cached_property
    def _draw(self) -> Callable[[list[Array]], Array]:
        classic = "craftax_classic" if "Classic" in self.spec.id else "craftax"
        what = f"environment {self.spec.id!r}"
        module = f"craftax.{classic}"
        renderer = libraries.imported("Craftax", "craftax", f"{module}.renderer", what)
        constants = libraries.imported("Craftax", "craftax", f"{module}.constants", what)
        draw = renderer.make_craftax_pixel_renderer(constants.BLOCK_PIXEL_SIZE_IMG)
        return jax.jit(lambda state: draw(self._parts.together(state)))
