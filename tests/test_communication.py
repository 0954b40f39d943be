"""benchmarks/communication.py: its arithmetic by hand, its counter on a real program."""

import importlib.util
from collections import Counter
from fractions import Fraction
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl_scale import envs
from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config
from jaxrl_scale.loop.prepare import jax_settings_restored
from jaxrl_scale.loop.runner import MOST_AT_ONCE, Runner
from jaxrl_scale.parallel.backend import place
from jaxrl_scale.parallel.sums import AXIS, device_pool, local_pool, tree_sum

FILE = Path(__file__).parents[1] / "benchmarks" / "communication.py"
spec = importlib.util.spec_from_file_location("communication", FILE)
model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(model)

LINK = model.Link("slow", round=1.0, byte=0.02, start=10.0)
STEP = model.Step("toy", fixed=2.0, split=80.0, sums=((100, 3), (200, 1)), most=8)


@pytest.mark.parametrize("way", [model.exchange, model.ring_gather])
def test_one_device_sums_for_nothing(way):
    assert way(1, 100, LINK) == 0


def test_ways_by_hand():
    # A round with 100 bytes: 1 s, and 2 s for the bytes.
    assert model.exchange(8, 100, LINK) == pytest.approx(3 * (10 + 3))
    assert model.ring_gather(8, 100, LINK) == pytest.approx(10 + 7 * 3)
    # 14 rounds of 12.5 bytes.


def test_two_devices_are_one_round_either_way():
    assert model.ring_gather(2, 100, LINK) == model.exchange(2, 100, LINK) == pytest.approx(13)


def test_iterations_by_hand():
    paid = 78 + 30  # four devices: 3 × 2 × (10 + 3) + 2 × (10 + 5)
    assert model.communication(STEP, 4, LINK) == pytest.approx(paid)
    assert model.strong(STEP, 4, LINK) == pytest.approx(2 + 20 + paid)
    assert model.weak(STEP, 4, LINK) == pytest.approx(82 + paid)
    assert model.strong(STEP, 4, LINK, on_a_core=2) == pytest.approx(44 + paid)
    assert model.strong(STEP, 1, LINK) == model.weak(STEP, 1, LINK) == 82
    assert model.communication(STEP, 512, model.NOTHING) == 0


def test_fit_finds_the_line():
    latency, byte = model.fit([1e3, 1e4, 1e6], [2 + 3e-6 * size for size in (1e3, 1e4, 1e6)])
    assert latency == pytest.approx(2)
    assert byte == pytest.approx(3e-6)


def test_bytes_of_shapes():
    assert model._bytes("f32[2,217]{1,0}") == 1736
    assert model._bytes("(s32[], pred[3,5]{1,0}, f64[2])") == 4 + 15 + 16


def test_collectives_of_a_program_text():
    text = """\
%body.1 (p: f32[4]) -> f32[4] {
  %g = f32[2,4]{1,0} all-gather(%p), replica_groups={{0,1}}
  %c = f32[5]{0} collective-permute(%q), source_target_pairs={{0,1},{1,0}}
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %w = f32[4] while(%p), body=%body.1, backend_config={"known_trip_count":{"n":"6"}}
  %u = f32[4] while(%w), body=%body.1
  ROOT %r = f32[4] all-reduce(%u), to_apply=%add
}
"""
    expected = {("all-gather", 16): 7, ("collective-permute", 20): 7, ("all-reduce", 16): 1}
    assert model.collectives(text, 2) == Counter(expected)


@pytest.mark.quickly
@pytest.mark.parametrize("normalize_observations", [False, True])
@pytest.mark.parametrize(("devices", "rounds"), [(2, 1), (4, 2)])
def test_a_gradient_step_is_one_collective_a_round(devices, rounds, normalize_observations):
    """``epochs`` × minibatches of them, each with the gradient, the seven sums of the loss, and one
    number of each array that it comes after (mean and scale of advantages, explained variance);
    three others: two for the moments of advantages, targets and observations, and the episodes.

    The episodes of all iterations that a call may make are added together: two sums of float32, and
    two of int32, which travel as two numbers each."""
    config = Config(
        env="CartPole-v1",
        num_envs=8,
        num_shards=4,
        rollout_length=16,
        hidden_sizes=(8,),
        algo=ppo.Config(minibatch_size=32, epochs=3, normalize_observations=normalize_observations),
    )
    runner = Runner(config, envs.make(config.env), place(config, jax.devices()[:devices]))
    runner.compile(fresh=False)
    found = model.collectives(runner._compiled_steps.as_text(), devices)
    assert {operation for operation, _ in found} == {"collective-permute"}
    parameters = (4 * 8 + 8 + 8 * 2 + 2) + (4 * 8 + 8 + 8 + 1)  # policy and value
    sums = 7  # of the loss and its parts, and the number of valid samples
    gradient = ("collective-permute", 4 * (parameters + sums + 3))
    assert found.pop(gradient) == rounds * 3 * (8 * 16 // 32)
    assert found.total() == rounds * 3
    episodes = 4 * MOST_AT_ONCE * (2 + 2 * 2)
    assert found["collective-permute", episodes] == rounds


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_the_exchange_gives_the_bits_of_the_fixed_order(devices):
    shards, rng = 16, np.random.default_rng(0)
    x = rng.normal(size=(shards, 1001)) * 10 ** rng.uniform(-3, 3, (shards, 1))
    x = x.astype(np.float32)
    one_after_the_other = np.add.accumulate(x, 0)[-1]
    alone = np.asarray(jax.jit(local_pool(shards).sum)(x))
    np.testing.assert_array_equal(alone, tree_sum(x))
    assert (alone != one_after_the_other).any()  # so that the order shows

    pool = device_pool(shards, devices, exact=True)
    parts = x.reshape(devices, shards // devices, -1)
    swapped = np.asarray(jax.pmap(pool.sum, axis_name=AXIS)(parts))
    np.testing.assert_array_equal(swapped, np.broadcast_to(alone, swapped.shape))


@pytest.mark.quickly
def test_iterations_are_timed_at_a_share_of_the_work(tmp_path):
    config = tmp_path / "toy.py"
    config.write_text("""
from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config

def get_config():
    return Config(num_envs=16, num_shards=8, rollout_length=8, hidden_sizes=(8,),
                  algo=ppo.Config(minibatch_size=32, epochs=1))
""")
    with jax_settings_restored():
        times = model.iteration(str(config), Fraction(1, 2), seconds=0.01)
    assert len(times) >= 8
    assert min(times) > 0


def test_what_was_measured_is_printed_as_constants():
    seconds = {
        "1 processes, 1": [2.0, 9.0],
        "1 processes, 1/8": [0.5, 9.0],
        "2 processes, 1": [1.23456, 9.0],
        "2 processes, 2": [2.5, 9.0],
    }
    config = {"seconds": seconds, "fixed": 0.25, "split": 1.75}
    tables = {2: {"sum": {"fit": [1e-4, 2e-9]}, "psum": {"fit": [5.0, 5.0]}}}
    constants: dict = {}
    exec(model.entries({"collectives": tables, "configs": {"configs/toy.py": config}}), constants)
    assert constants["SUMS"] == {2: (1e-4, 2e-9)}
    assert constants["WORK"] == {"toy": (0.25, 1.75)}
    assert constants["POINTS"] == {"toy": {1: (2.0, 2.0), 2: (1.23, 2.5)}}
    assert "WORK" not in model.entries({"collectives": tables, "configs": {}})


def test_tables_and_plot(tmp_path):
    assert "| 512 |" in model.tables()
    model.plot(tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size < 150_000
