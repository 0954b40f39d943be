"""What one run counts, shows and writes down."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from jaxrl_scale.config import Config
from jaxrl_scale.config.files import to_json
from jaxrl_scale.errors import FINISHED, NOT_FINITE, STOPPED, RunError, how_many
from jaxrl_scale.parallel.machine import Memory
from jaxrl_scale.parallel.peers import Peers
from jaxrl_scale.records import checkpoint, notebook, statistics
from jaxrl_scale.records.progress import Clock, Moment, Progress
from jaxrl_scale.records.row_writer import RowWriter
from jaxrl_scale.records.rows import Row, Summary, centre, normalized
from jaxrl_scale.records.run_directory import RunDirectory, plain, short
from jaxrl_scale.records.terminal import Terminal
from jaxrl_scale.types import Played
from jaxrl_scale.user_code import errors_in_one_line

STATUSES = {"done": FINISHED, "failed": NOT_FINITE, "stopped": STOPPED}
"""Exit status by `Summary`'s ``status``."""


class Log:
    """The counters, the clock, the terminal and the files of one run.

    Every process counts. Only process 0 shows and writes, so that in the others the same calls
    do nothing more.

    As a context it gives the terminal back and closes the files. After an error the rows so far
    are kept in all places; after an interrupt nobody waits for wandb.

    Args:
      advice: says how the run goes on after it was stopped; default: by ``--resume``.
      on_row: the user's function, which process 0 calls with a copy of each row.
    """

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        peers: Peers,
        clock: Clock,
        advice: str = "",
        on_row: Callable[[Row], object] | None = None,
    ):
        self.iteration = 0
        self.is_evaluated = False  # in this iteration
        self.played: dict[str, Played] | None = None  # [P, episodes] of that evaluation
        self._config, self._run, self._peers, self._clock = config, run, peers, clock
        self._advice, self._on_row = advice, on_row
        self._progress = Progress(config.num_seeds)
        self._metrics: dict[str, np.ndarray] = {}
        self._writer: RowWriter | None = None
        self._nowhere = open(os.devnull, "w")  # noqa: SIM115
        bar = notebook.Bar if peers.leader and notebook.here() else None
        self._terminal = Terminal(config, None if peers.leader else self._nowhere, bar)

    def __enter__(self) -> Log:
        advice = self._advice or f"continue with --resume {shlex.quote(short(self._run.path))}"
        self._peers.prepare_end(f"; {advice}", self._terminal.close)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self._terminal.close()
        self._nowhere.close()
        if self._writer and kind is not None and issubclass(kind, Exception):
            with suppress(RunError):  # a full disk, which the error that ends the run tells
                self._writer.close(None, 1)

    # --- before the loop --------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Show the user a line. Other threads may call it, too."""
        self._terminal.message(text)

    def phase(self, name: str) -> None:
        """Show what goes on: compiling, training, evaluating."""
        self._terminal.phase(name)

    def restore(self, iteration: int, counts: dict[str, Any] | None) -> None:
        """Go on from what `to_json` gave at an iteration; None in a new run."""
        self.iteration = iteration
        if counts:
            self._progress.load_json(counts["progress"])
            self._clock.load_json(counts["clock"])

    def start(
        self,
        runs_on: str,
        facts: dict[str, Any],
        resumed: bool,
        warnings: Sequence[str | None] = (),
    ) -> None:
        """Print the first line and open the files. Those of a resumed run are cut back to the
        iteration that it goes on from.

        Args:
          runs_on: the devices, for people.
          facts: the devices and more, for ``run.json``.
          resumed: whether the run was started before.
          warnings: lines to print.
        """
        config, run, iteration = self._config, self._run, self.iteration
        iterations = how_many(config.num_iterations, "iteration")
        self._terminal.start(
            f"{run.name}: {config.env}, {config.algo.name}, {iterations} "
            f"of {how_many(config.steps_per_iteration, 'step')}, {runs_on}; in {run.path}"
            + (f", resumed at iteration {iteration}" if resumed else ""),
            iteration,
        )
        for warning in filter(None, [run.warning, *warnings]):
            self.say(warning)
        if self._peers.leader:
            facts = {**facts, "name": run.name, "hosts": self._peers.names}
            since = iteration if resumed else None
            self._writer = RowWriter(run, config, run.name, resume_iteration=since, say=self.say)
            run.record_start(**facts, resumed_from=iteration)
        if resumed:  # in every process, as machines may have folders of their own
            run.write_json("config.json", to_json(config))
        self.phase("compiling")

    def compiled(self) -> None:
        """The loop begins."""
        self._clock.compiled()
        self.phase("training")

    # --- in the loop ------------------------------------------------------------------------

    def record(self, metrics: dict[str, np.ndarray], ended: Moment) -> None:
        """The next iteration, with its metrics ``[P]`` and when it ended."""
        self.iteration, self._metrics = self.iteration + 1, metrics
        self.is_evaluated, self.played = False, None
        self._progress.record(self.iteration, metrics)
        self._clock.note(self._progress.env_steps, self._progress.recent_return, ended)

    def evaluated(self, played: dict[str, Played] | None) -> None:
        """The agents were evaluated after this iteration: ``[P, episodes]`` by what their metrics
        begin with, ``eval`` among them; None in a process that does not have them."""
        self.is_evaluated, self.played = True, played

    def write(self, memory: Memory, ended: Moment) -> None:
        """Write a row of metrics of this iteration, which ended then, show it, and hand it to the
        user's function, whose error is a `RunError`."""
        row = {
            "iteration": self.iteration,
            **self._clock.row(ended),
            **self._progress.row(self._metrics),
            "memory_mb": memory.now,
            "peak_memory_mb": memory.peak,
        }
        if self.is_evaluated:
            row |= self._evaluation()
        if self._writer:
            self._writer.log(row)
        self._terminal.update(row)
        if self._writer and self._on_row:
            with errors_in_one_line("on_row"):
                self._on_row(plain(row))

    @property
    def all_failed(self) -> bool:
        """Every agent has failed: its loss or another metric is no longer finite."""
        return len(self._progress.failed) == self._config.num_seeds

    @property
    def eval_return(self) -> float | None:
        """The interquartile mean over agents of this iteration's evaluation; None without one."""
        return self._evaluation()["eval_return"]

    def _evaluation(self) -> dict[str, float | None]:
        """What a row has of this iteration's evaluation."""
        scores: dict[str, float | None] = {"eval_return": None}
        if self.played is None:
            return scores
        for name, played in self.played.items():
            means = statistics.means(played)
            scores |= {f"{name}_{metric}": self._progress.iqm(x) for metric, x in means.items()}
        returns = {f"{name}_return": scores[f"{name}_return"] for name in self.played}
        return scores | normalized(self._config.env, returns)

    @property
    def score(self) -> float | None:
        """What the best checkpoint is chosen by: the return in this iteration's evaluation, or
        None if there was none; the training return in a run that is evaluated only at its end."""
        return self.eval_return if self._config.eval_every else self._progress.recent_return()

    def sync(self) -> None:
        """Wait until the rows are on the disk, so that no checkpoint is ahead of its rows."""
        if self._writer:
            self._writer.sync()

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps of the counters and times."""
        return {"progress": self._progress.to_json(), "clock": self._clock.to_json()}

    # --- after the loop ---------------------------------------------------------------------

    def finish(
        self, status: str, memory: Memory, digest: str | None, stopped_by: str = ""
    ) -> Summary:
        """Write the summary, close the files and tell the user how the run ended.

        Args:
          status: done, stopped or failed.
          memory: the runner's.
          digest: that of the checkpoint of this iteration; None if there is none.
          stopped_by: which signal did; empty where the run was to stop here.
        """
        failed = sorted(self._progress.failed)
        summary: Summary = {
            "status": status,
            "iterations": self.iteration,
            "num_seeds": self._config.num_seeds,
            "failed": failed,
            "digest": digest,
            "return_100": self._progress.recent_return(),
            "target_return": self._config.target_return,
            **self._clock.summary(),
            "peak_memory_mb": memory.peak,
        }
        if status == "done" and self.played is not None:
            told = {name: statistics.evaluation(x, failed) for name, x in self.played.items()}
            summary["evaluation"] = told["eval"]
            if "test" in told:
                summary["test"] = told["test"]
            centres = {f"{name}_return": centre(evaluation) for name, evaluation in told.items()}
            summary |= normalized(self._config.env, centres)  # type: ignore[typeddict-item]
        writer, self._writer = self._writer, None
        if writer:
            self._tell_the_end(status, stopped_by)
            writer.close(summary, STATUSES[status])
            if status == "done":
                self._terminal.finish(f"{self._run.name} is done", summary, writer.places())
        return summary

    def _tell_the_end(self, status: str, stopped_by: str) -> None:
        if status == "stopped" and not stopped_by:
            self.say(f"saved at iteration {self.iteration} of {self._config.num_iterations}")
        elif status == "stopped":
            path = str(self._run.path)
            resume = f"python -m jaxrl_scale.train --resume {shlex.quote(path)}"
            if notebook.here():
                resume = f"train(resume={path!r})"
            self.say(
                f"stopped by {stopped_by} and saved at iteration {self.iteration} of "
                f"{self._config.num_iterations}; {self._advice or f'continue with: {resume}'}"
            )
        if status == "failed":
            self._terminal.close()
            agents = self._config.num_seeds
            whose = "the loss or another metric" + f" of all {agents} agents" * (agents > 1)
            last = checkpoint.newest(self._run.checkpoints)
            advice = "a smaller --algo.learning_rate may help, or the environment returns NaN"
            if not hasattr(self._config.algo, "learning_rate"):  # one of one's own
                advice = "its algorithm or the environment returns NaN"
            print(
                f"error: {whose} is no longer finite at iteration {self.iteration}; last good "
                f"checkpoint: {last or 'none was saved yet'}; {advice}",
                file=sys.stderr,
            )
