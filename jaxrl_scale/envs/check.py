"""Whether an environment keeps the contract of `jaxrl_scale.types.Environment`."""

from __future__ import annotations

import inspect
import math
import re
from contextlib import closing
from typing import Any, NoReturn, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.errors import RunError
from jaxrl_scale.options import INT32_MAX
from jaxrl_scale.types import (
    ActionSpace,
    Box,
    Discrete,
    Environment,
    EnvSpec,
    HostEnvironment,
    HostStep,
    MultiDiscrete,
    TimeStep,
    is_key,
)
from jaxrl_scale.user_code import describe, errors_in_one_line, show_arrays


def on_host(env: Environment | HostEnvironment) -> TypeGuard[HostEnvironment]:
    """Whether an environment's steps are computed on the host, not on the devices."""
    return hasattr(env, "simulate") and not hasattr(env, "step")


def check_env(env: Any, name: str | None = None, repeats: bool = True) -> None:
    """Raise a `RunError` of one line unless ``env`` keeps the contract.

    ``reset`` and ``step`` are traced: nothing is compiled and nothing runs, so this takes
    milliseconds. What depends on values (a reward that is not finite, an episode that never ends)
    is not seen.

    An environment on the host (`jaxrl_scale.types.HostEnvironment`) cannot be traced: two of it
    begin and make a step, and two others with the same seeds, which should show the same.

    Args:
      name: what the error calls the environment; its class by default.
      repeats: also compare two traces of each method, which takes four more of them. Without it
        only ``spec`` is checked of an environment on the host.
    """
    check_object(env)
    what = f"environment {name or type(env).__name__!r}"
    try:
        spec = env.spec
    except AttributeError as error:
        if "spec" in dir(type(env)):  # a property that fails
            raise RunError(f"{what}: spec{describe(error)}") from error
        raise RunError(
            f"{what} has no attribute spec; it should be a jaxrl_scale.types.EnvSpec"
        ) from None
    except (Exception, SystemExit) as error:
        raise RunError(f"{what}: spec{describe(error)}") from error
    check_spec(what, spec)
    if on_host(env):
        if repeats:
            _check_host(what, env)
        return
    if spec.info:
        _refuse_value(what, "spec.info", spec.info, "empty: the info of step says it by itself")
    observation = jax.ShapeDtypeStruct(spec.observation_shape, np.dtype(spec.observation_dtype))

    key = jax.eval_shape(lambda: jax.random.key(0))
    returned = _trace(what, env, "reset(key)", key)
    if not (isinstance(returned, tuple) and len(returned) == 2):
        _refuse(what, "reset", returned, f"(state, observation {show_arrays(observation)})")
    state, seen = returned
    _check_array(what, "reset", "observation", seen, observation, "spec says")

    action = jax.ShapeDtypeStruct(spec.action.shape, spec.action.dtype)
    returned = _trace(what, env, "step(key, state, action)", key, state, action)
    if not (isinstance(returned, tuple) and len(returned) == 2) or not isinstance(
        returned[1], TimeStep
    ):
        wanted = "(state, TimeStep(obs, reward, terminated, truncated))"
        _refuse(what, "step", returned, wanted)
    new_state, out = returned
    _check_state(what, state, new_state)
    _check_array(what, "step", "obs", out.obs, observation, "spec says")
    for part, dtype in (("reward", jnp.float32), ("terminated", bool), ("truncated", bool)):
        should = jax.ShapeDtypeStruct((), dtype)
        _check_array(what, "step", part, getattr(out, part), should, "it should be")
    _check_info(what, out.info)
    if repeats:
        _check_repeats(what, env, "reset", key)
        _check_repeats(what, env, "step", key, state, action)


def _check_host(what: str, env: Any) -> None:
    """Whether the methods of an environment on the host do what they should, by a step of two, and
    whether all follows from their seeds, by a step of two others."""
    if not callable(getattr(env, "facts", None)):
        raise RunError(f"{what} has no method facts()")
    with errors_in_one_line(f"{what}: facts"):
        facts = env.facts()
    texts = [*facts, *facts.values()] if isinstance(facts, dict) else [facts]
    if not all(isinstance(text, str) for text in texts):
        _refuse_value(what, "facts()", facts, "a dict of texts by name, which may be empty")
    with errors_in_one_line(f"{what}: simulate"):
        simulator = env.simulate(np.arange(2), 1)
    for name in ("reset", "send", "receive", "close"):
        if not callable(getattr(simulator, name, None)):
            returned = _type_name(simulator)
            raise RunError(f"{what}: simulate returned a {returned}, without a method {name}")
    with errors_in_one_line(what), closing(simulator):
        begun = _begun(what, env, simulator)
    with errors_in_one_line(what), closing(env.simulate(np.arange(2), 1)) as again:
        same = [
            np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
            for x, y in zip(begun, _begun(what, env, again), strict=True)
        ]
    if not all(same):
        raise RunError(
            f"{what}: two simulators with the same seeds begin differently; all that is random "
            "must follow from the seeds (Gymnasium: super().reset(seed=seed), and self.np_random)"
        )


def _begun(what: str, env: Any, simulator: Any) -> list[np.ndarray]:
    """What two environments show when they are reset, and after a step."""
    seen = check_seen(env.spec, simulator.reset(), 2, what).copy()
    simulator.send(np.stack([some_action(env.spec, obs) for obs in seen]))
    step = check_step(env.spec, simulator.receive(), 2, what)
    return [seen, *map(np.copy, jax.tree.leaves(step))]


def some_action(spec: EnvSpec, obs: np.ndarray) -> np.ndarray:
    """An action that the environment takes after this observation: 0, or what is nearest to it, or
    the first that an action mask allows."""
    space = spec.action
    if spec.action_mask:
        return best(space, obs[-sum(space.sizes) :])
    return np.asarray(space.clip(np.zeros(space.shape, space.dtype)))


def best(space: ActionSpace, scores: np.ndarray) -> np.ndarray:
    """The discrete action with the largest of the ``scores [actions]``, of each part."""
    parts = np.split(scores, np.cumsum(space.sizes)[:-1])
    return np.reshape([part.argmax() for part in parts], space.shape).astype(space.dtype)


def check_seen(spec: EnvSpec, obs: Any, number: int, what: str = "") -> np.ndarray:
    """What ``reset`` of a simulator of ``number`` environments has returned, if it fits, in the
    dtype of the spec."""
    return _fitting(what or f"environment {spec.id!r}", "reset", "observations", obs, spec, number)


def check_step(spec: EnvSpec, step: Any, number: int, what: str = "") -> HostStep:
    """What ``receive`` of a simulator of ``number`` environments has returned, if it fits, in the
    dtypes that `HostStep` and the spec name."""
    what = what or f"environment {spec.id!r}"
    if not isinstance(step, HostStep):
        raise RunError(
            f"{what}: receive returned a {_type_name(step)}; it should return a "
            "jaxrl_scale.types.HostStep"
        )
    fitting = {
        name: _fitting(what, "receive", name, x, spec, number)
        for name, x in step._asdict().items()
        if name != "info"
    }
    info = {
        name: _fitting(what, "receive", f"info[{name!r}]", x, spec, number)
        for name, x in _named(what, step.info, spec).items()
    }
    return HostStep(**fitting, info=info)


def _named(what: str, info: Any, spec: EnvSpec) -> dict[str, Any]:
    """The ``info`` of a `HostStep`, in the order of the spec, if it has the names of the spec."""
    info = {} if info is None else info
    if not isinstance(info, dict) or info.keys() != set(spec.info):
        found = f"the names {list(info)}" if isinstance(info, dict) else f"a {_type_name(info)}"
        raise RunError(
            f"{what}: receive returned an info with {found}; spec.info names {list(spec.info)}"
        )
    return {name: info[name] for name in spec.info}


def _fitting(what: str, method: str, part: str, x: Any, spec: EnvSpec, number: int) -> np.ndarray:
    """An array of a simulator in the right dtype, if its shape is right and its dtype can become
    that one. So all that sees it, in training, evaluation and after a resume, sees the same."""
    is_seen = part in ("observations", "obs")
    shape = (number, *spec.observation_shape) if is_seen else (number,)
    is_number = part in ("reward", "score") or part.startswith("info[")
    dtype = np.dtype(spec.observation_dtype if is_seen else np.float32 if is_number else bool)
    if (
        not isinstance(x, np.ndarray)
        or x.shape != shape
        or not np.can_cast(x.dtype, dtype, "same_kind")
    ):
        found = jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, np.ndarray) else x
        raise RunError(
            f"{what}: {method} returned {part} {show_arrays(found)}, it should be NumPy's "
            f"{show_arrays(jax.ShapeDtypeStruct(shape, dtype))} for {number} environments"
        )
    return x.astype(dtype, copy=False)


def check_object(env: Any) -> None:
    """Raise a `RunError` where an environment's class or name is given in its place."""
    if isinstance(env, type):
        called = env.__name__
        raise RunError(f"{called} is a class; give an environment, which {called}(…) makes")
    if isinstance(env, str):
        raise RunError(f"{env!r} is a text; give an environment, which make({env!r}) makes")


def _check_repeats(what: str, env: Any, name: str, *arguments: Any) -> None:
    """Whether a method makes the same program each time: what it drew from elsewhere than its key
    would be a constant of the program, of which a run's seed knows nothing."""

    def program() -> tuple[str, list[bytes]]:
        made = jax.make_jaxpr(lambda *inputs: getattr(env, name)(*inputs))(*arguments)
        if any(isinstance(constant, jax.core.Tracer) for constant in made.consts):
            raise RunError(
                f"{what}: {name} uses an array of an earlier trace, which the environment keeps in "
                "itself; make an array that all episodes need in __init__, and whatever changes a "
                "part of the state"
            )
        text = re.sub(r"0x[0-9a-f]+", "", str(made.jaxpr))  # addresses of functions
        return text, [_bytes(constant) for constant in made.consts]

    with errors_in_one_line(f"{what}: {name}, traced once more"):
        same = program() == program()
    if not same:
        raise RunError(
            f"{what}: {name} makes another program each time that it is traced, as if it drew "
            "random numbers of NumPy's or Python's; draw them with jax.random from its key"
        )


def _bytes(constant: Any) -> bytes:
    """Of a constant of a program, which may be a key."""
    if is_key(constant):
        constant = jax.random.key_data(constant)
    return np.asarray(constant).tobytes()


def check_spec(what: str, spec: Any) -> None:
    """Raise a `RunError` that begins with ``what`` unless ``spec`` is an `EnvSpec` of values that
    make sense."""
    if not isinstance(spec, EnvSpec):
        raise RunError(
            f"{what}: spec is of type {_type_name(spec)}; it should be a jaxrl_scale.types.EnvSpec"
        )
    if not isinstance(spec.id, str):
        _refuse_value(what, "spec.id", spec.id, "a text")
    if not _is_shape(spec.observation_shape):
        should = "a tuple of whole numbers of at least 1, such as (4,)"
        _refuse_value(what, "spec.observation_shape", spec.observation_shape, should)
    if not _is_observable(spec.observation_dtype):
        should = "a dtype that JAX computes with, such as numpy.float32 or numpy.uint8"
        _refuse_value(what, "spec.observation_dtype", spec.observation_dtype, should)
    steps = spec.max_episode_steps
    if steps is not None and not _is_whole(steps):
        should = f"None or a whole number from 1 to {INT32_MAX}"
        _refuse_value(what, "spec.max_episode_steps", steps, should)
    if not _is_whole(spec.frames_per_step):
        should = "a whole number of at least 1"
        _refuse_value(what, "spec.frames_per_step", spec.frames_per_step, should)
    worst = spec.worst_return
    if worst is not None and not (_is_number(worst) and math.isfinite(worst)):
        _refuse_value(what, "spec.worst_return", worst, "None or a finite number")
    if not isinstance(spec.costly_reset, bool):
        _refuse_value(what, "spec.costly_reset", spec.costly_reset, "True or False")
    if not isinstance(spec.action_mask, bool):
        _refuse_value(what, "spec.action_mask", spec.action_mask, "True or False")
    if not isinstance(spec.gymnasium_id, str | None):
        _refuse_value(what, "spec.gymnasium_id", spec.gymnasium_id, "None or a text")
    if not isinstance(spec.info, tuple) or len({*spec.info}) < len(spec.info):
        should = "a tuple of different names, such as ('success',)"
        _refuse_value(what, "spec.info", spec.info, should)
    for name in spec.info:
        _check_name(what, "spec.info's name", name)
    _check_actions(what, spec.action)
    if spec.action_mask:
        _check_mask(what, spec)


def _check_actions(what: str, action: Any) -> None:
    """As `check_spec`, of the actions."""
    if isinstance(action, Discrete):
        if not _is_whole(action.n):
            should = f"a whole number from 1 to {INT32_MAX}"
            _refuse_value(what, "spec.action.n", action.n, should)
    elif isinstance(action, MultiDiscrete):
        if not _is_shape(action.sizes) or not action.sizes:
            should = "a tuple of one or more whole numbers of at least 1, such as (3, 2)"
            _refuse_value(what, "spec.action.sizes", action.sizes, should)
    elif isinstance(action, Box):
        for bound in ("low", "high"):
            value = getattr(action, bound)
            if not _is_number(value) or math.isnan(value):
                should = "one number, which is the bound of every action"
                _refuse_value(what, f"spec.action.{bound}", value, should)
        if action.low >= action.high:
            should = f"below spec.action.high={action.high!r}"
            _refuse_value(what, "spec.action.low", action.low, should)
        if not _is_shape(action.shape):
            should = "a tuple of whole numbers of at least 1, such as (2,)"
            _refuse_value(what, "spec.action.shape", action.shape, should)
    else:
        raise RunError(
            f"{what}: spec.action is of type {_type_name(action)}; it should be a Discrete, a "
            "MultiDiscrete or a Box of jaxrl_scale.types"
        )


def _check_mask(what: str, spec: EnvSpec) -> None:
    """As `check_spec`, of an action mask."""
    if not spec.action.sizes:
        _refuse_value(what, "spec.action_mask", True, "False where actions are a Box")
    size = sum(spec.action.sizes)
    if len(spec.observation_shape) != 1 or spec.observation_shape[0] <= size:
        least = f"(n,) where n is more than {size}, the length of the action mask at its end"
        _refuse_value(what, "spec.observation_shape", spec.observation_shape, least)


def _trace(what: str, env: Any, call: str, *arguments: Any) -> Any:
    """The shapes and dtypes of what a method returns."""
    name = call.partition("(")[0]
    method = getattr(env, name, None)
    if not callable(method):
        raise RunError(f"{what} has no method {call}")
    try:
        signature = inspect.signature(method)
        own, names = signature.bind(*arguments).arguments, re.findall(r"\w+", call)[1:]
        if any(a in names and a != b for a, b in zip(own, names, strict=False)):
            raise TypeError("its arguments have another order")
    except TypeError as error:
        raise RunError(f"{what}: {name}{signature} is called as {call}: {error}") from None
    except ValueError:
        pass  # a callable without a signature
    try:
        return jax.eval_shape(method, *arguments)
    except (Exception, SystemExit) as error:
        raise RunError(f"{what}: {name}{describe(error)}{_hint(error)}") from error


def _hint(error: BaseException) -> str:
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return (
            "; `if`, `while`, `and`, `or` and `not` cannot depend on an array: use jnp.where, "
            "&, | and ~"
        )
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return "; use jax.numpy instead of numpy"
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return "; Python's int, float and bool cannot take an array: use .astype"
    return ""


def _check_state(what: str, before: Any, after: Any) -> None:
    should = "both should have the same structure, shapes and dtypes"
    structures: list[Any] = [jax.tree.structure(before), jax.tree.structure(after)]
    if structures[0] != structures[1]:
        raise RunError(
            f"{what}: reset returned the state {show_arrays(before)} and step returned the state "
            f"{show_arrays(after)}; {should}"
        )
    named, others = jax.tree_util.tree_flatten_with_path(before)[0], jax.tree.leaves(after)
    for (path, one), other in zip(named, others, strict=True):
        part = f"{what}: state{jax.tree_util.keystr(path)}"
        if is_key(one):  # NumPy could not save it
            raise RunError(
                f"{part} is a key; keep its words, jax.random.key_data(key), and make a key of "
                "them by jax.random.wrap_key_data"
            )
        if 0 in one.shape:
            raise RunError(f"{part} is the empty array {show_arrays(one)}; leave it out")
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            raise RunError(
                f"{part} is {show_arrays(one)} after reset and "
                f"{show_arrays(other)} after step; {should}"
            )


def _check_info(what: str, info: Any) -> None:
    if not isinstance(info, dict | None):
        should = "None or a dict of numbers by name"
        raise RunError(f"{what}: step returned info {show_arrays(info)}; it should be {should}")
    for name, x in (info or {}).items():
        _check_name(what, "a name in the info of step", name)
        if getattr(x, "shape", None) != () or not _is_real(x.dtype):
            raise RunError(
                f"{what}: step returned info[{name!r}] {show_arrays(x)}; it should be one number "
                "or one bool, without axes"
            )


def is_name(text: Any) -> bool:
    """Whether it may name a number of an environment's own."""
    return isinstance(text, str) and re.fullmatch(r"[\w./-]+", text) is not None


def _check_name(what: str, called: str, text: Any) -> None:
    if not is_name(text):
        _refuse_value(what, called, text, "a text of letters, digits, dots, slashes, - and _")


def _check_array(what: str, method: str, part: str, found: Any, should: Any, source: str) -> None:
    if (getattr(found, "shape", None), getattr(found, "dtype", None)) != (
        should.shape,
        should.dtype,
    ):
        is_seen = part in ("observation", "obs")
        only_dtype = is_seen and getattr(found, "shape", None) == should.shape
        hint = f"; EnvSpec(…, observation_dtype=jnp.{found.dtype})" if only_dtype else ""
        raise RunError(
            f"{what}: {method} returned {part} {show_arrays(found)}, {source} "
            f"{show_arrays(should)}{hint}"
        )


def _refuse(what: str, method: str, returned: Any, should: str) -> NoReturn:
    raise RunError(f"{what}: {method} returned {show_arrays(returned)}; it should return {should}")


def _refuse_value(what: str, name: str, value: Any, should: str) -> NoReturn:
    shown = " ".join(repr(value).split())
    raise RunError(f"{what}: {name}={shown[:100]} should be {should}")


def _type_name(value: Any) -> str:
    """A type with its module, since libraries have types of equal names."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_whole and 1 <= value <= INT32_MAX


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and all(_is_whole(size) for size in value)


def _is_observable(dtype: Any) -> bool:
    """Whether it is a bool, integer or float dtype that JAX has: in a run, of at most 32 bits."""
    try:
        known = np.dtype(dtype)
    except TypeError:
        return False
    exists = jax.dtypes.canonicalize_dtype(known) == known
    return dtype is not None and _is_real(known) and exists


def _is_real(dtype: Any) -> bool:
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating))
