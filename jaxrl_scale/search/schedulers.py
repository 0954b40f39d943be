"""What is trained when: the best settings go on, a model proposes new ones, agents copy others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxrl_scale.errors import how_many
from jaxrl_scale.records.run_directory import read_object, write_json
from jaxrl_scale.search import model, population, results, rungs, space
from jaxrl_scale.search.plan import Chunk, Plan, Search, Start, chunk_of, configs_of
from jaxrl_scale.search.results import Outcome
from jaxrl_scale.search.space import Setting

TrainAll = Callable[[Sequence[Chunk], Start | None], bool]
"""Trains chunks, each in a run directory of its own; False where a signal stopped one."""


class Trained(NamedTuple):
    """What a search has trained."""

    found: list[Outcome]  # of all agents
    settings: list[Setting]  # that the outcomes name, those at the end of the run
    histories: list[list[Setting]]  # of each of these: what it was from round to round


# --- successive halving -----------------------------------------------------------------------


def train_rungs(search: Search, parts: list[list[int]], train_all: TrainAll) -> Trained | None:
    """Train all settings, and after each rung but the last one the best of them.

    Args:
      parts: which settings train side by side on the first rung.

    Returns:
      None where a signal stopped one.
    """
    plan, folder = search.plan, search.folder
    last = len(plan.stops[0]) - 1
    before, found = list[Chunk](), list[Outcome]()

    for rung in range(last + 1):
        chunks = plan.chunks(rung, parts)
        if not train_all(chunks, Start(before) if rung else None):
            return None
        found = results.going_on(found, results.outcomes(chunks, folder, rung))
        if rung < last:
            compared = [one for one in found if one.rung == rung]
            kept, of = rungs.surviving(compared, search.factor), sum(map(len, parts))
            go = "goes" if len(kept) == 1 else "go"
            of_all = f"{len(kept)} of {how_many(of, 'setting')} {go} on"
            if not any(map(results.is_known, compared)):
                of_all += "; no agent has ended an episode yet, so the first were taken"
            print(f"rung {rung + 1} of {last}: {of_all}", flush=True)
            before, parts = chunks, _side_by_side(folder / f"rung{rung + 1}.json", plan, kept)
    return Trained(found, search.settings, [[setting] for setting in search.settings])


def _side_by_side(path: Path, plan: Plan, kept: Sequence[int]) -> list[list[int]]:
    """Which of the settings that are kept train side by side. It depends on the memory that is
    free, so a file says it, and a sweep that goes on keeps to it."""
    parts: list[list[int]] = read_object(path).get("chunks", [])
    if not parts:
        parts = plan.divide(kept)
        write_json(path, {"chunks": parts})
    return parts


# --- a model of the scores ----------------------------------------------------------------------


def train_batches(search: Search, train_all: TrainAll) -> Trained | None:
    """Train settings batch after batch, each to its end, of which a model of the scores so far
    proposes all but the first. Returns None where a signal stopped one. ``batch<k>.json`` says what
    batch k tries."""
    base, folder, first, seeds = search.base, search.folder, search.settings, search.plan.seeds
    settings, found = list[Setting](), list[Outcome]()
    batches = -(-search.num_settings // len(first))
    for k in range(batches):
        path = folder / f"batch{k}.json"
        told = read_object(path)
        if told:
            settings += [space.from_texts(base, each) for each in told["settings"]]
        elif k:
            count = min(len(first), search.num_settings - len(settings))
            ranks, seed = results.ranked(found), search.draw_seed + k
            settings += model.proposed(search.ranges, settings, ranks, count, seed)
        else:
            settings += first
        configs = configs_of(base, settings)
        stops = [[each.num_iterations] for each in configs]
        plan = replace(search.plan, configs=configs, stops=stops)
        new = range(k * len(first), len(settings))
        parts: list[list[int]] = told.get("chunks") or plan.divide(new)
        if not told:
            of_batch = [space.texts(settings[each]) for each in new]
            write_json(path, {"settings": of_batch, "chunks": parts})
        print(f"batch {k + 1} of {batches}", flush=True)
        chunks = [
            chunk_of(f"batch{k}-chunk{j}", configs, part, seeds) for j, part in enumerate(parts)
        ]
        if not train_all(chunks, None):
            return None
        found += results.outcomes(chunks, folder)
    return Trained(found, settings, [[setting] for setting in settings])


# --- population-based training ------------------------------------------------------------------


def train_population(search: Search, train_all: TrainAll) -> Trained | None:
    """Train a population of an agent for each setting, which change every so many iterations.
    Returns None where a signal stopped them. ``round<k>.json`` says what was decided before round
    k."""
    base, settings, folder = search.base, search.settings, search.folder
    last, everyone = base.num_iterations, list(range(len(settings)))
    every = search.perturb_every
    stops = [*range(every, last, every), last]
    parents, found, start = everyone, list[Outcome](), None
    histories = [[setting] for setting in settings]
    for k, until in enumerate(stops):
        seeds = range(base.seed, base.seed + 1)
        chunk = chunk_of(f"round{k}", configs_of(base, settings), everyone, seeds, until)
        chunk = population.seeded(chunk)
        print(f"round {k + 1} of {len(stops)}", flush=True)
        if not train_all([chunk], start):
            return None
        now = results.outcomes([chunk], folder)
        found = results.going_on(population.inherited(found, parents) if k else [], now)
        if _all_failed(found):
            break
        if until < last:
            rng = np.random.default_rng([search.draw_seed, k])
            parents = population.exploited([one.score for one in found], rng)
            settings = [
                settings[mine]
                if parent == mine
                else population.explored(settings[parent], search.ranges, rng)
                for mine, parent in enumerate(parents)
            ]
            histories = [
                [*histories[parent], setting]
                for parent, setting in zip(parents, settings, strict=True)
            ]
            write_json(folder / f"round{k + 1}.json", {"parents": parents, "settings": settings})
            agents = chunk.named()
            start = Start([chunk], [agents[parent] for parent in parents])
    return Trained(found, settings, histories)


def train_history(
    search: Search, history: Sequence[Setting], name: str, seeds: range, train_all: TrainAll
) -> list[Outcome] | None:
    """Train agents with settings that follow each other as those of a population did, the last one
    to the end. Returns their outcomes; None where a signal stopped them."""
    start, found = None, list[Outcome]()
    for k, setting in enumerate(history, 1):
        whole = f"{name}-round{k - 1}" if len(history) > 1 else name
        until = k * search.perturb_every if k < len(history) else None
        chunk = chunk_of(whole, configs_of(search.base, [setting]), [0], seeds, until)
        if not train_all([chunk], start):
            return None
        found = results.going_on(found, results.outcomes([chunk], search.folder))
        if _all_failed(found):
            break
        start = Start([chunk])
    return found


def _all_failed(found: Sequence[Outcome]) -> bool:
    """Whether nobody can go on: a run whose agents have all failed has saved nothing to go on
    from."""
    return all(one.score is None for one in found)
