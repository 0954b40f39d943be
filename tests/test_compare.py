"""The comparison of configs in environments: one tiny one for real, and its mistakes."""

import dataclasses
import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from processes import QUICKLY, SMALL, options, summary, well

from jaxrl_scale import child_runs, compare
from jaxrl_scale.config import Config, files
from jaxrl_scale.envs import scores
from jaxrl_scale.errors import RunError
from jaxrl_scale.records import past_run, statistics

ENVS = "CartPole-v1,gymnasium:CartPole-v1"
TINY = {k: v for k, v in SMALL.items() if k not in ("algo.minibatch_size", "algo.epochs")}
TINY |= {"iterations": 3, "eval_every": 0, "eval_episodes": 2, "hidden_sizes": 8}


def config_file(path, algo):
    path.write_text(
        f"from jaxrl_scale import Config\nfrom jaxrl_scale.algos import {algo}\n\n\n"
        f"def get_config():\n    return Config(algo={algo}.Config())\n"
    )
    return path


def command(folder, **changes):
    """A comparison of two environments for A2C, which compiles fastest."""
    own = {"configs": config_file(folder / "quick.py", "a2c"), "envs": ENVS, "seeds": 1}
    return options(own | TINY | {"run_dir": "compared"} | changes)


def test_a_comparison_trains_what_is_left_and_writes_its_results(world):
    """Of four runs the third is done by its task, the others by a call without a task."""
    tiny = command(world.folder, seeds=2, compilation_cache=world.cache)
    folder = world.folder / "compared"
    of_several = QUICKLY | child_runs.coordinates("127.0.0.1:1", 2, 0)  # which no run is told
    third = well(world.run(*tiny, "--task=2", module="jaxrl_scale.compare", environment=of_several))
    assert third.out.startswith("compared/CartPole-v1/quick/seed1: ")
    assert [path.name for path in folder.rglob("summary.json")] == ["summary.json"]
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}

    done = well(world.run(*tiny, module="jaxrl_scale.compare", environment=QUICKLY))
    assert "[3/4] compared/CartPole-v1/quick/seed1: it was done before\n" in done.out
    assert {p: p.stat().st_mtime_ns for p in before} == before
    told = json.loads((folder / "compare.json").read_text())
    assert [(x["env"], x["seeds"]) for x in told] == [(env, [0, 1]) for env in ENVS.split(",")]
    for one, env in zip(told, ("CartPole-v1", "gymnasium-CartPole-v1"), strict=True):
        both = [summary(folder / env / "quick" / f"seed{seed}") for seed in (0, 1)]
        means = [x["evaluation"]["mean"] for x in both]
        assert one["evaluation"]["per_agent"] == means
        assert one["evaluation"]["iqm"] == np.mean(means)
        assert one["wall_seconds"] == pytest.approx(np.mean([x["wall_seconds"] for x in both]))
        assert one["env_steps"] == sum(x["env_steps"] for x in both)
    table = (folder / "compare.md").read_text()
    assert table in done.out
    assert "Left out" not in table
    assert "| CartPole-v1/quick | CartPole-v1 | A2C | 2 (0 to 1) |" in table
    assert "Normalized" not in table  # no range was published
    page = (folder / "compare.html").read_text()
    assert page.count("data:image/png") >= 6
    assert "Over all games" not in page


# --- the numbers ----------------------------------------------------------------------------


def write_run(path, env, seed, final, test=None, status="done", rows=3):
    path.mkdir(parents=True)
    config = Config(env=env, seed=seed, algo=files.algos.get("a2c").Config())
    (path / "config.json").write_text(json.dumps(files.to_json(config)))
    failed = [0] if status == "failed" else []
    lines = [
        {"iteration": k, "env_steps": 100 * k, "wall_seconds": 2.0 * k, "compile_seconds": 1.0}
        | {"steps_per_second": 50.0 + seed, "episodes": 2, "return": final * k, "loss": 0.5}
        for k in range(1, rows + 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    told = {"status": status, "num_seeds": 1, "failed": failed, "compile_seconds": 1.0}
    told |= {"env_steps": 100 * rows, "wall_seconds": 6.0 + seed, "steps_per_second": 50.0 + seed}
    if not failed:
        told["evaluation"] = statistics.summarize(np.array([[final, final]]))
        told["evaluation"] |= {"length": 10 * final, "info": {"env/speed": 2 * final}}
        told |= {"test": statistics.summarize(np.array([[test, test]]))} if test else {}
    (path / "summary.json").write_text(json.dumps(told))


def test_seeds_stand_side_by_side_as_agents_of_one_run(tmp_path):
    for seed, final in ((4, 8.0), (5, np.nan), (7, 6.0)):
        status, rows = ("failed", 1) if seed == 5 else ("done", 3)
        write_run(tmp_path / str(seed), "CoinrunEasy-v0", seed, final, status=status, rows=rows)
    together = past_run.side_by_side([past_run.read(tmp_path / x) for x in "457"], tmp_path)
    assert (together.seeds, together.summary["failed"]) == ([4, 5, 7], [1])
    assert together.summary["evaluation"]["per_agent"] == [8, None, 6]
    assert together.summary["evaluation"]["iqm"] == 7
    assert together.summary["evaluation"]["length"] == 70
    assert together.summary["evaluation"]["info"] == {"env/speed": 14}
    assert together.summary["eval_normalized"] == pytest.approx(0.4)  # between 5 and 10
    assert together.summary["wall_seconds"] == 6 + 5.5  # of those that did not fail
    assert together.column("return").tolist() == [7, 14, 21]
    assert together.column("steps_per_second").tolist() == [55.5] * 3
    expected = [[8, np.nan, 6], [16, np.nan, 12], [24, np.nan, 18]]
    assert np.array_equal(together.per_agent("return"), expected, equal_nan=True)
    assert together.column("env_steps").tolist() == [300, 600, 900]  # of three agents


def test_seeds_that_lack_rows_are_compared_where_all_have_one(tmp_path):
    for seed, lost in (("0", "2"), ("1", "3")):
        write_run(tmp_path / seed, "CartPole-v1", int(seed), 9.0)
        path = tmp_path / seed / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(x for x in lines if f'"iteration": {lost}' not in x))
    together = past_run.side_by_side([past_run.read(tmp_path / x) for x in "01"], tmp_path)
    assert together.column("iteration").tolist() == [1]
    assert together.per_agent("return").tolist() == [[9, 9]]
    assert together.summary["env_steps"] == 600
    path.write_text("".join(x for x in lines if '"iteration": 2' in x))
    with pytest.raises(RunError, match="have no rows of the same iteration"):
        past_run.side_by_side([past_run.read(tmp_path / x) for x in "01"], tmp_path)


def test_a_run_of_several_agents_is_no_seed_beside_others(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / str(seed), "CartPole-v1", seed, 9.0)
    one, other = (past_run.read(tmp_path / x) for x in "01")
    several = dataclasses.replace(other, config=other.config.replace(num_seeds=4))
    with pytest.raises(RunError, match="1 has 4 agents, and the runs beside it are one agent each"):
        past_run.side_by_side([one, several], tmp_path)


def test_a_time_that_some_seeds_do_not_have_is_none_of_all(tmp_path):
    """Else the mean would be that of the quick ones."""
    for seed, reached in ((0, 30.0), (1, None)):
        write_run(tmp_path / str(seed), "CartPole-v1", seed, 9.0)
        path = tmp_path / str(seed) / "summary.json"
        told = json.loads(path.read_text()) | {"seconds_to_target": reached}
        path.write_text(json.dumps(told))
        del told["evaluation"]["length"], told["evaluation"]["info"]  # of an earlier version
        path.write_text(json.dumps(told))
    together = past_run.side_by_side([past_run.read(tmp_path / x) for x in "01"], tmp_path)
    assert together.summary["seconds_to_target"] is None
    assert together.summary["evaluation"]["length"] is None


def test_configs_are_compared_with_the_first_one_in_every_environment(tmp_path, capsys):
    def write(env, config, *finals):
        for seed, final in enumerate(finals):
            status = "failed" if np.isnan(final) else "done"
            write_run(tmp_path / env / config / f"seed{seed}", env, seed, final, status=status)

    write("CartPole-v1", "One", 100.0, 200.0, 300.0, 400.0)
    write("CartPole-v1", "two", 110.0, np.nan, 310.0, 410.0)
    write("Acrobot-v1", "One", -80.0)
    write("Acrobot-v1", "two", -90.0)
    write("Pendulum-v1", "two", -200.0)
    write("MountainCar-v0", "One", -100.0, np.nan)
    write("MountainCar-v0", "two", np.nan, np.nan)
    changed = json.loads((tmp_path / "Acrobot-v1/two/seed0/config.json").read_text())
    changed["env_kwargs"] = {"gravity": 5.0}
    (tmp_path / "Acrobot-v1/two/seed0/config.json").write_text(json.dumps(changed))
    assert compare.main(["--analyse", str(tmp_path)]) == 0
    table = (tmp_path / "compare.md").read_text()
    assert "| against One | two |" in table
    assert "| CartPole-v1 | 10.0 (10.0 to 10.0) |" in table  # of equal seeds, without the failed
    assert "| Acrobot-v1 | -10.0 |" in table
    assert "| Pendulum-v1 |" not in table.split("against")[1]
    assert "| MountainCar-v0 |" not in table.split("against")[1]
    assert "The configs differ in the env_kwargs of Acrobot-v1." in table
    assert "<h2>Against One</h2>" in (tmp_path / "compare.html").read_text()
    capsys.readouterr()


def test_over_all_games_are_those_that_all_configs_have_played(tmp_path, capsys):
    def write(env, config, *finals):
        for seed, final in enumerate(finals):
            write_run(tmp_path / env / config / f"seed{seed}", env, seed, final, test=final - 1)

    write("CoinrunEasy-v0", "one", 10.0, 9.0)  # of 5 to 10: 1.0, 0.8
    write("CoinrunEasy-v0", "two", 5.0, 5.0)
    write("MazeEasy-v0", "one", 6.0, 7.0)  # of 5 to 10: 0.2, 0.4
    write("MazeEasy-v0", "two", 10.0, 10.0)
    write("LeaperEasy-v0", "one", 10.0)
    assert compare.main(["--analyse", str(tmp_path)]) == 0
    table = (tmp_path / "compare.md").read_text()
    assert table in capsys.readouterr().out
    # The two in the middle of 0.2, 0.4, 0.8 and 1.0; each game's seeds are drawn by themselves, so
    # that the least has twice 0.2 and twice 0.8.
    assert "| one | 2 | 0.60 (0.50 to 0.70) | 0.40 (0.30 to 0.50) |" in table
    assert "| two | 2 | 0.50 (0.50 to 0.50) | 0.30 (0.30 to 0.30) |" in table
    assert "| MazeEasy-v0/one | MazeEasy-v0 | A2C | 2 (0 to 1) |" in table
    page = (tmp_path / "compare.html").read_text()
    assert "Over all games" in page
    assert scores.normalized("MazeEasy-v0", 6.0) == pytest.approx(0.2)
    assert (tmp_path / "compare-bars-eval_normalized.png").exists()


@pytest.mark.parametrize("task", [{}, {"task": 0}])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_it_in_one_line(monkeypatch, capsys, tmp_path, number, task):
    monkeypatch.setattr(compare, "plan", lambda *_: [compare.Task(tmp_path / "seed0", [])])
    monkeypatch.setattr(compare, "train", lambda *_: os.kill(os.getpid(), number))
    assert compare.main(list(map(str, command(tmp_path, run_dir=tmp_path, **task)))) == 75
    assert capsys.readouterr() == ("", "\ninterrupted; the same command continues\n")
    assert signal.getsignal(number) == signal.SIG_DFL


def test_a_run_that_did_not_end_well_is_told_and_the_others_are_compared(
    monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(tmp_path)
    folder = Path("compared", "CartPole-v1", "quick")
    write_run(folder / "seed0", "CartPole-v1", 0, 10.0)
    write_run(folder / "seed1", "CartPole-v1", 1, 10.0, status="stopped")
    (folder / "seed2").mkdir()
    (folder / "seed2" / "process0.log").write_text("error: no room\n")
    write_run(folder / "seed3", "CartPole-v1", 3, 10.0, status="failed", rows=0)
    write_run(folder / "seed4", "CartPole-v1", 4, 10.0, rows=0)
    write_run(folder / "seed5", "CartPole-v1", 5, 10.0)
    damaged = folder / "seed5" / "metrics.jsonl"
    damaged.write_text(damaged.read_text().replace('"loss"', "loss", 1))
    tasks = [compare.Task(folder / f"seed{k}", []) for k in (0, 1, 4)]
    monkeypatch.setattr(compare, "plan", lambda *_: tasks)
    monkeypatch.setattr(compare, "train", lambda *_: 3)
    read, times = past_run.read_any, []
    monkeypatch.setattr(past_run, "read_any", lambda path: times.append(path) or read(path))
    assert compare.main(list(map(str, command(tmp_path)))) == 1
    assert times == [folder / f"seed{k}" for k in (0, 1, 3, 4, 5)], "each is read once"
    said = "error: 2 runs did not end well; the same command tries again\n"
    assert capsys.readouterr().err == said
    table = (tmp_path / "compared" / "compare.md").read_text()
    assert "| CartPole-v1/quick | CartPole-v1 | A2C | 1 (seed 0) |" in table
    assert "| - | 0 | - |" in table, "worst seed and training return have none, in one sign"
    left_out = (
        "\n\nLeft out is what has no results: CartPole-v1/quick/seed1 (stopped: iteration 3 of "
        "123), CartPole-v1/quick/seed2 (no room), CartPole-v1/quick/seed3 (failed: iteration 0 of "
        "123, without metrics), CartPole-v1/quick/seed4 (done: iteration 0 of 123, without "
        "metrics), CartPole-v1/quick/seed5 (compared/CartPole-v1/quick/seed5/metrics.jsonl, line 1 "
        "is damaged).\n"
    )
    assert table.endswith(left_out)
    page = (tmp_path / "compared" / "compare.html").read_text()
    assert f"<p>{left_out.strip()}</p>" in page


def test_a_run_that_another_comparison_trains_meanwhile_has_ended_well(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    runs = [Path("compared/CartPole-v1/quick", f"seed{seed}") for seed in (0, 1)]
    monkeypatch.setattr(compare, "plan", lambda *_: [compare.Task(run, []) for run in runs])

    def train(task, before):  # the first is in use when it has its turn
        for seed, run in enumerate(runs if task.run == runs[1] else ()):
            write_run(run, "CartPole-v1", seed, 10.0)

    monkeypatch.setattr(compare, "train", train)
    monkeypatch.setattr(compare, "write_results", lambda runs: None)
    assert compare.main(list(map(str, command(tmp_path)))) == 0


def test_what_another_command_trains_is_left_to_it_and_its_log_is_its_own(tmp_path, capsys):
    run = tmp_path / "CartPole-v1" / "quick" / "seed0"

    def launch(arguments, path):
        def fail(*_):
            pytest.fail("two commands train it")

        assert child_runs.train(path, [], fail, "[1/1] ") == 2
        assert capsys.readouterr().out == f"[1/1] {run}: another command trains it now\n"
        return child_runs.together(path, ["false"], [os.environ])

    for _ in range(2):  # the second time is the first one's no more
        assert child_runs.train(run, [], launch) == 1
        assert "exit status 1: its processes wrote nothing" in capsys.readouterr().out
    assert (run / "process0.log").read_text() == ""


def test_a_run_that_ended_again_is_told_without_an_error_of_an_earlier_start(tmp_path, capsys):
    run = tmp_path / "seed0"

    def ending(words):
        program = ["sh", "-c", f"echo {words}; exit 3"]
        return lambda arguments, path: child_runs.together(path, program, [os.environ])

    for words, said in (("error: no room", "no room"), ("50%", "50%")):
        assert child_runs.train(run, [], ending(words)) == 3
        assert capsys.readouterr().out == f"{run}: exit status 3: {said}\n"


def test_a_run_that_somebody_began_otherwise_meanwhile_is_no_part_of_a_comparison(tmp_path):
    write_run(tmp_path / "seed0", "CartPole-v1", 0, 10.0)
    task = compare.Task(tmp_path / "seed0", ["--env=CartPole-v1", "--algo=a2c", "--hidden_sizes=8"])
    with pytest.raises(RunError, match="has begun with hidden_sizes="):
        compare.train(task)


def test_folders_beside_the_runs_of_a_comparison_are_no_seeds(tmp_path):
    """As where a run was moved away or copied before it was trained again."""
    for name in ("seed0", "seed1", "seed0.old", "seed1 copy", "seeds"):
        write_run(tmp_path / "CartPole-v1" / "quick" / name, "CartPole-v1", 0, 10.0)
    assert [path.name for path in compare.read(tmp_path).ended] == ["seed0", "seed1"]


# --- mistakes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"envs": ""}, "give --envs=NAME,... and --configs=FILE,... to train, or --analyse=FOLDER"),
        ({"envs": "CartPol-v1"}, "unknown environment 'CartPol-v1'. Did you mean 'CartPole-v1'?"),
        ({"envs": "CartPole-v1,CartPole-v1"}, "two runs would be in "),
        ({"configs": "nowhere.py"}, "config file nowhere.py does not exist"),
        ({"seeds": 0}, "--seeds: '0' should be a whole number of at least 1"),
        (
            {"wandb_project": "env", "seed": 3},
            "--seed is given by the comparison itself; give --seeds",
        ),
        ({"env": "CartPole-v1"}, "--env is given by the comparison itself; give --envs"),
        ({"total_step": 9}, "unknown option --total_step; did you mean --total_steps?"),
        ({"num_envs": 3}, "num_envs=3 does not divide by num_shards=4"),
        ({"task": 2}, "--task=2 should be less than 2, the runs there are"),
        ({"analyse": "."}, "--analyse trains nothing; give no other option with it"),
    ],
)
def test_mistakes_are_told_in_one_line(monkeypatch, capsys, tmp_path, changes, said):
    monkeypatch.chdir(tmp_path)
    assert compare.main(list(map(str, command(tmp_path, **changes)))) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {said}")
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["quick.py"]


def test_a_pair_that_does_not_fit_is_refused_before_anything_is_trained(
    monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare, "train", lambda *_: pytest.fail("it trains"))
    changes = {"envs": "CartPole-v1,Pendulum-v1", "configs": config_file(tmp_path / "q.py", "dqn")}
    assert compare.main(list(map(str, command(tmp_path, **changes)))) == 2
    said = "error: algo dqn needs discrete actions, but those of Pendulum-v1 are continuous, "
    assert capsys.readouterr().err.startswith(said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q.py", "quick.py"]


def test_a_policy_that_does_not_fit_is_refused_before_anything_is_trained(
    reference, monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare, "train", lambda *_: pytest.fail("it trains"))
    changes = {"init_from": reference, "hidden_sizes": 8}
    assert compare.main(list(map(str, command(tmp_path, **changes)))) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(rf"error: init_from={reference}.* \[16.*\] there and \[8.*\] here.*\n", err)
    assert [path.name for path in tmp_path.iterdir()] == ["quick.py"]


def test_a_folder_of_another_comparison_is_left_alone(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "compared/CartPole-v1/quick/seed0", "CartPole-v1", 0, 10.0)
    assert compare.main(list(map(str, command(tmp_path)))) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: compared/CartPole-v1/quick/seed0 has begun with hidden_sizes=")
    assert said.endswith("; choose another --run_dir\n")
    assert compare.main(["--analyse", "nowhere", "--seeds=2"]) == 2
    assert capsys.readouterr().err.startswith("error: --analyse trains nothing; give no other")
    assert compare.main(["--analyse", "nowhere"]) == 2
    assert capsys.readouterr().err == "error: no run of nowhere has come to its end\n"
