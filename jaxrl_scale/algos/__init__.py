"""Algorithms by name: those of the package, and one of your own as ``my_package.my_module:Config``.
Each module has a dataclass ``Config`` and ``make(config, spec, pool)``; `check_module` says what it
should be like."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import typing
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax

from jaxrl_scale.errors import RunError, nearest
from jaxrl_scale.options import Sizes, can_be_option
from jaxrl_scale.types import Algorithm, EnvSpec, Pool
from jaxrl_scale.user_code import errors_in_one_line, is_own, load_by_name

_NAMES = ("ppo", "a2c", "impala", "pqn", "dqn", "apex", "sac")


def names() -> tuple[str, ...]:
    """The names of those of the package."""
    return _NAMES


def title(name: str) -> str:
    """What people call an algorithm: ``PPO``, or ``my_package.my_module``."""
    module, _, own = name.partition(":")
    return module if own else name.upper()


def with_option(option: str) -> list[str]:
    """The names of the algorithms of the package that have an option."""
    return [n for n in _NAMES if option in {f.name for f in dataclasses.fields(get(n).Config)}]


def get(name: str) -> ModuleType:
    """The algorithm's module; `RunError` for a name that is none, and where a module of your own
    is none."""
    if name not in _NAMES and not is_own(name):
        raise RunError(
            f"algorithm {name!r} does not exist (there are: {', '.join(_NAMES)}, and your own as "
            f"my_package.my_module:Config){nearest(name, _NAMES)}"
        )
    return _load(name)


def make(config: Sizes, spec: EnvSpec, pool: Pool) -> Algorithm:
    """The algorithm of a config. What fails in one of your own is a `RunError` that names the line
    of your code."""
    name = config.algo.name
    module = get(name)
    if not is_own(name):
        made: Algorithm = module.make(config, spec, pool)
        return made
    what = f"algorithm {name!r}"
    with errors_in_one_line(what):
        made = module.make(config, spec, pool)
        if not isinstance(made, Algorithm):
            raise TypeError(
                f"make returned a {type(made).__name__}, no jaxrl_scale.types.Algorithm"
            )
    return Algorithm(*(_in_one_line(f"{what}: {k}", f) for k, f in made._asdict().items()))


def _in_one_line(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any, **named: Any) -> Any:
        with errors_in_one_line(what):
            return function(*arguments, **named)

    return called


@functools.cache
def _load(name: str) -> ModuleType:
    if not is_own(name):
        module = importlib.import_module(f"jaxrl_scale.algos.{name}")
        check_module(name, module)
        return module
    if not name.endswith(":Config"):
        raise RunError(
            f"algorithm {name!r}: its options should be a class Config beside make(config, spec, "
            f"pool); write it as {name.partition(':')[0]}:Config"
        )
    if name == "__main__:Config":
        raise RunError(
            f"algorithm {name!r} should stand in a file of its own, where the run finds it again"
        )
    wanted = "a frozen dataclass, the options of an algorithm"
    load_by_name("algorithm", name, _is_frozen, wanted)
    module = importlib.import_module(name.removesuffix(":Config"))
    with errors_in_one_line(f"algorithm {name!r}"):
        check_module(name, module)
    return module


def unread(name: str, options: dict[str, Any]) -> Any:
    """In place of the options of an algorithm of one's own, for whoever only looks at a run: the
    module, which a stranger may have named, is not imported."""
    fields = [(k, Any, dataclasses.field(default=x)) for k, x in options.items()]
    return dataclasses.make_dataclass("Config", fields, frozen=True, namespace={"name": name})()


def _is_frozen(config: Any) -> bool:
    """Whether it is the class of a frozen dataclass."""
    is_class = isinstance(config, type) and dataclasses.is_dataclass(config)
    return is_class and config.__dataclass_params__.frozen


def check_module(name: str, module: Any) -> None:
    """Raise a `RunError` where an algorithm's module lacks what a run needs of it, since most of
    that would show late: where a run is resumed, or asked for its options."""

    def need(holds: object, what: str) -> None:
        if not holds:
            raise RunError(f"algorithm {name!r}: {what}")

    need(callable(getattr(module, "make", None)), "there should be a make(config, spec, pool)")
    config = getattr(module, "Config", None)
    need(_is_frozen(config), "Config should be a frozen dataclass")
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
