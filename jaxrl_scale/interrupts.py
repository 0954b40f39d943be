"""Ctrl-C, answered at once, and signals that end a command.

Python runs the handler of a signal when its main thread comes back from compiled code. That may
take as long as an iteration, or as XLA compiles. The answer to a person comes from a thread.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from jaxrl_scale.errors import INTERRUPTED


def in_main_thread() -> bool:
    """Whether this is the thread to which Python leaves signals."""
    return threading.current_thread() is threading.main_thread()


def and_hangup(*signals: signal.Signals) -> tuple[signal.Signals, ...]:
    """These signals and SIGHUP, which tells that the terminal was closed, unless whoever started
    the process has it ignored (nohup)."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return signals if ignored else (*signals, signal.SIGHUP)


@contextmanager
def answered(answer: Callable[[int], object]) -> Iterator[None]:
    """While the block runs, call ``answer``, in a thread, with the number of each signal that
    arrives and has a handler in Python.

    Blocks may stand in each other: the answers of all of them are called, the innermost first.
    What the signal does beside that is its handler's business. Python leaves signals to the main
    thread, so that in any other this does nothing.
    """
    if not in_main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    around = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def listen() -> None:
        while number := os.read(reader, 1):
            answer(number[0])
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


class Stopped(KeyboardInterrupt):
    """What `stoppable` raises."""


@contextmanager
def stoppable() -> Iterator[None]:
    """While the block runs, SIGTERM, SIGUSR1 and SIGHUP (unless it is ignored) end the command as
    Ctrl-C does, with the status of what was saved and can go on. Python leaves signals to the main
    thread, so that in any other this does nothing."""
    if not in_main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise Stopped

    heard = and_hangup(signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class CtrlC:
    """What a person sees of Ctrl-C in a command.

    Args:
      told: the line that says that the command was interrupted.
    """

    def __init__(self, told: str):
        self.over = threading.Event()  # the command has ended
        self._told, self._times, self._telling = told, 0, threading.Lock()
        # The event is set once, which the bool sees to: it has a lock, for which a second signal
        # that came while the first one sets it would wait for ever.
        self._raised, self._heard = False, threading.Event()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """While the block runs, the first SIGINT raises KeyboardInterrupt. Later ones raise
        nothing, since they would interrupt the code that answers the first. Where the process
        ignores SIGINT, and outside of the main thread, nothing changes."""
        before, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
        ours = before in (signal.SIG_DFL, signal.default_int_handler)
        if not ours or not in_main_thread():
            yield
            return
        signal.signal(signal.SIGINT, self._raise_once)

        def unraisable(told: Any) -> None:
            if told.exc_type is KeyboardInterrupt and self._raised:
                self._raise_again()
            else:
                hook(told)

        sys.unraisablehook = unraisable
        try:
            yield
        finally:
            sys.unraisablehook = hook
            # If it was raised, the process is about to end. Python takes all handlers away when it
            # ends, but for this one.
            signal.signal(signal.SIGINT, signal.SIG_IGN if self._raised else before)

    def _raise_once(self, number: int, frame: object) -> None:
        if not self._raised:
            self._raised = True
            self._heard.set()
            raise KeyboardInterrupt

    def _raise_again(self) -> None:
        """Python drops what is raised where nobody could catch it, as in what runs when an object
        is forgotten (JAX has such a function). A moment later the main thread is elsewhere."""
        self._raised = False
        main = threading.main_thread().ident
        again = threading.Timer(0.05, lambda: signal.pthread_kill(main or 0, signal.SIGINT))
        again.daemon = True
        again.start()

    def tell(self) -> None:
        """Print the line, once."""
        with self._telling:
            told, self._told = self._told, ""
            if told:
                print(told, file=sys.stderr, flush=True)

    def arrived(self, number: int) -> None:
        """Answer a signal, if it is a SIGINT. Where a handler stands, as while a run trains, the
        first one is a request, which the handler's owner answers."""
        if number != signal.SIGINT:
            return
        self._times += 1
        if self._times == 1 and signal.getsignal(signal.SIGINT) != self._raise_once:
            return
        self.tell()
        # After the first Ctrl-C the main thread has a second to raise KeyboardInterrupt, which it
        # cannot while XLA computes, and may then take its time: a study lets its runs save. After
        # the second Ctrl-C it has a second to end.
        waited_for = self._heard if self._times == 1 else self.over
        if not waited_for.wait(1):
            for terminal in filter(os.isatty, (1, 2)):
                os.write(terminal, b"\x1b[?25h")  # a progress bar hides the cursor
            os._exit(INTERRUPTED)
