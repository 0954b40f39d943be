"""The table and the plot of a scaling study; see `jaxrl_scale.scaling`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_scale.config import Config
from jaxrl_scale.errors import how_many
from jaxrl_scale.figures.pages import actions, markdown_table
from jaxrl_scale.figures.plot_style import COLORS, INK, MARKERS, PALE, dress, new_figure, png
from jaxrl_scale.records.terminal import NONE, between, compact, duration, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Compared = Sequence[dict[str, Any]]  # what `study.compare` says of one series
Curves = Sequence[dict[str, tuple[np.ndarray, np.ndarray]]]  # what `study.curves` says of it

BUDGETS = {"iterations": "iterations", "steps": "steps", "seconds": "time"}


# --- the table ------------------------------------------------------------------------------


def markdown(study: dict[str, Any], series: Sequence[Compared], configs: Sequence[Config]) -> str:
    """Machine, commands, and for each series two tables: speed and returns. ``configs`` are those
    of all runs."""
    machine = study["machine"]
    known = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    cores = how_many(machine["cores"], "core")
    lines = [
        f"# Scaling of {study['config']}",
        "",
        f"{machine['processor']}, {cores}; {known}; {machine['date']}.",
        "",
        "```",
        *study["commands"],
        "```",
    ]
    for compared in series:
        heads = ["configuration", "seeds"]
        for budget, unit in (("iterations", " iterations"), ("steps", " steps"), ("seconds", " s")):
            where = compared[0]["returns"][budget]["at"]
            heads += [f"return at {where:,.0f}{unit}", "difference"]
        heads += ["worst seed", "failed", "stuck"]
        names = labels(compared)
        lines += [
            "",
            f"## {title(compared)}",
            "",
            *markdown_table(SPEED_HEADS, map(_speed, names, compared)),
        ]
        lines += ["", *markdown_table(heads, map(_returns, names, compared))]
    notes = [line.format(actions=actions(configs)) for line in NOTES]
    return "\n".join([*lines, "", *notes, ""])


SPEED_HEADS = (
    *("configuration", "devices", "environments", "steps/s"),
    *("speed-up", "efficiency", "compilation"),
)
NOTES = (
    "Steps/s counts valid environment steps of all agents, with all training and without "
    "compilation. It is the median over the run; of several runs it is their median, with the "
    "lowest and the highest in parentheses. Speed-up and difference are against the first line. "
    "Efficiency is the speed-up divided by the growth of the devices.",
    "",
    "Returns are interquartile means over agents with their 95 % bootstrap intervals. At equal "
    "iterations they come from the final evaluation, {actions}. At equal steps (of one agent) and "
    "at equal time (without compilation) they come from the last 100 training episodes; a dash "
    "means that there had not been as many yet. Where both lines have the same seeds, a difference "
    "leaves out those of which an agent failed in either.",
    "",
    "An agent has failed if its loss or another metric is no longer finite. It is stuck if its "
    "evaluation is within 1 % of the worst return that the environment has.",
)


def title(compared: Compared) -> str:
    """The title of one series."""
    if len({_machine(result) for result in compared}) == 1 < len(compared):
        return "More environments"
    weak, envs = compared[0]["mode"] == "weak", compared[0]["base_envs"]
    kind = f"{'Weak' if weak else 'Strong'} scaling, {how_many(envs, 'environment')}"
    return kind + " a device" * weak


def labels(compared: Compared) -> list[str]:
    """What tells the results of a series apart."""
    machines = {_machine(result) for result in compared}
    totals = {result["num_envs"] for result in compared}
    names = []
    for result in compared:
        parts = [_machine_label(result)] if len(machines) > 1 or len(totals) == 1 else []
        parts += [how_many(result["num_envs"], "environment")] if len(totals) > 1 else []
        names.append(", ".join(parts))
    return names


def _machine(result: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(result[name] for name in ("nodes", "processes", "threads", "devices"))


def _machine_label(result: dict[str, Any]) -> str:
    """``2 nodes × 1 process × 4 cores``"""
    kinds = {"nodes": ("node",), "processes": ("process", "processes"), "threads": ("core",)}
    known = ((result[key], words) for key, words in kinds.items() if result[key])
    text = " × ".join(how_many(count, *words) for count, words in known)
    if result["devices"] not in (None, result["threads"]):
        text += f" × {how_many(result['devices'], 'device')}"
    return text


def _speed(name: str, result: dict[str, Any]) -> list[str]:
    speed = compact(result["steps_per_second"])
    if result["runs"] > 1:
        speed += " ({} to {})".format(*map(compact, result["steps_per_second_range"]))
    efficiency = result["efficiency"]
    return [
        name,
        str(result["all_devices"]),
        f"{result['num_envs']:,}",
        speed,
        f"{result['speedup']:.2f}",
        NONE if efficiency is None else f"{100 * efficiency:.0f} %",
        duration(result["compile_seconds"]),
    ]


def _returns(name: str, result: dict[str, Any]) -> list[str]:
    cells = []
    for learned in result["returns"].values():
        cells.append(interval(learned["iqm"], learned["ci95"], result["seeds"]))
        cells.append(interval(learned["difference"], learned["difference_ci95"], result["seeds"]))
    cells.append(NONE if result["worst"] is None else number(result["worst"]))
    stuck = NONE if result["stuck"] is None else str(result["stuck"])
    numbers = [cell if cell == NONE else cell.replace("-", "−") for cell in cells]
    return [name, str(result["seeds"]), *numbers, str(result["failed"]), stuck]


def interval(center: float | None, bounds: Sequence[float] | None, seeds: int) -> str:
    """``-80.1 (-81.2 to -79.3)``; one seed has no interval."""
    if center is None:
        return NONE
    within = between(bounds) if bounds and seeds > 1 else ""
    return f"{number(center)} ({within})" if within else number(center)


# --- the plot -------------------------------------------------------------------------------


def plot(study: dict[str, Any], series: Sequence[Compared], curves: Sequence[Curves]) -> bytes:
    """A PNG: speed, efficiency (where machines differ), returns at the three budgets, learning."""
    figure = new_figure(11, 7.6)
    heading = f"Scaling of {study['config']} on {study['machine']['processor']}"
    figure.suptitle(heading, x=0.01, ha="left", fontsize=11, color=INK)
    panels = figure.subplots(2, 2)
    _draw_lines(panels[0, 0], series, "steps_per_second", "Environment steps a second", 1)
    if any(result["efficiency"] is not None for compared in series for result in compared):
        _draw_lines(panels[0, 1], series, "efficiency", "Efficiency in percent", 100)
    else:
        _draw_curves(panels[0, 1], series, curves, "seconds")
    _draw_returns(panels[1, 0], series)
    _draw_curves(panels[1, 1], series, curves, "steps")
    return png(figure)


def _draw_lines(
    axes: Axes, series: Sequence[Compared], key: str, heading: str, scale: float
) -> None:
    """A number of each result over what grows: the devices or else the environments. Where all
    have the same devices (1 × 2 cores beside 2 × 1), over the configurations."""
    from matplotlib.ticker import EngFormatter

    x_key = _grows(series)
    dress(axes, heading, {"all_devices": "devices", "": ""}.get(x_key, "environments"))
    for k, compared in enumerate(series):
        kept = [result for result in compared if result[key] is not None]
        x = [result[x_key] if x_key else place for place, result in enumerate(kept)]
        y = [scale * result[key] for result in kept]
        style: Any = {"color": COLORS[k % len(COLORS)], "marker": MARKERS[k % len(MARKERS)]}
        axes.plot(x, y, **style, label=title(compared))
        if key == "steps_per_second":
            low, high = zip(*(result["steps_per_second_range"] for result in kept), strict=True)
            axes.vlines(x, low, high, color=style["color"], linewidth=1)
            if x_key == "all_devices":
                ideal = [y[0] * n / x[0] for n in x]
                name = "" if k else "linear speed-up"
                axes.plot(x, ideal, color=PALE, linestyle="--", zorder=1, label=name)
    if x_key:
        places = sorted({result[x_key] for compared in series for result in compared})
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{place:,}" for place in places])
        axes.minorticks_off()
    else:
        axes.set_xticks(range(len(series[0])), labels(series[0]), fontsize=7)
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(frameon=False, fontsize=8)


def _grows(series: Sequence[Compared]) -> str:
    for key in ("all_devices", "num_envs"):
        if any(
            len({result[key] for result in compared}) == len(compared) > 1 for compared in series
        ):
            return key
    return ""


def _draw_returns(axes: Axes, series: Sequence[Compared]) -> None:
    """The returns at equal iterations, steps and time with their intervals, result by result."""
    results = [result for compared in series for result in compared]
    dress(axes, "Return at equal budgets, 95 % intervals", "")
    for k, (budget, words) in enumerate(BUDGETS.items()):
        known = [
            (place + 0.16 * (k - 1), learned["iqm"], *learned["ci95"])
            for place, result in enumerate(results)
            if (learned := result["returns"][budget])["iqm"] is not None
        ]
        style: Any = {"color": COLORS[k], "marker": MARKERS[k], "linestyle": ""}
        x, y, low, high = zip(*known, strict=True) if known else ((), (), (), ())
        of = "evaluation" if budget == "iterations" else "training"
        axes.plot(x, y, **style, markersize=5, label=f"equal {words} ({of})")
        within = np.array(low, float), np.array(high, float)  # None becomes NaN
        axes.vlines(x, *within, color=COLORS[k], linewidth=1.6)
    axes.set_xticks(range(len(results)), _everywhere(series), fontsize=7)
    axes.tick_params(axis="x", rotation=20 if len(results) > 3 else 0)
    axes.margins(x=0.1, y=0.35)  # room for the legend
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")


def _draw_curves(
    axes: Axes, series: Sequence[Compared], curves: Sequence[Curves], over: str
) -> None:
    """The running return of every result over ``steps`` of one agent or ``seconds``. Of curves that
    are equal, as those of one run on more devices are, each has dashes where the others have gaps.
    """
    from matplotlib.ticker import EngFormatter, LogLocator

    words = {"steps": "environment steps of one agent", "seconds": "seconds, without compilation"}
    dress(axes, "Return while training, last 100 episodes", words[over])
    drawn = [curve[over] for one in curves for curve in one]
    bits = [(x.tobytes(), y.tobytes()) for x, y in drawn]
    for k, (name, (x, y)) in enumerate(zip(_everywhere(series), drawn, strict=True)):
        equal, before, dash = bits.count(bits[k]), bits[:k].count(bits[k]), 4
        dashes: Any = (dash * before, (dash, dash * (equal - 1))) if equal > 1 else "-"
        axes.plot(x, y, color=COLORS[k % len(COLORS)], linewidth=1.6, linestyle=dashes, label=name)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # also where they span no decade
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.minorticks_off()
    for line in axes.legend(frameon=False, fontsize=7).get_lines():
        line.set_linestyle("-")


def _everywhere(series: Sequence[Compared]) -> list[str]:
    """A label for each result of all series."""
    if len(series) == 1:
        return labels(series[0])
    return [
        f"{result['mode']}, {result['base_envs']:,}: {name}"
        for compared in series
        for result, name in zip(compared, labels(compared), strict=True)
    ]
