"""Matrix products and convolutions whose bits do not depend on the number of threads.

XLA:CPU gives a matrix product to one of two libraries. YNNPACK takes products whose sums run along
the last axis of the first factor, as in ``x @ w``. Its threads share the outputs, and each output
is one sum in one order. Eigen takes the rest: convolutions, and products whose first factor would
have to be transposed, as in ``x.T @ g``, the gradient of a layer's weights. Where these are large,
Eigen cuts the sums into parts, as many as XLA has threads. Their bits then depend on the cores of
the machine and on the number of devices.

`exact` rewrites a network so that YNNPACK takes everything: a convolution becomes a product with
the patches of the image, and the gradient of a layer's weights transposes its first factor in
memory, behind a barrier that XLA does not move the transposition across. This costs no time that
could be measured: YNNPACK is as much faster as the transposition takes (jaxlib 0.10.2).

Sums that are no products are the other half of it: see `compiler_options`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from jaxrl_scale.types import Array, PyTree

_YNN = "xla_cpu_experimental_ynn_fusion_type"


def compiler_options() -> dict[str, str]:
    """XLA's options for a program on CPUs that is to add in one order.

    They keep YNNPACK from computing plain sums, which its threads would share in parts that
    depend on their number. `jaxrl_scale.__init__` asks for the same by a flag, but the flag
    comes too late where JAX has started before, as in a notebook. If the user has set the flag
    otherwise, the user's choice stands.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    chosen = [flag for flag in flags if flag.startswith(f"--{_YNN}=")]
    if chosen and chosen != [f"--{_YNN}=-reduce"]:
        return {}
    return {_YNN: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}


def exact(f: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """``f``, a network's function of parameters and observations, so that on CPUs its results and
    its gradient have the same bits for any number of threads."""

    def rewritten(*args: PyTree) -> PyTree:
        if jax.default_backend() != "cpu":
            return f(*args)
        program, out = jax.make_jaxpr(f, return_shape=True)(*args)
        results = _evaluate(program, *jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(out), results)

    return rewritten


# --- the rewriting --------------------------------------------------------------------------


def _to_rewrite(jaxpr: core.Jaxpr) -> bool:
    """Is there anything in it to rewrite?"""
    return any(
        _rule(eqn) is not None
        or (eqn.primitive.name in _NESTED and _to_rewrite(eqn.params["jaxpr"].jaxpr))
        for eqn in jaxpr.eqns
    )


def _evaluate(program: core.ClosedJaxpr, *args: Array) -> list[Array]:
    """The results of a program, with its products and convolutions rewritten."""
    jaxpr = program.jaxpr
    values: dict[core.Var, Array] = dict(zip(jaxpr.constvars, program.consts, strict=True))
    values |= dict(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Array:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        inputs = [read(atom) for atom in eqn.invars]
        rule = _rule(eqn)
        if rule is not None:
            outputs = [rule(*inputs, **eqn.params)]
        elif eqn.primitive.name in _NESTED and _to_rewrite(eqn.params["jaxpr"].jaxpr):
            outputs = _NESTED[eqn.primitive.name](*inputs, **eqn.params)
        else:
            result = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
            outputs = result if eqn.primitive.multiple_results else [result]
        values |= dict(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _jit(*args: Array, jaxpr: core.ClosedJaxpr, **params: Any) -> list[Array]:
    return _evaluate(jaxpr, *args)


def _scan(
    *args: Array,
    jaxpr: core.ClosedJaxpr,
    num_consts: int,
    num_carry: int,
    length: int,
    reverse: bool,
    unroll: int,
    **params: Any,
) -> list[Array]:
    constants = args[:num_consts]
    carry, inputs = list(args[num_consts : num_consts + num_carry]), args[num_consts + num_carry :]

    def step(carry: list[Array], x: list[Array]) -> tuple[list[Array], list[Array]]:
        results = _evaluate(jaxpr, *constants, *carry, *x)
        return results[:num_carry], results[num_carry:]

    carry, outputs = jax.lax.scan(step, carry, list(inputs), length, reverse, unroll)
    return [*carry, *outputs]


_NESTED = {"jit": _jit, "pjit": _jit, "scan": _scan}


def _rule(eqn: core.JaxprEqn) -> Callable[..., Array] | None:
    """What stands for one operation, or None where it may stay."""
    params = eqn.params
    if eqn.primitive.name == "dot_general":
        avals: list[Any] = [atom.aval for atom in eqn.invars]
        x, w = avals
        of_a_layer = params["dimension_numbers"] == (((x.ndim - 1,), (0,)), ((), ()))
        # A single column is a loop of XLA's own, which is never shared.
        if of_a_layer and w.ndim == 2 and w.shape[1] > 1 and x.ndim > 1:
            return _product
    if eqn.primitive.name == "conv_general_dilated":
        plain = params["feature_group_count"] == params["batch_group_count"] == 1
        if plain and all(step == 1 for step in params["lhs_dilation"]):
            return _convolution
    return None


def _product(x: Array, w: Array, *, precision: Any, **params: Any) -> Array:
    """``x [..., k] @ w [k, n]`` with a gradient of its own."""

    @jax.custom_vjp
    def product(x: Array, w: Array) -> Array:
        return jnp.matmul(x, w, precision=precision)

    def forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
        return product(x, w), (x, w)

    def backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
        x, w = saved
        transposed = jax.lax.optimization_barrier(x.T)
        return (
            jnp.matmul(g, w.T, precision=precision),
            jnp.matmul(transposed, g, precision=precision),
        )

    product.defvjp(forward, backward)
    return product(x.reshape(-1, x.shape[-1]), w).reshape(*x.shape[:-1], w.shape[-1])


def _convolution(
    x: Array,
    kernel: Array,
    *,
    window_strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    rhs_dilation: tuple[int, ...],
    dimension_numbers: Any,
    precision: Any,
    **params: Any,
) -> Array:
    """A convolution as one product with the patches of the image."""
    of_x, of_kernel, of_out = dimension_numbers
    x = x.transpose(of_x[0], *of_x[2:], of_x[1])  # [N, *space, C]
    kernel = kernel.transpose(*of_kernel[2:], of_kernel[1], of_kernel[0])  # [*window, C, O]
    no_padding = (0, 0, 0)
    edges = [no_padding, *((low, high, 0) for low, high in padding), no_padding]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), edges)
    window = kernel.shape[:-2]
    reach = [(size - 1) * step for size, step in zip(window, rhs_dilation, strict=True)]

    def seen_from(position: tuple[int, ...]) -> Array:
        """What one position of the window sees, for every output: ``[N, *out, C]``."""
        start = [at * step for at, step in zip(position, rhs_dilation, strict=True)]
        stop = [s + n - r for s, n, r in zip(start, x.shape[1:-1], reach, strict=True)]
        return jax.lax.slice(
            x, (0, *start, 0), (x.shape[0], *stop, x.shape[-1]), (1, *window_strides, 1)
        )

    patches = jnp.concatenate([seen_from(position) for position in np.ndindex(*window)], -1)
    y = _product(patches, kernel.reshape(-1, kernel.shape[-1]), precision=precision)
    return y.transpose(np.argsort((of_out[0], *of_out[2:], of_out[1])))
