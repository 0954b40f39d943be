"""One folder of named NumPy arrays, written whole or not at all and checked when it is read.

The arrays and a JSON record lie in one file of the folder, ``arrays.npz``. This is NumPy's own
format, so ``np.load`` opens it anywhere: a zip file with a member for each array, such as
``shared/algo/params/kernel.npy``, and here one more, ``record.json``. The zip file holds a CRC-32
of every member, by which damage is found before anything is parsed.

orbax makes the folder: its public ``Checkpointer`` calls a ``CheckpointHandler``, here one that
writes this file, in a folder with a temporary name (``*.orbax-checkpoint-tmp``), and renames the
folder when all is written. A process that is killed at any moment leaves whole folders only.
orbax's own format of arrays is not used, for three reasons (tried with orbax 0.12.8):

* Its handler of NumPy arrays writes on process 0 only, and nothing on the others. Global
  `jax.Array`s would need one folder that all processes see, which we do not ask for.
* It reads a flipped byte of an array as other numbers. A CRC-32 finds it.
* On a full disk it leaves writing tasks behind. They print tracebacks, and write into a folder
  that is being removed.

Reading needs no orbax, whose import takes 0.4 s.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_scale.errors import RunError, one_line, raise_if_hidden

FILE, RECORD = "arrays.npz", "record.json"
_PARSING = threading.Lock()
"""NumPy has Python parse an array's header, which Python 3.11 may fail to do in two threads at once
(https://github.com/python/cpython/issues/106905): a whole checkpoint would count as damaged."""
_EARLIER_FORMAT = "_METADATA"  # a file that orbax writes beside arrays in its own format


class Damage(Exception):
    """Why a folder is not whole, in one line."""


def write(path: Path, arrays: Mapping[str, np.ndarray], record: dict[str, Any]) -> None:
    """Write a folder that does not exist yet. Raises `OSError` where the disk refuses; then
    `remove_leftovers` makes room."""
    import orbax.checkpoint as ocp

    # Each process writes folders of its own, so orbax is not to wait for the other processes.
    process = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=process, active_processes={process})
    handler, args = _handler()
    with ocp.Checkpointer(handler(), multiprocessing_options=alone) as checkpointer:
        checkpointer.save(path, args=args(arrays, record))


def read_record(path: Path) -> dict[str, Any]:
    """The record of a folder. Raises `Damage`."""
    raise_if_hidden(path / FILE)
    if (path / _EARLIER_FORMAT).exists() and not (path / FILE).exists():
        raise RunError(
            f"{path} was written by an earlier version of jaxrl_scale in a format that this "
            "version does not read; resume the run with that version, or start a new one"
        )
    with _damage(FILE), zipfile.ZipFile(path / FILE) as file:
        record: dict[str, Any] = json.loads(file.read(RECORD))
        return record


def read_arrays(path: Path, dtypes: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Some of the arrays of a folder with their names, one after the other. Raises `Damage`.

    Args:
      dtypes: the arrays to read, and their types: NumPy's format knows none but its own, and
        gives others, such as bfloat16, back as plain bytes.
    """
    with _damage(FILE), zipfile.ZipFile(path / FILE) as file:
        for name, dtype in dtypes.items():
            with _damage(name):
                # First all of it against the CRC: a damaged header could ask for any memory.
                with file.open(f"{name}.npy") as member:
                    while member.read(2**20):
                        pass
                with _PARSING, file.open(f"{name}.npy") as member:
                    x = np.lib.format.read_array(member, allow_pickle=False)
                x = x if x.dtype == dtype else x.view(dtype)
            yield name, x


def delete(path: Path) -> None:
    """Delete a folder, where there is one. Under its own name it is whole or not there: it is
    renamed first, and what a kill leaves then is removed by `remove_leftovers`."""
    doomed = path.with_name(f"{path.name}.deleted")
    shutil.rmtree(doomed, ignore_errors=True)  # of an earlier time
    with suppress(FileNotFoundError):  # where there is none, or another process was quicker
        path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)  # over NFS a reader may still hold its file


def remove_leftovers(directory: Path, name: str = "*") -> None:
    """Remove folders in ``directory`` of which writing or deleting began and did not end: all,
    or the one called ``name``."""
    for pattern in (f"{name}.orbax-checkpoint-tmp*", f"{name}.deleted"):
        for path in directory.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def reason(error: BaseException) -> str:
    """An error in one line, in the words of the operating system if they are the cause."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = one_line(error)
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


@contextmanager
def _damage(what: str) -> Iterator[None]:
    """Whatever goes wrong in reading is damage, apart from a lack of memory."""
    try:
        yield
    except (Damage, MemoryError):
        raise
    except OSError as error:
        raise Damage(f"{what}: {reason(error)}") from error
    except Exception as error:
        raise Damage(f"{what} is not what was written") from error


@functools.cache
def _handler() -> tuple[Any, Any]:
    """What orbax asks for to write a folder of our own: a handler and its arguments."""
    import orbax.checkpoint as ocp

    class Handler(ocp.CheckpointHandler):
        def save(self, directory: Path, args: Args) -> None:
            with open(directory / FILE, "wb") as file:
                with zipfile.ZipFile(file, "w") as members:
                    members.writestr(RECORD, json.dumps(args.record))
                    for name, x in args.arrays.items():
                        # A member may be larger than 4 GB.
                        with members.open(f"{name}.npy", "w", force_zip64=True) as member:
                            np.lib.format.write_array(member, x, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())

        def restore(self, directory: Path, args: Any = None) -> Any:
            raise NotImplementedError("see read_arrays")

    @ocp.args.register_with_handler(Handler, for_save=True, for_restore=True)
    @dataclasses.dataclass
    class Args(ocp.args.CheckpointArgs):
        arrays: Mapping[str, np.ndarray]
        record: dict[str, Any]

    return Handler, Args
