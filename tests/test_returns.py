"""Return estimators against numbers worked by hand and against slow loops."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxrl_scale.learning import normalize, returns
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.types import Rollout

# One environment, gamma = lambda = 1/2. It terminates at step 1, is reset by step 2 (no
# experience), is truncated at step 3 and reset by step 4; step 5 is cut by the rollout's end.
VALUE = [1.0, 2.0, 7.0, 4.0, 8.0, 6.0, 2.0]
REWARD = [1.0, 2.0, 0.0, 3.0, 0.0, 5.0]
TERMINATED = [0, 1, 0, 0, 0, 0]
TRUNCATED = [0, 0, 0, 1, 0, 0]
VALID = [1, 1, 0, 1, 0, 1]
# delta = r + gamma * V' - V
#   0: 1 + 1 - 1 = 1          1: 2 + 0 - 2 = 0, for a terminated step has no successor
#   3: 3 + 4 - 4 = 3, bootstrapped from the true last observation (8), not from the reset
#   5: 5 + 1 - 6 = 0
# A[0] = 1 + 1/4 * 0 = 1, A[1] = 0, A[3] = 3 (cut), A[5] = 0; 0 where the step was a reset
ADVANTAGE = [1.0, 0.0, 0.0, 3.0, 0.0, 0.0]


class Steps(NamedTuple):
    reward: Any
    terminated: Any
    truncated: Any
    valid: Any


def column(x, dtype):
    return jnp.asarray(x, dtype)[:, None]


def gae(value, reward, terminated, truncated, valid, gamma=0.5, gae_lambda=0.5):
    return returns.gae(
        column(value, jnp.float32),
        Steps(
            column(reward, jnp.float32),
            *(column(flags, bool) for flags in (terminated, truncated, valid)),
        ),
        gamma,
        gae_lambda,
    )[:, 0]


def test_gae_equals_the_numbers_worked_by_hand():
    advantage = gae(VALUE, REWARD, TERMINATED, TRUNCATED, VALID)
    np.testing.assert_allclose(advantage, ADVANTAGE)


def test_the_advantage_flows_back_through_an_episode():
    # delta = 1 everywhere (values 0), so A[t] = 1 + 1/4 A[t + 1].
    advantage = gae([0.0] * 4, [1.0] * 3, [0] * 3, [0] * 3, [1] * 3)
    np.testing.assert_allclose(advantage, [1.3125, 1.25, 1.0])


def test_a_truncated_step_is_bootstrapped_and_a_terminated_one_is_not():
    cut = ([0.0, 10.0], [1.0])
    assert gae(*cut, [0], [1], [1])[0] == 1 + 0.5 * 10
    assert gae(*cut, [1], [0], [1])[0] == 1
    assert gae(*cut, [1], [1], [1])[0] == 1  # both at once: the task did end


def test_what_happened_in_a_reset_step_changes_nothing():
    moved = list(REWARD)
    moved[2] = moved[4] = 1000.0
    np.testing.assert_array_equal(
        gae(VALUE, moved, TERMINATED, TRUNCATED, VALID),
        gae(VALUE, REWARD, TERMINATED, TRUNCATED, VALID),
    )


def test_gae_equals_its_definition_as_a_double_sum():
    rng = np.random.default_rng(0)
    T, B, gamma, lam = 40, 7, 0.97, 0.9
    value = rng.normal(size=(T + 1, B)).astype(np.float32)
    reward = rng.normal(size=(T, B)).astype(np.float32)
    terminated, truncated = rng.random((2, T, B)) < 0.1
    valid = np.ones((T, B), bool)
    valid[1:] = ~(terminated | truncated)[:-1]
    terminated, truncated = terminated & valid, truncated & valid
    valid[1:] = ~(terminated | truncated)[:-1]
    expected = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            if not valid[t, b]:
                continue
            for k in range(t, T):
                bootstrap = 0.0 if terminated[k, b] else value[k + 1, b]
                delta = reward[k, b] + gamma * bootstrap - value[k, b]
                expected[t, b] += (gamma * lam) ** (k - t) * delta
                if terminated[k, b] or truncated[k, b]:
                    break
    found = returns.gae(value, Steps(reward, terminated, truncated, valid), gamma, lam)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_running_discounted_return_starts_anew_after_an_episode():
    reward = column([1.0, 2.0, 4.0, 8.0], jnp.float32)
    ended = column([0, 1, 0, 0], bool)
    totals, carried = returns.running_discounted_return(jnp.asarray([2.0]), reward, ended, 0.5)
    # 1/2 * 2 + 1 = 2; 1/2 * 2 + 2 = 3, ends; 4; 1/2 * 4 + 8 = 10
    np.testing.assert_allclose(totals[:, 0], [2.0, 3.0, 4.0, 10.0])
    np.testing.assert_allclose(carried, [10.0])


# --- λ-returns ------------------------------------------------------------------------------


def random_steps(seed, T=40, B=7, ending=0.1):
    """Rewards and a pattern of ends that obeys the auto-reset contract."""
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, T, B)) < ending  # both at once happens too
    valid = np.ones((T, B), bool)
    for t in range(1, T):
        valid[t] = ~(terminated | truncated)[t - 1] | ~valid[t - 1]
        terminated[t] &= valid[t]
        truncated[t] &= valid[t]
    assert (terminated & truncated).any()
    value = rng.normal(size=(T + 1, B)).astype(np.float32)
    reward = np.where(valid, rng.normal(size=(T, B)), 1e3).astype(np.float32)
    return rng, value, Steps(reward, terminated, truncated, valid)


def test_lambda_returns_equal_the_numbers_worked_by_hand():
    #   5: 5 + 1/2 * 2 = 6, cut by the rollout's end
    #   3: 3 + 1/2 * 8 = 7, bootstrapped from the true last observation
    #   1: 2, for a terminated step has no successor
    #   0: 1 + 1/2 * (1/2 * 2 + 1/2 * 2) = 2
    found = returns.lambda_returns(
        column(VALUE, jnp.float32),
        Steps(
            column(REWARD, jnp.float32),
            *(column(flags, bool) for flags in (TERMINATED, TRUNCATED, VALID)),
        ),
        0.5,
        0.5,
    )[:, 0]
    np.testing.assert_allclose(found[np.asarray(VALID, bool)], [2.0, 2.0, 7.0, 6.0])


def test_lambda_returns_equal_a_slow_loop():
    _, value, (reward, terminated, truncated, valid) = random_steps(1)
    T, B = reward.shape
    gamma, lam = 0.97, 0.8
    expected = np.zeros((T, B))
    for b in range(B):
        for t in reversed(range(T)):  # the paper's recursion
            if terminated[t, b]:
                expected[t, b] = reward[t, b]
            elif truncated[t, b] or t == T - 1:
                expected[t, b] = reward[t, b] + gamma * value[t + 1, b]
            else:
                following = (1 - lam) * value[t + 1, b] + lam * expected[t + 1, b]
                expected[t, b] = reward[t, b] + gamma * following
    steps = Steps(reward, terminated, truncated, valid)
    found = returns.lambda_returns(value, steps, gamma, lam)
    np.testing.assert_allclose(np.asarray(found)[valid], expected[valid], atol=1e-4)


# --- V-trace --------------------------------------------------------------------------------

# The published cases of rlax, https://github.com/google-deepmind/rlax, rlax/_src/vtrace_test.py:
# two trajectories of four steps, two actions.
RLAX_BEHAVIOUR = [
    [[8.9, 0.7], [5.0, 1.0], [0.6, 0.1], [-0.9, -0.1]],
    [[0.3, -5.0], [1.0, -8.0], [0.3, 1.7], [4.7, 3.3]],
]
RLAX_TARGET = [
    [[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]],
    [[1.0, 0.9], [1.0, -1.0], [-4.3, 8.7], [0.8, 0.3]],
]
RLAX_ACTION = [[0, 1, 0, 0], [1, 0, 0, 1]]
RLAX_REWARD = [[-1.3, -1.3, 2.3, 42.0], [1.3, 5.3, -3.3, -5.0]]
RLAX_DISCOUNT = [[0.0, 0.89, 0.85, 0.99], [0.88, 1.0, 0.83, 0.95]]
RLAX_VALUE = [[2.1, 1.1, -3.1, 0.0, 8.4], [3.1, 0.1, -1.1, 7.4, -1.2]]
RLAX_ERRORS = [
    [-1.6155143, -3.4973226, 1.8670533, 50.316002],
    [1.4662437, 3.6116405, -8.3327293e-5, -13.54],
]
RLAX_ADVANTAGES = [
    [-1.6155143, -3.4973226, 1.8670534, 50.316002],
    [1.4662433, 3.6116405, -8.3369283e-05, -13.54],
]


def test_vtrace_equals_the_published_cases_of_rlax():
    def chosen(logits):
        logits = np.asarray(logits)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return np.take_along_axis(log_p, np.asarray(RLAX_ACTION)[..., None], -1)[..., 0]

    def transposed(x):  # to [T, B]
        return jnp.asarray(x, jnp.float32).T

    ratio = transposed(np.exp(chosen(RLAX_TARGET) - chosen(RLAX_BEHAVIOUR)))
    never = jnp.zeros((4, 2), bool)
    value, discount = transposed(RLAX_VALUE), transposed(RLAX_DISCOUNT)
    target, advantage = returns.vtrace(
        value,
        ratio,
        Steps(transposed(RLAX_REWARD), never, never, ~never),
        discount,
        1.0,
        1.0,
        1.0,
    )
    np.testing.assert_allclose(target - value[:-1], transposed(RLAX_ERRORS), rtol=1e-3)
    np.testing.assert_allclose(advantage, transposed(RLAX_ADVANTAGES), rtol=1e-3)
    # Its first discount is 0: that step terminated.
    ended, discount = never.at[0, 0].set(True), discount.at[0, 0].set(0.9)
    again = returns.vtrace(
        value,
        ratio,
        Steps(transposed(RLAX_REWARD), ended, never, ~never),
        discount,
        1.0,
        1.0,
        1.0,
    )
    np.testing.assert_allclose(again, (target, advantage), rtol=1e-6)


def test_vtrace_equals_equation_1_as_a_double_sum():
    rng, value, (reward, terminated, truncated, valid) = random_steps(2)
    T, B = reward.shape
    gamma, lam, rho_clip, c_clip = 0.97, 0.9, 1.5, 0.8
    ratio = np.exp(rng.normal(0, 0.7, size=(T, B))).astype(np.float32)
    assert 0.1 < (ratio > rho_clip).mean() < 0.9
    rho, c = np.minimum(rho_clip, ratio), lam * np.minimum(c_clip, ratio)
    target, advantage = np.zeros((2, T, B))
    for b in range(B):
        for t in reversed(range(T)):
            if not valid[t, b]:
                continue
            total, passed = value[t, b].astype(float), 1.0
            for k in range(t, T):
                following = 0.0 if terminated[k, b] else gamma * value[k + 1, b]
                total += passed * rho[k, b] * (reward[k, b] + following - value[k, b])
                passed *= gamma * c[k, b]
                if terminated[k, b] or truncated[k, b]:
                    break
            target[t, b] = total
            after = value[t + 1, b]
            if not (truncated[t, b] or t == T - 1):
                after = (1 - lam) * value[t + 1, b] + lam * target[t + 1, b]
            after = 0.0 if terminated[t, b] else after
            advantage[t, b] = rho[t, b] * (reward[t, b] + gamma * after - value[t, b])
    steps = Steps(reward, terminated, truncated, valid)
    found = returns.vtrace(value, ratio, steps, gamma, lam, rho_clip, c_clip)
    np.testing.assert_allclose(np.asarray(found[0])[valid], target[valid], atol=1e-4)
    np.testing.assert_allclose(found[1], advantage, atol=1e-4)  # 0 where the step was a reset
    np.testing.assert_array_equal(np.asarray(found[0])[~valid], value[:-1][~valid])


def test_vtrace_of_the_acting_policy_is_gae():
    _, value, steps = random_steps(3)
    ones = np.ones_like(steps.reward)
    target, advantage = returns.vtrace(value, ones, steps, 0.97, 0.9, 1.0, 1.0)
    expected = returns.gae(value, steps, 0.97, 0.9)
    np.testing.assert_allclose(advantage, expected, atol=1e-5)
    np.testing.assert_allclose(target, expected + value[:-1], atol=1e-5)


# --- reward scaling -------------------------------------------------------------------------


def test_scaled_rewards_are_divided_by_the_deviation_of_the_discounted_return_so_far():
    _, _, (reward, terminated, truncated, valid) = random_steps(4, B=8)
    reward = np.where(valid, reward, 0.0).astype(np.float32)
    S, T, gamma = 4, len(reward), 0.9

    def sharded(x):  # [T, 8] to [S, T, 2]
        return np.moveaxis(x.reshape(T, S, 2), 1, 0)

    def rollout(rows):
        flags = [sharded(x)[:, rows] for x in (reward, terminated, truncated, valid)]
        return Rollout((), (), (), *flags, (), ())

    totals, total = np.zeros((T, 8)), np.zeros(8)
    for t in range(T):
        total = gamma * total + reward[t]
        totals[t] = total
        total = np.where(terminated[t] | truncated[t], 0.0, total)
    running, statistics = jnp.zeros((S, 2)), normalize.init(True)
    pool = local_pool(S)
    for rows in (slice(0, 15), slice(15, T)):
        scaled, running, statistics = normalize.scale_rewards(
            pool, statistics, running, rollout(rows), jnp.float32(gamma)
        )
        deviation = totals[: rows.stop][valid[: rows.stop]].std()
        np.testing.assert_allclose(scaled.reward, sharded(reward)[:, rows] / deviation, rtol=1e-4)
    np.testing.assert_allclose(running.reshape(-1), total, rtol=1e-4)


def test_a_rare_reward_is_clipped_to_10_where_it_is_scaled():
    """As in a game whose only reward comes at the end of one episode in a thousand."""
    reward, no = np.zeros((1, 1000, 4), np.float32), np.zeros((1, 1000, 4), bool)
    reward[0, 500, 0], reward[0, 600, 0] = 7.0, -0.5
    ended = reward != 0
    scaled, _, statistics = normalize.scale_rewards(
        local_pool(1),
        normalize.init(True),
        jnp.zeros((1, 4)),
        Rollout((), (), (), reward, ended, no, ~no, (), ()),
        jnp.float32(0.0),
    )
    deviation = np.sqrt(float(statistics.variance))
    assert 7.0 / deviation > 50
    expected = np.where(reward == 7.0, 10.0, reward / deviation)
    np.testing.assert_allclose(scaled.reward, expected, rtol=1e-5)


def test_rewards_that_are_all_0_stay_0_when_they_are_scaled():
    zeros, no = np.zeros((4, 6, 2), np.float32), np.zeros((4, 6, 2), bool)
    scaled, running, _ = normalize.scale_rewards(
        local_pool(4),
        normalize.init(True),
        jnp.zeros((4, 2)),
        Rollout((), (), (), zeros, no, no, ~no, (), ()),
        jnp.float32(0.9),
    )
    np.testing.assert_array_equal(scaled.reward, zeros)
    np.testing.assert_array_equal(running, np.zeros((4, 2)))
