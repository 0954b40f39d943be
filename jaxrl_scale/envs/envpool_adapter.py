"""Environments of EnvPool, adapted to `jaxrl_scale.types.HostEnvironment`: the games of Procgen and
Atari, and whatever else it has that observes one array and takes one action.

EnvPool computes steps in threads of its own, in C++: ``send`` puts the actions into a queue and
returns, ``recv`` waits for the results. Every environment gets a seed of its own, so what it does
depends on neither the threads nor its place in the pool.

EnvPool resets on the next step, as the contract wants. A life that is lost ends an episode where
``episodic_life`` is set; then the next step goes on with the same game, after up to ``noop_max``
frames without an action, whose rewards nobody gets.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib.metadata
import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_scale.envs import games
from jaxrl_scale.envs.libraries import how_to_install
from jaxrl_scale.errors import RunError, nearest, one_line
from jaxrl_scale.types import Box, Discrete, EnvSpec, HostStep
from jaxrl_scale.user_code import errors_in_one_line


def make(name: str, /, **kwargs: Any) -> EnvPoolEnvironment:
    """The environment that EnvPool calls ``name``; ``kwargs`` as in `jaxrl_scale.envs.games`.

    Raises:
      RunError: for options that EnvPool has not or would abort on, and where EnvPool or the
        environment is missing.
    """
    if name in games.PROCGEN:
        options = dataclasses.asdict(games.procgen_options(name, kwargs))
        return EnvPoolEnvironment(name, name, {**options, "channel_first": False})
    if name in games.ATARI:
        return EnvPoolEnvironment(name, name, dataclasses.asdict(games.atari_options(name, kwargs)))
    what = f"envpool:{name}"
    if kwargs:
        raise RunError(f"environment {what!r} has no parameter {', '.join(kwargs)}; it has none")
    known = _envpool(what).list_all_envs()
    if name not in known:
        raise RunError(f"EnvPool has no environment {name!r}{nearest(name, known)}")
    return EnvPoolEnvironment(what, name, {})


class EnvPoolEnvironment:
    """One environment of EnvPool. Images are ``[height, width, channels]`` uint8."""

    def __init__(self, id: str, task: str, options: dict[str, Any]) -> None:
        self._id, self._task, self._options = id, task, options
        try:
            made = _envpool(id).make_spec(task, **options)
        except RuntimeError as error:  # ALE knows which modes and difficulties a game has
            raise RunError(f"environment {id!r} with {_shown(options)}: {error}") from error
        states, actions = made.state_array_spec, made.action_array_spec
        seen = [key for key in states if key.split(":")[0] == "obs"]
        taken = [key for key in actions if key not in ("env_id", "players.env_id")]
        if seen != ["obs"] or len(taken) != 1:
            raise RunError(
                f"environment {id!r} observes {len(seen)} arrays and takes {len(taken)} actions; "
                "only environments that have one of each are supported"
            )
        obs = states["obs"]
        shape = tuple(obs.shape)
        self._planes_first = task in games.ATARI
        self._own = _own_numbers(task, states)
        if self._planes_first:
            shape = (*shape[1:], shape[0])
        self.spec = EnvSpec(
            id=id,
            observation_shape=shape,
            action=_action(id, actions[taken[0]]),
            max_episode_steps=int(made.config.max_episode_steps),
            observation_dtype=np.uint8 if obs.dtype == np.uint8 else np.float32,
            frames_per_step=int(options.get("frame_skip", 1)),
            info=tuple(self._own),
        )

    def simulate(self, seeds: np.ndarray, num_threads: int) -> EnvPoolSimulator:
        """One environment for each of the seeds ``[n]``, from 0 to 2**31 - 1."""
        envpool = _envpool(self._id)
        with errors_in_one_line(f"environment {self._id!r}"), warnings.catch_warnings():
            # Gymnasium says that bounds lose precision, where the pool describes itself.
            warnings.simplefilter("ignore")
            pool = envpool.make_gymnasium(
                self._task,
                num_envs=len(seeds),
                num_threads=max(1, min(num_threads, len(seeds))),
                seed=[int(seed) for seed in seeds],
                render_mode="rgb_array",
                **self._options,
            )
            _ = pool.observation_space
        return EnvPoolSimulator(pool, self.spec, self._planes_first, self._own)

    def facts(self) -> dict[str, str]:
        """Versions that the frames depend on, and all options, those that a preset sets too."""
        found = {"envpool": importlib.metadata.version("envpool")}
        if _qt_libraries():
            found["PyQt5-Qt5"] = importlib.metadata.version("PyQt5-Qt5")
        if self._options:
            found["env_options"] = _shown(self._options)
        return found


class EnvPoolSimulator:
    """``n`` environments in one pool."""

    def __init__(self, pool: Any, spec: EnvSpec, planes_first: bool, own: dict[str, str]) -> None:
        self._pool, self._spec, self._planes_first, self._own = pool, spec, planes_first, own
        self._all = np.arange(pool.num_envs, dtype=np.int32)

    def reset(self) -> np.ndarray:
        obs, _ = self._pool.reset()
        return self._arranged(obs)

    def send(self, action: np.ndarray) -> None:
        space = self._spec.action
        # C++ would read beyond its table.
        if isinstance(space, Discrete) and (action.min() < 0 or action.max() >= space.n):
            raise ValueError(f"actions of {self._spec.id} are 0 to {space.n - 1}")
        self._pool.send(action)

    def receive(self) -> HostStep:
        obs, reward, terminated, truncated, info = self._pool.recv()
        score, over = reward, terminated
        if "terminated" in info:  # Atari: reward may be clipped, and a lost life end an episode
            score, over = info["reward"], info["terminated"].astype(bool)
        return HostStep(
            obs=self._arranged(obs),
            reward=reward,
            terminated=terminated | over,  # a game may end at the very step that its limit cuts
            truncated=truncated & ~over,
            score=score,
            game_over=over | truncated,
            info={name: info[theirs] for name, theirs in self._own.items()},
        )

    def render(self) -> np.ndarray:
        """The games' pictures ``[n, height, width, 3]`` uint8, each pixel enlarged to a square so
        that the longer side is about 400. Atari draws 210 × 160 pixels. Procgen's are the 64 × 64
        of the observation, since EnvPool does not draw the larger ones of ``procgen`` itself."""
        with errors_in_one_line(f"environment {self._spec.id!r}"):
            frames = self._pool.render(self._all)
        side = max(1, round(400 / max(frames.shape[1:3])))
        return frames.repeat(side, axis=1).repeat(side, axis=2)

    def close(self) -> None:
        self._pool = None  # EnvPool ends its threads when nobody holds it

    def _arranged(self, obs: np.ndarray) -> np.ndarray:
        """The observations with channels last, in a dtype that devices have."""
        if not self._planes_first:
            return obs.astype(self._spec.observation_dtype, copy=False)
        arranged = np.empty((len(obs), *self._spec.observation_shape), obs.dtype)
        for plane in range(obs.shape[1]):  # three times as fast as copying a transposed view
            arranged[..., plane] = obs[:, plane]
        return arranged


def _shown(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _own_numbers(task: str, states: dict[str, Any]) -> dict[str, str]:
    """The numbers that a task reports of its own, by the names that EnvPool has for them. Of a game
    of Procgen it is whether the level was completed, which its last step says; the others of its
    numbers, and those of Atari, are no quantities, or a part of the score."""
    if task in games.PROCGEN:
        return {"level_complete": "prev_level_complete"}
    if task in games.ATARI:
        return {}
    known = {key.removeprefix("info:"): x for key, x in states.items() if key.startswith("info:")}
    return {
        name: name
        for name, x in known.items()
        if tuple(x.shape) in ((), (-1,)) and name not in ("env_id", "players.env_id")
    }


def _action(id: str, spec: Any) -> Discrete | Box:
    """What EnvPool says of an action; its first axis may count players."""
    shape = tuple(size for size in spec.shape if size != -1)
    if np.issubdtype(spec.dtype, np.integer) and not shape:
        return Discrete(int(spec.maximum) + 1)
    low, high = np.unique(spec.minimum), np.unique(spec.maximum)
    if not np.issubdtype(spec.dtype, np.floating) or low.size > 1 or high.size > 1:
        raise RunError(
            f"environment {id!r} acts in {one_line(spec)}; one whole number, or real numbers that "
            "share their bounds, are supported"
        )
    return Box(float(low[0]), float(high[0]), shape)


_DEBIAN = "libegl1 libgl1 libopengl0 libglib2.0-0"
"""The packages that have what the wheels of EnvPool and its Qt take from the system. A small image
or a server without a screen may lack them."""


@functools.cache
def _envpool_module() -> Any:
    for library in _qt_libraries():
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    with _matplotlib_left_alone():
        import envpool
    return envpool


@contextmanager
def _matplotlib_left_alone() -> Iterator[None]:
    """While it is imported, EnvPool gives Matplotlib a folder in /tmp, the same for all users of a
    machine, where only the first of them may write. Matplotlib keeps the folders that it has been
    asked for before, and other processes shall not inherit that one."""
    import matplotlib

    matplotlib.get_configdir(), matplotlib.get_cachedir()
    names = ("MPLBACKEND", "MPLCONFIGDIR")
    before = {name: os.environ[name] for name in names if name in os.environ}
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)


def _envpool(id: str) -> Any:
    """The module, or a `RunError` that says how to install it."""
    install = how_to_install("envpool")
    if importlib.util.find_spec("envpool") is None:
        raise RunError(f"environment {id!r}: EnvPool is not installed: {install}")
    try:
        return _envpool_module()
    except (ImportError, OSError) as error:
        brought = f"its extra brings what it needs: {install}"
        if "cannot open shared object file" in str(error) and "libQt5" not in str(error):
            brought = f"that is a library of the system (Debian, Ubuntu: apt install {_DEBIAN})"
        raise RunError(
            f"environment {id!r}: EnvPool cannot be loaded: {one_line(error)}; {brought}"
        ) from error


def _qt_libraries() -> list[Path]:
    """Qt 5, which Procgen draws with, where the package PyQt5-Qt5 is installed.

    The wheels of EnvPool up to 1.2.5 look for it outside, later ones carry Qt 6. The package is a
    namespace without a file of its own.
    """
    found = importlib.util.find_spec("PyQt5")
    folders = found.submodule_search_locations if found else None
    libraries = [
        Path(folder, "Qt5", "lib", f"libQt5{part}.so.5")
        for folder in folders or ()
        for part in ("Core", "Gui")
    ]
    return [library for library in libraries if library.exists()]
