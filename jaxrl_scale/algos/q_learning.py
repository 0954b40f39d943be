"""What the Q-learning algorithms share: how they explore, the loss of DQN and Ape-X, their target
network, which SAC has, too, and the iteration of DQN and SAC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl_scale.algos import common, lagging
from jaxrl_scale.learning import networks, normalize, optim, replay
from jaxrl_scale.learning.networks import Weights
from jaxrl_scale.options import Sizes
from jaxrl_scale.types import Array, EnvSpec, Key, Metrics, Pool, PyTree, Rollout, Time


class Shared(NamedTuple):
    """What is the same on all shards, for DQN, Ape-X and SAC."""

    options: Any  # the algorithm's, its numbers are traced
    params: PyTree
    target_params: PyTree
    optimizer: PyTree  # of the flattened parameters [N]
    updates: Array  # [] int32, gradient steps so far
    observation: normalize.Statistics | None
    older: tuple[Weights, ...]  # those of the last `lag` iterations, the newest first


class Actor(NamedTuple):
    """What acting reads of DQN's and PQN's shared state."""

    params: PyTree
    observation: normalize.Statistics | None
    epsilon: Array  # [] of an agent in training
    final_epsilon: Array | float  # [] of an agent that is evaluated


def init(
    network: networks.QNetwork | networks.ActorCritics,
    spec: EnvSpec,
    key: Key,
    options: Any,
    weights: Weights | None = None,
    lag: int = 0,
) -> Shared:
    """The state before the first iteration, with the ``weights`` or random ones; the target network
    begins as a copy."""
    params, observation = networks.begin(
        network, spec, key, options.normalize_observations, weights
    )
    return Shared(
        options=options,
        params=params,
        target_params=params,
        optimizer=optim.make(options).init(params),
        updates=jnp.zeros((), jnp.int32),
        observation=observation,
        older=(Weights(params, observation),) * lag,
    )


# --- exploration ------------------------------------------------------------------------------


def linear_epsilon(options: Any, progress: Array | float) -> Array:
    """Probability of a random action after ``progress`` (0 to 1) of the run: it falls along a line
    from ``epsilon_start`` to ``epsilon_end`` during the first ``exploration_fraction``."""
    done = jnp.minimum(progress / jnp.maximum(options.exploration_fraction, 1e-9), 1.0)
    return (1 - done) * options.epsilon_start + done * options.epsilon_end


def choose(
    network: networks.QNetwork | networks.RecurrentQNetwork,
    key: Key,
    q: Array,
    epsilon: Array | float,
    greedy: bool = False,
) -> Array:
    """Actions ``[B]``: with probability ``epsilon`` (``[]`` or ``[B]``) any that is allowed, else
    the best by ``q [B, A]``, as all are where ``greedy``."""
    if greedy:
        return q.argmax(-1)
    key_explore, key_action = jax.random.split(key)
    explore = jax.random.uniform(key_explore, q.shape[:-1]) < epsilon
    if network.masked:
        at_random = jax.random.uniform(key_action, q.shape)
        anything = jnp.where(q == -jnp.inf, -1.0, at_random).argmax(-1)
    else:
        anything = jax.random.randint(key_action, q.shape[:-1], 0, q.shape[-1])
    return jnp.where(explore, anything, q.argmax(-1))


def has_schedule(options: Any) -> bool:
    """As `common.has_schedule`, of an exploration that falls, too."""
    return common.has_schedule(options) or options.epsilon_start != options.epsilon_end


def actor(shared: Any, time: Time) -> Actor:
    """`types.Algorithm.actor` of DQN and PQN."""
    epsilon = linear_epsilon(shared.options, time.progress)
    return Actor(shared.params, shared.observation, epsilon, shared.options.epsilon_end)


def acting(network: networks.RecurrentQNetwork) -> Callable[..., tuple[Array, PyTree, PyTree]]:
    """`types.Algorithm.act` of DQN and PQN."""

    def act(
        actor: Actor,
        local: PyTree | None,
        carry: PyTree,
        obs: Array,
        is_first: Array,
        key: Key,
        greedy: bool = False,
    ) -> tuple[Array, PyTree, PyTree]:
        carry, q = networks.one_step(network, actor, carry, obs, is_first)
        epsilon = actor.final_epsilon if local is None else actor.epsilon
        return choose(network, key, q, epsilon, greedy), carry, ()

    return act


# --- the loss ---------------------------------------------------------------------------------


def value_of(q: Array, action: Array) -> Array:
    """``q [..., A]`` of the actions ``[...]``."""
    # A sum over all actions instead of a gather: faster, and so is its gradient.
    return jnp.where(jax.nn.one_hot(action, q.shape[-1], dtype=bool), q, 0.0).sum(-1)


def huber(error: Array, delta: Array | float | None) -> Array:
    """Half the square up to ``delta``, linear beyond it; None: half the square."""
    if delta is None:
        return 0.5 * jnp.square(error)
    bounded = jnp.clip(error, -delta, delta)
    return bounded * (error - 0.5 * bounded)


def loss(
    network: networks.QNetwork,
    options: Any,
    observation: normalize.Statistics | None,
    params: PyTree,
    target_params: PyTree,
    batch: replay.Transition,
    weight: Array | float = 1.0,
) -> tuple[Array, tuple[Array, Metrics]]:
    """The loss of ``M`` transitions as a *sum* over the valid ones, their errors ``[M]``, and other
    sums by name.

    The target of a transition is its n-step return and, behind that, the target network's value of
    the best action: best by the target network itself, or by the network (``options.double``,
    equation 4 of https://arxiv.org/abs/1509.06461).
    """
    obs, next_obs = (normalize.apply(observation, x) for x in (batch.obs, batch.next_obs))
    q = value_of(network.apply(params, obs), batch.action)
    values = network.apply(target_params, next_obs)
    judge = network.apply(params, next_obs) if options.double else values
    reward, discount = replay.n_step(batch.reward, batch.terminated, batch.truncated, options.gamma)
    target = replay.bootstrap(reward, discount, value_of(values, judge.argmax(-1)))
    error = jnp.where(batch.valid, q - jax.lax.stop_gradient(target), 0.0)
    parts = {
        "loss": weight * huber(error, options.huber_delta),
        "q_mean": q,
        "td_error": jnp.abs(error),
    }
    sums = optim.masked_sums(batch.valid, parts)
    return sums["loss"], (error, sums)


# --- the steps of an iteration ------------------------------------------------------------------


def iterations_before_learning(options: Any, config: Sizes) -> int:
    """The iterations that collect ``learning_starts`` steps of the environments."""
    return -(-options.learning_starts // config.steps_per_iteration)


def updates_due(options: Any, config: Sizes, time: Time, stored: replay.Window) -> Array:
    """The gradient steps of an iteration: none before ``learning_starts`` steps of the
    environments, and none while replay holds no whole transition."""
    enough = time.iteration + 1 >= iterations_before_learning(options, config)
    ready = enough & (stored.stored > _reach(options, config))
    return jnp.where(ready, options.updates_per_iteration, 0)


def _reach(options: Any, config: Sizes) -> int:
    """Rows of a shard's ring from a transition's first step to what is seen behind its last."""
    steps: int = options.n_step * config.envs_per_shard
    return steps


def batches(
    pool: Pool, options: Any, config: Sizes, ring: replay.Ring, stored: replay.Window, key: Key
) -> Callable[[Array], replay.Transition]:
    """``step -> batch [S, M, ...]`` of the gradient steps of an iteration, drawn uniformly: the
    same number of transitions from every shard's ring ``[S, ...]``."""
    num_rows = ring.valid.shape[1]
    shape = options.updates_per_iteration, options.batch_size // pool.num_shards

    def shard_rows(index: Array) -> Array:
        key_shard = jax.random.fold_in(key, index)
        return replay.sample(key_shard, stored, num_rows, _reach(options, config), shape)

    rows = jax.vmap(shard_rows)(pool.shard_index())  # [S, updates, M]
    return lambda step: jax.vmap(
        lambda ring, row: replay.gather(ring, row[step], options.n_step, config.envs_per_shard)
    )(ring, rows)


def follow(shared: Shared, step: Array, target_params: Array, params: Array) -> Array:
    """The target network after gradient step ``step`` (0 is the first) of an iteration.

    Every ``target_period`` gradient steps of the run it moves by ``tau`` of the way towards the
    network, which with a ``tau`` of 1 is an exact copy. Both are flat vectors ``[N]``.
    """
    due = (shared.updates + step + 1) % shared.options.target_period == 0
    rate = jnp.where(due, shared.options.tau, 0.0)
    return rate * params + (1 - rate) * target_params


def advance(
    pool: Pool,
    shared: Shared,
    moved: tuple[Array, Array, PyTree],
    updates: Array,
    rollout: Rollout,
) -> Shared:
    """The state after an iteration.

    Args:
      moved: network and target network ``[N]``, and the optimizer's state.
      updates: the gradient steps that were made.
      rollout: ``[S, ...]``, whose observations the statistics have not seen yet.
    """
    params, target_params, optimizer = moved
    _, unravel = ravel_pytree(shared.params)
    return Shared(
        options=shared.options,
        params=unravel(params),
        target_params=unravel(target_params),
        optimizer=optimizer,
        updates=shared.updates + updates,
        observation=normalize.update(
            pool.after(params), shared.observation, rollout.obs[:, :-1], rollout.valid
        ),
        older=lagging.older(shared),
    )


def learn(
    pool: Pool,
    config: Sizes,
    shared: Shared,
    ring: replay.Ring,
    rollout: Rollout,
    key: Key,
    time: Time,
    loss: Callable[..., tuple[Array, Metrics]],
) -> tuple[Shared, replay.Ring, Metrics]:
    """The iteration of DQN and SAC: the rollout ``[S, ...]`` goes into the rings ``[S, ...]``, and
    gradient steps on batches from them follow.

    Args:
      loss: ``(params, target_params, batch, index, step) -> sum, sums by name`` of the transitions
        ``[M]`` that shard ``index`` has drawn for gradient step ``step``.
    """
    options, num_rows = shared.options, ring.valid.shape[1]
    stored = replay.window(time.iteration, config.steps_per_iteration // pool.num_shards, num_rows)
    ring = replay.insert(ring, rollout, stored.start)
    batch_of = batches(pool, options, config, ring, stored, key)
    optimizer = optim.make(options, time.progress)
    params, unravel = ravel_pytree(shared.params)  # one vector [N]
    target_params, _ = ravel_pytree(shared.target_params)

    def gradient_step(step: Array, moving: tuple) -> tuple[tuple, Metrics]:
        params, target_params, state = moving

        def shard_loss(
            params: Array, index: Array, batch: replay.Transition
        ) -> tuple[Array, Metrics]:
            return loss(unravel(params), unravel(target_params), batch, index, step)

        gradient, means = optim.mean_gradient(
            pool, shard_loss, params, pool.shard_index(), batch_of(step)
        )
        params, state = optimizer.step(gradient, params, state)
        target_params = follow(shared, step, target_params, params)
        return (params, target_params, state), means

    updates = updates_due(options, config, time, stored)
    moved, metrics = optim.average_over(
        updates, gradient_step, (params, target_params, shared.optimizer)
    )
    metrics |= {"learning_rate": optimizer.learning_rate, "replay": stored.stored / num_rows}
    return advance(pool, shared, moved, updates, rollout), ring, metrics
