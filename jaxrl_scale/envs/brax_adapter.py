"""Environments of Brax (>= 0.14, https://arxiv.org/abs/2106.13281) and of MuJoCo Playground
(>= 0.2, https://arxiv.org/abs/2502.08844), adapted to the contract of
`jaxrl_scale.types.Environment`.

Both libraries have one form: a state holds the observation, the reward and the end of the episode
beside the physics. They leave the time limit to their wrappers; here it is the spec's. What a state
has as ``metrics``, such as the parts of the reward, are ``env/<name>`` in the metrics.
"""

from __future__ import annotations

import math
import subprocess
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from jaxrl_scale.envs import libraries
from jaxrl_scale.envs.libraries import devices_of_this_process
from jaxrl_scale.errors import INPUT_OUTPUT_ERROR, RunError
from jaxrl_scale.options import has_type
from jaxrl_scale.types import Array, Box, EnvSpec, Key, TimeStep
from jaxrl_scale.user_code import errors_in_one_line

BRAX = (
    *("ant", "fast", "halfcheetah", "hopper", "humanoid", "humanoidstandup", "inverted_pendulum"),
    *("inverted_double_pendulum", "pusher", "reacher", "swimmer", "walker2d"),
)
"""Brax's own environments, which has no public list of them."""


def make_brax(name: str, episode_length: int = 1000, **kwargs: Any) -> StateEnv:
    """The Brax environment ``name``. ``kwargs`` are arguments of its class, such as ``backend``."""
    what = f"environment 'brax:{name}'"
    libraries.check_known("Brax", name, BRAX)
    brax = libraries.imported("Brax", "brax", "brax.envs", what)
    with errors_in_one_line(what), libraries.quiet_mujoco(), devices_of_this_process():
        if kwargs:
            defaults = libraries.defaults_of(type(brax.get_environment(name)))
            has = {"episode_length": episode_length} | defaults
            libraries.check_parameters(what, kwargs, has)
        env = brax.get_environment(name, **kwargs)
        return StateEnv(f"brax:{name}", env, episode_length)


def make_playground(name: str, **kwargs: Any) -> StateEnv:
    """The environment ``name`` of MuJoCo Playground. ``kwargs`` are fields of its config, such as
    ``episode_length``, and with dots fields within them.

    Its physics is MJX in JAX here (``impl=jax``), where Playground has MuJoCo Warp by default.
    """
    what = f"environment 'playground:{name}'"
    library = "MuJoCo Playground"
    playground = libraries.imported(library, "playground", "mujoco_playground", what).registry
    libraries.check_known(library, name, playground.ALL_ENVS)
    with errors_in_one_line(what), libraries.quiet_mujoco(), devices_of_this_process():
        config = playground.get_default_config(name)
        kwargs = flatten_dict(kwargs, sep=".")  # in Python they may be dicts in a dict
        libraries.check_parameters(what, kwargs, flatten_dict(config.to_dict(), sep="."))
        env = load_playground(what, playground, name, config, {"impl": "jax"} | kwargs)
        config.update_from_flattened_dict(kwargs)
        repeat = config.get("action_repeat", 1)
        return StateEnv(f"playground:{name}", env, config.episode_length, repeat)


def load_playground(what: str, playground: Any, name: str, *configs: Any) -> Any:
    """An environment of Playground, which may have to download models of robots first."""
    try:
        return playground.load(name, *configs)
    except subprocess.CalledProcessError as error:
        raise RunError(
            f"{what}: git cannot download the models of robots from GitHub; make such an "
            "environment once where it can, which keeps them beside MuJoCo Playground "
            f"(train --env=playground:{name} --dry_run)",
            INPUT_OUTPUT_ERROR,
        ) from error


class StateEnv:
    """One environment of Brax or of MuJoCo Playground.

    Where it observes several arrays by name, an agent sees the one named ``state``, as Playground's
    own policies do.

    Args:
      episode_length: the time limit, in steps of the library's environment.
      repeat: how many of these one action takes; their rewards are added.
    """

    def __init__(self, name: str, env: Any, episode_length: int, repeat: int = 1) -> None:
        what = f"environment {name!r}"
        for option, steps in (("episode_length", episode_length), ("action_repeat", repeat)):
            if not has_type(steps, int) or steps < 1:
                should = "a whole number of at least 1"
                raise RunError(f"{what}: env_kwargs.{option}={steps!r} should be {should}")
        if jax.__version_info__ >= (0, 11):
            # XLA's newer partitioner crashes on these environments for several devices (0.11.2).
            jax.config.update("jax_use_shardy_partitioner", False)
        self._env, self._repeat = env, repeat
        with devices_of_this_process():
            state = jax.eval_shape(env.reset, jax.random.key(0))
        if isinstance(state.obs, dict) and "state" not in state.obs:
            seen = ", ".join(state.obs)
            raise RunError(f"{what} observes {seen}; an agent sees one array, or that named state")
        self._parts = libraries.Parts(state)
        self.spec = EnvSpec(
            id=name,
            observation_shape=_seen(state).shape,
            action=Box(-1.0, 1.0, (int(env.action_size),)),
            max_episode_steps=math.ceil(episode_length / repeat),
        )

    def reset(self, key: Key) -> tuple[list[Array], Array]:
        with devices_of_this_process():
            state = self._env.reset(key)
        return self._parts.of(state), _seen(state)

    def step(self, key: Key, state: list[Array], action: Array) -> tuple[list[Array], TimeStep]:
        def once(before: Any, _: None) -> tuple[Any, Array]:
            after = self._env.step(before, action)
            return after, after.reward

        whole, rewards = jax.lax.scan(once, self._parts.together(state), length=self._repeat)
        return self._parts.of(whole), TimeStep(
            obs=_seen(whole),
            reward=rewards.sum(),
            terminated=whole.done > 0,
            truncated=jnp.zeros((), bool),
            info=dict(whole.metrics),
        )


def _seen(state: Any) -> Array:
    found: Array = state.obs["state"] if isinstance(state.obs, dict) else state.obs
    return found
