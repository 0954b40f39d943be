"""What this machine has: its cores, GPUs, memory and ports."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

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


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def unheard(descriptor: int) -> Iterator[None]:
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


def peak_memory_mb(device: jax.Device) -> float:
    """The most memory in use so far: of the process on CPUs, of one device on GPUs."""
    if device.platform != "cpu" and "peak_bytes_in_use" in (stats := device.memory_stats() or {}):
        return stats["peak_bytes_in_use"] / 1024**2
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024**2 if sys.platform == "darwin" else peak / 1024


def free_memory(devices: Sequence[jax.Device]) -> int:
    """Bytes that a state on these devices of this process may take."""
    stats = [device.memory_stats() or {} for device in devices]
    if all("bytes_limit" in each for each in stats):
        return sum(each["bytes_limit"] - each["bytes_in_use"] for each in stats)
    import psutil

    return psutil.virtual_memory().available


def machine_id() -> str:
    """What is the same for processes that share a machine, whatever their host is called."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def node_name() -> str:
    """The name of this host for people: Slurm's, where it has one."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def split(mine: int, owned: Sequence[tuple[str, list[Any]]]) -> list[Any]:
    """What process ``mine`` may use of the cores, or GPUs, that it sees.

    ``owned``: for each process its machine and what it sees there. Processes of a machine that
    see the same things share them out; one that sees its own alone (bound by the launcher)
    keeps them all.
    """
    things = owned[mine][1]
    sharers = [k for k, other in enumerate(owned) if other == owned[mine]]
    first, count = sharers.index(mine), len(sharers)
    return things[first * len(things) // count : (first + 1) * len(things) // count]
