"""Whether an algorithm keeps its contract, `jaxrl_scale.types.Algorithm`. Where it does not, a
`RunError` says so while its functions are traced, before anything is compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_scale.errors import RunError
from jaxrl_scale.options import traced
from jaxrl_scale.records.pieces import named_leaves
from jaxrl_scale.types import ActionSpace, Algorithm, Array, EnvSpec, PyTree, Time, is_key
from jaxrl_scale.user_code import errors_in_one_line, show_arrays


def algorithm(algo: Algorithm, space: ActionSpace) -> Algorithm:
    """The algorithm, whose ``act`` and ``update`` raise a `RunError` where they return something
    else than `Algorithm` says: actions that are not those of the space, which most environments
    would take (true and 1.0 are equal to 1), or a memory or a state of another kind than the one
    that they were given, of which JAX would tell in terms of the loop around them."""

    def act(actor: PyTree, local: PyTree, carry: PyTree, obs: Array, *rest: Any) -> Any:
        returned = algo.act(actor, local, carry, obs, *rest)
        action, carry_after, extras = _three("act", returned, "(action, carry, extras)")
        shape = (len(obs), *space.shape)
        if not hasattr(action, "dtype") or (action.shape, action.dtype) != (shape, space.dtype):
            raise RunError(
                f"the action of the algorithm is {described(action)}; "
                f"it should be one of shape {shape} and dtype {space.dtype}"
            )
        _check_alike("act", "carry", carry, carry_after)
        _check_batch("act", extras, len(obs), "extras ")
        return action, carry_after, extras

    def update(shared: PyTree, local: PyTree, *rest: Any) -> Any:
        returned = algo.update(shared, local, *rest)
        shared_after, local_after, metrics = _three("update", returned, "(shared, local, metrics)")
        _check_alike("update", "shared", shared, shared_after)
        _check_alike("update", "local", local, local_after)
        if not isinstance(metrics, dict):
            raise RunError(
                f"update of the algorithm returned metrics {described(metrics)}, no dict"
            )
        if unnamed := [name for name in metrics if not isinstance(name, str)]:
            raise RunError(
                f"metric {unnamed[0]!r} of the algorithm should have a text for its name"
            )
        return shared_after, local_after, metrics

    return algo._replace(act=act, update=update)


def beginning(begun: PyTree) -> None:
    """Raise a `RunError` unless an agent's state before its first iteration has what the loop asks
    of it, and can be saved."""
    for field in ("params", "observation"):
        if not hasattr(begun.shared.algo, field):
            kind = type(begun.shared.algo).__name__
            raise RunError(f"init_shared of the algorithm returned a {kind} without {field}")
    for name, x in named_leaves(begun).items():
        if isinstance(x, Array) and is_key(x):
            raise RunError(
                f"{name} is a key; keep its words, jax.random.key_data(key), and make a key of "
                "them by jax.random.wrap_key_data"
            )
        if 0 in getattr(x, "shape", ()):
            raise RunError(f"{name} is an empty array; leave it out")


def playing(algo: Algorithm, spec: EnvSpec, options: Any) -> None:
    """Raise a `RunError` unless an agent can be evaluated and asked what its network says, which
    would show when the run has ended. It takes traces, so algorithms of the package, which tests
    try, are spared."""
    batch = 2

    def play(key: Array, options: Any) -> PyTree:
        time = Time(jnp.zeros((), jnp.int32), jnp.zeros(()))
        actor = algo.actor(algo.init_shared(key, options), time)
        if not hasattr(actor, "params"):
            raise RunError(
                f"actor of the algorithm returned a {type(actor).__name__} without params"
            )
        carry = algo.init_carry(batch)
        _check_batch("init_carry", carry, batch)
        obs = jnp.zeros((batch, *spec.observation_shape), spec.observation_dtype)
        first = jnp.ones(batch, bool)
        for greedy in (False, True):
            algo.act(actor, None, carry, obs, first, key, greedy)
        said: Any = algo.outputs(actor, carry, obs, first)
        if not isinstance(said, dict):
            kind = type(said).__name__
            raise RunError(f"outputs of the algorithm returned a {kind}, no dict of arrays by name")
        _check_batch("outputs", said, batch)
        return algo.init_local(key, jnp.int32(0)), said

    with errors_in_one_line("the algorithm"):
        jax.eval_shape(play, jax.random.key(0), traced(options))


def described(x: Any) -> str:
    """What an algorithm returned, for an error message."""
    if not hasattr(x, "dtype"):
        return f"of type {type(x).__name__}"
    return f"an array of shape {x.shape} and dtype {x.dtype}"


def _three(function: str, returned: Any, wanted: str) -> tuple[Any, Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 3:
        size = f" of {len(returned)}" if isinstance(returned, tuple) else ""
        raise RunError(
            f"{function} of the algorithm returned a {type(returned).__name__}{size}; "
            f"it should return {wanted}"
        )
    return returned


def _check_batch(function: str, arrays: PyTree, batch: int, part: str = "") -> None:
    """Raise a `RunError` unless all are arrays whose first axis is that of the batch."""
    leaves: list[Any] = jax.tree.leaves(arrays)
    for x in leaves:
        if getattr(x, "shape", ())[:1] != (batch,):
            raise RunError(
                f"{function} of the algorithm returned {part}{described(x)} for a batch of "
                f"{batch}; the first axis should be {batch}"
            )


def _check_alike(function: str, name: str, given: PyTree, returned: PyTree) -> None:
    """Raise a `RunError` unless both have one structure, the same shapes and the same dtypes."""
    before, after = jax.eval_shape(lambda: ({name: given}, {name: returned}))
    structures: list[Any] = [jax.tree.structure(x) for x in (before, after)]
    if structures[0] == structures[1]:
        before, after = named_leaves(before), named_leaves(after)
    for part in before:
        was, became = show_arrays(before[part]), show_arrays(after[part])
        if was != became:
            raise RunError(
                f"{function} of the algorithm was given {part} {was} and returned {became}; "
                "they should be alike"
            )
