"""Population-based training, https://arxiv.org/abs/1711.09846: settings change while agents learn.

All agents train side by side. Every so many iterations, the worst of them and those that failed go
on from a copy of one of the best: its weights, its optimizer, its environments, and its setting,
which is changed a little. What is decided depends on the draws' seed and on the returns alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxrl_scale.search.plan import Chunk
from jaxrl_scale.search.results import Outcome
from jaxrl_scale.search.space import Range, Setting

QUARTER = 0.25
"""The part of the agents that is replaced, and the part that is copied."""

DRAWN_ANEW = 0.25
"""How likely an option of a copy is drawn from its whole range, instead of changed a little."""


def exploited(scores: Sequence[float | None], rng: np.random.Generator) -> list[int]:
    """The agent that each agent goes on from: one of the best quarter for those of the worst and
    for those that failed (None), itself for all others. Where no agent has ended an episode (minus
    infinity), none is worse than another, and only those that failed go on from others."""
    order = sorted(range(len(scores)), key=lambda k: -np.inf if (x := scores[k]) is None else x)
    count = max(1, int(QUARTER * len(scores)))
    replaced = {k for k, x in enumerate(scores) if x is None}
    if any(x is not None and np.isfinite(x) for x in scores):
        replaced |= {*order[:count]}
    there = [k for k in order[-count:] if scores[k] is not None]
    best = [k for k in there if scores[k] != -np.inf] or there
    drawn = {k: int(rng.choice(best)) for k in sorted(replaced) if best}
    return [drawn.get(k, k) for k in range(len(scores))]


def explored(setting: Setting, ranges: Sequence[Range], rng: np.random.Generator) -> Setting:
    """A setting near this one: each number a fifth larger or smaller, or, where a range is
    ``uniform``, a tenth of the range; the same choice or one beside it; within the ranges."""
    return {each.option: _changed(setting[each.option], each, rng) for each in ranges}


def _changed(value: float, each: Range, rng: np.random.Generator) -> float:
    if rng.random() < DRAWN_ANEW:
        return each.at(rng.random())
    if each.kind == "choices":
        place = each.values.index(value) + int(rng.integers(-1, 2))
        return each.values[min(max(place, 0), len(each.values) - 1)]
    low, high = each.values
    sign = float(rng.choice((-1.0, 1.0)))
    changed = value * 1.2**sign if each.kind == "log" else value + sign * (high - low) / 10
    return float(min(max(changed, low), high))


def seeded(chunk: Chunk) -> Chunk:
    """The chunk with another seed for each agent, so that copies go other ways."""
    seeds = chunk.config.seed + np.arange(len(chunk.settings), dtype=np.uint32)
    return dataclasses.replace(chunk, agents=chunk.agents._replace(seeds=seeds))


def inherited(found: Sequence[Outcome], parents: Sequence[int]) -> list[Outcome]:
    """What became so far of the agents, by their places, after they have gone on from others."""
    return [
        found[parent]._replace(setting=mine.setting, seed=mine.seed)
        for mine, parent in zip(found, parents, strict=True)
    ]
