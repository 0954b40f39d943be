"""The fields of a config: how one is described, and the checks of its type, bounds and sizes. And
the checks of what a function is given in Python.

An algorithm's config is a frozen dataclass that `register` makes a pytree: its floats are the
leaves, everything else is static. `traced` turns the floats into arrays, which is what the
compiled program sees: agents that differ in them alone share one program.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
import typing
from dataclasses import field
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.errors import RunError, nearest, one_line

T = TypeVar("T")

INT32_MAX = 2**31 - 1
"""JAX counts and indexes in int32."""

_LARGEST = {int: 2**63 - 1, float: 3e38}
"""Bounds of numbers that have no other: of whole ones, so that messages about products of sizes
stay readable; of others, because programs compute with them in float32."""


class Sizes(Protocol):
    """What an algorithm reads of a run's config: its own options, sizes, and the network."""

    @property
    def algo(self) -> Any: ...
    @property
    def network(self) -> str: ...
    @property
    def network_width(self) -> int: ...
    @property
    def hidden_sizes(self) -> tuple[int, ...] | None: ...
    @property
    def activation(self) -> str | None: ...
    @property
    def shared_torso(self) -> bool: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def num_shards(self) -> int: ...
    @property
    def rollout_length(self) -> int: ...
    @property
    def steps_per_iteration(self) -> int: ...
    @property
    def envs_per_shard(self) -> int: ...
    @property
    def reduction(self) -> str: ...
    @property
    def portable(self) -> bool: ...


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    on_resume: bool = False,
) -> Any:
    """A dataclass field that the command line can set.

    ``low`` and ``high`` are inclusive bounds, ``above`` is a bound that the value itself may not
    have; ``on_resume`` says that a resumed run may be given another value, because the result
    does not depend on it.
    """
    metadata = {"help": help, "low": low, "high": high, "above": above, "on_resume": on_resume}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def register(config: type[T]) -> type[T]:
    """Make a frozen dataclass a pytree: its floats (and floats that may be None) are the leaves."""
    hints = typing.get_type_hints(config)
    names = [f.name for f in dataclasses.fields(config)]  # type: ignore[arg-type]
    leaves = [name for name in names if hints[name] in (float, float | None)]
    static = [name for name in names if name not in leaves]
    return jax.tree_util.register_dataclass(config, leaves, static)


def traced(options: T) -> T:
    """The same options with a float32 array for each number. None stays None: what is switched
    off is switched off for all agents of a program."""
    return jax.tree.map(jnp.float32, options)


def with_pythons_numbers(value: Any) -> Any:
    """The same value with Python's numbers where it, what it holds or its fields are NumPy's."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: with_pythons_numbers(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(with_pythons_numbers, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        numpys = {name: x for name, x in fields.items() if isinstance(x, np.generic)}
        return dataclasses.replace(value, **with_pythons_numbers(numpys)) if numpys else value
    return value


def check_divides(total: int, total_name: str, part: int, part_name: str) -> None:
    """Raise a `RunError` that names the nearest number which divides."""
    if total % part:
        near = max(part, (total + part // 2) // part * part)
        raise RunError(
            f"{total_name}={total} does not divide by {part_name}={part}; try {total_name}={near}"
        )


def check_minibatches(config: Sizes, minibatch_size: int) -> None:
    """Check that minibatches cut an iteration, and shards cut a minibatch, without remainder."""
    check_divides(minibatch_size, "algo.minibatch_size", config.num_shards, "num_shards")
    steps = config.steps_per_iteration
    if steps % minibatch_size:
        of_a_shard = steps // config.num_shards
        small = [d for d in range(1, math.isqrt(of_a_shard) + 1) if of_a_shard % d == 0]
        fitting = [d * config.num_shards for s in small for d in (s, of_a_shard // s)]
        near = min(fitting, key=lambda d: abs(d - minibatch_size))
        raise RunError(
            f"algo.minibatch_size={minibatch_size} does not divide an iteration of "
            f"num_envs * rollout_length = {config.num_envs} * {config.rollout_length} = {steps} "
            f"steps; try algo.minibatch_size={near}"
        )


def check_trajectories(config: Sizes, minibatch_size: int) -> None:
    """Check that minibatches are of whole trajectories, equally many of every shard."""
    unit = config.num_shards * config.rollout_length
    number = config.envs_per_shard
    fitting = [unit * d for d in range(1, number + 1) if number % d == 0]
    if minibatch_size not in fitting:
        near = min(fitting, key=lambda size: abs(size - minibatch_size))
        raise RunError(
            f"algo.minibatch_size={minibatch_size} does not cut an iteration into whole "
            f"trajectories of rollout_length={config.rollout_length}, equally many of each of "
            f"num_shards={config.num_shards}; try algo.minibatch_size={near}"
        )


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of ``number`` that is not above ``limit``."""
    return next(d for d in range(min(number, limit), 0, -1) if number % d == 0)


def check_fields(config: Any, prefix: str) -> None:
    """Check every field's type and bounds; ``prefix`` is what its name begins with."""
    hints = typing.get_type_hints(type(config))
    for f in dataclasses.fields(config):
        if f.name == "algo":
            continue
        value, hint, name = getattr(config, f.name), hints[f.name], prefix + f.name
        said = f"{name}={shown(value)} should"
        if not has_type(value, hint):
            raise RunError(f"{said} be {type_name(hint)}{nearest_choice(value, hint)}")
        if isinstance(value, dict) and not _is_plain(value):
            raise RunError(f"{said} hold finite numbers, texts and lists, because it becomes JSON")
        low, high, above = (f.metadata.get(bound) for bound in ("low", "high", "above"))
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            if isinstance(number, float) and not math.isfinite(number):
                raise RunError(f"{said} be a finite number")
            if low is not None and number < low:
                raise RunError(f"{said} be at least {low}")
            if above is not None and number <= above:
                raise RunError(f"{said} be above {above}")
            largest = _LARGEST[int if isinstance(number, int) else float] if high is None else high
            if number > largest:
                raise RunError(f"{said} be at most {largest}")


def shortened(text: str) -> str:
    """A text in one line for an error message, cut after 60 characters."""
    text = one_line(text)
    return text if len(text) <= 60 else text[:59] + "…"


def shown(value: Any) -> str:
    """A value as Python writes it, `shortened`."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        large = f"a {type(value).__name__} that holds a number of more than 4,300 digits"
        text = hex(value) if isinstance(value, int) else large
    return shortened(text)


def given_path(name: str, value: Any) -> Path:
    """The path that a function was given as ``name``. It may begin with ``~``."""
    if not isinstance(value, str | os.PathLike) or not can_be_path(str(value)):
        raise RunError(f"{name}={shown(value)} should be a path")
    return Path(os.path.expanduser(value))


def can_be_path(text: str) -> bool:
    """Whether a file can have the name: it has no zero, and no half of a character. What Python
    makes of a name that is no UTF-8 has halves that stand for its bytes."""
    try:
        return b"\0" not in text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False


def given_number(name: str, value: Any, least: int = 1) -> int:
    """The whole number that a function was given as ``name``."""
    is_whole, most = isinstance(value, Integral) and not isinstance(value, bool), INT32_MAX
    if not is_whole or not least <= value <= most:
        bound = f"most {most}" if is_whole and value > least else f"least {least}"
        raise RunError(f"{name}={shown(value)} should be a whole number of at {bound}")
    return int(value)


def given_bool(name: str, value: Any) -> bool:
    """The bool that a function was given as ``name``."""
    if not isinstance(value, bool | np.bool_):
        raise RunError(f"{name}={shown(value)} should be True or False")
    return bool(value)


def has_type(value: Any, hint: Any) -> bool:
    """Whether a value is of a field's type, or of that of a TypedDict, which data from a JSON file
    should be: there a tuple of so many values is a list, and what is not there counts as None."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if typing.is_typeddict(hint):
        hints = typing.get_type_hints(hint)
        return isinstance(value, dict) and all(has_type(value.get(k), hints[k]) for k in hints)
    if origin in (types.UnionType, typing.Union):
        return any(has_type(value, arg) for arg in args)
    if origin is Literal:
        return isinstance(value, str) and value in args
    if origin is list or args[1:] == (...,):
        return isinstance(value, origin) and all(has_type(x, args[0]) for x in value)
    if origin is tuple:
        fits = isinstance(value, list) and len(value) == len(args)
        return fits and all(map(has_type, value, args))
    if origin is dict:
        texts = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        return texts and all(has_type(x, args[1]) for x in value.values())
    if hint is float:  # a whole number is a number, a bool is none
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return hint is Any or isinstance(value, hint)


def can_be_option(hint: Any) -> bool:
    """Whether an algorithm's option can be of a type: one that the command line can read and
    ``config.json`` can hold."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        kept = [arg for arg in args if arg is not type(None)]
        return len(kept) == 1 and can_be_option(kept[0])
    if origin is Literal:
        return all(isinstance(arg, str) for arg in args)
    if origin is tuple:
        return args[1:] == (...,) and args[0] in (int, float)
    return hint in (bool, int, float, str)


def type_name(hint: Any) -> str:
    """A field's type, for people."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_name(arg) for arg in args)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin is tuple:
        numbers = "numbers" if float in args else "whole numbers"
        return f"{numbers} separated by commas, in Python a tuple or a list"
    if origin is dict:
        return "a dict with texts for keys"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return "none" if hint is type(None) else names.get(hint, str(hint))


def nearest_choice(value: Any, hint: Any) -> str:
    """What `nearest` says where ``hint`` has choices."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return "".join(nearest_choice(value, arg) for arg in typing.get_args(hint))
    if typing.get_origin(hint) is Literal and isinstance(value, str):
        return nearest(value, typing.get_args(hint))
    return ""


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
