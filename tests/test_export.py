"""Exported policies: each form acts as the agent that it was written from."""

import functools
import importlib.util
import io
import os
import subprocess
import sys
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from running import begun, first_shared, time_at

from jaxrl_scale import algos, export
from jaxrl_scale.config import Config
from jaxrl_scale.errors import RunError
from jaxrl_scale.loop.agent import Agent, load
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.portable import numpy_text, onnx_graph, program
from jaxrl_scale.types import Box, Discrete, EnvSpec, MultiDiscrete

VECTOR = EnvSpec("Vector", (4,), Discrete(5))
BOX = EnvSpec("Vector", (3,), Box(-0.5, 0.5, (2, 1)))
PARTS = EnvSpec("Parts", (4,), MultiDiscrete((3, 5, 1)))
SWITCHES = EnvSpec("Switches", (4,), MultiDiscrete((2,) * 4))
MASKED = EnvSpec("Masked", (8,), Discrete(5), action_mask=True)
MASKED_PARTS = EnvSpec("MaskedParts", (9,), MultiDiscrete((3, 2)), action_mask=True)
NUMBER = EnvSpec("Number", (1,), Box(-9.0, 9.0, (1,)))


def images(size, action=Discrete(40)):  # noqa: B008  frozen
    return EnvSpec("Images", (size, size, 3), action, observation_dtype=np.uint8)


# A deep network of random weights has one favourite among discrete actions, whatever it sees.
WIDE = Box(-1e6, 1e6, (3,))


class Case(NamedTuple):
    algo: str
    options: dict
    spec: EnvSpec
    config: dict


NORMALIZED = {"normalize_observations": True}
CASES = {
    "two torsos": Case("ppo", {}, VECTOR, {}),
    "continuous": Case("ppo", NORMALIZED, BOX, {"activation": "gelu"}),
    "shared": Case("a2c", NORMALIZED, VECTOR, {"shared_torso": True, "activation": "silu"}),
    "behind": Case("impala", {}, VECTOR, {"activation": "relu", "hidden_sizes": ()}),
    "memory": Case("ppo", NORMALIZED | {"recurrent": True}, VECTOR, {}),
    "memory of images": Case("ppo", {"recurrent": True}, images(6), {}),
    "dueling": Case("dqn", NORMALIZED | {"dueling": True}, VECTOR, {}),
    "oldest weights": Case("apex", {"lag": 1}, VECTOR, {}),
    "squashed": Case("sac", NORMALIZED, BOX, {"activation": "relu"}),
    "layer norm": Case("pqn", {}, images(6), {}),
    "nature": Case("dqn", {}, images(36), {"network": "nature"}),
    "resnet": Case("ppo", {}, images(9, WIDE), {"network": "impala_resnet"}),
    "impoola": Case("impala", {}, images(8, WIDE), {"network": "impoola"}),
    "parts": Case("ppo", NORMALIZED | {"recurrent": True}, PARTS, {}),
    "switches": Case("a2c", {}, SWITCHES, {}),
    "masked": Case("dqn", NORMALIZED | {"dueling": True}, MASKED, {}),
    "masked parts": Case("ppo", NORMALIZED | {"recurrent": True}, MASKED_PARTS, {}),
    "own": Case("ppo", {}, VECTOR, {"network": "test_export:Attentive"}),
    "own of one number": Case("a2c", {}, NUMBER, {"network": "test_export:Scaled"}),
    "own of integers": Case("a2c", {}, images(6, WIDE), {"network": "test_export:Bits"}),
    "own memory": Case("ppo", {"recurrent": True}, VECTOR, {"network": "test_export:Remembering"}),
    "own for images": Case("a2c", {}, images(6, WIDE), {"network": "test_export:Strided"}),
}
FORMS = ("numpy", "stablehlo", "onnx")
TITLE = r'A policy of C:\N\""".'


class Attentive(nn.Module):
    """A network of one's own, with operations that none of ours has."""

    policy_size: int

    @nn.compact
    def __call__(self, obs):
        weight = nn.softmax(nn.remat(nn.Dense)(8)(obs))
        context = self.param("context", nn.initializers.ones, (3,))
        context = jnp.broadcast_to(context, (*obs.shape[:-1], 3))
        x = [weight * nn.relu(nn.Dense(8)(obs)), context, jnp.abs(obs) ** 2]
        x = jnp.concatenate(x, -1)
        return nn.Dense(self.policy_size)(x), nn.Dense(1)(x)[..., 0]


class Scaled(nn.Module):
    """One whose weights are made of others: ``[1, 16]`` where an observation is one number."""

    policy_size: int

    @nn.compact
    def __call__(self, obs):
        weights = self.param("weights", nn.initializers.normal(), (obs.shape[-1], 16))
        x = jnp.tanh(obs @ (weights * 2.0))
        return nn.Dense(self.policy_size)(x), nn.Dense(1)(x)[..., 0]


class Remembering(nn.Module):
    """One whose memory has three arrays: an LSTM's two, and how many steps it has seen."""

    policy_size: int

    def init_carry(self, batch_size):
        zeros = jnp.zeros((batch_size, 16))
        return {"lstm": (zeros, zeros), "steps": jnp.zeros(batch_size, jnp.int32)}

    @nn.compact
    def __call__(self, carry, obs):
        lstm, x = nn.OptimizedLSTMCell(16)(carry["lstm"], obs)
        x = x * jnp.where((carry["steps"] & 1) == 0, 1.0, -1.0)[:, None]
        seen = nn.Dense(self.policy_size)(x), nn.Dense(1)(x)[..., 0]
        return {"lstm": lstm, "steps": carry["steps"] + 1}, seen


class Strided(Attentive):
    """One whose convolution has edges that are not alike."""

    @nn.compact
    def __call__(self, obs):
        x = nn.relu(nn.Conv(4, (3, 3), strides=(2, 2))(obs / 255.0)).mean((-3, -2))
        return nn.Dense(self.policy_size)(x), nn.Dense(1)(x)[..., 0]


class Unlisted(Attentive):
    """One with an operation that only XLA knows."""

    @nn.compact
    def __call__(self, obs):
        x = jax.lax.sort(obs)
        return nn.Dense(self.policy_size)(x), nn.Dense(1)(x)[..., 0]


class Halved(Attentive):
    """One that computes in a dtype of which NumPy knows nothing."""

    @nn.compact
    def __call__(self, obs):
        x = nn.tanh(nn.Dense(16, dtype=jnp.bfloat16)(obs)).astype(jnp.float32)
        return nn.Dense(self.policy_size)(x), nn.Dense(1)(x)[..., 0]


class Bits(Attentive):
    """One that computes with integers."""

    def bits(self, obs):
        return jnp.concatenate([obs // 64 * 4, ~obs & 15], -1)

    @nn.compact
    def __call__(self, obs):
        x = self.bits(obs).reshape(*obs.shape[:-3], -1) / 16.0
        return nn.Dense(self.policy_size)(x), nn.Dense(1)(x)[..., 0]


class Counted(Attentive):
    """One that asks for the size of its batch as a number."""

    @nn.compact
    def __call__(self, obs):
        x = obs.reshape(len(obs), -1)
        return nn.Dense(self.policy_size)(x), nn.Dense(1)(x)[..., 0]


class Negated(Bits):
    """One that ONNX has no operation for."""

    def bits(self, obs):
        return -obs


class Environment:
    def __init__(self, spec):
        self.spec = spec


def agent_of(case, num_seeds=1):
    """One whose weights and statistics are all random."""
    sizes = {"num_envs": 4, "num_shards": 1, "hidden_sizes": (8,), "num_seeds": num_seeds}
    options = algos.get(case.algo).Config(**case.options)
    config = Config(algo=options, **sizes | case.config)
    algo = algos.get(case.algo).make(config, case.spec, local_pool(1))
    actor = jax.jit(lambda shared: algo.actor(shared, time_at(0)))(first_shared(algo, config))
    draw = np.random.default_rng(1)

    def noisy(path, x):
        x = np.broadcast_to(x, (num_seeds, *x.shape))
        if x.dtype != np.float32:
            return x
        name = jax.tree_util.keystr(path[-1:], simple=True)
        scale = 0.05 if name == "bias" else 0.2  # larger ones, and every image means the same
        moved = x + scale * draw.normal(size=x.shape).astype(np.float32)
        return np.abs(moved) if name == "variance" else moved

    actor = jax.tree_util.tree_map_with_path(noisy, actor)
    return Agent(config, Environment(case.spec), algo, actor, iteration=3)


class Exported(NamedTuple):
    agent: Agent
    files: dict[str, bytes]
    policy: object  # the module policy.py


@functools.cache
def exported(name, folder):
    agent = agent_of(CASES[name])
    onnx = importlib.util.find_spec("onnx") is not None
    made, left_out = export.forms(agent, TITLE, onnx)
    assert left_out == ""
    return Exported(agent, made, module_of(made, folder / name))


def module_of(made, folder):
    """``policy.py`` of exported files, imported."""
    folder.mkdir()
    for name, data in made.items():
        (folder / name).write_bytes(data)
    spec = importlib.util.spec_from_file_location("policy", folder / "policy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("policies")


def observations(spec, number, seed=0):
    draw = np.random.default_rng(seed)
    if spec.observation_dtype == np.uint8:
        # Each with a brightness of its own: of pure noise all look alike to a network.
        dark, light = draw.integers(0, 256, (2, number, 1, 1, 3))
        pixels = draw.random((number, *spec.observation_shape))
        return (dark + pixels * (light - dark)).astype(np.uint8)
    seen = draw.normal(size=(number, *spec.observation_shape)).astype(np.float32)
    if spec.action_mask:
        size = sum(spec.action.sizes)
        seen[:, -size:] = draw.random((number, size)) < 0.6
    return seen


def caller(form, found):
    """``f(**inputs) -> outputs`` of an exported form, all by name."""
    if form == "numpy":
        return lambda **inputs: found.policy.network(**inputs)
    if form == "stablehlo":
        stored = jax.export.deserialize(bytearray(found.files["policy.stablehlo"]))
        assert stored.platforms == ("cpu", "cuda")
        return lambda **inputs: stored.call(**inputs)
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(found.files["policy.onnx"])
    names = [x.name for x in session.get_outputs()]

    def call(**inputs):
        outputs = zip(names, session.run(names, inputs), strict=True)
        return {name.removeprefix("next_"): x for name, x in outputs}

    return call


def named(memory):
    """The arrays of a memory of ``policy.py``, by the names that they have in ``network``."""
    arrays = memory if isinstance(memory, tuple) else (memory,)
    return dict(zip(program.memory_names(len(arrays)), arrays, strict=True))


def check_actions(form, name, folder, times, number):
    """On so many observations at so many times. Policies with a memory see ``number`` episodes,
    which begin anew here and there. The best two scores of an action that differs are equal within
    rounding."""
    found = exported(name, folder)
    spec, call = CASES[name].spec, caller(form, found)
    found.agent.reset()
    recurrent = hasattr(found.policy, "empty_memory")
    memory = named(found.policy.empty_memory(number)) if recurrent else {}
    taken, other = [], 0
    for t, obs in enumerate(np.split(observations(spec, times * number), times)):
        first = np.random.default_rng(t).random(number) < 0.2
        wanted = found.agent.act(obs, is_first=first)
        inputs = memory | {"is_first": first} if memory else {}
        outputs = call(obs=obs, **inputs)
        action, memory = np.asarray(outputs["action"]), {n: np.asarray(outputs[n]) for n in memory}
        if isinstance(spec.action, Box):
            np.testing.assert_allclose(action, wanted, rtol=0, atol=1e-4 * wanted.std())
        else:
            unlike = action != wanted
            other += unlike.sum()
            best = np.sort(found.policy.network(obs=obs, **inputs)["scores"][unlike])
            np.testing.assert_allclose(best[:, -1], best[:, -2], rtol=0, atol=1e-4)
        taken.append(action)
    assert other <= 3
    taken = np.concatenate(taken)
    often = (taken == np.roll(taken, 1, 0)).mean()
    assert often < 0.9, "it nearly always acts alike: another seed is needed"


LARGE = [name for name, case in CASES.items() if case.spec.observation_dtype == np.uint8]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", FORMS)
def test_each_form_takes_the_actions_of_the_agent(form, name, folder):
    """On 10,000 observations, or on 200 images."""
    check_actions(form, name, folder, 10, 20 if name in LARGE else 1_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("form", FORMS)
def test_each_form_takes_the_actions_of_the_agent_on_10_000_images(form, name, folder):
    check_actions(form, name, folder, 100, 100)


@pytest.mark.parametrize("name", ["two torsos", "continuous", "nature"])
def test_one_observation_gives_one_action_and_the_file_says_how(name, folder):
    policy, spec = exported(name, folder).policy, CASES[name].spec
    batch = observations(spec, 3)
    actions = policy.act(batch)
    for obs, action in zip(batch, actions, strict=True):
        one = policy.act(obs.tolist())
        assert one.shape == getattr(spec.action, "shape", ())
        np.testing.assert_allclose(one, action, atol=1e-6)
    assert str(list(spec.observation_shape)) in policy.__doc__
    assert policy.__doc__.startswith(TITLE)


@pytest.mark.parametrize("name", ["two torsos", "own of one number", "nature"])
def test_what_is_no_observation_is_refused_in_the_words_of_the_agent(name, folder):
    agent, _, policy = exported(name, folder)
    spec = CASES[name].spec
    shape, of_bytes = spec.observation_shape, spec.observation_dtype == np.uint8
    wrong = ["left", np.full(shape, "x"), None, np.full(shape, None), [[1.0], [1.0, 2.0]]]
    wrong += [np.zeros((2, 2, *shape))]
    wrong += [np.zeros((*shape[:-1], 50)), np.zeros(())] if shape else []
    wrong += [np.full(shape, x) for x in (0.5, 300, -1, np.nan)] if of_bytes else []
    for obs in wrong:
        with pytest.raises(RunError) as raised:
            agent.act(obs)
        with pytest.raises(ValueError, match="observation") as also:
            policy.act(obs)
        assert str(also.value) == str(raised.value).replace(spec.id, "the policy")
    if of_bytes:
        image = observations(spec, 1)[0]
        assert (policy.act(image.astype(np.float32)) == policy.act(image)).all()


def test_a_policy_with_a_memory_refuses_what_is_no_batch_of_observations(folder):
    policy, spec = exported("memory of images", folder).policy, images(6)
    memory, shape = policy.empty_memory(2), spec.observation_shape
    for obs, said in (
        (
            np.zeros((2, 3)),
            rf"shape \(2, 3\) is none of the policy; it should be \(B, {shape[0]}, ",
        ),
        (np.zeros(shape), r"shape \(6, 6, 3\) is none of the policy; it should be \(B, 6, 6, 3\)"),
        (np.full((2, *shape), 0.5), "its numbers are uint8, and 0.5 is none"),
    ):
        with pytest.raises(ValueError, match=said):
            policy.act(obs, memory)


@pytest.mark.parametrize("name", ["memory", "own memory"])
def test_a_policy_with_a_memory_hands_the_next_one_back(name, folder):
    """By hand, for batches of two: the memory of the first step, and where episodes begin."""
    policy, batches = exported(name, folder).policy, np.split(observations(VECTOR, 6), 3)
    first, later = np.array([True, True]), np.array([False, True])
    memory = policy.empty_memory(2)
    empty = named(memory)
    assert not any(x.any() for x in empty.values())
    for obs, is_first in zip(batches, (first, None, later), strict=True):
        flags = np.zeros(2, bool) if is_first is None else is_first
        wanted = policy.network(obs, **named(memory), is_first=flags)
        action, memory = policy.act(obs, memory, is_first)
        np.testing.assert_array_equal(action, wanted["action"])
        jax.tree.map(np.testing.assert_array_equal, named(memory), {n: wanted[n] for n in empty})
    begun = policy.network(batches[2], **empty, is_first=first)
    for array, x in named(memory).items():
        assert (x[0] != begun[array][0]).any()
        np.testing.assert_array_equal(x[1], begun[array][1])


def test_the_text_is_short_enough_to_read(folder):
    """A dense layer is a line, and no line is longer than those of this project."""
    lines = exported("two torsos", folder).files["policy.py"].decode().splitlines()
    wanted = 'x1 = np.tanh(obs @ W["actor/Dense_0/kernel"] + W["actor/Dense_0/bias"])'
    assert f"    {wanted}" in lines
    assert not any("critic" in line or "value/" in line for line in lines)
    for name in CASES:
        lines = exported(name, folder).files["policy.py"].decode().splitlines()
        assert max(map(len, lines)) <= 100, name
        assert len(lines) < 100, name


@pytest.mark.parametrize(
    ("network", "why"),
    [
        ("Unlisted", "the network's operation 'sort' cannot be exported"),
        ("Halved", "NumPy has no bfloat16, with which the network computes"),
    ],
)
def test_what_cannot_be_listed_is_written_as_stablehlo_alone(network, why):
    case = CASES["own"]._replace(config={"network": f"test_export:{network}"})
    agent = agent_of(case)
    made, left_out = export.forms(agent, "A policy.", onnx=False)
    assert list(made) == ["policy.stablehlo"]
    assert left_out == f"only StableHLO was written: {why}"
    obs = observations(VECTOR, 100)
    stored = jax.export.deserialize(bytearray(made["policy.stablehlo"]))
    assert (stored.call(obs=obs)["action"] == agent.act(obs)).all()


def test_what_fails_in_ones_own_network_is_told_in_one_line():
    case = CASES["own"]._replace(config={"network": "test_export:Counted"})
    said = r"^the policy, \S*test_export.py, line \d+: TypeError: .*; a policy is exported for bat"
    with pytest.raises(RunError, match=said):
        export.forms(agent_of(case), "A policy.", onnx=False)


def test_what_onnx_has_no_operation_for_is_written_without_it():
    pytest.importorskip("onnx")
    case = Case("a2c", {}, images(6, WIDE), {"network": "test_export:Negated"})
    made, left_out = export.forms(agent_of(case), "A policy.", onnx=True)
    assert list(made) == ["policy.stablehlo", "policy.npz", "policy.py"]
    assert left_out == "policy.onnx was not written: ONNX's Neg takes no uint8"


# --- integers -----------------------------------------------------------------------------------


def divided(x, *by):
    return jax.lax.div(x, jnp.broadcast_to(jnp.array(by, x.dtype), x.shape))


def multiplied(x, dtype):
    weights = jnp.arange(12).reshape(4, 3).astype(x.dtype)
    numbers = (((1,), (0,)), ((), ()))
    return jax.lax.dot_general(x, weights, numbers, preferred_element_type=dtype)


OF_INTEGERS = {
    "divided by a number": lambda x: divided(x, 7),
    "divided by numbers": lambda x: divided(x, 1, 3, 64, 100),
    "not": lambda x: ~x,
    "and, or": lambda x: (x & 12) | 3,
    "minus": lambda x: -x,
    "wrapped around": lambda x: x * 3 + 100 - x * x,
    "third power": lambda x: x**3,
    "seventh power": lambda x: x**7,
    "sum": lambda x: x.sum(-1) - 5,
    "sum of the same dtype": lambda x: x.sum(-1, dtype=x.dtype),
    "list of indices": lambda x: x[:, np.array([[3, 0], [0, 2]])] * 3,
    "index": lambda x: ~jax.lax.argmax(x, 1, x.dtype),
    "one of two numbers": lambda x: jnp.where(x > 9, x.dtype.type(100), x.dtype.type(50)) * 3,
    "least and largest": lambda x: jnp.clip(x, 5, 50).max(-1) - jnp.abs(x).min(-1),
    "product": lambda x: multiplied(x, x.dtype),
    "wider product": lambda x: multiplied(x, jnp.int32),
    "real power": lambda x: jax.lax.pow(x / jnp.float32(99.0), x & 3),
    "real number": lambda x: ((x - 100.0) * 3.7).astype(x.dtype),
    "narrower": lambda x: (x * 2).astype(jnp.int8),
}
NOT_IN_ONNX = {("minus", "uint8"), ("product", "uint8"), ("product", "int8")}


class Plain(NamedTuple):
    """An algorithm whose action is a function of the observation."""

    function: object

    def init_carry(self, number):
        return ()

    def act(self, actor, state, carry, obs, first, key, greedy):
        return self.function(obs), carry, None


def arrays_file(arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def listed(function, dtype):
    return program.trace(
        Plain(function), {}, EnvSpec("Four", (4,), Discrete(2), observation_dtype=dtype)
    )


def written(form, found, folder):
    """What calls a listed program in one of its forms: see `caller`."""
    made = {"policy.npz": arrays_file(found.weights)}
    made["policy.py"] = numpy_text.write(found, "A policy.").encode()
    if form == "onnx":
        pytest.importorskip("onnx")
        made["policy.onnx"] = onnx_graph.write(found, "A policy.")
    return caller(form, Exported(None, made, module_of(made, folder / "policy")))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("name", OF_INTEGERS)
@pytest.mark.parametrize("form", ["numpy", "onnx"])
def test_integers_are_computed_as_by_jax(form, name, dtype, tmp_path):
    """Bit for bit and in the same dtype: they are divided, wrap around and are widened alike."""
    known = np.iinfo(dtype)
    obs = np.random.default_rng(0).integers(known.min, known.max + 1, (500, 4), dtype)
    function = OF_INTEGERS[name]
    found = listed(function, dtype)
    if form == "onnx" and (name, dtype) in NOT_IN_ONNX:
        pytest.importorskip("onnx")
        with pytest.raises(program.NotListed, match=f"ONNX's (Neg|MatMul) takes no {dtype}"):
            onnx_graph.write(found, "A policy.")
        return
    call = written(form, found, tmp_path)
    action, wanted = call(obs=obs)["action"], np.asarray(function(jnp.asarray(obs)))
    assert action.dtype == wanted.dtype
    if wanted.dtype == np.float32:
        np.testing.assert_allclose(action, wanted, rtol=1e-6)
    else:
        np.testing.assert_array_equal(action, wanted)


OF_BOOLS = {
    "allowed": lambda x: x[:, 2:] >= x[:, 2:].max(-1, keepdims=True),
    "least": lambda x: x.min(-1),
    "largest of two": lambda x: jnp.maximum(x[:, :2], x[:, 2:]) < x[:, :2],
    "index": lambda x: x.argmax(1).astype(jnp.int32),
}


@pytest.mark.parametrize("name", OF_BOOLS)
@pytest.mark.parametrize("form", ["numpy", "onnx"])
def test_bools_are_compared_as_by_jax(form, name, tmp_path):
    """As a mask of bools is, for which ONNX has no words."""
    obs = np.random.default_rng(0).random((50, 4)) < 0.5
    function = OF_BOOLS[name]
    found = listed(function, bool)
    call = written(form, found, tmp_path)
    action, wanted = call(obs=obs)["action"], np.asarray(function(jnp.asarray(obs)))
    assert action.dtype == wanted.dtype
    np.testing.assert_array_equal(action, wanted)


class Counting(NamedTuple):
    """An algorithm whose memory is of any shape."""

    empty: jax.Array

    def init_carry(self, number):
        return jnp.broadcast_to(self.empty, (number, *self.empty.shape))

    def act(self, actor, state, carry, obs, first, key, greedy):
        carry = jnp.where(first.reshape(-1, *(1,) * self.empty.ndim), self.empty, carry + 1)
        return obs[:, 0] + carry.reshape(obs.shape[0], -1)[:, 0], carry, None


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_a_memory_has_its_shape_and_dtype(shape, dtype, tmp_path):
    spec = EnvSpec("Four", (4,), Discrete(2))
    found = program.trace(Counting(jnp.zeros(shape, dtype)), {}, spec)
    text = numpy_text.write(found, "A policy.").encode()
    made = {"policy.npz": arrays_file(found.weights), "policy.py": text}
    policy = module_of(made, tmp_path / "policy")
    memory = policy.empty_memory(5)
    assert (memory.shape, memory.dtype) == ((5, *shape), dtype)
    action, memory = policy.act(np.zeros((5, 4)), memory)
    assert (memory.shape, memory.dtype) == ((5, *shape), dtype)
    assert (action == 1).all()


def test_a_memory_that_does_not_begin_with_zeros_is_refused():
    spec = EnvSpec("Four", (4,), Discrete(2))
    with pytest.raises(program.NotListed, match="memory that does not begin with zeros"):
        program.trace(Counting(jnp.ones(3)), {}, spec)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: jax.lax.div(x, x), "integers can only be divided by constants"),
        (lambda x: divided(x, 1, 2, 0, 3), "integers can only be divided by constants"),
        (lambda x: divided(x, -1), "integers can only be divided by constants"),
        (lambda x: jax.lax.select_n(x, x, x + 1), "a choice among arrays by a number"),
        (lambda x: multiplied(1.0 * x, jnp.float16), "a product that is rounded to float16"),
        (
            lambda x: x.reshape(x.shape[0], 2, 2)[:, np.array([1, 0])],
            "lists of indices can only be",
        ),
        (lambda x: x[:, np.array([1, 4])], "lists of indices can only be exported for the last"),
        (lambda x: x.astype(jnp.bfloat16) + 1, "NumPy has no bfloat16"),
        (lambda x: (x.astype(jnp.int4) + 1).astype(jnp.int32), "NumPy has no int4"),
    ],
)
def test_what_the_forms_would_compute_otherwise_is_refused(function, why):
    with pytest.raises(program.NotListed, match=why):
        listed(function, np.int32)


# --- the command --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two agents, of which the second has failed."""
    path = tmp_path_factory.mktemp("runs") / "walk"
    sizes = {"num_envs": 4, "num_shards": 1, "rollout_length": 512, "hidden_sizes": (8,)}
    begun(path, Config(**sizes, num_seeds=2), failed={1: 12})
    return path


def command(*argv, capfd):
    """The command in this process: exit status and what it printed."""
    status = export.main([*map(str, argv)])
    return status, *capfd.readouterr()


def test_the_command_writes_files_that_act_without_jax_and_this_package(run, capfd):
    status, out, err = command(run, capfd=capfd)
    written = "policy.stablehlo, policy.npz, policy.py"
    assert (status, out, err) == (0, f"wrote {written} into {run}/export\n", "")
    assert {path.name for path in (run / "export").iterdir()} == set(written.split(", "))
    obs = observations(VECTOR, 100)
    np.save(run / "obs.npy", obs)
    code = """
import sys
sys.modules["jax"] = sys.modules["jaxrl_scale"] = None  # not to be imported
import numpy, policy
print(policy.__doc__.splitlines()[0])
print(*policy.act(numpy.load("../obs.npy")))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=run / "export",
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.stderr == ""
    title, actions = done.stdout.splitlines()
    assert title == "A policy for CartPole-v1: walk, agent 0, iteration 0."
    assert actions.split() == [str(x) for x in load(run).act(obs)]


def test_another_folder_and_onnx_can_be_asked_for(run, tmp_path, capfd):
    pytest.importorskip("onnx")
    out = tmp_path / "a" / "b"
    assert command(run, "--out", out, "--onnx", capfd=capfd)[0] == 0
    assert (out / "policy.onnx").stat().st_size > 100
    status, _, err = command(run, "--out", out, capfd=capfd)
    assert (status, err) == (0, "of an earlier export, and left there: policy.onnx\n")


def test_the_best_checkpoint_can_be_asked_for(run, tmp_path, capfd, monkeypatch):
    asked = []

    def loaded(*given):
        asked.append(given)
        return load(*given)

    monkeypatch.setattr(export, "load", loaded)
    assert command(run, "--checkpoint=best", "--out", tmp_path, capfd=capfd)[0] == 0
    assert asked == [(run, 0, "best")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--agent=2"], "agent=2: the run has agents 0 to 1"),
        (["--agent=1"], "agent 1 has failed: its loss or another metric is not finite"),
        (["--agent=x"], "--agent: 'x' should be a whole number of at least 0"),
        (["--ot=x"], "unknown option --ot; did you mean --out?"),
        (["--onnx"], "--onnx needs the package onnx, which is not installed; make install EXTRA="),
    ],
    ids=lambda x: x[0] if isinstance(x, list) else "",
)
def test_a_mistake_is_told_in_one_line(run, arguments, message, capfd, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status, out, err = command(run, *arguments, capfd=capfd)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {message}"), err
    assert err.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_told(run, tmp_path, capfd, monkeypatch):
    (tmp_path / "file").touch()
    status, _, err = command(run, "--out", tmp_path / "file", capfd=capfd)
    told = f"cannot write {tmp_path}/file: {tmp_path}/file is a file; it should be a folder"
    assert (status, err) == (74, f"error: {told}\n")
    with monkeypatch.context() as patch:  # somebody else's run; root may write everywhere
        patch.setattr(os, "access", lambda *_: False)
        status, _, err = command(run, capfd=capfd)
    told = f"cannot write {run}/export/policy.py: Permission denied; --out=FOLDER names another"
    assert (status, err) == (74, f"error: {told} place\n")
    status, _, err = command(tmp_path, capfd=capfd)
    assert (status, err) == (
        2,
        f"error: {tmp_path} is not a run directory: it has no config.json\n",
    )
