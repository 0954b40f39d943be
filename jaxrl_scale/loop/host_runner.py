"""Train in environments on the host: act on the devices, simulate on the cores, then update."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.config import Config
from jaxrl_scale.errors import RunError, how_many
from jaxrl_scale.loop import host_rollout, rollout, state
from jaxrl_scale.loop.host_rollout import Games, Gathered, Stage
from jaxrl_scale.loop.keys import COLLECT, agent_key, host_seeds
from jaxrl_scale.loop.placed import PlacedAgents
from jaxrl_scale.loop.state import Agents, Report, Rows, Shared, State, summed, unpack
from jaxrl_scale.parallel.placement import Placement, to_host
from jaxrl_scale.types import Array, HostEnvironment, Key, Metrics, PyTree


class HostRunner(PlacedAgents):
    """As `jaxrl_scale.loop.runner.Runner`, for environments on the host.

    What is placed of a state is split: `Games` stay on the host, in the layout of the devices, and
    the programs see a state without them.
    """

    at_once = 1
    """The most iterations that `steps` takes."""

    def __init__(
        self,
        config: Config,
        env: HostEnvironment,
        placement: Placement,
        agents: Agents | None = None,
    ):
        super().__init__(config, env, placement, agents)
        self.env = env
        of_agents, shards = placement.held
        held = (of_agents.stop - of_agents.start, shards.stop - shards.start)
        self._index = placement.split_local(  # of each environment among those of all shards
            np.broadcast_to(
                np.arange(config.num_envs).reshape(config.num_shards, -1)[
                    shards.start : shards.stop
                ],
                (*held, config.envs_per_shard),
            )
        )
        self._leading = self._index.shape[:3]  # (D, P', S')
        # Two groups act and simulate in turn. Where the devices are all cores that the simulators
        # may use, nothing is gained by it, and one group takes half as many calls: collecting in
        # Coinrun then takes 0.8 times as long (2 cores).
        busy = len(placement.at_hand) >= placement.num_threads and placement.on_cpus
        self._stage = Stage(env, self._index.shape, placement.num_threads, 1 if busy else 2)

    # --- one device's part of one agent -----------------------------------------------------

    def _reset(self, key: Key) -> tuple[()]:
        return ()  # the games are on the host

    def _act_agent(
        self, num_iterations: Array, turn: Array, before: State, obs: Array, is_first: Array
    ) -> tuple[Array, PyTree, PyTree]:
        """Actions of a group of shards ``[S'/G, B, …]``, the memory of all shards afterwards, and
        extras. ``turn``: the step and the group."""
        (shared, local), (t, group), shards = before, turn, obs.shape[0]
        key = agent_key(shared.seed, COLLECT, shared.iteration)
        actor = self.algo.actor(shared.algo, state.time_of(shared, num_iterations))

        def of_group(x: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(x, group * shards, shards)

        def act_shard(index: Array, local: PyTree, carry: PyTree, obs: Array, first: Array) -> Any:
            key_t = jax.random.fold_in(jax.random.fold_in(key, index), t)
            return self.algo.act(actor, local, carry, obs, first, key_t)

        index, algo_local, carry = jax.tree.map(
            of_group, (self.pool.shard_index(), local.algo, local.carry)
        )
        one = 1 + t // self.config.rollout_length  # which XLA does not know
        action, carry, extras = self.placement.map_shards(
            act_shard, index, algo_local, carry, obs, is_first, trips=one
        )
        carry = jax.tree.map(
            lambda whole, x: jax.lax.dynamic_update_slice_in_dim(whole, x, group * shards, 0),
            local.carry,
            carry,
        )
        return action, carry, extras

    def _update_agent(
        self, num_iterations: Array, before: State, first_carry: PyTree, gathered: Gathered
    ) -> tuple[State, Report]:
        shared, local = before

        def count_shard(gathered: Gathered) -> Metrics:
            valid, ended = gathered.rollout.valid, gathered.ended
            counts = rollout.sum_episodes(ended, valid)._asdict()
            counts |= {"cut_episodes": gathered.cut.sum(dtype=jnp.int32)}
            return counts | rollout.sum_info(gathered.info, valid, ended.ended)

        counts = self.pool.map(count_shard, gathered)
        rolled = gathered.rollout._replace(carry=first_carry)
        shared, algo_local, report = state.learn(
            self.algo, shared, local.algo, rolled, counts, num_iterations
        )
        return State(shared, local._replace(algo=algo_local)), report

    # --- compiled for all devices -----------------------------------------------------------

    def compile(self, fresh: bool = True) -> None:
        """Compile acting and the update, and `init` if it will be called (``fresh``), side by
        side."""
        carry = self._beginning.shapes.local.carry
        gathered = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self._gathered)
        with self._beginning.compiled_beside(fresh), ThreadPoolExecutor(1) as pool:
            seen = self._seen_shapes
            act = pool.submit(
                self.placement.trace(self._act, self._beginning.shapes, *seen, name="act")
            )
            self._compiled_update = self.placement.compile(
                self._update,
                self._beginning.shapes,
                carry,
                gathered,
                self._num_iterations,
                self.placement.split_scalar(0.0),
                donate=(0,),
                name="update",
            )
            self._compiled_act = act.result()

    @cached_property  # one object, which is traced once for its shapes and its program
    def _act(self) -> Callable[..., Any]:
        def act(
            before: State, obs: Array, is_first: Array, turn: Array, num_iterations: Array
        ) -> Any:
            return self.placement.map_agents(
                partial(self._act_agent, num_iterations, turn), before, obs, is_first
            )

        return act

    def _update(
        self,
        before: State,
        first_carry: PyTree,
        gathered: Gathered,
        num_iterations: Array,
        stop: Array,
    ) -> tuple[State, Report, Array]:
        update = partial(self._update_agent, num_iterations)

        def step(before: State) -> tuple[State, Report]:
            return self.placement.map_agents(update, before, first_carry, gathered)

        # It is one round, which XLA does not know and so does not inline.
        after, reports = state.repeated(step, before, jnp.minimum(num_iterations, 1), most=2)
        reports = summed(self.pool.after(after.shared), reports)
        return after, *self.placement.publish(reports, stop)

    @cached_property
    def _seen_shapes(self) -> tuple[Any, Any, Any, Any]:
        """Of what acting sees: observations, which of them are first, the turn, and the number of
        iterations."""
        spec, first = self.env.spec, self._index[:, :, self._stage.groups[0]]
        obs = jax.ShapeDtypeStruct((*first.shape, *spec.observation_shape), spec.observation_dtype)
        turn = jax.ShapeDtypeStruct((len(self._index), 2), np.int32)
        return obs, jax.ShapeDtypeStruct(first.shape, bool), turn, self._num_iterations

    @cached_property
    def _gathered(self) -> Gathered:
        """Room for the rollouts of an iteration."""
        length, num_envs = self.config.rollout_length, self.config.envs_per_shard
        _, _, extras = self.placement.shapes(
            self._act, self._beginning.shapes, *self._seen_shapes, name="act"
        )
        room = jax.tree.map(
            lambda x: np.empty((*self._leading, length, *x.shape[3:]), x.dtype), extras
        )
        return host_rollout.empty(self.env.spec, self._leading, length, num_envs, room)

    # --- the loop ---------------------------------------------------------------------------

    def init(self, agents: Agents | None = None) -> State:
        """As `PlacedAgents.init`."""
        return _with_games(super().init(agents), self._no_games())

    def steps(
        self,
        before: State,
        count: int,
        stop: bool = False,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> tuple[State, Rows, bool]:
        """As `jaxrl_scale.loop.runner.Runner.steps`, but ``meanwhile`` is called before: a rollout
        can take so long that the user should not wait for the rows of the one before."""
        meanwhile()
        games, devices = before.local.envs, _with_games(before, ())
        first_carry = devices.local.carry
        since, restart = self._since_restart(before.shared)
        if since == 0:
            self._stage.restart(self._seeds(before.shared, restart))
        devices = self._collect(games, devices, since)
        devices, reports, stops = self._compiled_update(
            devices,
            first_carry,
            self._gathered,
            self._num_iterations,
            self.placement.split_scalar(float(stop)),
        )
        rows = unpack(self.placement.read(reports), count)
        return _with_games(devices, games), rows, self.placement.join_number(stops) > 0

    def _collect(self, games: Games, devices: State, since: int) -> State:
        """A rollout of all groups in turn, written to `_gathered`. Returns what the devices hold
        afterwards, which is another memory of the policy."""
        rolled, groups = self._gathered.rollout, self._stage.groups
        length = self.config.rollout_length
        restart_follows = since + length == games.actions.shape[3]

        def see(t: int, k: int) -> None:
            cut = restart_follows and t == length - 1
            seen = self._stage.receive(k)
            host_rollout.record(games, self._gathered, t, groups[k], seen, cut)

        rolled.obs[:, :, :, 0], rolled.is_first[:, :, :, 0] = games.obs, games.is_first
        for t, (k, group) in itertools.product(range(length), enumerate(groups)):
            if t > 0:
                see(t - 1, k)
            turn = np.broadcast_to(np.asarray([t, k], np.int32), (len(self._index), 2))
            obs, first = games.obs[:, :, group], games.is_first[:, :, group]
            action, carry, extras = self._compiled_act(
                devices, obs, first, turn, self._num_iterations
            )
            devices = devices._replace(local=devices.local._replace(carry=carry))
            chosen = to_host(action)
            sent = self.env.spec.action.clip(chosen)
            self._stage.send(k, sent)
            rolled.action[:, :, group, t] = chosen
            games.actions[:, :, group, since + t] = sent
            for room, x in zip(
                jax.tree.leaves(rolled.extras), jax.tree.leaves(extras), strict=True
            ):
                room[:, :, group, t] = to_host(x)
        for k in range(len(groups)):
            see(length - 1, k)
        return devices

    def _since_restart(self, shared: Shared) -> tuple[int, int]:
        """How many steps the environments have made since they were made, and how often they were
        made before."""
        iteration = int(self.placement.join_shared(shared.iteration)[0])
        restart, since = divmod(iteration, self.config.restart_every)
        return since * self.config.rollout_length, restart

    def _seeds(self, shared: Shared, restart: int) -> np.ndarray:
        """Of all environments of this process, ``[D, P', S', B]``."""
        index = self.placement.join_local(self._index)  # [P_own, S_own, B]
        agents = self.placement.join_shared(shared.seed)
        seeds = [
            host_seeds(int(seed), COLLECT, restart, own.reshape(-1)).reshape(own.shape)
            for seed, own in zip(agents, index, strict=True)
        ]
        split: np.ndarray = self.placement.split_local(np.stack(seeds))
        return split

    def _no_games(self) -> Games:
        length = self.config.restart_every * self.config.rollout_length
        return host_rollout.fresh(self.env.spec, self._leading, length, self.config.envs_per_shard)

    # --- to and from the host ---------------------------------------------------------------

    @cached_property
    def _shapes(self) -> State:
        games = jax.eval_shape(self._no_games)
        return _with_games(self._beginning.shapes, games)

    def place(self, saved: State, say: Callable[[str], None] = print) -> State:
        """As `PlacedAgents.place`. The environments repeat what they did since the last restart.

        Raises a `RunError` where that leads to other observations than those that were saved.
        """
        placed = super().place(saved)
        games = Games(*map(np.array, placed.local.envs))  # they will be changed in place
        since, restart = self._since_restart(placed.shared)
        if since:
            self._stage.restart(self._seeds(placed.shared, restart))
            self._repeat(games, since, say)
        return _with_games(self.placement.put(_with_games(placed, ())), games)

    def _repeat(self, games: Games, since: int, say: Callable[[str], None]) -> None:
        """Step the environments as they were stepped since the restart."""
        groups, number = self._stage.groups, self._index.size
        steps = how_many(since * number, "step")
        say(f"repeating {steps} of the environments, whose state cannot be saved")
        for t in range(since):
            for k, group in enumerate(groups):
                self._stage.send(k, games.actions[:, :, group, t])
            seen = [self._stage.receive(k) for k in range(len(groups))]
        obs = np.concatenate([x.obs for x in seen], 2)
        if obs.tobytes() != games.obs.tobytes():
            facts = ", ".join(f"{name} {value}" for name, value in self.env.facts().items())
            raise RunError(
                f"{self.env.spec.id} cannot be resumed: it has repeated the "
                f"{how_many(since, 'step')} since its last restart and looks otherwise than when "
                "it was saved; run.json says with "
                f"which versions the run was started, here are {facts}"
            )

    # --- what else the loop asks (`jaxrl_scale.loop.protocol`) ------------------------------

    def describe(self) -> str:
        """For people: ``1 cpu device with 4 shards each, exact sums, a state of 31.4 kB, simulators
        with 2 threads``."""
        threads = how_many(self.placement.num_threads, "thread")
        return f"{super().describe()}, simulators with {threads}"

    def facts(self) -> dict[str, Any]:
        """For ``run.json``."""
        return super().facts() | {"environment": self.env.facts()}

    def close(self) -> None:
        """Close the simulators."""
        self._stage.close()


def _with_games(of: State, games: Any) -> State:
    return of._replace(local=of.local._replace(envs=games))
