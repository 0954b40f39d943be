"""What a run has done so far, counted on the host: steps, finished episodes, failed members.

All of it is a function of the iterations alone (never of a clock) and is saved with every
checkpoint, so that a resumed run reports what an uninterrupted one would.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, TypedDict

import numpy as np

from jaxrl_scale.records import statistics

WINDOW = 100
"""Episodes that the running mean return looks back on."""

_EPISODE_SUMS = ("ended", "total_return", "total_length", "steps")


class Progress:
    """Counters of ``P`` members.

    ``env_steps`` counts valid steps of all members, ``failed`` maps a member to the iteration
    (1 is the first) at which one of its metrics was no longer finite.
    """

    def __init__(self, num_members: int):
        self.env_steps = 0
        self.failed: dict[int, int] = {}
        self.window: deque[tuple[list[int], list[float]]] = deque()  # (count, return) [P]
        self.since_row = {name: np.zeros(num_members) for name in _EPISODE_SUMS}

    def record(self, iteration: int, metrics: dict[str, np.ndarray]) -> list[int]:
        """Count one iteration's metrics ``[P]``; returns the members that failed in it."""
        self.env_steps += int(metrics["steps"].sum(dtype=np.int64))
        for name in _EPISODE_SUMS:
            self.since_row[name] += metrics[name]
        finite = np.all([np.isfinite(x) for x in metrics.values()], 0)
        new = [int(m) for m in np.flatnonzero(~finite) if int(m) not in self.failed]
        self.failed.update(dict.fromkeys(new, iteration))

        counts, totals = metrics["ended"], metrics["total_return"]
        if counts.any():
            self.window.append((counts.tolist(), [float(x) for x in totals]))
        alive = [m for m in range(len(counts)) if m not in self.failed]
        held = np.sum([c for c, _ in self.window], 0)
        while len(self.window) > 1 and (held - self.window[0][0] >= WINDOW)[alive].all():
            held = held - self.window.popleft()[0]
        return new

    def recent_returns(self) -> np.ndarray:
        """Mean return of each member's last 100 episodes ``[P]``: of the fewest whole
        iterations that hold so many; NaN until there were 100."""
        count, total = np.zeros((2, len(self.since_row["ended"])))
        for counts, totals in reversed(self.window):
            missing = count < WINDOW
            count += np.where(missing, counts, 0)
            total += np.where(missing, totals, 0.0)
        with np.errstate(invalid="ignore"):
            return np.where(count >= WINDOW, total / count, np.nan)

    def recent_return(self) -> float | None:
        """The interquartile mean of `recent_returns`, ``None`` until every member has one."""
        return self.iqm(self.recent_returns())

    def row(self, metrics: dict[str, np.ndarray]) -> dict[str, Any]:
        """A row of metrics: of one member its numbers, of several their interquartile means
        over the members that have not failed, and ``per_seed``."""
        sums = self.since_row
        self.since_row = {name: np.zeros_like(values) for name, values in sums.items()}
        episodes = sums["ended"]
        with np.errstate(invalid="ignore"):
            members = {
                "return": sums["total_return"] / episodes,
                "length": sums["total_length"] / episodes,
                "return_100": self.recent_returns(),
            }
        members |= {k: v for k, v in sorted(metrics.items()) if k not in _EPISODE_SUMS}
        row: dict[str, Any] = {"episodes": int(episodes.sum())}
        row |= {name: self.iqm(values) for name, values in members.items()}
        if len(episodes) > 1:
            row["per_seed"] = {k: [_plain(x) for x in v] for k, v in members.items()}
            row["failed"] = sorted(self.failed)
        return row

    def iqm(self, values: np.ndarray) -> float | None:
        """Interquartile mean over the members that have not failed, ``None`` where there is
        no number."""
        return statistics.score(values, self.failed)

    def to_json(self) -> dict[str, Any]:
        return {
            "env_steps": self.env_steps,
            "failed": {str(k): v for k, v in self.failed.items()},
            "window": list(self.window),
            "since_row": {k: v.tolist() for k, v in self.since_row.items()},
        }

    def load_json(self, data: dict[str, Any]) -> None:
        self.env_steps = data["env_steps"]
        self.failed = {int(k): v for k, v in data["failed"].items()}
        self.window = deque((c, t) for c, t in data["window"])
        self.since_row = {k: np.asarray(v) for k, v in data["since_row"].items()}


def _plain(x: Any) -> float | None:
    return float(x) if np.isfinite(x) else None


class Timings(TypedDict):
    """The part of ``summary.json`` that the clock decides, and the steps it is divided by."""

    env_steps: int
    wall_seconds: float
    compile_seconds: float
    steps_per_second: float
    seconds_to_target: float | None


class Clock:
    """Wall-clock times, those of the earlier processes of a resumed run included.

    ``wall_seconds`` runs from the start of the process, ``train_seconds`` counts the loop
    alone (logging and evaluations included, compilation not).
    """

    def __init__(self, process_start: float, target_return: float | None = None):
        self.process_start, self.target_return = process_start, target_return
        self.created = time.time()
        self.compile_seconds = 0.0
        self.seconds_to_target: float | None = None
        self.env_steps = 0
        self._wall_before = self._train_before = self._train_seconds = 0.0
        self._loop_start = self._lap_start = self.created
        self._lap_steps = 0

    def compiled(self) -> None:
        """Compilation has ended, the loop begins."""
        now = time.time()
        self.compile_seconds += now - self.created
        self._loop_start = self._lap_start = now
        self._lap_steps = self.env_steps

    def note(self, env_steps: int, recent_return: float | None) -> None:
        """An iteration has ended."""
        self.env_steps = env_steps
        self._train_seconds = self.train_seconds
        target = self.target_return
        solved = target is not None and recent_return is not None and recent_return >= target
        if solved and self.seconds_to_target is None:
            self.seconds_to_target = self.wall_seconds

    @property
    def wall_seconds(self) -> float:
        return self._wall_before + time.time() - self.process_start

    @property
    def train_seconds(self) -> float:
        return self._train_before + time.time() - self._loop_start

    def row(self) -> dict[str, Any]:
        """The timings of a row of metrics; the speed is that since the row before."""
        now = time.time()
        speed = (self.env_steps - self._lap_steps) / max(now - self._lap_start, 1e-9)
        self._lap_start, self._lap_steps = now, self.env_steps
        return {
            "env_steps": self.env_steps,
            "time": now,
            "wall_seconds": self.wall_seconds,
            "compile_seconds": self.compile_seconds,
            "steps_per_second": speed,
        }

    def summary(self) -> Timings:
        """The timings of ``summary.json``; taken when the loop has ended."""
        return {
            "env_steps": self.env_steps,
            "wall_seconds": self.wall_seconds,
            "compile_seconds": self.compile_seconds,
            "steps_per_second": self.env_steps / max(self._train_seconds, 1e-9),
            "seconds_to_target": self.seconds_to_target,
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "wall_seconds": self.wall_seconds,
            "train_seconds": self.train_seconds,
            "compile_seconds": self.compile_seconds,
            "target_return": self.target_return,
            "seconds_to_target": self.seconds_to_target,
            "env_steps": self.env_steps,
        }

    def load_json(self, data: dict[str, Any]) -> None:
        self._wall_before, self._train_before = data["wall_seconds"], data["train_seconds"]
        self.compile_seconds, self.env_steps = data["compile_seconds"], data["env_steps"]
        if data["target_return"] == self.target_return:  # which a resume may change
            self.seconds_to_target = data["seconds_to_target"]
