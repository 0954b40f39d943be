"""SAC: the squashed Gaussian, its losses by hand, a gradient step against a slow twin."""

import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import rollout_of
from running import first_shared, time_at

from jaxrl_scale.algos import dqn, sac
from jaxrl_scale.config import Config, check
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import distributions, networks, replay
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.types import Box, Discrete, EnvSpec, MultiDiscrete

S, T, B = 4, 8, 4
SPEC = EnvSpec("twin", (4,), Box(-1.0, 3.0, (1, 2)))
NORMAL = 0.5 * math.log(2 * math.pi)


def small(own=None, **changes):
    """A config that compiles and runs in seconds."""
    algo = {"batch_size": 64, "updates_per_iteration": 1, "replay_size": 256, "learning_starts": 0}
    whole = {"num_envs": S * B, "num_shards": S, "rollout_length": T, "hidden_sizes": (8,)}
    config = Config(algo=sac.Config(**(algo | (own or {}))), **(whole | changes))
    check(config)
    return config


# --- the policy -------------------------------------------------------------------------------


def test_a_squashed_sample_has_the_density_of_its_slow_twin():
    rng = np.random.default_rng(0)
    policy, noise = 0.5 * rng.normal(size=(50, 6)), rng.normal(size=(50, 3))
    action, log_prob = distributions.squashed(jnp.float32(policy), jnp.float32(noise))
    std = np.exp(policy[:, 3:])
    x = policy[:, :3] + std * noise
    np.testing.assert_allclose(action, np.tanh(x), atol=1e-6)
    density = np.exp(-0.5 * noise**2) / (std * math.sqrt(2 * math.pi)) / (1 - np.tanh(x) ** 2)
    np.testing.assert_allclose(log_prob, np.log(density).sum(-1), rtol=1e-4, atol=1e-4)


def test_the_density_of_actions_adds_up_to_1():
    noise = jnp.linspace(-8, 8, 20_001)[:, None]
    for mean, log_std in ((0.0, 0.0), (0.7, -1.0), (-1.5, 0.3)):
        policy = jnp.broadcast_to(jnp.asarray([mean, log_std]), (len(noise), 2))
        action, log_prob = distributions.squashed(policy, noise)
        total = np.trapezoid(np.exp(log_prob), action[:, 0])
        assert total == pytest.approx(1, abs=1e-3)


def test_the_density_of_an_action_at_the_bound_is_right_and_has_a_gradient():
    """There 1 - tanh² is 0 in float32, and its logarithm no number."""

    def log_prob(mean):
        return distributions.squashed(jnp.stack([mean, jnp.zeros_like(mean)]), jnp.zeros(1))[1]

    for mean in (-60.0, -12.0, 12.0, 60.0):
        value, slope = jax.value_and_grad(log_prob)(jnp.float32(mean))
        assert abs(np.tanh(np.float32(mean))) == 1
        # 1 - tanh² = 4 / (e^x + e^-x)²
        expected = -NORMAL - math.log(4) + 2 * np.logaddexp(mean, -mean)
        assert float(value) == pytest.approx(expected, rel=1e-6)
        assert float(slope) == pytest.approx(2 * np.sign(mean))


def test_the_slope_of_the_hyperbolic_tangent_has_the_derivative_of_its_slow_twin():
    x = np.concatenate([np.linspace(-4, 4, 81), [-30.0, 30.0]])
    value, derivative = jax.vmap(jax.value_and_grad(distributions.log_slope))(jnp.float32(x))

    def twin(x):
        return math.log(4) - 2 * np.logaddexp(x, -x)

    np.testing.assert_allclose(value, twin(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(derivative, (twin(x + 1e-6) - twin(x - 1e-6)) / 2e-6, atol=1e-6)


def test_a_deviation_stays_within_its_bounds():
    for given, kept in ((-30.0, -20.0), (5.0, 2.0)):
        _, log_prob = distributions.squashed(jnp.asarray([0.0, given]), jnp.zeros(1))
        assert float(log_prob) == pytest.approx(-NORMAL - kept)


def test_actions_go_to_the_environments_bounds_and_back():
    network = networks.make_actor_critics(small(), SPEC)
    x = jnp.asarray([[-1.0, 1.0], [0.0, 0.5]])
    np.testing.assert_array_equal(network.to_box(x), [[[-1.0, 3.0]], [[1.0, 2.0]]])
    np.testing.assert_array_equal(network.from_box(network.to_box(x)), x)


def acting(learning_starts):
    config = small({"learning_starts": learning_starts})
    algo = sac.make(config, SPEC, local_pool(S))
    shared = first_shared(algo, config)
    bias = jnp.asarray([2.0, -2.0, -3.0, -3.0])  # the policy is sure of its actions
    params = shared.params
    policy = params["policy"] | {"policy": params["policy"]["policy"] | {"bias": bias}}
    shared, obs = shared._replace(params=params | {"policy": policy}), jnp.zeros((4000, 4))

    def act(iteration, training, greedy=False):
        local = algo.init_local(jax.random.key(0), 0) if training else None
        actor = algo.actor(shared, time_at(iteration))
        return np.asarray(algo.act(actor, local, (), obs, None, jax.random.key(1), greedy)[0])

    return act


def test_training_begins_with_uniform_actions_and_evaluation_takes_the_mean():
    act = acting(learning_starts=2 * S * T * B)
    for iteration in (0, 1):  # until the first gradient steps have been taken
        anything = act(iteration, training=True)
        assert anything.shape == (4000, 1, 2)
        np.testing.assert_allclose(anything.mean(0), [[1.0, 1.0]], atol=0.1)
        np.testing.assert_allclose(anything.std(0), 4 / math.sqrt(12), atol=0.05)
        assert anything.min() >= -1
        assert anything.max() <= 3
    mean = [[1 + 2 * math.tanh(2), 1 - 2 * math.tanh(2)]]
    for iteration, training in ((2, True), (0, False)):
        sampled = act(iteration, training)
        np.testing.assert_allclose(np.median(sampled, 0), mean, atol=0.01)
        assert 0 < sampled.std(0).max() < 0.02
    for iteration in (0, 2):
        greedy = act(iteration, training=False, greedy=True)
        np.testing.assert_allclose(greedy, np.broadcast_to(mean, greedy.shape), atol=1e-6)
    assert acting(learning_starts=0)(0, training=True).std(0).max() < 0.02


# --- the losses ---------------------------------------------------------------------------------


def table():
    """A policy that looks at nothing, and values that are looked up: observations are one-hot."""
    return networks.ActorCritics(
        size=1,
        shaped=None,
        to_box=None,
        from_box=None,
        init=None,
        policy=lambda params, obs: jnp.broadcast_to(params, (*obs.shape[:-1], 2)),
        values=lambda params, obs, action: obs @ params["state"] + action * params["slope"],
    )


MEAN, LOG_STD, NOISE = 0.5, -1.0, 1.0
PARAMS = {
    "policy": jnp.asarray([MEAN, LOG_STD]),
    "values": {
        "state": jnp.asarray([[1.0, 2.0], [100.0, 100.0]]),
        "slope": jnp.asarray([[3.0, 1.0]]),
    },
    "log_temperature": jnp.log(jnp.float32(0.2)),
}
TARGETS = {"state": jnp.asarray([[9.0, 9.0], [7.0, 6.0]]), "slope": jnp.asarray([[0.0, 2.0]])}
SAMPLE = math.tanh(MEAN + math.exp(LOG_STD) * NOISE)
LOG_PROB = -0.5 - LOG_STD - NORMAL - math.log(1 - SAMPLE**2)


def losses(params, target_entropy=None):
    """Of three transitions, all from the first state, and a fourth that is not valid: two steps to
    the second state, one that ends there, one that is cut there."""
    batch = replay.Transition(
        obs=jnp.asarray([[1.0, 0.0]] * 4),
        action=jnp.asarray([[0.5], [-1.0], [0.0], [1.0]]),
        reward=jnp.asarray([[10.0] * 4, [100.0] * 4]),
        terminated=jnp.asarray([[False, True, False, False], [False] * 4]),
        truncated=jnp.asarray([[False, False, True, False], [False] * 4]),
        valid=jnp.asarray([True, True, True, False]),
        next_obs=jnp.asarray([[0.0, 1.0]] * 3 + [[math.nan] * 2]),
    )
    options = types.SimpleNamespace(gamma=0.5, target_entropy=target_entropy)
    noise = jnp.full((2, 4, 1), NOISE)
    return sac.loss(table(), options, None, params, TARGETS, batch, noise)


def test_the_critics_learn_the_smaller_target_value_and_the_entropy_behind_n_steps():
    total, sums = losses(PARAMS)
    soft = min(7.0, 6.0 + 2 * SAMPLE) - 0.2 * LOG_PROB
    targets = [60 + 0.25 * soft, 10.0, 10 + 0.5 * soft]
    q = np.asarray([[1 + 1.5, 2 + 0.5], [1 - 3.0, 2 - 1.0], [1.0, 2.0]])
    error = q - np.asarray(targets)[:, None]
    assert float(sums["value_loss"]) == pytest.approx(0.5 * (error**2).sum(), rel=1e-5)
    assert float(sums["td_error"]) == pytest.approx(np.abs(error).mean(1).sum(), rel=1e-5)
    assert float(sums["q_mean"]) == pytest.approx(q.mean(1).sum(), rel=1e-5)
    assert float(sums["count"]) == 3
    slope = jax.grad(lambda params: losses(params)[0])(PARAMS)["values"]
    # Neither the policy's loss nor the target moves them.
    np.testing.assert_allclose(slope["state"], [error.sum(0), [0, 0]], rtol=1e-5)
    np.testing.assert_allclose(slope["slope"], [(error * [[0.5], [-1.0], [0.0]]).sum(0)], rtol=1e-5)
    parts = sums["value_loss"] + sums["policy_loss"] + sums["temperature_loss"]
    assert float(total) == float(sums["loss"]) == pytest.approx(float(parts))


def test_the_policy_climbs_the_smaller_value_and_the_entropy():
    _, sums = losses(PARAMS)
    value = min(1 + 3 * SAMPLE, 2 + SAMPLE)
    assert float(sums["policy_loss"]) == pytest.approx(3 * (0.2 * LOG_PROB - value), rel=1e-5)
    assert float(sums["entropy"]) == pytest.approx(-3 * LOG_PROB, rel=1e-5)

    def twin(mean, log_std):
        action = math.tanh(mean + math.exp(log_std) * NOISE)
        log_prob = -0.5 - log_std - NORMAL - math.log(1 - action**2)
        return 3 * (0.2 * log_prob - min(1 + 3 * action, 2 + action))

    slope = jax.grad(lambda params: losses(params)[0])(PARAMS)["policy"]
    step = 1e-5
    expected = [
        (twin(MEAN + step, LOG_STD) - twin(MEAN - step, LOG_STD)) / (2 * step),
        (twin(MEAN, LOG_STD + step) - twin(MEAN, LOG_STD - step)) / (2 * step),
    ]
    np.testing.assert_allclose(slope, expected, rtol=1e-4)


@pytest.mark.parametrize(("target_entropy", "wanted"), [(None, -1.0), (2.0, 2.0)])
def test_the_temperature_rises_where_the_entropy_is_too_small(target_entropy, wanted):
    def loss(params):
        return losses(params, target_entropy)

    slope, sums = jax.grad(loss, has_aux=True)(PARAMS)
    expected = -3 * 0.2 * (LOG_PROB + wanted)
    assert float(sums["temperature_loss"]) == pytest.approx(expected, rel=1e-5)
    assert float(slope["log_temperature"]) == pytest.approx(expected, rel=1e-5)
    assert float(sums["temperature"]) == pytest.approx(3 * 0.2)
    assert (slope["log_temperature"] < 0) == (wanted > -LOG_PROB)  # descending it, α rises


# --- a gradient step --------------------------------------------------------------------------


def test_a_gradient_step_is_that_of_three_slow_twins():
    """Each loss is the mean over the valid samples of all shards, and Adam makes its step of each
    as if the others were not there; then the target follows."""
    rng = np.random.default_rng(1)
    action = rng.uniform(-1, 3, (S, T, B, 1, 2)).astype(np.float32)
    rollout = rollout_of(0, S, T, B)._replace(action=action)
    config = small({"n_step": 2, "tau": 0.25, "temperature": 0.3, "target_period": 1})
    algo, network = sac.make(config, SPEC, local_pool(S)), networks.make_actor_critics(config, SPEC)
    before = first_shared(algo, config)._replace(target_params=first_shared(algo, config, 7).params)
    assert float(before.params["log_temperature"]) == pytest.approx(math.log(0.3))
    local = jax.vmap(algo.init_local, (None, 0))(jax.random.key(0), jnp.arange(S))
    key = jax.random.key(2)
    rolled = jax.tree.map(jnp.asarray, rollout)
    after, _, metrics = jax.jit(algo.update)(before, local, rolled, key, time_at(0))

    key_rows, key_noise = jax.random.split(key)
    stored = replay.window(jnp.int32(0), T * B, 256 // S)
    obs, actions, noise, next_obs, next_noise, reward, weight = ([] for _ in range(7))
    for s in range(S):
        key_shard = jax.random.fold_in(key_rows, s)
        rows = replay.sample(key_shard, stored, 256 // S, 2 * B, (1, 64 // S))[0]
        of_shard = jax.random.fold_in(jax.random.fold_in(key_noise, s), 0)
        drawn = np.asarray(jax.random.normal(of_shard, (2, 64 // S, 2)))
        for i, (t, b) in enumerate(zip(*np.divmod(np.asarray(rows), B), strict=True)):
            if not rollout.valid[s, t, b]:
                continue
            total, discount, at = 0.0, 1.0, t
            for _ in range(2):
                total += discount * rollout.reward[s, at, b]
                discount *= 0.0 if rollout.terminated[s, at, b] else 0.99
                at += 1
                if rollout.terminated[s, at - 1, b] or rollout.truncated[s, at - 1, b]:
                    break
            for to, x in (
                (obs, rollout.obs[s, t, b]),
                (actions, (action[s, t, b, 0] - 1) / 2),
                (noise, drawn[0, i]),
                (next_obs, rollout.obs[s, at, b]),
                (next_noise, drawn[1, i]),
                (reward, total),
                (weight, discount),
            ):
                to.append(np.float32(x))
    obs, actions, noise, next_obs, next_noise, reward, weight = map(
        jnp.stack, (obs, actions, noise, next_obs, next_noise, reward, weight)
    )
    assert 32 < len(obs) < 64  # some were resets

    def chosen(policy, obs, noise):
        out = network.policy(policy, obs)
        std = jnp.exp(out[:, 2:])
        x = out[:, :2] + std * noise
        density = jnp.exp(-0.5 * noise**2) / (std * math.sqrt(2 * math.pi)) / jnp.cosh(x) ** -2
        return jnp.tanh(x), jnp.log(density).sum(-1)

    params, temperature = before.params, 0.3
    next_action, next_log_prob = chosen(params["policy"], next_obs, next_noise)
    q = network.values(before.target_params["values"], next_obs, next_action)
    target = reward + weight * (jnp.minimum(q[:, 0], q[:, 1]) - temperature * next_log_prob)

    def of_values(values):
        error = network.values(values, obs, actions) - target[:, None]
        return 0.5 * (error**2).sum(-1).mean()

    def of_policy(policy):
        action, log_prob = chosen(policy, obs, noise)
        q = network.values(params["values"], obs, action)
        return (temperature * log_prob - jnp.minimum(q[:, 0], q[:, 1])).mean()

    def of_temperature(log_temperature):
        _, log_prob = chosen(params["policy"], obs, noise)
        return (-jnp.exp(log_temperature) * (log_prob - 2)).mean()

    moved, expected = {}, {}
    for name, loss in (
        ("values", of_values),
        ("policy", of_policy),
        ("log_temperature", of_temperature),
    ):
        expected[name], gradient = jax.value_and_grad(loss)(params[name])
        moved[name] = jax.tree.map(
            lambda p, g: p - 1e-3 * g / (abs(g) + 1e-5), params[name], gradient
        )

    def near(one, other):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-6), one, other)

    near(after.params, moved)
    near(
        after.target_params, jax.tree.map(lambda t, p: t + (p - t) / 4, before.target_params, moved)
    )
    for name, metric in (
        ("values", "value_loss"),
        ("policy", "policy_loss"),
        ("log_temperature", "temperature_loss"),
    ):
        assert float(metrics[metric]) == pytest.approx(float(expected[name]), rel=1e-4)
    assert int(after.updates) == metrics["updates"] == 1


def test_every_gradient_step_draws_noise_of_its_own():
    """Where all transitions are alike and nothing is learned, steps differ by nothing else."""
    rollout = jax.tree.map(jnp.zeros_like, rollout_of(0, S, T, B))
    rollout = rollout._replace(action=jnp.ones((S, T, B, 1, 2)), valid=jnp.ones((S, T, B), bool))
    entropy = []
    for updates in (1, 2):
        config = small({"updates_per_iteration": updates, "learning_rate": 0.0})
        algo = sac.make(config, SPEC, local_pool(S))
        local = jax.vmap(algo.init_local, (None, 0))(jax.random.key(0), jnp.arange(S))
        start, key = first_shared(algo, config), jax.random.key(2)
        _, _, metrics = jax.jit(algo.update)(start, local, rollout, key, time_at(0))
        entropy.append(float(metrics["entropy"]))
    assert abs(entropy[0] - entropy[1]) > 1e-3


# --- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algo", "action", "network", "said"),
    [
        (
            sac.Config(),
            Discrete(2),
            "auto",
            "algo sac needs continuous actions, but those of twin are discrete, which all other "
            "algorithms take; try --algo=ppo",
        ),
        (
            sac.Config(),
            MultiDiscrete((3, 2)),
            "auto",
            "algo sac needs continuous actions, but those of twin are discrete, which ppo, a2c and "
            "impala take; try --algo=ppo",
        ),
        (
            dqn.Config(),
            MultiDiscrete((3, 2)),
            "auto",
            "algo dqn needs discrete actions of one part, but those of twin have 2 parts, which "
            "ppo, a2c and impala take; try --algo=ppo",
        ),
        (
            sac.Config(),
            Box(-math.inf, math.inf, (1,)),
            "auto",
            "algo sac needs actions between bounds, but those of twin are between -inf and inf; "
            "try --algo=ppo",
        ),
        (
            sac.Config(),
            Box(-1.0, 1.0, (1,)),
            "test_export:Attentive",
            "network test_export:Attentive sees observations alone, but the values of algo sac are "
            "those of an action, too; try --network=auto",
        ),
        (
            dqn.Config(),
            Box(-1.0, 1.0, (1,)),
            "auto",
            "algo dqn needs discrete actions, but those of twin are continuous, which ppo, a2c, "
            "impala and sac take; try --algo=sac",
        ),
    ],
)
def test_what_an_algorithm_cannot_do_is_told_in_one_line(algo, action, network, said):
    config = Config(algo=algo, network=network)
    module = sac if isinstance(algo, sac.Config) else dqn
    with pytest.raises(RunError) as caught:
        module.make(config, EnvSpec("twin", (4,), action), local_pool(8))
    assert str(caught.value) == said
