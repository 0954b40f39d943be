"""The curves and plots of a report: learning, speed and the algorithm's metrics."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl_scale.records import statistics
from jaxrl_scale.records.rows import TIMINGS, Row
from jaxrl_scale.records.terminal import compact, duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from jaxrl_scale.report import Run

CURVE_POINTS = 300

METRICS = {
    "eval_return": "evaluation return",
    "length": "episode length",
    "loss": "loss",
    "policy_loss": "policy loss",
    "value_loss": "value loss",
    "entropy": "entropy",
    "approx_kl": "approximate KL divergence",
    "clip_fraction": "clipped fraction",
    "explained_variance": "explained variance",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
}
"""The small plots, in this order; an algorithm's other metrics follow under their own names."""
_NOT_DRAWN = TIMINGS | {"iteration", "env_steps", "episodes", "return", "return_100", "updates"}


# --- curves ---------------------------------------------------------------------------------


class Curve(NamedTuple):
    """A metric over ``R`` rows; NaN where there is no number."""

    steps: np.ndarray  # [R] environment steps of one agent
    hours: np.ndarray  # [R] wall-clock time
    center: np.ndarray  # [R] the number, or the interquartile mean over seeds
    seeds: np.ndarray  # [R, P], failed ones NaN; P is 0 where a row has no number per seed

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """The 95 % intervals of `center` over seeds, ``[R]`` and ``[R]``."""
        known = np.isfinite(self.center)  # elsewhere some seed has no number yet
        seeds = np.where(known[:, None], self.seeds, np.nan)
        bounds = [statistics.interval(x[np.isfinite(x)]) for x in seeds]
        low, high = np.array(bounds, float).T  # None becomes NaN
        return low, high


def curve(run: Run, metric: str) -> Curve:
    """A metric of a run, thinned to `CURVE_POINTS` rows, the last one among them."""
    stride = math.ceil(len(run.rows) / CURVE_POINTS)
    rows = run.rows[::-stride][::-1]
    width = max(len((row.get("per_seed") or {}).get(metric, ())) for row in rows)

    def seeds(row: Row) -> list[float]:
        values = (row.get("per_seed") or {}).get(metric) or [None] * width
        return _floats(None if m in (row.get("failed") or ()) else v for m, v in enumerate(values))

    return Curve(
        steps=np.array(_floats(row["env_steps"] for row in rows)) / run.num_seeds,
        hours=np.array(_floats(row["wall_seconds"] for row in rows)) / 3600,
        center=np.array(_floats(row.get(metric) for row in rows)),
        seeds=np.array([seeds(row) for row in rows]),
    )


def _floats(values: Iterable[float | None]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]


def _return_metric(run: Run) -> str:
    """Runs too short for 100 episodes have only the returns between two rows."""
    return "return_100" if any(row.get("return_100") is not None for row in run.rows) else "return"


# --- plots ----------------------------------------------------------------------------------


class Plot(NamedTuple):
    """An image and the end of its file's name."""

    name: str
    title: str
    png: bytes


@contextmanager
def _plot(
    plots: list[Plot],
    name: str,
    labels: tuple[str, str, str],
    legend: Sequence[Run] = (),
    size: tuple[float, float] = (6.2, 3.9),
) -> Iterator[Axes]:
    """Axes in the page's style, which become one of ``plots``; matplotlib's global state stays
    untouched. ``labels`` are the title and those of the two axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    ink, soft, pale = "#1b1f24", "#5b6470", "#c4cad1"
    below = 0.23 * math.ceil(len(legend) / 2)  # inches
    figure = Figure((size[0], size[1] + below), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(labels[0], loc="left", fontsize=11, fontweight="bold", color=ink, pad=10)
    axes.set_xlabel(labels[1], fontsize=9, color=soft)
    axes.set_ylabel(labels[2], fontsize=9, color=soft)
    axes.tick_params(labelsize=8.5, labelcolor=soft, color=pale)
    axes.grid(color="#e6e9ed", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(pale)
    for axis, label in ((axes.xaxis, labels[1]), (axes.yaxis, labels[2])):
        if "steps" in label:
            axis.set_major_formatter(EngFormatter(sep=""))
    yield axes
    if len(legend) > 1:
        for run in legend:
            axes.plot([], [], color=run.color, linestyle=run.line, label=_cut(run.label))
        figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=8.5)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    plots.append(Plot(re.sub(r"[^\w.-]+", "-", name), labels[0], buffer.getvalue()))


def learning_plots(runs: Sequence[Run]) -> list[Plot]:
    """The returns of each environment's runs, over environment steps and over time."""
    plots: list[Plot] = []
    for env in dict.fromkeys(run.config["env"] for run in runs):
        here = [run for run in runs if run.config["env"] == env]
        curves = [curve(run, _return_metric(run)) for run in here]
        bands = [c.interval() for c in curves]
        few_lines = sum(c.seeds.shape[1] for c in curves) <= 30
        unit, scale = _time_unit(curves)
        for over, words, label in (
            ("steps", "environment steps", "environment steps of one agent"),
            ("time", "wall-clock time", f"wall-clock time ({unit}), compilation included"),
        ):
            labels = (f"{env}: return by {words}", label, "return")
            with _plot(plots, f"return-by-{over}-{env}", labels, here) as axes:
                for run, c, (low, high) in zip(here, curves, bands, strict=True):
                    x = c.steps if over == "steps" else c.hours * scale
                    if not c.seeds.size:
                        raw = curve(run, "return").center
                        axes.plot(x, raw, color=run.color, alpha=0.3, linewidth=0.9)
                    elif few_lines:
                        axes.plot(x, c.seeds, color=run.color, alpha=0.3, linewidth=0.6)
                    axes.fill_between(x, low, high, color=run.color, alpha=0.2, linewidth=0)
                    _line(axes, run, x, c.center)
                axes.set_xlim(left=0)
                for target in sorted({float(r.config.get("target_return") or "nan") for r in here}):
                    axes.axhline(target, color="#5b6470", linestyle=(0, (4, 3)), linewidth=1)
                    place = {"transform": axes.get_yaxis_transform(), "va": "bottom"}
                    style: Any = {"fontsize": 8, "color": "#5b6470", **place}
                    axes.text(0.01, target, f"target {target:g}", **style)
    return plots


def speed_plots(runs: Sequence[Run]) -> list[Plot]:
    """Speed over time; with several runs also their speeds and compile times as bars."""
    plots: list[Plot] = []
    curves = [curve(run, "steps_per_second") for run in runs]
    unit, scale = _time_unit(curves)
    labels = ("Throughput over time", f"wall-clock time ({unit})", "steps a second")
    with _plot(plots, "throughput", labels, runs) as axes:
        for run, c in zip(runs, curves, strict=True):
            _line(axes, run, c.hours * scale, c.center)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    if len(runs) == 1:
        return plots
    size = (6.2, max(1.9, 1.1 + 0.36 * len(runs)))
    for key, title, label, text in (
        ("steps_per_second", "Throughput, without compilation", "steps a second", compact),
        ("compile_seconds", "Compilation", "seconds", duration),
    ):
        values = [run.result.get(key) for run in runs]
        with _plot(plots, f"bars-{key}", (title, label, ""), size=size) as axes:
            places = range(len(runs))
            bars = axes.barh(places, _floats(values), 0.62, color=[run.color for run in runs])
            axes.bar_label(bars, [text(v) for v in values], padding=4, fontsize=8.5)
            axes.set_yticks(places, [_cut(run.label) for run in runs])
            axes.invert_yaxis()
            axes.margins(x=0.16)
    return plots


def metric_plots(runs: Sequence[Run]) -> list[Plot]:
    """A small plot for each of the metrics that some run has."""
    plots: list[Plot] = []
    rows = [row for run in runs for row in run.rows]
    numbers = (k for row in rows for k, v in row.items() if isinstance(v, int | float))
    found = dict.fromkeys(name for name in numbers if name not in _NOT_DRAWN)
    for name in [*(m for m in METRICS if m in found), *(m for m in found if m not in METRICS)]:
        labels = (METRICS.get(name, name.replace("_", " ")), "steps of one agent", "")
        with _plot(plots, name, labels, size=(3.6, 2.5)) as axes:
            for run in runs:
                c = curve(run, name)
                _line(axes, run, c.steps, c.center, 1.3)
            axes.set_xlim(left=0)
    return plots


def _line(axes: Axes, run: Run, x: np.ndarray, y: np.ndarray, width: float = 1.9) -> None:
    known = np.isfinite(y)  # joined across rows without a number, such as those between evaluations
    marker = "o" if known.sum() < 3 else None
    style: dict[str, Any] = {"color": run.color, "linestyle": run.line, "marker": marker}
    axes.plot(x[known], y[known], linewidth=width, **style)


def _time_unit(curves: Iterable[Curve]) -> tuple[str, float]:
    """The unit for a time axis, and how many of it an hour has."""
    longest = max(np.nanmax(c.hours) for c in curves)
    return ("hours", 1) if longest > 3 else ("minutes", 60) if longest > 0.05 else ("seconds", 3600)


def _cut(label: str, most: int = 34) -> str:
    return label if len(label) <= most else f"{label[: most // 2]}…{label[-most // 2 + 1 :]}"
