"""Typed configs: frozen dataclasses, a Python file that fills them, the command line on top.

`load` turns ``argv`` into a checked `Config`; every mistake is a one-line `UserError` raised
before anything is compiled. Sizes are checked in one place, `check`.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import math
import runpy
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from jaxrl_scale import algos, envs
from jaxrl_scale.types import UserError


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

    env: str = option("CartPole-v1", "environment: a name, gymnax:Name or module:Class")
    env_kwargs: dict[str, Any] = option({}, "the environment's own parameters, by name")
    algo: Any = field(default_factory=lambda: algos.get("ppo").Config())
    network: str = option("mlp", "network: mlp, cnn, auto or module:Class (a flax module)")
    hidden_sizes: tuple[int, ...] = option((64, 64), "widths of the hidden layers", low=1)
    activation: Literal["tanh", "relu", "silu", "gelu"] = option("tanh", "between the layers")
    shared_torso: bool = option(False, "one torso for policy and value instead of two")

    seed: int = option(0, "the first member's seed; member k has seed + k", low=0, high=2**31 - 1)
    num_seeds: int = option(1, "agents trained side by side in one program", low=1)
    num_envs: int = option(64, "environments of one agent, over all devices", low=1)
    num_shards: int = option(
        8, "slices of the environments; a power of two; bounds the devices", low=1
    )
    rollout_length: int = option(128, "steps of each environment an iteration", low=1)
    total_steps: int = option(
        1_000_000, "environment steps of one agent, rounded up to whole iterations", low=1
    )
    iterations: int | None = option(None, "iterations, instead of total_steps", low=1)
    target_return: float | None = option(
        None, "mean return of the last 100 episodes that counts as solved", on_resume=True
    )

    devices: int | None = option(
        None, "local devices; default: all GPUs, or one CPU device a core", low=1, on_resume=True
    )
    reduction: Literal["auto", "exact", "pooled"] = option(
        "auto",
        "exact: sums in one fixed order, bit-identical on any number of devices; "
        "pooled: one big batch, equal within rounding; auto: exact on CPUs, pooled on GPUs",
    )
    matmul_precision: Literal["highest", "high", "default"] = option(
        "highest", "jax_default_matmul_precision (highest: float32 throughout)"
    )
    deterministic: bool = option(False, "XLA's deterministic operations on GPUs (slower)")

    log_every: int = option(10, "iterations between rows of metrics", low=1)
    eval_every: int = option(0, "iterations between evaluations; 0: only at the end", low=0)
    eval_episodes: int = option(128, "episodes of an evaluation, for each seed", low=1)
    checkpoint_every: int = option(50, "iterations between checkpoints", low=1)
    keep_checkpoints: int = option(3, "latest checkpoints kept, beside the best", low=1)
    wandb: Literal["auto", "online", "offline", "disabled"] = option(
        "auto", "auto: online with an account, else offline", on_resume=True
    )
    wandb_project: str = option("jaxrl_scale", "wandb project", on_resume=True)
    tensorboard: bool = option(True, "write TensorBoard events", on_resume=True)
    compilation_cache: str = option(
        "~/.cache/jaxrl_scale", "folder of compiled programs; empty: none", on_resume=True
    )
    run_dir: str | None = option(None, "default: runs/<config>-<time>")

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps (valid or not) of one agent in one iteration."""
        return self.num_envs * self.rollout_length

    @property
    def num_iterations(self) -> int:
        return self.iterations or math.ceil(self.total_steps / self.steps_per_iteration)

    @property
    def envs_per_shard(self) -> int:
        return self.num_envs // self.num_shards

    def replace(self, **changes: Any) -> Config:
        return dataclasses.replace(self, **changes)


# --- checks ---------------------------------------------------------------------------------


def check(config: Config) -> None:
    """Raise a `UserError` that names the numbers that do not fit."""
    _check_fields(config, "")
    _check_fields(config.algo, "algo.")
    if config.num_shards & (config.num_shards - 1):
        near = 2 ** round(math.log2(config.num_shards))
        raise UserError(f"num_shards={config.num_shards} is not a power of two; try {near}")
    _check_divides(config.num_envs, "num_envs", config.num_shards, "num_shards")
    if config.devices and config.num_shards % config.devices and config.num_seeds % config.devices:
        raise UserError(
            f"devices={config.devices} divides neither num_shards={config.num_shards} "
            f"nor num_seeds={config.num_seeds}; try devices="
            f"{largest_divisor(config.num_shards, config.devices)}"
        )
    config.algo.check(config)


def _check_divides(total: int, total_name: str, part: int, part_name: str) -> None:
    if total % part:
        near = max(part, round(total / part) * part)
        raise UserError(
            f"{total_name}={total} does not divide by {part_name}={part}; "
            f"try {total_name}={near}"
        )


def check_minibatches(config: Config, minibatch_size: int) -> None:
    """Check that minibatches cut an iteration, and shards cut a minibatch, without remainder."""
    _check_divides(minibatch_size, "algo.minibatch_size", config.num_shards, "num_shards")
    steps = config.steps_per_iteration
    if steps % minibatch_size:
        fitting = [d for d in range(1, steps + 1) if steps % d == 0 and d % config.num_shards == 0]
        near = min(fitting, key=lambda d: abs(d - minibatch_size))
        raise UserError(
            f"algo.minibatch_size={minibatch_size} does not divide an iteration of "
            f"num_envs * rollout_length = {config.num_envs} * {config.rollout_length} = {steps} "
            f"steps; try algo.minibatch_size={near}"
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
            raise UserError(f"{name}={value!r} should be {_type_name(hint)}")
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
        return value in args
    if origin is tuple:
        return isinstance(value, tuple) and all(_has_type(v, args[0]) for v in value)
    if origin is dict:
        return isinstance(value, dict)
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
        return "whole numbers separated by commas"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return "none" if hint is type(None) else names.get(hint, str(hint))


# --- the command line -----------------------------------------------------------------------


def load(argv: Sequence[str]) -> tuple[Config, str, str | None]:
    """``argv`` to ``(config, name, run directory to resume or None)``; ``name`` is the stem
    of the config file, or of the environment where there is none."""
    first = _Parser(add_help=False)
    first.add_argument("--config")
    first.add_argument("--resume")
    first.add_argument("--algo")
    chosen, _ = first.parse_known_args(argv)
    if chosen.config and chosen.resume:
        raise UserError("--resume takes its config from the run directory; leave --config out")

    if chosen.resume:
        config = read_json(Path(chosen.resume) / "config.json")
    else:
        config = read_file(Path(chosen.config)) if chosen.config else Config()
    if chosen.algo:
        config = config.replace(algo=algos.get(chosen.algo).Config())

    parser = _parser(config)
    given, unknown = parser.parse_known_args(argv)
    changes = {k: v for k, v in vars(given).items() if k not in ("config", "resume", "algo")}
    env_kwargs = dict(config.env_kwargs)
    for text in unknown:
        if not text.startswith("--env_kwargs.") or "=" not in text:
            raise UserError(_unknown_option(parser, text))
        key, value = text.removeprefix("--env_kwargs.").split("=", 1)
        changes["env_kwargs"] = env_kwargs = {**env_kwargs, key: _parse_literal(value)}
    if chosen.resume:
        _check_resume(config, changes)
    if changes.get("iterations") is None and "total_steps" in changes:
        changes["iterations"] = None
    config = _replace(config, changes)
    check(config)
    name = Path(chosen.config).stem if chosen.config else config.env.split(":")[-1]
    return config, name, chosen.resume


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
        if name not in allowed and current.get(name) != value:
            raise UserError(
                f"--{name} cannot change on --resume (the run has {current.get(name)!r}); "
                f"these can: {', '.join(allowed)}"
            )


class _Parser(argparse.ArgumentParser):
    """argparse that abbreviates nothing and tells an error in one line."""

    def __init__(self, **kwargs: Any):
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def _parser(config: Config) -> _Parser:
    parser = _Parser(
        prog="python -m jaxrl_scale.train",
        description="Train agents. A run is a function of its config and seed alone.",
        epilog="Defaults are those of the config file that --config names. "
        "Exit status: 0 done, 2 a mistake in the call, 3 the loss is no longer finite, "
        "74 input/output error, 75 stopped by a signal and saved (resume it).",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="Python file with get_config()")
    parser.add_argument("--resume", metavar="RUN_DIR", help="continue a run from its checkpoint")
    parser.add_argument(
        "--algo", metavar="NAME", help=f"algorithm: {', '.join(algos.names())} (its defaults)"
    )
    _add_options(parser, config, "")
    group = parser.add_argument_group(f"the algorithm's own ({config.algo.name})")
    _add_options(group, config.algo, "algo.")
    return parser


def _add_options(parser: Any, config: Any, prefix: str) -> None:
    hints = typing.get_type_hints(type(config))
    for f in dataclasses.fields(config):
        if f.name == "algo":
            continue
        hint, value = hints[f.name], getattr(config, f.name)
        text = f"{f.metadata['help']} [{_show(value)}]"
        if typing.get_origin(hint) is dict:
            parser.add_argument(
                f"--{f.name}.NAME", metavar="VALUE", dest="_", default=argparse.SUPPRESS, help=text
            )
            continue
        bool_flag = {"nargs": "?", "const": True} if hint is bool else {}
        parser.add_argument(
            f"--{prefix}{f.name}",
            dest=prefix + f.name,
            type=_converter(hint, f"--{prefix}{f.name}"),
            default=argparse.SUPPRESS,
            metavar=_metavar(hint),
            help=text.replace("%", "%%"),
            **bool_flag,
        )


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)


def _metavar(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "{" + ",".join(typing.get_args(hint)) + "}"
    args = [arg for arg in typing.get_args(hint) if arg not in (type(None), Ellipsis)]
    if typing.get_origin(hint) is tuple:
        return "INT,INT,..."
    hint = args[0] if args else hint
    return {int: "INT", float: "NUMBER", bool: "BOOL"}.get(hint, "TEXT")


def _converter(hint: Any, name: str) -> Any:
    def convert(text: str) -> Any:
        try:
            return _parse(text, hint)
        except ValueError:
            raise UserError(f"{name}={text} should be {_type_name(hint)}") from None

    return convert


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
        return tuple(_parse(part, args[0]) for part in text.strip("()[] ,").split(","))
    if hint is bool:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    if hint is int:  # 1e6 and 1_000_000 are whole numbers too
        number = float(text)
        if number != int(number):
            raise ValueError
        return int(text) if "e" not in text.lower() and "." not in text else int(number)
    return hint(text)


def _parse_literal(text: str) -> Any:
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except json.JSONDecodeError:
        return text


def _unknown_option(parser: argparse.ArgumentParser, text: str) -> str:
    name = text.split("=")[0]
    names = [n for n in parser._option_string_actions if n.startswith("--")]
    return f"unknown option {name}" + nearest(name, names) + "; --help lists them all"


def nearest(name: str, names: Sequence[str]) -> str:
    """``'; did you mean X?'`` for the nearest of ``names``, or an empty text."""
    # A field's own name is compared too, so that --learning_rate finds --algo.learning_rate.
    short = {n.split(".")[-1].lstrip("-"): n for n in names}
    close = difflib.get_close_matches(name, names, 1, 0.6) or [
        short[n] for n in difflib.get_close_matches(name.lstrip("-"), list(short), 1, 0.6)
    ]
    return f"; did you mean {close[0]}?" if close else ""


# --- files ----------------------------------------------------------------------------------


def read_file(path: Path) -> Config:
    """The config that the file's ``get_config()`` returns."""
    if not path.is_file():
        near = nearest(str(path), [str(p) for p in path.parent.glob("*.py")])
        raise UserError(f"config file {path} does not exist{near}")
    try:
        get_config = runpy.run_path(str(path))["get_config"]
        config = get_config()
    except UserError:
        raise
    except KeyError:
        raise UserError(f"config file {path} has no function get_config()") from None
    except TypeError as error:  # an unknown field, in most cases
        word = str(error).split("'")[1] if "'" in str(error) else ""
        known = [f.name for f in dataclasses.fields(Config)]
        known += [f.name for f in dataclasses.fields(algos.get("ppo").Config)]
        raise UserError(f"config file {path}: {error}{nearest(word, known)}") from None
    except Exception as error:
        raise UserError(f"config file {path}: {type(error).__name__}: {error}") from error
    if not isinstance(config, Config):
        raise UserError(f"get_config() of {path} returned {type(config).__name__}, not a Config")
    return config


def to_json(config: Config) -> dict[str, Any]:
    """The resolved config as plain data; `from_json` reads it back."""
    data = dataclasses.asdict(config)
    data["algo"] = {"name": config.algo.name, **data["algo"]}
    return data


def from_json(data: dict[str, Any]) -> Config:
    data = dict(data)
    own = dict(data.pop("algo"))
    algo = algos.get(own.pop("name")).Config(**_tuples(own))
    return Config(**_tuples(data), algo=algo)


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


def read_json(path: Path) -> Config:
    if not path.is_file():
        raise UserError(f"{path.parent} is no run directory: it has no {path.name}")
    try:
        return from_json(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {error}") from None


def flatten(config: Config) -> dict[str, Any]:
    """Every field by its command-line name."""
    flat: dict[str, Any] = {"algo": config.algo.name}
    for prefix, part in (("", config), ("algo.", config.algo)):
        for f in dataclasses.fields(part):
            if f.name != "algo":
                flat[prefix + f.name] = getattr(part, f.name)
    return flat


__all__ = ["Config", "check", "from_json", "load", "option", "to_json"]
