"""IMPALA, https://arxiv.org/abs/1802.01561: actors that are behind, corrected by V-trace.

Where actors and learner run side by side, a rollout comes from parameters that are some updates
old. Here that lag is a number of the config, in iterations, so that what it does to learning can
be measured and a run stays a function of its config: iteration ``k`` acts with the parameters
(and the observation statistics) from before iteration ``k - lag``. V-trace is computed anew from
the current parameters in every gradient step, so that it also corrects what the steps of the
iteration before it have moved. Minibatches hold whole trajectories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl_scale import config as cfg
from jaxrl_scale import options
from jaxrl_scale.learning import networks, normalize, optim, permute, returns
from jaxrl_scale.options import option
from jaxrl_scale.types import Algorithm, Array, EnvSpec, Key, Metrics, Pool, PyTree, Rollout


@dataclass(frozen=True)
class Config:
    """IMPALA's own options."""

    name: ClassVar[str] = "impala"

    lag: int = option(1, "iterations that the acting parameters are behind", low=0)
    correction: Literal["vtrace", "none"] = option(
        "vtrace", "what is done about it; none: as if the current parameters had acted"
    )
    rho_clip: float = option(1.0, "ratios are clipped here in what is learned", low=0)
    c_clip: float = option(1.0, "ratios are clipped here in how far it is passed back", low=0)
    vtrace_lambda: float = option(1.0, "λ of the targets and advantages", low=0, high=1)
    learning_rate: float = option(6e-4, "the optimiser's step size", low=0)
    lr_schedule: optim.Schedule = option(
        "linear", "learning rate over the run, from learning_rate towards 0"
    )
    gamma: float = option(0.99, "discount", low=0, high=1)
    epochs: int = option(1, "passes over a rollout", low=1)
    minibatch_size: int = option(
        2048, "steps of a gradient step, over all devices, in whole trajectories", low=1
    )
    entropy_coef: float = option(0.01, "weight of the entropy bonus", low=0)
    value_coef: float = option(0.5, "weight of the value loss", low=0)
    max_grad_norm: float = option(0.5, "the gradient's norm is clipped here", low=0)
    optimizer: optim.Kind = option("adam", "optimiser")
    optimizer_epsilon: float = option(1e-5, "the optimiser's ε", low=0)
    normalize_observations: bool = option(False, "by running statistics pooled over all shards")
    scale_rewards: bool = option(False, "by the running deviation of the discounted return")

    @property
    def depends_on_budget(self) -> bool:
        """Whether a longer run differs from a shorter one before the shorter one ends."""
        return self.lr_schedule != "constant"

    def check(self, config: cfg.Config) -> None:
        options.check_trajectories(config, self.minibatch_size)


STEP_METRICS = (
    *("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"),
    "grad_norm",
)
"""Of every gradient step; reported as means over those of an iteration."""


class Hyper(NamedTuple):
    """The options that are plain numbers: traced, so that a population may differ in them."""

    rho_clip: Array
    c_clip: Array
    vtrace_lambda: Array
    learning_rate: Array
    gamma: Array
    entropy_coef: Array
    value_coef: Array
    max_grad_norm: Array
    optimizer_epsilon: Array


class Weights(NamedTuple):
    """What a policy is made of."""

    params: PyTree
    observation: normalize.Statistics


class Shared(NamedTuple):
    """What is the same on all shards."""

    hyper: Hyper
    history: tuple[Weights, ...]  # lag + 1 of them, the newest first
    optimizer: PyTree  # of the flattened parameters [N]
    iteration: Array  # [] int32
    discounted: normalize.Statistics  # of the running discounted return


class Actor(NamedTuple):
    """Training acts with the oldest weights; what is evaluated and kept are the newest."""

    behaviour: Weights
    newest: Weights


class Trajectories(NamedTuple):
    """What the loss reads of whole trajectories, ``[T, B, ...]``."""

    obs: Array  # [T + 1, B, ...]
    action: Array
    log_prob: Array  # of the policy that acted
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array


def loss(
    network: networks.Network, config: Config, hyper: Hyper, params: PyTree, batch: Trajectories
) -> tuple[Array, dict[str, Array]]:
    """The loss and its parts, as *sums* over the valid steps (section 4.2 of the paper).

    Divide by ``count``, added over all shards, for the mean.
    """
    policy, value = network.apply(params, batch.obs)
    policy = policy[:-1]
    log_prob = network.policy.log_prob(policy, batch.action)
    log_ratio = jax.lax.stop_gradient(log_prob - batch.log_prob)
    ratio = jnp.exp(log_ratio)
    target, advantage = returns.vtrace(
        jax.lax.stop_gradient(value),
        ratio if config.correction == "vtrace" else jnp.ones_like(ratio),
        batch.reward,
        batch.terminated,
        batch.truncated,
        batch.valid,
        hyper.gamma,
        hyper.vtrace_lambda,
        hyper.rho_clip,
        hyper.c_clip,
    )
    parts = {
        "policy_loss": -log_prob * advantage,
        "value_loss": 0.5 * jnp.square(value[:-1] - target),
        "entropy": network.policy.entropy(policy),
        # http://joschu.net/blog/kl-approx.html, the low-variance k3
        "approx_kl": ratio - 1 - log_ratio,
        "clip_fraction": (ratio > hyper.rho_clip).astype(jnp.float32),
    }
    sums = {name: jnp.where(batch.valid, part, 0.0).sum() for name, part in parts.items()}
    total = (
        sums["policy_loss"]
        + hyper.value_coef * sums["value_loss"]
        - hyper.entropy_coef * sums["entropy"]
    )
    return total, {"loss": total, **sums, "count": batch.valid.sum(dtype=jnp.float32)}


def make(config: cfg.Config, spec: EnvSpec, pool: Pool) -> Algorithm:
    """IMPALA for one environment, on whatever shards ``pool`` stands for."""
    own: Config = config.algo
    network = networks.make(config, spec)
    num_minibatches = config.steps_per_iteration // own.minibatch_size

    def descent(hyper: Hyper, learning_rate: Array) -> optax.GradientTransformation:
        return optim.make(
            own.optimizer, learning_rate, hyper.optimizer_epsilon, hyper.max_grad_norm
        )

    def init_shared(key: Key) -> Shared:
        hyper = Hyper(**{name: jnp.float32(getattr(own, name)) for name in Hyper._fields})
        params = network.init(key)
        first = Weights(params, normalize.init_statistics(spec.observation_shape))
        return Shared(
            hyper=hyper,
            history=(first,) * (own.lag + 1),
            optimizer=descent(hyper, hyper.learning_rate).init(ravel_pytree(params)[0]),
            iteration=jnp.zeros((), jnp.int32),
            discounted=normalize.init_statistics(),
        )

    def init_local(key: Key, shard_index: Array) -> Array:
        return jnp.zeros(config.envs_per_shard)  # running discounted returns

    def observe(statistics: normalize.Statistics, obs: Array) -> Array:
        return normalize.normalize(statistics, obs) if own.normalize_observations else obs

    def policy_of(weights: Weights, obs: Array) -> Array:
        return network.apply(weights.params, observe(weights.observation, obs))[0]

    def act(
        actor: Actor, local: Array, carry: PyTree, obs: Array, is_first: Array, key: Key
    ) -> tuple[Array, PyTree, Array]:
        policy = policy_of(actor.behaviour, obs)
        action = network.policy.sample(key, policy)
        return action, carry, network.policy.log_prob(policy, action)

    def play(
        actor: Actor, carry: PyTree, obs: Array, is_first: Array, key: Key, greedy: bool
    ) -> tuple[Array, PyTree]:
        policy = policy_of(actor.newest, obs)
        mode, sample = network.policy.mode, network.policy.sample
        return mode(policy) if greedy else sample(key, policy), carry

    def update(
        shared: Shared, local: Array, rollout: Rollout, key: Key
    ) -> tuple[Shared, Array, Metrics]:
        hyper, reward, discounted = shared.hyper, rollout.reward, shared.discounted
        params, statistics = shared.history[0]
        if own.scale_rewards:
            reward, local, discounted = returns.scale_rewards(
                pool, local, discounted, rollout, hyper.gamma
            )
        trajectories = Trajectories(
            obs=rollout.obs,
            action=rollout.action,
            log_prob=rollout.extras,
            reward=reward,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            valid=rollout.valid,
        )
        orders = permute.minibatches(
            pool, key, config.envs_per_shard, own.epochs, num_minibatches
        )  # environments of a shard

        progress = shared.iteration / config.num_iterations
        learning_rate = optim.scheduled(own.lr_schedule, hyper.learning_rate, progress)
        optimize = descent(hyper, learning_rate)
        flat_params, unravel = ravel_pytree(params)

        def shard_loss(flat_params: Array, batch: Trajectories) -> tuple[Array, dict[str, Array]]:
            batch = batch._replace(obs=observe(statistics, batch.obs))
            return loss(network, own, hyper, unravel(flat_params), batch)

        def gradient_step(step: Array, moving: tuple) -> tuple:
            flat_params, optimizer_state, totals = moving
            at = step // num_minibatches, step % num_minibatches
            batch = jax.vmap(lambda shard, order: jax.tree.map(lambda x: x[:, order[at]], shard))(
                trajectories, orders
            )  # [S, T, b, ...]
            gradient, sums = pool.grad(shard_loss, flat_params, batch)
            share = 1 / jnp.maximum(sums.pop("count"), 1.0)
            gradient = gradient * share
            means = {name: x * share for name, x in sums.items()}
            means["grad_norm"] = optax.tree.norm(gradient)
            change, optimizer_state = optimize.update(gradient, optimizer_state)
            # One array: each would be a loop's output of its own to compile.
            totals = totals + jnp.stack([means[name] for name in STEP_METRICS])
            return flat_params + change, optimizer_state, totals

        steps = own.epochs * num_minibatches
        flat_params, optimizer_state, totals = jax.lax.fori_loop(
            0, steps, gradient_step, (flat_params, shared.optimizer, jnp.zeros(len(STEP_METRICS)))
        )
        if own.normalize_observations:
            seen = normalize.pooled_moments(pool, rollout.obs[:, :-1], rollout.valid)
            statistics = normalize.merge(statistics, *seen)
        metrics = dict(zip(STEP_METRICS, totals * (1 / steps), strict=True)) | {
            "updates": jnp.float32(steps),
            "learning_rate": learning_rate,
            "param_norm": optax.tree.norm(flat_params),  # tells when they are not finite
        }
        newest = Weights(unravel(flat_params), statistics)
        shared = Shared(
            hyper=hyper,
            history=(newest, *shared.history[: own.lag]),
            optimizer=optimizer_state,
            iteration=shared.iteration + 1,
            discounted=discounted,
        )
        return shared, local, metrics

    return Algorithm(
        init_shared=init_shared,
        init_local=init_local,
        init_carry=lambda num_envs: (),
        actor=lambda shared: Actor(shared.history[-1], shared.history[0]),
        act=act,
        play=play,
        update=update,
    )
