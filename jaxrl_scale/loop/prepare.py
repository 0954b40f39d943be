"""What happens before the first iteration: the config is checked, the state has to fit into memory,
and XLA compiles."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
from rich.filesize import decimal

from jaxrl_scale.config import Config, check, check_algo, check_kind, command_line, files
from jaxrl_scale.errors import RunError
from jaxrl_scale.loop.protocol import Runner
from jaxrl_scale.parallel.backend import CACHE_FOLDER, CACHE_FROM, keep_programs, settings_of
from jaxrl_scale.parallel.machine import free_memory, processor_features
from jaxrl_scale.parallel.peers import Peers
from jaxrl_scale.records import provenance
from jaxrl_scale.records.run_directory import as_stored
from jaxrl_scale.types import PyTree


def checked(config: Config | None, resume: str | Path | None) -> Config:
    """The config to train. That of a run which is resumed may not change its result."""
    if resume is not None:
        started = files.read_config(Path(resume) / "config.json")
        config = started if config is None else config
        check_kind(config)
        check_algo(config.algo)
        command_line.check_resume(started, files.flatten(as_stored(config)), dashes="")
    if config is None:
        raise RunError("train() needs a config, or resume=RUN_DIR")
    check(config)
    return config


def settings(config: Config, resume: str | Path | None) -> dict[str, str]:
    """What has to be the same in all processes of a run."""
    versions = provenance.versions()
    return {
        **{option: str(value) for option, value in files.flatten(config).items()},
        "resume": str(resume),
        **{package: versions.get(package, "") for package in ("jax", "jaxlib", "jaxrl_scale")},
    }


_VECTORS = ("amx", "asimd", "avx", "fma", "sse", "sve")
"""How the features of a processor begin on which XLA's choice of instructions depends."""


def other_processors(peers: Peers, portable: bool) -> str | None:
    """What the user is told where the processes are not compiled for alike."""
    features: set[str] = set()
    with suppress(OSError):
        features = {word for word in processor_features().split() if word.startswith(_VECTORS)}
    mine = [[] if portable else sorted(features), os.environ.get("XLA_FLAGS")]
    all_of_them = peers.gather("processor", mine)
    for k, theirs in enumerate(all_of_them):
        if theirs != all_of_them[0]:
            return (
                f"{peers.name(k)} has another kind of processor or other XLA_FLAGS than process 0: "
                "the run's bits depend on which process holds what (--portable, docs/exactness.md)"
            )
    return None


def num_bytes(shapes: PyTree) -> int:
    """Memory of arrays with these shapes and dtypes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes))


def copies(devices: tuple[jax.Device, ...]) -> int:
    """How often a state is in the memory of these devices while it is saved: twice on CPUs, where
    a checkpoint is written from a copy."""
    return 2 if devices[0].platform == "cpu" else 1


def check_memory(state: Any, devices: tuple[jax.Device, ...]) -> None:
    """Raise a `RunError` if a state does not fit into the memory of these devices.

    Args:
      state: shapes and dtypes of a `jaxrl_scale.loop.state.State` as this process holds it.
      devices: those of this process.
    """
    needed, free, times = num_bytes(state), free_memory(devices), copies(devices)
    if needed * times <= free:
        return
    sizes = {
        "its num_envs": num_bytes((state.local.envs, state.local.carry)),
        "the steps that the algorithm stores": num_bytes(state.local.algo),
        "the network's parameters": num_bytes(state.shared),
    }
    largest, fitting = max(sizes, key=lambda name: sizes[name]), 100 * free // (needed * times)
    raise RunError(
        f"the state of this run takes {decimal(needed)}"
        + (", and as much again while it is saved" if times == 2 else "")
        + f", but {decimal(free)} of memory is free; "
        + (
            f"with {fitting}% of {largest} it would fit"
            if fitting
            else f"a hundredth of {largest} would not fit either"
        )
    )


_found: list[dict[str, Any]] = []
"""The settings that each training of this process is to leave behind, in the order of their
beginnings."""
_changing = threading.Lock()


@contextmanager
def jax_settings_restored() -> Iterator[None]:
    """Give whoever trains within a program of their own the precision of their numbers and products
    and their compilation cache back, which `jaxrl_scale.parallel.backend.initialize` changes, and
    their partitioner, which `jaxrl_scale.envs.brax_adapter` does. Of trainings in several threads
    one that ends before another that began later leaves this to that one, which needs them as they
    are."""
    names = (
        *("jax_default_matmul_precision", "jax_enable_x64", "jax_use_shardy_partitioner"),
        *(CACHE_FOLDER, CACHE_FROM),
    )
    with _changing, ThreadPoolExecutor(1) as thread:  # a block's settings are its own thread's
        found = thread.submit(lambda: {name: jax.config.values[name] for name in names}).result()
        _found.append(found)
    try:
        yield
    finally:
        with _changing:
            place = [settings is found for settings in _found].index(True)
            del _found[place]
            if place < len(_found):
                _found[place].update(found)
            else:
                keep_programs({name: found.pop(name) for name in (CACHE_FOLDER, CACHE_FROM)})
                for name, value in found.items():
                    jax.config.update(name, value)


@contextmanager
def programs_forgotten() -> Iterator[None]:
    """At the end have JAX forget what it has traced and compiled. In a process that trains run
    after run it would keep that of every run, some 50 MB. What else the process has jitted is
    compiled once more at its next call."""
    try:
        yield
    finally:
        jax.clear_caches()


@contextmanager
def compiled_meanwhile(
    config: Config, runner: Runner, peers: Peers, cache_is_used: bool, fresh: bool
) -> Iterator[Callable[[], None]]:
    """Compile in a thread while the block goes on; the block calls what it is given to wait.

    Args:
      config: that of the run, whose settings of JAX the thread has, whatever other threads train.
      cache_is_used: whether compiled programs are kept in a folder.
      fresh: whether the run begins at the beginning.
    """

    def compile() -> None:
        with settings_of(config):
            compile_in_turn(runner, peers, cache_is_used, fresh)

    with ThreadPoolExecutor(1, thread_name_prefix="compile") as thread:
        yield thread.submit(compile).result


def compile_in_turn(runner: Runner, peers: Peers, cache_is_used: bool, fresh: bool) -> None:
    """Compile. On one machine process 0 does it first, and the others then find its programs in
    the cache."""
    in_turn = peers.together and cache_is_used
    if peers.leader or not in_turn:
        runner.compile(fresh)
    peers.barrier("process 0 has compiled", thread="compile")
    if not peers.leader and in_turn:
        runner.compile(fresh)
    # Here the watch waits for slow compilers. A collective would give up.
    peers.barrier("compiled", thread="compile")
