"""The places where the rows of a run are written: metrics.jsonl, TensorBoard's events, wandb."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jaxrl_scale.config import Config
from jaxrl_scale.errors import make_folder
from jaxrl_scale.records.rows import Row, Summary, read_rows, scalars
from jaxrl_scale.records.run_directory import (
    RunDirectory,
    io_errors,
    plain,
    short,
    write_atomically,
)
from jaxrl_scale.records.wandb_log import WandbSink, wandb_mode

_FLUSH_SECONDS = 2.0


class RowWriter:
    """Writes the rows of one run to metrics.jsonl, TensorBoard's events and wandb.

    Args:
      run: where the files are.
      config: says which of them are wanted.
      name: the run's name at wandb, to which the seeds are appended.
      resume_iteration: the iteration of the checkpoint that a run is resumed from; None for a new
        run. Later rows are removed, because the run writes them again.
      say: shows the user a line. Another thread calls it, too.
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
                rows = read_rows(run.metrics)
                kept = [row for row in rows if row["iteration"] <= resume_iteration]
                dropped = len(rows) - len(kept)
                write_atomically(run.metrics, b"".join(_line(row) for row in kept))
                (run.path / "summary.json").unlink(missing_ok=True)  # that of a shorter run
            # Unbuffered, so that a row that was logged survives whatever happens to the process.
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
        """Write a row everywhere. Raises a `RunError` if the disk is full."""
        row = plain(row)
        with io_errors(self._run.metrics):
            _write_all(self._file, _line(row))
        if self._events:
            with io_errors(self._run.tensorboard):
                self._events.write(row, self._num_seeds)
        if self.wandb:
            self.wandb.log({**scalars(row), "env_steps": row["env_steps"] // self._num_seeds})

    def sync(self) -> None:
        """Wait until the rows are on the disk. It is called before a checkpoint is saved, so that
        no crash of the machine leaves a checkpoint that is ahead of its rows."""
        with io_errors(self._run.metrics):
            os.fsync(self._file.fileno())

    def close(self, summary: Summary | None, exit_code: int) -> None:
        """Write ``summary.json``, if there is a summary, and close everything. With a full disk
        everything is closed, too, and then a `RunError` is raised."""
        with ExitStack() as last:
            if self.wandb:
                last.callback(self.wandb.close, plain(summary or {}), exit_code)
            last.callback(self._file.close)
            if self._events:
                last.enter_context(io_errors(self._run.tensorboard))
                last.callback(self._events.close)
            if summary is not None:
                if self._events:  # the summary comes last, as it says that the run is done
                    self._events.flush()
                self._run.write_json("summary.json", dict(summary))
            self.sync()

    def places(self) -> dict[str, str]:
        """Where to look at the run, for the final table."""
        places = {"run directory": short(self._run.path)}
        if self._events:
            folder = shlex.quote(short(self._run.tensorboard))
            missing = "" if find_spec("tensorboard") else "  (after pip install tensorboard)"
            places["TensorBoard"] = f"tensorboard --logdir {folder}{missing}"
        if self.wandb and self.wandb.place:
            places["wandb"] = self.wandb.place
        return places


def _line(row: Row) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def _write_all(file: Any, data: bytes) -> None:
    while data:  # a disk that is almost full takes the beginning, and then raises an error
        data = data[file.write(data) :]


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Let what is imported in this block not find a module that is not imported yet. tensorboardX
    imports PyTorch where it is installed, which takes four seconds, for a type that is not needed
    here."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


class _Events:
    """TensorBoard's event file. It is written anew: the files that were there are removed.

    It uses the writer below tensorboardX's SummaryWriter. SummaryWriter itself writes from a thread
    of its own: a full disk ends that thread, and the run then waits for it for ever.
    """

    def __init__(self, folder: Path):
        with _hidden("torch"):
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2, summary_pb2

        make_folder(folder)
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
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:  # flushing waits for the disk
            self.flush()

    def flush(self) -> None:
        self._writer.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        self._writer.close()
