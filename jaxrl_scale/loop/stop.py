"""Signals that ask a run to save and stop."""

from __future__ import annotations

import signal
import threading
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Within this context SIGTERM, SIGINT and SIGUSR1 ask the loop to save and stop. A second
    SIGINT interrupts at once. Afterwards the signals do again what they did before.

    ``requested`` is the name of the signal that came, or an empty text. Python handles signals in
    the main thread only: in any other (some notebooks) they are left alone.

    Args:
      several: whether the run has several processes.
    """

    def __init__(self, several: bool = False) -> None:
        self.requested = ""
        self._several = several

    def agreed(self, heard: bool = False) -> bool:
        """Whether the loop has to stop now. A single process stops as soon as it is asked. Several
        have to stop at the same iteration: when the step has told all of them, ``heard``."""
        return heard if self._several else bool(self.requested)

    def __enter__(self) -> StopRequest:
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def _handle(self, number: int, frame: Any) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number).name

    def __exit__(self, *error: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
