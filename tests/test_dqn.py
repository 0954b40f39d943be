"""DQN: a gradient step against a slow twin. Its equations: test_q_learning.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from running import differing, first_shared, time_at

from jaxrl_scale.algos import dqn, q_learning
from jaxrl_scale.config import Config, check
from jaxrl_scale.learning import networks, replay
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.types import Discrete, EnvSpec, Rollout

SPEC = EnvSpec("twin", (3,), Discrete(2))


def small(own=None, **changes):
    """A config that compiles and runs in seconds."""
    algo = {"batch_size": 64, "updates_per_iteration": 4, "replay_size": 512, "learning_starts": 0}
    whole = {"num_envs": 16, "num_shards": 8, "rollout_length": 8, "hidden_sizes": (16,)}
    config = Config(algo=dqn.Config(**(algo | (own or {}))), **(whole | changes))
    check(config)
    return config


# --- a gradient step --------------------------------------------------------------------------


S, T, B = 4, 8, 2


def rollout_of(random):
    valid = random.random((S, T, B)) < 0.8
    ended = valid & (random.random((S, T, B)) < 0.3)
    terminated = ended & (random.random((S, T, B)) < 0.5)
    return Rollout(
        obs=jnp.asarray(random.normal(size=(S, T + 1, B, 3)), jnp.float32),
        is_first=None,
        action=jnp.asarray(random.integers(0, 2, (S, T, B)), jnp.int32),
        reward=jnp.asarray(random.normal(size=(S, T, B)), jnp.float32),
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(ended & ~terminated),
        valid=jnp.asarray(valid),
        carry=(),
        extras=(),
    )


@functools.cache
def program(exact=True, **own):
    """A compiled update, and a state to begin with whose target network is another."""
    own = {"batch_size": 32, "replay_size": 128, "shard_losses": True} | own
    config = small(own, num_envs=S * B, num_shards=S, rollout_length=T)
    algo = dqn.make(config, SPEC, local_pool(S, exact))
    shared = first_shared(algo, config)
    other = first_shared(algo, config, 7).params
    local = jax.vmap(algo.init_local, (None, 0))(jax.random.key(0), jnp.arange(S))
    return config, shared._replace(target_params=other), local, jax.jit(algo.update)


def updated(rollout, exact=True, own=None, iteration=0, **changes):
    """State before, state after one update, metrics; four gradient steps where nothing is said."""
    _, shared, local, update = program(exact, **(own or {"target_period": 8, "tau": 1.0}))
    before = shared._replace(**changes)
    after, _, metrics = update(before, local, rollout, jax.random.key(1), time_at(iteration))
    return before, after, {k: float(v) for k, v in metrics.items()}


def test_a_gradient_step_is_that_of_a_slow_twin():
    rollout = rollout_of(np.random.default_rng(0))
    own = {"n_step": 2, "updates_per_iteration": 1, "tau": 0.25, "max_grad_norm": 0.01}
    own |= {"huber_delta": 1.0}
    before, after, metrics = updated(rollout, own=own)
    network = networks.make_q(program(**own)[0], SPEC)
    q = np.asarray(network.apply(before.params, rollout.obs))
    target_q = np.asarray(network.apply(before.target_params, rollout.obs))
    stored = replay.window(jnp.int32(0), T * B, 2 * T * B)
    key = jax.random.key(1)
    samples, per_shard = [], []
    for s in range(S):
        rows = replay.sample(jax.random.fold_in(key, s), stored, 2 * T * B, 2 * B, (1, 8))[0]
        of_shard = []
        for t, b in zip(*np.divmod(np.asarray(rows), B), strict=True):
            if not rollout.valid[s, t, b]:
                continue
            target, weight, at = 0.0, 1.0, t
            for _ in range(2):
                target += weight * float(rollout.reward[s, at, b])
                weight *= 0.99
                at += 1
                if rollout.terminated[s, at - 1, b]:
                    weight = 0.0
                if rollout.terminated[s, at - 1, b] or rollout.truncated[s, at - 1, b]:
                    break
            target += weight * target_q[s, at, b, q[s, at, b].argmax()]
            of_shard.append((s, t, b, target))
        samples += of_shard
        per_shard.append(of_shard)

    def mean_loss(params, samples):
        total = 0.0
        for s, t, b, target in samples:
            value = network.apply(params, rollout.obs[s, t, b])[rollout.action[s, t, b]]
            size = jnp.abs(value - target)
            total += jnp.where(size <= 1, 0.5 * size**2, size - 0.5)
        return total / len(samples)

    expected, gradient = jax.value_and_grad(mean_loss)(before.params, samples)
    assert metrics["loss"] == pytest.approx(float(expected), rel=1e-4)
    norm = np.sqrt(sum(float((g**2).sum()) for g in jax.tree.leaves(gradient)))
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    for s, of_shard in enumerate(per_shard):
        share = len(of_shard) / (len(samples) / S)  # shards with more valid samples count more
        assert metrics[f"loss_shard_{s}"] == pytest.approx(
            float(mean_loss(before.params, of_shard)) * share, rel=1e-4
        )
    # Adam's first step: the gradient, clipped, over its size.
    clipped = jax.tree.map(lambda g: g * 0.01 / norm, gradient)
    moved = jax.tree.map(lambda p, g: p - 1e-3 * g / (abs(g) + 1e-5), before.params, clipped)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), after.params, moved)
    soft = jax.tree.map(lambda t, p: 0.75 * t + 0.25 * p, before.target_params, moved)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), after.target_params, soft
    )
    assert int(after.updates) == metrics["updates"] == 1


def test_reset_steps_do_not_reach_the_parameters_and_shard_losses_average_to_the_loss():
    rollout = rollout_of(np.random.default_rng(1))
    spoiled = rollout._replace(reward=jnp.where(rollout.valid, rollout.reward, 1e3))
    (_, one, metrics), (_, other, _) = updated(rollout), updated(spoiled)
    assert differing(one.params, other.params) == []
    shards = [metrics[f"loss_shard_{s}"] for s in range(S)]
    assert np.mean(shards) == pytest.approx(metrics["loss"], rel=1e-5)
    assert len(set(shards)) == S
    assert metrics["replay"] == 0.5
    assert metrics["updates"] == 4


def test_one_big_batch_gives_the_fixed_order_sums_within_rounding():
    rollout = rollout_of(np.random.default_rng(2))
    exact, fast = updated(rollout)[1], updated(rollout, exact=False)[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-5), exact, fast)


def test_nothing_is_learnt_before_learning_starts():
    rollout = rollout_of(np.random.default_rng(4))
    own = {"learning_starts": 65}  # an iteration has 64 steps
    for iteration, learns in ((0, False), (1, True)):
        before, after, metrics = updated(rollout, own=own, iteration=iteration)
        assert (differing(before.params, after.params) != []) == learns
        assert metrics["updates"] == 4 * learns
    # With n as long as what is stored, no transition is whole yet.
    before, after, metrics = updated(rollout, own={"n_step": T, "updates_per_iteration": 1})
    assert metrics["updates"] == 0
    assert differing(before.params, after.params) == []


def test_every_gradient_step_has_a_batch_of_its_own():
    config, _, ring, _ = program(target_period=8, tau=1.0)
    rollout = rollout_of(np.random.default_rng(5))._replace(valid=jnp.ones((S, T, B), bool))
    stored = replay.window(jnp.int32(0), T * B, 2 * T * B)
    ring = replay.insert(ring, rollout, stored.start)
    batch_of = q_learning.batches(
        local_pool(S), config.algo, config, ring, stored, jax.random.key(1)
    )
    batches = [np.asarray(batch_of(jnp.int32(step)).obs) for step in range(4)]
    assert batches[0].shape == (S, 32 // S, 3)
    assert len({batch.tobytes() for batch in batches}) == 4
