"""Checkpoints: written in the background by orbax, atomic, checked when they are read.

A checkpoint is a folder named after its iteration. orbax writes it under a temporary name
(``*.orbax-checkpoint-tmp``) and renames it when it is complete, so that a process killed at
any moment leaves whole ones only. It holds the arrays by name (``shared/algo/params/kernel``)
and, as orbax's custom metadata, a JSON record: the caller's ``meta`` and ``score``; shape,
dtype and CRC-32 of every array; a CRC-32 of the record itself.

orbax by itself reads some damage as wrong numbers (a byte flipped in an array); the digests
find all of it. They also tell damage, which is skipped, from a checkpoint of another config,
which is an error.

The disk is the only memory: which checkpoints there are, and which is the best, is read from
the folder each time. orbax's ``CheckpointManager`` is not used: it deletes a checkpoint file
by file under its own name, where a kill, or a reader, finds half of one; it skips an iteration
below the latest without a word; and its background saving holds the caller up for 6 to 40 ms,
a thread for 0.1 ms.
"""

from __future__ import annotations

import errno
import importlib
import json
import logging
import math
import os
import re
import shutil
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_scale.types import PyTree, UserError

Found = tuple[int, PyTree, dict[str, Any]]
"""Iteration, state, meta."""

_RECORD = "_CHECKPOINT_METADATA"  # where orbax puts custom metadata
_IO_ERROR = 74  # exit status; EX_IOERR of sysexits.h


class Checkpoints:
    """The checkpoints of one run, in ``directory``: the last ``keep`` and the best-scored one.

    For the one process that trains; who only reads calls `restore`. What a killed process left
    half done is removed first. Raises `UserError` where nothing can be written.
    """

    def __init__(self, directory: Path, keep: int):
        self.directory, self.keep = Path(directory).absolute(), keep
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not os.access(self.directory, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "folder is not writable")
        except OSError as error:
            message = f"cannot save checkpoints in {self.directory}: {_reason(error)}"
            raise UserError(message, _IO_ERROR) from error
        _remove_leftovers(self.directory)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def warm_up(self) -> None:
        """Import orbax (0.4 s) in the background, best while XLA compiles. It is imported at
        first use otherwise."""
        self._worker.submit(importlib.import_module, "orbax.checkpoint")

    def save(
        self, iteration: int, state: PyTree, meta: dict[str, Any], score: float | None = None
    ) -> None:
        """Begin to write a checkpoint and return; wait only for one that is still unwritten.

        ``state`` is a tree of NumPy arrays that nobody changes any more, ``meta`` JSON data,
        ``score`` (higher is better, NaN is none) what the best is chosen by. An iteration that
        is saved already is left as it is. What went wrong with the save before is raised here,
        as `UserError`; the checkpoints before it stay whole.
        """
        self.wait()
        if score is not None:
            score = None if math.isnan(score) else float(score)
        record = json.loads(json.dumps({"meta": meta, "score": score}))  # a copy, read back
        self._pending = self._worker.submit(self._write, iteration, state, record)

    def wait(self) -> None:
        """Return when everything is on the disk; raise what went wrong there, once."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def restore(
        self, target: PyTree, warn: Callable[[str], None], best: bool = False
    ) -> Found | None:
        """As the function `restore`. Damaged checkpoints are renamed to ``<iteration>.damaged``:
        not counted any more, not in the way of that iteration, and there to be looked at."""
        self.wait()
        found, damaged = _search(self.directory, target, warn, best)
        for path in damaged:
            aside = path.with_name(f"{path.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)  # of an earlier time
            path.rename(aside)
        return found

    def close(self) -> None:
        """`wait`, and end the thread."""
        try:
            self.wait()
        finally:
            self._worker.shutdown()

    def _write(self, iteration: int, state: PyTree, record: dict[str, Any]) -> None:
        path = self.directory / str(iteration)
        arrays = {name: np.asarray(x) for name, x in _named_leaves(state).items()}
        record["arrays"] = {
            name: {"shape": list(x.shape), "dtype": x.dtype.name, "crc32": _digest(x)}
            for name, x in arrays.items()
        }
        record["crc32"] = _record_digest(record)
        try:
            if not path.exists():
                _write_arrays(path, arrays, record)
            self._delete_old()
        except Exception as error:
            _remove_leftovers(self.directory)  # make room on a full disk
            message = f"cannot save checkpoint {path}: {_reason(error)}"
            raise UserError(message, _IO_ERROR) from error

    def _delete_old(self) -> None:
        scores = {int(path.name): _score(path) for path in _newest_first(self.directory)}
        for iteration in scores.keys() - kept(scores, self.keep):
            # Renamed first: under its own name a checkpoint is whole or not there.
            doomed = self.directory / f"{iteration}.deleted"
            (self.directory / str(iteration)).rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)  # over NFS a reader may hold its files


def kept(scores: dict[int, float], keep: int) -> set[int]:
    """The iterations to keep: the last ``keep`` (at least 1) and the best-scored, of equals the
    latest. ``scores`` by iteration, minus infinity for none."""
    best = max(scores, key=lambda iteration: (scores[iteration], iteration))
    return {*sorted(scores)[-keep:], best}


def restore(
    directory: Path, target: PyTree, warn: Callable[[str], None], best: bool = False
) -> Found | None:
    """The newest whole checkpoint in ``directory``, or the best-scored one; None if there is
    none at all.

    Changes nothing on the disk, and may run while another process trains there. ``target`` is
    a tree of arrays or `jax.ShapeDtypeStruct`. A damaged checkpoint is named through ``warn``
    and the next one taken. Raises `UserError` if all are damaged, or if a whole one is not
    like ``target``.
    """
    return _search(Path(directory).absolute(), target, warn, best)[0]


# --- finding --------------------------------------------------------------------------------


class _Damage(Exception):
    """Why a checkpoint is not whole, in one line."""


def _newest_first(directory: Path) -> list[Path]:
    paths = [path for path in directory.glob("[0-9]*") if path.name.isdecimal() and path.is_dir()]
    return sorted(paths, key=lambda path: int(path.name), reverse=True)


def _remove_leftovers(directory: Path) -> None:
    for pattern in ("*.orbax-checkpoint-tmp*", "*.deleted"):
        for path in directory.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def _score(path: Path, damaged: float = -math.inf) -> float:
    try:
        score = _read_record(path)["score"]
    except _Damage:
        return damaged
    return -math.inf if score is None else score


def _search(
    directory: Path, target: PyTree, warn: Callable[[str], None], best: bool
) -> tuple[Found | None, list[Path]]:
    """What was found, and the damaged checkpoints that were met on the way."""
    paths = _newest_first(directory)
    if best:  # what cannot be read may have been the best: it comes first, to be named
        paths.sort(key=lambda path: _score(path, damaged=math.inf), reverse=True)
    damaged: list[Path] = []
    for path in paths:
        try:
            record = _read_record(path)
            _check_fits(path, record["arrays"], _named_leaves(target))
            arrays = _read_arrays(path, record["arrays"])
        except _Damage as reason:
            if not path.exists():  # the training process deleted it, so there are newer ones
                return _search(directory, target, warn, best)
            warn(f"checkpoint {path} is damaged and skipped: {reason}")
            damaged.append(path)
        else:
            leaves = [arrays[name] for name in _named_leaves(target)]
            state = jax.tree.unflatten(jax.tree.structure(target), leaves)
            return (int(path.name), state, record["meta"]), damaged
    if damaged:
        message = f"none of the {len(damaged)} checkpoints in {directory} is whole"
        raise UserError(message, _IO_ERROR)
    return None, []


def _check_fits(path: Path, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise `UserError` if a checkpoint is whole and one of another config."""
    there = {name: _describe(x["shape"], x["dtype"]) for name, x in saved.items()}
    here = {name: _describe(x.shape, x.dtype) for name, x in wanted.items()}
    for name in [*here, *there]:
        if here.get(name) != there.get(name):
            raise UserError(
                f"checkpoint {path} is of another config: {name} is "
                f"{there.get(name, 'missing')} in it and {here.get(name, 'missing')} in this run"
            )


def _describe(shape: Any, dtype: Any) -> str:
    return f"{np.dtype(dtype).name}[{', '.join(map(str, shape))}]"


# --- reading and writing one ----------------------------------------------------------------


def _named_leaves(tree: PyTree) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}
    if len(named) != len(leaves):
        raise ValueError("two leaves of the state have the same name")
    return named


def _digest(x: np.ndarray) -> int:
    data: Any = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    return zlib.crc32(data)


def _record_digest(record: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def _write_arrays(path: Path, arrays: dict[str, np.ndarray], record: dict[str, Any]) -> None:
    import orbax.checkpoint as ocp

    stored = {name: x for name, x in arrays.items() if x.size}  # orbax refuses empty arrays
    with _checkpointer() as checkpointer:
        checkpointer.save(path, args=ocp.args.PyTreeSave(stored), custom_metadata=record)


def _read_record(path: Path) -> dict[str, Any]:
    """The record, read without orbax: to list checkpoints must not cost its import."""
    try:
        record = json.loads((path / _RECORD).read_bytes())["custom_metadata"]
        if record.pop("crc32") == _record_digest(record):
            return record
    except OSError as error:
        raise _Damage(f"{_RECORD}: {_reason(error)}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # not JSON any more, or not this JSON
    raise _Damage(f"{_RECORD} is not what was written")


def _read_arrays(path: Path, saved: dict[str, Any]) -> dict[str, np.ndarray]:
    import orbax.checkpoint as ocp

    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    stored = {name: as_numpy for name, x in saved.items() if 0 not in x["shape"]}
    try:
        with _checkpointer() as checkpointer:
            arrays = checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=stored))
    except MemoryError:
        raise
    except Exception as error:
        raise _Damage(f"its arrays cannot be read: {_reason(error)}") from error
    for name, as_saved in saved.items():
        if name not in stored:
            arrays[name] = np.zeros(as_saved["shape"], as_saved["dtype"])
        x = np.asarray(arrays.get(name))
        same_type = _describe(x.shape, x.dtype) == _describe(as_saved["shape"], as_saved["dtype"])
        if not same_type or _digest(x) != as_saved["crc32"]:
            raise _Damage(f"{name} is not what was written")
    return arrays


def _checkpointer() -> Any:
    """An orbax checkpointer for trees of NumPy arrays that fails in silence and in order."""
    import orbax.checkpoint as ocp

    class NumpyHandler(ocp.type_handlers.NumpyHandler):
        """Raises an error when no array is under way any more. orbax leaves at the first:
        tensorstore then goes on to write into a folder that is being removed, and prints a
        traceback for every array whose event loop it finds closed."""

        async def _background_serialize(self, *args: Any, **kwargs: Any) -> None:
            self.errors: list[Exception] = []
            await super()._background_serialize(*args, **kwargs)
            if self.errors:
                raise self.errors[0]

        async def _open_and_write(self, *args: Any, **kwargs: Any) -> None:
            try:
                await super()._open_and_write(*args, **kwargs)
            except Exception as error:
                self.errors.append(error)

        async def deserialize(self, infos: Any, args: Any = None) -> list[np.ndarray]:
            arrays: list[np.ndarray] = []
            for info, arg in zip(infos, args, strict=True):
                arrays += await super().deserialize([info], [arg])
            return arrays

    logging.getLogger("absl").addFilter(_not_from_orbax)  # once: it is the same function
    process = jax.process_index()
    # Acts for this process alone: no barrier with other hosts, least of all in a thread.
    alone = ocp.options.MultiprocessingOptions(primary_host=process, active_processes={process})
    types = ocp.type_handlers.create_type_handler_registry((np.ndarray, NumpyHandler()))
    handler = ocp.PyTreeCheckpointHandler(
        type_handler_registry=types, multiprocessing_options=alone
    )
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _not_from_orbax(record: logging.LogRecord) -> bool:
    """A filter for the logger that orbax shares: it logs, with tracebacks, what it raises too."""
    return "orbax" not in record.pathname


def _reason(error: BaseException) -> str:
    """An error in one line, in the words of the operating system where that was the cause."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if code := re.search(r"os_error_code='(\d+)'", str(error)):  # from tensorstore
        return os.strerror(int(code[1]))
    text = " ".join(str(error).split(" [tensorstore_spec")[0].split())
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
