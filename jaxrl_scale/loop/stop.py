"""Signals that ask a run to save and stop, and what may keep it from doing so."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from jaxrl_scale.errors import STOPPED
from jaxrl_scale.interrupts import and_hangup, answered, in_main_thread
from jaxrl_scale.parallel.peers import Peers

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

PATIENCE = 60.0
"""Seconds after which the user is told that something has not come back."""

_LOOKS = 20  # in that time

_waits: dict[object, str] = {}  # what threads of this process wait for, each under its own key


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """While the block runs, this process waits for ``what``, which may never come back."""
    key = object()
    _waits[key] = what
    try:
        yield
    finally:
        del _waits[key]


class StopRequest:
    """Within this context SIGTERM, SIGINT, SIGUSR1 and SIGHUP ask the loop to save and stop; the
    last, of a terminal that was closed, unless it is ignored (nohup). A second SIGINT interrupts at
    once. Afterwards the signals do again what they did before.

    ``requested`` is the name of the signal that came, or an empty text. ``after`` says what the run
    does now, at the end of which it would stop: process 0 tells it by a line on standard error as
    soon as a SIGINT arrives. Python handles signals in the main thread only: in any other (some
    notebooks) they are left alone.

    Where the process is `waiting` for longer than `PATIENCE`, a line says so. The loop cannot stop
    then, so that a signal, whether it comes before or after that, ends all processes at once. A
    SIGINT does not, whose second one interrupts: it may come from a notebook, which should live.
    """

    def __init__(self, peers: Peers | None = None) -> None:
        self.requested, self.after = "", "this iteration"
        self._peers = peers or Peers()
        self._ended_by = ""  # as `requested`, also while Python runs no handler; no SIGINT
        self._told = False
        self._over = threading.Event()

    def agreed(self, heard: bool = False) -> bool:
        """Whether the loop has to stop now. A single process stops as soon as it is asked. Several
        have to stop at the same iteration: when the step has told all of them, ``heard``."""
        return heard if self._peers.several else bool(self.requested)

    def __enter__(self) -> StopRequest:
        self._before: dict[int, Any] = {}
        threading.Thread(target=self._watch, name="patience", daemon=True).start()
        with ExitStack() as stack:
            stack.callback(self._over.set)
            stack.enter_context(answered(self._hear))
            if in_main_thread():
                heard = and_hangup(*SIGNALS)
                self._before = {number: signal.signal(number, self._handle) for number in heard}
            self._answered = stack.pop_all()
        return self

    def _handle(self, number: int, frame: Any) -> None:
        name = signal.Signals(number).name
        if name == self.requested == "SIGINT":
            raise KeyboardInterrupt
        self.requested = name

    def _hear(self, number: int) -> None:
        if number in self._before and number != signal.SIGINT:
            self._ended_by = signal.Signals(number).name
        if number == signal.SIGINT and self._peers.leader and not self._told:
            self._told = True
            print(
                f"Ctrl-C: the run stops after {self.after} and is saved; "
                "Ctrl-C again ends it at once",
                file=sys.stderr,
                flush=True,
            )

    def _watch(self) -> None:
        """Look again and again whether what is waited for is the same as before. Time in which this
        process was suspended does not count, since nobody looks then."""
        wait, times, patience = None, 0, _LOOKS
        while not self._over.wait(PATIENCE / _LOOKS):
            before, wait = wait, next(iter([*_waits.items()]), None)
            times = times + 1 if wait == before else 0
            if wait is None or times < _LOOKS:
                continue
            late = f"{wait[1]} has not come back for {times * PATIENCE / _LOOKS:g} s"
            if self._ended_by:
                saved = f"what was saved stays saved{self._peers.advice}"
                self._peers.fail(f"{late}, and {self._ended_by} came; {saved}", STOPPED)
            if times >= patience:  # less and less often, as it may just be slow
                ends = "a signal, or a second Ctrl-C, now ends the run without it"
                self._peers.say(f"{late}; {ends}")
                patience = 2 * times

    def __exit__(self, *error: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._answered.close()
