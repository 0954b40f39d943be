"""Starting JAX for a run, on all of its processes, and placing the run on their devices."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flax
import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache

from jaxrl_scale import NO_LOOP_KERNELS
from jaxrl_scale.config import Config, check_processes
from jaxrl_scale.errors import RunError, how_many, no_folder, one_line, say_no_more
from jaxrl_scale.learning import products
from jaxrl_scale.options import largest_divisor
from jaxrl_scale.parallel.machine import (
    affinity,
    free_port,
    most_cores,
    processor_features,
    schedule_as_batch,
    split,
    visible_cores,
    visible_gpus,
)
from jaxrl_scale.parallel.peers import Peers
from jaxrl_scale.parallel.placement import Placement
from jaxrl_scale.types import Array


@contextmanager
def settings_of(config: Config) -> Iterator[None]:
    """Compute as a run of this config does, whatever settings of JAX whoever calls has made for a
    block of code of their own."""
    precision = jax.default_matmul_precision(config.matmul_precision)
    # FLAX_FIX_RNG_SEPARATOR would give the layers other keys, and so other initial weights.
    keys_of_layers = flax.config.temp_flip_flag("fix_rng_separator", False)
    with precision, keys_of_layers, jax.enable_x64(False):
        yield


def cpu_devices(number: int) -> bool:
    """Ask JAX for so many CPU devices, which has no effect where the default backend is a GPU.
    Returns whether that was in time: in a notebook JAX may have started before."""
    try:
        jax.config.update("jax_num_cpu_devices", number)
    except RuntimeError:
        return False
    return True


CACHE_FOLDER = "jax_compilation_cache_dir"
CACHE_FROM = "jax_persistent_cache_min_compile_time_secs"


def keep_programs(options: dict[str, Any]) -> None:
    """Set JAX's options of where it keeps compiled programs. JAX opens a folder once, and another
    one only after it is told to."""
    another = options[CACHE_FOLDER] != jax.config.values[CACHE_FOLDER]
    for name, value in options.items():
        jax.config.update(name, value)
    if another:
        compilation_cache.reset_cache()


def keeps_programs() -> bool:
    """Whether compiled programs are kept in a folder."""
    return bool(jax.config.values[CACHE_FOLDER])


def _may_hold_others(folder: str) -> str:
    """Why others may put programs into a folder of compiled ones, which would run with the rights
    of this user; empty where they may not."""
    with contextlib.suppress(OSError):
        found = os.stat(folder)
        if found.st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
            return "belongs to another user"
        if found.st_mode & stat.S_IWOTH:
            return "may be written by everybody"
    return ""


def initialize(config: Config, peers: Peers | None = None) -> Placement:
    """Set JAX up for this config, on all processes, and place the run on their devices.

    Must come before anything else touches a device; in a process where something did (a
    notebook), the CPU devices that exist are used.

    Raises:
      RunError: the devices that the config asks for are not there, or do not divide the run; what
        it asks for comes too late in this process; the compilation cache is no folder; JAX is told
        to compile nothing, or to give devices nothing.
    """
    if config.compilation_cache and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        folder = os.path.expanduser(config.compilation_cache)
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise RunError(f"compilation_cache={no_folder(Path(folder))}")
        if why := _may_hold_others(folder):
            if peers is None or peers.leader:
                told = f"{why}, who could put other programs there: it is not used"
                print(f"compilation_cache={folder} {told}", file=sys.stderr)
        else:
            keep_programs({CACHE_FOLDER: folder, CACHE_FROM: 0.1})
    jax.config.update("jax_default_matmul_precision", config.matmul_precision)
    # A run depends on its config alone, not on JAX_ENABLE_X64: it is the same in 32-bit numbers.
    jax.config.update("jax_enable_x64", False)
    if jax.config.values["jax_disable_jit"]:
        raise RunError(
            "JAX_DISABLE_JIT is set, but a run is one compiled program; unset it, and step an "
            "environment as plain Python with jaxrl_scale.envs.play"
        )
    guard = jax.config.values["jax_transfer_guard"] or ""
    if guard.startswith("disallow"):
        raise RunError(f"JAX_TRANSFER_GUARD={guard} forbids what a run does all the time; unset it")
    peers = peers or Peers()
    cores = _start_distributed(peers) if peers.several else len(visible_cores())
    started = not cpu_devices(config.devices or cores)
    if config.portable:
        cap(started)
    try:
        devices = find_devices()
    except Exception:
        if peers.several:  # JAX finds none, either, if a process that it waits for is lost
            peers.await_verdict()
        raise
    if started and not _flags_were_read(devices[0]):
        raise RunError(
            "JAX had used a device in this process before jaxrl_scale was imported, which is too "
            "late for XLA's flags; restart it (in a notebook: the kernel), and import jaxrl_scale "
            "first"
        )
    if started and jax.local_device_count() < (config.devices or 0) <= cores:
        raise RunError(
            f"devices={config.devices}, but JAX has started in this process before, with "
            f"{jax.local_device_count()} {devices[0].platform} device(s); restart it (in a "
            "notebook: the kernel), and train before anything else uses JAX"
        )
    placement = place(config, devices, cores)
    if peers.several:
        placement.connect()
    return placement


def fewer_devices(config: Config, peers: Peers) -> str | None:
    """What the user is told where JAX has started before, with fewer CPU devices than the run of
    this process could use."""
    there, cores = jax.local_device_count(), len(visible_cores())
    useful = min(cores, max(config.num_shards, config.num_seeds))
    if peers.several or config.devices or there >= useful or jax.default_backend() != "cpu":
        return None
    return (
        f"JAX has started in this process before, with {how_many(there, 'CPU device')}; train "
        f"before anything else uses JAX, and this run has {cores} (its result is the same)"
    )


@functools.cache
def _flags_were_read(device: jax.Device) -> bool:
    """Whether XLA leaves a small loop in several kernels, as `jaxrl_scale.__init__` asks by a flag.
    Where the user has chosen otherwise nothing is looked at."""
    if device.platform != "cpu" or NO_LOOP_KERNELS not in os.environ.get("XLA_FLAGS", ""):
        return True

    def loop(count: int) -> Array:
        return jax.lax.fori_loop(0, count, lambda _, x: x * x + 1, jnp.zeros(8))

    return "xla_cpu_small_call" not in str(jax.jit(loop).lower(3).compile().as_text())


class _InOneLine(logging.Formatter):
    """What JAX logs, without tracebacks: a plugin for GPUs that cannot start, as CUDA's on a
    machine without a driver, is left out, and the other devices are used."""

    def format(self, record: logging.LogRecord) -> str:
        if not record.exc_info or not record.exc_info[1]:
            return record.getMessage()
        return f"JAX goes on without a plugin that cannot start: {one_line(record.exc_info[1])}"


@contextmanager
def _logged_in_one_line() -> Iterator[None]:
    """Show what JAX logs as `_InOneLine`, unless the user has chosen how it is shown."""
    logger, handler = logging.getLogger("jax"), logging.StreamHandler()
    handler.setFormatter(_InOneLine())
    if logger.hasHandlers():
        yield
        return
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def find_devices() -> list[jax.Device]:
    """The devices of all processes. Raises `RunError` where JAX_PLATFORMS asks for one that JAX
    does not find here."""
    asked = os.environ.get("JAX_PLATFORMS", "")
    try:
        with _logged_in_one_line():
            return jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that a GPU was found
        if not asked:
            raise
        reason = f": {str(error).splitlines()[0]}" if str(error) else ""
        raise RunError(
            f"JAX finds no device for JAX_PLATFORMS={asked}; try JAX_PLATFORMS=cpu, or unset it"
            + reason
        ) from error


def _start_distributed(peers: Peers) -> int:
    """Start ``jax.distributed``, which can be done once in a process; returns the cores that every
    process has for itself."""
    seen = visible_gpus()
    told = peers.gather("cores and GPUs", (affinity(), most_cores(), seen))
    cores, most, gpus = zip(*told, strict=True)
    bound_to = list(zip(peers.machines, cores, strict=True))
    own_cores = [split(k, bound_to, most[k]) for k in range(len(most))]
    own_gpus = split(peers.process_id, list(zip(peers.machines, gpus, strict=True)))
    if seen and not own_gpus:
        raise RunError(
            f"no GPU is left for this process: others share the {len(seen)} here; "
            "start at most one process a GPU, or train on the CPU by JAX_PLATFORMS=cpu"
        )
    fewest = max(1, min(map(len, own_cores)))
    if jax.distributed.is_initialized():  # for an earlier run of the same processes
        return fewest
    if seen:
        # With GPUs JAX's C++ log says while the process ends that the other processes are not heard
        # any more (jaxlib 0.11.2), which is as it should be.
        atexit.register(say_no_more)
    else:
        schedule_as_batch()  # XLA's and gloo's threads, which start with the backend
        _cache_for_all_processes()
    # Its own heartbeat ends in an abort that names nobody: ours comes first.
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from us
    address = peers.cluster.address(peers.gather("port", free_port())[0])
    jax.distributed.initialize(
        coordinator_address=address,
        coordinator_bind_address=address if peers.cluster.is_local else None,  # None: everywhere
        num_processes=peers.num_processes,
        process_id=peers.process_id,
        local_device_ids=[seen.index(gpu) for gpu in own_gpus] or None,
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=int(peers.heartbeat) + 10,
        shutdown_timeout_seconds=30,
    )
    return fewest


def _cache_for_all_processes() -> None:
    """Let every process find the compiled programs that process 0, which alone writes them, has
    left in the cache.

    JAX looks them up under the fingerprint of the topology too, which XLA:CPU gives differently to
    each process. What the processor can do stands in for it. JAX has no public name for this; a
    version without these private names compiles once in every process, which is only slower.
    """
    with contextlib.suppress(OSError, ImportError):
        from jax._src import cache_key

        names = ("custom_hook", "_hash_accelerator_config", "_hash_devices")
        if not all(hasattr(cache_key, name) for name in names):
            return
        features = processor_features()
        cache_key.custom_hook = lambda: features
        vars(cache_key)["_hash_accelerator_config"] = vars(cache_key)["_hash_devices"]


def place(config: Config, devices: list[jax.Device], cores: int = 1) -> Placement:
    """The placement of a run on ``devices``, those of all its processes: on the first of each
    process, equally many, as many as divide the run.

    Args:
      cores: those that this process has for itself.
    """
    of_process: dict[int, list[jax.Device]] = {}
    for device in devices:
        of_process.setdefault(device.process_index, []).append(device)
    processes = len(of_process)
    here = of_process[devices[0].process_index if processes == 1 else jax.process_index()]
    fewest = min(map(len, of_process.values()))
    wanted = config.devices or fewest
    if wanted > fewest:
        raise RunError(
            f"devices={wanted}, but this process has {fewest} "
            f"{devices[0].platform} device(s); try devices={fewest}"
        )
    agents, shards = config.num_seeds, config.num_shards
    check_processes(config, processes)
    # Where shards do not divide, whole agents, on as many devices as divide them.
    by_agents = agents % (processes * wanted) == 0 or shards % processes != 0
    if config.portable:
        check_portable(devices[0].platform)
    count = largest_divisor((agents if by_agents else shards) // processes, wanted)
    exact = config.reduction == "exact" or (
        config.reduction == "auto" and devices[0].platform == "cpu"
    )
    return Placement(
        devices=tuple(device for k in sorted(of_process) for device in of_process[k][:count]),
        at_hand=tuple(here[:count]),
        idle=len(here) - count,
        num_agents=agents,
        num_shards=shards,
        by_agents=by_agents,
        exact=exact,
        portable=config.portable,
        deterministic=config.deterministic,
        num_threads=config.num_threads or cores,
    )


_CAP = "--xla_cpu_max_isa=AVX2"


def cap(started: bool) -> None:
    """Let XLA compile for processors with AVX2 and FMA, whatever this one has beside them.

    With AVX-512 it chooses other products that become fused multiply-adds. This is a flag of the
    process: as an option of a program, jaxlib 0.10.2 takes it and compiles for AVX-512 all the
    same.

    Args:
      started: JAX has used a device of this process and reads no flags any more.

    Raises:
      RunError: it is too late, or the user's flags ask for something else.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    given = [flag for flag in flags if flag.startswith(_CAP.partition("=")[0] + "=")]
    if given and given[-1].upper() != _CAP.upper():
        raise RunError(f"portable=True needs {_CAP}, and XLA_FLAGS has {given[-1]}; remove it")
    if not given and started:
        raise RunError(
            "portable=True comes too late: JAX has used a device in this process already. Start "
            f"another one, or set XLA_FLAGS={_CAP} before the first device is used"
        )
    if not given:
        os.environ["XLA_FLAGS"] = " ".join([*flags, _CAP])


def check_portable(platform: str) -> None:
    """Raise a `RunError` where a portable run cannot have the bits that it has elsewhere: on
    another ``platform`` than CPUs, or on a processor that cannot do what others do."""
    if platform != "cpu":
        raise RunError(f"portable=True is for CPUs, not for a {platform}; try JAX_PLATFORMS=cpu")
    features: set[str] = set()
    with contextlib.suppress(OSError):
        features = set(processor_features().split())
    if missing := products.PORTABLE_NEEDS - features:
        raise RunError(
            f"portable=True needs an x86 processor with AVX2 and FMA; {', '.join(sorted(missing))} "
            "is not among the flags in this one's /proc/cpuinfo"
        )
