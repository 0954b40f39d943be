"""The table of all algorithms: of each a small config with every option on, and one that learns
the probe environments. A test over `NAMES` says something of every algorithm, a new one included.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from learners import GAMMA, meant

from jaxrl_scale import algos
from jaxrl_scale import config as cfg
from jaxrl_scale.config import Config
from jaxrl_scale.learning import networks


class Case(NamedTuple):
    everything: dict  # options, all that can be on; every number has an effect within 7 iterations
    probing: dict  # options that learn the probe environments
    iterations: int  # in so many


NORMALIZED = {"normalize_observations": True}
SCALED = NORMALIZED | {"scale_rewards": True}
GRADIENT = {"learning_rate": 1e-2, "max_grad_norm": 0.1}
REPLAY = GRADIENT | {
    "n_step": 3,
    "batch_size": 64,
    "updates_per_iteration": 2,
    "replay_size": 512,
    "learning_starts": 128,
    "huber_delta": 5.0,
    "tau": 0.25,
}
PROBED = {"learning_rate": 1e-2, "gamma": GAMMA, "lr_schedule": "constant"}
Q_PROBED = PROBED | {
    "batch_size": 128,
    "updates_per_iteration": 40,
    "replay_size": 4096,
    "learning_starts": 512,
    "tau": 0.05,
}
SOFT = {"temperature": 0.5, "target_entropy": -1.0}
CASES = {
    "ppo": Case(
        SCALED
        | GRADIENT
        | {
            "minibatch_size": 64,
            "clip_value": True,
            "clip_epsilon": 0.02,
            "target_kl": 2e-4,
            "lr_schedule": "cosine",
        },
        PROBED | {"minibatch_size": 256, "gae_lambda": 0.9},
        150,
    ),
    "a2c": Case(
        SCALED | GRADIENT | {"normalize_advantages": True, "gae_lambda": 0.9},
        PROBED | {"gae_lambda": 0.9},
        400,
    ),
    "impala": Case(
        SCALED | GRADIENT | {"lag": 2, "epochs": 2, "minibatch_size": 64, "optimizer": "rmsprop"},
        PROBED | {"lag": 2, "vtrace_lambda": 0.9, "minibatch_size": 256},
        250,
    ),
    "pqn": Case(
        SCALED
        | GRADIENT
        | {"minibatch_size": 64, "lr_schedule": "cosine", "exploration_fraction": 0.8},
        PROBED | {"learning_rate": 5e-3, "epsilon_end": 0.5, "minibatch_size": 128},
        150,
    ),
    "dqn": Case(
        NORMALIZED | REPLAY | {"shard_losses": True, "dueling": True, "exploration_fraction": 0.8},
        Q_PROBED | {"epsilon_start": 0.5, "epsilon_end": 0.5},
        40,
    ),
    "sac": Case(
        NORMALIZED
        | {k: x for k, x in REPLAY.items() if k != "huber_delta"}
        | SOFT
        | {"batch_size": 512},
        Q_PROBED | {"temperature": 0.1},
        40,
    ),
    "apex": Case(NORMALIZED | REPLAY | {"lag": 2}, Q_PROBED | {"epsilon": 0.5, "ladder": 1.0}, 40),
}
NAMES = tuple(CASES)
assert set(NAMES) == set(algos.names())
CONTINUOUS = ("sac",)
"""Those that take continuous actions alone. The others are tested with discrete ones."""


def options(name):
    """The names of an algorithm's options."""
    return [f.name for f in dataclasses.fields(algos.get(name).Config)]


def everything(name, **changes):
    """A config that compiles and runs in seconds, with every option on. The algorithm for
    continuous actions has products of the usual size: all others share theirs with PPO."""
    whole = {"num_envs": 16, "num_shards": 8, "rollout_length": 8, "hidden_sizes": (16,)}
    whole |= {"env": "CartPole-v1", "iterations": 7, "seed": 7, "devices": 1}
    if name in CONTINUOUS:
        whole |= {"env": "probes:Push", "hidden_sizes": (64, 64)}
    whole |= changes
    return _config(name, CASES[name].everything, whole)


def probing(name):
    """A config that learns the probe environments, on two devices."""
    whole = {"num_envs": 64, "num_shards": 4, "rollout_length": 8, "hidden_sizes": (16,)}
    whole |= {"devices": 2, "iterations": CASES[name].iterations}
    return _config(name, CASES[name].probing, whole)


def _config(name, options, whole):
    config = Config(algo=algos.get(name).Config(**options), **whole)
    cfg.check(config)
    return config


def numbers(options):
    """The names of the options that are numbers, of which agents may have different ones."""
    return [f.name for f in dataclasses.fields(options) if _is_leaf(options, f.name)]


def _is_leaf(options, name):
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(options)]
    return name in {path[0].name for path in paths}


def learned(config, spec, params):
    """What parameters have learned, as two functions of observations ``[n, ...]``: which action the
    greedy one is (`learners.meant`), and the value of the state."""
    options = config.algo
    if config.algo.name in ("pqn", "dqn", "apex"):
        layer_norm, dueling = (getattr(options, x, False) for x in ("layer_norm", "dueling"))
        network = networks.make_q(config, spec, dueling=dueling, layer_norm=layer_norm)
        q = lambda obs: np.asarray(network.apply(params, obs))  # noqa: E731
        return lambda obs: q(obs).argmax(-1), lambda obs: q(obs).max(-1)
    if config.algo.name == "sac":
        actor_critics = networks.make_actor_critics(config, spec)

        def mean(obs):
            return jnp.tanh(actor_critics.policy(params["policy"], obs)[..., :1])

        def value(obs):
            return np.asarray(actor_critics.values(params["values"], obs, mean(obs)).min(-1))

        return lambda obs: meant(spec.action, mean(obs)), value
    network = networks.make(config, spec)
    both = lambda obs: [np.asarray(x) for x in network.apply(params, obs)]  # noqa: E731
    best = lambda obs: network.policy.mode(both(obs)[0])  # noqa: E731
    return lambda obs: meant(spec.action, best(obs)), lambda obs: both(obs)[1]
