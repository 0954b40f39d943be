"""The fixed-order sum.

Floating-point addition does not associate, so a run that is to be the same on any number of devices
must add in the same order on all of them. Each shard's term is computed by the same inner program
(`map_exact`). The terms are then added pairwise along the global shard index: first the shards of a
device, then the devices, which exchange their sums (`exchange_rounds`). As ``num_shards`` is a
power of two and a device holds an aligned block of shards, both are levels of one and the same
binary tree. That the terms themselves do not depend on the number of threads is
`jaxrl_scale.learning.products`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxrl_scale.learning.wall import walled
from jaxrl_scale.types import MOST_SHARDS, Array, Pool, PyTree

AXIS = "devices"


def tree_sum(x: Array) -> Array:
    """Sum over the leading axis (a power of two), pairwise, neighbours first.

    For eight terms: ``((0+1)+(2+3)) + ((4+5)+(6+7))``.
    """
    while x.shape[0] > 1:
        x = x[0::2] + x[1::2]
    return x[0]


def walled_sum(*terms: Array) -> Array:
    """The sum of ``[S, N]`` arrays, of each of them its `tree_sum`, behind a wall that XLA does not
    fuse across.

    A sum fused into what follows it changes which products there become fused
    multiply-adds, so the bits would depend on how many of the additions a device makes. XLA
    drops ``optimization_barrier`` before it fuses, but a loop's result always reaches memory:
    the vector is summed in two halves, which have one number in common where its length is odd.
    """
    size = terms[0].shape[1]
    half = -(-size // 2)

    def sum_half(i: Any, out: Array) -> Array:
        start = i * (size - half)
        total, *others = (tree_sum(jax.lax.dynamic_slice_in_dim(x, start, half, 1)) for x in terms)
        for other in others:
            total = total + other
        return jax.lax.dynamic_update_slice_in_dim(out, total, start, 0)

    return jax.lax.fori_loop(0, 2, sum_half, jnp.zeros(size, terms[0].dtype))


def map_exact(f: Callable[..., PyTree], *trees: PyTree, trips: Array | None = None) -> PyTree:
    """``f`` on each slice of the leading axis, one after the other, by one inner program.

    A loop of one round would be inlined by XLA, fused with its surroundings, and round
    otherwise than the loop of a device that holds more shards. ``trips`` prevents that: the
    number of rounds (1) in a form that XLA cannot see through, over a second slice that is
    never visited.
    """
    several = jax.tree.leaves(trees)[0].shape[0] > 1
    if not several and trips is None:
        return jax.tree.map(lambda y: y[None], f(*jax.tree.map(lambda x: x[0], trees)))
    # Axes of length 1 are dropped: with them XLA would copy an array that comes from a gather.
    narrow = jax.tree.map(lambda x: x.reshape(len(x), *(n for n in x.shape[1:] if n != 1)), trees)

    def of_narrow(*slices: PyTree) -> PyTree:
        return f(*jax.tree.map(lambda x, like: x.reshape(like.shape[1:]), slices, trees))

    if several:
        return jax.lax.map(lambda args: of_narrow(*args), narrow)
    traced_once = jax.jit(of_narrow, inline=True)  # for its shapes and for the loop
    doubled = jax.tree.map(lambda x: jnp.broadcast_to(x, (2, *x.shape[1:])), narrow)

    def slice_of(i: Any) -> tuple[PyTree, ...]:
        return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, 0, False), doubled)

    def one_round(i: Any, out: PyTree) -> PyTree:
        def put(buffer: Array, y: Array) -> Array:
            return jax.lax.dynamic_update_index_in_dim(buffer, y, i, 0)

        return jax.tree.map(put, out, traced_once(*slice_of(i)))

    shapes = jax.eval_shape(traced_once, *jax.eval_shape(slice_of, 0))
    empty = jax.tree.map(lambda y: jnp.empty((2, *y.shape), y.dtype), shapes)
    out = jax.lax.fori_loop(0, trips, one_round, empty)
    return jax.tree.map(lambda y: y[:1], out)


_LOW_BITS = 12  # float32 sums so many numbers of 12 bits exactly as there are bits left of its 24
assert MOST_SHARDS <= 2 ** (24 - _LOW_BITS)


def _at_once(total: Callable[[Array], Array], tree: PyTree) -> PyTree:
    """The sums of leaves ``[S, ...]``, float32 or int32, by ``total: [S, n] -> [n]`` of float32, so
    that a tree costs one collective. An int32 travels as two numbers, its lowest 12 bits and the
    rest, whose sums are exact."""
    leaves, structure = jax.tree.flatten(tree)
    columns: list[Array] = []
    for x in leaves:
        x = x.reshape(x.shape[0], -1)
        if x.dtype == jnp.int32:
            low = x & (2**_LOW_BITS - 1)
            columns += [low.astype(jnp.float32), (x >> _LOW_BITS).astype(jnp.float32)]
        elif x.dtype == jnp.float32:
            columns += [x]
        else:
            raise TypeError(f"what is summed should be float32 or int32; this is {x.dtype}")
    sums = total(jnp.concatenate(columns, 1))
    ends = np.cumsum([x.shape[1] for x in columns])
    parts = iter(jnp.split(sums, ends[:-1]))

    def joined(x: Array) -> Array:
        y = next(parts)
        if x.dtype == jnp.int32:
            y = y.astype(jnp.int32) + (next(parts).astype(jnp.int32) << _LOW_BITS)
        return y.reshape(x.shape[1:])

    return jax.tree.unflatten(structure, [joined(x) for x in leaves])


def exchange_rounds(num_devices: int) -> list[list[tuple[int, int]]]:
    """Recursive doubling over a power of two of devices: in each of its log2(D) rounds a device
    exchanges with one other, at distance 1, 2, 4 …, so that all have everything at the end."""
    distances = [2**level for level in range(num_devices.bit_length() - 1)]
    return [[(i, i ^ distance) for i in range(num_devices)] for distance in distances]


def local_pool(num_shards: int, exact: bool = True) -> Pool:
    """The pool of a run whose shards are all at hand: no collective. For unit tests too."""
    return _pool(num_shards, 1, exact, lambda: jnp.zeros((), jnp.int32))


def device_pool(num_shards: int, num_devices: int, exact: bool) -> Pool:
    """The pool of a run whose shards are spread over the devices of the mapped axis."""
    return _pool(num_shards, num_devices, exact, lambda: jax.lax.axis_index(AXIS))


def one_number_each(tree: PyTree) -> Array:
    """The first number of each array that is not empty, float32: what follows from these numbers
    comes after the arrays."""
    numbers = [x.reshape(-1)[:1].astype(jnp.float32) for x in jax.tree.leaves(tree) if x.size]
    return jnp.concatenate(numbers or [jnp.zeros(0)])


def _pool(
    num_shards: int,
    num_devices: int,
    exact: bool,
    device_index: Callable[[], Array],
    before: PyTree = (),
) -> Pool:
    at_hand = num_shards // num_devices

    def shard_index() -> Array:
        return device_index() * at_hand + jnp.arange(at_hand, dtype=jnp.int32)

    def total(x: Array) -> Array:
        """``[S, n] -> [n]``, over all devices. The rounds are the levels of the tree, as ``a + b``
        and ``b + a`` have the same bits."""
        rounds, size = exchange_rounds(num_devices), x.shape[1]
        if rounds or not exact:  # else the shards at hand are all, and are added within the wall
            x = (tree_sum(x) if exact else x.sum(0))[None]
        if rounds:  # what comes before travels along, and nobody reads it
            x = jnp.concatenate([x, one_number_each(before)[None]], 1)
        for partners in rounds[:-1]:
            x = x + jax.lax.ppermute(x, AXIS, partners)
        pair = (x, *(jax.lax.ppermute(x, AXIS, partners) for partners in rounds[-1:]))
        whole = walled_sum(*pair) if exact else functools.reduce(operator.add, pair)[0]
        return whole[:size]

    def sum(tree: PyTree) -> PyTree:
        return _at_once(total, tree)

    def map_shards(f: Callable[..., PyTree], *trees: PyTree) -> PyTree:
        if num_shards == 1:  # no loop, but other surroundings where a device holds several agents
            return map_exact(walled(f), *trees)
        if at_hand == 1:  # its index is known at run time only, and 1 + index // shards is always 1
            return map_exact(f, *trees, trips=1 + device_index() // num_shards)
        return map_exact(f, *trees)

    def grad_exact(f: Callable[..., Any], params: Array, *shards: PyTree) -> tuple[Array, PyTree]:
        unravel: Callable[[Array], tuple[Array, PyTree]]

        def flat(*shard: PyTree) -> Array:
            """One vector: each number would be an output of the loop to compile."""
            nonlocal unravel  # it knows shapes alone, which are those of every shard
            vector, unravel = ravel_pytree(jax.grad(f, has_aux=True)(params, *shard))
            return vector

        sums = sum(map_shards(flat, *shards))
        return unravel(sums)

    def grad_fast(f: Callable[..., Any], params: Array, *shards: PyTree) -> tuple[Array, PyTree]:
        def batch_loss(params: Array) -> tuple[Array, PyTree]:
            losses, aux = jax.vmap(lambda *shard: f(params, *shard))(*shards)
            return losses.sum(), aux

        gradient, aux = jax.grad(batch_loss, has_aux=True)(params)
        aux, structure = ravel_pytree(jax.tree.map(lambda x: x.sum(0), aux))
        both = total(jnp.concatenate([gradient, aux])[None])
        return both[: params.size], structure(both[params.size :])

    return Pool(
        num_shards=num_shards,
        shard_index=shard_index,
        map=map_shards if exact else lambda f, *trees: jax.vmap(f)(*trees),
        sum=sum,
        grad=grad_exact if exact else grad_fast,
        after=functools.partial(_pool, num_shards, num_devices, exact, device_index),
    )
