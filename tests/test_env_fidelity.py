"""Our classic environments against Gymnasium's own, which are the judge.

Both start a step from the same numbers: states are drawn at random and rounded to float32
first. Gymnasium then computes in float64; we do so in Acrobot, and in float32 elsewhere,
unless a test says otherwise.
"""

from __future__ import annotations

import dataclasses

import gymnasium
import jax
import numpy as np
import pytest
import scipy.stats

from jaxrl_scale import envs
from jaxrl_scale.types import Discrete

CLASSIC = (
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
)
# How states are drawn: uniform over the observation space, and where that is infinite
# (CartPole's velocities) or far beyond the end of an episode (its position), over more than
# an episode can visit.
LOW_HIGH = {
    "CartPole-v1": ([-3.0, -4.0, -0.3, -4.0], [3.0, 4.0, 0.3, 4.0]),
    "Acrobot-v1": (
        [-np.pi, -np.pi, -4 * np.pi, -9 * np.pi],
        [np.pi, np.pi, 4 * np.pi, 9 * np.pi],
    ),
    "MountainCar-v0": ([-1.2, -0.07], [0.6, 0.07]),
    "MountainCarContinuous-v0": ([-1.2, -0.07], [0.6, 0.07]),
    "Pendulum-v1": ([-np.pi, -8.0], [np.pi, 8.0]),
}
# Other parameters than the default: ours, and the attributes of Gymnasium's environment.
VARIANTS = [
    ("CartPole-v1", {"sutton_barto_reward": True}, {"_sutton_barto_reward": True}),
    (
        "CartPole-v1",
        {"kinematics_integrator": "semi-implicit euler", "gravity": 3.7, "tau": 0.03},
        {"kinematics_integrator": "semi-implicit euler", "gravity": 3.7, "tau": 0.03},
    ),
    (
        "CartPole-v1",
        {"masspole": 0.5, "length": 0.8, "force_mag": 5.0, "x_threshold": 1.0},
        {
            "masspole": 0.5,
            "total_mass": 1.5,
            "length": 0.8,
            "polemass_length": 0.4,
            "force_mag": 5.0,
            "x_threshold": 1.0,
        },
    ),
    ("Acrobot-v1", {"book_or_nips": "nips"}, {"book_or_nips": "nips"}),
    (
        "Acrobot-v1",
        {
            "link_length_1": 1.2,
            "link_mass_1": 0.8,
            "link_mass_2": 1.3,
            "link_com_pos_1": 0.6,
            "link_com_pos_2": 0.4,
            "link_moi": 1.5,
            "dt": 0.1,
            "max_vel_1": 5.0,
            "max_vel_2": 6.0,
            "avail_torque": (-2.0, 0.5, 3.0),
        },
        {
            "LINK_LENGTH_1": 1.2,
            "LINK_MASS_1": 0.8,
            "LINK_MASS_2": 1.3,
            "LINK_COM_POS_1": 0.6,
            "LINK_COM_POS_2": 0.4,
            "LINK_MOI": 1.5,
            "dt": 0.1,
            "MAX_VEL_1": 5.0,
            "MAX_VEL_2": 6.0,
            "AVAIL_TORQUE": [-2.0, 0.5, 3.0],
        },
    ),
    (
        "MountainCar-v0",
        {"goal_velocity": 0.03, "force": 0.002, "gravity": 0.001, "max_speed": 0.05},
        {"goal_velocity": 0.03, "force": 0.002, "gravity": 0.001, "max_speed": 0.05},
    ),
    (
        "MountainCarContinuous-v0",
        {"goal_velocity": 0.03, "power": 0.003},
        {"goal_velocity": 0.03, "power": 0.003},
    ),
    (
        "Pendulum-v1",
        {"g": 9.81, "m": 0.7, "l": 1.3, "max_speed": 5.0, "max_torque": 1.0, "dt": 0.02},
        {"g": 9.81, "m": 0.7, "l": 1.3, "max_speed": 5.0, "max_torque": 1.0, "dt": 0.02},
    ),
]


def draw(env, number, seed=0):
    """Random states ``[number, …]`` and actions, as float64 that are exact in float32."""
    rng = np.random.default_rng(seed)
    low, high = LOW_HIGH[env.spec.id]
    states = rng.uniform(low, high, (number, len(low))).astype(np.float32).astype(np.float64)
    if isinstance(env.spec.action, Discrete):
        return states, rng.integers(0, env.spec.action.n, number)
    reach = 1.25 * env.spec.action.high  # beyond the bounds, for Gymnasium clips
    actions = rng.uniform(-reach, reach, (number, 1)).astype(np.float32)
    return states, actions.astype(np.float64)


def gymnasium_steps(name, states, actions, attributes=None):
    """One step of Gymnasium from each state: new states, observations, rewards, ends."""
    env = gymnasium.make(name).unwrapped
    env.reset(seed=0)
    for attribute, value in (attributes or {}).items():
        assert hasattr(env, attribute)
        setattr(env, attribute, value)
    results = []
    for state, action in zip(states, actions, strict=True):
        env.state = state.copy()
        env.steps_beyond_terminated = None  # CartPole's memory of having fallen before
        obs, reward, terminated, truncated, _ = env.step(action)
        assert not truncated
        results.append((np.array(env.state, np.float64), obs, float(reward), terminated))
    return tuple(np.array(column) for column in zip(*results, strict=True))


def our_steps(env, states, actions):
    """The same of ours, with states and continuous actions in JAX's default precision."""
    dtype = jax.dtypes.canonicalize_dtype(float)
    state_type = type(env.reset(jax.random.key(0))[0])
    batch = state_type(*states.T.astype(dtype))
    actions = actions.astype(dtype if actions.dtype == float else np.int32)
    step = jax.jit(jax.vmap(env.step, in_axes=(None, 0, 0)))
    new, out = step(jax.random.key(0), batch, actions)
    assert {leaf.dtype for leaf in (*new, out.obs, out.reward)} == {np.dtype(dtype)}
    return np.stack(new, axis=1), out


@pytest.mark.parametrize("name", CLASSIC)
def test_one_step_from_10000_random_states_equals_gymnasium(name):
    env = envs.make(name)
    states, actions = draw(env, 10_000)
    _, obs, reward, terminated = gymnasium_steps(name, states, actions)
    _, ours = our_steps(env, states, actions)

    error = np.abs(np.asarray(ours.obs, np.float64) - obs)
    if name == "Acrobot-v1":  # velocities of up to 28 rad/s: one rounding of float32 is 2e-6
        assert error[:, 4:].max() < 2e-6
        error = error[:, :4]
    assert error.max() < 1e-6
    np.testing.assert_array_equal(ours.terminated, terminated)
    assert not ours.truncated.any()
    if name in ("Pendulum-v1", "MountainCarContinuous-v0"):  # rewards with a fraction
        np.testing.assert_allclose(ours.reward, reward, rtol=1e-6)
    else:
        np.testing.assert_array_equal(ours.reward, reward)
    if name != "Pendulum-v1":
        assert 100 < terminated.sum() < 9_900, "the test saw both outcomes"


@pytest.mark.parametrize("name", CLASSIC)
def test_one_step_in_float64_equals_gymnasium(name):
    with jax.enable_x64(True):
        env = envs.make(name)
        states, actions = draw(env, 10_000, seed=1)
        state, obs, reward, terminated = gymnasium_steps(name, states, actions)
        new, ours = our_steps(env, states, actions)
        np.testing.assert_array_equal(ours.terminated, terminated)
        np.testing.assert_allclose(ours.reward, reward, rtol=1e-12)
        if name == "MountainCarContinuous-v0":  # which keeps its own state in float32
            np.testing.assert_allclose(new, state, rtol=0, atol=1e-7)
        else:
            np.testing.assert_allclose(new, state, rtol=0, atol=1e-9)
        np.testing.assert_allclose(np.asarray(ours.obs, np.float32), obs, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("name", "ours", "attributes"), VARIANTS)
def test_other_parameters_mean_what_they_mean_in_gymnasium(name, ours, attributes):
    env = envs.make(name, **ours)
    states, actions = draw(env, 500)
    _, obs, reward, terminated = gymnasium_steps(name, states, actions, attributes)
    _, out = our_steps(env, states, actions)
    np.testing.assert_allclose(out.obs, obs, rtol=0, atol=2e-6)
    np.testing.assert_array_equal(out.terminated, terminated)
    np.testing.assert_allclose(out.reward, reward, rtol=1e-6)


@pytest.mark.parametrize(("x64", "bound"), [(False, 1e-5), (True, 1e-7)])
def test_an_episode_of_cartpole_follows_gymnasium_for_50_steps(x64, bound):
    judge = gymnasium.make("CartPole-v1").unwrapped
    judge.reset(seed=3)
    judge.state = judge.state.astype(np.float32).astype(np.float64)
    start, actions, seen = judge.state, [], []
    for _ in range(50):
        _, _, theta, theta_dot = judge.state
        actions.append(int(theta + theta_dot > 0))  # stands for longer than that
        obs, _, terminated, _, _ = judge.step(actions[-1])
        assert not terminated
        seen.append(obs)

    with jax.enable_x64(x64):
        env = envs.make("CartPole-v1")
        state, obs = env.reset(jax.random.key(0))
        state = type(state)(*start.astype(obs.dtype))
        _, out = jax.lax.scan(
            lambda state, action: env.step(jax.random.key(0), state, action),
            state,
            np.array(actions, np.int32),
        )
    np.testing.assert_allclose(out.obs, np.stack(seen), rtol=0, atol=bound)
    assert not out.terminated.any()


@pytest.mark.parametrize("name", CLASSIC)
def test_episodes_begin_as_gymnasiums_do(name):
    env, judge = envs.make(name), gymnasium.make(name).unwrapped
    _, ours = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 5_000))
    theirs = np.stack([judge.reset(seed=seed)[0] for seed in range(5_000)])
    assert ours.shape == theirs.shape
    for component in range(ours.shape[1]):
        test = scipy.stats.ks_2samp(np.asarray(ours[:, component]), theirs[:, component])
        assert test.pvalue > 1e-3, f"component {component}"


def test_random_play_lasts_as_long_as_in_gymnasium():
    env, judge = envs.make("CartPole-v1"), gymnasium.make("CartPole-v1")

    def episode_length(key):
        reset_key, action_key = jax.random.split(key)
        state, _ = env.reset(reset_key)

        def step(carry, key):
            state, alive = carry
            state, out = env.step(key, state, jax.random.randint(key, (), 0, 2))
            return (state, alive & ~out.terminated), alive

        _, alive = jax.lax.scan(step, (state, True), jax.random.split(action_key, 200))
        return alive.sum()

    ours = np.asarray(jax.jit(jax.vmap(episode_length))(jax.random.split(jax.random.key(1), 2_000)))
    rng = np.random.default_rng(1)
    theirs = []
    for seed in range(1_000):
        judge.reset(seed=seed)
        ended = False
        theirs.append(0)
        while not ended:
            _, _, ended, _, _ = judge.step(int(rng.integers(2)))
            theirs[-1] += 1
    standard_error = np.hypot(scipy.stats.sem(ours), scipy.stats.sem(theirs))
    assert abs(ours.mean() - np.mean(theirs)) < 3 * standard_error


def test_a_pendulum_that_spins_for_long_is_seen_as_in_gymnasium():
    """Gymnasium's angle grows without end; ours does not, and is the same angle."""
    env = envs.make("Pendulum-v1")
    states, actions = draw(env, 200)
    states[:, 0] += 2 * np.pi * np.random.default_rng(2).integers(-3, 4, 200)
    states = states.astype(np.float32).astype(np.float64)
    _, obs, reward, _ = gymnasium_steps("Pendulum-v1", states, actions)
    new, ours = our_steps(env, states, actions)
    np.testing.assert_allclose(ours.obs, obs, rtol=0, atol=3e-6)
    np.testing.assert_allclose(ours.reward, reward, rtol=0, atol=2e-5)
    assert np.abs(new[:, 0]).max() < np.pi + 0.05 * 8 + 1e-5


@pytest.mark.parametrize("name", CLASSIC)
def test_every_parameter_is_heard(name):
    """With another value of any of them something else happens."""
    env = envs.make(name)
    states, actions = draw(env, 2_000, seed=3)
    expected = our_steps(env, states, actions)
    drawn_only = {"link_length_2"}  # as in Gymnasium
    others = {
        "kinematics_integrator": "semi-implicit euler",
        "sutton_barto_reward": True,
        "book_or_nips": "nips",
        "avail_torque": (-1.0, 0.0, 1.5),
        "torque_noise_max": 1.0,
        "goal_velocity": 0.02,
    }
    for field in dataclasses.fields(env):
        if field.name in drawn_only:
            continue
        value = others[field.name] if field.name in others else 0.9 * field.default
        changed = our_steps(envs.make(name, **{field.name: value}), states, actions)
        pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(changed), strict=True)
        assert not all(np.array_equal(x, y) for x, y in pairs), field.name
