"""Devices: the ONLY file that knows ``pmap``, ``jax.distributed``, the axis name, placement and
the fixed-order sum.

**The fixed order.** Floating-point addition does not associate, so a run that is to be the
same on any number of devices must add in the same order on all of them. Each shard's term is
computed by the same inner program (`jax.lax.map` over the shards at hand); the terms are then
added pairwise along the global shard index: first the shards of a device, then the devices,
which exchange their sums (recursive doubling). As ``num_shards`` is a power of two and a device
holds an aligned block of shards, both halves are levels of one and the same binary tree.

**Placement.** With a population that divides by the devices, whole members are placed on
devices and nothing crosses a device; otherwise every device holds a block of each member's
shards. State is kept in two canonical trees, ``shared [P, ...]`` and ``local [P, S, ...]``,
which is also what a checkpoint holds; only this file turns them into what ``pmap`` wants.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxrl_scale.config import Config, largest_divisor
from jaxrl_scale.hosts import Hosts, split
from jaxrl_scale.types import Array, Pool, PyTree, Span, UserError

AXIS = "devices"


# --- set-up ---------------------------------------------------------------------------------


def visible_cores() -> list[int]:
    """CPU cores that this process may use (a Slurm or container limit counts)."""
    try:
        cores = sorted(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = list(range(os.cpu_count() or 1))
    return cores[: int(os.environ.get("SLURM_CPUS_PER_TASK") or len(cores))]


def visible_gpus() -> list[str]:
    """The identities of the NVIDIA GPUs that this process may use, in their order."""
    command = shutil.which("nvidia-smi")
    if command is None or os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return []
    done = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=60)
    found = re.findall(r"UUID: (\S+?)\)", done.stdout)
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return found
    names = [name.strip() for name in chosen.split(",")]
    by_index = {str(k): gpu for k, gpu in enumerate(found)}
    return [by_index.get(name, name) for name in names if name in by_index or name in found]


def initialize(config: Config, hosts: Hosts | None = None) -> Placement:
    """Set JAX up for this config, on all processes, and place the run on their devices.

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
    hosts = hosts or Hosts()
    cores = _span(hosts) if hosts.several else len(visible_cores())
    with contextlib.suppress(RuntimeError):  # in a notebook the backend may exist already
        # One CPU device a core; without effect where the default backend is a GPU.
        jax.config.update("jax_num_cpu_devices", config.devices or cores)
    if not hosts.several:
        return place(config, jax.local_devices())
    placement = place(config, jax.devices())
    placement.connect()
    return placement


def _span(hosts: Hosts) -> int:
    """Start ``jax.distributed``; returns the cores that every process has for itself."""
    seen = visible_cores(), visible_gpus()
    cores, gpus = zip(*hosts.share("what it may use", seen), strict=True)
    own_cores = [split(k, list(zip(hosts.machines, cores, strict=True))) for k in range(len(cores))]
    own_gpus = split(hosts.process_id, list(zip(hosts.machines, gpus, strict=True)))
    if seen[1] and not own_gpus:
        raise UserError(
            f"no GPU is left for this process: others share the {len(seen[1])} here; "
            "start at most one process a GPU"
        )
    if not seen[1]:
        _cache_for_all_processes()
    # Its own heartbeat ends in an abort that names nobody: ours comes first.
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from us
    jax.distributed.initialize(
        coordinator_address=f"{hosts.cluster.host}:{hosts.share('port', free_port())[0]}",
        num_processes=hosts.num_processes,
        process_id=hosts.process_id,
        local_device_ids=[seen[1].index(gpu) for gpu in own_gpus] or None,
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=int(hosts.heartbeat) + 10,
        shutdown_timeout_seconds=30,
    )
    return max(1, min(map(len, own_cores)))


def _cache_for_all_processes() -> None:
    """Let every process find the compiled programs that process 0, which alone writes them,
    has left. JAX looks them up under the fingerprint of the topology too, which XLA:CPU gives
    differently to each process; what the processor can do stands in for it."""
    from jax._src import cache_key

    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = {line for line in lines if line.startswith(("flags", "Features", "model name"))}
        cache_key.custom_hook = lambda: "\n".join(sorted(features))
        vars(cache_key)["_hash_accelerator_config"] = cache_key._hash_devices


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def place(config: Config, devices: list[jax.Device]) -> Placement:
    """The placement of a run on ``devices``, those of all its processes: on the first of each
    process, equally many, as many as divide the run."""
    of_process: dict[int, list[jax.Device]] = {}
    for device in devices:
        of_process.setdefault(device.process_index, []).append(device)
    processes = len(of_process)
    here = of_process[devices[0].process_index if processes == 1 else jax.process_index()]
    fewest = min(map(len, of_process.values()))
    wanted = config.devices or fewest
    if wanted > fewest:
        raise UserError(
            f"devices={wanted}, but this process has {fewest} "
            f"{devices[0].platform} device(s); try devices={fewest}"
        )
    by_members = config.num_seeds % (processes * wanted) == 0
    if not by_members and config.num_shards % processes:
        raise UserError(
            f"{processes} processes divide neither num_shards={config.num_shards} nor "
            f"num_seeds={config.num_seeds}; "
            f"try {largest_divisor(config.num_shards, processes)} processes"
        )
    count = wanted if by_members else largest_divisor(config.num_shards // processes, wanted)
    exact = config.reduction == "exact" or (
        config.reduction == "auto" and devices[0].platform == "cpu"
    )
    return Placement(
        devices=tuple(device for k in sorted(of_process) for device in of_process[k][:count]),
        at_hand=tuple(here[:count]),
        idle=len(here) - count,
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


def _pool(
    num_shards: int, num_devices: int, exact: bool, device_index: Callable[[], Array]
) -> Pool:
    at_hand = num_shards // num_devices

    def shard_index() -> Array:
        return device_index() * at_hand + jnp.arange(at_hand, dtype=jnp.int32)

    def total(x: Array) -> Array:
        """``[S, n] -> [n]``, over all devices. The rounds are the levels of the tree, as ``a + b``
        and ``b + a`` have the same bits."""
        x = tree_sum(x) if exact else x.sum(0)
        pair = x[None]
        for partners in exchange_rounds(num_devices):
            pair = jnp.stack([x, jax.lax.ppermute(x, AXIS, partners)])
            x = tree_sum(pair)
        return walled_tree_sum(pair) if exact else x

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
        both = total(jnp.concatenate([gradient, aux])[None])
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
    """Where the members and shards of a run are. ``D`` devices of this process, ``P`` members
    and ``S`` shards; ``P'`` and ``S'`` of one device. What a process holds, its own part of the
    canonical state, is ``[P_own, …]`` and ``[P_own, S_own, …]``: all of it in a run of one."""

    devices: tuple[jax.Device, ...]  # of all processes
    at_hand: tuple[jax.Device, ...]  # of this one
    idle: int  # local devices that the run leaves unused
    num_members: int
    num_shards: int
    by_members: bool  # whole members on devices, or a block of every member's shards
    exact: bool  # the fixed-order sum, or one big batch

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def num_processes(self) -> int:
        return len(self.devices) // len(self.at_hand)

    @property
    def own(self) -> dict[str, tuple[Span, ...]]:
        """Which members, and which of their shards, this process holds: for the two trees of
        the canonical state the spans of their leading axes."""
        first, count = self.devices.index(self.at_hand[0]), len(self.at_hand)

        def block(whole: int) -> Span:
            each = whole // self.num_devices
            return Span(first * each, (first + count) * each, whole)

        members, shards = (Span(0, n, n) for n in (self.num_members, self.num_shards))
        if self.by_members:
            members = block(self.num_members)
        else:
            shards = block(self.num_shards)
        return {"shared": (members,), "local": (members, shards)}

    def describe(self) -> str:
        """For people: ``2 cpu devices with 4 shards each, exact sums``."""
        by_seeds = self.by_members and self.num_members > 1
        held = (self.num_members if by_seeds else self.num_shards) // self.num_devices
        what = "seeds" if by_seeds else "shards"
        idle = f", {self.idle} idle" if self.idle else ""
        here = len(self.at_hand)
        kind = f"{self.devices[0].platform} device" + "s" * (here > 1)
        several = f"{self.num_processes} processes of " if self.num_processes > 1 else ""
        return f"{several}{here} {kind} with {held} {what} each{idle}, {self.reduction} sums"

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

    # --- inside the program of one device ---------------------------------------------------

    def map_members(self, f: Callable[..., PyTree], *trees: PyTree) -> PyTree:
        """``f`` on each of the members ``[P', ...]`` that a device holds."""
        return map_exact(f, *trees) if self.exact else jax.vmap(f)(*trees)

    def publish(self, tree: PyTree) -> PyTree:
        """Results of a device's members ``[P', ...]`` for `read` of every process."""
        if self.by_members and self.num_processes > 1:
            return jax.tree.map(lambda x: jax.lax.all_gather(x, AXIS, tiled=True), tree)
        return tree

    def any(self, flag: Array) -> Array:
        """Is a flag, a bool, true in any of the processes?"""
        if self.num_processes == 1:
            return flag
        if self.by_members:
            return self.publish(flag[None]).any()
        for partners in exchange_rounds(self.num_devices):
            flag = flag | jax.lax.ppermute(flag, AXIS, partners)
        return flag

    # --- compiling --------------------------------------------------------------------------

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
        mapped = jax.pmap(f, axis_name=AXIS, devices=self.devices, donate_argnums=donate)
        if self.num_processes == 1:
            return mapped.lower(*args).compile(compiler_options=options)
        # Of several processes pmap compiles only what is given as global arrays.
        whole = jax.tree.map(lambda x: jax.core.ShapedArray(self._global(x.shape), x.dtype), args)
        compiled = mapped.lower(*whole).compile(compiler_options=options)
        return lambda *args: compiled(*jax.tree.map(self._to_global, args))

    def shapes(self, f: Callable[..., Any], *args: PyTree) -> PyTree:
        """Shapes and dtypes of what `compile` would return for ``args``, of this process."""
        # As vmap, because pmap's abstract evaluation sees local devices only.
        mapped = jax.vmap(f, axis_name=AXIS)
        whole = jax.tree.map(lambda x: jax.ShapeDtypeStruct(self._global(x.shape), x.dtype), args)

        def here(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((len(self.at_hand), *x.shape[1:]), x.dtype)

        return jax.tree.map(here, jax.eval_shape(mapped, *whole))

    def _global(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (self.num_devices, *shape[1:])

    def _to_global(self, x: Any) -> jax.Array:
        """What this process holds of an array ``[D, ...]``, as its part of the whole one."""
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            return x  # came from another call
        mesh = jax.sharding.Mesh(np.asarray(self.devices), (AXIS,))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(AXIS))
        x = np.asarray(x)
        return jax.make_array_from_process_local_data(sharding, x, self._global(x.shape))

    def connect(self) -> None:
        """A first collective: the processes connect, and gloo has its say of it unheard."""
        with _unheard(1):
            flags = np.zeros(len(self.at_hand), bool)
            jax.block_until_ready(self.compile(self.any, flags)(flags))

    # --- to and from the host ---------------------------------------------------------------

    def split_shared(self, tree: PyTree) -> PyTree:
        """``[P_own, ...] -> [D, P', ...]``"""
        here = len(self.at_hand)

        def split(x: np.ndarray) -> np.ndarray:
            if self.by_members:
                return x.reshape(here, -1, *x.shape[1:])
            return np.broadcast_to(x, (here, *x.shape))

        return jax.tree.map(lambda x: split(np.asarray(x)), tree)

    def split_local(self, tree: PyTree) -> PyTree:
        """``[P_own, S_own, ...] -> [D, P', S', ...]``"""
        here = len(self.at_hand)

        def split(x: np.ndarray) -> np.ndarray:
            if self.by_members:
                return x.reshape(here, -1, *x.shape[1:])
            blocks = x.reshape(x.shape[0], here, -1, *x.shape[2:])
            return np.ascontiguousarray(np.moveaxis(blocks, 1, 0))

        return jax.tree.map(lambda x: split(np.asarray(x)), tree)

    def join_shared(self, tree: PyTree) -> PyTree:
        """``[D, P', ...] -> [P_own, ...]``, on the host."""

        def join(x: Array) -> np.ndarray:
            if self.by_members:
                return on_host(x).reshape(-1, *x.shape[2:])
            return first_on_host(x)  # equal on all devices

        return jax.tree.map(join, tree)

    def join_local(self, tree: PyTree) -> PyTree:
        """``[D, P', S', ...] -> [P_own, S_own, ...]``, on the host."""

        def join(x: Array) -> np.ndarray:
            if self.by_members:
                return on_host(x).reshape(-1, *x.shape[2:])
            blocks = np.moveaxis(on_host(x), 0, 1)
            return blocks.reshape(blocks.shape[0], -1, *blocks.shape[3:])

        return jax.tree.map(join, tree)

    def read(self, tree: PyTree) -> PyTree:
        """What `publish` gave, ``[P, ...]`` of all members, on the host of every process."""
        if self.by_members and self.num_processes > 1:
            return jax.tree.map(first_on_host, tree)
        return self.join_shared(tree)


def on_host(x: Array | np.ndarray) -> np.ndarray:
    """Of a placed array the part of this process, ``[D, ...]``."""
    if isinstance(x, np.ndarray) or x.is_fully_addressable:
        return np.asarray(x)
    parts = sorted(x.addressable_shards, key=lambda part: part.index[0].start)
    return np.concatenate([np.asarray(part.data) for part in parts])


def first_on_host(x: Array | np.ndarray) -> np.ndarray:
    """The part of this process's first device. ``x[0]`` itself is a slow gather."""
    if isinstance(x, np.ndarray) or x.is_fully_addressable:
        return np.asarray(x)[0]
    return np.asarray(x.addressable_data(0))[0]


@contextlib.contextmanager
def _unheard(descriptor: int) -> Iterator[None]:
    """Nothing that C++ code writes to a file descriptor meanwhile is seen."""
    sys.stdout.flush()
    kept = os.dup(descriptor)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), descriptor)
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
