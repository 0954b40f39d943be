"""Proximal policy optimisation with a clipped objective, https://arxiv.org/abs/1707.06347.

Everything that is averaged (gradients, advantage moments, losses, observation statistics) is
a sum and a count over all shards of all devices, so the number of devices changes nothing.
Minibatches have a fixed *size*: growing ``num_envs`` grows their number and leaves the inner
loop as it is.

A recurrent policy learns from whole sequences: the rollout of one environment is one sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl_scale import config as cfg
from jaxrl_scale import options
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import networks, normalize, optim, permute, returns
from jaxrl_scale.options import option
from jaxrl_scale.types import Algorithm, Array, EnvSpec, Key, Metrics, Pool, PyTree, Rollout


@dataclass(frozen=True)
class Config:
    """PPO's own options."""

    name: ClassVar[str] = "ppo"

    recurrent: bool = option(
        False, "a GRU as the last hidden layer, for policy and value; minibatches of whole rollouts"
    )
    learning_rate: float = option(3e-4, "Adam's step size", low=0)
    lr_schedule: optim.Schedule = option(
        "linear", "learning rate over the run, from learning_rate towards 0"
    )
    gamma: float = option(0.99, "discount", low=0, high=1)
    gae_lambda: float = option(0.95, "λ of the advantage estimator", low=0, high=1)
    epochs: int = option(4, "passes over a rollout", low=1)
    minibatch_size: int = option(2048, "samples of a gradient step, over all devices", low=1)
    clip_epsilon: float = option(0.2, "how far the likelihood ratio may move", low=0)
    clip_value: bool = option(False, "clip the value loss by clip_epsilon too")
    entropy_coef: float = option(0.01, "weight of the entropy bonus", low=0)
    value_coef: float = option(0.5, "weight of the value loss", low=0)
    max_grad_norm: float = option(0.5, "the gradient's norm is clipped here", low=0)
    optimizer_epsilon: float = option(1e-5, "Adam's ε", low=0)
    normalize_advantages: bool = option(True, "per minibatch, moments pooled over all shards")
    normalize_observations: bool = option(False, "by running statistics pooled over all shards")
    scale_rewards: bool = option(False, "by the running deviation of the discounted return")
    target_kl: float | None = option(
        None, "end an iteration's updates where the KL divergence exceeds 1.5 times this", low=0
    )

    @property
    def depends_on_budget(self) -> bool:
        """Whether a longer run differs from a shorter one before the shorter one ends."""
        return self.lr_schedule != "constant"

    def check(self, config: cfg.Config) -> None:
        if not self.recurrent:
            options.check_minibatches(config, self.minibatch_size)
        elif config.hidden_sizes:
            options.check_trajectories(config, self.minibatch_size)
        else:
            raise RunError(
                "hidden_sizes=() has no layer that algo.recurrent could make a memory; "
                "try hidden_sizes=64,64"
            )


STEP_METRICS = (
    *("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"),
    "grad_norm",
)
"""Of every gradient step; reported as means over those of an iteration."""


class Hyper(NamedTuple):
    """The options that are plain numbers: traced, so that a population may differ in them."""

    learning_rate: Array
    gamma: Array
    gae_lambda: Array
    clip_epsilon: Array
    entropy_coef: Array
    value_coef: Array
    max_grad_norm: Array
    optimizer_epsilon: Array
    target_kl: Array


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
    network: networks.RecurrentNetwork,
    config: Config,
    hyper: Hyper,
    params: PyTree,
    batch: Samples,
) -> tuple[Array, dict[str, Array]]:
    """The PPO loss and its parts, as *sums* over the valid samples (equation 9 of the paper).

    ``batch.advantage`` is already normalised. Divide by the number of valid samples of all
    shards for the mean.
    """
    carry = jax.tree.map(lambda x: x[0], batch.carry)
    _, (policy, value) = network.apply(params, carry, batch.obs, batch.is_first)
    log_ratio = network.policy.log_prob(policy, batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - hyper.clip_epsilon, 1 + hyper.clip_epsilon)
    policy_loss = -jnp.minimum(ratio * batch.advantage, clipped * batch.advantage)

    value_loss = 0.5 * jnp.square(value - batch.target)
    if config.clip_value:
        near = batch.value + jnp.clip(value - batch.value, -hyper.clip_epsilon, hyper.clip_epsilon)
        value_loss = jnp.maximum(value_loss, 0.5 * jnp.square(near - batch.target))

    parts = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": network.policy.entropy(policy),
        # http://joschu.net/blog/kl-approx.html, the low-variance k3
        "approx_kl": ratio - 1 - log_ratio,
        "clip_fraction": (jnp.abs(ratio - 1) > hyper.clip_epsilon).astype(jnp.float32),
    }
    sums = {name: jnp.where(batch.valid, part, 0.0).sum() for name, part in parts.items()}
    total = (
        sums["policy_loss"]
        + hyper.value_coef * sums["value_loss"]
        - hyper.entropy_coef * sums["entropy"]
    )
    return total, {"loss": total, **sums}


def make_network(config: cfg.Config, spec: EnvSpec) -> networks.RecurrentNetwork:
    """The config's network; one without a memory is called like one that has ``()`` for it."""
    if config.algo.recurrent:
        return networks.make_recurrent(config, spec)
    network = networks.make(config, spec)
    return networks.RecurrentNetwork(
        init=network.init,
        init_carry=lambda num_envs: (),
        apply=lambda params, carry, obs, is_first: (carry, network.apply(params, obs)),
        policy=network.policy,
    )


def make(config: cfg.Config, spec: EnvSpec, pool: Pool) -> Algorithm:
    """PPO for one environment, on whatever shards ``pool`` stands for."""
    own: Config = config.algo
    network = make_network(config, spec)
    num_minibatches = config.steps_per_iteration // own.minibatch_size

    def adam(hyper: Hyper, learning_rate: Array) -> optax.GradientTransformation:
        return optim.adam(learning_rate, hyper.optimizer_epsilon, hyper.max_grad_norm)

    def init_shared(key: Key) -> Shared:
        target_kl = jnp.inf if own.target_kl is None else own.target_kl
        numbers = {name: getattr(own, name) for name in Hyper._fields} | {"target_kl": target_kl}
        hyper = Hyper(**{name: jnp.float32(number) for name, number in numbers.items()})
        params = network.init(key)
        return Shared(
            hyper=hyper,
            params=params,
            optimizer=adam(hyper, hyper.learning_rate).init(ravel_pytree(params)[0]),
            iteration=jnp.zeros((), jnp.int32),
            observation=normalize.init_statistics(spec.observation_shape),
            discounted=normalize.init_statistics(),
        )

    def init_local(key: Key, shard_index: Array) -> Array:
        return jnp.zeros(config.envs_per_shard)  # running discounted returns

    def observe(statistics: normalize.Statistics, obs: Array) -> Array:
        return normalize.normalize(statistics, obs) if own.normalize_observations else obs

    def respond(actor: Actor, carry: PyTree, obs: Array, is_first: Array) -> tuple[Array, PyTree]:
        """What the policy makes of one step, [B, ...], and what it remembers then."""
        obs = observe(actor.observation, obs)
        carry, (policy, _) = network.apply(actor.params, carry, obs[None], is_first[None])
        return policy[0], carry

    def act(
        actor: Actor, local: Array, carry: PyTree, obs: Array, is_first: Array, key: Key
    ) -> tuple[Array, PyTree, Array]:
        policy, carry = respond(actor, carry, obs, is_first)
        action = network.policy.sample(key, policy)
        return action, carry, network.policy.log_prob(policy, action)

    def play(
        actor: Actor, carry: PyTree, obs: Array, is_first: Array, key: Key, greedy: bool
    ) -> tuple[Array, PyTree]:
        policy, carry = respond(actor, carry, obs, is_first)
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
            _, (_, value) = network.apply(shared.params, rollout.carry, obs, rollout.is_first)
            advantage = returns.gae(
                value,
                reward,
                rollout.terminated,
                rollout.truncated,
                rollout.valid,
                hyper.gamma,
                hyper.gae_lambda,
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
            if own.recurrent:
                return samples
            return jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), samples)

        samples = pool.map(shard_samples, rollout, reward)  # [S, L, n, ...]
        n = samples.valid.shape[2]

        orders = permute.minibatches(pool, key, n, own.epochs, num_minibatches)

        # Advantages do not change within an iteration, so the moments of all its minibatches
        # travel together, [epochs, num_minibatches].
        advantage, valid = pool.map(
            lambda samples, order: (samples.advantage[:, order], samples.valid[:, order]),
            samples,
            orders,
        )  # [S, L, epochs, num_minibatches, m]
        count, mean, variance = normalize.pooled_moments(pool, advantage, valid, axes=(0, 3))
        if not own.normalize_advantages:
            mean, variance = jnp.zeros_like(mean), jnp.ones_like(variance)
        scale = 1 / (jnp.sqrt(variance) + 1e-8)

        progress = shared.iteration / config.num_iterations
        learning_rate = optim.scheduled(own.lr_schedule, hyper.learning_rate, progress)
        optimize = adam(hyper, learning_rate)
        flat_params, unravel = ravel_pytree(shared.params)

        def gradient_step(moving: tuple) -> tuple:
            step, flat_params, optimizer_state, _, totals = moving
            at = step // num_minibatches, step % num_minibatches
            share = 1 / jnp.maximum(count[at], 1)

            def shard_loss(flat_params: Array, batch: Samples) -> tuple[Array, Any]:
                batch = batch._replace(advantage=(batch.advantage - mean[at]) * scale[at])
                total, sums = loss(network, own, hyper, unravel(flat_params), batch)
                return total * share, jax.tree.map(lambda x: x * share, sums)

            batch = jax.vmap(
                lambda samples, order: jax.tree.map(lambda x: x[:, order[at]], samples)
            )(samples, orders)  # [S, L, m, ...]
            gradient, metrics = pool.grad(shard_loss, flat_params, batch)
            metrics["grad_norm"] = optax.tree.norm(gradient)
            change, next_state = optimize.update(gradient, optimizer_state)
            moved = (flat_params + change, next_state)
            stopped = jnp.zeros((), bool)
            if own.target_kl is not None:  # equal on all devices, so all leave the loop together
                stopped = metrics["approx_kl"] > 1.5 * hyper.target_kl
                moved = jax.tree.map(
                    lambda new, old: jnp.where(stopped, old, new),
                    moved,
                    (flat_params, optimizer_state),
                )
            # One array instead of eight: each would be a loop's output of its own to compile.
            totals = totals + jnp.stack([metrics[name] for name in STEP_METRICS])
            return (step + 1, *moved, stopped, totals)

        steps, flat_params, optimizer_state, stopped, totals = jax.lax.while_loop(
            lambda moving: (moving[0] < own.epochs * num_minibatches) & ~moving[3],
            gradient_step,
            (
                jnp.zeros((), jnp.int32),
                flat_params,
                shared.optimizer,
                jnp.zeros((), bool),
                jnp.zeros(len(STEP_METRICS)),
            ),
        )
        metrics = dict(zip(STEP_METRICS, totals * (1 / steps), strict=True))
        metrics["updates"] = (steps - stopped).astype(jnp.float32)
        metrics["learning_rate"] = learning_rate
        metrics["param_norm"] = optax.tree.norm(flat_params)  # tells when they are not finite
        metrics["explained_variance"] = explained_variance(pool, samples)

        observation = shared.observation
        if own.normalize_observations:
            seen = normalize.pooled_moments(pool, rollout.obs[:, :-1], rollout.valid)
            observation = normalize.merge(observation, *seen)
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
        init_carry=network.init_carry,
        actor=lambda shared: Actor(shared.params, shared.observation),
        act=act,
        play=play,
        update=update,
    )


def explained_variance(pool: Pool, samples: Samples) -> Array:
    """How much of the targets' variance the values explain: 1 is all, 0 no more than a mean."""
    pair = pool.map(lambda s: jnp.stack([s.target - s.value, s.target], -1), samples)
    _, _, (unexplained, variance) = normalize.pooled_moments(pool, pair, samples.valid)
    return 1 - unexplained / jnp.maximum(variance, 1e-8)
