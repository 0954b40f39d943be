"""Deep Q-learning from a replay ring in every shard, https://www.nature.com/articles/nature14236.

With it, as options: double (https://arxiv.org/abs/1509.06461) and dueling
(https://arxiv.org/abs/1511.06581) networks, n-step returns, a soft target. Each gradient step draws
the same number of transitions from every shard, so the number of devices changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl_scale import config as cfg
from jaxrl_scale.learning import networks, normalize, optim, replay
from jaxrl_scale.options import option, register
from jaxrl_scale.types import Algorithm, Array, EnvSpec, Key, Metrics, Pool, PyTree, Rollout


@register
@dataclass(frozen=True)
class Config:
    """DQN's own options."""

    name: ClassVar[str] = "dqn"

    learning_rate: float = option(1e-3, "Adam's step size", low=0)
    lr_schedule: optim.Schedule = option(
        "linear", "learning rate over the run, from learning_rate towards 0"
    )
    gamma: float = option(0.99, "discount", low=0, high=1)
    n_step: int = option(1, "rewards before the bootstrapped value", low=1)
    batch_size: int = option(256, "samples of a gradient step, over all devices", low=1)
    updates_per_iteration: int = option(64, "gradient steps of an iteration", low=1)
    replay_size: int = option(2**17, "steps that replay holds, over all devices", low=1)
    learning_starts: int = option(10_000, "steps before the first gradient step", low=0)
    double: bool = option(True, "the network chooses the action whose target value counts")
    dueling: bool = option(False, "value and advantages from two streams")
    huber_delta: float | None = option(
        None, "errors beyond it count linearly; none: all of them squared", low=0
    )
    target_period: int = option(1, "gradient steps between updates of the target network", low=1)
    tau: float = option(0.005, "how far it then moves; 1: a copy", low=0, high=1)
    epsilon_start: float = option(1.0, "share of random actions at the beginning", low=0, high=1)
    epsilon_end: float = option(0.05, "and in the end", low=0, high=1)
    exploration_fraction: float = option(
        0.25, "of the run, in which it falls from one to the other", low=0, high=1
    )
    max_grad_norm: float = option(10.0, "the gradient's norm is clipped here", low=0)
    optimizer_epsilon: float = option(1e-5, "Adam's ε", low=0)
    normalize_observations: bool = option(False, "by running statistics pooled over all shards")
    shard_losses: bool = option(False, "report the mean loss of every shard too")

    @property
    def depends_on_budget(self) -> bool:
        """Whether a longer run differs from a shorter one before the shorter one ends."""
        return self.lr_schedule != "constant" or self.epsilon_start != self.epsilon_end

    def check(self, config: cfg.Config) -> None:
        replay.check(config, self.replay_size, self.batch_size, self.n_step)


class Shared(NamedTuple):
    """What is the same on all shards."""

    hyper: Any  # the algorithm's options, traced
    params: PyTree
    target_params: PyTree
    optimizer: PyTree  # of the flattened parameters [N]
    updates: Array  # [] int32, gradient steps so far
    observation: normalize.Statistics | None


class Actor(NamedTuple):
    """What acting reads of `Shared`."""

    params: PyTree
    observation: normalize.Statistics | None
    epsilon: Array  # [] of training
    final_epsilon: Array  # [] of evaluation that samples


# --- equations, Ape-X's too -------------------------------------------------------------------


def epsilon_greedy(key: Key, q: Array, epsilon: Array) -> Array:
    """Actions ``[B]``: the best by ``q [B, A]``, or any with probability ``epsilon``, ``[]`` or
    ``[B]``."""
    key_explore, key_action = jax.random.split(key)
    explore = jax.random.uniform(key_explore, q.shape[:-1]) < epsilon
    return jnp.where(
        explore, jax.random.randint(key_action, q.shape[:-1], 0, q.shape[-1]), q.argmax(-1)
    )


def value_of(q: Array, action: Array) -> Array:
    """``q [..., A]`` of the actions ``[...]``."""
    # A product with one-hot rows instead of a gather: faster, and so is its gradient.
    return (q * jax.nn.one_hot(action, q.shape[-1])).sum(-1)


def huber(error: Array, delta: Array | None) -> Array:
    """Half the square up to ``delta``, linear beyond it; None: half the square."""
    if delta is None:
        return 0.5 * jnp.square(error)
    bounded = jnp.clip(error, -delta, delta)
    return bounded * (error - 0.5 * bounded)


def follow(target_params: Array, params: Array, rate: Array) -> Array:
    """The target network, moved towards the network: exactly there with a rate of 1, exactly where
    it was with 0."""
    return rate * params + (1 - rate) * target_params


def loss(
    network: networks.QNetwork,
    double: bool,
    hyper: Any,
    params: PyTree,
    target_params: PyTree,
    batch: replay.Transition,
    weight: Array | float = 1.0,
) -> tuple[Array, tuple[Array, dict[str, Array]]]:
    """The loss, as a *sum* over the valid samples; their errors ``[M]``; other sums by name.

    The target of a sample is its n-step return and, behind that, the target network's value of
    the best action: best by the target network itself, or by the network (``double``, equation 4
    of https://arxiv.org/abs/1509.06461).
    """
    q = value_of(network.apply(params, batch.obs), batch.action)
    values = network.apply(target_params, batch.next_obs)
    judge = network.apply(params, batch.next_obs) if double else values
    reward, discount = replay.n_step(batch.reward, batch.terminated, batch.truncated, hyper.gamma)
    target = reward + discount * value_of(values, judge.argmax(-1))
    error = q - jax.lax.stop_gradient(target)
    parts = {
        "loss": weight * huber(error, hyper.huber_delta),
        "q_mean": q,
        "td_error": jnp.abs(error),
        "count": jnp.ones_like(q),
    }
    sums = {name: jnp.where(batch.valid, part, 0.0).sum() for name, part in parts.items()}
    return sums["loss"], (error, sums)


# --- the algorithm ----------------------------------------------------------------------------


def make(config: cfg.Config, spec: EnvSpec, pool: Pool) -> Algorithm:
    """DQN for one environment, on whatever shards ``pool`` stands for."""
    own: Config = config.algo
    network = networks.make_q(config, spec, dueling=own.dueling)
    num_envs = config.envs_per_shard
    rows = config.rollout_length * num_envs  # of an iteration, in one shard
    num_rows = own.replay_size // pool.num_shards
    reach = own.n_step * num_envs
    step_metrics = ("loss", "q_mean", "td_error", "grad_norm")

    def adam(hyper: Config, learning_rate: Any) -> optax.GradientTransformation:
        return optim.adam(learning_rate, hyper)

    def init_shared(key: Key, hyper: Config) -> Shared:
        params = network.init(key)
        return Shared(
            hyper=hyper,
            params=params,
            target_params=params,
            optimizer=adam(hyper, hyper.learning_rate).init(ravel_pytree(params)[0]),
            updates=jnp.zeros((), jnp.int32),
            observation=normalize.init(own.normalize_observations, spec.observation_shape),
        )

    def actor(shared: Shared, iteration: Array) -> Actor:
        hyper, progress = shared.hyper, iteration / config.num_iterations
        done = jnp.minimum(progress / jnp.maximum(hyper.exploration_fraction, 1e-9), 1.0)
        epsilon = (1 - done) * hyper.epsilon_start + done * hyper.epsilon_end
        return Actor(shared.params, shared.observation, epsilon, hyper.epsilon_end)

    def act(
        actor: Actor,
        local: replay.Ring | None,
        carry: PyTree,
        obs: Array,
        is_first: Array,
        key: Key,
        greedy: bool = False,
    ) -> tuple[Array, PyTree, PyTree]:
        q = network.apply(actor.params, normalize.apply(actor.observation, obs))
        epsilon = actor.final_epsilon if local is None else actor.epsilon
        return q.argmax(-1) if greedy else epsilon_greedy(key, q, epsilon), carry, ()

    def update(
        shared: Shared, ring: replay.Ring, rollout: Rollout, key: Key, iteration: Array
    ) -> tuple[Shared, replay.Ring, Metrics]:
        hyper = shared.hyper
        stored = replay.window(iteration, rows, num_rows)
        ring = replay.insert(ring, rollout, stored.start)
        progress = iteration / config.num_iterations
        learning_rate = optim.scheduled(own.lr_schedule, hyper.learning_rate, progress)
        optimize = adam(hyper, learning_rate)
        _, unravel = ravel_pytree(shared.params)

        def shard_choices(index: Array) -> Array:
            shape = own.updates_per_iteration, own.batch_size // pool.num_shards
            return replay.sample(jax.random.fold_in(key, index), stored, num_rows, reach, shape)

        choices = jax.vmap(shard_choices)(pool.shard_index())  # [S, updates, M]

        def gradient_step(step: Array, moving: tuple) -> tuple:
            params, target_params, optimizer_state, totals, shard_totals = moving

            def shard_loss(
                params: Array, index: Array, batch: replay.Transition
            ) -> tuple[Array, Any]:
                batch = batch._replace(
                    obs=normalize.apply(shared.observation, batch.obs),
                    next_obs=normalize.apply(shared.observation, batch.next_obs),
                )
                networks_params = unravel(params), unravel(target_params)
                total, (_, sums) = loss(network, own.double, hyper, *networks_params, batch)
                return total, (sums, jax.nn.one_hot(index, pool.num_shards) * total)

            batch = jax.vmap(
                lambda ring, choice: replay.gather(ring, choice[step], own.n_step, num_envs)
            )(ring, choices)  # [S, M, ...]
            gradient, (sums, shard_sums) = pool.grad(shard_loss, params, pool.shard_index(), batch)
            # The count of valid samples came in the same collective: the mean is taken here.
            share = 1 / jnp.maximum(sums["count"], 1)
            gradient = gradient * share
            change, optimizer_state = optimize.update(gradient, optimizer_state)
            params = params + change
            due = (shared.updates + step + 1) % own.target_period == 0
            target_params = follow(target_params, params, jnp.where(due, hyper.tau, 0.0))
            means = [sums[name] * share for name in step_metrics[:-1]]
            totals = totals + jnp.stack([*means, optax.tree.norm(gradient)])
            shard_totals = shard_totals + shard_sums * (share * pool.num_shards)
            return params, target_params, optimizer_state, totals, shard_totals

        starts = -(-own.learning_starts // config.steps_per_iteration)
        ready = (iteration + 1 >= starts) & (stored.stored > reach)
        updates = jnp.where(ready, own.updates_per_iteration, 0)
        params, target_params, optimizer_state, totals, shard_totals = jax.lax.fori_loop(
            0,
            updates,
            gradient_step,
            (
                ravel_pytree(shared.params)[0],
                ravel_pytree(shared.target_params)[0],
                shared.optimizer,
                jnp.zeros(len(step_metrics)),
                jnp.zeros(pool.num_shards),
            ),
        )
        mean = 1 / jnp.maximum(updates, 1)
        metrics = dict(zip(step_metrics, totals * mean, strict=True))
        if own.shard_losses:
            metrics |= {f"loss_shard_{k}": x * mean for k, x in enumerate(shard_totals)}
        metrics["updates"] = updates.astype(jnp.float32)
        metrics["learning_rate"] = learning_rate
        metrics["epsilon"] = actor(shared, iteration).epsilon
        metrics["replay"] = stored.stored / num_rows

        observation = normalize.update(pool, shared.observation, rollout.obs[:, :-1], rollout.valid)
        shared = Shared(
            hyper=hyper,
            params=unravel(params),
            target_params=unravel(target_params),
            optimizer=optimizer_state,
            updates=shared.updates + updates,
            observation=observation,
        )
        return shared, ring, metrics

    return Algorithm(
        init_shared=init_shared,
        init_local=lambda key, shard_index: replay.init(spec, num_rows),
        init_carry=lambda num_envs: (),
        actor=actor,
        act=act,
        update=update,
    )
