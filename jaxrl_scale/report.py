"""Write a page about one run, or about several compared: ``python -m jaxrl_scale.report RUN_DIR``.

The result is one HTML file that needs nothing else (its images are embedded), with the plots beside
it as PNG files. Everything but the episode is read from the run directory alone, so a run that is
still going, or that was stopped, has a report too. With several agents a curve is the interquartile
mean over them, and its band is the 95 % bootstrap interval (see `jaxrl_scale.records.statistics`).

The episode is played by the newest checkpoint in the environment that ``config.json`` names. Where
that is a class of a module (``module:Class``), the module is imported, which runs its code: give
``--episodes=0`` to look at a run directory whose authors you do not know.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl_scale import algos, commands
from jaxrl_scale.errors import RunError, how_many, make_folder, one_line
from jaxrl_scale.figures.pages import actions, render
from jaxrl_scale.figures.report_plots import (
    Drawn,
    Plot,
    learning_plots,
    metric_plots,
    read_runs,
    score_plots,
    speed_plots,
)
from jaxrl_scale.figures.video import small_gif
from jaxrl_scale.records import past_run
from jaxrl_scale.records.past_run import PastRun
from jaxrl_scale.records.rows import centre
from jaxrl_scale.records.run_directory import check_writable, io_errors, replace_file, short
from jaxrl_scale.records.terminal import NONE, between, compact, duration, number

EPISODE_BYTES = 2_000_000


# --- the episode ----------------------------------------------------------------------------


class Episode(NamedTuple):
    """A rendered episode; ``gif`` is empty where there is none, and ``text`` says why."""

    label: str
    gif: bytes
    text: str


def episode(one: Drawn) -> Episode:
    """``episode.gif`` of the run, or else an episode that its newest checkpoint plays now."""
    from jaxrl_scale.loop.agent import load

    run = one.run
    try:
        if (saved := run.path / "episode.gif").is_file():
            gif, text = saved.read_bytes(), "episode.gif of the run directory"
            if len(gif) > EPISODE_BYTES:
                import imageio.v3 as iio

                gif, every = small_gif(list(iio.imread(gif)[..., :3]), EPISODE_BYTES)
                text += f", one frame of {every}" * (every > 1)
            return Episode(one.label, gif, text)
        agent = load(run.path)
        frames = agent.record(greedy=run.config.eval_greedy)
        gif, every = small_gif(frames, EPISODE_BYTES)
    except RunError as error:
        return Episode(one.label, b"", str(error).replace(str(run.path), "the run"))
    except Exception as error:  # whatever a foreign environment raises, the report is wanted
        reason = one_line(f"{type(error).__name__}: {error}")
        return Episode(one.label, b"", f"the episode could not be recorded ({reason})")
    kind = "greedy" if run.config.eval_greedy else "sampled actions"
    text = f"{how_many(len(frames) - 1, 'step')}, {kind}, after iteration {agent.iteration:,}"
    if run.config.num_seeds > 1:
        text += f", seed {run.config.seed}"
    return Episode(one.label, gif, text + f"; one frame of {every}" * (every > 1))


# --- the page -------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A cell of a table: a text, and a smaller one below it."""

    text: str
    small: str = ""


class Table(NamedTuple):
    """A table below the results, for people."""

    title: str
    text: str
    """What it shows, in a sentence or two."""
    head: str
    """The title of the first column"""
    lines: Mapping[str, Mapping[str, Cell]]
    """The cells of each line by the titles of their columns."""


def page(
    shown: Sequence[Drawn],
    plots: Sequence[list[Plot]],
    episodes: Sequence[Episode],
    tables: Sequence[Table] = (),
    note: str = "",
) -> str:
    """The whole HTML text. ``plots`` are of learning, speed and metrics, ``tables`` of what several
    runs reach together, ``note`` a sentence below the results."""
    one = shown[0].run if len(shown) == 1 else None
    title = shown[0].label if one else f"{len(shown)} runs compared"
    subtitle = ""
    if one:
        subtitle = f"{algos.title(one.config.algo.name)} on {one.config.env} · {one.status}"
    return render(
        "report.html",
        title=title,
        subtitle=subtitle,
        tiles=_tiles(one) if one else [],
        shown=shown,
        actions=actions(one.run.config for one in shown),
        results=list(zip(shown, results([one.run for one in shown]), strict=True)),
        tables=tables,
        note=note,
        learning=plots[0],
        speed=plots[1],
        metrics=plots[2],
        episodes=episodes,
        options=_table([one.run.options for one in shown], only_different=not one),
        origins=_table([_origin(one.run) for one in shown]),
    )


def _tiles(run: PastRun) -> list[Cell]:
    """The most important numbers of a run."""
    result, evaluation = run.result, _evaluation(run)
    within = f" (95 % interval {evaluation.small})" if evaluation.small else ""
    within = " (none yet)" if evaluation.text == NONE else within
    compiling = duration(result["compile_seconds"])
    tiles = [
        Cell(evaluation.text, f"evaluation return{within}"),
        Cell(number(result["return_100"]), "training return, last 100 episodes"),
        Cell(compact(result["steps_per_second"]), "environment steps a second"),
        Cell(duration(result["wall_seconds"]), f"wall time, of which compiling {compiling}"),
    ]
    if (target := result["target_return"]) is not None:
        tiles.insert(1, Cell(_to_target(run), f"time to the target return of {target:g}"))
    return tiles


def results(runs: Sequence[PastRun]) -> list[dict[str, Cell]]:
    """The lines of the table of results, without rare columns of which no run has anything."""
    lines = [_results(run) for run in runs]
    empty = {head for head in _RARE if all(line[head].text == NONE for line in lines)}
    return [{k: v for k, v in line.items() if k not in empty} for line in lines]


_RARE = ("Normalized", "Test return", "Normalized test")


def _results(run: PastRun) -> dict[str, Cell]:
    result, config = run.result, run.config
    failed, seeds = result["failed"], sorted(set(run.seeds))
    several = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    agents = f", {len(run.seeds)} agents" if len(run.seeds) > len(seeds) else ""
    memory = result.get("peak_memory_mb")
    return {
        "Environment": Cell(config.env),
        "Algorithm": Cell(algos.title(config.algo.name)),
        "Seeds": Cell(str(len(seeds)), several + agents),
        "Env steps": Cell(f"{result['env_steps']:,}"),
        "Evaluation return": _evaluation(run),
        "Normalized": _normalized(run, "eval_normalized"),
        "Test return": _evaluation(run, "test"),
        "Normalized test": _normalized(run, "test_normalized"),
        "Worst seed": _worst(run),
        "Failed seeds": Cell(str(len(failed)), _agents(run, failed) if failed else ""),
        "Training return": Cell(number(result["return_100"])),
        "Wall time": Cell(duration(result["wall_seconds"])),
        "Compile time": Cell(duration(result["compile_seconds"])),
        "Steps/s": Cell(compact(result["steps_per_second"])),
        "Time to target": Cell(_to_target(run)),
        "Peak memory": Cell(f"{memory:,.0f} MB" if memory else NONE),
    }


def _evaluation(run: PastRun, name: str = "evaluation") -> Cell:
    found = run.result.get(name)
    if not found:
        return Cell(NONE)
    return Cell(number(centre(found)), between(found["ci95"]))


def _normalized(run: PastRun, name: str) -> Cell:
    score = run.result.get(name)
    return Cell(NONE if score is None else f"{score:.2f}")


def _worst(run: PastRun) -> Cell:
    found = run.result.get("evaluation")
    scores = enumerate(found["per_agent"] if found else [])
    known = [(score, agent) for agent, score in scores if score is not None]
    if not known or run.config.num_seeds == 1:
        return Cell(NONE)
    score, agent = min(known)
    return Cell(number(score), _agents(run, [agent]))


def _agents(run: PastRun, chosen: Sequence[int]) -> str:
    """Agents by their seeds, or where several have the same one, as in a sweep, by their
    indices."""
    by_seed = len(set(run.seeds)) == len(run.seeds)
    names = [run.seeds[k] if by_seed else k for k in chosen]
    return f"{'seed' if by_seed else 'agent'} {', '.join(map(str, names))}"


def _to_target(run: PastRun) -> str:
    if run.result["target_return"] is None:
        return NONE
    reached = run.result.get("seconds_to_target")
    if reached is None:
        return "not reached" if run.summary else NONE
    return duration(reached)


def _origin(run: PastRun) -> dict[str, Any]:
    """Where a run ran: by its last start, since a run may move."""
    last = run.starts[-1] if run.starts else {}
    devices = Counter(map(str, last.get("devices") or ()))
    known = {
        "devices": ", ".join(f"{n} × {d}" if n > 1 else d for d, n in devices.items()),
        "starts": len(run.starts),
        **{k.replace("_", " "): last.get(k) for k in ("platform", "git_commit", "command")},
        **(last.get("versions") or {}),
    }
    return {name: value for name, value in known.items() if value}


def _table(columns: Sequence[dict[str, Any]], only_different: bool = False) -> dict[str, list[str]]:
    """Values of runs by name. With ``only_different`` those are left out that are the same in all
    runs, and ``run_dir``, which the run's label says."""
    table = past_run.differing(columns) if only_different else past_run.by_name(columns)
    return {name: list(map(_value, values)) for name, values in table.items()}


def _value(value: Any) -> str:
    if value is None or value == "":
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# --- the command ----------------------------------------------------------------------------


def report(paths: Sequence[Path], out: Path | None = None, episodes: int = 4) -> list[Path]:
    """Write the report and its images; returns the files, the HTML last."""
    shown = read_runs(paths)
    file = _html_file(out or (shown[0].run.path if len(shown) == 1 else Path("report/report.html")))
    check_writable(file, "--out=FILE")
    return write(shown, file, episodes)


def _html_file(out: Path) -> Path:
    """The file that ``--out`` means. Raises a `RunError` where it cannot be that of a page."""
    if out.is_dir():
        return out / "report.html"
    if out.suffix not in ("", ".html", ".htm"):
        raise RunError(f"--out={short(out)} should be a folder or a file that ends with .html")
    return out if out.suffix else out.with_suffix(".html")


def write(
    shown: Sequence[Drawn],
    out: Path,
    episodes: int,
    tables: Sequence[Table] = (),
    note: str = "",
) -> list[Path]:
    """Write the page ``out`` and its images beside it, with episodes of the first runs. ``tables``
    and ``note`` are those of `page`."""
    with io_errors(out):
        make_folder(out.parent)
    with commands.working("drawing the curves"):
        learning = learning_plots(shown) + score_plots(shown)
        plots = [learning, speed_plots(shown), metric_plots(shown)]
    played = []
    for one in shown[:episodes]:
        with commands.working(f"an episode of {one.label}"):
            played.append(episode(one))
    files = {f"{out.stem}-{plot.name}.png": plot.png for some in plots for plot in some}
    for k, found in enumerate(played):
        if found.gif:
            files[f"{out.stem}-episode{k if len(shown) > 1 else ''}.gif"] = found.gif
    files[out.name] = page(shown, plots, played, tables, note).encode()
    written = []
    for name, data in files.items():
        replace_file(out.parent / name, data)
        print(f"wrote {short(out.parent / name)}", flush=True)
        written.append(out.parent / name)
    return written


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    return commands.run(_command, argv)


def _command(argv: list[str]) -> int:
    parser = commands.Parser(
        prog="python -m jaxrl_scale.report",
        usage="python -m jaxrl_scale.report RUN_DIR [RUN_DIR ...] [--OPTION=VALUE ...]",
        description="Write a page about one run, or about several compared: curves, speed,\n"
        "results, configuration and an episode. Runs that are still training have a report too.",
    )
    parser.add_argument(
        "runs", metavar="RUN_DIR", nargs="+", type=commands.path, help="directory of a run"
    )
    parser.option(
        "out",
        "FILE",
        "the HTML file to write; in a folder that exists it is report.html, and a name "
        "without a suffix gets .html. It needs no other file: the plots are also written beside "
        "it as PNG files, whose names begin with its own [RUN_DIR/report.html; of several runs "
        "report/report.html]",
        type=commands.path,
    )
    parser.option(
        "episodes",
        "N",
        "show an episode of each of the first N runs: RUN_DIR/episode.gif, or one that the "
        "newest checkpoint plays now; 0 plays none, and imports no environment [4]",
        type=commands.whole_number(0),
        default=4,
    )
    args = parser.parse_args(argv)
    if "JAX_PLATFORMS" not in os.environ:
        # It plays one episode of one environment; a GPU is left to those that train. JAX has read
        # its variables by now.
        jax.config.update("jax_platforms", "cpu")
    report(args.runs, args.out, args.episodes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
