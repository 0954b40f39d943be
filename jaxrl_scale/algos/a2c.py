"""Synchronous advantage actor-critic, https://arxiv.org/abs/1602.01783.

All environments take a rollout, then one gradient step is made on the whole of it. The paper's
asynchrony is that of `jaxrl_scale.algos.impala`, where it has a number and a correction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl_scale import config as cfg
from jaxrl_scale.learning import networks, normalize, optim, returns
from jaxrl_scale.options import option
from jaxrl_scale.types import Algorithm, Array, EnvSpec, Key, Metrics, Pool, PyTree, Rollout


@dataclass(frozen=True)
class Config:
    """A2C's own options."""

    name: ClassVar[str] = "a2c"

    learning_rate: float = option(1e-3, "the optimiser's step size", low=0)
    lr_schedule: optim.Schedule = option(
        "linear", "learning rate over the run, from learning_rate towards 0"
    )
    gamma: float = option(0.99, "discount", low=0, high=1)
    gae_lambda: float = option(
        1.0, "λ of the advantage estimator; 1: returns of as many steps as there are", low=0, high=1
    )
    entropy_coef: float = option(0.01, "weight of the entropy bonus", low=0)
    value_coef: float = option(0.5, "weight of the value loss", low=0)
    max_grad_norm: float = option(0.5, "the gradient's norm is clipped here", low=0)
    optimizer: optim.Kind = option("adam", "optimiser")
    optimizer_epsilon: float = option(1e-5, "the optimiser's ε", low=0)
    normalize_advantages: bool = option(False, "by moments pooled over all shards")
    normalize_observations: bool = option(False, "by running statistics pooled over all shards")
    scale_rewards: bool = option(False, "by the running deviation of the discounted return")

    @property
    def depends_on_budget(self) -> bool:
        """Whether a longer run differs from a shorter one before the shorter one ends."""
        return self.lr_schedule != "constant"

    def check(self, config: cfg.Config) -> None:
        """Any sizes fit: the rollout is the batch."""


class Hyper(NamedTuple):
    """The options that are plain numbers: traced, so that a population may differ in them."""

    learning_rate: Array
    gamma: Array
    gae_lambda: Array
    entropy_coef: Array
    value_coef: Array
    max_grad_norm: Array
    optimizer_epsilon: Array


class Shared(NamedTuple):
    """What is the same on all shards."""

    hyper: Hyper
    params: PyTree
    optimizer: PyTree  # of the flattened parameters [N]
    iteration: Array  # [] int32
    observation: normalize.Statistics
    discounted: normalize.Statistics  # of the running discounted return


class Actor(NamedTuple):
    """What acting reads of `Shared`."""

    params: PyTree
    observation: normalize.Statistics


class Samples(NamedTuple):
    """What the loss reads of every step, ``[T, B, ...]``."""

    obs: Array
    action: Array
    advantage: Array
    target: Array
    valid: Array


def loss(
    network: networks.Network, hyper: Hyper, params: PyTree, batch: Samples
) -> tuple[Array, dict[str, Array]]:
    """The loss and its parts, as *sums* over the valid samples (section 4 and algorithm S3 of
    the paper). Divide by the number of valid samples of all shards for the mean."""
    policy, value = network.apply(params, batch.obs)
    parts = {
        "policy_loss": -network.policy.log_prob(policy, batch.action) * batch.advantage,
        "value_loss": 0.5 * jnp.square(value - batch.target),
        "entropy": network.policy.entropy(policy),
    }
    sums = {name: jnp.where(batch.valid, part, 0.0).sum() for name, part in parts.items()}
    total = (
        sums["policy_loss"]
        + hyper.value_coef * sums["value_loss"]
        - hyper.entropy_coef * sums["entropy"]
    )
    return total, {"loss": total, **sums}


def make(config: cfg.Config, spec: EnvSpec, pool: Pool) -> Algorithm:
    """A2C for one environment, on whatever shards ``pool`` stands for."""
    own: Config = config.algo
    network = networks.make(config, spec)

    def descent(hyper: Hyper, learning_rate: Array) -> optax.GradientTransformation:
        return optim.make(
            own.optimizer, learning_rate, hyper.optimizer_epsilon, hyper.max_grad_norm
        )

    def init_shared(key: Key) -> Shared:
        hyper = Hyper(**{name: jnp.float32(getattr(own, name)) for name in Hyper._fields})
        params = network.init(key)
        return Shared(
            hyper=hyper,
            params=params,
            optimizer=descent(hyper, hyper.learning_rate).init(ravel_pytree(params)[0]),
            iteration=jnp.zeros((), jnp.int32),
            observation=normalize.init_statistics(spec.observation_shape),
            discounted=normalize.init_statistics(),
        )

    def init_local(key: Key, shard_index: Array) -> Array:
        return jnp.zeros(config.envs_per_shard)  # running discounted returns

    def observe(statistics: normalize.Statistics, obs: Array) -> Array:
        return normalize.normalize(statistics, obs) if own.normalize_observations else obs

    def act(
        actor: Actor, local: Array, carry: PyTree, obs: Array, is_first: Array, key: Key
    ) -> tuple[Array, PyTree, PyTree]:
        policy, _ = network.apply(actor.params, observe(actor.observation, obs))
        return network.policy.sample(key, policy), carry, ()

    def play(
        actor: Actor, carry: PyTree, obs: Array, is_first: Array, key: Key, greedy: bool
    ) -> tuple[Array, PyTree]:
        policy, _ = network.apply(actor.params, observe(actor.observation, obs))
        mode, sample = network.policy.mode, network.policy.sample
        return mode(policy) if greedy else sample(key, policy), carry

    def update(
        shared: Shared, local: Array, rollout: Rollout, key: Key
    ) -> tuple[Shared, Array, Metrics]:
        hyper, reward, discounted = shared.hyper, rollout.reward, shared.discounted
        if own.scale_rewards:
            reward, local, discounted = returns.scale_rewards(
                pool, local, discounted, rollout, hyper.gamma
            )

        def shard_samples(rollout: Rollout, reward: Array) -> Samples:
            obs = observe(shared.observation, rollout.obs)
            _, value = network.apply(shared.params, obs)
            advantage = returns.gae(
                value,
                reward,
                rollout.terminated,
                rollout.truncated,
                rollout.valid,
                hyper.gamma,
                hyper.gae_lambda,
            )
            target = advantage + value[:-1]
            return Samples(obs[:-1], rollout.action, advantage, target, rollout.valid)

        samples = pool.map(shard_samples, rollout, reward)  # [S, T, B, ...]
        # The advantage is also what the values leave unexplained of the targets.
        pair = pool.map(lambda s: jnp.stack([s.advantage, s.target], -1), samples)
        count, mean, variance = normalize.pooled_moments(pool, pair, rollout.valid)
        explained_variance = 1 - variance[0] / jnp.maximum(variance[1], 1e-8)
        share = 1 / jnp.maximum(count, 1)
        centre, scale = mean[0], 1 / (jnp.sqrt(variance[0]) + 1e-8)
        if not own.normalize_advantages:
            centre, scale = jnp.zeros_like(centre), jnp.ones_like(scale)

        flat_params, unravel = ravel_pytree(shared.params)

        def shard_loss(flat_params: Array, batch: Samples) -> tuple[Array, Any]:
            batch = batch._replace(advantage=(batch.advantage - centre) * scale)
            total, sums = loss(network, hyper, unravel(flat_params), batch)
            return total * share, jax.tree.map(lambda x: x * share, sums)

        gradient, metrics = pool.grad(shard_loss, flat_params, samples)
        progress = shared.iteration / config.num_iterations
        learning_rate = optim.scheduled(own.lr_schedule, hyper.learning_rate, progress)
        change, optimizer_state = descent(hyper, learning_rate).update(gradient, shared.optimizer)
        flat_params = flat_params + change

        observation = shared.observation
        if own.normalize_observations:
            seen = normalize.pooled_moments(pool, rollout.obs[:, :-1], rollout.valid)
            observation = normalize.merge(observation, *seen)
        metrics |= {
            "explained_variance": explained_variance,
            "grad_norm": optax.tree.norm(gradient),
            "param_norm": optax.tree.norm(flat_params),  # tells when they are not finite
            "learning_rate": learning_rate,
        }
        shared = Shared(
            hyper=hyper,
            params=unravel(flat_params),
            optimizer=optimizer_state,
            iteration=shared.iteration + 1,
            observation=observation,
            discounted=discounted,
        )
        return shared, local, metrics

    return Algorithm(
        init_shared=init_shared,
        init_local=init_local,
        init_carry=lambda num_envs: (),
        actor=lambda shared: Actor(shared.params, shared.observation),
        act=act,
        play=play,
        update=update,
    )
