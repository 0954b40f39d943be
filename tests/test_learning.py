"""Slow: whole configs, to their end. ``make test-slow``."""

from pathlib import Path

import jax
import numpy as np
import pytest
from running import differing, forget_programs, run, runner_of
from targets import TARGETS, WITH_JAX_0_11

from jaxrl_scale.config import files
from jaxrl_scale.loop.evaluator import Evaluator
from jaxrl_scale.records.statistics import summarize

CONFIGS = Path(__file__).parent.parent / "configs"
PPO = ("cartpole", "acrobot", "mountain_car", "pendulum", "lunar_lander")
ON_TWO_CORES = [name for name, target in TARGETS.items() if target.minutes <= 15]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True)
def forget_programs_of_each_test():
    """The runners of fifteen of these tests are more than a process may have."""
    yield
    forget_programs()


@pytest.mark.parametrize("name", [*PPO, *(n for n in TARGETS if n.endswith("_cartpole"))])
def test_a_whole_config_ends_bit_identical_on_1_2_4_and_8_devices(name):
    config = files.read_file(CONFIGS / f"{name}.py")
    reference, history = run(config.replace(devices=1))
    for devices in (2, 4, 8):
        state, other = run(config.replace(devices=devices))
        assert differing(reference, state) == [], f"{devices} devices"
        assert differing(history, other) == [], f"{devices} devices"


@pytest.mark.parametrize("name", ON_TWO_CORES)
def test_many_seeds_reach_the_score_and_no_more_fail_than_are_known_to(name):
    config = files.read_file(CONFIGS / f"{name}.py")
    target = TARGETS[name]
    config = config.replace(num_seeds=target.seeds, devices=2)
    runner = runner_of(config)
    state = runner.init()
    for _ in range(config.num_iterations):
        state, _ = runner.step(state)
    play = Evaluator(runner.env, runner.algo, runner.placement, 128, greedy=True)
    result = summarize(play(runner.fetch_actor(state), runner.agents.seeds).returns)
    print(name, result["iqm"], result["ci95"], np.min(result["per_agent"]))
    assert result["iqm"] >= target.iqm
    newer = WITH_JAX_0_11 if jax.__version_info__ >= (0, 11) else {}
    failures = newer.get(name, target.failures)
    assert sum(x < target.target for x in result["per_agent"]) <= failures
