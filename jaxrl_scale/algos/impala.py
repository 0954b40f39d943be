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
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl_scale.algos import common, lagging, on_policy
from jaxrl_scale.algos.on_policy import Shared
from jaxrl_scale.learning import networks, normalize, optim, permute, returns
from jaxrl_scale.learning.masks import masked
from jaxrl_scale.options import Sizes, check_trajectories, option, register
from jaxrl_scale.types import Algorithm, Array, EnvSpec, Key, Metrics, Pool, PyTree, Rollout, Time


@register
@dataclass(frozen=True)
class Config:
    """IMPALA's options."""

    name: ClassVar[str] = "impala"

    recurrent: bool = common.recurrent()
    lag: int = common.lag(1)
    correction: Literal["vtrace", "none"] = option(
        "vtrace", "correction for the lag: V-trace, or none (treat the rollout as on-policy)"
    )
    rho_clip: float = option(
        1.0, "V-trace: largest likelihood ratio that weights a temporal difference", low=0
    )
    c_clip: float = option(
        1.0, "V-trace: largest likelihood ratio that passes a difference on to earlier steps", low=0
    )
    vtrace_lambda: float = option(1.0, "λ of V-trace's targets and advantages", low=0, high=1)
    learning_rate: float = common.learning_rate(6e-4)
    lr_schedule: optim.Schedule = common.lr_schedule()
    gamma: float = common.gamma()
    epochs: int = common.epochs(1)
    minibatch_size: int = common.minibatch_size(2048)
    entropy_coef: float = common.entropy_coef()
    value_coef: float = common.value_coef()
    max_grad_norm: float | None = common.max_grad_norm(0.5)
    optimizer: optim.Kind = common.optimizer()
    optimizer_epsilon: float = common.optimizer_epsilon()
    normalize_observations: bool = common.normalize_observations()
    scale_rewards: bool = common.scale_rewards()

    depends_on_budget = property(common.has_schedule)

    def check(self, config: Sizes) -> None:
        check_trajectories(config, self.minibatch_size)


def loss(
    network: networks.RecurrentNetwork, options: Config, params: PyTree, batch: Rollout
) -> tuple[Array, Metrics]:
    """The loss and its parts, as *sums* over the valid steps of whole trajectories ``[T, B]``
    (section 4.2 of the paper); ``batch.extras`` are the log-probabilities of the policy that
    acted. Divide by ``count`` for the mean."""
    carry = jax.tree.map(lambda x: x[0], batch.carry)
    _, (policy, value) = network.apply(params, carry, batch.obs, batch.is_first)
    policy = policy[:-1]
    log_prob = network.policy.log_prob(policy, batch.action)
    # A network that forbids all actions for the zeros of a reset step has no log-probability there.
    log_ratio = jax.lax.stop_gradient(masked(batch.valid, log_prob - batch.extras))
    ratio = jnp.exp(log_ratio)
    weight, rho_clip, c_clip = ratio, options.rho_clip, options.c_clip
    if options.correction == "none":
        weight, rho_clip, c_clip = jnp.ones_like(ratio), jnp.inf, jnp.inf
    target, advantage = returns.vtrace(
        jax.lax.stop_gradient(value),
        weight,
        batch,
        options.gamma,
        options.vtrace_lambda,
        rho_clip,
        c_clip,
    )
    parts = {
        "policy_loss": -log_prob * advantage,
        "value_loss": 0.5 * jnp.square(value[:-1] - target),
        "entropy": network.policy.entropy(policy),
        "approx_kl": ratio - 1 - log_ratio,  # http://joschu.net/blog/kl-approx.html, k3
        "clip_fraction": (ratio > options.rho_clip).astype(jnp.float32),
    }
    sums = optim.masked_sums(batch.valid, parts)
    total = sums["policy_loss"] + options.value_coef * sums["value_loss"]
    total = total - options.entropy_coef * sums["entropy"]
    return total, sums | {"loss": total}


def without_what_is_not_used(rollout: Rollout) -> Rollout:
    """The rollouts ``[S, T, B]`` with zeros for what no loss depends on, but which may be NaN and
    so reach the gradient as 0 * NaN: the actions of reset steps, and the observations that
    terminated an episode. Those that truncated one are bootstrapped from. The memory becomes
    ``[S, 1, B, ...]``, so that the environments are the same axis of all."""
    behind = jnp.concatenate([~rollout.valid[:, :1], rollout.terminated], 1)
    return rollout._replace(
        carry=jax.tree.map(lambda x: x[:, None], rollout.carry),
        obs=masked(~behind, rollout.obs),
        action=masked(rollout.valid, rollout.action),
        extras=masked(rollout.valid, rollout.extras),
    )


def make(config: Sizes, spec: EnvSpec, pool: Pool) -> Algorithm:
    """IMPALA for one environment, on whatever shards ``pool`` stands for."""
    network = networks.make_policy(config, spec, recurrent=config.algo.recurrent)

    def act(
        actor: lagging.Actor,
        local: Array | None,
        carry: PyTree,
        obs: Array,
        is_first: Array,
        key: Key,
        greedy: bool = False,
    ) -> tuple[Array, PyTree, Array]:
        weights = lagging.weights(actor, local)
        carry, (policy, _) = networks.one_step(network, weights, carry, obs, is_first)
        action = network.policy.choose(key, policy, greedy)
        return action, carry, network.policy.log_prob(policy, action)

    def update(
        shared: Shared, local: Array, rollout: Rollout, key: Key, time: Time
    ) -> tuple[Shared, Array, Metrics]:
        options = shared.options
        rollout, local, discounted = normalize.scale_rewards(
            pool, shared.discounted, local, rollout, options.gamma
        )
        trajectories = without_what_is_not_used(rollout)  # [S, T, B, ...]
        minibatches = config.steps_per_iteration // options.minibatch_size
        orders = permute.minibatches(pool, key, config.envs_per_shard, options.epochs, minibatches)
        optimizer = optim.make(options, time.progress)
        params, unravel = ravel_pytree(shared.params)  # one vector [N]

        def shard_loss(params: Array, batch: Rollout) -> tuple[Array, Metrics]:
            batch = batch._replace(obs=normalize.apply(shared.observation, batch.obs))
            return loss(network, options, unravel(params), batch)

        def gradient_step(step: Array, moving: tuple) -> tuple[tuple, Metrics]:
            params, state = moving
            batch = permute.take(trajectories, orders, step, axis=1)  # [S, T, b, ...]
            gradient, means = optim.mean_gradient(pool, shard_loss, params, batch)
            return optimizer.step(gradient, params, state), means

        (params, state), metrics = optim.average_over(
            options.epochs * minibatches, gradient_step, (params, shared.optimizer)
        )
        metrics["learning_rate"] = optimizer.learning_rate
        observation = normalize.update(
            pool.after(params), shared.observation, rollout.obs[:, :-1], rollout.valid
        )
        older = lagging.older(shared)
        shared = Shared(options, unravel(params), state, observation, discounted, older)
        return shared, local, metrics

    return Algorithm(
        init_shared=lambda key, options, weights=None: on_policy.init(
            network, spec, key, options, weights, options.lag
        ),
        init_local=on_policy.discounted_returns(config),
        init_carry=network.init_carry,
        actor=lambda shared, time: lagging.actor(shared),
        act=act,
        outputs=lagging.outputs(network),
        update=update,
    )
