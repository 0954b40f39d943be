"""The curves and plots of a report: learning, speed and the algorithm's metrics."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl_scale.errors import RunError, nearest
from jaxrl_scale.figures.plot_style import COLORS, LINES, SOFT, dress, new_figure, png
from jaxrl_scale.options import given_path
from jaxrl_scale.records import statistics
from jaxrl_scale.records.past_run import PastRun, read, return_metric
from jaxrl_scale.records.rows import TIMINGS, thinned
from jaxrl_scale.records.terminal import NONE, compact, duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE_POINTS = 300
_SIZE = (6.2, 3.9)  # inches
_STEPS = "environment steps of one agent"

METRICS = {
    "eval_return": "evaluation return",
    "test_return": "test return",
    "eval_normalized": "normalized evaluation return",
    "test_normalized": "normalized test return",
    "length": "episode length",
    "eval_length": "evaluation episode length",
    "test_length": "test episode length",
    "loss": "loss",
    "policy_loss": "policy loss",
    "value_loss": "value loss",
    "entropy": "entropy",
    "approx_kl": "approximate KL divergence",
    "clip_fraction": "clipped fraction",
    "explained_variance": "explained variance",
    "grad_norm": "gradient norm",
    "param_norm": "parameter norm",
    "learning_rate": "learning rate",
}
"""The small plots, in this order; an algorithm's other metrics follow under their own names."""
_NOT_DRAWN = TIMINGS | {"iteration", "env_steps", "episodes", "return", "return_100", "updates"}


@dataclass(frozen=True)
class Drawn:
    """A run and how it is drawn: the same label, colour and line in every plot."""

    run: PastRun
    label: str
    color: str
    line: str


def read_runs(paths: Iterable[Path]) -> list[Drawn]:
    """The runs of some directories, each once."""
    return drawn([read(path) for path in dict.fromkeys(Path(os.path.abspath(p)) for p in paths)])


def drawn(runs: Sequence[PastRun]) -> list[Drawn]:
    """The runs, no two of one directory, labelled by the ends of their paths: as many folders as
    tell them apart."""
    depth = 1
    while len({run.path.parts[-depth:] for run in runs}) < len(runs):
        depth += 1
    return [
        Drawn(
            run,
            label="/".join(run.path.parts[-depth:]),
            color=COLORS[k % len(COLORS)],
            line=LINES[k // len(COLORS) % len(LINES)],
        )
        for k, run in enumerate(runs)
    ]


# --- curves ---------------------------------------------------------------------------------


class Curve(NamedTuple):
    """A metric over ``R`` rows; NaN where there is no number."""

    steps: np.ndarray  # [R] environment steps of one agent
    hours: np.ndarray  # [R] wall-clock time
    center: np.ndarray  # [R] the number, or the interquartile mean over agents
    agents: np.ndarray  # [R, P], those that failed NaN

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """The 95 % intervals of `center` over agents, ``[R]`` and ``[R]``."""
        # Where the center is no number, some agent has none yet.
        known = np.where(np.isfinite(self.center)[:, None], self.agents, np.nan)
        bounds = [statistics.interval(x[np.isfinite(x)]) for x in known]
        low, high = np.array(bounds, float).T  # None becomes NaN
        return low, high


def curve(run: PastRun, metric: str) -> Curve:
    """A metric of a run, thinned to `CURVE_POINTS` rows, the last one among them."""
    kept = thinned(len(run.rows), CURVE_POINTS)
    return Curve(
        steps=run.agent_steps[kept],
        hours=run.column("wall_seconds")[kept] / 3600,
        center=run.column(metric)[kept],
        agents=run.per_agent(metric)[kept],
    )


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
    legend: Sequence[Drawn] = (),
    size: tuple[float, float] = _SIZE,
) -> Iterator[Axes]:
    """Axes as in `_axes`, which become one of ``plots``."""
    figure, axes = _axes(labels, legend, size)
    yield axes
    plots.append(Plot(re.sub(r"[^\w.-]+", "-", name), labels[0], png(figure)))


def _axes(
    labels: tuple[str, str, str], legend: Sequence[Drawn], size: tuple[float, float]
) -> tuple[Figure, Axes]:
    """A figure of ``size`` inches and its axes in the page's style. ``labels`` are the title and
    those of the two axes; a ``legend`` of several runs stands below."""
    below = 0.23 * math.ceil(len(legend) / 2)  # inches
    figure = new_figure(size[0], size[1] + below)
    axes = figure.add_subplot()
    dress(axes, *labels)
    if len(legend) > 1:
        for one in legend:
            axes.plot([], [], color=one.color, linestyle=one.line, label=_as_text(one.label))
        figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=8.5)
    return figure, axes


def learning_plots(runs: Sequence[Drawn]) -> list[Plot]:
    """The returns of each environment's runs, over environment steps and over time."""
    plots: list[Plot] = []
    for env in dict.fromkeys(one.run.config.env for one in runs):
        here = [one for one in runs if one.run.config.env == env]
        curves = [curve(one.run, return_metric(one.run)) for one in here]
        bands = [c.interval() for c in curves]
        unit, scale = _time_unit(curves)
        for over, words, label in (
            ("steps", "environment steps", _STEPS),
            ("time", "wall-clock time", f"wall-clock time ({unit}), compilation included"),
        ):
            labels = (f"{env}: return by {words}", label, "return")
            with _plot(plots, f"return-by-{over}-{env}", labels, here) as axes:
                xs = [c.steps if over == "steps" else c.hours * scale for c in curves]
                _draw_curves(axes, here, xs, curves, bands, behind="return")
                _draw_targets(axes, here)
    return plots


def plot(*run_dirs: str | Path, metric: str | None = None) -> Figure:
    """The learning curves of one run or of several, as a figure that a notebook shows.

    The line of a run of several agents is their interquartile mean, with its 95 % interval; with
    few agents each has a thin line, too. ``figure.savefig("curves.png")`` writes the figure.

    Args:
      run_dirs: run directories; the runs may still be training.
      metric: a name in ``metrics.jsonl``, which docs/metrics.md explains; default: the mean return
        of the last 100 episodes.

    Raises:
      RunError: where there is no such run or metric, or no row of metrics yet.
    """
    if not run_dirs:
        raise RunError("give at least one run directory")
    if metric is not None and not isinstance(metric, str):
        raise RunError(f"metric={metric!r} should be the name of a metric, a text")
    runs = read_runs(given_path("run_dir", run_dir) for run_dir in run_dirs)
    names = [metric or return_metric(one.run) for one in runs]
    curves = [curve(one.run, name) for one, name in zip(runs, names, strict=True)]
    if not any(np.isfinite(c.center).any() for c in curves):
        last = [(name, x) for one in runs for name, x in one.run.rows[-1].items()]
        known = {name for name, x in last if isinstance(x, int | float)}
        near = " yet" if names[0] in dict(last) else nearest(names[0], sorted(known))
        raise RunError(f"no row of metrics has a number for {names[0]!r}{near}")
    title = METRICS.get(metric or "", metric or "return").capitalize()
    envs = ", ".join(dict.fromkeys(one.run.config.env for one in runs))
    figure, axes = _axes((f"{envs}: {title.lower()}", _STEPS, title.lower()), runs, _SIZE)
    bands = [c.interval() for c in curves]
    behind = "return" if metric is None else ""
    _draw_curves(axes, runs, [c.steps for c in curves], curves, bands, behind)
    if metric in (None, "return", "return_100", "eval_return"):
        _draw_targets(axes, runs)
    return figure


def _draw_curves(
    axes: Axes,
    runs: Sequence[Drawn],
    xs: Sequence[np.ndarray],
    curves: Sequence[Curve],
    bands: Sequence[tuple[np.ndarray, np.ndarray]],
    behind: str = "",
) -> None:
    """A metric of the runs over ``xs``. ``behind`` is another, faint behind that of a run of one
    agent; of several agents each has a faint line, if the lines are not too many."""
    few_lines = sum(one.run.config.num_seeds for one in runs) <= 30
    for one, x, c, (low, high) in zip(runs, xs, curves, bands, strict=True):
        faint: dict[str, Any] = {"color": one.color, "alpha": 0.3}
        if one.run.config.num_seeds == 1 and behind:
            axes.plot(x, curve(one.run, behind).center, linewidth=0.9, **faint)
        elif one.run.config.num_seeds > 1 and few_lines:
            axes.plot(x, c.agents, linewidth=0.6, **faint)
        axes.fill_between(x, low, high, color=one.color, alpha=0.2, linewidth=0)
        _line(axes, one, x, c.center)
    axes.set_xlim(left=0)


def _draw_targets(axes: Axes, runs: Sequence[Drawn]) -> None:
    """A dashed line for each return at which a run counts as solved."""
    wanted = {one.run.config.target_return for one in runs}
    for target in sorted(float(target) for target in wanted if target is not None):
        axes.axhline(target, color=SOFT, linestyle=(0, (4, 3)), linewidth=1)
        place = {"transform": axes.get_yaxis_transform(), "va": "bottom"}
        style: Any = {"fontsize": 8, "color": SOFT, **place}
        axes.text(0.01, target, f"target {target:g}", **style)


def speed_plots(runs: Sequence[Drawn]) -> list[Plot]:
    """Speed over time; with several runs also their speeds, times and memory as bars."""
    plots: list[Plot] = []
    curves = [curve(one.run, "steps_per_second") for one in runs]
    unit, scale = _time_unit(curves)
    labels = ("Throughput over time", f"wall-clock time ({unit})", "steps a second")
    with _plot(plots, "throughput", labels, runs) as axes:
        for one, c in zip(runs, curves, strict=True):
            _line(axes, one, c.hours * scale, c.center)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    if len(runs) > 1:
        for key, title, label, text in (
            ("steps_per_second", "Throughput, without compilation", "steps a second", compact),
            ("compile_seconds", "Compilation", "seconds", duration),
            ("wall_seconds", "Wall time", "seconds", duration),
            ("peak_memory_mb", "Peak memory", "MB", compact),
        ):
            _bars(plots, runs, key, (title, label, ""), text)
    return plots


def score_plots(runs: Sequence[Drawn]) -> list[Plot]:
    """Normalized scores of several runs as bars, where there are some."""
    plots: list[Plot] = []
    for key in ("eval_normalized", "test_normalized"):
        if len(runs) > 1 and any(one.run.result.get(key) is not None for one in runs):
            _bars(plots, runs, key, (METRICS[key].capitalize(), "", ""), _hundredths)
    return plots


def _bars(
    plots: list[Plot],
    runs: Sequence[Drawn],
    key: str,
    labels: tuple[str, str, str],
    text: Callable[[float | None], str],
) -> None:
    """A number of each run's result, which ``text`` tells beside its bar."""
    size = (6.2, max(1.9, 1.1 + 0.36 * len(runs)))
    values = [one.run.result.get(key) for one in runs]
    with _plot(plots, f"bars-{key}", labels, size=size) as axes:
        places, lengths = range(len(runs)), [value or 0.0 for value in values]
        bars = axes.barh(places, lengths, 0.62, color=[one.color for one in runs])
        axes.bar_label(bars, [text(v) for v in values], padding=4, fontsize=8.5)
        axes.set_yticks(places, [_as_text(one.label) for one in runs])
        axes.invert_yaxis()
        axes.margins(x=0.16)


def _hundredths(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def metric_plots(runs: Sequence[Drawn]) -> list[Plot]:
    """A small plot for each of the metrics that some run has."""
    plots: list[Plot] = []
    rows = [row for one in runs for row in one.run.rows]
    numbers = (k for row in rows for k, v in row.items() if isinstance(v, int | float))
    found = dict.fromkeys(name for name in numbers if name not in _NOT_DRAWN)
    for name in [*(m for m in METRICS if m in found), *(m for m in found if m not in METRICS)]:
        own = "/" in name  # an environment's or a user's, called as they called it
        title = METRICS.get(name, name if own else name.replace("_", " "))
        labels = (_as_text(title, most=44), "steps of one agent", "")
        with _plot(plots, name, labels, size=(3.6, 2.5)) as axes:
            for one in runs:
                c = curve(one.run, name)
                _line(axes, one, c.steps, c.center, 1.3)
            axes.set_xlim(left=0)
    return plots


def _line(axes: Axes, one: Drawn, x: np.ndarray, y: np.ndarray, width: float = 1.9) -> None:
    known = np.isfinite(y)  # joined across rows without a number, such as those between evaluations
    marker = "o" if known.sum() < 3 else None
    style: dict[str, Any] = {"color": one.color, "linestyle": one.line, "marker": marker}
    axes.plot(x[known], y[known], linewidth=width, **style)


def _time_unit(curves: Iterable[Curve]) -> tuple[str, float]:
    """The unit for a time axis, and how many of it an hour has."""
    longest = max(np.nanmax(c.hours) for c in curves)
    return ("hours", 1) if longest > 3 else ("minutes", 60) if longest > 0.05 else ("seconds", 3600)


def _as_text(label: str, most: int = 34) -> str:
    """A name in a picture, shortened in the middle. matplotlib takes what is between dollars
    for mathematics, and leaves a name that begins with ``_`` out of its legends."""
    if len(label) > most:
        label = f"{label[: most // 2]}…{label[-most // 2 + 1 :]}"
    if label.startswith("_"):
        label = f" {label}"
    return label.replace("$", r"\$")
