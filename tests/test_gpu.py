"""On a GPU, where there is one: a run there is a function of its config and seed, too.

Every test is a process of its own, with JAX on the GPU, which all others leave alone. On other
machines these tests are skipped.
"""

import os
import subprocess
import sys

import algorithms
import jax
import numpy as np
import pytest
import threads
from processes import REPOSITORY, TESTS, World, assert_same_run, summary, well
from running import differing, runner_of, small

from jaxrl_scale import envs
from jaxrl_scale.loop import rollout
from jaxrl_scale.parallel.machine import visible_gpus

AGAIN = 75
ON_GPU = {"JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@pytest.fixture(autouse=True)
def there_is_one(monkeypatch):
    with monkeypatch.context() as context:
        context.delenv("JAX_PLATFORMS", raising=False)
        if not visible_gpus():
            pytest.skip("there is no NVIDIA GPU here")


def on_gpu(function, *args):
    """Call a function of this module in a new process, where JAX is on the GPU."""
    script = (
        "import jax, test_gpu; assert jax.default_backend() == 'gpu'; "
        f"test_gpu.{function.__name__}(*{args!r})"
    )
    environment = os.environ | ON_GPU | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    environment["PYTHONPATH"] = os.pathsep.join([*sys.path, str(REPOSITORY)])
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def digests(runner, calls, state=None):
    """After calls of so many iterations each: the digests of the agents, and the state."""
    state = runner.init() if state is None else state
    for count in calls:
        state, _, _ = runner.steps(state, count)
    fetched = runner.fetch(state)
    return runner.digests(fetched), fetched


# --- in processes of their own --------------------------------------------------------------


def same_again(name):
    known = threads.CONFIGS | threads.IMAGES
    config = known.get(name) or algorithms.everything(name)
    config = config.replace(devices=1, iterations=8)
    whole, _ = digests(runner_of(config), [6])
    again = runner_of(config)  # compiled anew
    _, half = digests(again, [1, 2])
    assert digests(again, [3], again.place(half))[0] == whole


def alone_and_among_others():
    config = small(reduction="exact", devices=1)
    both, _ = digests(runner_of(config.replace(num_seeds=2)), [3])
    alone, _ = digests(runner_of(config.replace(seed=1)), [3])
    assert both[1] == alone[0]


def both_reductions():
    config = small({"learning_rate": 1e-3}, devices=1)
    exact, fast = (
        digests(runner_of(config.replace(reduction=reduction)), [1])[1].shared.algo.params
        for reduction in ("exact", "fast")
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-4), exact, fast)
    assert differing(exact, fast)  # it is not one and the same program


def steps_as_on_a_cpu(name):
    """From the same states, which a CPU has reached by actions at random, with the same actions."""
    env = envs.make(name)
    cpu, gpu = jax.devices("cpu")[0], jax.devices("gpu")[0]
    number = 2048

    def act(key):
        space = env.spec.action
        if hasattr(space, "n"):
            return jax.random.randint(key, (number,), 0, space.n)
        return jax.random.uniform(key, (number, *space.shape), minval=space.low, maxval=space.high)

    def step(batch, key):
        keys = jax.random.split(key, (number, 2))
        return rollout.step(env, keys, batch, act(key))[0]

    def played(key):
        keys = jax.random.split(key, 150)
        batch = rollout.reset(env, key, number)
        return jax.lax.scan(lambda batch, key: (step(batch, key), None), batch, keys)[0]

    key = jax.device_put(jax.random.key(3), cpu)
    start = jax.jit(played)(key)
    results = []
    for device in (cpu, gpu):
        after = jax.jit(step)(*jax.device_put((start, key), device))
        results.append(np.asarray(after.obs))
    error = np.abs(results[0] - results[1]).reshape(number, -1).max(-1)
    assert np.mean(error < 1e-3) > 0.99, np.quantile(error, [0.5, 0.9, 0.99, 1])


# --- the tests ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*algorithms.NAMES, "mlp", "cnn", "gru", *threads.IMAGES])
def test_a_run_compiled_anew_and_continued_in_other_calls_has_the_same_bits(name):
    on_gpu(same_again, name)


def test_with_exact_sums_an_agent_among_others_has_the_bits_of_its_own_run():
    on_gpu(alone_and_among_others)


def test_exact_and_fast_sums_agree_within_rounding():
    on_gpu(both_reductions)


def test_a_run_that_was_stopped_goes_on_from_its_checkpoint_with_the_same_bits(world):
    well(world.train(world.folder / "whole", environment=ON_GPU))
    term = {"signal": "SIGTERM", "at": 9}
    stopped = world.train(world.folder / "stopped", accident=term, environment=ON_GPU)
    assert stopped.status == AGAIN, stopped
    well(world.resume(world.folder / "stopped", environment=ON_GPU))
    assert_same_run(world.folder / "stopped", world.folder / "whole")


def test_a_run_finds_the_programs_of_an_earlier_one_and_has_the_same_bits(tmp_path):
    world = World(tmp_path, tmp_path / "cache")

    def used():
        """When each program was last loaded, or written."""
        return {path: path.stat().st_mtime_ns for path in (world.cache / "programs").iterdir()}

    runs = [world.folder / name for name in ("earlier", "later")]
    well(world.train(runs[0], environment=ON_GPU))
    before = used()
    well(world.train(runs[1], environment=ON_GPU))
    after = used()
    assert after.keys() == before.keys() != set()
    assert all(after[path] > before[path] for path in before)
    assert_same_run(runs[1], runs[0])


@pytest.mark.parametrize("number", [2, 4])
def test_processes_have_the_bits_of_one(world, number):
    """Each has one GPU, or all have the only one, as processes of several hosts: see sharing.py."""
    one, several = (world.folder / f"{name}-{number}" for name in ("one", "several"))
    well(world.train(one, "--reduction=exact", environment=ON_GPU))
    small = [*world.small(several), "--reduction=exact"]
    for done in world.run_ranks(number, *small, module="sharing", environment=ON_GPU).values():
        well(done)
    assert_same_run(several, one)


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1", "LunarLander-v3"]
)
def test_an_environment_steps_as_on_a_cpu(name):
    on_gpu(steps_as_on_a_cpu, name)


def test_a_command_trains_and_another_plays_in_gymnasium(world):
    run = world.folder / "run"
    config = ["--config", REPOSITORY / "configs" / "cartpole.py", "--run_dir", run]
    well(world.run(*config, environment=ON_GPU))
    assert summary(run)["evaluation"]["mean"] >= 475
    play = [run, "--gymnasium", "--episodes", 10]
    well(world.run(*play, module="jaxrl_scale.evaluate", environment=ON_GPU))
