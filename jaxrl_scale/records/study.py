"""The folder of a scaling study: what is to be run, and what the finished runs say.

``study.json`` says how the study was made: the training, the machine and the points. Each run has a
directory of its own, ``POINT/seed0-repeat0``, and all numbers are read from these directories.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl_scale.config import Config, files
from jaxrl_scale.errors import RunError, make_folder
from jaxrl_scale.records import statistics
from jaxrl_scale.records.past_run import Trace, at, finished, read_trace
from jaxrl_scale.records.provenance import describe_machine, typed_command
from jaxrl_scale.records.run_directory import (
    io_errors,
    read_object,
    refuse_run,
    short,
    write_json,
)


@dataclass(frozen=True)
class Point:
    """One point of the study: a number of processes, cores, devices and environments."""

    mode: str  # strong: the environments are divided; weak: their number grows with the devices
    nodes: int | None  # Slurm's nodes; None: this machine
    processes: int  # on each node
    threads: int | None  # cores of a process; None: those that Slurm gives it
    devices: int | None  # of a process; None: all GPUs, or one per core
    base_envs: int  # environments of one agent before they grow
    num_envs: int  # environments of one agent, over all processes

    @property
    def all_processes(self) -> int:
        return (self.nodes or 1) * self.processes

    @property
    def machine(self) -> tuple[int | None, ...]:
        """Everything but the environments."""
        return self.nodes, self.processes, self.threads, self.devices

    @property
    def name(self) -> str:
        """Of its folder: ``strong-2x1-368envs`` is two processes of one core."""
        counts = {"nodes": self.nodes, "devices": self.devices}
        threads = f"x{self.threads}" if self.threads else ""
        others = "".join(f"-{count}{what}" for what, count in counts.items() if count)
        return f"{self.mode}-{self.processes}{threads}{others}-{self.num_envs}envs"


# --- the folder -----------------------------------------------------------------------------


def prepare(
    folder: Path,
    config: str,
    options: Sequence[str],
    points: Sequence[Point],
    worst_return: float | None = None,
) -> None:
    """Write ``study.json``. A study that exists may get further points of the same training."""
    refuse_run(folder, "--out")
    with io_errors(folder):
        make_folder(folder)
    study = _read(folder)
    training = {"config": config, "options": list(options)}
    before = {name: study.get(name, value) for name, value in training.items()}
    if before != training:
        told = shlex.join([before["config"], *before["options"]])
        raise RunError(
            f"{short(folder)} holds a study of another training ({told}); choose another --out"
        )
    known = dict.fromkeys([*_points(study), *points])
    write_json(
        folder / "study.json",
        {
            **training,
            "commands": [*study.get("commands", ()), typed_command()],
            "machine": describe_machine(),
            "worst_return": worst_return,
            "points": [dataclasses.asdict(point) for point in known],
        },
    )


def read_study(folder: Path) -> tuple[dict[str, Any], list[Result]]:
    """``study.json`` and the results of those points that have finished runs."""
    study = _read(folder)
    if not study:
        raise RunError(f"{short(folder)} holds no scaling study: it has no study.json")
    results = []
    for point in _points(study):
        there = sorted((folder / point.name).glob("seed*"))
        ours = [path for path in there if re.fullmatch(r"seed\d+-repeat\d+", path.name)]  # no copy
        runs = [path for path in ours if finished(path)]
        first = [run for run in runs if run.name.endswith("-repeat0")]
        traces = [read_trace(run) for run in first]
        others = [read_trace(run) for run in runs if run not in first]
        if first:
            configs = [files.read_config(run / "config.json", look=True) for run in first]
            results.append(Result(point, configs, traces, others))
    if not results:
        raise RunError(f"no run of {short(folder)} has come to its end")
    return study, results


def _read(folder: Path) -> dict[str, Any]:
    """``study.json``, empty where there is none."""
    study = read_object(folder / "study.json")
    try:
        _points(study)
        complete = not study or {"config", "options", "commands", "machine"} <= set(study)
    except TypeError:
        complete = False
    if not complete:
        raise RunError(f"{short(folder / 'study.json')} is damaged, or of another version")
    return study


def _points(study: dict[str, Any]) -> list[Point]:
    return [Point(**point) for point in study.get("points", ())]


# --- comparing ------------------------------------------------------------------------------


class Result(NamedTuple):
    """A point and what its finished runs say."""

    point: Point
    configs: list[Config]  # of a run for each of --seeds
    traces: list[Trace]  # what these runs say
    repeats: list[Trace]  # further ones of the same seeds: the same returns at another speed

    @property
    def seeds(self) -> list[range]:
        """Those of the agents of each run; a run that did not come to its end is missing."""
        return [range(one.seed, one.seed + one.num_seeds) for one in self.configs]


def all_series(results: Sequence[Result]) -> list[list[Result]]:
    """What is compared with each other: where machines differ, equal environments; strong and
    weak scaling apart. The first of each series is what its others are measured against."""
    machines = {result.point.machine for result in results}
    series: dict[Any, list[Result]] = {}
    for result in results:
        envs = result.point.base_envs if len(machines) > 1 else None
        series.setdefault((result.point.mode, envs), []).append(result)
    return list(series.values())


def compare(series: Sequence[Result], worst: float | None) -> list[dict[str, Any]]:
    """Speed, efficiency and returns of each result of a series (see `jaxrl_scale.scaling`).

    An agent is ``stuck`` where its evaluation ends within 1 % of ``worst``. ``speedup`` and
    ``difference`` are against the first result of the series. ``efficiency`` is the speed-up
    divided by the growth of the devices, and ``None`` where all have the same machine. Where both
    results have the same seeds, ``difference`` leaves out those of which an agent failed in either.
    """
    every = [trace for result in series for trace in result.traces]
    budgets = {
        axis: min(float(getattr(trace, axis)[-1]) for trace in every)
        for axis in ("iterations", "steps", "seconds")
    }
    evaluated = len({trace.iterations[-1] for trace in every}) == 1
    machines = {result.point.machine for result in series}

    def returns(result: Result, axis: str) -> tuple[np.ndarray, list[int]]:
        """Those of all agents ``[P]``, and which agents failed."""
        final = np.concatenate([trace.final for trace in result.traces])
        found = final
        if axis != "iterations" or not evaluated:
            where = budgets[axis]
            found = np.concatenate([at(getattr(t, axis), t.returns, where) for t in result.traces])
        return found, np.flatnonzero(np.isnan(final)).tolist()

    def learned(result: Result, axis: str) -> dict[str, Any]:
        ours, failed = returns(result, axis)
        theirs, failed_there = returns(series[0], axis)
        pairs = result.seeds == series[0].seeds
        return {
            "at": budgets[axis],
            "iqm": statistics.score(ours, failed),
            "ci95": statistics.interval(statistics.counted(ours, failed)),
            **statistics.difference(ours, theirs, (failed, failed_there), pairs),
        }

    def row(result: Result) -> dict[str, Any]:
        speeds, first_speeds = (
            [trace.speed for trace in (*r.traces, *r.repeats)] for r in (result, series[0])
        )
        speedup = float(np.median(speeds) / np.median(first_speeds))
        growth = result.traces[0].devices / series[0].traces[0].devices
        final = np.concatenate([trace.final for trace in result.traces])
        return {
            **dataclasses.asdict(result.point),
            "all_processes": result.point.all_processes,
            "all_devices": result.traces[0].devices,
            "runs": len(speeds),
            "steps_per_second": float(np.median(speeds)),
            "steps_per_second_range": [min(speeds), max(speeds)],
            "compile_seconds": float(np.median([t.compile_seconds for t in result.traces])),
            "speedup": speedup,
            "efficiency": speedup / growth if len(machines) > 1 else None,
            "seeds": len(final),
            "returns": {axis: learned(result, axis) for axis in budgets},
            "failed": int((~np.isfinite(final)).sum()),
            "stuck": None if worst is None else int((final <= worst + 0.01 * abs(worst)).sum()),
            "worst": float(np.nanmin(final)) if np.isfinite(final).any() else None,
        }

    return [row(result) for result in series]


def curves(result: Result) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The interquartile mean of the running returns over ``steps`` and over ``seconds``: the
    places ``[R]`` of the first run's rows and the means there."""
    traces, drawn = result.traces, {}
    failed = np.flatnonzero(np.isnan(np.concatenate([t.final for t in traces]))).tolist()
    for axis in ("steps", "seconds"):
        places = getattr(traces[0], axis)
        returns = [[at(getattr(t, axis), t.returns, x) for t in traces] for x in places]
        means = [statistics.score(np.concatenate(one), failed) for one in returns]
        drawn[axis] = places, np.array(means, float)
    return drawn
