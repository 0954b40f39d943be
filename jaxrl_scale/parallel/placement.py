"""Where the agents and shards of a run are: the only file that knows ``pmap``.

If the number of agents divides by the number of devices, whole agents are placed on devices, and
nothing crosses a device. Otherwise every device holds a block of each agent's shards. The state is
kept in two canonical trees, ``shared [P, ...]`` and ``local [P, S, ...]``, which is also what a
checkpoint holds. Only this file turns them into what ``pmap`` wants.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.passmanager import PassManager
from rich.filesize import decimal

from jaxrl_scale.errors import TAKE_LESS, RunError, how_many
from jaxrl_scale.learning import products
from jaxrl_scale.parallel.machine import free_memory, unheard
from jaxrl_scale.parallel.sums import (
    AXIS,
    device_pool,
    exchange_rounds,
    local_pool,
    map_exact,
    one_number_each,
)
from jaxrl_scale.types import Array, Pool, PyTree, Span

Compile = Callable[[], jax.stages.Compiled]
"""What is still to be done with a program that has been traced."""


class Kept(Protocol):
    """What earlier runs have traced and compiled, as `jaxrl_scale.loop.programs.Programs` keeps
    it. ``called`` are texts that tell a program from the others of its run."""

    def program(
        self,
        called: tuple[str, ...],
        devices: Sequence[jax.Device],
        trace: Callable[[str], Compile],
    ) -> Compile:
        """A program that was compiled before, or else that of ``trace(name)``, where the name is
        for `rename`, if it is not empty."""

    def shapes(self, called: tuple[str, ...], trace: Callable[[], PyTree]) -> PyTree:
        """Shapes and dtypes that were traced before, or else those of ``trace``."""


# --- placement ------------------------------------------------------------------------------


def wide_vectors() -> dict[str, Any]:
    """The option of XLA that lets it use vectors of 512 bits where a processor has them.

    By itself it prefers 256 on any CPU. On an AMD EPYC (Zen 5, jaxlib 0.10.2) PPO with 1,024
    environments is 1.18 times as fast with 512, and 1.08 times with 64; on a Zen 4, which has no
    wider units, 1.03 to 1.07 times. A choice of the user's in XLA_FLAGS stands.
    """
    option = "xla_cpu_prefer_vector_width"
    return {} if f"--{option}=" in os.environ.get("XLA_FLAGS", "") else {option: 512}


def merge_equal(lowered: jax.stages.Lowered) -> None:
    """Merge the equal operations of a traced program.

    XLA does so, too, but in a program for several devices before it simplifies, and in one for a
    single device after that. What it simplifies depends on how often a result is used, so that the
    kernels of a shard would not be the same in both, nor which products in them become fused
    multiply-adds (tests/test_kernels.py).
    """
    program: Any = lowered.compiler_ir()
    with program.context:
        PassManager.parse("builtin.module(inline,cse)").run(program.operation)


def rename(lowered: jax.stages.Lowered, name: str) -> None:
    """Give a traced program a name, which JAX's cache finds it by, too."""
    program: Any = lowered.compiler_ir()
    with program.context:
        program.operation.attributes["sym_name"] = ir.StringAttr.get(name)


@dataclass(frozen=True)
class Placement:
    """Where the agents and shards of a run are: ``P`` agents of ``S`` shards on the ``D`` devices
    of this process, of which each holds ``P'`` agents and ``S'`` shards. What a process holds, its
    part of the canonical state, is ``[P_own, …]`` and ``[P_own, S_own, …]``. A run of one process
    holds all of it."""

    devices: tuple[jax.Device, ...]  # of all processes
    at_hand: tuple[jax.Device, ...]  # of this one
    idle: int  # local devices that the run leaves unused
    num_agents: int
    num_shards: int
    by_agents: bool  # whole agents on devices, or a block of every agent's shards
    exact: bool  # the fixed-order sum, or one big batch
    portable: bool = False  # the same instructions on every processor
    deterministic: bool = True  # on GPUs: the same kernels whenever a program is compiled
    num_threads: int = 1  # of the simulators of this process
    kept: Kept | None = None  # None: every program is traced and compiled

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def on_cpus(self) -> bool:
        return self.devices[0].platform == "cpu"

    @property
    def num_processes(self) -> int:
        return self.num_devices // len(self.at_hand)

    @property
    def leader(self) -> bool:
        """Whether this is process 0."""
        return self.at_hand[0].process_index == 0

    @property
    def held(self) -> tuple[Span, Span]:
        """Which agents, and which of their shards, this process holds."""
        first, count = self.devices.index(self.at_hand[0]), len(self.at_hand)

        def block(whole: int) -> Span:
            each = whole // self.num_devices
            return Span(first * each, (first + count) * each, whole)

        agents, shards = (Span(0, n, n) for n in (self.num_agents, self.num_shards))
        if self.by_agents:
            agents = block(self.num_agents)
        else:
            shards = block(self.num_shards)
        return agents, shards

    def describe(self) -> str:
        """For people: ``2 cpu devices with 4 shards each, exact sums``."""
        whole_agents = self.by_agents and self.num_agents > 1
        held = (self.num_agents if whole_agents else self.num_shards) // self.num_devices
        each = how_many(held, "agent" if whole_agents else "shard")
        idle = f", {self.idle} idle" if self.idle else ""
        here = how_many(len(self.at_hand), f"{self.devices[0].platform} device")
        several = f"{self.num_processes} processes of " if self.num_processes > 1 else ""
        return f"{several}{here} with {each} each{idle}, {self.reduction} sums"

    @property
    def reduction(self) -> str:
        return "exact" if self.exact else "fast"

    def names(self) -> list[str]:
        """A text for each device, for the run's record."""
        return [f"{d.platform}:{d.id} {d.device_kind}" for d in self.devices]

    def pool(self) -> Pool:
        if self.by_agents:
            return local_pool(self.num_shards, self.exact)
        return device_pool(self.num_shards, self.num_devices, self.exact)

    # --- inside the program of one device ---------------------------------------------------

    def map_agents(self, f: Callable[..., PyTree], *trees: PyTree) -> PyTree:
        """``f`` on each of the agents ``[P', ...]`` that a device holds."""
        return map_exact(f, *trees) if self.exact else jax.vmap(f)(*trees)

    def map_shards(self, f: Callable[..., PyTree], *trees: PyTree, trips: Array) -> PyTree:
        """``f`` on each of some shards ``[n, ...]``, also where it is one shard of several
        (``trips``: see `map_exact`)."""
        return map_exact(f, *trees, trips=trips) if self.exact else jax.vmap(f)(*trees)

    def publish(self, tree: PyTree, number: Array) -> tuple[PyTree, Array]:
        """The results of a device's agents ``[P', ...]``, for every process to `read`, and the
        largest of the numbers, ``[]`` float32, that the processes give."""
        if self.num_processes == 1:
            return tree, number
        if not self.by_agents:
            return tree, self._largest(number, tree)
        agents = len(jax.tree.leaves(tree)[0])
        tree, numbers = self._gathered((tree, jnp.full(agents, number)))
        return tree, numbers.max()

    def _gathered(self, tree: PyTree) -> PyTree:
        """From the arrays of a device's agents, ``[P', ...]``, those of all agents, where these are
        on several processes. They hold numbers of 32 bits, which travel as one vector an agent."""
        if not self.by_agents or self.num_processes == 1:
            return tree
        leaves, structure = jax.tree.flatten(tree)
        words = [jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(len(x), -1) for x in leaves]
        rows = jax.lax.all_gather(jnp.concatenate(words, 1), AXIS, tiled=True)
        parts = jnp.split(rows, np.cumsum([x.shape[1] for x in words])[:-1], 1)
        whole = [
            jax.lax.bitcast_convert_type(part, x.dtype).reshape(-1, *x.shape[1:])
            for part, x in zip(parts, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, whole)

    def _largest(self, number: Array, before: PyTree = ()) -> Array:
        """The largest of the numbers of all devices, which they exchange once ``before`` has been
        computed: see `jaxrl_scale.types.Pool.after`."""
        x = jnp.concatenate([number[None], one_number_each(before)])
        for partners in exchange_rounds(self.num_devices):
            x = jnp.maximum(x, jax.lax.ppermute(x, AXIS, partners))
        return x[0]

    # --- compiling --------------------------------------------------------------------------

    @property
    def compiler_options(self) -> dict[str, Any]:
        """XLA's options for the programs of a run."""
        if not self.on_cpus:
            return {"xla_gpu_deterministic_ops": self.deterministic}
        options = products.compiler_options(self.portable) if self.exact else {}
        return options if self.portable else options | wide_vectors()

    def compile(self, f: Callable[..., Any], *args: PyTree, **options: Any) -> Any:
        """``f``, which sees one device's part, traced and compiled for all devices. Arguments and
        options are those of `trace`."""
        return self.trace(f, *args, **options)()

    def trace(
        self,
        f: Callable[..., Any],
        *args: PyTree,
        donate: tuple[int, ...] = (),
        once: bool = False,
        name: str = "",
    ) -> Callable[[], Any]:
        """Trace ``f``; the function that is returned compiles it, and may be called in a thread.
        XLA compiles on all cores, while only one thread at a time runs Python, and so traces.

        ``args`` are placed arrays or `jax.ShapeDtypeStruct` with the leading device axis.
        ``once``: it will run only once, so that optimising it does not pay. ``name``: that of the
        program in its run, under which an earlier run may have kept it; then nothing is traced. On
        CPUs a call must have ended before the next begins: XLA's in-process collectives deadlock
        when calls queue up (seen with jax 0.10.2).
        """
        options = self.compiler_options
        if once:  # without XLA's fusion emitters it is quicker still, but depends on the devices
            options = options | {"xla_backend_optimization_level": "0"}
        mapped = self._mapped(f, donate)
        if self.num_processes == 1:
            return self._traced(mapped, args, options, self.devices, name)
        # Of several processes pmap compiles only what is given as global arrays.
        whole = jax.tree.map(lambda x: jax.core.ShapedArray(self._global(x.shape), x.dtype), args)
        compile = self._traced(mapped, whole, options, self.devices, name)

        def compile_for_all() -> Callable[..., Any]:
            compiled = compile()
            return lambda *args: compiled(*jax.tree.map(self._to_global, args))

        return compile_for_all

    def _traced(
        self,
        f: Any,
        args: tuple[PyTree, ...],
        options: dict[str, Any],
        devices: Sequence[jax.Device],
        name: str,
    ) -> Compile:
        """``f``, which is jitted or mapped, traced for these arguments, or found."""

        def trace(other_name: str = "") -> Compile:
            lowered = f.lower(*args)
            if other_name:
                rename(lowered, other_name)
            if self.on_cpus:
                merge_equal(lowered)
            return lambda: lowered.compile(compiler_options=options)

        if not self.kept or not name:
            compile = trace()
        else:
            compile = self.kept.program((name, _told(args), str(options)), devices, trace)

        def compile_and_check() -> jax.stages.Compiled:
            compiled = compile()
            check_program(compiled, [device for device in devices if device in self.at_hand])
            return compiled

        return compile_and_check

    def over_agents(self, f: Callable[..., PyTree], name: str = "") -> Callable[..., PyTree | None]:
        """``f``, which sees one agent, for all agents of the run: it takes trees of the agents that
        this process holds, ``[P_own, ...]`` on the host, and returns one ``[P, ...]`` on the host,
        of numbers of 32 bits. It is compiled at its first call; ``name`` as for `compile`.

        Where whole agents are placed on devices, every process has to call it. Else process 0
        computes it by itself, and the others get None.
        """
        compiled: Any = None

        def on_one_device(*trees: PyTree) -> PyTree:
            return self._gathered(self.map_agents(f, *trees))

        def call(*trees: PyTree) -> PyTree | None:
            nonlocal compiled
            if self.by_agents:
                trees = self.split_shared(trees)
                compiled = compiled or self.compile(on_one_device, *trees, name=name)
                return self.read(compiled(*trees))
            if not self.leader:
                return None
            trees = jax.tree.map(np.asarray, trees)
            if compiled is None:
                mapped, device = jax.jit(on_one_device), self.at_hand[:1]
                compiled = self._traced(mapped, trees, self.compiler_options, device, name)()
            return jax.tree.map(np.asarray, compiled(*trees))

        return call

    def shapes(self, f: Callable[..., Any], *args: PyTree, name: str = "") -> PyTree:
        """Shapes and dtypes of what `compile` would return for ``args``, of this process. If both
        are given one and the same function object, JAX traces it once for both. ``name`` as for
        `compile`."""
        if not self.kept or not name:
            return self._shapes(f, *args)
        return self.kept.shapes((name, _told(args)), lambda: self._shapes(f, *args))

    def _shapes(self, f: Callable[..., Any], *args: PyTree) -> PyTree:
        if self.num_processes == 1:
            return jax.eval_shape(self._mapped(f), *args)
        # As vmap, because pmap's abstract evaluation sees local devices only.
        mapped = jax.vmap(f, axis_name=AXIS)
        whole = jax.tree.map(lambda x: jax.ShapeDtypeStruct(self._global(x.shape), x.dtype), args)

        def here(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((len(self.at_hand), *x.shape[1:]), x.dtype)

        return jax.tree.map(here, jax.eval_shape(mapped, *whole))

    def _mapped(self, f: Callable[..., Any], donate: tuple[int, ...] = ()) -> Any:
        return jax.pmap(f, axis_name=AXIS, devices=self.devices, donate_argnums=donate)

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
        """Run one collective: at the first one gloo connects the processes, and prints a message,
        which is discarded. It is a collective that the run itself needs: the others exchange
        between pairs, and the devices may be three, where they hold whole agents."""
        with unheard(1):
            numbers = self.split_scalar(0.0)
            publish = self.compile(lambda number: self.publish(number[None], number), numbers)
            jax.block_until_ready(publish(numbers))

    # --- to and from the host ---------------------------------------------------------------

    def split_scalar(self, x: int | float) -> np.ndarray:
        """``[D]`` int32 or float32 of one number of this process."""
        return np.full(len(self.at_hand), x, np.float32 if isinstance(x, float) else np.int32)

    def join_number(self, numbers: Array) -> float:
        """The number that `publish` gave, on the host."""
        return float(first_to_host(numbers))

    def put(self, tree: PyTree) -> PyTree:
        """Arrays ``[D, ...]`` of the host on their devices, for programs that `compile` made."""
        return jax.tree.map(self._to_global, tree)

    def whole_shapes(self, shared: PyTree, local: PyTree) -> tuple[PyTree, PyTree]:
        """Shapes and dtypes of the canonical trees, ``[P, ...]`` and ``[P, S, ...]``, from those of
        the placed ones, ``[D, P', ...]`` and ``[D, P', S', ...]``."""

        def shape(*leading: int) -> Callable[[jax.ShapeDtypeStruct], jax.ShapeDtypeStruct]:
            return lambda x: jax.ShapeDtypeStruct((*leading, *x.shape[len(leading) + 1 :]), x.dtype)

        P, S = self.num_agents, self.num_shards
        return jax.tree.map(shape(P), shared), jax.tree.map(shape(P, S), local)

    def split_shared(self, tree: PyTree) -> PyTree:
        """``[P_own, ...] -> [D, P', ...]``"""
        here = len(self.at_hand)

        def split(x: np.ndarray) -> np.ndarray:
            if self.by_agents:
                return x.reshape(here, -1, *x.shape[1:])
            return np.broadcast_to(x, (here, *x.shape))

        return jax.tree.map(lambda x: split(np.asarray(x)), tree)

    def split_local(self, tree: PyTree) -> PyTree:
        """``[P_own, S_own, ...] -> [D, P', S', ...]``"""
        here = len(self.at_hand)

        def split(x: np.ndarray) -> np.ndarray:
            if self.by_agents:
                return x.reshape(here, -1, *x.shape[1:])
            blocks = x.reshape(x.shape[0], here, -1, *x.shape[2:])
            return np.ascontiguousarray(np.moveaxis(blocks, 1, 0))

        return jax.tree.map(lambda x: split(np.asarray(x)), tree)

    def join_shared(self, tree: PyTree) -> PyTree:
        """``[D, P', ...] -> [P_own, ...]``, on the host."""

        def join(x: Array) -> np.ndarray:
            if self.by_agents:
                return to_host(x).reshape(-1, *x.shape[2:])
            return first_to_host(x)  # equal on all devices

        return jax.tree.map(join, tree)

    def join_local(self, tree: PyTree) -> PyTree:
        """``[D, P', S', ...] -> [P_own, S_own, ...]``, on the host."""

        def join(x: Array) -> np.ndarray:
            if self.by_agents:
                return to_host(x).reshape(-1, *x.shape[2:])
            blocks = np.moveaxis(to_host(x), 0, 1)
            return blocks.reshape(blocks.shape[0], -1, *blocks.shape[3:])

        return jax.tree.map(join, tree)

    def read(self, tree: PyTree) -> PyTree:
        """What `publish` gave, ``[P, ...]`` of all agents, on the host of every process."""
        if self.by_agents and self.num_processes > 1:
            return jax.tree.map(first_to_host, tree)
        return self.join_shared(tree)


def _told(args: tuple[PyTree, ...]) -> str:
    """The shapes and dtypes of arguments, as a text."""
    return str(jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", args))


def check_program(program: jax.stages.Compiled, devices: Sequence[jax.Device]) -> None:
    """Raise a `RunError` if a program cannot run because the memory of these devices, each of which
    runs a part of it, is not enough. XLA knows before."""
    stats = program.memory_analysis()
    if stats is None:
        return
    held = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    needed, free = len(devices) * (held + stats.temp_size_in_bytes), free_memory(devices)
    if needed > free:
        raise RunError(
            f"this takes {decimal(needed)} of memory, but {decimal(free)} is free; {TAKE_LESS}"
        )


def to_host(x: Array | np.ndarray) -> np.ndarray:
    """Of a placed array the part of this process, ``[D, ...]``."""
    if isinstance(x, np.ndarray) or x.is_fully_addressable:
        return np.asarray(x)
    parts = sorted(x.addressable_shards, key=lambda part: part.index[0].start)
    return np.concatenate([np.asarray(part.data) for part in parts])


def first_to_host(x: Array | np.ndarray) -> np.ndarray:
    """The part of this process's first device. ``x[0]`` itself is a slow gather."""
    if isinstance(x, np.ndarray) or x.is_fully_addressable:
        return np.asarray(x)[0]
    return np.asarray(x.addressable_data(0))[0]
