"""Proximal policy optimization with a clipped objective, https://arxiv.org/abs/1707.06347.

Minibatches have a fixed *size*. For a recurrent policy, one environment's rollout is one sample.
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
from jaxrl_scale.learning import networks, normalize, optim, permute, returns
from jaxrl_scale.learning.masks import masked
from jaxrl_scale.options import Sizes, check_minibatches, check_trajectories, option, register
from jaxrl_scale.types import Algorithm, Array, EnvSpec, Key, Metrics, Pool, PyTree, Rollout, Time


@register
@dataclass(frozen=True)
class Config:
    """PPO's options."""

    name: ClassVar[str] = "ppo"

    recurrent: bool = common.recurrent()
    learning_rate: float = common.learning_rate(3e-4)
    lr_schedule: optim.Schedule = common.lr_schedule()
    gamma: float = common.gamma()
    gae_lambda: float = common.gae_lambda(0.95)
    epochs: int = common.epochs(4)
    minibatch_size: int = common.minibatch_size(2048)
    clip_epsilon: float = option(0.2, "how far from 1 the likelihood ratio is rewarded", above=0)
    clip_value: bool = option(False, "clip the value loss by clip_epsilon too")
    entropy_coef: float = common.entropy_coef()
    value_coef: float = common.value_coef()
    max_grad_norm: float | None = common.max_grad_norm(0.5)
    optimizer_epsilon: float = common.optimizer_epsilon()
    normalize_advantages: bool = common.normalize_advantages(True)
    normalize_observations: bool = common.normalize_observations()
    scale_rewards: bool = common.scale_rewards()
    target_kl: float | None = option(
        None,
        "make no more gradient steps in an iteration once the policy's KL divergence from the one "
        "that acted, on the next minibatch, is above 1.5 times this",
        above=0,
    )

    depends_on_budget = property(common.has_schedule)

    def check(self, config: Sizes) -> None:
        check = check_trajectories if self.recurrent else check_minibatches
        check(config, self.minibatch_size)


class Samples(NamedTuple):
    """What the loss reads: ``n`` sequences of ``L`` steps, ``[L, n, ...]``: with a memory those of
    ``n = B`` environments, without one ``n = T * B`` single steps. A minibatch has some of them."""

    carry: PyTree  # [1, n, ...] before the first step; () without a memory
    obs: Array
    is_first: Array
    action: Array
    log_prob: Array
    value: Array
    advantage: Array
    target: Array
    valid: Array


def loss(
    network: networks.RecurrentNetwork, options: Config, params: PyTree, batch: Samples
) -> tuple[Array, Metrics]:
    """The PPO loss and its parts, as *sums* over the valid samples (equation 9 of the paper);
    ``batch.advantage`` is already normalized. Divide by ``count`` for the mean."""
    carry = jax.tree.map(lambda x: x[0], batch.carry)
    _, (policy, value) = network.apply(params, carry, batch.obs, batch.is_first)
    log_ratio = network.policy.log_prob(policy, batch.action) - batch.log_prob
    ratio, clip = jnp.exp(log_ratio), options.clip_epsilon
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    squared_error = jnp.square(value - batch.target)
    if options.clip_value:
        near = batch.value + jnp.clip(value - batch.value, -clip, clip)
        squared_error = jnp.maximum(squared_error, jnp.square(near - batch.target))
    parts = {
        "policy_loss": -jnp.minimum(ratio * batch.advantage, clipped * batch.advantage),
        "value_loss": 0.5 * squared_error,
        "entropy": network.policy.entropy(policy),
        "approx_kl": ratio - 1 - log_ratio,  # http://joschu.net/blog/kl-approx.html, k3
        "clip_fraction": (jnp.abs(ratio - 1) > clip).astype(jnp.float32),
    }
    sums = optim.masked_sums(batch.valid, parts)
    total = sums["policy_loss"] + options.value_coef * sums["value_loss"]
    total = total - options.entropy_coef * sums["entropy"]
    return total, sums | {"loss": total}


def make(config: Sizes, spec: EnvSpec, pool: Pool) -> Algorithm:
    """PPO for one environment, on whatever shards ``pool`` stands for."""
    network = networks.make_policy(config, spec, recurrent=config.algo.recurrent)

    def act(
        actor: networks.Weights,
        local: Array | None,
        carry: PyTree,
        obs: Array,
        is_first: Array,
        key: Key,
        greedy: bool = False,
    ) -> tuple[Array, PyTree, tuple[Array, Array]]:
        carry, (policy, value) = networks.one_step(network, actor, carry, obs, is_first)
        action = network.policy.choose(key, policy, greedy)
        return action, carry, (network.policy.log_prob(policy, action), value)

    def shard_samples(shared: Shared, rollout: Rollout) -> Samples:
        """The rollout of one shard ``[T, B]`` with advantages and targets, as sequences."""
        options, weights = shared.options, networks.Weights(shared.params, shared.observation)
        log_prob, acted = rollout.extras
        value = networks.values(network, weights, rollout, acted)
        advantage = returns.gae(value, rollout, options.gamma, options.gae_lambda)
        samples = Samples(
            carry=(),
            obs=rollout.obs[:-1],
            is_first=rollout.is_first[:-1],
            action=rollout.action,
            log_prob=log_prob,
            value=value[:-1],
            advantage=advantage,
            target=advantage + value[:-1],
            valid=rollout.valid,
        )
        samples = masked(rollout.valid, samples)
        if options.recurrent:
            return samples._replace(carry=jax.tree.map(lambda x: x[None], rollout.carry))
        return jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), samples)

    def update(
        shared: Shared, local: Array, rollout: Rollout, key: Key, time: Time
    ) -> tuple[Shared, Array, Metrics]:
        options = shared.options
        rollout, local, discounted = normalize.scale_rewards(
            pool, shared.discounted, local, rollout, options.gamma
        )
        samples = pool.map(lambda rolled: shard_samples(shared, rolled), rollout)  # [S, L, n, ...]
        minibatches = config.steps_per_iteration // options.minibatch_size
        orders = permute.minibatches(pool, key, samples.valid.shape[2], options.epochs, minibatches)
        advantages, observation = normalize.advantages(
            pool, samples, options.normalize_advantages, shared.observation, orders
        )
        optimizer = optim.make(options, time.progress)
        params, unravel = ravel_pytree(shared.params)  # one vector [N]

        def gradient_step(step: Array, moving: tuple) -> tuple[tuple, Metrics]:
            params, state = moving

            def shard_loss(params: Array, batch: Samples) -> tuple[Array, Metrics]:
                advantage = (batch.advantage - advantages.mean[step]) * advantages.scale[step]
                obs = normalize.apply(shared.observation, batch.obs)
                batch = batch._replace(obs=obs, advantage=advantage)
                return loss(network, options, unravel(params), batch)

            batch = permute.take(samples, orders, step, axis=1)  # [S, L, m, ...]
            gradient, means = optim.mean_gradient(pool.after(advantages), shard_loss, params, batch)
            return optimizer.step(gradient, params, state), means

        kl = options.target_kl
        too_far = None if kl is None else lambda means: means["approx_kl"] > 1.5 * kl
        (params, state), metrics = optim.average_over(
            options.epochs * minibatches, gradient_step, (params, shared.optimizer), stop=too_far
        )
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
