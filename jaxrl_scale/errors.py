"""Errors that a user sees as one line, and the exit statuses of all commands."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

FINISHED = 0
MISTAKE = 2
"""A mistake in the call or in the config."""
NOT_FINITE = 3
"""No agent's loss is finite any more."""
INPUT_OUTPUT_ERROR = 74
"""A full disk, an unwritable folder: EX_IOERR of sysexits.h."""
STOPPED = 75
"""Stopped by a signal and saved, or another process was lost: EX_TEMPFAIL, worth starting again."""


class RunError(ValueError):
    """An error that a command prints as one line, without a traceback, before it exits with
    `status`."""

    def __init__(self, message: str, status: int = MISTAKE):
        super().__init__(message)
        self.status = status


def one_line(text: object) -> str:
    """The text with every run of white space as one blank."""
    return " ".join(str(text).split())


def nearest(name: str, names: Sequence[str]) -> str:
    """``'; did you mean X?'`` for the nearest of ``names``, or an empty text."""
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), list(by_lower), 1, 0.6)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""
