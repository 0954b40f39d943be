"""Typed configs: frozen dataclasses, a Python file that fills them, the command line on top.

`load` turns ``argv`` into a checked `Config`; every mistake is a one-line `UserError` raised
before anything is compiled. Sizes are checked in one place, `check`. What only the building of
an environment or a network can tell (``gymnax:…`` and ``module:Class``), `jaxrl_scale.envs`
and `jaxrl_scale.networks` check.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import math
import re
import runpy
import traceback
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from jaxrl_scale import algos, envs
from jaxrl_scale.types import Environment, UserError


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    on_resume: bool = False,
) -> Any:
    """A dataclass field that the command line can set.

    ``low`` and ``high`` are inclusive bounds; ``on_resume`` says that a resumed run may be
    given another value, because the result does not depend on it.
    """
    metadata = {"help": help, "low": low, "high": high, "on_resume": on_resume}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


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
    reduction: Literal["auto", "exact", "pooled"] = option(
        "auto",
        "exact: sums in one fixed order, bit-identical on any number of devices; "
        "pooled: one big batch, equal within rounding; auto: exact on CPUs, pooled on GPUs",
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
    """Raise a `UserError` that names the numbers that do not fit."""
    _check_algo(config.algo)
    _check_fields(config, "")
    _check_fields(config.algo, "algo.")
    for name in ("env", "network"):
        if not all(getattr(config, name).split(":")):
            raise UserError(
                f"{name}={getattr(config, name)!r} should be a name, "
                "or two with a colon between them, such as my_package.my_module:MyClass"
            )
    if config.seed + config.num_seeds - 1 > _INT32:
        raise UserError(
            f"seed={config.seed} and num_seeds={config.num_seeds}: the last seed is "
            f"{config.seed + config.num_seeds - 1}, which should be at most {_INT32}"
        )
    if config.num_shards & (config.num_shards - 1):
        near = 2 ** round(math.log2(config.num_shards))
        raise UserError(
            f"num_shards={config.num_shards} is not a power of two; try num_shards={near}"
        )
    _check_divides(config.num_envs, "num_envs", config.num_shards, "num_shards")
    if config.steps_per_iteration > _INT32:
        raise UserError(
            f"num_envs * rollout_length = {config.num_envs} * {config.rollout_length} = "
            f"{config.steps_per_iteration} steps in an iteration should be at most {_INT32}"
        )
    if config.num_iterations > _INT32:
        name = "iterations" if config.iterations else "total_steps"
        raise UserError(
            f"{name}={getattr(config, name)} makes {config.num_iterations} iterations of "
            f"{config.steps_per_iteration} steps; there should be at most {_INT32}"
        )
    if config.devices and config.num_shards % config.devices and config.num_seeds % config.devices:
        near = max(
            largest_divisor(number, config.devices)
            for number in (config.num_shards, config.num_seeds)
        )
        raise UserError(
            f"devices={config.devices} divides neither num_shards={config.num_shards} "
            f"nor num_seeds={config.num_seeds}; try devices={near}"
        )
    config.algo.check(config)


def _check_algo(algo: Any) -> None:
    """An instance of a ``Config`` of `jaxrl_scale.algos`, not its name and not the class."""
    if isinstance(algo, type) or not dataclasses.is_dataclass(algo) or not hasattr(algo, "name"):
        shown = algo.__qualname__ if isinstance(algo, type) else repr(algo)
        raise UserError(
            f"algo={shown} should be an algorithm's own Config, "
            f"such as jaxrl_scale.algos.{algos.names()[0]}.Config()"
        )


def _check_divides(total: int, total_name: str, part: int, part_name: str) -> None:
    if total % part:
        near = max(part, (total + part // 2) // part * part)
        raise UserError(
            f"{total_name}={total} does not divide by {part_name}={part}; try {total_name}={near}"
        )


def check_minibatches(config: Config, minibatch_size: int) -> None:
    """Check that minibatches cut an iteration, and shards cut a minibatch, without remainder."""
    _check_divides(minibatch_size, "algo.minibatch_size", config.num_shards, "num_shards")
    steps = config.steps_per_iteration
    if steps % minibatch_size:
        of_a_shard = steps // config.num_shards
        small = [d for d in range(1, math.isqrt(of_a_shard) + 1) if of_a_shard % d == 0]
        fitting = [d * config.num_shards for s in small for d in (s, of_a_shard // s)]
        near = min(fitting, key=lambda d: abs(d - minibatch_size))
        raise UserError(
            f"algo.minibatch_size={minibatch_size} does not divide an iteration of "
            f"num_envs * rollout_length = {config.num_envs} * {config.rollout_length} = {steps} "
            f"steps; try algo.minibatch_size={near}"
        )


def check_trajectories(config: Config, minibatch_size: int) -> None:
    """Check that minibatches are of whole trajectories, equally many of every shard."""
    unit = config.num_shards * config.rollout_length
    number = config.envs_per_shard
    fitting = [unit * d for d in range(1, number + 1) if number % d == 0]
    if minibatch_size not in fitting:
        near = min(fitting, key=lambda size: abs(size - minibatch_size))
        raise UserError(
            f"algo.minibatch_size={minibatch_size} does not cut an iteration into whole "
            f"trajectories of rollout_length={config.rollout_length}, equally many of each of "
            f"num_shards={config.num_shards}; try algo.minibatch_size={near}"
        )


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of ``number`` that is not above ``limit``."""
    return next(d for d in range(min(number, limit), 0, -1) if number % d == 0)


def _check_fields(config: Any, prefix: str) -> None:
    hints = typing.get_type_hints(type(config))
    for f in dataclasses.fields(config):
        if f.name == "algo":
            continue
        value, hint, name = getattr(config, f.name), hints[f.name], prefix + f.name
        if not _has_type(value, hint):
            raise UserError(
                f"{name}={value!r} should be {_type_name(hint)}{_nearest_choice(value, hint)}"
            )
        if isinstance(value, dict) and not _is_plain(value):
            raise UserError(
                f"{name}={value!r} should hold finite numbers, texts and lists: it becomes JSON"
            )
        low, high = f.metadata.get("low"), f.metadata.get("high")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise UserError(f"{name}={value!r} should be a finite number")
            if number is not None and low is not None and number < low:
                raise UserError(f"{name}={value!r} should be at least {low}")
            if number is not None and high is not None and number > high:
                raise UserError(f"{name}={value!r} should be at most {high}")


def _has_type(value: Any, hint: Any) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_has_type(value, arg) for arg in args)
    if origin is Literal:
        return isinstance(value, str) and value in args
    if origin is tuple:
        return isinstance(value, tuple) and all(_has_type(v, args[0]) for v in value)
    if origin is dict:
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if hint is float:  # a whole number is a number, a bool is none
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return hint is Any or isinstance(value, hint)


def _type_name(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_type_name(arg) for arg in args)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin is tuple:
        return "whole numbers separated by commas, in Python a tuple"
    if origin is dict:
        return "a dict with texts for keys"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return "none" if hint is type(None) else names.get(hint, str(hint))


def _nearest_choice(value: Any, hint: Any) -> str:
    """What `nearest` says where ``hint`` has choices."""
    if typing.get_origin(hint) is Literal and isinstance(value, str):
        return nearest(value, typing.get_args(hint))
    return ""


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def make_env(config: Config) -> Environment:
    """The config's environment. Raises a `UserError` that names what does not exist."""
    try:
        env = envs.make(config.env, **config.env_kwargs)
    except (ValueError, ImportError) as error:
        raise UserError(_one_line(error)) from error
    except TypeError as error:
        if not config.env_kwargs:
            raise
        raise UserError(f"env_kwargs={config.env_kwargs!r}: {_one_line(error)}") from error
    if config.env in envs.names():
        hints = typing.get_type_hints(type(env))
        for name, value in config.env_kwargs.items():
            if not _has_type(value, hints[name]):
                raise UserError(f"env_kwargs.{name}={value!r} should be {_type_name(hints[name])}")
    return env


# --- the command line -----------------------------------------------------------------------


def load(argv: Sequence[str]) -> tuple[Config, str, str | None]:
    """``argv`` to ``(config, name, run directory to resume or None)``; ``name`` is the stem
    of the config file, or of the environment where there is none."""
    first = Parser(add_help=False)
    for option_string in ("--config", "--resume", "--algo"):
        first.add_argument(option_string)
    chosen, _ = first.parse_known_args(argv)
    if chosen.config is not None and chosen.resume is not None:
        raise UserError("--resume takes its config from the run directory; leave --config out")

    if chosen.resume is not None:
        config = read_json(Path(chosen.resume) / "config.json")
    else:
        config = read_file(Path(chosen.config)) if chosen.config is not None else Config()
    _check_algo(config.algo)
    if chosen.algo is not None and chosen.algo != config.algo.name:
        other = algos.get(chosen.algo).Config()
        if chosen.resume is not None:
            _check_resume(config, {"algo": chosen.algo})
        config = config.replace(algo=other)

    changes = _changes(config, argv)
    if "total_steps" in changes:  # instead of the config's iterations
        changes.setdefault("iterations", None)
    if chosen.resume is not None:
        _check_resume(config, changes)
    config = _replace(config, changes)
    check(config)
    name = Path(chosen.config).stem if chosen.config else config.env.split(":")[-1]
    return config, name, chosen.resume


def load_launch(argv: Sequence[str]) -> Launch:
    """The options of ``argv`` that say how this process finds the others; `load` checks the
    rest of them."""
    parser, hints = Parser(add_help=False), typing.get_type_hints(Launch)
    _add_options(parser, Launch(), "")
    texts = vars(parser.parse_known_args(argv)[0])
    launch = Launch(**{name: _convert(name, text, hints[name]) for name, text in texts.items()})
    _check_fields(launch, "--")
    return launch


def _changes(config: Config, argv: Sequence[str]) -> dict[str, Any]:
    """What ``argv`` sets, by the names of `flatten`."""
    parser = _parser(config)
    kwargs = {text.split("=")[0] for text in argv if text.startswith("--env_kwargs.")}
    for name in kwargs - {"--env_kwargs.", "--env_kwargs.NAME"}:
        parser.add_argument(name, dest=name.removeprefix("--"), default=argparse.SUPPRESS)
    given, unknown = parser.parse_known_args(argv)
    if unknown:
        raise UserError(_unknown(config, unknown[0]))

    others = ("config", "resume", "algo", *(f.name for f in dataclasses.fields(Launch)))
    texts = {k: v for k, v in vars(given).items() if k not in others}
    own = {k.removeprefix("env_kwargs."): k for k in texts if k.startswith("env_kwargs.")}
    env_kwargs = {name: _parse_literal(texts.pop(key)) for name, key in own.items()}
    hints = typing.get_type_hints(type(config))
    hints |= {f"algo.{k}": v for k, v in typing.get_type_hints(type(config.algo)).items()}
    changes = {name: _convert(name, text, hints[name]) for name, text in texts.items()}
    moved = changes.get("env", config.env) != config.env
    if env_kwargs or (moved and config.env_kwargs):
        changes["env_kwargs"] = ({} if moved else config.env_kwargs) | env_kwargs
    return changes


def _replace(config: Config, changes: dict[str, Any]) -> Config:
    own = {k.removeprefix("algo."): v for k, v in changes.items() if k.startswith("algo.")}
    rest = {k: v for k, v in changes.items() if not k.startswith("algo.")}
    return config.replace(**rest, algo=dataclasses.replace(config.algo, **own))


def _check_resume(config: Config, changes: dict[str, Any]) -> None:
    allowed = [f.name for f in dataclasses.fields(Config) if f.metadata.get("on_resume")]
    if not config.algo.depends_on_budget:  # then a longer run begins exactly like a shorter one
        allowed += ["total_steps", "iterations"]
    current = flatten(config)
    for name, value in changes.items():
        if name not in allowed and current[name] != value:
            budget = name in ("total_steps", "iterations")
            raise UserError(
                f"--{name} cannot change on --resume: the run has {name}={_show(current[name])}"
                + (", on which its schedule depends" if budget else "")
                + f"; what can change: {', '.join(allowed)}"
            )


class Parser(argparse.ArgumentParser):
    """argparse that abbreviates nothing and tells an error in one line."""

    def __init__(self, **kwargs: Any):
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        if missing := re.fullmatch(r"argument (--\S+): expected .*argument", message):
            name = missing[1]
            raise UserError(f"{name} needs a value; write {name}=VALUE")
        raise UserError(_one_line(message.removeprefix("argument ")))


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows options as they are best written, ``--name=VALUE``."""

    def __init__(self, prog: str, **kwargs: Any):
        super().__init__(prog, **{"max_help_position": 32, **kwargs})

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = ", ".join(action.option_strings)
        if action.nargs == 0:
            return names
        return f"{names}[={action.metavar}]" if action.nargs == "?" else f"{names}={action.metavar}"


_GROUPS = {
    "env": "the task",
    "seed": "the run and its scale",
    "devices": "the machine",
    "log_every": "logging, evaluation, checkpoints",
}
"""Groups of --help, by the first field of each."""

_DESCRIPTION = """\
Train agents. A run is a function of its config and its seed, and of nothing else.

  python -m jaxrl_scale.train --config configs/acrobot.py --num_seeds=8
  python -m jaxrl_scale.train --env=Pendulum-v1 --algo.learning_rate=1e-3
  python -m jaxrl_scale.train --resume runs/acrobot-20260131-120000

Each option's default stands in [brackets]: that of the config file where one is given.
"""

_EPILOG = """\
numbers may be written 1e6 or 1_000_000; "none" clears an option whose default is [none]

exit status:
  0   done
  2   a mistake in the call or in the config; nothing was started
  3   no agent's loss is finite any more
  74  input/output error, such as a full disk
  75  stopped by a signal and saved, or another process was lost; --resume continues
"""


def _parser(config: Config) -> Parser:
    parser = Parser(
        prog="python -m jaxrl_scale.train",
        usage="python -m jaxrl_scale.train [--config=FILE | --resume=RUN_DIR] [--OPTION=VALUE ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_HelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="Python file with get_config()")
    parser.add_argument(
        "--resume", metavar="RUN_DIR", help="continue a run from its newest whole checkpoint"
    )
    parser.add_argument(
        "--algo",
        metavar="NAME",
        help=f"algorithm: {', '.join(algos.names())}; another than the config file's has its own "
        f"defaults [{config.algo.name}]",
    )
    _add_options(parser, config, "")
    _add_options(parser.add_argument_group("several processes"), Launch(), "")
    title = f"the algorithm's own ({config.algo.name})"
    _add_options(parser.add_argument_group(title), config.algo, "algo.")
    return parser


def _add_options(parser: Any, config: Any, prefix: str) -> None:
    """The fields of ``config`` as options; those of `Config` in groups."""
    hints, group = typing.get_type_hints(type(config)), parser
    for f in dataclasses.fields(config):
        if f.name == "algo":
            continue
        if isinstance(config, Config) and f.name in _GROUPS:
            group = parser.add_argument_group(_GROUPS[f.name])
        name, hint = prefix + f.name, hints[f.name]
        is_dict = typing.get_origin(hint) is dict
        arguments: dict[str, Any] = {"nargs": "?", "const": "true"} if hint is bool else {}
        group.add_argument(
            f"--{name}.NAME" if is_dict else f"--{name}",
            dest=name,
            default=argparse.SUPPRESS,
            metavar="VALUE" if is_dict else _metavar(hint),
            help=f"{f.metadata['help']} [{_show(getattr(config, f.name))}]".replace("%", "%%"),
            **arguments,
        )


def _show(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "()"
    if isinstance(value, dict):
        return ", ".join(f"{k}={_show(v)}" for k, v in value.items()) or "none"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:_}" if isinstance(value, int) and abs(value) >= 100_000 else str(value)


def _metavar(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "{" + ",".join(typing.get_args(hint)) + "}"
    args = [arg for arg in typing.get_args(hint) if arg not in (type(None), Ellipsis)]
    if typing.get_origin(hint) is tuple:
        return "INT,INT,..."
    hint = args[0] if args else hint
    return {int: "INT", float: "NUMBER", bool: "BOOL"}.get(hint, "TEXT")


def _convert(name: str, text: str, hint: Any) -> Any:
    try:
        return _parse(text, hint)
    except ValueError:
        raise UserError(
            f"--{name}={_one_line(text)} should be {_type_name(hint)}{_nearest_choice(text, hint)}"
        ) from None


def _parse(text: str, hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if text.lower() in ("none", "null"):
            return None
        return _parse(text, next(arg for arg in args if arg is not type(None)))
    if origin is Literal:
        if text not in args:
            raise ValueError
        return text
    if origin is tuple:
        parts = text.strip().removesuffix(",")
        if parts[:1] + parts[-1:] in ("()", "[]"):
            parts = parts[1:-1].strip().removesuffix(",")
            if not parts:
                return ()
        return tuple(_parse(part, args[0]) for part in parts.split(","))
    if hint is bool:
        if text.lower() not in ("true", "false", "1", "0"):
            raise ValueError
        return text.lower() in ("true", "1")
    if hint is int:
        return _parse_whole(text)
    return hint(text)


def _parse_whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)  # 1e6 is a whole number too
    if not number.is_integer():
        raise ValueError
    return int(number)


def _parse_literal(text: str) -> Any:
    """A number, true, false, none, a list in JSON; a text where it is nothing of that."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _unknown(config: Config, text: str) -> str:
    """What is wrong with an argument that the parser does not know."""
    name = text.split("=")[0]
    fields = ["config", "resume", "help", *flatten(config), *vars(Launch())]
    # Compared without what precedes a dot too, so that --learning_rate finds
    # --algo.learning_rate.
    known = {field.split(".")[-1]: field for field in fields} | {field: field for field in fields}
    near = difflib.get_close_matches(name.strip("-").lower(), list(known), 1, 0.6)
    known["env_kwargs"] = "env_kwargs.NAME"
    hint = f"; did you mean --{known[near[0]]}?" if near else "; --help lists the options"
    if text.startswith("-"):
        return f"unknown option {_one_line(name)}{hint}"
    return f"unexpected argument {text!r}: options are written --name=value{hint}"


def nearest(name: str, names: Sequence[str]) -> str:
    """``'; did you mean X?'`` for the nearest of ``names``, or an empty text."""
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), list(by_lower), 1, 0.6)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


# --- files ----------------------------------------------------------------------------------


def read_file(path: Path) -> Config:
    """The config that the file's ``get_config()`` returns."""
    if path.is_dir():
        raise UserError(f"config file {path} is a directory; give one of its Python files")
    if not path.is_file():
        near = nearest(str(path), [str(p) for p in path.parent.glob("*.py")])
        raise UserError(f"config file {path} does not exist{near}")
    try:
        get_config = runpy.run_path(str(path)).get("get_config")
        config = get_config() if callable(get_config) else None
    except UserError as error:
        raise UserError(f"config file {path}: {error}") from None
    except Exception as error:
        raise UserError(f"config file {path}{_mistake(path, error)}") from error
    if not callable(get_config):
        raise UserError(f"config file {path} has no function get_config()")
    if not isinstance(config, Config):
        returned = config.__qualname__ if isinstance(config, type) else type(config).__name__
        raise UserError(
            f"config file {path}: get_config() returned {returned}, it should return a "
            "jaxrl_scale.Config"
        )
    return config


def _mistake(path: Path, error: Exception) -> str:
    """Where in a config file an exception arose, and what it says."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines = [error.lineno]
        text = f"{type(error).__name__}: {error.msg}"
    elif found := re.search(r"unexpected keyword argument '(\w+)'", str(error)):
        text = f"{error}{_nearest_field(found[1])}"
    else:
        text = f"{type(error).__name__}: {error}"
    return (f", line {lines[-1]}: " if lines else ": ") + _one_line(text)


def _nearest_field(name: str) -> str:
    own = [f.name for n in algos.names() for f in dataclasses.fields(algos.get(n).Config)]
    whole = [f.name for f in dataclasses.fields(Config)]
    if name in whole:
        return "; it is a field of jaxrl_scale.Config"
    if name in own:
        return "; it is a field of the algorithm's Config"
    return nearest(name, own + whole)


def to_json(config: Config) -> dict[str, Any]:
    """The resolved config as plain data; `from_json` reads it back."""
    data = dataclasses.asdict(config)
    data["algo"] = {"name": config.algo.name, **data["algo"]}
    return data


def from_json(data: dict[str, Any]) -> Config:
    """The inverse of `to_json`."""
    data = dict(data)
    own = dict(data.pop("algo"))
    algo = algos.get(own.pop("name")).Config(**_tuples(own))
    return Config(**_tuples(data), algo=algo)


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


def read_json(path: Path) -> Config:
    """The config of a run directory, whose ``config.json`` is ``path``."""
    if not path.parent.is_dir():
        siblings = path.parent.parent
        near = [str(p) for p in siblings.iterdir()] if siblings.is_dir() else []
        raise UserError(
            f"run directory {path.parent} does not exist{nearest(str(path.parent), near)}"
        )
    if not path.is_file():
        raise UserError(f"{path.parent} is no run directory: it has no {path.name}")
    try:
        return from_json(json.loads(path.read_text()))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if found := re.search(r"unexpected keyword argument '(\w+)'", str(error)):
            raise UserError(
                f"{path} has a field {found[1]!r} that this version of jaxrl_scale does not know"
            ) from None
        raise UserError(f"{path} is damaged: {_one_line(error)}") from None


def flatten(config: Config) -> dict[str, Any]:
    """Every field by its command-line name."""
    flat: dict[str, Any] = {"algo": config.algo.name}
    for prefix, part in (("", config), ("algo.", config.algo)):
        for f in dataclasses.fields(part):
            if f.name != "algo":
                flat[prefix + f.name] = getattr(part, f.name)
    return flat


__all__ = [
    "Config",
    "Launch",
    "Parser",
    "check",
    "check_minibatches",
    "flatten",
    "from_json",
    "largest_divisor",
    "load",
    "load_launch",
    "make_env",
    "nearest",
    "option",
    "read_file",
    "read_json",
    "to_json",
]
