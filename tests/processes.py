"""Runs of the commands in processes of their own, and what such a run leaves behind."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import warm
from running import WITHOUT_EMITTERS

from jaxrl_scale.config import files
from jaxrl_scale.loop.make import make_runner
from jaxrl_scale.parallel.backend import place
from jaxrl_scale.parallel.machine import free_port
from jaxrl_scale.parallel.peers import Peers
from jaxrl_scale.records import array_folder, checkpoint
from jaxrl_scale.records import rows as records

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parent
PATIENCE = 300  # seconds; the machine may be busy with other things

QUICKLY = {"XLA_FLAGS": f"--xla_backend_optimization_level=0 {WITHOUT_EMITTERS}"}
"""The environment of a process that compiles what nothing else does, and of which no bits are
compared: XLA leaves most of its optimisation out."""


def as_a_user() -> list[str]:
    """What comes before a command: root's may read and write no more than the files allow."""
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("needs setpriv (Debian: util-linux)")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] * (os.geteuid() == 0)


# One small program for most tests: XLA compiles it once for each number of devices. All else is as
# in Config: there is no "env" (it is CartPole-v1), with which the settings of a file would come.
SMALL = {
    "num_envs": 16,
    "num_shards": 4,
    "rollout_length": 16,
    "iterations": 24,
    "hidden_sizes": 16,
    "algo.minibatch_size": 64,
    "algo.epochs": 2,
    "log_every": 1,
    "checkpoint_every": 2,
    "eval_every": 8,
    "eval_episodes": 16,
    "devices": 1,
}

# As small, for several agents, on as many devices as there are. For A2C, which compiles fastest.
SMALL_A2C = {
    "algo": "a2c",
    "num_envs": 16,
    "num_shards": 4,
    "rollout_length": 16,
    "iterations": 6,
    "hidden_sizes": 16,
    "log_every": 2,
    "checkpoint_every": 1,
    "eval_episodes": 4,
}


@dataclasses.dataclass
class Done:
    """A process that has ended."""

    status: int
    out: str
    err: str


def straight(*command: str) -> list[str]:
    """The command as it is, within nothing."""
    return list(command)


class World:
    """A folder with a home, a compilation cache and no account, in which commands run."""

    def __init__(self, folder: Path, cache: Path):
        self.folder, self.cache = folder, cache
        (folder / "home").mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB_", "JAX_", "XLA_"))}
        self.environment = kept | {
            "HOME": str(folder / "home"),
            "NETRC": str(folder / "home" / "netrc"),
            "WANDB_MODE": "disabled",
            "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{TESTS}",
            "TERM": "dumb",
            "JAX_PLATFORMS": "cpu",  # also where there is a GPU
        }

    def start(
        self,
        *arguments: Any,
        module: str = "jaxrl_scale.train",
        accident: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        within: Callable[..., list[str]] = straight,
        warmly: bool = True,
        **popen: Any,
    ) -> subprocess.Popen[str] | warm.Process:
        """A command. Warm, if it may be, and if nothing is asked for that a process has from its
        start: ``within`` something else, there is a process that stands for it."""
        command = ["-m", module]
        if accident is not None:
            command = [str(TESTS / "saboteur.py"), json.dumps({"module": module} | accident)]
        command += map(str, arguments)
        own = environment or {}
        whole = self.environment | own
        plain = not popen and own.keys() <= warm.VARIABLES and module in warm.MODULES
        if warmly and plain and within is straight:
            return warm.Process(command, whole, self.folder)
        ends = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | popen
        python = warm.python() if warmly and plain else [sys.executable]
        started = within(*python, *command)
        return subprocess.Popen(started, cwd=self.folder, env=whole, text=True, **ends)

    def run(self, *arguments: Any, **how: Any) -> Done:
        with self.start(*arguments, **how) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return Done(process.returncode, out, err)

    def start_ranks(
        self,
        number: int,
        *arguments: Any,
        ranks: Sequence[int] | None = None,
        accidents: dict[int, dict[str, Any]] | None = None,
        withins: Sequence[Callable[..., list[str]]] | None = None,
        coordinator: str | None = None,
        module: str = "jaxrl_scale.train",
        environment: dict[str, str] | None = None,
    ) -> dict[int, subprocess.Popen[str] | warm.Process]:
        """The processes of one run, or some of them, on this machine."""
        address = coordinator or f"127.0.0.1:{free_port()}"
        started = {}
        for k in ranks if ranks is not None else range(number):
            own = {
                "JAX_COORDINATOR_ADDRESS": address,
                "JAX_NUM_PROCESSES": str(number),
                "JAX_PROCESS_ID": str(k),
            }
            how: dict[str, Any] = {"accident": (accidents or {}).get(k), "module": module}
            if withins is not None:
                how["within"] = withins[k]
            started[k] = self.start(*arguments, environment=(environment or {}) | own, **how)
        return started

    def run_ranks(self, number: int, *arguments: Any, **how: Any) -> dict[int, Done]:
        """Those processes, when all have ended."""
        return ended(self.start_ranks(number, *arguments, **how))

    def train(self, run_dir: Path, *more: Any, **how: Any) -> Done:
        """A new run, the small one with ``more`` options."""
        return self.run(*self.small(run_dir), *more, **how)

    def small(self, run_dir: Path) -> list[str]:
        own = {"target_return": 15, "compilation_cache": self.cache, "run_dir": run_dir}
        return options(SMALL | own)

    def train_well(self, run_dir: Path, *more: Any, **how: Any) -> Done:
        return well(self.train(run_dir, *more, **how))

    def resume(self, run_dir: Path, *more: Any, **how: Any) -> Done:
        return self.run("--resume", run_dir, *more, **how)

    def resume_well(self, run_dir: Path, *more: Any, **how: Any) -> Done:
        return well(self.resume(run_dir, *more, **how))


class Undisturbed(NamedTuple):
    """The small run on one device that nothing interrupted, what it printed, and when it began and
    ended, in unix seconds. It began as a user's does: the runs of warm processes are compared with
    it. Nobody may change it: see conftest.py."""

    path: Path
    done: Done
    started: float
    ended: float


def undisturbed(folder: Path, cache: Path) -> Undisturbed:
    """That run in a folder which is not there yet, or the one that is there."""
    told = folder / "undisturbed.json"
    if not told.exists():
        folder.mkdir()
        started = time.time()
        done = World(folder, cache).train_well(folder / "reference", warmly=False)
        told.write_text(json.dumps([dataclasses.astuple(done), started, time.time()]))
    done, *times = json.loads(told.read_text())
    return Undisturbed(folder / "reference", Done(*done), *times)


def ended(
    processes: dict[int, subprocess.Popen[str] | warm.Process], patience: float = PATIENCE
) -> dict[int, Done]:
    """Wait for all of them; kills those that do not end."""
    done, limit = {}, time.monotonic() + patience
    try:
        for k, process in processes.items():
            out, err = process.communicate(timeout=max(0.1, limit - time.monotonic()))
            done[k] = Done(process.returncode, out, err)
    finally:
        for process in processes.values():
            process.kill()
    return done


def options(given: dict[str, Any]) -> list[str]:
    return [text for name, value in given.items() for text in (f"--{name}", str(value))]


def well(done: Done) -> Done:
    """Ended as it should: not a word on standard error."""
    assert (done.status, done.err) == (0, ""), done
    return done


# --- what a run leaves behind ---------------------------------------------------------------


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of metrics without their timings."""
    whole = records.read_rows(run_dir / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in records.TIMINGS} for row in whole]


def summary(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())


def events(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard's curves, timings left out."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    timings = {records.TAGS.get(name) for name in records.TIMINGS}
    return {
        tag: [(e.step, e.value) for e in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
        if tag not in timings
    }


@functools.cache
def _abstract_state(config_json: str) -> Any:
    config = files.from_json(json.loads(config_json)).replace(devices=1)
    one = place(config, jax.local_devices()[:1])
    env = config.make_env()
    return make_runner(config, env, one).abstract_state()


def state(run_dir: Path, iteration: int | None = None) -> tuple[int, dict[str, np.ndarray]]:
    """A checkpoint, the newest if none is named: iteration and leaves by name."""
    iteration = iteration or max(checkpoints(run_dir))
    target = _abstract_state((run_dir / "config.json").read_text())
    path = run_dir / "checkpoints" / str(iteration)
    found, _ = checkpoint._read(Peers(), target, None, path)
    leaves = jax.tree_util.tree_leaves_with_path(found)
    return iteration, {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def newest(run_dir: Path) -> int:
    """The iteration of the newest checkpoint. None is read, as an older one may be gone by now."""
    folders = (run_dir / "checkpoints").glob("[0-9]*")
    return max((int(p.name) for p in folders if p.name.isdecimal()), default=0)


def checkpoints(run_dir: Path) -> dict[int, float | None]:
    """Those that were kept and their scores."""
    folders = (run_dir / "checkpoints").glob("[0-9]*")
    paths = sorted((int(path.name), path) for path in folders if path.name.isdecimal())
    return {iteration: array_folder.read_record(path)["score"] for iteration, path in paths}


def assert_same_bits(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    different = [name for name in ours if ours[name].tobytes() != theirs[name].tobytes()]
    assert not different


def assert_same_run(ours: Path, theirs: Path) -> None:
    """Bit for bit: parameters and all other state, metrics, evaluation, curves."""
    assert rows(ours) == rows(theirs)
    timed = {"wall_seconds", "compile_seconds", "steps_per_second", "peak_memory_mb"}
    timed |= {"seconds_to_target"}
    one, other = summary(ours), summary(theirs)
    assert {k: one[k] for k in one.keys() - timed} == {k: other[k] for k in other.keys() - timed}
    assert (one["seconds_to_target"] is None) == (other["seconds_to_target"] is None)
    # A kill between the last save and the removal of an older checkpoint leaves one more.
    assert checkpoints(ours).items() >= checkpoints(theirs).items()
    (iteration, leaves), (wanted, wanted_leaves) = state(ours), state(theirs)
    assert iteration == wanted
    assert_same_bits(leaves, wanted_leaves)
    assert events(ours) == events(theirs)


class Screen(io.StringIO):
    """A terminal, as far as a program that writes on it can tell."""

    def isatty(self):
        return True
