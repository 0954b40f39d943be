"""A2C's loss against a slow NumPy twin, the probe environments, and the same bits everywhere."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import random_parameters, rollout_of
from running import first_shared, time_at
from test_ppo import actions_of, of_each_space, twin_policy

from jaxrl_scale.algos import a2c
from jaxrl_scale.config import Config, check
from jaxrl_scale.learning import networks
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.types import Discrete, EnvSpec

ENTROPY, VALUE = 0.03, 0.7
SPEC = EnvSpec("twin", (4,), Discrete(2))


def small(own=None, **changes):
    whole = {"num_envs": 32, "num_shards": 8, "rollout_length": 8, "hidden_sizes": (8,)} | changes
    config = Config(algo=a2c.Config(**(own or {})), **whole)
    check(config)
    return config


# --- the loss and the update ----------------------------------------------------------------


def twin_loss(policy, value, batch, space):
    """One sample after the other."""
    sums = dict.fromkeys(("policy_loss", "value_loss", "entropy"), 0.0)
    for at in np.argwhere(batch.valid).tolist():
        at = tuple(at)
        log_prob, entropy = twin_policy(space, policy[at], batch.action[at])
        sums["entropy"] += entropy
        sums["policy_loss"] -= log_prob * batch.advantage[at]
        sums["value_loss"] += 0.5 * (value[at] - batch.target[at]) ** 2
    total = sums["policy_loss"] + VALUE * sums["value_loss"] - ENTROPY * sums["entropy"]
    return {"loss": total, "count": batch.valid.sum(), **sums}


@of_each_space
def test_the_loss_equals_its_slow_twin(space):
    rng = np.random.default_rng(0)
    T, B = 6, 5
    network = networks.make(Config(hidden_sizes=(8,)), EnvSpec("twin", (4,), space))
    params = random_parameters(network)
    batch = a2c.Samples(
        carry=(),
        obs=rng.normal(size=(T, B, 4)).astype(np.float32),
        is_first=rng.random((T, B)) < 0.2,
        action=actions_of(space, rng, T, B),
        advantage=rng.normal(size=(T, B)).astype(np.float32),
        target=rng.normal(size=(T, B)).astype(np.float32),
        valid=rng.random((T, B)) < 0.8,
    )
    policy, value = map(np.asarray, jax.jit(network.apply)(params, batch.obs))
    expected = twin_loss(policy, value, batch, space)
    options = a2c.Config(entropy_coef=ENTROPY, value_coef=VALUE)
    loss = functools.partial(a2c.loss, networks.without_memory(network), options)
    total, sums = jax.jit(loss)(params, batch)
    assert float(total) == pytest.approx(expected["loss"], rel=1e-4)
    for name, number in expected.items():
        assert float(sums[name]) == pytest.approx(number, rel=1e-4), name


@pytest.fixture(scope="module")
def updated():
    """``update(rollout, start=None) -> (Shared, metrics)`` of one compiled update with RMSProp,
    normalised advantages and no clipping to speak of."""
    S, T, B = 2, 8, 4
    own = {"optimizer": "rmsprop", "normalize_advantages": True, "max_grad_norm": 1e9}
    config = small(own, num_envs=S * B, num_shards=S, rollout_length=T, iterations=4)
    algo = a2c.make(config, SPEC, local_pool(S))
    update = jax.jit(algo.update)

    first = first_shared(algo, config)

    def of(rollout, start=first, iteration=0):
        shared, _, metrics = update(
            start, jnp.zeros((S, B)), rollout, jax.random.key(1), time_at(iteration, 4)
        )
        return shared, metrics

    return config, first, of


def acted_rollout(seed):
    """A random rollout with the values of a network that acted."""
    rollout = rollout_of(seed, actions=2)
    value = np.random.default_rng(seed).normal(size=rollout.valid.shape).astype(np.float32)
    return rollout._replace(extras=value)


def test_an_update_is_one_step_along_the_gradient_of_the_whole_rollout(updated):
    config, start, update = updated
    rollout = acted_rollout(1)
    network = networks.make(config, SPEC)
    last = jax.jit(network.apply)(start.params, rollout.obs[:, -1:])[1]
    value = np.concatenate([rollout.extras, last], 1)
    advantage = np.zeros(rollout.valid.shape)  # γ and λ are 0.99 and 1
    for t in reversed(range(8)):
        following = np.where(rollout.terminated[:, t], 0.0, value[:, t + 1])
        later = np.zeros_like(following) if t == 7 else advantage[:, t + 1]
        ended = rollout.terminated[:, t] | rollout.truncated[:, t]
        delta = rollout.reward[:, t] + 0.99 * (following + np.where(ended, 0.0, later))
        advantage[:, t] = np.where(rollout.valid[:, t], delta - value[:, t], 0.0)
    target = advantage + value[:, :-1]
    counted = advantage[rollout.valid]
    normal = (advantage - counted.mean()) / counted.std()

    def mean_loss(params):
        policy, value = network.apply(params, rollout.obs[:, :-1])
        log_prob = network.policy.log_prob(policy, rollout.action)
        each = -log_prob * normal + 0.5 * 0.5 * (value - target) ** 2
        each -= 0.01 * network.policy.entropy(policy)
        return each[rollout.valid].mean()

    gradient = jax.jit(jax.grad(mean_loss))(start.params)
    found, metrics = update(rollout)
    norm = np.sqrt(sum(float((g**2).sum()) for g in jax.tree.leaves(gradient)))
    assert float(metrics["grad_norm"]) == pytest.approx(norm, rel=1e-4)
    assert float(metrics["explained_variance"]) == pytest.approx(
        1 - counted.var() / target[rollout.valid].var(), abs=1e-4
    )

    def stepped(x, g):  # RMSProp's first step: its mean square was 1
        return x - 1e-3 * g / np.sqrt(0.99 + 0.01 * g**2 + 1e-5)

    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5),
        found.params,
        jax.tree.map(stepped, start.params, gradient),
    )
    assert float(update(rollout, found, 1)[1]["learning_rate"]) == pytest.approx(0.75e-3)
