"""What `envs.make` finds, what it says when it does not, and the contract of what it returns."""

from __future__ import annotations

import re
import subprocess
import sys

import gymnasium
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_scale import envs
from jaxrl_scale.envs import acrobot
from jaxrl_scale.errors import RunError
from jaxrl_scale.types import Discrete, EnvSpec

MINE = """
import jax.numpy as jnp
from jaxrl_scale.types import Discrete, EnvSpec, TimeStep

class Corridor:
    def __init__(self, length=3):
        self.length = length
        self.spec = EnvSpec(id="Corridor", observation_shape=(1,), action=Discrete(2))
    def reset(self, key):
        return jnp.zeros(()), jnp.zeros(1)
    def step(self, key, state, action):
        new = state + action
        end = new >= self.length
        return new, TimeStep(new[None], end.astype(jnp.float32), end, jnp.zeros_like(end))
"""


def an_action(spec: EnvSpec):
    if isinstance(spec.action, Discrete):
        return jnp.int32(spec.action.n - 1)
    return jnp.full(spec.action.shape, spec.action.high, jnp.float32)


def shapes_of(env):
    """Abstract results of reset and of a step, computed without running anything."""
    key = jax.random.key(0)
    state, obs = jax.eval_shape(env.reset, key)
    return state, obs, *jax.eval_shape(env.step, key, state, an_action(env.spec))


# --- names and parameters ---------------------------------------------------------------


@pytest.mark.parametrize("name", envs.names())
def test_every_name_makes_an_environment_that_keeps_the_contract(name):
    env = envs.make(name)
    assert env.spec.id == env.spec.gymnasium_id == name
    envs.check_env(env)


@pytest.mark.parametrize("name", envs.names())
def test_a_spec_says_what_gymnasium_says(name):
    if name.startswith("LunarLander"):
        pytest.importorskip("Box2D")
    spec, judge = envs.make(name).spec, gymnasium.make(name)
    assert spec.observation_shape == judge.observation_space.shape
    assert spec.max_episode_steps == judge.spec.max_episode_steps
    if isinstance(spec.action, Discrete):
        assert spec.action.n == judge.action_space.n
    else:
        assert spec.action.shape == judge.action_space.shape
        assert set(judge.action_space.low.tolist()) == {spec.action.low}
        assert set(judge.action_space.high.tolist()) == {spec.action.high}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cartpole", "Did you mean 'CartPole-v1'?"),
        ("CartPole-v0", "Did you mean 'CartPole-v1'?"),
        ("MountainCar", "Did you mean 'MountainCar-v0'?"),
        ("Breakout-MinAtar", "Did you mean 'gymnax:Breakout-MinAtar'?"),
        ("gymnax:Breakout", "Did you mean 'gymnax:Breakout-MinAtar'?"),
        ("ant", "Did you mean 'brax:ant'?"),
        ("Craftax-Symbolic-v1", "Did you mean 'craftax:Craftax-Symbolic-v1'?"),
        ("what is this", "There are CartPole-v1, Acrobot-v1"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_in_one_line(name, hint):
    with pytest.raises(RunError, match=re.escape(hint)) as raised:
        envs.make(name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["CartPole-v1", "gymnax:CartPole-v1"])
def test_a_wrong_parameter_is_answered_with_the_right_ones(name):
    with pytest.raises(RunError, match=r"pole_lenght.*parameters:.*\bgravity\b.*\blength\b"):
        envs.make(name, pole_lenght=2.0)


def test_a_value_that_gymnasium_would_silently_misread_is_refused():
    with pytest.raises(RunError, match="'book' or 'nips'"):
        envs.make("Acrobot-v1", book_or_nips="paper")
    with pytest.raises(RunError, match="'euler' or"):
        envs.make("CartPole-v1", kinematics_integrator="rk4")
    with pytest.raises(RunError, match=r"'Acrobot-v1': spec\.action\.n=0 should be"):
        envs.make("Acrobot-v1", avail_torque=[])
    with pytest.raises(RunError, match=r"spec\.action\.low=0.* should be below"):
        envs.make("Pendulum-v1", max_torque=0)


def test_your_own_environment_is_found_in_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "my_tasks.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    env = envs.make("my_tasks:Corridor", length=2)
    envs.check_env(env)
    assert env.length == 2
    with pytest.raises(RunError, match=r"unexpected keyword argument 'width'; .*: length"):
        envs.make("my_tasks:Corridor", width=2)


def test_making_an_environment_imports_neither_gymnax_nor_gymnasium_nor_pillow():
    code = (
        "import sys; from jaxrl_scale import envs; envs.make('Acrobot-v1'); "
        "print([m for m in ('gymnax', 'gymnasium', 'PIL', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- the environments written here ------------------------------------------------------


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1"])
def test_an_environment_does_the_same_in_a_batch_of_any_size(name):
    """To the last bit, since a run must not depend on where its environments are placed."""
    env = envs.make(name)
    key = jax.random.key(0)
    states, _ = jax.vmap(env.reset)(jax.random.split(jax.random.key(1), 24))
    step = jax.vmap(env.step, in_axes=(None, 0, None))

    @jax.jit
    def unroll(states):
        action = an_action(env.spec)
        return jax.lax.scan(lambda states, _: step(key, states, action), states, length=30)[1]

    together = unroll(states)
    for part in (slice(0, 16), slice(5, 7)):
        apart = unroll(type(states)(*(x[part] for x in states)))
        whole = jax.tree.map(lambda x: x[:, part], together)  # noqa: B023  called at once
        jax.tree.map(np.testing.assert_array_equal, apart, whole)


@pytest.mark.parametrize("name", envs.names())
def test_no_type_is_promoted_and_no_rank_is_guessed(name):
    env = envs.make(name)
    # LunarLander has its batch last, so that ranks differ on purpose.
    ranks = "allow" if name.startswith("LunarLander") else "raise"
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion(ranks):
        envs.check_env(env)


def test_sines_and_cosines_in_float64_are_those_of_numpy():
    with jax.enable_x64(True):
        angle = np.linspace(-100, 100, 100_001)
        sin, cos = acrobot._sin_cos(jnp.asarray(angle))
        np.testing.assert_allclose(sin, np.sin(angle), rtol=0, atol=1e-13)
        np.testing.assert_allclose(cos, np.cos(angle), rtol=0, atol=1e-13)


def test_float64_inside_a_step_of_acrobot_stays_inside():
    assert not jax.config.jax_enable_x64
    env = envs.make("Acrobot-v1")
    state, _ = env.reset(jax.random.key(0))
    new, out = env.step(jax.random.key(0), state, jnp.int32(2))  # op by op, without jit
    assert {x.dtype for x in (*new, out.obs, out.reward)} == {jnp.dtype(jnp.float32)}
    assert not jax.config.jax_enable_x64

    def next_cosine(theta1):
        moved = state._replace(theta1=theta1)
        return env.step(jax.random.key(0), moved, jnp.int32(2))[1].obs[0]

    next_cosine, slope_at = jax.jit(next_cosine), jax.jit(jax.grad(next_cosine))
    slope = slope_at(state.theta1)
    nudged = (next_cosine(state.theta1 + 1e-2) - next_cosine(state.theta1 - 1e-2)) / 2e-2
    np.testing.assert_allclose(slope, nudged, rtol=1e-2)


def test_torque_noise_is_drawn_from_the_key_and_stays_in_its_bounds():
    pushed = envs.make("Acrobot-v1", avail_torque=(-0.5, 0.0, 0.5))
    rough = envs.make("Acrobot-v1", torque_noise_max=0.5)
    state, _ = rough.reset(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 200)
    push = jax.jit(jax.vmap(pushed.step, in_axes=(None, None, 0)))
    low, none, high = push(keys[0], state, jnp.arange(3))[0].theta2_dot
    noisy = jax.jit(jax.vmap(rough.step, in_axes=(0, None, None)))(keys, state, jnp.int32(1))
    speed = noisy[0].theta2_dot
    assert low <= speed.min() < none < speed.max() <= high
    assert jnp.unique(speed).size > 150


@pytest.mark.parametrize("name", envs.names())
def test_a_picture_is_that_of_gymnasium(name, monkeypatch):
    """Nearly: edges are smoothed in another way, and Gymnasium rounds to whole pixels."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("SDL_AUDIODRIVER", "dummy")
    pytest.importorskip("pygame")
    if name.startswith("LunarLander"):
        pytest.skip("its bodies are laid out by Box2D")
    env, judge = envs.make(name), gymnasium.make(name, render_mode="rgb_array")
    judge.reset(seed=0)
    state, _ = env.reset(jax.random.key(3))
    state = type(state)(*(x + 0.3 for x in state))
    judge.unwrapped.state = np.array(state, np.float64)
    ours, theirs = env.render(state), judge.unwrapped.render()
    assert ours.dtype == np.uint8
    assert ours.shape == theirs.shape
    assert np.abs(ours.astype(int) - theirs).mean() < 1.5


# --- gymnax -----------------------------------------------------------------------------


def test_every_environment_of_gymnax_keeps_the_contract():
    downloads = {"MNISTBandit-bsuite"}
    for name in sorted(set(gymnax.registered_envs) - downloads):
        env = envs.make(f"gymnax:{name}")
        envs.check_env(env)
        assert env.spec.max_episode_steps == env._params.max_steps_in_episode, name
        leaves = jax.tree.leaves(shapes_of(env))
        assert not any(leaf.weak_type for leaf in leaves), f"{name}: a type left to chance"


@pytest.mark.parametrize(
    "name",
    [
        "Breakout-MinAtar",
        "Catch-bsuite",
        "FrozenLake-misc",
        "Reacher-misc",
    ],
)
def test_an_environment_of_gymnax_runs_inside_a_scan(name):
    env = envs.make(f"gymnax:{name}")

    @jax.jit
    def run(key):
        state, obs = env.reset(key)
        keys = jax.random.split(key, 3)
        state, out = jax.lax.scan(
            lambda state, key: env.step(key, state, an_action(env.spec)), state, keys
        )
        return obs, out, state

    obs, out, state = run(jax.random.key(0))
    assert out.obs.shape == (3, *obs.shape)
    assert jnp.isfinite(out.obs).all()
    assert state.time == 3
    if obs.ndim == 3:
        frame = env.render(state)
        assert frame.dtype == np.uint8
        assert frame.shape == (400, 400, 3)
        assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 1


def test_gymnax_tells_a_time_limit_from_an_end():
    short = envs.make("gymnax:CartPole-v1", max_steps_in_episode=4)
    assert short.spec.max_episode_steps == 4
    ends = {}
    for name, env in (("limit", short), ("fall", envs.make("gymnax:CartPole-v1"))):
        state, _ = env.reset(jax.random.key(0))
        step = jax.jit(env.step)
        ends[name] = []
        for _ in range(4 if name == "limit" else 12):
            state, out = step(jax.random.key(0), state, jnp.int32(0))
            ends[name].append((bool(out.terminated), bool(out.truncated)))
            if out.terminated:
                break
    assert ends["limit"] == [(False, False)] * 3 + [(False, True)]
    assert ends["fall"][-1] == (True, False)
    assert set(ends["fall"][:-1]) == {(False, False)}
    both = envs.make("gymnax:CartPole-v1", max_steps_in_episode=len(ends["fall"]))
    state, _ = both.reset(jax.random.key(0))
    for _ in ends["fall"]:
        state, out = jax.jit(both.step)(jax.random.key(0), state, jnp.int32(0))
    assert (bool(out.terminated), bool(out.truncated)) == (True, False)  # an end is no cut


def test_a_discrete_observation_of_gymnax_is_one_hot():
    env = envs.make("gymnax:FrozenLake-misc")
    _, obs = env.reset(jax.random.key(0))
    assert env.spec.observation_shape == (16,)
    np.testing.assert_array_equal(obs, np.eye(16)[0])


def test_arguments_and_params_of_gymnax_are_both_understood():
    env = envs.make("gymnax:DeepSea-bsuite", size=5, deterministic=False)
    assert env.spec.observation_shape == (5, 5)
    assert env.spec.max_episode_steps == 5
    assert env._params.deterministic is False
