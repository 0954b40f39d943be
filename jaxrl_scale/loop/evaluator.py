"""Whole episodes with every agent of a run."""

from __future__ import annotations

from collections import deque
from typing import Any

import jax
import numpy as np

from jaxrl_scale import envs
from jaxrl_scale.config import Config
from jaxrl_scale.errors import RunError
from jaxrl_scale.loop import host_rollout, rollout
from jaxrl_scale.loop.keys import EVALUATE, agent_key, host_seeds
from jaxrl_scale.parallel.placement import Placement
from jaxrl_scale.types import Algorithm, Array, Environment, HostEnvironment, Key, Played, PyTree

LONGEST_EPISODE = 10_000
"""Steps after which an episode of an environment without a time limit is cut."""


AT_ONCE = 4_096
"""Episodes of an agent that are played side by side: more are played in blocks of so many, since
all of them might not fit into memory."""


class Evaluator:
    """Plays whole episodes with every agent. It is compiled at its first use.

    An agent's episodes are played by one inner program on one device, so that the result does not
    depend on the devices either.
    """

    def __init__(
        self,
        env: Environment,
        algo: Algorithm,
        placement: Placement,
        episodes: int,
        greedy: bool,
        name: str = "",
    ):
        limit = env.spec.max_episode_steps or LONGEST_EPISODE

        def play(actor: PyTree, carry: PyTree, obs: Array, is_first: Array, key: Key) -> Any:
            action, carry, _ = algo.act(actor, None, carry, obs, is_first, key, greedy)
            return action, carry

        def play_agent(actor: PyTree, seed: Array) -> Played:
            key, each = agent_key(seed, EVALUATE), min(episodes, AT_ONCE)

            def play_block(key: Key) -> Played:
                carry = algo.init_carry(each)
                return rollout.play_episodes(env, play, actor, carry, each, limit, key)

            if episodes == each:
                return play_block(key)
            blocks = jax.lax.map(play_block, jax.random.split(key, -(-episodes // each)))
            played: Played = jax.tree.map(lambda x: x.reshape(-1)[:episodes], blocks)
            return played

        self._play = placement.over_agents(play_agent, name)

    def __call__(self, actor: PyTree, seeds: np.ndarray) -> Played | None:
        """What was played, ``[P, episodes]`` each, with the agents that this process holds: ``actor
        [P_own, …]`` and ``seeds [P_own]``. The same seeds start the same episodes at every call.

        Which processes have to call it, and which get None, `Placement.over_agents` says.
        """
        played: Played | None = self._play(actor, seeds)
        return played


class HostEvaluator:
    """As `Evaluator`, for an environment on the host.

    A process plays with its agents one after the other, in as many environments as there are
    episodes, by a program for one agent on its first device.
    """

    def __init__(
        self,
        env: HostEnvironment,
        algo: Algorithm,
        placement: Placement,
        episodes: int,
        greedy: bool,
    ):
        self._env, self._placement, self._episodes = env, placement, episodes
        self._init_carry = algo.init_carry

        def act(actor: PyTree, carry: PyTree, obs: Array, is_first: Array, turn: Array) -> Any:
            seed, t = turn
            key = jax.random.fold_in(agent_key(seed, EVALUATE), t)
            action, carry, _ = algo.act(actor, None, carry, obs, is_first, key, greedy)
            return action, carry

        self._act = jax.jit(act, compiler_options=placement.compiler_options)
        self._share = placement.over_agents(lambda played: played)

    def __call__(self, actor: PyTree, seeds: np.ndarray) -> Played | None:
        """As `Evaluator.__call__`."""
        if not self._placement.by_agents and not self._placement.leader:
            return None  # process 0 plays, with whole agents that all processes have
        agents = [jax.tree.map(lambda x, k=k: x[k], actor) for k in range(len(seeds))]
        played = [self._play(*each) for each in zip(agents, map(int, seeds), strict=True)]
        shared: Played | None = self._share(jax.tree.map(lambda *x: np.stack(x), *played))
        return shared

    def _play(self, actor: PyTree, seed: int) -> Played:
        device, limit = self._placement.at_hand[0], self._env.spec.max_episode_steps
        actor = jax.device_put(actor, device)
        moving = jax.device_put(self._init_carry(self._episodes), device)

        def act(t: int, obs: np.ndarray, is_first: np.ndarray) -> np.ndarray:
            nonlocal moving
            turn = np.asarray([seed, t], np.uint32)
            action, moving = self._act(actor, moving, obs, is_first, turn)
            return np.asarray(action)

        game_seeds = host_seeds(seed, EVALUATE, 0, np.arange(self._episodes))
        threads = self._placement.num_threads
        steps = host_rollout.play(self._env, act, game_seeds, threads, limit or LONGEST_EPISODE)
        [(_, played, _)] = deque(steps, 1)  # a game may have a hundred thousand steps
        return played


def make_evaluator(
    env: Environment | HostEnvironment,
    algo: Algorithm,
    placement: Placement,
    episodes: int,
    greedy: bool,
    name: str = "",
) -> Evaluator | HostEvaluator:
    """For an environment on the devices, or on the host. ``name``: as in `Placement.compile`, which
    only one on the devices is compiled by."""
    if envs.on_host(env):
        return HostEvaluator(env, algo, placement, episodes, greedy)
    return Evaluator(env, algo, placement, episodes, greedy, name)  # type: ignore[arg-type]


def environments(
    config: Config, env: Environment | HostEnvironment
) -> dict[str, Environment | HostEnvironment]:
    """Those that a run's agents are evaluated in, by what their metrics begin with: ``eval_return``
    is played in its own environment, ``test_return`` in that of ``test_env_kwargs``, if there are
    any.

    Raises a `RunError` where that one has other observations or actions.
    """
    played = {"eval": env}
    if config.test_env_kwargs:
        played["test"] = make_alike(config, env, config.test_env_kwargs, "test_env_kwargs")
    return played


def make_alike(
    config: Config, env: Environment | HostEnvironment, kwargs: dict[str, Any], name: str
) -> Environment | HostEnvironment:
    """The config's environment with other ``kwargs``; ``env`` is the one that trains. Raises a
    `RunError`, which calls them by this name, where it has other observations or actions."""
    changed = config.replace(env_kwargs=config.env_kwargs | kwargs)
    other: Environment | HostEnvironment = changed.make_env()
    for part in ("observation_shape", "observation_dtype", "action", "action_mask"):
        trained, tested = (getattr(x.spec, part) for x in (env, other))
        if trained != tested:
            raise RunError(
                f"{name}={kwargs} makes an environment whose {part} is {tested}; it should be that "
                f"of the environment which trains, {trained}"
            )
    return other


def make_evaluators(
    config: Config, env: Environment | HostEnvironment, algo: Algorithm, placement: Placement
) -> dict[str, Evaluator | HostEvaluator]:
    """One for each of a run's `environments`, by the same names."""
    return {
        name: make_evaluator(x, algo, placement, config.eval_episodes, config.eval_greedy, name)
        for name, x in environments(config, env).items()
    }


def play_all(
    evaluators: dict[str, Evaluator | HostEvaluator], actor: PyTree, seeds: np.ndarray
) -> dict[str, Played] | None:
    """What each of them returns; None where they return None."""
    played = {name: play(actor, seeds) for name, play in evaluators.items()}
    return {name: x for name, x in played.items() if x is not None} or None
