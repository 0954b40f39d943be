"""What acting computes, as a short list of operations from which other forms are written.

JAX traces the acting itself, so the list is right for every network, one's own among them. What
follows from the weights alone is computed here, what no output needs is left out, and calls of
functions are opened. The first axis of every array that depends on the observations is the batch:
axes of length 1 before it are dropped.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.extend import core

from jaxrl_scale.errors import RunError
from jaxrl_scale.learning.products import scan_counts
from jaxrl_scale.types import Algorithm, Array, EnvSpec, PyTree


class NotListed(RunError):
    """The network has an operation or a dtype that the list, or a form, has no word for."""


Shape = tuple[int | None, ...]
"""None is the size of the batch, which is always the first."""


@dataclasses.dataclass(eq=False)
class Value:
    """An array of the program: an input, a constant, or what an operation returns."""

    shape: Shape
    dtype: np.dtype[Any]
    name: str = ""  # of an input, and of a constant that is no plain number
    array: np.ndarray | None = None  # of a constant

    @property
    def whole(self) -> bool:
        """Whether these are integers, for which some operations are written in another way."""
        return self.dtype.kind in "iu"


class Operation(NamedTuple):
    """One step. ``kind`` is an element-wise primitive of JAX, whose inputs are broadcast as in
    NumPy, or one of: matmul, conv, reshape, broadcast, transpose, reduce_sum, reduce_max,
    reduce_min, argmax, concatenate, slice, pad, take."""

    kind: str
    inputs: tuple[Value, ...]
    output: Value
    how: dict[str, Any]


class Program(NamedTuple):
    """A policy's best actions as a function of observations and, with a memory, of it."""

    inputs: dict[str, Value]
    """``obs [B, ...]``; with a memory its arrays ``[B, ...]``, called as `memory_names` says, and
    ``is_first [B]`` bool, too"""
    operations: list[Operation]
    outputs: dict[str, Value]
    """``action [B, ...]``; of discrete actions the ``scores [B, n]`` of which it is the largest:
    logits, or values; of those of several parts ``[B, parts, n]``, with -inf behind the logits of a
    smaller part; with a memory the arrays of the next one ``[B, ...]``, called as before"""

    @property
    def memory(self) -> tuple[str, ...]:
        """The names of the memory's arrays, of which there may be none."""
        return tuple(name for name in self.inputs if name not in ("obs", "is_first"))

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """The constants that are no plain numbers, by name."""
        found = [x for op in self.operations for x in op.inputs if x.array is not None]
        return {x.name: x.array for x in found if x.name and x.array is not None}

    def uses(self) -> Counter[Value]:
        """How often each value is an input or an output."""
        used = Counter(x for op in self.operations for x in op.inputs)
        used.update(self.outputs.values())
        return used


def memory_names(count: int) -> tuple[str, ...]:
    """What the arrays of a memory are called, in the order of its leaves: ``memory`` if it has one,
    else ``memory_1``, ``memory_2``, …"""
    return ("memory",) if count == 1 else tuple(f"memory_{k + 1}" for k in range(count))


def acting(
    algo: Algorithm, actor: PyTree, spec: EnvSpec
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The greedy action as a function ``f(actor, **inputs) -> outputs``, and shapes and dtypes of
    its inputs, for a batch of any size. Inputs and outputs are called as in `Program`; ``scores``
    are none of them.

    Args:
      actor: that of one agent.
    """
    (batch,) = export.symbolic_shape("batch")
    arrays, structure = jax.tree.flatten(jax.eval_shape(lambda: algo.init_carry(1)))
    names = memory_names(len(arrays))
    inputs = {"obs": jax.ShapeDtypeStruct((batch, *spec.observation_shape), spec.observation_dtype)}
    for name, x in zip(names, arrays, strict=True):
        inputs[name] = jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype)
    if names:
        inputs["is_first"] = jax.ShapeDtypeStruct((batch,), jnp.dtype(bool))

    def act(
        actor: PyTree, obs: Array, is_first: Array | None = None, **memory: Array
    ) -> dict[str, Array]:
        carry = jax.tree.unflatten(structure, [memory[name] for name in names])
        first = jnp.zeros(obs.shape[0], bool) if is_first is None else is_first
        action, carry, _ = algo.act(actor, None, carry, obs, first, jax.random.key(0), True)
        following = dict(zip(names, jax.tree.leaves(carry), strict=True))
        return {"action": spec.action.clip(action), **following}

    return act, inputs


def stablehlo(algo: Algorithm, actor: PyTree, spec: EnvSpec) -> bytes:
    """The greedy action as `jax.export` writes it, with the weights in it, for CPUs and GPUs:
    ``jax.export.deserialize(data).call(**inputs)`` returns the outputs, as `acting` says."""
    act, structs = acting(algo, actor, spec)
    exported = export.export(
        jax.jit(lambda **inputs: act(actor, **inputs)), platforms=("cpu", "cuda")
    )
    return bytes(exported(**structs).serialize())


def trace(algo: Algorithm, actor: PyTree, spec: EnvSpec) -> Program:
    """The program of one agent's ``actor``. Raises `NotListed`."""
    act, structs = acting(algo, actor, spec)
    if any(np.any(x) for x in jax.tree.leaves(algo.init_carry(1))):
        raise NotListed("a memory that does not begin with zeros cannot be exported")
    closed, out = jax.make_jaxpr(lambda actor, inputs: act(actor, **inputs), return_shape=True)(
        actor, structs
    )
    named = jax.tree_util.tree_leaves_with_path(actor)
    weights = [_constant(x, _name(path)) for path, x in named]
    inputs = {n: Value(_canonical(x.shape), np.dtype(x.dtype), n) for n, x in structs.items()}
    reader = _Reader()
    results = reader.read(closed, [*weights, *(inputs[name] for name in sorted(inputs))])
    outputs = dict(zip(sorted(out), results, strict=True))
    made_by = {op.output: op for op in reader.operations}
    best = made_by.get(outputs["action"])
    if best is not None and best.kind == "argmax":
        outputs["scores"] = best.inputs[0]
    operations = _needed(_without_broadcasts(reader.operations, outputs), outputs.values())
    program = Program(inputs, operations, outputs)
    _check_dtypes(program)
    _name_apart(program)
    return program


def _check_dtypes(program: Program) -> None:
    """Raise `NotListed` if NumPy lacks the dtype of a value, as it lacks bfloat16."""
    values = [x for op in program.operations for x in (*op.inputs, op.output)]
    for x in (*program.inputs.values(), *values):
        if not hasattr(np, x.dtype.name):
            raise NotListed(f"NumPy has no {x.dtype.name}, with which the network computes")


def _name(path: Any) -> str:
    """``actor/Dense_0/kernel``, whatever of the algorithm's the parameters lie in."""
    whole = jax.tree_util.keystr(path, simple=True, separator="/")
    return whole.rpartition("params/")[2]


def _name_apart(program: Program) -> None:
    """Give every constant that is no plain number a name of its own."""
    taken: dict[str, Value] = {}
    for op in program.operations:
        for x in op.inputs:
            if x.array is None or x.array.ndim == 0:
                continue
            base, number = x.name or "constant", 1
            while taken.setdefault(x.name or base, x) is not x:
                number += 1
                x.name = f"{base}_{number}"
            x.name = x.name or base


# --- reading what JAX traced --------------------------------------------------------------------

ELEMENTWISE = {
    *("add", "sub", "mul", "div", "max", "min", "pow", "integer_pow", "square", "neg", "abs"),
    *("tanh", "logistic", "exp", "log", "sqrt", "rsqrt"),
    *("ge", "gt", "le", "lt", "eq", "ne", "and", "or", "not"),
    *("select_n", "clamp", "convert_element_type"),
}
"""JAX's names, and those of the list."""
_SAME = ("copy", "copy_p", "optimization_barrier", "stop_gradient")
_CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "remat2",
    "checkpoint",
)


def _constant(x: Any, name: str = "") -> Value:
    array = np.asarray(x)
    return Value(array.shape, array.dtype, name if array.ndim else "", array)


def _lead(shape: Sequence[Any]) -> int:
    """How many axes of length 1 precede the batch."""
    at = next((k for k, n in enumerate(shape) if not isinstance(n, int)), 0)
    return at if all(n == 1 for n in shape[:at]) else 0


def _canonical(shape: Sequence[Any]) -> Shape:
    kept = shape[_lead(shape) :]
    if any(not isinstance(n, int) for n in kept[1:]) or (
        kept and not isinstance(kept[0], int) and str(kept[0]) != "batch"
    ):
        raise NotListed(f"an array of shape {tuple(shape)} mixes observations; it is not exported")
    return tuple(n if isinstance(n, int) else None for n in kept)


class _Reader:
    """Collects the operations of a traced program."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._aligned: dict[Value, Value] = {}

    def read(self, closed: Any, arguments: Sequence[Value]) -> list[Value]:
        """The values that a program returns for these arguments."""
        jaxpr = closed.jaxpr
        values: dict[Any, Value] = dict(
            zip(jaxpr.constvars, map(_constant, closed.consts), strict=True)
        )
        values |= dict(zip(jaxpr.invars, arguments, strict=True))

        def value(atom: Any) -> Value:
            if isinstance(atom, core.Literal):
                aval: Any = atom.aval  # a plain number of Python's has a dtype of JAX's
                return _constant(np.asarray(atom.val, aval.dtype))
            return values[atom]

        for eqn in _live(jaxpr):
            found = self._results(eqn, [value(atom) for atom in eqn.invars])
            values |= dict(zip(eqn.outvars, found, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def _results(self, eqn: Any, inputs: list[Value]) -> list[Value]:
        name, how = eqn.primitive.name, eqn.params
        shape = eqn.outvars[0].aval.shape
        if name in _CALLS:
            called = how.get("jaxpr") or how["call_jaxpr"]
            if isinstance(called, core.Jaxpr):  # of `jax.checkpoint`, flax's remat
                called = core.ClosedJaxpr(called, ())
            return self.read(called, inputs)
        if name == "scan" and how["length"] == 1:
            return self._only_step(eqn, inputs)
        if name in _SAME:
            return inputs
        named = [x.name for x in inputs if x.name]
        known = all(x.array is not None for x in inputs)
        # What is computed with weights stays in the list, where it can be read.
        if known and all(isinstance(n, int) for n in shape) and not (named and name in ELEMENTWISE):
            made = eqn.primitive.bind(
                *(x.array for x in inputs), **eqn.primitive.get_bind_params(how)
            )
            made = made if eqn.primitive.multiple_results else [made]
            return [_constant(x, named[0] if named else "") for x in made]
        if name == "split":
            return self._parts(eqn, inputs[0])
        rule = _elementwise if name in ELEMENTWISE else _RULES.get(name)
        if rule is None:
            raise NotListed(f"the network's operation {name!r} cannot be exported")
        leads = [_lead(atom.aval.shape) for atom in eqn.invars]
        aval = eqn.outvars[0].aval
        return [rule(self, _Step(name, inputs, leads, shape, np.dtype(aval.dtype), how))]

    def _only_step(self, eqn: Any, inputs: list[Value]) -> list[Value]:
        """What a loop of one round returns."""
        before = sum(scan_counts(eqn))
        # The axis of the rounds, of length 1, is dropped already where it precedes the batch.
        first = [self.reshaped(x, x.shape[1:]) if x.shape[0] == 1 else x for x in inputs[before:]]
        return self.read(eqn.params["jaxpr"], [*inputs[:before], *first])

    def _parts(self, eqn: Any, x: Value) -> list[Value]:
        """One array cut into several along an axis."""
        whole, axis = eqn.invars[0].aval.shape, eqn.params["axis"]
        parts, start = [], 0
        for atom, size in zip(eqn.outvars, eqn.params["sizes"], strict=True):
            spans: list[Any] = [(0, n, 1) for n in whole]
            spans[axis] = (start, start + size, 1)
            parts.append(_cut(self, x, _lead(whole), spans, _canonical(atom.aval.shape)))
            start += size
        return parts

    def add(
        self, kind: str, inputs: Sequence[Value], shape: Shape, dtype: np.dtype[Any], **how: Any
    ) -> Value:
        output = Value(tuple(shape), dtype)
        self.operations.append(Operation(kind, tuple(inputs), output, how))
        return output

    def made_by(self, x: Value) -> Operation | None:
        return next((op for op in reversed(self.operations) if op.output is x), None)

    def reshaped(self, x: Value, shape: Shape) -> Value:
        if (before := self.made_by(x)) and before.kind == "reshape":
            x = before.inputs[0]
        if x.shape == shape:
            return x
        if x.array is not None:
            return _constant(x.array.reshape([n for n in shape if n is not None]), x.name)
        return self.add("reshape", [x], shape, x.dtype)

    def converted(self, x: Value, dtype: np.dtype[Any]) -> Value:
        """In a dtype that can hold it, where JAX mixes dtypes within one operation."""
        if x.dtype == dtype:
            return x
        if x.array is not None:
            return _constant(x.array.astype(dtype), x.name)
        return self.add("convert_element_type", [x], x.shape, dtype)

    def aligned(self, x: Value) -> Value:
        """Weights without leading axes of length 1, which broadcasting adds."""
        if None in x.shape or len(x.shape) < 2 or x.shape[0] != 1:
            return x
        if x not in self._aligned:
            ones = sum(1 for n in itertools.takewhile(lambda n: n == 1, x.shape[:-1]))
            self._aligned[x] = self.reshaped(x, x.shape[ones:])
        return self._aligned[x]

    def joined(self, x: Value) -> tuple[int, tuple[Value, ...]]:
        """The axis and the parts of a concatenation; of any other value no parts."""
        made = self.made_by(x)
        return (made.how["axis"], made.inputs) if made and made.kind == "concatenate" else (0, ())


def _live(jaxpr: Any) -> list[Any]:
    """The equations that the results follow from."""
    wanted = {atom for atom in jaxpr.outvars if not isinstance(atom, core.Literal)}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if not wanted.isdisjoint(eqn.outvars):
            kept.append(eqn)
            wanted |= {atom for atom in eqn.invars if not isinstance(atom, core.Literal)}
    return kept[::-1]


def _needed(operations: list[Operation], outputs: Any) -> list[Operation]:
    wanted, kept = set(outputs), []
    for op in reversed(operations):
        if op.output in wanted:
            kept.append(op)
            wanted.update(op.inputs)
    return kept[::-1]


def _without_broadcasts(operations: list[Operation], outputs: dict[str, Value]) -> list[Operation]:
    """Without those that element-wise operations make by themselves."""
    made = {op.output for op in operations if op.kind == "broadcast"}
    for op in operations:
        grown = any(
            x.shape == op.output.shape and x not in made and x.array is None for x in op.inputs
        )
        if op.kind not in ELEMENTWISE or not grown:
            made.difference_update(op.inputs)
    made.difference_update(outputs.values())
    stands_for: dict[Value, Value] = {}
    kept = []
    for op in operations:
        inputs = tuple(stands_for.get(x, x) for x in op.inputs)
        if op.output in made:
            stands_for[op.output] = inputs[0]
        else:
            kept.append(op._replace(inputs=inputs))
    return kept


# --- one rule for each primitive ----------------------------------------------------------------


class _Step(NamedTuple):
    """An operation as JAX traced it, but with inputs that are values of the list."""

    name: str
    inputs: list[Value]
    leads: list[int]  # axes of length 1 before the batch, of each input
    shape: tuple[Any, ...]  # of the result
    dtype: np.dtype[Any]
    how: dict[str, Any]

    @property
    def lead(self) -> int:
        return _lead(self.shape)

    @property
    def canonical(self) -> Shape:
        return _canonical(self.shape)


def _elementwise(reader: _Reader, step: _Step) -> Value:
    inputs = step.inputs
    if any(None in x.shape for x in inputs):  # else the result has the leading axes, too
        inputs = [reader.aligned(x) for x in inputs]
    if step.name == "convert_element_type" and inputs[0].dtype == step.dtype:
        return inputs[0]
    if step.name == "pow":  # an exponent may be an integer
        inputs = [reader.converted(x, step.dtype) for x in inputs]
    if step.name == "div" and step.dtype.kind in "iu":
        _check_divisor(reader, inputs[1])
    if step.name == "select_n":
        if len(inputs) != 3 or inputs[0].dtype != bool:
            raise NotListed("a choice among arrays by a number cannot be exported")
        which, if_not, if_so = inputs
        made = reader.made_by(which)
        if made and made.kind == "ge" and made.inputs == (if_so, if_not):
            return reader.add("max", [if_so, if_not], step.canonical, step.dtype)
    more = {"power": step.how["y"]} if step.name == "integer_pow" else {}
    return reader.add(step.name, inputs, step.canonical, step.dtype, **more)


def _check_divisor(reader: _Reader, y: Value) -> None:
    """Raise `NotListed` unless every form divides integers by ``y`` as XLA does. By 0, and the
    least integer by -1, they differ: some even end the process."""
    made = reader.made_by(y)
    y = made.inputs[0] if made and made.kind == "broadcast" else y
    if y.array is None or np.isin(y.array, (0, -1)).any():
        raise NotListed("integers can only be divided by constants other than 0 and -1")


def _reshape(reader: _Reader, step: _Step) -> Value:
    return reader.reshaped(step.inputs[0], step.canonical)


def _broadcast(reader: _Reader, step: _Step) -> Value:
    (x, *_), out, dropped = step.inputs, step.canonical, step.lead
    axes = [axis - dropped for axis in step.how["broadcast_dimensions"][step.leads[0] :]]
    spread: list[int | None] = [1] * len(out)
    for axis, n in zip(axes, x.shape, strict=True):
        if axis >= 0:
            spread[axis] = n
    while spread and spread[0] == 1 and None not in x.shape:  # broadcasting adds such axes
        spread.pop(0)
    x = reader.reshaped(x, tuple(spread))
    return x if x.shape == out else reader.add("broadcast", [x], out, step.dtype)


def _transpose(reader: _Reader, step: _Step) -> Value:
    order = [axis - step.leads[0] for axis in step.how["permutation"] if axis >= step.leads[0]]
    return reader.add(step.name, step.inputs, step.canonical, step.dtype, order=tuple(order))


def _product(reader: _Reader, step: _Step) -> Value:
    (x, w), dropped = step.inputs, step.leads[0]
    (of_x, of_w), batched = step.how["dimension_numbers"]
    plain = len(w.shape) == 2 and None not in w.shape and of_w == (0,) and batched == ((), ())
    if not plain or of_x != (len(x.shape) + dropped - 1,):
        raise NotListed("only products of features with a matrix of weights can be exported")
    factors = _factors(reader, step.inputs, step.dtype)
    return reader.add("matmul", factors, step.canonical, step.dtype)


def _factors(reader: _Reader, inputs: list[Value], dtype: Any) -> list[Value]:
    """In the dtype of their product, which may be wider."""
    if not all(np.can_cast(x.dtype, dtype) for x in inputs):
        raise NotListed(f"a product that is rounded to {dtype} cannot be exported")
    return [reader.converted(x, dtype) for x in inputs]


def _convolution(reader: _Reader, step: _Step) -> Value:
    how, layout = step.how, tuple(map(tuple, step.how["dimension_numbers"]))
    of_images = layout == ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    dilated = any(n != 1 for n in (*how["lhs_dilation"], *how["rhs_dilation"]))
    if not of_images or dilated or how["feature_group_count"] * how["batch_group_count"] != 1:
        raise NotListed("only plain convolutions of images [height, width, channels] are exported")
    strides, padding = tuple(how["window_strides"]), tuple(map(tuple, how["padding"]))
    inputs = _factors(reader, step.inputs, step.dtype)
    return reader.add("conv", inputs, step.canonical, step.dtype, strides=strides, padding=padding)


def _reduce(reader: _Reader, step: _Step) -> Value:
    axes = tuple(axis - step.leads[0] for axis in step.how["axes"] if axis >= step.leads[0])
    if not axes:
        return step.inputs[0]
    if 0 in axes and step.inputs[0].shape[0] is None:
        raise NotListed(f"{step.name} over a batch of observations is not exported")
    return reader.add(step.name, step.inputs, step.canonical, step.dtype, axes=axes)


def _concatenate(reader: _Reader, step: _Step) -> Value:
    axis = step.how["dimension"] - step.lead
    return reader.add(step.name, step.inputs, step.canonical, step.dtype, axis=axis)


def _slice(reader: _Reader, step: _Step) -> Value:
    steps = step.how["strides"] or (1,) * len(step.shape)
    spans = zip(step.how["start_indices"], step.how["limit_indices"], steps, strict=True)
    return _cut(reader, step.inputs[0], step.leads[0], list(spans), step.canonical)


def _cut(reader: _Reader, x: Value, lead: int, spans: list[Any], shape: Shape) -> Value:
    """``x[start:stop:step, ...]``, where ``spans`` has those of every axis."""
    kept = [
        None if n is None or tuple(span) == (0, n, 1) else tuple(map(int, span))
        for n, span in zip(x.shape, spans[lead:], strict=True)
    ]
    if not any(kept):
        return x
    axis, parts = reader.joined(x)
    start = 0
    for part in parts:  # all of one part, as a Gaussian's mean
        size = part.shape[axis]
        assert size is not None
        if [k for k, span in enumerate(kept) if span] == [axis] and kept[axis] == (
            *(start, start + size),
            1,
        ):
            return part
        start += size
    return reader.add("slice", [x], shape, x.dtype, spans=tuple(kept))


def _pad(reader: _Reader, step: _Step) -> Value:
    edges = [tuple(edge) for edge in step.how["padding_config"][step.leads[0] :]]
    if any(low < 0 or high < 0 or inner for low, high, inner in edges):
        raise NotListed("only padding at the edges can be exported")
    pairs = tuple((low, high) for low, high, _ in edges)
    return reader.add(step.name, step.inputs, step.canonical, step.dtype, edges=pairs)


def _gather(reader: _Reader, step: _Step) -> Value:
    """An index that is known, as in ``x[0]`` and ``x[..., 0]``, or a list of them for the last
    axis, as in ``x[..., [2, 0]]``."""
    (x, at), numbers = step.inputs, step.how["dimension_numbers"]
    sizes, lead = step.how["slice_sizes"], step.leads[0]
    if at.array is None or numbers.operand_batching_dims:
        raise NotListed("an index that depends on the observation cannot be exported")
    if at.array.ndim != 1:
        return _take(reader, step, x, at.array)
    starts = dict(zip(numbers.start_index_map, at.array.tolist(), strict=True))
    spans = [
        (starts.get(axis, 0), starts.get(axis, 0) + n if isinstance(n, int) else None, 1)
        for axis, n in enumerate(sizes)
    ]
    cut = _canonical(sizes)
    return reader.reshaped(_cut(reader, x, lead, spans, cut), step.canonical)


def _take(reader: _Reader, step: _Step, x: Value, at: np.ndarray) -> Value:
    """A list of indices for the last axis, or a table of them."""
    sizes, last, size = step.how["slice_sizes"], len(step.how["slice_sizes"]) - 1, x.shape[-1] or 0
    numbers = jax.lax.GatherDimensionNumbers(tuple(range(last)), (last,), (last,))
    whole = step.how["dimension_numbers"] == numbers and sizes[:-1] == step.shape[:last]
    if not whole or not np.isin(at, range(size)).all():
        raise NotListed("lists of indices can only be exported for the last axis")
    return reader.add("take", [x, _constant(at[..., 0])], step.canonical, step.dtype)


_RULES: dict[str, Callable[[_Reader, _Step], Value]] = {
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "argmax"), _reduce),
    "concatenate": _concatenate,
    "slice": _slice,
    "pad": _pad,
    "gather": _gather,
}
