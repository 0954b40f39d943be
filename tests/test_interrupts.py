"""Ctrl-C, while the main thread is in compiled code and Python runs no handler."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from processes import PATIENCE, REPOSITORY, Screen, checkpoints, rows, summary

from jaxrl_scale import interrupts
from jaxrl_scale.config import Config
from jaxrl_scale.loop.stop import StopRequest
from jaxrl_scale.parallel.machine import free_port
from jaxrl_scale.records.terminal import Terminal

FOR_EVER = """
import atexit
import gc
import sys
import time

import jax

from jaxrl_scale import commands
from jaxrl_scale.loop.stop import StopRequest


def command(argv):
    endless = jax.jit(lambda x: jax.lax.while_loop(lambda x: x < 2, jax.numpy.sin, x))
    endless.lower(1.0).compile()
    print("begun", flush=True)
    endless(1.0).block_until_ready()
    return 0


def asked_first(argv):
    with StopRequest():
        return command(argv)


def slow_to_end(argv):
    atexit.register(time.sleep, 0.5)
    print("begun", flush=True)
    time.sleep(60)


class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)


def slow_to_be_forgotten(argv):  # by then Python has taken its handlers of signals away
    global slow
    slow = Slow()
    print("begun", flush=True)
    time.sleep(60)


def lost(argv):  # raised while Python collects garbage, where nobody can catch it
    def in_a_callback(phase, info):
        gc.callbacks.clear()
        print("begun", flush=True)
        time.sleep(60)

    gc.callbacks[:] = [in_a_callback]
    gc.collect()
    time.sleep(60)


sys.exit(commands.run(globals()[sys.argv[1]], []))
"""

ASKED = "Ctrl-C: the run stops after this iteration and is saved; Ctrl-C again ends it at once\n"


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("command", "interrupted\n", ""),
        ("asked_first", ASKED, "interrupted\n"),
        ("slow_to_end", "interrupted\n", ""),
        ("slow_to_be_forgotten", "interrupted\n", ""),
    ],
)
def test_each_ctrl_c_is_answered_at_once_and_the_second_ends_the_process(name, first, second):
    command = [sys.executable, "-c", FOR_EVER, name]
    ends = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **ends) as process:
        try:
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGINT)
            assert process.stderr.readline() == first
            assert process.poll() is None, "XLA computes for ever"
            time.sleep(0.2)  # it may have begun to end
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, second)


def test_blocks_that_stand_in_each_other_all_answer_and_leave_what_was_there():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    answers, before = [], signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        with (
            interrupts.answered(lambda number: answers.append(("around", number))),
            interrupts.answered(lambda number: answers.append(("within", number))),
            contextlib.suppress(KeyboardInterrupt),
        ):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        limit = time.monotonic() + 60
        while len(answers) < 2 and time.monotonic() < limit:
            time.sleep(0.01)
    finally:
        left = signal.set_wakeup_fd(before)
        os.close(writer)
    assert answers == [("within", signal.SIGINT), ("around", signal.SIGINT)]
    assert left == writer
    with open(reader, "rb") as heard:
        assert heard.read() == bytes([signal.SIGINT])


def test_a_run_that_a_scheduler_stops_is_saved_after_the_first_ctrl_c_too(capsys):
    with StopRequest() as stop:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
            assert stop.requested == number.name
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert capsys.readouterr().err == ASKED


AT_THE_END = """
import os, signal, sys

class Last:
    def __del__(self, kill=os.kill, process=os.getpid(), all=(signal.SIGINT, signal.SIGTERM)):
        for number in all:  # when Python has taken its handlers of signals away
            kill(process, number)

sys.argv[0] = "-m"  # as Python calls a command
import jaxrl_scale
jaxrl_scale.last = Last()
sys.exit(3)
"""


def test_signals_in_the_last_moment_do_not_change_how_a_command_ends():
    command = [sys.executable, "-c", AT_THE_END]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    assert subprocess.run(command, env=environment).returncode == 3


def test_a_ctrl_c_that_python_drops_is_raised_again():
    command = [sys.executable, "-c", FOR_EVER, "lost"]
    ends = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **ends) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "interrupted\n")


def test_one_ctrl_c_ends_a_command_that_waits_for_xla():
    command = [sys.executable, "-c", FOR_EVER, "command"]
    ends = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **ends) as process:
        try:
            assert process.stdout.readline() == "begun\n"
            time.sleep(0.3)  # XLA computes for ever
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, "interrupted\n")


HANGS = """
import contextlib
import ctypes

from jaxrl_scale.config import Launch
from jaxrl_scale.loop import stop
from jaxrl_scale.parallel import peers
from jaxrl_scale.parallel.cluster import Cluster

stop.PATIENCE = 0.3
mutex = ctypes.create_string_buffer(64)
lock = ctypes.CDLL(None).pthread_mutex_lock
k, number, port = map(int, sys.argv[1:])
link = peers.join(Cluster(number, k, "127.0.0.1", port), Launch())
link.prepare_end("; go on by --resume", lambda: None)
with link.end_together(), stop.StopRequest(link):
    link.barrier("all are here")
    if k == number - 1:
        with stop.waiting("environment 'Stuck'"):
            lock(mutex)
            lock(mutex)  # in C, where Python runs no handler
    link.barrier("never")
"""

HUNG = r"environment 'Stuck' has not come back for \S+ s; a signal, or a second Ctrl-C, now ends"


@pytest.mark.parametrize("number", [1, 2])
def test_a_run_whose_environment_hangs_says_so_and_ends_at_a_signal(number):
    port = free_port()
    environment = os.environ | {"JAXRL_SECRET": "known to this test alone"}
    ends = {"stderr": subprocess.PIPE, "text": True, "env": environment}
    command = [sys.executable, "-c", f"import sys\n{HANGS}"]
    by = "" if number == 1 else r"process 1 of 2 on \S+: "
    with contextlib.ExitStack() as stack:
        processes = []
        for k in range(number):
            process = subprocess.Popen([*command, *map(str, (k, number, port))], **ends)
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        assert re.fullmatch(rf"{by}{HUNG} the run without it\n", processes[0].stderr.readline())
        processes[-1].send_signal(signal.SIGTERM)
        told = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [75] * number
    late = r"environment 'Stuck' has not come back for \S+ s, and SIGTERM came"
    for err in told:
        end = rf"^error: .*{late}; what was saved stays saved; go on by --resume$"
        assert re.search(end, err, re.MULTILINE), err


def test_the_bar_leaves_room_for_what_a_terminal_shows_of_ctrl_c(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    terminal = Terminal(Config(), screen)
    terminal.start("begun")
    terminal.phase("training")
    terminal.close()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert max(map(len, re.split(r"[\r\n]", plain))) == 100 - len("^C^C")


def test_a_terminal_that_is_closed_stops_a_run_unless_that_is_ignored():
    told = []
    for handler in (lambda *_: told.append("the handler before"), signal.SIG_IGN):
        before = signal.signal(signal.SIGHUP, handler)
        try:
            with StopRequest() as stop:
                os.kill(os.getpid(), signal.SIGHUP)
                time.sleep(0.01)
                told.append(stop.requested)
            assert signal.getsignal(signal.SIGHUP) == handler
        finally:
            signal.signal(signal.SIGHUP, before)
    assert told == ["SIGHUP", ""]


IN_A_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_a_run_whose_terminal_is_closed_is_saved_and_ends_well(world):
    """As when a connection by ssh is lost: a signal comes, and nothing can be printed any more."""
    path = world.folder / "closed"
    ours, theirs = os.openpty()
    arguments = [*world.small(path), "--iterations=100000", "--log_every=1"]
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL, "-m", "jaxrl_scale.train", *arguments],
        env=world.environment | {"TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        limit = time.monotonic() + PATIENCE
        while not (path / "metrics.jsonl").exists() or not rows(path):
            assert process.poll() is None
            assert time.monotonic() < limit
            if select.select([ours], [], [], 0.05)[0]:
                os.read(ours, 10_000)
        os.close(ours)
        assert process.wait(PATIENCE) == 75
    finally:
        process.kill()
        process.wait()
    assert summary(path)["status"] == "stopped"
    assert max(checkpoints(path)) == summary(path)["iterations"]
