"""A policy as an ONNX graph, by the package ``onnx``, which is an extra."""

from __future__ import annotations

import functools
import importlib.util
import re
from typing import Any

import numpy as np

from jaxrl_scale.errors import RunError
from jaxrl_scale.portable.program import NotListed, Operation, Program, Value

_OPSET = 18
"""Of ONNX 1.13, early in 2023, which today's runtimes know."""


def check_installed() -> None:
    """Raise a `RunError` unless ``onnx`` can be imported."""
    if importlib.util.find_spec("onnx") is None:
        raise RunError(
            "--onnx needs the package onnx, which is not installed; make install EXTRA=onnx, or "
            "pip install 'jaxrl_scale[onnx]', installs it"
        )


def write(program: Program, title: str) -> bytes:
    """The graph as a file. Its inputs and outputs are those of the program, where the next memory
    is called ``next_memory``. Raises `NotListed` if ONNX lacks an operation for its dtype.

    Args:
      title: what the policy is, in a line or more.
    """
    import onnx

    graph = _Graph(program)
    for op in program.operations:
        graph.write(op)
    outputs = []
    for name, x in program.outputs.items():
        name = f"next_{name}" if name in program.inputs else name
        graph.node("Identity", [graph.name(x)], name)
        outputs.append(_info(name, x))
    inputs = [_info(name, x) for name, x in program.inputs.items()]
    made = onnx.helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants, title)
    opsets = [onnx.helper.make_opsetid("", _OPSET)]
    model = onnx.helper.make_model(
        made, opset_imports=opsets, ir_version=8, producer_name="jaxrl_scale", doc_string=title
    )
    try:
        onnx.checker.check_model(model, full_check=True)
    except onnx.shape_inference.InferenceError as error:
        lacking = re.search(r"op_type:(\w+).*unsupported type: tensor\((\w+)\)", str(error))
        if lacking is None:
            raise
        raise NotListed("ONNX's {} takes no {}".format(*lacking.groups())) from error
    return bytes(model.SerializeToString())


def _info(name: str, x: Value) -> Any:
    import onnx

    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    shape = ["batch" if n is None else n for n in x.shape]
    return onnx.helper.make_tensor_value_info(name, kind, shape)


_NAMES = {
    **{"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min"},
    **{"pow": "Pow", "tanh": "Tanh", "logistic": "Sigmoid", "exp": "Exp", "log": "Log"},
    **{"sqrt": "Sqrt", "neg": "Neg", "abs": "Abs", "and": "And", "or": "Or", "not": "Not"},
    **{"ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "lt": "Less", "eq": "Equal"},
    **{"matmul": "MatMul"},
}
"""Operations that ONNX has under another name."""
_OF_BITS = {"and": "BitwiseAnd", "or": "BitwiseOr", "not": "BitwiseNot"}
"""Those of integers, where it has two."""
_OF_NUMBERS = ("max", "min", "ge", "gt", "le", "lt", "reduce_max", "reduce_min", "argmax")
"""Those that it does not have of bools, which become integers for them."""


class _Graph:
    """Collects the nodes of a graph and its constants."""

    def __init__(self, program: Program):
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._names = {x: name for name, x in program.inputs.items()}

    def name(self, x: Value) -> str:
        if x not in self._names:
            assert x.array is not None
            self._names[x] = self.constant(x.array, x.name)
        return self._names[x]

    def constant(self, array: Any, name: str = "") -> str:
        import onnx

        name = name or f"number_{len(self.constants)}"
        # A copy in order of its rows: `from_array` asks for one.
        self.constants.append(onnx.numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def node(self, kind: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        import onnx

        output = output or f"x{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, inputs, [output], **attributes))
        return output

    def whole(self, numbers: Any) -> str:
        """A constant of int64, as shapes and axes are."""
        return self.constant(np.array(numbers, np.int64))

    def write(self, op: Operation) -> None:
        """Add the nodes of one operation."""
        inputs = [self.name(x) for x in op.inputs]
        if of_bools := op.kind in _OF_NUMBERS and op.inputs[0].dtype == bool:
            inputs = [self.cast(x, np.dtype(np.int32)) for x in inputs]
        names = _NAMES | _OF_BITS if op.output.whole else _NAMES
        if op.kind in names:
            made = self.node(names[op.kind], inputs)
        else:
            made = getattr(self, f"_{op.kind}")(op, *inputs)
        if of_bools:
            made = self.cast(made, op.output.dtype)
        self._names[op.output] = made

    # --- operations that are no single node of the same inputs -----------------------------------

    def _ne(self, op: Operation, x: str, y: str) -> str:
        return self.node("Not", [self.node("Equal", [x, y])])

    def _square(self, op: Operation, x: str) -> str:
        return self.node("Mul", [x, x])

    def _rsqrt(self, op: Operation, x: str) -> str:
        return self.node("Reciprocal", [self.node("Sqrt", [x])])

    def _integer_pow(self, op: Operation, x: str) -> str:
        if op.output.whole and op.how["power"] > 0:
            # Runtimes compute Pow in floating point, where products of integers wrap around.
            return functools.reduce(
                lambda made, _: self.node("Mul", [made, x]), range(op.how["power"] - 1), x
            )
        return self.node("Pow", [x, self.constant(np.array(op.how["power"], op.output.dtype))])

    def _select_n(self, op: Operation, which: str, if_not: str, if_so: str) -> str:
        return self.node("Where", [which, if_so, if_not])

    def _clamp(self, op: Operation, low: str, x: str, high: str) -> str:
        return self.node("Min", [self.node("Max", [x, low]), high])

    def _convert_element_type(self, op: Operation, x: str) -> str:
        if op.output.whole and op.inputs[0].dtype.kind == "f":
            # What becomes of numbers beyond the integers of the dtype is left open by ONNX.
            known = np.iinfo(op.output.dtype)
            ends = [self.constant(np.array(n, np.float64)) for n in (known.min, known.max)]
            x = self.node("Clip", [self.cast(x, np.dtype(np.float64)), *ends])
        return self.cast(x, op.output.dtype)

    def cast(self, x: str, dtype: np.dtype[Any]) -> str:
        import onnx

        return self.node("Cast", [x], to=onnx.helper.np_dtype_to_tensor_dtype(dtype))

    def _reshape(self, op: Operation, x: str) -> str:
        return self.node("Reshape", [x, self._sizes(op)])

    def _sizes(self, op: Operation) -> str:
        return self.whole([-1 if n is None else n for n in op.output.shape])

    def _broadcast(self, op: Operation, x: str) -> str:
        if None not in op.output.shape:
            return self.node("Expand", [x, self.whole(op.output.shape)])
        batch = self.node("Shape", ["obs"], start=0, end=1)
        sizes = [batch, self.whole(op.output.shape[1:])]
        return self.node("Expand", [x, self.node("Concat", sizes, axis=0)])

    def _transpose(self, op: Operation, x: str) -> str:
        return self.node("Transpose", [x], perm=op.how["order"])

    def _concatenate(self, op: Operation, *inputs: str) -> str:
        return self.node("Concat", list(inputs), axis=op.how["axis"])

    def _reduce_sum(self, op: Operation, x: str) -> str:
        axes = self.whole(op.how["axes"])
        if not op.output.whole:
            return self.node("ReduceSum", [x, axes], keepdims=0)
        # In int64: runtimes lack sums of some others, and that of int32 need not wrap around.
        made = self.node("ReduceSum", [self.cast(x, np.dtype(np.int64)), axes], keepdims=0)
        return self.cast(made, op.output.dtype)

    def _reduce_max(self, op: Operation, x: str) -> str:
        return self.node("ReduceMax", [x, self.whole(op.how["axes"])], keepdims=0)

    def _reduce_min(self, op: Operation, x: str) -> str:
        return self.node("ReduceMin", [x, self.whole(op.how["axes"])], keepdims=0)

    def _argmax(self, op: Operation, x: str) -> str:
        made = self.node("ArgMax", [x], axis=op.how["axes"][0], keepdims=0)
        return self.cast(made, op.output.dtype)

    def _slice(self, op: Operation, x: str) -> str:
        spans = [(axis, *span) for axis, span in enumerate(op.how["spans"]) if span]
        axes, starts, stops, steps = zip(*spans, strict=True)
        return self.node("Slice", [x, *map(self.whole, (starts, stops, axes, steps))])

    def _take(self, op: Operation, x: str, at: str) -> str:
        return self.node("Gather", [x, at], axis=len(op.inputs[0].shape) - 1)

    def _pad(self, op: Operation, x: str, number: str) -> str:
        low, high = zip(*op.how["edges"], strict=True)
        return self.node("Pad", [x, self.whole((*low, *high)), number])

    def _conv(self, op: Operation, x: str, kernel: str) -> str:
        (top, bottom), (left, right) = op.how["padding"]
        x = self.node("Transpose", [x], perm=(0, 3, 1, 2))  # ONNX has the channels first
        kernel = self.node("Transpose", [kernel], perm=(3, 2, 0, 1))
        pads = (top, left, bottom, right)
        y = self.node("Conv", [x, kernel], strides=op.how["strides"], pads=pads)
        return self.node("Transpose", [y], perm=(0, 2, 3, 1))
