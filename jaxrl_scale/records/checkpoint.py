"""Checkpoints: written in the background by orbax, atomic, checked when they are read.

A checkpoint is a folder named after its iteration. orbax writes it under a temporary name
(``*.orbax-checkpoint-tmp``) and renames it when it is complete, so that a process killed at
any moment leaves whole ones only. It holds the arrays by name (``shared/algo/params/kernel``)
and, as orbax's custom metadata, a JSON record: the caller's ``meta`` and ``score``; shape,
dtype and CRC-32 of every array; a CRC-32 of the record itself.

**Several processes.** Each writes the shards that it holds, so that nothing large is gathered: a
process beside the first writes ``<iteration>.part-<k>-of-<n>``, a folder of the same kind, and
tells; process 0 writes ``<iteration>`` last, which makes the checkpoint count. Any number of
processes reads it back, each what it will hold, from the folders where that lies. Where the
processes see different disks, each keeps its parts on its own, with what else it needs, and the
same processes can resume.

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

import asyncio
import contextlib
import errno
import importlib
import json
import logging
import math
import os
import re
import shutil
import zlib
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_scale.errors import INPUT_OUTPUT_ERROR, RunError
from jaxrl_scale.parallel.hosts import Hosts
from jaxrl_scale.types import Part, PyTree

Found = tuple[int, PyTree, dict[str, Any]]
"""Iteration, state, meta."""

_RECORD = "_CHECKPOINT_METADATA"  # where orbax puts custom metadata


class Checkpoints:
    """The checkpoints of one run, in ``directory``: the last ``keep`` and the best-scored one.

    For the processes that train; who only reads calls `restore`. What a killed process left
    half done is removed first. Raises `RunError` where nothing can be written.

    Args:
      parts: of a run of several processes, which part of each array this one holds: the
        state's tree with a `Part` for each array. Without it, all is held whole.
    """

    def __init__(
        self, directory: Path, keep: int, hosts: Hosts | None = None, parts: PyTree = None
    ):
        self.directory, self.keep = Path(directory).absolute(), keep
        self.hosts, self.parts = hosts or Hosts(), parts
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not os.access(self.directory, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "folder is not writable")
        except OSError as error:
            message = f"cannot save checkpoints in {self.directory}: {_reason(error)}"
            raise RunError(message, INPUT_OUTPUT_ERROR) from error
        if self.hosts.leader:
            _remove_leftovers(self.directory)
        self.folder_is_shared = _is_shared(self.directory, self.hosts)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    @property
    def warning(self) -> str | None:
        """A line for the user, where the processes do not all see the same folder."""
        if self.folder_is_shared:
            return None
        return (
            f"{self.directory.parent} is not one folder for all processes: each keeps its own part "
            "of the checkpoints there, and only the same processes can resume them"
        )

    def warm_up(self) -> None:
        """Import orbax (0.4 s) in the background, best while XLA compiles. It is imported at
        first use otherwise."""
        self._worker.submit(importlib.import_module, "orbax.checkpoint")

    def save(
        self, iteration: int, state: PyTree, meta: dict[str, Any], score: float | None = None
    ) -> None:
        """Begin to write a checkpoint and return; wait only for one that is still unwritten.

        ``state`` is a tree of NumPy arrays that nobody changes any more, of several processes
        the part that this one holds. ``meta`` is JSON data, ``score`` (higher is better, NaN is
        none) what the best is chosen by. An iteration that is saved already is left as it is.
        What went wrong with the save before is raised here, as `RunError`; the checkpoints
        before it stay whole.
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
        found, damaged = _search(self.directory, target, warn, best, self.hosts, self.parts)
        for path in damaged if self.hosts.leader else ():
            aside = path.with_name(f"{path.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)  # of an earlier time
            path.rename(aside)
        self.hosts.barrier("damaged checkpoints are moved")
        return found

    def close(self) -> None:
        """`wait`, and end the thread."""
        try:
            self.wait()
        finally:
            self._worker.shutdown()

    def _write(self, iteration: int, state: PyTree, record: dict[str, Any]) -> None:
        hosts, path = self.hosts, self.directory / str(iteration)
        try:
            if hosts.leader:
                parts = hosts.gather(f"parts of {iteration}", None, thread="save")
                if hosts.several:
                    record["parts"] = parts
                if not path.exists():
                    _write_arrays(path, *self._described(state, record))
                keep = self._delete_old()
            else:
                path = _part(path, hosts.process_id, hosts.num_processes)
                if not path.exists():
                    _write_arrays(path, *self._described(state, record))
                crc = _read_record(path)["crc32"]
                hosts.gather(f"parts of {iteration}", crc, thread="save")
                keep = []
            # Of all processes nobody goes on before the checkpoint is whole.
            keep = hosts.gather(f"kept with {iteration}", keep, thread="save")[0]
            if not hosts.leader and not self.folder_is_shared:
                _delete_parts(self.directory, keep)
        except Exception as error:
            _remove_leftovers(self.directory, path.name)  # make room on a full disk
            message = f"cannot save checkpoint {path}: {_reason(error)}"
            raise RunError(message, INPUT_OUTPUT_ERROR) from error

    def _described(
        self, state: PyTree, record: dict[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays that this process writes, and ``record`` with a description of each."""
        arrays, described = {}, {}
        parts = _named_parts(self.parts, state)
        for name, value in _named_leaves(state).items():
            x, spans = np.asarray(value), parts[name].spans
            is_part = any(span.stop - span.start < span.whole for span in spans)
            if not (self.hosts.leader or is_part) and self.folder_is_shared:
                continue  # what all processes hold whole, the first writes
            arrays[name] = x
            described[name] = {"shape": list(x.shape), "dtype": x.dtype.name, "crc32": _digest(x)}
            if is_part:
                described[name]["start"] = [span.start for span in spans]
                described[name]["of"] = [span.whole for span in spans] + list(x.shape[len(spans) :])
        record = {**record, "arrays": described}
        return arrays, {**record, "crc32": _record_digest(record)}

    def _delete_old(self) -> list[int]:
        """Leaves those to be kept, and tells which."""
        scores = {int(path.name): _score(path) for path in _newest_first(self.directory)}
        keep = kept(scores, self.keep)
        for iteration in scores.keys() - keep:
            # Renamed first: under its own name a checkpoint is whole or not there.
            doomed = self.directory / f"{iteration}.deleted"
            (self.directory / str(iteration)).rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)  # over NFS a reader may hold its files
        _delete_parts(self.directory, keep)
        return sorted(keep)


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
    and the next one taken. Raises `RunError` if all are damaged, or if a whole one is not
    like ``target``.
    """
    return _search(Path(directory).absolute(), target, warn, best, Hosts())[0]


# --- finding --------------------------------------------------------------------------------


class _Damage(Exception):
    """Why a checkpoint is not whole, in one line."""


def _newest_first(directory: Path) -> list[Path]:
    """While a folder is listed, another process may complete a checkpoint that is not listed any
    more and delete the one that is: a listing counts when the next one is the same."""
    before, now = None, _listed(directory)
    while now != before:
        before, now = now, _listed(directory)
    return [directory / name for name in sorted(now, key=int, reverse=True)]


def _listed(directory: Path) -> set[str]:
    unreadable = FileNotFoundError, NotADirectoryError, PermissionError
    with contextlib.suppress(*unreadable), os.scandir(directory) as entries:
        return {entry.name for entry in entries if entry.name.isdecimal() and entry.is_dir()}
    return set()


def _remove_leftovers(directory: Path, name: str = "*") -> None:
    """What was begun and not ended; of all, or of the checkpoint or part ``name``."""
    for pattern in (f"{name}.orbax-checkpoint-tmp*", "*.deleted"):
        for path in directory.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def _part(path: Path, process_id: int, number: int) -> Path:
    return path.with_name(f"{path.name}.part-{process_id}-of-{number}")


def _parts(path: Path) -> list[Path]:
    """Those parts of a checkpoint that can be seen here."""
    return sorted(p for p in path.parent.glob(f"{path.name}.part-*-of-*") if "tmp" not in p.name)


def _delete_parts(directory: Path, keep: Collection[int]) -> None:
    for path in directory.glob("*.part-*-of-*"):
        iteration = path.name.split(".")[0]
        if iteration.isdecimal() and int(iteration) not in keep:
            shutil.rmtree(path, ignore_errors=True)


def _is_shared(directory: Path, hosts: Hosts) -> bool:
    """Do all processes see the same folder?"""
    if not hosts.several:
        return True
    probe = directory / f".seen-by-all-{hosts.gather('nonce', os.urandom(8).hex())[0]}"
    if hosts.leader:
        probe.touch()
    hosts.barrier("probe is there")
    seen = all(hosts.gather("probe is seen", probe.exists()))
    if hosts.leader:
        probe.unlink()
    return seen


def _score(path: Path, damaged: float = -math.inf) -> float:
    try:
        score = _read_record(path)["score"]
    except _Damage:
        return damaged
    return -math.inf if score is None else score


def _search(
    directory: Path,
    target: PyTree,
    warn: Callable[[str], None],
    best: bool,
    hosts: Hosts,
    parts: PyTree = None,
) -> tuple[Found | None, list[Path]]:
    """What was found, and the damaged checkpoints that were met on the way."""
    paths = _newest_first(directory)
    if best:  # what cannot be read may have been the best: it comes first, to be named
        paths.sort(key=lambda path: _score(path, damaged=math.inf), reverse=True)
    names = hosts.gather("checkpoints", [path.name for path in paths])[0]
    damaged: list[Path] = []
    for path in (directory / name for name in names):
        state, meta, why = None, None, None
        try:
            state, meta = _read(path, target, parts)
        except _Damage as reason:
            if not hosts.several and not path.exists():
                # The training process deleted it, so there are newer ones.
                return _search(directory, target, warn, best, hosts, parts)
            why = str(reason)
        reasons = hosts.gather(f"read {path.name}", why)
        if not any(reasons):
            meta = hosts.gather("meta", meta)[0]
            return (int(path.name), state, meta), damaged
        warn(f"checkpoint {path} is damaged and skipped: {next(filter(None, reasons))}")
        damaged.append(path)
    if damaged:
        message = f"none of the {len(damaged)} checkpoints in {directory} is whole"
        raise RunError(message, INPUT_OUTPUT_ERROR)
    return None, []


def _read(path: Path, target: PyTree, held: PyTree = None) -> tuple[PyTree, dict[str, Any] | None]:
    """What this process is to hold of a checkpoint, and its ``meta``, ``None`` where only parts
    of it can be seen from here. ``target`` has the whole shapes."""
    wanted = _named_leaves(target)
    main = None
    folders = []
    if path.exists() or not _parts(path):
        main = _read_record(path)
        _check_fits(path, main["arrays"], wanted)
        folders.append((path, main))
    listed = main.get("parts", []) if main else None
    for part in _parts(path):
        record = _read_record(part)
        if listed is None or record["crc32"] in listed:
            folders.append((part, record))
    pieces = _Pieces(wanted, _named_parts(held, target))
    for folder, record in folders:
        if needed := pieces.needed(record["arrays"]):
            partial = len(needed) < sum(0 not in x["shape"] for x in record["arrays"].values())
            pieces.put(record["arrays"], _read_arrays(folder, needed, partial))
    if name := pieces.incomplete():
        there = [folder.name for folder, _ in folders]
        raise _Damage(f"{name} is not whole in what can be seen here: {', '.join(there)}")
    leaves = [pieces.arrays[name] for name in wanted]
    state = jax.tree.unflatten(jax.tree.structure(target), leaves)
    return state, main["meta"] if main else None


class _Pieces:
    """The arrays of one process, put together from the pieces that several have written.

    A box is a range for each axis, in the numbering of the whole array.
    """

    def __init__(self, wanted: dict[str, Any], parts: dict[str, Part]):
        self.arrays: dict[str, np.ndarray] = {}
        self._boxes: dict[str, list[range]] = {}
        self._missing: dict[str, int] = {}  # numbers that no piece has brought yet
        for name, x in wanted.items():
            spans = parts[name].spans
            box = [range(span.start, span.stop) for span in spans]
            self._boxes[name] = box = box + [range(n) for n in x.shape[len(spans) :]]
            self.arrays[name] = np.zeros([len(axis) for axis in box], x.dtype)
            self._missing[name] = self.arrays[name].size

    def needed(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Of a folder's arrays those that bring something which is still missing."""
        return {
            name: x
            for name, x in saved.items()
            if self._missing[name] and all(self._common(name, _box(x)))
        }

    def put(self, saved: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        for name, x in arrays.items():
            ours, theirs = self._boxes[name], _box(saved[name])
            if ours == theirs:
                self.arrays[name] = x  # no copy
                self._missing[name] = 0
                continue
            common = self._common(name, theirs)
            self.arrays[name][_within(ours, common)] = x[_within(theirs, common)]
            self._missing[name] -= math.prod(map(len, common))

    def incomplete(self) -> str | None:
        """The first array that is not whole yet."""
        return next((name for name, missing in self._missing.items() if missing), None)

    def _common(self, name: str, box: list[range]) -> list[range]:
        pairs = zip(self._boxes[name], box, strict=True)
        return [range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in pairs]


def _box(saved: dict[str, Any]) -> list[range]:
    shape, starts = saved["shape"], saved.get("start", [])
    starts = starts + [0] * (len(shape) - len(starts))
    return [range(start, start + size) for start, size in zip(starts, shape, strict=True)]


def _within(box: list[range], common: list[range]) -> tuple[slice, ...]:
    return tuple(
        slice(c.start - axis.start, c.stop - axis.start)
        for c, axis in zip(common, box, strict=True)
    )


def _check_fits(path: Path, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise `RunError` if a checkpoint is whole and one of another config."""
    there = {name: _describe(x.get("of", x["shape"]), x["dtype"]) for name, x in saved.items()}
    here = {name: _describe(x.shape, x.dtype) for name, x in wanted.items()}
    for name in [*here, *there]:
        if here.get(name) != there.get(name):
            raise RunError(
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


def _named_parts(parts: PyTree, state: PyTree) -> dict[str, Part]:
    """By an array's name the part of it that this process holds."""
    if parts is None:
        return dict.fromkeys(_named_leaves(state), Part())
    named = _named_leaves(parts)
    if named.keys() != _named_leaves(state).keys():
        raise ValueError("the tree of parts does not have the leaves of the state")
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
        if record["crc32"] == _record_digest({k: v for k, v in record.items() if k != "crc32"}):
            return record
    except OSError as error:
        raise _Damage(f"{_RECORD}: {_reason(error)}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # not JSON any more, or not this JSON
    raise _Damage(f"{_RECORD} is not what was written")


def _read_arrays(path: Path, saved: dict[str, Any], partial: bool) -> dict[str, np.ndarray]:
    """The arrays described by ``saved``; ``partial``: there are others."""
    import orbax.checkpoint as ocp

    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    stored = dict.fromkeys(saved, as_numpy)
    try:
        with _checkpointer() as checkpointer:
            if partial:
                how = ocp.args.PyTreeRestore(stored, restore_args=stored, partial_restore=True)
            else:  # then orbax looks at all of its files
                how = ocp.args.PyTreeRestore(restore_args=stored)
            arrays = checkpointer.restore(path, args=how)
    except MemoryError:
        raise
    except Exception as error:
        raise _Damage(f"its arrays cannot be read: {_reason(error)}") from error
    for name, as_saved in saved.items():
        x = np.asarray(arrays.get(name))
        same_type = _describe(x.shape, x.dtype) == _describe(as_saved["shape"], as_saved["dtype"])
        if not same_type or _digest(x) != as_saved["crc32"]:
            raise _Damage(f"{name} is not what was written")
    return arrays


def _checkpointer() -> Any:
    """An orbax checkpointer for trees of NumPy arrays that fails in silence and in order."""
    import orbax.checkpoint as ocp
    from orbax.checkpoint._src.serialization.tensorstore_utils import build_array_write_spec

    process = jax.process_index()

    class NumpyHandler(ocp.type_handlers.NumpyHandler):
        """Raises an error when no array is under way any more. orbax leaves at the first:
        tensorstore then goes on to write into a folder that is being removed, and prints a
        traceback for every array whose event loop it finds closed."""

        async def _background_serialize(self, values: Any, infos: Any, args: Any = None) -> None:
            """As orbax does it, but for this process; orbax's leaves all to process 0."""
            self.errors: list[Exception] = []
            writes = []
            for value, info, arg in zip(values, infos, args, strict=True):
                await info.await_path_creation()
                spec = build_array_write_spec(
                    info=info,
                    arg=arg,
                    global_shape=value.shape,
                    local_shape=value.shape,
                    dtype=value.dtype,
                    use_ocdbt=info.is_ocdbt_checkpoint,
                    process_index=process,
                    metadata_key=self._metadata_key,
                )
                writes.append(self._open_and_write(value, spec.json, info.ts_context))
            await asyncio.gather(*writes)
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
