"""Eight CPU devices for every test, so that pmap and shards are always exercised."""

import collections
import fcntl
import gc
import itertools
import os
import re
import signal

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # also where there is a GPU; JAX reads it at import

import jax
import processes
import pytest
import running

from jaxrl_scale.parallel.placement import Placement

os.environ["XLA_FLAGS"] += " " + running.WITHOUT_EMITTERS  # before the first device is used
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_disable_most_optimizations", True)
jax.devices()  # or the first test that trains or loads starts JAX, with one device for each core
gc.set_threshold(50_000, 20, 100)  # as the commands do
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it


LONGEST = (
    *("peers", "algorithms", "search", "launch", "invariance", "host_runner", "train"),
    *("threads", "scaling", "recurrent", "lunar_lander"),
)
"""Modules that take long. They begin first, so that no worker of pytest-xdist ends with one while
the others have nothing to do. peers, launch and train mostly wait for processes, so one of them at
a time is beside two that compile. `pytest_terminal_summary` shows how long they take."""


def pytest_collection_modifyitems(items):
    """`LONGEST` first, then the others as they were found."""
    rank = {f"test_{name}": k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


def pytest_terminal_summary(terminalreporter):
    """Beside the slowest tests, the slowest modules."""
    seconds = collections.Counter()
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.split("::")[0]] += report.duration
    terminalreporter.section("slowest modules")
    for module, time in seconds.most_common(len(LONGEST)):
        terminalreporter.write_line(f"{time:7.2f}s {module}")


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    yield
    running.forget_programs()


@pytest.fixture(autouse=True)
def settings_left_alone():
    """No test leaves JAX with other settings for those that happen to come after it."""
    names = (
        *("jax_default_matmul_precision", "jax_enable_x64", "jax_compilation_cache_dir"),
        "jax_use_shardy_partitioner",
    )
    before = [jax.config.values[name] for name in names]
    yield
    assert [jax.config.values[name] for name in names] == before


STRICT = {
    f"test_{what}"
    for what in (
        *("returns", "normalize", "optim", "replay", "networks", "rollout"),
        *("ppo", "a2c", "impala", "pqn", "dqn", "apex", "sac", "q_learning", "recurrent"),
        "algorithms",
    )
}
"""Modules in which arrays must have the right rank and dtype by themselves: those of what
algorithms are made of. LunarLander's physics broadcasts on purpose."""


@pytest.fixture(autouse=True)
def strict_promotion(request):
    """No silent broadcasting along new axes, and no silent conversion of dtypes."""
    if request.module.__name__ not in STRICT:
        yield
        return
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


QUICKLY = {
    f"test_{what}"
    for what in (
        *("ppo", "a2c", "impala", "pqn", "dqn", "apex", "sac", "q_learning"),
        *("rollout", "randomness", "check_env", "export", "lunar_lander"),
        *("origin", "evaluate", "docs", "readme", "host_envs", "action_mask"),
    )
}
"""Modules in which XLA takes longer to optimise a run's program than the program takes to run, and
which compare no bits of a run on one device with those on several: those need a user's programs.
Without XLA's optimisation PPO and A2C have other bits on 8 devices than on one. What a program
costs is decided by its algorithm: sizes and the number of devices change it by a fifth at most."""


OPTIONS = Placement.compiler_options
Placement.compiler_options = property(
    lambda self: OPTIONS.fget(self) | (running.AS_USERS if running.programs_as_users else {})
)


@pytest.fixture(autouse=True, scope="module")
def compile_quickly(request):
    """Leave out most of XLA's optimisation of a run's programs in the modules of `QUICKLY`."""
    running.programs_as_users = request.module.__name__ not in QUICKLY


@pytest.fixture(autouse=True)
def compile_one_otherwise(request, monkeypatch):
    """And in tests with the mark ``quickly``, but not in those with the mark ``as_users``."""
    marks = {mark.name for mark in request.node.iter_markers()}
    if marks & {"quickly", "as_users"}:
        monkeypatch.setattr(running, "programs_as_users", "as_users" in marks)


@pytest.fixture(scope="session")
def common(tmp_path_factory):
    """A folder for what all workers of pytest-xdist share, within which each has its own."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(autouse=True, scope="session")
def compiled(common):
    """The folder of compiled programs: those of all modules, of all workers of pytest-xdist, and of
    all processes that tests start."""
    jax.config.update("jax_compilation_cache_dir", str(common / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # Also for what takes the folder of the user's home: see `config.files.to_look_at`.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(common / "compiled")
    return common / "compiled"


@pytest.fixture(scope="session")
def undisturbed(common, compiled):
    """The small run that others are compared with, `processes.Undisturbed`: the first worker that
    asks for it trains, and the others wait. It compiles the program of most other runs, too."""
    with open(common / "undisturbed.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return processes.undisturbed(common / "undisturbed", compiled)


@pytest.fixture(scope="session")
def reference(undisturbed):
    """The run directory of that run."""
    return undisturbed.path


@pytest.fixture(scope="module")
def world(tmp_path_factory, compiled):
    """Where a module's processes run."""
    return processes.World(tmp_path_factory.mktemp("world"), compiled)


@pytest.fixture
def path(world, request):
    """A folder for the test, not yet there."""
    return world.folder / re.sub(r"\W", "_", request.node.name)
