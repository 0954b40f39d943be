"""What a sweep has found: its tables, and the best setting beside the starting config."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl_scale.config import command_line
from jaxrl_scale.records import statistics
from jaxrl_scale.records.rows import read_rows
from jaxrl_scale.records.run_directory import io_errors, write_atomically
from jaxrl_scale.records.runs import read_summary
from jaxrl_scale.search.plan import Chunk
from jaxrl_scale.search.space import Setting


class Outcome(NamedTuple):
    """What became of one agent."""

    setting: int
    seed: int
    score: float | None  # mean return of the final evaluation; None: its loss was not finite
    curve: list[tuple[float, float | None]]  # (steps of the agent, return)
    run: str  # the chunk's folder
    agent: int  # its number there


class Ranked(NamedTuple):
    """The agents of one setting together."""

    setting: int
    scores: np.ndarray  # of the agents that have not failed
    failed: int
    iqm: float | None
    ci95: tuple[float | None, float | None]


def outcomes(chunks: Sequence[Chunk], folder: Path) -> list[Outcome]:
    """Of all agents of chunks that have come to their end, in the order of settings and seeds."""
    found = []
    for chunk in chunks:
        path, number = folder / chunk.name, len(chunk.settings)
        evaluation = read_summary(path, number).get("evaluation")
        scores = evaluation["per_agent"] if evaluation else [None] * number
        rows = read_rows(path / "metrics.jsonl")
        for k, (setting, seed) in enumerate(zip(chunk.settings, chunk.agents.seeds, strict=True)):
            curve = [
                (row["env_steps"] / number, row.get("per_agent", row)["return"][k])
                if "per_agent" in row
                else (row["env_steps"], row["return"])
                for row in rows
            ]
            found.append(Outcome(setting, int(seed), scores[k], curve, chunk.name, k))
    return sorted(found, key=lambda x: (x.setting, x.seed))


def ranked(found: Sequence[Outcome]) -> list[Ranked]:
    """The settings, the best first: by the interquartile mean over the seeds. Those of which an
    agent failed come after all others."""
    of_setting: dict[int, list[float | None]] = {}
    for one in found:
        of_setting.setdefault(one.setting, []).append(one.score)
    settings = []
    for setting, each in of_setting.items():
        scores = np.array([x for x in each if x is not None])
        ci95 = statistics.interval(scores)
        failed = len(each) - len(scores)
        settings.append(Ranked(setting, scores, failed, statistics.score(scores), ci95))

    def order(one: Ranked) -> tuple[bool, float]:
        return one.failed > 0, np.inf if one.iqm is None else -one.iqm

    return sorted(settings, key=order)


def agents_table(found: Sequence[Outcome], settings: Sequence[Setting]) -> bytes:
    """CSV with a row for each agent; where its run lies, too."""
    options = list(settings[0])
    rows = [
        [one.setting, one.seed, *_texts(settings[one.setting]), one.score, one.run, one.agent]
        for one in found
    ]
    return _csv(["setting", "seed", *options, "eval_return", "run", "agent"], rows)


def curves_table(found: Sequence[Outcome]) -> bytes:
    """CSV with a row for each point of each agent's learning curve."""
    rows = [[one.setting, one.seed, *point] for one in found for point in one.curve]
    return _csv(["setting", "seed", "env_steps", "return"], rows)


def settings_table(ranks: Sequence[Ranked], settings: Sequence[Setting]) -> bytes:
    """CSV with a row for each setting, the best first."""
    options = list(settings[0])
    rows = [
        [
            *(place, one.setting, *_texts(settings[one.setting])),
            *(one.iqm, *one.ci95, one.scores.min() if len(one.scores) else None, one.failed),
        ]
        for place, one in enumerate(ranks, 1)
    ]
    heads = ["iqm", "ci95_low", "ci95_high", "worst_seed", "failed"]
    return _csv(["rank", "setting", *options, *heads], rows)


def write(path: Path, data: bytes) -> None:
    """Replace a file of the sweep."""
    with io_errors(path):
        write_atomically(path, data)


def _texts(setting: Setting) -> list[str]:
    return [command_line.written(value) for value in setting.values()]


def _csv(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(rows)
    return text.getvalue().encode()
