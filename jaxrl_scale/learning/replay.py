"""Experience replay: rings of time steps, n-step transitions, prioritized sampling.

A shard's ring holds the last ``C`` time steps of its ``B`` environments as ``N = C * B`` rows in
the order of time: row ``i`` is followed by row ``i + B`` (modulo ``N``), which is why no successor
is stored twice. As auto-reset happens on the next step, that is the true successor of every valid
row, also of a truncated one. All shards write at the same place, which follows from the iteration.

What only copies, compares or adds in a written order (`insert`, `sample`, `gather`, `find`,
`set_priorities`) may be ``jax.vmap``ped over the shards: it has the same bits in any program, and
`jaxrl_scale.types.Pool.map` would copy the ring. `n_step` multiplies and belongs inside of it.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl_scale.errors import RunError
from jaxrl_scale.learning.masks import masked
from jaxrl_scale.options import Sizes, check_divides
from jaxrl_scale.types import Array, EnvSpec, Key, Rollout


class Ring(NamedTuple):
    """Rows of one shard, or ``[S, N, ...]`` of all; what they mean: `jaxrl_scale.types.Rollout`."""

    obs: Array  # [N, *observation_shape], of the environment's dtype
    action: Array  # [N, *action.shape], int32 or float32
    reward: Array  # [N] float32
    terminated: Array  # [N] bool
    truncated: Array  # [N] bool
    valid: Array  # [N] bool


class Window(NamedTuple):
    """Which rows of a ring are stored after an iteration; all scalars, the same for all shards."""

    start: Array  # where the iteration wrote its first row
    oldest: Array  # the first row that is stored
    stored: Array  # how many are


class Transition(NamedTuple):
    """``M`` samples, each with up to ``n`` steps of its episode."""

    obs: Array  # [M, ...]
    action: Array  # [M, ...]
    reward: Array  # [n, M]
    terminated: Array  # [n, M]
    truncated: Array  # [n, M]
    valid: Array  # [M] bool: False where the first of the steps was a reset; obs and action are 0
    next_obs: Array  # [M, ...] n steps on, or at the episode's end where that comes first


def init(spec: EnvSpec, num_rows: int) -> Ring:
    """An empty ring of one shard."""
    no = jnp.zeros(num_rows, bool)
    return Ring(
        obs=jnp.zeros((num_rows, *spec.observation_shape), spec.observation_dtype),
        action=jnp.zeros((num_rows, *spec.action.shape), spec.action.dtype),
        reward=jnp.zeros(num_rows),
        terminated=no,
        truncated=no,
        valid=no,
    )


def window(iteration: Array, rows: int, num_rows: int) -> Window:
    """The rows that are stored once an iteration, the first is 0, has written its ``rows``."""
    slots = num_rows // rows
    done = iteration + 1
    return Window(
        start=iteration % slots * rows,
        oldest=jnp.where(done < slots, 0, done % slots) * rows,
        stored=jnp.minimum(done, slots) * rows,
    )


def insert(ring: Ring, rollout: Rollout, start: Array) -> Ring:
    """Write rollouts ``[S, T, B]`` to the rows from ``start`` of all rings ``[S, N]``, in place."""
    rows = Ring(rollout.obs[:, :-1], *(getattr(rollout, name) for name in Ring._fields[1:]))

    def put(buffer: Array, x: Array) -> Array:
        x = x.reshape(x.shape[0], -1, *x.shape[3:])
        return jax.lax.dynamic_update_slice_in_dim(buffer, x, start, 1)

    return jax.tree.map(put, ring, rows)


def sample(key: Key, stored: Window, num_rows: int, reach: int, shape: tuple[int, ...]) -> Array:
    """Rows of one shard, drawn uniformly among those whose successor ``reach`` rows on is stored
    too."""
    age = jax.random.randint(key, shape, 0, stored.stored - reach)
    return (stored.oldest + age) % num_rows


def gather(ring: Ring, index: Array, n: int, num_envs: int) -> Transition:
    """The ``n``-step transitions of one shard that begin at the rows ``index [M]``."""
    num_rows = ring.valid.shape[0]
    rows = (index[None] + num_envs * jnp.arange(n)[:, None]) % num_rows  # [n, M]
    terminated, truncated = ring.terminated[rows], ring.truncated[rows]
    length = horizon(terminated, truncated)
    valid = ring.valid[index]
    obs, action = masked(valid, (ring.obs[index], ring.action[index]))
    return Transition(
        obs=obs,
        action=action,
        reward=ring.reward[rows],
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        next_obs=ring.obs[(index + num_envs * length) % num_rows],
    )


def horizon(terminated: Array, truncated: Array) -> Array:
    """How many of the steps ``[n, ...]`` belong to the first one's episode: 1 to n."""
    ended = terminated | truncated
    return jnp.where(ended.any(0), ended.argmax(0) + 1, ended.shape[0])


def n_step(
    reward: Array, terminated: Array, truncated: Array, gamma: Array | float
) -> tuple[Array, Array]:
    """The rewards of ``n`` steps, discounted, and the discount of the value behind them.

    They end with the episode, after ``m <= n`` steps: ``r[0] + … + gamma^(m-1) r[m-1]``, and
    ``gamma^m``, or 0 where the episode was terminated.

    Args:
      reward, terminated, truncated: ``[n, ...]``.

    Returns:
      Both ``[...]``.
    """
    chex.assert_equal_shape([reward, terminated, truncated])
    total, discount = jnp.zeros_like(reward[0]), jnp.ones_like(reward[0])
    running = jnp.ones_like(terminated[0])
    for r, end, cut in zip(reward, terminated, truncated, strict=True):
        total = jnp.where(running, total + discount * r, total)
        discount = jnp.where(running, jnp.where(end, 0.0, gamma * discount), discount)
        running = running & ~(end | cut)
    return total, discount


def bootstrap(reward: Array, discount: Array, value: Array) -> Array:
    """``reward + discount * value``; the reward alone where the discount is 0, as after an episode
    that was terminated, whatever the value there, NaN included."""
    return reward + jnp.where(discount == 0, 0.0, discount * value)


def check(config: Sizes, replay_size: int, batch_size: int, n: int) -> None:
    """Raise a `RunError` where replay does not divide into iterations, or a batch into shards."""
    steps = config.steps_per_iteration
    check_divides(batch_size, "algo.batch_size", config.num_shards, "num_shards")
    least = (1 - (-n // config.rollout_length)) * steps
    if replay_size % steps or replay_size < least:
        raise RunError(
            f"algo.replay_size={replay_size} should be a multiple of an iteration's num_envs * "
            f"rollout_length = {config.num_envs} * {config.rollout_length} = {steps} steps, at "
            f"least {least}; try algo.replay_size={max(least, round(replay_size / steps) * steps)}"
        )


# --- prioritized sampling ---------------------------------------------------------------------


Priorities = tuple[Array, ...]
"""A tree of sums over the ``N`` rows of a shard: their priorities, then the sums of each `ARITY`
of them, and so on up to one group. Zeros pad a level to whole groups."""

ARITY = 8  # the fastest of 2 to 512: see benchmarks/replay.py


def no_priorities(num_rows: int) -> Priorities:
    """Nothing to be drawn."""
    sizes = [-(-num_rows // ARITY) * ARITY]
    while sizes[-1] > ARITY:
        sizes.append(-(-sizes[-1] // ARITY // ARITY) * ARITY)
    return tuple(jnp.zeros(size) for size in sizes)


def set_priorities(priorities: Priorities, index: Array, value: Array) -> Priorities:
    """Set those of the rows ``index [M]``. A sum is added up anew, so that no error builds up."""
    levels = [priorities[0].at[index].set(value)]
    for level in priorities[1:]:
        index = index // ARITY
        groups = levels[-1].reshape(-1, ARITY)[index]
        levels.append(level.at[index].set(sum_pairwise(groups)))
    return tuple(levels)


def strata(uniform: Array, total: Array) -> Array:
    """One point in each of ``M`` equal parts of ``[0, total)``, from random numbers ``[M]``."""
    (count,) = uniform.shape
    return (jnp.arange(count, dtype=jnp.float32) + uniform) * (total * (1 / count))


def find(priorities: Priorities, point: Array) -> Array:
    """The rows where the running sum of the priorities first exceeds ``point [M]``: drawn in
    proportion to them, where the points are uniform. Never one whose priority is 0."""
    node = jnp.zeros(point.shape, jnp.int32)
    for level in reversed(priorities):
        group = level.reshape(-1, ARITY)[node]  # [M, ARITY]
        until = cumulative_sum(group)
        there = group > 0
        beyond = there & (until > point[:, None])
        # Rounding may leave a point behind the whole group: then its last one.
        last = ARITY - 1 - there[:, ::-1].argmax(-1)
        child = jnp.where(beyond.any(-1), beyond.argmax(-1), last)
        before = jnp.take_along_axis(jnp.pad(until, ((0, 0), (1, 0))), child[:, None], -1)
        point = point - before[:, 0]
        node = node * ARITY + child
    return node


def sum_pairwise(x: Array) -> Array:
    """``[..., ARITY] -> [...]``, neighbours first."""
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return x[..., 0]


def cumulative_sum(x: Array) -> Array:
    """Over the last axis, by doubling (Hillis and Steele 1986): the order is written, where
    ``jnp.cumsum`` leaves it to the compiler."""
    shift = 1
    while shift < x.shape[-1]:
        x = x + jnp.pad(x[..., :-shift], ((0, 0),) * (x.ndim - 1) + ((shift, 0),))
        shift *= 2
    return x
