"""The auto-reset contract, episode sums, and whole episodes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Counter

from jaxrl_scale.loop import rollout
from jaxrl_scale.types import Algorithm, Box, EnvSpec, TimeStep


def constant_algorithm(action):
    """Acts the same always; its memory counts the steps since an episode's first."""

    def act(actor, local, carry, obs, is_first, key, greedy=False):
        carry = jnp.where(is_first, 0, carry) + 1
        return jnp.full(obs.shape[0], action, jnp.int32), carry, {"memory": carry}

    return Algorithm(
        init_shared=lambda key, options: (),
        init_local=lambda key, shard: (),
        init_carry=lambda num_envs: jnp.zeros(num_envs, jnp.int32),
        actor=lambda shared, iteration: shared,
        act=act,
        outputs=lambda *_: {},
        update=lambda shared, local, rolled, key, iteration: (shared, local, {}),
    )


def collect(env, length, num_envs=2, envs=None, carry=None):
    algo = constant_algorithm(0)
    envs = rollout.reset(env, jax.random.key(0), num_envs) if envs is None else envs
    carry = algo.init_carry(num_envs) if carry is None else carry
    return rollout.collect(env, algo, length, (), (), carry, envs, jax.random.key(1))


@functools.cache
def eight_steps():
    """Of two environments whose episodes have three."""
    return collect(Counter(length=3), 8)


def test_the_step_after_an_end_is_a_reset_and_no_experience():
    _, _, rolled, *_ = eight_steps()
    obs, first = rolled.obs[:, 0, 0], rolled.is_first[:, 0]
    # Steps 0 to 2 play, step 3 resets, steps 4 to 6 play, step 7 resets.
    np.testing.assert_array_equal(obs, [0, 1, 2, 3, 0, 1, 2, 3, 0])
    np.testing.assert_array_equal(first, [1, 0, 0, 0, 1, 0, 0, 0, 1])
    np.testing.assert_array_equal(rolled.valid[:, 0], [1, 1, 1, 0, 1, 1, 1, 0])
    np.testing.assert_array_equal(rolled.terminated[:, 0], [0, 0, 1, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(rolled.reward[:, 0], [1, 2, 3, 0, 1, 2, 3, 0])
    assert not rolled.truncated.any()


def test_a_time_limit_truncates_and_keeps_the_true_last_observation():
    _, _, rolled, *_ = collect(Counter(length=100, limit=2), 4)
    np.testing.assert_array_equal(rolled.obs[:, 0, 0], [0, 1, 2, 0, 1])
    np.testing.assert_array_equal(rolled.truncated[:, 0], [0, 1, 0, 0])
    assert not rolled.terminated.any()


def test_episodes_go_on_across_rollouts():
    carry, envs, _, first, _ = collect(Counter(length=3), 2)
    _, _, rolled, second, _ = collect(Counter(length=3), 2, envs=envs, carry=carry)
    assert int(first.ended) == 0
    assert int(second.ended) == 2  # one in each of the two environments
    assert float(second.total_return) == 2 * (1 + 2 + 3)
    assert int(second.total_length) == 2 * 3
    np.testing.assert_array_equal(rolled.obs[:, 0, 0], [2, 3, 0])


def test_an_episode_that_follows_another_begins_with_a_return_of_0():
    *_, episodes, _ = eight_steps()
    assert int(episodes.ended) == 2 * 2
    assert float(episodes.total_return) == 2 * 2 * (1 + 2 + 3)
    assert int(episodes.total_length) == 2 * 2 * 3


def test_lengths_of_long_episodes_that_end_together_do_not_overflow():
    env = Counter(length=2**30, limit=2**29 + 1)
    envs = rollout.reset(env, jax.random.key(0), 4)
    envs = envs._replace(episode_length=jnp.full(4, 2**29, jnp.int32))
    *_, episodes, _ = collect(env, 1, 4, envs)
    assert int(episodes.ended) == 4
    np.testing.assert_allclose(episodes.total_length, 4 * (2**29 + 1), rtol=1e-6)


class Different(Counter):
    """Episodes of one to five steps; writes down from which states it was stepped."""

    def __init__(self):
        super().__init__(length=5)
        self.stepped = []

    def reset(self, key):
        state = jax.random.randint(key, (), 0, 5)
        return state, state[None].astype(jnp.float32)

    def step(self, key, state, action):
        jax.debug.callback(lambda x: self.stepped.append(int(x)), state)
        return super().step(key, state, action)


def test_no_ended_episode_is_ever_stepped():
    env = Different()
    *_, episodes, _ = jax.block_until_ready(collect(env, 12))
    jax.effects_barrier()
    assert int(episodes.ended) > 4
    assert len(env.stepped) == 2 * 12
    assert max(env.stepped) == 4


def test_steps_count_valid_transitions_only():
    *_, episodes, info = eight_steps()
    assert int(episodes.steps) == 2 * 6
    assert info == {}


class Telling(Counter):
    """Reports its age, which ends at the time limit, whether it is odd, and a number that is none
    at an episode's first step."""

    def __init__(self):
        super().__init__(length=100, limit=3)

    def step(self, key, state, action):
        state, seen = super().step(key, state, action)
        none = jnp.where(state == 1, jnp.nan, 1.0)
        return state, seen._replace(info={"age": state, "odd": state % 2 == 1, "none": none})


def test_an_environments_own_numbers_are_summed_over_valid_steps_and_over_ends():
    """Steps 0 to 2 play, step 3 resets, and steps 4 and 5 play."""
    *_, episodes, info = collect(Telling(), 6)
    assert (int(episodes.steps), int(episodes.ended)) == (2 * 5, 2 * 1)
    assert np.isnan(info.pop("env/none"))
    assert {name: float(x) for name, x in info.items()} == {
        "env/age": 2 * (1 + 2 + 3 + 1 + 2),
        "env_end/age": 2 * 3,
        "env/odd": 2 * 3,
        "env_end/odd": 2 * 1,
        "env_end/none": 2 * 1,
    }


def test_a_policy_sees_where_episodes_begin():
    _, _, rolled, *_ = eight_steps()
    np.testing.assert_array_equal(rolled.extras["memory"][:, 0], [1, 2, 3, 4, 1, 2, 3, 4])


def test_whole_episodes_are_counted_once_each():
    algo = constant_algorithm(0)

    def play(actor, carry, obs, is_first, key):
        return algo.act(actor, None, carry, obs, is_first, key, True)[:2]

    returns, lengths, info = rollout.play_episodes(
        Counter(length=4), play, (), algo.init_carry(5), 5, 100, jax.random.key(0)
    )
    assert info == {}
    np.testing.assert_array_equal(returns, [10.0] * 5)
    np.testing.assert_array_equal(lengths, [4] * 5)


def test_each_episode_is_counted_up_to_its_own_end():
    algo, env = constant_algorithm(0), Different()

    def play(actor, carry, obs, is_first, key):
        return algo.act(actor, None, carry, obs, is_first, key, True)[:2]

    key = jax.random.key(0)
    first = rollout.reset(env, jax.random.split(key)[0], 8).state
    returns, lengths, _ = rollout.play_episodes(env, play, (), algo.init_carry(8), 8, 100, key)
    assert len(set(lengths.tolist())) > 2
    np.testing.assert_array_equal(lengths, 5 - first)
    np.testing.assert_array_equal(returns, 15 - first * (first + 1) / 2)


class Aging(Different):
    """Reports its age, and a number that is none at an episode's first step."""

    def step(self, key, state, action):
        after, seen = super().step(key, state, action)
        return after, seen._replace(info={"age": after, "none": jnp.where(after < 3, jnp.nan, 1)})


def test_the_own_numbers_of_whole_episodes_are_summed_and_kept_from_their_last_step():
    """Each episode's own, whatever its environment does after its end, or where it is cut."""
    algo = constant_algorithm(0)

    def play(actor, carry, obs, is_first, key):
        return algo.act(actor, None, carry, obs, is_first, key, True)[:2]

    key = jax.random.key(0)
    first = np.asarray(rollout.reset(Aging(), jax.random.split(key)[0], 8).state)
    for limit in (100, 2):
        played = rollout.play_episodes(Aging(), play, (), algo.init_carry(8), 8, limit, key)
        last = np.minimum(first + limit, 5)
        assert len(set(last)) > 1 or limit == 100
        np.testing.assert_array_equal(played.lengths, last - first)
        ages = last * (last + 1) / 2 - first * (first + 1) / 2
        np.testing.assert_array_equal(played.info["env/age"], ages)
        np.testing.assert_array_equal(played.info["env_end/age"], last)
        np.testing.assert_array_equal(np.isnan(played.info["env/none"]), first + 1 < 3)
        np.testing.assert_array_equal(np.isnan(played.info["env_end/none"]), last < 3)


def test_whole_episodes_need_no_second_reset_and_one_step():
    """Nobody looks at what follows an episode, and a reset is as much to compile as a step."""
    algo, resets, steps = constant_algorithm(0), [], []

    class Counted(Counter):
        def reset(self, key):
            resets.append(key)
            return super().reset(key)

        def step(self, key, state, action):
            steps.append(key)
            return super().step(key, state, action)

    def play(actor, carry, obs, is_first, key):
        return algo.act(actor, None, carry, obs, is_first, key, True)[:2]

    def episodes(key):
        return rollout.play_episodes(Counted(length=3), play, (), algo.init_carry(2), 2, 7, key)

    jax.eval_shape(episodes, jax.random.key(0))
    assert (len(resets), len(steps)) == (1, 1)


class Costly(Counter):
    """Begins anywhere between 0 and 100, by an own key each; counts its resets."""

    def __init__(self, costly):
        super().__init__()
        self.spec = dataclasses.replace(self.spec, costly_reset=costly)
        self.begun = []

    def reset(self, key):
        jax.debug.callback(lambda key: self.begun.append(1), jax.random.key_data(key))
        state = jax.random.randint(key, (), 0, 100)
        return state, state[None].astype(jnp.float32)


@pytest.mark.parametrize("num_envs", [3, 10])
def test_costly_resets_are_those_of_all_environments_and_no_more_than_are_needed(num_envs):
    """Whichever have ended, they begin as they would if all began, four at a time."""
    key, action = jax.random.key(0), jnp.zeros(num_envs, jnp.int32)
    keys = jax.random.split(jax.random.key(1), (num_envs, 2))
    costly, plain = Costly(True), Costly(False)
    start = rollout.reset(plain, key, num_envs)
    steps = {env: jax.jit(functools.partial(rollout.step, env)) for env in (costly, plain)}
    for number in range(num_envs + 1):
        ended = jax.random.permutation(jax.random.key(number), jnp.arange(num_envs) < number)
        after = []
        for env, step in steps.items():
            env.begun.clear()
            after.append(jax.block_until_ready(step(keys, start._replace(ended=ended), action)))
            jax.effects_barrier()
        jax.tree.map(np.testing.assert_array_equal, *after)
        assert len(costly.begun) == min(4, num_envs) * -(-number // 4)
        assert len(plain.begun) == (num_envs if number else 0)
    assert len(set(after[0][0].state.tolist())) > 1


def test_where_asked_to_an_ended_environment_begins_with_a_given_state():
    env = Counter(length=3)
    first = rollout.reset(env, jax.random.key(0), 2)
    ended = first._replace(state=first.state + 3, ended=jnp.asarray([True, False]))
    fresh = first.state + 1, first.obs + 1
    keys = jax.random.split(jax.random.key(1), (2, 2))
    following, _ = rollout.step(env, keys, ended, jnp.zeros(2, jnp.int32), fresh)
    np.testing.assert_array_equal(following.state, [1, 4])
    np.testing.assert_array_equal(following.obs[:, 0], [1, 4])


def test_an_episode_without_end_is_cut():
    algo = constant_algorithm(0)

    def play(actor, carry, obs, is_first, key):
        return algo.act(actor, None, carry, obs, is_first, key, True)[:2]

    played = rollout.play_episodes(
        Counter(length=10**6), play, (), algo.init_carry(2), 2, 7, jax.random.key(0)
    )
    np.testing.assert_array_equal(played.lengths, [7, 7])


def test_continuous_actions_are_clipped_to_the_box_for_the_environment_alone():
    class Echo:
        spec = EnvSpec("Echo", (1,), Box(-1.0, 1.0, (1,)), None)

        def reset(self, key):
            return (), jnp.zeros(1)

        def step(self, key, state, action):
            return (), TimeStep(action, action[0], jnp.zeros((), bool), jnp.zeros((), bool))

    envs = rollout.reset(Echo(), jax.random.key(0), 3)
    keys = jax.random.split(jax.random.key(1), (3, 2))
    action = jnp.asarray([[-5.0], [0.25], [5.0]])
    _, outcome = rollout.step(Echo(), keys, envs, action)
    np.testing.assert_array_equal(outcome.reward, [-1.0, 0.25, 1.0])
