"""The wandb sweeps: drawn as wandb draws, composed by wandb's own agent, run by the trainer."""

import json
import math
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from processes import QUICKLY
from wandb import wandb_agent

from jaxrl_scale.config import command_line, files
from jaxrl_scale.errors import RunError
from jaxrl_scale.records import rows as records

REPOSITORY = Path(__file__).parents[1]
SWEEPS = sorted((REPOSITORY / "configs" / "sweeps").glob("*.yaml"))
DRAWS = 50

every_sweep = pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def _in_a_sweep(tmp_path, monkeypatch):
    """The agent's environment, without the account of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    # The agent writes these two into its own environment.
    monkeypatch.setenv("WANDB_RUN_ID", "")
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", "")
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep1")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    # ${interpreter} is the `python` of the PATH.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(REPOSITORY)


def read(path):
    return yaml.safe_load(path.read_text())


def draw(parameter, chance):
    """One value of a sweep's parameter: https://docs.wandb.ai/models/sweeps/sweep-config-keys."""
    if "value" in parameter:
        return parameter["value"]
    if "values" in parameter:
        return chance.choice(parameter["values"])
    low, high = parameter["min"], parameter["max"]
    match parameter["distribution"]:
        case "int_uniform":
            return chance.randint(low, high)
        case "uniform":
            return chance.uniform(low, high)
        case "log_uniform_values":
            return math.exp(chance.uniform(math.log(low), math.log(high)))


def draw_all(sweep, chance):
    return {name: draw(parameter, chance) for name, parameter in sweep["parameters"].items()}


def extremes(sweep):
    """The drawings at the lower and at the upper end of every parameter."""
    for end, bound in ((0, "min"), (-1, "max")):
        yield {
            name: p["value"] if "value" in p else p["values"][end] if "values" in p else p[bound]
            for name, p in sweep["parameters"].items()
        }


def start(sweep, values):
    """The process that wandb's agent starts for ``values``."""
    agent = wandb_agent.Agent(api=None, queue=None, sweep_id="sweep1")
    agent._sweep_command = list(sweep["command"])
    args = {name: {"value": value} for name, value in values.items()}
    response = agent._process_command(
        {"type": "run", "run_id": "run1", "program": sweep["program"], "args": args}
    )
    assert "exception" not in response, response
    return agent._run_processes["run1"]


@pytest.fixture
def command(monkeypatch):
    """The command that wandb's agent composes, without the process."""
    monkeypatch.setattr(wandb_agent, "AgentProcess", lambda **kw: SimpleNamespace(**kw))
    return lambda sweep, values: start(sweep, values).command


@every_sweep
def test_the_sweep_says_what_wandb_needs_to_know(path):
    sweep = read(path)
    assert {"program", "method", "metric", "parameters"} <= set(sweep)
    assert sweep["method"] in ("bayes", "random", "grid")
    assert (REPOSITORY / sweep["program"]).is_file()
    for name, parameter in sweep["parameters"].items():
        keys = set(parameter)
        assert keys in ({"value"}, {"values"}, {"distribution", "min", "max"}), name
        assert "min" not in keys or parameter["min"] < parameter["max"], name
        # wandb takes 1e-3, which YAML reads as a text, for a text.
        numbers = [parameter[key] for key in keys & {"min", "max"}]
        assert all(isinstance(number, int | float) for number in numbers), name


@every_sweep
def test_the_metric_is_one_that_the_trainer_logs_and_is_maximized(path):
    metric = read(path)["metric"]
    tags = {tag: name for name, tag in records.TAGS.items()}
    assert tags[metric["name"]] in ("return", "return_100", "eval_return")
    assert metric["goal"] == "maximize"


@every_sweep
def test_the_file_shows_the_command_that_starts_it(path):
    assert f"wandb sweep {path.relative_to(REPOSITORY)}\n" in path.read_text()


@every_sweep
def test_the_agents_command_sets_just_what_was_drawn(path, command):
    sweep, chance = read(path), random.Random(0)
    base = files.flatten(files.read_file(REPOSITORY / f"configs/{path.stem}.py"))
    for values in [*extremes(sweep), *(draw_all(sweep, chance) for _ in range(DRAWS))]:
        composed = command(sweep, values)
        head, argv = composed[:4], composed[4:]
        assert head == ["/usr/bin/env", "python", "-m", "jaxrl_scale.train"]
        loaded, name, resume = command_line.load(argv)
        assert (name, resume) == (path.stem, None)
        assert files.flatten(loaded) == {**base, **values}


@every_sweep
def test_a_parameter_that_the_trainer_does_not_know_is_refused(path, command):
    sweep = read(path)
    values = draw_all(sweep, random.Random(0)) | {"algo.learning_rat": 1e-3}
    argv = command(sweep, values)[4:]
    with pytest.raises(RunError, match=r"did you mean --algo\.learning_rate\?"):
        command_line.load(argv)


@pytest.mark.parametrize(
    "path", [SWEEPS[0], *(pytest.param(p, marks=pytest.mark.slow) for p in SWEEPS[1:])]
)
def test_the_agent_runs_the_trainer_and_wandb_gets_the_metric(path, tmp_path, monkeypatch):
    for name, value in QUICKLY.items():
        monkeypatch.setenv(name, value)
    sweep, values = read(path), draw_all(read(path), random.Random(1))
    sweep["command"] += [  # short, but of 100 episodes, which return_100 waits for
        *("--iterations=2", "--num_seeds=1", "--devices=1", "--num_envs=64"),
        *("--rollout_length=512", "--algo.minibatch_size=2048", "--algo.epochs=1"),
        *("--eval_episodes=2", "--log_every=1", "--wandb=offline"),
        f"--run_dir={tmp_path / 'run'}",
    ]
    process = start(sweep, values)
    try:
        assert process.wait(timeout=300) == 0
    finally:
        process.kill()
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["algo"]["learning_rate"] == values["algo.learning_rate"]
    logged = b"".join(
        file.read_bytes() for file in (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    )
    assert sweep["metric"]["name"].encode() in logged
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert records.scalars(json.loads(rows[-1]))[sweep["metric"]["name"]] is not None
