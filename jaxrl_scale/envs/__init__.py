"""Environments: `make` builds one by its name, `names` lists those written here, and `check_env`
checks one of your own.

There are three kinds of names:

- a Gymnasium id, such as ``CartPole-v1``: an environment that is written here in JAX, in a file of
  its own, and tested step by step against Gymnasium;
- ``gymnax:<Id>``, such as ``gymnax:Breakout-MinAtar``: any registered environment of gymnax;
- ``my_package.my_module:MyEnv``: a class of your own, on ``sys.path`` or in the current directory.
  A function that builds an environment will do if its return annotation is an environment class.

Keyword arguments go to the environment: ``make("CartPole-v1", length=1.0)``. A module is imported
only when one of its environments is asked for.
"""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Callable
from typing import Any

from jaxrl_scale.envs.check import check_env as check_env
from jaxrl_scale.errors import RunError, closest, one_line
from jaxrl_scale.options import has_type, type_name
from jaxrl_scale.types import Environment
from jaxrl_scale.user_code import errors_in_one_line, load_by_name

_BUILT_IN = {
    "CartPole-v1": "cartpole:CartPole",
    "Acrobot-v1": "acrobot:Acrobot",
    "MountainCar-v0": "mountain_car:MountainCar",
    "MountainCarContinuous-v0": "mountain_car:MountainCarContinuous",
    "Pendulum-v1": "pendulum:Pendulum",
    "LunarLander-v3": "lunar_lander:LunarLander",
    "LunarLanderContinuous-v3": "lunar_lander:LunarLanderContinuous",
}
_GYMNAX_FAMILIES = ("-MinAtar", "-bsuite", "-misc")


def names() -> tuple[str, ...]:
    """The ids of the environments written here."""
    return tuple(_BUILT_IN)


def make(name: str, /, **kwargs: Any) -> Environment:
    """The environment called ``name``, with ``kwargs`` for its parameters.

    An environment from outside the package is checked by `check_env`.

    Raises:
      RunError: if there is no such environment or parameter, if a value does not fit, or if the
        environment does not keep the contract.
    """
    if name in _BUILT_IN:
        module, _, cls = _BUILT_IN[name].partition(":")
        build = getattr(importlib.import_module(f"{__name__}.{module}"), cls)
        _check_parameters(name, build, kwargs)
        _check_types(build, kwargs)
        try:
            return build(**kwargs)
        except ValueError as error:
            raise RunError(one_line(error)) from error
    if name.startswith("gymnax:"):
        from jaxrl_scale.envs import gymnax_adapter

        env: Any = gymnax_adapter.make(name.removeprefix("gymnax:"), **kwargs)
    elif ":" in name:
        build = load_by_name("environment", name, _builds_environment, _WANTED)
        _check_parameters(name, build, kwargs)
        with errors_in_one_line(f"environment {name!r}"):
            env = build(**kwargs)
    else:
        raise RunError(
            f"unknown environment {name!r}. {_nearest(name)}There are {', '.join(names())}, "
            "gymnax:<Id>, and your own as my_package.my_module:MyEnv"
        )
    check_env(env, name)
    return env


def _nearest(name: str) -> str:
    """``"Did you mean '…'? "`` where some valid name is near, else nothing."""
    if name.endswith(_GYMNAX_FAMILIES):
        return f"Did you mean 'gymnax:{name}'? "
    near = closest(name, names(), cutoff=0.5)
    return f"Did you mean {near!r}? " if near else ""


_WANTED = (
    "a class with the methods reset(key) and step(key, state, action), or a function whose "
    "return annotation is such a class"
)


def _builds_environment(found: Any) -> bool:
    """Whether it is an environment class, or a function that is annotated to return one."""
    if inspect.isfunction(found):
        try:
            found = typing.get_type_hints(found).get("return")
        except NameError:
            return False
    return isinstance(found, type) and all(
        callable(getattr(found, method, None)) for method in ("reset", "step")
    )


def _check_parameters(name: str, build: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Check the parameters' names."""
    signature = inspect.signature(build)
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        valid = ", ".join(signature.parameters) or "none"
        raise RunError(f"environment {name!r}: {error}; its parameters: {valid}") from None


def _check_types(build: type, kwargs: dict[str, Any]) -> None:
    """Check the parameters' values against the annotations of an environment written here."""
    hints = typing.get_type_hints(build)
    for name, value in kwargs.items():
        if not has_type(value, hints[name]):
            raise RunError(f"env_kwargs.{name}={value!r} should be {type_name(hints[name])}")
