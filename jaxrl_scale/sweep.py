"""Search for good options: ``python -m jaxrl_scale.sweep --config configs/acrobot.py``.

Agents that differ only in numbers train side by side in one compiled program, so that a search of a
thousand agents compiles once. The best setting is then trained with fresh seeds beside the starting
config, and becomes a config file.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from jaxrl_scale import commands, envs
from jaxrl_scale.config import Config, command_line, files
from jaxrl_scale.errors import (
    FINISHED,
    INPUT_OUTPUT_ERROR,
    INTERRUPTED,
    MISTAKE,
    NOT_FINITE,
    STOPPED,
    RunError,
    how_many,
    status_table,
)
from jaxrl_scale.loop import origin, prepare
from jaxrl_scale.loop.prepare import checked, jax_settings_restored, programs_forgotten
from jaxrl_scale.loop.programs import seconds_compiling
from jaxrl_scale.loop.stop import StopRequest
from jaxrl_scale.options import INT32_MAX, largest_divisor
from jaxrl_scale.parallel import backend
from jaxrl_scale.parallel.cluster import find
from jaxrl_scale.parallel.peers import Peers, join
from jaxrl_scale.records.checkpoint import is_shared
from jaxrl_scale.records.past_run import finished
from jaxrl_scale.records.progress import Clock
from jaxrl_scale.records.run_directory import holds_run, short
from jaxrl_scale.search import conclusion, model, orders, rungs, space, stages, sweep_file
from jaxrl_scale.search.orders import Order
from jaxrl_scale.search.plan import (
    MOST,
    Chunk,
    Plan,
    Search,
    Start,
    configs_of,
    programs,
    shown,
)
from jaxrl_scale.search.space import Range, Setting
from jaxrl_scale.train import Stretch, settings_told, train_among

# --- training -------------------------------------------------------------------------------


def train_chunk(
    peers: Peers,
    stop: StopRequest,
    folder: Path,
    chunk: Chunk,
    position: str,
    start: Start | None = None,
) -> bool:
    """Of process 0: let all processes begin or resume a chunk that has not come as far as it
    should. False where a signal stopped it."""
    path = folder / chunk.name
    count = len(chunk.settings)
    print(f"[{position}] {how_many(count, 'agent')}", flush=True)
    if finished(path, chunk.until):
        print("trained before", flush=True)
        return True
    order = Order(chunk, start and start.of(chunk), holds_run(path))
    if not (order.resume or start):
        sweep_file.check_origin(folder, chunk.config)
    if agreed := orders.agreed(peers, stop, order):
        _obey(peers, stop, folder, agreed)
    if not finished(path, chunk.until):
        print("the sweep has stopped; the same command goes on with it")
        return False
    return True


def train_all(
    peers: Peers,
    stop: StopRequest,
    folder: Path,
    several: Sequence[Chunk],
    start: Start | None = None,
) -> bool:
    """Of process 0: train chunk after chunk; False where a signal stopped one, which is saved."""
    return all(
        train_chunk(peers, stop, folder, chunk, f"{k}/{len(several)}", start)
        for k, chunk in enumerate(several, 1)
    )


def follow(peers: Peers, folder: Path) -> int:
    """Of the processes beside process 0: train what it says, until it says with which status they
    end."""
    with StopRequest(peers) as stop:
        while (order := orders.agreed(peers, stop)) is None or order.chunk:
            if order:
                _obey(peers, stop, folder, order)
        return order.status


def _obey(peers: Peers, stop: StopRequest, folder: Path, order: Order) -> None:
    """Train a chunk, in all processes."""
    assert order.chunk
    path = folder / order.chunk.name
    resume = path if order.resume else None
    # The folder may have had another name, or been written otherwise, when the run began.
    called = files.read_config(path / "config.json").run_dir if resume else str(path)
    config = checked(order.chunk.config.replace(run_dir=called), resume)
    with programs_forgotten():
        start = orders.carried_over(order, folder, peers)
        train_among(
            peers,
            config,
            Clock(time.time(), config.target_return, seconds_compiling),
            order.chunk.name,
            resume,
            order.chunk.agents,
            Stretch(start, order.chunk.until, stop, "the same command goes on with the sweep"),
        )
    # The programs are in cycles of objects. Each run maps a thousand pieces of memory, of which the
    # kernel grants a process 65,530, and Python would collect them long after that.
    gc.collect()


# --- the command ----------------------------------------------------------------------------

_DESCRIPTION = """\
Search for good options. Ranges stand where values would:

  python -m jaxrl_scale.sweep --config=configs/acrobot.py --agents=256 --seeds=4 \\
    --algo.learning_rate=log:1e-4:1e-2 --algo.gae_lambda=uniform:0.8:1 \\
    --algo.entropy_coef=0,0.003,0.01 --total_steps=200_000 --run_dir=runs/search

With --rungs=2 all settings are trained for a ninth of the run, the best third of them for a third
of it, and the best third of those to the end (successive halving; --factor=3 is the default).

With --perturb_every=20 --seeds=1 the worst quarter of the agents goes on every 20 iterations from
copies of the best quarter, whose settings are changed a little (population-based training).
schedule.csv has the settings of the best agent from round to round, which fresh seeds go through.

With --draw=tpe a model of the scores so far proposes settings, batch after batch (Optuna's TPE,
which the extra "search" installs).

With --sweep=FILE the options are read from a Python file, such as configs/sweeps/acrobot.py; those
of the command line replace them.

With --wandb=offline or --wandb=online the sweep becomes one group at wandb in the end, with a run
for each setting.

A sweep of several processes is started as a run of several processes is, for example with
srun -N4 python -m jaxrl_scale.sweep ...; its folder has to be one that all of them see.

All other options are those of python -m jaxrl_scale.train, without --num_seeds. Agents that differ
only in numbers train side by side in one program; whatever changes shapes or code is a program of
its own. The folder then holds sweep.html for people, its tables agents.csv (with the extra "search"
also agents.parquet, learning curves included), settings.csv (the best first), finalists.csv and
curves.csv, its picture sweep.png, and best.py, the config of the best setting. env_steps of an
agent in these tables is the mean over the agents that trained side by side with it.

The best of many settings owes a part of its score to luck. So the best --finalists=4 settings are
trained again with other seeds, which decide between them. The winner and the starting config are
then trained with fresh seeds, which say whether the gain holds up.
Of a population, best.py has what the best agent ended with. The same command continues what was
interrupted.
"""


def _parser() -> commands.Parser:
    statuses = (FINISHED, MISTAKE, NOT_FINITE, INPUT_OUTPUT_ERROR, STOPPED, INTERRUPTED)
    parser = commands.Parser(
        prog="python -m jaxrl_scale.sweep",
        usage="python -m jaxrl_scale.sweep --config=FILE --OPTION=RANGE [--OPTION=VALUE ...]",
        description=_DESCRIPTION,
        epilog=status_table(*statuses),
    )

    add = parser.option
    whole = commands.whole_number
    file = "Python file whose get_sweep() returns a dict of options, ranges among them"
    add("sweep", "FILE", file, type=commands.path)
    agents = "number of agents in all: --seeds times as many as there are settings [64]"
    add("agents", "N", agents, type=whole(), default=64)
    seeds = "number of seeds of each setting, of which the config's is the first [4]"
    add("seeds", "N", seeds, type=whole(), default=4)
    parser.add_argument(
        "--draw",
        choices=get_args(space.Draws),
        default="sobol",
        help="how settings are drawn; sobol: evenly, as Sobol points; random: at random; grid: all "
        "combinations of choices, for which --agents does not count; tpe: batch after batch, by a "
        "model of the scores so far (Optuna's TPE) [sobol]",
    )
    batch = "number of settings that --draw=tpe proposes at once [an eighth of all]"
    add("batch", "N", batch, type=whole())
    add("draw_seed", "N", "seed of the draws [0]", type=whole(0, INT32_MAX), default=0)
    add(
        "finalists",
        "N",
        "number of the best settings that are trained again, each with --fresh_seeds other seeds, "
        "to find the best of them; 1: the first of the search is the best [4]",
        type=whole(),
        default=4,
    )
    add(
        "fresh_seeds",
        "N",
        "number of seeds with which the best is trained beside the starting config [16]",
        type=whole(),
        default=16,
    )
    rung = "number of comparisons after which only the best settings go on (successive halving) [0]"
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
    add(
        "run_dir",
        "FOLDER",
        "folder of the sweep [runs/sweep]",
        type=commands.path,
        default="runs/sweep",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    return commands.run(_command, argv, "\ninterrupted; the same command continues")


def _command(argv: list[str]) -> int:
    args, rest = _parser().parse_known_args(space.with_file(argv))
    search = _asked(args, rest)
    launch = command_line.load_launch(rest)
    cluster = find(launch, os.environ)
    processes, shards = cluster.num_processes, search.base.num_shards
    if shards % processes:
        raise RunError(
            f"{processes} processes do not divide num_shards={shards}; "
            f"try {how_many(largest_divisor(shards, processes), 'process', 'processes')}"
        )
    peers = join(cluster, launch)
    with peers.end_together(), jax_settings_restored():
        if peers.leader and (told := settings_told(rest)):
            print(told)
        given = {**vars(args), **{each.option: each for each in search.ranges}}
        peers.check_alike(
            prepare.settings(search.base, None) | {k: str(x) for k, x in given.items()}
        )
        backend.initialize(search.base, peers)  # before the user's code, which may start JAX
        _check_copies(search.base, args.perturb_every)
        parts = _begin(search, args.task) if peers.leader else []
        if not is_shared(args.run_dir, peers):
            raise RunError(
                f"{short(args.run_dir)} is not one folder for all processes, as that of a sweep "
                "has to be; choose a --run_dir that all of them see"
            )
        if peers.leader:
            status = _lead(search, parts, peers, args.task)
        else:
            status = follow(peers, args.run_dir)
        peers.close()
    return status


_COMBINATIONS = 1000
"""Of choices that are checked before a sweep by a model begins, which takes about a second."""


def _asked(args: argparse.Namespace, rest: list[str]) -> Search:
    """The sweep that a command line asks for, checked; ``rest`` are the options of the runs."""
    base, ranges = space.split(rest)
    settings = _settings(args, ranges)
    if args.perturb_every >= base.num_iterations:
        raise RunError(
            f"--perturb_every={args.perturb_every} should be below {base.num_iterations}, the "
            "iterations of the run"
        )
    seeds = len(settings) if args.perturb_every else args.seeds  # each of a population has its own
    last = base.seed + seeds + 2 * args.fresh_seeds - 1
    if last > INT32_MAX:
        raise RunError(
            f"seed={base.seed} is too large: the seeds of the search and the fresh ones would "
            f"reach {last}, and the largest is {INT32_MAX}"
        )
    configs = configs_of(base, settings)
    if args.draw == "tpe":  # what the model may propose later has to fit, too
        sizes = [each for each in ranges if each.kind == "choices" and not each.of_reals]
        many = math.prod(len(each.values) for each in sizes) > _COMBINATIONS
        configs_of(base, space.draw(sizes, _COMBINATIONS, "random" if many else "grid", 0))
    stops = [rungs.iterations(each, args.rungs, args.factor) for each in configs]
    seeds_of_each = range(base.seed, base.seed + args.seeds)
    plan = Plan(configs, stops, seeds_of_each, args.chunk, args.fresh_seeds)
    return Search(
        base=base,
        ranges=ranges,
        settings=settings,
        plan=plan,
        folder=args.run_dir,
        agents=args.agents,
        draw=args.draw,
        draw_seed=args.draw_seed,
        rungs=args.rungs,
        factor=args.factor,
        perturb_every=args.perturb_every,
        finalists=args.finalists,
        fresh_seeds=args.fresh_seeds,
    )


def _check_copies(base: Config, every: int) -> None:
    """Raise a `RunError` where agents on the host would be copied between two restarts: a copy has
    a seed of its own, with which its simulators would not come to where its parent's are."""
    if every % base.restart_every and envs.on_host(base.make_env()):
        raise RunError(
            f"--perturb_every={every} should be a multiple of restart_every={base.restart_every} "
            f"for {base.env}, as agents can be copied only when their environments are made anew; "
            f"try --restart_every={every}"
        )


def _begin(search: Search, task: int | None) -> list[list[int]]:
    """Begin the sweep, or go on with it. Returns which settings train side by side first."""
    base = search.base

    def with_task(parts: list[list[int]]) -> list[list[int]]:
        if task is not None and task >= len(parts):
            raise RunError(f"--task={task} should be below {len(parts)}, the chunks")
        return parts

    def begins_from() -> dict[str, Any]:
        if not base.init_from:
            return {}
        found = origin.policy(base)
        for first, *_ in programs(search.plan.configs):  # now, and not when others are trained
            try:
                origin.policy(search.plan.configs[first])
            except RunError as error:
                raise RunError(f"with {shown(search.settings[first])}: {error}") from None
        return found

    def divided() -> list[list[int]]:
        return with_task(_divided(search))

    goes_on = (search.folder / "sweep.json").exists()
    parts = sweep_file.begin(search.folder, search.to_json(), divided, begins_from)
    if goes_on and (changed := sweep_file.changed_modules(search.folder, base)):
        print(changed)
    return with_task(parts)


def _lead(search: Search, parts: list[list[int]], peers: Peers, task: int | None) -> int:
    """What process 0 does: it decides what all train, and writes what came of it. Returns the exit
    status of all.

    Args:
      parts: which settings train side by side first.
      task: the chunk that is all there is to train; None: the whole sweep.
    """
    folder, found = search.folder, None
    with StopRequest(peers) as stop:
        if task is None:
            found = stages.train(search, parts, partial(train_all, peers, stop, folder))
            done = found is not None
        else:
            chunk = search.plan.chunks(0, parts)[task]
            done = train_chunk(peers, stop, folder, chunk, f"chunk {task} of {len(parts)}")
    if found:
        conclusion.write(folder, search.base, search.ranges, found, search.perturb_every)
    status = FINISHED if done else STOPPED
    orders.agreed(peers, stop, Order(status=status))
    return status


def _divided(search: Search) -> list[list[int]]:
    """Which settings train side by side on the first rung; a population does so as a whole."""
    parts = search.plan.divide(range(len(search.settings)))
    if search.perturb_every and len(parts) > 1:
        raise RunError(
            f"a population is one program, and this one would be {len(parts)}: its "
            f"{len(search.settings)} agents have to fit into the memory and into --chunk"
        )
    return parts


def _settings(args: argparse.Namespace, ranges: Sequence[Range]) -> list[Setting]:
    if not ranges:
        raise RunError(
            "there is nothing to search; give a range, such as --algo.learning_rate=log:1e-4:1e-2"
        )
    if args.perturb_every and (args.seeds > 1 or args.rungs or args.task is not None):
        raise RunError("--perturb_every takes --seeds=1, and neither --rungs nor --task")
    static = [each.option for each in ranges if not each.of_reals]
    if args.perturb_every and static:
        raise RunError(
            f"--{static[0]} cannot vary with --perturb_every: a population is one program, in "
            "which only real numbers can vary, such as algo.learning_rate"
        )
    if args.draw == "tpe":
        if args.perturb_every or args.rungs or args.task is not None:
            raise RunError("--draw=tpe takes neither --rungs nor --perturb_every nor --task")
        model.check()
    if args.draw != "grid" and args.agents % args.seeds:
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
