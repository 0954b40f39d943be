"""What an agent sees and does of Gymnasium's spaces: one array, and one action.

========================================== ===================================================
an observation of                           is seen as
========================================== ===================================================
``Box`` with an axis                        it is
``Discrete``                                a one-hot vector
``Box`` without an axis, ``MultiDiscrete``,  one vector, as ``gymnasium.spaces.flatten`` makes it
``MultiBinary``, ``Dict``, ``Tuple``
========================================== ===================================================

What a ``Dict`` calls ``action_mask`` comes last in that vector. It has a 1 for each action that is
allowed, and a 0 for each other.

Actions of ``Discrete`` begin at 0, wherever Gymnasium's do. So do the parts of ``MultiDiscrete``
and ``MultiBinary``, which are one vector, in the order of Gymnasium's array. Those of a ``Box`` of
real numbers are what they are; where their bounds differ, they are numbers from -1 to 1, scaled to
the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from jaxrl_scale.errors import RunError, one_line
from jaxrl_scale.types import ActionSpace, Box, Discrete, MultiDiscrete

LONGEST_VECTOR = 10**7
"""The most numbers of a vector that is made of an observation. Where there are more, as with hashes
or times in a ``Discrete``, a few environments would fill the memory before anything could say so.
"""


def observation(what: str, space: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of what an agent sees. Raises a `RunError` that begins with ``what`` where
    it would be more than one array."""
    if isinstance(space, spaces.Box) and space.shape:
        return space.shape, np.uint8 if space.dtype == np.uint8 else np.float32
    if not is_flat(space):
        raise RunError(
            f"{what} observes {space}; Discrete, MultiDiscrete, MultiBinary and Box are supported, "
            "and Dict and Tuple of these without images"
        )
    size = int(spaces.flatdim(space))
    if size > LONGEST_VECTOR:
        raise RunError(
            f"{what} observes {one_line(space)}, as a vector of {size:,} numbers, one for each "
            f"value; at most {LONGEST_VECTOR:,} are supported, and a Box has one for such a number"
        )
    return (size,), np.float32


def is_flat(space: Any) -> bool:
    """Whether it is seen as one vector, alone or as a part."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return len(parts) > 0 and all(map(is_flat, parts))
    if isinstance(space, spaces.Box):
        return len(space.shape) < 2
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)


MASK = "action_mask"
"""The name that libraries with masked agents (RLlib, PettingZoo) look for."""


def has_mask(what: str, space: Any, action: ActionSpace) -> bool:
    """Whether observations say which actions are allowed. Raises a `RunError` that begins with
    ``what`` where they say it of other actions than there are."""
    if not is_masked(space) or isinstance(action, Box):
        return False
    mask, size = space[MASK], sum(action.sizes)
    if mask.shape != (size,):
        raise RunError(
            f"{what} has action_mask {mask}; it should be MultiBinary({size}), a number for each "
            "action"
        )
    return True


def is_masked(space: Any) -> bool:
    """Whether a part of it is called ``action_mask``."""
    return isinstance(space, spaces.Dict) and MASK in space.spaces


def action(what: str, space: Any) -> ActionSpace:
    """What an agent does. Raises a `RunError` that begins with ``what`` where that would be another
    kind of action, or whole numbers of a ``Box``."""
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if _has_parts(space):
        sizes = space.nvec.flat if isinstance(space, spaces.MultiDiscrete) else (2,) * _size(space)
        return MultiDiscrete(tuple(map(int, sizes)))
    if not isinstance(space, spaces.Box) or not space.shape:
        raise RunError(
            f"{what} acts in {space}; Discrete, MultiDiscrete, MultiBinary, and Box with an axis, "
            "are supported"
        )
    if not np.issubdtype(space.dtype, np.floating):
        raise RunError(
            f"{what} acts in {space}; the numbers of a Box must be real, as a policy's are, and "
            f"not {space.dtype}"
        )
    if not _is_scaled(space):
        return Box(float(space.low.flat[0]), float(space.high.flat[0]), space.shape)
    if not space.is_bounded():
        raise RunError(f"{what} acts in {space}; where bounds differ, all should be finite")
    return Box(-1.0, 1.0, space.shape)


def _has_parts(space: Any) -> bool:
    """Whether an action is several whole numbers at once."""
    return isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary) and _size(space) > 0


def _size(space: Any) -> int:
    return math.prod(space.shape)


def _is_scaled(space: Any) -> bool:
    """Whether the bounds of a ``Box`` differ."""
    return np.unique(space.low).size > 1 or np.unique(space.high).size > 1


def seen(space: Any, obs: Any) -> np.ndarray:
    """What an agent sees of an observation of this space, or of a batch. Raises a `RunError` where
    it is none."""
    if isinstance(space, spaces.Box) and space.shape:
        return np.asarray(obs)
    if isinstance(space, spaces.Discrete):
        numbers = np.asarray(obs)
        if numbers.ndim > 1 or numbers.dtype.kind not in "iu":  # it is a vector already
            return numbers
        return (numbers[..., None] == int(space.start) + np.arange(int(space.n))).astype(np.float32)
    try:
        if fits(space, obs):
            return flat(space, obs)
        batch = batch_space(space, len(jax.tree.leaves(obs)[0]))
        several = list(iterate(batch, obs))
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise RunError(f"this is no observation of {space}: {error!r}") from None
    if not several or not all(fits(space, each) for each in several):
        raise RunError(f"this is no observation of {space}, and no batch of these")
    return np.stack([flat(space, each) for each in several])


def fits(space: Any, obs: Any) -> bool:
    """Whether it is one observation of a space that is seen as a vector. Numbers of a ``Box`` may
    be of another dtype or beyond its bounds, as those of many environments are. Those that stand
    for a place in the vector may not, as there they would count from its end, or as another."""
    if isinstance(space, spaces.Dict):
        there = isinstance(obs, Mapping) and space.spaces.keys() <= obs.keys()
        return there and all(fits(part, obs[name]) for name, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        there = isinstance(obs, tuple | list) and len(obs) == len(space.spaces)
        return there and all(map(fits, space.spaces, obs))
    try:
        array = np.asarray(obs)
    except ValueError:  # lists of several lengths
        return False
    if array.shape != space.shape or array.dtype.kind not in "biuf":
        return False
    if isinstance(space, spaces.Box):
        return True
    if isinstance(space, spaces.MultiBinary):
        return bool(((array == 0) | (array == 1)).all())
    place = array - space.start
    count = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return array.dtype.kind != "f" and bool(((place >= 0) & (place < count)).all())


def flat(space: Any, obs: Any) -> np.ndarray:
    """One observation as a vector, float32."""
    if not is_masked(space):
        return np.asarray(spaces.flatten(space, obs), np.float32)
    names = sorted(space.spaces, key=lambda name: name == MASK)  # it comes last
    parts = [spaces.flatten(space[name], obs[name]) for name in names]
    return np.concatenate(parts, dtype=np.float32, casting="unsafe")


def taking(space: Any) -> Callable[[Any], np.ndarray]:
    """What makes of actions of ours, one or a batch, those that an environment with this space of
    actions takes. It is called in every step, so what the bounds are is looked at before."""
    if isinstance(space, spaces.Discrete):
        return lambda action: np.asarray(action, np.int64) + int(space.start)
    if _has_parts(space):
        start = _first(space)

        def arranged(action: Any) -> np.ndarray:
            parts = np.asarray(action, np.int64)
            return (parts.reshape(*parts.shape[:-1], *space.shape) + start).astype(space.dtype)

        return arranged
    if not _is_scaled(space):
        return lambda action: np.asarray(action, space.dtype)

    def scaled(action: Any) -> np.ndarray:
        part = (np.asarray(action, space.dtype) + 1) / 2
        found = np.clip(space.low + part * (space.high - space.low), space.low, space.high)
        return np.asarray(found, space.dtype)

    return scaled


def _first(space: Any) -> np.ndarray:
    """The least number of each part."""
    return np.zeros(space.shape, np.int64) + getattr(space, "start", 0)


def encoded(observation: Any, action: Any) -> list[str]:
    """In words, what a policy sees and does otherwise than the environment with these spaces."""
    lines = []
    if isinstance(observation, spaces.Discrete):
        first = int(observation.start)
        numbers = f"Gymnasium's {first} to {first + int(observation.n) - 1}"
        lines.append(f"An observation is a one-hot vector, which stands for {numbers}.")
    elif not (isinstance(observation, spaces.Box) and observation.shape):
        kind = type(observation).__name__
        behind = ", with action_mask at its end" if is_masked(observation) else ""
        made = f"as gymnasium.spaces.flatten makes it{behind}"
        lines.append(f"An observation is Gymnasium's {kind} {made}.")
    if isinstance(action, spaces.Discrete):
        if action.start:
            lines.append(f"Its action 0 is Gymnasium's {action.start}, and so on.")
    elif _has_parts(action):
        if len(action.shape) > 1:
            shape = f"Gymnasium's array of shape {action.shape}"
            lines.append(f"Its actions are vectors of {_size(action)} numbers, {shape} row by row.")
        if (least := _first(action)).any():
            lines.append(f"Its numbers begin at 0, where Gymnasium's begin at {least.tolist()}.")
    elif _is_scaled(action):
        low, high = action.low.tolist(), action.high.tolist()
        lines.append(f"Its actions are from -1 to 1, which stand for {low} to {high}.")
    return lines
