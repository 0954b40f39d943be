"""What a mistake in an environment of your own is told: one line, before anything is compiled."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from running import run, small

from jaxrl_scale import envs
from jaxrl_scale.errors import RunError
from jaxrl_scale.types import Box, Discrete, EnvSpec, MultiDiscrete, TimeStep

HERE = Path(__file__).name


class Good:
    """Counts its steps; an episode ends at the fifth."""

    spec = EnvSpec("Good", (1,), Discrete(2), max_episode_steps=50)

    def reset(self, key):
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def obs(self, state):
        return state[None].astype(jnp.float32)

    def reward(self, state):
        return jnp.float32(1)

    def ended(self, state):
        return state >= 5

    def step(self, key, state, action):
        state = state + 1
        end = self.ended(state)
        return state, TimeStep(self.obs(state), self.reward(state), end, jnp.zeros((), bool))


def specified(**changes):
    """An environment class whose specification differs from that of `Good`."""
    fields = {"id": "Good", "observation_shape": (1,), "action": Discrete(2)} | changes
    return type("Good", (Good,), {"spec": EnvSpec(**fields)})


def said_of(env):
    with pytest.raises(RunError) as caught:
        envs.check_env(env)
    assert caught.value.status == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def line_of(method):
    """The number of a one-line method's only statement."""
    return method.__code__.co_firstlineno + 1


# --- what is right --------------------------------------------------------------------------


class Pair(NamedTuple):
    time: int
    noise: float


class Told(Good):
    """Has numbers of its own: of JAX, of NumPy and of Python."""

    def step(self, key, state, action):
        state, out = super().step(key, state, action)
        info = {"age": state, "parts/speed": np.float32(2), "won": out.terminated, "cost": 1.5}
        return state, out._replace(info=info)


class Numbers(Good):
    """Python's numbers instead of arrays, and a state that is a tuple of two."""

    def reset(self, key):
        return Pair(0, 0.0), jnp.zeros(1)

    def step(self, key, state, action):
        new = Pair(state.time + 1, state.noise + 1.0)
        return new, TimeStep(self.obs(new.time), 1.0, new.time >= 5, False)


def build_good(length: int = 3) -> Good:
    return Good()


def build_without_annotation():
    return Good()


@pytest.mark.parametrize(
    "env", [Good(), Told(), Numbers(), specified(observation_dtype="float32")()]
)
def test_an_environment_that_keeps_the_contract_is_accepted(env):
    envs.check_env(env)


def test_a_function_builds_an_environment_if_its_annotation_says_so():
    assert isinstance(envs.make(f"{__name__}:build_good", length=2), Good)
    with pytest.raises(RunError, match="was not called, because it should be a class with the"):
        envs.make(f"{__name__}:build_without_annotation")


def test_no_device_is_needed():
    code = """
from jax._src import xla_bridge
from jaxrl_scale import envs
envs.check_env(envs.make("CartPole-v1"))
assert not xla_bridge.backends_are_initialized()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- stepping through it --------------------------------------------------------------------


class Watched(Good):
    """Does what only numbers can: Python's `if` and `int`, in a loop of JAX too."""

    def step(self, key, state, action):
        seen = []
        jax.lax.fori_loop(0, 2, lambda k, x: seen.append(int(x)) or x + 1, state)
        assert seen == [state, state + 1]
        if state < 0:
            raise RuntimeError("it only grows")
        return super().step(key, state, action)


def test_played_as_plain_python_an_environment_sees_numbers_and_episodes_follow_each_other():
    made = envs.play(Watched(), 7, policy=lambda obs: 1)
    assert [int(t.state) for t in made] == [0, 1, 2, 3, 4, 0, 1]
    assert [float(t.obs[0]) for t in made] == [0, 1, 2, 3, 4, 0, 1]
    assert [bool(t.step.terminated) for t in made] == [False] * 4 + [True] + [False] * 2
    assert not any(t.step.truncated for t in made)
    assert {int(t.action) for t in made} == {1}


def test_played_episodes_end_at_the_time_limit_and_actions_are_clipped_or_random():
    env = specified(max_episode_steps=2, action=Box(-1.0, 2.0, (1,)))()
    made = envs.play(env, 3, policy=lambda obs: [9])
    assert [bool(t.step.truncated) for t in made] == [False, True, False]
    assert [t.action.tolist() for t in made] == [[2.0]] * 3
    one, again, other = ([float(t.action[0]) for t in envs.play(env, 3, seed=k)] for k in (0, 0, 1))
    assert one == again != other
    assert len(set(one)) == 3
    assert -1 <= min(one) < max(one) <= 2
    several = specified(action=MultiDiscrete((1, *np.uint8([200, 100]))))()  # of NumPy's too
    envs.check_env(several)
    drawn = np.stack([t.action for t in envs.play(several, 5, policy=None)])
    assert (drawn.shape, drawn.dtype) == ((5, 3), np.int32)
    assert ((drawn >= 0) & (drawn < several.spec.action.sizes)).all()
    assert len({*drawn[:, 1].tolist()}) > 1


@pytest.mark.parametrize("given", [Good, "CartPole-v1"])
def test_a_class_or_a_name_in_place_of_an_environment_is_told(given):
    for function in (envs.check_env, envs.play):
        with pytest.raises(RunError, match=r"give an environment, which .* makes"):
            function(given)


def test_an_environment_on_the_host_is_not_played_here():
    with pytest.raises(RunError, match="runs on the host: its simulator can be stepped as it is"):
        envs.play(envs.make("gymnasium:CartPole-v1"))


# --- the specification ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"id": 3}, "spec.id=3 should be a text"),
        ({"observation_shape": 1}, "spec.observation_shape=1 should be a tuple of whole numbers"),
        ({"observation_shape": [1]}, "spec.observation_shape=[1] should be a tuple of whole"),
        ({"observation_shape": (0,)}, "spec.observation_shape=(0,) should be a tuple of whole"),
        ({"observation_shape": (1.0,)}, "spec.observation_shape=(1.0,) should be a tuple"),
        ({"observation_dtype": "float"}, "spec.observation_dtype='float' should be a dtype that"),
        ({"observation_dtype": np.int64}, "int64'> should be a dtype that JAX computes with"),
        ({"observation_dtype": None}, "spec.observation_dtype=None should be a dtype"),
        ({"observation_dtype": "colour"}, "spec.observation_dtype='colour' should be a dtype"),
        ({"observation_dtype": "complex64"}, "spec.observation_dtype='complex64' should be"),
        ({"max_episode_steps": 0}, "spec.max_episode_steps=0 should be None or a whole number"),
        ({"max_episode_steps": -5}, "spec.max_episode_steps=-5 should be None or a whole number"),
        ({"max_episode_steps": 5.5}, "spec.max_episode_steps=5.5 should be None or a whole"),
        ({"max_episode_steps": 2**31}, "should be None or a whole number from 1 to 2147483647"),
        (
            {"worst_return": float("-inf")},
            "spec.worst_return=-inf should be None or a finite number",
        ),
        ({"costly_reset": 1}, "spec.costly_reset=1 should be True or False"),
        ({"gymnasium_id": 3}, "spec.gymnasium_id=3 should be None or a text"),
        ({"info": ["won"]}, "spec.info=['won'] should be a tuple of different names, such as"),
        ({"info": ("won", "won")}, "spec.info=('won', 'won') should be a tuple of different names"),
        ({"info": ("a b",)}, "spec.info's name='a b' should be a text of letters, digits, dots"),
        ({"info": (3,)}, "spec.info's name=3 should be a text of letters"),
        ({"info": ("won",)}, "spec.info=('won',) should be empty: the info of step says it by"),
        ({"action": 2}, "spec.action is of type int; it should be a Discrete, a MultiDiscrete"),
        (
            {"action": Discrete},
            "is of type type; it should be a Discrete, a MultiDiscrete or a Box of",
        ),
        (
            {"action": gymnasium.spaces.Discrete(2)},
            "spec.action is of type gymnasium.spaces.discrete.Discrete; it should be a Discrete",
        ),
        ({"action": Discrete(0)}, "spec.action.n=0 should be a whole number from 1 to 2147483647"),
        ({"action": Discrete(2**31)}, "n=2147483648 should be a whole number from 1 to 2147483647"),
        ({"action": Discrete(2.0)}, "spec.action.n=2.0 should be a whole number"),
        (
            {"action": gymnasium.spaces.MultiDiscrete([2])},
            "is of type gymnasium.spaces.multi_discrete.MultiDiscrete; it should be a Discrete",
        ),
        ({"action": MultiDiscrete(())}, "spec.action.sizes=() should be a tuple of one or more"),
        ({"action": MultiDiscrete((3, 0))}, "spec.action.sizes=(3, 0) should be a tuple of one or"),
        ({"action": MultiDiscrete((3, 2.0))}, "spec.action.sizes=(3, 2.0) should be a tuple of"),
        ({"action": MultiDiscrete([3, 2])}, "spec.action.sizes=[3, 2] should be a tuple of one"),
        ({"action": MultiDiscrete(3)}, "spec.action.sizes=3 should be a tuple of one or more"),
        (
            {"action": MultiDiscrete(np.array([3, 2]))},
            "spec.action.sizes=array([3, 2]) should be a tuple of one or more whole numbers of at",
        ),
        (
            {"action": Box(np.array([-1, -2]), np.array([1, 2]), (2,))},
            "spec.action.low=array([-1, -2]) should be one number, which is the bound of every",
        ),
        ({"action": Box(-1, "1", (1,))}, "spec.action.high='1' should be one number"),
        ({"action": Box(float("nan"), 1, (1,))}, "spec.action.low=nan should be one number"),
        ({"action": Box(1, -1, (1,))}, "spec.action.low=1 should be below spec.action.high=-1"),
        ({"action": Box(-1, 1, 1)}, "spec.action.shape=1 should be a tuple of whole numbers"),
    ],
)
def test_a_specification_that_does_not_fit_is_named(changes, said):
    message = said_of(specified(**changes)())
    assert message.startswith("environment 'Good': spec")
    assert said in message


class NoSpec:
    reset, step = Good.reset, Good.step


class NoneSpec(Good):
    spec = None


class FailingSpec(Good):
    @property
    def spec(self):
        return self.specification


class MisspeltSpec(Good):
    @property
    def spec(self):
        return EnvSpec("Misspelt", observation_space=(1,), action=Discrete(2))


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (NoSpec(), "environment 'NoSpec' has no attribute spec; it should be a jaxrl_scale.types."),
        (NoneSpec(), "environment 'NoneSpec': spec is of type NoneType; it should be a jaxrl_"),
        (
            FailingSpec(),
            f"environment 'FailingSpec': spec, tests/{HERE}, line "
            f"{line_of(FailingSpec.spec.fget) + 1}: AttributeError: 'FailingSpec' object has no",
        ),
        (MisspeltSpec(), "got an unexpected keyword argument 'observation_space'"),
    ],
)
def test_a_specification_that_is_none_is_told(env, said, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    assert said in said_of(env)


# --- what reset and step return -------------------------------------------------------------


class ObservationShape(Good):
    def obs(self, state):
        return jnp.stack([state, state]).astype(jnp.float32)


class ObservationDtype(Good):
    def obs(self, state):
        return state[None]


class ResetShape(Good):
    def reset(self, key):
        return jnp.zeros((), jnp.int32), jnp.zeros((2, 1))


class ResetDtype(Good):
    def reset(self, key):
        return jnp.zeros((), jnp.int32), jnp.zeros(1, jnp.int32)


class ResetObservationOnly(Good):
    def reset(self, key):
        return jnp.zeros(1)


class ResetSwapped(Good):
    def reset(self, key):
        return jnp.zeros(1), {"time": jnp.zeros((), jnp.int32)}


class ResetNone(Good):
    def reset(self, key):
        pass


class ResetText(Good):
    def reset(self, key):
        return "ready", jnp.zeros(1)


class RewardShape(Good):
    def reward(self, state):
        return jnp.ones(1)


class RewardDtype(Good):
    def reward(self, state):
        return jnp.where(state > 3, 1, 0)


class RewardNone(Good):
    def reward(self, state):
        return None


class EndFloat(Good):
    def ended(self, state):
        return (state >= 5).astype(jnp.float32)


class EndInt(Good):
    def ended(self, state):
        return (state >= 5).astype(jnp.int32)


class TruncatedShape(Good):
    def step(self, key, state, action):
        state, out = super().step(key, state, action)
        return state, out._replace(truncated=jnp.zeros(1, bool))


class ThreeValues(Good):
    def step(self, key, state, action):
        return state + 1, (self.obs(state), 1.0, self.ended(state))


class FourValues(Good):
    def step(self, key, state, action):
        return state + 1, (self.obs(state), 1.0, self.ended(state), False)


class GymnasiumOrder(Good):
    def step(self, key, state, action):
        return self.obs(state), 1.0, self.ended(state), False, {}


class StepOnly(Good):
    def step(self, key, state, action):
        return super().step(key, state, action)[1]


def telling(info):
    """An environment class whose `step` returns this as its own numbers."""

    def step(self, key, state, action):
        state, out = Good.step(self, key, state, action)
        return state, out._replace(info=info)

    return type("Telling", (Good,), {"step": step})


class StateStructure(Good):
    def reset(self, key):
        return {"time": jnp.zeros((), jnp.int32)}, jnp.zeros(1)

    def step(self, key, state, action):
        new, out = super().step(key, state["time"], action)
        return {"time": new, "last": action}, out


class StateDtype(Good):
    def reset(self, key):
        return {"time": jnp.zeros((), jnp.int32)}, jnp.zeros(1)

    def step(self, key, state, action):
        new, out = super().step(key, state["time"], action)
        return {"time": new.astype(jnp.float32)}, out


class StateShape(Good):
    def step(self, key, state, action):
        new, out = super().step(key, state, action)
        return new[None], out


def keeping(kept):
    """An environment whose state is a dict with what ``kept`` makes of the key."""

    def reset(self, key):
        return {"kept": kept(key)}, jnp.zeros(1)

    def step(self, key, state, action):
        return state, TimeStep(jnp.zeros(1), jnp.float32(1), jnp.bool_(False), jnp.bool_(False))

    return type("Good", (Good,), {"reset": reset, "step": step})


class Remembering(Good):
    """Keeps what it should give to the next step, as an environment of Gymnasium does."""

    def reset(self, key):
        self.start = jax.random.uniform(key)
        return super().reset(key)

    def step(self, key, state, action):
        state, out = super().step(key, state, action)
        return state, out._replace(reward=self.start)


def test_an_environment_may_have_a_key_of_its_own():
    base = jax.random.key(7)
    envs.check_env(keeping(lambda key: jax.random.uniform(jax.random.fold_in(base, 3)))())


def drawing(draw):
    """Of an environment that draws without its key."""
    return keeping(lambda key: jnp.asarray(draw(), jnp.float32))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (keeping(lambda key: key), "state['kept'] is a key; keep its words, jax.random.key_data("),
        (keeping(lambda key: jnp.zeros((2, 0))), "state['kept'] is the empty array float32[2,0]"),
        (ObservationShape, "step returned obs float32[2], spec says float32[1]"),
        (
            ObservationDtype,
            "step returned obs int32[1], spec says float32[1]; EnvSpec(…, observation_dtype=jnp.i",
        ),
        (
            Remembering,
            "step uses an array of an earlier trace, which the environment keeps in",
        ),
        (drawing(np.random.uniform), "reset makes another program each time that it is traced, as"),
        (drawing(lambda: np.random.uniform(size=3)), "reset makes another program each time that"),
        (ResetShape, "reset returned observation float32[2,1], spec says float32[1]"),
        (ResetDtype, "reset returned observation int32[1], spec says float32[1]"),
        (
            ResetObservationOnly,
            "reset returned float32[1]; it should return (state, observation float32[1])",
        ),
        (
            ResetSwapped,
            "reset returned observation {'time': int32[]}, spec says float32[1]",
        ),
        (ResetNone, "reset returned None; it should return (state, observation float32[1])"),
        (ResetText, "reset: TypeError: "),
        (RewardShape, "step returned reward float32[1], it should be float32[]"),
        (RewardDtype, "step returned reward int32[], it should be float32[]"),
        (RewardNone, "step returned reward None, it should be float32[]"),
        (EndFloat, "step returned terminated float32[], it should be bool[]"),
        (EndInt, "step returned terminated int32[], it should be bool[]"),
        (TruncatedShape, "step returned truncated bool[1], it should be bool[]"),
        (
            ThreeValues,
            "step returned (int32[], (float32[1], float32[], bool[])); it should return "
            "(state, TimeStep(obs, reward, terminated, truncated))",
        ),
        (
            FourValues,
            "step returned (int32[], (float32[1], float32[], bool[], bool[])); it should return",
        ),
        (
            GymnasiumOrder,
            "step returned (float32[1], float32[], bool[], bool[], {}); it should return (state, ",
        ),
        (StepOnly, "step returned TimeStep(obs=float32[1], reward=float32[], terminated=bool[], "),
        (
            StateStructure,
            "reset returned the state {'time': int32[]} and step returned the state "
            "{'last': int32[], 'time': int32[]}; both should have the same structure, shapes",
        ),
        (
            StateDtype,
            "state['time'] is int32[] after reset and float32[] after step; both should have",
        ),
        (telling([1.0]), "step returned info (float32[]); it should be None or a dict of numbers"),
        (
            telling({"v": jnp.ones(2)}),
            "step returned info['v'] float32[2]; it should be one number or one bool, without axes",
        ),
        (telling({"v": {"x": 1.0}}), "step returned info['v'] {'x': float32[]}; it should be one"),
        (telling({"v": 1j}), "step returned info['v'] complex64[]; it should be one number or"),
        (telling({"v": None}), "step returned info['v'] None; it should be one number or one"),
        (telling({"v": "fast"}), "step: TypeError: "),
        (telling({3: 1.0}), "a name in the info of step=3 should be a text of letters, digits"),
        (telling({"a b": 1.0}), "a name in the info of step='a b' should be a text of letters"),
        (StateShape, "state is int32[] after reset and int32[1] after step; both should have"),
    ],
)
def test_what_a_method_returned_and_should_return_is_told(kind, said):
    message = said_of(kind())
    assert message.startswith(f"environment {kind.__name__!r}: {said}")


# --- errors inside of a method --------------------------------------------------------------


class If(Good):
    def ended(self, state):
        return state >= 5 and jnp.asarray(True)


class NumPy(Good):
    def obs(self, state):
        return np.sin(state)[None]


class Int(Good):
    def obs(self, state):
        return jnp.zeros(int(state))


class Typo(Good):
    def obs(self, state):
        return stat[None]  # noqa: F821


class Shapes(Good):
    def obs(self, state):
        return jnp.ones(3) + jnp.ones(4)


class Exit(Good):
    def reward(self, state):
        sys.exit(0)


@pytest.mark.parametrize(
    ("kind", "method", "said"),
    [
        (If, If.ended, "TracerBoolConversionError: .*; `if`, `while`, .* use jnp.where"),
        (NumPy, NumPy.obs, "TracerArrayConversionError: .*; use jax.numpy instead of numpy"),
        (Int, Int.obs, "ConcretizationTypeError: .*; Python's int, float and bool cannot take"),
        (Typo, Typo.obs, "NameError: name 'stat' is not defined"),
        (Shapes, Shapes.obs, r"TypeError: add got incompatible shapes .*\(3,\), \(4,\)"),
        (Exit, Exit.reward, "SystemExit: 0, which would end the program"),
    ],
)
def test_an_error_of_a_method_is_told_with_its_line(kind, method, said, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    place = f"environment '{kind.__name__}': step, tests/{HERE}, line {line_of(method)}: "
    assert re.match(re.escape(place) + said, said_of(kind()))


class Wrong(Good):
    def __init__(self, depth):
        raise LookupError(f"no depth {depth}")


class ResetWithoutKey(Good):
    def reset(self):
        return jnp.zeros((), jnp.int32), jnp.zeros(1)


class StepWithParams(Good):
    def step(self, key, state, action, params):
        return super().step(key, state, action)


class ActionFirst(Good):
    def step(self, rng, action, state):
        return super().step(rng, state, action)


class OtherNames(Good):
    """``simulate`` is its own affair, as it has the methods of a JAX environment."""

    def step(self, k, s, a):
        return self.simulate(k, s, a)

    def simulate(self, k, s, a):
        return super().step(k, s, a)


def test_arguments_and_other_methods_may_have_any_name():
    envs.check_env(OtherNames())
    assert not envs.on_host(OtherNames())


class NoReset(Good):
    reset = None


INSTANCE = Good()


@pytest.mark.parametrize(
    ("name", "kwargs", "said"),
    [
        ("Wrong", {"depth": 3}, f", tests/{HERE}, line .*: LookupError: no depth 3"),
        ("Wrong", {}, ": missing a required argument: 'depth'; its parameters: depth"),
        ("Wrong", {"dept": 3}, ": missing .*|got an unexpected keyword argument 'dept'; its"),
        ("ResetWithoutKey", {}, r": reset\(\) is called as reset\(key\): too many positional"),
        (
            "StepWithParams",
            {},
            r": step\(key, state, action, params\) is called as step\(key, state, action\): mis",
        ),
        (
            "ActionFirst",
            {},
            r": step\(rng, action, state\) is called as .* its arguments have another order",
        ),
        ("NoReset", {}, ": 'NoReset' was not called, because it should be a class with the"),
        ("INSTANCE", {}, ": 'INSTANCE' is an instance of Good; name the class instead"),
        ("Goood", {}, r": module .* has no 'Goood'; did you mean Good\?"),
    ],
)
def test_a_class_that_cannot_be_an_environment_is_refused(name, kwargs, said, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    with pytest.raises(RunError, match=said) as caught:
        envs.make(f"{__name__}:{name}", **kwargs)
    assert str(caught.value).startswith(f"environment '{__name__}:{name}'")
    assert "\n" not in str(caught.value)


# --- finding a class by its name ------------------------------------------------------------


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of its own into the current directory, and names it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text):
        name = f"mine_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return name

    return write


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import a_package_that_is_not_there", "ModuleNotFoundError: No module named 'a_package_"),
        ("import sys\nsys.exit(0)", "SystemExit: 0, which would end the program"),
        ("class Task(:", "SyntaxError: invalid syntax"),
        ("\n\nlength = 3 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_with_its_line(text, said, module):
    name, line = module(text), len(text.splitlines())
    with pytest.raises(RunError) as caught:
        envs.make(f"{name}:Task")
    message = str(caught.value)
    assert message.startswith(f"environment '{name}:Task', {name}.py, line {line}: {said}")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./tasks.py:Mine", "write it as Python's import does, such as tasks:Mine"),
        ("./tasks:Mine", "write it as Python's import does, such as tasks:Mine"),
        ("sub/tasks:Mine", "write it as Python's import does, such as sub.tasks:Mine"),
        ("my-tasks:Mine", "'my-tasks' is not the name of a module"),
        ("no_such_tasks:Mine", "there is no module 'no_such_tasks' on sys.path or in the current"),
    ],
)
def test_a_name_that_is_no_module_is_refused(name, said, module):
    with pytest.raises(RunError, match=re.escape(said)):
        envs.make(name)


def test_what_is_no_environment_is_not_called(tmp_path):
    """The name may come from the config.json of somebody else's run."""
    proof = tmp_path / "proof"
    with pytest.raises(RunError, match="'system' was not called, because it should be a class"):
        envs.make("os:system", command=f"touch {proof}")
    with pytest.raises(RunError, match="'Path' was not called"):
        envs.make("pathlib:Path")
    assert not proof.exists()


def test_the_command_tells_it_in_one_line_and_makes_no_run_directory(tmp_path):
    run = tmp_path / "run"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "jaxrl_scale.train", f"--run_dir={run}"),
            f"--env={Path(__file__).stem}:ObservationShape",
        ],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: environment 'test_check_env:ObservationShape': "
        "step returned obs float32[2], spec says float32[1]\n"
    )
    assert not run.exists()


def test_an_environment_with_pythons_numbers_trains():
    """JAX calls their types weak; neither the loop nor the compiled step may trip over one."""
    _, history = run(small(devices=2), Numbers(), iterations=2)
    assert all(np.isfinite(metrics["param_norm"]).all() for metrics in history)
