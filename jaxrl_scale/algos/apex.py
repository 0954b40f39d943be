"""Ape-X, https://arxiv.org/abs/1803.00933: many actors that explore differently, one learner, and
prioritised replay (https://arxiv.org/abs/1511.05952); n-step double dueling DQN.

Every shard has its own replay, from which it draws its share of a batch by its own priorities. The
importance weights make up for that and are divided by the largest of *all* shards; it travels with
the gradient, which is linear in them. The actors' own values give a step its first priority, as
soon as the step that its return ends with has been acted on; until then it has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl_scale import config as cfg
from jaxrl_scale.algos import dqn
from jaxrl_scale.learning import networks, normalize, optim, replay
from jaxrl_scale.options import option, register
from jaxrl_scale.types import Algorithm, Array, EnvSpec, Key, Metrics, Pool, PyTree, Rollout


@register
@dataclass(frozen=True)
class Config:
    """Ape-X's own options."""

    name: ClassVar[str] = "apex"

    learning_rate: float = option(1e-3, "Adam's step size", low=0)
    lr_schedule: optim.Schedule = option(
        "linear", "learning rate over the run, from learning_rate towards 0"
    )
    gamma: float = option(0.99, "discount", low=0, high=1)
    n_step: int = option(3, "rewards before the bootstrapped value", low=1)
    batch_size: int = option(256, "samples of a gradient step, over all devices", low=1)
    updates_per_iteration: int = option(64, "gradient steps of an iteration", low=1)
    replay_size: int = option(2**20, "steps that replay holds, over all devices", low=1)
    learning_starts: int = option(10_000, "steps before the first gradient step", low=0)
    priority_exponent: float = option(0.6, "α: 0 draws uniformly, 1 by the error", low=0)
    importance_exponent: float = option(0.4, "β: 1 makes up for it wholly", low=0)
    epsilon: float = option(
        0.4, "environment i of N explores with ε^(1 + i/(N-1) a)", low=0, high=1
    )
    ladder: float = option(7.0, "a: how much less the last environment explores", low=0)
    double: bool = option(True, "the network chooses the action whose target value counts")
    dueling: bool = option(True, "value and advantages from two streams")
    huber_delta: float | None = option(
        None, "errors beyond it count linearly; none: all of them squared", low=0
    )
    target_period: int = option(1, "gradient steps between updates of the target network", low=1)
    tau: float = option(0.005, "how far it then moves; 1: a copy", low=0, high=1)
    max_grad_norm: float = option(10.0, "the gradient's norm is clipped here", low=0)
    optimizer_epsilon: float = option(1e-5, "Adam's ε", low=0)
    normalize_observations: bool = option(False, "by running statistics pooled over all shards")

    @property
    def depends_on_budget(self) -> bool:
        """Whether a longer run differs from a shorter one before the shorter one ends."""
        return self.lr_schedule != "constant"

    def check(self, config: cfg.Config) -> None:
        replay.check(config, self.replay_size, self.batch_size, self.n_step)


class Actor(NamedTuple):
    """What acting reads of `dqn.Shared`."""

    hyper: Config
    params: PyTree
    observation: normalize.Statistics | None


class Seen(NamedTuple):
    """What a step's first priority is computed from, ``[T, B]``."""

    value: Array  # of the action taken
    best: Array  # of the best action
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array


class Local(NamedTuple):
    """What belongs to one shard."""

    ring: replay.Ring
    priorities: replay.Priorities  # of its rows; 0 where a row is not to be drawn
    pending: Seen  # [n, B], the last steps: those without a priority yet
    environment: Array  # [B] int32, of the environments among those of all shards


def ladder(epsilon: Array | float, exponent: Array | float, num_envs: int, index: Array) -> Array:
    """How much environment ``index`` of all explores; section 4 of the paper."""
    return epsilon ** (1 + index * (exponent / max(1, num_envs - 1)))


def priority(error: Array, exponent: Array | float) -> Array:
    """What a sample is drawn in proportion to: ``p^α`` with ``p`` the error's size; section 3.3
    of https://arxiv.org/abs/1511.05952."""
    return (jnp.abs(error) + 1e-6) ** exponent


def importance(priority: Array, total: Array, exponent: Array | float) -> Array:
    """``P(i)^-β`` of samples drawn by ``P(i) = priority / total``, not yet divided by the largest.

    Whatever factor the samples of all shards have in common leaves with that: the number of
    steps ``N`` of the paper, and the shards' equal shares of a batch.
    """
    return (jnp.maximum(priority, 1e-30) * (1 / jnp.maximum(total, 1e-30))) ** -exponent


def first_errors(seen: Seen, n: int, gamma: Array | float) -> Array:
    """The actors' n-step errors of all but the last ``n`` of ``[n + T, B]`` steps, ``[T, B]``."""
    length = seen.value.shape[0] - n

    def ahead(x: Array, first: int) -> Array:
        return jnp.stack([x[k : k + length] for k in range(first, first + n)])  # [n, T, B]

    flags = ahead(seen.terminated, 0), ahead(seen.truncated, 0)
    reward, discount = replay.n_step(ahead(seen.reward, 0), *flags, gamma)
    last = replay.horizon(*flags) - 1
    best = jnp.take_along_axis(ahead(seen.best, 1), last[None], 0)[0]
    return seen.value[:length] - (reward + discount * best)


def make(config: cfg.Config, spec: EnvSpec, pool: Pool) -> Algorithm:
    """Ape-X for one environment, on whatever shards ``pool`` stands for."""
    own: Config = config.algo
    network = networks.make_q(config, spec, dueling=own.dueling)
    num_envs = config.envs_per_shard
    rows = config.rollout_length * num_envs  # of an iteration, in one shard
    num_rows = own.replay_size // pool.num_shards
    reach = own.n_step * num_envs
    step_metrics = ("loss", "q_mean", "td_error", "grad_norm")

    def adam(hyper: Config, learning_rate: Any) -> optax.GradientTransformation:
        return optim.adam(learning_rate, hyper)

    def init_shared(key: Key, hyper: Config) -> dqn.Shared:
        params = network.init(key)
        return dqn.Shared(
            hyper=hyper,
            params=params,
            target_params=params,
            optimizer=adam(hyper, hyper.learning_rate).init(ravel_pytree(params)[0]),
            updates=jnp.zeros((), jnp.int32),
            observation=normalize.init(own.normalize_observations, spec.observation_shape),
        )

    def init_local(key: Key, shard_index: Array) -> Local:
        nothing, no = jnp.zeros((own.n_step, num_envs)), jnp.zeros((own.n_step, num_envs), bool)
        index = shard_index * num_envs + jnp.arange(num_envs)
        return Local(
            ring=replay.init(spec, num_rows),
            priorities=replay.no_priorities(num_rows),
            pending=Seen(nothing, nothing, nothing, no, no, no),
            environment=index,
        )

    def act(
        actor: Actor,
        local: Local | None,
        carry: PyTree,
        obs: Array,
        is_first: Array,
        key: Key,
        greedy: bool = False,
    ) -> tuple[Array, PyTree, tuple[Array, Array]]:
        q = network.apply(actor.params, normalize.apply(actor.observation, obs))
        hyper = actor.hyper
        # An agent that is evaluated explores as the last environment, which explores least.
        index = jnp.int32(config.num_envs - 1) if local is None else local.environment
        epsilon = ladder(hyper.epsilon, hyper.ladder, config.num_envs, index)
        action = q.argmax(-1) if greedy else dqn.epsilon_greedy(key, q, epsilon)
        return action, carry, (dqn.value_of(q, action), q.max(-1))

    def insert(local: Local, rollout: Rollout, hyper: Config, start: Array) -> Local:
        """The rollouts ``[S, ...]`` in the rings, and priorities as far as they can be known."""

        def shard_priorities(pending: Seen, new: Seen) -> tuple[Array, Seen]:
            seen = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), pending, new)
            error = first_errors(seen, own.n_step, hyper.gamma)
            first = priority(error, hyper.priority_exponent)
            first = jnp.where(seen.valid[: -own.n_step], first, 0.0).reshape(-1)
            first = jnp.pad(first, (0, reach))  # the last n steps have none yet
            return first, jax.tree.map(lambda x: x[-own.n_step :], seen)

        new = Seen(*rollout.extras, *(getattr(rollout, name) for name in Seen._fields[2:]))
        first, pending = pool.map(shard_priorities, local.pending, new)
        at = (start - reach + jnp.arange(rows + reach)) % num_rows
        priorities = jax.vmap(replay.set_priorities, (0, None, 0))(local.priorities, at, first)
        ring = replay.insert(local.ring, rollout, start)
        return local._replace(ring=ring, priorities=priorities, pending=pending)

    def update(
        shared: dqn.Shared, local: Local, rollout: Rollout, key: Key, iteration: Array
    ) -> tuple[dqn.Shared, Local, Metrics]:
        hyper, index = shared.hyper, pool.shard_index()
        stored = replay.window(iteration, rows, num_rows)
        local = insert(local, rollout, hyper, stored.start)
        progress = iteration / config.num_iterations
        learning_rate = optim.scheduled(own.lr_schedule, hyper.learning_rate, progress)
        optimize = adam(hyper, learning_rate)
        _, unravel = ravel_pytree(shared.params)

        def shard_uniform(index: Array) -> Array:
            shape = own.updates_per_iteration, own.batch_size // pool.num_shards
            return jax.random.uniform(jax.random.fold_in(key, index), shape)

        uniform = pool.map(shard_uniform, index)  # [S, updates, M]

        def gradient_step(step: Array, moving: tuple) -> tuple:
            params, target_params, optimizer_state, priorities, totals = moving

            def shard_points(top: Array, uniform: Array) -> tuple[Array, Array]:
                total = replay.sum_pairwise(top)
                return total, replay.strata(uniform, total)

            def shard_batch(
                ring: replay.Ring, priorities: replay.Priorities, points: Array
            ) -> tuple[Array, Array, replay.Transition]:
                at = replay.find(priorities, points)
                batch = replay.gather(ring, at, own.n_step, num_envs)
                return at, priorities[0][at], batch

            def shard_gradient(
                index: Array, batch: replay.Transition, drawn: Array, total: Array
            ) -> tuple[Array, Any]:
                weight = importance(drawn, total, hyper.importance_exponent)
                batch = batch._replace(
                    obs=normalize.apply(shared.observation, batch.obs),
                    next_obs=normalize.apply(shared.observation, batch.next_obs),
                )

                def shard_loss(params: Array) -> tuple[Array, Any]:
                    both = unravel(params), unravel(target_params)
                    return dqn.loss(network, own.double, hyper, *both, batch, weight)

                gradient, (error, sums) = jax.grad(shard_loss, has_aux=True)(params)
                largest = jax.nn.one_hot(index, pool.num_shards) * weight.max()
                return priority(error, hyper.priority_exponent), (gradient, sums, largest)

            total, points = pool.map(shard_points, priorities[-1], uniform[:, step])
            at, drawn, batch = jax.vmap(shard_batch)(local.ring, priorities, points)
            # `Pool.grad`, but that the errors stay in their shard.
            drawn, terms = pool.map(shard_gradient, index, batch, drawn, total)
            gradient, sums, largest = pool.sum(terms)
            priorities = jax.vmap(replay.set_priorities)(priorities, at, drawn)

            mean = 1 / jnp.maximum(sums["count"], 1)
            share = mean * (1 / largest.max())
            gradient = gradient * share
            change, optimizer_state = optimize.update(gradient, optimizer_state)
            params = params + change
            due = (shared.updates + step + 1) % own.target_period == 0
            target_params = dqn.follow(target_params, params, jnp.where(due, hyper.tau, 0.0))
            means = [sums["loss"] * share, sums["q_mean"] * mean, sums["td_error"] * mean]
            totals = totals + jnp.stack([*means, optax.tree.norm(gradient)])
            return params, target_params, optimizer_state, priorities, totals

        starts = -(-own.learning_starts // config.steps_per_iteration)
        ready = (iteration + 1 >= starts) & (stored.stored > reach)
        updates = jnp.where(ready, own.updates_per_iteration, 0)
        params, target_params, optimizer_state, priorities, totals = jax.lax.fori_loop(
            0,
            updates,
            gradient_step,
            (
                ravel_pytree(shared.params)[0],
                ravel_pytree(shared.target_params)[0],
                shared.optimizer,
                local.priorities,
                jnp.zeros(len(step_metrics)),
            ),
        )
        metrics = dict(zip(step_metrics, totals * (1 / jnp.maximum(updates, 1)), strict=True))
        metrics["updates"] = updates.astype(jnp.float32)
        metrics["learning_rate"] = learning_rate
        metrics["replay"] = stored.stored / num_rows

        observation = normalize.update(pool, shared.observation, rollout.obs[:, :-1], rollout.valid)
        shared = dqn.Shared(
            hyper=hyper,
            params=unravel(params),
            target_params=unravel(target_params),
            optimizer=optimizer_state,
            updates=shared.updates + updates,
            observation=observation,
        )
        return shared, local._replace(priorities=priorities), metrics

    return Algorithm(
        init_shared=init_shared,
        init_local=init_local,
        init_carry=lambda num_envs: (),
        actor=lambda shared, iteration: Actor(shared.hyper, shared.params, shared.observation),
        act=act,
        update=update,
    )
