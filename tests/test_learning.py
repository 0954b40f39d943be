"""Slow: whole configs, to their end. ``make test-slow``."""

from pathlib import Path

import numpy as np
import pytest
from running import differing, run, runner_of

from jaxrl_scale import config as cfg
from jaxrl_scale.evaluate import Evaluator, summarize

CONFIGS = Path(__file__).parent.parent / "configs"
NAMES = ("cartpole", "acrobot", "mountain_car", "pendulum", "lunar_lander")
NUM_SEEDS = {"lunar_lander": 8}
# Interquartile mean over 64 seeds (or so many) at least; no seed below the second number.
SCORES = {
    "cartpole": (495.0, 475.0),
    "acrobot": (-80.0, -100.0),
    "mountain_car": (-115.0, -130.0),
    "pendulum": (-200.0, -300.0),
    "lunar_lander": (265.0, 240.0),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_config_ends_bit_identical_on_1_2_4_and_8_devices(name):
    config = cfg.read_file(CONFIGS / f"{name}.py")
    reference, history = run(config.replace(devices=1))
    for devices in (2, 4, 8):
        state, other = run(config.replace(devices=devices))
        assert differing(reference, state) == [], f"{devices} devices"
        assert differing(history, other) == [], f"{devices} devices"


@pytest.mark.parametrize("name", NAMES)
def test_many_seeds_reach_the_score_and_none_fails(name):
    config = cfg.read_file(CONFIGS / f"{name}.py")
    config = config.replace(num_seeds=NUM_SEEDS.get(name, 64), devices=2)
    runner = runner_of(config)
    state = runner.init()
    for _ in range(config.num_iterations):
        state, *_ = runner.step(state)
    play = Evaluator(runner.env, runner.algo, runner.placement, 128, greedy=True)
    result = summarize(play(runner.fetch_actor(state), runner.seeds))
    print(name, result["iqm"], result["ci95"], np.min(result["per_seed"]))
    enough, failed = SCORES[name]
    assert result["iqm"] >= enough
    assert min(result["per_seed"]) >= failed
