"""Search for good options: ``python -m jaxrl_scale.sweep --config configs/acrobot.py``.

Agents that differ only in numbers train side by side in one compiled program, so that a search of a
thousand agents compiles once. The best setting is then trained with fresh seeds beside the starting
config, and becomes a config file.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from jaxrl_scale import commands
from jaxrl_scale.config import Config, Launch, command_line, files
from jaxrl_scale.errors import (
    FINISHED,
    INPUT_OUTPUT_ERROR,
    INTERRUPTED,
    MISTAKE,
    STOPPED,
    RunError,
    status_table,
)
from jaxrl_scale.parallel.cluster import find
from jaxrl_scale.records import statistics
from jaxrl_scale.records.past_run import finished, read_object
from jaxrl_scale.records.run_directory import io_errors, plain, replace_file, short, write_json
from jaxrl_scale.records.terminal import number
from jaxrl_scale.search import model, results, rungs, space, wandb_group
from jaxrl_scale.search.plan import MOST, Chunk, Plan, configs_of, shown
from jaxrl_scale.search.results import Outcome, Ranked
from jaxrl_scale.search.schedulers import (
    Start,
    Trained,
    train_batches,
    train_history,
    train_population,
    train_rungs,
)
from jaxrl_scale.search.space import Range, Setting
from jaxrl_scale.train import settings_told, train

# --- training -------------------------------------------------------------------------------


def train_chunk(chunk: Chunk, folder: Path, position: str, start: Start | None = None) -> bool:
    """Begin or resume a chunk that has not come as far as it should. False where a signal stopped
    it."""
    path = folder / chunk.name
    count = len(chunk.settings)
    print(f"[{position}] {count} agent{'s' * (count > 1)}", flush=True)
    if finished(path, chunk.until):
        print("trained before", flush=True)
        return True
    train(
        chunk.config.replace(run_dir=str(path)),
        name=chunk.name,
        resume=path if (path / "config.json").exists() else None,
        agents=chunk.agents,
        start=start and start(chunk),
        until=chunk.until,
    )
    return finished(path, chunk.until)


def train_all(several: Sequence[Chunk], folder: Path, start: Start | None = None) -> bool:
    """Train chunk after chunk; False where a signal stopped one, which is saved."""
    for k, chunk in enumerate(several, 1):
        if not train_chunk(chunk, folder, f"{k}/{len(several)}", start):
            print("the sweep has stopped; the same command goes on with it")
            return False
    return True


# --- the folder -----------------------------------------------------------------------------


def begin(folder: Path, sweep: dict[str, Any], divided: Callable[[], list[list[int]]]) -> Any:
    """Write ``sweep.json``, which says what is searched and which settings train side by side. The
    latter depends on the memory that is free, and a sweep that goes on keeps to it.

    Args:
      sweep: what the sweep is.
      divided: decides what a new sweep trains side by side.

    Returns:
      What trains side by side. Raises a `RunError` where the folder holds another sweep.
    """
    path = folder / "sweep.json"
    before, told = read_object(path), plain(sweep)
    for name in told if before else ():
        if before.get(name) != told[name]:
            raise RunError(
                f"{short(folder)} holds a sweep with another {name}; choose another --run_dir, or "
                f"repeat its command: {before.get('command', '')}"
            )
    if not before:
        before = told | {"chunks": divided()}
        before |= {"command": shlex.join(["python", *sys.orig_argv[1:]])}
        with io_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_json(path, before)
    return before["chunks"]


def write_results(
    folder: Path,
    base: Config,
    ranges: Sequence[Range],
    trained: Trained,
    ranks: Sequence[Ranked],
    fresh: Sequence[Outcome],
    every: int = 0,
) -> None:
    """The tables, the picture and the winner's config; prints what a person wants to know.

    Args:
      fresh: of the starting config, setting 0, and of the best, 1.
      every: iterations between the changes of a population.
    """
    from jaxrl_scale.search import plots
    from jaxrl_scale.search.page import page

    found, settings, histories = trained
    history = histories[ranks[0].setting]
    best, (start, winner) = settings[ranks[0].setting], _compared(fresh)
    told = statistics.difference(winner, start)
    gained, ci95 = told["difference"], told["difference_ci95"]
    count = len({one.seed for one in fresh})
    if gained is None:
        verdict = "an agent failed, so that the two cannot be compared"
    else:
        low, high = map(number, ci95)
        holds = "holds up" if ci95[0] > 0 else "does not hold up"
        verdict = f"the difference is {number(gained)} (95 % interval {low} to {high}): it {holds}"
    ours, theirs = (number(statistics.score(x)) for x in (winner, start))
    lines = [
        f"The best of {len(settings)} settings: {shown(best)}"
        + (
            f" at the end; before, it changed every {every} iterations as schedule.csv says, and "
            "so it did on fresh seeds."
            if every
            else ""
        ),
        f"Its return in the sweep: {number(ranks[0].iqm)} (IQM over {len(ranks[0].scores)} "
        f"seed{'s' * (len(ranks[0].scores) > 1)}).",
        f"On {count} fresh seeds: {ours}, and {theirs} with the starting config; {verdict}.",
    ]
    text = "\n\n".join(["Found by a sweep of jaxrl_scale.", *lines])
    config = command_line.with_options(base, best).replace(run_dir=None)
    picture = plots.draw(ranges, settings, ranks, fresh)
    schedule = {"schedule.csv": results.schedule_table(history, every)} if every else {}
    files_of_sweep: dict[str, bytes | None] = {
        **schedule,
        "agents.csv": results.agents_table(found, settings),
        "agents.parquet": results.agents_parquet(found, settings),
        "settings.csv": results.settings_table(ranks, settings),
        "curves.csv": results.curves_table(found),
        "sweep.png": picture,
        "sweep.html": page(lines, base, ranges, settings, found, ranks, picture).encode(),
        "best.py": files.to_python(config, text).encode(),
    }
    for name, data in files_of_sweep.items():
        if data is not None:
            replace_file(folder / name, data)
            print(f"wrote {short(folder / name)}")
    wandb_group.log(folder, base, settings, found, ranks)
    print("\n".join(lines))


def _compared(fresh: Sequence[Outcome]) -> list[Any]:
    """The scores on fresh seeds of the starting config and of the best setting; none where an agent
    failed."""
    both = [[one.score for one in fresh if one.setting == k] for k in (0, 1)]
    return [np.array([] if None in scores else scores, np.float64) for scores in both]


# --- the command ----------------------------------------------------------------------------

_DESCRIPTION = """\
Search for good options. Ranges stand where values would:

  python -m jaxrl_scale.sweep --config=configs/acrobot.py --agents=256 --seeds=4 \\
    --algo.learning_rate=log:1e-4:1e-2 --algo.gae_lambda=uniform:0.8:1 \\
    --algo.entropy_coef=0,0.003,0.01 --total_steps=200_000 --run_dir=runs/search

With --rungs=2 all settings are trained for a ninth of the run, the best third of them for a third
of it, and the best third of those to the end (successive halving; --factor=3 is the third).

With --perturb_every=20 --seeds=1 the worst quarter of the agents goes on every 20 iterations from
copies of the best quarter, whose settings are changed a little (population-based training).
schedule.csv has the settings of the best agent from round to round, which fresh seeds go through.

With --draw=tpe a model of the scores so far proposes settings, batch after batch (Optuna's TPE,
which the extra "search" installs).

With --sweep=FILE the options are read from a Python file, such as configs/sweeps/acrobot.py; those
of the command line replace them.

With --wandb=offline or --wandb=online the sweep becomes one group at wandb in the end, with a run
for each setting.

All other options are those of python -m jaxrl_scale.train. Agents that differ only in numbers train
side by side in one program; whatever changes shapes or code is a program of its own. The folder
then holds sweep.html for people, its tables agents.csv (with the extra "search" also
agents.parquet, learning curves included), settings.csv (the best first) and curves.csv, its picture
sweep.png, and best.py, the config of the best setting, which was trained again beside the starting
config, with fresh seeds.
Of a population, best.py has what the best agent ended with. The same command continues what was
interrupted.
"""


def _parser() -> commands.Parser:
    statuses = (FINISHED, MISTAKE, INPUT_OUTPUT_ERROR, STOPPED, INTERRUPTED)
    parser = commands.Parser(
        prog="python -m jaxrl_scale.sweep",
        usage="python -m jaxrl_scale.sweep --config=FILE --OPTION=RANGE [--OPTION=VALUE ...]",
        description=_DESCRIPTION,
        epilog=status_table(*statuses),
    )

    def add(name: str, metavar: str, help: str, **more: Any) -> None:
        parser.add_argument(f"--{name}", metavar=metavar, help=help, **more)

    whole = commands.whole_number
    file = "Python file whose get_sweep() returns a dict of options, ranges among them"
    add("sweep", "FILE", file, type=Path)
    add("agents", "N", "agents in all, --seeds for each setting [64]", type=whole(), default=64)
    add("seeds", "N", "seeds of each setting, the config's first [4]", type=whole(), default=4)
    parser.add_argument(
        "--draw",
        choices=get_args(space.Draws),
        default="sobol",
        help="how settings are drawn: evenly (Sobol points), at random, all combinations of "
        "choices, whatever --agents says, or batch after batch by a model of the scores so far "
        "(Optuna's TPE) [sobol]",
    )
    add("batch", "N", "settings of a batch of --draw=tpe [an eighth of all]", type=whole())
    add("draw_seed", "N", "seed of the draws [0]", type=whole(0), default=0)
    add("fresh_seeds", "N", "seeds on which the best is tried again [16]", type=whole(), default=16)
    rung = (
        "how often settings are compared and only the best of them go on (successive halving) [0]"
    )
    add("rungs", "N", rung, type=whole(0), default=0)
    factor = "one setting in N goes on, and comparisons are at 1/N of the run, 1/N^2, ... [3]"
    add("factor", "N", factor, type=whole(2), default=3)
    perturb = (
        "iterations after which agents copy better ones (population-based training) [0: never]"
    )
    add("perturb_every", "N", perturb, type=whole(0), default=0)
    most = f"agents that train side by side [as many as fit into the memory, at most {MOST}]"
    add("chunk", "N", most, type=whole(), default=None)
    task = "only train chunk K, from 0: for an array of jobs; the command without it does the rest"
    add("task", "K", task, type=whole(0))
    add("run_dir", "FOLDER", "folder of the sweep [runs/sweep]", type=Path, default="runs/sweep")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    return commands.run(_command, argv, "\ninterrupted; the same command continues")


def _command(argv: list[str]) -> int:
    args, rest = _parser().parse_known_args(space.with_file(argv))
    if find(Launch(), os.environ).num_processes > 1:
        raise RunError("a sweep is one process; give each process a part of it with --task")
    base, ranges = space.split(rest)
    if told := settings_told(rest):
        print(told)
    settings = _settings(args, ranges)
    by_model = args.draw == "tpe"
    configs = configs_of(base, settings)
    stops = [rungs.iterations(each, args.rungs, args.factor) for each in configs]
    seeds = range(base.seed, base.seed + args.seeds)
    plan = Plan(configs, stops, seeds, args.chunk)
    config = files.to_json(base)
    config = {name: value for name, value in config.items() if not name.startswith("wandb")}
    sweep = {"config": config, "settings": settings, "seeds": list(seeds)}
    sweep |= {name: getattr(args, name) for name in ("rungs", "factor", "perturb_every")}
    if by_model:
        sweep |= {"draw_seed": args.draw_seed, "ranges": [str(each) for each in ranges]}
        sweep |= {"agents": args.agents}
    parts = begin(args.run_dir, sweep, lambda: _divided(args, plan))
    if args.task is not None:
        if args.task >= len(parts):
            raise RunError(f"--task={args.task} should be below {len(parts)}, the chunks")
        position = f"chunk {args.task} of {len(parts)}"
        done = train_chunk(plan.chunks(0, parts)[args.task], args.run_dir, position)
        return FINISHED if done else STOPPED
    count = args.agents // args.seeds if by_model else len(settings)
    print(
        f"{count} settings with {args.seeds} seed{'s' * (args.seeds > 1)} each, "
        + ("in batches" if by_model else f"{len(parts)} chunk{'s' * (len(parts) > 1)}")
        + f"; in {short(args.run_dir)}",
        flush=True,
    )
    if by_model:
        trained = train_batches(
            *(base, ranges, settings, count, seeds, args.chunk, args.run_dir, args.draw_seed),
            train_all,
        )
    elif args.perturb_every:
        every, seed = args.perturb_every, args.draw_seed
        trained = train_population(base, ranges, settings, args.run_dir, every, seed, train_all)
    else:
        trained = train_rungs(plan, settings, args.run_dir, parts, args.factor, train_all)
    if trained is None:
        return STOPPED
    ranks = results.ranked(trained.found)
    best = ranks[0].setting
    print(f"the best, {shown(trained.settings[best])}, and the starting config with fresh seeds")
    fresh = _on_fresh_seeds(args, base, trained, best)
    if fresh is None:
        return STOPPED
    write_results(args.run_dir, base, ranges, trained, ranks, fresh, args.perturb_every)
    return FINISHED


def _on_fresh_seeds(
    args: argparse.Namespace, base: Config, trained: Trained, best: int
) -> list[Outcome] | None:
    """The outcomes of the starting config, setting 0, and of the best, 1, with seeds that nothing
    was trained with; None where a signal stopped an agent."""
    first = max(one.seed for one in trained.found) + 1
    unused = range(first, first + args.fresh_seeds)
    fresh: list[Outcome] = []
    histories: list[list[Setting]] = [[{}], trained.histories[best]]
    for k, (name, history) in enumerate(
        zip(("the starting config", "the best"), histories, strict=True)
    ):
        print(f"fresh seeds, {name}", flush=True)
        found = train_history(
            base, history, args.perturb_every, f"fresh{k}", unused, args.run_dir, train_all
        )
        if found is None:
            return None
        fresh += [one._replace(setting=k) for one in found]
    return fresh


def _divided(args: argparse.Namespace, plan: Plan) -> list[list[int]]:
    """Which settings train side by side on the first rung; a population does so as a whole."""
    parts = plan.divide(range(len(plan.configs)))
    if args.perturb_every and len(parts) > 1:
        raise RunError(
            f"a population is one program, and this one would be {len(parts)}: only numbers may "
            f"vary, and the {len(plan.configs)} agents have to fit into the memory and into --chunk"
        )
    return parts


def _settings(args: argparse.Namespace, ranges: Sequence[Range]) -> list[Setting]:
    if not ranges:
        raise RunError(
            "there is nothing to search; give a range, such as --algo.learning_rate=log:1e-4:1e-2"
        )
    if args.perturb_every and (args.seeds > 1 or args.rungs or args.task is not None):
        raise RunError("--perturb_every takes --seeds=1, and neither --rungs nor --task")
    if args.draw == "tpe":
        if args.perturb_every or args.rungs or args.task is not None:
            raise RunError("--draw=tpe takes neither --rungs nor --perturb_every nor --task")
        model.check()
    if args.agents % args.seeds:
        near = max(1, round(args.agents / args.seeds)) * args.seeds
        raise RunError(
            f"--agents={args.agents} does not divide by --seeds={args.seeds}; try --agents={near}"
        )
    number = args.agents // args.seeds
    if args.draw == "tpe":
        number = min(number, args.batch or -(-number // 8))
    return space.draw(ranges, number, args.draw, args.draw_seed)


if __name__ == "__main__":
    sys.exit(main())
