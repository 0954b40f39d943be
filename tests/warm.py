"""Processes that begin with the modules of the training command imported, for `processes.World`.

Half of what a small run costs is importing JAX and the packages of its records. A nursery, ``python
warm.py``, imports them once and forks: a child goes on as ``python -m MODULE ARGUMENTS…`` does,
with an environment, a folder, an output and signals of its own. The nursery itself never uses a
device.
"""

from __future__ import annotations

import atexit
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

MODULES = ("jaxrl_scale.train", "jaxrl_scale.sweep", "jaxrl_scale.evaluate")
"""The commands that can begin warm. The nursery does not import them themselves: ``python -m`` runs
a module that nobody has imported."""

IMPORTED = (
    *("commands", "algos.ppo", "algos.a2c", "loop.agent", "loop.make", "loop.origin"),
    *("loop.prepare", "loop.stop", "records.checkpoint", "records.log", "parallel.hosts"),
)
LATER = ("orbax.checkpoint", "tensorboardX", "rich.progress", "rich.live")
"""What a run imports while it goes on."""

VARIABLES = {"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "XLA_FLAGS"}
"""Those of JAX and XLA that are read after the imports."""


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
        request = [list(imported), [list(command), list(environment.items()), str(cwd)]]
        ends = [*(end.fileno() for end in self._ends), tell]
        socket.send_fds(_nursery(), [json.dumps(request).encode()], ends)
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
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.communicate()


@functools.cache
def _nursery() -> socket.socket:
    """The socket of the nursery, which ends with this process."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    nursery = subprocess.Popen([sys.executable, __file__], stdin=its, env=plain)
    its.close()

    @atexit.register
    def close() -> None:
        ours.close()
        nursery.wait()

    return ours


def _serve() -> None:
    """Fork for every request; a child that has what it is to be returns."""
    with socket.socket(fileno=os.dup(0)) as requests:
        while True:
            request, ends, *_ = socket.recv_fds(requests, 1 << 20, 3)
            if not request:
                os._exit(0)
            imported, becoming = json.loads(request)
            for name in imported:
                importlib.import_module(name)
            if (child := os.fork()) == 0:
                break
            os.waitpid(child, 0)
            for end in ends:
                os.close(end)
    out, err, tell = ends
    if os.fork():  # so that the nursery waits for nobody
        os._exit(0)
    if pid := os.fork():
        os.write(tell, b"%d\n" % pid)
        os.write(tell, b"%d\n" % os.waitpid(pid, 0)[1])
        os._exit(0)
    os.close(tell)
    with open(os.devnull) as nothing:
        for end, number in ((nothing.fileno(), 0), (out, 1), (err, 2)):
            os.dup2(end, number)
    os.close(out)
    os.close(err)
    _become(*becoming)


def _become(command: list[str], environment: list[list[str]], cwd: str) -> None:
    """What ``python COMMAND`` does, where the command is ``-m MODULE …`` or ``SCRIPT …``."""
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
