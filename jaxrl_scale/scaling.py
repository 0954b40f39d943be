"""How does a config scale? ``python -m jaxrl_scale.scaling --config FILE --processes 1,2``.

Trains once for every combination of the axes, each run in processes of its own and in a run
directory of its own, and writes ``scaling.md``, ``scaling.json`` and ``scaling.png``. What is
reported is read from the run directories alone, so that ``--analyse`` needs nothing else.

**Steps a second** are valid environment steps of all agents with all training included. Each
row of metrics has the speed since the row before; the rows of the first tenth of the
iterations, at least one, are left out (caches warm up, other processes still compile), and of
the others the median is taken, which a checkpoint or a busy moment does not move.

**Returns** are interquartile means over seeds, with 95 % percentile bootstrap intervals: at
equal iterations that of the final greedy evaluation (where all runs have as many), at equal
environment steps and equal time the running mean of the last 100 episodes, interpolated
between rows. Equal means: as much as the run of the series that has least. Time is wall-clock
time without compilation. A run whose first row comes later than that has no return there.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl_scale import commands
from jaxrl_scale import config as cfg
from jaxrl_scale.config import command_line
from jaxrl_scale.errors import UNFINISHED, RunError
from jaxrl_scale.options import largest_divisor
from jaxrl_scale.parallel.machine import free_port, visible_cores, visible_gpus
from jaxrl_scale.records import statistics
from jaxrl_scale.records.provenance import describe_machine
from jaxrl_scale.records.run_directory import io_errors, plain, short, write_atomically
from jaxrl_scale.records.runs import Trace, at, finished, last_error, read_object, read_trace
from jaxrl_scale.records.terminal import compact, duration, number

DEFAULTS = ("--wandb=disabled", "--tensorboard=false")  # for every run; options may say otherwise
WORST_RETURNS = {"Acrobot-v1": -500.0, "MountainCar-v0": -200.0}


# --- what to run ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One place of the study: so many processes, cores, devices and environments."""

    mode: str  # strong: the environments are split; weak: their number grows with the devices
    nodes: int | None  # Slurm's; none: this machine
    processes: int  # on each node
    threads: int | None  # cores of a process; none: those that Slurm gives it
    devices: int | None  # of a process; none: all GPUs, or one a core
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


def plan(args: argparse.Namespace, options: Sequence[str]) -> list[Point]:
    """Every combination of the axes, checked; ``options`` are those for the trainer."""
    given = ("--config", args.config, *options)
    config, cores, gpus = base(args, options), len(visible_cores()), bool(visible_gpus())
    points = []
    for mode, nodes, (processes, threads), cores_of_one, devices, envs in itertools.product(
        ("strong", "weak") if args.mode == "both" else (args.mode,),
        args.nodes or (None,),
        args.processes,
        args.threads or (None,),
        args.devices or (None,),
        args.num_envs or (config.num_envs,),
    ):
        threads, wanted = threads or cores_of_one, devices or config.devices
        if not nodes:
            # One CPU device is measured on one core; a GPU gets all cores there are for it.
            equal = max(1, cores // processes)
            threads = threads or (equal if gpus else min(equal, wanted or equal))
            if processes * threads > cores:
                raise RunError(
                    f"{processes} × {threads}: so many processes with so many cores need "
                    f"{processes * threads} cores; this machine has {cores}"
                )
        everywhere = (nodes or 1) * processes
        if config.num_shards % everywhere and config.num_seeds % everywhere:
            fitting = largest_divisor(config.num_shards, everywhere)
            raise RunError(
                f"{everywhere} processes divide neither num_shards={config.num_shards} nor "
                f"num_seeds={config.num_seeds}; try {fitting} processes"
            )
        workers = everywhere * (wanted or (1 if gpus else threads) or 1)
        total = envs * workers if mode == "weak" else envs
        point = Point(mode, nodes, processes, threads, devices, envs, total)
        command_line.load(
            (*given, *settings(point, config.seed))
        )  # a RunError where numbers do not fit
        points.append(point)
    return list(dict.fromkeys(points))


def base(args: argparse.Namespace, options: Sequence[str]) -> cfg.Config:
    """The config before the axes; its other sizes may fit to --num_envs only."""
    envs = [f"--num_envs={args.num_envs[0]}"] if args.num_envs else []
    return command_line.load(("--config", args.config, *options, *envs))[0]


def settings(point: Point, seed: int) -> list[str]:
    """The trainer's options that belong to a point."""
    devices = [f"--devices={point.devices}"] if point.devices else []
    return [f"--num_envs={point.num_envs}", f"--seed={seed}", *devices]


# --- running --------------------------------------------------------------------------------


def run_all(points: Sequence[Point], folder: Path, args: Any, options: Sequence[str]) -> int:
    """Train what is not trained yet; returns how many runs did not come to their end.

    Points take turns, so that a machine that becomes slower harms them all alike.
    """
    first = base(args, options).seed
    turns = list(itertools.product(range(args.repeats), range(first, first + args.seeds), points))
    unfinished = 0
    for k, (repeat, seed, point) in enumerate(turns, 1):
        run, began = folder / point.name / f"seed{seed}-repeat{repeat}", time.monotonic()
        print(f"[{k}/{len(turns)}] {short(run)}: ", end="", flush=True)
        if finished(run):
            print("done before", flush=True)
            continue
        arguments = [*DEFAULTS, *options, *settings(point, seed), f"--run_dir={run}"]
        arguments = ["--config", args.config, *arguments]
        if (run / "config.json").exists():
            arguments = ["--resume", str(run)]
        status = launch(point, arguments, run)
        if finished(run):
            trace = read_trace(run)
            said = f"{compact(trace.speed)} steps/s, return {number(trace.score)}, "
            print(said + duration(time.monotonic() - began), flush=True)
        else:
            unfinished += 1
            print(f"exit status {status}: {last_error(run)}", flush=True)
    return unfinished


def launch(point: Point, arguments: Sequence[str], run: Path) -> int:
    """Train in processes of their own; returns the first exit status that is not 0."""
    program = [sys.executable, "-m", "jaxrl_scale.train", *arguments]
    environment = {k: v for k, v in os.environ.items() if k not in coordinates("", 0, 0)}
    count = point.processes
    if point.nodes:
        count = 1
        cores = [f"--cpus-per-task={point.threads}"] if point.threads else []
        tasks = [f"--ntasks={point.all_processes}", f"--ntasks-per-node={point.processes}"]
        program = ["srun", f"--nodes={point.nodes}", *tasks, *cores, *program]
    running: list[subprocess.Popen[bytes]] = []
    address = f"127.0.0.1:{free_port()}"
    with io_errors(run), ExitStack() as leave:
        run.mkdir(parents=True, exist_ok=True)
        for k in range(count):
            log = leave.enter_context(open(run / f"process{k}.log", "ab"))
            own = {} if point.nodes else coordinates(address, count, k)
            with pinned(None if point.nodes else point.threads, k):
                process = subprocess.Popen(
                    program,
                    env=environment | own,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            running.append(process)
            leave.callback(stop, process)
        statuses = [process.wait() for process in running]
    return next((status for status in statuses if status), 0)


def coordinates(address: str, count: int, k: int) -> dict[str, str]:
    """How process ``k`` of ``count`` finds the others."""
    return {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(count),
        "JAX_PROCESS_ID": str(k),
    }


@contextmanager
def pinned(threads: int | None, k: int) -> Iterator[None]:
    """What is started here runs on the ``k``-th block of ``threads`` cores alone."""
    if threads is None or not hasattr(os, "sched_setaffinity"):  # macOS pins nothing
        yield
        return
    ours = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, ours[k * threads : (k + 1) * threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Let a training that still runs save and end."""
    if process.poll() is None:
        process.terminate()
        process.wait()


# --- comparing ------------------------------------------------------------------------------


class Result(NamedTuple):
    """A point and what its finished runs say."""

    point: Point
    traces: list[Trace]  # a run for each of --seeds
    repeats: list[Trace]  # further ones of the same seeds: the same returns at another speed


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
    """Speed, efficiency and returns of each result of a series; see the module's docstring.

    ``speedup`` and ``difference`` are against the first of the series, ``efficiency`` is the
    speed-up over the growth of the devices, ``None`` where all have the same machine.
    """
    every = [trace for result in series for trace in result.traces]
    budgets = {
        axis: min(float(getattr(trace, axis)[-1]) for trace in every)
        for axis in ("iterations", "steps", "seconds")
    }
    evaluated = len({trace.iterations[-1] for trace in every}) == 1
    machines = {result.point.machine for result in series}
    worst = WORST_RETURNS.get(every[0].env) if worst is None else worst

    def returns(result: Result, axis: str) -> np.ndarray:
        final = np.concatenate([trace.final for trace in result.traces])
        found = final
        if axis != "iterations" or not evaluated:
            where = budgets[axis]
            found = np.concatenate([at(getattr(t, axis), t.returns, where) for t in result.traces])
        return statistics.counted(found, failed=np.flatnonzero(np.isnan(final)).tolist())

    def learned(result: Result, axis: str) -> dict[str, Any]:
        ours, theirs = returns(result, axis), returns(series[0], axis)
        return {
            "at": budgets[axis],
            "iqm": statistics.score(ours),
            "ci95": statistics.interval(ours),
            **statistics.difference(ours, theirs),
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


# --- a study's folder -----------------------------------------------------------------------


def prepare(folder: Path, config: str, options: Sequence[str], points: Sequence[Point]) -> None:
    """Write ``study.json``; a study that is there already may get further points, of the same
    training."""
    with io_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    study = read_object(folder / "study.json")
    training = {"config": config, "options": list(options)}
    before = {name: study.get(name, value) for name, value in training.items()}
    if before != training:
        told = shlex.join([before["config"], *before["options"]])
        raise RunError(
            f"{short(folder)} holds a study of another training ({told}); choose another --out"
        )
    known = dict.fromkeys([*(Point(**p) for p in study.get("points", ())), *points])
    _write(
        folder / "study.json",
        {
            **training,
            "commands": [*study.get("commands", ()), shlex.join(["python", *sys.orig_argv[1:]])],
            "machine": describe_machine(),
            "points": [dataclasses.asdict(point) for point in known],
        },
    )


def read_study(folder: Path) -> tuple[dict[str, Any], list[Result]]:
    """``study.json`` and the results of those points that have finished runs."""
    study = read_object(folder / "study.json")
    if not study:
        raise RunError(f"{short(folder)} holds no scaling study: it has no study.json")
    results = []
    for point in (Point(**p) for p in study["points"]):
        runs = sorted(path for path in (folder / point.name).glob("seed*") if finished(path))
        first = [read_trace(run) for run in runs if run.name.endswith("-repeat0")]
        others = [read_trace(run) for run in runs if not run.name.endswith("-repeat0")]
        if first:
            results.append(Result(point, first, others))
    if not results:
        raise RunError(f"no run of {short(folder)} has come to its end")
    return study, results


def write_results(folder: Path, worst: float | None = None) -> None:
    """Write the table (Markdown and JSON) and the plot."""
    from jaxrl_scale.figures import scaling_plots

    study, results = read_study(folder)
    series = all_series(results)
    compared = [compare(one, worst) for one in series]
    _write(folder / "scaling.json", {**study, "series": compared})
    files = {
        "scaling.md": scaling_plots.markdown(study, compared).encode(),
        "scaling.png": scaling_plots.plot(study, compared, [[*map(curves, one)] for one in series]),
    }
    for name, data in files.items():
        with io_errors(folder / name):
            write_atomically(folder / name, data)
    print(files["scaling.md"].decode())
    for name in ("scaling.md", "scaling.json", "scaling.png"):
        print(f"wrote {short(folder / name)}")


def _write(path: Path, data: Any) -> None:
    with io_errors(path):
        write_atomically(path, json.dumps(plain(data), indent=2, allow_nan=False).encode() + b"\n")


# --- the command ----------------------------------------------------------------------------

_DESCRIPTION = """\
A scaling study: trains once for every combination of the axes and writes a table
(scaling.md, scaling.json) and a plot (scaling.png) of steps a second, speed-up,
efficiency, and returns at equal iterations, equal steps and equal time.

  python -m jaxrl_scale.scaling --config configs/acrobot.py --processes=1x1,2x1
  python -m jaxrl_scale.scaling --config configs/acrobot.py --processes=1x32,2x16,4x8
  python -m jaxrl_scale.scaling --config configs/acrobot.py --num_envs=64,512 -- --num_seeds=16
  python -m jaxrl_scale.scaling --analyse runs/scaling-acrobot

What follows -- goes to the trainer (see python -m jaxrl_scale.train --help). The same
command again goes on with a study that was interrupted; other values of the axes are
added to the same table.
"""

_EPILOG = """\
exit status:
  0   all runs are done and the table is written
  1   some run did not come to its end; its processes' logs lie in its folder
  2   a mistake in the call; nothing was started
  74  input/output error, such as a full disk
  130, 143  interrupted; the runs were saved, and the same command goes on
"""


_AXES = {
    "threads": "cores of a process, which is bound to them [an equal share; on CPUs no more than "
    "its --devices]",
    "devices": "devices of a process [all GPUs, or one CPU device a core]",
    "nodes": "nodes, through srun: in a Slurm job, before any of its steps",
    "num_envs": "environments of one agent [the config's]",
}


def _parser() -> commands.Parser:
    parser = commands.Parser(
        prog="python -m jaxrl_scale.scaling",
        usage="python -m jaxrl_scale.scaling --config=FILE [--AXIS=N,N,...] [-- TRAIN_OPTIONS]\n"
        "       python -m jaxrl_scale.scaling --analyse=FOLDER",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        elsewhere="those for the trainer follow --",
    )

    def add(name: str, metavar: str, help: str, **more: Any) -> None:
        parser.add_argument(f"--{name}", metavar=metavar, help=help, **more)

    add("config", "FILE", "the trainer's config file")
    add(
        "processes",
        "N,N",
        "axis: processes on this machine (on each of the --nodes); 1x32,2x16 says the cores of "
        "each, too [1]",
        type=_layouts,
        default=((1, None),),
    )
    for name, help in _AXES.items():
        add(name, "N,N", f"axis: {help}", type=_counts)
    add(
        "mode",
        "{strong,weak,both}",
        "strong: the environments are split; weak: every device has --num_envs of its own [strong]",
        choices=("strong", "weak", "both"),
        default="strong",
    )
    seeds = "seeds, each in a run of its own; for many in one program give --num_seeds after -- [1]"
    add("seeds", "N", seeds, type=_count, default=1)
    repeats = "runs of each seed, which differ in their speed only [1]"
    add("repeats", "N", repeats, type=_count, default=1)
    add("out", "FOLDER", "where all of it goes [runs/scaling-CONFIG]", type=Path)
    worst = "the environment's worst return: seeds that end within 1 %% of it are stuck [known for "
    add("worst_return", "NUMBER", worst + ", ".join(WORST_RETURNS) + "]", type=float)
    add("analyse", "FOLDER", "train nothing, write table and plot of a study anew", type=Path)
    return parser


_count = commands.whole_number()


def _counts(text: str) -> tuple[int, ...]:
    """``1,2,4``"""
    return tuple(_count(part) for part in text.split(","))


def _layouts(text: str) -> tuple[tuple[int, int | None], ...]:
    """``1,2`` processes, or ``1x32,2x16`` processes × cores of each."""
    layouts = []
    for part in text.split(","):
        processes, cross, threads = part.partition("x")
        layouts.append((_count(processes), _count(threads) if cross else None))
    return tuple(layouts)


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The study's own arguments and those for the trainer, which follow ``--``."""
    cut = argv.index("--") if "--" in argv else len(argv)
    options = list(argv[cut + 1 :])
    args = _parser().parse_args(argv[:cut])
    if bool(args.analyse) == bool(args.config):
        raise RunError("give --config=FILE to train, or --analyse=FOLDER for a study that is done")
    if args.threads and any(threads for _, threads in args.processes):
        raise RunError("--processes says the cores already (1x32); leave --threads out")
    if args.nodes and ("SLURM_JOB_ID" not in os.environ or "SLURM_STEP_ID" in os.environ):
        raise RunError("--nodes works in a Slurm job (sbatch, salloc), not in one of its steps")
    axes = {name for name in ("num_envs", "devices") if getattr(args, name)}
    for option in options:
        name = option.split("=")[0].removeprefix("--")
        if name in {"config", "resume", "run_dir"} | axes:
            raise RunError(f"--{name} cannot follow --: the study itself gives it")
    return args, options


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    return commands.run(_command, argv, "\ninterrupted; the same command goes on")


def _command(argv: list[str]) -> int:
    args, options = parse(argv)
    if args.analyse:
        write_results(args.analyse, args.worst_return)
        return 0
    folder = args.out or Path("runs") / f"scaling-{Path(args.config).stem}"
    points = plan(args, options)
    prepare(folder, args.config, options, points)
    unfinished = run_all(points, folder, args, options)
    write_results(folder, args.worst_return)
    if unfinished:
        what = (
            "1 run did not come to its"
            if unfinished == 1
            else f"{unfinished} runs did not come to their"
        )
        again = "it" if unfinished == 1 else "them"
        print(f"error: {what} end; the same command tries {again} again", file=sys.stderr)
    return UNFINISHED if unfinished else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
