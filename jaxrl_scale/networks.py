"""Networks (flax linen, used by ``init`` and ``apply`` only) and the policies they describe.

A network is a flax module with one field ``policy_size`` whose call maps observations
``[..., *observation_shape]`` to ``(policy [..., policy_size], value [...])``. What a caller
does not use of the two is never computed: XLA drops it. A class from outside the package is
one more such module: ``--network=my_package.my_module:MyNetwork``.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import orthogonal, zeros_init

from jaxrl_scale.config import Config, nearest
from jaxrl_scale.types import Array, Box, Discrete, EnvSpec, Key, PyTree, UserError

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": nn.relu,
    "silu": nn.silu,
    "gelu": nn.gelu,
}


class Policy(NamedTuple):
    """What an action distribution can do, as functions of the network's ``policy`` output."""

    size: int
    sample: Callable[[Key, Array], Array]
    """``(key, policy [..., size]) -> action [..., *action.shape]``"""
    mode: Callable[[Array], Array]
    log_prob: Callable[[Array, Array], Array]
    """``(policy, action) -> [...]``"""
    entropy: Callable[[Array], Array]
    """``(policy) -> [...]``"""


class Network(NamedTuple):
    """A flax module as two pure functions, and how its ``policy`` output is read."""

    init: Callable[[Key], PyTree]
    apply: Callable[[PyTree, Array], tuple[Array, Array]]
    """``(params, obs [..., *observation_shape]) -> (policy [..., size], value [...])``"""
    policy: Policy


def make(config: Config, spec: EnvSpec) -> Network:
    """The config's network for an environment."""
    policy = gaussian(spec.action) if isinstance(spec.action, Box) else categorical(spec.action)
    try:
        module = _module(config, spec)(policy_size=policy.size)
    except TypeError as error:
        raise UserError(
            f"network {config.network} cannot be made with policy_size={policy.size}: {error}; "
            "it should be a flax module whose one required field is policy_size: int"
        ) from error
    obs = jnp.zeros((1, *spec.observation_shape), spec.observation_dtype)

    def init(key: Key) -> PyTree:
        return module.init(key, obs)["params"]

    def apply(params: PyTree, obs: Array) -> tuple[Array, Array]:
        policy_and_value: tuple[Array, Array] = module.apply({"params": params}, obs)  # type: ignore[assignment]
        return policy_and_value

    return Network(init, apply, policy)


def check(network: Network, spec: EnvSpec, name: str) -> None:
    """Raise a `UserError` where the network's outputs do not have the shapes they should."""
    obs = jax.ShapeDtypeStruct((2, *spec.observation_shape), spec.observation_dtype)
    try:
        out = jax.eval_shape(lambda o: network.apply(network.init(jax.random.key(0)), o), obs)
        shapes = tuple(x.shape for x in out)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        raise UserError(
            f"network {name} does not accept observations of shape {spec.observation_shape}: "
            f"{type(error).__name__}: {reason}"
        ) from error
    if shapes != ((2, network.policy.size), (2,)):
        raise UserError(
            f"network {name} returns shapes {shapes} for 2 observations; it should return "
            f"(policy, value) of shapes {((2, network.policy.size), (2,))}"
        )


# --- modules --------------------------------------------------------------------------------


def _module(config: Config, spec: EnvSpec) -> Callable[..., nn.Module]:
    name = config.network
    is_image = len(spec.observation_shape) == 3
    if ":" in name:
        return _import(name)
    built_in = ("auto", "mlp", "cnn")
    if name not in built_in:
        raise UserError(
            f"network {name!r} does not exist{nearest(name, built_in)}; there are: "
            f"{', '.join(built_in)} and my_package.my_module:MyNetwork"
        )
    if name == "cnn" and not is_image:
        raise UserError(
            f"network 'cnn' needs images [height, width, channels], but {spec.id} observes "
            f"shape {spec.observation_shape}; try --network=mlp"
        )
    return lambda policy_size: ActorCritic(
        policy_size=policy_size,
        hidden_sizes=config.hidden_sizes,
        activation=config.activation,
        shared=config.shared_torso,
        convolve=is_image and name != "mlp",
        observation_rank=len(spec.observation_shape),
        state_independent_std=isinstance(spec.action, Box),
    )


def _import(name: str) -> Callable[..., nn.Module]:
    module_name, _, class_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"network {name} cannot be imported: {error}") from None


class Torso(nn.Module):
    """Observations to features: a small convolution for images, then dense layers."""

    hidden_sizes: tuple[int, ...]
    activation: str
    convolve: bool
    observation_rank: int

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        act = _ACTIVATIONS[self.activation]
        x = obs.astype(jnp.float32)
        if obs.dtype == jnp.uint8:
            x = x / 255.0
        if self.convolve:
            x = act(nn.Conv(16, (3, 3), kernel_init=orthogonal(math.sqrt(2)))(x))
        x = x.reshape(*x.shape[: x.ndim - self.observation_rank], -1)
        for size in self.hidden_sizes:
            x = act(nn.Dense(size, kernel_init=orthogonal(math.sqrt(2)))(x))
        return x


class ActorCritic(nn.Module):
    """Policy and value on one torso or on two; orthogonal initialisation with the gains of
    "The 37 implementation details of PPO" (√2 hidden, 0.01 policy, 1 value)."""

    policy_size: int
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    shared: bool = False
    convolve: bool = False
    observation_rank: int = 1
    state_independent_std: bool = False

    @nn.compact
    def __call__(self, obs: Array) -> tuple[Array, Array]:
        torso = (self.hidden_sizes, self.activation, self.convolve, self.observation_rank)
        actor = Torso(*torso, name="torso" if self.shared else "actor")(obs)
        critic = actor if self.shared else Torso(*torso, name="critic")(obs)
        value = nn.Dense(1, kernel_init=orthogonal(1.0), name="value")(critic)[..., 0]
        if not self.state_independent_std:
            return nn.Dense(self.policy_size, kernel_init=orthogonal(0.01), name="policy")(
                actor
            ), value
        size = self.policy_size // 2
        mean = nn.Dense(size, kernel_init=orthogonal(0.01), name="policy")(actor)
        log_std = self.param("log_std", zeros_init(), (size,))
        return jnp.concatenate([mean, jnp.broadcast_to(log_std, mean.shape)], -1), value


# --- policies -------------------------------------------------------------------------------


def categorical(action: Discrete) -> Policy:
    """Actions ``0 … n - 1`` with the network's output as logits."""

    def sample(key: Key, logits: Array) -> Array:
        # By the inverse of the cumulative distribution: one random number an action where
        # the Gumbel trick takes n and as many logarithms.
        cumulative = jnp.cumsum(jax.nn.softmax(logits), -1)
        u = jax.random.uniform(key, logits.shape[:-1])[..., None] * cumulative[..., -1:]
        return jnp.minimum((u >= cumulative).sum(-1, dtype=jnp.int32), action.n - 1)

    def log_prob(logits: Array, a: Array) -> Array:
        # A product with one-hot rows instead of a gather: faster, and so is its gradient.
        chosen = jax.nn.one_hot(a, action.n, dtype=logits.dtype)
        return (jax.nn.log_softmax(logits) * chosen).sum(-1)

    def entropy(logits: Array) -> Array:
        log_p = jax.nn.log_softmax(logits)
        return -(jnp.exp(log_p) * log_p).sum(-1)

    return Policy(action.n, sample, lambda logits: logits.argmax(-1), log_prob, entropy)


def gaussian(action: Box) -> Policy:
    """A diagonal Gaussian: the network's output is mean and log standard deviation.

    Samples are not bounded; `jaxrl_scale.rollout` clips what the environment sees to the
    box, the likelihood is that of the unclipped action (as CleanRL and SB3 do).
    """
    size = math.prod(action.shape)

    def split(policy: Array) -> tuple[Array, Array]:
        return policy[..., :size], policy[..., size:]

    def shaped(x: Array) -> Array:
        return x.reshape(*x.shape[:-1], *action.shape)

    def sample(key: Key, policy: Array) -> Array:
        mean, log_std = split(policy)
        return shaped(mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape))

    def log_prob(policy: Array, a: Array) -> Array:
        mean, log_std = split(policy)
        z = (a.reshape(mean.shape) - mean) * jnp.exp(-log_std)
        return (-0.5 * jnp.square(z) - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(policy: Array) -> Array:
        return (split(policy)[1] + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    return Policy(2 * size, sample, lambda p: shaped(split(p)[0]), log_prob, entropy)
