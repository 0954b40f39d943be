"""Reads run directories, for the commands that show or compare runs.

Only data is read. Nothing that a directory names, such as a module with an environment, is imported
or called here. Every file is checked: one that is damaged, or that something else has written, is a
`RunError` of one line.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from jaxrl_scale.config import Config, files
from jaxrl_scale.errors import RunError
from jaxrl_scale.options import has_type
from jaxrl_scale.records import statistics
from jaxrl_scale.records.rows import TIMINGS, Row, Summary, normalized, read_rows
from jaxrl_scale.records.run_directory import has_died, is_bare_policy, read_object, short

_ENDS = ("done", "failed")
"""The statuses of a run that came to its end; one that was stopped goes on."""


@dataclass(frozen=True)
class PastRun:
    """What a run has left in its directory so far. ``R`` rows, which may be none, ``P`` agents."""

    path: Path
    config: Config
    rows: list[Row]
    summary: Summary
    """Empty until the run has ended, or was stopped."""
    starts: list[dict[str, Any]]
    """Of the start and of each resume (see `jaxrl_scale.records.run_directory`)."""
    seeds: Sequence[int]
    """Of the agents."""
    searched: Sequence[str] = ()
    """The options in which the agents differ, as those of a sweep do."""

    @property
    def options(self) -> dict[str, Any]:
        """The config flat: every value by its name on the command line."""
        flat = files.flatten(self.config)
        for option in files.DICTS:
            flat |= {f"{option}.{name}": value for name, value in flat.pop(option).items()}
        return flat | dict.fromkeys(self.searched, "several")

    @property
    def result(self) -> dict[str, Any]:
        """The summary. What it does not say yet is what the rows say so far."""
        last = self.rows[-1] if self.rows else {}
        speeds = [row["steps_per_second"] for row in self.rows if row["steps_per_second"]]
        so_far = {
            **{k: last.get(k) for k in ("env_steps", "wall_seconds", "compile_seconds")},
            "return_100": last.get("return_100"),
            "steps_per_second": float(np.median(speeds)) if speeds else None,
            "failed": last.get("failed", []),
            "target_return": self.config.target_return,
        }
        return so_far | {k: v for k, v in self.summary.items() if v is not None}

    @property
    def has_ended(self) -> bool:
        """Whether the run came to its end; one whose agents all failed did, too."""
        return self.summary.get("status") in _ENDS

    @property
    def status(self) -> str:
        """``done``, or how far the run has come."""
        told = self.rows[-1]["iteration"] if self.rows else 0
        done = max(told, self.summary.get("iterations", 0))
        total = self.config.num_iterations
        if self.summary and done >= total:
            return str(self.summary.get("status", "done"))
        state = self.summary.get("status")
        if state is None:
            state = "killed or crashed" if has_died(self.path) else "no summary yet"
        return f"{state}: iteration {done:,} of {total:,}"

    def column(self, name: str) -> np.ndarray:
        """A number of every row ``[R]``; NaN where a row does not have it."""
        values = (row.get(name) for row in self.rows)
        return np.array([x if isinstance(x, int | float) else np.nan for x in values], float)

    @property
    def agent_steps(self) -> np.ndarray:
        """Environment steps of one agent at every row ``[R]``."""
        return self.column("env_steps") / self.config.num_seeds

    def per_agent(self, metric: str) -> np.ndarray:
        """A metric of every row and agent ``[R, P]``; NaN where there is no number, and from the
        row on in which the agent is known to have failed."""
        return of_agents(self.rows, metric, self.config.num_seeds)


def by_name(columns: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """The values that several runs have, options say, by name; None where one has none."""
    names = dict.fromkeys(name for column in columns for name in column)
    return {name: [column.get(name) for column in columns] for name in names}


def differing(columns: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Those of `by_name` in which the runs are not all alike, without ``run_dir``."""
    return {
        name: values
        for name, values in by_name(columns).items()
        if name != "run_dir" and any(x != values[0] for x in values)
    }


def of_agents(rows: Sequence[Row], metric: str, num_agents: int) -> np.ndarray:
    """A metric of every row and agent ``[R, P]``, as `PastRun.per_agent` says."""
    out = np.full((len(rows), num_agents), np.nan)
    for values, row in zip(out, rows, strict=True):
        found = [row.get(metric)] if num_agents == 1 else row.get("per_agent", {}).get(metric)
        numbers = [x if isinstance(x, int | float) else np.nan for x in found or ()]
        values[: len(numbers)] = numbers
        values[row.get("failed", [])] = np.nan
    return out


def read(path: Path) -> PastRun:
    """As `read_any`, of a run that has rows of metrics."""
    run = read_any(path)
    if not run.rows:
        if is_bare_policy(path):
            raise RunError(
                f"{short(path)} is a policy without the rest of its run, as those in zoo/ are, so "
                "it has no metrics"
            )
        ended = _ENDED.get(run.summary.get("status", ""))
        why = f"has no metrics: it {ended} before its first row" if ended else "has no metrics yet"
        raise RunError(f"{short(path)} {why}; the run's --log_every says when rows are written")
    return run


_ENDED = {"failed": "failed", "stopped": "was stopped"}
"""How a run ended that did not come to its end, by the status in its summary."""


def lacks_checkpoint(path: Path) -> str:
    """What is said of a run that has no checkpoint: ``has no checkpoint yet``, or how it ended. A
    damaged summary is passed over, since whatever asks for a checkpoint does not need it."""
    status = None
    with suppress(RunError):
        status = read_object(path / "summary.json").get("status")
    if status == "failed":
        return "has no checkpoint: the run failed before its first one"
    if status in ("done", "stopped"):  # it had one
        return "has no checkpoint any more: the run has ended, and what it saved is gone"
    if status is None and has_died(path):
        return "has no checkpoint: the run was killed, or has crashed"
    return "has no checkpoint yet"


def read_any(path: Path) -> PastRun:
    """A run directory, read and checked."""
    if path.is_file():
        raise RunError(f"{short(path)} is a file; give the directory of a run")
    config = files.read_config(path / "config.json", look=True)
    rows = read_rows(path / "metrics.jsonl")
    for number, row in enumerate(rows, 1):
        _check(row, _Row, config.num_seeds, f"{short(path / 'metrics.jsonl')}, line {number}")
    if record := read_object(path / "run.json"):
        _check(record, _Record, config.num_seeds, short(path / "run.json"))
    summary = read_summary(path, config.num_seeds)
    starts = record.get("starts", [])
    last = starts[-1] if starts else {}
    _check(last, _Start, config.num_seeds, short(path / "run.json"))
    own = last.get("agents", {})
    seeds = own.get("seed", range(config.seed, config.seed + config.num_seeds))
    return PastRun(path, config, rows, summary, starts, seeds, [k for k in own if k != "seed"])


def side_by_side(runs: Sequence[PastRun], path: Path) -> PastRun:
    """Runs of one agent each, which ended and differ in their seeds, as one run of all these agents
    would be written to ``path``. Times, speeds and memory are means over the runs.

    A run that failed has no numbers here, as an agent that failed has none. An iteration of which
    one of the others has no row, as where its metrics are damaged, has none here.
    """
    if several := next((run for run in runs if run.config.num_seeds > 1), None):
        raise RunError(
            f"{short(several.path)} has {several.config.num_seeds} agents, and the runs beside it "
            "are one agent each; move it elsewhere"
        )
    failed = [k for k, run in enumerate(runs) if run.summary["failed"]]
    kept = [run for run in runs if not run.summary["failed"]] or runs
    logged = set.intersection(*({row["iteration"] for row in run.rows} for run in kept))
    if not logged:
        raise RunError(
            f"the runs in {short(path)} have no rows of the same iteration, so that the "
            "metrics.jsonl of one of them is damaged"
        )
    alike = [[row for row in run.rows if row["iteration"] in logged] for run in kept]
    rows = [_joined(rows, failed, len(runs)) for rows in zip(*alike, strict=False)]
    summaries: list[Any] = [run.summary for run in kept]
    summary: dict[str, Any] = {**summaries[0], "num_seeds": len(runs), "failed": failed}
    summary |= {name: _mean([s.get(name) for s in summaries]) for name in _MEANS}
    summary["env_steps"] = round(len(runs) * (_mean([s.get("env_steps") for s in summaries]) or 0))
    summary["return_100"] = statistics.score([s.get("return_100") for s in summaries])
    centres = {}
    for name, metric in (("evaluation", "eval_return"), ("test", "test_return")):
        evaluations: list[Any] = [run.summary.get(name) for run in runs]
        if known := next((e for e in evaluations if e), None):
            scores = [e["per_agent"][0] if e else None for e in evaluations]
            together = statistics.summarize(np.array(scores, float)[:, None], failed)
            together["episodes"] = known["episodes"]
            together["per_agent_ci95"] = [e["ci95"] if e else (None, None) for e in evaluations]
            whole = [e for k, e in enumerate(evaluations) if e and k not in failed]
            together["length"] = _mean([e.get("length") for e in whole])
            together["info"] = _means([e.get("info") or {} for e in whole])
            summary[name], centres[metric] = together, together["iqm"]
    summary |= normalized(runs[0].config.env, centres)
    config = runs[0].config.replace(num_seeds=len(runs), run_dir=str(path))
    seeds = [run.config.seed for run in runs]
    return PastRun(path, config, rows, typing.cast(Summary, summary), runs[0].starts, seeds)


_MEANS = (
    *("wall_seconds", "compile_seconds", "steps_per_second"),
    *("peak_memory_mb", "seconds_to_target"),
)


def _joined(rows: Sequence[Row], failed: Sequence[int], num_agents: int) -> Row:
    """A row of all agents, from those of the agents that did not fail."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    joined: Row = {"iteration": rows[0]["iteration"], "failed": list(failed), "per_agent": {}}
    joined["env_steps"] = round(num_agents * (_mean(columns["env_steps"]) or 0))
    joined["episodes"] = sum(x or 0 for x in columns.pop("episodes", ()))
    joined |= {name: _mean(columns[name]) for name in TIMINGS & set(names)}
    for name, values in columns.items():
        if name not in joined:
            joined[name] = statistics.score(values)
            of_agent = iter(values)
            joined["per_agent"][name] = [
                next(of_agent, None) if len(values) == num_agents or k not in failed else None
                for k in range(num_agents)
            ]
    return joined


def _mean(values: Sequence[float | None]) -> float | None:
    """None where one of them is None, or where there is none."""
    known = [x for x in values if x is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _means(runs: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    """The mean of each number over the runs."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: _mean([run.get(name) for run in runs]) for name in names}


def read_summary(path: Path, num_agents: int) -> Summary:
    """``summary.json`` of a run directory, checked; empty where there is none."""
    if summary := read_object(path / "summary.json"):
        _check(summary, Summary, num_agents, short(path / "summary.json"))
    return typing.cast(Summary, summary)


def finished(path: Path, until: int | None = None) -> bool:
    """Whether the run of a directory came to its end, or to iteration ``until``; one whose agents
    all failed came to its end, too, and one whose summary is damaged did not."""
    try:
        summary = read_object(path / "summary.json")
    except RunError:
        return False
    made = summary.get("iterations")
    there = until is not None and isinstance(made, int) and made >= until
    return there or summary.get("status") in _ENDS


def log_sizes(path: Path) -> dict[str, int]:
    """The bytes of each log ``process*.log`` of a run directory, by its name."""
    return {log.name: log.stat().st_size for log in path.glob("process*.log")}


def last_error(path: Path, earlier: Mapping[str, int] | None = None) -> str:
    """The last line that begins with ``error:`` in the logs ``process*.log`` of a run directory,
    or else their last line. What earlier starts have written, so many bytes of each log, is passed
    over."""
    passed, logs = earlier or {}, sorted(path.glob("process*.log"))
    written = [log.read_bytes()[passed.get(log.name, 0) :].decode(errors="replace") for log in logs]
    lines = [line for text in written for line in text.splitlines() if line]
    told = [line for line in lines if line.startswith("error: ")]
    return (told or lines or ["its processes wrote nothing"])[-1].removeprefix("error: ")


# --- curves ---------------------------------------------------------------------------------


class Trace(NamedTuple):
    """The numbers of a finished run that are compared with other runs'. ``R`` rows, ``P`` agents;
    NaN where there is no number."""

    iterations: np.ndarray  # [R]
    steps: np.ndarray  # [R] environment steps of one agent
    seconds: np.ndarray  # [R] wall-clock time without compilation
    returns: np.ndarray  # [R, P] running mean return; of an agent that failed NaN
    final: np.ndarray  # [P] evaluation at the end; of an agent that failed NaN
    speed: float  # steps a second
    compile_seconds: float
    devices: int  # of all processes

    @property
    def score(self) -> float | None:
        """The interquartile mean of the evaluation, over the agents that did not fail."""
        return statistics.score(self.final, np.flatnonzero(np.isnan(self.final)).tolist())


def read_trace(path: Path) -> Trace:
    """The numbers of a run directory whose run has come to its end."""
    run = read(path)
    if not run.summary:
        raise RunError(f"{short(path)} holds no finished run: it has no summary.json")
    returns = run.per_agent(return_metric(run))
    returns[:, run.summary["failed"]] = np.nan
    evaluation = run.summary.get("evaluation")
    scores = evaluation["per_agent"] if evaluation else [None] * run.config.num_seeds
    return Trace(
        iterations=run.column("iteration"),
        steps=run.agent_steps,
        seconds=run.column("wall_seconds") - run.column("compile_seconds"),
        returns=returns,
        final=np.array([np.nan if x is None else x for x in scores], float),
        speed=steps_per_second(run.rows),
        compile_seconds=run.summary["compile_seconds"],
        devices=len(run.starts[-1].get("devices", [])) if run.starts else 1,
    )


def return_metric(run: PastRun) -> str:
    """``return_100``, or ``return`` (the mean since the row before) of a run that is too short for
    100 episodes."""
    return "return_100" if any(row.get("return_100") is not None for row in run.rows) else "return"


def steps_per_second(rows: Sequence[Row]) -> float:
    """The median speed of the rows after the first tenth of the iterations, at least after the
    first row; of a single row its own."""
    begin = rows[-1]["iteration"] / 10
    later = [row["steps_per_second"] for row in rows[1:] if row["iteration"] > begin]
    return float(np.median(later or [rows[-1]["steps_per_second"]]))


def at(x: np.ndarray, y: np.ndarray, where: float) -> np.ndarray:
    """``y: [R, P]`` interpolated at ``where`` on the axis ``x: [R]``; ``[P]``, NaN before a
    column's first number."""
    out = np.full(y.shape[1], np.nan)
    for k, column in enumerate(y.T):
        known = np.isfinite(column)
        if known.any() and where >= x[known][0]:
            out[k] = np.interp(where, x[known], column[known])
    return out


# --- files ----------------------------------------------------------------------------------


class _Row(TypedDict, total=False):
    """What the readers know of a row; beside it are metrics, each a number or None."""

    iteration: int
    env_steps: int
    wall_seconds: float
    compile_seconds: float
    steps_per_second: float
    per_agent: dict[str, list[float | None]]
    failed: list[int]


class _Record(TypedDict, total=False):
    """``run.json``."""

    starts: list[dict[str, Any]]


class _Start(TypedDict, total=False):
    """What the readers know of a start."""

    agents: dict[str, list[float]]  # what each has otherwise than config.json says
    devices: list[str]
    versions: dict[str, str]


_NEEDED: dict[Any, set[str]] = {
    _Row: {"iteration", "env_steps", "wall_seconds", "compile_seconds", "steps_per_second"},
    Summary: {"status", "failed", "compile_seconds"},
    _Record: {"starts"},
    _Start: set(),
}
"""What each must hold."""


def _check(data: Any, kind: Any, num_agents: int, where: str) -> None:
    """Raise a `RunError` where ``data`` is not of the ``kind``, a TypedDict, or where it speaks of
    other agents than there are."""
    if missing := sorted(_NEEDED[kind] - set(data)):
        raise RunError(f"{where} is damaged: it lacks {', '.join(missing)}")
    hints = typing.get_type_hints(kind)
    other = float | None if kind is _Row else Any
    for name, value in data.items():
        if not has_type(value, hints.get(name, other)):
            shown = json.dumps(value)
            shown = shown if len(shown) <= 40 else f"{shown[:39]}…"
            raise RunError(f"{where} is damaged: {name} is {shown}")
    known = {name: data[name] for name in hints if data.get(name)}  # a metric may be called "test"
    lists = [x for name in ("per_agent", "agents") for x in known.get(name, {}).values()]
    lists += [known[name]["per_agent"] for name in ("evaluation", "test") if name in known]
    indices = known.get("failed", [])
    if any(len(x) != num_agents for x in lists) or any(k not in range(num_agents) for k in indices):
        raise RunError(f"{where} does not fit num_seeds={num_agents} of config.json")
