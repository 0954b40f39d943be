"""PQN: its loss and targets against slow NumPy twins."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import GAMMA, random_parameters, rollout_of
from running import first_shared, time_at

from jaxrl_scale.algos import pqn
from jaxrl_scale.config import Config, check
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import networks
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.types import Box, Discrete, EnvSpec, MultiDiscrete

SPEC = EnvSpec("twin", (4,), Discrete(3))
EVERYTHING = {"normalize_observations": True, "scale_rewards": True, "lr_schedule": "cosine"}


def small(own=None, **changes):
    whole = {"num_envs": 32, "num_shards": 8, "rollout_length": 8, "hidden_sizes": (8,)} | changes
    config = Config(algo=pqn.Config(**{"minibatch_size": 128} | (own or {})), **whole)
    check(config)
    return config


# --- the loss and the update ----------------------------------------------------------------


def test_the_loss_equals_its_slow_twin():
    rng, n = np.random.default_rng(0), 64
    network = networks.make_q(small(), SPEC, layer_norm=True)
    params = random_parameters(network)
    batch = pqn.Samples(
        carry=(),
        is_first=np.zeros(n, bool),
        obs=rng.normal(size=(n, 4)).astype(np.float32),
        action=rng.integers(0, 3, n),
        target=rng.normal(size=n).astype(np.float32),
        valid=rng.random(n) < 0.8,
    )
    q = np.asarray(jax.jit(network.apply)(params, batch.obs), float)
    chosen = [q[i, batch.action[i]] for i in range(n) if batch.valid[i]]
    loss = functools.partial(pqn.loss, networks.q_without_memory(network))
    total, sums = jax.jit(loss)(params, batch)
    error = sum(0.5 * (x - y) ** 2 for x, y in zip(chosen, batch.target[batch.valid], strict=True))
    assert float(total) == float(sums["loss"]) == pytest.approx(error, rel=1e-4)
    assert float(sums["q_mean"]) == pytest.approx(sum(chosen), rel=1e-4)
    assert float(sums["count"]) == batch.valid.sum()


@pytest.fixture(scope="module")
def updating():
    """``update(rollout, learning_rate) -> (Shared, metrics)`` in minibatches of a quarter."""
    S, T, B = 2, 8, 4
    own = {"minibatch_size": S * T * B // 4, "epochs": 2, "return_lambda": 0.8, "gamma": GAMMA}
    config = small(own, num_envs=S * B, num_shards=S, rollout_length=T)
    algo = pqn.make(config, SPEC, local_pool(S))
    update = jax.jit(algo.update)

    shared = first_shared(algo, config)

    def of(rollout, learning_rate):
        options = dataclasses.replace(shared.options, learning_rate=jnp.float32(learning_rate))
        start = shared._replace(options=options)
        end, _, metrics = update(start, jnp.zeros((S, B)), rollout, jax.random.key(1), time_at(0))
        return end, metrics

    return config, shared.params, of


def test_every_sample_is_regressed_onto_its_lambda_return_once_an_epoch(updating):
    config, start, update = updating
    rollout = rollout_of(1, ending=0.0)  # as many valid samples in every minibatch
    terminated = np.zeros_like(rollout.terminated)
    terminated[0, 3, 1] = terminated[1, -1, 2] = True
    rollout = rollout._replace(terminated=terminated)
    network = networks.make_q(config, SPEC, layer_norm=True)
    q = np.asarray(jax.jit(network.apply)(start, rollout.obs), float)
    target = np.zeros(rollout.valid.shape)
    for t in reversed(range(8)):
        best = q[:, t + 1].max(-1)
        later = best if t == 7 else 0.2 * best + 0.8 * target[:, t + 1]
        target[:, t] = rollout.reward[:, t] + np.where(terminated[:, t], 0.0, GAMMA * later)
    chosen = np.take_along_axis(q[:, :-1], rollout.action[..., None], -1)[..., 0]
    _, metrics = update(rollout, 0.0)
    assert float(metrics["loss"]) == pytest.approx(0.5 * ((chosen - target) ** 2).mean(), rel=1e-4)
    assert float(metrics["q_mean"]) == pytest.approx(chosen.mean(), rel=1e-4)
    assert metrics["updates"] == 2 * 4


def test_the_network_has_layer_norm_unless_it_is_switched_off():
    for layer_norm in (True, False):
        config = small({"layer_norm": layer_norm})
        params = first_shared(pqn.make(config, SPEC, local_pool(8)), config).params
        assert ("LayerNorm" in str(params)) == layer_norm


@pytest.mark.parametrize("space", [Box(-1.0, 1.0, (1,)), MultiDiscrete((3, 2))])
def test_actions_that_are_not_discrete_and_of_one_part_are_refused(space):
    with pytest.raises(RunError, match="algo pqn needs discrete actions"):
        pqn.make(small(), EnvSpec("other", (4,), space), local_pool(8))


def test_minibatches_that_do_not_cut_an_iteration_are_refused():
    with pytest.raises(RunError, match=r"minibatch_size=96 does not divide an iteration of .* 256"):
        small({"minibatch_size": 96})
