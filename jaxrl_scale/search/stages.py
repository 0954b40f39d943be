"""The stages of a sweep: the search itself, the best settings with other seeds, and the winner with
fresh ones beside the starting config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_scale.config import Config, command_line, files
from jaxrl_scale.errors import NOT_FINITE, RunError, how_many
from jaxrl_scale.records.run_directory import short
from jaxrl_scale.search import results
from jaxrl_scale.search.plan import Plan, shown
from jaxrl_scale.search.results import Outcome, Ranked
from jaxrl_scale.search.schedulers import (
    TrainAll,
    Trained,
    train_batches,
    train_history,
    train_population,
    train_rungs,
)
from jaxrl_scale.search.space import Draws, Range, Setting


class Search(NamedTuple):
    """What a sweep searches, and how: the command's options, checked."""

    base: Config  # to which the settings are changes
    ranges: list[Range]
    settings: list[Setting]  # the first of them, where a model proposes more
    plan: Plan
    folder: Path
    agents: int
    draw: Draws
    draw_seed: int
    rungs: int
    factor: int
    perturb_every: int
    finalists: int
    fresh_seeds: int

    def to_json(self) -> dict[str, Any]:
        """All that what is found depends on, as data for JSON."""
        free = command_line.CHANGEABLE  # nothing that is found depends on it
        config = {name: x for name, x in files.to_json(self.base).items() if name not in free}
        told: dict[str, Any] = {"config": config, "settings": self.settings}
        told["seeds"] = list(self.plan.seeds)
        alike = ("rungs", "factor", "perturb_every", "finalists", "fresh_seeds")
        told |= {name: getattr(self, name) for name in alike}
        if self.draw == "tpe" or self.perturb_every:  # which draw more than the settings
            told |= {"draw_seed": self.draw_seed, "ranges": [str(each) for each in self.ranges]}
        if self.draw == "tpe":
            told |= {"agents": self.agents}
        return told


class Found(NamedTuple):
    """What a sweep has found."""

    trained: Trained
    ranks: Sequence[Ranked]  # of all settings, by the search
    finalists: Sequence[Ranked]  # the best of them, as other seeds rank them; the first is the best
    fresh: Sequence[Outcome]  # with fresh seeds: of the starting config (0) and of the best (1)


def train(search: Search, parts: list[list[int]], train_all: TrainAll) -> Found | None:
    """Train all settings, the best of them with other seeds, and the best of these with fresh seeds
    beside the starting config.

    Args:
      parts: which settings train side by side first.

    Returns:
      None where a signal stopped it.
    """
    trained = _search(search, parts, train_all)
    if trained is None:
        return None
    ranks = results.ranked(trained.found)
    if all(one.iqm is None for one in ranks):
        raise RunError(
            "no agent of the search has a finite loss and return, so that no setting is the best; "
            "smaller learning rates may help, or the environment returns NaN; the runs are in "
            f"{short(search.folder)}",
            NOT_FINITE,
        )
    finalists = finals(search, trained, ranks, train_all)
    if finalists is None:
        return None
    best = finalists[0].setting
    print(f"the best, {shown(trained.settings[best])}, and the starting config with fresh seeds")
    fresh = _on_fresh_seeds(search, trained, best, train_all)
    return None if fresh is None else Found(trained, ranks, finalists, fresh)


def _search(search: Search, parts: list[list[int]], train_all: TrainAll) -> Trained | None:
    base, ranges, settings, folder = search.base, search.ranges, search.settings, search.folder
    plan, by_model = search.plan, search.draw == "tpe"
    count = search.agents // len(plan.seeds) if by_model else len(settings)
    print(
        f"{how_many(count, 'setting')} with {how_many(len(plan.seeds), 'seed')} each, "
        + ("in batches" if by_model else how_many(len(parts), "chunk"))
        + f"; in {short(folder)}",
        flush=True,
    )
    if by_model:
        seeds, most, seed = plan.seeds, plan.most, search.draw_seed
        return train_batches(base, ranges, settings, count, seeds, most, folder, seed, train_all)
    if search.perturb_every:
        every, seed = search.perturb_every, search.draw_seed
        return train_population(base, ranges, settings, folder, every, seed, train_all)
    return train_rungs(plan, settings, folder, parts, search.factor, train_all)


def finals(
    search: Search, trained: Trained, ranks: Sequence[Ranked], train_all: TrainAll
) -> list[Ranked] | None:
    """The best settings of those that were trained to the end, ranked by seeds that the search has
    not seen, as the best of many owes a part of its score to luck. None where a signal stopped an
    agent."""
    last = [one for one in ranks if one.rung == ranks[0].rung][: search.finalists]
    if len(last) == 1:
        return last
    found: list[Outcome] = []
    for k, one in enumerate(last, 1):
        print(f"finalist {k} of {len(last)}: {shown(trained.settings[one.setting])}", flush=True)
        history = trained.histories[one.setting]
        outcomes = _train_unseen(search, trained, history, f"finalist{k}", 0, train_all)
        if outcomes is None:
            return None
        found += [each._replace(setting=one.setting, rung=one.rung) for each in outcomes]
    return results.ranked(found)


def _on_fresh_seeds(
    search: Search, trained: Trained, best: int, train_all: TrainAll
) -> list[Outcome] | None:
    """The outcomes of the starting config, setting 0, and of the best, 1, with seeds that nothing
    was trained with; None where a signal stopped an agent."""
    fresh: list[Outcome] = []
    block = 1 if search.finalists > 1 else 0
    histories: dict[str, list[Setting]] = {
        "the starting config": [{}],
        "the best": trained.histories[best],
    }
    for k, (name, history) in enumerate(histories.items()):
        print(f"fresh seeds, {name}", flush=True)
        outcomes = _train_unseen(search, trained, history, f"fresh{k}", block, train_all)
        if outcomes is None:
            return None
        fresh += [one._replace(setting=k) for one in outcomes]
    return fresh


def _train_unseen(
    search: Search,
    trained: Trained,
    history: Sequence[Setting],
    name: str,
    block: int,
    train_all: TrainAll,
) -> list[Outcome] | None:
    """As `train_history`, with seeds that the search has not seen: those of the finalists (block 0)
    or, where there were some, the fresh ones (1)."""
    first = max(one.seed for one in trained.found) + 1 + block * search.fresh_seeds
    seeds = range(first, first + search.fresh_seeds)
    every, folder = search.perturb_every, search.folder
    return train_history(search.base, history, every, name, seeds, folder, train_all)
