"""Train agents: ``python -m jaxrl_scale.train --config configs/acrobot.py``.

The command and the loop. In Python: ``from jaxrl_scale import train; run = train(config)``.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
import types
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxrl_scale import commands, envs
from jaxrl_scale.config import Config, Launch, check, command_line, files
from jaxrl_scale.errors import FINISHED, NOT_FINITE, STOPPED, RunError
from jaxrl_scale.loop.agent import Agent, load
from jaxrl_scale.loop.evaluator import Evaluator
from jaxrl_scale.loop.runner import Runner
from jaxrl_scale.parallel import backend
from jaxrl_scale.parallel.cluster import find
from jaxrl_scale.parallel.hosts import Hosts, join
from jaxrl_scale.parallel.machine import free_memory, peak_memory_mb
from jaxrl_scale.records import run_directory
from jaxrl_scale.records.checkpoint import Checkpoints
from jaxrl_scale.records.progress import Clock, Progress
from jaxrl_scale.records.row_writer import RowWriter
from jaxrl_scale.records.rows import Summary, read_rows
from jaxrl_scale.records.statistics import summarize
from jaxrl_scale.records.terminal import Terminal

_INTERRUPTED = "interrupted; what was saved stays saved"


@dataclass(frozen=True)
class Run:
    """What `train` returns: the run directory and what was measured."""

    path: Path
    config: Config
    summary: Summary
    exit_status: int

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of ``metrics.jsonl``."""
        return read_rows(self.path / "metrics.jsonl")

    def agent(self, member: int = 0) -> Agent:
        """The trained agent of one seed."""
        return load(self.path, member)


def train(
    config: Config,
    *,
    name: str = "run",
    resume: str | Path | None = None,
    process_start: float | None = None,
    launch: Launch = Launch(),  # noqa: B008  frozen
) -> Run:
    """Train one config to its end, or until a signal stops it.

    Args:
      config: see `jaxrl_scale.config`.
      name: what the default run directory is called after.
      resume: a run directory to continue from its newest whole checkpoint.
      process_start: unix seconds from which times are counted; default: now.
      launch: how this process finds the others of the run, where there are any.

    Raises:
      RunError: in one line, for whatever the user can mend. In a run of several processes all
        end at once instead, with the error's status.
    """
    clock = Clock(process_start or time.time(), config.target_return)
    check(config)
    hosts = join(find(launch, os.environ), launch)
    with hosts.end_together():
        return _train(config, name, resume, clock, hosts)


def _train(config: Config, name: str, resume: str | Path | None, clock: Clock, hosts: Hosts) -> Run:
    hosts.check_alike(settings(config, resume))
    placement = backend.initialize(config, hosts)  # before the environment runs
    env = envs.make(config.env, **config.env_kwargs)
    runner = Runner(config, env, placement)
    state_memory = check_memory(runner)
    leader = hosts.leader  # it alone writes, apart from checkpoints
    with ExitStack() as leave:
        # --- set up: loggers and orbax import their libraries while XLA compiles ------------
        wanted = os.path.abspath(resume or config.run_dir or default_run_dir(name))
        path = Path(hosts.gather("run directory", wanted)[0])
        if leader:
            run = run_directory.open_existing(path) if resume else run_directory.create(path)
            if not resume:  # from here on it can be resumed
                run.write_json("config.json", files.to_json(config))
        hosts.barrier("run directory is there")
        if not leader:
            run = run_directory.follow(path, files.to_json(config))
        leave.callback(run.close)
        if resume:
            record = run.read_json("run.json")
            name = record["starts"][0].get("name", name) if record else name
        stop = leave.enter_context(StopRequest())
        compiling = leave.enter_context(ThreadPoolExecutor(1)).submit(compile_once, runner, hosts)
        terminal = Terminal(config, None if leader else leave.enter_context(open(os.devnull, "w")))
        leave.callback(terminal.close)
        hosts.prepare_end(
            f"; continue with --resume {shlex.quote(run_directory.short(run.path))}",
            terminal.close,
        )
        checkpoints = Checkpoints(run.checkpoints, config.keep_checkpoints, hosts, runner.parts())
        leave.callback(checkpoints.close)
        checkpoints.warm_up()
        progress, iteration, saved = Progress(config.num_seeds), 0, None
        returns, eval_return = None, None  # of the evaluation of this iteration; its score
        if resume:
            saved = checkpoints.restore(runner.abstract_state(), terminal.message)
        if saved:
            iteration, host_state, meta = saved
            progress.load_json(meta["progress"])
            clock.load_json(meta["clock"])
            eval_return = meta["eval_return"]
        last = config.num_iterations
        terminal.start(
            f"{name}: {env.spec.id}, {config.algo.name}, {last:,} iterations of "
            f"{config.steps_per_iteration:,} steps, {placement.describe()}, "
            f"a state of {state_memory}; in {run.path}"
            + (f", resumed at iteration {iteration}" if resume else ""),
            iteration,
        )
        if run.warning:
            terminal.message(run.warning)
        if not checkpoints.folder_is_shared:
            terminal.message(
                f"{run.path} is not one folder for all processes: each keeps its own part of the "
                "checkpoints there, and only the same processes can resume them"
            )
        terminal.phase("compiling")
        log = None
        if leader:
            if resume:
                run.write_json("config.json", files.to_json(config))
            run.record_start(
                placement.names(),
                name=name,
                reduction=placement.reduction,
                resumed_from=iteration,
                hosts=hosts.names,
            )
            log = RowWriter(
                run,
                config,
                name,
                resume_iteration=iteration if resume else None,
                say=terminal.message,
            )
        unfinished = leave.enter_context(ExitStack())
        if log:
            unfinished.push(lambda kind, *_: close_after_error(log, kind))
        compiling.result()
        clock.compiled()
        state = runner.place(host_state) if saved else runner.init()
        evaluator = Evaluator(env, runner.algo, placement, config.eval_episodes, greedy=True)
        saved_at = iteration if saved else None

        def due(every: int) -> bool:
            # By the iteration, never by a clock: hosts that branched differently would hang.
            return every > 0 and (iteration % every == 0 or iteration == last)

        def evaluate() -> Any:
            # What every process could do by itself one does, and the others wait for it.
            if leader or placement.by_members:
                return evaluator(runner.fetch_actor(state), runner.own_seeds)
            return None

        def save() -> None:
            meta = {
                "progress": progress.to_json(),
                "clock": clock.to_json(),
                "eval_return": eval_return,
            }
            score = eval_return if config.eval_every else progress.recent_return()
            if log:
                log.sync()
            checkpoints.save(iteration, runner.fetch(state), meta, score)

        # --- the loop -----------------------------------------------------------------------
        terminal.phase("training")
        stopping = bool(stop.requested) and not hosts.several
        while iteration < last and not stopping:
            state, metrics, stopping = runner.step(state, bool(stop.requested))
            stopping |= bool(stop.requested) and not hosts.several
            iteration, returns = iteration + 1, None
            progress.record(iteration, metrics)
            if len(progress.failed) == config.num_seeds:
                break
            clock.note(progress.env_steps, progress.recent_return())
            if due(config.eval_every):
                returns = evaluate()
                eval_return = None if returns is None else progress.iqm(returns.mean(1))
            if due(config.log_every):
                row = {"iteration": iteration, **clock.row(), **progress.row(metrics)}
                if due(config.eval_every):
                    row["eval_return"] = eval_return
                if log:
                    log.log(row)
                terminal.update(row)
            if due(config.checkpoint_every):
                save()
                saved_at = iteration

        # --- the end ------------------------------------------------------------------------
        summary: Summary = {
            "status": "done",
            "iterations": iteration,
            "num_seeds": config.num_seeds,
            "failed": sorted(progress.failed),
            "return_100": progress.recent_return(),
            "target_return": config.target_return,
            **clock.summary(),
        }
        status = FINISHED
        if len(progress.failed) == config.num_seeds:
            checkpoints.wait()
            summary["status"], status = "failed", NOT_FINITE
            terminal.close()
            if leader:
                message = not_finite(config, iteration, run.checkpoints)
                print(f"error: {message}", file=sys.stderr)
        elif iteration < last:
            if saved_at != iteration:
                save()
            checkpoints.wait()
            summary["status"], status = "stopped", STOPPED
            by = stop.requested or "a signal to another process"
            terminal.message(
                f"stopped by {by} and saved at iteration {iteration} of {last}; "
                f"continue with: python -m jaxrl_scale.train --resume {shlex.quote(str(run.path))}"
            )
        else:
            terminal.phase("evaluating")
            checkpoints.wait()
            if returns is None:
                returns = evaluate()
            if leader:
                summary["evaluation"] = summarize(returns, progress.failed)
        summary["wall_seconds"] = clock.wall_seconds
        summary["peak_memory_mb"] = peak_memory_mb(placement.at_hand[0])
        unfinished.pop_all()
        if log:
            log.close(summary, status)
            if status == FINISHED:
                terminal.finish(f"{name} is done", summary, log.places())
        # Nobody leaves before all have ended well.
        summary = hosts.gather("summary", run_directory.plain(summary))[0]
        hosts.close()
    return Run(run.path, config, summary, status)


def check_memory(runner: Runner) -> str:
    """The size of this process's state, for people; `RunError` where it does not fit.

    On CPUs it is there twice while it is saved: a checkpoint is written from a copy.
    """
    devices = runner.placement.at_hand
    needed, free = runner.state_bytes, free_memory(devices)
    copies = 2 if devices[0].platform == "cpu" else 1
    if needed * copies > free:
        hint = "num_envs" if not hasattr(runner.config.algo, "replay_size") else "algo.replay_size"
        raise RunError(
            f"the state of this run takes {_size(needed)}"
            + (", and as much again while it is saved" if copies == 2 else "")
            + f", but {_size(free)} of memory is free; with {free / needed / copies:.0%} of its "
            f"{hint} it would fit"
        )
    return _size(needed)


def _size(number: float) -> str:
    """Bytes for people: ``4.2 MB``."""
    for unit in ("bytes", "KB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.1f} GB"


def compile_once(runner: Runner, hosts: Hosts) -> None:
    """On one machine process 0 compiles, and the others find its programs in the cache."""
    in_turn = hosts.together and runner.config.compilation_cache
    if hosts.leader or not in_turn:
        runner.compile()
    hosts.barrier("process 0 has compiled", thread="compile")
    if not hosts.leader and in_turn:
        runner.compile()
    # Slow compilers are waited for here: a collective would give up.
    hosts.barrier("compiled", thread="compile")


def settings(config: Config, resume: str | Path | None) -> dict[str, str]:
    """What must be the same in all processes of a run."""
    return {
        **{k: str(v) for k, v in files.flatten(config).items()},
        "resume": str(resume),
        "jax": run_directory.versions().get("jax", ""),
        "jaxrl_scale": run_directory.versions().get("jaxrl_scale", ""),
    }


def default_run_dir(name: str) -> str:
    """``runs/<name>-<time>``, with a number where two runs start in the same second."""
    path = f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while Path(path if number == 1 else f"{path}-{number}").exists():
        number += 1
    return path if number == 1 else f"{path}-{number}"


def close_after_error(log: RowWriter, kind: type[BaseException] | None) -> None:
    """Keep the rows so far in all places; whoever interrupts does not wait for wandb."""
    if kind is not None and issubclass(kind, Exception):
        with suppress(RunError):  # a full disk has been told already
            log.close(None, 1)


def not_finite(config: Config, iteration: int, checkpoints: Path) -> str:
    """What happened and what is left, in one line."""
    who = "the loss" if config.num_seeds == 1 else f"the loss of all {config.num_seeds} seeds"
    saved = [int(path.name) for path in checkpoints.iterdir() if path.name.isdecimal()]
    where = f"{checkpoints / str(max(saved))}" if saved else "none was saved yet"
    return (
        f"{who} is no longer finite at iteration {iteration}; last good checkpoint: {where}; "
        "a smaller --algo.learning_rate may help"
    )


class StopRequest:
    """SIGTERM, SIGINT and SIGUSR1 ask the loop to save and end; a second SIGINT interrupts.

    ``requested`` is the signal's name, or an empty text. Outside of the main thread (some
    notebooks) signals are left alone.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

    def __init__(self) -> None:
        self.requested = ""

    def __enter__(self) -> StopRequest:
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._handle) for s in self.SIGNALS}
        return self

    def _handle(self, number: int, frame: Any) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number).name

    def __exit__(self, *error: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    return commands.run(_command, argv, _INTERRUPTED)


def _command(argv: list[str]) -> int:
    import psutil

    config, name, resume = command_line.load(argv)
    start, launch = psutil.Process().create_time(), command_line.load_launch(argv)
    return train(config, name=name, resume=resume, process_start=start, launch=launch).exit_status


class _CallableModule(types.ModuleType):
    """Lets ``from jaxrl_scale import train`` be the function although it is this module, and
    whichever of the two was imported first."""

    def __call__(self, *args: Any, **kwargs: Any) -> Run:
        return train(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule

if __name__ == "__main__":
    sys.exit(main())
