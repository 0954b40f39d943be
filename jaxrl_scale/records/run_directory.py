"""The directory of one run: its files, its lock, and the record of how it was started.

==================  ================================================================
``config.json``     the resolved config; a directory that has it holds a run
``run.json``        ``{"starts": [...]}``: one entry for the start and for each resume, with
                    command, host, versions, devices, commit (see `RunDirectory.record_start`)
``metrics.jsonl``   the rows of metrics (see `jaxrl_scale.records.rows`)
``tensorboard/``    the same rows as TensorBoard events
``wandb.json``      the wandb run's id; ``wandb/`` what wandb writes
``checkpoints/``    see `jaxrl_scale.records.checkpoint`
``summary.json``    the result (see `jaxrl_scale.records.rows.Summary`)
``.lock``           locked by the process that uses the directory, and naming it
==================  ================================================================
"""

from __future__ import annotations

import errno
import fcntl
import functools
import importlib.metadata
import json
import math
import os
import platform
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxrl_scale.config import Config
from jaxrl_scale.config.files import to_json
from jaxrl_scale.errors import INPUT_OUTPUT_ERROR, RunError
from jaxrl_scale.parallel.hosts import Hosts

_PACKAGES = (
    *("jaxrl_scale", "jax", "jaxlib", "flax", "optax", "chex", "orbax-checkpoint", "numpy"),
    *("scipy", "gymnasium", "gymnax", "envpool", "wandb", "tensorboardX"),
    *("jax-cuda12-plugin", "jax-cuda13-plugin"),
)
_JAX_FLAGS = (
    *("jax_default_matmul_precision", "jax_enable_x64", "jax_default_prng_impl"),
    *("jax_threefry_partitionable", "jax_platforms", "jax_num_cpu_devices"),
    *("jax_compilation_cache_dir", "jax_debug_nans"),
)


@contextmanager
def entered(
    config: Config, name: str, resume: str | Path | None, hosts: Hosts
) -> Iterator[RunDirectory]:
    """The directory of a run: a new one, or that of a run that is to be resumed.

    Process 0 makes and locks it, and the other processes of the run follow.

    Args:
      config: of the run. It is written down, so that from now on the run can be resumed.
      name: the run's, unless it was given another when it was started.
      resume: where the run is; None for a new one.
      hosts: the processes of the run.
    """
    wanted = os.path.abspath(resume or config.run_dir or _default_path(name))
    path = Path(hosts.gather("run directory", wanted)[0])
    if hosts.leader:
        run = open_existing(path) if resume else create(path)
        if not resume:
            run.write_json("config.json", to_json(config))
    hosts.barrier("run directory is there")
    if not hosts.leader:
        run = follow(path, to_json(config))
    try:
        starts = (run.read_json("run.json") or {"starts": []})["starts"]
        run.name = starts[0].get("name", name) if starts else name
        yield run
    finally:
        run.close()


def _default_path(name: str) -> str:
    """``runs/<name>-<time>``, with a number where two runs start in the same second."""
    path = f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while Path(path if number == 1 else f"{path}-{number}").exists():
        number += 1
    return path if number == 1 else f"{path}-{number}"


def create(path: Path) -> RunDirectory:
    """A directory for a new run, made where it does not exist.

    Files of others may lie in it (a scheduler's log, say), those of a run may not.
    """
    path = _absolute(path)
    with io_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    run = RunDirectory(path)
    # Looked up under the lock: of two processes that start at once, one gets the directory.
    if (path / "config.json").exists():
        run.close()
        shown = short(path)
        raise RunError(
            f"{shown} already holds a run: --resume {shlex.quote(shown)} continues it, "
            "or choose another --run_dir"
        )
    for name in ("metrics.jsonl", "checkpoints", "summary.json"):
        if (path / name).exists():
            run.close()
            raise RunError(
                f"{short(path)} holds {name} but no config.json; choose another --run_dir"
            )
    return run


def open_existing(path: Path) -> RunDirectory:
    """The directory of a run that is to be resumed."""
    path = _absolute(path)
    if not path.is_dir():
        raise RunError(f"{short(path)} does not exist, so there is no run to resume")
    if not (path / "config.json").is_file():
        raise RunError(f"{short(path)} is not a run directory: it has no config.json")
    return RunDirectory(path)


def follow(path: Path, config: dict[str, Any]) -> RunDirectory:
    """The directory for a process beside the first, which holds the lock. On a host that has no
    such folder, since it is not shared, one is made, with what a resume reads there first."""
    with io_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    run = RunDirectory(path, lock=False)
    if not run.config.exists():
        run.write_json("config.json", config)
    return run


class RunDirectory:
    """An existing directory, used by this process alone until `close`, if it has the ``lock``.

    The lock is the kernel's (``flock``): it goes when the process dies, however it dies, and
    no stale file ever blocks a run. ``warning`` is a line for the user, ``None`` unless the
    file system knows no locks (Lustre mounted without them, for one).
    """

    def __init__(self, path: Path, lock: bool = True):
        self.path = path
        self.name = path.name  # the run's, see `entered`
        self.warning: str | None = None
        with io_errors(path):
            self._lock: int | None = self._acquire() if lock else None

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def newest_checkpoint(self) -> Path | None:
        """The folder of the last checkpoint that was completed."""
        saved = [path for path in self.checkpoints.iterdir() if path.name.isdecimal()]
        return max(saved, key=lambda path: int(path.name), default=None)

    def _acquire(self) -> int:
        lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 256, 0).decode(errors="replace").strip()
            os.close(lock)
            raise RunError(
                f"{short(self.path)} is in use by {holder or 'another process'}; "
                "stop it, or choose another --run_dir"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                raise
            self.warning = (
                f"the file system of {short(self.path)} knows no locks: "
                "see to it that no second process uses this directory"
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        return lock

    def close(self) -> None:
        """Let others use the directory. The file stays: removing it would race with them."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read_json(self, name: str) -> dict[str, Any] | None:
        """What `write_json` wrote, ``None`` where it never did."""
        return read_json(self.path / name)

    def write_json(self, name: str, data: dict[str, Any]) -> None:
        """Write a file whole or not at all, whatever happens meanwhile."""
        text = json.dumps(plain(data), indent=2, allow_nan=False) + "\n"
        with io_errors(self.path / name):
            write_atomically(self.path / name, text.encode())

    def record_start(self, devices: Sequence[str], **more: Any) -> None:
        """Append to ``run.json`` how this process was started and what it runs on.

        Args:
          devices: a text for each device of the run.
          more: further entries, such as ``resumed_from`` or the number of processes.
        """
        recorded = self.read_json("run.json") or {"starts": []}
        recorded["starts"].append({**describe_process(), "devices": list(devices), **more})
        self.write_json("run.json", recorded)


def describe_process() -> dict[str, Any]:
    """Command, host, versions and flags of this process."""
    import jax  # already loaded by whoever trains; reading its flags starts no backend

    flags = {name: getattr(jax.config, name, None) for name in _JAX_FLAGS}
    environment = {k: v for k, v in os.environ.items() if k.startswith(("JAX_", "XLA_"))}
    return {
        "time": time.time(),
        "command": shlex.join(sys.orig_argv),
        "directory": os.getcwd(),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "platform": platform.platform(),
        "git_commit": git_commit(),
        "versions": versions(),
        "jax_flags": flags,
        "environment": environment,
    }


@functools.cache  # every package's metadata is a file to be read
def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that matter, none of them imported."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """The commit of this package's checkout, with ``-dirty`` where files differ from it;
    ``None`` where the package is installed rather than checked out."""
    folder = Path(__file__).parents[1]
    # An installed package may lie in somebody else's repository (a .venv in a project).
    if _git(folder, "ls-files", "--error-unmatch", "types.py") is None:
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


# --- files ----------------------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any] | None:
    """What a file holds, ``None`` where there is none."""
    try:
        data: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunError(f"{short(path)} is damaged: {error}") from None
    return data


@contextmanager
def io_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or an unwritable folder into one line that names the path."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"cannot write {short(path)}: {reason}", INPUT_OUTPUT_ERROR) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file: a crash at any moment, of the machine too, leaves the old or the new."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError:  # some network file systems cannot; the rename stands nevertheless
        pass
    finally:
        os.close(folder)


def plain(data: Any) -> Any:
    """Plain data for JSON: arrays become lists, and NaN and infinities ``None``.

    JSON has no NaN; ``null`` is read by every tool, and means "no finite number" here.
    """
    if isinstance(data, dict):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    if isinstance(data, float):
        return float(data) if math.isfinite(data) else None
    if data is None or isinstance(data, bool | int | str):
        return data
    if hasattr(data, "tolist"):  # arrays and scalars of NumPy and JAX
        return plain(data.tolist())
    return str(data)


def short(path: Path) -> str:
    """A path for people: relative where it lies below the working directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path.expanduser()))
