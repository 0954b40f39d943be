"""Collect and update as one compiled program, for every agent, shard and device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from jaxrl_scale.config import Config
from jaxrl_scale.loop import rollout, state
from jaxrl_scale.loop.keys import COLLECT, agent_key
from jaxrl_scale.loop.placed import PlacedAgents
from jaxrl_scale.loop.state import Agents, Local, Report, Rows, State, summed, unpack
from jaxrl_scale.parallel.placement import Placement
from jaxrl_scale.types import Array, Environment, Key

SECONDS_OF_A_CALL, MOST_AT_ONCE = 0.2, 32
"""How long a call of the compiled program should take, so that a signal is heard soon, and how many
iterations it may make. Calling takes 1 to 1.5 ms on two CPU devices, however many they are: as long
as an iteration of A2C on CartPole."""


class Runner(PlacedAgents):
    """The compiled program of one config on one placement, for environments on the devices.

    `compile` first; then ``state = runner.init()`` (or `place`) and
    ``state, metrics = runner.step(state)``, or several iterations by `steps`.
    """

    def __init__(
        self,
        config: Config,
        env: Environment,
        placement: Placement,
        agents: Agents | None = None,
    ):
        super().__init__(config, env, placement, agents)
        self.env = env
        # What an iteration took in the call before, in this process and in the slowest. The first
        # calls make one iteration each.
        self._seconds = self._longest = SECONDS_OF_A_CALL

    @property
    def at_once(self) -> int:
        """How many iterations a call of `steps` should make, by what they took in the slowest
        process so far. It is the same in all processes."""
        return max(1, min(MOST_AT_ONCE, int(SECONDS_OF_A_CALL / self._longest)))

    # --- one device's part of one agent -----------------------------------------------------

    def _reset(self, key: Key) -> rollout.Environments:
        return rollout.reset(self.env, key, self.config.envs_per_shard)

    def _step_agent(self, num_iterations: Array, before: State) -> tuple[State, Report]:
        shared, local = before
        key_collect = agent_key(shared.seed, COLLECT, shared.iteration)
        actor = self.algo.actor(shared.algo, state.time_of(shared, num_iterations))

        def collect_shard(index: Array, local: Local) -> tuple[Any, ...]:
            return rollout.collect(
                self.env,
                self.algo,
                self.config.rollout_length,
                actor,
                local.algo,
                local.carry,
                local.envs,
                jax.random.fold_in(key_collect, index),
            )

        carry, following, rolled, episodes, info = self.pool.map(
            collect_shard, self.pool.shard_index(), local
        )
        counts = episodes._asdict() | info
        shared, algo_local, report = state.learn(
            self.algo, shared, local.algo, rolled, counts, num_iterations
        )
        return State(shared, Local(following, carry, algo_local)), report

    # --- compiled for all devices -----------------------------------------------------------

    def compile(self, fresh: bool = True) -> None:
        """Compile `steps`, and beside it `init` if it will be called (``fresh``)."""
        with self._beginning.compiled_beside(fresh):
            self._compiled_steps = self.placement.compile(
                self._steps,
                self._beginning.shapes,
                self._num_iterations,
                self.placement.split_scalar(1),
                self.placement.split_scalar(0.0),
                donate=(0,),
                name="steps",
            )

    def _steps(
        self, before: State, num_iterations: Array, count: Array, seconds: Array
    ) -> tuple[State, Report, Array]:
        """``count`` iterations, their reports in room for all that one call may make, ``[P', K,
        n]``, and the most ``seconds`` that any process gave. The count is traced, so that there is
        one program and one order of sums."""
        step = partial(self.placement.map_agents, partial(self._step_agent, num_iterations))
        after, reports = state.repeated(step, before, count, MOST_AT_ONCE)
        reports = summed(self.pool, reports)
        return after, *self.placement.publish(reports, seconds)

    def steps(
        self,
        before: State,
        count: int,
        stop: bool = False,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> tuple[State, Rows, bool]:
        """``count`` iterations, at most `MOST_AT_ONCE`, each of which collects and then updates.
        ``before`` is donated, never read it again. ``meanwhile`` is called while the devices work.

        Returns:
          The next state; of each iteration the metrics by name, ``[P]`` each, on the host; and
          whether any process gave ``stop``, which is how all of them come to stop at one
          iteration.
        """
        split, start = self.placement.split_scalar, time.perf_counter()
        seconds = math.inf if stop else self._seconds  # so that one exchange tells both
        after, reports, longest = self._compiled_steps(
            before, self._num_iterations, split(count), split(seconds)
        )
        try:
            meanwhile()
        finally:  # no other call begins before this one has ended: see `Placement.trace`
            rows = unpack(self.placement.read(reports), count)
        self._longest = self.placement.join_number(longest)
        self._seconds = (time.perf_counter() - start) / count
        return after, rows, math.isinf(self._longest)

    def close(self) -> None:
        """There is nothing to close."""
