"""Environments: `make` builds one by its name, `names` lists those written here, `check_env` checks
one of your own, and `play` steps through it as plain Python.

There are these kinds of names:

- a Gymnasium id, such as ``CartPole-v1``: an environment that is written here in JAX, and tested
  step by step against Gymnasium (LunarLander's until the first contact);
- a game of Procgen or Atari, such as ``CoinrunEasy-v0`` or ``Pong-v5``: real ones, by EnvPool;
- ``envpool:<Id>``, such as ``envpool:CartPole-v1``: another environment of EnvPool that observes
  one array and takes one action;
- ``gymnasium:<Id>``, such as ``gymnasium:CartPole-v1``: an environment of Gymnasium whose spaces
  `jaxrl_scale.types.EnvSpec` can describe;
- ``gymnax:<Id>``, such as ``gymnax:Breakout-MinAtar``: an environment that gymnax has registered;
- ``brax:<name>``, ``playground:<Name>``, ``craftax:<Id>`` and ``jumanji:<Id>``, such as
  ``brax:ant``: environments of Brax, MuJoCo Playground, Craftax and Jumanji;
- ``my_package.my_module:MyEnv``: a class of your own, on ``sys.path`` or in the current directory.
  A function that builds an environment will do if its return annotation is an environment class.

Those of EnvPool and Gymnasium run on the host (`on_host`), the others on the devices.

Keyword arguments go to the environment: ``make("CartPole-v1", length=1.0)``. A module is imported
only when one of its environments is asked for.
"""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Callable
from contextlib import chdir, suppress
from typing import Any

from jaxrl_scale.envs import games
from jaxrl_scale.envs.check import check_env as check_env
from jaxrl_scale.envs.check import check_spec
from jaxrl_scale.envs.check import on_host as on_host
from jaxrl_scale.envs.debug import play as play
from jaxrl_scale.errors import RunError, closest, one_line
from jaxrl_scale.options import has_type, shown, type_name
from jaxrl_scale.user_code import errors_in_one_line, is_own, load_by_name

_BUILT_IN = {
    "CartPole-v1": "cartpole:CartPole",
    "Acrobot-v1": "acrobot:Acrobot",
    "MountainCar-v0": "mountain_car:MountainCar",
    "MountainCarContinuous-v0": "mountain_car:MountainCarContinuous",
    "Pendulum-v1": "pendulum:Pendulum",
    "LunarLander-v3": "lunar_lander:LunarLander",
    "LunarLanderContinuous-v3": "lunar_lander:LunarLanderContinuous",
}
_LIBRARIES = {
    "gymnax": "gymnax_adapter:make",
    "brax": "brax_adapter:make_brax",
    "playground": "brax_adapter:make_playground",
    "craftax": "craftax_adapter:make",
    "jumanji": "jumanji_adapter:make",
}
"""Of environments in JAX, by what their names begin with."""
_NAMES = {"brax": "brax_adapter:BRAX", "craftax": "craftax_adapter:NAMES"}
"""Where the names of a library's environments stand that are known without the library."""
_GYMNAX_FAMILIES = ("-MinAtar", "-bsuite", "-misc")


def names() -> tuple[str, ...]:
    """The ids of the environments written here."""
    return tuple(_BUILT_IN)


def make(name: str, /, **kwargs: Any) -> Any:
    """The environment called ``name``, with ``kwargs`` for its parameters: an `Environment`, or a
    `HostEnvironment` where `on_host` says so.

    An environment from outside the package is checked by `check_env`.

    Raises:
      RunError: if there is no such environment or parameter, if a value does not fit, or if the
        environment does not keep the contract.
    """
    if name in _BUILT_IN:
        build = _imported(_BUILT_IN[name])
        _check_parameters(name, build, kwargs)
        kwargs = _checked(build, kwargs)
        try:
            env = build(**kwargs)
        except ValueError as error:
            raise RunError(one_line(error)) from error
        check_spec(f"environment {name!r}", env.spec)  # its parameters may leave no action
        return env
    with chdir("."):  # back to here: a path of the run's that is relative means this folder
        env, own = _make_other(name, kwargs)
        check_env(env, name, repeats=own)
    return env


def _imported(place: str) -> Any:
    """What ``module:name`` means in this package."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def _make_other(name: str, kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """An environment from outside the package, and whether it is the user's own."""
    library, colon, there = name.partition(":")
    if colon and library in _LIBRARIES:
        return _imported(_LIBRARIES[library])(there, **kwargs), False
    if name.startswith("gymnasium:"):
        from jaxrl_scale.envs import gymnasium_adapter

        env = gymnasium_adapter.make(name.removeprefix("gymnasium:"), **kwargs)
        return env, env.is_own
    if name.startswith("envpool:") or name in (*games.PROCGEN, *games.ATARI):
        from jaxrl_scale.envs import envpool_adapter

        return envpool_adapter.make(name.removeprefix("envpool:"), **kwargs), False
    if is_own(name) and not name.startswith("procgen:"):
        build = load_by_name("environment", name, _builds_environment, _WANTED)
        _check_parameters(name, build, kwargs)
        _check_numbers(build, kwargs)
        with errors_in_one_line(f"environment {name!r}"):
            return build(**kwargs), True
    raise RunError(
        f"unknown environment {name!r}. {_nearest(name)}There are {', '.join(names())}, the "
        "games of Procgen (CoinrunEasy-v0) and Atari (Pong-v5), envpool:<Id>, gymnasium:<Id>, "
        "gymnax:<Id>, brax:<name>, playground:<Name>, craftax:<Id>, jumanji:<Id>, and your own "
        "as my_package.my_module:MyEnv"
    )


def _nearest(name: str) -> str:
    """``"Gymnasium has it: … "`` where Gymnasium calls an environment so, and ``"Did you mean '…'?
    "`` where it is a game's name elsewhere or, if Gymnasium has none, some valid name is near."""
    if name.endswith(_GYMNAX_FAMILIES):
        return f"Did you mean 'gymnax:{name}'? "
    for library, names_there in _NAMES.items():
        if name in _imported(names_there):
            return f"Did you mean '{library}:{name}'? "
    of_another_version = {_without_version(known): known for known in names()}
    if known := of_another_version.get(_without_version(name)):
        return f"Did you mean {known!r}? "
    import gymnasium  # the name is wrong anyhow, so there is time

    there = name in gymnasium.registry
    near = games.known_elsewhere(name)
    if near is None and not there:
        near = closest(name, (*names(), *games.PROCGEN, *games.ATARI))
        if near is None and (of_gymnasium := closest(name, list(gymnasium.registry))):
            near = f"gymnasium:{of_gymnasium}"
    has_it = f"Gymnasium has it: --env=gymnasium:{name}. " if there else ""
    return has_it + (f"Did you mean {near!r}? " if near else "")


def _without_version(name: str) -> str:
    return re.sub(r"-v\d+$", "", name)


_WANTED = (
    "a class with the methods reset(key) and step(key, state, action), or with simulate(seeds, "
    "num_threads), or a function whose return annotation is such a class"
)


def _builds_environment(found: Any) -> bool:
    """Whether it is an environment class, or a function that is annotated to return one."""
    if inspect.isfunction(found):
        try:
            found = typing.get_type_hints(found).get("return")
        except Exception:  # whatever the evaluation of an annotation raises
            return False
    has = {name for name in ("reset", "step", "simulate") if callable(getattr(found, name, None))}
    return isinstance(found, type) and ({"reset", "step"} <= has or "simulate" in has)


def _check_parameters(name: str, build: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Check the parameters' names."""
    signature = inspect.signature(build)
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        valid = ", ".join(signature.parameters) or "none"
        raise RunError(f"environment {name!r}: {error}; its parameters: {valid}") from None


def _check_numbers(build: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Refuse texts where a class of one's own is annotated to take a number or a bool: what the
    command line cannot read as one, such as ``no``, is a text, and a text is true."""
    hints: dict[str, Any] = {}
    with suppress(Exception):  # whatever the evaluation of an annotation raises
        hints = typing.get_type_hints(build.__init__ if isinstance(build, type) else build)  # type: ignore[misc]
    for name, value in kwargs.items():
        if isinstance(value, str) and (hint := hints.get(name)) in (bool, int, float):
            raise RunError(f"env_kwargs.{name}={shown(value)} should be {type_name(hint)}")


def _checked(build: type, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The parameters' values, checked against the annotations of an environment written here."""
    hints, checked = typing.get_type_hints(build), {}
    for name, value in kwargs.items():
        if isinstance(value, list) and has_type(tuple(value), hints[name]):
            value = tuple(value)  # which a command line and JSON do not have
        if not has_type(value, hints[name]):
            raise RunError(f"env_kwargs.{name}={shown(value)} should be {type_name(hints[name])}")
        checked[name] = value
    return checked
