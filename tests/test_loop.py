"""The training loop, with a runner that only counts: no environment, no network, no device. And
what the loop counts itself."""

import itertools
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from running import small

from jaxrl_scale import Config, envs, train
from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Launch
from jaxrl_scale.errors import (
    FINISHED,
    INPUT_OUTPUT_ERROR,
    MISTAKE,
    NOT_FINITE,
    STOPPED,
    RunError,
)
from jaxrl_scale.loop import programs
from jaxrl_scale.loop.make import make_runner
from jaxrl_scale.parallel import backend
from jaxrl_scale.parallel.machine import Memory
from jaxrl_scale.parallel.peers import Peers
from jaxrl_scale.parallel.placement import Placement
from jaxrl_scale.records import array_folder, log, notebook, progress
from jaxrl_scale.records.checkpoint import Checkpoints, restore_some
from jaxrl_scale.records.digest import of_run, of_tree
from jaxrl_scale.records.progress import Clock
from jaxrl_scale.records.row_writer import RowWriter
from jaxrl_scale.train import loop
from jaxrl_scale.types import Played

HERE = Path(__file__).name
train_module = sys.modules["jaxrl_scale.train"]


class Counter:
    """All that `jaxrl_scale.loop.protocol.Runner` has, and nothing else. The state of an agent is
    the number of its iterations, and an evaluation returns what the test wants."""

    def __init__(self, config, evaluations=(), at=None, at_once=1):
        self.agents, self.at_once, self.calls = config.num_seeds, at_once, []
        self.compiled, self.evaluations = False, iter(evaluations)
        self.played = []
        self.at = at or {}  # by iteration what happens during it

    def describe(self):
        return "ten fingers"

    def facts(self):
        return {"devices": ["fingers"]}

    def compile(self, fresh):
        self.compiled, self.fresh = True, fresh

    def init(self):
        assert self.compiled
        return {"count": np.zeros(self.agents, np.int32)}

    def steps(self, state, count, stop, meanwhile):
        assert 1 <= count <= self.at_once
        self.calls.append(count)
        meanwhile()
        rows = []
        for _ in range(count):
            state = {"count": state["count"] + 1}
            metrics = {"loss": 1 / state["count"], "total_return": 40.0 * state["count"]}
            metrics |= {
                name: np.full(self.agents, 40) for name in ("ended", "total_length", "steps")
            }
            happens = self.at.get(int(state["count"][0]))
            rows.append(happens(metrics) if happens else metrics)
        return state, rows, stop

    def evaluate(self, state):
        self.played.append(next(self.evaluations, float(state["count"][0])))
        returns = np.full((self.agents, 4), self.played[-1], np.float32)
        lengths = np.broadcast_to(np.asarray([1, 2, 3, 6], np.int32), returns.shape)
        info = {"env/speed": returns, "env_end/won": lengths > 1}
        return {"eval": Played(returns, lengths, info)}

    def abstract_state(self):
        return {"count": jax.ShapeDtypeStruct((self.agents,), np.int32)}

    def parts(self):
        return None

    def fetch(self, state):
        return state

    def digests(self, fetched):
        return {k: str(count) for k, count in enumerate(fetched["count"])}

    def place(self, saved, say):
        return saved

    def memory(self):
        return Memory(0.5, 1.0)

    def close(self):
        self.closed = True


class Stopped(Counter):
    """Gets a signal when all is done but for this."""

    def close(self):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_while_a_run_is_being_closed_does_not_end_the_process(tmp_path):
    told, config = [], config_of(tmp_path / "run")
    before = signal.signal(signal.SIGTERM, lambda *_: told.append("the handler before"))
    try:
        run = loop(config, Stopped(config), Peers(), Clock(0.0), "counting")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (run.exit_status, run.signal, told) == (0, "", [])


def config_of(path, **changes):
    """The config of a run of the counter."""
    few = {"iterations": 10, "log_every": 5, "checkpoint_every": 4, "compilation_cache": ""}
    quiet = {"wandb": "disabled", "tensorboard": False, "run_dir": str(path)}
    return Config(**{**few, **quiet, **changes})


def run_of(config, *, resume=None, **how):
    """A run of the counter from its beginning, or from where it stopped."""
    runner = Counter(config, **how)
    return loop(config, runner, Peers(), Clock(0.0), "counting", resume), runner


def saved(run):
    """The checkpoints, and what is in each."""
    folder = run.path / "checkpoints"
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def terminate(metrics):
    os.kill(os.getpid(), signal.SIGTERM)
    return metrics


def evaluations(run):
    return {row["iteration"]: row["eval_return"] for row in run.metrics if "eval_return" in row}


# --- the loop -------------------------------------------------------------------------------


def test_only_a_run_that_is_not_resumed_gets_ready_to_begin(tmp_path):
    stopped, first = run_of(config_of(tmp_path / "run"), at={3: terminate})
    done, second = run_of(stopped.config, resume=stopped.path)
    assert done.exit_status == FINISHED
    assert (first.fresh, second.fresh) == (True, False)


@pytest.mark.parametrize("env", ["CartPole-v1", "gymnasium:CartPole-v1"])
def test_a_runner_compiles_the_beginning_only_where_it_is_wanted(env, monkeypatch):
    config = small(env=env, devices=1)
    programs = []
    monkeypatch.setattr(
        Placement, "trace", lambda _, f, *args, **how: partial(programs.append, how)
    )
    for fresh in (False, True):
        runner = make_runner(config, envs.make(env), backend.place(config, jax.local_devices()))
        runner.compile(fresh)
        assert sum("once" in how for how in programs) == fresh
    runner.close()


def test_a_runner_that_only_counts_is_trained_logged_and_saved(tmp_path, capsys):
    run, _ = run_of(config_of(tmp_path / "run"))
    assert [row["iteration"] for row in run.metrics] == [5, 10]
    assert [row["env_steps"] for row in run.metrics] == [200, 400]
    assert run.metrics[-1]["return_100"] == (10 + 9 + 8) / 3
    assert saved(run) == [4, 8, 10]
    assert (run.exit_status, run.summary["status"]) == (FINISHED, "done")
    assert run.summary["evaluation"]["mean"] == 10
    assert run.summary["evaluation"]["length"] == 3
    assert run.summary["evaluation"]["info"] == {"env/speed": 40 / 12, "env_end/won": 3 / 4}
    assert run.summary == json.loads((run.path / "summary.json").read_text())
    assert "eval_normalized" not in run.metrics[-1]
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("counting: CartPole-v1, ppo, 10 iterations of 8,192 steps, ten fingers")


def test_a_call_makes_no_more_iterations_than_until_something_is_due(tmp_path):
    one, _ = run_of(config_of(tmp_path / "one"))
    run, runner = run_of(config_of(tmp_path / "run"), at_once=3)
    assert runner.calls == [3, 1, 1, 3, 2]  # saved after 4, 8 and 10, logged after 5 and 10
    assert saved(run) == saved(one)
    for ours, theirs in zip(run.metrics, one.metrics, strict=True):
        assert ours["return_100"] == theirs["return_100"]
        assert (ours["iteration"], ours["env_steps"]) == (theirs["iteration"], theirs["env_steps"])


def test_the_log_is_told_of_a_call_during_the_next_one_or_before_a_checkpoint(tmp_path):
    rows, told = [], []

    class Watched(Counter):
        def steps(self, state, count, stop, meanwhile):
            def watched():
                before = len(rows)
                meanwhile()
                told.append((before, len(rows)))

            return super().steps(state, count, stop, watched)

    config = config_of(tmp_path / "run", iterations=5, log_every=1, checkpoint_every=3)
    loop(config, Watched(config), Peers(), Clock(0.0), "counting", on_row=rows.append)
    assert told == [(0, 0), (0, 1), (1, 2), (3, 3), (3, 4)]
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5]


def test_a_row_has_the_time_at_which_its_call_ended(tmp_path):
    """Also on a GPU, where a call returns to Python only when nearly all is computed, because the
    host drives its loop. Before a checkpoint the log is then told of two calls at once."""

    class Late(Counter):
        def steps(self, *arguments):
            time.sleep(0.05)
            return super().steps(*arguments)

    config = config_of(tmp_path / "run", iterations=6, log_every=1, checkpoint_every=2)
    run = loop(config, Late(config), Peers(), Clock(0.0), "counting")
    assert all(row["steps_per_second"] <= 40 / 0.05 for row in run.metrics)


def test_a_signal_within_a_call_stops_the_run_after_the_call(tmp_path):
    run, runner = run_of(config_of(tmp_path / "run"), at_once=3, at={7: terminate})
    assert runner.calls == [3, 1, 1, 3]
    assert (run.exit_status, run.summary["iterations"], saved(run)) == (STOPPED, 8, [4, 8])


def test_a_score_is_normalized_where_a_range_was_published(tmp_path, capsys):
    config = config_of(tmp_path / "run", env="CoinrunEasy-v0", eval_every=5)
    run, _ = run_of(config, evaluations=[5.0, 9.5])
    assert [row["eval_normalized"] for row in run.metrics] == pytest.approx([0.0, 0.9])
    assert run.summary["eval_normalized"] == pytest.approx(0.9)
    assert "normalized " in capsys.readouterr().out


def test_a_counter_that_a_signal_stops_goes_on_and_leaves_the_same_record(tmp_path, capsys):
    whole, _ = run_of(config_of(tmp_path / "whole"))
    config = config_of(tmp_path / "halves")
    stopped, _ = run_of(config, at={7: terminate})
    assert (stopped.exit_status, stopped.summary["status"]) == (STOPPED, "stopped")
    assert stopped.summary["iterations"] == 7
    assert saved(stopped) == [4, 7]
    assert "stopped by SIGTERM and saved at iteration 7 of 10" in capsys.readouterr().out
    resumed, _ = run_of(config, resume=stopped.path)
    assert resumed.summary["evaluation"] == whole.summary["evaluation"]
    clock = ("time", "wall_seconds", "steps_per_second", "compile_seconds")
    for ours, theirs in zip(resumed.metrics, whole.metrics, strict=True):
        assert {k: v for k, v in ours.items() if k not in clock} == {
            k: v for k, v in theirs.items() if k not in clock
        }


def test_the_loop_ends_when_no_agent_is_finite_any_more(tmp_path, capsys):
    config = config_of(tmp_path / "run", num_seeds=2, checkpoint_every=2)
    lost = {"loss": np.full(2, np.nan)}
    run, _ = run_of(config, at={5: lambda metrics: metrics | lost})
    assert (run.exit_status, run.summary["status"]) == (NOT_FINITE, "failed")
    assert saved(run) == [2, 4]
    assert capsys.readouterr().err == (
        "error: the loss or another metric of all 2 agents is no longer finite at iteration 5; "
        f"last good checkpoint: {run.path}/checkpoints/4; a smaller --algo.learning_rate may "
        "help, or the environment returns NaN\n"
    )


@pytest.mark.parametrize("failing", [3, 5])
def test_the_iteration_in_which_the_last_agent_fails_has_a_row(failing, tmp_path):
    """One, whether a row is due or not."""
    lost = {"loss": np.full(2, np.nan)}
    config = config_of(tmp_path / "run", num_seeds=2)
    run, _ = run_of(config, at={failing: lambda metrics: metrics | lost})
    (last,) = run.metrics
    assert last["iteration"] == failing
    assert (last["loss"], last["failed"]) == (None, [0, 1])
    assert last["env_steps"] == run.summary["env_steps"]


def test_every_evaluation_is_in_the_rows_whatever_log_every_is(tmp_path):
    run, runner = run_of(config_of(tmp_path / "run", eval_every=3))
    assert evaluations(run) == {3: 3, 6: 6, 9: 9, 10: 10}
    assert [row["iteration"] for row in run.metrics] == [3, 5, 6, 9, 10]
    assert runner.played == [3, 6, 9, 10]


def test_no_process_goes_on_to_the_next_collective_before_all_have_evaluated(tmp_path):
    """An evaluation of process 0 alone may take longer than a collective waits."""
    peers, met = Peers(), []
    config = config_of(tmp_path / "run", eval_every=4)
    runner = Counter(config)

    def barrier(name, thread="main"):
        met.append((name, len(runner.played), len(runner.calls)))

    peers.barrier = barrier
    loop(config, runner, peers, Clock(0.0))
    evaluated = [counts for name, *counts in met if name == "evaluated"]
    assert evaluated == [[1, 4], [2, 8], [3, 10]]


def best(run):
    """The iteration, the arrays by name, and the meta of the best checkpoint."""
    return restore_some(run.path / "checkpoints", lambda name: True, print, best=True)


def test_the_best_checkpoint_does_not_depend_on_when_a_run_was_stopped(tmp_path):
    def pay(metrics):
        return metrics | {"total_return": np.full(1, 4000.0)}

    whole, _ = run_of(config_of(tmp_path / "whole"), at={5: pay})
    stopped, _ = run_of(config_of(tmp_path / "run"), at={5: pay, 7: terminate})
    done, _ = run_of(stopped.config, resume=stopped.path)
    assert 7 in saved(done)
    for run in (whole, done):
        assert best(run)[0] == 10


def test_the_best_checkpoint_is_one_that_was_evaluated(tmp_path):
    config = config_of(
        tmp_path / "run", iterations=8, eval_every=4, checkpoint_every=2, keep_checkpoints=1
    )
    run, _ = run_of(config, evaluations=[500, 10])
    iteration, state, _ = best(run)
    assert (iteration, state["count"].item()) == (4, 4)
    assert saved(run) == [4, 8]


def test_after_an_error_the_rows_so_far_are_kept_and_the_folder_is_free(tmp_path):
    def fail(metrics):
        raise RuntimeError("a finger broke")

    config = config_of(tmp_path / "run", log_every=1)
    with pytest.raises(RuntimeError, match="a finger broke"):
        run_of(config, at={6: fail})
    resumed, _ = run_of(config, resume=tmp_path / "run")
    assert [row["iteration"] for row in resumed.metrics] == list(range(1, 11))


def test_rows_are_on_the_disk_before_the_checkpoint_that_counts_them(tmp_path, monkeypatch):
    events, fsync, save = [], os.fsync, Checkpoints.save

    def on_disk(descriptor):
        events.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def saving(*given):
        events.append("saved")
        save(*given)

    monkeypatch.setattr(os, "fsync", on_disk)
    monkeypatch.setattr(Checkpoints, "save", saving)
    run, _ = run_of(config_of(tmp_path / "run"))
    rows = (run.path / "metrics.jsonl").stat().st_ino
    told = ["rows" if event == rows else event for event in events if event in (rows, "saved")]
    assert told == ["rows", "saved"] * 3 + ["rows"]


def test_after_an_interrupt_nobody_waits_for_what_is_written(tmp_path, monkeypatch):
    """Closing waits for wandb, for up to 40 seconds."""

    def interrupted(metrics):
        raise KeyboardInterrupt

    class Writer(RowWriter):
        def close(self, *_):
            raise AssertionError("closed")

        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            files.append(self._file)

    files = []
    monkeypatch.setattr(log, "RowWriter", Writer)
    with pytest.raises(KeyboardInterrupt):
        run_of(config_of(tmp_path / "run"), at={6: interrupted})
    files[0].close()


def test_a_run_that_broke_in_its_last_evaluation_has_its_digest_when_it_is_resumed(
    tmp_path, monkeypatch
):
    def broken(self, state):
        raise RuntimeError("a finger broke")

    config = config_of(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Counter, "evaluate", broken)
        with pytest.raises(RuntimeError, match="a finger broke"):
            run_of(config)
    resumed, runner = run_of(config, resume=tmp_path / "run")
    assert runner.calls == []
    assert resumed.summary["digest"] == of_run({0: "10"})


def test_the_directory_of_a_resumed_run_holds_the_config_that_it_goes_on_with(tmp_path):
    stopped, _ = run_of(config_of(tmp_path / "run"), at={3: terminate})
    run_of(stopped.config.replace(target_return=5.0), resume=stopped.path)
    assert json.loads((stopped.path / "config.json").read_text())["target_return"] == 5.0


@pytest.mark.parametrize("others", [None, {"slurm.out"}])
def test_a_mistake_before_the_first_row_leaves_no_run_behind(tmp_path, monkeypatch, others):
    """How much memory a program takes is known when it is compiled, after the first files."""
    path = tmp_path / "run"
    if others:
        path.mkdir()
        (path / "slurm.out").touch()

    def compile(self, fresh):
        raise RunError("the memory is not enough", status)

    status = MISTAKE
    config = config_of(path)
    with monkeypatch.context() as patch:
        patch.setattr(Counter, "compile", compile)
        with pytest.raises(RunError, match="the memory is not enough"):
            run_of(config)
        left = {file.name for file in path.iterdir()} - {".lock"} if path.exists() else None
        assert left == others
        status = INPUT_OUTPUT_ERROR  # such a run can be resumed
        with pytest.raises(RunError, match="the memory is not enough"):
            run_of(config)
    assert run_of(config, resume=path)[0].exit_status == 0


# --- train() in Python ----------------------------------------------------------------------


@pytest.fixture
def counting(monkeypatch):
    """`train` builds a counter instead of a runner."""

    class Runner(Counter):
        at = None

        def __init__(self, config, env, placement, agents):
            super().__init__(config, at=self.at)

        def check_memory(self):
            pass

    monkeypatch.setattr(train_module, "make_runner", Runner)
    return Runner


def test_in_a_notebook_a_run_that_is_stopped_is_saved_and_raises(
    tmp_path, counting, monkeypatch, capsys
):
    """Otherwise the notebook would go on with its next cells."""
    monkeypatch.setattr(notebook, "here", lambda: True)
    monkeypatch.setattr(notebook, "Bar", None)  # as in a terminal
    monkeypatch.setattr(counting, "at", {7: terminate})
    with pytest.raises(KeyboardInterrupt):
        train(config_of(tmp_path / "run"))
    path = str(tmp_path / "run")
    said = f"saved at iteration 7 of 10; continue with: train(resume={path!r})\n"
    assert capsys.readouterr().out.endswith(said)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_a_program_ctrl_c_raises_when_the_run_is_saved(tmp_path, counting, monkeypatch, number):
    """Otherwise a loop over seeds would go on with the next one. After a scheduler's signal the
    program may look at the status."""

    def arrives(metrics):
        os.kill(os.getpid(), number)
        return metrics

    monkeypatch.setattr(counting, "at", {7: arrives})
    if number == signal.SIGINT:
        with pytest.raises(KeyboardInterrupt):
            train(config_of(tmp_path / "run"))
    else:
        run = train(config_of(tmp_path / "run"))
        assert (run.exit_status, run.signal) == (75, "SIGTERM")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["iterations"]) == ("stopped", 7)


def test_ctrl_c_in_the_last_evaluation_raises_when_that_is_written(tmp_path, counting, monkeypatch):
    evaluate = counting.evaluate

    def interrupted(self, state):
        os.kill(os.getpid(), signal.SIGINT)
        return evaluate(self, state)

    monkeypatch.setattr(counting, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(config_of(tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "done"


@pytest.mark.usefixtures("counting")
def test_what_was_compiled_is_forgotten_after_a_run(tmp_path):
    traced = []
    twice = jax.jit(lambda x: traced.append(x) or 2 * x)
    twice(1), twice(2)
    assert len(traced) == 1
    train(config_of(tmp_path / "run"))
    twice(3)
    assert len(traced) == 2


@pytest.mark.usefixtures("counting")
def test_a_run_that_has_finished_is_left_as_it_is(tmp_path, capsys):
    config = config_of(tmp_path / "run")
    run = train(config)
    files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    capsys.readouterr()
    for again in (train(config, resume=run.path), train(resume=run.path)):
        assert (again.exit_status, again.summary, again.config) == (0, run.summary, config)
    told = f"{run.path} has finished: nothing is left to do, nothing changes\n"
    assert capsys.readouterr() == (2 * told, "")
    assert files == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert files.keys() == {path for path in run.path.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("damage", ["", "{", "{}", "[]", '{"status": 3}', "\xff\xff"])
def test_a_run_with_a_damaged_summary_goes_on_from_its_checkpoint(damage, tmp_path, capsys):
    config = config_of(tmp_path / "run")
    summary = train(config).summary
    (tmp_path / "run" / "summary.json").write_bytes(damage.encode("latin-1"))
    capsys.readouterr()
    again = train(config, resume=tmp_path / "run")
    assert "summary.json is damaged" in (told := capsys.readouterr().out.splitlines()[0])
    assert told.endswith("; the run goes on from its newest checkpoint and writes the file anew")
    for name in ("status", "iterations", "digest", "evaluation", "env_steps"):
        assert again.summary[name] == summary[name]
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == again.summary
    little = {name: again.summary[name] for name in ("status", "failed", "compile_seconds")}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(little))
    assert train(config, resume=tmp_path / "run").summary["iterations"] == summary["iterations"]


@pytest.mark.usefixtures("counting")
def test_a_folder_in_the_place_of_the_summary_is_told_before_anything_is_trained(tmp_path):
    config = config_of(tmp_path / "run")
    file = train(config).path / "summary.json"
    file.unlink()
    file.mkdir()
    with pytest.raises(RunError, match=r"summary\.json cannot be read: Is a directory"):
        train(config, resume=tmp_path / "run")


@pytest.mark.usefixtures("counting")
def test_a_function_sees_a_copy_of_each_row_after_it_was_written(tmp_path):
    path, seen = tmp_path / "run", []

    def see(row):
        assert row == json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
        seen.append(dict(row))
        row.clear()

    run = train(config_of(path, num_seeds=2), on_row=see)
    assert [row["iteration"] for row in run.metrics] == [5, 10]
    assert run.metrics == seen


@pytest.mark.usefixtures("counting")
def test_an_error_in_the_function_ends_the_run_in_one_line_and_what_was_saved_stays(tmp_path):
    def stumble(row):
        raise KeyError("los")

    config = config_of(tmp_path / "run")
    line = stumble.__code__.co_firstlineno + 1
    with pytest.raises(
        RunError, match=rf"^on_row, \S*{HERE}, line {line}: KeyError: 'los'$"
    ) as told:
        train(config, on_row=stumble)
    assert isinstance(told.value.__cause__, KeyError)
    resumed = train(config, resume=tmp_path / "run")
    starts = json.loads((tmp_path / "run" / "run.json").read_text())["starts"]
    assert [start["resumed_from"] for start in starts] == [0, 4]
    assert [row["iteration"] for row in resumed.metrics] == [5, 10]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"on_row": "print"}, "on_row='print' should be a function that takes a row of metrics"),
        ({"process_start": "x"}, "process_start='x' should be unix seconds, or None"),
        ({"process_start": 1e12}, "process_start=1000000000000.0 should be unix seconds"),
        ({"launch": 3}, "launch=3 should be an instance of jaxrl_scale.config.Launch"),
        ({"launch": Launch(heartbeat="x")}, "launch.heartbeat='x' should be a number"),
    ],
)
def test_an_argument_of_another_kind_is_refused_before_the_run_starts(given, said, tmp_path):
    with pytest.raises(RunError, match=f"^{said}"):
        train(config_of(tmp_path / "run"), **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("option", ["run_dir", "init_from"])
def test_a_home_that_is_not_known_is_refused_before_the_run_starts(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = config_of(tmp_path / "run").replace(**{option: "~who-is-that/x"})
    with pytest.raises(RunError, match=r"^~who-is-that in ~who-is-that/x is no known home; write"):
        train(config)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("counting")
def test_a_finished_run_goes_on_where_more_iterations_are_asked_for(tmp_path):
    # Without a schedule a longer run begins exactly like a shorter one.
    algo = ppo.Config(lr_schedule="constant")
    config = config_of(tmp_path / "run", algo=algo)
    train(config)
    longer = train(config.replace(iterations=12), resume=tmp_path / "run")
    assert longer.summary["iterations"] == 12


def test_a_run_that_has_come_further_is_not_called_one_of_fewer_iterations(
    tmp_path, counting, monkeypatch
):
    config = config_of(tmp_path / "run", algo=ppo.Config(lr_schedule="constant"))
    monkeypatch.setattr(counting, "at", {7: terminate})
    train(config)
    monkeypatch.setattr(counting, "at", None)
    before = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(
        RunError, match=r"made 7 iterations \([\d,]+ steps\) and cannot go back to 4$"
    ):
        train(config.replace(iterations=4), resume=tmp_path / "run")
    assert (tmp_path / "run" / "config.json").read_bytes() == before
    assert train(config.replace(iterations=7), resume=tmp_path / "run").summary["status"] == "done"


@pytest.mark.usefixtures("counting")
def test_the_config_of_a_run_that_is_resumed_cannot_change_its_result(tmp_path):
    config = config_of(tmp_path / "run", env_kwargs={})
    train(config)
    with pytest.raises(RunError, match=r"^seed cannot change on resume: the run has seed=0; what"):
        train(config.replace(seed=9), resume=tmp_path / "run")
    with pytest.raises(RunError, match=r"^iterations cannot change .* its schedule depends"):
        train(config.replace(iterations=11), resume=tmp_path / "run")
    with pytest.raises(RunError, match="does not exist"):
        train(config, resume=tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"^config=\{'seed': 9\} should be an instance of jaxrl_sc"):
        train({"seed": 9}, resume=tmp_path / "run")
    for name in ("", "a/../../b", "/a", "a\0b", None):
        with pytest.raises(RunError, match=r"^name=.* should be a text that names a folder within"):
            train(config, name=name)
    train(config_of(tmp_path / "other"), name="ALE/Pong-v5")  # as --env=gymnasium:ALE/Pong-v5 has
    with pytest.raises(RunError, match="needs a config, or resume"):
        train()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 0
    train(config.replace(target_return=5.0), resume=tmp_path / "run")  # the result is the same


@pytest.mark.usefixtures("counting")
def test_train_gives_the_settings_of_jax_back(tmp_path, monkeypatch):
    names = ("jax_default_matmul_precision", "jax_enable_x64", "jax_use_shardy_partitioner")

    def settings():
        return tuple(jax.config.values[name] for name in names)

    seen = []

    def evaluate(*_):
        seen.append(settings()[:2])
        jax.config.update(names[2], not jax.config.values[names[2]])  # as an environment may

    monkeypatch.setattr(Counter, "evaluate", evaluate)
    before = settings()
    try:
        for theirs in ((None, False, True), ("high", True, False)):
            for name, value in zip(names, theirs, strict=True):
                jax.config.update(name, value)
            train(config_of(tmp_path / str(theirs[0])))
            assert settings() == theirs
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)
    assert seen == 2 * [("highest", False)]


def test_runs_in_two_threads_have_each_its_settings_and_give_those_of_jax_back(
    tmp_path, counting, monkeypatch
):
    """The first one compiles while the second one trains, and ends before it."""
    here = threading.current_thread()
    compiles, others, seen, over = (threading.Event() for _ in range(4))
    precisions = []

    def compile(self, fresh):
        self.compiled = True
        if not compiles.is_set():
            compiles.set()
            assert others.wait(60)
            precisions.append(jax.config.jax_default_matmul_precision)
            precisions.append(jnp.zeros(1, float).dtype)
            seen.set()

    def trains(metrics):
        if threading.current_thread() == here:
            others.set()
            assert seen.wait(60)
            assert over.wait(60)
            assert not jax.config.values["jax_enable_x64"]
        return metrics

    def first():
        train(config_of(tmp_path / "first", matmul_precision="high"))
        over.set()

    monkeypatch.setattr(Counter, "compile", compile)
    monkeypatch.setattr(counting, "at", {1: trains})
    names = ("jax_default_matmul_precision", "jax_enable_x64")
    before = [jax.config.values[name] for name in names]
    theirs = ["bfloat16", True]
    try:
        for name, value in zip(names, theirs, strict=True):
            jax.config.update(name, value)
        thread = threading.Thread(target=first)
        thread.start()
        assert compiles.wait(60)
        train(config_of(tmp_path / "second"))
        thread.join()
        assert [jax.config.values[name] for name in names] == theirs
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)
    assert precisions == ["high", np.float32]


@pytest.mark.usefixtures("counting")
def test_a_run_is_the_same_within_a_block_that_has_settings_of_its_own(tmp_path, monkeypatch):
    seen = []

    def evaluate(*_):
        settings = jax.config.jax_default_matmul_precision, flax.config.flax_fix_rng_separator
        seen.append((jnp.zeros(1, float).dtype, *settings))

    monkeypatch.setattr(Counter, "evaluate", evaluate)
    keys_of_layers = flax.config.temp_flip_flag("fix_rng_separator", True)
    with jax.enable_x64(True), jax.default_matmul_precision("bfloat16"), keys_of_layers:
        train(config_of(tmp_path / "run"))
        assert jnp.zeros(1, float).dtype == np.float64
        assert flax.config.flax_fix_rng_separator
    assert seen == [(np.float32, "highest", False)]
    assert jnp.zeros(1, float).dtype == np.float32  # the block's settings end with it


# --- what is counted ------------------------------------------------------------------------


def counted(*iterations):
    """A `Progress` of two agents after iterations of ``(count, total_return)`` for each."""
    mine = progress.Progress(2)
    for number, agents in enumerate(iterations, 1):
        count, total = np.array(agents, np.float32).T
        numbers = {"ended": count.astype(np.int32), "total_return": total}
        mine.record(number, numbers | {"total_length": count, "steps": np.full(2, 10)})
    return mine


def test_the_recent_return_is_of_the_fewest_iterations_with_100_episodes_of_an_agent():
    mine = counted([(90, 90), (200, 0)], [(60, 120), (0, 0)], [(50, 150), (100, 300)])
    assert mine.recent_returns().tolist() == [270 / 110, 3.0]
    assert mine.recent_return() == (270 / 110 + 3) / 2
    assert mine.env_steps == 60


def test_an_agents_newest_iterations_alone_count_where_they_have_just_100_episodes():
    """Agent 1 needs the iteration before as well."""
    mine = counted([(10, 1000), (100, 300)], [(100, 200), (50, 0)])
    assert mine.recent_returns().tolist() == [2.0, 2.0]


def test_an_environments_own_numbers_are_means_over_all_steps_and_over_all_ends_since_the_row():
    """Of agent 0; agent 1 has none at all. It is no mean of means, and nobody fails by them."""
    mine, own = progress.Progress(2), [("env/speed", (10, 50)), ("env_end/won", (1, 1))]
    for k, (steps, ended) in enumerate([(10, 1), (40, 3)]):
        counts = {"steps": steps, "ended": ended, "total_return": 0, "total_length": 0}
        metrics = {name: np.array([x, x]) for name, x in counts.items()}
        metrics |= {name: np.array([x[k], np.nan], np.float32) for name, x in own}
        mine.record(k + 1, metrics)
    assert json.loads(json.dumps(mine.to_json()))["since_row"]["env/speed"][0] == 60
    row = mine.row(metrics)
    assert row["per_agent"]["env/speed"] == [60 / 50, None]
    assert row["per_agent"]["env_end/won"] == [2 / 4, None]
    assert mine.failed == {}
    mine.record(3, metrics)
    assert mine.row(metrics)["per_agent"]["env/speed"] == [50 / 40, None], "since the row"


def test_means_over_no_gradient_steps_are_no_numbers():
    """Of the second agent, whose replay holds too little yet; what else is 0 stays 0."""
    zeros = {name: np.zeros(2) for name in ("ended", "total_return", "total_length", "steps")}
    learned = {"loss": [0.5, 0.0], "grad_norm": [0.0, 0.0], "loss_shard_1": [0.1, 0.0]}
    others = {"updates": [64.0, 0.0], "learning_rate": [1.0, 0.0], "param_norm": [1.0, 1.0]}
    metrics = zeros | {name: np.asarray(x) for name, x in (learned | others).items()}
    mine = progress.Progress(2)
    mine.record(1, metrics)
    assert not mine.failed
    row = mine.row(metrics)
    assert {name: row["per_agent"][name] for name in learned} == {
        "loss": [0.5, None],
        "grad_norm": [0.0, None],
        "loss_shard_1": [0.1, None],
    }
    assert {name: row["per_agent"][name] for name in others} == others
    assert row["loss"] is None


def test_there_is_no_recent_return_before_every_agent_has_100_episodes():
    assert progress.Progress(2).recent_return() is None
    mine = counted([(99, 1), (100, 200)])
    assert mine.recent_return() is None
    assert mine.recent_returns()[1] == 2


def test_an_agent_that_is_not_finite_counts_as_failed_from_that_iteration_on():
    mine = counted(
        [(100, 100), (100, 300)], [(100, np.nan), (100, 300)], [(100, np.nan), (100, 300)]
    )
    assert mine.failed == {0: 2}
    assert mine.recent_return() == 3
    again = progress.Progress(2)
    again.load_json(json.loads(json.dumps(mine.to_json())))
    assert json.dumps(again.to_json()) == json.dumps(mine.to_json())
    assert again.failed == {0: 2}


def test_only_iterations_that_count_are_remembered():
    quiet = counted(*[[(0, 0), (0, 0)]] * 50)
    assert len(quiet.window) == 0
    busy = counted(*[[(60, 0), (60, 0)]] * 50)
    assert len(busy.window) == 2
    failed = counted([(0, np.nan), (60, 0)], *[[(0, np.nan), (60, 0)]] * 50)
    assert len(failed.window) == 2, "who failed and never ends holds nobody up"


def test_the_time_to_a_target_is_kept_on_resume_unless_the_target_is_another():
    clock = progress.Clock(time.time() - 5, target_return=10.0)
    clock.note(100, lambda: None, clock.now())
    clock.note(200, lambda: 9.9, clock.now())
    assert clock.seconds_to_target is None
    clock.note(300, lambda: 10.0, clock.now())
    assert clock.seconds_to_target == pytest.approx(5, abs=0.5)
    for target, seconds in ((10.0, clock.seconds_to_target), (20.0, None)):
        later = progress.Clock(time.time(), target_return=target)
        later.load_json(clock.to_json())
        assert later.seconds_to_target == seconds
        assert later.env_steps == 300


def test_times_are_right_when_somebody_sets_the_clock(monkeypatch):
    clock = progress.Clock(time.time() - 5, target_return=10.0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    clock.compiled()
    time.sleep(0.01)
    clock.note(100, lambda: 10.0, clock.now())
    times = clock.summary()
    assert times["wall_seconds"] == pytest.approx(5, abs=0.5)
    assert times["seconds_to_target"] == pytest.approx(5, abs=0.5)
    assert 0 < times["steps_per_second"] < 100 / 0.01
    assert progress.Clock(9.9e9).wall_seconds < 1, "a process does not start later than now"


def test_what_is_compiled_for_the_first_evaluation_is_no_time_of_training():
    spent = [7.0]  # by an earlier run of this process
    clock = progress.Clock(time.time(), compiling=lambda: sum(spent))
    clock.compiled()
    assert clock.compile_seconds < 1
    time.sleep(0.5)
    spent.append(0.5)
    clock.note(100, lambda: None, clock.now())
    assert clock.row(clock.now())["steps_per_second"] > 100 / 0.4
    assert clock.summary()["steps_per_second"] > 100 / 0.4
    assert clock.compile_seconds == pytest.approx(0.5, abs=0.4)
    ended = clock.now()
    spent.append(100.0)  # for the evaluation, before the row is written
    row = clock.row(ended)
    assert row["wall_seconds"] - row["compile_seconds"] == ended.wall - ended.compiling
    assert row["compile_seconds"] < 10


def test_a_thread_knows_how_long_it_compiled():
    before = programs.seconds_compiling()
    jax.jit(lambda x: x * 3 + 1)(np.ones(7))
    assert 0 < programs.seconds_compiling() - before < 10


@pytest.mark.parametrize("jump", [-3600, 3600])
def test_a_thread_knows_how_long_it_compiled_when_somebody_sets_the_clock(monkeypatch, jump):
    """And what is traced within what is traced counts once."""
    ticks, began, before = itertools.count(), time.monotonic(), programs.seconds_compiling()
    monkeypatch.setattr(time, "time", lambda: 1e9 + jump * next(ticks))
    within = jax.jit(lambda x: [time.sleep(0.1), x * jump][1])
    jax.jit(lambda x: within(x) + 1)(np.ones(7))
    assert next(ticks) > 2
    assert 0.1 < programs.seconds_compiling() - before < time.monotonic() - began


def test_the_speed_of_a_run_that_has_nothing_left_to_do_is_that_of_before():
    clock = progress.Clock(time.time())
    clock.load_json(
        {"wall_seconds": 9.0, "train_seconds": 4.0, "compile_seconds": 1.0, "env_steps": 800}
        | {"target_return": None, "seconds_to_target": None}
    )
    clock.compiled()
    assert clock.summary()["steps_per_second"] == 200.0
    assert clock.summary()["wall_seconds"] >= 9.0
    assert clock.summary()["compile_seconds"] >= 1.0


def test_the_first_speed_of_a_resumed_run_is_of_the_steps_since_then():
    clock = progress.Clock(time.time())
    clock.load_json(
        {"wall_seconds": 9.0, "train_seconds": 4.0, "compile_seconds": 1.0, "env_steps": 10**9}
        | {"target_return": None, "seconds_to_target": None}
    )
    clock.compiled()
    time.sleep(0.01)
    clock.note(10**9 + 100, lambda: None, clock.now())
    assert 0 < clock.row(clock.now())["steps_per_second"] <= 100 / 0.01


# --- names ----------------------------------------------------------------------------------


def test_train_is_the_function_whichever_way_it_was_imported():
    code = """
import pickle, sys
if sys.argv[1] == "module first":
    import jaxrl_scale.train
from jaxrl_scale import Config, load, train
import jaxrl_scale.train
from jaxrl_scale.train import main
assert jaxrl_scale.train is train and train.__name__ == "train" and callable(main)
assert pickle.loads(pickle.dumps(train)) is train
try:
    train(Config(num_shards=3))
except ValueError as error:
    print(error)
"""
    for order in ("module first", "function first"):
        done = subprocess.run(
            [sys.executable, "-c", code, order], capture_output=True, text=True, timeout=100
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("num_shards=3 is not a power of two")


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_type_checker_knows_what_the_package_offers(checker, tmp_path):
    """Mypy with the settings, and so with the cache, of `make lint`: from nothing it takes long."""
    (tmp_path / "typed.py").write_text(
        "from jaxrl_scale import Config, load, train\n"
        "reveal_type(train(Config()).summary)\n"
        "reveal_type(load('runs/x').iteration)\n"
        "Config(num_env=3)\n"
    )
    folder, options = Path(__file__).parent.parent, ["--config-file", "pyproject.toml"]
    if checker == "pyright":
        pytest.importorskip("basedpyright", reason="make install EXTRA=pyright installs it")
        (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
        folder, options = tmp_path, ["--pythonpath", sys.executable]
    module = {"mypy": "mypy", "pyright": "basedpyright"}[checker]
    done = subprocess.run(
        [sys.executable, "-m", module, *options, str(tmp_path / "typed.py")],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    of_summary, of_iteration, mistake, *_ = re.findall(r"typed.py:\d.*", done.stdout)
    assert "Summary" in of_summary
    assert of_iteration.endswith('is "int"')
    assert '"num_env"' in mistake


def test_a_run_can_be_pickled(tmp_path):
    run, _ = run_of(config_of(tmp_path / "run"))
    assert pickle.loads(pickle.dumps(run)) == run


def test_a_digest_stands_in_the_checkpoint_and_the_summary_and_is_kept_over_a_resume(tmp_path):
    stopped, _ = run_of(config_of(tmp_path / "run"), at={3: terminate})
    done, _ = run_of(stopped.config, resume=stopped.path)
    whole, _ = run_of(config_of(tmp_path / "whole"))

    def fail(metrics):
        return metrics | {"loss": np.full(1, np.nan)}

    failed, _ = run_of(config_of(tmp_path / "failed"), at={5: fail})
    recorded = array_folder.read_record(done.path / "checkpoints" / "10")["digest"]
    assert done.summary["digest"] == whole.summary["digest"] == recorded == of_run({0: "10"})
    assert stopped.summary["digest"] == of_run({0: "3"})
    assert failed.summary["digest"] is None


def test_a_digest_tells_bits_apart_but_not_one_nan_from_another():
    """The devices' copies of an agent that has failed differ in the bits of their NaNs."""
    numbers = (0.0, -0.0, np.inf, -np.inf, np.nan)
    told = {of_tree({"x": np.float32([x, 1])}) for x in numbers}
    assert len(told) == len(numbers)
    others = np.uint32([0xFFC00000, 0x7FC12345]).view(np.float32)
    assert np.isnan(others).all()
    assert {of_tree({"x": np.stack([x, np.float32(1)])}) for x in others} < told
