"""Ape-X, https://arxiv.org/abs/1803.00933: many actors that explore differently, one learner, and
prioritized replay (https://arxiv.org/abs/1511.05952); n-step double dueling DQN.

Every shard has its own replay, from which it draws its share of a batch by its own priorities. The
importance weights make up for that and are divided by the largest of *all* shards; it travels with
the gradient, which is linear in them. Actors may be behind the learner, by `Config.lag` iterations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl_scale.algos import common, lagging, q_learning
from jaxrl_scale.algos.q_learning import Shared
from jaxrl_scale.learning import networks, normalize, optim, prioritized, replay
from jaxrl_scale.learning.networks import Weights
from jaxrl_scale.options import Sizes, option, register
from jaxrl_scale.types import Algorithm, Array, EnvSpec, Key, Metrics, Pool, PyTree, Rollout, Time


@register
@dataclass(frozen=True)
class Config:
    """Ape-X's options."""

    name: ClassVar[str] = "apex"

    lag: int = common.lag(0)
    learning_rate: float = common.learning_rate(1e-3)
    lr_schedule: optim.Schedule = common.lr_schedule()
    gamma: float = common.gamma()
    n_step: int = common.n_step(3)
    batch_size: int = common.batch_size()
    updates_per_iteration: int = common.updates_per_iteration()
    replay_size: int = common.replay_size(2**20)
    learning_starts: int = common.learning_starts()
    priority_exponent: float = option(
        0.6, "α: transitions are drawn in proportion to |error|^α; 0 draws uniformly", low=0
    )
    importance_exponent: float = option(
        0.4, "β: how far weights in the loss make up for that; 0: not at all, 1: wholly", low=0
    )
    epsilon: float = option(
        0.4,
        "environment i of N takes a random action with probability "
        "epsilon^(1 + ladder * i / (N - 1))",
        low=0,
        high=1,
    )
    ladder: float = option(
        7.0, "how much less the last environment explores than the first; 0: all alike", low=0
    )
    double: bool = common.double()
    dueling: bool = common.dueling(True)
    huber_delta: float | None = common.huber_delta()
    target_period: int = common.target_period()
    tau: float = common.tau()
    max_grad_norm: float | None = common.max_grad_norm(10.0)
    optimizer_epsilon: float = common.optimizer_epsilon()
    normalize_observations: bool = common.normalize_observations()

    depends_on_budget = property(common.has_schedule)

    def check(self, config: Sizes) -> None:
        replay.check(config, self.replay_size, self.batch_size, self.n_step)


class Actor(NamedTuple):
    """As `lagging.Actor`, with the options that say how much is explored."""

    options: Config
    behaviour: Weights
    newest: Weights

    @property
    def params(self) -> PyTree:
        return self.newest.params


class Local(NamedTuple):
    """What belongs to one shard."""

    store: prioritized.Store
    environment: Array  # [B] int32, indices among the environments of all shards


def ladder(epsilon: Array | float, exponent: Array | float, num_envs: int, index: Array) -> Array:
    """How much environment ``index`` of all explores; section 4 of the paper."""
    return epsilon ** (1 + index.astype(jnp.float32) * (exponent / max(1, num_envs - 1)))


def make(config: Sizes, spec: EnvSpec, pool: Pool) -> Algorithm:
    """Ape-X for one environment, on whatever shards ``pool`` stands for."""
    network = networks.make_q(config, spec, dueling=config.algo.dueling)
    num_envs = config.envs_per_shard
    rows = config.rollout_length * num_envs  # of an iteration, in the ring of one shard
    num_rows = config.algo.replay_size // pool.num_shards

    def init_local(key: Key, shard_index: Array) -> Local:
        return Local(
            store=prioritized.init(spec, num_rows, config.algo.n_step, num_envs),
            environment=shard_index * num_envs + jnp.arange(num_envs),
        )

    def actor(shared: Shared, time: Time) -> Actor:
        return Actor(shared.options, *lagging.actor(shared))

    def act(
        actor: Actor,
        local: Local | None,
        carry: PyTree,
        obs: Array,
        is_first: Array,
        key: Key,
        greedy: bool = False,
    ) -> tuple[Array, PyTree, tuple[Array, Array]]:
        params, observation = lagging.weights(actor, local)
        q = network.apply(params, normalize.apply(observation, obs))
        # An agent that is evaluated explores as the last environment, which explores least.
        index = jnp.int32(config.num_envs - 1) if local is None else local.environment
        epsilon = ladder(actor.options.epsilon, actor.options.ladder, config.num_envs, index)
        action = q_learning.choose(network, key, q, epsilon, greedy)
        return action, carry, (q_learning.value_of(q, action), q.max(-1))

    def update(
        shared: Shared, local: Local, rollout: Rollout, key: Key, time: Time
    ) -> tuple[Shared, Local, Metrics]:
        options, index = shared.options, pool.shard_index()
        stored = replay.window(time.iteration, rows, num_rows)
        store = prioritized.insert(
            pool, local.store, rollout, stored.start, options.gamma, options.priority_exponent
        )
        shape = options.updates_per_iteration, options.batch_size // pool.num_shards
        uniform = pool.map(
            lambda index: jax.random.uniform(jax.random.fold_in(key, index), shape), index
        )  # [S, updates, M]
        optimizer = optim.make(options, time.progress)
        params, unravel = ravel_pytree(shared.params)  # one vector [N]
        target_params, _ = ravel_pytree(shared.target_params)

        def gradient_step(step: Array, moving: tuple) -> tuple[tuple, Metrics]:
            params, target_params, state, priorities = moving

            def shard_gradient(index: Array, drawn: prioritized.Drawn) -> tuple[Array, Any]:
                weight = prioritized.importance(
                    drawn.priority, drawn.total, options.importance_exponent
                )

                def shard_loss(params: Array) -> tuple[Array, Any]:
                    both = unravel(params), unravel(target_params)
                    return q_learning.loss(
                        network, options, shared.observation, *both, drawn.batch, weight
                    )

                gradient, (error, sums) = jax.grad(shard_loss, has_aux=True)(params)
                largest = jax.nn.one_hot(index, pool.num_shards) * weight.max()
                new = prioritized.priority(error, options.priority_exponent)
                # Where nothing can be drawn, what was drawn is no row to give a priority.
                new = jnp.where(drawn.priority > 0, new, 0.0)
                return new, (gradient, sums, largest)

            drawn = prioritized.draw(pool, store._replace(priorities=priorities), uniform[:, step])
            # As `optim.mean_gradient`, but that the new priorities stay in their shard.
            new, terms = pool.map(shard_gradient, index, drawn)
            gradient, sums, largest = pool.sum(terms)
            priorities = jax.vmap(replay.set_priorities)(priorities, drawn.row, new)
            per_sample = 1.0 / jnp.maximum(sums.pop("count"), 1.0)
            scale = per_sample * (1.0 / largest.max())
            gradient = gradient * scale
            means = {name: total * per_sample for name, total in sums.items()}
            means |= {"loss": sums["loss"] * scale, "grad_norm": optax.tree.norm(gradient)}
            params, state = optimizer.step(gradient, params, state)
            target_params = q_learning.follow(shared, step, target_params, params)
            return (params, target_params, state, priorities), means

        updates = q_learning.updates_due(options, config, time, stored)
        (*moved, priorities), metrics = optim.average_over(
            updates, gradient_step, (params, target_params, shared.optimizer, store.priorities)
        )
        metrics["learning_rate"] = optimizer.learning_rate
        metrics["replay"] = stored.stored / num_rows
        shared = q_learning.advance(pool, shared, moved, updates, rollout)
        return shared, local._replace(store=store._replace(priorities=priorities)), metrics

    return Algorithm(
        init_shared=lambda key, options, weights=None: q_learning.init(
            network, spec, key, options, weights, options.lag
        ),
        init_local=init_local,
        init_carry=lambda num_envs: (),
        actor=actor,
        act=act,
        outputs=lagging.outputs(network),
        update=update,
    )
