"""Algorithms by name. Each module has a dataclass ``Config`` and ``make(config, spec, pool)``."""

from __future__ import annotations

import importlib
from types import ModuleType

from jaxrl_scale.errors import RunError, nearest

_NAMES = ("ppo", "a2c", "impala", "pqn", "dqn", "apex", "sac")


def names() -> tuple[str, ...]:
    """The names that `get` knows."""
    return _NAMES


def get(name: str) -> ModuleType:
    """The algorithm's module; `RunError` for a name that is none."""
    if name not in _NAMES:
        raise RunError(
            f"algorithm {name!r} does not exist (there are: {', '.join(_NAMES)})"
            f"{nearest(name, _NAMES)}"
        )
    return importlib.import_module(f"jaxrl_scale.algos.{name}")
