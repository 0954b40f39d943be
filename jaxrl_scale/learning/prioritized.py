"""Prioritised replay (https://arxiv.org/abs/1511.05952) with the actors' own first priorities, as
Ape-X has it: a transition is drawn in proportion to a power of its error.

A step gets its first priority n steps later, when its n-step return is known. Until then it cannot
be drawn.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_scale.learning import replay
from jaxrl_scale.types import Array, EnvSpec, Pool, Rollout


class Seen(NamedTuple):
    """What a step's first priority is computed from, ``[T, B]``."""

    value: Array  # of the action taken
    best: Array  # of the best action
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array


class Store(NamedTuple):
    """The replay of one shard."""

    ring: replay.Ring
    priorities: replay.Priorities  # of its rows; 0 where a row is not to be drawn
    pending: Seen  # [n, B], the last steps: those without a priority yet


class Drawn(NamedTuple):
    """``M`` transitions of one shard."""

    row: Array  # [M]
    priority: Array  # [M]
    total: Array  # [], the sum of the shard's priorities
    batch: replay.Transition  # [M, ...]


def init(spec: EnvSpec, num_rows: int, n: int, num_envs: int) -> Store:
    """The empty replay of one shard."""
    nothing, no = jnp.zeros((n, num_envs)), jnp.zeros((n, num_envs), bool)
    return Store(
        ring=replay.init(spec, num_rows),
        priorities=replay.no_priorities(num_rows),
        pending=Seen(nothing, nothing, nothing, no, no, no),
    )


def priority(error: Array, exponent: Array | float) -> Array:
    """What a sample is drawn in proportion to: ``p^α`` with ``p`` the error's size; section 3.3."""
    return (jnp.abs(error) + 1e-6) ** exponent


def importance(priority: Array, total: Array, exponent: Array | float) -> Array:
    """``P(i)^-β`` of samples drawn by ``P(i) = priority / total``, not yet divided by the largest
    (section 3.4).

    Whatever factor the samples of all shards have in common leaves with that: the number of
    steps ``N`` of the paper, and the shards' equal shares of a batch.
    """
    return (jnp.maximum(priority, 1e-30) * (1 / jnp.maximum(total, 1e-30))) ** -exponent


def first_errors(seen: Seen, n: int, gamma: Array | float) -> Array:
    """The actors' n-step errors of all but the last ``n`` of ``[n + T, B]`` steps, ``[T, B]``."""
    length = seen.value.shape[0] - n

    def ahead(x: Array, first: int) -> Array:
        return jnp.stack([x[k : k + length] for k in range(first, first + n)])  # [n, T, B]

    flags = ahead(seen.terminated, 0), ahead(seen.truncated, 0)
    reward, discount = replay.n_step(ahead(seen.reward, 0), *flags, gamma)
    last = replay.horizon(*flags) - 1
    best = jnp.take_along_axis(ahead(seen.best, 1), last[None], 0)[0]
    return seen.value[:length] - replay.bootstrap(reward, discount, best)


def insert(
    pool: Pool,
    stores: Store,
    rollout: Rollout,
    start: Array,
    gamma: Array | float,
    exponent: Array | float,
) -> Store:
    """Write rollouts ``[S, T, B]`` to the rows from ``start`` of all stores ``[S]``, and the
    priorities that are known by now.

    ``rollout.extras`` holds the actors' values of the action taken and of the best one.
    """
    _, n, num_envs = stores.pending.value.shape
    rows, num_rows = rollout.valid[0].size, stores.ring.valid.shape[1]
    reach = n * num_envs

    def shard_priorities(pending: Seen, new: Seen) -> tuple[Array, Seen]:
        seen = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), pending, new)
        first = priority(first_errors(seen, n, gamma), exponent)
        first = jnp.where(seen.valid[:-n], first, 0.0).reshape(-1)
        first = jnp.pad(first, (0, reach))  # the last n steps have none yet
        return first, jax.tree.map(lambda x: x[-n:], seen)

    new = Seen(*rollout.extras, *(getattr(rollout, name) for name in Seen._fields[2:]))
    first, pending = pool.map(shard_priorities, stores.pending, new)
    at = (start - reach + jnp.arange(rows + reach)) % num_rows
    priorities = jax.vmap(replay.set_priorities, (0, None, 0))(stores.priorities, at, first)
    return Store(replay.insert(stores.ring, rollout, start), priorities, pending)


def draw(pool: Pool, stores: Store, uniform: Array) -> Drawn:
    """Transitions ``[S, M]`` of all stores ``[S]``, by random numbers ``[S, M]``: one in each of
    ``M`` equal parts of a store's priorities."""
    _, n, num_envs = stores.pending.value.shape

    def shard_points(top: Array, uniform: Array) -> tuple[Array, Array]:
        total = replay.sum_pairwise(top)
        return total, replay.strata(uniform, total)

    def shard_drawn(
        ring: replay.Ring, priorities: replay.Priorities, total: Array, points: Array
    ) -> Drawn:
        row = replay.find(priorities, points)
        batch = replay.gather(ring, row, n, num_envs)
        return Drawn(row, priorities[0][row], total, batch)

    total, points = pool.map(shard_points, stores.priorities[-1], uniform)
    return jax.vmap(shard_drawn)(stores.ring, stores.priorities, total, points)
