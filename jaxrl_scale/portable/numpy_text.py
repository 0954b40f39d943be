"""A policy as a Python file that needs NumPy alone, and reads its weights from a file beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl_scale.portable.program import Operation, Program, Value

_WIDTH = 100
"""Characters of a line."""
_LONGEST = 90
"""Characters of an expression and of the name that it gets."""
_LAYERS = {"matmul": " @ ", "conv": "conv("}
"""Operations of which a line has one, and how they are written."""


def write(program: Program, title: str) -> str:
    """The text of ``policy.py``, which reads ``policy.npz``: the `Program.weights`.

    Args:
      title: what the policy is, in a line or more.
    """
    memory, obs = program.memory, program.inputs["obs"]
    recurrent, several = bool(memory), len(memory) > 1
    body, helpers = _network(program)
    sizes = ", ".join(map(str, obs.shape[1:]))
    empty = [_zeros(program.inputs[name]) for name in memory]
    results = [name for name in _returned(program) if name not in memory]
    results += [f"{memory[0]} to {memory[-1]}"] if several else memory
    words = {
        "one": f"[{sizes}]",
        "batch": f"[B, {sizes}]" if sizes else "[B]",
        "dtype": obs.dtype.name,
        "rank": len(obs.shape) - 1,
        "empty": _listed("    return (", empty, ")") if several else f"    return {''.join(empty)}",
        "memory": "*memory" if several else "memory",
        "next": _NEXT_OF_SEVERAL.format(len(memory) + 1) if several else 'found["memory"]',
        "signature": _listed("def network(", list(program.inputs), "):"),
        "results": ", ".join(results),
        "scores": _of_scores(program.outputs.get("scores")),
        "whole": _WHOLE.format(dtype=obs.dtype.name) if obs.dtype.kind != "f" else "",
        **_shape_words(obs.shape[1:], recurrent),
    }
    title = title.replace("\\", r"\\").replace('"', r"\"")  # as a docstring holds it
    parts = [
        _HEAD.format(title=title, usage=_USAGE[recurrent].format(**words)),
        _ACT[recurrent].format(**words),
        _CHECKED.format(**words),
        _NETWORK.format(**words) + "\n".join(f"    {line}" for line in body) + "\n",
        *(_HELPERS[name] for name in sorted(helpers)),
    ]
    return "\n\n".join(parts)


def _shape_words(shape: tuple[int | None, ...], recurrent: bool) -> dict[str, str]:
    """When the shape of observations does not fit, and which one would."""
    if recurrent:
        batch = f"(B, {', '.join(map(str, shape))})" if shape else "(B,)"
        unfit = f"obs.ndim != {len(shape) + 1} or obs.shape[1:] != {shape}"
        return {"unfit": unfit, "wanted": batch}
    unfit = f"{shape} not in (obs.shape, obs.shape[1:])"
    return {"unfit": unfit, "wanted": f"{shape}, or a batch of these"}


def _zeros(memory: Value) -> str:
    """An empty array of a memory, for so many episodes as ``batch`` says."""
    sizes = ", ".join(map(str, memory.shape[1:]))
    return f"np.zeros({f'(batch, {sizes})' if sizes else 'batch'}, np.{memory.dtype.name})"


def _network(program: Program) -> tuple[list[str], set[str]]:
    """The lines of the function, and the helpers that they call."""
    uses = program.uses()
    lines: list[str] = []
    helpers: set[str] = set()
    written: dict[Value, _Text] = {x: _Text(name) for name, x in program.inputs.items()}
    outputs = {x: name for name, x in program.outputs.items()}

    def text(x: Value) -> _Text:
        return _constant(x) if x.array is not None else written[x]

    def assign(x: Value, made: _Text, name: str = "") -> None:
        name = name or f"x{sum(line.startswith('x') for line in lines) + 1}"
        lines.append(f"{name} = {made.text}")
        written[x] = _Text(name)

    for op in program.operations:
        own = outputs.get(op.output, "")
        own = f"next_{own}" if own in program.inputs else own
        # A line has one layer, and is as long as a line may be.
        for x in op.inputs:
            if op.kind in _LAYERS and any(sign in text(x).text for sign in _LAYERS.values()):
                assign(x, text(x))
        while (
            len((made := _expression(op, [text(x) for x in op.inputs])).text) + len(own) > _LONGEST
        ):
            longest = max(op.inputs, key=lambda x: (x.array is None) * len(text(x).text))
            if longest.array is not None or text(longest).text.isidentifier():
                break
            assign(longest, text(longest))
        helpers |= {name for name in _HELPERS if f"{name}(" in made.text}
        written[op.output] = made
        if own or uses[op.output] > 1:
            assign(op.output, made, own)
    found = [f'"{name}": {text(program.outputs[name]).text}' for name in _returned(program)]
    lines += _listed("return {", found, "}", _WIDTH - 4).splitlines()
    return lines, helpers


def _listed(before: str, items: list[str], after: str, width: int = _WIDTH) -> str:
    """The items between two brackets: in one line, or each in its own if that were too long."""
    line = before + ", ".join(items) + after
    if len(line) <= width:
        return line
    indent = " " * (len(before) - len(before.lstrip()))
    between = "".join(f"{indent}    {item},\n" for item in items)
    return f"{before}\n{between}{indent}{after}"


def _returned(program: Program) -> list[str]:
    return [name for name in ("action", "scores", *program.memory) if name in program.outputs]


class _Text:
    """An expression in Python. ``binds``: how strongly its operator does; 0 needs no brackets."""

    def __init__(self, text: str, binds: int = 0):
        self.text, self.binds = text, binds

    def within(self, loosest: int) -> str:
        """As an operand of an operator that binds at most so loosely."""
        return f"({self.text})" if self.binds > loosest else self.text


def _constant(x: Value) -> _Text:
    assert x.array is not None
    if x.name:
        return _Text(f'W["{x.name}"]')
    number = x.array[()]
    if x.array.dtype == bool:
        return _Text(str(bool(number)))
    if np.issubdtype(x.array.dtype, np.integer):
        return _Text(str(int(number)))
    if not np.isfinite(number):
        return _Text("np.nan" if np.isnan(number) else "np.inf" if number > 0 else "-np.inf")
    return _Text(str(number))  # the shortest text that is this number in float32


_SIGNS = {  # and how strongly they bind: their operands, left and right
    **{"matmul": ("@", 2), "mul": ("*", 2), "div": ("/", 2)},
    **{"add": ("+", 3), "sub": ("-", 3)},
    **{"and": ("&", 4), "or": ("|", 5)},
    **{"ge": (">=", 6), "gt": (">", 6), "le": ("<=", 6), "lt": ("<", 6)},
    **{"eq": ("==", 6), "ne": ("!=", 6)},
}
_FUNCTIONS = {
    **{name: f"np.{name}" for name in ("tanh", "exp", "log", "sqrt", "abs", "square")},
    **{"max": "np.maximum", "min": "np.minimum", "pow": "np.power"},
    **{"not": "np.logical_not", "logistic": "sigmoid"},
}
_REDUCTIONS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min"}


def _expression(op: Operation, inputs: list[_Text]) -> _Text:
    inputs = _typed(op, inputs)
    kind, plain = op.kind, [x.text for x in inputs]
    if op.output.whole and kind in _OF_INTEGERS:
        return _OF_INTEGERS[kind](op, inputs)
    if kind in _SIGNS:
        sign, binds = _SIGNS[kind]
        left, right = inputs
        # Comparisons chain in Python, so theirs get brackets on both sides.
        return _Text(f"{left.within(binds - (binds == 6))} {sign} {right.within(binds - 1)}", binds)
    if kind in _FUNCTIONS:
        return _Text(f"{_FUNCTIONS[kind]}({', '.join(plain)})")
    if kind in _REDUCTIONS:
        return _Text(f"{inputs[0].within(0)}.{_REDUCTIONS[kind]}({_axis(op)})")
    return _OTHERS[kind](op, inputs)


def _typed(op: Operation, inputs: list[_Text]) -> list[_Text]:
    """With the dtype of plain numbers where no array beside them decides it."""
    dtype = op.output.dtype
    alike = [x for x in op.inputs if x.dtype == dtype]
    if dtype.kind == "b" or not all(x.array is not None and not x.name for x in alike):
        return inputs
    return [
        _Text(f"np.{dtype}({text.text})") if x in alike else text
        for x, text in zip(op.inputs, inputs, strict=True)
    ]


def _axis(op: Operation) -> Any:
    axes = op.how["axes"]
    return axes[0] if len(axes) == 1 else axes


def _shape(shape: tuple[int | None, ...]) -> str:
    sizes = ["len(obs)" if n is None else str(n) for n in shape]
    return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"


def _reshape(op: Operation, inputs: list[_Text]) -> _Text:
    sizes = ", ".join("-1" if n is None else str(n) for n in op.output.shape)
    return _Text(f"{inputs[0].within(0)}.reshape({sizes})")


def _slice(op: Operation, inputs: list[_Text]) -> _Text:
    def one(span: tuple[int, int, int] | None) -> str:
        if span is None:
            return ":"
        start, stop, step = span
        return f"{start or ''}:{stop}{f':{step}' if step != 1 else ''}"

    spans = list(op.how["spans"])
    while spans[-1] is None:
        spans.pop()
    return _Text(f"{inputs[0].within(0)}[{', '.join(map(one, spans))}]")


def _conv(op: Operation, inputs: list[_Text]) -> _Text:
    x, kernel = (i.text for i in inputs)
    return _Text(f"conv({x}, {kernel}, {op.how['strides']}, {op.how['padding']})")


def _quotient(op: Operation, inputs: list[_Text]) -> _Text:
    x, y = inputs
    if op.output.dtype.kind == "u":
        return _Text(f"{x.within(2)} // {y.within(1)}", 2)
    return _Text(f"quotient({x.text}, {y.text})")


def _conversion(op: Operation, inputs: list[_Text]) -> _Text:
    if op.inputs[0].dtype.kind == "f":
        return _Text(f"whole({inputs[0].text}, np.{op.output.dtype})")
    return _OTHERS[op.kind](op, inputs)


# NumPy widens sums and indices of integers, and JAX does not.
_OF_INTEGERS: dict[str, Callable[[Operation, list[_Text]], _Text]] = {
    "div": _quotient,
    "not": lambda op, x: _Text(f"np.invert({x[0].text})"),
    "convert_element_type": _conversion,
    "reduce_sum": lambda op, x: _Text(
        f"{x[0].within(0)}.sum({_axis(op)}, dtype=np.{op.output.dtype})"
    ),
    "argmax": lambda op, x: _Text(
        f"{x[0].within(0)}.argmax({_axis(op)}).astype(np.{op.output.dtype})"
    ),
}
_OTHERS: dict[str, Callable[[Operation, list[_Text]], _Text]] = {
    "rsqrt": lambda op, x: _Text(f"1 / np.sqrt({x[0].text})", 2),
    "neg": lambda op, x: _Text(f"-{x[0].within(0)}", 2),
    "integer_pow": lambda op, x: _Text(f"{x[0].within(0)} ** {op.how['power']}", 1),
    "select_n": lambda op, x: _Text(f"np.where({x[0].text}, {x[2].text}, {x[1].text})"),
    "clamp": lambda op, x: _Text(f"np.clip({x[1].text}, {x[0].text}, {x[2].text})"),
    "convert_element_type": lambda op, x: _Text(f"{x[0].within(0)}.astype(np.{op.output.dtype})"),
    "reshape": _reshape,
    "broadcast": lambda op, x: _Text(f"np.broadcast_to({x[0].text}, {_shape(op.output.shape)})"),
    "transpose": lambda op, x: _Text(f"{x[0].within(0)}.transpose{op.how['order']}"),
    "concatenate": lambda op, x: _Text(
        f"np.concatenate([{', '.join(i.text for i in x)}], {op.how['axis']})"
    ),
    "slice": _slice,
    "take": lambda op, x: _Text(f"{x[0].within(0)}[..., {x[1].text}]"),
    "pad": lambda op, x: _Text(
        f"np.pad({x[0].text}, {op.how['edges']}, constant_values={x[1].text})"
    ),
    "conv": _conv,
}

_HEAD = '''\
"""{title}

    import policy
{usage}

It takes the best actions. It needs NumPy and the file policy.npz beside it, nothing else.
"""

from pathlib import Path

import numpy as np

with np.load(Path(__file__).with_name("policy.npz")) as file:
    W = dict(file)
'''

_USAGE = {
    False: """\
    action = policy.act(observation)

This is for one observation {one}, or for a batch of them {batch}.""",
    True: """\
    memory = policy.empty_memory(B)
    action, memory = policy.act(observations, memory, is_first)

This is for a batch of observations {batch}.
is_first [B] says which of the observations open an episode: there the memory is emptied.""",
}

_ACT = {
    False: '''\
def act(obs):
    """The best action for one observation {one}, or those for a batch of them."""
    obs = checked(obs)
    one = obs.ndim == {rank}
    action = network(obs[None] if one else obs)["action"]
    return action[0] if one else action
''',
    True: '''\
def empty_memory(batch):
    """The memory before the first observations, of so many episodes side by side."""
{empty}


def act(obs, memory, is_first=None):
    """The best actions for a batch of observations, and the next memory."""
    obs = checked(obs)
    first = np.zeros(len(obs), bool) if is_first is None else np.asarray(is_first, bool)
    found = network(obs, {memory}, first)
    return found["action"], {next}
''',
}

# As `jaxrl_scale.loop.agent.Agent.act` does, in the same words.
_CHECKED = '''\
def checked(obs):
    """The observations, of dtype {dtype}. A ValueError says why something else is none."""
    try:
        given = np.asarray(obs)
        if given.dtype.kind in "OUSc":
            raise TypeError(f"an array of {{given.dtype}}, not of numbers")
        with np.errstate(invalid="ignore"):
            obs = given.astype(np.{dtype})
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"this is no observation of the policy: {{error}}") from None
{whole}    if {unfit}:
        said = f"an observation of shape {{obs.shape}} is none of the policy"
        raise ValueError(f"{{said}}; it should be {wanted}")
    return obs
'''

_WHOLE = """\
    if (unlike := obs != given).any():
        said = f"its numbers are {dtype}, and {{given[unlike][0]}} is none"
        raise ValueError(f"this is no observation of the policy: {{said}}")
"""

_NEXT_OF_SEVERAL = 'tuple(found[f"memory_{{k}}"] for k in range(1, {}))'

_NETWORK = '''\
{signature}
    """For observations {batch} of dtype {dtype} a dict with {results}.{scores}"""
'''

_SCORES = """

    The best action is the one with the largest of the scores [B, n]: the policy's logits, or the
    values of the actions.
    """

_SCORES_OF_PARTS = """

    Each part of the best action is the number with the largest of its scores [B, {parts}, {n}]: the
    policy's logits. Behind those of a smaller part they are -inf.
    """


def _of_scores(scores: Value | None) -> str:
    """What they are, of actions of one part or of several; without any nothing."""
    if scores is None or len(scores.shape) < 3:
        return _SCORES if scores else ""
    _, parts, n = scores.shape
    return _SCORES_OF_PARTS.format(parts=parts, n=n)


_HELPERS = {
    "conv": '''\
def conv(images, kernel, strides, padding):
    """Images [B, height, width, channels] with a kernel [rows, columns, channels, n]."""
    images = np.pad(images, ((0, 0), *padding, (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(images, kernel.shape[:2], (1, 2))
    seen = seen[:, :: strides[0], :: strides[1]]  # [B, height, width, channels, rows, columns]
    return np.tensordot(seen, kernel, ((4, 5, 3), (0, 1, 2)))
''',
    "quotient": '''\
def quotient(x, y):
    """Integers divided and rounded toward 0, where // rounds down."""
    return (x - np.fmod(x, y)) // y
''',
    "whole": '''\
def whole(x, dtype):
    """Numbers rounded toward 0; those beyond the integers of the dtype become its last ones."""
    known = np.iinfo(dtype)
    return np.clip(x.astype(np.float64), known.min, known.max).astype(dtype)
''',
    "sigmoid": '''\
def sigmoid(x):
    """1 / (1 + exp(-x)), and no overflow."""
    return 0.5 * np.tanh(0.5 * x) + 0.5
''',
}
