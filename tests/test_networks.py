"""Networks and the distributions of actions that they describe."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_scale.config import Config
from jaxrl_scale.learning import networks
from jaxrl_scale.types import Discrete, EnvSpec


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
