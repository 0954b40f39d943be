"""Environments of Gymnasium, adapted to `jaxrl_scale.types.HostEnvironment`.

The environments are stepped by threads, each of which has a fixed part of them. Python computes
in one thread at a time, so more than one thread helps only where an environment's own library
lets others go on meanwhile, as MuJoCo does. The results do not depend on it, as long as an
environment draws its random numbers from its own ``np_random``, as Gymnasium asks for.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import numbers
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl_scale.envs import gymnasium_masks, gymnasium_spaces
from jaxrl_scale.envs.check import is_name, some_action
from jaxrl_scale.errors import RunError, closest
from jaxrl_scale.types import ActionSpace, EnvSpec, HostStep
from jaxrl_scale.user_code import errors_in_one_line


def make(name: str, /, **kwargs: Any) -> GymnasiumEnvironment:
    """The environment that Gymnasium calls ``name``; ``kwargs`` go to ``gymnasium.make``.

    ``my_module:MyEnv-v0`` imports ``my_module`` first, which registers it, as in Gymnasium.

    Raises:
      RunError: if there is no such environment or parameter, or if it sees or does what
        `jaxrl_scale.types.EnvSpec` cannot say.
    """
    if ":" not in name and name not in gymnasium.registry:
        near = closest(name, list(gymnasium.registry))
        hint = f"; did you mean 'gymnasium:{near}'?" if near else ""
        raise RunError(f"Gymnasium has no environment {name!r}{hint}")
    return GymnasiumEnvironment(name, kwargs)


class GymnasiumEnvironment:
    """One environment of Gymnasium."""

    def __init__(self, name: str, kwargs: dict[str, Any]) -> None:
        self._name, self._kwargs = name, {"disable_env_checker": True, **kwargs}
        self._what = f"environment {f'gymnasium:{name}'!r}"
        self._told = 0  # numbers of the mask that it tells beside its observations
        with closing(self.make()) as env:
            _check_spaces(self._what, env)
            if "rgb_array" in env.metadata.get("render_modes", ()):
                self._kwargs.setdefault("render_mode", "rgb_array")
            self.is_own = _is_own(env)
            action = gymnasium_spaces.action(self._what, env.action_space)
            info_of_bare = self._begin(env.unwrapped)[1] if self.is_own else {}
            if gymnasium_masks.may_be_told(env.observation_space, action):
                told = gymnasium_masks.are_told(env, self._begin(env)[1])
                self._told = told * sum(action.sizes)
            seen = self._with_mask(env)
            self._spaces = seen.observation_space, env.action_space
            self._take = gymnasium_spaces.taking(env.action_space)
            self.spec = self._spec_of(seen, action)
            if self.is_own:
                self._check_bare(env.unwrapped, info_of_bare)
            info = self._first_info(seen)
            names = tuple(name for name, x in info.items() if is_name(name) and _is_number(x))
            self.spec = dataclasses.replace(self.spec, info=names)

    def _spec_of(self, env: gymnasium.Env, action: ActionSpace) -> EnvSpec:
        """The spec of an environment with its mask; ``info`` is not known yet."""
        shape, dtype = gymnasium_spaces.observation(self._what, env.observation_space)
        return EnvSpec(
            id=f"gymnasium:{self._name}",
            observation_shape=shape,
            action=action,
            max_episode_steps=getattr(env.spec, "max_episode_steps", None),
            gymnasium_id=self._name,
            observation_dtype=dtype,
            action_mask=gymnasium_spaces.has_mask(self._what, env.observation_space, action),
        )

    def _check_bare(self, bare: gymnasium.Env, info: dict[Any, Any]) -> None:
        """Check a first step without wrappers, which would fail at a method that returns too many
        things. Where one of them tells the mask, no allowed action is known without it."""
        if not self.spec.action_mask or gymnasium_masks.tells(bare, info):
            self._first_info(self._with_mask(bare))

    def _begin(self, env: gymnasium.Env) -> Any:
        """What a reset returns. Raises a `RunError` where that is not two things."""
        with errors_in_one_line(self._what):
            begun: Any = env.reset(seed=0)
        _check_parts(self._what, "reset", begun)
        return begun

    def _first_info(self, env: gymnasium.Env) -> dict[Any, Any]:
        """The ``info`` of a first step. Raises a `RunError` where a method returns another number
        of things than it should."""
        obs = self._begin(env)[0]
        with errors_in_one_line(self._what):
            obs = self.seen(obs) if self.spec.action_mask else obs
            returned: Any = env.step(self.taken(some_action(self.spec, obs)))
        _check_parts(self._what, "step", returned)
        return returned[4] if isinstance(returned[4], dict) else {}

    def seen(self, obs: Any) -> np.ndarray:
        """What an agent sees of an observation of Gymnasium's, or of a batch."""
        return gymnasium_spaces.seen(self._spaces[0], obs)

    @property
    def encoded(self) -> list[str]:
        """In words, what a policy sees and does otherwise than Gymnasium's environment."""
        lines = gymnasium_spaces.encoded(*self._spaces)
        if self._told:
            made = "what gymnasium.spaces.flatten makes of Gymnasium's"
            lines[0] = f"An observation is {made}, and then the mask of actions."
        return lines

    def taken(self, action: np.ndarray) -> np.ndarray:
        """Actions of ours, one or a batch, as Gymnasium's environment takes them."""
        return self._take(action)

    def simulate(self, seeds: np.ndarray, num_threads: int) -> GymnasiumSimulator:
        """One environment for each of the seeds ``[n]``, from 0 to 2**31 - 1."""
        with ExitStack() as stack:  # where one cannot be made, those before it are closed
            made = [stack.enter_context(closing(self.make())) for _ in seeds]
            stack.pop_all()
        return GymnasiumSimulator(self.spec, made, [int(seed) for seed in seeds], num_threads)

    def facts(self) -> dict[str, str]:
        """Versions that the frames depend on."""
        return {"gymnasium": importlib.metadata.version("gymnasium")}

    def make(self) -> gymnasium.Env:
        """One environment of Gymnasium, with its mask in its observations where it tells one."""
        with errors_in_one_line(self._what):
            return self._with_mask(gymnasium.make(self._name, **self._kwargs))

    def _with_mask(self, env: gymnasium.Env) -> gymnasium.Env:
        return gymnasium_masks.Masked(env, self._what, self._told) if self._told else env


class GymnasiumSimulator:
    """``n`` environments, stepped by threads."""

    def __init__(
        self, spec: EnvSpec, envs: list[gymnasium.Env], seeds: list[int], num_threads: int
    ) -> None:
        self._spec, self._envs, self._seeds = spec, envs, seeds
        self._take = [gymnasium_spaces.taking(env.action_space) for env in envs]
        self._what = f"environment {spec.id!r}"
        self._ended = np.zeros(len(envs), bool)
        threads = max(1, min(num_threads, len(envs)))
        self._parts = np.array_split(np.arange(len(envs)), threads)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="gymnasium")
        self._pending: list[Future] = []
        self._seen = self._blank()

    def reset(self) -> np.ndarray:
        self._seen = self._blank()
        for i, seed in enumerate(self._seeds):
            self._reset(i, seed=seed)
        return self._seen.obs

    def send(self, action: np.ndarray) -> None:
        self._seen = self._blank()
        action = np.array(action)  # the caller may write over it
        self._pending = [self._threads.submit(self._step, part, action) for part in self._parts]

    def receive(self) -> HostStep:
        pending, self._pending = self._pending, []
        wait(pending)  # all of them, so that no thread still steps when an error is raised
        for part in pending:
            part.result()
        self._ended = self._seen.game_over
        return self._seen

    def render(self) -> np.ndarray:
        """The environments' pictures, ``[n, height, width, 3]`` uint8."""
        for device in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):  # pygame asks for a screen otherwise
            os.environ.setdefault(device, "dummy")
        if self._envs[0].render_mode != "rgb_array":
            raise RunError(f"{self._what} draws no pictures (render_mode 'rgb_array')")
        with errors_in_one_line(f"{self._what}: render"):
            frames: list[Any] = [env.render() for env in self._envs]
            return np.stack(frames)

    def close(self) -> None:
        self._threads.shutdown()
        envs, self._envs = self._envs, []
        with ExitStack() as stack:  # the others, too, where one raises an error
            for env in envs:
                stack.callback(env.close)

    def _step(self, part: np.ndarray, action: np.ndarray) -> None:
        """Step the environments ``part``."""
        for i in part:
            try:
                self._step_one(i, action[i])
            except Exception as error:
                error.add_note(f"in {self._spec.id} with seed {self._seeds[i]}")
                raise

    def _step_one(self, i: int, action: Any) -> None:
        env, seen = self._envs[i], self._seen
        if self._ended[i]:
            self._reset(i)
            return
        returned: Any = env.step(self._take[i](action))
        _check_parts(self._what, "step", returned)
        obs, reward, terminated, truncated, info = returned
        if not _is_number(reward):
            raise RunError(
                f"{self._what}: step returned the reward {reward!r}; it should be a number"
            )
        self._observe(i, obs)
        seen.reward[i] = seen.score[i] = reward
        seen.terminated[i] = terminated
        seen.truncated[i] = truncated and not terminated
        seen.game_over[i] = terminated or truncated
        for name, told in (seen.info or {}).items():
            x = info.get(name) if isinstance(info, dict) else None
            told[i] = x if _is_number(x) else np.nan

    def _reset(self, i: int, **seed: Any) -> None:
        returned = self._envs[i].reset(**seed)
        _check_parts(self._what, "reset", returned)
        self._observe(i, returned[0])

    def _observe(self, i: int, obs: Any) -> None:
        space = self._envs[i].observation_space
        if not (isinstance(space, spaces.Box) and space.shape):
            if not gymnasium_spaces.fits(space, obs):
                raise RunError(f"{self._what} returned the observation {obs}; its space is {space}")
            self._seen.obs[i] = gymnasium_spaces.flat(space, obs)
            return
        if np.shape(obs) != self._spec.observation_shape:  # NumPy might stretch it
            raise RunError(
                f"{self._what} returned an observation of shape {np.shape(obs)}; its space says "
                f"{self._spec.observation_shape}"
            )
        x = np.asarray(obs)
        of_bytes = self._spec.observation_dtype == np.uint8
        if of_bytes and x.dtype != np.uint8 and not _are_bytes(x):  # they would be cut off
            raise RunError(
                f"{self._what} returned an observation of {x.dtype}, from {x.min()} to {x.max()}; "
                "its space says uint8, which are whole numbers from 0 to 255"
            )
        self._seen.obs[i] = x

    def _blank(self) -> HostStep:
        """Results to be filled in, not shared with those handed out before."""
        n = len(self._envs)
        return HostStep(
            obs=np.zeros((n, *self._spec.observation_shape), self._spec.observation_dtype),
            reward=np.zeros(n, np.float32),
            terminated=np.zeros(n, bool),
            truncated=np.zeros(n, bool),
            score=np.zeros(n, np.float32),
            game_over=np.zeros(n, bool),
            info={name: np.zeros(n, np.float32) for name in self._spec.info},
        )


def _check_spaces(what: str, env: gymnasium.Env) -> None:
    """Raise a `RunError` where an environment does not say what it sees or does."""
    for space in ("observation_space", "action_space"):
        if not isinstance(getattr(env.unwrapped, space, None), spaces.Space):
            raise RunError(f"{what} has no {space}; it should be a gymnasium.spaces.Space")


def _is_own(env: gymnasium.Env) -> bool:
    """Whether the environment's class is the user's, and not one of an installed package."""
    module = sys.modules.get(type(env.unwrapped).__module__)
    return "-packages" not in (getattr(module, "__file__", None) or "")


_PARTS = {
    "reset": "observation, info",
    "step": "observation, reward, terminated, truncated, info",
}


def _check_parts(what: str, method: str, returned: Any) -> None:
    """Raise a `RunError` where a method returned another number of things."""
    parts = _PARTS[method]
    if not isinstance(returned, tuple) or len(returned) != len(parts.split()):
        kind = type(returned).__name__
        found = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else f"a {kind}"
        raise RunError(f"{what}: {method} returned {found}; it should return ({parts})")


def _is_number(x: Any) -> bool:
    """Whether it is one number or one bool: Python's, or an array without axes of any library's."""
    if isinstance(x, numbers.Real | np.bool_):
        return True
    return getattr(x, "shape", None) == () and np.asarray(x).dtype.kind in "biuf"


def _are_bytes(x: np.ndarray) -> bool:
    """Whether all of them are whole numbers from 0 to 255."""
    return bool(((x >= 0) & (x <= 255) & (x == np.floor(x))).all())
