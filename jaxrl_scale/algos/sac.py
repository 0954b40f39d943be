"""Soft actor-critic with two critics and an automatic temperature, https://arxiv.org/abs/1812.05905.

It learns from a replay ring in every shard, as DQN does, and takes continuous actions that have
bounds. Policy, critics and temperature are one vector of parameters: a gradient step moves each
along its own loss, with the others as they were before the step, and costs one collective.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_scale.algos import common, q_learning
from jaxrl_scale.algos.q_learning import Shared
from jaxrl_scale.learning import distributions, networks, normalize, optim, replay
from jaxrl_scale.options import Sizes, option, register
from jaxrl_scale.types import Algorithm, Array, EnvSpec, Key, Metrics, Pool, PyTree, Rollout, Time


@register
@dataclass(frozen=True)
class Config:
    """SAC's options."""

    name: ClassVar[str] = "sac"

    learning_rate: float = common.learning_rate(1e-3)
    lr_schedule: optim.Schedule = common.lr_schedule()
    gamma: float = common.gamma()
    n_step: int = common.n_step(1)
    batch_size: int = common.batch_size()
    updates_per_iteration: int = common.updates_per_iteration()
    replay_size: int = common.replay_size(2**17)
    learning_starts: int = common.learning_starts()
    temperature: float = option(
        1.0,
        "weight of the policy's entropy at the start; later it is learned (--init_from takes what "
        "the other run has learned)",
        above=0,
    )
    target_entropy: float | None = option(
        None,
        "entropy that the temperature makes the policy have, in nats, of actions that are scaled "
        "to ±1 (none: minus the number of numbers in an action)",
    )
    target_period: int = common.target_period()
    tau: float = common.tau()
    max_grad_norm: float | None = common.max_grad_norm(None)
    optimizer_epsilon: float = common.optimizer_epsilon()
    normalize_observations: bool = common.normalize_observations()

    depends_on_budget = property(common.has_schedule)

    def check(self, config: Sizes) -> None:
        replay.check(config, self.replay_size, self.batch_size, self.n_step)


class Actor(NamedTuple):
    """What acting reads of the shared state."""

    params: PyTree  # the policy's
    observation: normalize.Statistics | None
    uniform: Array  # [] bool: an agent in training draws its actions uniformly


def loss(
    network: networks.ActorCritics,
    options: Config,
    observation: normalize.Statistics | None,
    params: PyTree,
    target_values: PyTree,
    batch: replay.Transition,
    noise: Array,
) -> tuple[Array, Metrics]:
    """The losses of critics, policy and temperature (equations 5, 9 and 18 of the paper), added up,
    and their parts, as *sums* over the valid ones of ``M`` transitions.

    Args:
      params: ``policy``, ``values`` and ``log_temperature``.
      target_values: the parameters of the target network's critics.
      batch: its actions are scaled to ±1, ``[M, n]``.
      noise: standard normal, for the policy's actions now and behind the n steps, ``[2, M, n]``.
    """
    obs, next_obs = (normalize.apply(observation, x) for x in (batch.obs, batch.next_obs))
    temperature = jnp.exp(params["log_temperature"])
    still = jax.lax.stop_gradient

    action, log_prob = distributions.squashed(network.policy(params["policy"], next_obs), noise[1])
    value = network.values(target_values, next_obs, action).min(-1)
    reward, discount = replay.n_step(batch.reward, batch.terminated, batch.truncated, options.gamma)
    target = replay.bootstrap(reward, discount, value - temperature * log_prob)
    q = network.values(params["values"], obs, batch.action)
    error = jnp.where(batch.valid[:, None], q - still(target)[:, None], 0.0)

    action, log_prob = distributions.squashed(network.policy(params["policy"], obs), noise[0])
    value = network.values(still(params["values"]), obs, action).min(-1)
    wanted = -float(network.size) if options.target_entropy is None else options.target_entropy
    parts = {
        "value_loss": 0.5 * jnp.square(error).sum(-1),
        "policy_loss": still(temperature) * log_prob - value,
        "temperature_loss": -temperature * (still(log_prob) + wanted),
        "entropy": -log_prob,
        "temperature": jnp.broadcast_to(temperature, log_prob.shape),
        "q_mean": q.mean(-1),
        "td_error": jnp.abs(error).mean(-1),
    }
    sums = optim.masked_sums(batch.valid, parts)
    total = sums["value_loss"] + sums["policy_loss"] + sums["temperature_loss"]
    return total, sums | {"loss": total}


def make(config: Sizes, spec: EnvSpec, pool: Pool) -> Algorithm:
    """SAC for one environment, on whatever shards ``pool`` stands for."""
    network = networks.make_actor_critics(config, spec)
    num_rows = config.algo.replay_size // pool.num_shards

    def init_shared(key: Key, options: Config, weights: networks.Weights | None = None) -> Shared:
        def init(key: Key) -> PyTree:
            return network.init(key) | {"log_temperature": jnp.log(options.temperature)}

        return q_learning.init(network._replace(init=init), spec, key, options, weights)

    def actor(shared: Shared, time: Time) -> Actor:
        uniform = time.iteration < q_learning.iterations_before_learning(shared.options, config)
        return Actor(shared.params["policy"], shared.observation, uniform)

    def act(
        actor: Actor,
        local: replay.Ring | None,
        carry: PyTree,
        obs: Array,
        is_first: Array,
        key: Key,
        greedy: bool = False,
    ) -> tuple[Array, PyTree, PyTree]:
        policy = network.policy(actor.params, normalize.apply(actor.observation, obs))
        if greedy:
            action = jnp.tanh(policy[..., : network.size])
        else:
            key_noise, key_uniform = jax.random.split(key)
            shape = len(obs), network.size
            action, _ = distributions.squashed(policy, jax.random.normal(key_noise, shape))
            if local is not None:
                anything = jax.random.uniform(key_uniform, shape, minval=-1.0)
                action = jnp.where(actor.uniform, anything, action)
        return network.to_box(action), carry, ()

    def update(
        shared: Shared, ring: replay.Ring, rollout: Rollout, key: Key, time: Time
    ) -> tuple[Shared, replay.Ring, Metrics]:
        key_rows, key_noise = jax.random.split(key)

        def sampled_loss(
            params: PyTree,
            target_params: PyTree,
            batch: replay.Transition,
            index: Array,
            step: Array,
        ) -> tuple[Array, Metrics]:
            key = jax.random.fold_in(jax.random.fold_in(key_noise, index), step)
            noise = jax.random.normal(key, (2, len(batch.valid), network.size))
            batch = batch._replace(action=network.from_box(batch.action))
            both = params, target_params["values"]
            return loss(network, shared.options, shared.observation, *both, batch, noise)

        return q_learning.learn(pool, config, shared, ring, rollout, key_rows, time, sampled_loss)

    return Algorithm(
        init_shared=init_shared,
        init_local=lambda key, shard_index: replay.init(spec, num_rows),
        init_carry=lambda num_envs: (),
        actor=actor,
        act=act,
        outputs=partial(networks.outputs, network),
        update=update,
    )
