"""What a notebook shows of a run while it trains: a progress bar and the learning curve so far.

Both are one piece of HTML in the output of the cell, which each new one replaces. It needs neither
widgets nor matplotlib, and takes a fraction of a millisecond to write.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from jaxrl_scale.config import Config
from jaxrl_scale.records.rows import Row, thinned
from jaxrl_scale.records.terminal import compact, duration, number, seconds_left

_POINTS = 300
_SECONDS = 0.25  # from one picture to the next, at least
_WIDTH, _HEIGHT = 560, 170
_LEFT, _TOP = 60, 8  # where the curve begins, in the same units


def here() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


class Bar:
    """The bar of one run in the cell that trains it, from the call until `stop`. Then the curve
    stays."""

    def __init__(self, config: Config, iteration: int = 0):
        from IPython.display import display

        self._total, self._target = config.num_iterations, config.target_return
        self._phase, self._text, self._done = "starting", "", iteration / self._total
        self._points: list[tuple[float, float]] = []
        self._shown = time.monotonic()
        self._handle: Any = display(self._data(), raw=True, display_id=True)

    def phase(self, name: str) -> None:
        """Show what goes on."""
        self._phase = name
        self._show()

    def update(self, row: Row) -> None:
        """Show a row."""
        self._done = row["iteration"] / self._total
        self._text = (
            f"{compact(row['env_steps'])} steps · {compact(row.get('steps_per_second'))}/s · "
            f"return {number(row.get('return_100'))} · "
            f"{duration(seconds_left(row, self._total))} left"
        )
        if row.get("return_100") is not None:
            self._points.append((row["env_steps"], row["return_100"]))
        if time.monotonic() - self._shown > _SECONDS:
            self._show()

    def say(self, text: str) -> None:
        """Print a line, below the bar."""
        print(text, flush=True)

    def stop(self) -> None:
        """Take the bar away. The curve stays."""
        self._phase = ""
        self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        self._handle.update(self._data(), raw=True)

    def _data(self) -> dict[str, str]:
        parts, text = [], ""
        if self._phase:
            text = " · ".join(filter(None, (self._phase, f"{self._done:.0%}", self._text)))
            bar = f'<progress value="{self._done:.4f}" style="width: 100%"></progress>'
            parts = [bar, f"<div>{text}</div>"]
        if len(self._points) > 1:
            parts.append(svg(self._points, self._target))
        style = f"max-width: {_WIDTH}px; font-family: sans-serif; font-size: 12px"
        return {"text/html": f'<div style="{style}">{"".join(parts)}</div>', "text/plain": text}


def svg(points: Sequence[tuple[float, float]], target: float | None = None) -> str:
    """A learning curve as SVG.

    Args:
      points: environment steps and the mean return of the last 100 episodes, two or more.
      target: a return that gets a line of its own.
    """
    kept = points[thinned(len(points), _POINTS)]
    values = [y for _, y in points] + ([] if target is None else [target])
    low, high, last = min(values), max(values), points[-1][0]
    across, down = _WIDTH - _LEFT - 8, _HEIGHT - _TOP - 22

    def x(steps: float) -> float:
        return _LEFT + across * steps / last

    def y(value: float) -> float:
        return _TOP + down * (1 - (value - low) / ((high - low) or 1))

    def text(left: float, top: float, anchor: str, what: str) -> str:
        return f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}">{what}</text>'

    def line(height: float, dashes: str = "") -> str:
        ends = f'x1="{_LEFT}" x2="{_LEFT + across}" y1="{height:.1f}" y2="{height:.1f}"'
        return f'<line {ends} stroke="currentColor" opacity="0.4" {dashes}/>'

    curve = " ".join(f"{x(steps):.1f},{y(value):.1f}" for steps, value in kept)
    parts = [
        line(_TOP + down),
        *([] if target is None else [line(y(target), 'stroke-dasharray="4 3"')]),
        f'<polyline points="{curve}" fill="none" stroke="#0072B2" stroke-width="2"/>',
        '<g fill="currentColor" font-size="11">',
        *(text(_LEFT - 6, y(value) + 4, "end", number(value)) for value in {low, high}),
        text(_LEFT, _HEIGHT - 6, "start", "return, mean of the last 100 episodes"),
        text(_LEFT + across, _HEIGHT - 6, "end", f"{compact(last)} steps"),
        "</g>",
    ]
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" style="width: 100%; font-family: sans-serif"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{"".join(parts)}</svg>'
