"""The auto-reset contract, episode sums, and whole episodes."""

import jax
import jax.numpy as jnp
import numpy as np
from probes import Counter

from jaxrl_scale.loop import rollout
from jaxrl_scale.types import Algorithm, Box, EnvSpec, TimeStep


def constant_algorithm(action):
    """Acts the same always; its memory counts the steps since an episode's first."""

    def act(actor, local, carry, obs, is_first, key):
        carry = jnp.where(is_first, 0, carry) + 1
        return jnp.full(obs.shape[0], action, jnp.int32), carry, {"memory": carry}

    return Algorithm(
        init_shared=lambda key: (),
        init_local=lambda key, shard: (),
        init_carry=lambda num_envs: jnp.zeros(num_envs, jnp.int32),
        actor=lambda shared: shared,
        act=act,
        play=lambda actor, carry, obs, is_first, key, greedy: (
            jnp.zeros(obs.shape[0], jnp.int32),
            carry,
        ),
        update=lambda shared, local, rolled, key: (shared, local, {}),
    )


def collect(env, length, num_envs=2, batch=None, carry=None):
    algo = constant_algorithm(0)
    batch = rollout.reset(env, jax.random.key(0), num_envs) if batch is None else batch
    carry = algo.init_carry(num_envs) if carry is None else carry
    return rollout.collect(env, algo, length, (), (), carry, batch, jax.random.key(1))


def test_the_step_after_an_end_is_a_reset_and_no_experience():
    _, _, rolled, _ = collect(Counter(length=3), 8)
    obs, first = rolled.obs[:, 0, 0], rolled.is_first[:, 0]
    # Steps 0 to 2 play, step 3 resets, steps 4 to 6 play, step 7 resets.
    np.testing.assert_array_equal(obs, [0, 1, 2, 3, 0, 1, 2, 3, 0])
    np.testing.assert_array_equal(first, [1, 0, 0, 0, 1, 0, 0, 0, 1])
    np.testing.assert_array_equal(rolled.valid[:, 0], [1, 1, 1, 0, 1, 1, 1, 0])
    np.testing.assert_array_equal(rolled.terminated[:, 0], [0, 0, 1, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(rolled.reward[:, 0], [1, 2, 3, 0, 1, 2, 3, 0])
    assert not rolled.truncated.any()


def test_a_time_limit_truncates_and_keeps_the_true_last_observation():
    _, _, rolled, _ = collect(Counter(length=100, limit=2), 4)
    np.testing.assert_array_equal(rolled.obs[:, 0, 0], [0, 1, 2, 0, 1])
    np.testing.assert_array_equal(rolled.truncated[:, 0], [0, 1, 0, 0])
    assert not rolled.terminated.any()


def test_episodes_go_on_across_rollouts():
    carry, batch, _, first = collect(Counter(length=3), 2)
    _, _, rolled, second = collect(Counter(length=3), 2, batch=batch, carry=carry)
    assert int(first.ended) == 0
    assert int(second.ended) == 2  # one in each of the two environments
    assert float(second.total_return) == 2 * (1 + 2 + 3)
    assert int(second.total_length) == 2 * 3
    np.testing.assert_array_equal(rolled.obs[:, 0, 0], [2, 3, 0])


def test_steps_count_valid_transitions_only():
    _, _, _, episodes = collect(Counter(length=3), 8)
    assert int(episodes.steps) == 2 * 6


def test_a_policy_sees_where_episodes_begin():
    _, _, rolled, _ = collect(Counter(length=3), 8)
    np.testing.assert_array_equal(rolled.extras["memory"][:, 0], [1, 2, 3, 4, 1, 2, 3, 4])


def test_whole_episodes_are_counted_once_each():
    algo = constant_algorithm(0)

    def play(actor, carry, obs, is_first, key):
        return algo.play(actor, carry, obs, is_first, key, True)

    returns, lengths = rollout.play_episodes(
        Counter(length=4), play, (), (), 5, 100, jax.random.key(0)
    )
    np.testing.assert_array_equal(returns, [10.0] * 5)
    np.testing.assert_array_equal(lengths, [4] * 5)


def test_an_episode_without_end_is_cut():
    algo = constant_algorithm(0)

    def play(actor, carry, obs, is_first, key):
        return algo.play(actor, carry, obs, is_first, key, True)

    _, lengths = rollout.play_episodes(Counter(length=10**6), play, (), (), 2, 7, jax.random.key(0))
    np.testing.assert_array_equal(lengths, [7, 7])


def test_continuous_actions_are_clipped_to_the_box_for_the_environment_alone():
    class Echo:
        spec = EnvSpec("Echo", (1,), Box(-1.0, 1.0, (1,)), None)

        def reset(self, key):
            return (), jnp.zeros(1)

        def step(self, key, state, action):
            return (), TimeStep(action, action[0], jnp.zeros((), bool), jnp.zeros((), bool))

    batch = rollout.reset(Echo(), jax.random.key(0), 3)
    keys = jax.random.split(jax.random.key(1), (3, 2))
    action = jnp.asarray([[-5.0], [0.25], [5.0]])
    _, transition = rollout.step(Echo(), keys, batch, action)
    np.testing.assert_array_equal(transition.reward, [-1.0, 0.25, 1.0])
