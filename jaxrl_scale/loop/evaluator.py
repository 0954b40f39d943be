"""Whole episodes with every agent of a run."""

from __future__ import annotations

from typing import Any

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

        self._play = placement.over_agents(play_agent)

    def __call__(self, actor: PyTree, seeds: np.ndarray) -> np.ndarray | None:
        """Undiscounted returns ``[P, episodes]``, from the agents that this process holds: ``actor
        [P_own, …]`` and ``seeds [P_own]``. The same seeds start the same episodes at every call.

        Which processes have to call it, and which get None, `Placement.over_agents` says.
        """
        return self._play(actor, seeds)
