"""Typed configs: frozen dataclasses, a Python file that fills them, the command line on top.

`load` turns ``argv`` into a checked `Config`; every mistake is a one-line `RunError` raised
before anything is compiled. Sizes are checked in one place, `check`. What only the building of
an environment or a network can tell (``gymnax:…`` and ``module:Class``), `jaxrl_scale.envs`
and `jaxrl_scale.learning.networks` check.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxrl_scale import algos, envs
from jaxrl_scale.errors import RunError
from jaxrl_scale.options import (
    check_divides,
    check_fields,
    largest_divisor,
    option,
)


@dataclass(frozen=True)
class Config:
    """One run, whole: the run is a function of this (and of ``seed``, which is part of it)."""

    env: str = option(
        "CartPole-v1", f"environment: {', '.join(envs.names())}, gymnax:NAME or module:Class"
    )
    env_kwargs: dict[str, Any] = option(
        {}, "a parameter of the environment; another --env drops those of the config file"
    )
    algo: Any = field(default_factory=lambda: algos.get("ppo").Config())
    network: str = option(
        "mlp", "network: mlp, cnn, auto (cnn for images, else mlp) or module:Class, a flax module"
    )
    hidden_sizes: tuple[int, ...] = option((64, 64), "widths of the hidden layers", low=1)
    activation: Literal["tanh", "relu", "silu", "gelu"] = option(
        "tanh", "activation after each hidden layer"
    )
    shared_torso: bool = option(False, "policy and value share the hidden layers")

    seed: int = option(0, "the first member's seed; member k has seed + k", low=0, high=2**31 - 1)
    num_seeds: int = option(1, "agents trained side by side in one program", low=1)
    num_envs: int = option(64, "environments of one agent, over all devices", low=1)
    num_shards: int = option(
        8,
        "fixed slices of the environments, a power of two; bounds the devices of one agent",
        low=1,
    )
    rollout_length: int = option(128, "steps of each environment in an iteration", low=1)
    total_steps: int = option(
        1_000_000, "environment steps of one agent, rounded up to whole iterations", low=1
    )
    iterations: int | None = option(
        None, "iterations; where given, total_steps does not count", low=1
    )
    target_return: float | None = option(
        None, "mean return of the last 100 episodes that counts as solved", on_resume=True
    )

    devices: int | None = option(
        None, "local devices; none: all GPUs, or one CPU device a core", low=1, on_resume=True
    )
    reduction: Literal["auto", "exact", "fast"] = option(
        "auto",
        "exact: sums in one fixed order, bit-identical on any number of devices; "
        "fast: one big batch, equal within rounding; auto: exact on CPUs, fast on GPUs",
    )
    matmul_precision: Literal["highest", "high", "default"] = option(
        "highest", "of matrix products; highest is float32 throughout"
    )
    deterministic: bool = option(False, "XLA's deterministic operations on GPUs (slower)")

    log_every: int = option(5, "iterations between rows of metrics", low=1)
    eval_every: int = option(0, "iterations between evaluations; 0: only at the end", low=0)
    eval_episodes: int = option(128, "episodes of an evaluation, for each seed", low=1)
    checkpoint_every: int = option(50, "iterations between checkpoints", low=1)
    keep_checkpoints: int = option(3, "latest checkpoints kept, beside the best", low=1)
    wandb: Literal["auto", "online", "offline", "disabled"] = option(
        "auto", "auto: online where wandb finds an account, else offline", on_resume=True
    )
    wandb_project: str = option("jaxrl_scale", "wandb's project", on_resume=True)
    tensorboard: bool = option(True, "write TensorBoard's event files", on_resume=True)
    compilation_cache: str = option(
        "~/.cache/jaxrl_scale", "folder of compiled programs; empty: none", on_resume=True
    )
    run_dir: str | None = option(None, "folder of the run; none: runs/<config>-<time>")

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps (valid or not) of one agent in one iteration."""
        return self.num_envs * self.rollout_length

    @property
    def num_iterations(self) -> int:
        return self.iterations or -(-self.total_steps // self.steps_per_iteration)

    @property
    def envs_per_shard(self) -> int:
        return self.num_envs // self.num_shards

    def replace(self, **changes: Any) -> Config:
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class Launch:
    """How this process finds the others of its run: no part of the run itself."""

    coordinator: str | None = option(
        None, "HOST[:PORT] of process 0; none: from Slurm, OpenMPI or JAX_COORDINATOR_ADDRESS"
    )
    num_processes: int | None = option(
        None, "processes of the run; none: from the same, or JAX_NUM_PROCESSES", low=1
    )
    process_id: int | None = option(
        None, "which of them this is, from 0; none: from the same, or JAX_PROCESS_ID", low=0
    )
    start_timeout: float = option(
        300.0, "seconds to wait for all processes to come", low=1, high=86_400
    )
    heartbeat: float = option(
        20.0, "seconds of silence after which a process counts as lost", low=1, high=3_600
    )


# --- checks ---------------------------------------------------------------------------------

_INT32 = 2**31 - 1  # JAX counts and indexes in int32


def check(config: Config) -> None:
    """Raise a `RunError` that names the numbers that do not fit."""
    check_algo(config.algo)
    check_fields(config, "")
    check_fields(config.algo, "algo.")
    for name in ("env", "network"):
        if not all(getattr(config, name).split(":")):
            raise RunError(
                f"{name}={getattr(config, name)!r} should be a name, "
                "or two with a colon between them, such as my_package.my_module:MyClass"
            )
    if config.seed + config.num_seeds - 1 > _INT32:
        raise RunError(
            f"seed={config.seed} and num_seeds={config.num_seeds}: the last seed is "
            f"{config.seed + config.num_seeds - 1}, which should be at most {_INT32}"
        )
    if config.num_shards & (config.num_shards - 1):
        near = 2 ** round(math.log2(config.num_shards))
        raise RunError(
            f"num_shards={config.num_shards} is not a power of two; try num_shards={near}"
        )
    check_divides(config.num_envs, "num_envs", config.num_shards, "num_shards")
    if config.steps_per_iteration > _INT32:
        raise RunError(
            f"num_envs * rollout_length = {config.num_envs} * {config.rollout_length} = "
            f"{config.steps_per_iteration} steps in an iteration should be at most {_INT32}"
        )
    if config.num_iterations > _INT32:
        name = "iterations" if config.iterations else "total_steps"
        raise RunError(
            f"{name}={getattr(config, name)} makes {config.num_iterations} iterations of "
            f"{config.steps_per_iteration} steps; there should be at most {_INT32}"
        )
    if config.devices and config.num_shards % config.devices and config.num_seeds % config.devices:
        near = max(
            largest_divisor(number, config.devices)
            for number in (config.num_shards, config.num_seeds)
        )
        raise RunError(
            f"devices={config.devices} divides neither num_shards={config.num_shards} "
            f"nor num_seeds={config.num_seeds}; try devices={near}"
        )
    config.algo.check(config)


def check_algo(algo: Any) -> None:
    """An instance of a ``Config`` of `jaxrl_scale.algos`, not its name and not the class."""
    if isinstance(algo, type) or not dataclasses.is_dataclass(algo) or not hasattr(algo, "name"):
        shown = algo.__qualname__ if isinstance(algo, type) else repr(algo)
        raise RunError(
            f"algo={shown} should be an algorithm's own Config, "
            f"such as jaxrl_scale.algos.{algos.names()[0]}.Config()"
        )
