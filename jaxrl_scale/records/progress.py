"""What a run has done so far, and how long it took, counted on the host.

`Progress` counts steps, finished episodes and failed agents. It is a function of the iterations
alone, never of a clock, and is saved with every checkpoint, so that a resumed run reports what an
uninterrupted one would. `Clock` has the times.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict

import numpy as np

from jaxrl_scale.records import statistics
from jaxrl_scale.records.rows import is_of_gradient_steps
from jaxrl_scale.types import OWN_NUMBERS

WINDOW = 100
"""Number of episodes in the mean return of the most recent ones."""

_EPISODE_SUMS = ("ended", "total_return", "total_length", "steps")
_OWN = tuple(OWN_NUMBERS)


def _is_sum(metric: str) -> bool:
    """Whether a metric of an iteration is a sum, which a row reports as a mean."""
    return metric in _EPISODE_SUMS or metric.startswith(_OWN)


class Progress:
    """Counters of ``P`` agents.

    ``env_steps`` counts the environment steps of all agents together. ``failed`` maps an agent to
    the iteration (the first is 1) at which one of its metrics was no longer finite.
    """

    def __init__(self, num_agents: int):
        self.env_steps = 0
        self.failed: dict[int, int] = {}
        # Of the most recent iterations: number of ended episodes and sum of their returns, [P].
        self.window: deque[tuple[list[int], list[float]]] = deque()
        self.since_row = {name: np.zeros(num_agents) for name in _EPISODE_SUMS}

    def record(self, iteration: int, metrics: dict[str, np.ndarray]) -> None:
        """Count one iteration, which had these metrics ``[P]``."""
        self.env_steps += int(metrics["steps"].sum(dtype=np.int64))
        for name in filter(_is_sum, metrics):
            before = self.since_row.get(name, 0.0)
            self.since_row[name] = np.add(before, metrics[name], dtype=np.float64)
        # An environment's own numbers may be anything: nothing learns from them.
        learned = [x for name, x in metrics.items() if not name.startswith(_OWN)]
        finite = np.all([np.isfinite(x) for x in learned], 0)
        for agent in map(int, np.flatnonzero(~finite)):
            self.failed.setdefault(agent, iteration)

        counts, totals = metrics["ended"], metrics["total_return"]
        if counts.any():
            self.window.append((counts.tolist(), [float(x) for x in totals]))
        self._forget()

    def _forget(self) -> None:
        """Drop the iterations without which every agent that has not failed still has enough
        episodes."""
        counting = [k for k in range(len(self.since_row["ended"])) if k not in self.failed]
        held = np.sum([counts for counts, _ in self.window], 0)
        while len(self.window) > 1 and (held - self.window[0][0] >= WINDOW)[counting].all():
            held = held - self.window.popleft()[0]

    def recent_returns(self) -> np.ndarray:
        """Each agent's mean return ``[P]`` over the most recent iterations that together contain
        at least 100 finished episodes; NaN before that."""
        none = np.zeros((1, len(self.since_row["ended"])))
        newest_first = list(reversed(self.window))
        counts = np.concatenate([none, *([counts] for counts, _ in newest_first)])
        totals = np.concatenate([none, *([totals] for _, totals in newest_first)])
        missing = np.cumsum(counts, 0) - counts < WINDOW  # before these are counted
        count = np.sum(counts, 0, where=missing)
        total = np.cumsum(np.where(missing, totals, 0.0), 0)[-1]  # one after the other
        with np.errstate(invalid="ignore"):
            return np.where(count >= WINDOW, total / count, np.nan)

    def recent_return(self) -> float | None:
        """The interquartile mean of `recent_returns`; None until every agent has one."""
        return self.iqm(self.recent_returns())

    def row(self, metrics: dict[str, np.ndarray]) -> dict[str, Any]:
        """A row of metrics. With one agent it has the agent's numbers. With several it has their
        interquartile means over the agents that have not failed, and each agent's numbers under
        ``per_agent``."""
        sums = self.since_row
        self.since_row = {name: np.zeros_like(values) for name, values in sums.items()}
        episodes = sums["ended"]
        with np.errstate(invalid="ignore"):
            columns = {
                "return": sums["total_return"] / episodes,
                "length": sums["total_length"] / episodes,
                "return_100": self.recent_returns(),
            }
            for prefix, number in OWN_NUMBERS.items():
                own = sorted(name for name in sums if name.startswith(prefix))
                columns |= {name: sums[name] / sums[number] for name in own}
        # A mean over no gradient steps is 0 on the devices, where a NaN would be a failure.
        none = metrics.get("updates", np.ones_like(episodes)) == 0
        for name, x in sorted(metrics.items()):
            if not _is_sum(name):
                idle = none & (x == 0) & is_of_gradient_steps(name)
                columns[name] = np.where(idle, np.nan, x)
        row: dict[str, Any] = {"episodes": int(episodes.sum())}
        row |= {name: self.iqm(values) for name, values in columns.items()}
        if len(episodes) > 1:
            row["per_agent"] = {k: [_plain(x) for x in v] for k, v in columns.items()}
            row["failed"] = sorted(self.failed)
        return row

    def iqm(self, values: np.ndarray) -> float | None:
        """The interquartile mean of ``values [P]`` over the agents that have not failed; None where
        one of them has no number."""
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
    """The times in ``summary.json``, and the number of steps that the speed is worked out from."""

    env_steps: int
    wall_seconds: float
    compile_seconds: float
    steps_per_second: float
    seconds_to_target: float | None


class Moment(NamedTuple):
    """Seconds of the run up to some moment: all, those in the loop, and those of compiling. See
    `Clock`."""

    wall: float
    train: float
    compiling: float


class Clock:
    """Wall-clock times. Those of a resumed run include the processes before.

    ``wall_seconds`` runs from the start of the process. ``train_seconds`` is the time in the loop:
    with logging and evaluations, without compilation. They are told by a clock that nobody sets
    while the run goes on.

    Args:
      process_start: unix seconds.
      compiling: seconds that this thread has spent compiling so far, which it does in the loop for
        the first evaluation.
    """

    def __init__(
        self,
        process_start: float,
        target_return: float | None = None,
        compiling: Callable[[], float] = lambda: 0.0,
    ):
        self.target_return, self._compiling = target_return, compiling
        self.created = time.monotonic()
        self._start = self.created - max(0.0, time.time() - process_start)
        self.seconds_to_target: float | None = None
        self.env_steps = 0
        self._wall_before = self._train_before = self._train_seconds = self._compiled_before = 0.0
        self._loop_start = self._loop_time()
        self._lap_start, self._lap_steps = 0.0, 0

    def compiled(self) -> None:
        """Note that compilation has ended and the loop begins."""
        self._compiled_before += time.monotonic() - self.created - self._compiling()
        self._loop_start = self._loop_time()
        self._lap_start, self._lap_steps = self.train_seconds, self.env_steps

    def _loop_time(self) -> float:
        """A clock that stands still while this thread compiles."""
        return time.monotonic() - self._compiling()

    def now(self) -> Moment:
        return Moment(self.wall_seconds, self.train_seconds, self.compile_seconds)

    def note(
        self, env_steps: int, recent_return: Callable[[], float | None], ended: Moment
    ) -> None:
        """Note when an iteration ended. ``recent_return`` is asked until it has reached the
        target."""
        self.env_steps = env_steps
        self._train_seconds = ended.train
        if self.target_return is None or self.seconds_to_target is not None:
            return
        recent = recent_return()
        if recent is not None and recent >= self.target_return:
            self.seconds_to_target = ended.wall

    @property
    def wall_seconds(self) -> float:
        return self._wall_before + time.monotonic() - self._start

    @property
    def train_seconds(self) -> float:
        return self._train_before + self._loop_time() - self._loop_start

    @property
    def compile_seconds(self) -> float:
        return self._compiled_before + self._compiling()

    def row(self, ended: Moment) -> dict[str, Any]:
        """The times in a row of metrics, of an iteration that ended then. The speed is that since
        the iteration of the row before."""
        speed = (self.env_steps - self._lap_steps) / max(ended.train - self._lap_start, 1e-9)
        self._lap_start, self._lap_steps = ended.train, self.env_steps
        return {
            "env_steps": self.env_steps,
            "time": time.time(),
            "wall_seconds": ended.wall,
            "compile_seconds": ended.compiling,
            "steps_per_second": speed,
        }

    def summary(self) -> Timings:
        """The times in ``summary.json``. Call it when the loop has ended."""
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
        self._train_seconds = self._train_before
        self._compiled_before, self.env_steps = data["compile_seconds"], data["env_steps"]
        if data["target_return"] == self.target_return:  # a resume may change it
            self.seconds_to_target = data["seconds_to_target"]
