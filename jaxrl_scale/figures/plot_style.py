"""The style that all plots share."""

from __future__ import annotations

import functools
import io
import os
from typing import TYPE_CHECKING

from jaxrl_scale.errors import RunError
from jaxrl_scale.options import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Told apart by the colour-blind: https://jfly.uni-koeln.de/color/ (Okabe and Ito)."""
LINES = ("-", "--", ":", "-.")  # where there are more lines than colours
MARKERS = "osD^v"
INK, SOFT, PALE, FAINT = "#1b1f24", "#5b6470", "#c4cad1", "#e6e9ed"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches. matplotlib's global state is left alone. In a notebook it is
    shown where it is the value of a cell."""
    return _figure_class()((width, height), dpi=160, layout="constrained")


@functools.cache
def _figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ValueError as error:  # it reads this variable, maybe of another program's, when imported
        backend = shortened(os.environ.get("MPLBACKEND", ""))
        raise RunError(f"MPLBACKEND={backend} is no backend of matplotlib; unset it") from error

    class Shown(Figure):
        """matplotlib's own figures are shown only if pyplot has been imported."""

        def _repr_png_(self) -> bytes:
            return png(self)

    return Shown


def dress(axes: Axes, title: str, x_label: str, y_label: str = "") -> None:
    """Title, labels and colours of one plot; axes that count steps are written 1k, 1M."""
    from matplotlib.ticker import EngFormatter

    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=10)
    axes.set_xlabel(x_label, fontsize=9, color=SOFT)
    axes.set_ylabel(y_label, fontsize=9, color=SOFT)
    axes.tick_params(labelsize=8.5, labelcolor=SOFT, color=PALE)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(PALE)
    for axis, label in ((axes.xaxis, x_label), (axes.yaxis, y_label)):
        if "steps" in label:
            axis.set_major_formatter(EngFormatter(sep=""))


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()
