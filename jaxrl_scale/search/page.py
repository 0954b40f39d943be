"""The page of a sweep: what a person wants to see of it, in one HTML file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from jaxrl_scale import algos
from jaxrl_scale.config import Config
from jaxrl_scale.config.command_line import written
from jaxrl_scale.config.files import flatten
from jaxrl_scale.errors import how_many
from jaxrl_scale.figures.pages import render
from jaxrl_scale.records.terminal import between, number
from jaxrl_scale.search import plots
from jaxrl_scale.search.results import Outcome, Ranked
from jaxrl_scale.search.space import Range, Setting

SHOWN = 20
"""Settings in the table."""


def page(
    lines: Sequence[str],
    base: Config,
    ranges: Sequence[Range],
    settings: Sequence[Setting],
    found: Sequence[Outcome],
    ranks: Sequence[Ranked],
    best: int,
    marginals: bytes,
) -> str:
    """The HTML text.

    Args:
      lines: what the sweep says of its best setting.
      base: the starting config.
      best: the setting that is written as a config.
      marginals: the picture of `plots.draw`.
    """
    seeds, options = seeds_of_each(found), flatten(base)
    last = max(one.rung for one in ranks)
    return render(
        "sweep.html",
        title=f"A search of {how_many(len(settings), 'setting')}",
        subtitle=f"{algos.title(base.algo.name)} on {base.env}; each setting has "
        f"{how_many(seeds, 'seed')}",
        lines=lines,
        marginals=marginals,
        together=plots.parallel(ranges, settings, ranks, best),
        curves=plots.curves(found, ranks),
        heads=["Rank", *settings[0], *["Trained"] * (last > 0), "Return", "Worst seed", "Failed"],
        stopped=any(one.rung < last for one in ranks),
        rows=[
            [
                *(place, *map(_brief, settings[one.setting].values())),
                *[_trained(one, last)] * (last > 0),
                *_scores(one),
            ]
            for place, one in enumerate(ranks[:SHOWN], 1)
        ],
        changes=[
            [name, _brief(options[name]), _brief(value)]
            for name, value in settings[best].items()
            if options[name] != value
        ],
    )


def seeds_of_each(found: Sequence[Outcome]) -> int:
    """How many seeds a setting has. Those of a population have one each, and each another."""
    return max(Counter(one.setting for one in found).values())


def _brief(value: Any) -> str:
    """A value with four digits, since the tables have all."""
    return f"{value:.4g}" if isinstance(value, float) else written(value)


def _trained(one: Ranked, last: int) -> str:
    """How far a setting came, of as many rungs as there are before the end."""
    return "to the end" if one.rung == last else f"stopped at rung {one.rung + 1}"


def _scores(one: Ranked) -> list[str | int]:
    """What the table says of a setting's seeds."""
    if one.iqm is None:
        return ["none", "none", one.failed]
    within = between(one.ci95)
    told = f"{number(one.iqm)} ({within})" if within else number(one.iqm)
    return [told, number(one.scores.min()), one.failed]
