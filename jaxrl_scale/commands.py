"""What all commands share: a parser that answers a mistake in one line, and how they end."""

from __future__ import annotations

import argparse
import atexit
import errno
import io
import math
import os
import re
import select
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO

from jaxrl_scale import interrupts
from jaxrl_scale.errors import (
    INPUT_OUTPUT_ERROR,
    INTERRUPTED,
    MISTAKE,
    STOPPED,
    TAKE_LESS,
    RunError,
    closest,
    nearest,
    one_line,
    printable,
    say_no_more,
)


def run(
    command: Callable[[list[str]], int],
    argv: Sequence[str] | None = None,
    interrupted: str = "interrupted",
) -> int:
    """Run a command and return its exit status.

    A `RunError` becomes one line and its status, Ctrl-C becomes the line ``interrupted``, at once,
    and status 130. A second Ctrl-C ends the process, whatever it does. Libraries' warnings are not
    shown, unless Python was started with ``-W``. Where nobody reads standard output any more, a
    command that prints ends quietly.

    Args:
      command: takes the arguments and returns the exit status.
      argv: the arguments; by default those of this process.
      interrupted: what is printed after Ctrl-C.
    """
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by whoever started the command
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115  until it ends
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path with an é, where output is ASCII
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        os.getcwd()
    except OSError as error:  # which every relative path begins with
        told = f"error: this folder cannot be used ({error.strerror}); go to another by cd"
        print(told, file=sys.stderr)
        return MISTAKE
    ctrl_c = interrupts.CtrlC(interrupted)
    try:
        with ctrl_c.handled(), interrupts.answered(ctrl_c.arrived):
            status = command(list(sys.argv[1:] if argv is None else argv))
        with suppress(BrokenPipeError):  # it has printed all that it had to say
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        if not _unread(sys.stdout):
            raise
        return INPUT_OUTPUT_ERROR  # without a word, as of every program before `| head`
    except OSError as error:
        refused = errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP
        if error.errno in refused and error.filename is not None:
            print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
            return INPUT_OUTPUT_ERROR
        full = errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO
        if error.errno not in full or error.filename is not None:  # of a file: a bug
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what still waits
        print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)
        return INPUT_OUTPUT_ERROR
    except RunError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        return error.status
    except KeyboardInterrupt as error:
        ctrl_c.tell()
        return STOPPED if isinstance(error, interrupts.Stopped) else INTERRUPTED
    except RuntimeError as error:  # JAX's own, which this file, quick to import, does not know
        from jaxrl_scale.user_code import describe_callback

        if raised := describe_callback(str(error)):
            print(printable(f"error: {raised}"), file=sys.stderr)
            atexit.register(say_no_more)  # JAX shows the error again then, with its traceback
            return MISTAKE
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        reason = one_line(str(error))[:200]
        print(f"error: the memory is not enough; {TAKE_LESS}: {reason}", file=sys.stderr)
        return MISTAKE
    finally:
        ctrl_c.over.set()
        _unread(sys.stdout)


def _unread(stream: TextIO) -> bool:
    """Whether a stream is a pipe that nobody reads any more (`| head`). If so, what still waits in
    it goes nowhere, or Python would complain of that when the process ends."""
    with suppress(io.UnsupportedOperation):  # no file
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            return True
    return False


@contextmanager
def working(text: str) -> Iterator[Callable[[str], object]]:
    """Show on a terminal what goes on, and since when, while the body runs, which is given a
    function that shows another text. What other programs read, standard output, is left alone."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield lambda told: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as line:
        task = line.add_task(text, total=None)
        yield lambda told: line.update(task, description=told)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows options as they are best written, ``--name=VALUE``."""

    def __init__(self, prog: str, **kwargs: Any):
        super().__init__(prog, **{"max_help_position": 32, **kwargs})

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if action.nargs == 0 or not action.option_strings:
            return super()._format_action_invocation(action)
        names = ", ".join(action.option_strings)
        choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
        value = action.metavar or choices or action.dest.upper()
        return f"{names}[={value}]" if action.nargs == "?" else f"{names}={value}"


class Parser(argparse.ArgumentParser):
    """An argparse parser that abbreviates nothing and raises a `RunError` of one line.

    An option that does not exist is answered with what ``explain`` says of its name, with the
    nearest one, or else with ``elsewhere``.
    """

    def __init__(
        self,
        *,
        elsewhere: str = "--help lists the options",
        explain: Callable[[str], str | None] = lambda name: None,
        **kwargs: Any,
    ):
        super().__init__(allow_abbrev=False, **{"formatter_class": HelpFormatter, **kwargs})
        self._elsewhere, self._explain = elsewhere, explain

    def option(self, name: str, metavar: str, help: str, **more: Any) -> None:
        """Add the option ``--name``, as `add_argument` does."""
        self.add_argument(f"--{name}", metavar=metavar, help=help, **more)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            raise RunError(self._unknown(unknown[0]))
        return found

    def error(self, message: str) -> NoReturn:
        message = one_line(message.removeprefix("argument "))
        if missing := re.fullmatch(r"(--\S+): expected .*argument", message):
            name = missing[1]
            raise RunError(f"{name} needs a value; write {name}=VALUE")
        if wrong := re.fullmatch(r"(--\S+): invalid choice: '(.*)' \(choose from (.*)\)", message):
            name, value, choices = wrong[1], wrong[2], wrong[3].replace("'", "")
            near = nearest(value, choices.split(", "))
            raise RunError(f"{name}={value} should be one of {choices}{near}")
        if flag := re.fullmatch(r"(--\S+): ignored explicit argument .*", message):
            raise RunError(f"{flag[1]} takes no value")
        raise RunError(message)

    def _unknown(self, text: str) -> str:
        """What is wrong with an argument that the parser does not know."""
        name = text.split("=")[0]
        if explained := self._explain(name):
            return explained
        options = re.findall(r"^ +(?:-\w, )?--([\w.]+)", self.format_help(), re.MULTILINE)
        # Compared without what precedes a dot too: --learning_rate finds --algo.learning_rate.
        # NAME stands for any name, so that only what precedes it is compared.
        known = {option.removesuffix(".NAME").split(".")[-1]: option for option in options}
        known |= {option: option for option in options}
        near = closest(name.strip("-"), list(known))
        hint = f"did you mean --{known[near]}?" if near else self._elsewhere
        if text.startswith("-"):
            return f"unknown option {one_line(name)}; {hint}"
        return f"unexpected argument {text!r}: options are written --name=value; {hint}"


def add_checkpoint(parser: Parser) -> None:
    """Add the option that says which checkpoint of a run acts."""
    parser.add_argument(
        "--checkpoint",
        choices=("latest", "best"),
        default="latest",
        help="latest, or best: the one with the highest score while training [latest]",
    )


def whole_number(least: int = 1, most: int = 10**6) -> Callable[[str], int]:
    """A ``type`` for `Parser.add_argument`: whole numbers from ``least`` to ``most``."""

    def convert(text: str) -> int:
        try:
            value = int(text)  # 1_000 is a whole number, too
        except ValueError:
            value = most + 1 if text.isdecimal() else least - 1  # Python reads 4,300 digits
        if value < least:
            raise argparse.ArgumentTypeError(
                f"{text[:20]!r} should be a whole number of at least {least}"
            )
        if value > most:
            raise argparse.ArgumentTypeError(f"{text[:20]!r} should be at most {most}")
        return value

    return convert


def number(text: str) -> float:
    """A ``type`` for `Parser.add_argument`: a finite number."""
    with suppress(ValueError):
        if math.isfinite(value := float(text)):
            return value
    raise argparse.ArgumentTypeError(f"{text[:20]!r} should be a number")


def path(text: str) -> Path:
    """A ``type`` for `Parser.add_argument`: a path, which may begin with ``~``."""
    if not text:  # an unset variable of a shell would mean this folder
        raise argparse.ArgumentTypeError("'' should be a path")
    with suppress(RuntimeError):  # nobody has that name
        return Path(text).expanduser()
    return Path(text)
