"""What happens before the first iteration: the state has to fit into memory, and XLA compiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax
from rich.filesize import decimal

from jaxrl_scale.errors import RunError
from jaxrl_scale.loop.protocol import Runner
from jaxrl_scale.parallel.hosts import Hosts
from jaxrl_scale.parallel.machine import free_memory
from jaxrl_scale.types import PyTree


def num_bytes(shapes: PyTree) -> int:
    """Memory of arrays with these shapes and dtypes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes))


def check_memory(state: Any, devices: tuple[jax.Device, ...]) -> None:
    """Raise a `RunError` if a state does not fit into the memory of these devices.

    On CPUs it is there twice while it is saved: a checkpoint is written from a copy.

    Args:
      state: shapes and dtypes of a `jaxrl_scale.loop.runner.State` as this process holds it.
      devices: those of this process.
    """
    needed, free = num_bytes(state), free_memory(devices)
    copies = 2 if devices[0].platform == "cpu" else 1
    if needed * copies <= free:
        return
    sizes = {
        "its num_envs": num_bytes((state.local.envs, state.local.carry)),
        "the steps that the algorithm stores": num_bytes(state.local.algo),
        "the network's parameters": num_bytes(state.shared),
    }
    raise RunError(
        f"the state of this run takes {decimal(needed)}"
        + (", and as much again while it is saved" if copies == 2 else "")
        + f", but {decimal(free)} of memory is free; with {free / needed / copies:.0%} of "
        f"{max(sizes, key=lambda name: sizes[name])} it would fit"
    )


@contextmanager
def jax_settings_restored() -> Iterator[None]:
    """Give whoever trains within a program of their own their settings of JAX back, which
    `jaxrl_scale.parallel.backend.initialize` changes."""
    names = ("jax_default_matmul_precision", "jax_enable_x64")
    before = {name: jax.config.values[name] for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@contextmanager
def compiled_meanwhile(
    runner: Runner, hosts: Hosts, cache_is_used: bool
) -> Iterator[Callable[[], None]]:
    """Compile in a thread while the block goes on; the block calls what it is given to wait.

    Args:
      cache_is_used: whether compiled programs are kept in a folder.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="compile") as thread:
        yield thread.submit(compile_in_turn, runner, hosts, cache_is_used).result


def compile_in_turn(runner: Runner, hosts: Hosts, cache_is_used: bool) -> None:
    """Compile. On one machine process 0 does it first, and the others then find its programs in
    the cache."""
    in_turn = hosts.together and cache_is_used
    if hosts.leader or not in_turn:
        runner.compile()
    hosts.barrier("process 0 has compiled", thread="compile")
    if not hosts.leader and in_turn:
        runner.compile()
    # Here the watch waits for slow compilers. A collective would give up.
    hosts.barrier("compiled", thread="compile")
