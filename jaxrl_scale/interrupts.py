"""Ctrl-C, answered at once.

Python runs the handler of a signal when its main thread comes back from compiled code. That may
take as long as an iteration, or as XLA compiles. The answer to a person comes from a thread.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


def and_hangup(*signals: signal.Signals) -> tuple[signal.Signals, ...]:
    """These signals and SIGHUP, which tells that the terminal was closed, unless whoever started
    the process has it ignored (nohup)."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return signals if ignored else (*signals, signal.SIGHUP)


@contextmanager
def answered(answer: Callable[[], object]) -> Iterator[None]:
    """While the block runs, call ``answer``, in a thread, whenever a SIGINT arrives.

    Blocks may stand in each other: the answers of all of them are called, the innermost first.
    What the signal does beside that is its handler's business. Python leaves signals to the main
    thread, so that in any other this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    around = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def listen() -> None:
        while number := os.read(reader, 1):
            if number[0] == signal.SIGINT:
                answer()
            if around >= 0:
                with suppress(OSError):
                    os.write(around, number)

    thread = threading.Thread(target=listen, name="interrupts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(around)
        os.close(writer)
        thread.join(1)
        if not thread.is_alive():
            os.close(reader)
