"""The search for good options: what is drawn, what trains together, what is found."""

import csv
import itertools
import json
import math
import signal
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from processes import PATIENCE, SMALL, options, state, summary, well

from jaxrl_scale import sweep
from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config, check, files
from jaxrl_scale.search import plan, results, space
from jaxrl_scale.search.results import Outcome
from jaxrl_scale.search.space import Range

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.py"))


@pytest.fixture(autouse=True)
def all_devices():
    """Those of conftest.py, before a sweep in this process could ask for fewer."""
    assert len(jax.devices()) == 8


# --- what is drawn --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drawn", "parts", "values"),
    [
        (Range("x", "uniform", (2.0, 4.0)), (0, 0.5, 0.75), (2, 3, 3.5)),
        (Range("x", "log", (1e-4, 1e-2)), (0, 0.5, 0.75), (1e-4, 1e-3, 10**-2.5)),
        (Range("x", "choices", ("a", "b", "c")), (0, 0.3, 0.34, 0.99), ("a", "a", "b", "c")),
        # Each of three whole numbers has a third of the way.
        (Range("x", "uniform", (1, 3), whole=True), (0, 0.3, 0.34, 0.66, 0.67), (1, 1, 2, 2, 3)),
    ],
)
def test_a_range_by_hand(drawn, parts, values):
    found = [drawn.at(part) for part in parts]
    assert found == (list(values) if drawn.kind == "choices" else pytest.approx(list(values)))
    assert all(isinstance(x, int) for x in found) == drawn.whole


def test_ranges_stand_where_values_would():
    config, ranges = space.split(
        [
            *("--env", "Acrobot-v1", "--hidden_sizes=32,32;64,64", "--algo.epochs=uniform:1:4"),
            *("--algo.learning_rate", "log:1e-4:1e-2", "--algo.target_kl=none,0.02"),
            *("--total_steps=1e5", "--algo.lr_schedule=constant"),
        ]
    )
    assert (config.env, config.total_steps, config.algo.epochs) == ("Acrobot-v1", 100_000, 4)
    assert ranges == [
        Range("hidden_sizes", "choices", ((32, 32), (64, 64))),
        Range("algo.epochs", "uniform", (1, 4), whole=True),
        Range("algo.learning_rate", "log", (1e-4, 1e-2)),
        Range("algo.target_kl", "choices", (None, 0.02)),
    ]


def test_draws_fill_the_space():
    ranges = [Range("a", "log", (1e-3, 1e3)), Range("b", "choices", (1, 2, 3, 4))]
    for how, spread in (("sobol", 0), ("random", 20)):
        drawn = space.draw(ranges, 256, how, 0)
        tenths = [int((math.log10(x["a"]) + 3) / 6 * 8) for x in drawn]
        for each in (np.bincount(tenths), np.bincount([x["b"] for x in drawn])[1:]):
            assert np.abs(each - 256 / len(each)).max() <= spread
        assert drawn == space.draw(ranges, 256, how, 0)
        assert drawn != space.draw(ranges, 256, how, 1)
    grid = space.draw([Range("a", "choices", ("x", "y")), ranges[1]], 0, "grid", 0)
    assert grid == [{"a": a, "b": b} for a, b in itertools.product("xy", (1, 2, 3, 4))]


# --- who trains together --------------------------------------------------------------------


def test_what_differs_in_numbers_is_one_program_and_all_else_another():
    settings = [
        {"algo.learning_rate": rate, "hidden_sizes": sizes, "algo.target_kl": kl}
        for rate in (1e-3, 1e-2)
        for sizes in ((8,), (16,))
        for kl in (None, 0.1, 0.2)
    ]
    base = Config(num_envs=64, rollout_length=32, algo=ppo.Config(minibatch_size=512))
    configs = plan.configs_of(base, settings)
    whole = plan.divide(configs, 3, None)
    assert whole == [[0, 6], [1, 2, 7, 8], [3, 9], [4, 5, 10, 11]]
    small = plan.divide(configs, 3, 11)  # three settings, of which each has three agents
    assert small == [[0, 6], [1, 2, 7], [8], [3, 9], [4, 5, 10], [11]]

    chunk = plan.chunk_of("some", configs, [1, 2, 8], range(5, 7))
    assert chunk.settings == (1, 1, 2, 2, 8, 8)
    assert chunk.agents.seeds.tolist() == [5, 6, 5, 6, 5, 6]
    np.testing.assert_array_equal(
        chunk.agents.options.target_kl, np.float32([0.1, 0.1] + [0.2] * 4)
    )
    np.testing.assert_allclose(chunk.agents.options.learning_rate, [1e-3] * 4 + [1e-2] * 2)
    assert (chunk.config.num_seeds, chunk.config.hidden_sizes) == (6, (8,))
    check(chunk.config)


# --- what is found --------------------------------------------------------------------------


def test_settings_are_ranked_by_their_agents_and_those_that_failed_come_last():
    scores = {0: (1.0, 2.0), 1: (5.0, 6.0), 2: (9.0, None), 3: (None, None), 4: (8.0, -8.0)}
    found = [
        Outcome(setting, seed, score, [], "chunk0", 0)
        for setting, both in scores.items()
        for seed, score in enumerate(both)
    ]
    ranks = results.ranked(found)
    assert [one.setting for one in ranks] == [1, 0, 4, 2, 3]
    assert [one.failed for one in ranks] == [0, 0, 0, 1, 2]
    assert [one.iqm for one in ranks] == [5.5, 1.5, 0.0, 9.0, None]


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ((9.0, 9.5, 9.2), "it holds up."),
        ((9.0, -9.0, 0.0), "it does not hold up."),
        ((9.0, None, 9.0), "an agent failed, so that the two cannot be compared."),
    ],
)
def test_the_best_setting_is_judged_on_fresh_seeds(tmp_path, capsys, ours, said):
    base = Config(algo=ppo.Config(gamma=0.9))
    ranges = [Range("algo.learning_rate", "log", (1e-4, 1e-2))]
    settings = [{"algo.learning_rate": rate} for rate in (1e-3, 2e-3)]
    curve = [(100.0, None), (200.0, 3.0)]
    found = [Outcome(k, 0, float(k), curve, "chunk0", k) for k in (0, 1)]
    fresh = [
        Outcome(k, 1 + seed, score, curve, f"fresh{k}", seed)
        for k, scores in enumerate(((0.1, 0.2, 0.3), ours))
        for seed, score in enumerate(scores)
    ]
    sweep.write_results(tmp_path, base, ranges, settings, found, fresh)
    out = capsys.readouterr().out
    assert said in out
    assert "The best of 2 settings: --algo.learning_rate=0.002\n" in out
    best = files.read_file(tmp_path / "best.py")
    assert best == base.replace(algo=ppo.Config(gamma=0.9, learning_rate=2e-3))
    assert said in (tmp_path / "best.py").read_text()
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_is_written_as_a_file_that_is_read_back(path, tmp_path):
    config = files.read_file(path)
    again = tmp_path / "again.py"
    again.write_text(files.to_python(config, "Some words."))
    assert files.read_file(again) == config


# --- for real -------------------------------------------------------------------------------

ELSE = ("eval_every", "devices", "algo.minibatch_size", "algo.epochs")
TINY = {k: v for k, v in SMALL.items() if k not in ELSE}
TINY |= {"algo": "a2c", "iterations": 6, "eval_episodes": 4, "log_every": 2, "checkpoint_every": 1}
RANGES = {"algo.learning_rate": "log:1e-3:1e-1", "algo.gamma": "0.9,0.99"}


@pytest.fixture(scope="module")
def command(world):
    """A sweep of four settings with two seeds, in two programs of two settings each, for A2C, which
    compiles fastest."""

    def arguments(folder, **changes):
        own = {"agents": 8, "seeds": 2, "chunk": 5, "fresh_seeds": 4, "run_dir": folder}
        own |= {"compilation_cache": world.cache}
        return options(TINY | RANGES | own | changes)

    return arguments


@pytest.fixture(scope="module")
def searched(world, command):
    """The folder of a sweep that nothing interrupted, and what it printed."""
    folder = world.folder / "searched"
    return folder, well(world.run(*command(folder), module="jaxrl_scale.sweep"))


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_an_agent_of_a_sweep_is_the_run_of_its_setting_and_seed(world, searched):
    folder, done = searched
    agents = table(folder / "agents.csv")
    assert len(agents) == 8
    assert {row["run"] for row in agents} == {"chunk0", "chunk1"}
    row = next(row for row in agents if (row["setting"], row["seed"]) == ("3", "1"))
    own = {"seed": row["seed"], "compilation_cache": world.cache, "run_dir": world.folder / "one"}
    well(world.run(*options(TINY | {name: row[name] for name in RANGES} | own)))
    (_, single), (_, several) = state(world.folder / "one"), state(folder / row["run"])
    agent = int(row["agent"])
    assert all((x[0] == several[name][agent]).all() for name, x in single.items())
    assert summary(world.folder / "one")["evaluation"]["mean"] == float(row["eval_return"])

    settings = json.loads((folder / "sweep.json").read_text())["settings"]
    assert len({row["algo.learning_rate"] for row in agents}) == 4
    assert [float(agents[2 * k]["algo.gamma"]) for k in range(4)] == [
        setting["algo.gamma"] for setting in settings
    ]
    curves = table(folder / "curves.csv")
    assert len(curves) == 8 * 3
    assert done.out.count(" is done\n") == 4  # two chunks, and both configs with fresh seeds
    best = table(folder / "settings.csv")[0]
    assert f"--algo.learning_rate={best['algo.learning_rate']} " in done.out
    assert files.read_file(folder / "best.py").algo.gamma == float(best["algo.gamma"])
    assert (folder / "fresh1" / "summary.json").exists()


def test_a_sweep_that_was_killed_goes_on_and_ends_with_the_same_tables(world, command, searched):
    """A part of it was done by a task of its own, and another was killed at its first checkpoint.
    The same command with another --chunk keeps to what trains side by side."""
    folder = world.folder / "killed"
    well(world.run(*command(folder), "--task=1", module="jaxrl_scale.sweep"))
    first = (folder / "chunk1" / "summary.json").stat().st_mtime_ns
    with world.start(*command(folder), module="jaxrl_scale.sweep") as process:
        limit = time.time() + PATIENCE
        while not list((folder / "chunk0" / "checkpoints").glob("[0-9]")):
            assert time.time() < limit
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not (folder / "chunk0" / "summary.json").exists()
    well(world.run(*command(folder, chunk=2), module="jaxrl_scale.sweep"))
    assert (folder / "chunk1" / "summary.json").stat().st_mtime_ns == first
    for name in ("agents.csv", "settings.csv", "curves.csv", "best.py"):
        assert (folder / name).read_bytes() == (searched[0] / name).read_bytes(), name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "there is nothing to search; give a range, such as --algo.learning_rate=log:1e-4"),
        ({"algo.gama": "0.9,0.99"}, "unknown option --algo.gama; did you mean --algo.gamma?"),
        ({"algo.gamma": "uniform:0.9:2"}, "algo.gamma=2.0 should be at most 1"),
        ({"algo.gamma": "uniform:0.9"}, "--algo.gamma=uniform:0.9 should be uniform:LOW:HIGH"),
        ({"algo.gamma": "uniform:0.9:0.9"}, "--algo.gamma=uniform:0.9:0.9 is empty: 0.9 should"),
        ({"algo.gamma": "log:0:0.9"}, "--algo.gamma=log:0:0.9 should begin above 0"),
        ({"algo.gamma": "0.9,0.9"}, "--algo.gamma=0.9,0.9 holds a value twice"),
        ({"algo.lr_schedule": "log:1:2"}, "--algo.lr_schedule=1 should be one of constant,"),
        ({"seed": "1,2"}, "--seed cannot vary in a sweep; the algorithm's options can, and "),
        ({"algo.gamma": "0.9,1", "agents": 7}, "--agents=7 does not divide by --seeds=4; try"),
        ({"algo.gamma": "0.9,1", "chunk": 3}, "the 4 agents of a setting train side by side,"),
        ({"algo.gamma": "uniform:0:1", "draw": "grid"}, "--draw=grid takes choices only, such as"),
        (
            {"algo.minibatch_size": "16,102"},
            "with --algo.minibatch_size=102: algo.minibatch_size=102 does not divide by num_shards",
        ),
        ({"algo.gamma": "0.9,1", "resume": "x"}, "a sweep has no --resume; the same command with"),
        ({"algo.gamma": "0.9,1", "task": 1}, "--task=1 should be below 1, the chunks"),
    ],
)
def test_mistakes_are_told_in_one_line(monkeypatch, capsys, tmp_path, changes, said):
    monkeypatch.chdir(tmp_path)
    given = {"num_envs": 16, "num_shards": 4, "rollout_length": 128}
    assert sweep.main(options({"agents": 16} | given | changes)) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"error: {said}")
    assert err.count("\n") == 1
    assert out == ""


def test_a_folder_of_another_sweep_is_left_alone(world, command, searched, capsys):
    folder, _ = searched
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    for name, changes in (
        ("settings", {"algo.gamma": "0.9,0.95"}),
        ("config", {"rollout_length": 32}),
        ("seeds", {"seeds": 4, "agents": 16}),
    ):
        assert sweep.main(command(folder, **changes)) == 2
        err = capsys.readouterr().err
        assert f"holds a sweep with another {name}; choose another --run_dir, or repeat" in err
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()} == before
