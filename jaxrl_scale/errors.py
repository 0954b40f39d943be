"""Errors that a user sees as one line, and the exit statuses of all commands."""

from __future__ import annotations

import difflib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

FINISHED = 0
BUG = 1
"""An error that nobody foresaw, shown with its traceback."""
UNFINISHED = 1
"""Some run of a scaling study or of a comparison did not come to its end."""
MISTAKE = 2
"""A mistake in the call, in the config or in code of the user's, or too little memory."""
NOT_FINITE = 3
"""Every agent has failed: its loss or another metric is no longer finite."""
INPUT_OUTPUT_ERROR = 74
"""A full disk, an unwritable folder: EX_IOERR of sysexits.h."""
STOPPED = 75
"""Stopped by a signal, after saving: EX_TEMPFAIL of sysexits.h, worth starting again."""
LOST = 75
"""Another process of the run was lost: EX_TEMPFAIL, too."""
INTERRUPTED = 128 + signal.SIGINT
"""Interrupted by Ctrl-C, as a shell reports it."""

TAKE_LESS = (
    "smaller batches need less (num_envs, rollout_length, num_seeds, hidden_sizes, the episodes of "
    "an evaluation)"
)
"""What is said where the memory is not enough."""

MEANING = {
    FINISHED: "finished",
    UNFINISHED: "some run did not come to its end; its log is in its folder",
    MISTAKE: "a mistake in the command line, the config or code of your own, or too little memory",
    NOT_FINITE: "every agent has failed: its loss or another metric is no longer finite",
    INPUT_OUTPUT_ERROR: "an input/output error, such as a full disk",
    STOPPED: "stopped by a signal after saving, or another process was lost; it can go on",
    INTERRUPTED: "interrupted by Ctrl-C",
}
"""What an exit status says, for ``--help``."""


def status_table(*statuses: int) -> str:
    """The lines of ``--help`` that explain exit statuses."""
    rows = (f"  {status:<5}{MEANING[status]}" for status in statuses)
    return "\n".join(["exit status:", *rows, ""])


class RunError(ValueError):
    """An error that a command prints as one line, without a traceback, before it exits with
    `status`."""

    def __init__(self, message: str, status: int = MISTAKE):
        super().__init__(message)
        self.status = status


def raise_if_hidden(path: Path) -> None:
    """Raise the `OSError` of a path that cannot be looked up: it is too long, or in a folder that
    this user may not read. From Python 3.14 on `Path.exists` says that nothing is there."""
    with suppress(FileNotFoundError, NotADirectoryError):
        os.stat(path)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, unless they are there. Raises an `OSError`; that of
    something else in its place says what it is."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        told = no_folder(Path(error.filename))
        raise FileExistsError(error.errno, told, error.filename) from None


def no_folder(path: Path) -> str:
    """What is said of something that should be a folder: that it is a file, or a symbolic link to
    what is not there, such as a disk that is not mounted."""
    if path.is_symlink() and not path.exists():
        return f"{path} is a symbolic link to {os.readlink(path)}, which does not exist"
    return f"{path} is a file; it should be a folder"


def one_line(text: object) -> str:
    """The text with every run of white space as one blank."""
    return " ".join(str(text).split())


def printable(text: str) -> str:
    """The text without what a terminal would obey: a name may come from somebody else's run."""
    shown = ("\n", "\t", "\N{NO-BREAK SPACE}", "\N{NARROW NO-BREAK SPACE}")
    return "".join(c if c.isprintable() or c in shown else ascii(c)[1:-1] for c in text)


def say_no_more() -> None:
    """Discard whatever is still written to standard error while the process ends, in threads of
    JAX's own too."""
    if sys.stderr is not None:
        sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def in_words(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def how_many(number: int, one: str, several: str | None = None) -> str:
    """A number of things: ``1 seed``, ``1,024 seeds``, ``2 processes``.

    Args:
      one: what it is called where there is one.
      several: where there are others; default: with an ``s``.
    """
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def closest(name: str, names: Sequence[str], cutoff: float = 0.6) -> str | None:
    """The one of ``names`` that ``name`` probably means: a misspelling, or its initials, as ``lr``
    is for ``learning_rate``. ``None`` where none is closer than ``cutoff`` (0: nothing in common,
    1: equal)."""
    by_lower = {known.lower(): known for known in names}
    initials = {"".join(part[0] for part in low.split("_") if part): low for low in by_lower}
    if len(name) > 1 and name.lower() in initials:
        return by_lower[initials[name.lower()]]
    found = difflib.get_close_matches(name.lower(), list(by_lower), 1, cutoff)
    return by_lower[found[0]] if found else None


def nearest(name: str, names: Sequence[str]) -> str:
    """``'; did you mean X?'`` for the closest of ``names``, or an empty text."""
    found = closest(name, names)
    return f"; did you mean {found}?" if found else ""
