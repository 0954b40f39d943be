"""Compiled programs of earlier runs, found without being traced again.

JAX's own cache finds a program by its text, for which it has to be traced and lowered: most of a
second for a small network, while reading it takes a fifth of that. What a command compiles follows
from its config, the package's files, the libraries' versions and the machine, though; the digest of
all of these is the name of the program's file. The shapes of a run's state, which have to be known
before anything is compiled, are kept in the same way.

Only commands look for programs, and only where all that they import is written here or installed:
in a process of your own, or beside a module of your own, anything may be another function by now.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import pickle
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable

from jaxrl_scale.config import Config, command_line, files
from jaxrl_scale.parallel.machine import process_start, processor_features, visible_cores
from jaxrl_scale.parallel.placement import Compile, Placement
from jaxrl_scale.records.provenance import own_code, versions
from jaxrl_scale.records.run_directory import write_atomically
from jaxrl_scale.types import PyTree
from jaxrl_scale.user_code import modules_of_ones_own

PACKAGE = Path(__file__).parents[1]
FORGOTTEN_AFTER = 14 * 24 * 3600
"""Seconds after which a program that nobody has used is removed."""

NOT_COMPILED_IN = (
    *command_line.CHANGEABLE,
    *("seed", "total_steps", "iterations", "init_from", "run_dir"),
    *("log_every", "eval_every", "checkpoint_every", "keep_checkpoints"),
)
"""The options of a config that no program depends on. Nor does any on the numbers of the
algorithm's options, which each agent has of its own."""


class Programs:
    """The programs of a run, in a folder, and shapes (`jaxrl_scale.parallel.placement.Kept`).

    Args:
      follows_from: all that they follow from, besides what they are called and given.
      writes: whether this process adds to the folder.
      alone: whether it is the only process of the run. Then it writes in a thread, while the run
        goes on; else what it keeps is in the folder when it is there for the caller.
    """

    def __init__(self, folder: Path, follows_from: str, writes: bool, alone: bool):
        self._folder, self._follows_from = folder, follows_from
        self._writes, self._alone = writes, alone

    def program(
        self,
        called: tuple[str, ...],
        devices: Sequence[jax.Device],
        trace: Callable[[str], Compile],
    ) -> Compile:
        """The program of ``trace``, or what an earlier run has made of it.

        What JAX has read from its own cache lacks functions where it is written once more: it would
        end in "Function … not found" (seen with jaxlib 0.10.2). So a program that was there, as
        after an update of the package, cannot be kept. The next run that wants it compiles it under
        a name that JAX's cache does not have, and those after it find that.

        Args:
          called: texts in which it differs from the other programs of the run.
          devices: those on which it runs.
        """
        path, was_in_jaxs = self._path("program", *called), self._path("in JAX's", *called)
        anew = self._alone and os.path.exists(was_in_jaxs)  # several would need one name
        name = f"anew_{secrets.token_hex(8)}" if anew else ""
        # A file that is there is mostly whole; a folder that may not be read is as good as none.
        compile = None if os.path.exists(path) else trace(name)

        def find_or_compile() -> jax.stages.Compiled:
            if (found := _read(path, devices)) is not None:
                return found
            before = _compilations()
            program = (compile or trace(name))()
            if _compilations() > before:
                self._keep(path, lambda: pickle.dumps(serialize_executable.serialize(program)))
            else:
                self._keep(was_in_jaxs, lambda: b"")
            return program

        return find_or_compile

    def shapes(self, called: tuple[str, ...], trace: Callable[[], PyTree]) -> PyTree:
        """The shapes and dtypes of ``trace``, or what an earlier run has found them to be."""
        path = self._path("shapes", *called)
        with suppress(Exception):  # as in `_read`
            if content := _content(path):
                return pickle.loads(content)
        shapes = trace()
        self._keep(path, lambda: pickle.dumps(shapes))
        return shapes

    def _path(self, *called: str) -> Path:
        text = "\n".join((self._follows_from, *called))
        return self._folder / hashlib.sha256(text.encode()).hexdigest()

    def _keep(self, path: Path, content: Callable[[], bytes]) -> None:
        if self._writes:
            writer = threading.Thread(target=_write, args=(path, content), name="programs")
            writer.start()
            if not self._alone:
                writer.join()


def with_programs(config: Config, placement: Placement) -> Placement:
    """The placement, which finds this run's programs where that can be done safely."""
    folder = _folder()
    # With several GPUs it has not been tried.
    tried = placement.on_cpus or placement.num_devices == 1
    if folder is None or own_code(config) or not tried or not in_a_command():
        return placement
    with suppress(OSError):  # not known: what this processor can do, or which files were imported
        alone = placement.num_processes == 1  # else the others read what process 0 has written
        text = follows_from(config, placement)
        programs = Programs(folder, text, placement.leader, alone)
        return dataclasses.replace(placement, kept=programs)
    return placement


def in_a_command() -> bool:
    """Whether this process runs nothing but a command of the package and installed libraries."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    script = os.path.basename(getattr(main, "__file__", None) or "")
    command = script == "jaxrl_scale" if spec is None else spec.name.startswith("jaxrl_scale.")
    return command and not modules_of_ones_own()


def follows_from(config: Config, placement: Placement) -> str:
    """All that a run's programs follow from, besides what they are called and given."""
    devices = [(d.platform, d.id, d.device_kind, d.process_index) for d in placement.devices]
    without_numbers = jax.tree.map(lambda number: 0.0, config.algo)  # None stays None
    options = files.flatten(config.replace(algo=without_numbers))
    return json.dumps(
        {
            "files": [digest_of(PACKAGE), *sorted(files.executed)],
            "versions": versions(),
            "libraries": [last_change(name) for name in ("flax", "optax", "chex", "gymnax")],
            "config": {name: x for name, x in options.items() if name not in NOT_COMPILED_IN},
            "placement": [placement.num_agents, placement.num_shards, placement.by_agents],
            "exact": placement.exact,
            "devices": devices,
            "client": placement.devices[0].client.platform_version,
            "cuda": None if placement.on_cpus else cuda_libraries(),
            "processor": processor_features(),
            "cores": [len(visible_cores()), os.environ.get("NPROC")],
            "flags": {k: str(v) for k, v in jax.config.values.items() if "cache" not in k},
            "XLA_FLAGS": os.environ.get("XLA_FLAGS"),
        },
        sort_keys=True,
        default=str,
    )


_of_thread = threading.local()


def _compilations() -> int:
    """How many programs this thread has compiled that were not in JAX's own cache."""
    count: int = getattr(_of_thread, "compilations", 0)
    return count


def _count(event: str, **_: Any) -> None:
    if event == "/jax/compilation_cache/cache_misses":
        _of_thread.compilations = _compilations() + 1


def seconds_compiling() -> float:
    """What this thread has spent tracing and compiling so far."""
    seconds: float = getattr(_of_thread, "seconds", 0.0)
    return seconds


_COMPILE = "/jax/core/compile/"  # how the events of tracing and compiling begin


def _began(event: str, *_: Any, **__: Any) -> None:
    if event.startswith(_COMPILE):
        _of_thread.began = [*getattr(_of_thread, "began", ()), time.monotonic()]


def _ended(event: str, *_: Any, **__: Any) -> None:
    """What began within something else counts with that. JAX tells a duration, too, but by a clock
    that may be set meanwhile."""
    if event.startswith(_COMPILE) and (began := getattr(_of_thread, "began", None)):
        since = began.pop()
        if not began:
            _of_thread.seconds = seconds_compiling() + time.monotonic() - since


jax.monitoring.register_event_listener(_count)
jax.monitoring.register_scalar_listener(_began)
jax.monitoring.register_event_duration_secs_listener(_ended)


@cache
def digest_of(package: Path) -> str:
    """Of all Python files in a folder, by their names and contents. Raises an OSError if one was
    written or put there since this process began, which may then have imported another."""
    digest, start = hashlib.sha256(), process_start()
    for path in sorted(package.rglob("*.py")):
        if path.stat().st_ctime >= start:  # rsync, say, gives a file the time of another
            raise OSError(f"{path} is newer than this process")
        text = path.read_bytes()
        digest.update(f"{path.relative_to(package)}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()


def cuda_libraries() -> dict[str, str]:
    """The versions of JAX's plugins for NVIDIA's GPUs and of NVIDIA's libraries, as far as they
    were installed as Python packages."""
    found = {x.name or "": x.version for x in importlib.metadata.distributions()}
    return {k: v for k, v in found.items() if k.startswith(("jax-cuda", "nvidia-"))}


@cache
def last_change(library: str) -> float | None:
    """When one of a library's Python files was last written or put there, in unix seconds: a
    library may be changed where it is installed, with its version as before. None where it is not
    imported."""
    module = sys.modules.get(library)
    if module is None or module.__file__ is None:
        return None
    there = Path(module.__file__).parent.rglob("*.py")
    return max((path.stat().st_ctime for path in there), default=None)


def _folder() -> Path | None:
    """Where programs are kept: beside those of JAX's cache, if that is used."""
    folder = jax.config.values["jax_compilation_cache_dir"]
    if not folder or "://" in folder or not jax.config.values["jax_enable_compilation_cache"]:
        return None
    return Path(folder) / "programs"


def _read(path: Path, devices: Sequence[jax.Device]) -> jax.stages.Compiled | None:
    """The program in a file; None where there is none that is whole and one's own."""
    # Whatever is wrong with the file, the program can be compiled.
    with suppress(Exception):
        if content := _content(path):
            program, in_tree, out_tree = pickle.loads(content)
            return serialize_executable.deserialize_and_load(
                program, in_tree, out_tree, devices[0].client, devices
            )
    return None


def _content(path: Path) -> bytes | None:
    """What `_write` has written, and marks it as used; None if it is not whole, or another
    user's."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            return None  # it would run with the rights of this user
        whole = file.read()
    digest, content = whole[:32], whole[32:]
    if _digest(path, content) != digest:
        return None
    os.utime(path)
    return content


def _digest(path: Path, content: bytes) -> bytes:
    """Of what is kept and of its file's name, which tells what it follows from."""
    return hashlib.sha256(path.name.encode() + content).digest()


def _write(path: Path, make: Callable[[], bytes]) -> None:
    """Keep the content that is made, and remove what nobody has used for long."""
    # A disk that is full, or a program that cannot be kept: then it will be compiled again.
    with suppress(Exception):
        content = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _digest(path, content) + content)
        for other in path.parent.iterdir():
            is_ours = re.fullmatch("[0-9a-f]{64}", other.name)
            if is_ours and other.lstat().st_mtime < time.time() - FORGOTTEN_AFTER:
                other.unlink()
