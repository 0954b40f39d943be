"""Eight CPU devices for every test, so that pmap and shards are always exercised."""

import gc
import re
import signal

import jax
import pytest
import running
from processes import World

jax.config.update("jax_num_cpu_devices", 8)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Each maps some hundred pieces of memory, of which the kernel grants a process 65,530."""
    yield
    running.shared.clear()
    jax.clear_caches()
    gc.collect()


STRICT = {
    f"test_{what}"
    for what in (
        *("returns", "normalize", "optim", "replay", "networks", "rollout"),
        *("ppo", "a2c", "impala", "pqn", "dqn", "apex", "q_learning", "recurrent", "algorithms"),
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


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Where a module's processes run; compiled programs are all modules' together."""
    cache = tmp_path_factory.getbasetemp() / "compiled"
    return World(tmp_path_factory.mktemp("world"), cache)


@pytest.fixture
def path(world, request):
    """A folder for the test, not yet there."""
    return world.folder / re.sub(r"\W", "_", request.node.name)
