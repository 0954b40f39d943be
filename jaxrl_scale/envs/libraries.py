"""What the adapters of other libraries' environments share."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_scale.errors import RunError, nearest
from jaxrl_scale.options import has_type, type_name
from jaxrl_scale.types import Array, PyTree, is_key
from jaxrl_scale.user_code import errors_in_one_line


def how_to_install(extra: str) -> str:
    """The command that does, in words."""
    return f"make install EXTRA={extra} (or pip install 'jaxrl_scale[{extra}]')"


def imported(library: str, extra: str, module: str, what: str) -> Any:
    """A module of the library that an extra brings, or a `RunError` that says how to install it.

    Args:
      what: the environment that is asked for, which begins the message.
    """
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise RunError(f"{what}: {library} is not installed: {how_to_install(extra)}")
    with errors_in_one_line(f"{what}: {library} cannot be loaded"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what it imports in its turn
        return importlib.import_module(module)


@contextmanager
def quiet_mujoco() -> Iterator[None]:
    """Keep from the terminal what MuJoCo says of a library's models, and from MUJOCO_LOG.TXT in the
    folder of work, where it writes it too: an attribute that will be removed some day, say."""
    mujoco = importlib.import_module("mujoco")
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


@contextmanager
def devices_of_this_process() -> Iterator[None]:
    """Let `jax.devices` name those of this process alone. MJX puts a model on the first of them,
    which in a run of several processes is one of process 0, where no other can read it."""
    everywhere = jax.devices
    jax.devices = lambda backend=None: jax.local_devices(backend=backend)
    try:
        yield
    finally:
        jax.devices = everywhere


def check_known(library: str, name: str, known: tuple[str, ...]) -> None:
    """Raise a `RunError` if the library has no environment of this name."""
    if name not in known:
        near = nearest(name, known) or f"; it has {', '.join(sorted(known))}"
        raise RunError(f"{library} has no environment {name!r}{near}")


def check_parameters(what: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise a `RunError` if an environment is given parameters that it does not have, or a value of
    another type than the default, by which one knows what a library takes. It would not refuse
    ``no`` itself, a text, where it takes true or false: a text is true.

    Args:
      defaults: of all parameters that it has.
    """
    for name, value in given.items():
        if name not in defaults:
            near = nearest(name, list(defaults))
            its = f"{near} Its" if near else "; its"
            raise RunError(f"{what} has no parameter {name}{its} parameters: {', '.join(defaults)}")
        default = defaults[name]
        should = None
        if isinstance(default, bool | int | float | str) and not has_type(value, type(default)):
            should = type_name(type(default))
        if isinstance(default, tuple | list) and not isinstance(value, tuple | list):
            should = f"a list, such as {list(default)}"
        if should:
            raise RunError(f"{what}: env_kwargs.{name}={value!r} should be {should}")


def defaults_of(build: type) -> dict[str, Any]:
    """The parameters of a class and their defaults, with those of the classes that it extends where
    it hands others on to them (``**kwargs``)."""
    found: dict[str, Any] = {}
    for each in build.__mro__:
        parameters = inspect.signature(each.__init__).parameters.values()  # type: ignore[misc]
        found = {p.name: p.default for p in parameters if p.default is not p.empty} | found
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return found


def fields_of(params: Any) -> dict[str, Any]:
    """The fields of a dataclass by name."""
    return {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}


def settled(leaf: Any) -> Array:
    """An array that is not weakly typed, so that a scan can carry it: libraries put Python numbers
    into some of the states that their resets return."""
    array = jnp.asarray(leaf)
    return jax.lax.convert_element_type(array, array.dtype)


class Parts:
    """Takes the state of a library's environment apart into arrays that a run can carry and save,
    and puts it together again: keys become their words, and empty arrays are left out.

    Args:
      state: shapes and dtypes of such a state.
    """

    def __init__(self, state: PyTree) -> None:
        self._leaves = jax.tree.leaves(state)
        self._form: Any = jax.tree.structure(state)

    def of(self, state: PyTree) -> list[Array]:
        """Those of a state. Raises a `TypeError` if it has another form."""
        if jax.tree.structure(state) != self._form:
            raise TypeError("step returns a state of another form than reset")
        return [
            jax.random.key_data(leaf) if is_key(like) else settled(leaf)
            for leaf, like in zip(jax.tree.leaves(state), self._leaves, strict=True)
            if like.size
        ]

    def together(self, parts: list[Array]) -> PyTree:
        """The state that `of` was given."""
        left = iter(parts)

        def leaf(like: Any) -> Any:
            if not like.size:
                return jnp.zeros(like.shape, like.dtype)
            return jax.random.wrap_key_data(next(left)) if is_key(like) else next(left)

        return jax.tree.unflatten(self._form, [leaf(like) for like in self._leaves])
