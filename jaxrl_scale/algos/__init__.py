"""Algorithms by name. Each module has a dataclass ``Config`` and ``make(config, spec, pool)``."""

from __future__ import annotations

import dataclasses
import importlib
from types import ModuleType

from jaxrl_scale.errors import RunError, nearest

_NAMES = ("ppo", "a2c", "impala", "pqn", "dqn", "apex", "sac")


def names() -> tuple[str, ...]:
    """The names that `get` knows."""
    return _NAMES


def with_option(option: str) -> list[str]:
    """The names of the algorithms that have an option."""
    return [n for n in _NAMES if option in {f.name for f in dataclasses.fields(get(n).Config)}]


def get(name: str) -> ModuleType:
    """The algorithm's module; `RunError` for a name that is none."""
    if name not in _NAMES:
        raise RunError(
            f"algorithm {name!r} does not exist (there are: {', '.join(_NAMES)})"
            f"{nearest(name, _NAMES)}"
        )
    return importlib.import_module(f"jaxrl_scale.algos.{name}")
