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

from jaxrl_scale.algos import common, q_learning
from jaxrl_scale.algos.q_learning import Shared
from jaxrl_scale.learning import networks, optim, replay
from jaxrl_scale.options import Sizes, option, register
from jaxrl_scale.types import Algorithm, Array, EnvSpec, Key, Metrics, Pool, PyTree, Rollout, Time


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

    def update(
        shared: Shared, ring: replay.Ring, rollout: Rollout, key: Key, time: Time
    ) -> tuple[Shared, replay.Ring, Metrics]:
        options = shared.options

        def loss(
            params: PyTree,
            target_params: PyTree,
            batch: replay.Transition,
            index: Array,
            step: Array,
        ) -> tuple[Array, Metrics]:
            total, (_, sums) = q_learning.loss(
                network, options, shared.observation, params, target_params, batch
            )
            if options.shard_losses:
                sums["loss_shard"] = total * jax.nn.one_hot(index, pool.num_shards)
            return total, sums

        new, ring, metrics = q_learning.learn(pool, config, shared, ring, rollout, key, time, loss)
        if options.shard_losses:
            of_shards = metrics.pop("loss_shard") * pool.num_shards
            metrics |= {f"loss_shard_{k}": x for k, x in enumerate(of_shards)}
        metrics["epsilon"] = q_learning.actor(shared, time).epsilon
        return new, ring, metrics

    return Algorithm(
        init_shared=partial(q_learning.init, network, spec),
        init_local=lambda key, shard_index: replay.init(spec, num_rows),
        init_carry=lambda num_envs: (),
        actor=q_learning.actor,
        act=q_learning.acting(networks.q_without_memory(network)),
        outputs=partial(networks.outputs, network),
        update=update,
    )
