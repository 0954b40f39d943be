"""Environments by name: `make` builds one, `names` lists those written here.

Three kinds of name are understood:

- a Gymnasium id, e.g. ``CartPole-v1``: written here in JAX, one file each, tested one step
  at a time against Gymnasium itself;
- ``gymnax:<Id>``, e.g. ``gymnax:Breakout-MinAtar``: any registered environment of gymnax;
- ``my_package.my_module:MyEnv``: your own class (or function that builds an environment),
  found on ``sys.path`` or in the current directory.

Keyword arguments go to the environment: ``make("CartPole-v1", length=1.0)``. Modules are
imported only when one of their environments is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from jaxrl_scale.types import Environment, EnvSpec

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


def make(name: str, **kwargs: Any) -> Environment:
    """The environment called ``name``, with ``kwargs`` for its parameters.

    Raises ``ValueError``, in one line, for a name or a parameter that does not exist.
    """
    if name in _BUILT_IN:
        module, _, cls = _BUILT_IN[name].partition(":")
        build = getattr(importlib.import_module(f"{__name__}.{module}"), cls)
        return _built(name, build, kwargs)
    if name.startswith("gymnax:"):
        from jaxrl_scale.envs import gymnax_adapter

        return gymnax_adapter.make(name.removeprefix("gymnax:"), **kwargs)
    if ":" in name:
        env = _built(name, _imported(name), kwargs)
        _check(name, env)
        return env
    raise ValueError(
        f"unknown environment {name!r}. {_nearest(name)}There are {', '.join(names())}, "
        "gymnax:<Id>, and your own as my_package.my_module:MyEnv"
    )


def _nearest(name: str) -> str:
    """``"Did you mean '…'? "`` where some valid name is near, else nothing."""
    if name.endswith(_GYMNAX_FAMILIES):
        return f"Did you mean 'gymnax:{name}'? "
    by_lower = {known.lower(): known for known in names()}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f"Did you mean {by_lower[near[0]]!r}? " if near else ""


def _imported(name: str) -> Callable[..., Any]:
    """What ``module:attribute`` names."""
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:  # a console script does not look where it was started
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it imports is not
        raise ValueError(
            f"environment {name!r}: there is no module {error.name!r} on sys.path or in "
            f"the current directory {os.getcwd()}"
        ) from None
    found = getattr(module, attribute, None)
    if not callable(found):
        near = difflib.get_close_matches(attribute, vars(module), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"environment {name!r}: module {module_name!r} has no class {attribute!r}{hint}"
        )
    return found


def _built(name: str, build: Callable[..., Any], kwargs: dict[str, Any]) -> Environment:
    """``build(**kwargs)``, with an error that names the parameters there are."""
    signature = inspect.signature(build)
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        valid = ", ".join(signature.parameters) or "none"
        raise ValueError(f"environment {name!r}: {error}; its parameters: {valid}") from None
    return build(**kwargs)


def _check(name: str, env: Any) -> None:
    missing = [part for part in ("spec", "reset", "step") if not hasattr(env, part)]
    if missing:
        raise ValueError(
            f"environment {name!r} has no {' and no '.join(missing)}; an environment has "
            "spec, reset(key) and step(key, state, action), see jaxrl_scale.types.Environment"
        )
    if not isinstance(env.spec, EnvSpec):
        raise ValueError(
            f"environment {name!r}: spec is a {type(env.spec).__name__}; it should be a "
            "jaxrl_scale.types.EnvSpec"
        )
