"""The agents of a run on the devices of its processes, wherever their environments are."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import jax
import numpy as np
from rich.filesize import decimal

from jaxrl_scale import algos
from jaxrl_scale.config import Config
from jaxrl_scale.loop import contract, state
from jaxrl_scale.loop.evaluator import make_evaluators, play_all
from jaxrl_scale.loop.prepare import check_memory, num_bytes
from jaxrl_scale.loop.state import Agents, Rows, State
from jaxrl_scale.parallel.machine import Memory, memory
from jaxrl_scale.parallel.placement import Placement
from jaxrl_scale.records import digest
from jaxrl_scale.types import (
    Algorithm,
    Array,
    Environment,
    HostEnvironment,
    Key,
    Part,
    Played,
    PyTree,
)
from jaxrl_scale.user_code import is_own


class PlacedAgents(ABC):
    """What both runners do with their agents: begin them, bring their state to the host and back,
    evaluate them, and tell what they run on.

    The agents differ by their seeds, or also in the numbers of their options: `state.Agents`.
    """

    def __init__(
        self,
        config: Config,
        env: Environment | HostEnvironment,
        placement: Placement,
        agents: Agents | None = None,
    ):
        self.config, self.placement = config, placement
        self.agents = state.agents(config) if agents is None else agents
        self.pool = placement.pool()
        algo: Algorithm = algos.make(config, env.spec, self.pool)
        self.algo = contract.algorithm(algo, env.spec.action)
        if is_own(config.algo.name):
            contract.playing(self.algo, env.spec, config.algo)
        self._beginning = Beginning(placement, self._init_agent, self.agents)
        self._evaluators = make_evaluators(config, env, self.algo, placement)
        # Not a constant of the program, so that a longer run finds the compiled one in the cache.
        self._num_iterations = placement.put(placement.split_scalar(config.num_iterations))

    def _init_agent(self, seed: Array, numbers: PyTree, weights: PyTree = None) -> State:
        return state.init_agent(
            self.config, self.algo, self.pool, self._reset, seed, numbers, weights
        )

    @abstractmethod
    def _reset(self, key: Key) -> PyTree:
        """`state.Local.envs` of one shard before its first step."""

    @property
    def _shapes(self) -> State:
        """Shapes and dtypes of the placed state."""
        return self._beginning.shapes

    def init(self, agents: Agents | None = None) -> State:
        """The state before the first iteration, placed: of the runner's agents, or of others."""
        return self._beginning(agents)

    @abstractmethod
    def steps(self, before: State, count: int) -> tuple[State, Rows, bool]:
        """As `jaxrl_scale.loop.protocol.Runner.steps`, of which it takes all arguments."""

    def step(self, before: State) -> tuple[State, dict[str, np.ndarray]]:
        """One iteration, as `steps`."""
        after, (metrics,), _ = self.steps(before, 1)
        return after, metrics

    # --- to and from the host ---------------------------------------------------------------

    def abstract_state(self) -> State:
        """Shapes and dtypes of the canonical state, ``shared [P, …]``, ``local [P, S, …]``."""
        return State(*self.placement.whole_shapes(*self._shapes))

    def parts(self) -> State:
        """Which part of each array of the canonical state this process holds: the same tree, with
        a `Part` for each array."""
        (agents, shards), shapes = self.placement.held, self.abstract_state()
        return State(
            jax.tree.map(lambda _: Part((agents,)), shapes.shared),
            jax.tree.map(lambda _: Part((agents, shards)), shapes.local),
        )

    def place(self, saved: State, say: Callable[[str], None] = print) -> State:
        """The part that this process has of a canonical state, as its devices will hold it."""
        placement = self.placement
        return State(placement.split_shared(saved.shared), placement.split_local(saved.local))

    def fetch(self, placed: State) -> State:
        """A copy on the host of this process's part of the canonical state (see `parts`)."""
        placement = self.placement
        joined = State(placement.join_shared(placed.shared), placement.join_local(placed.local))
        return jax.tree.map(np.array, joined)  # the next step takes the buffers back

    def digests(self, fetched: State) -> dict[int, str]:
        """By index, for each agent that this process holds: the digest of what is the same on all
        devices, which is what the agent has learned. Parameters, optimizer, statistics and counters
        are in it, environments and replay are not.

        Args:
          fetched: what `fetch` gave.
        """
        held, _ = self.placement.held

        def digest_of(k: int) -> str:
            return digest.of_tree(jax.tree.map(lambda x: x[k - held.start], fetched.shared))

        return {k: digest_of(k) for k in range(held.start, held.stop)}

    def fetch_actor(self, placed: State) -> PyTree:
        """What acting needs, ``[P_own, …]`` on the host."""
        shared = self.placement.join_shared(placed.shared)
        time = state.time_of(shared, np.int32(self.config.num_iterations))
        return self.algo.actor(shared.algo, time)

    # --- what else the loop asks (`jaxrl_scale.loop.protocol`) ------------------------------

    def evaluate(self, placed: State) -> dict[str, Played] | None:
        """Whole episodes ``[P, episodes]``, by the names of `make_evaluators`. Agents that are
        split over processes are evaluated by process 0 alone, and the others get None."""
        seeds = _held(self.placement, self.agents).seeds
        return play_all(self._evaluators, self.fetch_actor(placed), seeds)

    def check_memory(self) -> None:
        """Raise a `RunError` if the state does not fit into the memory."""
        check_memory(self._shapes, self.placement.at_hand)

    def describe(self) -> str:
        """For people: ``1 cpu device with 4 shards each, exact sums, a state of 31.4 kB``."""
        return f"{self.placement.describe()}, a state of {decimal(num_bytes(self._shapes))}"

    def facts(self) -> dict[str, Any]:
        """For ``run.json``. Of agents with other seeds or options than the config says, as in a
        sweep, ``agents`` has those of each, ``[P]`` by the option's name."""
        facts = {"devices": self.placement.names(), "reduction": self.placement.reduction}
        usual, own = state.agents(self.config), {}
        if (self.agents.seeds != usual.seeds).any():
            own["seed"] = self.agents.seeds.tolist()
        for f in dataclasses.fields(self.config.algo):
            mine, theirs = (getattr(x.options, f.name) for x in (self.agents, usual))
            if isinstance(mine, np.ndarray) and (mine != theirs).any():
                own[f"algo.{f.name}"] = [float(str(x)) for x in mine]  # 0.1, not its float32
        return facts | ({"agents": own} if own else {})

    def memory(self) -> Memory:
        """Of the process on CPUs, of one device on GPUs."""
        return memory(self.placement.at_hand[0])


class Beginning:
    """The state before the first iteration, placed, of the agents of a run or of others: call it.

    Args:
      init_agent: one device's part of an agent, from its seed, its options and its weights.
    """

    def __init__(self, placement: Placement, init_agent: Callable[..., State], agents: Agents):
        self._placement, self._agents = placement, agents
        # One function object, which JAX traces once for its shapes and its program.
        self._init = lambda *agents: placement.map_agents(init_agent, *agents)

    def __call__(self, agents: Agents | None = None) -> State:
        placed: State = self.program(*self._place(agents or self._agents))
        return jax.block_until_ready(placed)  # before the next call: `Placement.compile`

    @cached_property
    def program(self) -> Any:
        """Compiled when it is first wanted."""
        return self._trace()()

    @contextmanager
    def compiled_beside(self, wanted: bool) -> Iterator[None]:
        """Compile the program, if it is ``wanted``, in a thread beside what the body does."""
        if not wanted:
            yield
            return
        compile = self._trace()  # before the body traces: a core has work from then on
        with ThreadPoolExecutor(1) as pool:
            program = pool.submit(compile)
            yield
            self.program = program.result()

    def _trace(self) -> Callable[[], Any]:
        return self._placement.trace(self._init, *self._place(self._agents), once=True, name="init")

    @cached_property
    def shapes(self) -> State:
        """Shapes and dtypes of the placed state."""
        shapes: State = self._placement.shapes(self._init, *self._place(self._agents), name="init")
        return shapes

    def _place(self, agents: Agents) -> Agents:
        return Agents(*self._placement.split_shared(_held(self._placement, agents)))


def _held(placement: Placement, agents: Agents) -> Agents:
    """Those of the agents that this process holds, ``[P_own]`` each."""
    held, _ = placement.held
    return Agents(*jax.tree.map(lambda x: x[held.start : held.stop], agents))
