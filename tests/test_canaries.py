"""Every trick against XLA is needed today. Where one of these tests fails, a new XLA has made the
trick superfluous: take it out. Those that train are slow: what they tell depends on jaxlib's
version. That the tricks work is seen by all tests that compare bits.

`test_threads.py` has the canary of `jaxrl_scale.learning.products`.
"""

import functools
import re

import algorithms
import collectives
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from running import AS_USERS, beginning, differing, program_of, runner_of, steps

from jaxrl_scale.envs import rigid_body
from jaxrl_scale.learning import normalize
from jaxrl_scale.parallel import sums


def end(name="a2c", **changes):
    """Of a small run with every option on, in two shards."""
    config = algorithms.everything(name, num_shards=2).replace(**changes)
    return steps(runner_of(config), config.num_iterations, beginning(config))[0]


@pytest.fixture(scope="module")
def right():
    return end(devices=1)


@pytest.mark.slow
def test_nothing_differs_with_all_tricks(right):
    assert differing(right, end(devices=2)) == []


@pytest.mark.slow
def test_the_wall_behind_the_sum_is_still_needed(right, monkeypatch):
    monkeypatch.setattr(
        sums, "walled_sum", lambda *terms: sum(sums.tree_sum(term) for term in terms)
    )
    assert differing(right, end(devices=2)) != []


@pytest.mark.slow
def test_the_hidden_number_of_rounds_is_still_needed(monkeypatch):
    """A device that holds one shard computes it in a loop of one round. Of the algorithms, PQN's
    program shows it."""
    right = end("pqn", devices=1)
    monkeypatch.setattr(sums, "map_exact", lambda f, *trees, trips: plain_map(f, *trees))
    assert differing(right, end("pqn", devices=2)) != []


plain_map = functools.partial(sums.map_exact, trips=None)


@pytest.mark.slow
def test_the_order_of_sums_is_still_needed(monkeypatch):
    """That XLA would take one collective for another is seen in its programs alone: it takes
    unlucky threads, too."""

    config = algorithms.everything("impala", num_shards=2, devices=2)
    assert collectives.unordered(program_of(config)) == []
    monkeypatch.setattr(sums, "one_number_each", lambda tree: jnp.zeros(0))
    program = program_of(config)
    assert collectives.unordered(program) != []
    assert {*re.findall(r"channel_id=(\d+)", program)} == {"1"}  # all of them have one number


def test_the_wall_around_merging_is_still_needed():
    """Where a mean is computed just before, its product would become a fused multiply-add of the
    merging, which rounds otherwise than with a mean from memory. Which of the two XLA does depends
    on the program around it, as that of one agent or of several."""
    rng = np.random.default_rng(0)
    old = normalize.init(True, (1000,))
    old = old._replace(low=jnp.int32(12345), mean=jnp.float32(rng.normal(size=1000)))
    total, squares = rng.uniform(0, 1e4, (2, 1000)).astype(np.float32)
    count, share = jnp.int32(777), jnp.float32(1 / 777)

    def merged(merge, just_before):
        def moments(total, squares, share):
            return total * share, squares * share

        def fused(old, count, *given):
            return merge(old, count, *moments(*given))

        if just_before:
            return jax.jit(fused, compiler_options=AS_USERS)(old, count, total, squares, share)
        return jax.jit(merge, compiler_options=AS_USERS)(
            old, count, *jax.jit(moments)(total, squares, share)
        )

    assert differing(merged(normalize.merge, True), merged(normalize.merge, False)) == []
    assert differing(merged(normalize._merge, True), merged(normalize._merge, False)) != []


def test_computing_once_is_still_needed():
    """XLA computes a value anew in each of four programs that it makes of this one."""

    def floors(once):
        def f(x):
            y = once(jnp.floor(x))
            return jnp.sum(y * y), jnp.max(jnp.sin(y)), y[::-1] * y, jnp.cumsum(y)

        compiled = jax.jit(f, compiler_options=AS_USERS).lower(jnp.ones(1000)).compile()
        return compiled.as_text().count(" floor(")

    assert floors(rigid_body.once) == 1
    assert floors(lambda tree: tree) > 1
