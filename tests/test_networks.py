"""Networks and the distributions of actions that they describe."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_scale.config import Config
from jaxrl_scale.learning import networks
from jaxrl_scale.learning.initializers import orthogonal
from jaxrl_scale.types import Discrete, EnvSpec


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
    policy = networks.categorical(Discrete(4))
    logits = jnp.asarray([-jnp.inf, 0.5, 0.5, -jnp.inf])
    taken = policy.sample(jax.random.key(0), jnp.broadcast_to(logits, (1000, 4)))
    assert set(taken.tolist()) == {1, 2}
    assert float(policy.log_prob(logits, 1)) == pytest.approx(np.log(0.5))
    assert float(policy.entropy(logits)) == pytest.approx(np.log(2))
    slope = jax.grad(lambda x: policy.log_prob(x, 1))(logits)
    np.testing.assert_allclose(slope, [0, 0.5, -0.5, 0], atol=1e-6)
    np.testing.assert_allclose(jax.grad(policy.entropy)(logits), np.zeros(4), atol=1e-6)


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
