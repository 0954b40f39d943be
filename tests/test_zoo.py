"""The policies in zoo/: what they score, what they are, and how much they weigh."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxrl_scale import evaluate, load, report
from jaxrl_scale.config import files
from jaxrl_scale.errors import RunError
from jaxrl_scale.records import checkpoint, digest

ROOT = Path(__file__).parent.parent
ZOO = ROOT / "zoo"
GOOD = {"cartpole": 490, "acrobot": -90, "mountain_car": -110, "pendulum": -200}
GOOD |= {"lunar_lander": 240}
"""A mean return in Gymnasium that a good policy has."""


def about(name):
    return json.loads((ZOO / name / "score.json").read_text())


@pytest.mark.parametrize("name", GOOD)
def test_a_policy_scores_in_gymnasium_what_it_is_said_to(name):
    said = about(name)["gymnasium"]
    assert said["mean"] > GOOD[name]
    if name == "lunar_lander":
        pytest.importorskip("Box2D")
    returns = load(ZOO / name).evaluate_in_gymnasium(24).returns
    low, high = said["ci95"]
    error = (high - low) / (2 * 1.96) * np.sqrt(said["episodes"] / returns.size)
    assert abs(returns.mean() - said["mean"]) <= 4 * error


def test_without_box2d_one_line_says_that_gymnasium_needs_it(monkeypatch):
    for module in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    with pytest.raises(RunError, match=r"^LunarLander-v3 in .* Box2D is not installed"):
        load(ZOO / "lunar_lander").make_in_gymnasium()


@pytest.mark.quickly
@pytest.mark.parametrize("name", ["mountain_car", "pendulum"])
def test_a_policy_scores_here_what_it_is_said_to(name):
    said = about(name)["jaxrl_scale"]
    returns = load(ZOO / name).evaluate(256).returns
    error = np.std(returns) / np.sqrt(returns.size)
    assert abs(returns.mean() - said["mean"]) <= 4 * error


@pytest.mark.parametrize("name", GOOD)
def test_a_policy_is_the_arrays_that_acting_needs_and_nothing_else(name):
    found = checkpoint.restore_some(ZOO / name / "checkpoints", lambda name: True, pytest.fail)
    _, arrays, _ = found
    assert digest.of_arrays(arrays) == about(name)["sha256"]
    used = ("shared/algo/params/", "shared/algo/observation/", "shared/iteration")
    assert all(array.startswith(used) for array in arrays)
    config = files.read_config(ZOO / name / "config.json")
    assert (config.env, config.seed) == (about(name)["env"], about(name)["seed"])
    written = [path for path in (ZOO / name).rglob("*") if path.is_file()]
    assert len(written) == 3
    assert sum(path.stat().st_size for path in written) < 60_000


def test_the_table_has_all_policies_with_their_scores():
    table = runpy.run_path(str(ZOO / "make.py"))["table"]()
    assert table in (ZOO / "README.md").read_text()
    assert {path.parent.name for path in ZOO.glob("*/score.json")} == set(GOOD)


def test_a_report_needs_the_metrics_that_a_policy_of_the_zoo_lacks(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert report.main(["zoo/cartpole"]) == 2
    assert capsys.readouterr().err == (
        "error: zoo/cartpole is a policy without the rest of its run, as those in zoo/ are, so it "
        "has no metrics\n"
    )


def test_the_command_plays_with_a_policy_of_the_zoo(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert evaluate.main(["zoo/cartpole", "--gymnasium", "--episodes=4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["per_agent"] == [500]
