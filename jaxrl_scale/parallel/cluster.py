"""Which process of a run this is, as its launcher tells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxrl_scale.config import Launch
from jaxrl_scale.errors import RunError

FIRST_PORT = 61_440  # above the ports that Linux hands out by itself


class Cluster(NamedTuple):
    """Where one process stands among those of its run."""

    num_processes: int = 1
    process_id: int = 0
    host: str = "127.0.0.1"  # of process 0, where all meet
    port: int = FIRST_PORT


# --- finding the others ---------------------------------------------------------------------


def find(launch: Launch, environment: Mapping[str, str]) -> Cluster:
    """What the flags tell, else the variables ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES``
    and ``JAX_PROCESS_ID``, else OpenMPI's or Slurm's; one process where none does.

    Raises `RunError` where they tell half of it.
    """
    flags = {
        "--coordinator": launch.coordinator,
        "--num_processes": launch.num_processes,
        "--process_id": launch.process_id,
    }
    if any(value is not None for value in flags.values()):
        return _given(flags)
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    if any(name in environment for name in names):
        return _given({name: environment.get(name) for name in names})
    if "OMPI_COMM_WORLD_SIZE" in environment:  # before Slurm's, under which mpirun may run
        return _openmpi(environment)
    if {"SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID"} <= environment.keys():
        return _slurm(environment)
    return Cluster()


def _given(values: dict[str, Any]) -> Cluster:
    missing = [name for name, value in values.items() if value is None]
    if missing:
        there = [f"{name}={value}" for name, value in values.items() if value is not None]
        raise RunError(f"{' and '.join(there)} given without {' and '.join(missing)}")
    address, *numbers = values.values()
    try:
        number, process_id = map(int, numbers)
    except ValueError:
        raise RunError(f"{' and '.join(list(values)[1:])} should be whole numbers") from None
    if not 0 <= process_id < number:
        names = list(values)
        raise RunError(
            f"{names[2]}={process_id} should be from 0 to {number - 1}, as {names[1]}={number}"
        )
    host, colon, port = str(address).rpartition(":")
    if not colon or "]" in port:  # no port; an IPv6 address stands in brackets
        return Cluster(number, process_id, str(address).strip("[]"))
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise RunError(f"{next(iter(values))}={address} should be HOST or HOST:PORT")
    return Cluster(number, process_id, host.strip("[]"), int(port))


def _openmpi(environment: Mapping[str, str]) -> Cluster:
    """Rank 0 is taken to be on mpirun's own host, whose address is all that OpenMPI tells."""
    number = int(environment["OMPI_COMM_WORLD_SIZE"])
    uri = environment.get("OMPI_MCA_orte_hnp_uri", "")
    found = re.match(r"(\d+)\.\d+;tcp6?://\[?([^],]+?)\]?[,:]", uri)
    together = number == int(environment.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1))
    if not found and not together:
        raise RunError(
            "OpenMPI does not tell where rank 0 is; add "
            "--coordinator=HOST --num_processes=$OMPI_COMM_WORLD_SIZE "
            "--process_id=$OMPI_COMM_WORLD_RANK"
        )
    job = int(found[1]) >> 16 if found else 0
    host = "127.0.0.1" if together or not found else found[2]
    return Cluster(number, int(environment["OMPI_COMM_WORLD_RANK"]), host, _port(job))


def _slurm(environment: Mapping[str, str]) -> Cluster:
    """Process 0 is on the first node of the step."""
    nodes = environment["SLURM_STEP_NODELIST"]  # n7 or n[07-12,20],m1
    prefix, number = re.match(r"([^\[,]+)(?:\[([^],-]+))?", nodes).groups()  # type: ignore[union-attr]
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or 1
    # Two steps of one job may run side by side.
    job = 61 * int(environment.get("SLURM_JOB_ID", 0)) + int(environment["SLURM_STEP_ID"])
    rank = int(environment["SLURM_PROCID"])
    return Cluster(int(tasks), rank, prefix + (number or ""), _port(job))


def _port(job: int) -> int:
    return FIRST_PORT + job % (2**16 - FIRST_PORT)
