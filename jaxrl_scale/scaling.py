"""Measure how a config scales: ``python -m jaxrl_scale.scaling --config=FILE --processes=1,2``.

The command trains once for every combination of the axes, each run in processes and in a run
directory of its own, and writes ``scaling.md``, ``scaling.json`` and ``scaling.png``. All numbers
are read from the run directories, so ``--analyse`` needs nothing else.

**Steps a second** are valid environment steps of all agents, with all training included. Each row
of metrics has the speed since the row before. The rows of the first tenth of the iterations, at
least one row, are left out, because caches warm up and other processes may still compile. Of the
other rows the median is taken, which a checkpoint or a busy moment does not move.

**Returns** are interquartile means over agents, with 95 % bootstrap intervals. At equal iterations
they come from the final evaluation, if all runs have equally many iterations; its actions are
greedy, or with ``--eval_greedy=false`` sampled. At equal environment steps and at equal
time they are running means of the last 100 episodes, interpolated between rows. "Equal" is what the
run with the least of it has. Time is wall-clock time without compilation. A run whose first row
comes later has no return there.

**Differences** are between the returns of two points, over the agents that failed in neither where
both have the same seeds.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxrl_scale import child_runs, commands, interrupts
from jaxrl_scale.config import Config, check_processes, command_line
from jaxrl_scale.errors import (
    FINISHED,
    INPUT_OUTPUT_ERROR,
    INTERRUPTED,
    MISTAKE,
    STOPPED,
    UNFINISHED,
    RunError,
    status_table,
)
from jaxrl_scale.parallel.machine import free_port, visible_cores, visible_gpus
from jaxrl_scale.records.past_run import finished
from jaxrl_scale.records.run_directory import replace_file, short, write_json
from jaxrl_scale.records.study import (
    Point,
    all_series,
    compare,
    curves,
    prepare,
    read_study,
)

# --- what to run ----------------------------------------------------------------------------


def plan(config: Config, args: argparse.Namespace, options: Sequence[str]) -> list[Point]:
    """Every combination of the axes, checked.

    Args:
      config: that of `base`.
      options: those for the trainer.
    """
    given = ("--config", args.config, *options)
    cores, gpus = len(visible_cores()), bool(visible_gpus())
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
            # A CPU device is measured on one core. A GPU's process gets its share of all cores.
            equal = max(1, cores // processes)
            threads = threads or (equal if gpus else min(equal, wanted or equal))
            if processes * threads > cores:
                raise RunError(
                    f"--processes={processes}x{threads} takes {processes * threads} cores, "
                    f"and this machine has {cores}"
                )
        everywhere = (nodes or 1) * processes
        check_processes(config, everywhere)
        workers = everywhere * (wanted or (1 if gpus else threads) or 1)
        total = envs * workers if mode == "weak" else envs
        point = Point(mode, nodes, processes, threads, devices, envs, total)
        # Raises a RunError if the point's numbers do not fit.
        command_line.load((*given, *settings(point, config.seed)))
        points.append(point)
    return list(dict.fromkeys(points))


def base(args: argparse.Namespace, options: Sequence[str]) -> Config:
    """The config before the axes, but with the first --num_envs: minibatches and the like may fit
    to these only."""
    envs = [f"--num_envs={args.num_envs[0]}"] if args.num_envs else []
    return command_line.load(("--config", args.config, *options, *envs))[0]


def settings(point: Point, seed: int) -> list[str]:
    """The trainer's options that belong to a point."""
    devices = [f"--devices={point.devices}"] if point.devices else []
    return [f"--num_envs={point.num_envs}", f"--seed={seed}", *devices]


# --- running --------------------------------------------------------------------------------


def run_all(
    config: Config,
    points: Sequence[Point],
    folder: Path,
    args: argparse.Namespace,
    options: Sequence[str],
) -> int:
    """Train what is not trained yet. Returns how many runs did not come to their end.

    The points take turns, so that a machine that becomes slower slows them all down alike.
    ``config`` and ``options`` are those of `plan`. Raises a `RunError` where a run has begun with
    other options, before any is trained.
    """
    first, agents = config.seed, config.num_seeds  # agent k of a run has its seed + k
    seeds = range(first, first + agents * args.seeds, agents)
    turns = list(itertools.product(range(args.repeats), seeds, points))
    tasks = []
    for repeat, seed, point in turns:
        run = folder / point.name / f"seed{seed}-repeat{repeat}"
        arguments = ["--config", args.config, *options, *settings(point, seed)]
        child_runs.check_begun(run, arguments, "--out")
        tasks.append((run, arguments, functools.partial(launch, point)))
    unfinished = 0
    for k, (run, arguments, start) in enumerate(tasks, 1):
        child_runs.train(run, arguments, start, f"[{k}/{len(turns)}] ", "--out")
        unfinished += not finished(run)
    return unfinished


def launch(point: Point, arguments: Sequence[str], run: Path) -> int:
    """Train in processes of their own. Returns the first exit status that is not 0."""
    program, environment = child_runs.trainer(arguments), child_runs.alone()
    if point.nodes:
        cores = [f"--cpus-per-task={point.threads}"] if point.threads else []
        tasks = [f"--ntasks={point.all_processes}", f"--ntasks-per-node={point.processes}"]
        program = ["srun", f"--nodes={point.nodes}", *tasks, *cores, *program]
        return child_runs.together(run, program, [environment])
    address, count = f"127.0.0.1:{free_port()}", point.processes
    own = [environment | child_runs.coordinates(address, count, k) for k in range(count)]
    return child_runs.together(run, program, own, point.threads)


# --- a study's folder -----------------------------------------------------------------------


def write_results(folder: Path, worst: float | None = None) -> None:
    """Write the table (Markdown and JSON) and the plot."""
    from jaxrl_scale.figures import scaling_plots

    study, results = read_study(folder)
    series = all_series(results)
    worst = study.get("worst_return") if worst is None else worst
    configs = [config for result in results for config in result.configs]
    with commands.working("comparing and drawing the series"):
        compared = [compare(one, worst) for one in series]
        write_json(folder / "scaling.json", {**study, "series": compared})
        learning = [[*map(curves, one)] for one in series]
        files = {
            "scaling.md": scaling_plots.markdown(study, compared, configs).encode(),
            "scaling.png": scaling_plots.plot(study, compared, learning),
        }
    for name, data in files.items():
        replace_file(folder / name, data)
    print(files["scaling.md"].decode())
    for name in ("scaling.md", "scaling.json", "scaling.png"):
        print(f"wrote {short(folder / name)}")


# --- the command ----------------------------------------------------------------------------

_DESCRIPTION = """\
Make a scaling study: train once for every combination of the axes, and write a table
(scaling.md, scaling.json) and a plot (scaling.png) of steps a second, speed-up,
efficiency, and returns at equal iterations, equal steps and equal time.

  python -m jaxrl_scale.scaling --config configs/acrobot.py --processes=1x1,2x1
  python -m jaxrl_scale.scaling --config configs/acrobot.py --processes=1x32,2x16,4x8
  python -m jaxrl_scale.scaling --config configs/acrobot.py --num_envs=64,512 -- --num_seeds=16
  python -m jaxrl_scale.scaling --analyse runs/scaling-acrobot

Options after -- are those of python -m jaxrl_scale.train. The same command continues a
study that was interrupted. With other values of the axes it adds to the same table.
"""


_AXES = {
    "threads": "number of cores that each process is bound to [an equal share of all cores; "
    "without GPUs no more than its --devices]",
    "devices": "number of devices of each process [all GPUs, or one CPU device per core]",
    "nodes": "number of nodes, which srun starts the processes on; only in a Slurm job",
    "num_envs": "number of environments of each agent [the config's]",
}


def _parser() -> commands.Parser:
    statuses = (FINISHED, UNFINISHED, MISTAKE, INPUT_OUTPUT_ERROR, STOPPED, INTERRUPTED)
    parser = commands.Parser(
        prog="python -m jaxrl_scale.scaling",
        usage="python -m jaxrl_scale.scaling --config=FILE [--AXIS=N,N,...] [-- TRAIN_OPTIONS]\n"
        "       python -m jaxrl_scale.scaling --analyse=FOLDER",
        description=_DESCRIPTION,
        epilog=status_table(*statuses),
        elsewhere="those for the trainer follow --",
    )

    add = parser.option
    add("config", "FILE", "config file of the training")
    add(
        "processes",
        "N,N",
        "axis: number of processes on this machine, or on each of the --nodes; 1x32,2x16 also "
        "gives the number of cores of each process [1]",
        type=_layouts,
        default=((1, None),),
    )
    for name, help in _AXES.items():
        add(name, "N,N", f"axis: {help}", type=_counts)
    add(
        "mode",
        "{strong,weak,both}",
        "strong: the environments are divided between all devices; weak: every device has "
        "--num_envs environments, and the minibatch size stays the config's [strong]",
        choices=("strong", "weak", "both"),
        default="strong",
    )
    add(
        "seeds",
        "N",
        "number of seeds, each of which is a run of its own; --num_seeds=N after -- trains N "
        "agents in each run [1]",
        type=_count,
        default=1,
    )
    repeats = "number of runs of each seed, which differ only in their speed [1]"
    add("repeats", "N", repeats, type=_count, default=1)
    add("out", "FOLDER", "folder of the study [runs/scaling-CONFIG]", type=commands.path)
    worst = (
        "worst return that an episode can have: agents that end within 1 %% of it count as stuck "
        "[what the environment's spec says]"
    )
    add("worst_return", "NUMBER", worst, type=commands.number)
    analyse = "train nothing, and write the table and the plot of a finished study again"
    add("analyse", "FOLDER", analyse, type=commands.path)
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
    given = {text.split("=")[0] for text in argv if text.startswith("--")}
    if args.analyse and (others := sorted(given - {"--analyse", "--worst_return"})):
        raise RunError(f"--analyse trains nothing; leave {others[0]} out")
    if not args.analyse and not args.config:
        raise RunError("give --config=FILE to train, or --analyse=FOLDER for a study that is done")
    if args.threads and any(threads for _, threads in args.processes):
        raise RunError("--processes gives the cores already (1x32); leave --threads out")
    if args.nodes and ("SLURM_JOB_ID" not in os.environ or "SLURM_STEP_ID" in os.environ):
        raise RunError("--nodes works in a Slurm job (sbatch, salloc), not in one of its steps")
    axes = {name for name in ("num_envs", "devices") if getattr(args, name)}
    for name in (option.split("=")[0] for option in options):
        if name in {f"--{own}" for own in {"config", "resume", "run_dir"} | axes}:
            raise RunError(f"{name} cannot follow --: the study itself gives it")
    return args, options


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    return commands.run(_command, argv, "\ninterrupted; the same command continues")


def _command(argv: list[str]) -> int:
    args, options = parse(argv)
    if args.analyse:
        write_results(args.analyse, args.worst_return)
        return 0
    folder = args.out or Path("runs") / f"scaling-{Path(args.config).stem}"
    config = base(args, options)
    points = plan(config, args, options)
    worst = config.make_env().spec.worst_return
    prepare(folder, args.config, options, points, worst)
    with interrupts.stoppable():
        unfinished = run_all(config, points, folder, args, options)
    write_results(folder, args.worst_return)
    return child_runs.status_of_all(unfinished)


if __name__ == "__main__":
    sys.exit(main())
