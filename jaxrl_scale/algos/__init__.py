"""Algorithms by name. Each module has a dataclass ``Config`` and ``make(config, spec, pool)``;
`check_module` says what it should be like."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import typing
from types import ModuleType
from typing import Any

import jax

from jaxrl_scale.errors import RunError, nearest
from jaxrl_scale.options import can_be_option

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
    return _load(name)


@functools.cache
def _load(name: str) -> ModuleType:
    module = importlib.import_module(f"jaxrl_scale.algos.{name}")
    check_module(name, module)
    return module


def check_module(name: str, module: Any) -> None:
    """Raise a TypeError where an algorithm's module lacks what a run needs of it, since most of
    that would show late: where a run is resumed, or asked for its options."""

    def need(holds: object, what: str) -> None:
        if not holds:
            raise TypeError(f"algorithm {name!r}: {what}")

    need(callable(getattr(module, "make", None)), "there should be a make(config, spec, pool)")
    config = getattr(module, "Config", None)
    frozen = dataclasses.is_dataclass(config) and config.__dataclass_params__.frozen  # type: ignore
    need(frozen, "Config should be a frozen dataclass")
    need(getattr(config, "name", None) == name, f"Config.name should be {name!r}")
    for attribute in ("depends_on_budget", "check"):
        need(hasattr(config, attribute), f"Config should have {attribute}")
    hints = typing.get_type_hints(config)
    for f in dataclasses.fields(config):  # type: ignore[arg-type]
        need("help" in f.metadata, f"{f.name} should have an option(default, help) for its default")
        need(
            can_be_option(hints[f.name]),
            f"{f.name} is of type {inspect.formatannotation(hints[f.name])}; it should be bool, "
            "int, float, str, a Literal of texts, tuple[int, ...] or tuple[float, ...], or one of "
            "these | None",
        )
    registered = not jax.tree_util.all_leaves([config()])  # type: ignore[misc]
    need(registered, "Config should be decorated by jaxrl_scale.options.register")
