"""PPO's loss against a slow NumPy twin, its update's parts, and its options."""

import dataclasses

import jax
import jax.numpy as jnp
import learners
import numpy as np
import pytest
from running import differing, first_shared, run, small, time_at

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config
from jaxrl_scale.learning import distributions, networks
from jaxrl_scale.options import traced
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.types import Box, Discrete, EnvSpec, MultiDiscrete

CLIP, ENTROPY, VALUE = 0.2, 0.03, 0.7
SMALL = small(iterations=2, devices=2)


SPACES = {"discrete": Discrete(3), "parts": MultiDiscrete((2, 3)), "box": Box(-2.0, 2.0, (2,))}
of_each_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())


def sizes_of(space):
    """How many numbers each part of a discrete action has."""
    return space.sizes if isinstance(space, MultiDiscrete) else (space.n,)


def actions_of(space, rng, *shape):
    """Random ones, as a policy chooses them."""
    if isinstance(space, Box):
        return rng.normal(size=(*shape, *space.shape)).astype(np.float32)
    return rng.integers(0, np.reshape(sizes_of(space), space.shape), (*shape, *space.shape))


def twin_policy(space, policy, action):
    """The logarithm of one action's likelihood, and the entropy."""
    if isinstance(space, Box):
        mean, log_std = np.split(policy, 2)
        z = (action - mean) / np.exp(log_std)
        log_prob = np.sum(-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi))
        return log_prob, np.sum(0.5 * np.log(2 * np.pi * np.e) + log_std)
    log_prob = entropy = first = 0
    for n, a in zip(sizes_of(space), np.atleast_1d(action), strict=True):
        p = np.exp(policy[first : first + n])
        p = p / p.sum()
        log_prob, entropy = log_prob + np.log(p[a]), entropy - np.sum(p * np.log(p))
        first += n
    return log_prob, entropy


def twin_loss(policy, value, batch, space, clip_value):
    """Equation 9 of the paper, one sample at a time."""
    sums = dict.fromkeys(
        ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"), 0.0
    )
    for i in range(len(value)):
        if not batch.valid[i]:
            continue
        log_prob, entropy = twin_policy(space, policy[i], batch.action[i])
        ratio = np.exp(log_prob - batch.log_prob[i])
        advantage = batch.advantage[i]
        clipped = min(max(ratio, 1 - CLIP), 1 + CLIP)
        sums["policy_loss"] -= min(ratio * advantage, clipped * advantage)
        error = (value[i] - batch.target[i]) ** 2
        if clip_value:
            step = min(max(value[i] - batch.value[i], -CLIP), CLIP)
            error = max(error, (batch.value[i] + step - batch.target[i]) ** 2)
        sums["value_loss"] += 0.5 * error
        sums["entropy"] += entropy
        sums["approx_kl"] += ratio - 1 - np.log(ratio)
        sums["clip_fraction"] += abs(ratio - 1) > CLIP
    total = sums["policy_loss"] + VALUE * sums["value_loss"] - ENTROPY * sums["entropy"]
    return {"loss": total, **sums}


@pytest.mark.parametrize("clip_value", [False, True])
@of_each_space
def test_the_loss_equals_its_slow_twin(space, clip_value):
    rng = np.random.default_rng(0)
    network = networks.make_policy(
        Config(hidden_sizes=(8,)), EnvSpec("twin", (5,), space), recurrent=False
    )
    params = jax.tree.map(
        lambda x: jnp.asarray(rng.normal(0, 0.5, x.shape), jnp.float32),
        network.init(jax.random.key(0)),
    )
    n = 64
    obs = rng.normal(size=(n, 5)).astype(np.float32)
    policy, value = map(np.asarray, network.apply(params, (), obs, None)[1])
    batch = ppo.Samples(
        carry=(),
        obs=obs,
        is_first=np.zeros(n, bool),
        action=actions_of(space, rng, n),
        log_prob=rng.normal(-1.5, 0.5, n).astype(np.float32),
        value=(value + rng.normal(0, 0.5, n)).astype(np.float32),
        advantage=rng.normal(size=n).astype(np.float32),
        target=rng.normal(size=n).astype(np.float32),
        valid=rng.random(n) < 0.8,
    )
    expected = twin_loss(policy, value, batch, space, clip_value)
    sequences = jax.tree.map(lambda x: jnp.asarray(x)[None], batch)  # of one step each
    options = ppo.Config(
        clip_value=clip_value, clip_epsilon=CLIP, entropy_coef=ENTROPY, value_coef=VALUE
    )
    total, sums = ppo.loss(network, traced(options), params, sequences)
    assert 0 < expected["clip_fraction"] < n  # both branches are exercised
    assert float(total) == pytest.approx(expected["loss"], rel=1e-4)
    for name, number in expected.items():
        assert float(sums[name]) == pytest.approx(number, rel=1e-4), name


def rollout_of(seed, S, T, B):
    """A random rollout of a policy that took each action with a probability of about a half, and
    whose values were random."""
    value = np.random.default_rng(seed).normal(size=(S, T, B)).astype(np.float32)
    extras = np.full((S, T, B), -0.7, np.float32), value
    return learners.rollout_of(seed, S, T, B, actions=2, extras=extras)


SPEC = EnvSpec("twin", (4,), Discrete(2))


def config_of(S, T, B, **options):
    options = {"minibatch_size": S * T * B // 2, "epochs": 2} | options
    whole = {"num_envs": S * B, "num_shards": S, "rollout_length": T}
    return Config(algo=ppo.Config(**options), **whole)


def beginning(rollout, exact=True, config=None, **options):
    """The algorithm for such a rollout, and its state before the first update."""
    S, T, B = rollout.valid.shape
    config = config or config_of(S, T, B, **options)
    algo = ppo.make(config, SPEC, local_pool(S, exact))
    return algo, first_shared(algo, config)


def updated(rollout, *how, **options):
    """What the first update of `beginning` returns."""
    algo, shared = beginning(rollout, *how, **options)
    local = jnp.zeros((rollout.valid.shape[0], rollout.valid.shape[2]))
    return jax.jit(algo.update)(shared, local, rollout, jax.random.key(1), time_at(0))


def test_one_big_batch_gives_the_fixed_order_sums_within_rounding():
    rollout = rollout_of(1, 4, 16, 8)
    exact, fast = updated(rollout, exact=True), updated(rollout, exact=False)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-5), exact[0], fast[0])


def test_advantages_are_normalised_by_moments_of_the_whole_minibatch():
    # Shards whose advantages differ by a constant: moments of each shard would remove it.
    rollout = rollout_of(2, 2, 16, 4)
    shifted = rollout._replace(
        reward=rollout.reward + np.asarray([0.0, 50.0], np.float32)[:, None, None],
        valid=np.ones_like(rollout.valid),
        terminated=np.ones_like(rollout.terminated),
    )
    own = {"epochs": 1, "minibatch_size": 2 * 16 * 4, "entropy_coef": 0.0, "value_coef": 0.0}
    _, _, metrics = updated(shifted, **own)
    # One gradient step on one minibatch: its policy gradient, worked out with NumPy moments.
    start = beginning(shifted, **own)[1].params
    network = networks.make(Config(), EnvSpec("twin", (4,), Discrete(2)))
    reward = shifted.reward.reshape(-1)  # of episodes of one step
    advantage = reward - shifted.extras[1].reshape(-1)
    normal = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

    def policy_loss(params):
        policy, _ = network.apply(params, shifted.obs[:, :-1].reshape(-1, 4))
        log_prob = network.policy.log_prob(policy, shifted.action.reshape(-1))
        ratio = jnp.exp(log_prob + 0.7)
        return -jnp.minimum(ratio * normal, jnp.clip(ratio, 0.8, 1.2) * normal).mean()

    expected = jax.grad(policy_loss)(start)
    norm = np.sqrt(sum(float((g**2).sum()) for g in jax.tree.leaves(expected)))
    assert float(metrics["grad_norm"]) == pytest.approx(norm, rel=1e-3)


def test_each_minibatch_is_normalised_by_its_own_moments():
    """So that the loss of the policy that acted is 0 in each of them."""
    rollout = rollout_of(4, 2, 16, 4)
    own = {"epochs": 1, "minibatch_size": 16, "learning_rate": 0.0}
    start = beginning(rollout, **own)[1].params
    network = networks.make(Config(), SPEC)
    policy, _ = network.apply(start, rollout.obs[:, :-1])
    acted = np.asarray(network.policy.log_prob(policy, rollout.action)), rollout.extras[1]
    _, _, metrics = updated(rollout._replace(extras=acted), **own)
    assert metrics["updates"] == 8
    assert abs(float(metrics["policy_loss"])) < 1e-5


def test_the_step_beyond_one_and_a_half_times_the_target_kl_is_undone_and_is_the_last():
    rollout = rollout_of(3, 2, 16, 4)
    config = config_of(2, 16, 4, epochs=4, learning_rate=0.005, target_kl=1.0, minibatch_size=128)
    algo = ppo.make(config, SPEC, local_pool(2))
    update = jax.jit(algo.update)

    def until(target_kl):
        """Parameters, steps that were kept, and the KL divergence of the last one."""
        start = first_shared(algo, config, target_kl=target_kl)
        after, _, metrics = update(start, jnp.zeros((2, 4)), rollout, jax.random.key(1), time_at(0))
        made = int(metrics["updates"]) + int(metrics["updates"] < 4)
        return after.params, int(metrics["updates"]), float(metrics["approx_kl"]) * made

    start, kept, first = until(-1.0)
    assert kept == 0
    assert differing(start, first_shared(algo, config).params) == []  # undone
    _, kept, total = until(first / 1.5 * 1.001)  # the second step is then the first beyond it
    assert kept == 1
    second = total - first
    assert second > 1.1 * first
    for factor, expected in ((0.999, 1), (1.001, 2)):
        assert until(second / 1.5 * factor)[1] == expected
    # One step was kept: as if there had been one.
    alone = dataclasses.replace(config.algo, epochs=1, target_kl=None)
    one = updated(rollout, config=config.replace(algo=alone))[0].params
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6),
        until(second / 1.5 * 0.999)[0],
        one,
    )


def test_metrics_that_users_look_for_are_there():
    _, history = run(SMALL)
    assert set(history[0]) >= {
        *("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"),
        *("explained_variance", "grad_norm", "param_norm", "learning_rate", "updates"),
        *("ended", "total_return", "total_length", "steps"),
    }
    assert history[0]["entropy"][0] == pytest.approx(np.log(2), abs=0.02)  # a fresh policy
    assert history[0]["learning_rate"][0] == pytest.approx(3e-4)
    assert history[1]["learning_rate"][0] == pytest.approx(1.5e-4)


def test_the_norm_of_the_parameters_is_that_of_those_that_an_iteration_ends_with():
    """So that an agent whose parameters are no longer finite fails in that iteration."""
    state, history = run(SMALL)
    squares = [np.square(x, dtype=float).sum() for x in jax.tree.leaves(state.shared.algo.params)]
    assert history[-1]["param_norm"][0] == pytest.approx(np.sqrt(sum(squares)), rel=1e-6)
    assert history[-1]["param_norm"][0] != history[0]["param_norm"][0]


def test_a_shared_torso_has_one_torso():
    spec = EnvSpec("x", (4,), Discrete(2))
    two = networks.make(Config(), spec).init(jax.random.key(0))
    one = networks.make(Config(shared_torso=True), spec).init(jax.random.key(0))
    assert set(two) == {"actor", "critic", "policy", "value"}
    assert set(one) == {"torso", "policy", "value"}


def test_samples_of_the_categorical_policy_have_its_probabilities():
    policy = distributions.categorical(Discrete(4))
    logits = jnp.log(jnp.asarray([0.1, 0.2, 0.3, 0.4]))
    actions = policy.sample(jax.random.key(0), jnp.broadcast_to(logits, (100_000, 4)))
    np.testing.assert_allclose(np.bincount(actions) / 1e5, [0.1, 0.2, 0.3, 0.4], atol=0.006)


def test_minibatches_hold_every_sample_once_an_epoch():
    from jaxrl_scale.learning.permute import permutation

    orders = permutation(jax.random.key(0), 96, 3)
    assert orders.shape == (3, 96)
    np.testing.assert_array_equal(np.sort(orders, 1), np.broadcast_to(np.arange(96), (3, 96)))
    assert not np.array_equal(orders[0], orders[1])


def test_the_runner_reports_what_the_environments_did():
    _, (metrics, *_) = run(SMALL)
    assert 0 < metrics["steps"][0] <= 64 * 16
    assert metrics["total_length"][0] >= metrics["ended"][0]
