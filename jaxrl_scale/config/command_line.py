"""The command line of training, on which every field of a config is an option."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import types
import typing
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from jaxrl_scale import algos
from jaxrl_scale.commands import Parser
from jaxrl_scale.config import Config, Launch, check, check_algo, check_kind, shipped
from jaxrl_scale.config.files import DICTS, flatten, read_config, read_file
from jaxrl_scale.envs import games
from jaxrl_scale.errors import (
    FINISHED,
    INPUT_OUTPUT_ERROR,
    INTERRUPTED,
    MISTAKE,
    NOT_FINITE,
    STOPPED,
    RunError,
    in_words,
    status_table,
)
from jaxrl_scale.options import check_fields, nearest_choice, shortened, shown, type_name


def load(argv: Sequence[str]) -> tuple[Config, str, str | None]:
    """Read a whole command line.

    Returns:
      The config, the run's name (that of the config file that was given, without ``.py``, or else
      that of the environment), and the run directory to resume, or ``None``.
    """
    chosen = _chosen(argv)
    if chosen.config is not None and chosen.resume is not None:
        raise RunError("--resume takes its config from the run directory; leave --config out")
    if chosen.resume == "":
        raise RunError("--resume= should be the directory of a run; give --resume=RUN_DIR")

    config = starting(argv)
    changes = changes_of(config, argv)
    if "total_steps" in changes:  # it replaces the iterations that the config file gives
        changes.setdefault("iterations", None)
    if chosen.resume is not None:
        check_resume(config, changes)
    config = with_options(config, changes)
    check(config)
    given = _given(chosen)
    name = given.stem if given else config.env.split(":")[-1]
    return config, name, chosen.resume


def starting(argv: Sequence[str]) -> Config:
    """The config whose options a command line changes: that of its file or run, with the algorithm
    that it names."""
    chosen = _chosen(argv)
    given = _given(chosen)
    if chosen.resume is not None:
        config = read_config(Path(chosen.resume) / "config.json")
    elif file := given or shipped_settings(argv):
        config = read_file(file)
    else:
        config = Config()
    check_kind(config)
    check_algo(config.algo)
    if chosen.algo is not None and chosen.algo != config.algo.name:
        other = algos.get(chosen.algo).Config()
        if chosen.resume is not None:
            check_resume(config, {"algo": chosen.algo})
        config = config.replace(algo=other)
    return config


def _given(chosen: argparse.Namespace) -> Path | None:
    """The config file that was given."""
    return Path(chosen.config) if chosen.config not in (None, NO_CONFIG) else None


def _chosen(argv: Sequence[str]) -> argparse.Namespace:
    """The options that decide which config the others change."""
    first = Parser(add_help=False)
    for option_string in ("--config", "--resume", "--algo", "--env"):
        first.add_argument(option_string)
    chosen = first.parse_known_args(argv)[0]
    for name in ("config", "resume"):  # no shell expands a ~ behind --resume=
        if path := getattr(chosen, name):
            setattr(chosen, name, os.path.expanduser(path))
    return chosen


def shipped_settings(argv: Sequence[str]) -> Path | None:
    """The config file of the package that a command line starts from, because it has ``--env`` and
    neither ``--config`` nor ``--resume``. None if it does not, or if the package has no such file.
    """
    chosen = _chosen(argv)
    if chosen.env is None or chosen.config is not None or chosen.resume is not None:
        return None
    return shipped.config_file(chosen.env, chosen.algo or Config().algo.name)


def load_launch(argv: Sequence[str]) -> Launch:
    """The options that say how this process finds the others. All other options are ignored here,
    because `load` checks them."""
    parser, hints = Parser(add_help=False), typing.get_type_hints(Launch)
    _add_options(parser, Launch(), "")
    texts = vars(parser.parse_known_args(argv)[0])
    launch = Launch(**{name: _convert(name, text, hints[name]) for name, text in texts.items()})
    check_fields(launch, "--")
    return launch


def changes_of(config: Config, argv: Sequence[str]) -> dict[str, Any]:
    """The options that ``argv`` sets, by their names in `flatten`. Only their types are checked."""
    parser = _parser(config)
    dashed = tuple(f"--{name}." for name in DICTS)
    kwargs = {text.split("=")[0] for text in argv if text.startswith(dashed)}
    for name in kwargs - {part + end for part in dashed for end in ("", "NAME")}:
        parser.add_argument(name, dest=name.removeprefix("--"), default=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.dry_run:  # `jaxrl_scale.train` takes it out; other commands train all the same
        raise RunError(f"only jaxrl_scale.train has {DRY_RUN}")

    others = ("config", "resume", "algo", "dry_run", *(f.name for f in dataclasses.fields(Launch)))
    texts = {k: v for k, v in vars(given).items() if k not in others}
    given_kwargs: dict[str, dict[str, Any]] = {option: {} for option in DICTS}
    for key in [key for key in texts if key.split(".")[0] in DICTS]:
        option, _, name = key.partition(".")
        given_kwargs[option][name] = _parse_literal(texts.pop(key))
    hints = types_of(config)
    changes = {name: _convert(name, text, hints[name]) for name, text in texts.items()}
    env = changes.get("env", config.env)
    if env != config.env and config.target_return is not None:  # that of another task
        changes.setdefault("target_return", None)
    moved = env != config.env and not games.same_suite(env, config.env)
    for option, given_here in given_kwargs.items():
        before = getattr(config, option)
        if given_here or (moved and before):
            changes[option] = ({} if moved else before) | given_here
    return changes


def types_of(config: Config) -> dict[str, Any]:
    """The types of a config's options, those of its algorithm by ``algo.NAME``."""
    of_algo = typing.get_type_hints(type(config.algo)).items()
    return typing.get_type_hints(type(config)) | {f"algo.{k}": hint for k, hint in of_algo}


def kwargs_given(argv: Sequence[str], option: str) -> tuple[list[str], dict[str, Any]]:
    """The arguments without those of an option that is a dict, ``--OPTION.NAME=VALUE``, and the
    dict that they give."""
    rest, given, texts = list[str](), dict[str, Any](), iter(argv)
    for text in texts:
        name, equals, value = text.partition("=")
        if name.startswith(f"--{option}."):
            value = value if equals else next(texts, "--")
            if value.startswith("--"):
                raise RunError(f"{name} needs a value; write {name}=VALUE")
            given[name.removeprefix(f"--{option}.")] = _parse_literal(value)
        else:
            rest.append(text)
    return rest, given


def with_options(config: Config, changes: dict[str, Any]) -> Config:
    """The config with other values of some options, by their names in `flatten`; not checked."""
    options = {k.removeprefix("algo."): v for k, v in changes.items() if k.startswith("algo.")}
    rest = {k: v for k, v in changes.items() if not k.startswith("algo.")}
    return config.replace(**rest, algo=dataclasses.replace(config.algo, **options))


CHANGEABLE = tuple(f.name for f in dataclasses.fields(Config) if f.metadata.get("on_resume"))
"""The options that a run's result does not depend on, so that a run may go on with others."""


def changeable(arguments: Sequence[str]) -> list[str]:
    """Those arguments of a command that give an option of `CHANGEABLE`, with their values."""
    kept: list[str] = []
    for k, text in enumerate(arguments):
        name, equals, _ = text.partition("=")
        if name.removeprefix("--") in CHANGEABLE and text.startswith("--"):
            kept.append(text)
            kept += [] if equals else [x for x in arguments[k + 1 : k + 2] if x[:2] != "--"]
    return kept


def check_resume(config: Config, changes: dict[str, Any], dashes: str = "--") -> None:
    """Raise a `RunError` for a change of a run's config on which its result depends.

    Args:
      config: that of the run.
      changes: options by the names of `flatten`, and their values.
      dashes: what precedes an option's name in the message.
    """
    allowed = [*CHANGEABLE]
    if not config.algo.depends_on_budget:  # a longer run then begins exactly like a shorter one
        allowed += ["total_steps", "iterations"]
    current = flatten(config)
    for name, value in changes.items():
        if name not in allowed and current[name] != value:
            schedule = ""
            if name in ("total_steps", "iterations"):
                constant = without_schedule(config.algo).items()
                started = [f"{dashes}algo.{k}={written(x)}" for k, x in constant]
                schedule = ", on which its schedule depends"
                if started:
                    schedule += f" unless the run is started with {in_words(started)}"
            raise RunError(
                f"{dashes}{name} cannot change on {dashes}resume: "
                f"the run has {name}={written(current[name])}{schedule}; "
                f"what can change: {', '.join(allowed)}"
            )


def without_schedule(algo: Any) -> dict[str, Any]:
    """The options that an algorithm should have, in place of its own, so that a longer run begins
    exactly like a shorter one."""
    constant = {
        "lr_schedule": "constant",
        "epsilon_start": getattr(algo, "epsilon_end", None),
    }
    return {k: x for k, x in constant.items() if hasattr(algo, k) and getattr(algo, k) != x}


DRY_RUN = "--dry_run"
NO_CONFIG = "none"
"""The value of --config with which the options have their defaults."""

_GROUPS = {
    "env": "the task",
    "seed": "the run and its scale",
    "devices": "the machine",
    "log_every": "logging, evaluation, checkpoints",
}
"""Groups of --help, by the first field of each."""

_DESCRIPTION = """\
Train agents. The result depends on the config and its seed (and on the policy of --init_from).

  python -m jaxrl_scale.train --config configs/acrobot.py --num_seeds=8
  python -m jaxrl_scale.train --env=Pendulum-v1 --total_steps=1e6
  python -m jaxrl_scale.train --resume runs/acrobot-20260131-120000

Defaults are shown in [brackets]. If --config or --resume is given, they are those of its config.
With neither, --env starts from the settings that come with the package for this environment and
algorithm, if there are any, and says from which file they are.
"""

_EPILOG = (
    'Numbers may be written as 1e6 or 1_000_000. "none" clears an option that may be none.\n'
    "\n" + status_table(FINISHED, MISTAKE, NOT_FINITE, INPUT_OUTPUT_ERROR, STOPPED, INTERRUPTED)
)


def _parser(config: Config) -> Parser:
    parser = Parser(
        prog="python -m jaxrl_scale.train",
        usage="python -m jaxrl_scale.train [--config=FILE | --resume=RUN_DIR] [--OPTION=VALUE ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        explain=partial(_of_other_algorithms, config.algo.name),
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="Python file that defines get_config(); none: the defaults of all options, with "
        "--env too",
    )
    parser.add_argument(
        "--resume", metavar="RUN_DIR", help="continue a run from its newest undamaged checkpoint"
    )
    parser.add_argument(
        "--algo",
        metavar="NAME",
        help=f"algorithm: {', '.join(algos.names())}, or one of your own as my_module:Config; if "
        "it differs from the config file's, its options have their own defaults "
        f"[{config.algo.name}]",
    )
    parser.add_argument(
        DRY_RUN,
        action="store_true",
        help="only check the config and print it, as a Python file that --config takes",
    )
    _add_options(parser, config, "")
    _add_options(parser.add_argument_group("several processes"), Launch(), "")
    title = f"options of the algorithm, {config.algo.name}"
    _add_options(parser.add_argument_group(title), config.algo, "algo.")
    return parser


def _of_other_algorithms(algo: str, name: str) -> str | None:
    """What is said of an option that this algorithm does not have and others do."""
    others = algos.with_option(name.removeprefix("--algo.")) if name.startswith("--algo.") else ()
    return f"{name} belongs to {in_words(others)}; the algorithm is {algo}" if others else None


def _add_options(parser: Any, config: Any, prefix: str) -> None:
    """Add an option for each field of ``config``. Those of `Config` are put into groups."""
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
            help=f"{f.metadata['help']} [{written(getattr(config, f.name))}]".replace("%", "%%"),
            **arguments,
        )


def written(value: Any) -> str:
    """A value in the way that it is written on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "()"
    if isinstance(value, dict):
        return ", ".join(f"{k}={written(v)}" for k, v in value.items()) or "none"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 100_000:
        return shown(value) if abs(value) > 2**63 else f"{value:_}"
    return str(value)


def _metavar(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "{" + ",".join(typing.get_args(hint)) + "}"
    if typing.get_origin(hint) is tuple:
        return "INT,INT,..."
    if args := [arg for arg in typing.get_args(hint) if arg is not type(None)]:
        return _metavar(args[0])
    return {int: "INT", float: "NUMBER", bool: "BOOL"}.get(hint, "TEXT")


def _convert(name: str, text: str, hint: Any) -> Any:
    try:
        return _parse(text, hint)
    except ValueError:
        raise RunError(
            f"--{name}={shortened(text)} should be {type_name(hint)}{nearest_choice(text, hint)}"
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
    """A number, true, false, none or a JSON list; a text if it is none of these."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for read in (int, json.loads):  # JSON does not know 1_000
        with suppress(ValueError, RecursionError):
            return read(text)
    return text
