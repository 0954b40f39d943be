"""Collect and update as one compiled step, for every agent, shard and device."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.filesize import decimal

from jaxrl_scale import algos
from jaxrl_scale.config import Config
from jaxrl_scale.loop import rollout
from jaxrl_scale.loop.evaluator import Evaluator
from jaxrl_scale.loop.keys import COLLECT, INIT, UPDATE, agent_key
from jaxrl_scale.loop.prepare import check_memory, num_bytes
from jaxrl_scale.parallel.machine import peak_memory_mb
from jaxrl_scale.parallel.placement import Placement
from jaxrl_scale.types import Algorithm, Array, Environment, Metrics, Part, PyTree


class Shared(NamedTuple):
    """Of one agent, the same on all devices."""

    seed: Array  # [] uint32
    iteration: Array  # [] int32, iterations done
    algo: PyTree


class Local(NamedTuple):
    """Of one shard of one agent."""

    envs: rollout.Environments  # [B, ...]
    carry: PyTree  # [B, ...]
    algo: PyTree


class State(NamedTuple):
    """All that the next iterations depend on.

    While the run trains, it is placed on devices: each has the ``P'`` agents and ``S'`` shards that
    `Placement` gave it. On the host and in a checkpoint it is canonical, the same whatever the
    devices are: ``shared [P, ...]`` and ``local [P, S, ...]``.
    """

    shared: Shared
    local: Local


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """Metrics with all of a dtype in one array: fetching is paid by the array."""

    floats: Array  # [P', n] float32
    ints: Array  # [P', n] int32
    float_names: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    int_names: tuple[str, ...] = dataclasses.field(metadata={"static": True})


def pack(metrics: Metrics) -> Packed:
    """Metrics of the agents of a device, ``[P']`` each. Raises a TypeError for one that is no
    scalar of dtype float32 or int32."""
    names: dict[Any, list[str]] = {jnp.dtype(jnp.float32): [], jnp.dtype(jnp.int32): []}
    for name, x in sorted(metrics.items()):
        if x.ndim != 1 or x.dtype not in names:
            raise TypeError(
                f"metric {name!r} of the algorithm has shape {x.shape[1:]} and dtype {x.dtype}; "
                "it should be a scalar of dtype float32 or int32"
            )
        names[x.dtype].append(name)
    floats, ints = (jnp.stack([metrics[n] for n in names[d]], -1) for d in names)
    return Packed(floats, ints, *(tuple(group) for group in names.values()))


def unpack(packed: Packed) -> dict[str, np.ndarray]:
    """What `pack` was given."""
    columns = zip(packed.float_names, packed.floats.T, strict=True)
    return dict(columns) | dict(zip(packed.int_names, packed.ints.T, strict=True))


class Runner:
    """The compiled program of one config on one placement.

    `compile` first; then ``state = runner.init()`` (or `place`) and
    ``state, metrics, _ = runner.step(state)``.
    """

    def __init__(self, config: Config, env: Environment, placement: Placement):
        self.config, self.env, self.placement = config, env, placement
        self.pool = placement.pool()
        self.algo: Algorithm = algos.get(config.algo.name).make(config, env.spec, self.pool)

    # --- one device's part of one agent -----------------------------------------------------

    def _init_agent(self, seed: Array, numbers: PyTree) -> State:
        key_shared, key_envs, key_local = jax.random.split(agent_key(seed, INIT), 3)

        def init_shard(index: Array) -> Local:
            num_envs = self.config.envs_per_shard
            return Local(
                envs=rollout.reset(self.env, jax.random.fold_in(key_envs, index), num_envs),
                carry=self.algo.init_carry(num_envs),
                algo=self.algo.init_local(jax.random.fold_in(key_local, index), index),
            )

        shared = Shared(seed, jnp.zeros((), jnp.int32), self.algo.init_shared(key_shared, numbers))
        return State(shared, self.pool.map(init_shard, self.pool.shard_index()))

    def _step_agent(self, state: State) -> tuple[State, Metrics]:
        shared, local = state
        key_collect = agent_key(shared.seed, COLLECT, shared.iteration)
        key_update = agent_key(shared.seed, UPDATE, shared.iteration)
        actor = self.algo.actor(shared.algo, shared.iteration)

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

        carry, following, rolled, episodes = self.pool.map(
            collect_shard, self.pool.shard_index(), local
        )
        algo_shared, algo_local, metrics = self.algo.update(
            shared.algo, local.algo, rolled, key_update, shared.iteration
        )
        metrics = metrics | {"param_norm": optax.tree.norm(algo_shared.params)}
        next_state = State(
            Shared(shared.seed, shared.iteration + 1, algo_shared),
            Local(following, carry, algo_local),
        )
        return next_state, metrics | self.pool.sum(episodes)._asdict()

    # --- compiled for all devices -----------------------------------------------------------

    def compile(self) -> None:
        """Compile `init` and `step`, side by side."""
        compile, agents = self.placement.compile, self._agents()
        with ThreadPoolExecutor(1) as pool:
            compiled_init = pool.submit(compile, self._init, *agents, once=True)
            self._compiled_step = compile(
                self._step, self._placed_shapes, self.placement.split_flag(False), donate=(0,)
            )
            self._compiled_init = compiled_init.result()

    def _init(self, seeds: Array, numbers: PyTree) -> State:
        return self.placement.map_agents(self._init_agent, seeds, numbers)

    def _step(self, state: State, stop: Array) -> tuple[State, Packed, Array]:
        state, metrics = self.placement.map_agents(self._step_agent, state)
        return state, self.placement.publish(pack(metrics)), self.placement.any(stop)

    @property
    def seeds(self) -> np.ndarray:
        """Member ``k`` has seed ``config.seed + k``, ``[P]`` uint32."""
        return self.config.seed + np.arange(self.config.num_seeds, dtype=np.uint32)

    @property
    def own_seeds(self) -> np.ndarray:
        """Those of the agents that this process holds, ``[P_own]``."""
        agents, _ = self.placement.held
        return self.seeds[agents.start : agents.stop]

    @property
    def numbers(self) -> PyTree:
        """The algorithm's options with an array ``[P]`` for each number: the config's for all
        agents, from which `init` may be given others."""
        agents = self.config.num_seeds
        return jax.tree.map(lambda x: np.full(agents, x, np.float32), self.config.algo)

    def _agents(
        self, numbers: PyTree = None, seeds: np.ndarray | None = None
    ) -> tuple[np.ndarray, PyTree]:
        """Seeds and options' numbers of the agents that this process holds, placed."""
        held, _ = self.placement.held
        agents = (
            np.asarray(self.seeds if seeds is None else seeds, np.uint32),
            jax.tree.map(np.float32, self.numbers if numbers is None else numbers),
        )
        return self.placement.split_shared(
            jax.tree.map(lambda x: x[held.start : held.stop], agents)
        )

    def init(self, numbers: PyTree = None, seeds: np.ndarray | None = None) -> State:
        """The state before the first iteration, placed.

        Args:
          numbers: the agents' options as `numbers` has them, ``[P]`` each; default: these.
          seeds: the agents' seeds, ``[P]``; default: `seeds`.
        """
        return self._compiled_init(*self._agents(numbers, seeds))

    def step(self, state: State, stop: bool = False) -> tuple[State, dict[str, np.ndarray], bool]:
        """One iteration: collect, then update. ``state`` is donated, never read it again.

        Returns:
          The next state; the metrics by name, ``[P]`` each, on the host; and whether any
          process gave ``stop``, which is how all of them come to stop at one iteration.
        """
        state, packed, stops = self._compiled_step(state, self.placement.split_flag(stop))
        return state, unpack(self.placement.read(packed)), self.placement.join_flag(stops)

    @cached_property
    def _placed_shapes(self) -> State:
        return self.placement.shapes(self._init, *self._agents())

    # --- to and from the host ---------------------------------------------------------------

    def abstract_state(self) -> State:
        """Shapes and dtypes of the canonical state, ``shared [P, …]``, ``local [P, S, …]``."""
        return State(*self.placement.whole_shapes(*self._placed_shapes))

    def parts(self) -> PyTree:
        """Which part of each array of the canonical state this process holds: the same tree, with
        a `Part` for each array."""
        agents, shards = self.placement.held
        shapes = self.abstract_state()
        return State(
            jax.tree.map(lambda _: Part((agents,)), shapes.shared),
            jax.tree.map(lambda _: Part((agents, shards)), shapes.local),
        )

    def place(self, state: State) -> State:
        """Of a canonical state the part of this process, placed on its devices."""
        split = self.placement
        return State(split.split_shared(state.shared), split.split_local(state.local))

    def fetch(self, state: State) -> State:
        """Of the canonical state the part of this process (see `parts`), a copy on the host."""
        join = self.placement
        joined = State(join.join_shared(state.shared), join.join_local(state.local))
        return jax.tree.map(np.array, joined)  # the next step takes the buffers back

    def fetch_actor(self, state: State) -> PyTree:
        """What acting needs, ``[P_own, …]`` on the host."""
        shared = self.placement.join_shared(state.shared)
        return self.algo.actor(shared.algo, shared.iteration)

    # --- what else the loop asks (`jaxrl_scale.loop.protocol`) ------------------------------

    def check_memory(self) -> None:
        """Raise a `RunError` if the state does not fit into the memory."""
        check_memory(self._placed_shapes, self.placement.at_hand)

    def describe(self) -> str:
        """For people: ``1 cpu device with 4 shards each, exact sums, a state of 31.4 kB``."""
        size = decimal(num_bytes(self._placed_shapes))
        return f"{self.placement.describe()}, a state of {size}"

    def facts(self) -> dict[str, Any]:
        """For ``run.json``."""
        return {"devices": self.placement.names(), "reduction": self.placement.reduction}

    def evaluate(self, state: State) -> np.ndarray | None:
        """Undiscounted returns ``[P, episodes]`` of whole episodes with greedy actions. Agents that
        are not split over processes are evaluated by process 0 alone, and the others get None."""
        return self._evaluator(self.fetch_actor(state), self.own_seeds)

    @cached_property
    def _evaluator(self) -> Evaluator:
        episodes = self.config.eval_episodes
        return Evaluator(self.env, self.algo, self.placement, episodes, greedy=True)

    def peak_memory_mb(self) -> float:
        """The most memory in use so far: of the process on CPUs, of one device on GPUs."""
        return peak_memory_mb(self.placement.at_hand[0])
