"""Parallelised Q-network, https://arxiv.org/abs/2407.04811: Q-learning from fresh rollouts.

No replay and no target network: λ-returns of the parameters that acted are regressed onto, and
LayerNorm keeps that from diverging. Minibatches have a fixed *size*: growing ``num_envs`` grows
their number and leaves the inner loop as it is.
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
from jaxrl_scale.algos.dqn import epsilon_greedy, value_of
from jaxrl_scale.learning import networks, normalize, optim, permute, returns
from jaxrl_scale.options import option, register
from jaxrl_scale.types import Algorithm, Array, EnvSpec, Key, Metrics, Pool, PyTree, Rollout


@register
@dataclass(frozen=True)
class Config:
    """PQN's own options."""

    name: ClassVar[str] = "pqn"

    learning_rate: float = option(3e-4, "Adam's step size", low=0)
    lr_schedule: optim.Schedule = option(
        "linear", "learning rate over the run, from learning_rate towards 0"
    )
    gamma: float = option(0.99, "discount", low=0, high=1)
    return_lambda: float = option(0.65, "λ of the returns", low=0, high=1)
    epsilon_start: float = option(1.0, "share of random actions at first", low=0, high=1)
    epsilon_end: float = option(0.05, "share of random actions at last", low=0, high=1)
    exploration_fraction: float = option(
        0.1, "part of the run in which the share of random actions falls", low=0, high=1
    )
    epochs: int = option(2, "passes over a rollout", low=1)
    minibatch_size: int = option(512, "samples of a gradient step, over all devices", low=1)
    layer_norm: bool = option(True, "normalise the features of every layer")
    max_grad_norm: float = option(10.0, "the gradient's norm is clipped here", low=0)
    optimizer_epsilon: float = option(1e-5, "Adam's ε", low=0)
    normalize_observations: bool = option(False, "by running statistics pooled over all shards")
    scale_rewards: bool = option(False, "by the running deviation of the discounted return")

    @property
    def depends_on_budget(self) -> bool:
        """Whether a longer run differs from a shorter one before the shorter one ends."""
        return self.lr_schedule != "constant" or self.epsilon_start != self.epsilon_end

    def check(self, config: cfg.Config) -> None:
        options.check_minibatches(config, self.minibatch_size)


STEP_METRICS = ("loss", "q_mean", "grad_norm")
"""Of every gradient step; reported as means over those of an iteration."""


class Shared(NamedTuple):
    """What is the same on all shards."""

    hyper: Config
    params: PyTree
    optimizer: PyTree  # of the flattened parameters [N]
    observation: normalize.Statistics | None
    discounted: normalize.Statistics | None  # of the running discounted return


class Actor(NamedTuple):
    """What acting reads of `Shared`."""

    params: PyTree
    observation: normalize.Statistics | None
    epsilon: Array  # []


class Samples(NamedTuple):
    """What the loss reads of every step, ``[n, ...]``; ``n = T * B`` or a minibatch of it."""

    obs: Array
    action: Array
    target: Array
    valid: Array


def loss(
    network: networks.QNetwork, params: PyTree, batch: Samples
) -> tuple[Array, dict[str, Array]]:
    """Half the squared error of the chosen actions' values, and their parts, as *sums* over
    the valid samples. Divide by ``count``, added over all shards, for the mean."""
    value = value_of(network.apply(params, batch.obs), batch.action)
    error = jnp.where(batch.valid, 0.5 * jnp.square(value - batch.target), 0.0).sum()
    return error, {
        "loss": error,
        "q_mean": jnp.where(batch.valid, value, 0.0).sum(),
        "count": batch.valid.sum(dtype=jnp.float32),
    }


def make(config: cfg.Config, spec: EnvSpec, pool: Pool) -> Algorithm:
    """PQN for one environment, on whatever shards ``pool`` stands for."""
    own: Config = config.algo
    network = networks.make_q(config, spec, layer_norm=own.layer_norm)
    num_minibatches = config.steps_per_iteration // own.minibatch_size

    def adam(hyper: Config, learning_rate: Any) -> optax.GradientTransformation:
        return optim.adam(learning_rate, hyper)

    def init_shared(key: Key, hyper: Config) -> Shared:
        params = network.init(key)
        return Shared(
            hyper=hyper,
            params=params,
            optimizer=adam(hyper, hyper.learning_rate).init(ravel_pytree(params)[0]),
            observation=normalize.init(own.normalize_observations, spec.observation_shape),
            discounted=normalize.init(own.scale_rewards),
        )

    def init_local(key: Key, shard_index: Array) -> Array:
        return jnp.zeros(config.envs_per_shard)  # running discounted returns

    def actor(shared: Shared, iteration: Array) -> Actor:
        hyper, progress = shared.hyper, iteration / config.num_iterations
        part = jnp.minimum(progress / jnp.maximum(hyper.exploration_fraction, 1e-8), 1.0)
        epsilon = hyper.epsilon_start + (hyper.epsilon_end - hyper.epsilon_start) * part
        return Actor(shared.params, shared.observation, epsilon)

    def act(
        actor: Actor,
        local: Array,
        carry: PyTree,
        obs: Array,
        is_first: Array,
        key: Key,
        greedy: bool = False,
    ) -> tuple[Array, PyTree, PyTree]:
        q = network.apply(actor.params, normalize.apply(actor.observation, obs))
        return q.argmax(-1) if greedy else epsilon_greedy(key, q, actor.epsilon), carry, ()

    def update(
        shared: Shared, local: Array, rollout: Rollout, key: Key, iteration: Array
    ) -> tuple[Shared, Array, Metrics]:
        hyper = shared.hyper
        rollout, local, discounted = normalize.scale_rewards(
            pool, shared.discounted, local, rollout, hyper.gamma
        )

        def shard_samples(rollout: Rollout) -> Samples:
            obs = normalize.apply(shared.observation, rollout.obs)
            target = returns.lambda_returns(
                network.apply(shared.params, obs).max(-1),
                rollout,
                hyper.gamma,
                hyper.return_lambda,
            )
            samples = Samples(obs[:-1], rollout.action, target, rollout.valid)
            return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), samples)

        samples = pool.map(shard_samples, rollout)  # [S, n, ...]
        n = samples.valid.shape[1]
        orders = permute.minibatches(pool, key, n, own.epochs, num_minibatches)

        progress = iteration / config.num_iterations
        learning_rate = optim.scheduled(own.lr_schedule, hyper.learning_rate, progress)
        optimize = adam(hyper, learning_rate)
        flat_params, unravel = ravel_pytree(shared.params)

        def shard_loss(flat_params: Array, batch: Samples) -> tuple[Array, dict[str, Array]]:
            return loss(network, unravel(flat_params), batch)

        def gradient_step(step: Array, moving: tuple) -> tuple:
            flat_params, optimizer_state, totals = moving
            batch = permute.take(samples, orders, step)  # [S, m, ...]
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
        observation = normalize.update(pool, shared.observation, rollout.obs[:, :-1], rollout.valid)
        metrics = dict(zip(STEP_METRICS, totals * (1 / steps), strict=True)) | {
            "epsilon": actor(shared, iteration).epsilon,
            "updates": jnp.float32(steps),
            "learning_rate": learning_rate,
        }
        shared = Shared(
            hyper=hyper,
            params=unravel(flat_params),
            optimizer=optimizer_state,
            observation=observation,
            discounted=discounted,
        )
        return shared, local, metrics

    return Algorithm(
        init_shared=init_shared,
        init_local=init_local,
        init_carry=lambda num_envs: (),
        actor=actor,
        act=act,
        update=update,
    )
