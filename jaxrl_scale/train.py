"""Train agents: ``python -m jaxrl_scale.train --config configs/acrobot.py``.

The command and the loop. In Python: ``from jaxrl_scale import train; run = train(config)``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxrl_scale import commands, envs
from jaxrl_scale.config import Config, Launch, command_line, files
from jaxrl_scale.errors import FINISHED
from jaxrl_scale.loop import origin, protocol
from jaxrl_scale.loop.agent import Agent, load
from jaxrl_scale.loop.make import make_runner
from jaxrl_scale.loop.origin import Origin
from jaxrl_scale.loop.prepare import checked, compiled_meanwhile, jax_settings_restored, settings
from jaxrl_scale.loop.state import Agents
from jaxrl_scale.loop.stop import StopRequest
from jaxrl_scale.parallel import backend
from jaxrl_scale.parallel.cluster import find
from jaxrl_scale.parallel.hosts import Hosts, join
from jaxrl_scale.records import run_directory
from jaxrl_scale.records.checkpoint import Checkpoints
from jaxrl_scale.records.log import STATUSES, Log
from jaxrl_scale.records.progress import Clock
from jaxrl_scale.records.rows import Summary, read_rows


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

    def agent(self, agent: int = 0) -> Agent:
        """One of the trained agents, from 0 to ``config.num_seeds - 1``."""
        return load(self.path, agent)


def train(
    config: Config | None = None,
    *,
    name: str = "run",
    resume: str | Path | None = None,
    process_start: float | None = None,
    launch: Launch = Launch(),  # noqa: B008  frozen
    agents: Agents | None = None,
    start: tuple[int, Any] | None = None,
    until: int | None = None,
) -> Run:
    """Train one config to its end, or until a signal stops it.

    Args:
      config: see `jaxrl_scale.config`; with ``resume`` it may be left out, and may differ from the
        config of the run in what its result does not depend on.
      name: what the default run directory is called after.
      resume: a run directory to continue from its newest whole checkpoint. A run that has
        finished is left as it is.
      process_start: unix seconds from which times are counted; default: now.
      launch: how this process finds the others of the run, where there are any.
      agents: seeds and options of the agents, where they differ in more than consecutive seeds.
        They are no part of the config, so that whoever resumes the run has to give them again.
      start: an iteration and the state after it, as a checkpoint holds it, from which a new run
        goes on; default: the beginning.
      until: the iteration after which the run stops, saved, as if by a signal; default: the last.

    Raises:
      RunError: in one line, for whatever the user can mend. In a run of several processes all
        end at once instead, with the error's status.
    """
    config = checked(config, resume)
    clock = Clock(process_start or time.time(), config.target_return)
    hosts = join(find(launch, os.environ), launch)
    with hosts.end_together(), jax_settings_restored():
        hosts.check_alike(settings(config, resume))
        run = _finished(config, resume, hosts)
        if run is None:
            placement = backend.initialize(config, hosts)  # before the environment runs
            env = envs.make(config.env, **config.env_kwargs)
            begun = Origin(agents, {})
            if start is None:
                begun = origin.find(config, env.spec, agents, resume, hosts)
            runner = make_runner(config, env, placement, begun.agents)
            runner.check_memory()
            run = loop(config, runner, hosts, clock, name, resume, start, until, begun)
        hosts.close()
        return run


def loop(
    config: Config,
    runner: protocol.Runner,
    hosts: Hosts,
    clock: Clock,
    name: str = "run",
    resume: str | Path | None = None,
    start: tuple[int, Any] | None = None,
    until: int | None = None,
    begun: Origin = Origin(None, {}),  # noqa: B008  immutable
) -> Run:
    """Step, log, evaluate and save until the last iteration, or until a signal stops the run.

    Whatever is decided here depends on the iteration, never on a clock: processes that took
    different branches would wait for each other for ever.
    """
    last = min(until or config.num_iterations, config.num_iterations)
    with (
        closing(runner),
        run_directory.entered(config, name, resume, hosts) as directory,
        StopRequest(hosts.several) as stop,
        compiled_meanwhile(
            runner, hosts, bool(config.compilation_cache), fresh=not resume and start is None
        ) as wait_for_compiler,
        Log(config, directory, hosts, clock) as log,
        closing(
            Checkpoints(directory.checkpoints, config.keep_checkpoints, hosts, runner.parts())
        ) as checkpoints,
    ):
        checkpoints.warm_up()
        found = checkpoints.restore(runner.abstract_state(), log.say) if resume else None
        iteration, saved_state, counts = found or (*(start or (0, None)), None)
        log.restore(iteration, counts)
        facts = runner.facts() | ({"init_from": begun.record} if begun.record else {})
        log.start(runner.describe(), facts, bool(resume), [checkpoints.warning, begun.note])
        wait_for_compiler()
        log.compiled()
        state = runner.place(saved_state, log.say) if saved_state is not None else runner.init()

        def due(every: int) -> bool:
            return every > 0 and (iteration % every == 0 or iteration == last)

        def save() -> None:
            log.sync()
            checkpoints.save(iteration, runner.fetch(state), log.to_json(), log.score)

        stopping = stop.agreed()
        while iteration < last and not stopping:
            state, metrics, heard = runner.step(state, bool(stop.requested))
            stopping = stop.agreed(heard)
            iteration += 1
            log.record(iteration, metrics)
            if log.all_failed:
                break
            if due(config.eval_every):
                log.evaluated(runner.evaluate(state))
            if due(config.log_every) or due(config.eval_every):
                log.write(runner.memory())
            if due(config.checkpoint_every):
                save()

        if log.all_failed:
            status = "failed"
        elif iteration < config.num_iterations:
            status = "stopped"
            save()
        else:
            status = "done"
            if not log.is_evaluated:
                log.phase("evaluating")
                log.evaluated(runner.evaluate(state))
        checkpoints.wait()
        by = stop.requested or ("a signal to another process" if stopping else "")
        summary = log.finish(status, runner.memory(), stopped_by=by)
        # No process leaves before all have ended well. Only process 0 has the whole summary.
        summary = hosts.gather("summary", run_directory.plain(summary))[0]
    return Run(directory.path, config, summary, STATUSES[summary["status"]])


def _finished(config: Config, resume: str | Path | None, hosts: Hosts) -> Run | None:
    """The run to resume, where nothing is left to do."""
    if resume is None:
        return None
    path = Path(resume).absolute()
    found = run_directory.read_json(path / "summary.json") if hosts.leader else None
    summary = hosts.gather("summary of a finished run", found)[0]
    if not summary or summary["status"] != "done" or summary["iterations"] < config.num_iterations:
        return None
    if hosts.leader:
        print(f"{run_directory.short(path)} has finished: nothing is left to do, nothing changes")
    return Run(path, files.read_json(path / "config.json"), summary, FINISHED)


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    return commands.run(_command, argv, "interrupted; what was saved stays saved")


def _command(argv: list[str]) -> int:
    import psutil

    dry_run = command_line.DRY_RUN in argv
    argv = [text for text in argv if text != command_line.DRY_RUN]
    config, name, resume = command_line.load(argv)
    if dry_run:
        print(files.to_python(config, f"What a run of {name!r} would train with."), end="")
        return 0
    start, launch = psutil.Process().create_time(), command_line.load_launch(argv)
    return train(config, name=name, resume=resume, process_start=start, launch=launch).exit_status


if __name__ == "__main__":
    sys.exit(main())
