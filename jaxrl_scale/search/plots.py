"""The pictures of a sweep: how each option bears on the score, and what the best setting gains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_scale.config.command_line import written
from jaxrl_scale.figures.plot_style import COLORS, INK, SOFT, dress, new_figure, png
from jaxrl_scale.search.results import Outcome, Ranked, iqm_curve
from jaxrl_scale.search.space import Range, Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(
    ranges: Sequence[Range],
    settings: Sequence[Setting],
    ranks: Sequence[Ranked],
    best: int,
    fresh: Sequence[Outcome],
) -> bytes:
    """A PNG with a plot for each range, in which the setting ``best`` stands out, and one of the
    learning curves on fresh seeds, of which setting 0 is the starting config and setting 1 the
    best."""
    count = len(ranges) + 1
    columns = min(3, count)
    rows = -(-count // columns)
    figure = new_figure(4.2 * columns, 3.2 * rows + 0.4)
    several = any(one.ci95 != (None, None) for one in ranks)  # seeds
    line = ", a line its 95 % interval over seeds" if several else ""
    told = [f"A point is a setting{line}; the large one is the best."]
    if ranks[0].rung:
        told += ["The pale ones were stopped early and have their return in training."]
    if any(each.kind == "choices" for each in ranges):
        told += ["Points of one choice stand side by side."]
    figure.suptitle("\n".join(told), fontsize=9, color=SOFT, ha="left", x=0.02)
    axes = np.ravel(figure.subplots(rows, columns, squeeze=False))
    for ax, each in zip(axes, ranges, strict=False):
        _marginal(ax, each, settings, ranks, best)
    _fresh_curves(axes[len(ranges)], fresh)
    for ax in axes[count:]:
        ax.set_visible(False)
    return png(figure)


def _marginal(
    ax: Axes,
    each: Range,
    settings: Sequence[Setting],
    ranks: Sequence[Ranked],
    best: int,
) -> None:
    """The score of every setting over one option. A line at each point is its interval."""
    known = [one for one in ranks if one.iqm is not None]
    values: list[Any] = [settings[one.setting][each.option] for one in known]
    if each.kind == "choices":
        texts = [text for _, text in _labelled(each)]
        ax.set_xticks(range(len(texts)), texts)
        ax.set_xlim(-0.5, len(texts) - 0.5)  # also a choice that no setting has
        spread = np.random.default_rng(0).uniform(-0.15, 0.15, len(values))
        values = [texts.index(written(x)) + dx for x, dx in zip(values, spread, strict=True)]
    elif each.kind == "log":
        ax.set_xscale("log")
        ax.minorticks_off()
        ax.set_xticks(*zip(*_labelled(each), strict=True))
        low, high = each.values
        margin = (high / low) ** 0.05
        ax.set_xlim(low / margin, high * margin)
    score: list[Any] = [one.iqm for one in known]
    strong: Any = np.array([1.0 if one.rung == ranks[0].rung else 0.3 for one in known])
    ci95 = np.array([one.ci95 for one in known], float).reshape(-1, 2)  # None becomes NaN
    ax.vlines(values, *ci95.T, color=COLORS[0], alpha=0.25 * strong)
    ax.scatter(values, score, s=12, color=COLORS[0], alpha=0.8 * strong)
    chosen = [k for k, one in enumerate(known) if one.setting == best]
    at = [values[k] for k in chosen], [score[k] for k in chosen]
    ax.scatter(*at, s=60, color=COLORS[1], zorder=3)
    dress(ax, each.option, "", "return, IQM over seeds")


def parallel(
    ranges: Sequence[Range], settings: Sequence[Setting], ranks: Sequence[Ranked], best: int
) -> bytes:
    """A PNG with an axis for each range and one for the score, and a line for each setting that was
    trained to the end, the ``best`` a thick one."""
    from matplotlib import colormaps

    known = [one for one in ranks if one.iqm is not None and one.rung == ranks[0].rung]
    scores: list[Any] = [one.iqm for one in known]
    low, high = min(scores, default=0.0), max(scores, default=1.0)
    figure = new_figure(max(6.0, 2.1 * (len(ranges) + 1)), 4.2)
    ax = figure.subplots()
    for one in reversed(known):
        height = 0.5 if high == low else (one.iqm - low) / (high - low)
        setting, is_best = settings[one.setting], one.setting == best
        ax.plot(
            range(len(ranges) + 1),
            [*(each.part(setting[each.option]) for each in ranges), height],
            color=COLORS[1] if is_best else colormaps["viridis"](height),
            linewidth=3 if is_best else 1,
            alpha=1 if is_best else 0.5,
            zorder=3 if is_best else 2,
        )
    ticks = [*map(_ticks, ranges), [(0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")]]
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 1}
    for x, of_axis in enumerate(ticks):
        for part, text in of_axis:
            at = x + 0.03, part
            ax.text(*at, text, fontsize=8, color=INK, va="center", bbox=box, in_layout=False)
    dress(ax, "", "")
    ax.set_xticks(range(len(ranges) + 1), [*(each.option for each in ranges), "return"])
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x", color=SOFT, linewidth=1)
    ax.set_xlim(-0.1, len(ranges) + 0.35)
    return png(figure)


def _ticks(each: Range) -> list[tuple[float, str]]:
    """Where the values of a range stand on an axis from 0 to 1, and their texts."""
    return [(each.part(value), text) for value, text in _labelled(each)]


def _labelled(each: Range) -> list[tuple[Any, str]]:
    """The values of a range that an axis names, and their texts: all choices, or both ends and the
    middle."""
    if each.kind == "choices":
        return [(value, written(value)) for value in each.values]
    low, high = each.values
    middle = math.sqrt(low * high) if each.kind == "log" else (low + high) / 2
    return [(x, f"{x:.3g}") for x in (low, middle, high)]


def curves(found: Sequence[Outcome], ranks: Sequence[Ranked]) -> bytes:
    """A PNG of how the best settings learned."""
    figure = new_figure(9, 4.2)
    ax = figure.subplots()
    for place, (one, color) in enumerate(zip(ranks, COLORS, strict=False), 1):
        _curve(ax, [x.curve for x in found if x.setting == one.setting], f"rank {place}", color)
    _finish(ax, "")
    return png(figure)


def _fresh_curves(ax: Axes, fresh: Sequence[Outcome]) -> None:
    names = ("starting config", "best setting")
    for setting, (name, color) in enumerate(zip(names, COLORS, strict=False)):
        _curve(ax, [one.curve for one in fresh if one.setting == setting], name, color)
    _finish(ax, "On fresh seeds")


def _curve(
    ax: Axes, curves: Sequence[list[tuple[float, float | None]]], name: str, color: str
) -> None:
    """The interquartile mean over the seeds of one setting; a point, where that is all there is."""
    if curves:
        steps, means = iqm_curve(curves)
        ax.plot(steps, means, "o" if len(steps) == 1 else "-", color=color, label=name)


def _finish(ax: Axes, title: str) -> None:
    ax.legend(fontsize=8, frameon=False, labelcolor=SOFT)
    dress(ax, title, "steps of an agent", "return in training, IQM over seeds")
