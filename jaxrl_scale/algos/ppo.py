"""Proximal policy optimisation with a clipped objective, https://arxiv.org/abs/1707.06347.

Everything that is averaged (gradients, advantage moments, losses, observation statistics) is
a sum and a count over all shards of all devices, so the number of devices changes nothing.
Minibatches have a fixed *size*: growing ``num_envs`` grows their number and leaves the inner
loop as it is.

A recurrent policy learns from whole sequences: the rollout of one environment is one sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl_scale.algos import common
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import networks, normalize, optim, permute, returns
from jaxrl_scale.options import (
    Sizes,
    check_minibatches,
    check_trajectories,
    option,
    register,
)
from jaxrl_scale.types import Algorithm, Array, EnvSpec, Key, Metrics, Pool, PyTree, Rollout


@register
@dataclass(frozen=True)
class Config:
    """PPO's options."""

    name: ClassVar[str] = "ppo"

    recurrent: bool = option(
        False, "make the last hidden layer a GRU; minibatches are then of whole rollouts"
    )
    learning_rate: float = common.learning_rate(3e-4)
    lr_schedule: optim.Schedule = common.lr_schedule()
    gamma: float = common.gamma()
    gae_lambda: float = common.gae_lambda(0.95)
    epochs: int = common.epochs(4)
    minibatch_size: int = common.minibatch_size(2048)
    clip_epsilon: float = option(
        0.2, "the objective is flat where the likelihood ratio leaves 1 ± this", above=0
    )
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
        "skip the rest of an iteration's gradient steps where the KL divergence exceeds 1.5 times "
        "this, and undo the step that did",
        low=0,
    )

    @property
    def depends_on_budget(self) -> bool:
        """Whether a longer run differs from a shorter one before the shorter one ends."""
        return self.lr_schedule != "constant"

    def check(self, config: Sizes) -> None:
        if not self.recurrent:
            check_minibatches(config, self.minibatch_size)
        elif config.hidden_sizes:
            check_trajectories(config, self.minibatch_size)
        else:
            raise RunError(
                "hidden_sizes=() has no layer that algo.recurrent could make a memory; "
                "try hidden_sizes=64,64"
            )


class Shared(NamedTuple):
    """What is the same on all shards."""

    options: Config  # its numbers are traced
    params: PyTree
    optimizer: PyTree  # of the flattened parameters [N]
    observation: normalize.Statistics | None
    discounted: normalize.Statistics | None  # of the running discounted return


class Actor(NamedTuple):
    """What acting reads of `Shared`."""

    params: PyTree
    observation: normalize.Statistics | None


class Samples(NamedTuple):
    """What the loss reads: ``n`` sequences of ``L`` steps, ``[L, n, ...]``. With a memory these
    are the rollouts of ``n = B`` environments; without one every step is a sequence of its own,
    ``L = 1`` and ``n = T * B``. A minibatch holds some of the ``n``."""

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
    value_loss = jnp.square(value - batch.target)
    if options.clip_value:
        near = batch.value + jnp.clip(value - batch.value, -clip, clip)
        value_loss = jnp.maximum(value_loss, jnp.square(near - batch.target))
    parts = {
        "policy_loss": -jnp.minimum(ratio * batch.advantage, clipped * batch.advantage),
        "value_loss": 0.5 * value_loss,
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

    def init_shared(key: Key, options: Config) -> Shared:
        params = network.init(key)
        return Shared(
            options=options,
            params=params,
            optimizer=optim.make(options).init(ravel_pytree(params)[0]),
            observation=normalize.init(options.normalize_observations, spec.observation_shape),
            discounted=normalize.init(options.scale_rewards),
        )

    def act(
        actor: Actor,
        local: Array | None,
        carry: PyTree,
        obs: Array,
        is_first: Array,
        key: Key,
        greedy: bool = False,
    ) -> tuple[Array, PyTree, Array]:
        obs = normalize.apply(actor.observation, obs)
        carry, (policy, _) = network.apply(actor.params, carry, obs[None], is_first[None])
        policy = policy[0]
        action = network.policy.mode(policy) if greedy else network.policy.sample(key, policy)
        return action, carry, network.policy.log_prob(policy, action)

    def shard_samples(shared: Shared, rollout: Rollout, reward: Array) -> Samples:
        """The rollout of one shard ``[T, B]`` with advantages and targets, as sequences."""
        obs = normalize.apply(shared.observation, rollout.obs)
        _, (_, value) = network.apply(shared.params, rollout.carry, obs, rollout.is_first)
        advantage = returns.gae(
            value,
            reward,
            rollout.terminated,
            rollout.truncated,
            rollout.valid,
            shared.options.gamma,
            shared.options.gae_lambda,
        )
        samples = Samples(
            carry=jax.tree.map(lambda x: x[None], rollout.carry),
            obs=obs[:-1],
            is_first=rollout.is_first[:-1],
            action=rollout.action,
            log_prob=rollout.extras,
            value=value[:-1],
            advantage=advantage,
            target=advantage + value[:-1],
            valid=rollout.valid,
        )
        if shared.options.recurrent:
            return samples
        return jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), samples)

    def update(
        shared: Shared, local: Array, rollout: Rollout, key: Key, iteration: Array
    ) -> tuple[Shared, Array, Metrics]:
        options = shared.options
        reward, local, discounted = normalize.scale_rewards(
            pool, shared.discounted, local, rollout, options.gamma
        )
        samples = pool.map(
            lambda rollout, reward: shard_samples(shared, rollout, reward), rollout, reward
        )  # [S, L, n, ...]
        minibatches = config.steps_per_iteration // options.minibatch_size
        n = samples.valid.shape[2]
        orders = permute.minibatches(pool, key, n, options.epochs, minibatches)  # [S, steps, m]
        if options.normalize_advantages:
            mean, scale = normalize.minibatch_moments(
                pool, samples.advantage, samples.valid, orders
            )  # [steps]
        params, unravel = ravel_pytree(shared.params)  # one vector [N]
        optimizer = optim.make(options, iteration / config.num_iterations)

        def gradient_step(step: Array, moving: tuple) -> tuple[tuple, Metrics]:
            params, state = moving

            def shard_loss(params: Array, batch: Samples) -> tuple[Array, Metrics]:
                if options.normalize_advantages:
                    advantage = (batch.advantage - mean[step]) * scale[step]
                    batch = batch._replace(advantage=advantage)
                return loss(network, options, unravel(params), batch)

            batch = permute.take(samples, orders, step, axis=1)  # [S, L, m, ...]
            gradient, means = optim.mean_gradient(pool, shard_loss, params, batch)
            return optimizer.step(gradient, params, state), means

        limit = None if options.target_kl is None else 1.5 * options.target_kl
        (params, state), metrics = optim.average_over(
            options.epochs * minibatches,
            gradient_step,
            (params, shared.optimizer),
            stop=None if limit is None else lambda means: means["approx_kl"] > limit,
        )
        metrics["learning_rate"] = optimizer.learning_rate
        metrics["explained_variance"] = explained_variance(pool, samples)
        observation = normalize.update(pool, shared.observation, rollout.obs[:, :-1], rollout.valid)
        return Shared(options, unravel(params), state, observation, discounted), local, metrics

    return Algorithm(
        init_shared=init_shared,
        init_local=lambda key, shard_index: jnp.zeros(config.envs_per_shard),  # discounted returns
        init_carry=network.init_carry,
        actor=lambda shared, iteration: Actor(shared.params, shared.observation),
        act=act,
        update=update,
    )


def explained_variance(pool: Pool, samples: Samples) -> Array:
    """How much of the targets' variance the values explain: 1 is all, 0 no more than a mean."""
    pair = pool.map(lambda s: jnp.stack([s.target - s.value, s.target], -1), samples)
    _, _, (unexplained, variance) = normalize.pooled_moments(pool, pair, samples.valid)
    return 1 - unexplained / jnp.maximum(variance, 1e-8)
