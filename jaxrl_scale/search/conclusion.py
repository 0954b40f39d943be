"""What a sweep ends with: its tables, its picture, its page, the config of the best, and the
sentences that a person wants to read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_scale import commands
from jaxrl_scale.config import Config, command_line, files
from jaxrl_scale.errors import how_many
from jaxrl_scale.records import statistics
from jaxrl_scale.records.run_directory import replace_file, short
from jaxrl_scale.records.terminal import between, number
from jaxrl_scale.search import results, wandb_group
from jaxrl_scale.search.plan import shown
from jaxrl_scale.search.results import Outcome, Ranked
from jaxrl_scale.search.space import Range
from jaxrl_scale.search.stages import Found


def write(
    folder: Path,
    base: Config,
    ranges: Sequence[Range],
    found: Found,
    every: int = 0,
) -> None:
    """The tables, the picture and the winner's config; prints what a person wants to know.

    Args:
      every: iterations between the changes of a population.
    """
    from jaxrl_scale.search import plots
    from jaxrl_scale.search.page import page

    (outcomes, settings, histories), ranks, finalists, fresh = found
    final = finalists[0]
    best, history = settings[final.setting], histories[final.setting]
    lines = _told(found, every)
    text = "\n\n".join(["Found by a sweep of jaxrl_scale.", *lines])
    config = command_line.with_options(base, best).replace(run_dir=None)
    schedule = {"schedule.csv": results.schedule_table(history, every)} if every else {}
    with commands.working("drawing the results"):
        picture = plots.draw(ranges, settings, ranks, final.setting, fresh)
        files_of_sweep: dict[str, bytes | None] = {
            **schedule,
            "agents.csv": results.agents_table(outcomes, settings),
            "agents.parquet": results.agents_parquet(outcomes, settings),
            "settings.csv": results.settings_table(ranks, settings),
            "finalists.csv": results.settings_table(finalists, settings),
            "curves.csv": results.curves_table(outcomes),
            "sweep.png": picture,
            "sweep.html": page(
                lines, base, ranges, settings, outcomes, ranks, final.setting, picture
            ).encode(),
            "best.py": files.to_python(config, text).encode(),
        }
    for name, data in files_of_sweep.items():
        if data is not None:
            replace_file(folder / name, data)
            print(f"wrote {short(folder / name)}")
    with commands.working("handing the sweep to wandb"):
        wandb_group.log(folder, base, settings, outcomes, ranks)
    print("\n".join(lines))


def _told(found: Found, every: int) -> list[str]:
    """What a person wants to know, as sentences. The arguments are those of `write`."""
    (_, settings, _), ranks, finalists, fresh = found
    best = finalists[0].setting
    place = [one.setting for one in ranks].index(best)
    start, winner = _compared(fresh)
    difference = statistics.difference(winner, start)
    gained, ci95 = difference["difference"], difference["difference_ci95"]
    if gained is None:
        verdict = "an agent failed, so that the two cannot be compared"
    elif ci95 is None:
        verdict = "one seed cannot tell whether the difference holds up"
    else:
        holds = "holds up" if ci95[0] > 0 else "does not hold up"
        verdict = f"the difference is {number(gained)} (95 % interval {between(ci95)}): it {holds}"
        if min(len(start), len(winner)) < statistics.FEW:
            verdict += f", as far as {how_many(len(start), 'seed')} can tell"
    after = how_many(every, "iteration") if every > 1 else "iteration"
    changed = (
        f" at the end; before, it changed every {after} as schedule.csv says, and so it "
        "did on fresh seeds."
    )
    searched, count = ranks[place], len({one.seed for one in fresh})
    ours, theirs = (number(statistics.score(x)) for x in (winner, start))
    of_all, seeds = how_many(len(settings), "setting"), how_many(count, "fresh seed")
    return [
        f"The best of {of_all}: {shown(settings[best])}{changed if every else ''}",
        f"Its return in the search: {number(searched.iqm)} ({_seeds(searched)}), rank {place + 1}.",
        *_finals(finalists),
        f"On {seeds}: {ours}, and {theirs} with the starting config; {verdict}.",
    ]


def _finals(finalists: Sequence[Ranked]) -> list[str]:
    """What is said of them."""
    first, *others = finalists
    if not others:
        return []
    theirs = ", ".join(number(one.iqm) for one in others)
    have = "the others have" if len(others) > 1 else "the other has"
    return [
        f"Of the {len(finalists)} best there it is the best with other seeds: {number(first.iqm)} "
        f"({_seeds(first)}), worst seed {number(min(first.scores, default=None))}; {have} "
        f"{theirs}."
    ]


def _seeds(one: Ranked) -> str:
    return f"IQM over {how_many(len(one.scores), 'seed')}"


def _compared(fresh: Sequence[Outcome]) -> list[Any]:
    """The scores on fresh seeds of the starting config and of the best setting; none where an agent
    failed."""
    both = [[one.score for one in fresh if one.setting == k] for k in (0, 1)]
    return [np.array([] if None in scores else scores, np.float64) for scores in both]
