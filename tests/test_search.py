"""The search for good options: what is drawn, what trains together, what is found."""

import csv
import dataclasses
import importlib.util
import itertools
import json
import math
import re
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import algorithms
import jax
import numpy as np
import pytest
from processes import PATIENCE, SMALL_A2C, assert_same_bits, ended, options, state, summary, well
from running import differing, runner_of, steps

from jaxrl_scale import envs, sweep
from jaxrl_scale.algos import a2c, ppo
from jaxrl_scale.config import Config, check, files
from jaxrl_scale.errors import NOT_FINITE, RunError, how_many
from jaxrl_scale.figures.plot_style import new_figure
from jaxrl_scale.loop import prepare
from jaxrl_scale.loop.make import make_runner
from jaxrl_scale.loop.stop import StopRequest
from jaxrl_scale.parallel import backend
from jaxrl_scale.parallel.machine import free_port
from jaxrl_scale.parallel.peers import Peers
from jaxrl_scale.records.checkpoint import restore
from jaxrl_scale.records.run_directory import write_json
from jaxrl_scale.search import (
    conclusion,
    model,
    orders,
    plan,
    plots,
    population,
    results,
    rungs,
    space,
    stages,
    sweep_file,
)
from jaxrl_scale.search.orders import Order
from jaxrl_scale.search.page import page
from jaxrl_scale.search.results import Outcome
from jaxrl_scale.search.schedulers import Trained, train_history, train_population
from jaxrl_scale.search.space import Range

HAS_OPTUNA, HAS_PYARROW = (
    importlib.util.find_spec(name) is not None for name in ("optuna", "pyarrow")
)
needs_optuna = pytest.mark.skipif(
    not HAS_OPTUNA, reason="Optuna is not installed (make install EXTRA=search)"
)

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.py"))


def asked(*given):
    """The sweep that these arguments ask for."""
    return sweep._asked(*sweep._parser().parse_known_args(given))


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


def test_an_option_has_a_range_or_a_value():
    for argv in (
        ["--algo.gamma=0.9,1", "--algo.gamma=1"],
        ["--algo.gamma=1", "--algo.gamma=0.9,1"],
    ):
        with pytest.raises(RunError, match="gamma has a range and a value; give one"):
            space.split(["--config=none", *argv])


def test_ranges_stand_where_values_would():
    config, ranges = space.split(
        [
            *(
                "--config=none",
                "--env",
                "Acrobot-v1",
                "--hidden_sizes=32,32;64,64",
                "--algo.epochs=uniform:1:4",
            ),
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


@pytest.mark.parametrize(
    ("one", "value", "part"),
    [
        (Range("x", "uniform", (2, 4)), 3.5, 0.75),
        (Range("x", "log", (1e-4, 1e-2)), 1e-3, 0.5),
        (Range("x", "choices", (None, "b", "c", "d")), None, 0.125),
    ],
)
def test_where_a_value_lies_in_its_range(one, value, part):
    assert one.part(value) == pytest.approx(part)


def write_sweep(folder, returned):
    path = folder / "mine.py"
    path.write_text(f"def get_sweep():\n    return {returned}\n")
    return path


def test_a_file_says_what_the_command_line_does_not(tmp_path):
    path = write_sweep(
        tmp_path,
        {
            **{"env": "Acrobot-v1", "agents": 8, "normalize": None, "draw_seed": 200_000},
            **{"algo.gamma": "uniform:0.9:1", "algo.target_kl": [None, 0.02]},
            "hidden_sizes": [(32, 32), (64,)],
        },
    )
    said = space.with_file(["--agents", "16", "--sweep", str(path), "--algo.gamma=0.9"])
    assert said == [
        *("--env=Acrobot-v1", "--normalize=none", "--draw_seed=200_000"),
        *("--algo.target_kl=none,0.02", "--hidden_sizes=32,32;64"),
        *("--agents=16", "--algo.gamma=0.9"),
    ]
    assert sweep._parser().parse_known_args(said)[0].draw_seed == 200_000
    assert space.with_file(["--agents", "16"]) == ["--agents=16"]
    path = write_sweep(tmp_path, {"sweep": "other.py", "algo.gamma": "0.9,1"})
    with pytest.raises(RunError, match=r"mine\.py names another one, sweep='other\.py'; a"):
        space.with_file([f"--sweep={path}"])


SHIPPED = sorted((Path(__file__).parents[1] / "configs" / "sweeps").glob("*.py"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_sweep_is_one(path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    args, rest = sweep._parser().parse_known_args(space.with_file([f"--sweep={path}"]))
    base, ranges = space.split(rest)
    configs = plan.configs_of(base, sweep._settings(args, ranges))
    assert all(rungs.iterations(each, args.rungs, args.factor) for each in configs)
    assert f"--sweep=configs/sweeps/{path.name}" in path.read_text()


def test_a_setting_is_read_back_from_its_texts():
    config, ranges = space.split(
        [
            *("--hidden_sizes=32,32;64", "--algo.target_kl=none,0.02", "--algo.epochs=uniform:1:4"),
            "--algo.learning_rate=log:1e-5:1",
        ]
    )
    for setting in space.draw(ranges, 64, "sobol", 0):
        assert space.from_texts(config, space.texts(setting)) == setting


@needs_optuna
def test_a_model_proposes_settings_near_the_best_of_a_known_objective():
    """Of the eighth batch of 16, half and more are within a third of an order of magnitude of the
    best rate, and have the best sizes; at random, two in nine are, and one in four has."""
    ranges = [
        Range("rate", "log", (1e-4, 1e-1)),
        Range("epochs", "uniform", (1, 9), whole=True),
        Range("sizes", "choices", ((8,), (16,), (8, 8), None)),
    ]
    settings = space.draw(ranges, 16, "tpe", 0)

    def ranks():
        found = [
            Outcome(k, 0, 0, None if each["epochs"] == 9 else score(each), [], "chunk0", k)
            for k, each in enumerate(settings)
        ]
        return results.ranked(found)

    def score(each):
        return -abs(math.log10(each["rate"]) + 2) - (each["sizes"] != (8, 8))

    for k in range(1, 8):
        new = model.proposed(ranges, settings, ranks(), 16, k)
        assert new == model.proposed(ranges, settings, ranks(), 16, k)
        assert all(isinstance(each["epochs"], int) for each in new)
        settings += new
    last = settings[-16:]
    assert sum(abs(math.log10(each["rate"]) + 2) < 1 / 3 for each in last) >= 8
    assert sum(each["sizes"] == (8, 8) for each in last) >= 8


@needs_optuna
def test_a_model_learns_nothing_from_the_other_seeds_of_a_setting_that_failed():
    ranges = [Range("rate", "log", (1e-4, 1e-1))]
    settings = space.draw(ranges, 8, "tpe", 0)

    def proposed(score):
        scores = [(float(k), float(k)) for k in range(7)] + [(score, None)]
        found = [
            Outcome(setting, seed, 0, each, [], "chunk0", 0)
            for setting, both in enumerate(scores)
            for seed, each in enumerate(both)
        ]
        return model.proposed(ranges, settings, results.ranked(found), 4, 1)

    assert proposed(0.0) == proposed(1000.0)


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
    assert chunk.config.seed == 5
    assert population.seeded(chunk).agents.seeds.tolist() == [5, 6, 7, 8, 9, 10]
    assert population.seeded(chunk).agents.seeds.dtype == np.uint32
    check(chunk.config)


def test_no_more_agents_train_side_by_side_than_fit_into_the_memory(monkeypatch):
    configs = plan.configs_of(Config(), [{"algo.gamma": gamma} for gamma in (0.9, 0.95, 0.99)])
    monkeypatch.setattr(plan, "_fitting", lambda config: 7)
    assert plan.divide(configs, 3, None) == plan.divide(configs, 3, 100) == [[0, 1], [2]]
    with pytest.raises(RunError, match="only 7 may or fit into the memory; try --seeds=7"):
        plan.divide(configs, 8, None)
    one = plan.Plan(configs, [[1]] * 3, range(2), None, fresh_seeds=8)
    with pytest.raises(RunError, match="only 7 fit into the memory; try --fresh_seeds=7"):
        one.divide(range(3))


@pytest.mark.parametrize("devices", [1, 2])
def test_the_agents_that_are_said_to_fit_into_the_memory_do_so(monkeypatch, devices):
    """Where their number is odd, two devices hold half of the shards of every agent each, and what
    these share twice."""
    config = Config(devices=devices, num_envs=8, rollout_length=8)
    free = 10_000_000
    for module in (plan, prepare):
        monkeypatch.setattr(module, "free_memory", lambda _: free)
    number = plan._fitting(config)
    several = config.replace(num_seeds=number - (number + 1) % 2)
    with prepare.jax_settings_restored():
        placement = backend.initialize(several)
        runner = make_runner(several, envs.make(several.env), placement)
    runner.check_memory()
    free = free // 2
    with pytest.raises(RunError, match=r"state of this run takes .* with [45]\d% of the net"):
        runner.check_memory()
    free = 1000
    with pytest.raises(RunError, match=r"; a hundredth of the network's param.* would not fit"):
        runner.check_memory()


@pytest.mark.parametrize("name", algorithms.NAMES)
def test_every_number_of_every_algorithm_may_vary_in_one_program(name):
    """That such agents are the single runs is in test_algorithms.py."""
    base = algorithms.everything(name)
    numbers = algorithms.numbers(base.algo)
    settings = [
        {f"algo.{number}": getattr(base.algo, number) * part for number in numbers}
        for part in (0.5, 0.75)
    ]
    configs = plan.configs_of(base, settings)
    assert plan.divide(configs, 2, 4) == [[0, 1]]
    options = plan.chunk_of("some", configs, [0, 1], range(2)).agents.options
    for number in numbers:
        values = [setting[f"algo.{number}"] for setting in settings for _ in range(2)]
        np.testing.assert_array_equal(getattr(options, number), np.float32(values))


def test_an_order_is_the_same_in_all_processes_and_none_after_a_signal():
    settings = [{"algo.learning_rate": rate, "algo.target_kl": 0.1} for rate in (1 / 3, 1e-3)]
    configs = plan.configs_of(Config(env_kwargs={"gravity": 9.1}), settings)
    chunks = [plan.chunk_of(f"chunk{k}", configs, [k], range(5, 7), 3) for k in (0, 1)]
    order = Order(chunks[1], plan.Start(chunks).of(chunks[1]), True)
    assert order.start == plan.Start(chunks[1:], [(1, 5), (1, 6)])
    stop = StopRequest()
    told = orders.agreed(Peers(), stop, order)
    assert told.start.parents == order.start.parents
    for ours, theirs in ((told.chunk, chunks[1]), (told.start.chunks[0], chunks[1])):
        assert dataclasses.replace(ours, agents=None) == dataclasses.replace(theirs, agents=None)
        jax.tree.map(np.testing.assert_array_equal, ours.agents, theirs.agents)
        assert [x.dtype for x in jax.tree.leaves(ours.agents)] == [
            x.dtype for x in jax.tree.leaves(theirs.agents)
        ]
    stop.requested = "SIGTERM"
    assert orders.agreed(Peers(), stop, order) is None
    assert orders.agreed(Peers(), stop, Order(status=75)) == Order(status=75)


def test_agents_go_on_from_where_their_parents_stopped_and_from_nowhere_else(monkeypatch, tmp_path):
    configs = plan.configs_of(Config(), [{"algo.gamma": 0.9}])
    before, after = (plan.chunk_of(f"chunk{k}", configs, [0], range(1), k) for k in (3, 6))
    monkeypatch.setattr(orders, "abstract_state", lambda config: None)
    monkeypatch.setattr(orders, "restore", lambda *_, peers: (2, None, {}))
    order = Order(after, plan.Start([before], before.named()))
    with pytest.raises(RunError, match="chunk3/checkpoints has no checkpoint 3"):
        orders.carried_over(order, tmp_path, Peers())


@pytest.mark.parametrize(
    ("given", "more"),
    [
        pytest.param(["--draw=tpe"], {"agents", "draw_seed", "ranges"}, marks=needs_optuna),
        (["--perturb_every=1", "--seeds=1"], {"draw_seed", "ranges"}),
        ([], set()),
    ],
)
def test_the_file_of_a_sweep_says_all_that_it_depends_on(given, more):
    told = asked(*given, "--algo.gamma=0.9,1", "--agents=16").to_json()
    assert told.keys() == more | {
        *("config", "settings", "seeds"),
        *("rungs", "factor", "perturb_every", "finalists", "fresh_seeds"),
    }


def test_of_jobs_that_begin_a_sweep_at_once_one_decides_what_trains_side_by_side(tmp_path):
    together = threading.Barrier(8)

    def begin(k):
        def divided():
            together.wait(PATIENCE)
            return [[k]]

        return sweep_file.begin(tmp_path / "sweep", {"seeds": (1, 2)}, divided)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(begin, range(8)))
    assert found == [json.loads((tmp_path / "sweep" / "sweep.json").read_text())["chunks"]] * 8
    assert [path.name for path in (tmp_path / "sweep").iterdir()] == ["sweep.json"]
    with pytest.raises(RunError, match="holds a sweep with other seeds; choose another"):
        sweep_file.begin(tmp_path / "sweep", {"seeds": (1, 3)}, list)
    (tmp_path / "sweep" / "sweep.json").write_text('{"seeds": [1, 2]}')
    with pytest.raises(RunError, match=r"sweep.json is damaged: it has no chunks$"):
        sweep_file.begin(tmp_path / "sweep", {"seeds": (1, 2)}, list)


def test_a_sweep_that_goes_on_says_which_modules_have_changed(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sweep, "_divided", lambda search: [[0]])
    search = asked("--env=poles:Pole", "--algo.gamma=0.9,1", "--agents=2", "--seeds=1")
    for line in ("", "", "# heavier"):
        text = f"from jaxrl_scale.envs.cartpole import CartPole\nclass Pole(CartPole): pass{line}"
        (tmp_path / "poles.py").write_text(text)
        monkeypatch.delitem(sys.modules, "poles", raising=False)
        importlib.invalidate_caches()
        search.base.make_env()
        assert sweep._begin(search, None) == [[0]]
        told = "poles has changed since this sweep began: what it computes now may be something"
        assert capsys.readouterr().out == (f"{told} else\n" if line else "")


def test_a_sweep_starts_jax_before_the_code_of_the_user_could(monkeypatch, tmp_path):
    """Which would start it with one CPU device, as what looks at the modules of a sweep that goes
    on did."""
    called = []
    monkeypatch.setattr(sweep.backend, "initialize", lambda *_: called.append("start"))
    monkeypatch.setattr(sweep, "_begin", lambda *_: called.append("begin") or [])
    monkeypatch.setattr(sweep, "_lead", lambda *_: 0)
    given = ["--config=none", "--algo.gamma=0.9,1", "--wandb=disabled"]
    assert sweep.main([*given, f"--run_dir={tmp_path}"]) == 0
    assert called == ["start", "begin"]


# --- what is found --------------------------------------------------------------------------


def test_settings_are_ranked_by_their_agents_and_those_that_failed_come_last():
    scores = {0: (1.0, 2.0), 1: (5.0, 6.0), 2: (9.0, None), 3: (None, None), 4: (8.0, -8.0)}
    scores |= {6: (0.0, 1.0), 7: (1.0, 1.0)}  # which went on when the others were stopped
    found = [
        Outcome(setting, seed, int(setting > 5), score, [], "chunk0", 0)
        for setting, both in scores.items()
        for seed, score in enumerate(both)
    ]
    ranks = results.ranked(found)
    assert [one.setting for one in ranks] == [7, 6, 1, 0, 4, 2, 3]
    assert [one.failed for one in ranks] == [0, 0, 0, 0, 0, 1, 2]
    assert [one.iqm for one in ranks] == [1, 0.5, 5.5, 1.5, 0.0, 9.0, None]


def test_where_the_interquartile_mean_is_the_same_a_seed_that_learned_nothing_counts():
    scores = {0: (500.0, 500.0, 500.0, 9.0), 1: (500.0,) * 4, 2: (500.0, 500.0, 500.0, 90.0)}
    found = [
        Outcome(setting, seed, 0, score, [], "chunk0", 0)
        for setting, each in scores.items()
        for seed, score in enumerate(each)
    ]
    assert [(one.setting, one.iqm) for one in results.ranked(found)] == [
        *((1, 500.0), (2, 500.0), (0, 500.0))
    ]


def test_a_setting_that_was_stopped_is_no_finalist_and_a_finalist_alone_is_the_best():
    found = [Outcome(k, 0, int(k == 2), float(k), [], "chunk0", k) for k in range(4)]
    ranks = results.ranked(found)
    search = asked("--algo.gamma=0.9,1", "--finalists=3")
    assert [one.setting for one in ranks] == [2, 3, 1, 0]
    assert stages.finals(search, Trained(found, [], []), ranks, None) == ranks[:1]
    failed = [one._replace(rung=1, score=one.score or None) for one in found[:2]]  # 1, not 0
    ranks = results.ranked(failed)
    assert stages.finals(search, Trained(failed, [], []), ranks, None) == ranks[:1]


def test_where_no_agent_has_a_score_no_setting_is_the_best(monkeypatch, tmp_path):
    search = asked("--algo.gamma=0.9,1", "--agents=2", "--seeds=1", f"--run_dir={tmp_path}")
    found = [Outcome(setting, 0, 0, None, [], "chunk0", setting) for setting in (0, 1)]
    monkeypatch.setattr(stages, "train_rungs", lambda *_: Trained(found, search.settings, [[], []]))
    with pytest.raises(RunError, match="no agent of the search has a finite loss") as told:
        stages.train(search, [[0, 1]], None)
    assert told.value.status == 3


def test_the_table_of_settings_has_the_worst_seed_of_each():
    found = [Outcome(0, seed, 0, score, [], "chunk0", 0) for seed, score in enumerate((4.0, 1.0))]
    table = results.settings_table(results.ranked(found), [{"x": 7}]).decode().splitlines()
    assert table[0] == "rank,setting,x,rung,iqm,ci95_low,ci95_high,worst_seed,failed"
    assert table[1].startswith("1,0,7,0,2.5,")
    assert table[1].endswith(",1.0,0")


def test_the_best_settings_go_on_and_those_that_failed_never_do():
    scores = [(2.0, 2.0), (5.0, 5.0), (9.0, None), (4.0, 4.0), (1.0, 1.0), (3.0, 3.0), (0.0, 0.0)]
    found = [
        Outcome(setting, seed, 0, score, [], "chunk0", 0)
        for setting, both in enumerate(scores)
        for seed, score in enumerate(both)
    ]
    assert rungs.surviving(found, 3) == [1, 3, 5]  # a third of seven, rounded up
    assert rungs.surviving(found[4:], 2) == [3, 4, 5]
    said = "an agent of every setting has failed, .* or the environment returns NaN"
    with pytest.raises(RunError, match=said) as raised:
        rungs.surviving(found[4:6], 2)
    assert raised.value.status == NOT_FINITE


def test_rungs_by_hand():
    config = Config(num_envs=64, rollout_length=32, iterations=100)
    assert rungs.iterations(config, 0, 3) == [100]
    assert rungs.iterations(config, 2, 3) == [11, 33, 100]
    assert rungs.iterations(config, 6, 2) == [1, 3, 6, 12, 25, 50, 100]
    with pytest.raises(
        RunError, match="needs a run of at least 243 iterations, and this one has 100"
    ):
        rungs.iterations(config, 5, 3)


def test_a_curve_goes_on_where_it_stopped():
    first = [
        Outcome(0, 7, 0, 2.0, [(10.0, 1.0), (20.0, 2.0)], "chunk0", 0),
        Outcome(1, 7, 0, 1.0, [(10.0, 1.0), (20.0, 1.0)], "chunk0", 1),
    ]
    after = [Outcome(0, 7, 1, 5.0, [(10.0, 3.0), (30.0, 4.0)], "rung1-chunk0", 0)]
    whole = results.going_on(results.going_on([], first), after)
    curve = [(10.0, 1.0), (20.0, 2.0), (30.0, 3.0), (50.0, 4.0)]
    assert whole == [after[0]._replace(curve=curve), first[1]]


def test_what_a_stopped_agent_is_judged_by():
    """The means of the last two of six rows, or the last number before them."""
    nan = np.nan
    returns = np.array(
        [
            *([0, 0, 0, 0, 1, 2], [9, 9, 9, 9, nan, 5], [nan, 3, 8, nan, nan, nan]),
            *([nan] * 6, [7.0] * 6),
        ]
    )
    assert results.late(returns, failed=[4]) == [1.5, 5.0, 8.0, -np.inf, None]


def test_an_agent_whose_episode_goes_on_through_a_round_keeps_its_score():
    first = [
        Outcome(k, 7, 0, score, [], "round0", k) for k, score in enumerate((500.0, -np.inf, None))
    ]
    after = [one._replace(rung=1, score=-np.inf) for one in first]
    whole = results.going_on(first, after)
    assert [one.score for one in whole] == [500.0, -np.inf, -np.inf]


def test_who_has_ended_no_episode_counts_as_the_worst_and_has_no_score_in_a_table():
    none = -np.inf
    scores = [(4.0, 1.0), (none, 9.0), (none, none), (2.0, None), (3.0, 3.0)]
    found = [
        Outcome(setting, seed, 0, score, [], "chunk0", 0)
        for setting, both in enumerate(scores)
        for seed, score in enumerate(both)
    ]
    ranks = results.ranked(found)
    assert [(one.setting, one.iqm) for one in ranks] == [
        *((1, 5.0), (4, 3.0), (0, 2.5), (2, None)),
        (3, 2.0),
    ]
    assert ranks[3].ci95 == (None, None)
    found.append(found[0]._replace(setting=0, seed=2, rung=1))
    rows = results.agents_table(found, [{"x": k} for k in range(5)]).decode().splitlines()
    assert rows[3] == "1,0,1,0.0,,,,,chunk0,0"
    assert rows[4] == "1,1,1,0.0,9.0,,,,chunk0,0"


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ((9.0, 9.5, 9.2), "it holds up, as far as 3 seeds can tell."),
        ((9.0, -9.0, 0.0), "it does not hold up, as far as 3 seeds can tell."),
        ((9.0,), "On 1 fresh seed: 9, and 0.1 with the starting config; one seed cannot tell "),
        ((9.0, None, 9.0), "an agent failed, so that the two cannot be compared."),
    ],
)
def test_the_best_setting_is_judged_on_fresh_seeds(tmp_path, capsys, ours, said):
    base = Config(algo=ppo.Config(gamma=0.9))
    ranges = [Range("algo.learning_rate", "log", (1e-4, 1e-2))]
    settings = [{"algo.learning_rate": rate} for rate in (1e-3, 2e-3)]
    curve = [(100.0, None), (200.0, 3.0)]
    found = [Outcome(k, 0, k, float(k), curve, "chunk0", k) for k in (0, 1)]
    fresh = [
        Outcome(k, 1 + seed, 0, score, curve, f"fresh{k}", seed)
        for k, scores in enumerate(((0.1, 0.2, 0.3)[: len(ours)], ours))
        for seed, score in enumerate(scores)
    ]
    ranks = results.ranked(found)
    trained = Trained(found, settings, [[setting] for setting in settings])
    found = stages.Found(trained, ranks, ranks[:1], fresh)
    conclusion.write(tmp_path, base, ranges, found)
    out = capsys.readouterr().out
    assert said in out
    assert "The best of 2 settings: --algo.learning_rate=0.002\n" in out
    best = files.read_file(tmp_path / "best.py")
    assert best == base.replace(algo=ppo.Config(gamma=0.9, learning_rate=2e-3))
    assert said in (tmp_path / "best.py").read_text()
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    if HAS_PYARROW:
        from pyarrow import parquet

        rows = parquet.read_table(tmp_path / "agents.parquet").to_pylist()
        assert [(x["setting"], x["seed"], x["algo.learning_rate"]) for x in rows] == [
            *((0, 0, 1e-3), (1, 0, 2e-3))
        ]
        assert [(x["return_when_stopped"], x["eval_return"]) for x in rows] == [
            (0, None),
            (None, 1),
        ]
        assert rows[0]["curve_env_steps"] == [100, 200]
        assert rows[0]["curve_return"] == [None, 3]
    page = (tmp_path / "sweep.html").read_text()
    assert said in page
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
    assert ["1", "0.002", "to the end", "1", "1", "0"] in rows
    assert ["algo.learning_rate", "0.0003", "0.002"] in rows
    assert page.count('src="data:image/png;base64,iVBOR') == 3


def test_things_are_counted_in_words_that_agree():
    told = [how_many(n, "process", "processes") for n in (0, 1, 1024)]
    assert told == ["0 processes", "1 process", "1,024 processes"]
    assert (how_many(1, "seed"), how_many(2, "seed")) == ("1 seed", "2 seeds")


def test_the_steps_of_an_agent_are_said_to_be_a_mean_over_those_beside_it(tmp_path):
    options = plan.configs_of(Config(iterations=2), [{"algo.gamma": 0.9}, {"algo.gamma": 0.99}])
    chunk = plan.chunk_of("chunk0", options, [0, 1], range(1), 1)
    folder = tmp_path / "chunk0"
    folder.mkdir()
    row = {"iteration": 1, "env_steps": 300, "per_agent": {"return": [1.0, 2.0]}}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    summary = {"status": "stopped", "failed": [], "compile_seconds": 1.0}
    (folder / "summary.json").write_text(json.dumps(summary))
    found = results.outcomes([chunk], tmp_path)
    assert [one.curve for one in found] == [[(150.0, 1.0)], [(150.0, 2.0)]]
    told = "the mean over the agents that trained side by side with it"
    assert told in " ".join(sweep._DESCRIPTION.split())
    page = Path(__file__).parents[1] / "docs" / "search.md"
    assert told in " ".join(page.read_text().split())


def page_of(found, settings):
    """sweep.html of a search for the learning rate."""
    ranges = [Range("algo.learning_rate", "log", (1e-4, 1e-2))]
    ranks = results.ranked(found)
    best = ranks[0].setting
    return page([], Config(), ranges, settings, found, ranks, best, b"")


def test_the_page_says_how_many_seeds_each_setting_has():
    settings = [{"algo.learning_rate": rate} for rate in (1e-3, 2e-3, 3e-3)]
    curve = [(100.0, 1.0)]
    population = [Outcome(k, k, 0, float(k), curve, "round0", k) for k in range(3)]
    assert "each setting has 1 seed<" in page_of(population, settings)
    both = [one._replace(seed=seed) for one in population for seed in (7, 8)]
    assert "each setting has 2 seeds<" in page_of(both, settings)


def test_the_page_tells_evaluations_from_the_returns_of_settings_that_were_stopped():
    settings = [{"algo.learning_rate": rate} for rate in (1e-3, 2e-3)]
    curve = [(100.0, 1.0)]
    found = [Outcome(k, 7, k, float(k), curve, "chunk0", k) for k in range(2)]
    text = page_of(found, settings)
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)]
    assert ["1", "0.002", "to the end", "1", "1", "0"] in rows
    assert ["2", "0.001", "stopped at rung 1", "0.0", "0.0", "0"] in rows
    assert "the late return of its training until then" in text
    alike = page_of([one._replace(rung=0) for one in found], settings)
    assert "until then" not in alike
    assert "<th>Trained</th>" not in alike


def test_learning_curves_are_said_to_be_of_training():
    axes = new_figure(4, 3).subplots()
    plots._fresh_curves(axes, [Outcome(0, 7, 0, 1.0, [(100.0, 1.0)], "fresh0", 0)])
    assert axes.get_ylabel() == "return in training, IQM over seeds"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_is_written_as_a_file_that_is_read_back(path, tmp_path):
    config = files.read_file(path)
    again = tmp_path / "again.py"
    again.write_text(files.to_python(config, "Some words."))
    assert files.read_file(again) == config


# --- a population -----------------------------------------------------------------------------


def test_the_worst_quarter_and_who_failed_go_on_from_the_best_quarter():
    scores = [5.0, 1.0, 9.0, None, 4.0, 8.0, 2.0, 3.0]
    rng = np.random.default_rng(0)
    drawn = [population.exploited(scores, rng) for _ in range(50)]
    for parents in drawn:
        assert [k for k, parent in enumerate(parents) if parent != k] == [1, 3]
    assert {tuple(parents[k] for k in (1, 3)) for parents in drawn} == {
        (a, b) for a in (2, 5) for b in (2, 5)
    }
    many_failed = [None, None, None, 1.0, None, 2.0, 0.0, None]
    assert population.exploited(many_failed, rng)[3:7:3] == [3, 6]
    assert {population.exploited(many_failed, rng)[0] for _ in range(20)} == {3, 5}
    assert population.exploited([None, None], rng) == [0, 1]
    nobody_knows = [-np.inf] * 8
    assert population.exploited(nobody_knows, rng) == [*range(8)]
    assert {*population.exploited([*nobody_knows[1:], 5.0], rng)[:2]} == {7}
    nobody_knows[2] = None
    changed = population.exploited(nobody_knows, rng)
    assert [k for k in range(8) if changed[k] != k] == [2]


def test_a_setting_changes_a_little_or_is_drawn_anew():
    ranges = [
        Range("rate", "log", (1e-4, 1e-1)),
        Range("part", "uniform", (0.5, 1.0)),
        Range("coef", "choices", (0, 1, 2, 3, 4)),
    ]
    setting, rng = {"rate": 1e-2, "part": 0.98, "coef": 1}, np.random.default_rng(0)
    drawn = [population.explored(setting, ranges, rng) for _ in range(400)]
    near = {"rate": (1e-2 * 1.2, 1e-2 / 1.2), "part": (0.93, 1.0), "coef": (0, 1, 2)}
    for each in ranges:
        found = [one[each.option] for one in drawn]
        some = [sum(x == pytest.approx(y) for x in found) for y in near[each.option]]
        assert min(some) > 400 * 0.75 / len(some) * 0.8
        assert 0 < 400 - sum(some) < 400 * 0.25 * 1.3
        assert set(found) <= set(each.values) or each.kind != "choices"
        assert min(found) >= each.values[0]
        assert max(found) <= each.values[-1]


def test_a_population_finds_the_best_of_a_known_objective():
    """The nearer to 1e-3, the better."""
    ranges = [Range("rate", "log", (1e-6, 1.0))]
    settings, rng = space.draw(ranges, 16, "sobol", 0), np.random.default_rng(0)

    def distance(setting):
        return abs(math.log10(setting["rate"]) + 3)

    first = np.median([distance(setting) for setting in settings])
    for _ in range(20):
        parents = population.exploited([-distance(setting) for setting in settings], rng)
        settings = [
            settings[k] if parent == k else population.explored(settings[parent], ranges, rng)
            for k, parent in enumerate(parents)
        ]
    assert first > 1.2
    assert np.median([distance(setting) for setting in settings]) < 0.3
    assert min(distance(setting) for setting in settings) < 0.05


def of_a_population(folder, *more):
    """A search with two agents, which change after each of three iterations."""
    given = ["--iterations=3", "--perturb_every=1", "--seeds=1", "--agents=2", *more]
    return asked("--algo.gamma=0.9,0.99", f"--run_dir={folder}", *given)


def test_each_round_of_a_population_has_draws_of_its_own(monkeypatch, tmp_path):
    drawn = []

    def exploited(scores, rng):
        drawn.append(rng.random())
        return [*range(len(scores))]

    def outcomes(chunks, folder):
        named = chunks[0].named()
        return [Outcome(*who, 0, 1.0, [], "round", k) for k, who in enumerate(named)]

    monkeypatch.setattr(population, "exploited", exploited)
    monkeypatch.setattr(results, "outcomes", outcomes)
    for seed in (0, 1):
        search = of_a_population(tmp_path, f"--draw_seed={seed}")
        train_population(search, lambda chunks, start: True)
    assert len(drawn) == len(set(drawn)) == 4


def test_agents_that_have_all_failed_are_not_trained_on(monkeypatch, tmp_path):
    """They have left no checkpoint; what became of them is told in the end."""
    trained = []

    def train(chunks, start):
        trained.extend(chunk.name for chunk in chunks)
        return True

    def outcomes(chunks, folder):
        return [Outcome(*who, 0, None, [], "round", 0) for who in chunks[0].named()]

    monkeypatch.setattr(results, "outcomes", outcomes)
    search = of_a_population(tmp_path)
    found, *_ = train_population(search, train)
    found += train_history(search, search.settings, "fresh", range(2), train)
    assert [one.score for one in found] == [None] * 4
    assert trained == ["round0", "fresh-round0"]


# --- for real -------------------------------------------------------------------------------

RANGES = {"algo.learning_rate": "log:1e-3:1e-1", "algo.gamma": "0.9,0.99"}


@pytest.fixture(scope="module")
def command(world):
    """A sweep of four settings with two seeds, in two programs of two settings each, of which the
    better half goes on after half of the run."""

    def arguments(folder, **changes):
        own = {"agents": 8, "seeds": 2, "chunk": 5, "fresh_seeds": 4, "run_dir": folder}
        own |= {"rungs": 1, "factor": 2, "finalists": 2}
        own |= {"compilation_cache": world.cache}
        return options(SMALL_A2C | RANGES | own | changes)

    return arguments


@pytest.fixture(scope="module")
def searched(world, command):
    """The folder of a sweep that nothing interrupted, and what it printed."""
    folder = world.folder / "searched"
    return folder, well(world.run(*command(folder), module="jaxrl_scale.sweep"))


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_an_agent_of_a_sweep_is_the_run_of_its_setting_and_seed(world, searched):
    """Of one that went on after the rung, so that it was in two programs."""
    folder, done = searched
    agents = table(folder / "agents.csv")
    assert len(agents) == 8
    stopped, went_on = (
        [row for row in agents if bool(row["eval_return"]) is x] for x in (False, True)
    )
    assert {row["run"] for row in went_on} == {"rung1-chunk0"}
    told = json.loads((folder / "rung1-chunk0" / "run.json").read_text())["starts"][-1]["agents"]
    for name, own in told.items():
        theirs = [float(row[name]) for row in sorted(went_on, key=lambda x: int(x["agent"]))]
        assert own == pytest.approx(theirs, rel=1e-7)
    assert {"seed"} < set(told) <= {"seed", *RANGES}
    assert {row["run"] for row in stopped} <= {"chunk0", "chunk1"}
    steps = [{float(row["env_steps"]) for row in some} for some in (stopped, went_on)]
    assert 0.9 * 3 * 256 < min(steps[0]) <= max(steps[0]) <= 3 * 256
    assert 0.9 * 6 * 256 < min(steps[1]) <= max(steps[1]) <= 6 * 256
    row = went_on[-1]
    own = {"seed": row["seed"], "compilation_cache": world.cache, "run_dir": world.folder / "one"}
    well(world.run(*options(SMALL_A2C | {name: row[name] for name in RANGES} | own)))
    (_, single), (_, several) = state(world.folder / "one"), state(folder / row["run"])
    agent = int(row["agent"])
    assert all((x[0] == several[name][agent]).all() for name, x in single.items())
    evaluation = summary(world.folder / "one")["evaluation"]
    assert evaluation["mean"] == float(row["eval_return"])
    assert evaluation["ci95"] == [float(row["eval_ci95_low"]), float(row["eval_ci95_high"])]

    settings = json.loads((folder / "sweep.json").read_text())["settings"]
    assert len({row["algo.learning_rate"] for row in agents}) == 4
    assert [float(agents[2 * k]["algo.gamma"]) for k in range(4)] == [
        setting["algo.gamma"] for setting in settings
    ]
    curves = table(folder / "curves.csv")
    for some, points in ((stopped, 2), (went_on, 4)):  # at iterations 2 and 3, and 4 and 6
        for row in some:
            same = [x for x in curves if (x["setting"], x["seed"]) == (row["setting"], row["seed"])]
            assert len(same) == points
            assert same[-1]["env_steps"] == row["env_steps"]
            assert [float(x["env_steps"]) for x in same] == sorted(
                float(x["env_steps"]) for x in same
            )
    assert "rung 1 of 1: 2 of 4 settings go on\n" in done.out
    assert done.out.count("saved at iteration 3 of 6\n") == 2
    assert done.out.count(" is done\n") == 5  # those that went on, finalists, both on fresh seeds
    ranks = table(folder / "settings.csv")
    assert [row["rung"] for row in ranks] == ["1", "1", "0", "0"]
    late = [np.mean([float(x["return"]) for x in at_rung(curves, row["setting"])]) for row in ranks]
    assert min(late[:2]) >= max(late[2:])


def finalists_of(folder, last, seed, number):
    """The rows of both finalists, held against the runs that made them: the ``last`` of each, with
    this first seed and so many agents."""
    ranks, finalists = table(folder / "settings.csv"), table(folder / "finalists.csv")
    assert {row["setting"] for row in finalists} == {row["setting"] for row in ranks[:2]}
    for row in finalists:
        (k,) = (k for k in (1, 2) if ranks[k - 1]["setting"] == row["setting"])
        run = folder / f"finalist{k}{last}"
        config, evaluation = files.read_config(run / "config.json"), summary(run)["evaluation"]
        assert config.algo.learning_rate == float(row["algo.learning_rate"])
        assert (config.seed, len(evaluation["per_agent"])) == (seed, number)
        assert evaluation["iqm"] == float(row["iqm"])
    assert float(finalists[0]["iqm"]) >= float(finalists[1]["iqm"])
    return finalists


def test_other_seeds_say_which_finalist_is_the_best(searched):
    folder, done = searched
    finalists = finalists_of(folder, "", 2, 4)
    assert (
        f"The best of 4 settings: --algo.learning_rate={finalists[0]['algo.learning_rate']} "
        in (done.out)
    )
    best = files.read_file(folder / "best.py")
    for config in (best, files.read_config(folder / "fresh1" / "config.json")):
        assert config.algo.gamma == float(finalists[0]["algo.gamma"])
        assert config.algo.learning_rate == float(finalists[0]["algo.learning_rate"])
    for k in (0, 1):
        assert files.read_config(folder / f"fresh{k}" / "config.json").seed == 2 + 4


def at_rung(curves, setting):
    """The rows of both seeds at the end of the first rung."""
    own = [row for row in curves if row["setting"] == setting]
    return [row for row in own if 700 < float(row["env_steps"]) <= 3 * 256]


PATIENTLY = ["--heartbeat=120"]
"""A machine that does other things may forget a process for a minute."""


def signalled(world, arguments, sign, path, number=2):
    """How the processes of a sweep end, the last of which got a signal as soon as a file or folder
    was there. Its iterations are slow, so that the signal comes in the one that follows."""
    slowly = {k: {"seconds": 0.3} for k in range(number)}
    processes = world.start_ranks(
        number, *arguments, *PATIENTLY, module="jaxrl_scale.sweep", accidents=slowly
    )
    limit = time.time() + PATIENCE
    while not path.exists():
        assert time.time() < limit
        assert not any(process.poll() for process in processes.values())
        time.sleep(0.002)
    processes[number - 1].send_signal(sign)
    return ended(processes)


def together(world, number, arguments):
    """A sweep on several processes ends well, and only process 0 says something."""
    done = world.run_ranks(number, *arguments, *PATIENTLY, module="jaxrl_scale.sweep")
    assert all(well(done[k]).out == "" for k in range(1, number))
    return done[0]


GOES_ON = "the same command goes on with the sweep"


def test_a_sweep_of_two_processes_that_was_killed_ends_with_the_tables_of_one(
    world, command, searched
):
    """A task of its own began with a part of it, and one of its two processes got a signal. Another
    was killed in the second rung, before there was a checkpoint. The same command with another
    --chunk keeps to what trains side by side."""
    folder = world.folder / "killed"
    task = [*command(folder), "--task=1"]
    done = signalled(world, task, signal.SIGTERM, folder / "chunk1" / "config.json")
    assert [(one.status, one.err) for one in done.values()] == [(75, "")] * 2
    assert done[0].out.endswith(
        f"stopped by a signal to another process and saved at iteration 1 of 6; {GOES_ON}\n"
        "the sweep has stopped; the same command goes on with it\n"
    )
    run = folder / "rung1-chunk0"
    done = signalled(world, command(folder), signal.SIGKILL, run / "config.json")
    assert [one.status for one in done.values()] == [75, -signal.SIGKILL]
    told = rf"error: process 0 of 2 on \S+: process 1 of 2 on \S+ was lost: .*; {GOES_ON}\n"
    assert re.fullmatch(told, done[0].err)
    assert not list((run / "checkpoints").glob("[0-9]*"))
    before = [(folder / f"chunk{k}" / "summary.json").stat().st_mtime_ns for k in (0, 1)]
    together(world, 2, command(folder, chunk=2))
    assert before == [(folder / f"chunk{k}" / "summary.json").stat().st_mtime_ns for k in (0, 1)]
    for name in ("agents.csv", "settings.csv", "curves.csv", "best.py"):
        assert (folder / name).read_bytes() == (searched[0] / name).read_bytes(), name


def killed_at(world, arguments, folder, run, iteration):
    """A sweep of one process that is killed as soon as one of its runs has a checkpoint."""
    path = folder / run / "checkpoints" / str(iteration)
    assert signalled(world, arguments, signal.SIGKILL, path, 1)[0].status == -signal.SIGKILL
    assert not (folder / run / "summary.json").exists()


MODEL = {"draw": "tpe", "agents": 8, "batch": 2, "rungs": 0}
"""Four settings with two seeds: a first batch of two, and one of two that the model proposes."""


@needs_optuna
def test_batches_of_a_model_that_were_killed_go_on_with_the_same_settings(world, command, path):
    """On two processes, in the second batch of one."""
    killed_at(world, command(path, **MODEL), path, "batch1-chunk0", 3)
    decided = [(path / f"batch{k}.json").read_bytes() for k in (0, 1)]
    done = together(world, 2, command(path, **MODEL))
    assert [(path / f"batch{k}.json").read_bytes() for k in (0, 1)] == decided
    assert "4 settings with 2 seeds each, in batches; in " in done.out
    agents = table(path / "agents.csv")
    assert [row["run"] for row in agents] == ["batch0-chunk0"] * 4 + ["batch1-chunk0"] * 4
    texts = [each for one in decided for each in json.loads(one)["settings"]]
    assert [row["algo.learning_rate"] for row in agents[::2]] == [
        each["algo.learning_rate"] for each in texts
    ]
    rates = [float(each["algo.learning_rate"]) for each in texts]
    assert len(set(rates)) == 4
    assert all(1e-3 <= rate <= 1e-1 for rate in rates)
    # What the model proposed is what it proposes again of what came of the first batch.
    _, ranges = space.split(options(RANGES | {"algo": "a2c"}))
    first = [space.from_texts(Config(algo=a2c.Config()), each) for each in texts]
    found = [
        Outcome(int(row["setting"]), int(row["seed"]), 0, float(row["eval_return"]), [], "", 0)
        for row in agents[:4]
    ]
    assert model.proposed(ranges, first[:2], results.ranked(found), 2, 1) == first[2:]


POPULATION = {"agents": 4, "seeds": 1, "chunk": 4, "rungs": 0, "perturb_every": 2, "fresh_seeds": 3}
POPULATION |= {"finalists": 2}
"""The worst of four agents goes on from the best after two and after four of six iterations. Two
processes share the agents, and the shards of those with fresh seeds."""


@pytest.mark.quickly
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_sweep_keeps_nothing_of_the_runs_that_it_has_made(command, path, monkeypatch):
    """XLA maps memory for every program, and the kernel grants a process 65,530 pieces."""
    maps, train_among = [], sweep.train_among

    def counted(*run):
        maps.append(len(Path("/proc/self/maps").read_text().splitlines()))
        return train_among(*run)

    monkeypatch.setattr(sweep, "train_among", counted)
    small = {"agents": 2, "fresh_seeds": 1, "finalists": 1, "iterations": 3, "perturb_every": 1}
    assert sweep.main(command(path, **POPULATION | small, devices=1)) == 0
    assert len(maps) >= 6  # five rounds, and the winner and the starting config on fresh seeds
    assert maps[4] - maps[2] < 200  # a run has a thousand and more


@pytest.fixture(scope="module")
def population_folder(world, command):
    """On the devices of one process, killed in the second of its three rounds, and gone on with by
    two processes."""
    folder = world.folder / "population"
    killed_at(world, command(folder, **POPULATION), folder, "round1", 3)
    together(world, 2, command(folder, **POPULATION))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 4])
def test_a_population_that_nothing_disturbs_is_the_same_on_other_devices(
    world, command, population_folder, path, devices
):
    well(world.run(*command(path, **POPULATION, devices=devices), module="jaxrl_scale.sweep"))
    tables = "agents.csv", "settings.csv", "curves.csv", "schedule.csv"
    for name in (*tables, "finalists.csv", "round1.json", "round2.json"):
        assert (path / name).read_bytes() == (population_folder / name).read_bytes(), name
    ours, theirs = (files.read_file(folder / "best.py") for folder in (path, population_folder))
    assert ours == theirs.replace(devices=devices)
    for k in range(3):
        (_, ours), (_, theirs) = state(path / f"round{k}"), state(population_folder / f"round{k}")
        assert_same_bits(ours, theirs)


def test_a_copy_goes_on_from_its_parent_with_its_own_seed_and_setting(population_folder):
    """What each round should begin with, made by hand from the checkpoint of the round before, and
    trained on one device."""
    folder = population_folder
    agents = table(folder / "agents.csv")
    assert [row["seed"] for row in agents] == list("0123")
    config = files.read_config(folder / "round1" / "config.json")
    runner = runner_of(config.replace(devices=1))  # of both: they differ in numbers alone
    for k in (1, 2):
        decided = json.loads((folder / f"round{k}.json").read_text())
        parents, settings = decided["parents"], decided["settings"]
        replaced = [agent for agent, parent in enumerate(parents) if parent != agent]
        assert len(replaced) == 1
        before = saved(folder / f"round{k - 1}", runner)
        numbers = {
            name: np.float32([setting[f"algo.{name}"] for setting in settings])
            for name in ("learning_rate", "gamma")
        }
        copied = jax.tree.map(lambda x, parents=parents: np.asarray(x)[parents], before)
        options = dataclasses.replace(copied.shared.algo.options, **numbers)
        algo = copied.shared.algo._replace(options=options)
        shared = copied.shared._replace(algo=algo, seed=np.arange(4, dtype=np.uint32))
        end, _ = steps(runner, 2, copied._replace(shared=shared))
        assert differing(end, saved(folder / f"round{k}", runner)) == []
    assert [float(row["algo.gamma"]) for row in agents] == [x["algo.gamma"] for x in settings]


def test_the_schedule_of_the_finalist_that_is_the_best_is_tried_on_fresh_seeds(population_folder):
    folder = population_folder
    best, _ = finalists_of(folder, "-round2", 4, 3)
    agent = int(best["setting"])
    settings = json.loads((folder / "sweep.json").read_text())["settings"]
    decided = [json.loads((folder / f"round{k}.json").read_text()) for k in (1, 2)]
    wanted = []
    for each in reversed(decided):
        wanted.insert(0, each["settings"][agent])
        agent = each["parents"][agent]
    wanted.insert(0, settings[agent])
    rows = table(folder / "schedule.csv")
    assert [row["iteration"] for row in rows] == ["0", "2", "4"]
    for name in ("algo.gamma", "algo.learning_rate"):
        assert [float(row[name]) for row in rows] == [setting[name] for setting in wanted]
    for k, setting in enumerate(wanted):
        config = files.read_config(folder / f"fresh1-round{k}" / "config.json")
        assert (config.algo.gamma, config.seed) == (setting["algo.gamma"], 4 + 3)


def saved(run_dir, runner):
    """The newest state."""
    _, found, _ = restore(run_dir / "checkpoints", runner.abstract_state(), print)
    return found


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
        ({"algo.gamma": "0.9,,1"}, "--algo.gamma=0.9,,1 should have a value on both sides of"),
        ({"algo.gamma": "0.9,1", "task": 9}, "--task=9 should be below 1, the chunks"),
        ({"algo.gamma": "0.9,1", "seed": 2**31 - 30}, "seed=2147483618 is too large: the seeds of"),
        ({"algo.gamma": "0.9,1", "agents": 10**7}, "--agents: '10000000' should be at most 10000"),
        (
            {"algo.gamma": "0.9,1", "seeds": 1, "rungs": 0, "perturb_every": 1, "agents": 64}
            | {"seed": 2**31 - 80},
            "seed=2147483568 is too large: the seeds of the search and the fresh ones would reach "
            "2147483663, and the largest is 2147483647",
        ),
        (
            {"algo.gamma": "0.9,1", "seeds": 1, "rungs": 0, "perturb_every": 10**6},
            "--perturb_every=1000000 should be below ",
        ),
        ({"algo.lr_schedule": "log:1:2"}, "--algo.lr_schedule=1 should be one of constant,"),
        ({"seed": "1,2"}, "--seed cannot vary in a sweep; the algorithm's options can, and "),
        ({"env_kwargs.length": "0.5,1"}, "--env_kwargs.length cannot vary in a sweep; the algor"),
        ({"env_kwargs.length": "log:0.5:1"}, "--env_kwargs.length cannot vary in a sweep; the al"),
        ({"algo.gamma": "0.9,1", "agents": 7}, "--agents=7 does not divide by --seeds=4; try"),
        ({"algo.gamma": "0.9,1", "chunk": 3}, "the 4 agents of a setting train side by side,"),
        ({"algo.gamma": "uniform:0:1", "draw": "grid"}, "--draw=grid takes choices only, such as"),
        (
            {"algo.minibatch_size": "16,102"},
            "with --algo.minibatch_size=102: algo.minibatch_size=102 does not divide by num_shards",
        ),
        pytest.param(  # the first batch does not have it
            {"algo.minibatch_size": "102,16,32,64", "draw": "tpe", "seeds": 1, "batch": 2},
            "with --algo.minibatch_size=102: algo.minibatch_size=102 does not divide by num_shards",
            marks=needs_optuna,
        ),
        ({"algo.gamma": "0.9,1", "resume": "x"}, "a sweep has no --resume; the same command with"),
        (
            {"algo.gamma": "0.9,1", "rungs": 4, "iterations": 80},
            "--rungs=4 needs a run of at least 81 iterations, and this one has 80; try --rungs=3",
        ),
        (
            {"algo.gamma": "0.9,1", "perturb_every": 5, "rungs": 1, "seeds": 1},
            "--perturb_every takes --seeds=1, and neither --rungs nor --task",
        ),
        (
            {"algo.gamma": "0.9,1", "perturb_every": 5, "task": 0, "seeds": 1},
            "--perturb_every takes --seeds=1, and neither --rungs nor --task",
        ),
        (
            {"algo.epochs": "1,2", "perturb_every": 5, "seeds": 1},
            "--algo.epochs cannot vary with --perturb_every: a population is one program, in which",
        ),
        (
            {"algo.gamma": "0.9,1", "perturb_every": 5, "seeds": 1, "chunk": 4},
            "a population is one program, and this one would be 4: its 16 agents have to fit into",
        ),
        (
            {
                **{"env": "gymnasium:CartPole-v1", "algo.gamma": "0.9,1", "config": "none"},
                **{"seeds": 1, "perturb_every": 5, "restart_every": 10},
            },
            "--perturb_every=5 should be a multiple of restart_every=10 for gymnasium:CartPole-v1,",
        ),
        ({"algo.gamma": "0.9,1", "num_seeds": 5}, "a sweep has no --num_seeds; give --seeds=5, "),
        ({"algo.gamma": "0.9,1", "task": 1}, "--task=1 should be below 1, the chunks"),
        (
            {"algo.gamma": "0.9,1", "draw": "tpe", "rungs": 1},
            "--draw=tpe takes neither --rungs nor --perturb_every nor --task",
        ),
        ({"sweep": "none.py"}, "sweep file none.py does not exist"),
        ({"sweep": "mine.py"}, "sweep file mine.py: get_sweep() returned list, it should return a"),
    ],
)
def test_mistakes_are_told_in_one_line(monkeypatch, capsys, tmp_path, changes, said):
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path, ["--algo.gamma=0.9,1"])
    given = {"num_envs": 16, "num_shards": 4, "rollout_length": 128}
    assert sweep.main(options({"agents": 16} | given | changes)) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"error: {said}")
    assert err.count("\n") == 1
    assert out == ""


def test_processes_compare_the_options_of_the_sweep_and_its_ranges_too(monkeypatch):
    heard: dict[str, str] = {}

    def hear(peers, settings):
        heard.update(settings)
        raise RunError("enough")

    monkeypatch.setattr(Peers, "check_alike", hear)
    # A grid takes any number of seeds, although they do not divide --agents.
    assert sweep.main(["--algo.gamma=0.9,1", "--draw=grid", "--seeds=3", "--seed=5"]) == 2
    assert (heard["seeds"], heard["draw"], heard["seed"]) == ("3", "grid", "5")
    assert "(0.9, 1.0)" in heard["algo.gamma"]


def test_processes_that_do_not_divide_the_shards_are_told_before_they_meet(monkeypatch, capsys):
    for name, value in (("COORDINATOR_ADDRESS", "none"), ("NUM_PROCESSES", "3")):
        monkeypatch.setenv(f"JAX_{name}", value)
    monkeypatch.setenv("JAX_PROCESS_ID", "2")
    assert sweep.main(["--algo.gamma=0.9,1", "--num_shards=4", "--start_timeout=1"]) == 2
    said = "error: 3 processes do not divide num_shards=4; try 2 processes\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"rollout_length": 32},
            "{folder} holds a sweep with another config; choose another --run_dir, or repeat .*",
        ),
        pytest.param(
            {"run_dir": "elsewhere"},
            "elsewhere is not one folder for all processes, as that of a sweep has to be; .*",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_mistakes_end_two_processes_in_one_line_each(
    world, command, searched, changes, said, tmp_path
):
    """The second process is started in a folder of its own."""
    address = f"127.0.0.1:{free_port()}"
    how = {"module": "jaxrl_scale.sweep", "coordinator": address}
    arguments = command(searched[0], **changes)
    started = world.start_ranks(2, *arguments, ranks=[0], **how)
    within = {1: lambda *words: ["env", f"--chdir={tmp_path}", *words]}
    started |= world.start_ranks(2, *arguments, ranks=[1], withins=within, **how)
    told = said.format(folder=re.escape(str(searched[0].relative_to(world.folder))))
    for one in ended(started).values():
        assert one.status == 2
        assert re.fullmatch(rf"error: process \d of 2 on \S+: (ended by .*: )?{told}\n", one.err)


def test_without_optuna_a_line_says_how_to_install_it(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert sweep.main(["--draw=tpe", "--algo.gamma=0.9,1", "--agents=16"]) == 2
    assert capsys.readouterr() == (
        "",
        "error: --draw=tpe needs Optuna, which is not installed; make install EXTRA=search, or "
        "pip install optuna\n",
    )


def test_a_folder_of_another_sweep_is_left_alone(world, command, searched, capsys):
    folder, _ = searched
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    for name, changes in (
        ("settings", {"algo.gamma": "0.9,0.95"}),
        ("config", {"rollout_length": 32}),
        ("seeds", {"seeds": 4, "agents": 16}),
        ("rungs", {"rungs": 0}),
    ):
        assert sweep.main(command(folder, **changes)) == 2
        err = capsys.readouterr().err
        another = "another config" if name == "config" else f"other {name}"
        assert f"holds a sweep with {another}; choose another --run_dir, or repeat" in err
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()} == before


def test_a_sweep_goes_on_with_other_devices_and_under_another_name(tmp_path, monkeypatch):
    folder, trained = tmp_path / "moved", []

    def begun(*more):
        given = ["--algo.gamma=0.9,1", "--agents=2", "--seeds=1", f"--run_dir={folder}", *more]
        search = asked(*given)
        (chunk,) = search.plan.chunks(0, sweep._begin(search, None))
        return chunk

    chunk = begun()
    (folder / chunk.name).mkdir()
    told = json.loads((folder / "sweep.json").read_text())
    told["config"] |= {"devices": 1, "num_threads": 1}  # as earlier versions wrote it
    write_json(folder / "sweep.json", told)
    config = files.to_json(chunk.config.replace(run_dir="before/chunk0"))
    write_json(folder / chunk.name / "config.json", config)
    monkeypatch.setattr(sweep, "train_among", lambda peers, config, *_: trained.append(config))
    order = Order(begun("--devices=2", "--num_threads=3"), resume=True)
    sweep._obey(Peers(), StopRequest(), folder, order)
    assert [(x.devices, x.num_threads) for x in trained] == [(2, 3)]


def test_the_folder_of_a_run_is_no_folder_of_a_sweep(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunError, match="holds a run; choose another --run_dir"):
        sweep_file.begin(tmp_path, {"seeds": (1, 2)}, list)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


OWN = """
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxrl_scale.options import option, register


@register
@dataclass(frozen=True)
class Config:
    name: ClassVar[str] = "with_lists:Config"
    depends_on_budget: ClassVar[bool] = False
    sizes: tuple[int, ...] | None = option((1,), "whole numbers")
    scales: tuple[float, ...] = option((1.0,), "numbers")
    rate: float = option(1.0, "a number")

    def check(self, config):
        pass


def make(config, spec, pool):
    raise NotImplementedError
"""


def test_lists_of_an_algorithm_of_ones_own_are_values_and_semicolons_make_choices(
    tmp_path, monkeypatch
):
    (tmp_path / "with_lists.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    own = ["--config=none", "--algo=with_lists:Config"]
    given = ["--algo.sizes=1,2", "--algo.scales=0.5,0.7;1", "--algo.rate=1,2"]
    config, ranges = space.split([*own, *given])
    assert config.algo.sizes == (1, 2)
    assert ranges == [
        Range("algo.scales", "choices", ((0.5, 0.7), (1.0,))),
        Range("algo.rate", "choices", (1.0, 2.0)),
    ]
    options = {"algo": "with_lists:Config", "algo.sizes": (1, 2), "algo.scales": [(0.5, 0.7), (1,)]}
    path = write_sweep(tmp_path, options)
    said = space.with_file(["--config=none", f"--sweep={path}"])
    assert {"--algo.sizes=1,2", "--algo.scales=0.5,0.7;1"} <= {*said}
