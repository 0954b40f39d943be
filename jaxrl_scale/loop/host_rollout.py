"""Many environments on the host: simulators in groups, restarts, and what a rollout is made of.

All arrays here are NumPy's and lie as the devices of this process hold them: ``[D, P', S', …]``.

Where simulators have cores that the devices leave free, the shards of every device are cut into two
groups, which act and simulate in turn: while the devices choose actions for one group, the cores
simulate the other. A group is whole shards, and a shard is always computed by itself, so that
grouping changes no bit.

The state of a simulator cannot be saved. So simulators are made anew at fixed iterations, and what
is saved is the seeds' restart number, which follows from the iteration, and all actions since then.
A restart looks like the end of every episode: those that go on are truncated, and the next step is
a reset step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_scale.envs.check import check_seen, check_step
from jaxrl_scale.loop.rollout import Ended, add_info, nothing_played
from jaxrl_scale.loop.stop import waiting
from jaxrl_scale.types import (
    Box,
    EnvSpec,
    HostEnvironment,
    HostStep,
    MultiDiscrete,
    Played,
    PyTree,
    Rollout,
    Simulator,
)
from jaxrl_scale.user_code import errors_in_one_line

Shape = tuple[int, ...]


class Games(NamedTuple):
    """What can be saved of the ``B`` environments of one shard between two steps, or, with leading
    axes ``[D, P', S', …]``, of all shards."""

    obs: np.ndarray  # [B, *observation_shape] what the next action is chosen from
    is_first: np.ndarray  # [B] bool: obs opens an episode
    ended: np.ndarray  # [B] bool: obs closed an episode, so the next step resets
    episode_return: np.ndarray  # [B] float32, the score of the game at hand
    episode_length: np.ndarray  # [B] int32
    actions: np.ndarray  # [restart_every * T, B, *action.shape] since the last restart


class Gathered(NamedTuple):
    """The rollouts of one shard or, with leading axes ``[D, P', S', …]``, of all shards. Their
    ``carry`` is on the devices."""

    rollout: Rollout
    ended: Ended
    cut: np.ndarray  # [B] bool: the episode at hand was cut by a restart
    info: dict[str, Any]  # [T, B] float32 each, the environments' own numbers


def fresh(spec: EnvSpec, leading: Shape, length: int, num_envs: int) -> Games:
    """Before the first step, which resets, as if an episode had ended there.

    Args:
      leading: ``(D, P', S')``.
      length: the steps from one restart to the next.
      num_envs: ``B``.
    """
    each = (*leading, num_envs)
    return Games(
        obs=np.zeros((*each, *spec.observation_shape), spec.observation_dtype),
        is_first=np.zeros(each, bool),
        ended=np.ones(each, bool),
        episode_return=np.zeros(each, np.float32),
        episode_length=np.zeros(each, np.int32),
        actions=np.zeros((*leading, length, num_envs, *spec.action.shape), _stored_dtype(spec)),
    )


def _stored_dtype(spec: EnvSpec) -> Any:
    """The smallest that holds an action; environments and algorithms see the space's own."""
    space = spec.action
    if isinstance(space, Box):
        return np.float32
    largest = max(space.sizes) if isinstance(space, MultiDiscrete) else space.n
    return np.min_scalar_type(largest - 1)


def empty(spec: EnvSpec, leading: Shape, length: int, num_envs: int, extras: PyTree) -> Gathered:
    """Room for rollouts of ``length`` steps.

    Args:
      leading: ``(D, P', S')``.
      extras: room for those, ``[D, P', S', T, B, …]``.
    """

    def each(steps: int, dtype: Any, *shape: int) -> Any:
        return np.empty((*leading, steps, num_envs, *shape), dtype)

    flags = {name: each(length, bool) for name in ("terminated", "truncated", "valid")}
    return Gathered(
        Rollout(
            obs=each(length + 1, spec.observation_dtype, *spec.observation_shape),
            is_first=each(length + 1, bool),
            action=each(length, spec.action.dtype, *spec.action.shape),
            reward=each(length, np.float32),
            **flags,
            carry=(),
            extras=extras,
        ),
        Ended(each(length, bool), each(length, np.float32), each(length, np.int32)),
        np.empty((*leading, num_envs), bool),
        {name: each(length, np.float32) for name in spec.info},
    )


class Stage:
    """The simulators of one process: one for each group of shards.

    After `restart` the first step of each group is a reset step: its action is ignored.

    Args:
      shape: ``(D, P', S', B)``.
      num_groups: into how many the shards of a device are cut, at most.
    """

    def __init__(self, env: HostEnvironment, shape: Shape, num_threads: int, num_groups: int):
        self._env, self._shape, self._num_threads = env, shape, num_threads
        shards = shape[2]
        each = max(1, shards // num_groups)
        self.groups = [slice(k, k + each) for k in range(0, shards, each)]
        self._simulators: list[Simulator] = []
        self._fresh: list[bool] = []

    def restart(self, seeds: np.ndarray) -> None:
        """Make all environments anew, from their seeds ``[D, P', S', B]``."""
        self.close()
        with _told(self._env):
            for group in self.groups:
                of_group = seeds[:, :, group].reshape(-1)
                self._simulators.append(self._env.simulate(of_group, self._num_threads))
                self._fresh.append(True)

    def send(self, group: int, action: np.ndarray) -> None:
        """Begin a step with actions ``[D, P', S'/G, B, …]``."""
        if not self._fresh[group]:
            space = self._env.spec.action
            flat = action.reshape(-1, *space.shape)
            with _told(self._env):
                self._simulators[group].send(flat.astype(space.dtype))

    def receive(self, group: int) -> HostStep:
        """Wait for the step of a group: ``[D, P', S'/G, B, …]``."""
        D, P, _, B = self._shape
        shards = self.groups[group]
        number = D * P * (shards.stop - shards.start) * B
        with _told(self._env):
            if self._fresh[group]:
                self._fresh[group] = False
                obs = check_seen(self._env.spec, self._simulators[group].reset(), number)
                no, zero = np.zeros(len(obs), bool), np.zeros(len(obs), np.float32)
                own = dict.fromkeys(self._env.spec.info, zero)
                seen = HostStep(obs, zero, no, no, zero, no, own)
            else:
                seen = check_step(self._env.spec, self._simulators[group].receive(), number)
        whole: HostStep = jax.tree.map(lambda x: x.reshape(D, P, -1, B, *x.shape[1:]), seen)
        return whole

    def close(self) -> None:
        """End the simulators' threads and free their memory. May be called twice."""
        simulators, self._simulators, self._fresh = self._simulators, [], []
        with _told(self._env), ExitStack() as stack:  # the others, too, where one raises an error
            for simulator in simulators:
                stack.callback(simulator.close)


def record(
    games: Games, gathered: Gathered, t: int, group: slice, seen: HostStep, cut: bool
) -> None:
    """Write down what step ``t`` of a group of shards has led to.

    Args:
      cut: whether a restart follows, so that all episodes end here.
    """
    rollout, done, was_cut, info = gathered
    games = Games(*(x[:, :, group] for x in games))
    valid = ~games.ended
    terminated, truncated = valid & seen.terminated, valid & seen.truncated
    was_cut[:, :, group] = cut & valid & ~terminated & ~truncated
    truncated |= was_cut[:, :, group]
    games.episode_return[...] += np.where(valid, seen.score, 0)
    games.episode_length[...] += valid
    complete = valid & seen.game_over

    games.obs[...] = seen.obs
    games.is_first[...] = games.ended
    games.ended[...] = terminated | truncated | cut
    rollout.obs[:, :, group, t + 1] = games.obs
    rollout.is_first[:, :, group, t + 1] = games.is_first
    rollout.reward[:, :, group, t] = np.where(valid, seen.reward, 0)
    rollout.terminated[:, :, group, t] = terminated
    rollout.truncated[:, :, group, t] = truncated
    rollout.valid[:, :, group, t] = valid
    done.ended[:, :, group, t] = complete
    done.episode_return[:, :, group, t] = np.where(complete, games.episode_return, 0)
    done.episode_length[:, :, group, t] = np.where(complete, games.episode_length, 0)
    for name, x in (seen.info or {}).items():
        info[name][:, :, group, t] = x
    over = complete | cut
    games.episode_return[over] = 0
    games.episode_length[over] = 0


def play(
    env: HostEnvironment,
    act: Callable[[int, np.ndarray, np.ndarray], np.ndarray],
    seeds: np.ndarray,
    num_threads: int,
    limit: int,
) -> Generator[tuple[Simulator, Played, np.ndarray]]:
    """One whole game in an environment for each of the seeds, step by step.

    Args:
      act: ``(t, obs, is_first) -> action``, of all.
      limit: steps after which a game without end is cut. A step that only begins the next episode,
        as after a lost life, is none of its steps.

    Yields:
      At the start and after each step, the simulator, what was played so far, and which games are
      over: bool ``[n]``.
    """
    played = nothing_played(np.zeros(len(seeds), np.float32), env.spec.info)
    done = np.zeros(len(seeds), bool)
    with _told(env):
        simulator = env.simulate(seeds, num_threads)
    try:
        with _told(env):
            obs = check_seen(env.spec, simulator.reset(), len(seeds))
        ended, is_first = done.copy(), ~done
        yield simulator, played, done
        for t in itertools.count():
            action = env.spec.action.clip(act(t, obs, is_first))
            with _told(env):
                simulator.send(action.astype(env.spec.action.dtype))  # its own, as in training
                seen = check_step(env.spec, simulator.receive(), len(seeds))
            obs, is_first = seen.obs, ended
            passed = done | ended
            played = Played(
                returns=played.returns + np.where(passed, 0, seen.score),
                lengths=played.lengths + ~passed,
                info=add_info(played.info, seen.info or {}, passed, np.where),
            )
            done = done | ~ended & (seen.game_over | (played.lengths == limit))
            ended = ~ended & (seen.terminated | seen.truncated)
            yield simulator, played, done
            if done.all():
                break
    finally:
        with _told(env):
            simulator.close()


@contextmanager
def _told(env: HostEnvironment) -> Iterator[None]:
    """What the environment raises is told in one line, as its error; and so is it where the
    environment does not come back."""
    what = f"environment {env.spec.id!r}"
    with errors_in_one_line(what), waiting(what):
        yield
