"""Slow: whole configs, to their end. ``make test-slow``."""

from pathlib import Path

import numpy as np
import pytest
from running import differing, run, runner_of

from jaxrl_scale.config import files
from jaxrl_scale.loop.evaluator import Evaluator
from jaxrl_scale.records.statistics import summarize

CONFIGS = Path(__file__).parent.parent / "configs"
PPO = ("cartpole", "acrobot", "mountain_car", "pendulum", "lunar_lander")
# How many seeds; their interquartile mean at least; and no seed below the last number. A2C's, DQN's
# and Ape-X's LunarLander are left to benchmarks/algorithms.py: 20 to 40 minutes each.
SCORES = {
    "cartpole": (64, 495.0, 475.0),
    "acrobot": (64, -80.0, -100.0),
    "mountain_car": (64, -115.0, -130.0),
    "pendulum": (64, -200.0, -300.0),
    "lunar_lander": (8, 265.0, 240.0),
    "a2c_cartpole": (64, 495.0, 475.0),
    "a2c_acrobot": (16, -90.0, -100.0),
    "a2c_mountain_car": (8, -120.0, -140.0),
    "impala_cartpole": (64, 495.0, 475.0),
    "impala_acrobot": (64, -90.0, -100.0),
    "impala_mountain_car": (16, -120.0, -140.0),
    "impala_lunar_lander": (8, 265.0, 240.0),
    "pqn_cartpole": (64, 495.0, 475.0),
    "pqn_acrobot": (16, -85.0, -100.0),
    "pqn_mountain_car": (8, -110.0, -140.0),
    "pqn_lunar_lander": (8, 265.0, 240.0),
    "dqn_cartpole": (16, 490.0, 475.0),
    "dqn_acrobot": (4, -85.0, -100.0),
    "dqn_mountain_car": (4, -110.0, -140.0),
    "apex_cartpole": (16, 495.0, 475.0),
    "apex_acrobot": (4, -80.0, -100.0),
    "apex_mountain_car": (4, -110.0, -140.0),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("name", [*PPO, *(n for n in SCORES if n.endswith("_cartpole"))])
def test_a_whole_config_ends_bit_identical_on_1_2_4_and_8_devices(name):
    config = files.read_file(CONFIGS / f"{name}.py")
    reference, history = run(config.replace(devices=1))
    for devices in (2, 4, 8):
        state, other = run(config.replace(devices=devices))
        assert differing(reference, state) == [], f"{devices} devices"
        assert differing(history, other) == [], f"{devices} devices"


@pytest.mark.parametrize("name", SCORES)
def test_many_seeds_reach_the_score_and_none_fails(name):
    config = files.read_file(CONFIGS / f"{name}.py")
    num_seeds, enough, failed = SCORES[name]
    config = config.replace(num_seeds=num_seeds, devices=2)
    runner = runner_of(config)
    state = runner.init()
    for _ in range(config.num_iterations):
        state, *_ = runner.step(state)
    play = Evaluator(runner.env, runner.algo, runner.placement, 128, greedy=True)
    result = summarize(play(runner.fetch_actor(state), runner.seeds))
    print(name, result["iqm"], result["ci95"], np.min(result["per_seed"]))
    assert result["iqm"] >= enough
    assert min(result["per_seed"]) >= failed
