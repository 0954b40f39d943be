"""Replay: the ring, n-step transitions and prioritised draws, against slow twins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_scale.algos import apex, dqn, sac
from jaxrl_scale.config import Config, check
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import replay
from jaxrl_scale.types import Discrete, EnvSpec, Rollout

SPEC = EnvSpec("twin", (2,), Discrete(4))
S, T, B = 2, 4, 3
SLOTS = 3
NUM_ROWS = SLOTS * T * B


def rollouts(random, count):
    """Consecutive ones ``[S, T, B]``; ``obs`` says which time step and environment it is of."""
    out = []
    over = np.zeros((S, B), bool)
    for i in range(count):
        terminated, truncated, valid = (np.zeros((S, T, B), bool) for _ in range(3))
        for t in range(T):
            valid[:, t] = ~over
            terminated[:, t] = ~over & (random.random((S, B)) < 0.15)
            truncated[:, t] = ~over & (random.random((S, B)) < 0.15)
            over = terminated[:, t] | truncated[:, t]
        time = np.broadcast_to(i * T + np.arange(T + 1)[:, None], (S, T + 1, B))
        which = np.arange(S * B).reshape(S, 1, B) + np.zeros((S, T + 1, B))
        out.append(
            Rollout(
                obs=jnp.asarray(np.stack([time, which], -1), jnp.float32),
                is_first=None,
                action=jnp.asarray(random.integers(0, 4, (S, T, B)), jnp.int32),
                reward=jnp.asarray(random.normal(size=(S, T, B)) * valid, jnp.float32),
                terminated=jnp.asarray(terminated),
                truncated=jnp.asarray(truncated),
                valid=jnp.asarray(valid),
                carry=(),
                extras=(),
            )
        )
    return out


def filled(count, seed=0):
    """Rings into which ``count`` rollouts went, what is stored, and all of it ``[S, time, B]``."""
    ring = jax.vmap(lambda _: replay.init(SPEC, NUM_ROWS))(jnp.arange(S))
    rolled = rollouts(np.random.default_rng(seed), count)
    for i, rollout in enumerate(rolled):
        stored = replay.window(jnp.int32(i), T * B, NUM_ROWS)
        ring = replay.insert(ring, rollout, stored.start)
    whole = {
        name: np.concatenate([np.asarray(getattr(r, name)) for r in rolled], 1)
        for name in replay.Ring._fields[1:]
    }
    return ring, stored, whole


@pytest.mark.parametrize("count", [1, 3, 4, 8])
def test_a_ring_holds_the_last_steps_in_the_order_of_time(count):
    ring, stored, whole = filled(count)
    kept = min(count, SLOTS) * T
    assert int(stored.stored) == kept * B
    order = (int(stored.oldest) + np.arange(kept * B)) % NUM_ROWS
    for shard in range(S):
        time, which = np.asarray(ring.obs[shard][order]).reshape(kept, B, 2).T
        np.testing.assert_array_equal(
            time.T, np.arange(count * T - kept, count * T)[:, None] + np.zeros(B)
        )
        np.testing.assert_array_equal(which.T, np.broadcast_to(shard * B + np.arange(B), (kept, B)))
        for name, x in whole.items():
            there = np.asarray(getattr(ring, name)[shard][order]).reshape(kept, B)
            np.testing.assert_array_equal(there, x[shard, -kept:], err_msg=name)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 3])
def test_what_is_drawn_has_its_successor_and_all_of_that_is_drawn(count, n):
    _, stored, _ = filled(count)
    rows = replay.sample(jax.random.key(0), stored, NUM_ROWS, n * B, (5000,))
    kept = min(count, SLOTS) * T
    age = (np.asarray(rows) - int(stored.oldest)) % NUM_ROWS
    np.testing.assert_array_equal(np.unique(age), np.arange((kept - n) * B))
    expected = 5000 / ((kept - n) * B)
    assert np.abs(np.bincount(age) - expected).max() < 5 * np.sqrt(expected)


@pytest.mark.parametrize("n", [1, 3, 7])
def test_n_step_transitions_are_those_of_a_slow_twin(n):
    count, gamma = 5, 0.9
    ring, stored, whole = filled(count, seed=n)
    kept = min(count, SLOTS) * T
    age = np.arange((kept - n) * B)
    index = jnp.asarray((int(stored.oldest) + age) % NUM_ROWS)
    seen = set()
    for shard in range(S):
        one = jax.tree.map(lambda x, shard=shard: x[shard], ring)
        batch = replay.gather(one, index, n, B)
        total, discount = replay.n_step(batch.reward, batch.terminated, batch.truncated, gamma)
        for j, (row, b) in enumerate(zip(*np.divmod(age, B), strict=True)):
            t = count * T - kept + row
            assert bool(batch.valid[j]) == whole["valid"][shard, t, b]
            if not batch.valid[j]:
                continue
            expected, weight, m = 0.0, 1.0, 0
            while m < n:
                expected += weight * whole["reward"][shard, t + m, b]
                weight *= gamma
                m += 1
                if whole["terminated"][shard, t + m - 1, b]:
                    weight = 0.0
                    break
                if whole["truncated"][shard, t + m - 1, b]:
                    break
            assert float(total[j]) == pytest.approx(expected, abs=1e-5)
            assert float(discount[j]) == pytest.approx(weight, abs=1e-6)
            assert int(batch.action[j]) == whole["action"][shard, t, b]
            np.testing.assert_array_equal(batch.obs[j], [t, shard * B + b])
            np.testing.assert_array_equal(batch.next_obs[j], [t + m, shard * B + b])
            seen.add((m, weight > 0))
    assert len(seen) >= min(2 * n, 5)  # ends of both kinds, at several distances


# --- priorities -------------------------------------------------------------------------------


def tree_of(values):
    tree = replay.no_priorities(len(values))
    return replay.set_priorities(tree, jnp.arange(len(values)), jnp.asarray(values, jnp.float32))


@pytest.mark.parametrize("size", [5, 8, 9, 4097])
def test_every_sum_is_that_of_its_rows(size):
    values = np.random.default_rng(size).random(size)
    tree = tree_of(values)
    assert tree[-1].shape == (replay.ARITY,)
    for upper, lower in zip(tree[1:], tree, strict=False):
        sums = np.asarray(lower).reshape(-1, replay.ARITY).sum(1)
        np.testing.assert_allclose(upper[: len(sums)], sums, rtol=1e-5)
    tree = replay.set_priorities(tree, jnp.asarray([3, 1, 3]), jnp.asarray([7.0, 0.0, 7.0]))
    values[3], values[1] = 7.0, 0.0
    assert float(replay.sum_pairwise(tree[-1])) == pytest.approx(values.sum(), rel=1e-5)


def test_rows_are_drawn_in_proportion_to_their_priorities():
    values = np.random.default_rng(0).random(200) ** 3
    values[::7] = 0.0
    points = jax.random.uniform(jax.random.key(0), (200_000,)) * values.sum()
    counts = np.bincount(replay.find(tree_of(values), points), minlength=200)
    expected = 200_000 * values / values.sum()
    assert (counts[values == 0] == 0).all()
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected) + 3).all()


def test_a_row_is_found_where_the_running_sum_passes_the_point():
    tree = tree_of([0.0, 2.0, 0.0, 1.0, 4.0, 0.0])
    found = replay.find(tree, jnp.asarray([0.0, 1.9, 2.0, 2.9, 3.0, 6.9, 7.0, 99.0]))
    # What rounding moved behind the whole sum is the last row that can be drawn.
    np.testing.assert_array_equal(found, [1, 1, 3, 3, 4, 4, 4, 4])


def test_a_batch_has_one_point_in_every_stratum():
    points = replay.strata(jax.random.uniform(jax.random.key(0), (16,)), jnp.float32(8.0))
    np.testing.assert_array_equal(np.floor(np.asarray(points) / 0.5), np.arange(16))


def test_the_running_sum_is_a_running_sum():
    x = np.random.default_rng(0).random((3, 32)).astype(np.float32)
    np.testing.assert_allclose(replay.cumulative_sum(jnp.asarray(x)), x.cumsum(-1), rtol=1e-5)
    np.testing.assert_allclose(replay.sum_pairwise(jnp.asarray(x)), x.sum(-1), rtol=1e-6)


# --- mistakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", [dqn, apex, sac])
@pytest.mark.parametrize(
    ("own", "words"),
    [
        (
            {"batch_size": 100},
            "batch_size=100 does not divide by num_shards=8; try algo.batch_size=104",
        ),
        ({"replay_size": 3000}, "= 64 * 16 = 1024 steps, at least 2048; try algo.replay_size=3072"),
        ({"replay_size": 1024}, "at least 2048; try algo.replay_size=2048"),
        ({"replay_size": 2048, "n_step": 17}, "at least 3072; try algo.replay_size=3072"),
    ],
)
def test_sizes_that_do_not_fit_are_told_in_one_line(algo, own, words):
    config = Config(num_envs=64, rollout_length=16, algo=algo.Config(**own))
    with pytest.raises(RunError) as caught:
        check(config)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
