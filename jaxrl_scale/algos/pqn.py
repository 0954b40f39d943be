"""Parallelised Q-network, https://arxiv.org/abs/2407.04811: Q-learning from fresh rollouts.

There is no replay and no target network. The network is regressed onto λ-returns of the parameters
that acted, and LayerNorm keeps that from diverging. Minibatches have a fixed *size*: growing
``num_envs`` grows their number and leaves the inner loop as it is. For a network with a memory, one
environment's rollout is one sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl_scale.algos import common, on_policy, q_learning
from jaxrl_scale.algos.on_policy import Shared
from jaxrl_scale.learning import networks, normalize, optim, permute, returns
from jaxrl_scale.learning.masks import masked
from jaxrl_scale.options import Sizes, check_minibatches, check_trajectories, option, register
from jaxrl_scale.types import Algorithm, Array, EnvSpec, Key, Metrics, Pool, PyTree, Rollout, Time


@register
@dataclass(frozen=True)
class Config:
    """PQN's options."""

    name: ClassVar[str] = "pqn"

    recurrent: bool = common.recurrent()
    learning_rate: float = common.learning_rate(3e-4)
    lr_schedule: optim.Schedule = common.lr_schedule()
    gamma: float = common.gamma()
    return_lambda: float = option(
        0.65,
        "λ of the returns: 0 bootstraps after one step, 1 adds up the rewards of the whole rollout",
        low=0,
        high=1,
    )
    epsilon_start: float = common.epsilon_start()
    epsilon_end: float = common.epsilon_end()
    exploration_fraction: float = common.exploration_fraction(0.1)
    epochs: int = common.epochs(2)
    minibatch_size: int = common.minibatch_size(512)
    layer_norm: bool = option(
        True,
        "normalize the features of every layer before its activation; a network of your own should "
        "do so itself",
    )
    max_grad_norm: float | None = common.max_grad_norm(10.0)
    optimizer_epsilon: float = common.optimizer_epsilon()
    normalize_observations: bool = common.normalize_observations()
    scale_rewards: bool = common.scale_rewards()

    depends_on_budget = property(q_learning.has_schedule)

    def check(self, config: Sizes) -> None:
        check = check_trajectories if self.recurrent else check_minibatches
        check(config, self.minibatch_size)


class Samples(NamedTuple):
    """What the loss reads: without a memory ``n = T * B`` steps ``[n, ...]``, with one the rollouts
    ``[T, n, ...]`` of ``n = B`` environments. A minibatch has some of them."""

    carry: PyTree  # [1, n, ...] before the first step; () without a memory
    obs: Array
    is_first: Array
    action: Array
    target: Array
    valid: Array


def loss(
    network: networks.RecurrentQNetwork, params: PyTree, batch: Samples
) -> tuple[Array, Metrics]:
    """Half the squared error of the chosen actions' values (section 3 of the paper), and its parts,
    as *sums* over the valid samples. Divide by ``count`` for the mean."""
    carry = jax.tree.map(lambda x: x[0], batch.carry)
    _, q = network.apply(params, carry, batch.obs, batch.is_first)
    value = q_learning.value_of(q, batch.action)
    parts = {"loss": 0.5 * jnp.square(value - batch.target), "q_mean": value}
    sums = optim.masked_sums(batch.valid, parts)
    return sums["loss"], sums


def make(config: Sizes, spec: EnvSpec, pool: Pool) -> Algorithm:
    """PQN for one environment, on whatever shards ``pool`` stands for."""
    network = networks.make_q_policy(
        config, spec, recurrent=config.algo.recurrent, layer_norm=config.algo.layer_norm
    )

    def shard_samples(shared: Shared, rollout: Rollout) -> Samples:
        """The rollout of one shard ``[T, B]`` with λ-returns, as the loss reads it."""
        options, weights = shared.options, networks.Weights(shared.params, shared.observation)
        best = networks.evaluate(network, weights, rollout).max(-1)
        target = returns.lambda_returns(best, rollout, options.gamma, options.return_lambda)
        samples = Samples(
            carry=(),
            obs=rollout.obs[:-1],
            is_first=rollout.is_first[:-1],
            action=rollout.action,
            target=target,
            valid=rollout.valid,
        )
        samples = masked(rollout.valid, samples)
        if options.recurrent:
            return samples._replace(carry=jax.tree.map(lambda x: x[None], rollout.carry))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), samples)

    def update(
        shared: Shared, local: Array, rollout: Rollout, key: Key, time: Time
    ) -> tuple[Shared, Array, Metrics]:
        options = shared.options
        rollout, local, discounted = normalize.scale_rewards(
            pool, shared.discounted, local, rollout, options.gamma
        )
        samples = pool.map(lambda rolled: shard_samples(shared, rolled), rollout)
        minibatches = config.steps_per_iteration // options.minibatch_size
        axis = 1 if options.recurrent else 0  # where one shard's samples have their n
        n = samples.valid.shape[1 + axis]
        orders = permute.minibatches(pool, key, n, options.epochs, minibatches)  # [S, steps, m]
        optimizer = optim.make(options, time.progress)
        params, unravel = ravel_pytree(shared.params)  # one vector [N]

        def shard_loss(params: Array, batch: Samples) -> tuple[Array, Metrics]:
            batch = batch._replace(obs=normalize.apply(shared.observation, batch.obs))
            return loss(network, unravel(params), batch)

        def gradient_step(step: Array, moving: tuple) -> tuple[tuple, Metrics]:
            params, state = moving
            batch = permute.take(samples, orders, step, axis)
            gradient, means = optim.mean_gradient(pool, shard_loss, params, batch)
            return optimizer.step(gradient, params, state), means

        (params, state), metrics = optim.average_over(
            options.epochs * minibatches, gradient_step, (params, shared.optimizer)
        )
        metrics["learning_rate"] = optimizer.learning_rate
        metrics["epsilon"] = q_learning.actor(shared, time).epsilon
        observation = normalize.update(
            pool.after(params), shared.observation, rollout.obs[:, :-1], rollout.valid
        )
        return Shared(options, unravel(params), state, observation, discounted), local, metrics

    return Algorithm(
        init_shared=partial(on_policy.init, network, spec),
        init_local=on_policy.discounted_returns(config),
        init_carry=network.init_carry,
        actor=q_learning.actor,
        act=q_learning.acting(network),
        outputs=partial(networks.outputs, network),
        update=update,
    )
