"""Masks of actions that an environment of Gymnasium tells beside its observations.

Its method ``action_masks`` returns one, as MaskablePPO of sb3-contrib asks for, or its ``info`` has
an ``action_mask``, as Taxi's has. `Masked` puts it into the observation, where agents look for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl_scale.envs import gymnasium_spaces
from jaxrl_scale.envs.gymnasium_spaces import MASK
from jaxrl_scale.errors import RunError, one_line
from jaxrl_scale.types import ActionSpace, Box

_METHOD = "action_masks"


def may_be_told(space: Any, action: ActionSpace) -> bool:
    """Whether a mask beside observations of this space would be heeded: of an image it would not,
    as a mask is a part of a vector."""
    apart = not gymnasium_spaces.is_masked(space) and gymnasium_spaces.is_flat(space)
    return apart and not isinstance(action, Box)


def are_told(env: gymnasium.Env, info: Any) -> bool:
    """Whether it tells masks beside its observations. ``info`` is that of a reset."""
    return _asked(env) is not None or (isinstance(info, dict) and MASK in info)


def tells(env: gymnasium.Env, info: Any) -> bool:
    """Whether it tells masks at all, in its observations or beside them."""
    return gymnasium_spaces.is_masked(env.observation_space) or are_told(env, info)


def _asked(env: gymnasium.Env) -> Callable[[], Any] | None:
    """Its method that returns the mask, or that of a wrapper within it; None if there is none."""
    method = env.get_wrapper_attr(_METHOD) if env.has_wrapper_attr(_METHOD) else None
    return method if callable(method) else None


class Masked(gymnasium.Wrapper):
    """An environment whose observations are a Dict of what it observes, ``observation``, and of the
    mask that it tells, ``action_mask``.

    Args:
      what: what its errors begin with.
      size: how many numbers its mask has.
    """

    def __init__(self, env: gymnasium.Env, what: str, size: int) -> None:
        super().__init__(env)
        self._what, self._size, self._asked = what, size, _asked(env)
        told = {"observation": env.observation_space, MASK: spaces.MultiBinary(size)}
        self.observation_space = spaces.Dict(told)

    def reset(self, **how: Any) -> Any:
        obs, *told = self.env.reset(**how)
        return self._seen(obs, self._mask(told[-1])), *told

    def step(self, action: Any) -> Any:
        obs, reward, terminated, *told = self.env.step(action)
        # Where nothing follows there may be no mask, and zeros forbid nothing.
        mask = np.zeros(self._size, np.int8) if terminated else self._mask(told[-1])
        return self._seen(obs, mask), reward, terminated, *told

    def _seen(self, obs: Any, mask: np.ndarray) -> dict[str, Any]:
        return {"observation": obs, MASK: mask}

    def _mask(self, info: Any) -> np.ndarray:
        if self._asked is not None:
            where, mask = f"{_METHOD}()", self._asked()
        else:
            where = f"info[{MASK!r}]"
            mask = info.get(MASK) if isinstance(info, dict) else None
        if np.shape(mask) != (self._size,):
            raise RunError(
                f"{self._what}: {where} has the shape {np.shape(mask)}; it should be "
                f"({self._size},), a number for each action"
            )
        told = np.asarray(mask)
        if not ((told == 0) | (told == 1)).all():
            raise RunError(
                f"{self._what}: {where} is {one_line(told)}; it should be 1 or 0 for each action"
            )
        return told.astype(np.int8)
