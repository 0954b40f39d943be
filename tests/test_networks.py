"""Networks and the distributions of actions that they describe."""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import distributions, networks
from jaxrl_scale.learning.initializers import orthogonal
from jaxrl_scale.types import Box, Discrete, EnvSpec, MultiDiscrete


@pytest.mark.parametrize(
    "shape",
    [
        *((7, 7), (300, 40), (40, 300), (8, 8, 4, 32), (3, 3, 8, 96), (5, 1), (1, 1)),
        *((4, 64), (64, 64), (64, 1), (128, 3), (3, 3, 8, 256)),  # filled up to squares
    ],
)
def test_initial_weights_are_those_of_flax_within_rounding(shape):
    key = jax.random.key(3)
    ours = jax.jit(lambda key: orthogonal(1.5)(key, shape))(key)
    np.testing.assert_allclose(ours, nn.initializers.orthogonal(1.5)(key, shape), atol=1e-5)
    matrix = np.asarray(ours, np.float64).reshape(-1, shape[-1]) / 1.5
    products = matrix.T @ matrix if len(matrix) >= shape[-1] else matrix @ matrix.T
    np.testing.assert_allclose(products, np.eye(len(products)), atol=2e-6)


@pytest.mark.parametrize("kind", ["mlp", "cnn", "nature", "impala_resnet", "recurrent"])
def test_initial_weights_do_not_come_from_a_library_outside_xla(kind):
    """Whose bits would depend on the processor and on variables of the environment."""
    recurrent = kind == "recurrent"
    spec = EnvSpec("images", (36, 36, 3), Discrete(2))
    config = Config(hidden_sizes=(8, 8), network="cnn" if recurrent else kind)
    network = networks.make_policy(config, spec, recurrent=recurrent)
    program = jax.jit(network.init).lower(jax.random.key(0)).as_text()
    assert "while" in program
    assert "custom_call" not in program


def test_an_action_with_a_logit_of_minus_infinity_is_never_taken_and_spoils_nothing():
    policy = distributions.categorical(Discrete(4))
    logits = jnp.asarray([-jnp.inf, 0.5, 0.5, -jnp.inf])
    taken = policy.sample(jax.random.key(0), jnp.broadcast_to(logits, (1000, 4)))
    assert set(taken.tolist()) == {1, 2}
    assert float(policy.log_prob(logits, 1)) == pytest.approx(np.log(0.5))
    assert float(policy.entropy(logits)) == pytest.approx(np.log(2))
    slope = jax.grad(lambda x: policy.log_prob(x, 1))(logits)
    np.testing.assert_allclose(slope, [0, 0.5, -0.5, 0], atol=1e-6)
    np.testing.assert_allclose(jax.grad(policy.entropy)(logits), np.zeros(4), atol=1e-6)


def test_an_action_of_several_parts_is_as_likely_as_they_are_together():
    """By hand. Each part's logits have a number added, which means nothing."""
    sizes = (3, 1, 2)
    policy = distributions.of(MultiDiscrete(sizes))
    logits = np.log([0.2, 0.3, 0.5, 1, 0.25, 0.75]) + np.array([0, 0, 0, 1, -2, -2])
    many = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (100_000, policy.size))
    wanted = np.array([0.05, 0.15, 0.075, 0.225, 0.125, 0.375])  # in the order of the actions

    @jax.jit
    def told(many):
        actions = jnp.array(list(itertools.product(*map(range, sizes))))
        of_each = policy.log_prob(many[:6], actions), policy.sample(jax.random.key(0), many)
        return *of_each, policy.entropy(many[0]), policy.mode(many[0]), policy.parameters(many[0])

    log_prob, drawn, entropy, mode, parameters = told(many)
    np.testing.assert_allclose(np.exp(log_prob), wanted, rtol=1e-5)
    assert float(entropy) == pytest.approx(-np.dot(wanted, np.log(wanted)), rel=1e-5)
    assert mode.tolist() == [2, 0, 1]
    rows = [[0.2, 0.3, 0.5], [1, 0, 0], [0.25, 0.75, 0]]
    np.testing.assert_allclose(parameters["probabilities"], rows, rtol=1e-5)
    assert (drawn.shape, drawn.dtype) == ((100_000, 3), jnp.int32)
    found = np.bincount(np.ravel_multi_index(drawn.T, sizes), minlength=6) / len(drawn)
    np.testing.assert_allclose(found, wanted, atol=0.006)


@pytest.mark.parametrize("sizes", [(2, 4, 3), (3, 3)])
def test_parts_are_categorical_each_by_itself_and_may_be_masked(sizes):
    """Slopes too, behind an axis of time and one of environments."""
    policy, draw = distributions.of(MultiDiscrete(sizes)), np.random.default_rng(0)
    logits = draw.normal(size=(5, 2, sum(sizes))).astype(np.float32)
    logits[..., 1] = -np.inf  # the first part is 0 or what is behind 1
    actions = draw.integers(0, sizes, (5, 2, len(sizes))).astype(np.int32)
    actions[..., 0] = 0
    each = [distributions.categorical(Discrete(n)) for n in sizes]
    ends = np.cumsum(sizes)[:-1].tolist()

    def whole(logits):
        return policy.log_prob(logits, actions), policy.entropy(logits)

    def by_parts(logits):
        found = [
            (one.log_prob(x, actions[..., k]), one.entropy(x))
            for k, (one, x) in enumerate(zip(each, jnp.split(logits, ends, -1), strict=True))
        ]
        return tuple(map(sum, zip(*found, strict=True)))

    @jax.jit
    def both(logits):
        values = whole(logits), by_parts(logits)
        slopes = (
            jax.grad(lambda x, f=f: sum(y.sum() for y in f(x)))(logits) for f in (whole, by_parts)
        )
        return *values, *slopes, policy.sample(jax.random.key(0), logits), policy.mode(logits)

    found, wanted, slope, wanted_slope, drawn, mode = both(logits)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    np.testing.assert_allclose(slope, wanted_slope, atol=1e-6)
    assert np.isfinite(slope).all()
    assert not (drawn[..., 0] == 1).any()
    wanted = [x.argmax(-1) for x in np.split(logits, ends, -1)]
    np.testing.assert_array_equal(mode, np.stack(wanted, -1))


def test_images_of_bytes_are_scaled_to_at_most_one():
    spec = EnvSpec("images", (3, 3, 1), Discrete(2), observation_dtype=np.uint8)
    network = networks.make_q(Config(hidden_sizes=(8,)), spec)
    params = network.init(jax.random.key(0))
    image = np.random.default_rng(0).integers(0, 256, (5, 3, 3, 1)).astype(np.uint8)
    numbers = jnp.asarray(image, jnp.float32) / 255.0
    np.testing.assert_allclose(
        network.apply(params, image), network.apply(params, numbers), atol=1e-6
    )


def test_the_advantages_of_a_dueling_network_have_mean_zero():
    """Equation 9 of https://arxiv.org/abs/1511.06581."""
    spec = EnvSpec("any", (4,), Discrete(3))
    network = networks.make_q(Config(hidden_sizes=(8, 8)), spec, dueling=True)
    params = network.init(jax.random.key(0))
    obs = jax.random.normal(jax.random.key(1), (5, 4))
    q = network.apply(params, obs)
    raised = params | {"advantage": params["advantage"] | {"bias": jnp.full(3, 7.0)}}
    np.testing.assert_allclose(network.apply(raised, obs), q, atol=1e-5)
    raised = params | {"value": params["value"] | {"bias": jnp.full(1, 7.0)}}
    np.testing.assert_allclose(network.apply(raised, obs), q + 7, atol=1e-5)


def gains(params):
    """The largest singular value of each matrix or convolution, by its name."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.linalg.norm(
            np.asarray(x).reshape(-1, x.shape[-1]), 2
        )
        for path, x in leaves
        if x.ndim > 1
    }


def test_initial_weights_have_the_published_gains():
    """√2 in hidden layers, 0.01 in the policy's last one, 1 in that of values."""
    vector, steered = EnvSpec("any", (4,), Discrete(3)), EnvSpec("any", (4,), Box(-1.0, 1.0, (2,)))
    images = EnvSpec("any", (5, 5, 2), Discrete(3))
    config, key = Config(hidden_sizes=(8, 8)), jax.random.key(0)
    found = [
        gains(network.init(key))
        for network in (
            networks.make(config, vector),
            networks.make(config, images),
            networks.make_recurrent(config, vector),
            networks.make_q(config, vector),
            networks.make_q(config, vector, dueling=True),
            networks.make_actor_critics(config, steered),
        )
    ]
    for of_network in found:
        for name, gain in of_network.items():
            *_, layer, _ = name.split("/")
            if layer in ("policy",):
                expected = 0.01
            elif layer.startswith(("value", "action_values", "advantage")):
                expected = 1.0
            elif "memory" in name:
                expected = 1.0 if layer.startswith("h") else gain  # of its inputs: as flax has it
            else:
                expected = np.sqrt(2)
            assert gain == pytest.approx(expected, rel=1e-4), name


def test_samples_of_a_gaussian_policy_have_its_means_and_deviations():
    policy = distributions.gaussian(Box(-1.0, 1.0, (2, 1)))
    numbers = jnp.asarray([0.5, -2.0, np.log(0.3), np.log(2.0)])
    actions = policy.sample(jax.random.key(0), jnp.broadcast_to(numbers, (100_000, 4)))
    assert actions.shape == (100_000, 2, 1)
    np.testing.assert_allclose(actions.mean(0)[:, 0], [0.5, -2.0], atol=0.03)
    np.testing.assert_allclose(actions.std(0)[:, 0], [0.3, 2.0], rtol=0.02)


def test_features_are_normalized_before_their_activation():
    spec = EnvSpec("any", (4,), Discrete(3))
    network = networks.make_q(Config(hidden_sizes=(8,)), spec, layer_norm=True)
    params = network.init(jax.random.key(0))
    obs = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    x = obs @ np.asarray(params["torso"]["Dense_0"]["kernel"])  # biases begin at 0
    x = np.tanh((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6))
    expected = x @ np.asarray(params["action_values"]["kernel"])
    np.testing.assert_allclose(network.apply(params, obs), expected, atol=1e-5)


def test_a_network_from_outside_can_be_dueling():
    """Its policy is read as advantages then."""
    config, spec = Config(network="test_export:Attentive"), EnvSpec("any", (4,), Discrete(3))
    params = networks.make(config, spec).init(jax.random.key(0))
    obs = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    advantage, value = networks.make(config, spec).apply(params, obs)
    q = networks.make_q(config, spec).apply(params, obs)
    np.testing.assert_allclose(q, advantage, atol=1e-6)
    q = networks.make_q(config, spec, dueling=True).apply(params, obs)
    centered = advantage - advantage.mean(-1, keepdims=True)
    np.testing.assert_allclose(q, value[:, None] + centered, atol=1e-6)


class Newest(nn.Module):
    """A network that counts axes from the first, of which it knows one: the batch's."""

    policy_size: int

    @nn.compact
    def __call__(self, obs):
        x = nn.tanh(nn.Dense(8)(obs[:, -1].reshape(obs.shape[0], -1)))
        return nn.Dense(self.policy_size)(x), nn.Dense(1)(x)[:, 0]


@pytest.mark.parametrize("make", [networks.make, networks.make_q])
def test_a_network_from_outside_sees_one_batch_of_observations(make):
    """Also where an algorithm has a time and a batch of environments, as large as an observation,
    or one observation alone."""
    spec = EnvSpec("stacked", (4, 2), Discrete(3))
    network = make(Config(network="test_networks:Newest"), spec)
    params = network.init(jax.random.key(0))
    obs = np.random.default_rng(1).normal(size=(5, 4, 4, 2)).astype(np.float32)
    found = network.apply(params, obs)
    one_by_one = network.apply(params, obs.reshape(20, 4, 2))
    alone = network.apply(params, obs[2, 3])
    for x, y, z in zip(*map(jax.tree.leaves, (found, one_by_one, alone)), strict=True):
        np.testing.assert_allclose(x, y.reshape(5, 4, *y.shape[1:]), atol=1e-6)
        np.testing.assert_allclose(x[2, 3], z, atol=1e-6)


class Wrong(nn.Module):
    """Networks that most batches would not tell from right ones."""

    policy_size: int

    def policy(self, x):
        return nn.Dense(self.policy_size)(x)

    def value(self, x):
        return nn.Dense(1)(x)[:, 0]

    @nn.compact
    def __call__(self, obs):
        return self.policy(obs), self.value(obs)


class Transposed(Wrong):
    def policy(self, x):
        return jnp.stack([nn.Dense(1)(x)[:, 0] for _ in range(self.policy_size)])


class Squeezed(Wrong):
    def value(self, x):
        return nn.Dense(1)(x).squeeze()


class OfHalfDigits(Wrong):
    def policy(self, x):
        return nn.Dense(self.policy_size, dtype=jnp.float32, param_dtype=jnp.bfloat16)(x)


class OfParts(Wrong):
    def policy(self, x):
        init = nn.with_partitioning(nn.initializers.ones, (None, "model"))
        return nn.Dense(self.policy_size, kernel_init=init)(x)


class OfNumbers(Wrong):
    def policy(self, x):
        return nn.Embed(9, self.policy_size)(x)[:, 0]

    def value(self, x):
        return nn.Embed(9, 1)(x)[:, 0, 0]


class OfNothing(Wrong):
    def policy(self, x):
        return x[:, : self.policy_size]

    def value(self, x):
        return x[:, 0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("OfNothing", "has no parameters, so that nothing can be learned; it should have layers"),
        ("Transposed", r"returned \(float32\[2,3\], float32\[3\]\); it should return"),
        ("Squeezed", r"observations float32\[1,4\], returned \(float32\[1,2\], float32\[\]\)"),
        ("OfParts", r"parameter \['Dense_0'\]\['kernel'\], which says how it is partitioned"),
        ("OfHalfDigits", r"parameter \['Dense_0'\]\['bias'\] of bfloat16; parameters should be"),
    ],
)
def test_a_network_from_outside_is_seen_through(name, said):
    spec = EnvSpec("any", (4,), Discrete(2))
    with pytest.raises(RunError, match=said):
        networks.make(Config(network=f"test_networks:{name}"), spec)


def test_a_network_from_outside_is_checked_with_what_it_will_see():
    """Observations that are normalized are real numbers."""
    spec = EnvSpec("any", (4,), Discrete(2), observation_dtype=np.int32)
    config = Config(network="test_networks:OfNumbers")
    networks.make(config, spec)
    normalizing = config.replace(algo=ppo.Config(normalize_observations=True))
    with pytest.raises(RunError, match=r"float32\[3,4\], as they are normalized.*an integer"):
        networks.make(normalizing, spec)
    with pytest.raises(RunError, match="the means and then the logarithms of the standard dev"):
        networks.make(
            Config(network="test_networks:Squeezed"), EnvSpec("any", (4,), Box(-1, 1, (1,)))
        )
    with pytest.raises(RunError, match=r"float32\[1,6\], .* an action's first part, then those of"):
        networks.make(
            Config(network="test_networks:Squeezed"),
            EnvSpec("any", (4,), MultiDiscrete((2, 4))),
        )
