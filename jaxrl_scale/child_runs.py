"""Runs that a command trains one after the other, each in processes of its own."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from jaxrl_scale import commands
from jaxrl_scale.config import command_line, files
from jaxrl_scale.errors import (
    FINISHED,
    MISTAKE,
    UNFINISHED,
    RunError,
    how_many,
    make_folder,
    printable,
)
from jaxrl_scale.records.past_run import finished, last_error, log_sizes, read_trace
from jaxrl_scale.records.run_directory import as_stored, holds_run, io_errors, short
from jaxrl_scale.records.terminal import compact, duration, number

DEFAULTS = ("--wandb=disabled", "--tensorboard=false")  # for every run; options may say otherwise


def train(
    run: Path,
    arguments: Sequence[str],
    launch: Callable[[Sequence[str], Path], int],
    before: str = "",
    option: str = "--run_dir",
) -> int:
    """Begin or resume a run that has not come to its end, and say how it went.

    Args:
      run: its directory.
      arguments: the trainer's, with which the run begins. A resumed run takes only the new values
        of options that its result does not depend on.
      launch: ``(arguments, run) -> exit status`` trains.
      before: what the line about the run begins with.
      option: as for `check_begun`.

    Returns:
      The trainer's exit status.

    Raises:
      RunError: as `check_begun` does.
    """
    check_begun(run, arguments, option)
    began = time.monotonic()
    title = f"{before}{short(run)}"
    if finished(run):
        print(f"{title}: it was done before", flush=True)
        return FINISHED
    if holds_run(run):
        arguments = ["--resume", str(run), *command_line.changeable(arguments)]
    else:
        arguments = [*DEFAULTS, *arguments, f"--run_dir={run}"]
    with _claimed(run) as ours:
        if not ours:
            print(f"{title}: another command trains it now", flush=True)
            return MISTAKE
        earlier = log_sizes(run)
        status = launch(arguments, run)
    if finished(run):
        trace = read_trace(run)
        said = f"{compact(trace.speed)} steps/s, return {number(trace.score)}"
        print(f"{title}: {said}, {duration(time.monotonic() - began)}", flush=True)
    else:
        why = last_error(run, earlier)
        print(printable(f"{title}: exit status {status}: {why}"), flush=True)
    return status


def check_begun(run: Path, arguments: Sequence[str], option: str = "--run_dir") -> None:
    """Raise a `RunError` if the run has begun with another config than the trainer's ``arguments``
    say; ``option`` is the one that names another folder."""
    if not holds_run(run):
        return
    begun = files.flatten(files.read_config(run / "config.json", look=True))
    free = {*command_line.CHANGEABLE, "run_dir"}
    wanted = as_stored(command_line.load(arguments)[0])
    for name, value in files.flatten(wanted).items():
        if name not in free and begun.get(name) != value:
            raise RunError(
                f"{short(run)} has begun with {name}={begun.get(name)}, not {value}; choose "
                f"another {option}"
            )


@contextmanager
def _claimed(run: Path) -> Iterator[bool]:
    """Whether this command alone trains a run while the body runs. The process of another one would
    be refused by the run directory, and say so in the log of the first."""
    with io_errors(run):
        make_folder(run)
        log = open(run / "process0.log", "ab")  # noqa: SIM115  closed below
    with log:  # the kernel ends the lock then, or with this process; no child inherits it
        ours = True
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            ours = False
        except OSError:  # the file system has no locks
            pass
        yield ours


def trainer(arguments: Sequence[str]) -> list[str]:
    """The command that trains."""
    return [sys.executable, "-m", "jaxrl_scale.train", *arguments]


def alone() -> dict[str, str]:
    """The environment of this process, without what would make a child one process of several."""
    return {k: v for k, v in os.environ.items() if k not in coordinates("", 0, 0)}


def together(
    run: Path,
    program: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    threads: int | None = None,
) -> int:
    """Run a program in a process for each of the environments, maybe on as many cores each. What
    they print goes into a run directory, and the last line of process 0 to a terminal. Returns the
    first exit status that is not 0."""
    running: list[subprocess.Popen[bytes]] = []
    with io_errors(run), ExitStack() as leave:
        make_folder(run)
        for k, environment in enumerate(environments):
            log = leave.enter_context(open(run / f"process{k}.log", "ab"))
            with pinned(threads, k):
                process = subprocess.Popen(
                    program,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            running.append(process)
            leave.callback(stop, process)
        with commands.working(f"{short(run)}: starting") as show:
            while waited := [process for process in running if process.poll() is None]:
                with suppress(subprocess.TimeoutExpired):
                    waited[0].wait(timeout=0.5)
                if line := last_line(run / "process0.log"):
                    show(f"{line}  {short(run)}")  # what does not fit is cut off behind
    return next((process.returncode for process in running if process.returncode), 0)


def last_line(log: Path) -> str:
    """The last line that stands in a log, with single spaces between its words."""
    with open(log, "rb") as file:
        file.seek(-min(log.stat().st_size, 1000), os.SEEK_END)
        lines = file.read().decode(errors="replace").splitlines()
    return " ".join(lines[-1].split()) if lines else ""


def coordinates(address: str, count: int, k: int) -> dict[str, str]:
    """How process ``k`` of ``count`` finds the others."""
    return {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(count),
        "JAX_PROCESS_ID": str(k),
    }


@contextmanager
def pinned(threads: int | None, k: int) -> Iterator[None]:
    """Processes that are started in this context may use the ``k``-th block of ``threads`` cores
    only. macOS cannot bind processes to cores."""
    if threads is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    ours = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, ours[k * threads : (k + 1) * threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Let a run that still trains save and end."""
    if process.poll() is None:
        process.terminate()
        process.wait()


def status_of_all(unfinished: int) -> int:
    """Say how many runs did not end well; returns the exit status."""
    if unfinished:
        print(
            f"error: {how_many(unfinished, 'run')} did not end well; the same command tries again",
            file=sys.stderr,
        )
    return UNFINISHED if unfinished else FINISHED
