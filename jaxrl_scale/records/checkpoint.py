"""The checkpoints of a run: saved in the background, the last ones and the best one kept.

A checkpoint is a folder named after its iteration that holds the leaves of a tree as named arrays
(see `jaxrl_scale.records.array_folder`). Its record has the caller's ``meta`` and ``score``, the
``digest`` of what the agents have learned, a description of each array (see
`jaxrl_scale.records.pieces`), and an id. By the descriptions a checkpoint of another config, which
is an error, is told from a damaged one, which is skipped.

**Several processes.** Each process writes what it holds, so that nothing large is gathered. A
process beside process 0 writes a folder ``<iteration>.part-<process>-of-<processes>`` and tells
process 0 its id. Process 0 writes ``<iteration>`` last, with the ids of all, and this folder makes
the checkpoint count: a part that a killed run left behind has another id and is never used.
Any number of processes can restore the checkpoint; each reads, from all folders, what it will
hold. Where the processes do not share a file system, each keeps all that it needs on its own disk,
and the same processes can resume.

The disk is the only memory: which checkpoints there are, and which is the best, is read from the
folder each time. orbax's ``CheckpointManager`` is not used: a save holds the caller up for 6 to
40 ms (a thread of ours for 0.1 ms), and it has no notion of parts on different disks.
"""

from __future__ import annotations

import errno
import importlib
import json
import math
import operator
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax

from jaxrl_scale.errors import INPUT_OUTPUT_ERROR, RunError, make_folder
from jaxrl_scale.parallel.peers import Peers
from jaxrl_scale.records import array_folder, pieces
from jaxrl_scale.records.array_folder import Damage, reason
from jaxrl_scale.records.digest import of_run
from jaxrl_scale.types import PyTree

Found = tuple[int, PyTree, dict[str, Any]]
"""Iteration, state, meta."""


class Checkpoints:
    """The checkpoints of one run, in ``directory``: the last ``keep`` and the best one.

    Used by training processes; to read only, call the function `restore`. What a killed process
    left unfinished is removed first. Raises `RunError` where nothing can be written.

    Args:
      parts: in a run of several processes, which part of each array this process holds: the
        state's tree with a `Part` for each array. Without it, every array is held whole.
      digests: gives of a state the digests of the agents that this process holds, by their indices;
        None: the checkpoints have no digest.
    """

    def __init__(
        self,
        directory: Path,
        keep: int,
        peers: Peers | None = None,
        parts: PyTree = None,
        digests: Callable[[PyTree], dict[int, str]] | None = None,
    ):
        self._digests = digests
        self.digest: str | None = None  # of the state that was saved or restored last; see `wait`
        self.directory, self.keep = Path(directory).absolute(), keep
        self.peers, self.parts = peers or Peers(), parts
        with _io_errors(f"cannot save checkpoints in {self.directory}"):
            make_folder(self.directory)
            if not os.access(self.directory, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "folder is not writable")
        if self.peers.leader:  # before the others, for whom `is_shared` waits, can write anything
            array_folder.remove_leftovers(self.directory)
        self.folder_is_shared = is_shared(self.directory, self.peers)
        if not self.folder_is_shared and not self.peers.leader:
            array_folder.remove_leftovers(self.directory)
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
        """Import orbax, which takes 0.4 s, in the background. Without this call the first save
        imports it."""
        self._worker.submit(importlib.import_module, "orbax.checkpoint")

    def save(
        self, iteration: int, state: PyTree, meta: dict[str, Any], score: float | None = None
    ) -> None:
        """Begin to write a checkpoint and return. Waits only for the save before it.

        An iteration that is saved already is left as it is. If the save before went wrong, that
        is raised here, as `RunError`; the checkpoints before it stay whole.

        Args:
          state: a tree of NumPy arrays that nobody changes any more; in a run of several
            processes, the part that this process holds.
          meta: JSON data.
          score: how good the agents are, higher is better; ``None`` or NaN if that was not
            measured for this state. The best checkpoint is the best of those with a score.
        """
        self.wait()
        if score is not None:
            score = None if math.isnan(score) else float(score)
        record = {"iteration": iteration, "meta": meta, "score": score}
        record = json.loads(json.dumps(record))  # a copy, read back
        self._pending = self._worker.submit(self._write, iteration, state, record)

    def wait(self) -> None:
        """Return when everything is on the disk; raise what went wrong there, once."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def restore(self, target: PyTree, warn: Callable[[str], None]) -> Found | None:
        """As the function `restore`. Damaged checkpoints are renamed to ``<iteration>.damaged``:
        they no longer count, that iteration can be saved again, and they can be looked at."""
        self.wait()
        read = partial(_read, self.peers, target, self.parts)
        found, damaged = _search(self.directory, False, warn, read, self.peers)
        if found:
            self.digest = self._digest_of(found[1], "main")
        for path in damaged if self.peers.leader else ():
            aside = path.with_name(f"{path.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)  # of an earlier time
            with _io_errors(f"cannot put the damaged checkpoint {path} aside"):
                path.rename(aside)
        self.peers.barrier("damaged checkpoints are moved")
        return found

    def close(self) -> None:
        """`wait`, and end the thread."""
        try:
            self.wait()
        finally:
            self._worker.shutdown()

    # --- in the background ------------------------------------------------------------------

    def _write(self, iteration: int, state: PyTree, record: dict[str, Any]) -> None:
        peers, whole = self.peers, self.directory / str(iteration)
        own = whole if peers.leader else _part(whole, peers.process_id, peers.num_processes)
        try:
            self.digest = record["digest"] = self._digest_of(state, "save")
            if not self._gather(f"{iteration} is saved already", whole.exists())[0]:
                # Arrays that all hold whole are written by process 0 for all that see its folder.
                only_parts = self.folder_is_shared and not peers.leader
                arrays, record["arrays"] = pieces.described(state, self.parts, only_parts)
                record["id"] = os.urandom(8).hex()
                if not peers.leader:
                    array_folder.delete(own)  # a killed run may have left it
                    array_folder.write(own, arrays, record)
                record["ids"] = self._gather(f"ids of {iteration}", record["id"])
                if peers.leader:
                    array_folder.write(own, arrays, record)
            keep = self._delete_old() if peers.leader else []
            # No process goes on before the checkpoint is whole.
            keep = self._gather(f"kept with {iteration}", keep)[0]
            if not peers.leader and not self.folder_is_shared:
                _delete_parts(self.directory, keep)
        except (OSError, MemoryError, RunError) as error:
            array_folder.remove_leftovers(self.directory, own.name)  # makes room on a full disk
            message = f"cannot save checkpoint {own}: {reason(error)}"
            raise RunError(message, INPUT_OUTPUT_ERROR) from error

    def _digest_of(self, state: PyTree, thread: str) -> str | None:
        """The run's, from the digests of the agents of all processes. Raises a `RunError` where two
        processes share an agent and do not hold the same of it."""
        if self._digests is None:
            return None
        held = list(self._digests(state).items())  # JSON knows no numbers as keys
        agents = dict[int, str]()
        for k, pairs in enumerate(self.peers.gather("digests", held, thread)):
            for agent, digest in pairs:
                if agents.setdefault(agent, digest) != digest:
                    raise RunError(
                        f"process {k} holds other parameters of agent {agent} than the processes "
                        "before it; its processor, memory or libraries differ from theirs"
                    )
        return of_run(agents)

    def _gather(self, name: str, value: Any) -> list[Any]:
        return self.peers.gather(name, value, thread="save")

    def _delete_old(self) -> list[int]:
        """Delete the checkpoints that are not to be kept; returns those that are."""
        scores, refused = dict[int, float | None](), set[int]()
        for path in _newest_first(self.directory):
            iteration = int(path.name)
            try:
                scores[iteration] = _record(path)["score"]
            except Damage as damage:
                scores[iteration] = None
                if _is_refusal(damage):  # what the disk does not give now may be the best
                    refused.add(iteration)
        keep = kept(scores, self.keep) | refused
        for iteration in scores.keys() - keep:
            array_folder.delete(self.directory / str(iteration))
        _delete_parts(self.directory, keep)
        return sorted(keep)


def kept(scores: dict[int, float | None], keep: int) -> set[int]:
    """The iterations to keep: the last ``keep`` (at least 1) and, of those that have a score, the
    best; of equals the latest. ``scores`` by iteration."""
    scored = [(score, iteration) for iteration, score in scores.items() if score is not None]
    best = {max(scored)[1]} if scored else set()
    return {*sorted(scores)[-keep:], *best}


def restore(
    directory: Path,
    target: PyTree,
    warn: Callable[[str], None],
    peers: Peers = Peers(),  # noqa: B008  of one process, which holds nothing
) -> Found | None:
    """The newest whole checkpoint in ``directory``; ``None`` if there is no checkpoint at all.

    Changes nothing on the disk, and may run while another process trains there. ``target`` is
    a tree of arrays or `jax.ShapeDtypeStruct`. A damaged checkpoint is named through ``warn``
    and the next one taken. Raises `RunError` if all are damaged, or if a whole one is not
    like ``target``. Several processes, ``peers``, that call this together all get the same, whole.
    """
    return _search(Path(directory), False, warn, partial(_read, peers, target, None), peers)[0]


def restore_some(
    directory: Path,
    wanted: Callable[[str], bool],
    warn: Callable[[str], None],
    best: bool = False,
) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
    """Some arrays of the newest checkpoint in ``directory`` in which they are whole, or of the
    ``best`` one, which is the newest where none has a score: its iteration, the arrays by name, its
    meta. ``wanted`` says by their names which. Otherwise as `restore`."""

    def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        record = _record(path)
        target = {
            name: jax.ShapeDtypeStruct(x["shape"], x["dtype"])
            for name, x in record["arrays"].items()
            if wanted(name)
        }
        try:
            return pieces.assemble(_folders(path, record["ids"]), target, None), record["meta"]
        except (ValueError, MemoryError) as error:  # somebody else's record may say anything
            raise Damage(f"{array_folder.RECORD} names an array that is too large") from error

    return _search(Path(directory), best, warn, read, Peers())[0]


def newest(directory: Path) -> Path | None:
    """The folder of the newest checkpoint, whole or damaged; None where there is none."""
    return next(iter(_newest_first(directory)), None)


# --- finding --------------------------------------------------------------------------------


def _search(
    directory: Path,
    best: bool,
    warn: Callable[[str], None],
    read: Callable[[Path], tuple[PyTree, dict[str, Any]]],
    peers: Peers,
) -> tuple[Found | None, list[Path]]:
    """What was found by ``read``, which raises `Damage`, and the damaged checkpoints that were met
    on the way."""
    directory = directory.absolute()
    paths = _ordered(directory, best)
    names = peers.gather("checkpoints", [path.name for path in paths])[0]
    damaged: list[Path] = []
    for path in (directory / name for name in names):
        try:
            state, meta = read(path)
            return (int(path.name), state, meta), damaged
        except Damage as why:
            if not peers.several and not path.exists():
                # The training process deleted it, so there are newer ones.
                return _search(directory, best, warn, read, peers)
            warn(f"checkpoint {path} is damaged and skipped: {why}")
            damaged.append(path)
    if damaged:
        message = f"none of the {len(damaged)} checkpoints in {directory} is whole"
        raise RunError(message, INPUT_OUTPUT_ERROR)
    return None, []


def _ordered(directory: Path, best: bool) -> list[Path]:
    """The checkpoints in a folder, the newest first, or the ``best`` one."""
    paths = _newest_first(directory)
    if best:  # what is damaged may have been the best: it comes first, to be named
        scores = {path: _score(path, damaged=math.inf) for path in paths}
        paths.sort(key=lambda path: -math.inf if (x := scores[path]) is None else x, reverse=True)
    return paths


def _newest_first(directory: Path) -> list[Path]:
    """The checkpoints in a folder. While it is listed, another process may complete a checkpoint
    that is not listed any more and delete one that is, so a listing counts when the next one is
    the same."""
    before, now = None, _listed(directory)
    while now != before:
        before, now = now, _listed(directory)
    return [directory / name for name in sorted(now, key=int, reverse=True)]


def _listed(directory: Path) -> set[str]:
    with _io_errors(f"{directory} cannot be read"):
        if not directory.is_dir():
            return set()
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries if entry.name.isdecimal() and entry.is_dir()}


def _score(path: Path, damaged: float) -> float | None:
    try:
        score: float | None = _record(path)["score"]
        return score
    except Damage:
        return damaged


def _is_refusal(damage: Damage) -> bool:
    """Whether it was the disk that did not give a file that is there."""
    cause = damage.__cause__
    return isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)


def _record(path: Path) -> dict[str, Any]:
    """The record of a checkpoint; somebody may have renamed its folder, or written another."""
    record = array_folder.read_record(path)
    if not _is_record(record):
        raise Damage(f"{array_folder.RECORD} is none of a checkpoint")
    iteration = record.get("iteration", int(path.name))  # earlier versions wrote none
    if iteration != int(path.name):
        raise Damage(f"it is the checkpoint of iteration {iteration}")
    return record


def _is_record(record: Any) -> bool:
    """Whether data of JSON has what `Checkpoints.save` writes."""
    try:
        for x in record["arrays"].values():
            jax.ShapeDtypeStruct([*map(operator.index, x["shape"])], x["dtype"])
            box = [(operator.index(start), operator.index(stop)) for start, stop in x["box"]]
            if len(box) != len(x["shape"]) or any(n < 0 for n in x["shape"]):
                return False
        score, ids = record["score"], record["ids"]
        has_score = score is None or isinstance(score, int | float)
        has_ids = len(ids) > 0 and all(isinstance(id, str) for id in ids)
        return has_score and has_ids and isinstance(record["meta"], dict)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _part(path: Path, process: int, processes: int) -> Path:
    """The folder of a process beside process 0."""
    return path.with_name(f"{path.name}.part-{process}-of-{processes}")


def _folders(path: Path, ids: list[str]) -> list[tuple[Path, str]]:
    """The folders that make a checkpoint, each with its id, by the process that wrote it."""
    parts = [_part(path, process, len(ids)) for process in range(1, len(ids))]
    return list(zip([path, *parts], ids, strict=True))


def _delete_parts(directory: Path, keep: Collection[int]) -> None:
    """Delete the parts of the checkpoints that are not to be kept."""
    for path in directory.iterdir():
        name = re.fullmatch(r"(\d+)\.part-\d+-of-\d+", path.name)
        if name and int(name[1]) not in keep:
            array_folder.delete(path)


def is_shared(directory: Path, peers: Peers) -> bool:
    """Do all processes see the same folder, which process 0 has made?"""
    if not peers.several:
        return True
    probe = directory / f".seen-by-all-{peers.gather('nonce', os.urandom(8).hex())[0]}"
    if peers.leader:
        with _io_errors(f"cannot write in {directory}"):
            probe.touch()
    peers.barrier("probe is there")
    seen = all(peers.gather("probe is seen", probe.exists()))
    if peers.leader:
        probe.unlink()
    return seen


@contextmanager
def _io_errors(what: str) -> Iterator[None]:
    """Turn an `OSError`, such as a full disk, into a `RunError` that begins with ``what``."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{what}: {reason(error)}", INPUT_OUTPUT_ERROR) from error


# --- reading one ----------------------------------------------------------------------------


def _read(peers: Peers, target: PyTree, parts: PyTree, path: Path) -> tuple[PyTree, dict[str, Any]]:
    """What this process is to hold of a checkpoint, and its ``meta``. ``target`` has the whole
    shapes. If any process finds damage, all of them raise `Damage`."""
    told, state, why = None, None, None
    if peers.leader:  # where the disks are separate, it alone sees this record
        try:
            record = _record(path)
            pieces.check_fits(path, record["arrays"], target)
            told = {"meta": record["meta"], "ids": record["ids"]}
        except Damage as damage:
            why = str(damage)
    told, why = peers.gather(f"record of {path.name}", [told, why])[0]
    if why is None:
        try:
            state = pieces.assemble(_folders(path, told["ids"]), target, parts)
        except Damage as damage:
            why = str(damage)
    reasons = peers.gather(f"{path.name} is read", why)
    if any(reasons):
        raise Damage(next(filter(None, reasons)))
    return state, told["meta"]
