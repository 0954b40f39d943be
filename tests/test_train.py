"""The training command from end to end, in processes of its own: what it prints and leaves
behind, and that neither kills nor signals nor devices change what it learns."""

import contextlib
import importlib.util
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
from processes import (
    PATIENCE,
    QUICKLY,
    REPOSITORY,
    SMALL,
    World,
    assert_same_bits,
    assert_same_run,
    events,
    newest,
    rows,
    state,
    summary,
    well,
)

from jaxrl_scale import envs
from jaxrl_scale.config import check, files
from jaxrl_scale.envs import games
from jaxrl_scale.loop.host_runner import HostRunner
from jaxrl_scale.loop.runner import Runner
from jaxrl_scale.options import traced
from jaxrl_scale.parallel import backend
from jaxrl_scale.records import rows as records
from jaxrl_scale.train import main

STOPPED, NOT_FINITE, MISTAKE, IO_ERROR = 75, 3, 2, 74


def wait_for(condition, process) -> None:
    limit = time.time() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.time() < limit
        time.sleep(0.01)


def has_rows(run_dir: Path, count: int) -> bool:
    file = run_dir / "metrics.jsonl"
    return file.exists() and file.read_bytes().count(b"\n") >= count


# --- a run that nothing interrupts ----------------------------------------------------------


def test_a_run_prints_plain_lines_and_nothing_on_standard_error(undisturbed):
    done = undisturbed.done
    assert done.err == ""
    assert "\x1b" not in done.out
    assert "\r" not in done.out
    lines = done.out.splitlines()
    assert re.fullmatch(
        r"CartPole-v1: CartPole-v1, ppo, 24 iterations of 256 steps, "
        r"1 cpu device with 4 shards each, exact sums, a state of [\d.]+ kB; in \S+reference",
        lines[0],
    )
    progress = [line for line in lines if re.match(r" *\d+% .* steps/s  return .* left$", line)]
    assert 15 <= len(progress) <= 25
    assert progress == lines[1 : 1 + len(progress)]
    assert progress[-1].startswith("100%")
    assert "CartPole-v1 is done" in lines


def test_with_64_bit_numbers_switched_on_the_metrics_are_the_same_kind_of_numbers(world, path):
    done = world.train(path, "--iterations", 2, environment={"JAX_ENABLE_X64": "1"} | QUICKLY)
    well(done)
    first = rows(path)[0]
    assert 0.6 < first["entropy"] <= 0.6932  # near ln 2: the policy of two actions is new
    assert 0 < first["approx_kl"] < 0.1
    assert summary(path)["env_steps"] > 400


def test_no_variable_that_is_meant_for_a_blas_changes_a_bit(world, path, reference):
    another = {"OPENBLAS_CORETYPE": "Prescott", "OPENBLAS_NUM_THREADS": "1"}
    well(world.train(path, environment=another))
    assert_same_run(path, reference)


def test_a_run_directory_holds_all_that_it_should(reference):
    names = {p.name for p in reference.iterdir()}
    wanted = {"config.json", "run.json", "metrics.jsonl", "tensorboard", "checkpoints"}
    assert names == wanted | {"summary.json", ".lock"}
    config = json.loads((reference / "config.json").read_text())
    assert config["num_envs"] == 16
    assert config["algo"]["name"] == "ppo"
    assert config["algo"]["minibatch_size"] == 64
    assert config["algo"]["gamma"] == 0.99  # resolved: the defaults too
    (start,) = json.loads((reference / "run.json").read_text())["starts"]
    assert start["versions"]["jax"] == jax.__version__
    assert start["devices"] == ["cpu:0 cpu"]
    assert start["reduction"] == "exact"
    assert "--rollout_length 16" in start["command"]
    assert [row["iteration"] for row in rows(reference)] == list(range(1, 25))
    curves = events(reference)
    assert [value for _, value in curves["episode/return"]] == pytest.approx(
        [row["return"] for row in rows(reference)]
    )
    assert newest(reference) == 24


def test_the_summary_has_the_documented_schema(reference):
    result = summary(reference)
    evaluation = result.pop("evaluation")
    # There is no test_env_kwargs, and no published range of scores.
    conditional = {"evaluation", "test", "eval_normalized", "test_normalized"}
    assert result.keys() == records.Summary.__annotations__.keys() - conditional
    assert evaluation.keys() == records.Evaluation.__annotations__.keys()
    assert result["status"] == "done"
    assert result["iterations"] == 24
    assert result["failed"] == []
    assert evaluation["episodes"] == SMALL["eval_episodes"]
    assert evaluation["per_agent"] == [evaluation["mean"]]
    assert evaluation["ci95"][0] < evaluation["mean"] < evaluation["ci95"][1]
    last = rows(reference)[-1]
    assert result["return_100"] == last["return_100"]
    assert evaluation["mean"] == last["eval_return"]
    assert 50 < result["peak_memory_mb"] < 10_000
    assert result["steps_per_second"] > 0


def test_env_steps_count_valid_steps_only(reference):
    total = sum(row["episodes"] for row in rows(reference))
    resets = 24 * 256 - summary(reference)["env_steps"]
    assert total > 100
    # Each ended episode costs one reset, but for those that ended with an environment's last step.
    assert total - SMALL["num_envs"] <= resets <= total
    assert rows(reference)[-1]["env_steps"] == summary(reference)["env_steps"]


def test_times_are_counted_from_the_start_of_the_process(undisturbed):
    path, _, started, ended = undisturbed
    result = summary(path)
    first = records.read_rows(path / "metrics.jsonl")[0]
    assert first["time"] - first["wall_seconds"] == pytest.approx(started, abs=1.0)
    assert result["compile_seconds"] < result["seconds_to_target"] < result["wall_seconds"]
    assert result["wall_seconds"] < ended - started + 1


def test_seconds_to_target_is_null_where_it_is_never_reached(world, path):
    world.train_well(path, "--target_return", 400, "--tensorboard", "false")
    assert summary(path)["seconds_to_target"] is None
    assert summary(path)["target_return"] == 400
    assert not (path / "tensorboard").exists()


def test_in_a_terminal_there_is_a_bar_and_wandb_offline_writes_its_folder(world, path, reference):
    master, slave = pty.openpty()
    how = {"stdout": slave, "environment": {"TERM": "xterm-256color", "WANDB_MODE": "offline"}}
    with world.start(*world.small(path), **how) as process:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # Linux says so when the last writer is gone
            while select.select([master], [], [], PATIENCE)[0]:
                shown += os.read(master, 65536)
        err = process.communicate(timeout=PATIENCE)[1]
    os.close(master)
    assert (process.returncode, err) == (0, "")
    text = shown.decode()
    assert "compiling" in text
    assert "100%" in text
    assert "\x1b[?25h" in text  # the cursor is given back
    assert "wandb sync" in text
    assert len(list((path / "wandb").glob("offline-run-*/*.wandb"))) == 1
    assert "rning" not in text
    assert rows(path) == rows(reference)


CONFIGS = sorted((REPOSITORY / "configs").glob("*.py"))
# One of each algorithm and of each kind of environment and network: the rest differ in numbers.
RUN = [c for c in CONFIGS if c.stem.endswith("cartpole")] + [
    REPOSITORY / "configs" / f"{name}.py" for name in ("breakout", "lunar_lander", "memory_chain")
]
# One that learns from rollouts, and one that learns from a replay. The others are slow: all
# algorithms run in test_algorithms.py, all kinds of networks in test_threads.py.
QUICK = ("apex_cartpole", "cartpole")


@pytest.fixture(scope="module")
def config_runs(world, request):
    """Two iterations of the chosen configs, two processes at a time: XLA compiles on one core, and
    here without optimising."""
    names = {item.name for item in request.session.items}
    chosen = [config for config in RUN if f"test_a_config_runs[{config.stem}]" in names]

    def run(config):
        few = ["--iterations", 2, "--eval_episodes", 2, "--run_dir", world.folder / config.stem]
        return world.run("--config", config, *few, "--compilation_cache", "", environment=QUICKLY)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(chosen, pool.map(run, chosen), strict=True))


@pytest.mark.parametrize(
    "config",
    [pytest.param(c, id=c.stem, marks=[pytest.mark.slow] * (c.stem not in QUICK)) for c in RUN],
)
def test_a_config_runs(world, config_runs, config):
    done, path = well(config_runs[config]), world.folder / config.stem
    assert done.out.startswith(f"{config.stem}: ")
    assert summary(path)["iterations"] == 2
    assert newest(path) == 2


@pytest.mark.parametrize("file", [c for c in CONFIGS if c.stem not in QUICK], ids=lambda p: p.stem)
def test_the_other_configs_fit_their_environments(file):
    config = files.read_file(file)
    check(config)
    one = config.replace(devices=1)
    if config.env in (*games.PROCGEN, *games.ATARI) and not importlib.util.find_spec("envpool"):
        pytest.skip("EnvPool is not installed (make install EXTRA=envpool)")
    env = config.make_env()
    placement = backend.place(one, jax.local_devices())
    if envs.on_host(env):
        host = HostRunner(one, env, placement)
        before = host._beginning.shapes
        arrays = before.local.carry, host._gathered, host._num_iterations
        after, *_ = placement.shapes(host._update, before, *arrays, placement.split_scalar(0.0))
        assert jax.tree.map(lambda x: x.shape, after) == jax.tree.map(lambda x: x.shape, before)
        return
    runner = Runner(one, env, placement)
    state = jax.eval_shape(runner._init_agent, np.uint32(0), traced(config.algo))
    following, report = jax.eval_shape(runner._step_agent, np.int32(1), state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), following) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )
    assert any("loss" in group for group in report.metrics.names)


def test_a_state_that_does_not_fit_into_the_memory_is_refused(world, path):
    most = 2**31 - 8
    done = world.run(
        *("--config=none", "--env", "gymnax:Breakout-MinAtar"),
        *("--num_envs", most, "--rollout_length", 1),
        *("--iterations", 1, "--algo.minibatch_size", most, "--run_dir", path),
    )
    assert done.status == MISTAKE
    assert re.fullmatch(
        r"error: the state of this run takes [\d,.]+ [GT]B, and as much again while it is saved, "
        r"but [\d.]+ GB of memory is free; a hundredth of its num_envs would not fit either\n",
        done.err,
    )
    assert not path.exists()


# --- a run that begins from another one -------------------------------------------------------


def test_a_run_that_begins_from_another_is_the_same_on_two_processes_and_when_resumed(
    world, path, reference
):
    other = world.folder / "other"
    shutil.copytree(reference, other)
    more = ["--init_from", other, "--iterations", 6, "--checkpoint_every", 3, "--seed", 5]
    done = world.train_well(path, *more)
    assert f"begins from the policy of {other.name} at iteration 24" in done.out
    (start,) = json.loads((path / "run.json").read_text())["starts"]
    assert start["init_from"]["run_dir"] == str(other)
    assert start["init_from"]["iteration"] == 24
    new, *_, trained = (row["entropy"] for row in rows(other))
    assert abs(rows(path)[0]["entropy"] - trained) < abs(rows(path)[0]["entropy"] - new) / 2

    two = world.folder / "begun by two"
    for one in world.run_ranks(2, *world.small(two), *more).values():
        well(one)
    assert_same_run(two, path)

    # Killed before its first checkpoint it begins from there once more.
    (path / "summary.json").unlink()
    again = world.folder / "begun again"
    shutil.copytree(path, again)
    shutil.rmtree(again / "checkpoints")
    world.resume_well(again)
    assert_same_run(again, two)

    # After it, nothing of the other run is needed.
    shutil.rmtree(other)
    shutil.rmtree(path / "checkpoints" / "6")
    world.resume_well(path)
    assert_same_run(path, two)

    # Where there is nothing to begin from, nothing is made.
    done = world.train(world.folder / "never", *more)
    assert (done.status, done.out) == (MISTAKE, "")
    told = f"error: init_from={other.name}: run directory {other} does not exist"
    assert done.err.startswith(told)
    assert done.err.count("\n") == 1
    assert not (world.folder / "never").exists()


# --- kills ----------------------------------------------------------------------------------


def killed(world: World, *arguments, **how) -> None:
    process = world.start(*arguments, **how)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (-signal.SIGKILL, ""), out


def kill_when(world: World, condition, seconds: float, *arguments) -> None:
    """SIGKILL some time after ``condition`` has come true, unless the run ends before."""
    with world.start(*arguments) as process:
        while process.poll() is None and not condition():
            time.sleep(0.001)
        time.sleep(seconds)
        process.kill()
        err = process.communicate(timeout=PATIENCE)[1]
    assert err == ""
    assert process.returncode in (-signal.SIGKILL, 0)


def is_saving(run_dir: Path) -> bool:
    return any((run_dir / "checkpoints").glob("*.orbax-checkpoint-tmp*"))


def start_count(run_dir: Path) -> int:
    file = run_dir / "run.json"
    return len(json.loads(file.read_text())["starts"]) if file.exists() else 0


def test_a_run_killed_again_and_again_on_other_devices_ends_bit_for_bit_the_same(
    world, path, reference
):
    seed = random.randrange(2**32)
    print(f"seed of the moments: {seed}")
    moments = random.Random(seed)
    # Some 40 things are done to files before the first step, then some 17 for a checkpoint.
    accident = {"kill_at_file_event": moments.randrange(20, 180)}
    print(accident)
    killed(world, *world.small(path), accident=accident)

    if newest(path) < 16:  # while a checkpoint is written, on two devices
        resumed = ["--resume", path, "--devices", 2]
        before = start_count(path)
        kill_when(
            world,
            lambda: start_count(path) > before and is_saving(path),
            0.02 * moments.random(),
            *resumed,
        )
    with open(path / "metrics.jsonl", "ab") as file:
        file.write(b'{"iteration": 99, "env_st')  # torn by the crash of a machine
    accident = {"kill_at_file_event": moments.randrange(30, 200)}
    print("checkpoint", newest(path), accident)
    process = world.start("--resume", path, "--devices", 4, accident=accident)
    assert process.communicate(timeout=PATIENCE)[1] == ""

    print("checkpoint", newest(path), "then killed in an evaluation")
    (path / "summary.json").unlink(missing_ok=True)  # a run that has finished is left as it is
    accident = {"kill_at_evaluation": 1}
    process = world.start("--resume", path, "--devices", 1, accident=accident)
    assert process.communicate(timeout=PATIENCE)[1] == ""
    assert process.returncode == -signal.SIGKILL

    done = world.resume_well(path, "--devices", 2)
    assert f"resumed at iteration {newest(path)}" in done.out or newest(path) == 24
    assert_same_run(path, reference)


def test_a_run_killed_in_its_final_evaluation_ends_well_and_then_is_left_as_it_is(
    world, path, reference
):
    shutil.copytree(reference, path)
    (path / "summary.json").unlink()
    killed(world, "--resume", path, accident={"kill_at_evaluation": 1})
    assert not (path / "summary.json").exists()
    done = world.resume_well(path)
    assert "resumed at iteration 24" in done.out
    assert_same_run(path, reference)
    files = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    done = world.resume_well(path, "--devices", 2)
    assert done.out == f"{path.name} has finished: nothing is left to do, nothing changes\n"
    assert files == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_run_killed_thirty_times_ends_bit_for_bit_the_same(world, path, reference, seed):
    moments = random.Random(seed)
    command = [*world.small(path)]
    for _ in range(30):
        if (path / "config.json").exists():
            command = ["--resume", path, "--devices", moments.choice([1, 2, 4])]
        accident = {"kill_at_file_event": moments.randrange(1, 80)}
        if moments.random() < 0.3:
            kill_when(world, lambda: is_saving(path), 0.1 * moments.random(), *command)
        else:
            process = world.start(*command, accident=accident)
            assert process.communicate(timeout=PATIENCE)[1] == ""
            assert process.returncode in (0, -signal.SIGKILL)
    world.resume_well(path)
    assert_same_run(path, reference)


# --- signals --------------------------------------------------------------------------------


ASKED = "Ctrl-C: the run stops after this iteration and is saved; Ctrl-C again ends it at once\n"


def test_signals_save_and_say_how_to_resume_and_change_nothing(world, path, reference):
    """In one directory, one after the other; from outside, from inside a step, and while XLA
    compiles."""
    with world.start(*world.small(path)) as process:
        wait_for(lambda: (path / "run.json").exists(), process)  # it compiles
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == STOPPED
    assert err.replace("the compilation", "this iteration") == ASKED
    match = re.fullmatch(
        r"stopped by SIGINT and saved at iteration (\d+) of 24; "
        r"continue with: python -m jaxrl_scale.train --resume (\S+)",
        out.splitlines()[-1],
    )
    assert match[2] == str(path)
    assert newest(path) == int(match[1])
    assert summary(path)["status"] == "stopped"
    assert "evaluation" not in summary(path)

    for name, at, devices in (("SIGTERM", 8, 2), ("SIGUSR1", 13, 4)):
        if newest(path) >= at:
            continue  # the machine was so fast that SIGINT came late
        accident = {"signal": name, "at": at}
        done = world.resume(path, "--devices", devices, accident=accident)
        assert (done.status, done.err) == (STOPPED, "")
        told = f"stopped by {name} and saved at iteration {at} of 24; continue with: "
        assert done.out.splitlines()[-1].startswith(told)
        assert newest(path) == at
    world.resume_well(path, "--devices", 1)
    assert_same_run(path, reference)


def test_a_second_interrupt_ends_at_once_and_what_was_saved_stays(world, path):
    """One from inside and one from outside: two from outside may come as one, as Python hears them
    between its own steps only."""
    how = {"accident": {"signal": "SIGINT", "at": 2, "seconds": 6}}
    with world.start(*world.small(path), "--checkpoint_every", 1, **how) as process:
        wait_for(lambda: newest(path) >= 1, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert err == ASKED + "interrupted; what was saved stays saved\n"
    assert state(path)[0] >= 1


def test_two_processes_cannot_use_one_directory(world, path):
    with world.start(*world.small(path), accident={"seconds": 2}) as process:
        wait_for(lambda: has_rows(path, 1), process)
        for refused in (world.resume(path), world.run("--run_dir", path)):
            assert refused.status == MISTAKE
            assert re.fullmatch(
                rf"error: \S+ is in use by process {process.pid} on .*; stop it, "
                r"or choose another --run_dir\n",
                refused.err,
            )
        process.terminate()
        process.communicate(timeout=PATIENCE)
    assert process.returncode == STOPPED


# --- damage and disks -----------------------------------------------------------------------


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(world, path, reference):
    shutil.copytree(reference, path)
    (path / "summary.json").unlink()  # else it would have finished
    for file in (path / "checkpoints" / "24").rglob("*"):
        if file.is_file() and "metadata" not in file.name.lower():
            file.write_bytes(file.read_bytes()[:-1])
    done = world.resume_well(path, "--devices", 2)
    assert f"checkpoint {path}/checkpoints/24 is damaged and skipped: " in done.out
    assert "resumed at iteration 22" in done.out
    assert_same_run(path, reference)


def test_a_full_disk_is_a_clear_error_and_the_run_can_be_resumed(world, path, reference):
    # A limit on the size of files stands in for the disk: a checkpoint is the first to reach it.
    done = world.train(path, accident={"largest_file": 8000})
    assert done.status == IO_ERROR
    assert re.fullmatch(r"error: cannot save checkpoint \S+/2: File too large\n", done.err)
    assert newest(path) == 0
    world.resume_well(path)
    assert_same_run(path, reference)


def test_a_disk_that_fills_up_while_saving_is_a_clear_error(world, path, reference):
    path.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], capture_output=True
    ).returncode:
        pytest.skip("this process may not mount a tmpfs (needs root)")
    try:
        run = path / "run"
        with world.start(*world.small(run), accident={"seconds": 0.2}) as process:
            wait_for(lambda: newest(run) >= 2, process)
            filler = os.open(path / "filler", os.O_WRONLY | os.O_CREAT)
            with contextlib.suppress(OSError):
                while True:
                    os.write(filler, bytes(4096))
            os.close(filler)
            _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == IO_ERROR
        assert re.fullmatch(r"error: cannot \S+ .*: No space left on device\n", err)
        (path / "filler").unlink()
        world.resume_well(run)
        assert rows(run) == rows(reference)
        assert_same_bits(state(run)[1], state(reference)[1])
    finally:
        subprocess.run(["umount", path], check=True)


def test_a_folder_that_cannot_be_written_is_a_clear_error(world, path):
    path.write_text("a file")
    done = world.train(path / "run")
    assert done.status == IO_ERROR
    assert re.fullmatch(r"error: cannot write \S+/run: Not a directory\n", done.err)


# --- populations and losses that are no longer finite ---------------------------------------

POISONED = ["--env", "poisoned:CartPole", "--env_kwargs.dose=0.002", "--eval_every", 0]
FIRST_SEED, NUM_SEEDS = 2, 4


@pytest.fixture(scope="module")
def population(world):
    """Seeds of which some fail and some do not, on two devices (whole agents on each); killed and
    resumed."""
    path = world.folder / "population"
    seeds = ["--seed", FIRST_SEED, "--num_seeds", NUM_SEEDS]
    command = [*world.small(path), *POISONED, *seeds, "--devices", 2]
    killed(world, *command, accident={"kill_at_evaluation": 1})
    for iteration in range(newest(path) - 2, newest(path) + 1):  # back by some checkpoints
        shutil.rmtree(path / "checkpoints" / str(iteration), ignore_errors=True)
    done = world.resume_well(path)
    failed = summary(path)["failed"]
    assert 0 < len(failed) < NUM_SEEDS, "another dose or seed is needed"
    return path, done


def single(world: World, agent: int, *more):
    path = world.folder / f"single{agent}"
    seed = ["--seed", FIRST_SEED + agent]
    return path, world.train(path, *POISONED, *seed, *more)


def of_agent(leaves: dict[str, np.ndarray], agent: int) -> dict[str, np.ndarray]:
    return {name: leaf[agent : agent + 1] for name, leaf in leaves.items()}


def test_an_agent_is_the_single_run_with_its_seed_whatever_becomes_of_the_others(world, population):
    path, _ = population
    survivors = [k for k in range(NUM_SEEDS) if k not in summary(path)["failed"]]
    _, leaves = state(path)
    for agent in survivors[:2]:
        alone, done = single(world, agent)
        well(done)
        assert_same_bits(of_agent(leaves, agent), state(alone)[1])
        for together, own in zip(rows(path), rows(alone), strict=True):
            of_this = {name: values[agent] for name, values in together["per_agent"].items()}
            assert of_this == {name: own[name] for name in of_this}
        evaluations = summary(path)["evaluation"], summary(alone)["evaluation"]
        assert evaluations[0]["per_agent"][agent] == evaluations[1]["mean"]


def test_a_single_run_whose_loss_is_not_finite_stops_and_names_the_last_good_checkpoint(
    world, population
):
    path, _ = population
    first = {}  # the iteration at which each failed
    for row in rows(path):
        for agent in row["failed"]:
            first.setdefault(agent, row["iteration"])
    agent = max(first, key=first.get)
    assert first[agent] > 2, "another dose or seed is needed"
    alone, done = single(world, agent)
    good = (first[agent] - 1) // 2 * 2
    wanted = (
        f"error: the loss or another metric is no longer finite at iteration {first[agent]}; last "
        f"good checkpoint: {alone}/checkpoints/{good}; a smaller --algo.learning_rate may "
        "help, or the environment returns NaN\n"
    )
    assert (done.status, done.err) == (NOT_FINITE, wanted)
    assert state(alone)[0] == good
    params = [x for name, x in state(alone)[1].items() if ".params" in name]
    assert params
    assert all(np.isfinite(x).all() for x in params)
    assert summary(alone)["status"] == "failed"
    assert [row["iteration"] for row in rows(alone)] == list(range(1, first[agent] + 1))
    again = world.resume(alone)
    assert (again.status, again.err) == (NOT_FINITE, wanted)


def test_a_population_is_reported_one_by_one_and_as_interquartile_mean(population):
    path, done = population
    result, failed = summary(path), summary(path)["failed"]
    assert result["num_seeds"] == NUM_SEEDS
    evaluation = result["evaluation"]
    assert [score is None for score in evaluation["per_agent"]] == [
        k in failed for k in range(NUM_SEEDS)
    ]
    scores = [score for score in evaluation["per_agent"] if score is not None]
    assert evaluation["mean"] == pytest.approx(np.mean(scores))
    low, high = evaluation["ci95"]
    assert min(scores) <= low <= evaluation["iqm"] <= high <= max(scores)
    assert f"{NUM_SEEDS}  ({len(failed)} failed: agent " in done.out
    assert "worst agents" in done.out
    row = rows(path)[-1]
    assert all(len(values) == NUM_SEEDS for values in row["per_agent"].values())
    assert row["env_steps"] > 3 * 24 * 200
    assert "agents/failed" in events(path)


def test_when_all_agents_fail_the_run_stops_and_a_bad_cache_is_no_reason_for_a_word(world, path):
    more = ["--env_kwargs.dose=1.0", "--num_seeds", 2, "--compilation_cache", "/proc/nowhere"]
    done = world.train(path, *POISONED, *more, environment=QUICKLY)
    assert done.status == NOT_FINITE
    assert done.err == (
        "error: the loss or another metric of all 2 agents is no longer finite at iteration 1; "
        "last good checkpoint: none was saved yet; a smaller --algo.learning_rate may "
        "help, or the environment returns NaN\n"
    )


# --- mistakes that only the machine knows ---------------------------------------------------


def test_more_devices_than_there_are_is_told_in_one_line(capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    more = ["--devices", "64", "--num_shards", "64", "--compilation_cache", ""]
    assert main(more) == MISTAKE
    message = "error: devices=64, but this process has 8 cpu device(s); try devices=8\n"
    assert capfd.readouterr() == ("", message)
    assert not list(tmp_path.iterdir())


# --- in Python ------------------------------------------------------------------------------

NOTEBOOK = """
import json, signal, sys, threading
from jaxrl_scale import Config, train
from jaxrl_scale.config import command_line

config = command_line.load(sys.argv[1:])[0]
assert isinstance(config, Config)
watched = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
before = [signal.getsignal(s) for s in watched]
run = train(config)
assert [signal.getsignal(s) for s in watched] == before

assert (run.path.name, run.exit_status, run.config) == ("notebook", 0, config)
assert run.summary["iterations"] == 24
assert json.dumps(run.summary, indent=2) + "\\n" == (run.path / "summary.json").read_text()
assert [row["iteration"] for row in run.metrics] == list(range(1, 25))
assert run.agent().act([0.0, 0.1, 0.2, 0.3]) in (0, 1)

(run.path / "summary.json").unlink()  # else it would have finished
again = []
thread = threading.Thread(target=lambda: again.append(train(config, resume=run.path)))
thread.start()
thread.join()
assert again[0].summary["evaluation"] == run.summary["evaluation"]

for wrong in (config.replace(num_shards=3), config):
    try:
        train(wrong)
    except ValueError as error:
        print("refused:", error)
"""


def test_train_returns_the_run_to_a_notebook_and_leaves_no_trace_in_its_process(
    world, path, reference
):
    """Signal handlers stay as they were, another thread may train, the directory is freed,
    mistakes are raised in one line; every warning is an error."""
    path = world.folder / "notebook"
    command = [sys.executable, "-W", "error", "-c", NOTEBOOK, *world.small(path)]
    done = subprocess.run(
        command, env=world.environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")
    refused = [line for line in done.stdout.splitlines() if line.startswith("refused")]
    assert refused[0] == "refused: num_shards=3 is not a power of two; try num_shards=4"
    assert refused[1].startswith(f"refused: {path} already holds a run: --resume ")
    assert rows(path) == rows(reference)
