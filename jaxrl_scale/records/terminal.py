"""What a run prints: a live progress bar, or plain lines if there is no terminal, and a table.

All of it goes to standard output. The numbers are those of the rows (`jaxrl_scale.records.rows`).
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol, TextIO

from jaxrl_scale.config import Config
from jaxrl_scale.errors import how_many, printable
from jaxrl_scale.records.rows import Evaluation, Row, Summary, centre

NONE = "-"
"""What stands in the place of a number that there is none of, in all tables and pages."""
_PLAIN_LINES = 20
_WORST_AGENTS = 3
_NARROW = 66  # columns of a terminal: with fewer there is no room for the bar, nor for a table
_COUNTS = 60  # with fewer there is none for the steps and the time left
_SCORE = 36  # nor, with so few, for the return


class Bar(Protocol):
    """A progress bar: one that is live in a terminal, or a notebook's."""

    def phase(self, name: str) -> None:
        """Show what goes on: compiling, training, evaluating."""

    def update(self, row: Row) -> None:
        """Show a row."""

    def say(self, text: str) -> None:
        """Print a line beside the bar."""

    def stop(self) -> None:
        """Take the bar away."""


class Terminal:
    """Shows one run to the user.

    Whoever makes one has to call `close`, or `finish`, which calls it: the progress bar hides the
    terminal's cursor until then.

    Args:
      bar: makes the bar of a config at an iteration; default: one that is live, in a terminal.
    """

    def __init__(
        self,
        config: Config,
        stream: TextIO | None = None,
        bar: Callable[[Config, int], Bar] | None = None,
    ):
        self._config = config
        self._total = config.num_iterations
        # A program that trains may have closed its output, or have put a logger in its place.
        self._stream = stream or sys.stdout or io.StringIO()
        is_terminal = getattr(self._stream, "isatty", lambda: False)()
        self._live = is_terminal and os.environ.get("TERM", "dumb") != "dumb"
        self._make_bar = bar or (partial(_LiveBar, self._stream) if self._live else None)
        self._bar: Bar | None = None
        self._printed = -1  # twentieths of the run that have had their plain line

    def start(self, text: str, iteration: int = 0) -> None:
        """Print the first line, and show the bar at this iteration."""
        self.message(text)
        if make := self._make_bar:
            with self._while_read():
                self._bar = make(self._config, iteration)

    def phase(self, name: str) -> None:
        """Show on the bar what goes on: compiling, training, evaluating."""
        if bar := self._bar:
            with self._while_read():
                bar.phase(name)

    def update(self, row: Row) -> None:
        """Show a row: ``iteration``, ``env_steps``, ``steps_per_second``, ``return_100``.

        Without a bar it prints about `_PLAIN_LINES` lines in a run: the first row, the last
        one, and one whenever another twentieth of the iterations is done.
        """
        if bar := self._bar:
            with self._while_read():
                bar.update(row)
            return
        done = _PLAIN_LINES * row["iteration"] // self._total
        if done > self._printed:
            self._printed = done
            self._print(plain_line(row, self._total))

    def message(self, text: str) -> None:
        """Print a line, above the bar if there is one. Any thread may call it."""
        bar = self._bar
        if bar:
            with self._while_read():
                bar.say(printable(text))
        else:
            self._print(text)

    def close(self) -> None:
        """Remove the bar and show the cursor again."""
        bar, self._bar = self._bar, None
        if bar:
            with self._while_read():
                bar.stop()

    def finish(self, title: str, summary: Summary, places: Mapping[str, str]) -> None:
        """Print the final table: the summary, and where to find the rest."""
        self.close()
        lines = [*summary_lines(summary), *places.items()]
        if self._live and _columns(self._stream) >= _NARROW:
            with self._while_read():
                _print_table(self._stream, title, lines)
        else:
            width = max(len(label) for label, _ in lines)
            self._print("\n".join([title, *(f"  {k:<{width}}  {v}" for k, v in lines)]))

    def _print(self, text: str) -> None:
        with self._while_read():
            print(printable(text), file=self._stream, flush=True)

    @contextmanager
    def _while_read(self) -> Iterator[None]:
        """The run goes on when nobody reads its output any more (`| head`, a closed window)."""
        try:
            yield
        except OSError:
            self._stream = open(os.devnull, "w")  # noqa: SIM115
            bar, self._bar = self._bar, None
            if bar:
                with suppress(OSError):
                    bar.stop()


class _LiveBar:
    """The last line of a terminal."""

    def __init__(self, stream: TextIO, config: Config, iteration: int):
        from rich.console import Console, RenderableType
        from rich.constrain import Constrain
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
        from rich.table import Column

        console = Console(file=stream, highlight=False)

        class Narrow(Progress):
            """Ends before the edge, or the ^C of an interrupt would begin a new line and leave a
            copy of the bar behind."""

            def get_renderables(self) -> Iterable[RenderableType]:
                for renderable in super().get_renderables():
                    yield Constrain(renderable, console.width - len("^C^C"))

        def column(text: str) -> TextColumn:
            return TextColumn(text, table_column=Column(no_wrap=True))

        shown = {
            SpinnerColumn(finished_text=" "): _NARROW,
            column("[bold]{task.description}"): 0,
            BarColumn(bar_width=None): _NARROW,
            column("[bold]{task.percentage:>3.0f}%"): 0,
            column("[cyan]{task.fields[steps]}[/] steps"): _COUNTS,
            column("[cyan]{task.fields[rate]}[/]/s"): _NARROW,
            column("return [green]{task.fields[score]}[/]"): _SCORE,
            column("[yellow]{task.fields[left]}[/] left"): _COUNTS,
        }
        self._total = config.num_iterations
        self._bar = Narrow(
            *(part for part, least in shown.items() if console.width >= least),
            console=console,
            expand=True,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),  # else `2> log` would lose what goes there
            refresh_per_second=4,  # each takes a few milliseconds from the training thread
        )
        empty: dict[str, Any] = {"steps": "0", "rate": NONE, "score": NONE, "left": NONE}
        self._task = self._bar.add_task("starting", total=self._total, completed=iteration, **empty)
        self._bar.start()

    def phase(self, name: str) -> None:
        self._bar.update(self._task, description=name, refresh=True)

    def update(self, row: Row) -> None:
        self._bar.update(
            self._task,
            completed=row["iteration"],
            steps=compact(row["env_steps"]),
            rate=compact(row.get("steps_per_second")),
            score=number(row.get("return_100")),
            left=duration(seconds_left(row, self._total)),
        )

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        self._bar.stop()


def _columns(stream: TextIO) -> int:
    """How many columns a terminal has."""
    from rich.console import Console

    return Console(file=stream).width


def _print_table(stream: TextIO, title: str, lines: list[tuple[str, str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title, "bold"), title_justify="left", box=box.ROUNDED)
    table.show_header = False
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in lines:
        table.add_row(label, Text(text))
    Console(file=stream, highlight=False).print(table)


# --- texts ----------------------------------------------------------------------------------


def plain_line(row: Row, total: int) -> str:
    """A row in one line, for a file or a pipe."""
    percent = 100 * row["iteration"] // total
    return (
        f"{percent:3d}%  {row['env_steps']:>13,} steps  "
        f"{compact(row.get('steps_per_second')):>6} steps/s  "
        f"return {number(row.get('return_100')):>8}  "
        f"{duration(seconds_left(row, total)):>8} left"
    )


def summary_lines(summary: Summary) -> list[tuple[str, str]]:
    """The rows of the final table. A row for which the summary has no value is left out."""
    lines = []
    several = summary["num_seeds"] > 1
    if evaluation := summary.get("evaluation"):
        lines.append(("evaluation return", _evaluated(evaluation)))
        scores = {k: v for k, v in enumerate(evaluation["per_agent"]) if v is not None}
        if several and scores:
            lines.append(("  mean", number(evaluation["mean"])))
            low, high = min(scores.values()), max(scores.values())
            lines.append(("  min, max", f"{number(low)}, {number(high)}"))
            if summary["num_seeds"] > _WORST_AGENTS:
                worst = sorted(scores, key=lambda agent: scores[agent])[:_WORST_AGENTS]
                named = ", ".join(f"{number(scores[k])} (agent {k})" for k in worst)
                lines.append(("  worst agents", named))
        if test := summary.get("test"):
            lines.append(("test return", _evaluated(test)))
        known = (summary.get("eval_normalized"), ""), (summary.get("test_normalized"), " (test)")
        told = [f"{score:.3f}{where}" for score, where in known if score is not None]
        if told:
            lines.append(("normalized", f"{', '.join(told)}  (0 and 1 are published scores)"))
    if summary.get("return_100") is not None:
        lines.append(("training return", f"{number(summary['return_100'])}  (last 100 episodes)"))
    if summary.get("target_return") is not None:
        reached = summary.get("seconds_to_target")
        text = "not reached" if reached is None else f"reached after {duration(reached)}"
        lines.append(("target return", f"{number(summary['target_return'])}  ({text})"))
    if several:
        failed = ", ".join(map(str, summary["failed"]))
        text = f"{len(summary['failed'])} failed: agent {failed}" if failed else "none failed"
        lines.append(("agents", f"{summary['num_seeds']}  ({text})"))
    rate = compact(summary["steps_per_second"])
    lines.append(("environment steps", f"{summary['env_steps']:,}  ({rate} a second)"))
    if digest := summary.get("digest"):
        lines.append(("digest", digest[:16]))
    compiling = duration(summary["compile_seconds"])
    lines.append(("time", f"{duration(summary['wall_seconds'])}  (compilation {compiling})"))
    if summary.get("peak_memory_mb"):
        lines.append(("peak memory", f"{summary['peak_memory_mb']:,.0f} MB"))
    return lines


def _evaluated(evaluation: Evaluation) -> str:
    several = len(evaluation["per_agent"]) > 1
    kind, whose = ("IQM, ", " of each agent") if several else ("", "")
    within = between(evaluation["ci95"])
    interval = f"95% interval {within}; " if within else ""
    episodes = how_many(evaluation["episodes"], "episode") + whose
    return f"{number(centre(evaluation))}  ({kind}{interval}{episodes})"


def seconds_left(row: Row, total: int) -> float | None:
    """Seconds to the end at the present speed. An iteration is taken to have as many valid steps as
    those so far had on average."""
    rate = row.get("steps_per_second")
    if not rate or not row["iteration"]:
        return None
    return (total - row["iteration"]) * row["env_steps"] / row["iteration"] / rate


def number(value: float | None) -> str:
    """A return for people: ``-82.4``, ``1,234``, ``0.0312``, ``-`` for none."""
    if value is None:
        return NONE
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 or value == 0 else f"{value:.3g}"


def between(bounds: Sequence[float | None]) -> str:
    """An interval for people: ``481.2 to 499.8``, or nothing where there is none."""
    low, high = bounds
    return "" if low is None or high is None else f"{number(low)} to {number(high)}"


def compact(value: float | None) -> str:
    """A count for people: ``950``, ``81.2k``, ``1.05M``, ``-`` for none."""
    if value is None:
        return NONE
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:  # what would round to 1000 of the smaller unit
            return f"{value / size:#.3g}".rstrip(".") + letter
    return f"{value:.0f}"


def duration(seconds: float | None) -> str:
    """``4.2 s`` below ten seconds, then ``0:42``, ``1:02:03``, ``2d 03:04:05``."""
    if seconds is None:
        return NONE
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}:{rest:02d}"
    days, hours = divmod(hours, 24)
    return (
        f"{days}d {hours:02d}:{minutes:02d}:{rest:02d}"
        if days
        else f"{hours}:{minutes:02d}:{rest:02d}"
    )
