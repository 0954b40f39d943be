"""Whole episodes with every agent of a run."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxrl_scale.loop import rollout
from jaxrl_scale.loop.keys import EVALUATE, agent_key
from jaxrl_scale.parallel.placement import Placement
from jaxrl_scale.types import Algorithm, Array, Environment, Key, PyTree

LONGEST_EPISODE = 10_000
"""Steps after which an episode of an environment without a time limit is cut."""


class Evaluator:
    """Plays whole episodes with every agent. It is compiled at its first use.

    An agent's episodes are played by one inner program on one device, so that the result does not
    depend on the devices either.
    """

    def __init__(
        self, env: Environment, algo: Algorithm, placement: Placement, episodes: int, greedy: bool
    ):
        limit = env.spec.max_episode_steps or LONGEST_EPISODE

        def play(actor: PyTree, carry: PyTree, obs: Array, is_first: Array, key: Key) -> Any:
            action, carry, _ = algo.act(actor, None, carry, obs, is_first, key, greedy)
            return action, carry

        def play_agent(actor: PyTree, seed: Array) -> Array:
            returns, _ = rollout.play_episodes(
                env,
                play,
                actor,
                algo.init_carry(episodes),
                episodes,
                limit,
                agent_key(seed, EVALUATE),
            )
            return returns

        self._play = lambda actor, seeds: placement.map_members(play_agent, actor, seeds)
        self._play_all = lambda *args: placement.publish(self._play(*args))
        self._placement = placement
        self._compiled: Any = None

    def __call__(self, actor: PyTree, seeds: np.ndarray) -> np.ndarray:
        """Undiscounted returns ``[P, episodes]``. The same seeds start the same episodes at every
        call.

        Where whole agents are placed on devices, every process has to call it with the agents that
        it holds, ``actor [P_own, …]`` and ``seeds [P_own]``. Else one process is enough.
        """
        placement = self._placement
        args = (actor, seeds)
        if placement.by_members:
            args = placement.split_shared(args)
            if self._compiled is None:
                self._compiled = placement.compile(self._play_all, *args)
            return placement.read(self._compiled(*args))
        if self._compiled is None:
            self._compiled = jax.jit(self._play)
        return np.asarray(self._compiled(*args))
