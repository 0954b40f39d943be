"""The picture of a sweep: how each option bears on the score, and what the best setting gains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_scale.config.command_line import written
from jaxrl_scale.figures.plot_style import COLORS, SOFT, dress, new_figure, png
from jaxrl_scale.records.statistics import iqm
from jaxrl_scale.search.results import Outcome, Ranked
from jaxrl_scale.search.space import Range, Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(
    ranges: Sequence[Range],
    settings: Sequence[Setting],
    ranks: Sequence[Ranked],
    fresh: Sequence[Outcome],
) -> bytes:
    """A PNG with a plot for each range, and one of the learning curves on fresh seeds, of which
    setting 0 is the starting config and setting 1 the best."""
    count = len(ranges) + 1
    columns = min(3, count)
    rows = -(-count // columns)
    figure = new_figure(4.2 * columns, 3.2 * rows + 0.4)
    told = (
        "A point is a setting and its line the 95 % interval over seeds; the large one is the best"
        + (", the pale ones were stopped early." if ranks[0].rung else ".")
    )
    figure.suptitle(told, fontsize=9, color=SOFT, ha="left", x=0.02)
    axes = np.ravel(figure.subplots(rows, columns, squeeze=False))
    for ax, each in zip(axes, ranges, strict=False):
        _marginal(ax, each, settings, ranks)
    _curves(axes[len(ranges)], fresh)
    for ax in axes[count:]:
        ax.set_visible(False)
    return png(figure)


def _marginal(ax: Axes, each: Range, settings: Sequence[Setting], ranks: Sequence[Ranked]) -> None:
    """The score of every setting over one option. A line at each point is its interval."""
    known = [one for one in ranks if one.iqm is not None]
    values: list[Any] = [settings[one.setting][each.option] for one in known]
    if each.kind == "choices":
        texts = [written(value) for value in each.values]
        ax.set_xticks(range(len(texts)), texts)
        spread = np.random.default_rng(0).uniform(-0.15, 0.15, len(values))
        values = [texts.index(written(x)) + dx for x, dx in zip(values, spread, strict=True)]
    elif each.kind == "log":
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter("")
    score: list[Any] = [one.iqm for one in known]
    strong: Any = np.array([1.0 if one.rung == ranks[0].rung else 0.3 for one in known])
    ci95 = np.array([one.ci95 for one in known])
    ax.vlines(values, *ci95.T, color=COLORS[0], alpha=0.25 * strong)
    ax.scatter(values, score, s=12, color=COLORS[0], alpha=0.8 * strong)
    ax.scatter(values[:1], score[:1], s=60, color=COLORS[1], zorder=3)
    dress(ax, each.option, "", "return, IQM over seeds")


def _curves(ax: Axes, fresh: Sequence[Outcome]) -> None:
    names = ("starting config", "best setting")
    for setting, (name, color) in enumerate(zip(names, COLORS, strict=False)):
        curves = [one.curve for one in fresh if one.setting == setting]
        if not curves:
            continue
        steps = np.mean([[x for x, _ in curve] for curve in curves], 0)
        returns = np.array([[np.nan if y is None else y for _, y in curve] for curve in curves]).T
        centre = [
            iqm(row[np.isfinite(row)]) if np.isfinite(row).any() else np.nan for row in returns
        ]
        ax.plot(steps, centre, color=color, label=name)
    ax.legend(fontsize=8, frameon=False, labelcolor=SOFT)
    dress(ax, "On fresh seeds", "steps of an agent", "return, IQM over seeds")
