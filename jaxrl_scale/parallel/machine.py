"""What this machine has: its cores, GPUs, memory and ports."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import psutil

from jaxrl_scale.errors import RunError
from jaxrl_scale.options import shortened

_PATIENCE = 60
"""Seconds in which the driver has to list the GPUs."""


def visible_cores() -> list[int]:
    """The CPU cores that this process may use: its affinity, and no more than Slurm gives it."""
    return affinity()[: most_cores()]


def affinity() -> list[int]:
    """The cores that this process is bound to, by Slurm, a container or ``taskset``; else all."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return list(range(os.cpu_count() or 1))


def most_cores() -> int | None:
    """``SLURM_CPUS_PER_TASK``: how many cores Slurm gives this process, which it need not bind it
    to. None where it does not say so."""
    asked = os.environ.get("SLURM_CPUS_PER_TASK") or ""
    if asked and not re.fullmatch(r"0*[1-9][0-9]{0,5}", asked):
        raise RunError(f"SLURM_CPUS_PER_TASK={shortened(asked)} should be a number of cores")
    return int(asked) if asked else None


def schedule_as_batch() -> None:
    """Let this thread, and the threads and processes that it starts from here on, be batch work for
    Linux's scheduler (sched(7)): awakened, such a thread waits until the one that has the core
    sleeps or has had its share. Its own share is as large as any other's.

    With gloo's collectives on CPUs this is what keeps processes of few cores together. Gloo has a
    thread that waits for messages. When one came while the computing thread was sending, and held
    the connection's lock, it took the core and asked for the lock over and over, until its time
    was up: 3 ms for a sum that takes 0.1 (jaxlib 0.10.2; measured in docs/scaling.md).
    """
    with contextlib.suppress(AttributeError, OSError):  # not on Linux, or not allowed
        if os.sched_getscheduler(0) == os.SCHED_OTHER:  # else the user has chosen
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def processor_features() -> str:
    """What the processors here are called and can do, for which XLA compiles. Raises an OSError
    where Linux does not tell."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    told = ("flags", "Features", "model name")
    return "\n".join(sorted({line for line in lines if line.startswith(told)}))


def visible_gpus() -> list[str]:
    """The UUIDs of the NVIDIA GPUs that this process may use, in the order in which CUDA numbers
    them. There are none for a JAX without a plugin, which sees CPUs alone.

    A GPU that is divided into instances (MIG) is not there itself, but its instances are. CUDA lets
    a process use one instance, and no GPU beside it.
    """
    command = shutil.which("nvidia-smi")
    for_cpus = os.environ.get("JAX_PLATFORMS", "").startswith("cpu")
    # JAX looks for its plugins, CUDA's among them, in this package.
    if command is None or for_cpus or importlib.util.find_spec("jax_plugins") is None:
        return []
    try:
        done = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        raise RunError(
            f"{command} -L, which lists the GPUs, has not ended after {_PATIENCE} s; "
            "JAX_PLATFORMS=cpu trains without them"
        ) from None
    gpus: list[tuple[str, list[str]]] = []  # each with its instances, in indented lines below it
    for line in done.stdout.splitlines():
        if found := re.search(r"UUID: (\S+?)\)", line):
            if line.startswith("GPU"):
                gpus.append((found[1], []))
            elif gpus:
                gpus[-1][1].append(found[1])
    parts = [instances or [gpu] for gpu, instances in gpus]
    visible = [part for several in parts for part in several]
    if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        numbered = {str(k): several[0] for k, several in enumerate(parts)}
        named = [numbered.get(name.strip(), name.strip()) for name in chosen.split(",")]
        # As CUDA does, which stops at the first that does not exist.
        visible = list(itertools.takewhile(visible.__contains__, named))
    instances = [part for part in visible if part.startswith("MIG")]
    return instances[:1] or visible


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def unheard(descriptor: int) -> Iterator[None]:
    """Discard whatever C++ code writes to a file descriptor in this block."""
    if sys.stdout is not None:  # a program that trains may have closed it
        sys.stdout.flush()
    kept = os.dup(descriptor)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), descriptor)
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)


class Memory(NamedTuple):
    """Of the process on CPUs, of one device on GPUs; in megabytes of 2**20 bytes."""

    now: float
    peak: float  # the most that was in use at once so far


def memory(device: jax.Device) -> Memory:
    """The memory that is in use."""
    if device.platform != "cpu" and "peak_bytes_in_use" in (stats := device.memory_stats() or {}):
        return Memory(stats["bytes_in_use"] / 1024**2, stats["peak_bytes_in_use"] / 1024**2)
    # On Linux, where getrusage also counts what the parent used before it started this process.
    found = dict(re.findall(r"(VmRSS|VmHWM):\s+(\d+) kB", _read(Path("/proc/self/status"))))
    if len(found) == 2:
        return Memory(int(found["VmRSS"]) / 1024, int(found["VmHWM"]) / 1024)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = used / 1024**2 if sys.platform == "darwin" else used / 1024
    return Memory(psutil.Process().memory_info().rss / 1024**2, peak)


def free_memory(devices: Sequence[jax.Device]) -> int:
    """How many bytes a state on these devices of this process may take. On CPUs a limit of a Slurm
    job or a container counts."""
    stats = [device.memory_stats() or {} for device in devices]
    if all("bytes_limit" in each for each in stats):
        return sum(each["bytes_limit"] - each["bytes_in_use"] for each in stats)
    return min([psutil.virtual_memory().available, *memory_left_in_groups(Path("/"))])


def memory_left_in_groups(root: Path) -> list[int]:
    """How many bytes each control group that this process is in may still take, where it has a
    limit. The groups are nested, and each of them may have one."""
    left = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            top, limit, usage = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            top, limit = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
            usage = "memory.usage_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            most, used = _read(folder / limit).strip(), _read(folder / usage).strip()
            if most.isdecimal() and used.isdecimal():  # else "max": no limit
                # Cached files count as used, but they are given up when memory is needed.
                stat = dict(re.findall(r"(\w+) (\d+)", _read(folder / "memory.stat")))
                cached = stat.get("total_inactive_file") or stat.get("inactive_file") or 0
                left.append(int(most) - int(used) + int(cached))
            if folder == top:
                break
    return left


def _read(file: Path) -> str:
    """The text of a file of the kernel; empty where it is not there."""
    try:
        return file.read_text()
    except OSError:
        return ""


def machine_id() -> str:
    """A text that is the same for all processes on a machine, whatever names it has."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def node_name() -> str:
    """The name of this machine for messages; under Slurm the name of the node."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def split(mine: int, owned: Sequence[tuple[str, list[Any]]], most: int | None = None) -> list[Any]:
    """The cores, or GPUs, that process ``mine`` uses of those that it sees.

    ``owned`` has for each process its machine and what it sees there. Processes of a machine that
    see the same things divide them among themselves. A process that alone sees its things, because
    the launcher has bound it to them, keeps them all; but in no case more than ``most``.
    """
    things = owned[mine][1]
    sharers = [k for k, other in enumerate(owned) if other == owned[mine]]
    first, count = sharers.index(mine), len(sharers)
    return things[first * len(things) // count : (first + 1) * len(things) // count][:most]


def process_start() -> float:
    """When this process began, in unix seconds. psutil adds up from a machine's start in whole
    seconds, which is up to a second too early."""
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])  # since the machine's start
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - age
    except (OSError, AttributeError):  # not Linux
        return psutil.Process().create_time()
