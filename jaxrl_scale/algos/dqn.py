"""Deep Q-learning from a replay ring in every shard, https://www.nature.com/articles/nature14236.

With it, as options: double (https://arxiv.org/abs/1509.06461) and dueling
(https://arxiv.org/abs/1511.06581) networks, n-step returns, a soft target. Each gradient step draws
the same number of transitions from every shard, so the number of devices changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
from jax.flatten_util import ravel_pytree

from jaxrl_scale.algos import common, q_learning
from jaxrl_scale.algos.q_learning import Shared
from jaxrl_scale.learning import networks, optim, replay
from jaxrl_scale.options import Sizes, option, register
from jaxrl_scale.types import Algorithm, Array, EnvSpec, Key, Metrics, Pool, Rollout, Time


@register
@dataclass(frozen=True)
class Config:
    """DQN's options."""

    name: ClassVar[str] = "dqn"

    learning_rate: float = common.learning_rate(1e-3)
    lr_schedule: optim.Schedule = common.lr_schedule()
    gamma: float = common.gamma()
    n_step: int = common.n_step(1)
    batch_size: int = common.batch_size()
    updates_per_iteration: int = common.updates_per_iteration()
    replay_size: int = common.replay_size(2**17)
    learning_starts: int = common.learning_starts()
    double: bool = common.double()
    dueling: bool = common.dueling(False)
    huber_delta: float | None = common.huber_delta()
    target_period: int = common.target_period()
    tau: float = common.tau()
    epsilon_start: float = common.epsilon_start()
    epsilon_end: float = common.epsilon_end()
    exploration_fraction: float = common.exploration_fraction(0.25)
    max_grad_norm: float | None = common.max_grad_norm(10.0)
    optimizer_epsilon: float = common.optimizer_epsilon()
    normalize_observations: bool = common.normalize_observations()
    shard_losses: bool = option(False, "report every shard's part of the loss, too")

    depends_on_budget = property(q_learning.has_schedule)

    def check(self, config: Sizes) -> None:
        replay.check(config, self.replay_size, self.batch_size, self.n_step)


def make(config: Sizes, spec: EnvSpec, pool: Pool) -> Algorithm:
    """DQN for one environment, on whatever shards ``pool`` stands for."""
    network = networks.make_q(config, spec, dueling=config.algo.dueling)
    num_rows = config.algo.replay_size // pool.num_shards
    rows = config.steps_per_iteration // pool.num_shards  # of an iteration, in a shard's ring

    def update(
        shared: Shared, ring: replay.Ring, rollout: Rollout, key: Key, time: Time
    ) -> tuple[Shared, replay.Ring, Metrics]:
        options = shared.options
        stored = replay.window(time.iteration, rows, num_rows)
        ring = replay.insert(ring, rollout, stored.start)
        batch_of = q_learning.batches(pool, options, config, ring, stored, key)
        optimizer = optim.make(options, time.progress)
        params, unravel = ravel_pytree(shared.params)  # one vector [N]
        target_params, _ = ravel_pytree(shared.target_params)

        def gradient_step(step: Array, moving: tuple) -> tuple[tuple, Metrics]:
            params, target_params, state = moving

            def shard_loss(
                params: Array, index: Array, batch: replay.Transition
            ) -> tuple[Array, Metrics]:
                both = unravel(params), unravel(target_params)
                total, (_, sums) = q_learning.loss(
                    network, options, shared.observation, *both, batch
                )
                if options.shard_losses:
                    sums["loss_shard"] = total * jax.nn.one_hot(index, pool.num_shards)
                return total, sums

            gradient, means = optim.mean_gradient(
                pool, shard_loss, params, pool.shard_index(), batch_of(step)
            )
            params, state = optimizer.step(gradient, params, state)
            target_params = q_learning.follow(shared, step, target_params, params)
            return (params, target_params, state), means

        updates = q_learning.updates_due(options, config, time, stored)
        moved, metrics = optim.average_over(
            updates, gradient_step, (params, target_params, shared.optimizer)
        )
        if options.shard_losses:
            of_shards = metrics.pop("loss_shard") * pool.num_shards
            metrics |= {f"loss_shard_{k}": x for k, x in enumerate(of_shards)}
        metrics["learning_rate"] = optimizer.learning_rate
        metrics["epsilon"] = q_learning.actor(shared, time).epsilon
        metrics["replay"] = stored.stored / num_rows
        return q_learning.advance(pool, shared, moved, updates, rollout), ring, metrics

    return Algorithm(
        init_shared=partial(q_learning.init, network, spec),
        init_local=lambda key, shard_index: replay.init(spec, num_rows),
        init_carry=lambda num_envs: (),
        actor=q_learning.actor,
        act=q_learning.acting(network),
        update=update,
    )
