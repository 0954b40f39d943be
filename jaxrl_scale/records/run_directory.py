"""The directory of one run: its files, its lock, and the record of how it was started.

==================  ====================================================================
``config.json``     the whole config; a directory with this file holds a run
``run.json``        ``{"starts": [...]}``: one entry for the start and for each resume, with
                    command, host, versions, devices, commit (see `jaxrl_scale.records.provenance`)
``metrics.jsonl``   the rows of metrics (see `jaxrl_scale.records.rows`)
``tensorboard/``    the same rows as TensorBoard events
``wandb.json``      the wandb run's id; ``wandb/`` what wandb writes
``checkpoints/``    see `jaxrl_scale.records.checkpoint`
``summary.json``    the result (see `jaxrl_scale.records.rows.Summary`)
``.lock``           the process that uses the directory keeps it locked; it names this process
==================  ====================================================================
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import secrets
import shlex
import shutil
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from jaxrl_scale.config import Config
from jaxrl_scale.config.files import from_json, to_json
from jaxrl_scale.errors import INPUT_OUTPUT_ERROR, MISTAKE, RunError, make_folder, raise_if_hidden
from jaxrl_scale.options import shortened
from jaxrl_scale.parallel.peers import Peers
from jaxrl_scale.records import checkpoint
from jaxrl_scale.records.provenance import describe_process

FILES = {"config.json", "run.json", "metrics.jsonl", "tensorboard", "wandb", "wandb.json"}
FILES |= {"checkpoints", "summary.json"}
"""What a run writes, beside its lock."""


@contextmanager
def entered(
    config: Config, name: str, resume: str | Path | None, peers: Peers
) -> Iterator[RunDirectory]:
    """The directory of a run: a new one, or that of a run that is to be resumed.

    Process 0 makes and locks it, and the other processes of the run follow. Where a mistake ends a
    new run before its first row, such as sizes for which the memory is not enough, nothing of it
    stays, so that the corrected command can have the same directory.

    Args:
      config: the run's config. It is written at once, so that the run can be resumed.
      name: the name of a new run; a resumed one has the name that it was started with.
      resume: the directory of the run to resume; ``None`` for a new run.
      peers: the processes of the run.
    """
    given = resume or config.run_dir
    default = f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    wanted = str(_absolute(Path(given or default)))
    try:
        wanted.encode()
    except UnicodeEncodeError:  # checkpoints are written by a library that takes UTF-8 only
        raise RunError(
            f"the name of the run directory {wanted!a} is no UTF-8 text; choose another "
            "--run_dir (or set PYTHONUTF8=1, if it is the locale that is not UTF-8)"
        ) from None
    if peers.leader and not given:
        made = wanted = _made_for_one(wanted)
        peers.after_mistake(lambda: shutil.rmtree(made, ignore_errors=True))
    path = Path(peers.gather("run directory", wanted)[0])
    with io_errors(path):
        others = set(os.listdir(path)) if given and path.is_dir() else None
    with ExitStack() as stack:
        if peers.leader:
            run = open_existing(path) if resume else create(path)
            stack.callback(run.close)
            if not resume:
                run.write_json("config.json", to_json(config))
                peers.after_mistake(lambda: _remove_untrained(run, others))
                stack.callback(peers.after_mistake, lambda: None)
        peers.barrier("run directory is there")
        if not peers.leader:
            run = follow(path, to_json(config), resume is None)
        peers.barrier("all have looked into the run directory")
        try:
            starts = read_starts(run.path)
            run.name = starts[0].get("name", name) if starts else name
            yield run
        except RunError as error:
            if peers.leader and not resume and error.status == MISTAKE:
                _remove_untrained(run, others)
            raise


def _remove_untrained(run: RunDirectory, others: set[str] | None) -> None:
    """Remove a run that has no row yet, but no file that was there before it: ``others``, None
    where the directory was not there either."""
    if run.has_trained():
        return
    if others is None:
        shutil.rmtree(run.path, ignore_errors=True)
        return
    for name in FILES - others:
        shutil.rmtree(run.path / name, ignore_errors=True)
        with suppress(OSError):
            (run.path / name).unlink()


def _made_for_one(path: str) -> str:
    """A directory that this process has made: the path, with a number where several runs start in
    the same second."""
    number, numbered = 1, path
    with io_errors(Path(path)):
        make_folder(Path(path).parent)
    while True:
        with io_errors(Path(numbered)), suppress(FileExistsError):
            os.mkdir(numbered)
            return numbered
        number += 1
        numbered = f"{path}-{number}"


def create(path: Path) -> RunDirectory:
    """The directory of a new run. It is made if it does not exist yet.

    It may hold files that do not belong to a run, such as a scheduler's log. Raises `RunError` if
    it holds a run already.
    """
    path = _absolute(path)
    with io_errors(path):
        make_folder(path)
    run = RunDirectory(path)
    # This is looked up under the lock, so that of two runs that start at once only one goes on.
    if holds_run(path):
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


def holds_run(path: Path) -> bool:
    """Whether a run has begun in a directory."""
    return (path / "config.json").exists()


def has_died(path: Path) -> bool:
    """Whether the last process that trained in a run directory is known to be no more: it was one
    of this machine, and its lock is free. Elsewhere a lock may be seen by one machine alone."""
    with suppress(OSError):
        lock = os.open(path / ".lock", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            holder = os.read(lock, 256).decode(errors="replace")
        finally:
            os.close(lock)
        return holder.endswith(f" on {socket.gethostname()}\n")
    return False


def is_bare_policy(path: Path) -> bool:
    """Whether a run directory has checkpoints and nothing else of its run, as those in zoo/."""
    rest = (path / name for name in ("run.json", "metrics.jsonl"))
    return not any(file.exists() for file in rest) and any(path.glob("checkpoints/[0-9]*"))


def refuse_run(folder: Path, option: str = "--run_dir") -> None:
    """Raise a `RunError` where what is to hold several runs is the directory of one; ``option`` is
    the one that names it."""
    if holds_run(folder):
        raise RunError(f"{short(folder)} holds a run; choose another {option}")


def open_existing(path: Path) -> RunDirectory:
    """The directory of a run that is to be resumed. Raises `RunError` if it holds no run."""
    path = _absolute(path)
    raise_if_hidden(path)
    if not path.is_dir():
        raise RunError(f"{short(path)} does not exist, so there is no run to resume")
    if not (path / "config.json").is_file():
        raise RunError(f"{short(path)} is not a run directory: it has no config.json")
    if is_bare_policy(path):
        shown = shlex.quote(short(path))
        raise RunError(
            f"{short(path)} is a policy without the rest of its run, as those in zoo/ are; "
            f"--init_from={shown} begins a new run from it"
        )
    for link in (path / "checkpoints", path / "tensorboard"):
        other = link.resolve().parent
        if link.is_symlink() and other != path.resolve() and holds_run(other):
            raise RunError(
                f"{short(link)} is a link into another run, {short(other)}, which would lose what "
                "it has; copy what the link leads to in its place"
            )
    return RunDirectory(path)


def follow(path: Path, config: dict[str, Any], new: bool) -> RunDirectory:
    """The run's directory for a process beside process 0, which holds the lock.

    Where the machines do not share the directory, this one gets one of its own, with the
    ``config.json`` that a resume reads first. A ``new`` run replaces one that is there, which a run
    that ended before its first row has left: process 0 removes its own alone. Raises a `RunError`
    where this machine holds another run there.
    """
    with io_errors(path):
        make_folder(path)
    run = RunDirectory(path, lock=False)
    has_parts = any(run.checkpoints.glob("*.part-*"))
    if new and (has_parts or run.has_trained() or (path / "summary.json").exists()):
        raise RunError(
            f"{short(path)} on {socket.gethostname()} holds another run; choose another --run_dir"
        )
    if new or not run.config.exists():
        run.write_json("config.json", config)
    return run


def _flock(lock: int) -> None:
    """Lock a file for this process alone, or raise a BlockingIOError. `has_died`, by which a
    command looks at a run, holds the lock for a moment too."""
    for _ in range(5):
        with suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.02)
    return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class RunDirectory:
    """The files of a run in an existing directory.

    With ``lock`` no other run can use the directory until `close`. The kernel keeps this lock
    (``flock``) and frees it when the process dies, however it dies, so a stale file never blocks
    a run. `warning` is a line for the user where the file system has no locks, as Lustre may be
    mounted, and ``None`` elsewhere.
    """

    def __init__(self, path: Path, lock: bool = True):
        self.path = path
        self.name = path.name  # the name of the run; `entered` sets it
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

    def has_trained(self) -> bool:
        """Whether there is a row of metrics or a checkpoint."""
        rows = self.metrics.exists() and self.metrics.stat().st_size > 0
        return rows or checkpoint.newest(self.checkpoints) is not None

    def _acquire(self) -> int:
        lock = os.open(self.path / ".lock", _LOCK_FLAGS, 0o666)
        try:
            _flock(lock)
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
                f"the file system of {short(self.path)} has no locks: "
                "make sure that no second run uses this directory"
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        return lock

    def close(self) -> None:
        """Let other runs use the directory. The lock's file stays, since a run that begins now
        may have opened it already."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write_json(self, name: str, data: dict[str, Any]) -> None:
        """Replace a file by new data. A crash leaves the old file or the new one, both whole."""
        write_json(self.path / name, data)

    def record_start(self, devices: Sequence[str], **more: Any) -> None:
        """Add to ``run.json`` how this process was started and what it runs on.

        Args:
          devices: a text for each device of the run.
          more: further entries, such as ``resumed_from`` or the number of processes.
        """
        start = {**describe_process(), "devices": list(devices), **more}
        self.write_json("run.json", {"starts": [*read_starts(self.path), start]})


# --- files ----------------------------------------------------------------------------------


def read_starts(path: Path) -> list[dict[str, Any]]:
    """What `RunDirectory.record_start` has added to the ``run.json`` of a run so far."""
    file = path / "run.json"
    if not (recorded := read_object(file)):
        return []
    starts = recorded.get("starts")
    if not isinstance(starts, list) or not all(isinstance(one, dict) for one in starts):
        raise RunError(
            f"{short(file)} is damaged: it should have a list of starts; without the file the run "
            "can be resumed"
        )
    return starts


def read_bytes(path: Path) -> bytes | None:
    """What is in a file, None where there is no file. Raises a `RunError` where it cannot be read,
    or is a pipe or a device, which may have no end."""
    try:
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise RunError(f"{short(path)} is no file of data")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{short(path)} cannot be read: {error.strerror}") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty where there is no file."""
    content = read_bytes(path)
    if content is None:
        return {}
    try:
        data = parsed(content)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{short(path)} is damaged: {error}") from None
    if not isinstance(data, dict) or not data:
        raise RunError(f"{short(path)} is damaged: it should hold a JSON object with fields")
    return data


def parsed(text: bytes) -> Any:
    """What a JSON text holds. NaN and infinities, which JSON does not know, are None, as `plain`
    writes them. Raises a `ValueError` or a `RecursionError` where it is damaged, or has a whole
    number that is beyond what NumPy computes with."""
    return json.loads(text, parse_int=_whole_number, parse_constant=lambda name: None)


def _whole_number(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (number := int(digits)) < 2**63:
        raise ValueError(f"the whole number {shortened(digits)} is too large")
    return number


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file whole or not at all, without NaN."""
    replace_file(path, json.dumps(plain(data), indent=2, allow_nan=False).encode() + b"\n")


def write_json_once(path: Path, data: Any) -> None:
    """As `write_json`, unless the file exists: of several processes that do this at the same time,
    one writes it."""
    own = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    write_json(own, data)
    with io_errors(path):
        try:
            with suppress(FileExistsError):
                os.link(own, path)
        finally:
            own.unlink()


def replace_file(path: Path, data: bytes) -> None:
    """As `write_atomically`; a full disk and the like are a `RunError`."""
    with io_errors(path):
        write_atomically(path, data)


@contextmanager
def io_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError`, such as a full disk, into a `RunError` that names the path."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"cannot write {short(path)}: {reason}", INPUT_OUTPUT_ERROR) from error


def check_writable(path: Path, option: str) -> None:
    """Raise a `RunError` where a file or folder is to be made in a folder that cannot be written,
    as the run of somebody else cannot; ``option`` names another place."""
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not os.access(above, os.W_OK):
        message = f"cannot write {short(path)}: Permission denied; {option} names another place"
        raise RunError(message, INPUT_OUTPUT_ERROR)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file. A crash of the process or of the machine leaves the old file or the new.
    Of several processes that do this at the same time, one is the last."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):  # a full disk need not stay full
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError:  # some network file systems cannot do it; the file is replaced all the same
        pass
    finally:
        os.close(folder)


def plain(data: Any) -> Any:
    """The same data as plain JSON: arrays become lists, NaN and infinities become ``None``.

    JSON has no NaN. Every tool reads ``null``, which here means "not a finite number".
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


def as_stored(config: Config) -> Config:
    """The config as ``config.json`` gives it back, to be compared with that of a run."""
    return from_json(plain(to_json(config)))


def short(path: Path) -> str:
    """The path as people are shown it: relative to the working directory if it lies below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def expanded(path: Path) -> Path:
    """A path that may begin with ``~``."""
    try:
        return path.expanduser()
    except RuntimeError:  # nobody has that name, or this user has no home, as in a container
        raise RunError(
            f"{path.parts[0]} in {path} is no known home; write the path of the folder, or "
            f"./{path} for a folder of that name"
        ) from None


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(expanded(path)))
