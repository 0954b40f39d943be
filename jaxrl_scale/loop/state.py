"""The state of a run, wherever its environments are, and how an agent begins and learns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from jaxrl_scale.config import Config
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning.wall import walled
from jaxrl_scale.loop import contract
from jaxrl_scale.loop.keys import INIT, UPDATE, agent_key, agent_seeds
from jaxrl_scale.records.rows import OF_THE_RUN
from jaxrl_scale.types import (
    OWN_NUMBERS,
    Algorithm,
    Array,
    Key,
    Metrics,
    Pool,
    PyTree,
    Rollout,
    Time,
)
from jaxrl_scale.user_code import is_own


class Shared(NamedTuple):
    """Of one agent, the same on all devices."""

    seed: Array  # [] uint32
    iteration: Array  # [] int32, iterations done
    algo: PyTree


class Local(NamedTuple):
    """Of one shard of one agent."""

    envs: PyTree  # [B, ...]: `rollout.Environments`, or `host_rollout.Games` of a host environment
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

    arrays: tuple[Array, ...]  # [n] each, of the agents of a device [P', n]
    names: tuple[tuple[str, ...], ...] = dataclasses.field(metadata={"static": True})


def pack(metrics: Metrics) -> Packed:
    """Metrics of one agent. Raises a `RunError` for one that is no scalar of dtype float32 or
    int32."""
    groups: dict[Any, list[str]] = {jnp.dtype(jnp.float32): [], jnp.dtype(jnp.int32): []}
    for name, x in sorted(metrics.items()):
        if not hasattr(x, "dtype") or x.ndim or x.dtype not in groups:
            raise RunError(
                f"metric {name!r} of the algorithm is {contract.described(x)}; "
                "it should be a scalar of dtype float32 or int32"
            )
        groups[x.dtype].append(name)
    names = tuple(tuple(group) for group in groups.values() if group)
    return Packed(tuple(jnp.stack([metrics[name] for name in group]) for group in names), names)


class Report(NamedTuple):
    """What an iteration of one agent tells."""

    metrics: Packed  # [n], equal on all devices
    counts: Packed  # [S, n]: what is still to be summed over the shards, see `summed`


def summed(pool: Pool, reports: Report) -> Report:
    """Reports of agents and iterations, ``[..., n]`` and ``[..., S, n]``, with their counts summed
    over all shards of all devices, ``[..., n]``. It is one collective for all of them: one for each
    iteration would be a fourth of those that A2C waits for."""
    counts = jax.tree.map(lambda x: jnp.moveaxis(x, -2, 0), reports.counts)
    return reports._replace(counts=pool.sum(counts))


def repeated(
    step: Callable[[State], tuple[State, Report]], before: State, count: Array, most: int
) -> tuple[State, Report]:
    """``count`` times ``before, report = step(before)`` of the agents of a device, and the reports
    of all in room for ``most``, ``[P', most, n]``.

    A device with several agents computes them in a loop and puts what they report into one array.
    XLA fuses otherwise where this is not done, so a single agent is computed in a loop as well, and
    its report put into room for at least two.
    """
    step = jax.jit(step, inline=True)  # traced once, for its shapes and for the loop
    _, shapes = jax.eval_shape(step, before)
    room = jax.tree.map(lambda x: jnp.zeros((len(x), most, *x.shape[1:]), x.dtype), shapes)

    def once(k: Array, moving: tuple[State, Report]) -> tuple[State, Report]:
        after, report = step(moving[0])
        put = partial(jax.lax.dynamic_update_index_in_dim, index=k, axis=1)
        return after, jax.tree.map(put, moving[1], report)

    after: tuple[State, Report] = jax.lax.fori_loop(0, count, once, (before, room))
    return after


Rows = list[dict[str, np.ndarray]]
"""Metrics by name, ``[P]`` each, of one iteration after the other."""


def unpack(reports: Report, count: int) -> Rows:
    """What `pack` was given of several agents in the first ``count`` of several iterations: from
    their reports ``[P, K, n]``, `summed`."""
    names = [name for packed in reports for group in packed.names for name in group]
    arrays = [x for packed in reports for x in packed.arrays]

    def row(k: int) -> dict[str, np.ndarray]:
        return dict(zip(names, (column for x in arrays for column in x[:, k].T), strict=True))

    return [row(k) for k in range(count)]


def time_of(shared: Shared, num_iterations: Array | np.int32) -> Time:
    """How far an agent is in a run of so many iterations. Of numbers on the host nothing has to be
    compiled."""
    # By the reciprocal, as XLA divides by a constant: the bits are those of a constant length.
    progress = shared.iteration.astype(np.float32) * (1 / num_iterations.astype(np.float32))
    return Time(shared.iteration, progress)


# --- one device's part of one agent -------------------------------------------------------------


def init_agent(
    config: Config,
    algo: Algorithm,
    pool: Pool,
    reset: Callable[[Key], PyTree],
    seed: Array,
    options: PyTree,
    weights: PyTree = None,
) -> State:
    """An agent before its first iteration.

    Args:
      reset: ``key -> Local.envs``, of one shard.
      options: the algorithm's, with traced numbers.
      weights: what its policy begins with; None: random weights.
    """
    init_shared = algo.init_shared
    if weights is not None:
        init_shared = partial(init_shared, weights=weights)
    key_shared, key_envs, key_local = jax.random.split(agent_key(seed, INIT), 3)

    def init_shard(index: Array) -> Local:
        return Local(
            envs=reset(jax.random.fold_in(key_envs, index)),
            carry=algo.init_carry(config.envs_per_shard),
            algo=algo.init_local(jax.random.fold_in(key_local, index), index),
        )

    if is_own(config.algo.name):  # networks of the package's algorithms are walled already
        init_shared = walled(init_shared)
    shared = Shared(seed, jnp.zeros((), jnp.int32), init_shared(key_shared, options))
    begun = State(shared, pool.map(init_shard, pool.shard_index()))
    contract.beginning(begun)
    return begun


def learn(
    algo: Algorithm,
    shared: Shared,
    local: PyTree,
    rolled: Rollout,
    counts: Metrics,
    num_iterations: Array,
) -> tuple[Shared, PyTree, Report]:
    """One update of an agent.

    Args:
      local: the algorithm's, ``[S, ...]``.
      rolled: ``[S, T, B]``.
      counts: metrics of the episodes that are to be summed over shards, ``[S]``.
      num_iterations: those of the whole run, ``[]`` int32.

    Returns:
      What `State` holds of both afterwards, and the report of the iteration.
    """
    key = agent_key(shared.seed, UPDATE, shared.iteration)
    algo_shared, local, metrics = algo.update(
        shared.algo, local, rolled, key, time_of(shared, num_iterations)
    )
    of_the_run = OF_THE_RUN | set(counts)
    own = tuple(of + name for of in ("", "eval_", "test_") for name in OWN_NUMBERS)
    if taken := [x for x in sorted(metrics) if x in of_the_run or x.startswith(own)]:
        raise RunError(
            f"metric {taken[0]!r} of the algorithm has the name of a number of the run's own; "
            "give it another"
        )
    # Of one vector: norms of each array by itself were 22 of the 410 kernels of CartPole's program.
    metrics = metrics | {"param_norm": optax.tree.norm(ravel_pytree(algo_shared.params)[0])}
    following = Shared(shared.seed, shared.iteration + 1, algo_shared)
    return following, local, Report(pack(metrics), jax.vmap(pack)(counts))


# --- the agents of a run ------------------------------------------------------------------------


class Agents(NamedTuple):
    """In what the agents of one program may differ."""

    seeds: np.ndarray  # [P] uint32
    options: PyTree  # the algorithm's, with an array [P] float32 for each number
    weights: PyTree = None  # what their policies begin with, [P, ...]; None: random weights


def agents(config: Config) -> Agents:
    """Those of a run: the config's seeds, and its numbers for all."""
    options = jax.tree.map(lambda x: np.full(config.num_seeds, x, np.float32), config.algo)
    return Agents(agent_seeds(config), options)
