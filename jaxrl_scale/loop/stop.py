"""Signals that ask a run to save and stop."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from typing import Any

from jaxrl_scale.interrupts import and_hangup, answered, in_main_thread

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Within this context SIGTERM, SIGINT, SIGUSR1 and SIGHUP ask the loop to save and stop; the
    last, of a terminal that was closed, unless it is ignored (nohup). A second SIGINT interrupts at
    once. Afterwards the signals do again what they did before.

    ``requested`` is the name of the signal that came, or an empty text. ``after`` says what the run
    does now, at the end of which it would stop: a line on standard error tells it as soon as a
    SIGINT arrives. Python handles signals in the main thread only: in any other (some notebooks)
    they are left alone.

    Args:
      several: whether the run has several processes.
      tells: whether this process tells it, one of them.
    """

    def __init__(self, several: bool = False, tells: bool = True) -> None:
        self.requested, self.after = "", "this iteration"
        self._several, self._tells = several, tells

    def agreed(self, heard: bool = False) -> bool:
        """Whether the loop has to stop now. A single process stops as soon as it is asked. Several
        have to stop at the same iteration: when the step has told all of them, ``heard``."""
        return heard if self._several else bool(self.requested)

    def __enter__(self) -> StopRequest:
        self._before = {}
        with ExitStack() as stack:
            if self._tells:
                stack.enter_context(answered(self._tell))
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

    def _tell(self) -> None:
        if self._tells:
            print(
                f"Ctrl-C: the run stops after {self.after} and is saved; "
                "Ctrl-C again ends it at once",
                file=sys.stderr,
                flush=True,
            )
        self._tells = False

    def __exit__(self, *error: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._answered.close()
