"""Ape-X: the ladder, first priorities, importance weights; a gradient step against a slow twin."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from running import differing, first_shared, runner_of, time_at
from test_dqn import SPEC, B, S, T, rollout_of

from jaxrl_scale.algos import apex
from jaxrl_scale.config import Config, check
from jaxrl_scale.learning import networks, prioritized, replay
from jaxrl_scale.parallel.sums import local_pool


def small(own=None, **changes):
    """A config that compiles and runs in seconds."""
    algo = {"batch_size": 64, "updates_per_iteration": 4, "replay_size": 512, "learning_starts": 0}
    whole = {"num_envs": 16, "num_shards": 8, "rollout_length": 8, "hidden_sizes": (16,)}
    config = Config(algo=apex.Config(**(algo | (own or {}))), **(whole | changes))
    check(config)
    return config


# --- equations --------------------------------------------------------------------------------


def test_the_ladder_goes_over_all_environments_whatever_their_shard():
    # The paper's: ε = 0.4, a = 7; the first explores with 0.4, the last with 0.4^8.
    np.testing.assert_allclose(
        apex.ladder(0.4, 7.0, 8, jnp.arange(8)), 0.4 ** np.arange(1.0, 9.0), rtol=1e-5
    )
    algo = apex.make(small(), SPEC, local_pool(8))
    index = [algo.init_local(jax.random.key(0), shard).environment for shard in range(8)]
    np.testing.assert_array_equal(np.concatenate(index), np.arange(16))


def test_environments_explore_by_their_rung():
    own = {"replay_size": 256_000, "epsilon": 0.8, "ladder": 99.0}
    config = small(own, num_envs=16_000)
    algo = apex.make(config, SPEC, local_pool(8))
    local = algo.init_local(jax.random.key(0), 0)
    first_and_last = jnp.where(jnp.arange(2000) < 1000, 15_999, 0)
    actor = algo.actor(first_shared(algo, config), time_at(0))
    obs = jnp.ones((2000, 3))
    key = jax.random.key(1)
    local = local._replace(environment=first_and_last)
    action, _, (value, best) = algo.act(actor, local, (), obs, None, key)
    greedy, *_ = algo.act(actor, None, (), obs, None, key, True)
    assert (action[:1000] == greedy[:1000]).all()
    assert np.mean(action[1000:] != greedy[1000:]) == pytest.approx(0.4, abs=0.05)
    np.testing.assert_array_equal(value[:1000], best[:1000])
    sampled, *_ = algo.act(actor, None, (), obs, None, key)  # as the last environment explores
    np.testing.assert_array_equal(sampled, greedy)
    assert (value <= best).all()


def test_importance_weights_by_hand():
    # Two shards, from each of which as much is drawn: of (1, 3) and of (2, 14).
    first = prioritized.importance(jnp.asarray([1.0, 3.0]), jnp.float32(4), jnp.float32(0.5))
    second = prioritized.importance(jnp.asarray([2.0, 14.0]), jnp.float32(16), jnp.float32(0.5))
    weights = np.concatenate([first, second])
    weights = weights / weights.max()
    # (N P)^-β with N = 4 and P = 1/8, 3/8, 1/16, 7/16, divided by the largest
    by_hand = (4 * np.asarray([1 / 8, 3 / 8, 1 / 16, 7 / 16])) ** -0.5
    np.testing.assert_allclose(weights, by_hand / by_hand.max(), rtol=1e-5)
    np.testing.assert_allclose(
        prioritized.importance(jnp.asarray([1.0, 3.0]), jnp.float32(4), jnp.float32(0)), [1, 1]
    )
    # A shard in which nothing can be drawn does not make the largest weight 0 or infinite.
    nothing = prioritized.importance(jnp.zeros(2), jnp.float32(0), jnp.float32(0.5))
    np.testing.assert_allclose(nothing, [1, 1], rtol=1e-5)


def test_priorities_are_a_power_of_the_error():
    got = prioritized.priority(jnp.asarray([0.0, -4.0, 9.0]), jnp.float32(0.5))
    np.testing.assert_allclose(got, [1e-3, 2.0, 3.0], rtol=1e-5)
    np.testing.assert_allclose(prioritized.priority(jnp.asarray([5.0]), jnp.float32(0)), [1.0])


# --- first priorities -------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 11])
def test_first_priorities_are_those_of_a_slow_twin_that_sees_the_whole_run(n):
    """Also where a return ends in another rollout, and where it takes two of them."""
    count, gamma, alpha = 5, 0.9, 0.6
    slots = 1 + -(-n // T) + 1
    own = {"n_step": n, "gamma": gamma, "replay_size": slots * S * T * B, "batch_size": 8}
    own |= {"learning_starts": 10**6, "priority_exponent": alpha}  # no update of priorities
    config = small(own, num_envs=S * B, num_shards=S, rollout_length=T)
    algo = apex.make(config, SPEC, local_pool(S))
    shared = first_shared(algo, config)
    local = jax.vmap(algo.init_local, (None, 0))(jax.random.key(0), jnp.arange(S))
    update = jax.jit(algo.update)
    random = np.random.default_rng(n)
    rolled = []
    for k in range(count):
        values = jnp.asarray(random.normal(size=(2, S, T, B)), jnp.float32)
        rolled.append(rollout_of(random)._replace(extras=(values[0], values[1])))
        shared, local, _ = update(shared, local, rolled[-1], jax.random.key(1), time_at(k))

    def whole(pick):
        return np.concatenate([np.asarray(pick(r)) for r in rolled], 1)

    value, best = whole(lambda r: r.extras[0]), whole(lambda r: r.extras[1])
    reward, valid = whole(lambda r: r.reward), whole(lambda r: r.valid)
    terminated, truncated = whole(lambda r: r.terminated), whole(lambda r: r.truncated)
    expected = np.zeros((S, slots * T, B))
    for s in range(S):
        for t in range((count - slots) * T, count * T - n):
            for b in range(B):
                target, weight, at = 0.0, 1.0, t
                for _ in range(n):
                    target += weight * reward[s, at, b]
                    weight *= gamma
                    at += 1
                    if terminated[s, at - 1, b]:
                        weight = 0.0
                    if terminated[s, at - 1, b] or truncated[s, at - 1, b]:
                        break
                error = value[s, t, b] - (target + weight * best[s, at, b])
                if valid[s, t, b]:
                    expected[s, t % (slots * T), b] = abs(error) ** alpha
    got = np.asarray(local.store.priorities[0])[:, : slots * T * B].reshape(expected.shape)
    np.testing.assert_allclose(got, expected, atol=1e-4)
    assert (got[:, (count * T - 1) % (slots * T)] == 0).all()  # the last step has no successor yet
    sums = np.asarray(local.store.priorities[-1]).sum(-1)
    np.testing.assert_allclose(sums, expected.sum((1, 2)), rtol=1e-4)


# --- a gradient step --------------------------------------------------------------------------


def test_a_gradient_step_is_that_of_a_slow_twin():
    own = {"n_step": 1, "updates_per_iteration": 1, "tau": 1.0, "max_grad_norm": 1e6}
    own |= {"batch_size": 32, "replay_size": 128, "huber_delta": None, "priority_exponent": 1.0}
    config = small(own, num_envs=S * B, num_shards=S, rollout_length=T)
    algo = apex.make(config, SPEC, local_pool(S))
    shared = first_shared(algo, config)
    shared = shared._replace(target_params=first_shared(algo, config, 7).params)
    local = jax.vmap(algo.init_local, (None, 0))(jax.random.key(0), jnp.arange(S))
    random = np.random.default_rng(0)
    values = jnp.asarray(random.normal(size=(2, S, T, B)), jnp.float32)
    rollout = rollout_of(random)._replace(extras=(values[0], values[1]))
    after, there, metrics = jax.jit(algo.update)(
        shared, local, rollout, jax.random.key(1), time_at(0)
    )

    network = networks.make_q(config, SPEC, dueling=True)
    valid, reward = np.asarray(rollout.valid), np.asarray(rollout.reward)
    terminated = np.asarray(rollout.terminated)
    bootstrap = np.where(terminated[:, :-1], 0.0, 0.99 * np.asarray(values[1][:, 1:]))
    first = np.abs(np.asarray(values[0])[:, :-1] - (reward[:, :-1] + bootstrap)) + 1e-6
    first = np.where(valid[:, :-1], first, 0.0)  # [S, T - 1, B]
    q, target_q = (
        np.asarray(network.apply(p, rollout.obs)) for p in (shared.params, shared.target_params)
    )
    samples, expected = [], first.copy()
    for s in range(S):
        running = first[s].reshape(-1).cumsum()
        uniform = jax.random.uniform(jax.random.fold_in(jax.random.key(1), s), (1, 8))[0]
        points = replay.strata(uniform, jnp.float32(running[-1]))
        for row in np.searchsorted(running, np.asarray(points), side="right"):
            t, b = divmod(row, B)
            value = target_q[s, t + 1, b, q[s, t + 1, b].argmax()]
            target = reward[s, t, b] + 0.99 * value * ~terminated[s, t, b]
            weight = (first[s, t, b] / running[-1]) ** -0.4
            samples.append((s, t, b, target, weight))
            expected[s, t, b] = abs(q[s, t, b, int(rollout.action[s, t, b])] - target) + 1e-6
    largest = max(weight for *_, weight in samples)

    def mean_loss(params):
        total = 0.0
        for s, t, b, target, weight in samples:
            value = network.apply(params, rollout.obs[s, t, b])[rollout.action[s, t, b]]
            total += weight / largest * 0.5 * (value - target) ** 2
        return total / len(samples)

    loss, gradient = jax.value_and_grad(mean_loss)(shared.params)
    assert float(metrics["loss"]) == pytest.approx(float(loss), rel=1e-4)
    norm = np.sqrt(sum(float((g**2).sum()) for g in jax.tree.leaves(gradient)))
    assert float(metrics["grad_norm"]) == pytest.approx(norm, rel=1e-4)
    moved = jax.tree.map(lambda p, g: p - 1e-3 * g / (abs(g) + 1e-5), shared.params, gradient)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-6), after.params, moved)
    assert differing(after.target_params, after.params) == []
    # What was drawn has the priority of its new error.
    got = np.asarray(there.store.priorities[0])[:, : T * B].reshape(S, T, B)
    np.testing.assert_allclose(got[:, :-1], expected, rtol=1e-3, atol=1e-5)
    assert (got[:, -1] == 0).all()


def test_every_gradient_step_draws_anew_and_by_the_priorities_that_the_one_before_has_left():
    """Nothing is learned, so that the error of a row is the same whenever it is drawn."""
    own = {"n_step": 1, "updates_per_iteration": 3, "learning_rate": 0.0, "tau": 0.0}
    own |= {"batch_size": 32, "replay_size": 128, "priority_exponent": 1.0}
    config = small(own, num_envs=S * B, num_shards=S, rollout_length=T)
    algo, key = apex.make(config, SPEC, local_pool(S)), jax.random.key(1)
    shared = first_shared(algo, config)
    local = jax.vmap(algo.init_local, (None, 0))(jax.random.key(0), jnp.arange(S))
    random = np.random.default_rng(3)
    values = jnp.asarray(random.normal(size=(2, S, T, B)), jnp.float32)
    rollout = rollout_of(random)._replace(extras=(values[0], values[1]))
    _, there, _ = jax.jit(algo.update)(shared, local, rollout, key, time_at(0))

    begun = prioritized.insert(local_pool(S), local.store, rollout, jnp.int32(0), 0.99, 1.0)
    priorities = np.array(begun.priorities[0], np.float64)
    q = np.asarray(networks.make_q(config, SPEC, dueling=True).apply(shared.params, rollout.obs))
    taken = np.take_along_axis(q[:, :-1], np.asarray(rollout.action)[..., None], -1)[..., 0]
    target = rollout.reward + np.where(rollout.terminated, 0.0, 0.99 * q[:, 1:].max(-1))
    error = (np.abs(taken - target) + 1e-6).reshape(S, T * B)
    for s in range(S):
        uniform = jax.random.uniform(jax.random.fold_in(key, s), (3, 8))
        for step in range(3):
            running = priorities[s].cumsum()
            points = np.asarray(replay.strata(uniform[step], jnp.float32(running[-1])))
            rows = np.searchsorted(running, points, side="right")
            priorities[s, rows] = error[s, rows]
    np.testing.assert_allclose(there.store.priorities[0], priorities, rtol=1e-3, atol=1e-5)


def test_where_nothing_can_be_drawn_no_row_is_given_a_priority():
    """Episodes of one step in the smallest ring: of its two rows the newer one can never be drawn,
    and in some iterations neither can."""
    own = {"n_step": 1, "batch_size": 8, "updates_per_iteration": 1, "replay_size": 8}
    config = small(own, env="probes:Both", num_envs=4, num_shards=4, rollout_length=1, devices=1)
    runner = runner_of(config)
    state, rows = runner.init(), config.algo.replay_size // 4
    for _ in range(8):
        state, _ = runner.step(state)
        priorities = runner.fetch(state).local.algo.store.priorities[0]
        assert (priorities[..., rows:] == 0).all()
