"""Environments of Brax, MuJoCo Playground, Craftax and Jumanji. The slow tests need these
libraries, which are extras, and are skipped without them."""

import dataclasses
import importlib.util
import re
import subprocess
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from running import differing, runner_of, steps

from jaxrl_scale import envs
from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config
from jaxrl_scale.envs.brax_adapter import StateEnv, load_playground
from jaxrl_scale.envs.check import best
from jaxrl_scale.envs.jumanji_adapter import JumanjiEnv
from jaxrl_scale.envs.libraries import (
    Parts,
    check_parameters,
    defaults_of,
    devices_of_this_process,
)
from jaxrl_scale.errors import INPUT_OUTPUT_ERROR, RunError
from jaxrl_scale.types import Discrete, MultiDiscrete

pytestmark = [  # theirs, of what they use themselves
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Brax System, piplines and environments are not"),
]
LIBRARIES = {
    **{"brax": "brax", "playground": "mujoco_playground"},
    **{"craftax": "craftax", "jumanji": "jumanji"},
}
POLE, GAME = "brax:inverted_pendulum", "craftax:Craftax-Classic-Symbolic-v1"
PUZZLE = "jumanji:Game2048-v1"


@pytest.fixture(autouse=True)
def partitioner_given_back():
    """With JAX 0.11 making an environment of Brax or Playground changes XLA's partitioner."""
    before = jax.config.values["jax_use_shardy_partitioner"]
    yield
    jax.config.update("jax_use_shardy_partitioner", before)


def made(name, **kwargs):
    pytest.importorskip(LIBRARIES[name.partition(":")[0]])
    return envs.make(name, **kwargs)


@pytest.mark.parametrize("name", [POLE, GAME, "playground:CartpoleBalance", PUZZLE])
def test_a_library_that_is_not_installed_is_told_with_what_installs_it(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    extra = name.partition(":")[0]
    said = f"'{name}': .* is not installed: make install EXTRA={extra} \\(or pip install"
    with pytest.raises(RunError, match=said):
        envs.make(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("brax:antt", "Brax has no environment 'antt'; did you mean ant?"),
        ("craftax:Craftax-v1", "Craftax has no environment 'Craftax-v1'; did you mean Craftax-"),
        ("craftax:Minecraft", "'Minecraft'; it has Craftax-Classic-Pixels-v1, Craftax-Classic-S"),
    ],
)
def test_a_name_that_a_library_does_not_have_is_told(name, said):
    with pytest.raises(RunError, match=re.escape(said)):
        envs.make(name)


def test_a_state_is_taken_apart_and_put_together_again():
    state = {"key": jax.random.key(7), "empty": jnp.zeros((0, 3)), "x": jnp.arange(2), "n": 3.0}
    apart = Parts(jax.eval_shape(lambda: state))
    parts = jax.jit(lambda: apart.of(state))()
    assert sorted((part.shape, str(part.dtype)) for part in parts) == [
        *(((), "float32"), ((2,), "int32"), ((2,), "uint32")),
    ]
    assert not any(part.weak_type for part in jax.eval_shape(lambda: apart.of(state)))
    again = apart.together(parts)
    assert jax.random.bits(again["key"]) == jax.random.bits(state["key"])
    assert again["empty"].shape == (0, 3)
    np.testing.assert_array_equal(again["x"], [0, 1])
    assert again["n"] == 3
    with pytest.raises(TypeError, match="a state of another form than reset"):
        apart.of(state | {"more": 1.0})


class Physics(NamedTuple):
    """A state as those of Brax and Playground are."""

    obs: Any
    reward: jax.Array
    done: jax.Array
    metrics: dict[str, jax.Array]


class Counting:
    """What it observes grows by 1 with each step, and its reward is what it observes."""

    action_size = 2

    def __init__(self, seen="state"):
        self.seen = seen

    def reset(self, key):
        zero = jnp.zeros(())
        return Physics({self.seen: jnp.zeros(1)}, zero, zero, {"action": zero})

    def step(self, state, action):
        obs = state.obs[self.seen] + 1
        return Physics({self.seen: obs}, obs[0], jnp.float32(obs[0] >= 5), {"action": action[0]})


def test_an_action_is_repeated_and_the_time_limit_counts_what_it_repeats():
    env = StateEnv("playground:Counting", Counting(), episode_length=100, repeat=3)
    assert env.spec.max_episode_steps == 34  # as Brax's EpisodeWrapper has it
    assert env.spec.observation_shape == (1,)
    _, out = jax.jit(env.step)(jax.random.key(0), *env.reset(jax.random.key(0))[:1], jnp.ones(2))
    assert (out.obs[0], out.reward, bool(out.terminated)) == (3, 1 + 2 + 3, False)


def test_mjx_finds_a_device_of_its_own_process(monkeypatch):
    """In a run of several processes the first of `jax.devices` is one of process 0."""

    class OnFirst(Counting):
        def __init__(self):
            super().__init__()
            self.first = jax.devices()[0]

        def reset(self, key):
            assert jax.devices("cpu")[0] in jax.local_devices()
            return super().reset(key)

    monkeypatch.setattr(jax, "devices", lambda backend=None: ["of process 0"])
    env = StateEnv("playground:OnFirst", OnFirst(), episode_length=9)
    jax.eval_shape(env.reset, jax.random.key(0))
    with devices_of_this_process():
        assert OnFirst().first in jax.local_devices()
    assert jax.devices() == ["of process 0"]


@pytest.mark.parametrize(
    ("seen", "steps", "said"),
    [
        ("state", {"episode_length": "long"}, "env_kwargs.episode_length='long' should be a whole"),
        ("state", {"episode_length": 0}, "env_kwargs.episode_length=0 should be a whole number of"),
        ("state", {"repeat": 0}, "env_kwargs.action_repeat=0 should be a whole number of at least"),
        ("pixels/view_0", {}, "observes pixels/view_0; an agent sees one array, or that named sta"),
    ],
)
def test_what_no_environment_of_brax_or_playground_can_have_is_told(seen, steps, said):
    with pytest.raises(RunError, match=re.escape("'playground:Counting'")) as told:
        StateEnv("playground:Counting", Counting(seen), **{"episode_length": 9} | steps)
    assert said in str(told.value)


def test_a_parameter_of_another_type_than_its_default_is_told():
    has = {"wind": True, "size": 3, "range": (0.2, 1.0), "scale": 0.5, "map": None}
    fits = {"wind": False, "size": 4, "range": [0, 1], "scale": 2, "map": "any"}
    check_parameters("environment 'x'", fits, has)
    for given, said in (
        ({"wind": "no"}, "environment 'x': env_kwargs.wind='no' should be true or false"),
        ({"size": 2.5}, "env_kwargs.size=2.5 should be a whole number"),
        ({"scale": "big"}, "env_kwargs.scale='big' should be a number"),
        ({"range": "0.2,1.0"}, "env_kwargs.range='0.2,1.0' should be a list, such as [0.2, 1.0]"),
        ({"winds": True}, "environment 'x' has no parameter winds; did you mean wind?"),
        ({"y": 1}, "has no parameter y; its parameters: wind, size, range, scale, map"),
    ):
        with pytest.raises(RunError, match=re.escape(said)):
            check_parameters("environment 'x'", given, has)
    with pytest.raises(RunError, match=r"env_kwargs\.deterministic='no' should be true or false"):
        envs.make("gymnax:DeepSea-bsuite", deterministic="no")


def test_the_parameters_of_a_class_are_also_those_that_it_hands_on():
    class Base:
        def __init__(self, system, frames=1):
            pass

    class Ant(Base):
        def __init__(self, backend="spring", **kwargs):
            super().__init__("ant", **kwargs)

    class Closed(Ant):
        def __init__(self, frames=5):
            super().__init__(frames=frames)

    assert defaults_of(Ant) == {"backend": "spring", "frames": 1}
    assert defaults_of(Closed) == {"frames": 5}


def test_a_download_that_fails_is_told_with_what_to_do():
    def load(*_):
        raise subprocess.CalledProcessError(128, ["git", "clone"])

    with pytest.raises(RunError, match="git cannot download the models of robots") as told:
        load_playground("environment 'x'", SimpleNamespace(load=load), "Go1Getup")
    assert told.value.status == INPUT_OUTPUT_ERROR
    assert "--env=playground:Go1Getup --dry_run" in str(told.value)


class Board(NamedTuple):
    """An observation as Jumanji's are."""

    at: Any
    action_mask: Any
    left: Any


@struct.dataclass
class Seen:
    """A time step as Jumanji's are."""

    observation: Board
    reward: Any
    discount: Any
    ended: Any
    extras: Any

    def last(self):
        return self.ended


class Puzzle:
    """Of actions with a rotation and a column those with the number ``state`` and the one behind it
    are allowed. After three steps it ends, with the discount of its last action's column."""

    def __init__(self, mask=(2, 3), reward=(), **spec):
        self.mask, self.reward = mask, jnp.zeros(reward)
        self.action_spec = SimpleNamespace(
            **{"shape": (2,), "dtype": jnp.int8, "num_values": np.array([2, 3])} | spec
        )

    def reset(self, key):
        return jnp.int32(0), self.seen(jnp.int32(0), jnp.ones(()))

    def step(self, state, action):
        assert action.dtype == jnp.int8
        return state + 1, self.seen(state + 1, action[-1].astype(jnp.float32))

    def seen(self, state, discount):
        mask = jnp.arange(np.prod(self.mask)).reshape(self.mask) // 2 == state
        told = {"steps": state, "all": jnp.zeros(2)}
        board = Board({"x": state, "y": jnp.full(2, 7, jnp.int8)}, mask, 3 - state)
        return Seen(board, self.reward + 1, discount, state == 3, told)


def test_combinations_of_parts_that_are_masked_together_are_actions_of_their_own():
    env = JumanjiEnv("jumanji:Puzzle", Puzzle())
    envs.check_env(env)
    assert (env.spec.action, env.spec.action_mask) == (Discrete(6), True)
    state, obs = env.reset(jax.random.key(0))
    assert obs.tolist() == [0, 7, 7, 3, 1, 1, 0, 0, 0, 0]  # the mask comes last
    for action in (1, 3, 5):
        assert env._taken(jnp.int32(action)).tolist() == [action // 3, action % 3]
        state, out = env.step(jax.random.key(0), state, jnp.int32(action))
        assert out.info == {"steps": state[0]}
    assert (bool(out.terminated), bool(out.truncated)) == (False, True)
    _, out = env.step(jax.random.key(0), [jnp.int32(2)], jnp.int32(3))
    assert (bool(out.terminated), bool(out.truncated)) == (True, False)


def test_parts_of_jumanji_that_are_masked_each_by_itself_stay_parts():
    of_agents = {"num_values": np.array([3, 3])}
    env = JumanjiEnv("jumanji:Puzzle", Puzzle(**of_agents))
    assert (env.spec.action, env.spec.action_mask) == (MultiDiscrete((3, 3)), True)
    assert env._taken(jnp.array([2, 1])).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"reward": (2,)}, "has rewards [2], one for each of its agents; a run trains one agent"),
        ({"mask": (2, 4)}, "has an action_mask [2, 4] of actions [2, 3]"),
    ],
)
def test_what_no_environment_of_jumanji_can_have_is_told(changed, said):
    with pytest.raises(RunError, match=re.escape(f"'jumanji:Puzzle' {said}")):
        JumanjiEnv("jumanji:Puzzle", Puzzle(**changed))


# --- with the libraries ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        *((POLE, {}), ("brax:ant", {"backend": "spring", "episode_length": 200})),
        *(("brax:reacher", {}), ("playground:CartpoleBalance", {})),
        ("playground:CheetahRun", {"episode_length": 100, "action_repeat": 2}),
    ],
)
def test_steps_and_resets_of_brax_and_playground_are_theirs(name, kwargs):
    env = made(name, **kwargs)
    repeat = kwargs.get("action_repeat", 1)
    assert env.spec.max_episode_steps == kwargs.get("episode_length", 1000) // repeat
    state = jax.jit(env._env.reset)(jax.random.key(0))
    _, obs = jax.jit(env.reset)(jax.random.key(0))
    np.testing.assert_allclose(obs, state.obs, atol=1e-6)
    step, theirs = jax.jit(env.step), jax.jit(env._env.step)
    rng = np.random.default_rng(0)
    for _ in range(40):
        action = rng.uniform(-1, 1, env.spec.action.shape).astype(np.float32)
        _, out = step(jax.random.key(0), env._parts.of(state), action)
        reward = 0.0
        for _ in range(repeat):
            state = theirs(state, action)
            reward += state.reward
        np.testing.assert_allclose(out.obs, state.obs, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(out.reward, reward, rtol=1e-3, atol=1e-3)
        assert bool(out.terminated) == bool(state.done)
        assert not out.truncated
        assert out.info.keys() == state.metrics.keys()
    assert np.isfinite(state.obs).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", [GAME, "craftax:Craftax-Symbolic-v1"])
def test_steps_and_resets_of_craftax_are_its_own(name):
    env = made(name)
    obs, state = jax.jit(env._env.reset_env)(jax.random.key(0), env._params)
    np.testing.assert_allclose(jax.jit(env.reset)(jax.random.key(0))[1], obs, atol=1e-6)
    step = jax.jit(env.step)
    theirs = jax.jit(lambda *given: env._env.step_env(*given, env._params))
    rewards = 0.0
    for key in jax.random.split(jax.random.key(1), 60):
        action = jax.random.randint(key, (), 0, env.spec.action.n)
        _, out = step(key, env._parts.of(state), action)
        obs, state, reward, done, info = theirs(key, state, action)
        np.testing.assert_allclose(out.obs, obs, atol=1e-6)
        assert (out.reward, bool(out.terminated | out.truncated)) == (reward, bool(done))
        rewards += abs(float(reward))
        assert out.info["collect_wood"] == info["Achievements/collect_wood"]
    assert rewards > 0
    frame = env.render(env._parts.of(state))
    assert frame.dtype == np.uint8
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 9


@pytest.mark.slow
def test_the_time_limit_of_craftax_is_no_end():
    env = made(GAME, max_timesteps=3)
    assert env.spec.max_episode_steps == 3
    _, state = env._env.reset_env(jax.random.key(0), env._params)
    step = jax.jit(env.step)

    def after(age, health):
        there = dataclasses.replace(state, timestep=jnp.int32(age), player_health=jnp.int32(health))
        _, out = step(jax.random.key(0), env._parts.of(there), jnp.int32(0))
        return bool(out.terminated), bool(out.truncated)

    assert after(age=1, health=9) == (False, False)
    assert after(age=2, health=9) == (False, True)
    assert after(age=1, health=0) == (True, False)
    assert after(age=2, health=0) == (True, False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Game2048-v1", "Tetris-v0", "JobShop-v0", "RubiksCube-v0"])
def test_steps_and_resets_of_jumanji_are_its_own(name):
    env = made(f"jumanji:{name}")
    state, begun = jax.jit(env._env.reset)(jax.random.key(0))
    parts, obs = jax.jit(env.reset)(jax.random.key(0))
    step, theirs = jax.jit(env.step), jax.jit(env._env.step)
    rng, space = np.random.default_rng(0), env.spec.action
    size = sum(space.sizes) * env.spec.action_mask
    ended = False
    for _ in range(60):
        seen = begun.observation._asdict()
        if env.spec.action_mask:
            np.testing.assert_array_equal(obs[-size:], seen.pop("action_mask").ravel())
        numbers = np.concatenate([np.ravel(x) for x in jax.tree.leaves([*seen.values()])])
        np.testing.assert_array_equal(obs[: obs.size - size], numbers)
        jax.tree.map(np.testing.assert_array_equal, parts, env._parts.of(state))
        if ended:
            break
        scores = rng.random(sum(space.sizes)) + (obs[-size:] if env.spec.action_mask else 0)
        action = best(space, np.asarray(scores))
        taken = np.int32(divmod(int(action), 10)) if name == "Tetris-v0" else action
        state, begun = theirs(state, taken)
        parts, out = step(jax.random.key(0), parts, action)
        obs, ended = out.obs, bool(begun.last())
        assert out.reward == begun.reward
        assert bool(out.terminated | out.truncated) == ended


@pytest.mark.slow
def test_wrong_parameters_of_the_libraries_are_told_in_one_line():
    for name, kwargs, said in (
        (POLE, {"backend": "x"}, "ValueError: backend should be in"),
        (POLE, {"gravity": 1}, "has no parameter gravity; its parameters: episode_length, back"),
        ("brax:ant", {"terminate_when_unhealthy": "no"}, "should be true or false"),
        (GAME, {"levels": 1}, "has no parameter levels; its parameters: max_timesteps, day_l"),
        (GAME, {"max_timesteps": 2.5}, "env_kwargs.max_timesteps=2.5 should be a whole number"),
        ("playground:CheetahRun", {"levels": 1}, "has no parameter levels; its parameters: act"),
        ("playground:CartpoleBalance", {"vision_config": {"nworlds": 1}}, "vision_config.nworld?"),
        ("playground:CheetahRn", {}, "Playground has no environment 'CheetahRn'; did you mean "),
        ("jumanji:Snake-v0", {}, "Jumanji has no environment 'Snake-v0'; did you mean Snake-v1?"),
        ("jumanji:Snake-v1", {"time_limit": "no"}, "env_kwargs.time_limit='no' should be a whole"),
        ("jumanji:Connector-v3", {}, "has rewards [10], one for each of its agents; a run trains "),
        ("jumanji:MultiCVRP-v0", {}, "acts in a BoundedArray; DiscreteArray and MultiDiscreteA"),
    ):
        with pytest.raises(RunError, match=re.escape(said)) as told:
            made(name, **kwargs)
        assert "\n" not in str(told.value)


@pytest.mark.slow
def test_what_mujoco_says_of_a_model_of_theirs_is_not_written(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    made("brax:halfcheetah")  # a model with an attribute that MuJoCo will remove
    assert not list(tmp_path.iterdir())
    assert "WARNING" not in "".join(capfd.readouterr())


@pytest.mark.slow
@pytest.mark.parametrize("name", [POLE, "playground:CartpoleBalance", GAME, PUZZLE])
def test_a_run_is_the_same_on_1_and_2_devices_and_goes_on_elsewhere(name):
    env = made(name)
    sizes = {"num_envs": 16, "num_shards": 4, "rollout_length": 32, "hidden_sizes": (16,)}
    algo = ppo.Config(minibatch_size=256, epochs=2)
    config = Config(env=name, iterations=4, devices=2, algo=algo, **sizes)
    two, one = runner_of(config, env), runner_of(config.replace(devices=1), env)
    half, _ = steps(two, 2)
    end, history = steps(two, 2, half)
    assert differing((end, history), steps(one, 2, half)) == []
    assert differing(end, steps(one, 4)[0]) == []
    assert all(np.isfinite(x).all() for x in history[-1].values())
