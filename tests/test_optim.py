"""The three verbs of an update, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_scale.algos import a2c
from jaxrl_scale.learning import masks, optim
from jaxrl_scale.options import traced
from jaxrl_scale.parallel.sums import local_pool

S, N = 4, 5


@pytest.mark.parametrize("exact", [True, False])
def test_the_mean_gradient_is_that_of_the_valid_samples_of_all_shards(exact):
    rng = np.random.default_rng(0)
    x, valid = rng.normal(size=(S, N, 3)).astype(np.float32), rng.random((S, N)) < 0.6
    params = jnp.asarray([1.0, -2.0, 0.5])

    def loss(params, x, valid):
        error = jnp.square(x @ params)
        sums = optim.masked_sums(valid, {"loss": error, "size": jnp.abs(x).sum(-1)})
        return sums["loss"], sums

    gradient, means = optim.mean_gradient(local_pool(S, exact), loss, params, x, valid)
    counted = x[valid]
    assert 0 < len(counted) < S * N
    expected = 2 * (counted * (counted @ params)[:, None]).mean(0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    assert set(means) == {"loss", "size", "grad_norm"}
    np.testing.assert_allclose(means["loss"], ((counted @ params) ** 2).mean(), rtol=1e-5)
    np.testing.assert_allclose(means["size"], np.abs(counted).sum(-1).mean(), rtol=1e-5)
    np.testing.assert_allclose(means["grad_norm"], np.linalg.norm(expected), rtol=1e-5)


def test_without_a_valid_sample_the_gradient_is_0():
    def loss(params, x):
        sums = optim.masked_sums(jnp.zeros(N, bool), {"loss": x * params[0]})
        return sums["loss"], sums

    gradient, means = optim.mean_gradient(local_pool(S), loss, jnp.ones(1), jnp.ones((S, N)))
    assert (float(gradient[0]), float(means["loss"])) == (0.0, 0.0)


def test_what_is_not_valid_is_masked_before_a_gradient_can_see_it():
    x, valid = jnp.asarray([[1.0, 2.0], [jnp.nan, jnp.inf]]), jnp.asarray([True, False])
    masked = masks.masked(valid, {"x": x, "n": jnp.asarray([3, 4]), "ok": valid})
    np.testing.assert_array_equal(masked["x"], [[1.0, 2.0], [0.0, 0.0]])
    np.testing.assert_array_equal(masked["n"], [3, 0])
    assert masked["n"].dtype == jnp.int32


def step(k, carry):
    """Adds 1, 2, 3 …; its metrics are a number and a vector."""
    k = k.astype(jnp.float32)
    return carry + k + 1, {"size": k, "vector": jnp.stack([k, 2 * k])}


def test_the_metrics_of_all_steps_are_averaged():
    carry, means = jax.jit(lambda: optim.average_over(4, step, jnp.float32(10)))()
    assert float(carry) == 10 + 1 + 2 + 3 + 4
    assert (float(means["size"]), float(means["updates"])) == (1.5, 4)
    np.testing.assert_array_equal(means["vector"], [1.5, 3.0])


def test_no_steps_change_nothing():
    carry, means = jax.jit(lambda n: optim.average_over(n, step, jnp.float32(10)))(0)
    assert (float(carry), float(means["size"]), float(means["updates"])) == (10, 0, 0)


def test_a_step_that_goes_too_far_is_undone_and_is_the_last():
    def stopping(limit):
        return optim.average_over(4, step, jnp.float32(10), lambda means: means["size"] > limit)

    carry, means = jax.jit(stopping)(1.5)  # the third step, with a size of 2
    assert float(carry) == 10 + 1 + 2
    assert (float(means["size"]), float(means["updates"])) == (1.0, 2)  # 0, 1 and 2
    carry, means = jax.jit(stopping)(9.0)
    assert (float(carry), float(means["updates"])) == (20, 4)


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_an_optimizer_limits_the_gradient_and_steps_against_it(kind):
    params, gradient = jnp.asarray([1.0, 1.0]), jnp.asarray([30.0, -40.0])

    def moved(**options):
        options = traced(a2c.Config(optimizer=kind, learning_rate=0.1, **options))
        optimizer = optim.make(options)
        after, _ = optimizer.step(
            gradient, params, optimizer.init({"a": params[0], "b": params[1]})
        )
        return np.asarray(after - params)

    # The first step of Adam is g / (|g| + ε), that of RMSProp g / sqrt(0.99 + 0.01 g² + ε)
    def expected(g, epsilon):
        size = abs(g) + epsilon if kind == "adam" else np.sqrt(0.99 + 0.01 * g**2 + epsilon)
        return -0.1 * g / size

    unlimited, limited = np.asarray(gradient), np.asarray(gradient) / 100
    small = {"max_grad_norm": 0.5, "optimizer_epsilon": 0.1}
    np.testing.assert_allclose(moved(**small), expected(limited, 0.1), rtol=1e-4)
    none = {"max_grad_norm": None, "optimizer_epsilon": 0.1}
    np.testing.assert_allclose(moved(**none), expected(unlimited, 0.1), rtol=1e-4)


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_an_optimizer_remembers_earlier_gradients(kind):
    """By hand, with the published numbers: 0.9 and 0.999 for Adam; 0.99 for RMSProp, whose mean
    square begins at 1."""
    options = traced(
        a2c.Config(optimizer=kind, learning_rate=0.1, max_grad_norm=None, optimizer_epsilon=1e-5)
    )
    optimizer = optim.make(options)
    params = jnp.zeros(2)
    state = optimizer.init(params)
    gradients = np.asarray([[3.0, -0.5], [1.0, 2.0], [-2.0, 0.1]], np.float32)
    mean, expected = np.zeros(2), np.zeros(2)
    square = np.full(2, float(kind == "rmsprop"))
    for k, gradient in enumerate(gradients, start=1):
        params, state = optimizer.step(jnp.asarray(gradient), params, state)
        if kind == "adam":
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
            size = np.sqrt(square / (1 - 0.999**k)) + 1e-5
            expected -= 0.1 * mean / (1 - 0.9**k) / size
        else:
            square = 0.99 * square + 0.01 * gradient**2
            expected -= 0.1 * gradient / np.sqrt(square + 1e-5)
        np.testing.assert_allclose(params, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [1.0, 1.0, 1.0]), ("linear", [1.0, 0.5, 0.0]), ("cosine", [1.0, 0.5, 0.0])],
)
def test_learning_rate_schedules(schedule, expected):
    options = traced(a2c.Config(learning_rate=1.0, lr_schedule=schedule))
    rates = [float(optim.make(options, part).learning_rate) for part in (0.0, 0.5, 1.0)]
    np.testing.assert_allclose(rates, expected, atol=1e-6)


def test_an_own_schedule_without_a_formula_is_no_constant_one():
    assert optim.scheduled("constant", 0.1, 0.5) == 0.1
    with pytest.raises(ValueError, match="lr_schedule='steps' has no formula in jaxrl_scale"):
        optim.scheduled("steps", 0.1, 0.5)
