"""What a sweep has found: its tables, and the best setting beside the starting config."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl_scale.config import command_line
from jaxrl_scale.records import statistics
from jaxrl_scale.records.past_run import of_agents, read_summary
from jaxrl_scale.records.rows import read_rows
from jaxrl_scale.records.run_directory import plain
from jaxrl_scale.search.plan import Chunk
from jaxrl_scale.search.space import Setting, texts


class Outcome(NamedTuple):
    """What became of one agent."""

    setting: int
    seed: int
    rung: int  # how many comparisons it went on from; the last: it was trained to the end
    score: float | None  # see `outcomes` and `late`; None: its loss was not finite
    curve: list[tuple[float, float | None]]  # (steps, see `outcomes`; return)
    run: str  # the chunk's folder
    agent: int  # its number there
    # Of the score, over the episodes of the final evaluation.
    ci95: tuple[float | None, float | None] = (None, None)


class Ranked(NamedTuple):
    """The agents of one setting together."""

    setting: int
    rung: int
    scores: np.ndarray  # of the agents that have not failed
    failed: int
    iqm: float | None  # None: none of them has ended an episode
    ci95: tuple[float | None, float | None]


def outcomes(chunks: Sequence[Chunk], folder: Path, rung: int = 0) -> list[Outcome]:
    """Of all agents of chunks that have come as far as they should, in the order of settings and
    seeds.

    The score of an agent that was trained to its end is the mean return of the final evaluation.
    That of any other is its mean return `late` in its rows of metrics. Steps are the mean over the
    agents of the chunk, as the rows count them for all together.
    """
    found = []
    for chunk in chunks:
        path, number = folder / chunk.name, len(chunk.settings)
        summary, rows = read_summary(path, number), read_rows(path / "metrics.jsonl")
        steps = [row["env_steps"] / number for row in rows]
        returns = of_agents(rows, "return", number).T  # [P, R]
        scores = late(returns, summary["failed"])
        intervals: list[Any] = [(None, None)] * number
        if chunk.until == chunk.config.num_iterations:
            evaluation = summary.get("evaluation")
            scores = evaluation["per_agent"] if evaluation else [None] * number
            intervals = (evaluation and evaluation.get("per_agent_ci95")) or intervals
        for k, (setting, seed) in enumerate(chunk.named()):
            curve = list(zip(steps, plain(returns[k]), strict=True))
            low, high = intervals[k]
            of_agent = setting, seed, rung, scores[k], curve, chunk.name, k, (low, high)
            found.append(Outcome(*of_agent))
    return sorted(found, key=lambda x: (x.setting, x.seed))


def late(returns: np.ndarray, failed: Sequence[int]) -> list[float | None]:
    """Means over the numbers in the last third of ``returns [P, R]``. An agent that has ended no
    episode there, as one whose episodes are long because it plays well, has its last number before;
    one that has ended none at all has minus infinity, and one that failed None."""
    third = -max(1, returns.shape[1] // 3)

    def score(of_agent: np.ndarray) -> float:
        known = np.isfinite(of_agent)
        recent = of_agent[third:][known[third:]]
        return float(np.mean(recent if recent.size else [-np.inf, *of_agent[known]][-1]))

    return [None if k in failed else score(of_agent) for k, of_agent in enumerate(returns)]


def going_on(before: Sequence[Outcome], after: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes ``before``, where those of the agents that went on are those ``after``, with
    curves that go on, too. An agent that has ended no episode since then keeps its score."""
    of_agent = {(one.setting, one.seed): one for one in before}
    for one in after:
        agent = one.setting, one.seed
        earlier = of_agent.get(agent, one._replace(curve=[]))
        first = _steps(earlier.curve)
        rest = [(first + steps, value) for steps, value in one.curve]
        score = earlier.score if one.score == -np.inf and earlier.score is not None else one.score
        of_agent[agent] = one._replace(curve=[*earlier.curve, *rest], score=score)
    return list(of_agent.values())


def _steps(curve: Sequence[tuple[float, float | None]]) -> float:
    """What an agent with such a learning curve has done."""
    return curve[-1][0] if curve else 0.0


def is_known(one: Outcome) -> bool:
    """Whether the agent has a score: it has not failed, and has ended an episode."""
    return one.score is not None and math.isfinite(one.score)


def ranked(found: Sequence[Outcome]) -> list[Ranked]:
    """The settings, the best first: by the interquartile mean over the seeds, and where that is the
    same (500 on CartPole, say) by their mean, in which a seed that learned nothing counts. Those
    that were stopped come after those that went on, and those of which an agent failed come last.
    An agent that has ended no episode counts as much as the worst of all others."""
    known = [one.score for one in found if one.score is not None]
    worst = min(filter(math.isfinite, known), default=0.0)
    of_setting: dict[tuple[int, int], list[float | None]] = {}
    for one in found:
        of_setting.setdefault((one.setting, one.rung), []).append(one.score)
    settings = []
    for (setting, rung), each in of_setting.items():
        scores = np.array([x for x in each if x is not None])
        failed = len(each) - len(scores)
        scores = np.maximum(scores, worst) if np.isfinite(scores).any() else scores[:0]
        ci95 = statistics.interval(scores)
        settings.append(Ranked(setting, rung, scores, failed, statistics.score(scores), ci95))

    def order(one: Ranked) -> tuple[bool, int, float, float]:
        scores = (np.inf, np.inf) if one.iqm is None else (-one.iqm, -float(one.scores.mean()))
        return one.failed > 0, -one.rung, *scores

    return sorted(settings, key=order)


def iqm_curve(
    curves: Sequence[Sequence[tuple[float, float | None]]],
) -> tuple[np.ndarray, np.ndarray]:
    """Of learning curves with as many points each, ``[R]`` each: the steps, and the interquartile
    mean of the returns that there are, NaN where there is none."""
    steps = np.mean([[x for x, _ in curve] for curve in curves], 0)
    returns = np.array([[np.nan if y is None else y for _, y in curve] for curve in curves]).T
    known = (row[np.isfinite(row)] for row in returns)
    return steps, np.array([statistics.iqm(row) if len(row) else np.nan for row in known])


def agents_table(found: Sequence[Outcome], settings: Sequence[Setting]) -> bytes:
    """CSV with a row for each agent; where its run lies, too."""
    columns = _columns(found, settings)
    columns |= {name: list(map(command_line.written, columns[name])) for name in settings[0]}
    return _csv(list(columns), list(zip(*columns.values(), strict=True)))


def agents_parquet(found: Sequence[Outcome], settings: Sequence[Setting]) -> bytes | None:
    """As `agents_table`, with numbers as numbers and each agent's learning curve in two lists, as a
    Parquet file. None where pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return None
    columns = _columns(found, settings)
    for name in settings[0]:
        if not all(isinstance(x, int | float | str | None) for x in columns[name]):
            columns[name] = list(map(command_line.written, columns[name]))
    columns["curve_env_steps"] = [[x for x, _ in one.curve] for one in found]
    columns["curve_return"] = [[y for _, y in one.curve] for one in found]
    numbers = ("return_when_stopped", "eval_return", "eval_ci95_low", "eval_ci95_high")
    kinds: dict[str, Any] = dict.fromkeys(numbers, pyarrow.float64())
    kinds["curve_return"] = pyarrow.list_(pyarrow.float64())
    arrays = {name: pyarrow.array(x, kinds.get(name)) for name, x in columns.items()}
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(arrays), sink)
    return sink.getvalue().to_pybytes()


def _columns(found: Sequence[Outcome], settings: Sequence[Setting]) -> dict[str, list[Any]]:
    """What the tables of agents say of each, by the names of their columns."""
    last = max(one.rung for one in found)
    return {
        "setting": [one.setting for one in found],
        "seed": [one.seed for one in found],
        **{name: [settings[one.setting][name] for one in found] for name in settings[0]},
        "env_steps": [_steps(one.curve) for one in found],
        "return_when_stopped": [None if one.rung == last else _finite(one.score) for one in found],
        "eval_return": [one.score if one.rung == last else None for one in found],
        "eval_ci95_low": [one.ci95[0] for one in found],
        "eval_ci95_high": [one.ci95[1] for one in found],
        "run": [one.run for one in found],
        "agent": [one.agent for one in found],
    }


def curves_table(found: Sequence[Outcome]) -> bytes:
    """CSV with a row for each point of each agent's learning curve."""
    rows = [[one.setting, one.seed, *point] for one in found for point in one.curve]
    return _csv(["setting", "seed", "env_steps", "return"], rows)


def settings_table(ranks: Sequence[Ranked], settings: Sequence[Setting]) -> bytes:
    """CSV with a row for each setting, the best first."""
    options = list(settings[0])
    rows = [
        [
            *(place, one.setting, *texts(settings[one.setting]).values(), one.rung),
            *(one.iqm, *one.ci95, one.scores.min() if len(one.scores) else None, one.failed),
        ]
        for place, one in enumerate(ranks, 1)
    ]
    heads = ["rung", "iqm", "ci95_low", "ci95_high", "worst_seed", "failed"]
    return _csv(["rank", "setting", *options, *heads], rows)


def schedule_table(history: Sequence[Setting], every: int) -> bytes:
    """CSV with the settings that followed each other, and the iteration from which each held."""
    rows = [[k * every, *texts(setting).values()] for k, setting in enumerate(history)]
    return _csv(["iteration", *history[0]], rows)


def _finite(score: float | None) -> float | None:
    """The score, where it is finite."""
    return score if score is not None and math.isfinite(score) else None


def _csv(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(rows)
    return text.getvalue().encode()
