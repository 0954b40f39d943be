"""What a run is: `Config`, a frozen dataclass, and `check`, which refuses sizes that do not fit.

A config comes from Python, from a file or a run directory (`jaxrl_scale.config.files`), and from
the command line (`jaxrl_scale.config.command_line`). A mistake in it is a `RunError` of one line,
raised before anything is compiled. Mistakes that only show when an environment or a network is
built are found by `jaxrl_scale.envs` and `jaxrl_scale.learning.networks`.
"""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from jaxrl_scale import algos, envs
from jaxrl_scale.errors import RunError, how_many, one_line
from jaxrl_scale.options import (
    INT32_MAX,
    can_be_path,
    check_divides,
    check_fields,
    largest_divisor,
    option,
    shown,
    with_pythons_numbers,
)
from jaxrl_scale.types import MOST_SHARDS
from jaxrl_scale.user_code import errors_in_one_line, is_own

_NOT_IN_PROJECTS = "/\\#?%:"  # wandb's own check, which comes when the run has begun


class AlgorithmConfig(Protocol):
    """What a run needs to know of its algorithm's own options, which are a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def name(self) -> str:
        """The name by which `jaxrl_scale.algos.get` finds the algorithm."""

    @property
    def depends_on_budget(self) -> bool:
        """Whether a longer run differs from a shorter one before the shorter one ends."""

    def check(self, config: Config) -> None:
        """Raise a `RunError` if the run's sizes do not fit these options."""


def _default_algorithm() -> AlgorithmConfig:
    return algos.get("ppo").Config()


@dataclass(frozen=True)
class Config:
    """All options of a run, its seed among them. A run is a function of its config alone, and of
    the policy of ``init_from``, where there is one."""

    env: str = option(
        "CartPole-v1",
        f"environment: {', '.join(envs.names())}; a game of Procgen or Atari, such as "
        "CoinrunEasy-v0 or Pong-v5; gymnasium:NAME, envpool:NAME, gymnax:NAME, brax:NAME, "
        "playground:NAME, craftax:NAME, jumanji:NAME, or a class of your own as my_module:MyClass",
    )
    env_kwargs: dict[str, Any] = option(
        {},
        "parameter NAME of the environment; if --env names another environment than the config "
        "file, the parameters in the file are dropped, unless both are games of Procgen, or both "
        "of Atari",
    )
    test_env_kwargs: dict[str, Any] = option(
        {},
        "parameter NAME that the environment has in a second evaluation, whose return is "
        "test_return; without any there is no such evaluation",
    )
    algo: AlgorithmConfig = field(default_factory=_default_algorithm)
    network: str = option(
        "auto",
        "network: mlp; for images cnn (small), nature (DQN's), impala_resnet, or impoola (the same "
        "with an average over the image); auto: mlp, or for images cnn below 36 pixels, "
        "impala_resnet below 84, otherwise nature; or a flax.linen.Module class of your own as "
        "my_module:MyClass",
    )
    network_width: int = option(
        1,
        "channels of nature, impala_resnet and impoola as a multiple of the published ones",
        low=1,
    )
    hidden_sizes: tuple[int, ...] | None = option(
        None,
        "widths of the hidden layers behind the convolutions, if any; none: 512 for nature, 256 "
        "for impala_resnet and impoola, otherwise 64,64",
        low=1,
    )
    activation: Literal["tanh", "relu", "silu", "gelu"] | None = option(
        None,
        "activation function after each hidden layer; none: relu for nature, impala_resnet and "
        "impoola, otherwise tanh",
    )
    shared_torso: bool = option(
        False,
        "let policy and value share the hidden layers; those of nature, impala_resnet, impoola and "
        "with a memory always do, and DQN, Ape-X, PQN and SAC have no such choice",
    )

    seed: int = option(0, "seed of agent 0; agent k has seed + k", low=0, high=INT32_MAX)
    num_seeds: int = option(1, "number of agents, trained side by side in one program", low=1)
    num_envs: int = option(64, "number of environments per agent, over all devices", low=1)
    num_shards: int = option(
        8,
        "number of equal parts of an agent's environments, a power of two; one agent can use at "
        "most this many devices",
        low=1,
        high=MOST_SHARDS,
    )
    rollout_length: int = option(128, "steps of each environment per iteration", low=1)
    total_steps: int = option(
        1_000_000, "environment steps per agent, rounded up to whole iterations", low=1
    )
    iterations: int | None = option(None, "number of iterations; overrides total_steps", low=1)
    init_from: str | None = option(
        None,
        "run directory of another run, whose newest checkpoint gives the policy to begin from: "
        "parameters, and statistics of observations; optimizer, counters and replay begin afresh. "
        "If that run has one agent, all agents begin from it, otherwise agent k from its agent k",
    )
    restart_every: int = option(
        100,
        "iterations after which environments on the host are made anew, since their state cannot "
        "be saved; episodes that go on are cut there, and a run that is resumed repeats the steps "
        "since then",
        low=1,
    )
    target_return: float | None = option(
        None,
        "the task counts as solved when the mean return of the latest iterations that together "
        "hold at least 100 ended episodes has reached this; the run goes on all the same; if --env "
        "names another environment than the config file, the return in the file is dropped",
        on_resume=True,
    )

    devices: int | None = option(
        None,
        "number of devices per process; none: all GPUs, or one CPU device per core",
        low=1,
        on_resume=True,
    )
    num_threads: int | None = option(
        None,
        "number of threads that step environments on the host, per process; none: one per core",
        low=1,
        on_resume=True,
    )
    reduction: Literal["auto", "exact", "fast"] = option(
        "auto",
        "how sums over shards are computed; exact: in one fixed order, so that results on CPUs are "
        "equal to the last bit, however many devices there are (tested with 1, 2, 4 and 8); fast: "
        "as one big batch, so that results are equal within rounding; auto: exact on CPUs, fast on "
        "GPUs",
    )
    portable: bool = option(
        False,
        "aim at the same bits on all x86 processors that have AVX2 and FMA, not only on those of "
        "one kind (seen on AMD's Zen 3, 4 and 5 and on one Intel), which is slower where a "
        "processor has more; on CPUs, with exact sums",
    )
    matmul_precision: Literal["highest", "high", "default"] = option(
        "highest", "precision of matrix products; highest: float32 throughout"
    )
    deterministic: bool = option(
        True,
        "use the same kernels on GPUs whenever a program is compiled, so that a run can be "
        "repeated to the last bit (what was tried: docs/exactness.md); false: try several and "
        "take the fastest",
    )

    log_every: int = option(5, "iterations from one row of metrics to the next", low=1)
    eval_every: int = option(
        0, "iterations from one evaluation to the next; 0: only one, at the end", low=0
    )
    eval_episodes: int = option(128, "episodes per evaluation of each agent", low=1)
    eval_greedy: bool = option(
        True,
        "take the best action in evaluations; false: act as in training, as for Procgen's "
        "published figures",
    )
    checkpoint_every: int = option(50, "iterations from one checkpoint to the next", low=1)
    keep_checkpoints: int = option(
        3, "number of newest checkpoints that are kept, in addition to the best one", low=1
    )
    wandb: Literal["auto", "online", "offline", "disabled"] = option(
        "auto",
        "how to log to Weights & Biases; auto: as WANDB_MODE says; without it online if wandb "
        "finds an account, otherwise offline",
        on_resume=True,
    )
    wandb_project: str = option(
        "jaxrl_scale",
        "name of the project in wandb; jaxrl_scale: that of WANDB_PROJECT, if it is set",
        on_resume=True,
    )
    tensorboard: bool = option(True, "write event files for TensorBoard", on_resume=True)
    compilation_cache: str = option(
        "~/.cache/jaxrl_scale",
        "folder of compiled programs, which later runs reuse; empty: no such folder",
        on_resume=True,
    )
    run_dir: str | None = option(
        None, "folder of the run; none: runs/<config>-<time>, without --config runs/<env>-<time>"
    )

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one agent in one iteration, those that reset included."""
        return self.num_envs * self.rollout_length

    @property
    def num_iterations(self) -> int:
        """Iterations of the whole run."""
        return self.iterations or -(-self.total_steps // self.steps_per_iteration)

    @property
    def envs_per_shard(self) -> int:
        """Environments of one shard of one agent."""
        return self.num_envs // self.num_shards

    def __post_init__(self) -> None:
        """In Python a path may be a `pathlib.Path`, sizes a list, and a number one of NumPy's."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in ("run_dir", "init_from", "compilation_cache"):
            if isinstance(given[name], os.PathLike):
                given[name] = os.fspath(given[name])
        if isinstance(given["hidden_sizes"], list):
            given["hidden_sizes"] = tuple(given["hidden_sizes"])
        for name, value in given.items():
            try:
                object.__setattr__(self, name, with_pythons_numbers(value))
            except RecursionError:
                raise RunError(
                    f"{name} holds itself, or is nested too deeply; it should hold finite numbers, "
                    "texts and lists, because it becomes JSON"
                ) from None

    def replace(self, **changes: Any) -> Config:
        """A copy with other values for some options."""
        return dataclasses.replace(self, **changes)

    def make_env(self) -> Any:
        """Its environment, as `jaxrl_scale.envs.make` builds and checks it."""
        return envs.make(self.env, **self.env_kwargs)


@dataclass(frozen=True)
class Launch:
    """How this process finds the other processes of its run. This is no part of the run itself."""

    coordinator: str | None = option(
        None,
        "address of process 0 as HOST[:PORT]; none: JAX_COORDINATOR_ADDRESS, else that of OpenMPI, "
        "else that of Slurm",
    )
    num_processes: int | None = option(
        None,
        "number of processes of the run; none: JAX_NUM_PROCESSES, else that of OpenMPI, else that "
        "of Slurm",
        low=1,
    )
    process_id: int | None = option(
        None,
        "index of this process, from 0; none: JAX_PROCESS_ID, else that of OpenMPI, else that of "
        "Slurm",
        low=0,
    )
    start_timeout: float = option(
        300.0, "seconds to wait until all processes have connected", low=1, high=86_400
    )
    heartbeat: float = option(
        20.0,
        "seconds without a message after which a process counts as lost",
        low=1,
        high=3_600,
    )


def check(config: Config) -> None:
    """Raise a `RunError` that names the values that do not fit, and one that would fit."""
    check_kind(config)
    check_algo(config.algo)
    check_run(config)
    check_fields(config.algo, "algo.")
    if not is_own(config.algo.name):
        config.algo.check(config)
        return
    with errors_in_one_line(f"algorithm {config.algo.name!r}"):
        config.algo.check(config)
        bool(config.algo.depends_on_budget)  # which is asked where the run is resumed


def check_run(config: Config) -> None:
    """As `check`, of all options but the algorithm's."""
    for name in ("env", "network"):
        _check_name(name, getattr(config, name))
    check_fields(config, "")
    for name in ("env", "network"):
        if not all(getattr(config, name).split(":")):
            raise RunError(
                f"{name}={getattr(config, name)!r} should be a name, "
                "or two with a colon between them, such as my_package.my_module:MyClass"
            )
    for name in ("run_dir", "init_from"):  # an unset variable of a shell would mean this folder
        path = getattr(config, name)
        if path is not None and (not path or not can_be_path(path)):
            raise RunError(f"{name}={shown(path)} should be the path of a folder, or none")
    cache = config.compilation_cache
    if not can_be_path(cache):
        raise RunError(f"compilation_cache={shown(cache)} should be the path of a folder, or empty")
    project = config.wandb_project
    if not 0 < len(project) <= 128 or set(project) & set(_NOT_IN_PROJECTS):
        raise RunError(
            f"wandb_project={shown(project)} should have 1 to 128 characters and none of "
            f"{' '.join(_NOT_IN_PROJECTS)}, which wandb does not take in a name"
        )
    _check_sizes(config)
    if config.portable and config.reduction == "fast":
        raise RunError("portable=True needs exact sums, not reduction=fast; try reduction=exact")
    if config.portable and config.matmul_precision != "highest":
        raise RunError(
            f"portable=True needs matmul_precision=highest, not {config.matmul_precision}"
        )


def _check_name(option: str, value: Any) -> None:
    """Refuse what stands in place of its name: the class of an environment or a network, or an
    object of it."""
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__ == "builtins" or isinstance(value, os.PathLike):  # no such object
        return
    said = f"{option}={shown(value)} should be a text, {kind.__module__}:{kind.__qualname__}"
    if kind is not value:
        arguments = ", whose arguments are env_kwargs" if option == "env" else ""
        said += f", the name of its class{arguments}"
    raise RunError(said)


def _check_sizes(config: Config) -> None:
    if config.seed + config.num_seeds - 1 > INT32_MAX:
        raise RunError(
            f"seed={config.seed} and num_seeds={config.num_seeds}: the last seed is "
            f"{config.seed + config.num_seeds - 1}, which should be at most {INT32_MAX}"
        )
    if config.num_shards & (config.num_shards - 1):
        near = 2 ** round(math.log2(config.num_shards))
        raise RunError(
            f"num_shards={config.num_shards} is not a power of two; try num_shards={near}"
        )
    check_divides(config.num_envs, "num_envs", config.num_shards, "num_shards")
    if config.steps_per_iteration > INT32_MAX:
        raise RunError(
            f"num_envs * rollout_length = {config.num_envs} * {config.rollout_length} = "
            f"{config.steps_per_iteration} steps in an iteration should be at most {INT32_MAX}"
        )
    if config.num_iterations > INT32_MAX:
        name = "iterations" if config.iterations else "total_steps"
        raise RunError(
            f"{name}={getattr(config, name)} makes {config.num_iterations} iterations of "
            f"{config.steps_per_iteration} steps; there should be at most {INT32_MAX}"
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


def check_processes(config: Config, processes: int) -> None:
    """Raise a `RunError` where so many processes can share neither the agents nor the shards."""
    if config.num_shards % processes and config.num_seeds % processes:
        near = how_many(largest_divisor(config.num_shards, processes), "process", "processes")
        raise RunError(
            f"{processes} processes divide neither num_shards={config.num_shards} nor "
            f"num_seeds={config.num_seeds}; try {near}"
        )


def check_kind(config: Any) -> None:
    """Raise a `RunError` unless it is an instance of `Config`: no dict, no path and no class, and
    none of a class with other fields, of which neither options nor ``config.json`` know."""
    if not isinstance(config, Config):
        given = f"the class {config.__qualname__}" if isinstance(config, type) else repr(config)
        read = "jaxrl_scale.config.files.read_file"
        hint = f"; {read} reads one from a file" if isinstance(config, str | Path) else ""
        raise RunError(
            f"config={one_line(given)[:100]} should be an instance of jaxrl_scale.Config{hint}"
        )
    if dataclasses.fields(config) != dataclasses.fields(Config):
        raise RunError(
            f"config is of the class {type(config).__qualname__}, which has other fields than "
            "jaxrl_scale.Config; it should be a Config itself"
        )


def check_algo(algo: Any) -> None:
    """Raise a `RunError` unless it is an instance of an algorithm's ``Config``: neither its name
    nor the class."""
    if isinstance(algo, type) or not dataclasses.is_dataclass(algo) or not hasattr(algo, "name"):
        given = algo.__qualname__ if isinstance(algo, type) else repr(algo)
        raise RunError(
            f"algo={one_line(given)[:100]} should be an instance of an algorithm's Config, "
            f"such as jaxrl_scale.algos.{algos.names()[0]}.Config()"
        )
    # A copy of an algorithm with the name of the original would be the original.
    classes = algos.get(algo.name).Config, type(algo)
    named, given = (f"{c.__module__}.{c.__qualname__}" for c in classes)
    if named != given:
        module = type(algo).__module__
        own = f"has name={module + ':Config'!r}"
        if module in ("<run_path>", "__main__"):  # a config file, or a program
            own = "should stand in a module that this file imports"
        raise RunError(
            f"algo is of the class {given}, but its name, {algo.name!r}, is that of {named}; "
            f"an algorithm of your own {own}"
        )
