"""A program for `test_threads.py`: prints the digests of small configs' runs, or of one gradient.

    NPROC=4 python tests/threads.py run 2 cnn gru
    NPROC=4 python tests/threads.py gradient 1 cnn gru
    NPROC=4 python tests/threads.py unsafe 1 cnn
    NPROC=4 python tests/threads.py portable 1 cnn

``NPROC`` is XLA's own variable for the number of cores, the number is that of the devices, and the
names are those of `CONFIGS` and `IMAGES`. ``unsafe`` is the gradient without
`jaxrl_scale.learning.products`, ``portable`` that of a portable run. With ``CORE=0`` all of it
happens on that core.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl_scale.algos import dqn, ppo, sac
from jaxrl_scale.config import Config, check
from jaxrl_scale.learning import networks, products
from jaxrl_scale.parallel import backend


def large(algo: Any = None, **changes: Any) -> Config:
    """Two iterations in four shards; of CartPole and with PPO, if nothing else is said."""
    algo = algo or ppo.Config(minibatch_size=1024, epochs=1)
    whole = {"num_envs": 32, "num_shards": 4, "rollout_length": 32, "iterations": 2}
    config = Config(algo=algo, **(whole | {"eval_episodes": 4} | changes))
    check(config)
    return config


CONFIGS = {
    # 2,048 samples a shard in one product, with everything that is summed over them
    "batch": large(
        ppo.Config(minibatch_size=8192, epochs=1, normalize_observations=True, scale_rewards=True),
        num_envs=256,
        hidden_sizes=(64, 64),
    ),
    # 256 samples a shard
    "mlp": large(hidden_sizes=(256, 256)),
    "cnn": large(
        env="gymnax:Breakout-MinAtar", hidden_sizes=(256,), activation="relu", iterations=1
    ),
    "gru": large(ppo.Config(minibatch_size=1024, epochs=1, recurrent=True), hidden_sizes=(64, 256)),
    "dqn": large(
        dqn.Config(batch_size=1024, updates_per_iteration=2, replay_size=4096, learning_starts=512),
        hidden_sizes=(256, 256),
    ),
    "sac": large(
        sac.Config(batch_size=1024, updates_per_iteration=2, replay_size=4096, learning_starts=512),
        env="Pendulum-v1",
        hidden_sizes=(256, 256),
        activation="relu",
    ),
}


def pixels(network: str, edge: int, channels: int, **changes: Any) -> Config:
    """16 environments whose observations are images, two iterations of two minibatches."""
    whole = {"num_envs": 16, "num_shards": 2, "rollout_length": 4, "hidden_sizes": (32,)}
    return large(
        ppo.Config(minibatch_size=32, epochs=1),
        env="probes:Pixels",
        env_kwargs={"edge": edge, "channels": channels},
        network=network,
        **(whole | changes),
    )


IMAGES = {
    "nature": pixels("nature", 36, 4),
    "impala_resnet": pixels("impala_resnet", 20, 3),
    "atari": pixels("nature", 84, 4, hidden_sizes=None),
    "procgen": pixels("impala_resnet", 64, 3, hidden_sizes=None),
}


def digest(tree: Any) -> str:
    leaves = b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(tree))
    return hashlib.sha256(leaves).hexdigest()[:16]


def digests(config: Config) -> dict[str, str]:
    """Of the state after all iterations, its metrics, and an evaluation."""
    from running import runner_of

    runner = runner_of(config)
    state, history = runner.init(), []
    for _ in range(config.num_iterations):
        state, metrics = runner.step(state)
        history.append(metrics)
    fetched = runner.fetch(state)
    return {
        "parameters": digest(fetched.shared.algo.params),
        "state": digest(fetched),
        "metrics": digest(history),
        "evaluation": digest(runner.evaluate(state)),
    }


def gradient(config: Config) -> dict[str, str]:
    """The digest of `loss`'s gradient."""
    f, params = loss(config)
    options = products.compiler_options(config.portable)
    return {
        "gradient": digest(jax.jit(jax.grad(f, has_aux=True), compiler_options=options)(params))
    }


def loss(config: Config) -> tuple[Callable[[Any], Any], Any]:
    """A function of a network's parameters, the sum of its squared outputs for 2,048 observations
    or 64 images, with the outputs; and such parameters."""
    spec = config.make_env().spec
    rng = np.random.default_rng(0)
    obs: Any = rng.random((2048, *spec.observation_shape), np.float32)
    if spec.observation_dtype == np.uint8:
        obs = rng.integers(0, 256, (64, *spec.observation_shape)).astype(np.uint8)
    if getattr(config.algo, "recurrent", False):
        network = networks.make_recurrent(config, spec)
        obs = obs.reshape(8, -1, *spec.observation_shape)
        first = (network.init_carry(obs.shape[1]), obs, np.zeros(obs.shape[:2], bool))
    else:
        network, first = networks.make(config, spec), (obs,)

    def f(params: Any) -> Any:
        outputs = jax.tree.leaves(network.apply(params, *first))
        return sum((x**2).sum() for x in outputs), outputs

    shapes = jax.eval_shape(network.init, jax.random.key(0))
    params = jax.tree.map(lambda x: rng.normal(0, 0.1, x.shape).astype(x.dtype), shapes)
    return f, params


if __name__ == "__main__":
    if "CORE" in os.environ:
        os.sched_setaffinity(0, {int(os.environ["CORE"])})
    what, devices, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    jax.config.update("jax_num_cpu_devices", devices)
    if what == "portable":
        backend.cap(started=False)
    jax.config.update("jax_default_matmul_precision", "highest")
    if what == "unsafe":
        products.exact = lambda f, portable: f
    of = digests if what == "run" else gradient
    changes = {"devices": devices, "portable": what == "portable"}
    chosen = {name: (CONFIGS | IMAGES)[name].replace(**changes) for name in names}
    print(json.dumps({name: of(config) for name, config in chosen.items()}))
