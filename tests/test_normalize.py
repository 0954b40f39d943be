"""Running statistics against NumPy over everything seen."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_scale.learning import normalize
from jaxrl_scale.parallel.sums import local_pool


@pytest.mark.parametrize("exact", [True, False])
def test_moments_are_those_of_the_unmasked_samples_of_all_shards(exact):
    rng = np.random.default_rng(0)
    x = rng.normal(3.0, 2.0, (4, 16, 5, 3)).astype(np.float32)
    mask = rng.random((4, 16, 5)) < 0.7
    flat = x.reshape(4, 80, 3), mask.reshape(4, 80)
    ((count, mean, variance),) = normalize.pooled_moments(local_pool(4, exact), flat)
    assert int(count) == mask.sum()
    np.testing.assert_allclose(mean, x[mask].mean(0), rtol=1e-5)
    np.testing.assert_allclose(variance, x[mask].var(0), rtol=1e-5)


def test_each_number_can_have_a_mask_of_its_own_and_batches_do_not_mix():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 8, 3, 4)).astype(np.float32)
    mask = rng.random(x.shape) < 0.8
    other = rng.normal(size=(2, 5)).astype(np.float32), np.ones((2, 5), bool)
    (count, mean, variance), whole = normalize.pooled_moments(local_pool(2), (x, mask), other)
    assert count.shape == mean.shape == variance.shape == (3, 4)
    chosen = x[:, :, 1, 2][mask[:, :, 1, 2]]
    assert int(count[1, 2]) == len(chosen)
    np.testing.assert_allclose(mean[1, 2], chosen.mean(), rtol=1e-5)
    np.testing.assert_allclose(variance[1, 2], chosen.var(), rtol=1e-5)
    assert int(whole.number) == 10
    np.testing.assert_allclose(whole.mean, other[0].mean(), rtol=1e-5)
    np.testing.assert_allclose(whole.variance, other[0].var(), rtol=1e-5)


class Samples(NamedTuple):
    obs: np.ndarray
    advantage: np.ndarray
    target: np.ndarray
    valid: np.ndarray


@pytest.mark.parametrize("normalized", [True, False])
def test_each_minibatch_is_normalized_by_its_own_advantages_on_all_shards(normalized):
    """Two shards of 3 sequences with 4 steps each; three minibatches take a sequence of each."""
    rng = np.random.default_rng(4)
    advantage, target = rng.normal(3.0, 2.0, (2, 2, 4, 3)).astype(np.float32)
    obs = rng.normal(size=(2, 4, 3, 5)).astype(np.float32)
    samples = Samples(obs, advantage, target, rng.random((2, 4, 3)) < 0.7)
    orders = np.array([[[2], [0], [1]], [[1], [2], [0]]])
    found, none = normalize.advantages(
        local_pool(2), samples, normalized, None, jnp.asarray(orders)
    )
    assert none is None
    for k in range(3):
        chosen = np.concatenate(
            [advantage[s, :, orders[s, k, 0]][samples.valid[s, :, orders[s, k, 0]]] for s in (0, 1)]
        )
        mean, scale = (chosen.mean(), 1 / chosen.std()) if normalized else (0, 1)
        np.testing.assert_allclose(found.mean[k], mean, rtol=1e-5)
        np.testing.assert_allclose(found.scale[k], scale, rtol=1e-5)
    errors, targets = advantage[samples.valid], target[samples.valid]
    explained = 1 - errors.var() / targets.var()
    np.testing.assert_allclose(found.explained_variance, explained, rtol=1e-4)
    whole, _ = normalize.advantages(local_pool(2), samples, normalized, None)
    mean, scale = (errors.mean(), 1 / errors.std()) if normalized else (0, 1)
    np.testing.assert_allclose(whole.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(whole.scale, scale, rtol=1e-5)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("minibatches", [True, False])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_the_statistics_of_observations_beside_advantages_are_those_of_an_update(
    normalized, minibatches, shape
):
    """Against NumPy too: of all valid observations, whatever the minibatches are."""
    rng = np.random.default_rng(5)
    advantage, target = rng.normal(size=(2, 2, 4, 3)).astype(np.float32)
    obs = rng.normal(3.0, 2.0, (2, 4, 3, *shape)).astype(np.float32)
    samples = Samples(obs, advantage, target, rng.random((2, 4, 3)) < 0.7)
    orders = jnp.array([[[2], [0], [1]], [[1], [2], [0]]]) if minibatches else None
    before = normalize.merge(
        normalize.init(True, shape), jnp.int32(7), jnp.full(shape, 2.0), jnp.full(shape, 3.0)
    )
    alone, _ = normalize.advantages(local_pool(2), samples, normalized, None, orders)
    beside, after = normalize.advantages(local_pool(2), samples, normalized, before, orders)
    expected = normalize.update(local_pool(2), before, obs, samples.valid)
    jax.tree.map(np.testing.assert_array_equal, after, expected)
    jax.tree.map(np.testing.assert_array_equal, beside, alone)
    seen = obs[samples.valid].astype(np.float64)
    assert int(after.low) == 7 + len(seen)
    np.testing.assert_allclose(after.mean, (14 + seen.sum(0)) / (7 + len(seen)), rtol=1e-5)


def test_merged_batches_have_the_moments_of_all_samples_together():
    rng = np.random.default_rng(2)
    batches = [rng.normal(1000.0 + i, 0.1 + i, (n, 2)) for i, n in enumerate((5, 100, 1, 64))]
    statistics = normalize.init(True, (2,))
    for x in batches:
        statistics = normalize.merge(
            statistics, jnp.int32(len(x)), jnp.float32(x.mean(0)), jnp.float32(x.var(0))
        )
    whole = np.concatenate(batches)
    assert int(statistics.low) == len(whole)
    np.testing.assert_allclose(statistics.mean, whole.mean(0), rtol=1e-6)
    np.testing.assert_allclose(statistics.variance, whole.var(0), rtol=1e-3)


def test_an_empty_batch_changes_nothing():
    before = normalize.merge(normalize.init(True), jnp.int32(3), jnp.float32(5.0), jnp.float32(2.0))
    after = normalize.merge(before, jnp.int32(0), jnp.float32(0.0), jnp.float32(0.0))
    assert jax.tree.map(float, after) == jax.tree.map(float, before)
    fresh = normalize.merge(normalize.init(True), jnp.int32(0), jnp.zeros(()), jnp.zeros(()))
    assert float(fresh.variance) == 1.0


def test_the_count_is_right_past_two_to_the_31():
    statistics, batch = normalize.init(True), 2**30 - 1
    for _ in range(5):
        statistics = normalize.merge(
            statistics, jnp.int32(batch), jnp.float32(1.0), jnp.float32(1.0)
        )
    assert int(statistics.high) * 2**30 + int(statistics.low) == 5 * batch
    assert float(statistics.mean) == 1.0


def test_normalized_values_are_clipped_and_nothing_changes_before_the_first_merge():
    x = jnp.asarray([-100.0, 0.5, 100.0])
    neutral = normalize.init(True)
    np.testing.assert_allclose(normalize.apply(neutral, x), [-10.0, 0.5, 10.0], rtol=1e-6)


def test_moments_of_half_precision_are_those_of_full_precision():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 64, 3)), jnp.float16)
    mask = jnp.ones((2, 64), bool)
    (half,) = normalize.pooled_moments(local_pool(2), (x, mask))
    (full,) = normalize.pooled_moments(local_pool(2), (x.astype(jnp.float32), mask))
    for name in half._fields:
        np.testing.assert_array_equal(getattr(half, name), getattr(full, name))


def test_what_does_not_vary_and_batches_in_which_nothing_counts_leave_all_numbers_finite():
    """Features, advantages and targets that are all alike, and a minibatch of resets alone."""
    obs, alike = np.full((2, 4, 3, 5), 7.0, np.float32), np.ones((2, 4, 3), np.float32)
    valid = np.ones((2, 4, 3), bool)
    valid[0, :, 0] = valid[1, :, 2] = False
    orders = jnp.array([[[0], [1], [2]], [[2], [1], [0]]])
    found, statistics = normalize.advantages(
        local_pool(2), Samples(obs, alike, alike, valid), True, normalize.init(True, (5,)), orders
    )
    np.testing.assert_array_equal(found.mean, [0, 1, 1])
    assert all(np.isfinite(x).all() for x in found)
    np.testing.assert_array_equal(statistics.variance, np.zeros(5))
    np.testing.assert_array_equal(normalize.apply(statistics, obs), np.zeros_like(obs))
