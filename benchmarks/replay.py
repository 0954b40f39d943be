"""Our replay beside flashbax's: insertion and draws, uniform and prioritised, in one run.

    python -m venv --system-site-packages /tmp/flashbax && /tmp/flashbax/bin/pip install flashbax
    /tmp/flashbax/bin/python benchmarks/replay.py

Microseconds of an iteration (one shard, 64 environments, 16 steps in, 16 batches of 256 out),
median of 30 in turn, two cores of a virtual machine (Intel Xeon, AVX-512), jax 0.10.2, flashbax
0.1.3:

    uniform         10,240 steps: ours      920, flashbax    1,246, 1.4 times
    uniform        102,400 steps: ours    1,235, flashbax    1,436, 1.2 times
    uniform      1,024,000 steps: ours    2,917, flashbax    1,469, 0.5 times
    prioritised     10,240 steps: ours    1,787, flashbax    2,208, 1.2 times
    prioritised    102,400 steps: ours    2,418, flashbax    3,238, 1.3 times
    prioritised  1,024,000 steps: ours    4,144, flashbax    4,150, 1.0 times
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_scale.learning import replay
from jaxrl_scale.types import Discrete, EnvSpec, Rollout

SPEC = EnvSpec("benchmark", (8,), Discrete(4))
NUM_ENVS, LENGTH, N_STEP, BATCH, UPDATES = 64, 16, 3, 256, 16
SIZES = (10_240, 102_400, 1_024_000)

State = Any
Run = tuple[State, Callable[[State], tuple[State, jax.Array]]]
"""A replay, and one iteration of it: insert a rollout, then draw `UPDATES` batches."""


def steps(key: jax.Array) -> Rollout:
    """One shard's rollout, ``[1, T, B]``."""
    shape = 1, LENGTH, NUM_ENVS
    flags = jnp.zeros(shape, bool)
    return Rollout(
        obs=jax.random.normal(key, (1, LENGTH + 1, NUM_ENVS, 8)),
        is_first=flags,
        action=jnp.zeros(shape, jnp.int32),
        reward=jnp.ones(shape),
        terminated=flags,
        truncated=flags,
        valid=~flags,
        carry=(),
        extras=(),
    )


def ours(size: int, prioritised: bool) -> Run:
    rows = NUM_ENVS * LENGTH

    def iteration(state: State) -> tuple[State, jax.Array]:
        ring, priorities, done = state
        key = jax.random.key(done)
        stored = replay.window(done, rows, size)
        ring = replay.insert(ring, steps(key), stored.start)
        one = jax.tree.map(lambda x: x[0], ring)
        if prioritised:
            at = (stored.start + jnp.arange(rows)) % size
            priorities = replay.set_priorities(priorities, at, jax.random.uniform(key, (rows,)))

        def draw(k: jax.Array, moving: tuple) -> tuple:
            priorities, seen = moving
            key_k = jax.random.fold_in(key, k)
            if prioritised:
                total = replay.sum_pairwise(priorities[-1])
                at = replay.find(
                    priorities, replay.strata(jax.random.uniform(key_k, (BATCH,)), total)
                )
            else:
                at = replay.sample(key_k, stored, size, N_STEP * NUM_ENVS, (BATCH,))
            batch = replay.gather(one, at, N_STEP, NUM_ENVS)
            reward, _ = replay.n_step(batch.reward, batch.terminated, batch.truncated, 0.99)
            if prioritised:
                priorities = replay.set_priorities(
                    priorities, at, jax.random.uniform(key_k, at.shape)
                )
            return priorities, seen + reward.sum() + batch.obs.sum() + batch.next_obs.sum()

        priorities, seen = jax.lax.fori_loop(0, UPDATES, draw, (priorities, jnp.zeros(())))
        return (ring, priorities, done + 1), seen

    ring = jax.tree.map(lambda x: x[None], replay.init(SPEC, size))
    return (ring, replay.no_priorities(size), jnp.zeros((), jnp.int32)), iteration


def flashbax(size: int, prioritised: bool) -> Run:
    try:
        import flashbax
    except ImportError:
        sys.exit("benchmarks/replay.py needs flashbax: see its first lines")
    make = (
        flashbax.make_prioritised_trajectory_buffer
        if prioritised
        else flashbax.make_trajectory_buffer
    )
    buffer = make(
        add_batch_size=NUM_ENVS,
        sample_batch_size=BATCH,
        sample_sequence_length=N_STEP + 1,
        period=1,
        min_length_time_axis=N_STEP + 1,
        max_length_time_axis=size // NUM_ENVS,
        **({"device": jax.default_backend()} if prioritised else {}),
    )

    def item(rollout: Rollout) -> dict[str, jax.Array]:
        names = ("action", "reward", "terminated", "truncated", "valid")
        rows = {"obs": rollout.obs[:, :-1]} | {name: getattr(rollout, name) for name in names}
        return {name: jnp.swapaxes(x[0], 0, 1) for name, x in rows.items()}  # [B, T]

    def iteration(state: State) -> tuple[State, jax.Array]:
        held, done = state
        key = jax.random.key(done)
        held = buffer.add(held, item(steps(key)))

        def draw(k: jax.Array, moving: tuple) -> tuple:
            held, seen = moving
            key_k = jax.random.fold_in(key, k)
            drawn = buffer.sample(held, key_k)
            batch = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), drawn.experience)  # [n + 1, M]
            flags = batch["terminated"][:-1], batch["truncated"][:-1]
            reward, _ = replay.n_step(batch["reward"][:-1], *flags, 0.99)
            last = replay.horizon(*flags)
            next_obs = jnp.take_along_axis(batch["obs"], last[None, :, None], 0)
            if prioritised:
                new = jax.random.uniform(key_k, (BATCH,))
                held = buffer.set_priorities(held, drawn.indices, new)
            return held, seen + reward.sum() + batch["obs"][0].sum() + next_obs.sum()

        held, seen = jax.lax.fori_loop(0, UPDATES, draw, (held, jnp.zeros(())))
        return (held, done + 1), seen

    example = jax.tree.map(lambda x: x[0, 0], item(steps(jax.random.key(0))))
    return (buffer.init(example), jnp.zeros((), jnp.int32)), iteration


def prepare(run: Run, fill: int) -> Callable[[], float]:
    """Compiles it and fills the replay; the result times one iteration, in microseconds."""
    state, iteration = run
    step = jax.jit(iteration, donate_argnums=0)
    held = [jax.block_until_ready(step(state))[0]]
    for _ in range(fill):
        held[0], _ = step(held[0])

    def once() -> float:
        jax.block_until_ready(held[0])
        start = time.perf_counter()
        held[0], seen = step(held[0])
        jax.block_until_ready((held[0], seen))
        return 1e6 * (time.perf_counter() - start)

    return once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=30, help="of each, in turn; medians count")
    args = parser.parse_args()
    print(
        f"one shard, {NUM_ENVS} environments, {LENGTH} steps inserted, then {UPDATES} batches of "
        f"{BATCH}; microseconds an iteration"
    )
    for prioritised in (False, True):
        for size in SIZES:
            fill = size // (NUM_ENVS * LENGTH) if size < 1_000_000 else 50
            timers = [prepare(make(size, prioritised), fill) for make in (ours, flashbax)]
            times = [[once() for once in timers] for _ in range(args.repeats)]
            own, other = (statistics.median(column) for column in zip(*times, strict=True))
            kind = "prioritised" if prioritised else "uniform"
            print(
                f"{kind:12}{size:>10,} steps: ours {own:8,.0f}, flashbax {other:8,.0f}, "
                f"{other / own:.1f} times",
                flush=True,
            )


if __name__ == "__main__":
    main()
