"""What DQN, Ape-X and PQN share: their equations by hand, and that no option is ignored."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import rollout_of
from running import differing, first_shared

from jaxrl_scale import algos
from jaxrl_scale.algos import q_learning
from jaxrl_scale.config import Config, check
from jaxrl_scale.learning import networks, normalize, replay
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.types import Discrete, EnvSpec

# --- equations --------------------------------------------------------------------------------


def test_huber_is_half_the_square_and_then_a_line():
    errors = jnp.asarray([-3.0, -1.0, -0.5, 0.0, 0.5, 2.0, 3.0])
    np.testing.assert_allclose(q_learning.huber(errors, 2.0), [4.0, 0.5, 0.125, 0, 0.125, 2.0, 4.0])
    np.testing.assert_allclose(q_learning.huber(errors, None), 0.5 * errors**2)
    slope = jax.vmap(jax.grad(q_learning.huber), (0, None))
    np.testing.assert_allclose(slope(errors, 2.0), [-2.0, -1.0, -0.5, 0, 0.5, 2.0, 2.0])
    np.testing.assert_allclose(slope(errors, None), errors)


def test_the_target_network_is_copied_or_follows_or_stays():
    target, params = jnp.asarray([1.0, -7.3]), jnp.asarray([3.0, 0.1])

    def moved(tau, updates, step):
        options = types.SimpleNamespace(tau=tau, target_period=4)
        shared = types.SimpleNamespace(options=options, updates=updates)
        return q_learning.follow(shared, step, target, params)

    np.testing.assert_array_equal(moved(1.0, 4, 3), params)
    np.testing.assert_array_equal(moved(1.0, 2, 1), params)
    np.testing.assert_allclose(moved(0.25, 0, 3), [1.5, -5.45])
    for step in (0, 1, 2):
        np.testing.assert_array_equal(moved(1.0, 4, step), target)


def table(apply=lambda params, obs: obs @ params):
    """A network that looks up ``params [states, actions]``: observations are one-hot."""
    return networks.QNetwork(init=None, apply=apply)


def test_double_takes_the_action_from_one_network_and_its_value_from_the_other():
    q = jnp.asarray([[0.0, 1.0], [5.0, 4.0]])  # of two states; the network prefers action 0 of 1
    target = jnp.asarray([[9.0, 9.0], [2.0, 3.0]])  # there the target network prefers action 1
    batch = replay.Transition(
        obs=jnp.asarray([[1.0, 0.0]] * 4),
        action=jnp.asarray([1, 1, 0, 1]),
        reward=jnp.asarray([[10.0] * 4, [100.0] * 4]),
        terminated=jnp.asarray([[False, True, False, False], [False] * 4]),
        truncated=jnp.asarray([[False, False, True, False], [False] * 4]),
        valid=jnp.asarray([True, True, True, False]),
        next_obs=jnp.asarray([[0.0, 1.0]] * 4),
    )

    def loss(q, double=True):
        options = types.SimpleNamespace(gamma=0.5, huber_delta=1.0, double=double)
        return q_learning.loss(table(), options, None, q, target, batch)

    total, (error, sums) = loss(q)
    # q - (r + γ r' + γ² value), q - r where terminated, q - (r + γ value) where cut
    np.testing.assert_allclose(error[:3], [1 - (60 + 0.25 * 2), 1 - 10, 0 - (10 + 0.5 * 2)])
    assert float(total) == pytest.approx(59.5 - 0.5 + 8.5 + 10.5)
    assert float(sums["count"]) == 3
    assert float(sums["q_mean"]) == pytest.approx(1 + 1 + 0)
    assert float(sums["td_error"]) == pytest.approx(59.5 + 9 + 11)
    _, (error, _) = loss(q, double=False)
    np.testing.assert_allclose(error[:3], [1 - (60 + 0.25 * 3), 1 - 10, 0 - (10 + 0.5 * 3)])
    # The target is no function of the parameters: only the values of the actions taken move.
    slope = jax.grad(lambda q: loss(q)[0])(q)
    np.testing.assert_allclose(slope, [[-1.0, -2.0], [0.0, 0.0]])


def test_an_action_that_a_network_forbids_does_not_spoil_the_values_of_the_others():
    q = jnp.asarray([[1.0, -jnp.inf, 3.0]] * 2)
    value, slope = jax.value_and_grad(lambda q: q_learning.value_of(q, jnp.asarray([0, 2])).sum())(
        q
    )
    assert float(value) == 4
    np.testing.assert_array_equal(slope, [[1, 0, 0], [0, 0, 1]])


def test_random_actions_are_as_many_as_epsilon_says():
    q = jnp.broadcast_to(jnp.asarray([0.0, 2.0, 1.0]), (30_000, 3))
    for epsilon in (0.0, 0.3, jnp.asarray([0.0, 0.6] * 15_000)):
        actions = np.asarray(q_learning.epsilon_greedy(jax.random.key(0), q, epsilon))
        np.testing.assert_allclose(
            np.bincount(actions, minlength=3) / 30_000,
            np.mean(epsilon) / 3 + np.asarray([0, 1 - np.mean(epsilon), 0]),
            atol=0.01,
        )
    greedy, half = actions[0::2], actions[1::2]
    assert (greedy == 1).all()
    assert (half != 1).any()


def test_epsilon_falls_over_its_part_of_the_run():
    options = types.SimpleNamespace(epsilon_start=0.9, epsilon_end=0.1, exploration_fraction=0.5)
    got = [q_learning.linear_epsilon(options, k / 20) for k in (0, 5, 10, 15, 20)]
    np.testing.assert_allclose(got, [0.9, 0.5, 0.1, 0.1, 0.1], atol=1e-6)
    options.exploration_fraction = 0.0
    got = [q_learning.linear_epsilon(options, k / 20) for k in (0, 1)]
    np.testing.assert_allclose(got, [0.9, 0.1], atol=1e-6)


# --- acting and updates of all three ------------------------------------------------------------

S, T, B = 2, 8, 4
ITERATIONS = 8
SPEC = EnvSpec("twin", (4,), Discrete(2))
REPLAY = {"batch_size": 32, "replay_size": 128, "updates_per_iteration": 4, "learning_starts": 0}
OPTIONS = {
    "dqn": REPLAY | {"huber_delta": 9.0, "n_step": 2},
    "apex": REPLAY | {"huber_delta": 9.0},
    "pqn": {"minibatch_size": 16, "exploration_fraction": 0.5},
}
ALL = pytest.mark.parametrize("name", OPTIONS)
REPLAYED = pytest.mark.parametrize("name", ["dqn", "apex"])


@functools.cache
def program(name, **static):
    """An algorithm, its compiled update, and acting for many environments of the first shard."""
    config = Config(
        num_envs=S * B,
        num_shards=S,
        rollout_length=T,
        hidden_sizes=(16, 16),
        iterations=ITERATIONS,
        algo=algos.get(name).Config(**(OPTIONS[name] | static)),
    )
    check(config)
    algo = algos.get(name).make(config, SPEC, local_pool(S))
    local = jax.vmap(algo.init_local, (None, 0))(jax.random.key(0), jnp.arange(S))

    @functools.partial(jax.jit, static_argnums=2)
    def act(shared, iteration, evaluated):
        first = None if evaluated else jax.tree.map(lambda x: x[0], local)
        actor, obs = algo.actor(shared, iteration), jnp.linspace(-1, 1, B * 4).reshape(B, 4)
        return jax.vmap(lambda key: algo.act(actor, first, (), obs, None, key)[0])(
            jax.random.split(jax.random.key(2), 1000)
        )

    return config, algo, local, jax.jit(algo.update), act


def rolled(seed=0):
    values = np.random.default_rng(seed).normal(size=(2, S, T, B)).astype(np.float32)
    return rollout_of(seed, S, T, B, actions=2, extras=(values[0], np.abs(values).sum(0)))


def before(name, static, observation=None, **numbers):
    """The state before an update: it has a target network of its own."""
    config, algo, *_ = program(name, **static)
    shared = first_shared(algo, config, **numbers)
    if hasattr(shared, "target_params"):
        shared = shared._replace(target_params=first_shared(algo, config, 7).params)
    return shared if observation is None else shared._replace(observation=observation)


def updated(name, rollout=None, static=None, iteration=1, updates=None, **changes):
    """State and metrics after one update."""
    static = static or {}
    _, _, local, update, _ = program(name, **static)
    shared = before(name, static, **changes)
    if updates is not None:
        shared = shared._replace(updates=jnp.int32(updates))
    key, iteration = jax.random.key(1), jnp.int32(iteration)
    after, _, metrics = update(shared, local, rollout or rolled(), key, iteration)
    return after, metrics


def near(one, other, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), one, other)


@ALL
def test_no_number_of_the_options_is_ignored(name):
    def outcome(**numbers):
        after, metrics = updated(name, **numbers)
        act = program(name)[-1]
        shared = before(name, {}, **numbers)
        acted = [act(shared, jnp.int32(1), evaluated) for evaluated in (False, True)]
        return after.params, metrics, acted

    config = program(name)[0]
    usual = outcome()
    for field in dataclasses.fields(config.algo):
        number = getattr(config.algo, field.name)
        if isinstance(number, float):
            changed = outcome(**{field.name: number / 100 + 0.001})
            assert differing(usual, changed), f"{field.name} is ignored"


@ALL
def test_the_learning_rate_falls_along_its_schedule(name):
    assert program(name)[0].algo.lr_schedule == "linear"
    falling, metrics = updated(name, iteration=ITERATIONS // 4)
    rate = 0.75 * program(name)[0].algo.learning_rate
    assert float(metrics["learning_rate"]) == pytest.approx(rate)
    constant, _ = updated(
        name, static={"lr_schedule": "constant"}, iteration=ITERATIONS // 4, learning_rate=rate
    )
    near(falling.params, constant.params, atol=1e-7)


@ALL
def test_acting_and_learning_see_normalized_observations(name):
    shown = {"normalize_observations": True}
    seen = normalize.init(True, (4,))._replace(
        low=jnp.int32(10**6),
        mean=jnp.asarray([5.0, 0, -3, 1]),
        variance=jnp.asarray([4.0, 9, 1, 2]),
    )
    rollout = rolled()
    raw = rollout._replace(obs=rollout.obs * np.sqrt(seen.variance) + seen.mean)
    one, metrics = updated(name, raw, shown, observation=seen)
    other, expected = updated(name, rollout)
    near(one.params, other.params, atol=2e-5)
    near(metrics, expected, rtol=1e-3)
    assert float(one.observation.low) == 10**6 + raw.valid.sum()
    # Acting: the parameters and statistics of this state, the observations of `program`.
    algo = program(name, **shown)[1]
    actor = algo.actor(before(name, shown, seen), 0)
    plain = program(name)[1].actor(before(name, {}), 0)
    at = (None, (), raw.obs[0, 0], None, jax.random.key(0), True)
    expected, *_ = program(name)[1].act(
        plain, None, (), rollout.obs[0, 0], None, jax.random.key(0), True
    )
    np.testing.assert_array_equal(algo.act(actor, *at)[0], expected)


def test_pqn_learns_from_scaled_rewards():
    static = {"scale_rewards": True}
    rollout = rolled()
    after, _ = updated("pqn", rollout, static)
    seen = normalize.init(True)
    scaled, _, discounted = normalize.scale_rewards(
        local_pool(S), seen, jnp.zeros((S, B)), rollout, 0.99
    )
    assert abs(float(np.std(scaled.reward) / np.std(rollout.reward)) - 1) > 0.1
    expected, _ = updated("pqn", scaled)
    near(after.params, expected.params, atol=1e-6)
    near(after.discounted, discounted, rtol=1e-5)


@ALL
def test_the_last_observation_of_a_terminated_episode_may_be_anything(name):
    rollout = rolled()
    over = np.zeros((S, T + 1, B), bool)
    over[:, 1:] = rollout.terminated
    assert over[:, :-1].any()

    def with_last(value):
        extras = tuple(np.where(over[:, :-1], np.float32(value), x) for x in rollout.extras)
        obs = np.where(over[..., None], np.float32(value), rollout.obs)
        return updated(name, rollout._replace(obs=obs, extras=extras))

    one, metrics = with_last(7.0)
    other, expected = with_last(np.nan)
    assert differing((one, metrics), (other, expected)) == []


@REPLAYED
def test_a_hard_target_is_copied_when_it_is_due(name):
    static = {"target_period": 8}  # an update makes four gradient steps
    after, _ = updated(name, static=static, tau=1.0)
    assert differing(after.target_params, before(name, static).target_params) == []
    after, _ = updated(name, static=static, tau=1.0, updates=4)
    assert differing(after.target_params, after.params) == []
    assert int(after.updates) == 8


@pytest.mark.parametrize("name", ["dqn", "pqn"])
def test_a_sampled_evaluation_explores_as_at_the_end_of_training(name):
    act = program(name)[-1]
    shared = before(name, {}, epsilon_end=0.5)
    greedy = act(before(name, {}, epsilon_end=0.0), jnp.int32(0), True)
    assert len(np.unique(greedy, axis=0)) == 1
    for iteration, evaluated, rate in ((0, False, 1.0), (0, True, 0.5), (ITERATIONS, False, 0.5)):
        acted = act(shared, jnp.int32(iteration), evaluated)
        assert np.mean(acted != greedy) == pytest.approx(rate / 2, abs=0.04)
