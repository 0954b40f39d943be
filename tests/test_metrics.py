"""The run directory, the rows' sinks and the terminal, each against the real library."""

import dataclasses
import fcntl
import importlib
import io
import itertools
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_scale.config import Config
from jaxrl_scale.errors import RunError
from jaxrl_scale.parallel import machine
from jaxrl_scale.parallel.peers import Peers
from jaxrl_scale.records import past_run, provenance, row_writer, run_directory, terminal, wandb_log
from jaxrl_scale.records import rows as records
from jaxrl_scale.records.checkpoint import Checkpoints
from jaxrl_scale.search import results, wandb_group
from jaxrl_scale.search.results import Outcome

needs_full_device = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux only")
REPOSITORY = Path(__file__).parents[1]
QUIET = Config(wandb="disabled", tensorboard=False, iterations=100)


@pytest.fixture(autouse=True)
def _no_account(tmp_path_factory, monkeypatch):
    """wandb sees neither the settings nor the account of whoever runs the tests."""
    home = str(tmp_path_factory.mktemp("home"))
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, home)
    monkeypatch.setenv("NETRC", f"{home}/netrc")


@pytest.fixture
def run(tmp_path):
    directory = run_directory.create(tmp_path / "runs" / "one")
    yield directory
    directory.close()


def read(run, name):
    return run_directory.read_object(run.path / name)


def row(iteration, **more):
    return {
        "iteration": iteration,
        "env_steps": 1000 * iteration,
        "time": 1.8e9 + iteration,
        "steps_per_second": 500.0,
        "return": 1.5 * iteration,
        "return_100": 1.25 * iteration,
        "loss": 1.0 / iteration,
        **more,
    }


def write(run, config, iterations, **arguments):
    sink = row_writer.RowWriter(run, config, "test", **arguments)
    for iteration in iterations:
        sink.log(row(iteration))
    sink.close(None, 0)
    return sink


def log_for_ever(sink):
    for iteration in itertools.count(1):
        sink.log(row(iteration))


def python(code, *arguments, **options):
    """A second Python process, its output a pipe."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


# --- the run directory ----------------------------------------------------------------------


def test_a_directory_that_holds_a_run_is_not_used_for_another(run):
    run.write_json("config.json", {})
    run.close()
    with pytest.raises(RunError, match=r"already holds a run: --resume .*one continues it"):
        run_directory.create(run.path)
    run_directory.open_existing(run.path).close()  # and the refusal has left no lock


def test_files_of_others_do_not_hinder_a_new_run_but_remains_of_a_run_do(tmp_path):
    (tmp_path / "slurm.out").touch()
    run_directory.create(tmp_path).close()
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(RunError, match=r"holds metrics\.jsonl but no config\.json"):
        run_directory.create(tmp_path)


def test_only_a_run_can_be_resumed(tmp_path):
    with pytest.raises(RunError, match="does not exist"):
        run_directory.open_existing(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"not a run directory: it has no config\.json"):
        run_directory.open_existing(tmp_path)
    assert list(tmp_path.iterdir()) == []
    policy = REPOSITORY / "zoo" / "acrobot"
    shutil.copytree(policy, tmp_path / "acrobot")
    with pytest.raises(RunError, match=r"--init_from=\S+/acrobot begins a new run from it"):
        run_directory.open_existing(tmp_path / "acrobot")
    held = [path.name for path in policy.iterdir()]
    assert sorted(path.name for path in (tmp_path / "acrobot").iterdir()) == sorted(held)


def test_a_place_where_nothing_can_be_written_is_an_input_output_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write .*file/run: Not a directory") as error:
        run_directory.create(tmp_path / "file" / "run")
    assert error.value.status == 74


def test_two_processes_cannot_use_one_directory_and_a_killed_one_frees_it(tmp_path):
    code = """
import sys, time, pathlib
from jaxrl_scale.records import run_directory
run = run_directory.create(pathlib.Path(sys.argv[1]))
run.write_json("config.json", {})
print("ready", flush=True)
time.sleep(60)
"""
    with python(code, tmp_path) as other:
        assert other.stdout.readline() == "ready\n"
        holder = f"process {other.pid} on {socket.gethostname()}"
        for use in (run_directory.create, run_directory.open_existing):
            with pytest.raises(RunError, match=f"in use by {re.escape(holder)}; stop it"):
                use(tmp_path)
        other.send_signal(signal.SIGKILL)
        other.wait()
    run_directory.open_existing(tmp_path).close()


def test_one_process_cannot_use_a_directory_twice(run):
    with pytest.raises(RunError, match=f"in use by process {os.getpid()}"):
        run_directory.create(run.path)


def test_who_looks_at_a_run_keeps_nobody_from_training_it(tmp_path):
    """`has_died` holds the lock for a moment."""
    run_directory.create(tmp_path).close()
    with open(tmp_path / ".lock") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        timer = threading.Timer(0.03, lambda: fcntl.flock(looking, fcntl.LOCK_UN))
        timer.start()
        run_directory.create(tmp_path).close()
        timer.join()


def test_a_run_without_a_summary_that_nobody_trains_any_more_was_killed_or_crashed(tmp_path):
    def told():
        found = past_run.PastRun(tmp_path, Config(iterations=4), [], {}, [], [0])
        return found.status.split(":")[0], past_run.lacks_checkpoint(tmp_path)

    going_on = ("no summary yet", "has no checkpoint yet")
    assert told() == going_on  # nothing is known
    run = run_directory.create(tmp_path)
    assert told() == going_on
    run.close()
    assert told() == (
        "killed or crashed",
        "has no checkpoint: the run was killed, or has crashed",
    )
    (tmp_path / ".lock").write_text("process 1 on elsewhere\n")
    assert told() == going_on


def test_a_run_that_cannot_write_its_config_leaves_no_lock(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    entered = run_directory.entered(QUIET.replace(run_dir=str(tmp_path)), "a", None, Peers())
    with monkeypatch.context() as patched:
        patched.setattr(run_directory, "write_atomically", full)
        with pytest.raises(RunError, match="No space left"):
            entered.__enter__()
    run_directory.create(tmp_path).close()


def test_a_process_with_a_disk_of_its_own_has_the_config_of_the_new_run(tmp_path):
    for config, new, there in (({"a": 1}, True, 1), ({"a": 2}, True, 2), ({"a": 3}, False, 2)):
        run = run_directory.follow(tmp_path, config, new)
        assert read(run, "config.json") == {"a": there}


@pytest.mark.parametrize("left", ["metrics.jsonl", "checkpoints/2", "checkpoints/2.part-1-of-2"])
def test_a_new_run_replaces_no_other_on_the_disk_of_another_host(tmp_path, left):
    file = tmp_path / left / "arrays.npz" if "/" in left else tmp_path / left
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{}")
    with pytest.raises(RunError, match="holds another run; choose another --run_dir"):
        run_directory.follow(tmp_path, {"a": 1}, True)
    assert not (tmp_path / "config.json").exists()
    run_directory.follow(tmp_path, {"a": 1}, False)  # one that is resumed


def test_a_run_follows_no_link_to_the_files_of_another(tmp_path):
    mine, got = tmp_path / "mine", tmp_path / "got"
    for run in (mine, got):
        run_directory.create(run).close()
        (run / "config.json").write_text("{}")
    (mine / "checkpoints").mkdir()
    (got / "checkpoints").symlink_to(mine / "checkpoints")
    with pytest.raises(RunError, match=r"got/checkpoints is a link into another run, .*mine"):
        run_directory.open_existing(got)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (got / "checkpoints").unlink()
    (got / "checkpoints").symlink_to(scratch)  # a larger disk
    run_directory.open_existing(got).close()
    (got / ".lock").unlink()
    (got / ".lock").symlink_to(mine / "config.json")
    with pytest.raises(RunError, match="Too many levels of symbolic links"):
        run_directory.open_existing(got)
    assert (mine / "config.json").read_text() == "{}"


def test_a_file_without_an_end_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read_it in (records.read_rows, run_directory.read_object):
        with pytest.raises(RunError, match=r"^\S+pipe is no file of data$"):
            read_it(tmp_path / "pipe")


def test_a_module_of_ones_own_that_was_changed_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "changing", raising=False)
    (tmp_path / "changing.py").write_text("reward = 1")
    importlib.import_module("changing")
    own = QUIET.replace(env="changing:Env")
    starts = [{"modules": {"changing": "of another time"}}, {"modules": provenance.own_modules()}]
    assert provenance.changed_modules(own, starts) is None
    assert provenance.changed_modules(own, []) is None
    assert provenance.changed_modules(own, [{}]) is None
    (tmp_path / "changing.py").write_text("reward = -1")
    assert provenance.changed_modules(own, starts) is None  # the process has the one of before
    del sys.modules["changing"]
    importlib.invalidate_caches()
    importlib.import_module("changing")
    told = "changing has changed since this run was last started: what it computes now may be"
    assert provenance.changed_modules(own, starts).startswith(told)
    assert provenance.changed_modules(QUIET, starts) is None


def test_an_environment_on_the_host_that_has_other_options_is_named():
    def told(before, now):
        starts = [{"environment": {"envpool": "0"}}, before]
        return provenance.changed_environment(now, starts)

    same = {"environment": {"envpool": "1", "env_options": "frame_skip=4"}}
    other = {"environment": {"envpool": "1", "env_options": "frame_skip=5"}}
    assert told(same, same) is None
    assert told({}, same) is None
    assert told(same, {}) is None
    assert provenance.changed_environment(same, []) is None
    assert told(same, other).startswith("env_options of the environment differs from when")
    assert told(same, {"environment": {}}).startswith("envpool and env_options of the environment")


def test_a_file_system_without_locks_is_used_with_a_warning(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(run_directory.fcntl, "flock", flock)
    run = run_directory.create(tmp_path)
    assert "has no locks" in run.warning
    run.close()


def test_a_file_is_replaced_whole_or_not_at_all(run, monkeypatch):
    run.write_json("data.json", {"a": 1})

    def crash(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(RunError, match=r"cannot write .*data\.json: No space left"):
        run.write_json("data.json", {"a": 2})
    assert read(run, "data.json") == {"a": 1}
    assert read(run, "absent.json") == {}
    assert {path.name for path in run.path.iterdir()} == {"data.json", ".lock"}


def test_numbers_that_json_does_not_know_are_null():
    data = {
        "nan": float("nan"),
        "inf": np.float32("inf"),
        "array": np.array([1.5, np.nan]),
        "jax": jnp.float32(0.5),
        "count": np.int64(3),
        "flag": np.bool_(True),
        "nested": (1, {"x": -np.inf}),
        "none": None,
    }
    assert run_directory.plain(data) == {
        "nan": None,
        "inf": None,
        "array": [1.5, None],
        "jax": 0.5,
        "count": 3,
        "flag": True,
        "nested": [1, {"x": None}],
        "none": None,
    }


def test_a_run_directory_has_a_name_in_utf_8_and_may_begin_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with run_directory.entered(Config(run_dir="~/run"), "run", None, Peers()) as run:
        assert run.path == tmp_path / "run"
    named = Config(run_dir=str(tmp_path / "\udcff"))
    with (
        pytest.raises(RunError, match="is no UTF-8 text; choose another --run_dir"),
        run_directory.entered(named, "run", None, Peers()),
    ):
        pass


def test_a_record_of_starts_that_cannot_be_read_is_told_in_one_line(tmp_path):
    (tmp_path / "run.json").mkdir()
    with pytest.raises(RunError, match=r"run\.json cannot be read: Is a directory"):
        run_directory.read_starts(tmp_path)


def test_runs_that_begin_in_the_same_second_have_directories_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_directory.time, "strftime", lambda _: "now")
    for name in ("run-now", "run-now-2", "run-now-3"):
        with run_directory.entered(Config(), "run", None, Peers()) as run:
            assert run.path == tmp_path / "runs" / name


def test_runs_that_begin_at_the_same_moment_do_so_too(tmp_path):
    """Of several that look for a name at once, one has made each directory."""
    together = threading.Barrier(8)

    def begin(_):
        together.wait()
        return run_directory._made_for_one(str(tmp_path / "runs" / "run-now"))

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(begin, range(8)))
    names = ["run-now", *(f"run-now-{k}" for k in range(2, 9))]
    assert sorted(made) == [str(tmp_path / "runs" / name) for name in names]
    (tmp_path / "away").symlink_to(tmp_path / "a_disk_that_is_not_there")
    with pytest.raises(RunError, match=r"/away is a symbolic link to .*, which does not exist"):
        run_directory._made_for_one(str(tmp_path / "away" / "run-now"))


def test_what_is_in_the_place_of_a_folder_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("away").symlink_to("disk")
    Path("file").touch()
    Path("to_file").symlink_to("file")
    Path("run").mkdir()
    Path("run", "checkpoints").symlink_to("../disk")
    away = f"{tmp_path}/away is a symbolic link to disk, which does not exist"
    for make, told in (
        (lambda: run_directory.create(Path("away")), f"cannot write away: {away}"),
        (lambda: run_directory.create(Path("away/in")), f"cannot write away/in: {away}"),
        (lambda: run_directory.follow(Path("away").absolute(), {}, True), away),
        (lambda: run_directory.create(Path("file")), "/file is a file; it should be a folder"),
        (lambda: run_directory.create(Path("to_file")), "/to_file is a file; it should be"),
        (lambda: Checkpoints(Path("run/checkpoints"), 1), "checkpoints is a symbolic link to "),
    ):
        with pytest.raises(RunError) as raised:
            make()
        assert told in str(raised.value)
        assert (raised.value.status, "\n" in str(raised.value)) == (74, False)
    assert sorted(path.name for path in Path().iterdir()) == ["away", "file", "run", "to_file"]


@pytest.mark.parametrize("damaged", ["[]", "{}", '{"starts": 3}', '{"starts": [3]}', "{"])
def test_a_damaged_record_of_starts_is_told_in_one_line(tmp_path, damaged):
    assert run_directory.read_starts(tmp_path) == []
    (tmp_path / "run.json").write_text(damaged)
    with pytest.raises(RunError, match=r"run\.json is damaged: "):
        run_directory.read_starts(tmp_path)


def test_every_start_is_recorded(run):
    run.record_start(["cpu:0"], resumed_from=None)
    run.record_start(["cpu:0", "cpu:1"], resumed_from=7)
    first, second = read(run, "run.json")["starts"]
    assert (first["devices"], first["resumed_from"]) == (["cpu:0"], None)
    assert (second["devices"], second["resumed_from"]) == (["cpu:0", "cpu:1"], 7)
    assert first["host"] == socket.gethostname()
    assert first["versions"]["numpy"] == np.__version__
    assert first["jax_flags"]["jax_num_cpu_devices"] == 8
    assert first["command"].split()[0] == sys.orig_argv[0]


def test_the_commit_is_that_of_this_package_and_of_no_repository_around_it(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "records" / "provenance.py"))
    (tmp_path / "types.py").touch()
    git("init")
    git("commit", "--allow-empty", "-m", "of others")
    assert provenance.git_commit() is None
    git("add", "types.py")
    git("commit", "-m", "ours")
    assert re.fullmatch("[0-9a-f]{40}", provenance.git_commit())
    (tmp_path / "types.py").write_text("changed")
    assert re.fullmatch("[0-9a-f]{40}-dirty", provenance.git_commit())


# --- metrics.jsonl --------------------------------------------------------------------------


def test_a_torn_last_line_is_left_out_and_any_other_damage_is_told(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\n{"iteration": 2}\n{"iterat')
    assert records.read_rows(path) == [{"iteration": 1}, {"iteration": 2}]
    path.write_bytes(b'{"iteration": 1}\n' + bytes(7))  # what a crashed ext4 may leave
    assert records.read_rows(path) == [{"iteration": 1}]
    path.write_text('{"iterat\n{"iteration": 2}\n')
    with pytest.raises(RunError, match="line 1 is damaged"):
        records.read_rows(path)
    assert records.read_rows(tmp_path / "absent") == []


def test_a_row_is_in_the_file_as_soon_as_it_is_logged(run):
    sink = row_writer.RowWriter(run, QUIET, "test")
    sink.log(row(1, loss=float("nan"), per_agent={"return": np.array([1.0, np.nan])}))
    [read] = records.read_rows(run.metrics)
    assert read == row(1, loss=None, per_agent={"return": [1.0, None]})
    sink.close(None, 0)


def test_a_resumed_run_leaves_the_files_of_one_that_never_stopped(tmp_path):
    config = dataclasses.replace(QUIET, tensorboard=True)
    whole = run_directory.create(tmp_path / "whole")
    write(whole, config, range(1, 11))
    halves = run_directory.create(tmp_path / "halves")
    write(halves, config, range(1, 9))
    with open(halves.metrics, "ab") as file:
        file.write(b'{"iteration": 9, "env')
    [old] = halves.tensorboard.iterdir()
    old.rename(old.with_name("events.out.tfevents.1000000000.elsewhere"))
    write(halves, config, range(6, 11), resume_iteration=5)

    assert halves.metrics.read_bytes() == whole.metrics.read_bytes()
    assert read_events(halves) == read_events(whole)
    assert len(list(halves.tensorboard.iterdir())) == 1
    whole.close()
    halves.close()


def test_the_summary_is_written_and_that_of_a_shorter_run_is_removed_on_resume(run):
    sink = row_writer.RowWriter(run, QUIET, "test")
    sink.log(row(1))
    sink.close({"status": "done", "return_100": float("nan")}, 0)
    assert read(run, "summary.json") == {"status": "done", "return_100": None}
    rows = run.metrics.read_bytes()
    run.metrics.write_bytes(b"garbage\n" + rows)
    with pytest.raises(RunError, match="line 1 is damaged"):
        write(run, QUIET, [2], resume_iteration=1)
    assert read(run, "summary.json")["status"] == "done"  # nothing is lost by it
    run.metrics.write_bytes(rows)
    write(run, QUIET, [2], resume_iteration=1)
    assert read(run, "summary.json") == {}


def test_the_rows_after_a_checkpoint_are_cut_off_whole_or_not_at_all(run, monkeypatch):
    write(run, QUIET, [1, 2, 3])
    whole = run.metrics.read_bytes()

    def crash(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(RunError, match=r"metrics\.jsonl: No space left"):
        row_writer.RowWriter(run, QUIET, "test", resume_iteration=1)
    assert run.metrics.read_bytes() == whole


@needs_full_device
def test_a_full_disk_is_told_in_one_line(run):
    run.metrics.symlink_to("/dev/full")
    sink = row_writer.RowWriter(run, QUIET, "test")
    with pytest.raises(RunError, match=r"cannot write .*metrics\.jsonl: No space left") as error:
        sink.log(row(1))
    assert error.value.status == 74
    sink._file.close()


def test_what_a_disk_still_took_when_it_filled_up_can_be_read(run):
    sink = row_writer.RowWriter(run, QUIET, "test")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(RunError, match=r"metrics\.jsonl: File too large"):
            log_for_ever(sink)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    sink.close(None, 74)
    assert run.metrics.stat().st_size == 1000
    rows = records.read_rows(run.metrics)
    assert [r["iteration"] for r in rows] == list(range(1, len(rows) + 1))
    assert len(rows) > 3


# --- TensorBoard ----------------------------------------------------------------------------


def read_events(run):
    """``{tag: [(wall time, step, value)]}`` as TensorBoard itself reads it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.tensorboard), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(e.wall_time, e.step, e.value) for e in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_shows_the_rows_under_grouped_tags_over_steps_of_one_agent(run):
    config = dataclasses.replace(QUIET, tensorboard=True, num_seeds=4)
    sink = row_writer.RowWriter(run, config, "test")
    spread = {"return": [1.0, 9.0, None, 4.0], "loss": [1.0, 2.0, None, 3.0]}
    own = {"env/speed": 2.5, "beta": 0.5}
    sink.log(row(1, per_agent=spread, failed=[2], policy_loss=float("nan"), **own))
    sink.log(row(2))
    sink.close(None, 0)
    events = read_events(run)
    assert events["episode/return"] == [(1.8e9 + 1, 250, 1.5), (1.8e9 + 2, 500, 3.0)]
    assert events["loss/total"] == [(1.8e9 + 1, 250, 1.0), (1.8e9 + 2, 500, 0.5)]
    first = {tag: values[0][2] for tag, values in events.items()}
    assert (first["algo/beta"], first["env/speed"]) == (0.5, 2.5)
    assert (first["agents/return_min"], first["agents/return_max"]) == (1.0, 9.0)
    assert first["agents/failed"] == 1
    assert not {"loss/policy", "algo/env_steps", "algo/time", "algo/per_agent"} & set(events)


def test_events_are_cut_back_even_where_the_resumed_run_wants_none(run):
    write(run, dataclasses.replace(QUIET, tensorboard=True), [1, 2, 3])
    write(run, QUIET, [3], resume_iteration=2)
    assert [step for _, step, _ in read_events(run)["loss/total"]] == [1000, 2000]


def test_events_can_be_seen_while_the_run_goes_on(run, monkeypatch):
    sink = row_writer.RowWriter(run, dataclasses.replace(QUIET, tensorboard=True), "test")
    sink.log(row(1))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 10)
    sink.log(row(2))
    assert [step for _, step, _ in read_events(run)["loss/total"]] == [1000, 2000]
    sink.close(None, 0)


@needs_full_device
def test_events_are_written_without_pytorch_where_it_is_installed(run):
    """Its import takes seconds, and tensorboardX asks for it."""
    (run.path / "torch.py").write_text("raise SystemExit('PyTorch was imported')\n")
    code = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from jaxrl_scale.records import row_writer

row_writer._Events(Path(sys.argv[1]) / "tensorboard").close()
assert "torch" not in sys.modules
try:
    import torch
except SystemExit:
    print("can be imported by others")
"""
    with python(code, run.path) as process:
        assert process.communicate()[0] == "can be imported by others\n"


def test_a_disk_that_is_full_for_tensorboard_is_told_and_hangs_nothing(run, monkeypatch):
    from tensorboardX import record_writer

    full = open("/dev/full", "wb")  # noqa: SIM115
    monkeypatch.setattr(record_writer, "open_file", lambda _: full)
    monkeypatch.setattr(row_writer, "_FLUSH_SECONDS", 0.0)
    sink = row_writer.RowWriter.__new__(
        row_writer.RowWriter
    )  # the constructor's own flush fails first
    sink._run, sink._num_seeds, sink.wandb = run, 1, None
    sink._file = open(run.metrics, "ab", buffering=0)  # noqa: SIM115
    sink._events = row_writer._Events(run.tensorboard)
    with pytest.raises(RunError, match=r"cannot write .*tensorboard: No space left"):
        sink.log(row(1))
    with pytest.raises(RunError, match=r"cannot write .*tensorboard: No space left"):
        sink.close(summary(), 0)
    assert sink._file.closed
    assert not (run.path / "summary.json").exists(), "a run that is done is not resumed any more"
    with pytest.raises(OSError, match="No space left"):
        full.close()


# --- wandb ----------------------------------------------------------------------------------


def read_wandb(folder):
    """The records of an offline run that has ended.

    The last of them tells the exit. wandb's own process writes the file, and may be a moment
    behind `wandb.finish` (not behind the end of the process that trains: that one waits).
    """
    [path] = folder.glob("*.wandb")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        records = parse_wandb(path.read_bytes())
        if records and records[-1].HasField("exit"):
            return records
        time.sleep(0.02)
    raise AssertionError(f"{path} is not complete")


def parse_wandb(data):
    """LevelDB's log format: blocks of 32 KiB that hold pieces of records."""
    from wandb.proto.wandb_internal_pb2 import Record

    position, piece, records = 7, b"", []
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        piece += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            records.append(Record.FromString(piece))
            piece = b""
    return records


def wandb_rows(folder):
    return [
        {
            ".".join(item.nested_key) or item.key: json.loads(item.value_json)
            for item in r.history.item
        }
        for r in read_wandb(folder)
        if r.HasField("history")
    ]


def test_a_sweep_is_one_group_at_wandb_and_is_logged_once(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    base = Config(wandb="offline", iterations=100)
    settings = [{"algo.gamma": 0.9}, {"algo.gamma": 0.99}]
    found = [
        Outcome(k, seed, 0, k + seed, [(100.0, None), (200.0, k + seed)], "chunk0", 2 * k + seed)
        for k in (0, 1)
        for seed in (0, 1)
    ]
    ranks = results.ranked(found)
    for _ in range(2):
        wandb_group.log(tmp_path, base, settings, found, ranks)
    assert capfd.readouterr() == (f"wandb: 2 runs; wandb sync {tmp_path}/wandb/*\n", "")
    folders = [*(tmp_path / "wandb").glob("offline-run-*")]
    assert len(folders) == 2
    groups = set()
    for folder in folders:
        records = read_wandb(folder)
        [started] = [r.run for r in records if r.HasField("run")]
        sent = {item.key: json.loads(item.value_json) for item in started.config.update}
        setting = [0.9, 0.99].index(sent["algo.gamma"])
        groups.add(started.run_group)
        assert started.project == "theirs"
        assert started.display_name == f"setting {setting}"
        rows = [(r["env_steps"], r["return"]) for r in wandb_rows(folder)]
        assert rows == [(200, setting + 0.5)]
        told = {
            item.key: json.loads(item.value_json)
            for r in records
            if r.HasField("summary")
            for item in r.summary.update
        }
        assert (told["rank"], told["iqm"], told["failed"]) == (2 - setting, setting + 0.5, 0)
    [group] = groups
    assert group.startswith(f"{tmp_path.name}-")
    quiet = dataclasses.replace(base, wandb="auto")
    wandb_group.log(tmp_path / "other", quiet, settings, found, ranks)
    assert not (tmp_path / "other").exists()


def test_a_shell_takes_the_command_that_uploads_runs_as_it_is_printed(tmp_path):
    folder = tmp_path / "ppo ü; it's 'mine' $HOME" / "wandb"
    names = ["offline-run-1", "offline-run-2"]
    for name in names:
        (folder / name).mkdir(parents=True)

    def taken(command):
        """The words that the program gets from a shell."""
        wandb = 'wandb() { printf "%s\\n" "$@"; }'
        shell = ["bash", "-c", f"{wandb}; {command}"]
        return subprocess.run(shell, capture_output=True, text=True, check=True).stdout.splitlines()

    one = wandb_log.sync_command(folder / names[0])
    assert taken(one) == ["sync", str(folder / names[0])]
    every = wandb_log.sync_command(folder, "*")
    assert taken(every) == ["sync", *(str(folder / name) for name in names)]


def test_wandb_offline_holds_the_rows_and_a_resumed_run_keeps_its_id(run, capfd, monkeypatch):
    config = dataclasses.replace(QUIET, wandb="offline", seed=7)
    said = []
    sink = row_writer.RowWriter(run, config, "test", say=said.append)
    for iteration in (1, 2, 3):
        sink.log(row(iteration))
    sink.close({"status": "stopped", "env_steps": 3000}, 75)
    [first] = (run.path / "wandb").glob("offline-run-*")
    rows = wandb_rows(first)
    assert [(r["env_steps"], r["episode/return"]) for r in rows] == [
        (1000, 1.5),
        (2000, 3.0),
        (3000, 4.5),
    ]
    records = read_wandb(first)
    [started] = [r.run for r in records if r.HasField("run")]
    sent = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert sent["seed"] == 7
    assert sent["algo.learning_rate"] == config.algo.learning_rate
    assert started.display_name == "test-seed7"
    [axis] = [r.metric for r in records if r.HasField("metric") and r.metric.glob_name == "*"]
    assert axis.step_metric == "env_steps"
    assert [r.exit.exit_code for r in records if r.HasField("exit")] == [75]
    assert said == []
    assert sink.places()["wandb"].endswith(first.name)

    time.sleep(1.1)  # wandb names its folders by the second
    monkeypatch.setenv("WANDB_NAME", "theirs")
    write(run, config, [3, 4], resume_iteration=2, say=said.append)
    [_, second] = sorted((run.path / "wandb").glob("offline-run-*"))
    assert [r["env_steps"] for r in wandb_rows(second)] == [3000, 4000]
    [resumed] = [r.run for r in read_wandb(second) if r.HasField("run")]
    assert resumed.run_id == started.run_id == read(run, "wandb.json")["id"]
    assert resumed.display_name == "theirs"
    assert said == [
        f"wandb: run {started.run_id} goes on; it keeps the rows logged after the checkpoint "
        "(1) and gets them again with the same values"
    ]
    import wandb

    wandb.termwarn("what wandb has to say later")
    assert capfd.readouterr() == ("", "")


def test_wandb_shows_the_seeds_of_a_run_over_the_steps_of_one_agent(run, monkeypatch):
    begun, logged = [], []

    class Sink:
        place = None

        def __init__(self, run, config, name, *_):
            begun.append(name)

        def log(self, values):
            logged.append((values["env_steps"], values["episode/return"]))

        def close(self, summary, exit_code):
            begun.append(exit_code)

    monkeypatch.setattr(row_writer, "WandbSink", Sink)
    write(run, dataclasses.replace(QUIET, wandb="offline", seed=7, num_seeds=4), [1, 2])
    assert begun == ["test-seed7-10", 0]
    assert logged == [(250, 1.5), (500, 3.0)]


@pytest.mark.parametrize(
    ("setting", "environment", "mode"),
    [
        ("auto", None, "auto"),
        ("auto", "offline", "offline"),
        ("auto", "dryrun", "offline"),
        ("auto", "disabled", "disabled"),
        ("online", "disabled", "online"),
        ("disabled", "online", "disabled"),
    ],
)
def test_the_config_decides_wandbs_mode_and_then_the_environment(
    setting, environment, mode, monkeypatch
):
    if environment:
        monkeypatch.setenv("WANDB_MODE", environment)
    assert wandb_log.wandb_mode(Config(wandb=setting)) == mode


def test_the_config_decides_wandbs_project_and_then_the_environment(monkeypatch):
    assert wandb_log.project_of(Config()) == "jaxrl_scale"
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    assert wandb_log.project_of(Config()) == "theirs"
    assert wandb_log.project_of(Config(wandb_project="ours")) == "ours"


def test_training_goes_on_when_wandb_breaks(run, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no\n  such luck")

    module = types.SimpleNamespace(
        init=broken, setup=lambda _: None, Settings=lambda **_: None, teardown=lambda **_: None
    )
    monkeypatch.setitem(sys.modules, "wandb", module)
    said = []
    sink = write(run, dataclasses.replace(QUIET, wandb="offline"), [1, 2], say=said.append)
    assert said == ["wandb: off, for no such luck; metrics.jsonl has everything"]
    assert len(records.read_rows(run.metrics)) == 2
    assert "wandb" not in sink.places()


RUN_WITH_WANDB = """
import sys, time, pathlib
from jaxrl_scale import config
from jaxrl_scale.records import row_writer, run_directory, wandb_log
wandb_log.INIT_SECONDS = 2
run = run_directory.create(pathlib.Path(sys.argv[1]))
sink = row_writer.RowWriter(run, config.Config(wandb=sys.argv[2]), "test")
sink.log({"iteration": 1, "env_steps": 10, "time": 1.8e9, "loss": 1.0})
sink.close(None, 0)
"""


def test_without_an_account_wandb_is_offline_and_asks_for_nothing(tmp_path):
    for mode, said in (("auto", ""), ("online", "wandb: offline, for no account was found")):
        output = in_terminal([sys.executable, "-c", RUN_WITH_WANDB, str(tmp_path / mode), mode])
        assert output.startswith(said)
        assert output.count("\n") == bool(said)
        [folder] = (tmp_path / mode / "wandb").glob("offline-run-*")
        assert [r["loss/total"] for r in wandb_rows(folder)] == [1.0]


def test_a_wandb_server_that_never_answers_leaves_the_run_offline(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        began = time.monotonic()
        output = in_terminal([sys.executable, "-c", RUN_WITH_WANDB, str(tmp_path), "auto"])
        assert time.monotonic() - began < 30  # wandb's own patience is 90 s
    assert re.fullmatch(r"wandb: offline, for .*\n", output)
    [folder] = (tmp_path / "wandb").glob("offline-run-*")
    assert [r["loss/total"] for r in wandb_rows(folder)] == [1.0]


# --- the terminal ---------------------------------------------------------------------------


def in_terminal(command, columns=80):
    """Run a command in a terminal of so many columns; what it prints, a prompt included."""
    master, slave = os.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "24"}
    ends = {"stdin": slave, "stdout": slave, "stderr": slave}
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, **ends) as process:
        os.close(slave)
        output = b""
        try:
            while select.select([master], [], [], 60)[0]:
                output += os.read(master, 65536)
            process.kill()
        except OSError:  # Linux says so when the last writer is gone
            pass
    os.close(master)
    assert process.returncode == 0, output.decode()
    return output.decode().replace("\r\n", "\n")


def summary(**changes):
    return {
        "status": "done",
        "iterations": 100,
        "num_seeds": 1,
        "failed": [],
        "env_steps": 810_000,
        "return_100": 480.0,
        "evaluation": {
            "mean": 490.25,
            "iqm": 495.0,
            "ci95": (481.25, 499.75),
            "episodes": 128,
            "per_agent": [490.25],
        },
        "target_return": 475.0,
        "seconds_to_target": 6.31,
        "wall_seconds": 72.3,
        "compile_seconds": 4.12,
        "steps_per_second": 81_234.0,
        "peak_memory_mb": 1612.3,
        **changes,
    }


def test_without_a_terminal_there_are_about_twenty_plain_lines():
    stream = io.StringIO()
    shown = terminal.Terminal(QUIET, stream)
    shown.start("headline")
    shown.phase("compiling")
    for iteration in range(1, 101):
        shown.update(row(iteration))
    headline, *lines = stream.getvalue().splitlines()
    assert headline == "headline"
    assert [int(line.split("%")[0]) for line in lines] == [1, *range(5, 101, 5)]
    assert lines[10] == " 50%         50,000 steps     500 steps/s  return     62.5      1:40 left"
    assert "\x1b" not in stream.getvalue()


def test_output_that_is_closed_or_a_logger_of_ones_own_hinders_no_run(monkeypatch):
    class Logger:
        """As many programs put one in the place of standard output."""

        def __init__(self):
            self.text = ""

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    logger = Logger()
    for output in (None, logger):
        monkeypatch.setattr(sys, "stdout", output)
        with machine.unheard(1):
            terminal.Terminal(QUIET).start("headline")
    assert logger.text == "headline\n"


def test_the_bar_is_live_in_a_terminal_and_gives_the_cursor_back():
    code = """
import time
from jaxrl_scale.records import terminal
from tests.test_metrics import QUIET, row, summary
shown = terminal.Terminal(QUIET)
shown.start("headline")
shown.phase("training")
shown.update(row(42, env_steps=1_050_000, steps_per_second=812_000.0, return_100=187.3))
time.sleep(0.5)
shown.message("a [message]")
shown.finish("finished", summary(), {"run directory": "runs/x"})
"""
    output = in_terminal([sys.executable, "-W", "error", "-c", code])
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output)
    assert re.search(r"training .*━ +42% 1\.05M steps 812k/s return 187\.3 1\.8 s left", text), text
    assert text.startswith("headline\n")
    assert "a [message]\n" in text
    assert text.endswith("╯\n")
    assert "run directory     │ runs/x" in text
    assert all(len(line) <= 80 for line in re.split("[\r\n]", text))
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (60, "evaluating  42% 1.05M steps return -1,187 3:01:10 left"),
        (40, "evaluating 42% return -1,187"),
        (20, "evaluating 42%"),
    ],
)
def test_a_narrow_terminal_shows_whole_numbers_and_no_table(columns, shown):
    code = """
import time
from jaxrl_scale.records import terminal
from tests.test_metrics import QUIET, row, summary
shown = terminal.Terminal(QUIET)
shown.start("headline")
shown.phase("evaluating")
shown.update(row(42, env_steps=1_050_000, steps_per_second=133.4, return_100=-1187.3))
time.sleep(0.5)
shown.finish("finished", summary(), {"run directory": "runs/x"})
"""
    output = in_terminal([sys.executable, "-W", "error", "-c", code], columns)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output)
    bars = [" ".join(line.split()) for line in re.split("[\r\n]", text)]
    assert " ".join(shown.split()) in bars, text
    assert "  evaluation return  490.2  (95% interval 481.2 to 499.8; 128 episodes)\n" in text
    assert text.endswith("  run directory      runs/x\n")


def test_the_final_table_of_one_agent():
    stream = io.StringIO()
    terminal.Terminal(QUIET, stream).finish("cartpole: done", summary(), {"wandb": "here"})
    assert stream.getvalue().splitlines() == [
        "cartpole: done",
        "  evaluation return  490.2  (95% interval 481.2 to 499.8; 128 episodes)",
        "  training return    480.0  (last 100 episodes)",
        "  target return      475.0  (reached after 6.3 s)",
        "  environment steps  810,000  (81.2k a second)",
        "  time               1:12  (compilation 4.1 s)",
        "  peak memory        1,612 MB",
        "  wandb              here",
    ]


def test_the_evaluation_of_one_episode_has_no_interval():
    evaluation = summary()["evaluation"] | {"ci95": (None, None), "episodes": 1}
    lines = dict(terminal.summary_lines(summary(evaluation=evaluation)))
    assert lines["evaluation return"] == "490.2  (1 episode)"


def test_the_final_table_of_several_agents_names_the_worst_and_the_failed():
    evaluation = summary()["evaluation"] | {"per_agent": [500.0, 200.5, None, 490.0, 480.0]}
    result = summary(
        num_seeds=5, failed=[2], evaluation=evaluation, seconds_to_target=None, return_100=None
    )
    lines = dict(terminal.summary_lines(result))
    assert lines["evaluation return"].startswith("495.0  (IQM, 95% interval")
    assert lines["  min, max"] == "200.5, 500.0"
    assert lines["  worst agents"] == "200.5 (agent 1), 480.0 (agent 4), 490.0 (agent 3)"
    assert lines["agents"] == "5  (1 failed: agent 2)"
    assert lines["target return"] == "475.0  (not reached)"
    assert "training return" not in lines


@pytest.mark.parametrize(("agents", "worst"), [(2, False), (3, False), (4, True)])
def test_the_final_table_names_the_worst_only_where_they_are_not_all(agents, worst):
    evaluation = summary()["evaluation"] | {"per_agent": [500.0, 490.0, 480.0, 470.0][:agents]}
    lines = dict(terminal.summary_lines(summary(num_seeds=agents, evaluation=evaluation)))
    assert ("  worst agents" in lines) == worst


def test_a_run_outlives_the_reader_of_its_output():
    read, written = os.pipe()
    os.close(read)
    with os.fdopen(written, "w") as stream:
        shown = terminal.Terminal(QUIET, stream)
        shown.message("nobody reads this")
        shown.update(row(1))
        shown._stream.close()
        with pytest.raises(OSError, match="Broken pipe"):  # what was left in the buffer
            stream.close()


def test_the_time_left_is_that_of_the_steps_left():
    # 10 of 40 iterations took 8,000 valid steps: 24,000 are left, at 600 a second
    shown = {"iteration": 10, "env_steps": 8000, "steps_per_second": 600.0}
    assert terminal.seconds_left(shown, 40) == 40.0
    assert terminal.seconds_left(shown | {"steps_per_second": None}, 40) is None


def test_numbers_are_shown_for_people():
    assert [terminal.compact(n) for n in (None, 0, 950, 999.7, 81_234, 1_050_000, 2e9)] == [
        *("-", "0", "950", "1.00k", "81.2k", "1.05M", "2.00G")
    ]
    assert [terminal.number(n) for n in (None, 0.0, -82.44, 1234.5, 0.03124, 500.0)] == [
        *("-", "0.0", "-82.4", "1,234", "0.0312", "500.0")
    ]
    assert [terminal.duration(s) for s in (None, 4.24, 9.96, 59.6, 3723, 97_445)] == [
        *("-", "4.2 s", "0:10", "1:00", "1:02:03", "1d 03:04:05")
    ]
