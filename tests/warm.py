"""Processes that begin with the modules of the training command imported, for `processes.World`.

Half of what a small run costs is importing JAX and the packages of its records. A nursery, ``python
warm.py``, imports them once and forks: a child goes on as ``python -m MODULE ARGUMENTS…`` does,
with an environment, a folder, an output and signals of its own. The nursery itself never uses a
device.

Where not the test itself starts the process, `python` is what is started: see warm_python.py.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MODULES = ("jaxrl_scale.train", "jaxrl_scale.sweep", "jaxrl_scale.evaluate")
"""The commands that can begin warm. The nursery does not import them themselves: ``python -m`` runs
a module that nobody has imported."""

IMPORTED = (
    *("commands", "algos.ppo", "algos.a2c", "loop.agent", "loop.make", "loop.origin"),
    *("loop.prepare", "loop.stop", "records.checkpoint", "records.log", "parallel.peers"),
)
LATER = ("orbax.checkpoint", "tensorboardX", "rich.progress", "rich.live")
"""What a run imports while it goes on."""

VARIABLES = {"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "XLA_FLAGS"}
"""Those of JAX and XLA that are read after the imports."""

NAMESPACES = ("uts", "net", "pid", "mnt")
"""Of Linux, in which a process can be: the last is that of the files that tell of the others."""


class Process:
    """A warm process, with as much of `subprocess.Popen` as tests ask of one. ``imported``: other
    modules that the nursery imports before."""

    def __init__(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        cwd: Path,
        imported: Sequence[str] = (),
    ):
        self.returncode: int | None = None
        self._said: tuple[str, str] | None = None
        self._ends = [tempfile.TemporaryFile("w+") for _ in ("out", "err")]  # noqa: SIM115
        told, tell = os.pipe()
        self._told = os.fdopen(told)
        cores = list(os.sched_getaffinity(0))
        request = [list(imported), [list(command), list(environment.items()), str(cwd), cores]]
        ends = [*(end.fileno() for end in self._ends), tell]
        socket.send_fds(_nursery().requests, [json.dumps(request).encode()], ends)
        os.close(tell)
        self.pid = int(self._told.readline())

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a warm process", timeout or 0)
            with self._told:
                self.returncode = os.waitstatus_to_exitcode(int(self._told.readline()))
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        if self._said is None:
            for end in self._ends:
                end.seek(0)
            out, err = (end.read() for end in self._ends)
            self._said = out, err
            for end in self._ends:
                end.close()
        return self._said

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and is not told yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.communicate()


def python() -> list[str]:
    """A command to which ``-m MODULE …`` or ``SCRIPT …`` is added, as to a Python's."""
    address = _nursery().address
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("warm_python.py")), address]


class Nursery(NamedTuple):
    requests: socket.socket
    address: str  # of the socket at which others ask


@functools.cache
def _nursery() -> Nursery:
    """It ends with this process."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = tempfile.TemporaryDirectory(prefix="warm-")
    others = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    others.bind(f"{folder.name}/socket")
    others.listen(64)
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    nursery = subprocess.Popen([sys.executable, __file__], stdin=its, stdout=others, env=plain)
    its.close()
    others.close()

    @atexit.register
    def close() -> None:
        ours.close()
        nursery.wait()
        folder.cleanup()

    return Nursery(ours, f"{folder.name}/socket")


def _serve() -> None:
    """Fork for every request; a child that has what it is to be returns."""
    ours, others = (socket.socket(fileno=os.dup(number)) for number in (0, 1))
    while True:
        (ready, *_), *_ = select.select([ours, others], [], [])
        source = ours if ready is ours else others.accept()[0]
        request, ends, *_ = socket.recv_fds(source, 1 << 20, 3 + len(NAMESPACES))
        if not request and source is ours:
            os._exit(0)
        if request:
            imported, becoming = json.loads(request)
            for name in imported:
                importlib.import_module(name)
            if (child := os.fork()) == 0:
                break
            os.waitpid(child, 0)
        for end in ends:
            os.close(end)
        if source is not ours:
            source.close()
    out, err, tell, *namespaces = ends
    if os.fork():  # so that the nursery waits for nobody
        os._exit(0)
    _enter(namespaces)
    if pid := os.fork():
        os.write(tell, b"%d\n" % pid)
        if source is not ours:
            _hand_on(source, pid)
        os.write(tell, b"%d\n" % os.waitpid(pid, 0)[1])
        os._exit(0)
    for end in (ours, others, source):
        end.close()
    os.close(tell)
    with open(os.devnull) as nothing:
        for end, number in ((nothing.fileno(), 0), (out, 1), (err, 2)):
            os.dup2(end, number)
    os.close(out)
    os.close(err)
    _become(*becoming)


def _enter(namespaces: list[int]) -> None:
    """Have children in these, where they are others than this process's."""
    for name, there in zip(NAMESPACES, namespaces, strict=False):
        if os.fstat(there).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
            failed = ctypes.CDLL(None, use_errno=True).setns(there, 0)
            assert not failed, os.strerror(ctypes.get_errno())
        os.close(there)


def _hand_on(source: socket.socket, pid: int) -> None:
    """Signals, until the process ends; it is killed when the one that stands for it is gone."""
    end = os.pidfd_open(pid)
    while end not in select.select([end, source], [], [])[0]:
        number = source.recv(1)
        os.kill(pid, number[0] if number else signal.SIGKILL)
        if not number:
            os._exit(0)


def _become(command: list[str], environment: list[list[str]], cwd: str, cores: list[int]) -> None:
    """What ``python COMMAND`` does, where the command is ``-m MODULE …`` or ``SCRIPT …``."""
    os.sched_setaffinity(0, cores)
    os.environ.clear()
    os.environ.update(environment)
    importlib.reload(sys.modules["jaxrl_scale"])  # which sets XLA's variables as they should be
    os.chdir(cwd)
    is_module = command[0] == "-m"
    first = cwd if is_module else str(Path(command[0]).parent)
    sys.path[:1] = [first, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = command[is_module:]
    if is_module:
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    sys.argv = ["-m"]  # as the package asks whether it is a command that imports it
    for name in (*(f"jaxrl_scale.{name}" for name in IMPORTED), *LATER):
        importlib.import_module(name)
    assert not {*MODULES} & sys.modules.keys()
    gc.collect()
    gc.freeze()  # so that children go through none of it, and share it
    _serve()
