"""What a run shows and writes: rows of metrics, the terminal, the summary. Process 0 only.

A **row** is a flat dict: ``iteration``, ``env_steps`` (valid steps of all agents), ``time``
(Unix seconds), ``wall_seconds``, ``steps_per_second``, ``episodes``, ``return`` and
``length`` (means of the episodes that ended since the last row), ``return_100`` (mean return
of the last 100 episodes), the algorithm's metrics, and ``eval_return`` where an evaluation
was due. With several agents each number is the interquartile mean over them, ``per_seed``
holds ``{metric: [one per agent]}`` and ``failed`` the indices of agents whose loss is no
longer finite. ``null`` stands for what does not exist and for NaN and infinities, which JSON
does not know.

``metrics.jsonl``, one row a line, is the truth. TensorBoard's events are derived from it;
both are cut back when a run is resumed, so that they read as if it had never stopped. wandb
takes no row back: see `jaxrl_scale.records.wandb_log`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypedDict

from jaxrl_scale.config import Config
from jaxrl_scale.errors import RunError
from jaxrl_scale.records.run_directory import (
    RunDirectory,
    io_errors,
    plain,
    short,
    write_atomically,
)
from jaxrl_scale.records.wandb_log import WandbSink, wandb_mode

Row = dict[str, Any]

TIMINGS = frozenset({"time", "wall_seconds", "steps_per_second", "compile_seconds"})
"""Keys of a row that the clock decides; in all others identical runs are identical."""

TAGS = {
    "return": "episode/return",
    "return_100": "episode/return_100",
    "length": "episode/length",
    "episodes": "episode/count",
    "eval_return": "evaluation/return",
    "eval_length": "evaluation/length",
    "loss": "loss/total",
    "policy_loss": "loss/policy",
    "value_loss": "loss/value",
    "entropy": "policy/entropy",
    "approx_kl": "policy/approx_kl",
    "clip_fraction": "policy/clip_fraction",
    "explained_variance": "value/explained_variance",
    "learning_rate": "optimizer/learning_rate",
    "grad_norm": "optimizer/grad_norm",
    "param_norm": "optimizer/param_norm",
    "updates": "optimizer/updates",
    "iteration": "time/iteration",
    "wall_seconds": "time/wall_seconds",
    "steps_per_second": "time/steps_per_second",
    "compile_seconds": "time/compile_seconds",
}
"""Names in TensorBoard and wandb; ``algo/<name>`` for what is not listed. The horizontal axis
is ``env_steps`` of one agent. With several agents ``seeds/<metric>_min`` and ``_max`` show the
spread of the returns, ``seeds/failed`` the number of those that failed."""

_NOT_DRAWN = ("env_steps", "time", "per_seed", "failed")
_SPREAD = ("return", "return_100", "eval_return")

_FLUSH_SECONDS = 2.0


class Evaluation(TypedDict):
    """Returns of the final evaluation, over agents (and over episodes where there is one)."""

    mean: float | None
    iqm: float | None  # interquartile mean
    # The 95 % interval of the IQM; of the mean where there is one agent.
    ci95: tuple[float | None, float | None]
    episodes: int  # of each agent
    per_seed: list[float | None]  # each agent's mean return; None where it failed


class Summary(TypedDict, total=False):
    """``summary.json``: the result of a run. Times are of all its starts together."""

    status: str  # done, stopped (by a signal, saved) or failed (no agent's loss is finite)
    iterations: int  # done, of those that the config asks for
    num_seeds: int
    failed: list[int]  # members (seed - config.seed) whose loss was no longer finite
    env_steps: int  # valid steps of all agents
    return_100: float | None  # training return of the last 100 episodes; IQM over agents
    evaluation: Evaluation | None
    target_return: float | None
    seconds_to_target: float | None  # from the start of the process, compilation included
    wall_seconds: float  # all of it: compilation, training, evaluation
    compile_seconds: float
    steps_per_second: float  # env_steps over the time that is not compilation
    peak_memory_mb: float  # of the process on CPUs, of one device on GPUs


# --- rows -----------------------------------------------------------------------------------


def read_rows(path: Path) -> list[Row]:
    """The rows of a ``metrics.jsonl``; a last line that was torn by a crash is left out."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise RunError(f"{short(path)}, line {number} is damaged") from None
    return rows


def scalars(row: Row) -> dict[str, float]:
    """What TensorBoard and wandb draw of a row: tag and number."""
    drawn = {TAGS.get(k, f"algo/{k}"): v for k, v in row.items() if k not in _NOT_DRAWN}
    per_seed = row.get("per_seed") or {}
    for metric in _SPREAD:
        if values := [v for v in per_seed.get(metric, ()) if v is not None]:
            drawn[f"seeds/{metric}_min"] = min(values)
            drawn[f"seeds/{metric}_max"] = max(values)
    if "failed" in row:
        drawn["seeds/failed"] = len(row["failed"])
    return {tag: v for tag, v in drawn.items() if isinstance(v, int | float)}


class Metrics:
    """The places where one run's rows go: metrics.jsonl, TensorBoard, wandb.

    Args:
      run: where the files are.
      config: says which places are wanted.
      name: the run's name at wandb; the seeds are appended.
      resume_iteration: ``None`` for a fresh run, else the checkpoint's iteration. Rows after
        it are dropped: the run writes them again.
      say: shows the user a line; called from another thread too.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: Config,
        name: str,
        *,
        resume_iteration: int | None = None,
        say: Callable[[str], None] = print,
    ):
        self._run = run
        self._num_seeds = config.num_seeds
        self._events: _Events | None = None
        self.wandb: WandbSink | None = None
        kept, dropped = [], 0
        with io_errors(run.metrics):
            if resume_iteration is not None:
                (run.path / "summary.json").unlink(missing_ok=True)  # that of a shorter run
                rows = read_rows(run.metrics)
                kept = [row for row in rows if row["iteration"] <= resume_iteration]
                dropped = len(rows) - len(kept)
                write_atomically(run.metrics, b"".join(_line(row) for row in kept))
            # Unbuffered: a row that was logged survives whatever happens to the process.
            self._file = open(run.metrics, "ab", buffering=0)  # noqa: SIM115
        with io_errors(run.tensorboard):
            if config.tensorboard or run.tensorboard.exists():
                self._events = _Events(run.tensorboard)
                for row in kept:
                    self._events.write(row, self._num_seeds)
                self._events.flush()
            if self._events and not config.tensorboard:
                self._events.close()
                self._events = None
        if (mode := wandb_mode(config)) != "disabled":
            repeated = None if resume_iteration is None else dropped
            shown = f"{name}-seed{config.seed}"
            if config.num_seeds > 1:
                shown += f"-{config.seed + config.num_seeds - 1}"
            self.wandb = WandbSink(run, config, shown, mode, repeated, say)

    def log(self, row: Row) -> None:
        """Write a row everywhere. Raises a `RunError` where the disk takes no more."""
        row = plain(row)
        with io_errors(self._run.metrics):
            _write_all(self._file, _line(row))
        if self._events:
            with io_errors(self._run.tensorboard):
                self._events.write(row, self._num_seeds)
        if self.wandb:
            self.wandb.log({**scalars(row), "env_steps": row["env_steps"] // self._num_seeds})

    def sync(self) -> None:
        """Wait until the rows are on the disk. Called before a checkpoint is saved, so that
        no crash of the machine leaves a checkpoint that is ahead of its metrics."""
        with io_errors(self._run.metrics):
            os.fsync(self._file.fileno())

    def close(self, summary: Summary | None, exit_code: int) -> None:
        """Write ``summary.json``, unless there is none, and close everything, which also
        happens where the disk is full; that is raised then."""
        with ExitStack() as last:
            if self.wandb:
                last.callback(self.wandb.close, plain(summary or {}), exit_code)
            last.callback(self._file.close)
            if self._events:
                last.enter_context(io_errors(self._run.tensorboard))
                last.callback(self._events.close)
            if summary is not None:
                self._run.write_json("summary.json", dict(summary))
            self.sync()

    def places(self) -> dict[str, str]:
        """Where to look at the run, for the final table."""
        places = {"run directory": short(self._run.path)}
        if self._events:
            places["TensorBoard"] = f"tensorboard --logdir {short(self._run.tensorboard)}"
        if self.wandb and self.wandb.place:
            places["wandb"] = self.wandb.place
        return places


def _line(row: Row) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def _write_all(file: Any, data: bytes) -> None:
    while data:  # a disk that fills up takes the beginning first and then says no
        data = data[file.write(data) :]


class _Events:
    """TensorBoard's event file, written anew: what was there before is removed.

    The writer below tensorboardX's SummaryWriter, which would write from a thread of its
    own: there a full disk ends the thread, and the run then waits for it for ever.
    """

    def __init__(self, folder: Path):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        folder.mkdir(exist_ok=True)
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._writer = EventsWriter(str(folder / "events"))
        self._flushed = time.monotonic()

    def write(self, row: Row, num_seeds: int) -> None:
        values = [
            self._summary.Value(tag=t, simple_value=v) for t, v in sorted(scalars(row).items())
        ]
        self._writer.write_event(
            self._event(
                wall_time=row["time"],
                step=row["env_steps"] // num_seeds,
                summary=self._summary(value=values),
            )
        )
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:  # it waits for the disk
            self.flush()

    def flush(self) -> None:
        self._writer.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        self._writer.close()
