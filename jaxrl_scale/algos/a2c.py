"""Synchronous advantage actor-critic, https://arxiv.org/abs/1602.01783.

All environments take a rollout, then one gradient step is made on the whole of it. The paper's
asynchrony is that of `jaxrl_scale.algos.impala`, where it has a number and a correction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl_scale.algos import common, on_policy
from jaxrl_scale.algos.on_policy import Shared
from jaxrl_scale.learning import networks, normalize, optim, returns
from jaxrl_scale.learning.masks import masked
from jaxrl_scale.options import Sizes, register
from jaxrl_scale.types import Algorithm, Array, EnvSpec, Key, Metrics, Pool, PyTree, Rollout, Time


@register
@dataclass(frozen=True)
class Config:
    """A2C's options."""

    name: ClassVar[str] = "a2c"

    recurrent: bool = common.recurrent()
    learning_rate: float = common.learning_rate(1e-3)
    lr_schedule: optim.Schedule = common.lr_schedule()
    gamma: float = common.gamma()
    gae_lambda: float = common.gae_lambda(1.0)
    entropy_coef: float = common.entropy_coef()
    value_coef: float = common.value_coef()
    max_grad_norm: float | None = common.max_grad_norm(0.5)
    optimizer: optim.Kind = common.optimizer()
    optimizer_epsilon: float = common.optimizer_epsilon()
    normalize_advantages: bool = common.normalize_advantages(False)
    normalize_observations: bool = common.normalize_observations()
    scale_rewards: bool = common.scale_rewards()

    depends_on_budget = property(common.has_schedule)

    def check(self, config: Sizes) -> None:
        """Any sizes fit: the rollout is the batch."""


class Samples(NamedTuple):
    """What the loss reads of every step, ``[T, B, ...]``."""

    carry: PyTree  # [1, B, ...] before the first step; () without a memory
    obs: Array
    is_first: Array
    action: Array
    advantage: Array
    target: Array
    valid: Array


def loss(
    network: networks.RecurrentNetwork, options: Config, params: PyTree, batch: Samples
) -> tuple[Array, Metrics]:
    """The loss and its parts, as *sums* over the valid samples (section 4 and algorithm S3 of
    the paper). Divide by ``count`` for the mean."""
    carry = jax.tree.map(lambda x: x[0], batch.carry)
    _, (policy, value) = network.apply(params, carry, batch.obs, batch.is_first)
    parts = {
        "policy_loss": -network.policy.log_prob(policy, batch.action) * batch.advantage,
        "value_loss": 0.5 * jnp.square(value - batch.target),
        "entropy": network.policy.entropy(policy),
    }
    sums = optim.masked_sums(batch.valid, parts)
    total = sums["policy_loss"] + options.value_coef * sums["value_loss"]
    total = total - options.entropy_coef * sums["entropy"]
    return total, sums | {"loss": total}


def make(config: Sizes, spec: EnvSpec, pool: Pool) -> Algorithm:
    """A2C for one environment, on whatever shards ``pool`` stands for."""
    network = networks.make_policy(config, spec, recurrent=config.algo.recurrent)

    def act(
        actor: networks.Weights,
        local: Array | None,
        carry: PyTree,
        obs: Array,
        is_first: Array,
        key: Key,
        greedy: bool = False,
    ) -> tuple[Array, PyTree, Array]:
        carry, (policy, value) = networks.one_step(network, actor, carry, obs, is_first)
        return network.policy.choose(key, policy, greedy), carry, value

    def shard_samples(shared: Shared, rollout: Rollout) -> Samples:
        """The rollout of one shard ``[T, B]`` with advantages and targets."""
        options, weights = shared.options, networks.Weights(shared.params, shared.observation)
        value = networks.values(network, weights, rollout, rollout.extras)
        advantage = returns.gae(value, rollout, options.gamma, options.gae_lambda)
        samples = Samples(
            carry=(),
            obs=rollout.obs[:-1],
            is_first=rollout.is_first[:-1],
            action=rollout.action,
            advantage=advantage,
            target=advantage + value[:-1],
            valid=rollout.valid,
        )
        samples = masked(rollout.valid, samples)
        return samples._replace(carry=jax.tree.map(lambda x: x[None], rollout.carry))

    def update(
        shared: Shared, local: Array, rollout: Rollout, key: Key, time: Time
    ) -> tuple[Shared, Array, Metrics]:
        options = shared.options
        rollout, local, discounted = normalize.scale_rewards(
            pool, shared.discounted, local, rollout, options.gamma
        )
        samples = pool.map(lambda rolled: shard_samples(shared, rolled), rollout)  # [S, T, B, ...]
        advantages, observation = normalize.advantages(
            pool, samples, options.normalize_advantages, shared.observation
        )
        optimizer = optim.make(options, time.progress)
        params, unravel = ravel_pytree(shared.params)  # one vector [N]

        def shard_loss(params: Array, batch: Samples) -> tuple[Array, Metrics]:
            advantage = (batch.advantage - advantages.mean) * advantages.scale
            obs = normalize.apply(shared.observation, batch.obs)
            batch = batch._replace(obs=obs, advantage=advantage)
            return loss(network, options, unravel(params), batch)

        gradient, metrics = optim.mean_gradient(pool.after(advantages), shard_loss, params, samples)
        params, state = optimizer.step(gradient, params, shared.optimizer)
        metrics["explained_variance"] = advantages.explained_variance
        metrics["learning_rate"] = optimizer.learning_rate
        return Shared(options, unravel(params), state, observation, discounted), local, metrics

    return Algorithm(
        init_shared=partial(on_policy.init, network, spec),
        init_local=on_policy.discounted_returns(config),
        init_carry=network.init_carry,
        actor=on_policy.actor,
        act=act,
        outputs=partial(networks.outputs, network),
        update=update,
    )
