"""Which process of a run this is, as flags, variables or the launcher tell."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxrl_scale.config import Launch
from jaxrl_scale.errors import RunError, in_words
from jaxrl_scale.options import shortened

FIRST_PORT = 61_440  # above the ports that Linux hands out by itself
_MOST = 1_000_000  # processes
_HERE = "127.0.0.1"


class Cluster(NamedTuple):
    """Where one process stands among those of its run."""

    num_processes: int = 1
    process_id: int = 0
    host: str = _HERE  # of process 0, where all meet
    port: int = FIRST_PORT

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can reach process 0 under its address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def address(self, port: int) -> str:
        """``HOST:PORT`` for a port of process 0's machine."""
        host = f"[{self.host}]" if ":" in self.host else self.host  # IPv6
        return f"{host}:{port}"


def find(launch: Launch, environment: Mapping[str, str]) -> Cluster:
    """What the flags tell, else the variables ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES``
    and ``JAX_PROCESS_ID``, else OpenMPI's or Slurm's; one process where none does.

    Raises `RunError` where they are incomplete or make no sense.
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


def _given(values: Mapping[str, Any]) -> Cluster:
    missing = [name for name, value in values.items() if value is None]
    if missing:
        there = [f"{name}={value}" for name, value in values.items() if value is not None]
        raise RunError(f"{in_words(there)} given without {in_words(missing)}")
    address_name, *names = values
    number, process_id = _place(values, *names)
    address = str(values[address_name])
    host, colon, port = address.rpartition(":")
    if not colon or "]" in port:  # no port; an IPv6 address stands in brackets
        return Cluster(number, process_id, address.strip("[]"))
    if not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 2**16:
        raise RunError(f"{address_name}={shortened(address)} should be HOST or HOST:PORT")
    return Cluster(number, process_id, host.strip("[]"), int(port))


def _openmpi(environment: Mapping[str, str]) -> Cluster:
    """Process 0 is taken to be on mpirun's own machine, whose address is all that OpenMPI tells."""
    number, process_id = _place(environment, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
    uri = environment.get("OMPI_MCA_orte_hnp_uri", "")
    found = re.match(r"(\d{1,10})\.\d+;tcp6?://\[?([^],]+?)\]?[,:]", uri)
    together = number == _number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", 1)
    if not found and not together:
        raise RunError(
            "OpenMPI does not tell where rank 0 is; add "
            "--coordinator=HOST --num_processes=$OMPI_COMM_WORLD_SIZE "
            "--process_id=$OMPI_COMM_WORLD_RANK"
        )
    job = int(found[1]) >> 16 if found else 0
    host = _HERE if together or not found else found[2]
    return Cluster(number, process_id, host, _port(job))


def _slurm(environment: Mapping[str, str]) -> Cluster:
    """Process 0 is on the first node of the step."""
    told = [n for n in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if environment.get(n)]
    number, process_id = _place(environment, told[0], "SLURM_PROCID") if told else (1, 0)
    host = _first_node(environment["SLURM_STEP_NODELIST"])
    if _number(environment, "SLURM_STEP_NUM_NODES", 0) == 1:
        host = _HERE
    # Two steps of one job may run side by side.
    job = 61 * _number(environment, "SLURM_JOB_ID", 0) + _number(environment, "SLURM_STEP_ID")
    return Cluster(number, process_id, host, _port(job))


def _first_node(nodes: str) -> str:
    """``n07`` of ``n[07-12,20],m1``"""
    first = re.match(r"[^][,]+(\[[^][]+\]|[^][,]+)*(?=,|$)", nodes)
    if first is None:
        raise RunError(
            f"SLURM_STEP_NODELIST={shortened(nodes)} should be a list of nodes such as n[07-12],m1"
        )
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first[0])


def _place(values: Mapping[str, Any], number_name: str, process_name: str) -> tuple[int, int]:
    """How many processes there are, and which one this is."""
    number, process_id = _number(values, number_name), _number(values, process_name)
    if number > _MOST:
        raise RunError(f"{number_name}={number} should be at most {_MOST}")
    if not 0 <= process_id < number:
        raise RunError(
            f"{process_name}={process_id} should be from 0 to {number - 1}, "
            f"as {number_name}={number}"
        )
    return number, process_id


def _number(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = str(values.get(name, default)).strip()
    if not re.fullmatch(r"-?[0-9]{1,19}", value):  # as many as 64 bits have
        raise RunError(f"{name}={shortened(value)} should be a whole number")
    return int(value)


def _port(job: int) -> int:
    return FIRST_PORT + job % (2**16 - FIRST_PORT)
