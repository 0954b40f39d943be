"""Return estimators against numbers worked by hand and against slow loops."""

import jax.numpy as jnp
import numpy as np

from jaxrl_scale import returns

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


def column(x, dtype):
    return jnp.asarray(x, dtype)[:, None]


def gae(value, reward, terminated, truncated, valid, gamma=0.5, gae_lambda=0.5):
    return returns.gae(
        column(value, jnp.float32),
        column(reward, jnp.float32),
        column(terminated, bool),
        column(truncated, bool),
        column(valid, bool),
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
    found = returns.gae(value, reward, terminated, truncated, valid, gamma, lam)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_running_discounted_return_starts_anew_after_an_episode():
    reward = column([1.0, 2.0, 4.0, 8.0], jnp.float32)
    ended = column([0, 1, 0, 0], bool)
    totals, carried = returns.running_discounted_return(jnp.asarray([2.0]), reward, ended, 0.5)
    # 1/2 * 2 + 1 = 2; 1/2 * 2 + 2 = 3, ends; 4; 1/2 * 4 + 8 = 10
    np.testing.assert_allclose(totals[:, 0], [2.0, 3.0, 4.0, 10.0])
    np.testing.assert_allclose(carried, [10.0])
