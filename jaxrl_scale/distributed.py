"""Devices: the ONLY file that knows ``pmap``, the axis name, placement and the fixed-order sum.

**The fixed order.** Floating-point addition does not associate, so a run that is to be the
same on any number of devices must add in the same order on all of them. Each shard's term is
computed by the same inner program (`jax.lax.map` over the shards at hand); the terms are then
added pairwise along the global shard index: first the shards of a device, then, after an
``all_gather``, the devices. As ``num_shards`` is a power of two and a device holds an aligned
block of shards, both halves are levels of one and the same binary tree.

**Placement.** With a population that divides by the devices, whole members are placed on
devices and nothing crosses a device; otherwise every device holds a block of each member's
shards. State is kept in two canonical trees, ``shared [P, ...]`` and ``local [P, S, ...]``,
which is also what a checkpoint holds; only this file turns them into what ``pmap`` wants.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxrl_scale.config import Config, largest_divisor
from jaxrl_scale.types import Array, Pool, PyTree, UserError

AXIS = "devices"


# --- set-up ---------------------------------------------------------------------------------


def available_cores() -> int:
    """CPU cores that this process may use (a Slurm or container limit counts)."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def initialize(config: Config) -> Placement:
    """Set JAX up for this config and place the run on the local devices.

    Must come before anything else touches a device; in a process where something did (a
    notebook), the CPU devices that exist are used. Raises `UserError` when ``devices`` asks
    for more than there are.
    """
    if config.deterministic:
        flag = "--xla_gpu_deterministic_ops=true"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    if config.compilation_cache and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser(config.compilation_cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_default_matmul_precision", config.matmul_precision)
    with contextlib.suppress(RuntimeError):  # in a notebook the backend may exist already
        # One CPU device a core; without effect where the default backend is a GPU.
        jax.config.update("jax_num_cpu_devices", config.devices or available_cores())
    return place(config, jax.local_devices())


def place(config: Config, devices: list[jax.Device]) -> Placement:
    """The placement of a run on the first of ``devices``, as many as divide it."""
    wanted = config.devices or len(devices)
    if wanted > len(devices):
        raise UserError(
            f"devices={wanted}, but this process has {len(devices)} "
            f"{devices[0].platform} device(s); try devices={len(devices)}"
        )
    by_members = config.num_seeds >= wanted and config.num_seeds % wanted == 0
    count = wanted if by_members else largest_divisor(config.num_shards, wanted)
    exact = config.reduction == "exact" or (
        config.reduction == "auto" and devices[0].platform == "cpu"
    )
    return Placement(
        devices=tuple(devices[:count]),
        idle=len(devices) - count,
        num_members=config.num_seeds,
        num_shards=config.num_shards,
        by_members=by_members,
        exact=exact,
    )


# --- the fixed-order sum --------------------------------------------------------------------


def tree_sum(x: Array) -> Array:
    """Sum over the leading axis (a power of two), pairwise, neighbours first.

    For eight terms: ``((0+1)+(2+3)) + ((4+5)+(6+7))``.
    """
    while x.shape[0] > 1:
        x = x[0::2] + x[1::2]
    return x[0]


def walled_tree_sum(x: Array) -> Array:
    """`tree_sum` of ``[S, N]`` behind a wall that XLA does not fuse across.

    A sum fused into what follows it changes which products there become fused
    multiply-adds, so the bits would depend on how many of the additions a device makes. XLA
    drops ``optimization_barrier`` before it fuses, but a loop's result always reaches memory:
    the vector is summed in two halves.
    """
    size = x.shape[1]
    half = -(-size // 2)
    x = jnp.pad(x, ((0, 0), (0, 2 * half - size)))
    halves = jax.lax.map(
        lambda i: tree_sum(jax.lax.dynamic_slice_in_dim(x, i * half, half, 1)),
        jnp.arange(2),
    )
    return halves.reshape(-1)[:size]


def map_exact(f: Callable[..., PyTree], *trees: PyTree, trips: Array | None = None) -> PyTree:
    """``f`` on each slice of the leading axis, one after the other, by one inner program.

    A loop of one round would be inlined by XLA, fused with its surroundings, and round
    otherwise than the loop of a device that holds more shards. ``trips`` prevents that: the
    number of rounds (1) in a form that XLA cannot see through, over a second slice that is
    never visited.
    """
    if jax.tree.leaves(trees)[0].shape[0] > 1:
        return jax.lax.map(lambda args: f(*args), trees)
    if trips is None:
        return jax.tree.map(lambda y: y[None], f(*jax.tree.map(lambda x: x[0], trees)))
    doubled = jax.tree.map(lambda x: jnp.broadcast_to(x, (2, *x.shape[1:])), trees)

    def slice_of(i: Any) -> tuple[PyTree, ...]:
        return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, 0, False), doubled)

    def one_round(i: Any, out: PyTree) -> PyTree:
        def put(buffer: Array, y: Array) -> Array:
            return jax.lax.dynamic_update_index_in_dim(buffer, y, i, 0)

        return jax.tree.map(put, out, f(*slice_of(i)))

    shapes = jax.eval_shape(f, *jax.eval_shape(slice_of, 0))
    empty = jax.tree.map(lambda y: jnp.empty((2, *y.shape), y.dtype), shapes)
    out = jax.lax.fori_loop(0, trips, one_round, empty)
    return jax.tree.map(lambda y: y[:1], out)


def _by_dtype(f: Callable[[Array], Array], tree: PyTree) -> PyTree:
    """Apply ``f: [S, n] -> [n]`` to all leaves ``[S, ...]`` of a dtype at once, so that a tree
    costs one collective a dtype instead of one a leaf."""
    leaves, structure = jax.tree.flatten(tree)
    out: list[Any] = [None] * len(leaves)
    for dtype in sorted({x.dtype.name for x in leaves}):
        index = [i for i, x in enumerate(leaves) if x.dtype.name == dtype]
        flat = jnp.concatenate([leaves[i].reshape(leaves[i].shape[0], -1) for i in index], 1)
        total = f(flat)
        start = 0
        for i in index:
            shape = leaves[i].shape[1:]
            size = int(np.prod(shape))
            out[i] = total[start : start + size].reshape(shape)
            start += size
    return jax.tree.unflatten(structure, out)


def local_pool(num_shards: int, exact: bool = True) -> Pool:
    """The pool of a run whose shards are all at hand: no collective. For unit tests too."""
    return _pool(num_shards, num_shards, exact, lambda: jnp.zeros((), jnp.int32), lambda x: x[None])


def device_pool(num_shards: int, num_devices: int, exact: bool) -> Pool:
    """The pool of a run whose shards are spread over the devices of the mapped axis."""
    return _pool(
        num_shards,
        num_shards // num_devices,
        exact,
        lambda: jax.lax.axis_index(AXIS),
        lambda x: jax.lax.all_gather(x, AXIS),
    )


def _pool(
    num_shards: int,
    at_hand: int,
    exact: bool,
    device_index: Callable[[], Array],
    gather: Callable[[Array], Array],
) -> Pool:
    def shard_index() -> Array:
        return device_index() * at_hand + jnp.arange(at_hand, dtype=jnp.int32)

    def total_exact(x: Array) -> Array:
        return walled_tree_sum(gather(tree_sum(x)))

    def total_pooled(x: Array) -> Array:
        return gather(x.sum(0)).sum(0)

    total = total_exact if exact else total_pooled

    def sum(tree: PyTree) -> PyTree:
        return _by_dtype(total, tree)

    def map_shards(f: Callable[..., PyTree], *trees: PyTree) -> PyTree:
        # The device's index is known at run time only, and 1 + index // devices is always 1.
        if at_hand == 1 and num_shards > 1:
            return map_exact(f, *trees, trips=1 + device_index() // num_shards)
        return map_exact(f, *trees)

    def grad_exact(f: Callable[..., Any], params: Array, *shards: PyTree) -> tuple[Array, PyTree]:
        shard_grad = jax.grad(f, has_aux=True)
        return sum(map_shards(lambda *shard: shard_grad(params, *shard), *shards))

    def grad_pooled(f: Callable[..., Any], params: Array, *shards: PyTree) -> tuple[Array, PyTree]:
        def batch_loss(params: Array) -> tuple[Array, PyTree]:
            losses, aux = jax.vmap(lambda *shard: f(params, *shard))(*shards)
            return losses.sum(), aux

        gradient, aux = jax.grad(batch_loss, has_aux=True)(params)
        aux, structure = ravel_pytree(jax.tree.map(lambda x: x.sum(0), aux))
        both = gather(jnp.concatenate([gradient, aux])).sum(0)
        return both[: params.size], structure(both[params.size :])

    return Pool(
        num_shards=num_shards,
        shard_index=shard_index,
        map=map_shards if exact else lambda f, *trees: jax.vmap(f)(*trees),
        sum=sum,
        grad=grad_exact if exact else grad_pooled,
    )


# --- placement ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placement:
    """Where the members and shards of a run are. ``D`` devices, ``P`` members, ``S`` shards."""

    devices: tuple[jax.Device, ...]
    idle: int  # local devices that the run leaves unused
    num_members: int
    num_shards: int
    by_members: bool  # whole members on devices, or a block of every member's shards
    exact: bool  # the fixed-order sum, or one big batch

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    def describe(self) -> str:
        """For people: ``2 cpu devices with 4 shards each, exact sums``."""
        by_seeds = self.by_members and self.num_members > 1
        held = (self.num_members if by_seeds else self.num_shards) // self.num_devices
        what = "seeds" if by_seeds else "shards"
        idle = f", {self.idle} idle" if self.idle else ""
        kind = f"{self.devices[0].platform} device" + "s" * (self.num_devices > 1)
        return f"{self.num_devices} {kind} with {held} {what} each{idle}, {self.reduction} sums"

    @property
    def reduction(self) -> str:
        return "exact" if self.exact else "pooled"

    def names(self) -> list[str]:
        """A text for each device, for the run's record."""
        return [f"{d.platform}:{d.id} {d.device_kind}" for d in self.devices]

    def pool(self) -> Pool:
        if self.by_members:
            return local_pool(self.num_shards, self.exact)
        return device_pool(self.num_shards, self.num_devices, self.exact)

    def map_members(self, f: Callable[..., PyTree], *trees: PyTree) -> PyTree:
        """``f`` on each of the members ``[P', ...]`` that a device holds."""
        return map_exact(f, *trees) if self.exact else jax.vmap(f)(*trees)

    def compile(
        self,
        f: Callable[..., Any],
        *args: PyTree,
        donate: tuple[int, ...] = (),
        once: bool = False,
    ) -> Any:
        """``f``, which sees one device's part, compiled for all devices.

        ``args`` are placed arrays or `jax.ShapeDtypeStruct` with the leading device axis.
        ``once``: it will run only once, so that optimising it does not pay. On CPUs a call
        must have ended before the next begins: XLA's in-process collectives deadlock when
        calls queue up (seen with jax 0.10.2).
        """
        options = {"xla_backend_optimization_level": "0"} if once else None
        return self._mapped(f, donate).lower(*args).compile(compiler_options=options)

    def shapes(self, f: Callable[..., Any], *args: PyTree) -> PyTree:
        """Shapes and dtypes of what `compile` would return for ``args``."""
        return jax.eval_shape(self._mapped(f, ()), *args)

    def _mapped(self, f: Callable[..., Any], donate: tuple[int, ...]) -> Any:
        return jax.pmap(f, axis_name=AXIS, devices=self.devices, donate_argnums=donate)

    def split_shared(self, tree: PyTree) -> PyTree:
        """``[P, ...] -> [D, P', ...]``"""

        def split(x: np.ndarray) -> np.ndarray:
            if self.by_members:
                return x.reshape(self.num_devices, -1, *x.shape[1:])
            return np.broadcast_to(x, (self.num_devices, *x.shape))

        return jax.tree.map(lambda x: split(np.asarray(x)), tree)

    def split_local(self, tree: PyTree) -> PyTree:
        """``[P, S, ...] -> [D, P', S', ...]``"""

        def split(x: np.ndarray) -> np.ndarray:
            if self.by_members:
                return x.reshape(self.num_devices, -1, *x.shape[1:])
            blocks = x.reshape(x.shape[0], self.num_devices, -1, *x.shape[2:])
            return np.ascontiguousarray(np.moveaxis(blocks, 1, 0))

        return jax.tree.map(lambda x: split(np.asarray(x)), tree)

    def join_shared(self, tree: PyTree) -> PyTree:
        """``[D, P', ...] -> [P, ...]``, on the host."""

        def join(x: Array) -> np.ndarray:
            if self.by_members:
                return np.asarray(x).reshape(-1, *x.shape[2:])
            return np.asarray(x)[0]  # equal on all devices; x[0] itself is a slow gather

        return jax.tree.map(join, tree)

    def join_local(self, tree: PyTree) -> PyTree:
        """``[D, P', S', ...] -> [P, S, ...]``, on the host."""

        def join(x: Array) -> np.ndarray:
            if self.by_members:
                return np.asarray(x).reshape(-1, *x.shape[2:])
            blocks = np.moveaxis(np.asarray(x), 0, 1)
            return blocks.reshape(blocks.shape[0], -1, *blocks.shape[3:])

        return jax.tree.map(join, tree)
