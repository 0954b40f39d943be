"""A page about one run, or about several compared: ``python -m jaxrl_scale.report RUN_DIR``.

Writes one HTML file that needs nothing else (images are embedded), and the plots beside it as
PNG. It reads only what a run directory holds, so a run that is still going, or that stopped,
has a report too. With several seeds a curve is the interquartile mean over them and its band
the 95 % percentile bootstrap interval over seeds, as in https://arxiv.org/abs/2108.13264.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # It plays one episode of one environment; a GPU is left to those that train.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

import base64
import json
import math
import statistics
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl_scale import commands
from jaxrl_scale.errors import RunError
from jaxrl_scale.figures.report_plots import Plot, learning_plots, metric_plots, speed_plots
from jaxrl_scale.records.rows import Row, read_rows
from jaxrl_scale.records.run_directory import io_errors, short
from jaxrl_scale.records.terminal import compact, duration, number

if TYPE_CHECKING:
    pass

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Told apart by the colour-blind: https://jfly.uni-koeln.de/color/ (Okabe and Ito)."""
LINES = ("-", "--", ":", "-.")  # for more runs than colours

EPISODE_BYTES = 2_000_000
EPISODE_FRAMES, EPISODE_WIDTH = 200, 400


# --- what a run left behind -----------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One run directory, read. ``config`` is flat: every value by its command-line name."""

    path: Path
    label: str
    color: str
    line: str
    config: dict[str, Any]
    rows: list[Row]
    summary: dict[str, Any]  # empty while the run is going
    starts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def num_seeds(self) -> int:
        return int(self.config.get("num_seeds", 1))

    @property
    def iterations(self) -> int:
        """How many the config asks for."""
        given = self.config.get("iterations")
        per_iteration = self.config["num_envs"] * self.config["rollout_length"]
        return int(given or math.ceil(self.config["total_steps"] / per_iteration))

    @property
    def result(self) -> dict[str, Any]:
        """The summary; where there is none yet, what the rows say so far."""
        last = self.rows[-1]
        speeds = [row["steps_per_second"] for row in self.rows if row.get("steps_per_second")]
        so_far = {
            **{k: last.get(k) for k in ("env_steps", "wall_seconds", "compile_seconds")},
            "return_100": last.get("return_100"),
            "steps_per_second": statistics.median(speeds) if speeds else None,
            "failed": last.get("failed", []),
            "target_return": self.config.get("target_return"),
        }
        return so_far | {k: v for k, v in self.summary.items() if v is not None}

    @property
    def status(self) -> str:
        done, total = self.rows[-1]["iteration"], self.iterations
        if self.summary and done >= total:
            return str(self.summary.get("status", "done"))
        state = self.summary.get("status", "no summary yet")
        return f"{state}: iteration {done:,} of {total:,}"


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs, each once, labelled by as much of their paths as tells them apart."""
    paths = list(dict.fromkeys(Path(os.path.abspath(path.expanduser())) for path in paths))
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(paths):
        depth += 1
    runs = []
    for k, path in enumerate(paths):
        config = _flat(_read_json(path / "config.json"))
        if not (path / "config.json").exists():
            what = "is not a run directory: it has no config.json"
            raise RunError(f"{short(path)} {what if path.exists() else 'does not exist'}")
        if missing := {"env", "num_envs", "rollout_length", "total_steps"} - set(config):
            raise RunError(f"{short(path / 'config.json')} lacks {', '.join(sorted(missing))}")
        rows = read_rows(path / "metrics.jsonl")
        if not rows:
            raise RunError(f"{short(path)} has no metrics yet; log_every says when they come")
        runs.append(
            Run(
                path=path,
                label="/".join(path.parts[-depth:]),
                color=COLORS[k % len(COLORS)],
                line=LINES[k // len(COLORS) % len(LINES)],
                config=config,
                rows=rows,
                summary=_read_json(path / "summary.json"),
                starts=_read_json(path / "run.json").get("starts", []),
            )
        )
    return runs


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RunError(f"{short(path)} is damaged: {error}") from None
    return data if isinstance(data, dict) else {}


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        inner = _flat(value) if isinstance(value, dict) else {}
        flat |= {f"{name}.{k}": v for k, v in inner.items()} if inner else {name: value}
    flat = {k: v for k, v in flat.items() if v != {}}
    if "algo.name" in flat:
        flat = {"algo": flat.pop("algo.name"), **flat}
    return flat


def config_differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The keys whose values are not the same in all runs; ``None`` where a run lacks a key.
    ``run_dir`` is not among them: the run's name says it."""
    names = dict.fromkeys(name for run in runs for name in run.config if name != "run_dir")
    values = {name: [run.config.get(name) for run in runs] for name in names}
    return {name: v for name, v in values.items() if any(x != v[0] for x in v)}


# --- the episode ----------------------------------------------------------------------------


class Episode(NamedTuple):
    """A rendered episode; ``gif`` is empty where there is none, and ``text`` says why."""

    gif: bytes
    text: str


def episode(run: Run, folder: Path) -> Episode:
    """``episode.gif`` of the run, or else an episode that its newest checkpoint plays now."""
    from jaxrl_scale.loop.agent import load

    try:
        if (saved := run.path / "episode.gif").is_file():
            gif, text = saved.read_bytes(), "episode.gif of the run directory"
            if len(gif) > EPISODE_BYTES:
                import imageio.v3 as iio

                gif, every = _gif(list(iio.imread(gif)[..., :3]), folder)
                text += f", every {every}. frame" * (every > 1)
            return Episode(gif, text)
        agent = load(run.path)
        frames = agent.record()
        gif, every = _gif(frames, folder)
    except RunError as error:
        return Episode(b"", str(error).replace(str(run.path), "the run"))
    except Exception as error:  # whatever a foreign environment raises, the report is wanted
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return Episode(b"", f"the episode could not be recorded ({reason})")
    text = f"{len(frames) - 1:,} steps, greedy, after iteration {agent.iteration:,}"
    if run.num_seeds > 1:
        text += f", seed {run.config.get('seed', 0)}"
    return Episode(gif, text + f"; every {every}. frame" * (every > 1))


def _gif(frames: list[np.ndarray], folder: Path) -> tuple[bytes, int]:
    """A GIF of at most `EPISODE_BYTES`, and how many frames each of its frames stands for."""
    from PIL import Image

    from jaxrl_scale.figures.video import write_video

    every, width = math.ceil(len(frames) / EPISODE_FRAMES), min(frames[0].shape[1], EPISODE_WIDTH)
    path = folder / ".episode.gif"
    try:
        while True:
            height = max(1, round(frames[0].shape[0] * width / frames[0].shape[1]))
            images = [Image.fromarray(frame).resize((width, height)) for frame in frames[::every]]
            # A long episode is shown faster than it went by, not as a slide show.
            write_video(path, [np.asarray(i) for i in images], max(10, round(30 / every)))
            gif = path.read_bytes()
            if len(gif) <= EPISODE_BYTES or width < 2:
                return gif, every
            every, width = 2 * every, round(0.8 * width)
    finally:
        path.unlink(missing_ok=True)


# --- the page -------------------------------------------------------------------------------


def results(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells (HTML) of the table of results."""
    heads = "Run,Environment,Algorithm,Seeds,Env steps,Evaluation return,Worst seed,Failed seeds"
    heads += ",Training return,Wall time,Compile time,Steps/s,Time to target,Peak memory"
    table = []
    for run in runs:
        result = run.result
        first, count = run.config.get("seed", 0), run.num_seeds
        failed = [first + int(member) for member in result["failed"]]
        scores = (result.get("evaluation") or {}).get("per_seed", [])
        worst = min([(x, first + m) for m, x in enumerate(scores) if x is not None], default=None)
        memory = result.get("peak_memory_mb")
        table.append(
            [
                f"{_name(run)}<small>{escape(run.status)}</small>",
                escape(str(run.config["env"])),
                escape(str(run.config.get("algo", "")).upper()),
                f"{count}<small>{_seeds(range(first, first + count))}</small>",
                f"{result['env_steps']:,}",
                "{}<small>{}</small>".format(*_evaluation(run)),
                f"{number(worst[0])}<small>seed {worst[1]}</small>" if worst and count > 1 else "–",
                f"{len(failed)}<small>{_seeds(failed)}</small>",
                number(result["return_100"]),
                duration(result["wall_seconds"]),
                duration(result["compile_seconds"]),
                compact(result["steps_per_second"]),
                _to_target(run),
                f"{memory:,.0f} MB" if memory else "–",
            ]
        )
    return heads.split(","), table


def _seeds(seeds: Sequence[int]) -> str:
    if isinstance(seeds, range) and len(seeds) > 1:
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds)) and f"seed {', '.join(map(str, seeds))}"


def _evaluation(run: Run) -> tuple[str, str]:
    found = run.result.get("evaluation")
    if not found:
        return "–", ""
    low, high = found["ci95"]
    center = found["iqm" if run.num_seeds > 1 else "mean"]
    return number(center), f"{number(low)} to {number(high)}"


def _to_target(run: Run) -> str:
    if run.result.get("target_return") is None:
        return "–"
    reached = run.result.get("seconds_to_target")
    if reached is None:
        return "not reached" if run.summary else "–"
    return duration(reached)


def page(runs: Sequence[Run], plots: Sequence[list[Plot]], episodes: Sequence[Episode]) -> str:
    """The whole HTML text. ``plots`` are of learning, speed and metrics, ``episodes`` those of
    the first runs."""
    one = runs[0] if len(runs) == 1 else None
    heads, table = results(runs)
    learning, speed, metrics = (
        "".join(_figure("png", plot.png, plot.title) for plot in drawn) for drawn in plots
    )
    shown = []
    for run, e in zip(runs, episodes, strict=False):
        caption = f"<b>{escape(run.label)}</b><br>{escape(e.text)}"
        shown.append(_figure("gif", e.gif, f"an episode of {run.label}", caption))
    template = resources.files("jaxrl_scale.figures").joinpath("report.html").read_text("utf-8")
    return string.Template(template).substitute(
        title=escape(one.label if one else f"{len(runs)} runs compared"),
        subtitle=f"{table[0][2]} on {table[0][1]} · {escape(one.status)}" if one else "",
        tiles=_tiles(one) if one else "",
        results=_table(heads, table, numbers_from=3),
        learning=learning,
        speed=speed,
        legend="" if one else "".join(f"<li>{_name(run)}</li>" for run in runs),
        metrics=metrics,
        episodes="".join(shown) or "<p>None was asked for.</p>",
        configuration=_configuration(runs),
        origins=_table(*_origins(runs)),
    )


def _tiles(run: Run) -> str:
    result, (score, interval) = run.result, _evaluation(run)
    target = result.get("target_return")
    compiling = duration(result["compile_seconds"])
    tiles = [
        (score, f"evaluation return ({f'95 % interval {interval}' if interval else 'none yet'})"),
        (number(result["return_100"]), "training return, last 100 episodes"),
        (compact(result["steps_per_second"]), "environment steps a second"),
        (duration(result["wall_seconds"]), f"wall time, of which compiling {compiling}"),
    ]
    if target is not None:
        tiles.insert(1, (_to_target(run), f"time to the target return of {target:g}"))
    return "".join(f'<div class="tile"><b>{big}</b>{text}</div>' for big, text in tiles)


def _configuration(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        rows = [[f"<code>{escape(k)}</code>", _value(v)] for k, v in runs[0].config.items()]
        inner = _table(["Key", "Value"], rows)
        return f"<details><summary>All {len(rows)} values</summary>{inner}</details>"
    different = config_differences(runs)
    if not different:
        return "<p>The same in all runs.</p>"
    rows = [[f"<code>{escape(k)}</code>", *map(_value, v)] for k, v in different.items()]
    text = "<p>What differs; all other values are the same.</p>"
    return text + _table(["Key", *map(_name, runs)], rows)


def _origins(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Where the runs ran: by their last starts, since a run may move."""
    columns = []
    for run in runs:
        last = run.starts[-1] if run.starts else {}
        devices = Counter(map(str, last.get("devices", ())))
        columns.append(
            {
                "devices": ", ".join(f"{n} × {d}" if n > 1 else d for d, n in devices.items()),
                "starts": len(run.starts) or None,
                **{k: last.get(k) for k in ("platform", "git_commit", "command")},
                **last.get("versions", {}),
            }
        )
    names = dict.fromkeys(name for column in columns for name, value in column.items() if value)
    rows = [[escape(n.replace("_", " ")), *(_value(c.get(n)) for c in columns)] for n in names]
    return ["", *map(_name, runs)], rows


def _value(value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return escape(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def _name(run: Run) -> str:
    """The run's label behind a piece of its line."""
    color = "currentColor" if run.color == "#000000" else run.color
    style = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "double"}[run.line]
    chip = f'<span class="chip" style="border-color:{color};border-top-style:{style}"></span>'
    return chip + escape(run.label)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int = 99) -> str:
    """A table of HTML cells; its columns from ``numbers_from`` on are numbers."""

    def line(cells: Sequence[str], tag: str) -> str:
        inner = ""
        for k, cell in enumerate(cells):
            here = tag if k else "th"
            inner += f"<{here}{' class=number' * (k >= numbers_from)}>{cell}</{here}>"
        return f"<tr>{inner}</tr>"

    body = "".join(line(row, "td") for row in rows)
    table = f"<table><thead>{line(heads, 'th')}</thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _figure(kind: str, image: bytes, alt: str, caption: str = "") -> str:
    data = base64.b64encode(image).decode()
    shown = f'<img src="data:image/{kind};base64,{data}" alt="{escape(alt)}">' if image else ""
    return f"<figure>{shown}{caption and f'<figcaption>{caption}</figcaption>'}</figure>"


# --- the command ----------------------------------------------------------------------------


def report(paths: Sequence[Path], out: Path | None = None, episodes: int = 4) -> list[Path]:
    """Write the report and its images; returns the files, the HTML last."""
    runs = read_runs(paths)
    out = out or (runs[0].path if len(runs) == 1 else Path()) / "report.html"
    out = out / "report.html" if out.is_dir() else out
    with io_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    plots = [learning_plots(runs), speed_plots(runs), metric_plots(runs)]
    shown = [episode(run, out.parent) for run in runs[:episodes]]
    files = {f"{out.stem}-{p.name}.png": p.png for drawn in plots for p in drawn}
    for k, found in enumerate(shown):
        if found.gif:
            files[f"{out.stem}-episode{k if len(runs) > 1 else ''}.gif"] = found.gif
    files[out.name] = page(runs, plots, shown).encode()
    written = []
    for name, data in files.items():
        with io_errors(out.parent / name):
            (out.parent / name).write_bytes(data)
        print(f"wrote {short(out.parent / name)}", flush=True)
        written.append(out.parent / name)
    return written


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    return commands.run(_command, argv)


def _command(argv: list[str]) -> int:
    parser = commands.Parser(
        prog="python -m jaxrl_scale.report",
        description="Write a page about one run, or about several compared: curves, speed, "
        "results, configuration and an episode. Runs that are still going are fine.",
    )
    parser.add_argument("runs", metavar="RUN_DIR", nargs="+", type=Path, help="directory of a run")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="the HTML file; images are written beside it, their names beginning with its own "
        "[report.html in RUN_DIR; with several runs, in the working directory]",
    )
    parser.add_argument(
        "--episodes",
        metavar="N",
        type=commands.whole_number(0),
        default=4,
        help="show an episode of each of the first N runs: RUN_DIR/episode.gif, or one that the "
        "newest checkpoint plays now; 0: none [4]",
    )
    args = parser.parse_args(argv)
    report(args.runs, args.out, args.episodes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
