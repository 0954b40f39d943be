"""The stages of a sweep: the search itself, the best settings with other seeds, and the winner with
fresh ones beside the starting config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxrl_scale.errors import NOT_FINITE, RunError, how_many
from jaxrl_scale.records.run_directory import short
from jaxrl_scale.search import results
from jaxrl_scale.search.plan import Search, shown
from jaxrl_scale.search.results import Outcome, Ranked
from jaxrl_scale.search.schedulers import (
    TrainAll,
    Trained,
    train_batches,
    train_history,
    train_population,
    train_rungs,
)
from jaxrl_scale.search.space import Setting


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
    by_model = search.draw == "tpe"
    seeds = how_many(len(search.plan.seeds), "seed")
    print(
        f"{how_many(search.num_settings, 'setting')} with {seeds} each, "
        + ("in batches" if by_model else how_many(len(parts), "chunk"))
        + f"; in {short(search.folder)}",
        flush=True,
    )
    if by_model:
        return train_batches(search, train_all)
    if search.perturb_every:
        return train_population(search, train_all)
    return train_rungs(search, parts, train_all)


def finals(
    search: Search, trained: Trained, ranks: Sequence[Ranked], train_all: TrainAll
) -> list[Ranked] | None:
    """The best settings of those that were trained to the end, ranked by seeds that the search has
    not seen, as the best of many owes a part of its score to luck. A setting whose agents have all
    failed is none of them. None where a signal stopped an agent."""
    known = [one for one in ranks if one.iqm is not None]
    last = [one for one in known if one.rung == known[0].rung][: search.finalists]
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
    return train_history(search, history, name, seeds, train_all)
