"""Statistics of several agents: the interquartile mean, its interval, and which agents count.

Rows of metrics, the terminal, ``summary.json``, reports and the tables of a scaling study all take
their numbers from here, so that the same run has the same number everywhere. The statistics are
those of https://arxiv.org/abs/2108.13264.

**Who counts.** An agent that failed (its loss or another metric is no longer finite) is left out.
As long as one of the other agents has no number yet, all of them together have none: the mean of
those that happen to have one first would be another quantity.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from jaxrl_scale.records.rows import Evaluation
from jaxrl_scale.types import OWN_NUMBERS, Played

FEW = 8
"""With fewer numbers than this the percentile bootstrap's intervals are too narrow: of normal ones
an interval of 95 % holds the true mean in 51 % of all cases with 2 numbers, in 74 % with 3, in 87 %
with 4 and in 91 % with 5; in 93 to 94 % with 8 to 32."""

RESAMPLES = 2000
"""Samples that the bootstrap draws."""

_DRAWN_AT_ONCE = 2**22  # numbers, 32 MB


def counted(values: Any, failed: Collection[int] = ()) -> np.ndarray:
    """The numbers of the agents that count, ``[N]`` of ``values: [P]``; none of them where an
    agent that has not failed has no finite number."""
    kept = np.delete(np.asarray(values, np.float64), sorted(failed))
    return kept if np.isfinite(kept).all() else kept[:0]


def iqm(values: np.ndarray) -> Any:
    """The interquartile mean over the last axis: the mean without the lowest and the highest
    quarter, each rounded down to whole numbers of values."""
    cut = values.shape[-1] // 4
    return np.sort(values)[..., cut : values.shape[-1] - cut].mean(-1)


def score(values: Any, failed: Collection[int] = ()) -> float | None:
    """The interquartile mean over the agents that count, ``None`` where there is no number."""
    known = counted(values, failed)
    return float(iqm(known)) if len(known) else None


def interval(
    sample: np.ndarray, centre: Callable[[np.ndarray], Any] = iqm
) -> tuple[float | None, float | None]:
    """The 95 % percentile bootstrap interval of ``centre`` of the numbers ``sample: [N]``. Fewer
    than two numbers have none, as nothing says how far another would lie from them."""
    if len(sample) < 2:
        return None, None
    return _ci95(_bootstrap(sample, centre))


def pooled(groups: Sequence[np.ndarray]) -> tuple[float, tuple[float | None, float | None]]:
    """The interquartile mean of the numbers of all groups ``[N_k]`` and its 95 % interval.

    The bootstrap draws within each group: the agents of a game, say, at least one. Where every
    group has but one number, nothing varies and there is no interval.
    """
    if all(len(group) < 2 for group in groups):
        return float(iqm(np.concatenate(groups))), (None, None)
    drawn = [_bootstrap(group, lambda x: x, seed=k) for k, group in enumerate(groups)]
    return float(iqm(np.concatenate(groups))), _ci95(iqm(np.concatenate(drawn, -1)))


def difference(
    ours: Any,
    theirs: Any,
    failed: tuple[Collection[int], Collection[int]] = ((), ()),
    pairs: bool = True,
) -> dict[str, Any]:
    """How much more ``ours: [P]`` is than ``theirs: [Q]``: ``difference`` of the interquartile
    means and ``difference_ci95``, its 95 % percentile bootstrap interval, None where either side
    has a single number.

    Args:
      ours: the numbers of all agents.
      theirs: those of the agents that they are compared with.
      failed: the agents that failed, of ours and of theirs.
      pairs: both are of the same seeds in the same order. They are drawn together, so that equal
        returns differ by nothing, and a seed whose agent failed on one side is left out on both.
        Numbers of other seeds are drawn independently.
    """
    left_out = [{*failed[0], *failed[1]}] * 2 if pairs else failed
    ours, theirs = counted(ours, left_out[0]), counted(theirs, left_out[1])
    if not len(ours) or not len(theirs):
        return {"difference": None, "difference_ci95": None}
    difference = float(iqm(ours) - iqm(theirs))
    if min(len(ours), len(theirs)) < 2:
        return {"difference": difference, "difference_ci95": None}
    drawn = _bootstrap(ours, iqm) - _bootstrap(theirs, iqm, seed=0 if pairs else 1)
    return {"difference": difference, "difference_ci95": list(_ci95(drawn))}


def _bootstrap(sample: np.ndarray, centre: Callable[[np.ndarray], Any], seed: int = 0) -> Any:
    """``centre`` of `RESAMPLES` samples drawn with replacement. The draws depend on ``seed`` and
    on the size of the sample alone, so that a band's edge is as smooth as the curves within it."""
    rng = np.random.default_rng(seed)
    rows = max(1, _DRAWN_AT_ONCE // len(sample))
    sizes = [min(rows, RESAMPLES - done) for done in range(0, RESAMPLES, rows)]
    draws = (rng.integers(0, len(sample), (size, len(sample))) for size in sizes)
    return np.concatenate([centre(sample[index]) for index in draws])


def _ci95(drawn: np.ndarray) -> tuple[float, float]:
    """The bounds of the middle 95 % of what the bootstrap has ``drawn: [N]``."""
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)


def _mean(values: np.ndarray) -> Any:
    return values.mean(-1, dtype=np.float64)


def means(played: Played) -> dict[str, np.ndarray]:
    """Each agent's means ``[P]`` over its episodes ``[P, episodes]``, by the names that they have
    in a row of metrics: ``return``, ``length``, and the environment's own numbers, which are means
    over all steps (``env/``) or over the episodes' last steps (``env_end/``), as in training."""
    lengths = np.asarray(played.lengths)
    counts = {"steps": lengths.sum(1), "ended": lengths.shape[1]}
    return {
        "return": played.returns.mean(1, dtype=np.float64),
        "length": lengths.mean(1, dtype=np.float64),
    } | {
        name: played.info[name].sum(1, dtype=np.float64) / counts[number]
        for prefix, number in OWN_NUMBERS.items()
        for name in sorted(played.info)
        if name.startswith(prefix)
    }


def evaluation(played: Played, failed: Collection[int] = ()) -> Evaluation:
    """``evaluation`` of ``summary.json``: `summarize`, and the means over the agents that it counts
    of their `means`."""
    found = summarize(np.asarray(played.returns), failed)
    out = [k for k, score in enumerate(found["per_agent"]) if score is None]
    of_agents = {name: counted(x, out) for name, x in means(played).items()}
    told = {name: float(x.mean()) if len(x) else None for name, x in of_agents.items()}
    found["length"] = told["length"]
    found["info"] = {name: x for name, x in told.items() if name.startswith(tuple(OWN_NUMBERS))}
    return found


def summarize(returns: np.ndarray, failed: Collection[int] = ()) -> Evaluation:
    """``evaluation`` of ``summary.json``, from returns ``[P, episodes]``.

    Of several agents the sample is their mean returns: ``iqm`` is the interquartile mean and
    ``ci95`` its interval. Of one agent the sample is its episodes, and ``ci95`` is the interval
    of their ``mean``. Agents that ``failed``, or whose returns are not finite, are left out and
    are ``None`` in ``per_agent``. ``per_agent_ci95`` has the interval of each agent's mean.
    """
    per_agent = returns.mean(1, dtype=np.float64)
    out = {*failed, *map(int, np.flatnonzero(~np.isfinite(per_agent)))}
    known = counted(per_agent, out)
    each = [interval(np.empty(0) if k in out else x, _mean) for k, x in enumerate(returns)]
    sample, ci95 = known, interval(known) if len(returns) > 1 else each[0]
    if len(returns) == 1 and len(known):
        sample = returns[0].astype(np.float64)
    return {
        "mean": float(sample.mean()) if len(sample) else None,
        "iqm": float(iqm(sample)) if len(sample) else None,
        "ci95": ci95,
        "episodes": int(returns.shape[1]),
        "per_agent": [None if k in out else float(x) for k, x in enumerate(per_agent)],
        "per_agent_ci95": each,
    }


def standard_error(returns: np.ndarray) -> float | None:
    """The standard error of the mean of returns ``[P, episodes]``, ``None`` of a single number.

    Episodes of one agent share its policy, so they say nothing of how other agents would do. Of
    several agents the error is therefore that of a mean of ``P`` independent numbers, the agents'
    means. Of one agent it is that over its episodes, and holds for this agent alone.
    """
    sample = returns.mean(1, dtype=np.float64) if len(returns) > 1 else returns[0]
    if len(sample) < 2:
        return None
    return float(np.std(sample, ddof=1, dtype=np.float64) / np.sqrt(len(sample)))
