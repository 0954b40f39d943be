"""Random small loops, as an environment may have them, have the same bits on 1 and on 8 devices.

XLA by itself makes one kernel of a loop that touches less than 1 KB, in which LLVM fuses operations
as the memory of the program happens to be assigned: see docs/exactness.md. With jaxlib 0.10.2 five
of the random loops 0 to 199 then had other bits; they are tried here.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from running import AS_USERS

from jaxrl_scale.envs.rigid_body import once
from jaxrl_scale.parallel.sums import AXIS, device_pool, map_exact

OPERATIONS = (
    lambda a, b, c: jnp.clip(a * b + c, -3, 3),
    lambda a, b, c: a * b - c * a,
    lambda a, b, c: a + b * 0.3,
    lambda a, b, c: jnp.where(a > b, c * a, b),
    lambda a, b, c: jnp.clip(a * b, -1, 1) + c * c,
    lambda a, b, c: a / (1 + b * b),
    lambda a, b, c: jnp.clip(jnp.sin(a) * b + c, -3, 3),
    lambda a, b, c: a * b,
)


def random_shard(rng, lanes):
    """``state -> (state, history)``: five steps of ``lanes`` environments, in each of which a loop
    of a few rounds changes the numbers of the state, until none of them moves any more."""
    width, rounds, count = (int(rng.integers(*ends)) for ends in ((3, 14), (2, 6), (10, 60)))
    plan = [
        (OPERATIONS[rng.integers(len(OPERATIONS))], rng.integers(0, width + k, 3), rng.random())
        for k in range(count)
    ]
    results = rng.integers(width, width + count, width)

    def one_round(carry):
        number, active, state = carry
        values = list(state)
        for operation, of, draw in plan:
            value = operation(*(values[k] for k in of))
            values.append(once(value) if draw < 0.35 else value)
        new = tuple(
            jnp.where(active, jnp.tanh(values[k]), x) for k, x in zip(results, state, strict=True)
        )
        return number + 1, active & (jnp.abs(new[0]) > 0.05), new

    def step(state, _):
        *_, state = jax.lax.while_loop(
            lambda carry: (carry[0] < rounds) & carry[1].any(),
            one_round,
            (jnp.int32(0), jnp.ones(lanes, bool), state),
        )
        return state, state[0] * state[1] + state[2]

    def shard(*state):
        return jax.lax.scan(step, state, None, length=5)

    return shard, [rng.normal(size=(8, lanes)).astype(np.float32) for _ in range(width)]


def bits(seed, num_devices):
    """What eight shards of the loop of this number compute on so many devices, ``[8, ...]``."""
    rng = np.random.default_rng(seed)
    shard, data = random_shard(rng, int(rng.integers(1, 8)))
    pool = device_pool(8, num_devices, True)
    mapped = jax.pmap(
        lambda *state: pool.map(shard, *state), axis_name=AXIS, devices=jax.devices()[:num_devices]
    )
    placed = [x.reshape(num_devices, -1, x.shape[1]) for x in data]
    out = mapped.lower(*placed).compile(compiler_options=AS_USERS)(*placed)
    return [np.asarray(x).reshape(8, *x.shape[2:]) for x in jax.tree.leaves(out)]


@pytest.mark.parametrize("seed", [35, 65, 74, 113, 188])
def test_a_small_loop_has_the_same_bits_on_one_and_on_eight_devices(seed):
    for one, eight in zip(bits(seed, 1), bits(seed, 8), strict=True):
        np.testing.assert_array_equal(one, eight)


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("trips", [None, 1])
def test_a_loop_over_shards_gives_each_its_slices_with_axes_of_any_length(shards, trips):
    arrays = [
        np.arange(shards * math.prod(shape)).reshape(shards, *shape)
        for shape in ((), (1,), (3, 1), (1, 2, 1), (0,), (1, 0, 2))
    ]

    def doubled(*slices):
        assert [x.shape for x in slices] == [x.shape[1:] for x in arrays]
        return [2 * x for x in slices]

    loop = jax.jit(lambda trips, *arrays: map_exact(doubled, *arrays, trips=trips))
    for found, x in zip(loop(trips, *arrays), arrays, strict=True):
        np.testing.assert_array_equal(found, 2 * x)
