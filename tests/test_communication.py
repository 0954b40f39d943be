"""benchmarks/communication.py: its arithmetic by hand, its counter on a real program."""

import importlib.util
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_scale import envs
from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config
from jaxrl_scale.distributed import AXIS, device_pool, place
from jaxrl_scale.runner import Runner

FILE = Path(__file__).parents[1] / "benchmarks" / "communication.py"
spec = importlib.util.spec_from_file_location("communication", FILE)
model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(model)

LINK = model.Link("slow", round=1.0, byte=0.01, add=0.02, start=10.0)
STEP = model.Step("toy", fixed=2.0, split=80.0, collectives=((100, 3), (200, 1)), most=8)


@pytest.mark.parametrize("way", [model.ring_gather, model.exchange, model.ring_reduce, model.free])
def test_one_device_sums_for_nothing(way):
    assert way(1, 100, LINK) == 0


def test_ways_by_hand():
    # A round with 100 bytes: 1 s, 1 s for the bytes, 2 s to add them.
    assert model.ring_gather(8, 100, LINK) == pytest.approx(10 + 7 * 4)
    assert model.exchange(8, 100, LINK) == pytest.approx(10 + 3 * 4)
    # 14 rounds of 12.5 bytes, which are added in seven of them.
    assert model.ring_reduce(8, 100, LINK) == pytest.approx(10 + 14 * 1.125 + 7 * 0.25)


def test_two_devices_are_one_round_either_way():
    assert model.ring_gather(2, 100, LINK) == model.exchange(2, 100, LINK) == pytest.approx(14)


def test_iterations_by_hand():
    # Four devices: 3 × (10 + 3 × 4) + (10 + 3 × 7)
    assert model.communication(STEP, 4, LINK) == pytest.approx(97)
    assert model.strong(STEP, 4, LINK) == pytest.approx(2 + 20 + 97)
    assert model.weak(STEP, 4, LINK) == pytest.approx(82 + 97)
    assert model.strong(STEP, 4, LINK, on_a_core=2) == pytest.approx(44 + 97)
    assert model.strong(STEP, 1, LINK) == model.weak(STEP, 1, LINK) == 82


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
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %w = f32[4] while(%p), body=%body.1, backend_config={"known_trip_count":{"n":"6"}}
  %u = f32[4] while(%w), body=%body.1
  ROOT %r = f32[4] all-reduce(%u), to_apply=%add
}
"""
    assert model.collectives(text, 2) == Counter({("all-gather", 16): 7, ("all-reduce", 16): 1})


def test_a_gradient_step_is_one_collective():
    """``epochs`` × minibatches of them, each with the gradient and the five metrics of the loss;
    eight others an iteration: moments of the advantages, of the values' error, episodes."""
    config = Config(
        env="CartPole-v1",
        num_envs=8,
        num_shards=4,
        rollout_length=16,
        hidden_sizes=(8,),
        algo=ppo.Config(minibatch_size=32, epochs=3),
    )
    runner = Runner(config, envs.make(config.env), place(config, jax.devices()[:2]))
    runner.compile()
    found = model.collectives(runner._compiled_step.as_text(), 2)
    parameters = (4 * 8 + 8 + 8 * 2 + 2) + (4 * 8 + 8 + 8 + 1)  # policy and value
    gradient = ("all-gather", 4 * (parameters + 6))
    assert found.pop(gradient) == 3 * (8 * 16 // 32)
    assert found.total() == 8


def test_exchange_gives_the_bits_of_the_fixed_order():
    n = 8
    x = np.random.default_rng(0).normal(size=(n, 1001)).astype(np.float32)
    pool = device_pool(num_shards=n, num_devices=n, exact=True)
    ways = (lambda x: pool.sum(x[None]), lambda x: model.exchanged(x, n))
    tree, swapped = (np.asarray(jax.pmap(way, axis_name=AXIS)(jnp.asarray(x))) for way in ways)
    np.testing.assert_array_equal(tree, swapped)


def test_tables_and_plot(tmp_path):
    assert "| 512 |" in model.tables()
    model.plot(tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size < 150_000
