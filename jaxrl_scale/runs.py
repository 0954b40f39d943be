"""List runs, a line for each: ``python -m jaxrl_scale.runs [FOLDER ...]``.

Only run directories are read; nothing is imported or called that they name. The score is that of
the final evaluation, with its 95 % interval: over the agents of a run that has several, or else
over the episodes. Runs of one algorithm in one environment are compared with each other: a run
shows the options in which it is unlike most of them.
"""

from __future__ import annotations

import csv
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_scale import commands
from jaxrl_scale.config.command_line import written
from jaxrl_scale.errors import RunError, printable, raise_if_hidden
from jaxrl_scale.records import past_run
from jaxrl_scale.records.past_run import PastRun
from jaxrl_scale.records.rows import centre
from jaxrl_scale.records.run_directory import short
from jaxrl_scale.records.terminal import between, compact, number

_ELSEWHERE = ("env", "algo", "seed", "num_seeds")
"""Options that have a column of their own."""


def found(folders: Sequence[Path]) -> Iterator[Path]:
    """The run directories among some folders, and at any depth below them."""
    for folder in folders:
        for path, inner, files in os.walk(folder, onerror=_unreadable):
            if "config.json" in files and "run.json" in files:
                inner.clear()
                yield Path(path)
            inner.sort()


def _unreadable(error: OSError) -> None:
    print(f"left out: {error.filename}: {error.strerror}", file=sys.stderr)


class Listed(NamedTuple):
    """A run among those of its algorithm in its environment."""

    run: PastRun
    different: dict[str, Any]
    """The options in which these runs are not all alike."""
    unusual: str
    """Those of them that not most of these runs share."""


def compared(listed: Sequence[PastRun]) -> list[Listed]:
    """The runs in the order of their environments and algorithms."""

    def kind(run: PastRun) -> tuple[str, str]:
        return run.config.env, run.config.algo.name

    ordered = sorted(listed, key=lambda run: (*kind(run), str(run.path)))
    lines = []
    for _, group in itertools.groupby(ordered, kind):
        alike = list(group)
        table = past_run.differing([run.options for run in alike])
        table = {name: values for name, values in table.items() if name not in _ELSEWHERE}
        texts = {name: list(map(written, values)) for name, values in table.items()}
        for k, run in enumerate(alike):
            rare = (n for n, found in texts.items() if 2 * found.count(found[k]) <= len(alike))
            unusual = " ".join(f"{name}={texts[name][k]}" for name in rare)
            lines.append(Listed(run, {name: v[k] for name, v in table.items()}, unusual))
    return lines


def _numbers(run: PastRun) -> dict[str, Any]:
    """What is known of a run, by the columns of the CSV."""
    result, evaluation = run.result, run.result.get("evaluation")
    low, high = evaluation["ci95"] if evaluation else (None, None)
    return {
        "run": short(run.path),
        "env": run.config.env,
        "algo": run.config.algo.name,
        "seed": min(run.seeds),
        "num_seeds": len(set(run.seeds)),
        "agents": run.config.num_seeds,  # of which several may have one seed, in a sweep
        "status": run.status,
        "failed": len(result["failed"]),
        "env_steps": result["env_steps"],
        "score": centre(evaluation) if evaluation else None,
        "score_low": low,
        "score_high": high,
        "return_100": result["return_100"],
        "steps_per_second": result["steps_per_second"],
        "wall_seconds": result["wall_seconds"],
    }


def write_csv(listed: Sequence[PastRun]) -> None:
    """All numbers and all options that differ, on standard output."""
    lines = [_numbers(one.run) | one.different for one in compared(listed)]
    writer = csv.DictWriter(sys.stdout, dict.fromkeys(name for line in lines for name in line))
    writer.writeheader()
    writer.writerows(lines)


_RIGHT = ("seeds", "steps", "score", "training", "steps/s")
_ONLY_IF_WIDE = ("95 % interval", "training", "steps/s")
_WIDE = 110  # characters of a terminal


def print_table(listed: Sequence[PastRun]) -> None:
    """A line for each run, on standard output; on a narrow terminal without some columns."""
    from rich.console import Console
    from rich.table import Table

    # Where nobody looks at a terminal, no line is broken.
    console = Console(width=None if sys.stdout.isatty() else 1_000, markup=False, highlight=False)
    lines = [_cells(one.run) | {"differs in": one.unusual} for one in compared(listed)]
    left_out = set() if any(line["differs in"] for line in lines) else {"differs in"}
    left_out |= set(_ONLY_IF_WIDE) if console.width < _WIDE else set()
    heads = [head for head in lines[0] if head not in left_out]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        folds = head in ("status", "differs in")
        table.add_column(
            head,
            justify="right" if head in _RIGHT else "left",
            overflow="fold",
            no_wrap=not folds,
            min_width=12 if folds else None,
        )
    for line in lines:
        table.add_row(*(printable(line[head]) for head in heads))
    with console.capture() as capture:
        console.print(table)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _cells(run: PastRun) -> dict[str, str]:
    of = _numbers(run)
    count, seeds = of["agents"], dict.fromkeys((min(run.seeds), max(run.seeds)))
    failed = f", {of['failed']} of {count} agents failed" if of["failed"] and count > 1 else ""
    return {
        "run": of["run"],
        "environment": of["env"],
        "algorithm": of["algo"],
        "seeds": "-".join(map(str, seeds)),
        "steps": compact(of["env_steps"]),
        "score": number(of["score"]),
        "95 % interval": between((of["score_low"], of["score_high"])),
        "training": number(of["return_100"]),
        "steps/s": compact(of["steps_per_second"]),
        "status": of["status"] + failed,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    return commands.run(_command, argv)


def _command(argv: list[str]) -> int:
    parser = commands.Parser(
        prog="python -m jaxrl_scale.runs",
        usage="python -m jaxrl_scale.runs [FOLDER ...] [--csv]",
        description="List runs, a line for each: steps, score with its 95 % interval, training\n"
        "return of the last 100 episodes, speed, status, and how the runs differ.",
    )
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        nargs="*",
        type=commands.path,
        default=[Path("runs")],
        help="a run directory, or a folder with run directories at any depth [runs]",
    )
    parser.add_argument(
        "--csv",
        action="store_true",
        help="print comma-separated values: all numbers, and a column for each option that differs",
    )
    args = parser.parse_args(argv)
    for folder in args.folders:
        raise_if_hidden(folder)
        if not folder.is_dir():
            what = "is not a folder" if folder.exists() else "does not exist"
            raise RunError(f"{folder} {what}; give a folder with run directories")
    listed = []
    for path in dict.fromkeys(found(args.folders)):
        try:
            listed.append(past_run.read_any(path))
        except RunError as error:
            print(f"left out: {printable(str(error))}", file=sys.stderr)
    if not listed:
        raise RunError(f"no run was found in {', '.join(map(str, args.folders))}")
    write_csv(listed) if args.csv else print_table(listed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
