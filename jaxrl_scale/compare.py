"""Compare configs in environments: ``python -m jaxrl_scale.compare --envs=A,B --configs=F,G``.

The command trains every config in every environment with every seed, each run in a process and in
a run directory of its own, ``FOLDER/ENVIRONMENT/CONFIG/seedK``. It writes ``compare.html`` with its
plots, ``compare.md`` and ``compare.json``. All numbers are read from the run directories, so
``--analyse`` needs nothing else. Page and ``compare.md`` name the runs that have no results, which
are in no table.

Returns and normalized scores are those of the final evaluation: interquartile means over seeds,
with 95 % bootstrap intervals. Its actions are greedy, or sampled where a config or
an option says ``eval_greedy=False``. Speed, time and memory are means over seeds. Over all games
the normalized scores of all seeds are pooled, as in https://arxiv.org/abs/2108.13264.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl_scale import child_runs, commands, interrupts, report
from jaxrl_scale.config import command_line
from jaxrl_scale.envs import scores
from jaxrl_scale.errors import (
    FINISHED,
    INPUT_OUTPUT_ERROR,
    INTERRUPTED,
    MISTAKE,
    STOPPED,
    UNFINISHED,
    RunError,
    in_words,
    printable,
    status_table,
)
from jaxrl_scale.figures import pages
from jaxrl_scale.figures.plot_style import COLORS, LINES
from jaxrl_scale.figures.report_plots import Drawn
from jaxrl_scale.loop import origin
from jaxrl_scale.loop.make import check_fit
from jaxrl_scale.parallel.peers import Peers
from jaxrl_scale.records import past_run, statistics
from jaxrl_scale.records.past_run import PastRun, last_error
from jaxrl_scale.records.run_directory import (
    holds_run,
    refuse_run,
    replace_file,
    short,
    write_json,
)
from jaxrl_scale.records.terminal import NONE, between, number
from jaxrl_scale.report import Cell, Table

# --- what to run ----------------------------------------------------------------------------


class Task(NamedTuple):
    """One run of the comparison."""

    run: Path
    options: list[str]  # of the trainer, with which the run begins


def plan(args: argparse.Namespace, options: Sequence[str]) -> list[Task]:
    """Every config in every environment with every seed, checked. Seeds change last, so that early
    results are of all games and algorithms, and a machine that becomes slower slows all alike."""
    tasks: list[Task] = []
    for k, env, config in itertools.product(range(args.seeds), args.envs, args.configs):
        given = ["--config", config, f"--env={env}", "--num_seeds=1", *options]
        seed = command_line.load(given)[0].seed + k
        folder = args.run_dir / re.sub(r"[^\w.-]+", "-", env) / Path(config).stem
        task = Task(folder / f"seed{seed}", [*given, f"--seed={seed}"])
        wanted, _, _ = command_line.load(task.options)
        if k == 0:
            spec = check_fit(wanted)
            if not holds_run(task.run):  # else it has its first policy
                origin.find(wanted, spec, None, None, Peers())
        child_runs.check_begun(task.run, task.options)
        tasks.append(task)
    folders = [task.run for task in tasks]
    if twice := next((folder for folder in folders if folders.count(folder) > 1), None):
        raise RunError(f"two runs would be in {short(twice)}; give no name twice")
    return tasks


# --- running --------------------------------------------------------------------------------


def train(task: Task, before: str = "") -> int:
    """Train what is not trained yet, in one process, and say how it went, in a line that begins
    with ``before``. Returns the trainer's exit status. Raises a `RunError` where somebody has begun
    another run in its folder since the comparison was planned."""

    def launch(arguments: Sequence[str], run: Path) -> int:
        return child_runs.together(run, child_runs.trainer(arguments), [child_runs.alone()])

    return child_runs.train(task.run, task.options, launch, before)


# --- results --------------------------------------------------------------------------------


class Runs(NamedTuple):
    """The runs of a comparison, as far as they have come."""

    folder: Path
    ended: dict[Path, PastRun]
    """Those that have results."""
    left_out: dict[Path, str]
    """Why the others have none: how far they have come, or what is damaged."""


def read(folder: Path) -> Runs:
    """All runs of a folder, each read once. A copy beside them, ``seed0.old`` say, is none."""
    below = sorted(path for path in folder.glob("*/*/seed*") if path.is_dir())
    paths = [path for path in below if re.fullmatch(r"seed\d+", path.name)]
    with commands.working("reading the runs"):
        found = {path: _read(path) for path in paths}
    ended = {path: run for path, run in found.items() if isinstance(run, PastRun)}
    return Runs(folder, ended, {path: why for path, why in found.items() if isinstance(why, str)})


def _read(path: Path) -> PastRun | str:
    """A run, or why it has no results."""
    if not holds_run(path):
        return last_error(path)
    try:
        run = past_run.read_any(path)
    except RunError as error:
        return str(error)
    if not run.has_ended:
        return run.status
    return run if run.rows else f"{run.status}, without metrics"


def drawn(runs: Runs) -> list[Drawn]:
    """The seeds of each environment and config as one run, of those that have results. Configs
    differ in colour, environments in lines."""
    groups: dict[Path, list[PastRun]] = {}
    for path, run in runs.ended.items():
        groups.setdefault(path.parent, []).append(run)
    if not groups:
        raise RunError(f"no run of {short(runs.folder)} has come to its end")
    envs = sorted({path.parent.name for path in groups})
    configs = sorted({path.name for path in groups})
    shown = []
    for path, several in groups.items():
        several.sort(key=lambda run: run.config.seed)
        run = several[0] if len(several) == 1 else past_run.side_by_side(several, path)
        color = COLORS[configs.index(path.name) % len(COLORS)]
        line = LINES[envs.index(path.parent.name) % len(LINES)]
        shown.append(Drawn(run, f"{path.parent.name}/{path.name}", color, line))
    return shown


def _without_results(runs: Runs) -> str:
    """A sentence about the runs that are left out; empty where there are none."""
    told = [f"{path.relative_to(runs.folder)} ({why})" for path, why in runs.left_out.items()]
    return f"Left out is what has no results: {', '.join(told)}." if told else ""


def _other_parameters(shown: Sequence[Drawn]) -> str:
    """A sentence about environments that not all configs have trained in alike."""
    told = []
    for env in dict.fromkeys(one.run.config.env for one in shown):
        kwargs = [one.run.config.env_kwargs for one in shown if one.run.config.env == env]
        if any(each != kwargs[0] for each in kwargs):
            told.append(env)
    return f"The configs differ in the env_kwargs of {in_words(told)}." if told else ""


def tables(shown: Sequence[Drawn]) -> list[Table]:
    """What the runs reach beside each other; those that have no line are left out."""
    configs = sorted({_config(one) for one in shown})
    against = Table(
        f"Against {configs[0]}",
        f"The evaluation return less that of {configs[0]}: the difference of the interquartile "
        "means with its 95 % bootstrap interval. Where both have the same seeds, these are drawn "
        "together. With fewer than eight seeds the interval is too narrow.",
        "Environment",
        _differences(shown, configs),
    )
    overall = Table(
        "Over all games",
        "The interquartile mean of the normalized scores of all agents in the games that all have "
        "played, with its 95 % interval, for which the bootstrap draws within each game.",
        "Config",
        over_games(shown),
    )
    return [table for table in (against, overall) if table.lines]


def _config(one: Drawn) -> str:
    return one.label.rpartition("/")[2]


def _differences(shown: Sequence[Drawn], configs: Sequence[str]) -> dict[str, dict[str, Cell]]:
    """How much more the evaluation of each config is than that of the first one, by environment."""
    lines: dict[str, dict[str, Cell]] = {}
    runs = {(one.run.config.env, _config(one)): one.run for one in shown}
    for env in dict.fromkeys(env for env, _ in runs):
        first = runs.get((env, configs[0]))
        line = {}
        for config in configs[1:]:
            run = runs.get((env, config))
            line[config] = _difference(run, first) if run and first else Cell(NONE)
        if any(cell.text != NONE for cell in line.values()):
            lines[env] = line
    return lines


def _difference(run: PastRun, other: PastRun) -> Cell:
    ours, theirs = map(_returns, (run, other))
    failed = [[k for k, x in enumerate(returns) if x is None] for returns in (ours, theirs)]
    pairs = list(run.seeds) == list(other.seeds)
    found = statistics.difference(ours, theirs, (failed[0], failed[1]), pairs)
    if found["difference"] is None:
        return Cell(NONE)
    return Cell(number(found["difference"]), between(found["difference_ci95"] or (None, None)))


def _returns(run: PastRun) -> list[float | None]:
    """The evaluation of each agent; None where it failed."""
    evaluation = run.summary.get("evaluation")
    return evaluation["per_agent"] if evaluation else [None] * len(run.seeds)


def over_games(shown: Sequence[Drawn]) -> dict[str, dict[str, Cell]]:
    """For each config the normalized scores of all games that all configs have played; nothing
    where there are none."""
    lines: dict[str, dict[str, Cell]] = {}
    for name, head in (("evaluation", "Normalized"), ("test", "Normalized test")):
        found: dict[str, dict[str, np.ndarray]] = {}
        for one in shown:
            game, _, config = one.label.rpartition("/")
            told: Any = one.run.summary.get(name) or {"per_agent": []}
            known = [x for x in told["per_agent"] if x is not None]
            score = [scores.normalized(one.run.config.env, x) for x in known]
            numbers = np.array([x for x in score if x is not None])
            found.setdefault(config, {}).update({game: numbers} if len(numbers) else {})
        games = set.intersection(*(set(of_config) for of_config in found.values()))
        for config, of_config in found.items() if games else ():
            centre, (low, high) = statistics.pooled([of_config[game] for game in sorted(games)])
            line = lines.setdefault(config, {"Games": Cell(str(len(games)))})
            line[head] = Cell(f"{centre:.2f}", "" if low is None else f"{low:.2f} to {high:.2f}")
    return lines


def markdown(title: str, lines: Mapping[str, Mapping[str, Cell]]) -> list[str]:
    """A table: the titles of its columns from its first line."""
    heads = [title, *next(iter(lines.values()))]
    rows = [[name, *map(_text, line.values())] for name, line in lines.items()]
    return pages.markdown_table(heads, rows)


def _text(cell: Cell) -> str:
    return f"{cell.text} ({cell.small})" if cell.small else cell.text


def write_results(runs: Runs) -> None:
    """Write the tables (Markdown and JSON), the page and its plots."""
    folder = runs.folder
    with commands.working("comparing the runs"):
        shown = drawn(runs)
        found = tables(shown)
        lines = report.results([one.run for one in shown])
        without = " ".join(filter(None, (_without_results(runs), _other_parameters(shown))))
    text = markdown("run", {one.label: line for one, line in zip(shown, lines, strict=True)})
    for table in found:
        title = table.title[0].lower() + table.title[1:]
        text += ["", *markdown(title, table.lines)]
    text += ["", without] if without else []
    told = [
        {
            "env": one.run.config.env,
            "config": _config(one),
            "seeds": list(one.run.seeds),
            **one.run.summary,
        }
        for one in shown
    ]
    write_json(folder / "compare.json", told)
    replace_file(folder / "compare.md", "\n".join([*text, ""]).encode())
    print(printable("\n".join(text)))
    print(f"wrote {short(folder / 'compare.md')}\nwrote {short(folder / 'compare.json')}")
    report.write(shown, folder / "compare.html", 0, found, without)


# --- the command ----------------------------------------------------------------------------

_DESCRIPTION = """\
Compare configs: train each of them in every environment with every seed, and
write a page with plots and tables (compare.html, compare.md, compare.json) of returns,
normalized scores, steps a second, memory and time.

  python -m jaxrl_scale.compare --envs=CoinrunEasy-v0,StarpilotEasy-v0 --seeds=3 \\
    --configs=configs/procgen.py,configs/a2c_procgen.py,configs/impala_procgen.py \\
    --num_envs=64 --num_threads=8 --total_steps=1000000 --run_dir=runs/compare
  python -m jaxrl_scale.compare --analyse=runs/compare

All other options are those of python -m jaxrl_scale.train, for all runs. The same command
continues what was interrupted, and leaves alone what is done. With more environments,
configs or seeds it adds to the same folder.
"""


def _parser() -> commands.Parser:
    statuses = (FINISHED, UNFINISHED, MISTAKE, INPUT_OUTPUT_ERROR, STOPPED, INTERRUPTED)
    parser = commands.Parser(
        prog="python -m jaxrl_scale.compare",
        usage="python -m jaxrl_scale.compare --envs=NAME,... --configs=FILE,... [--OPTION=VALUE]\n"
        "       python -m jaxrl_scale.compare --analyse=FOLDER",
        description=_DESCRIPTION,
        epilog=status_table(*statuses),
    )

    add = parser.option
    add("envs", "NAME,NAME", "names of the environments", type=_names)
    add("configs", "FILE,FILE", "config files, one for each algorithm", type=_names)
    seeds = "number of seeds, of which the config's is the first [3]"
    add("seeds", "N", seeds, type=commands.whole_number(), default=3)
    add(
        "run_dir",
        "FOLDER",
        "folder of all runs [runs/compare]",
        type=commands.path,
        default="runs/compare",
    )
    task = (
        "only do run K, from 0, and write no results: for an array of jobs, of which each does one"
    )
    add("task", "K", task, type=commands.whole_number(0))
    add(
        "analyse",
        "FOLDER",
        "train nothing, and write the results of what is done",
        type=commands.path,
    )
    return parser


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The comparison's own arguments and those for the trainer."""
    args, options = _parser().parse_known_args(argv)
    if args.analyse:
        if sum(text.startswith("--") for text in argv) > 1:
            raise RunError("--analyse trains nothing; give no other option with it")
        return args, []
    if not args.envs or not args.configs:
        raise RunError(
            "give --envs=NAME,... and --configs=FILE,... to train, or --analyse=FOLDER for runs "
            "that are done"
        )
    own = {"env": "envs", "config": "configs", "seed": "seeds", "num_seeds": "seeds"}
    for name in (option.split("=")[0][2:] for option in options if option.startswith("--")):
        if name in own or name == "resume":
            instead = f"; give --{own[name]}" if name in own else ""
            raise RunError(f"--{name} is given by the comparison itself{instead}")
    return args, options


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    return commands.run(_command, argv, "\ninterrupted; the same command continues")


def _command(argv: list[str]) -> int:
    args, options = parse(argv)
    if args.analyse:
        write_results(read(args.analyse))
        return FINISHED
    refuse_run(args.run_dir)
    tasks = plan(args, options)
    if args.task is not None:
        if args.task >= len(tasks):
            raise RunError(
                f"--task={args.task} should be less than {len(tasks)}, the runs there are"
            )
        with interrupts.stoppable():
            return train(tasks[args.task])
    with interrupts.stoppable():
        for k, task in enumerate(tasks, 1):
            train(task, f"[{k}/{len(tasks)}] ")
    # Another process may meanwhile have trained what was in use when it came to its turn here.
    runs = read(args.run_dir)
    write_results(runs)
    return child_runs.status_of_all(sum(task.run not in runs.ended for task in tasks))


if __name__ == "__main__":
    sys.exit(main())
