"""What the adapters of other libraries' environments share."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_scale.errors import RunError, nearest
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


def check_known(library: str, name: str, known: tuple[str, ...]) -> None:
    """Raise a `RunError` if the library has no environment of this name."""
    if name not in known:
        near = nearest(name, known) or f"; it has {', '.join(sorted(known))}"
        raise RunError(f"{library} has no environment {name!r}{near}")


def check_parameters(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise a `RunError` if an environment is given parameters that it does not have."""
    if unknown := sorted(set(given) - set(known)):
        raise RunError(
            f"{what} has no parameter {', '.join(unknown)}; its parameters: {', '.join(known)}"
        )


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
