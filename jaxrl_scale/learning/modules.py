"""The package's own networks, as flax modules on the torsos of `jaxrl_scale.learning.torsos`."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.initializers import zeros_init

from jaxrl_scale.learning.initializers import orthogonal
from jaxrl_scale.learning.torsos import Features, Torso
from jaxrl_scale.types import Array


def _dense(size: int, gain: float, name: str) -> nn.Dense:
    return nn.Dense(size, kernel_init=orthogonal(gain), name=name)


def _policy_head(module: ActorCritic | RecurrentActorCritic, x: Array) -> Array:
    dependent = _dense(module.policy_size - module.free, 0.01, "policy")(x)
    if not module.free:
        return dependent
    log_std = module.param("log_std", zeros_init(), (module.free,))
    free = jnp.broadcast_to(log_std, (*dependent.shape[:-1], module.free))
    return jnp.concatenate([dependent, free], -1)


class ActorCritic(nn.Module):
    """Policy and value on one torso or on two; orthogonal initialisation with the gains of
    "The 37 implementation details of PPO" (√2 hidden, 0.01 policy, 1 value)."""

    policy_size: int
    hidden_sizes: tuple[int, ...]
    features: Features
    shared: bool = False
    free: int = 0

    @nn.compact
    def __call__(self, obs: Array) -> tuple[Array, Array]:
        torso = (self.hidden_sizes, self.features)
        actor = Torso(*torso, name="torso" if self.shared else "actor")(obs)
        critic = actor if self.shared else Torso(*torso, name="critic")(obs)
        value = _dense(1, 1.0, "value")(critic)[..., 0]
        return _policy_head(self, actor), value


def _remember(
    hidden_sizes: tuple[int, ...], features: Features, carry: Array, obs: Array, is_first: Array
) -> tuple[Array, Array]:
    """A torso whose last layer is a GRU (https://arxiv.org/abs/1406.1078): from the memory
    ``[B, n]`` before the first of the observations ``[T, B, ...]`` to that behind the last, and to
    the features ``[T, B, n]``."""
    x = Torso(hidden_sizes[:-1], features, name="torso")(obs)
    cell = nn.GRUCell(hidden_sizes[-1], recurrent_kernel_init=orthogonal(), name="memory")

    def step(cell: nn.GRUCell, carry: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        features, is_first = now
        return cell(jnp.where(is_first[..., None], 0.0, carry), features)

    unroll = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
    carry, remembered = unroll(cell, carry, (x, is_first))
    return carry, remembered


class RecurrentActorCritic(nn.Module):
    """Policy and value on one torso with a memory, `_remember`."""

    policy_size: int
    hidden_sizes: tuple[int, ...]
    features: Features
    free: int = 0

    @nn.compact
    def __call__(
        self, carry: Array, obs: Array, is_first: Array
    ) -> tuple[Array, tuple[Array, Array]]:
        carry, remembered = _remember(self.hidden_sizes, self.features, carry, obs, is_first)
        value = _dense(1, 1.0, "value")(remembered)[..., 0]
        return carry, (_policy_head(self, remembered), value)


class ActionValues(nn.Module):
    """The value of each action; where it is dueling, the last layer is there twice, for the
    value and for the advantages."""

    num_actions: int
    hidden_sizes: tuple[int, ...]
    features: Features
    dueling: bool = False

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        if not self.dueling:
            x = Torso(self.hidden_sizes, self.features, name="torso")(obs)
            return _dense(self.num_actions, 1.0, "action_values")(x)
        *common, last = self.hidden_sizes
        x = Torso(tuple(common), self.features, name="torso")(obs)
        stream = (last,), self.features._replace(kind="mlp", observation_rank=1)
        value = _dense(1, 1.0, "value")(Torso(*stream, name="value_stream")(x))
        advantage = _dense(self.num_actions, 1.0, "advantage")(
            Torso(*stream, name="advantage_stream")(x)
        )
        return duel(value[..., 0], advantage)


class RecurrentActionValues(nn.Module):
    """The value of each action, on a torso with a memory, `_remember`."""

    num_actions: int
    hidden_sizes: tuple[int, ...]
    features: Features

    @nn.compact
    def __call__(self, carry: Array, obs: Array, is_first: Array) -> tuple[Array, Array]:
        carry, remembered = _remember(self.hidden_sizes, self.features, carry, obs, is_first)
        return carry, _dense(self.num_actions, 1.0, "action_values")(remembered)


class GaussianPolicy(nn.Module):
    """Means and log standard deviations of actions, all of which depend on the observation."""

    policy_size: int
    hidden_sizes: tuple[int, ...]
    features: Features

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        x = Torso(self.hidden_sizes, self.features, name="torso")(obs)
        return _dense(self.policy_size, 0.01, "policy")(x)


class TwinValues(nn.Module):
    """Two values of an action, of networks that share nothing. The action joins the observation, or
    what convolutions make of it, before the hidden layers."""

    hidden_sizes: tuple[int, ...]
    features: Features

    @nn.compact
    def __call__(self, obs: Array, action: Array) -> Array:
        hidden = self.hidden_sizes, self.features._replace(kind="mlp", observation_rank=1)

        def value(k: int) -> Array:
            x = Torso((), self.features, name=f"seen_{k}")(obs)
            x = Torso(*hidden, name=f"torso_{k}")(jnp.concatenate([x, action], -1))
            return _dense(1, 1.0, f"value_{k}")(x)

        return jnp.concatenate([value(0), value(1)], -1)


def duel(value: Array, advantage: Array) -> Array:
    """Values of actions ``[..., A]`` from a value ``[...]`` and advantages ``[..., A]``,
    https://arxiv.org/abs/1511.06581, equation 9."""
    return value[..., None] + advantage - advantage.mean(-1, keepdims=True)
