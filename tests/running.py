"""What several tests share: a small run without files, on chosen devices."""

import dataclasses
import gc
import json

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale import algos
from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config, check, files
from jaxrl_scale.loop.make import make_runner
from jaxrl_scale.loop.runner import MOST_AT_ONCE, Runner
from jaxrl_scale.options import traced
from jaxrl_scale.parallel import backend
from jaxrl_scale.records.checkpoint import Checkpoints
from jaxrl_scale.records.progress import Progress
from jaxrl_scale.types import Time

_EMITTERS = "xla_cpu_use_fusion_emitters"  # jaxlib 0.11 uses them always, and has no such flag
_MAY_CHOOSE = jax.__version_info__ < (0, 11)
WITHOUT_EMITTERS = f"--{_EMITTERS}=false" if _MAY_CHOOSE else ""
"""The flag of XLA with which tests compile, in half the time."""
AS_USERS = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    **({_EMITTERS: True} if _MAY_CHOOSE else {}),
}
"""Compiler options by which a program is compiled as a user's is. A test process leaves out most of
XLA's optimisation, and its fusion emitters, without which XLA compiles in two thirds of the time:
conftest.py sets so for what it compiles without these options."""
programs_as_users = True
"""Whether a run's programs are compiled with them: see conftest.py."""


def small(algo=None, **changes):
    """A config that compiles and runs in seconds."""
    own = {"minibatch_size": 128, "epochs": 2} | (algo or {})
    whole = {"num_envs": 64, "num_shards": 8, "rollout_length": 16, "iterations": 8} | changes
    config = Config(algo=ppo.Config(**own), **whole)
    check(config)
    return config


def runner_of(config, env=None, algo=None, monkeypatch=None):
    """A compiled runner on the first ``config.devices`` of the test's eight CPU devices. What
    begins a run is compiled when it is called.

    ``algo``: a ``make(config, spec, pool)`` to use instead of the config's.
    """
    if algo is not None:
        module = type("module", (), {"make": staticmethod(algo)})
        monkeypatch.setattr(algos, "get", lambda name: module)
    runner = uncompiled(config, env)
    runner.compile(False)
    return runner


def uncompiled(config, env=None):
    placement = backend.place(config, jax.local_devices())
    return make_runner(config, env or config.make_env(), placement)


def program_of(config):
    """The text of the compiled program of iterations."""
    return runner_of(config)._compiled_steps.as_text()


def time_at(iteration, num_iterations=8):
    """The `Time` before an iteration of a run of so many."""
    return Time(jnp.int32(iteration), jnp.float32(iteration / num_iterations))


def first_shared(algo, config, seed=0, **options):
    """An algorithm's shared state before the first update, of the config's options or others."""
    numbers = traced(dataclasses.replace(config.algo, **options))
    return jax.jit(algo.init_shared)(jax.random.key(seed), numbers)


shared = {}
"""What `once` has made."""


def forget_programs():
    """Drop all that was compiled. A runner maps a thousand pieces of memory and more, of which the
    kernel grants a process 65,530; beyond, XLA aborts."""
    shared.clear()
    jax.clear_caches()
    gc.collect()


def shared_runner(config):
    """A runner of the config that others use, too."""
    return once(runner_of, config)


def beginning(config):
    """The canonical state before the first iteration, made on one device: test_invariance.py and
    test_algorithms.py see that it has the same bits on several."""
    return once(_beginning, config.replace(devices=1, num_threads=None))


def _beginning(config):
    runner = uncompiled(config)
    state = runner.fetch(runner.init())
    runner.close()
    return state


def beginnings_that_differ(config):
    """`differing` of the state that an agent begins with, alone on a device and beside another."""
    alone, among = (_beginning(config.replace(devices=1, num_seeds=n)) for n in (1, 2))
    return differing(alone, jax.tree.map(lambda x: x[:1], among))


def once(make, config):
    """What ``make`` makes of the config, until `forget_programs` the same."""
    key = make, repr(config), programs_as_users
    if key not in shared:
        shared[key] = make(config)
    return shared[key]


def begun(path, config, failed=None):
    """The directory of a run that has saved its state before the first iteration. Nothing is
    trained. ``failed``: agents and when they failed. Returns the state, canonical."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(files.to_json(config)))
    state = beginning(config)
    progress = Progress(config.num_seeds)
    progress.failed |= failed or {}
    meta = {"progress": progress.to_json()}
    saved = Checkpoints(path / "checkpoints", 1)
    saved.save(0, state, meta)
    saved.close()
    return state


def run(config, env=None, iterations=None, algo=None, monkeypatch=None, state=None):
    """The canonical state after some iterations and the metrics ``[P]`` of each. Tests that ask
    for the same share a runner and a `beginning`: XLA compiles for seconds."""
    if env or algo:
        runner = runner_of(config, env, algo, monkeypatch)
    else:
        runner, state = shared_runner(config), state or beginning(config)
    return steps(runner, iterations or config.num_iterations, state)


def whole(config, iterations=None):
    """As `run`, from a beginning of its own: on the config's own devices."""
    return steps(shared_runner(config), iterations or config.num_iterations)


def steps(runner, iterations, state=None):
    """As `run`, of a runner and from a ``state``, with as many iterations in a call as it takes."""
    placed = runner.init() if state is None else runner.place(state)
    most = MOST_AT_ONCE if isinstance(runner, Runner) else 1
    history = []
    while len(history) < iterations:
        count = min(iterations - len(history), most)
        placed, rows, _ = runner.steps(placed, count)
        history += rows
    return runner.fetch(placed), history


def differing(a, b):
    """Names of the leaves that are not equal to the last bit."""
    leaves_a = jax.tree_util.tree_leaves_with_path(a)
    leaves_b = jax.tree.leaves(b)
    assert len(leaves_a) == len(leaves_b)
    return [
        jax.tree_util.keystr(path)
        for (path, x), y in zip(leaves_a, leaves_b, strict=True)
        if not np.array_equal(np.asarray(x), np.asarray(y), equal_nan=True)
    ]
