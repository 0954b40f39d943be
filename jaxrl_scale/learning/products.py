"""Matrix products and convolutions whose bits do not depend on the number of threads.

XLA:CPU gives a matrix product to one of two libraries. YNNPACK takes products whose sums run along
the last axis of the first factor, as in ``x @ w``. Its threads share the outputs, and each output
is one sum in one order. Eigen takes the rest: convolutions, and products whose first factor would
have to be transposed, as in ``x.T @ g``, the gradient of a layer's weights. Where these are large,
Eigen cuts the sums into parts, as many as XLA has threads. Their bits then depend on the cores of
the machine and on the number of devices.

`exact` rewrites a network so that YNNPACK takes everything. The gradient of a layer's weights
transposes its first factor in memory, behind a barrier that XLA does not move the transposition
across; this costs no time that could be measured, as YNNPACK is as much faster as the transposition
takes (jaxlib 0.10.2). A convolution of images becomes products of a few images at a time, which
is faster than XLA's own (benchmarks/convolutions.md); any other becomes a product with patches.

Sums that are no products are the other half of it: see `compiler_options`.

YNNPACK chooses its kernel by the processor. A **portable** network keeps to products for which its
kernels for AVX2 and for AVX-512 give the same bits: see `_portable_product`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from jaxrl_scale.options import largest_divisor
from jaxrl_scale.types import Array, PyTree

Multiply = Callable[[Array, Array], Array]
"""``x [..., k]``, ``w [k, n]`` -> ``x @ w``"""

_YNN, _PRODUCTS_ONLY = "xla_cpu_experimental_ynn_fusion_type", "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"

_MATH = "xla_cpu_enable_platform_dependent_math"
PORTABLE_NEEDS = frozenset({"avx2", "fma"})
"""What a processor has to have for a portable run, in the words of Linux."""


def compiler_options(portable: bool = False) -> dict[str, Any]:
    """XLA's options for a program on CPUs that is to add in one order.

    They keep YNNPACK from computing plain sums, which its threads would share in parts that
    depend on their number. `jaxrl_scale.__init__` asks for the same by a flag, but the flag
    comes too late where JAX has started before, as in a notebook. If the user has set the flag
    otherwise, the user's choice stands, unless the run is to be portable.

    Args:
      portable: compute 1 / sqrt(x) in full. Otherwise XLA begins with the processor's own
        estimate, which Intel and AMD round otherwise. The rest is `parallel.backend.cap`.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    chosen = [flag for flag in flags if flag.startswith(f"--{_YNN}=")]
    if portable:
        return {_YNN: _PRODUCTS_ONLY, _MATH: False}
    if chosen and chosen != [f"--{_YNN}=-reduce"]:
        return {}
    return {_YNN: _PRODUCTS_ONLY}


def exact(f: Callable[..., PyTree], portable: bool = False) -> Callable[..., PyTree]:
    """``f``, a network's function of parameters and observations, so that on CPUs its results and
    its gradient have the same bits for any number of threads; ``portable``: and on any processor
    that has `PORTABLE_NEEDS`, where `compiler_options` are those of a portable run."""

    def rewritten(*args: PyTree) -> PyTree:
        if jax.default_backend() != "cpu":
            return f(*args)
        program, out = jax.make_jaxpr(f, return_shape=True)(*args)
        results = _evaluate(program, portable, *jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(out), results)

    return rewritten


# --- the rewriting --------------------------------------------------------------------------


def _to_rewrite(jaxpr: core.Jaxpr) -> bool:
    """Whether there is anything in it to rewrite."""
    return any(
        _rule(eqn) is not None
        or (eqn.primitive.name in _NESTED and _to_rewrite(eqn.params["jaxpr"].jaxpr))
        for eqn in jaxpr.eqns
    )


def _evaluate(program: core.ClosedJaxpr, portable: bool, *args: Array) -> list[Array]:
    """The results of a program, with its products and convolutions rewritten."""
    jaxpr = program.jaxpr
    values: dict[core.Var, Array] = dict(zip(jaxpr.constvars, program.consts, strict=True))
    values |= dict(zip(jaxpr.invars, args, strict=True))
    pixels: dict[Any, Pixels] = {}

    def read(atom: Any) -> Array:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        inputs: list[Any] = [read(atom) for atom in eqn.invars]
        rule = _rule(eqn)
        if rule is not None:
            multiply = partial(
                _portable_product if portable else jnp.matmul,
                precision=eqn.params.get("precision", "highest"),
            )
            if rule is _convolution:
                inputs[0] = pixels.get(eqn.invars[0], Pixels(inputs[0]))
            outputs = [rule(*inputs, multiply, **eqn.params)]
        elif eqn.primitive.name in _NESTED and _to_rewrite(eqn.params["jaxpr"].jaxpr):
            outputs = _NESTED[eqn.primitive.name](eqn, portable, *inputs)
        else:
            result = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
            outputs = result if eqn.primitive.multiple_results else [result]
        values |= dict(zip(eqn.outvars, outputs, strict=True))
        if (images := _pixels(eqn, inputs, pixels)) is not None:
            pixels[eqn.outvars[0]] = images
    return [read(atom) for atom in jaxpr.outvars]


class Pixels(NamedTuple):
    """Numbers that follow from bytes, each from one and 0 from 0. What moves them about moves the
    bytes instead, which are a quarter of the memory."""

    x: Array
    to_numbers: Callable[[Array], Array] = lambda x: x


def _pixels(eqn: core.JaxprEqn, inputs: list[Any], known: dict[Any, Pixels]) -> Pixels | None:
    """What an operation makes of bytes, if it converts, scales, or reshapes them and no more."""

    def apply(x: Array) -> Array:
        result: Array = eqn.primitive.bind(x, *inputs[1:], **eqn.params)
        return result

    name = eqn.primitive.name
    if name == "convert_element_type" and inputs[0].dtype == jnp.uint8:
        return Pixels(inputs[0], apply)
    if not inputs or isinstance(eqn.invars[0], core.Literal) or eqn.invars[0] not in known:
        return None
    x, to_numbers = known[eqn.invars[0]]
    if name == "reshape":
        return Pixels(apply(x), to_numbers)
    if name in ("mul", "div") and isinstance(eqn.invars[1], core.Literal):
        return Pixels(x, lambda y: apply(to_numbers(y)))
    return None


def _jit(eqn: core.JaxprEqn, portable: bool, *args: Array) -> list[Array]:
    return _evaluate(eqn.params["jaxpr"], portable, *args)


def _scan(eqn: core.JaxprEqn, portable: bool, *args: Array) -> list[Array]:
    num_consts, num_carry = scan_counts(eqn)
    constants, rest = args[:num_consts], args[num_consts:]

    def step(carry: list[Array], x: list[Array]) -> tuple[list[Array], list[Array]]:
        results = _evaluate(eqn.params["jaxpr"], portable, *constants, *carry, *x)
        return results[:num_carry], results[num_carry:]

    how = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    carry, outputs = jax.lax.scan(step, list(rest[:num_carry]), list(rest[num_carry:]), **how)
    return [*carry, *outputs]


def scan_counts(eqn: core.JaxprEqn) -> tuple[int, int]:
    """How many of a scan's inputs are constants, and how many its carry has. The other inputs and
    outputs have an axis more than one round sees, which tells them apart in every version of JAX:
    0.10 says these numbers, and 0.11 does not."""
    inner = eqn.params["jaxpr"]

    def same_rank(atoms: Any, avals: Any) -> int:
        pairs = zip(atoms, avals, strict=True)
        return sum(len(atom.aval.shape) == len(aval.shape) for atom, aval in pairs)

    num_carry = same_rank(eqn.outvars, inner.out_avals)
    return same_rank(eqn.invars, inner.in_avals) - num_carry, num_carry


_NESTED = {"jit": _jit, "pjit": _jit, "scan": _scan}


def _rule(eqn: core.JaxprEqn) -> Callable[..., Array] | None:
    """What stands for one operation, or None where it may stay."""
    params = eqn.params
    if eqn.primitive.name in ("dot_general", "conv_general_dilated"):
        avals: list[Any] = [atom.aval for atom in (*eqn.invars, *eqn.outvars)]
        x, w, out = avals
        if not x.dtype == w.dtype == out.dtype:  # as `preferred_element_type` asks for
            return None
    if eqn.primitive.name == "dot_general":
        of_a_layer = params["dimension_numbers"] == (((x.ndim - 1,), (0,)), ((), ()))
        # A single column is a loop of XLA's own, which is never shared.
        if of_a_layer and w.ndim == 2 and w.shape[1] > 1 and x.ndim > 1:
            return _product
    if eqn.primitive.name == "add" and len(eqn.invars) == 2:
        of_both: list[Any] = [atom.aval for atom in eqn.invars]
        shape, of_bias = (aval.shape for aval in of_both)
        if len(shape) == 4 and of_bias == (1, 1, 1, shape[-1]):
            return _biased
    if eqn.primitive.name == "conv_general_dilated":
        plain = params["feature_group_count"] == params["batch_group_count"] == 1
        if plain and all(step == 1 for step in params["lhs_dilation"]):
            return _convolution
    return None


def _biased(x: Array, bias: Array, multiply: Multiply) -> Array:
    """``x [N, H, W, C] + bias [1, 1, 1, C]``. The gradient is a product with ones, as XLA's own sum
    over all but the last axis takes ten times as long."""

    @jax.custom_vjp
    def add(x: Array, bias: Array) -> Array:
        return x + bias

    def forward(x: Array, bias: Array) -> tuple[Array, None]:
        return x + bias, None

    def backward(_: None, g: Array) -> tuple[Array, Array]:
        rows = g.reshape(-1, g.shape[-1])
        return g, multiply(jnp.ones((1, len(rows)), g.dtype), rows).reshape(1, 1, 1, -1)

    add.defvjp(forward, backward)
    return add(x, bias)


def _product(x: Array, w: Array, multiply: Multiply, **params: Any) -> Array:
    """``x [..., k] @ w [k, n]`` with a gradient of its own."""

    @jax.custom_vjp
    def product(x: Array, w: Array) -> Array:
        return multiply(x, w)

    def forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
        return product(x, w), (x, w)

    def backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
        x, w = saved
        transposed = jax.lax.optimization_barrier(x.T)
        return multiply(g, w.T), multiply(transposed, g)

    product.defvjp(forward, backward)
    return product(x.reshape(-1, x.shape[-1]), w).reshape(*x.shape[:-1], w.shape[-1])


_COLUMNS, _TERMS = 64, 512


def _portable_product(x: Array, w: Array, *, precision: Any) -> Array:
    """``x [..., k] @ w [k, n]`` in products that YNNPACK computes with the same bits on processors
    with AVX2 and with AVX-512.

    Its kernels differ in how many columns they compute at a time and in where they cut long sums.
    Both add one term after the other where the columns fill whole tiles of 64 and a sum has at most
    512 terms (tried with jaxlib 0.10.2 for each kernel, on the same processor: docs/exactness.md).
    A single column is no product for YNNPACK, but a loop of XLA's own.
    """
    rows, columns = x.shape[:-1], w.shape[1]
    if 1 < columns < _COLUMNS and len(rows) == 1 and rows[0] % _COLUMNS == 0:
        # The rows fill the tiles: with padding, PPO with 1,024 environments took a seventh longer.
        return _sum_of_products(jax.lax.optimization_barrier(w.T), x.T, precision).T
    if columns > 1:
        w = jnp.pad(w, ((0, 0), (0, -columns % _COLUMNS)))
    return _sum_of_products(x, w, precision)[..., :columns]


def _sum_of_products(x: Array, w: Array, precision: Any) -> Array:
    """``x [..., k] @ w [k, n]``, `_TERMS` terms at a time."""
    total, *others = (
        jnp.matmul(x[..., k : k + _TERMS], w[k : k + _TERMS], precision=precision)
        for k in range(0, len(w), _TERMS)
    )
    for other in others:
        total = total + other
    return total


def _convolution(
    seen: Pixels, kernel: Array, multiply: Multiply, *, dimension_numbers: Any, **params: Any
) -> Array:
    """A convolution of any layout, by one of images in rows or by the patches of anything else."""
    x, to_numbers = seen
    of_x, of_kernel, of_out = dimension_numbers
    x = x.transpose(of_x[0], *of_x[2:], of_x[1])  # [N, *space, C]
    kernel = kernel.transpose(*of_kernel[2:], of_kernel[1], of_kernel[0])  # [*window, C, O]
    no_padding = (0, 0, 0)
    edges = [no_padding, *((low, high, 0) for low, high in params["padding"]), no_padding]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), edges)
    strides, dilation = params["window_strides"], params["rhs_dilation"]
    if len(strides) == 2 and strides[0] == strides[1] and dilation == (1, 1):
        y = _folded(Pixels(x, to_numbers), kernel, strides[0], multiply)
    else:
        patches = _patches(to_numbers(x), kernel.shape[:-2], strides, dilation)
        y = _product(patches, kernel.reshape(-1, kernel.shape[-1]), multiply)
    return y.transpose(np.argsort((of_out[0], *of_out[2:], of_out[1])))


def _patches(
    x: Array, window: tuple[int, ...], strides: tuple[int, ...], dilation: tuple[int, ...]
) -> Array:
    """What the window sees for every output: of ``x [N, *space, C]``, ``[N, *out, window C]``."""
    reach = [(size - 1) * step for size, step in zip(window, dilation, strict=True)]

    def seen_from(position: tuple[int, ...]) -> Array:
        """What one position of the window sees: ``[N, *out, C]``."""
        start = [at * step for at, step in zip(position, dilation, strict=True)]
        stop = [s + n - r for s, n, r in zip(start, x.shape[1:-1], reach, strict=True)]
        return jax.lax.slice(x, (0, *start, 0), (x.shape[0], *stop, x.shape[-1]), (1, *strides, 1))

    return jnp.concatenate([seen_from(position) for position in np.ndindex(*window)], -1)


# --- convolutions of images -------------------------------------------------------------------

_FEW = 8
"""Images with fewer channels than this are folded."""
_BLOCK = 2**19
"""Numbers that are computed of some images at a time: 2 MiB, which stay in a core's cache."""
_ADD, _COPY = 8, 30
"""What it costs to add a number to a result, or to copy one into a patch, in additions and
multiplications of a product (benchmarks/convolutions.md)."""


def _folded(seen: Pixels, kernel: Array, stride: int, multiply: Multiply) -> Array:
    """A convolution ``[N, H, W, C] -> [N, h, w, O]`` without padding, as one without strides.

    Cells of ``stride`` by ``stride`` pixels become the channels of one (space to depth), which
    makes of a window of 8 by 8 pixels and stride 4 one of 2 by 2 cells. Where there are few
    channels and no stride, a cell holds 2 by 2 pixels all the same, and 2 by 2 outputs are
    computed at a time: products and copies of rows as short as that are slow.
    """
    x, to_numbers = seen
    outputs = 2 if stride == 1 and x.shape[-1] < _FEW else 1  # along an edge of a cell
    cell = stride * outputs
    if cell == 1:
        return _correlation(seen, kernel, multiply)
    images, channels, features = x.shape[0], x.shape[-1], kernel.shape[-1]
    out = [(n - k) // stride + 1 for n, k in zip(x.shape[1:3], kernel.shape[:2], strict=True)]
    window = [-(-(k + stride * (outputs - 1)) // cell) for k in kernel.shape[:2]]  # in cells
    cells = [-(-n // outputs) + w - 1 for n, w in zip(out, window, strict=True)]

    ends = [c * cell - n for c, n in zip(cells, x.shape[1:3], strict=True)]
    x = jax.lax.pad(
        x, jnp.zeros((), x.dtype), [(0, 0, 0), *((0, end, 0) for end in ends), (0, 0, 0)]
    )
    if cell * channels % 16:  # XLA is slow to convert such rows, unless it transposes them too
        x, to_numbers = Pixels(to_numbers(x))
    x = _cells(x.reshape(images, cells[0], cell, cells[1], cell * channels))

    def shifted(kernel: Array, axis: int) -> Array:
        """The kernel as each of a cell's outputs applies it, along one edge."""
        end = window[axis] * cell - kernel.shape[axis]
        edges = [[(0, 0)] * kernel.ndim for _ in range(outputs)]
        for at, edge in enumerate(edges):
            edge[axis] = (at * stride, end - at * stride)
        return jnp.stack([jnp.pad(kernel, edge) for edge in edges], -2)

    kernel = shifted(shifted(kernel, 0), 1)  # [rows, columns, C, outputs, outputs, O]
    kernel = kernel.reshape(window[0], cell, window[1], cell, channels, -1)
    kernel = kernel.transpose(0, 2, 1, 3, 4, 5).reshape(*window, x.shape[-1], -1)
    y = _correlation(Pixels(x, to_numbers), kernel, multiply)
    blocks = y.shape[1:3]
    y = y.reshape(images, *blocks, outputs, outputs, features).transpose(0, 1, 3, 2, 4, 5)
    y = y.reshape(images, blocks[0] * outputs, blocks[1] * outputs, features)
    return y[:, : out[0], : out[1]]


def _cells(x: Array) -> Array:
    """``[N, rows, cell, columns, numbers] -> [N, rows, columns, cell * numbers]``, a transposition.

    Of bytes, XLA writes slices in place in 5 microseconds where it transposes in 22 (84 by 84
    pixels of 4 channels, jaxlib 0.10.2, one thread).
    """
    images, rows, cell, columns, numbers = x.shape
    if x.dtype != jnp.uint8:
        return x.swapaxes(2, 3).reshape(images, rows, columns, -1)
    y = jnp.zeros((images, rows, columns, cell, numbers), x.dtype)
    for row in range(cell):
        y = jax.lax.dynamic_update_slice(y, x[:, :, row, :, None], (0, 0, 0, row, 0))
    return y.reshape(images, rows, columns, -1)


def _correlation(seen: Pixels, kernel: Array, multiply: Multiply) -> Array:
    """``x [N, H, W, C]`` with ``kernel [kh, kw, C, O]``, no stride, no padding, with a gradient of
    its own."""
    x, to_numbers = seen

    @jax.custom_vjp
    def correlate(x: Array, kernel: Array) -> Array:
        return _correlated(Pixels(x, to_numbers), kernel, multiply)

    def forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
        return correlate(x, kernel), (x, kernel)

    def backward(saved: tuple[Array, Array], g: Array) -> tuple[Any, Array]:
        x, kernel = saved
        if x.dtype == jnp.uint8:
            of_x: Any = np.zeros(x.shape, jax.dtypes.float0)  # bytes have no gradient
        else:
            of_x = _input_gradient(g, kernel, multiply)
        return of_x, _kernel_gradient(Pixels(x, to_numbers), g, multiply)

    correlate.defvjp(forward, backward)
    return correlate(x, kernel)


def _correlated(seen: Pixels, kernel: Array, multiply: Multiply) -> Array:
    """`_correlation` itself, in the cheaper of two ways.

    Either every pixel is multiplied by all of the kernel, and each result is the sum of what its
    window's pixels contribute to it. This needs no patches, but pixels near the edges are also
    multiplied by parts of the kernel that never see them. Or patches are multiplied by the kernel.
    """
    x, to_numbers = seen
    height, width, channels, features = kernel.shape
    pixels = math.prod(x.shape[1:3])
    out = [n - k + 1 for n, k in zip(x.shape[1:3], (height, width), strict=True)]
    shifted = pixels * features * (2 * channels + _ADD)
    patched = math.prod(out) * channels * (2 * features + _COPY)

    def by_shifts(x: Array) -> Array:
        matrix = kernel.transpose(2, 0, 1, 3).reshape(channels, -1)
        terms = multiply(to_numbers(x), matrix)
        terms = terms.reshape(*x.shape[:3], height * width, features)
        total = jnp.zeros((), kernel.dtype)
        for k, (row, column) in enumerate(np.ndindex(height, width)):
            total = total + terms[:, row : row + out[0], column : column + out[1], k]
        return total

    def by_patches(x: Array) -> Array:
        patches = _patches(to_numbers(x), (height, width), (1, 1), (1, 1))
        return multiply(patches, kernel.reshape(-1, features))

    images = _images_at_a_time(x.shape, kernel.shape)
    few = x.reshape(-1, images, *x.shape[1:])
    y = jax.lax.map(by_shifts if shifted < patched else by_patches, few)
    return y.reshape(-1, *out, features)


def _images_at_a_time(x: tuple[int, ...], kernel: tuple[int, ...]) -> int:
    """How many, so that what is computed of each pixel stays in a core's cache. It is the same
    number for results and gradients, so that XLA lays ``x`` out once for both."""
    height, width, channels, features = kernel
    numbers = math.prod(x[1:3]) * height * width * max(channels, features)
    return largest_divisor(x[0], max(1, _BLOCK // numbers))


def _input_gradient(g: Array, kernel: Array, multiply: Multiply) -> Array:
    """Of `_correlation`: the gradient ``g [N, h, w, O]`` of its results gives ``[N, H, W, C]``.

    Each result's product with all of the kernel is added to the pixels of its window.
    """
    height, width, channels, features = kernel.shape
    rows, columns = g.shape[1:3]
    pixels = rows + height - 1, columns + width - 1
    matrix = kernel.reshape(-1, features).T

    def block(g: Array) -> Array:
        terms = multiply(g, matrix)
        terms = terms.reshape(*g.shape[:3], height * width, channels)
        total = jnp.zeros((len(g), *pixels, channels), g.dtype)
        for k, (row, column) in enumerate(np.ndindex(height, width)):
            # XLA updates a slice in place, where `total.at[...].add` would become a scatter.
            before = total[:, row : row + rows, column : column + columns]
            after = before + terms[..., k, :]
            total = jax.lax.dynamic_update_slice(total, after, (0, row, column, 0))
        return total

    images = _images_at_a_time((len(g), *pixels), kernel.shape)
    x = jax.lax.map(block, g.reshape(-1, images, *g.shape[1:]))
    return x.reshape(-1, *pixels, channels)


def _kernel_gradient(seen: Pixels, g: Array, multiply: Multiply) -> Array:
    """Of `_correlation`: ``x [N, H, W, C]`` and the gradient ``g [N, h, w, O]`` of its results give
    ``[kh, kw, C, O]``.

    A few images at a time, by one product for each place of the window. It is ``g`` that is
    transposed, the smaller of the factors.
    """
    x, to_numbers = seen
    rows, columns = g.shape[1:3]
    window = [n - m + 1 for n, m in zip(x.shape[1:3], g.shape[1:3], strict=True)]
    channels, features = x.shape[-1], g.shape[-1]
    images = _images_at_a_time(x.shape, (*window, channels, features))

    def block(totals: list[Array], some: tuple[Array, Array]) -> tuple[list[Array], None]:
        x, g = to_numbers(some[0]), some[1]
        transposed = jax.lax.optimization_barrier(g.reshape(-1, features).T)

        def product(row: int, column: int) -> Array:
            seen = x[:, row : row + rows, column : column + columns].reshape(-1, channels)
            return multiply(transposed, seen)

        places = np.ndindex(*window)
        return [t + product(*place) for t, place in zip(totals, places, strict=True)], None

    few = x.reshape(-1, images, *x.shape[1:]), g.reshape(-1, images, *g.shape[1:])
    nothing = [jnp.zeros((features, channels), g.dtype)] * math.prod(window)
    totals, _ = jax.lax.scan(block, nothing, few)
    # A loop of one round is no loop to XLA, which would then compute the transposed product.
    total = jax.lax.optimization_barrier(jnp.stack(totals))
    return total.swapaxes(1, 2).reshape(*window, channels, features)
