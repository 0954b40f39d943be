"""What the algorithms share that learn from the newest rollout: their state, and how it begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxrl_scale.learning import networks, normalize, optim
from jaxrl_scale.learning.networks import Weights
from jaxrl_scale.options import Sizes
from jaxrl_scale.types import Array, EnvSpec, Key, PyTree, Time


class Shared(NamedTuple):
    """What is the same on all shards, for PPO, A2C, IMPALA and PQN."""

    options: Any  # the algorithm's, its numbers are traced
    params: PyTree
    optimizer: PyTree  # of the flattened parameters [N]
    observation: normalize.Statistics | None
    discounted: normalize.Statistics | None  # of the running discounted return
    older: tuple[Weights, ...] = ()  # those of the last `lag` iterations, the newest first


def init(
    network: networks.AnyNetwork,
    spec: EnvSpec,
    key: Key,
    options: Any,
    weights: Weights | None = None,
    lag: int = 0,
) -> Shared:
    """The state before the first iteration, with the ``weights`` or random ones."""
    params, observation = networks.begin(
        network, spec, key, options.normalize_observations, weights
    )
    return Shared(
        options=options,
        params=params,
        optimizer=optim.make(options).init(params),
        observation=observation,
        discounted=normalize.init(options.scale_rewards),
        older=(Weights(params, observation),) * lag,
    )


def discounted_returns(config: Sizes) -> Callable[[Key, Array], Array]:
    """`types.Algorithm.init_local`: the running discounted returns ``[B]`` of a shard."""
    return lambda key, shard_index: jnp.zeros(config.envs_per_shard)


def actor(shared: Shared, time: Time) -> Weights:
    """`types.Algorithm.actor` of PPO and A2C: the newest weights."""
    return Weights(shared.params, shared.observation)
