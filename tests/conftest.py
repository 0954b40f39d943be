"""Eight CPU devices for every test, so that pmap and shards are always exercised."""

import gc

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Each maps some hundred pieces of memory, of which the kernel grants a process 65,530."""
    yield
    jax.clear_caches()
    gc.collect()
