"""IMPALA: the loss against a slow NumPy twin, probes, the same bits everywhere."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import GAMMA, random_parameters, rollout_of
from running import first_shared, time_at

from jaxrl_scale.algos import a2c, impala
from jaxrl_scale.config import Config, check
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import networks
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.types import Discrete, EnvSpec

ENTROPY, VALUE = 0.03, 0.7
SPEC = EnvSpec("twin", (4,), Discrete(3))


def small(own=None, **changes):
    whole = {"num_envs": 32, "num_shards": 8, "rollout_length": 8, "hidden_sizes": (8,)} | changes
    own = {"minibatch_size": whole["num_envs"] * whole["rollout_length"]} | (own or {})
    config = Config(algo=impala.Config(**own), **whole)
    check(config)
    return config


def acted_rollout(seed, *args, **changes):
    """A random rollout with the log-probabilities of a policy that acted."""
    rollout = rollout_of(seed, *args, **changes)
    rng = np.random.default_rng(seed + 1)
    return rollout._replace(extras=rng.normal(-1.1, 0.5, rollout.valid.shape).astype(np.float32))


# --- the loss and the update ----------------------------------------------------------------


def twin_loss(policy, value, rollout, correction, rho_clip, c_clip):
    """One shard, one step at a time; λ is 1, as in the paper."""
    T, B = rollout.valid.shape
    sums = dict.fromkeys(
        ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"), 0.0
    )
    p = np.exp(policy) / np.exp(policy).sum(-1, keepdims=True)
    for b in range(B):
        target = 0.0
        for t in reversed(range(T)):
            if not rollout.valid[t, b]:
                continue
            log_prob = np.log(p[t, b, rollout.action[t, b]])
            ratio = np.exp(log_prob - rollout.extras[t, b])
            rho, c = min(rho_clip, ratio), min(c_clip, ratio)
            if correction == "none":
                rho, c = 1.0, 1.0
            if rollout.terminated[t, b]:
                following, beyond = 0.0, 0.0
            elif rollout.truncated[t, b] or t == T - 1:
                following, beyond = value[t + 1, b], 0.0
            else:
                following, beyond = value[t + 1, b], target - value[t + 1, b]
            delta = rollout.reward[t, b] + GAMMA * following - value[t, b]
            advantage = rho * (delta + GAMMA * beyond)
            target = value[t, b] + rho * delta + GAMMA * c * beyond
            sums["policy_loss"] -= log_prob * advantage
            sums["value_loss"] += 0.5 * (value[t, b] - target) ** 2
            sums["entropy"] -= np.sum(p[t, b] * np.log(p[t, b]))
            sums["approx_kl"] += ratio - 1 - np.log(ratio)
            sums["clip_fraction"] += ratio > rho_clip
    total = sums["policy_loss"] + VALUE * sums["value_loss"] - ENTROPY * sums["entropy"]
    return {"loss": total, "count": rollout.valid.sum(), **sums}


@pytest.mark.parametrize("correction", ["vtrace", "none"])
def test_the_loss_equals_its_slow_twin(correction):
    rollout = jax.tree.map(lambda x: x[0], acted_rollout(0, S=1, T=20, B=5))
    network = networks.make(Config(hidden_sizes=(8,)), SPEC)
    params = random_parameters(network)
    policy, value = (np.asarray(x, float) for x in jax.jit(network.apply)(params, rollout.obs))
    expected = twin_loss(policy, value, rollout, correction, 1.3, 0.8)
    options = impala.Config(
        correction=correction,
        rho_clip=1.3,
        c_clip=0.8,
        gamma=GAMMA,
        entropy_coef=ENTROPY,
        value_coef=VALUE,
    )
    loss = functools.partial(impala.loss, networks.without_memory(network), options)
    total, sums = jax.jit(loss)(params, rollout)
    assert 0 < expected["clip_fraction"] < expected["count"] < rollout.valid.size
    assert float(total) == pytest.approx(expected["loss"], rel=1e-4)
    assert set(sums) == set(expected)
    for name, number in expected.items():
        assert float(sums[name]) == pytest.approx(number, rel=1e-4), name


def test_a_network_may_forbid_all_actions_where_it_sees_nothing():
    """As in a reset step, whose observation is put away."""
    network = networks.make(Config(hidden_sizes=(8,)), SPEC)

    def apply(params, obs):
        policy, value = network.apply(params, obs)
        return jnp.where(obs[..., :3] != 0, policy, -jnp.inf), value

    rollout = impala.without_what_is_not_used(acted_rollout(0, S=1, T=20, B=5))
    rollout = jax.tree.map(lambda x: x[0], rollout)
    params = random_parameters(network)
    plain, forbidding = (
        jax.jit(jax.grad(functools.partial(impala.loss, each, impala.Config()), has_aux=True))
        for each in map(networks.without_memory, (network, network._replace(apply=apply)))
    )
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5),
        forbidding(params, rollout),
        plain(params, rollout),
    )


@functools.cache
def compiled(module, shape, **own):
    S, T, B = shape
    if module is impala:
        own = {"lag": 0, "minibatch_size": S * T * B} | own
    config = Config(
        num_envs=S * B,
        num_shards=S,
        rollout_length=T,
        hidden_sizes=(8,),
        algo=module.Config(**own),
    )
    check(config)
    algo = module.make(config, SPEC, local_pool(S))
    network = networks.make(config, SPEC)

    @jax.jit
    def act(params, obs, action):
        policy, value = network.apply(params, obs)
        return network.policy.log_prob(policy, action) if module is impala else value

    return first_shared(algo, config), jax.jit(algo.update), act


def updated(rollout, module=impala, learning_rate=1e-3, **own):
    """Parameters and metrics of one update from the parameters of key 0."""
    S, T, B = rollout.valid.shape
    if module is impala:
        own = {"vtrace_lambda": 0.9} | own
    shared, update, act = compiled(module, (S, T, B), **own)
    if rollout.extras is None:  # as if the policy had acted
        extras = act(shared.params, rollout.obs[:, :-1], rollout.action)
        rollout = rollout._replace(extras=extras)
    options = dataclasses.replace(shared.options, learning_rate=jnp.float32(learning_rate))
    start = shared._replace(options=options)
    shared, _, metrics = update(start, jnp.zeros((S, B)), rollout, jax.random.key(1), time_at(0))
    return shared.params, metrics


def test_without_lag_and_minibatches_it_is_a2c():
    rollout = rollout_of(1)._replace(extras=None)
    one, metrics = updated(rollout)
    other, expected = updated(rollout, a2c, gae_lambda=0.9)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), one, other)
    for name in ("loss", "policy_loss", "value_loss", "entropy", "grad_norm"):
        assert float(metrics[name]) == pytest.approx(float(expected[name]), rel=1e-4), name
    assert abs(float(metrics["approx_kl"])) < 1e-6


def test_minibatches_are_whole_trajectories_each_once():
    rollout = acted_rollout(3, ending=0.0)
    _, whole = updated(rollout, learning_rate=0.0)
    _, halves = updated(rollout, learning_rate=0.0, minibatch_size=2 * 8 * 2, epochs=3)
    assert (whole["updates"], halves["updates"]) == (1, 3 * 2)
    for name in ("value_loss", "policy_loss", "approx_kl"):
        assert float(halves[name]) == pytest.approx(float(whole[name]), rel=1e-4), name
    # One trajectory and a half of each shard: half of one would not fit V-trace.
    with pytest.raises(RunError, match=r"minibatch_size=24 .*; try algo.minibatch_size=16"):
        updated(rollout, minibatch_size=24)
