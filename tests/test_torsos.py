"""Networks for images, and that observations stay bytes until their first layer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.extend import core
from running import first_shared, time_at

from jaxrl_scale import algos
from jaxrl_scale.config import Config
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import networks, normalize, torsos
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.types import Box, Discrete, EnvSpec, Rollout


def images(*shape, actions=15):
    return EnvSpec("images", shape, Discrete(actions), observation_dtype=np.uint8)


def size_of(network):
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    return sum(x.size for x in jax.tree.leaves(shapes))


ATARI, PROCGEN = images(84, 84, 4, actions=6), images(64, 64, 3)
HEADS = {"nature": 512 * 7 + 7, "resnet": 256 * 16 + 16, "atari resnet": 256 * 7 + 7}


@pytest.mark.parametrize(
    ("name", "width", "spec", "size"),
    [
        # Mnih et al. 2015: 1,684,128 before the heads; Cobbe et al. 2020: 626,256 with 15 actions
        ("nature", 1, ATARI, 1_684_128 + HEADS["nature"]),
        ("impala_resnet", 1, PROCGEN, 626_256),
        ("impoola", 1, PROCGEN, 626_256 - (8 * 8 - 1) * 32 * 256),
    ],
)
def test_networks_have_the_published_sizes(name, width, spec, size):
    assert size_of(networks.make(Config(network=name, network_width=width), spec)) == size


@pytest.mark.parametrize("name", ["nature", "impala_resnet", "impoola"])
def test_a_wider_network_has_more_channels_in_every_convolution(name):
    def channels(width):
        network = networks.make(Config(network=name, network_width=width), ATARI)
        shapes = jax.tree.leaves(jax.eval_shape(network.init, jax.random.key(0)))
        return [x.shape[-1] for x in shapes if len(x.shape) == 4]

    assert channels(3) == [3 * number for number in channels(1)] != []


OWN = "test_torsos:Own"


class Own(nn.Module):
    """A network from outside that has two of the options."""

    policy_size: int
    activation: str = "relu"
    network_width: int = 1

    @nn.compact
    def __call__(self, obs):
        x = getattr(nn, self.activation)(nn.Dense(8 * self.network_width)(obs))
        return nn.Dense(self.policy_size)(x), nn.Dense(1)(x)[..., 0]


def test_a_network_from_outside_gets_the_options_that_it_has():
    spec = EnvSpec("vectors", (4,), Discrete(2))

    def made(**changes):
        network = networks.make(Config(network=OWN, **changes), spec)
        params = network.init(jax.random.key(0))
        return params["Dense_0"]["kernel"].shape, network.apply(params, jnp.ones((1, 4)))[1]

    assert made()[0] == (4, 8)
    assert made(network_width=3)[0] == (4, 24)
    assert made(activation="gelu")[1] != made()[1] == made(activation="relu")[1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_sizes": (256,), "activation": "gelu", "shared_torso": True}, None),
        ({"network_width": 4}, "network_width has no effect on network 'mlp'"),
        ({"network": OWN}, None),
        ({"network": OWN, "activation": "gelu", "network_width": 2}, None),
        (
            {"network": OWN, "hidden_sizes": (256,), "network_width": 4},
            f"hidden_sizes has no effect on network '{OWN}'",
        ),
        (
            {"network": OWN, "hidden_sizes": (256,), "shared_torso": True},
            f"hidden_sizes, shared_torso have no effect on network '{OWN}'",
        ),
    ],
)
def test_options_that_a_network_does_not_have_are_told(changes, said):
    spec = EnvSpec("vectors", (4,), Discrete(2))
    assert torsos.without_effect(Config(**changes), spec) == said
    wide = {"network_width": 4}
    assert torsos.without_effect(Config(**wide), ATARI) is None


def test_images_with_channels_in_front_are_told():
    """They would be read as images with few rows and many channels."""

    def told(*shape, **changes):
        return torsos.axes_told(Config(**changes), EnvSpec("any", shape, Discrete(2)))

    assert told(4, 84, 84).startswith("observations [4, 84, 84] are read as images of 4 by 84 pix")
    assert told(3, 64, 64) is not None
    for network in ("mine:Net", "mlp"):  # which read none
        assert told(4, 84, 84, network=network) is None
    for shape in ((84, 84, 4), (10, 10, 4), (64, 64, 3), (4, 4, 8), (4,), (3, 3, 84)):
        assert told(*shape) is None


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((4,), "mlp"),
        ((10, 10, 4), "cnn"),
        ((64, 64, 3), "impala_resnet"),
        ((84, 84, 4), "nature"),
        ((210, 160, 3), "nature"),
    ],
)
def test_auto_chooses_by_the_size_of_the_image(shape, kind):
    design = torsos.design(Config(), images(*shape))
    assert design.features.kind == kind
    assert design.shared == (kind in ("impala_resnet", "nature"))
    assert design.hidden_sizes == torsos.KINDS[kind].hidden_sizes


def test_what_the_config_says_stands():
    design = torsos.design(Config(hidden_sizes=(32,), activation="silu"), ATARI)
    assert (design.hidden_sizes, design.features.activation) == ((32,), "silu")


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("nature", (20, 40, 3), "of at least 36 by 36 pixels, but images observes shape (20, 40"),
        ("nature", (20, 40, 3), "try --network=cnn"),
        ("impala_resnet", (4,), "try --network=mlp"),
        ("natur", (84, 84, 4), "did you mean nature?"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_in_one_line(name, shape, said):
    with pytest.raises(RunError) as error:
        torsos.design(Config(network=name), images(*shape))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["nature", "impala_resnet", "impoola"])
def test_every_algorithm_can_use_them(name):
    config = Config(network=name)
    obs = jax.ShapeDtypeStruct((3, 5, 84, 84, 4), np.uint8)
    key = jax.random.key(0)
    for options in ({}, {"dueling": True}, {"layer_norm": True}):
        network = networks.make_q(config, ATARI, **options)
        q = jax.eval_shape(lambda obs, net=network: net.apply(net.init(key), obs), obs)
        assert q.shape == (3, 5, 6)
    steered = dataclasses.replace(ATARI, action=Box(-1.0, 1.0, (2,)))
    both = networks.make_actor_critics(config, steered)
    policy, values = jax.eval_shape(
        lambda obs: (
            both.policy(both.init(key)["policy"], obs),
            both.values(both.init(key)["values"], obs, jnp.zeros((3, 5, 2))),
        ),
        obs,
    )
    assert (policy.shape, values.shape) == ((3, 5, 4), (3, 5, 2))
    network = networks.make_recurrent(config, ATARI)
    carry, (policy, value) = jax.eval_shape(
        lambda obs: network.apply(
            network.init(key), network.init_carry(5), obs, jnp.zeros((3, 5), bool)
        ),
        obs,
    )
    assert (policy.shape, value.shape) == ((3, 5, 6), (3, 5))
    assert carry.shape == (5, torsos.KINDS[name].hidden_sizes[-1])


def test_the_policy_begins_near_uniform():
    network = networks.make(Config(network="impoola"), images(8, 8, 3))
    obs = jnp.asarray(np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3)), jnp.uint8)
    policy, value = jax.jit(lambda key: network.apply(network.init(key), obs))(jax.random.key(0))
    assert float(jnp.abs(policy).max()) < 0.1
    assert 1e-3 < float(jnp.abs(value).max()) < 5


def convolved(layer, x, stride=1, padding="SAME"):
    layout = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(
        x, layer["kernel"], (stride, stride), padding, dimension_numbers=layout
    )
    return np.asarray(y) + np.asarray(layer["bias"])


@pytest.mark.parametrize("name", ["cnn", "nature", "impala_resnet", "impoola"])
def test_convolutions_are_those_of_a_slow_twin(name):
    """As published: a rectifier behind every layer, or before those of a block that is added."""
    torso = torsos.Torso((), torsos.Features(name, "relu", observation_rank=3))
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 256, (2, 36, 36, 3)).astype(np.uint8)
    shapes = jax.eval_shape(torso.init, jax.random.key(0), obs)["params"]
    params = jax.tree.map(lambda x: np.float32(rng.normal(0, 0.1, x.shape)), shapes)
    layers = iter([params[f"Conv_{k}"] for k in range(len(params))])
    x = np.float32(obs) / 255
    if name == "cnn":
        x = np.maximum(convolved(next(layers), x), 0)
    elif name == "nature":
        for stride in (4, 2, 1):
            x = np.maximum(convolved(next(layers), x, stride, "VALID"), 0)
    else:
        for _ in range(3):
            x = nn.max_pool(convolved(next(layers), x), (3, 3), (2, 2), padding="SAME")
            for _ in range(2):
                inner = convolved(next(layers), np.maximum(x, 0))
                x = x + convolved(next(layers), np.maximum(inner, 0))
        x = np.maximum(x, 0)
    assert next(layers, None) is None
    x = x.mean((1, 2)) if name == "impoola" else x.reshape(len(x), -1)
    np.testing.assert_allclose(torso.apply({"params": params}, obs), x, atol=1e-4)


def test_the_weights_of_a_residual_network_begin_as_pytorchs_do():
    """Uniform between ±1 / √n, where n numbers are added up."""
    torso = torsos.Torso((), torsos.Features("impala_resnet", "relu", observation_rank=3))
    params = torso.init(jax.random.key(0), jnp.zeros((1, 8, 8, 3), jnp.uint8))["params"]
    assert len(params) == 15
    for layer in params.values():
        scaled = layer["kernel"] * np.sqrt(layer["kernel"][..., 0].size)
        assert 0.95 < jnp.abs(scaled).max() <= 1
        assert float(scaled.std()) == pytest.approx(1 / np.sqrt(3), rel=0.1)


ACTIVATIONS = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("name", torsos._ACTIVATIONS)
def test_an_activation_is_the_function_that_it_is_called_after(name):
    torso = torsos.Torso((8,), torsos.Features("mlp", name, observation_rank=1))
    obs = np.random.default_rng(0).normal(0, 2, (5, 4)).astype(np.float32)
    params = torso.init(jax.random.key(0), obs)
    x = obs @ np.asarray(params["params"]["Dense_0"]["kernel"])
    np.testing.assert_allclose(torso.apply(params, obs), ACTIVATIONS[name](x), atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 6, 8, 3), (3, 7, 5, 2), (2, 2, 9, 6, 1)])
def test_pooling_and_its_gradient_are_those_of_flax(shape):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(0, 4, shape), jnp.float32)  # with many ties

    def theirs(x):
        return nn.max_pool(x, (3, 3), (2, 2), padding="SAME")

    (a, a_grad), (b, b_grad) = (jax.vjp(pool, x) for pool in (torsos.max_pool, theirs))
    np.testing.assert_array_equal(a, b)
    g = jnp.asarray(rng.normal(size=a.shape), jnp.float32)
    np.testing.assert_allclose(a_grad(g)[0], b_grad(g)[0], atol=1e-6)


# --- bytes ------------------------------------------------------------------------------------

T, B, S = 8, 4, 2
SMALL = images(64, 64, 3, actions=2)


def rollout_of(spec):
    def whole(*shape, dtype=np.float32):
        return jax.ShapeDtypeStruct((S, *shape), dtype)

    flags = [whole(T, B, dtype=bool) for _ in range(3)]
    return Rollout(
        obs=whole(T + 1, B, *spec.observation_shape, dtype=np.uint8),
        is_first=whole(T + 1, B, dtype=bool),
        action=whole(T, B, dtype=np.int32),
        reward=whole(T, B),
        terminated=flags[0],
        truncated=flags[1],
        valid=flags[2],
        carry=(),
        extras=whole(T, B),
    )


def arrays_in(jaxpr):
    """All that a program computes, in its loops and functions too."""
    for eqn in jaxpr.eqns:
        yield from (x.aval for x in eqn.outvars)
        for inner in core.jaxprs_in_params(eqn.params):
            yield from arrays_in(inner)


@pytest.mark.parametrize("name", ["ppo", "pqn", "dqn", "apex"])
@pytest.mark.parametrize("mutant", [False, True])
def test_no_copy_of_the_rollouts_images_is_larger_than_bytes(name, mutant, monkeypatch):
    """Neither in the update nor in its loops is there an array of numbers as large as the
    observations of one shard."""
    if mutant:
        kept = normalize.apply
        monkeypatch.setattr(normalize, "apply", lambda s, x: kept(s, x.astype(jnp.float32)))
        monkeypatch.setattr(networks, "_LARGE", 2**31)
    own = {"replay_size": 2 * S * T * B, "batch_size": S * 4, "learning_starts": 1}
    options = own if name in ("dqn", "apex") else {"minibatch_size": S * T * B // 4}
    if name == "apex":
        options["updates_per_iteration"] = 1
    config = Config(
        algo=algos.get(name).Config(**options),
        num_envs=S * B,
        num_shards=S,
        rollout_length=T,
        network="impoola",
    )
    config.algo.check(config)
    algo = algos.get(name).make(config, SMALL, local_pool(S))
    key = jax.random.key(0)
    rollout = rollout_of(SMALL)
    if name in ("ppo", "apex"):
        rollout = rollout._replace(extras=(rollout.extras, rollout.extras))
    local = jax.eval_shape(
        jax.vmap(algo.init_local, (None, 0)), key, jax.ShapeDtypeStruct((S,), np.int32)
    )
    shared = jax.eval_shape(lambda: first_shared(algo, config))
    program = jax.make_jaxpr(algo.update)(shared, local, rollout, key, time_at(0))
    pixels = np.prod(SMALL.observation_shape)
    wide = [
        x
        for x in arrays_in(program.jaxpr)
        if x.dtype == np.float32
        and x.shape[-3:] == SMALL.observation_shape
        and x.size >= T * B * pixels
    ]
    assert bool(wide) == (mutant and name == "pqn")
