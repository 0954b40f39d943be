"""What DQN, Ape-X and PQN share: their equations by hand."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import rollout_of
from running import differing, first_shared, time_at

from jaxrl_scale import algos
from jaxrl_scale import config as cfg
from jaxrl_scale.algos import q_learning
from jaxrl_scale.config import Config
from jaxrl_scale.learning import networks, replay
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
        actions = np.asarray(q_learning.choose(table(), jax.random.key(0), q, epsilon))
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


# --- options that are not numbers ---------------------------------------------------------------

S, T, B = 2, 8, 4
SPEC = EnvSpec("twin", (4,), Discrete(2))
REPLAY = {"batch_size": 32, "replay_size": 128, "updates_per_iteration": 4, "learning_starts": 0}
OPTIONS = {
    "dqn": REPLAY | {"target_period": 8, "tau": 1.0, "epsilon_end": 0.5},
    "apex": REPLAY | {"target_period": 8, "tau": 1.0},
    "pqn": {"minibatch_size": 16, "epsilon_end": 0.5},
}


@functools.cache
def program(name):
    """A config, its algorithm, the state of its shards and its compiled update."""
    config = Config(
        num_envs=S * B,
        num_shards=S,
        rollout_length=T,
        hidden_sizes=(16,),
        iterations=8,
        algo=algos.get(name).Config(**OPTIONS[name]),
    )
    cfg.check(config)
    algo = algos.get(name).make(config, SPEC, local_pool(S))
    local = jax.vmap(algo.init_local, (None, 0))(jax.random.key(0), jnp.arange(S))
    return config, algo, local, jax.jit(algo.update)


def acted():
    """A random rollout with what Ape-X's acting says beside the actions."""
    values = np.random.default_rng(0).normal(size=(2, S, T, B)).astype(np.float32)
    rollout = rollout_of(0, S, T, B, actions=2, extras=tuple(values))
    return jax.tree.map(jnp.asarray, rollout)


@pytest.mark.parametrize("name", ["dqn", "apex"])
def test_a_hard_target_is_copied_when_it_is_due(name):
    config, algo, local, update = program(name)  # four gradient steps of a period of eight
    start, rollout = first_shared(algo, config), acted()
    start = start._replace(target_params=first_shared(algo, config, 7).params)
    half, *_ = update(start, local, rollout, jax.random.key(1), time_at(0))
    assert differing(half.target_params, start.target_params) == []
    assert differing(half.params, start.params) != []
    later = start._replace(updates=jnp.int32(4))
    whole, *_ = update(later, local, rollout, jax.random.key(1), time_at(0))
    assert differing(whole.target_params, whole.params) == []
    assert int(whole.updates) == 8


@pytest.mark.parametrize("name", ["dqn", "pqn"])
def test_a_sampled_evaluation_explores_as_at_the_end_of_training(name):
    config, algo, *_ = program(name)
    shared, obs = first_shared(algo, config), jnp.ones((2000, 4))
    first = jnp.zeros(2000, bool)
    local = algo.init_local(jax.random.key(0), 0)

    def act(iteration, local, greedy=False):
        actor = algo.actor(shared, time_at(iteration))
        return np.asarray(algo.act(actor, local, (), obs, first, jax.random.key(1), greedy)[0])

    best = act(0, None, greedy=True)
    assert len(np.unique(best)) == 1
    for iteration, of_shard, epsilon in ((0, local, 1.0), (0, None, 0.5), (8, local, 0.5)):
        random = np.mean(act(iteration, of_shard) != best)
        assert random == pytest.approx(epsilon / 2, abs=0.04)


def test_a_dueling_network_needs_a_layer():
    config = Config(hidden_sizes=(), algo=algos.get("apex").Config())
    spec = EnvSpec("Vector", (4,), Discrete(2))
    with pytest.raises(cfg.RunError, match=r"hidden_sizes=\(\) has no layer for the two streams"):
        networks.make_q(config, spec, dueling=True)


@pytest.mark.parametrize(("name", "iteration", "epsilon"), [("dqn", 1, 0.75), ("pqn", 4, 0.5)])
def test_the_probability_of_a_random_action_is_reported(name, iteration, epsilon):
    config, algo, local, update = program(name)
    start, key = first_shared(algo, config), jax.random.key(1)
    *_, metrics = update(start, local, acted(), key, time_at(iteration))
    assert float(metrics["epsilon"]) == pytest.approx(epsilon)
