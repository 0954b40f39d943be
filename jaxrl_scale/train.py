"""Train agents: ``python -m jaxrl_scale.train --config configs/acrobot.py``.

The command and the loop. In Python: ``from jaxrl_scale import train; run = train(config)``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import chdir, closing, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxrl_scale import commands
from jaxrl_scale.config import Config, Launch, command_line, files
from jaxrl_scale.errors import FINISHED, RunError, how_many
from jaxrl_scale.learning import torsos
from jaxrl_scale.loop import origin, protocol
from jaxrl_scale.loop.agent import Agent, load
from jaxrl_scale.loop.make import check_fit, make_runner
from jaxrl_scale.loop.origin import Origin
from jaxrl_scale.loop.prepare import (
    checked,
    compiled_meanwhile,
    jax_settings_restored,
    other_processors,
    programs_forgotten,
    settings,
)
from jaxrl_scale.loop.programs import seconds_compiling
from jaxrl_scale.loop.state import Agents, Rows, State
from jaxrl_scale.loop.stop import StopRequest
from jaxrl_scale.options import check_fields, given_path, has_type, shown
from jaxrl_scale.parallel import backend
from jaxrl_scale.parallel.cluster import find
from jaxrl_scale.parallel.machine import process_start
from jaxrl_scale.parallel.peers import Peers, join
from jaxrl_scale.records import notebook, past_run, pieces, provenance, run_directory
from jaxrl_scale.records.checkpoint import Checkpoints
from jaxrl_scale.records.log import STATUSES, Log
from jaxrl_scale.records.progress import Clock, Moment
from jaxrl_scale.records.rows import Row, Summary, read_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Run:
    """What `train` returns: the run directory and what was measured."""

    path: Path
    config: Config
    summary: Summary
    exit_status: int
    signal: str = ""
    """The name of the signal that came, to one of the processes, while it trained; empty where none
    did."""

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of ``metrics.jsonl``."""
        return read_rows(self.path / "metrics.jsonl")

    def plot(self, metric: str | None = None) -> Figure:
        """The learning curve, or another metric over environment steps, as a figure that a
        notebook shows: `jaxrl_scale.plot`, which also puts several runs side by side."""
        from jaxrl_scale.figures.report_plots import plot  # here, since a run itself draws nothing

        return plot(self.path, metric=metric)

    def agent(self, agent: int = 0) -> Agent:
        """One of the trained agents, from 0 to ``config.num_seeds - 1``."""
        return load(self.path, agent)


class Stretch(NamedTuple):
    """What of a run is trained, where it is not the whole, as in a sweep.

    ``start``: an iteration and the whole state after it, as a checkpoint holds it, from which a new
    run goes on. ``until``: the iteration after which the run stops, saved, as if by a signal; None:
    the last. ``stop`` hears signals already, and goes on to do so; None: they are heard while the
    run trains. ``advice`` says in messages how a run that was stopped goes on; empty: by
    ``--resume``.
    """

    start: tuple[int, Any] | None = None
    until: int | None = None
    stop: StopRequest | None = None
    advice: str = ""


def train(
    config: Config | None = None,
    *,
    name: str = "run",
    resume: str | Path | None = None,
    on_row: Callable[[Row], object] | None = None,
    process_start: float | None = None,
    launch: Launch = Launch(),  # noqa: B008  frozen
) -> Run:
    """Train one config to its end, or until a signal stops it.

    Args:
      config: see `jaxrl_scale.config`; with ``resume`` it may be left out, and may differ from the
        config of the run in what its result does not depend on.
      name: what the default run directory is called after.
      resume: a run directory to continue from its newest whole checkpoint. A run that has
        finished is left as it is, unless ``config`` asks for more steps.
      on_row: a function that is called with each row of metrics, after it was written: a dict, the
        same as in ``metrics.jsonl``, which docs/metrics.md explains. It sees the run and cannot
        change it: the row is a copy, and what the function returns is dropped. The run waits for
        it. In a run of several processes process 0 calls it. A resumed run calls it with the rows
        after its checkpoint again. What it raises ends the run as a `RunError`; what was saved
        stays, and the run can be resumed.
      process_start: unix seconds from which times are counted; default: now.
      launch: how this process finds the others of the run, where there are any.

    Raises:
      RunError: in one line, for whatever the user can mend. In a run of several processes all
        end at once instead, with the error's status.
      KeyboardInterrupt: after Ctrl-C (in a notebook after any signal), when the run is saved, as
        what stands behind `train` is not to go on. Another signal lets it return, with "stopped" as
        the summary's status.
    """
    run = _train(config, name, resume, on_row, process_start, launch)
    if run.signal == "SIGINT" or (run.summary["status"] == "stopped" and notebook.here()):
        raise KeyboardInterrupt
    return run


def _train(
    config: Config | None,
    name: str,
    resume: str | Path | None,
    on_row: Callable[[Row], object] | None,
    process_start: float | None,
    launch: Launch,
) -> Run:
    """As `train`, but that Ctrl-C, too, lets it return."""
    resume = None if resume is None else given_path("resume", resume)
    config = checked(config, resume)
    as_folder = name.split("/") if isinstance(name, str) and "\0" not in name else [""]
    if not as_folder[0] or ".." in as_folder:
        raise RunError(f"name={name!r} should be a text that names a folder within runs/")
    if on_row is not None and not callable(on_row):
        raise RunError(f"on_row={on_row!r} should be a function that takes a row of metrics")
    if not has_type(process_start, float | None) or not 0 <= (process_start or 0) < 1e11:
        raise RunError(f"process_start={shown(process_start)} should be unix seconds, or None")
    if not isinstance(launch, Launch):
        raise RunError(f"launch={shown(launch)} should be an instance of jaxrl_scale.config.Launch")
    check_fields(launch, "launch.")
    clock = Clock(process_start or time.time(), config.target_return, seconds_compiling)
    peers = join(find(launch, os.environ), launch)
    with peers.end_together(), jax_settings_restored(), programs_forgotten():
        peers.check_alike(settings(config, resume))
        run = train_among(peers, config, clock, name, resume, on_row=on_row)
        peers.close()
        return run


def train_among(
    peers: Peers,
    config: Config,
    clock: Clock,
    name: str = "run",
    resume: str | Path | None = None,
    agents: Agents | None = None,
    stretch: Stretch = Stretch(),  # noqa: B008  immutable
    on_row: Callable[[Row], object] | None = None,
) -> Run:
    """As `train`, among processes that have met. They may train one run after the other.

    All of them have to give the same, but for ``stretch.stop``.

    Args:
      config: one that `jaxrl_scale.loop.prepare.checked` has let pass.
      agents: seeds and options of the agents, where they differ in more than consecutive seeds.
        They are no part of the config, so that whoever resumes the run has to give them again.
    """
    if run := _finished(config, resume, peers):
        return run
    placement = backend.initialize(config, peers)  # before the environment runs
    # The next run of a sweep means the same folder, wherever this one's environment has gone.
    with backend.settings_of(config), chdir("."):
        env = config.make_env()
        begun = Origin(agents, {})
        if stretch.start is None:
            begun = origin.find(config, env.spec, agents, resume, peers)
        runner = make_runner(config, env, placement, begun.agents)
        told = [
            backend.fewer_devices(config, peers),
            other_processors(peers, config.portable),
            torsos.without_effect(config, env.spec),
            torsos.axes_told(config, env.spec),
        ]
        if peers.leader and any(told):
            print(*filter(None, told), sep="\n")
        runner.check_memory()
        return loop(config, runner, peers, clock, name, resume, stretch, on_row, begun)


def loop(
    config: Config,
    runner: protocol.Runner,
    peers: Peers,
    clock: Clock,
    name: str = "run",
    resume: str | Path | None = None,
    stretch: Stretch = Stretch(),  # noqa: B008  immutable
    on_row: Callable[[Row], object] | None = None,
    begun: Origin = Origin(None, {}),  # noqa: B008  immutable
) -> Run:
    """Step, log, evaluate and save until the last iteration, or until a signal stops the run.

    Whatever is decided here depends on the iteration, never on a clock: processes that took
    different branches would wait for each other for ever. The arguments are those of `train_among`.
    """
    start, until, heard_by, advice = stretch
    last = min(until or config.num_iterations, config.num_iterations)
    with (
        nullcontext(heard_by) if heard_by else StopRequest(peers) as stop,
        closing(runner),
        run_directory.entered(config, name, resume, peers) as directory,
        compiled_meanwhile(
            config, runner, peers, backend.keeps_programs(), fresh=not resume and start is None
        ) as wait_for_compiler,
        Log(config, directory, peers, clock, advice, on_row) as log,
        closing(
            Checkpoints(
                directory.checkpoints,
                config.keep_checkpoints,
                peers,
                runner.parts(),
                runner.digests,
            )
        ) as checkpoints,
    ):
        checkpoints.warm_up()
        found = checkpoints.restore(runner.abstract_state(), log.say) if resume else None
        if start and not found:
            found = start[0], pieces.cut(start[1], runner.parts()), {}
        afresh = "no checkpoint is there: the run begins again" if resume and not found else None
        iteration, saved, counts = found or (0, None, {})
        _check_last(config, iteration, last)
        log.restore(iteration, counts)
        warnings = [checkpoints.warning, begun.note, afresh]
        _tell_start(config, runner, log, directory.path, bool(resume), begun, warnings)
        stop.after = "the compilation"
        wait_for_compiler()
        stop.after = "this iteration"
        log.compiled()
        state = runner.init() if saved is None else runner.place(saved, log.say)

        iteration, state, stopping = _iterate(
            config, runner, peers, clock, stop, log, checkpoints, iteration, last, state
        )
        if log.all_failed:
            status = "failed"
        elif iteration < config.num_iterations:
            status = "stopped"
            # Where a checkpoint was due, it is there. Elsewhere it gets no score, so that the best
            # one does not depend on when a stop comes.
            log.sync()
            checkpoints.save(iteration, runner.fetch(state), log.to_json())
        else:
            status = "done"
            if not log.is_evaluated:
                log.phase("evaluating")
                log.evaluated(runner.evaluate(state))
        checkpoints.wait()
        by = stop.requested or ("a signal to another process" if stopping else "")
        digest = None if status == "failed" else checkpoints.digest
        summary = log.finish(status, runner.memory(), digest, stopped_by=by)
        # No process leaves before all have ended well. Only process 0 has the whole summary.
        all_told = peers.gather("summary", [run_directory.plain(summary), stop.requested])
        summary = all_told[0][0]
        signal = next((name for _, name in all_told if name), "")
    return Run(directory.path, config, summary, STATUSES[summary["status"]], signal)


def _iterate(
    config: Config,
    runner: protocol.Runner,
    peers: Peers,
    clock: Clock,
    stop: StopRequest,
    log: Log,
    checkpoints: Checkpoints,
    iteration: int,
    last: int,
    state: State,
) -> tuple[int, State, bool]:
    """From ``iteration`` to ``last``, until a signal stops the run or all agents have failed.

    Returns:
      The iteration, the state after it, and whether a signal has come, to this process or another.
    """

    def due(every: int) -> bool:
        return every > 0 and (iteration % every == 0 or iteration == last)

    def undisturbed() -> int:
        """Iterations until something is due."""
        often = (x for x in (config.log_every, config.eval_every, config.checkpoint_every) if x > 0)
        return min([last - iteration, *(every - iteration % every for every in often)])

    def tell(rows: Rows, ended: Moment) -> None:
        """Tell the log of the iterations of a call, which ended then, and evaluate the agents where
        due. The last is the one in which all agents have failed, which has a row, too."""
        if log.all_failed or not rows:
            return
        for metrics in rows:
            if not log.all_failed:
                log.record(metrics, ended)
        if due(config.eval_every) and not log.all_failed:
            log.evaluated(runner.evaluate(state))
            # Here those that do not play wait. A collective would give up after half an hour.
            peers.barrier("evaluated")
        if due(config.log_every) or due(config.eval_every) or log.all_failed:
            log.write(runner.memory(), ended)

    stopping = stop.agreed()
    rows: Rows = []
    ended = clock.now()
    while iteration < last and not stopping and not log.all_failed:
        count = min(undisturbed(), runner.at_once)
        # The log is told of a call while the devices are at work on the next one, unless what comes
        # before that one needs to have been told.
        meanwhile = partial(tell, rows, ended)
        state, rows, heard = runner.steps(state, count, bool(stop.requested), meanwhile)
        ended = clock.now()
        iteration += count
        stopping = stop.agreed(heard)
        saving = due(config.checkpoint_every)
        if saving or stopping or due(config.eval_every) or iteration == last:
            tell(rows, ended)
            rows = []
        if saving and not log.all_failed:
            log.sync()
            checkpoints.save(iteration, runner.fetch(state), log.to_json(), log.score)
    return iteration, state, stopping


def _check_last(config: Config, iteration: int, last: int) -> None:
    """Raise a `RunError` where a run has come further than it should go."""
    if iteration > last:
        steps = iteration * config.steps_per_iteration
        made = f"{how_many(iteration, 'iteration')} ({how_many(steps, 'step')})"
        raise RunError(f"this run has made {made} and cannot go back to {last}")


def _tell_start(
    config: Config,
    runner: protocol.Runner,
    log: Log,
    run_dir: Path,
    resumed: bool,
    begun: Origin,
    warnings: Sequence[str | None],
) -> None:
    """Begin the log with what ``run.json`` has of a start beside how the process was started, and
    with these ``warnings`` and those of what has changed since earlier starts."""
    facts, starts = runner.facts(), run_directory.read_starts(run_dir)
    if begun.record:
        facts["init_from"] = begun.record
    if provenance.own_code(config):
        facts["modules"] = provenance.own_modules()
    changed = [
        provenance.changed_modules(config, starts),
        provenance.changed_environment(facts, starts),
    ]
    log.start(runner.describe(), facts, resumed, [*warnings, *changed])


def _finished(config: Config, resume: str | Path | None, peers: Peers) -> Run | None:
    """The run to resume, where nothing is left to do."""
    if resume is None:
        return None
    path = Path(resume).absolute()
    found = _told_before(path, config) if peers.leader else None
    summary = peers.gather("summary of a finished run", found)[0]
    made = summary.get("iterations", 0) if summary.get("status") == "done" else 0
    if made < config.num_iterations:
        return None
    if peers.leader:
        print(f"{run_directory.short(path)} has finished: nothing is left to do, nothing changes")
    return Run(path, files.read_config(path / "config.json"), summary, FINISHED)


def _told_before(path: Path, config: Config) -> Summary:
    """The summary of a run that is to be resumed; empty where it has none, or a damaged one. What
    the run has reached stands in its checkpoints, and its end replaces the file."""
    try:
        return past_run.read_summary(path, config.num_seeds)
    except RunError as error:
        if not (path / "summary.json").is_file():  # it cannot be replaced
            raise
        print(f"{error}; the run goes on from its newest checkpoint and writes the file anew")
        return {}


def settings_told(argv: Sequence[str]) -> str:
    """What the user is told of the settings that come with the package, if they are used."""
    file = command_line.shipped_settings(argv)
    where = file and run_directory.short(file)
    return f"The settings are those of {where}; --config=none takes the defaults." if where else ""


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    return commands.run(_command, argv, "interrupted; what was saved stays saved")


def _command(argv: list[str]) -> int:
    dry_run = command_line.DRY_RUN in argv
    argv = [text for text in argv if text != command_line.DRY_RUN]
    # What the user's code prints is not in the file that a dry run writes.
    with redirect_stdout(sys.stderr if dry_run else sys.stdout):
        config, name, resume = command_line.load(argv)
        told = settings_told(argv)
        if dry_run and not resume:  # a run that has begun had its environment and first policy
            origin.find(config, check_fit(config), None, None, Peers())
    if dry_run:
        text = f"What a run of {name!r} would train with." + (f"\n\n{told}" if told else "")
        print(files.to_python(config, text), end="")
        return 0
    start, launch = process_start(), command_line.load_launch(argv)
    if told and find(launch, os.environ).process_id == 0:
        print(told)
    return _train(config, name, resume, None, start, launch).exit_status


if __name__ == "__main__":
    sys.exit(main())
