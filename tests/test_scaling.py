"""The scaling study: its numbers by hand, its mistakes, and one tiny series for real."""

import dataclasses
import json
import os
import signal
import sys
import time

import imageio.v3 as iio
import numpy as np
import pytest
from processes import SMALL, Screen, options, rows, summary, well

from jaxrl_scale import child_runs, envs, scaling
from jaxrl_scale.config import Config, command_line, files
from jaxrl_scale.errors import RunError
from jaxrl_scale.figures import scaling_plots
from jaxrl_scale.figures.plot_style import COLORS, new_figure, png
from jaxrl_scale.records import past_run, statistics
from jaxrl_scale.records import study as studies
from jaxrl_scale.records.past_run import Trace
from jaxrl_scale.records.study import Point, Result


def point(**changes):
    whole = {"mode": "strong", "nodes": None, "processes": 1, "threads": 1, "devices": None}
    return Point(**(whole | {"base_envs": 8, "num_envs": 8} | changes))


def trace(speed=100.0, devices=1, final=(-80.0,), **curves):
    """By default three rows at 10, 20 and 30 iterations, with the returns -500, -300, -100."""
    whole = {
        "iterations": [10, 20, 30],
        "steps": [1000, 2000, 3000],
        "seconds": [5, 10, 15],
        "returns": [[-500.0] * len(final), [-300.0] * len(final), [-100.0] * len(final)],
    }
    arrays = {name: np.array(x, float) for name, x in (whole | curves).items()}
    last = {"final": np.array(final, float), "speed": speed, "compile_seconds": 2.0}
    return Trace(devices=devices, **arrays, **last)


def result(point, *traces, repeats=(), seeds=range(100)):
    """What runs say that began with these seeds, each of as many agents as its trace has."""
    agents = zip(seeds, traces, strict=False)
    configs = [Config(seed=seed, num_seeds=len(one.final)) for seed, one in agents]
    return Result(point, configs, list(traces), list(repeats))


def write_run(
    path, *, speeds, status="done", failed=(), final=(-80.0, -90.0), devices=1, **options
):
    """A run directory with a row every 2 iterations, of 2 agents with 8 environments × 10 steps;
    row ``k`` (from 1) has the running returns -500 + 100 k and -500 + 50 k, and took 3 s."""
    path.mkdir(parents=True)
    lines = []
    for k, speed in enumerate(speeds, 1):
        returns = [-500 + 100 * k, -500 + 50 * k]  # until it failed it had some, too
        row = {"iteration": 2 * k, "env_steps": 2 * 160 * k, "steps_per_second": speed}
        row |= {"wall_seconds": 4 + 3 * k, "compile_seconds": 4, "return_100": -1}
        lines.append(json.dumps(row | {"per_agent": {"return_100": returns}, "failed": [*failed]}))
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    config = Config(env="Acrobot-v1", num_seeds=2, **options)
    (path / "config.json").write_text(json.dumps(files.to_json(config)))
    (path / "run.json").write_text(json.dumps({"starts": [{"devices": ["cpu"] * devices}]}))
    evaluation = statistics.summarize(np.array(final)[:, None], failed)
    done = {"status": status, "num_seeds": 2, "failed": [*failed], "compile_seconds": 4.0}
    (path / "summary.json").write_text(json.dumps(done | {"evaluation": evaluation}))


def write_study(folder, *points):
    folder.mkdir(parents=True, exist_ok=True)
    machine = {"processor": "Abacus", "cores": 2, "versions": {"jax": "1.2"}, "date": "2026-11-21"}
    study = {"config": "acrobot.py", "options": [], "commands": ["python -m x"], "machine": machine}
    points = [dataclasses.asdict(p) for p in points]
    (folder / "study.json").write_text(json.dumps(study | {"points": points}))


# --- the numbers ----------------------------------------------------------------------------


def test_the_speed_is_the_median_after_the_first_tenth():
    speeds = {1: 1.0, 2: 800.0, 3: 900.0, 10: 100.0, 20: 200.0, 30: 5.0}
    told = [{"iteration": k, "steps_per_second": v} for k, v in speeds.items()]
    assert past_run.steps_per_second(told) == 100.0  # of 100, 200 and 5: the others end by 3
    assert past_run.steps_per_second(told[-2:]) == 5.0  # the first row never counts
    assert past_run.steps_per_second(told[:1]) == 1.0  # unless it is alone


def test_a_run_directory_is_read_without_its_compilation_and_failed_agents(tmp_path):
    write_run(tmp_path / "run", speeds=[1, 20, 30], failed=[1], devices=2)
    read = past_run.read_trace(tmp_path / "run")
    assert read.steps.tolist() == [160, 320, 480]  # of one agent
    assert read.seconds.tolist() == [3, 6, 9]
    assert read.iterations.tolist() == [2, 4, 6]
    assert read.returns[:, 0].tolist() == [-400, -300, -200]
    assert np.isnan(read.returns[:, 1]).all()
    assert (read.final[0], np.isnan(read.final[1])) == (-80, True)
    assert (read.speed, read.devices, read.compile_seconds) == (25, 2, 4)


def test_curves_are_interpolated_and_never_before_their_first_number():
    x = np.array([10.0, 20.0, 40.0])
    y = np.array([[1.0, np.nan], [2.0, 5.0], [4.0, 9.0]])
    assert past_run.at(x, y, 15)[0] == 1.5
    assert np.isnan(past_run.at(x, y, 15)[1])
    assert past_run.at(x, y, 30).tolist() == [3, 7]
    assert np.isnan(past_run.at(x, y, 9)).all()


def test_speed_up_and_efficiency_are_against_the_first():
    one = result(point(), trace(100.0), repeats=[trace(120.0), trace(80.0)])
    others = [trace(170.0, 2), trace(20.0, 2)]
    two = result(point(processes=2), trace(150.0, 2), repeats=others)
    first, second = studies.compare([one, two], None)
    assert (first["steps_per_second"], first["speedup"], first["efficiency"]) == (100, 1, 1)
    assert second["steps_per_second"] == 150
    assert second["steps_per_second_range"] == [20, 170]
    assert (second["speedup"], second["efficiency"]) == (1.5, 0.75)
    assert (second["runs"], second["seeds"], second["all_devices"]) == (3, 1, 2)
    # The same machine with more environments scales nothing.
    more = result(point(num_envs=16), trace(300.0))
    first, second = studies.compare([one, more], None)
    assert (second["speedup"], second["efficiency"]) == (3, None)


def test_equal_budgets_are_those_of_the_run_that_has_least():
    small = result(point(), trace(final=(-80.0, -90.0)))
    # Ten times the steps in twice the time.
    wide = trace(steps=[1e4, 2e4, 3e4], seconds=[10, 20, 30], final=(-70.0, -74.0))
    first, second = studies.compare([small, result(point(num_envs=80), wide)], None)
    told = {axis: found["at"] for axis, found in first["returns"].items()}
    assert told == {"iterations": 30, "steps": 3000, "seconds": 15}
    assert [found["iqm"] for found in first["returns"].values()] == [-85, -100, -100]
    # 3,000 steps come before its first row; after 15 s it is between -500 and -300.
    assert [found["iqm"] for found in second["returns"].values()] == [-72, None, -400]
    assert [x["difference"] for x in second["returns"].values()] == [13, None, -300]
    # Fewer iterations: the evaluations at the end no longer compare.
    brief = trace(iterations=[10, 20, 25], final=(-60.0,))
    first, second = studies.compare([small, result(point(num_envs=80), brief)], None)
    assert first["returns"]["iterations"]["at"] == 25
    assert first["returns"]["iterations"]["iqm"] == -200
    assert second["returns"]["iterations"]["iqm"] == -100


def test_the_same_seeds_are_compared_where_other_agents_failed_on_each_side():
    """Without the agents that failed on either side both have the same returns."""

    def of_eight(failed):
        final = 100.0 * np.arange(8)
        final[failed] = np.nan
        return trace(final=final, returns=[final] * 3)

    both = [result(point(), of_eight(0)), result(point(processes=2), of_eight(7))]
    first, second = studies.compare(both, None)
    for budget in ("iterations", "steps", "seconds"):
        ours, theirs = second["returns"][budget], first["returns"][budget]
        assert (ours["difference"], ours["difference_ci95"]) == (0, [0, 0])
        # 100 ... 700 and 0 ... 600, each without its least and its greatest.
        assert (theirs["iqm"], ours["iqm"]) == (400, 300)


def test_as_many_agents_of_other_seeds_are_not_compared_one_by_one():
    """As where a run of either side did not come to its end."""
    runs = [trace(final=(0.0,)), trace(final=(100.0,))]

    def interval(seeds):
        there = result(point(processes=2), *runs, seeds=seeds)
        second = studies.compare([result(point(), *runs, seeds=(0, 1)), there], None)[1]
        return second["returns"]["iterations"]["difference_ci95"]

    assert interval((0, 1)) == [0, 0]
    assert interval((0, 2)) == [-100, 100]


def test_a_curve_is_of_the_agents_that_did_not_fail():
    returns = [[-500.0, np.nan], [-300.0, np.nan], [-100.0, np.nan]]
    found = studies.curves(result(point(), trace(final=(-80.0, np.nan), returns=returns)))
    assert found["steps"][1].tolist() == found["seconds"][1].tolist() == [-500, -300, -100]


def test_of_several_errors_in_the_logs_of_a_run_the_last_is_told(tmp_path):
    assert past_run.last_error(tmp_path) == "its processes wrote nothing"
    (tmp_path / "process0.log").write_text("error: an old one\n  10%\nerror: the last one\nbye\n")
    assert past_run.last_error(tmp_path) == "the last one"


def test_failed_and_stuck_seeds_are_counted():
    final = (-500.0, -495.5, -494.5, -80.0, np.nan)
    runs = [trace(final=final), trace(final=(-81.0,))]  # --seeds=2
    worst = envs.make("Acrobot-v1").spec.worst_return
    (told,) = studies.compare([result(point(), *runs)], worst)
    assert (told["stuck"], told["failed"], told["worst"], told["seeds"]) == (2, 1, -500, 6)
    (told,) = studies.compare([result(point(), *runs)], -80.0)
    assert told["stuck"] == 5  # as bad as -79.2
    (told,) = studies.compare([result(point(), *runs)], None)
    assert told["stuck"] is None


def test_series_compare_equal_environments_where_machines_differ():
    def names(*points):
        series = studies.all_series([result(p, trace()) for p in points])
        return [[each.point.name for each in one] for one in series]

    grid = [point(processes=p, base_envs=e, num_envs=e) for p in (1, 2) for e in (8, 80)]
    assert names(*grid) == [
        ["strong-1x1-8envs", "strong-2x1-8envs"],
        ["strong-1x1-80envs", "strong-2x1-80envs"],
    ]
    assert names(*grid[:2]) == [["strong-1x1-8envs", "strong-1x1-80envs"]]
    weak = point(mode="weak", processes=2, num_envs=16)
    assert names(grid[0], grid[2], weak)[1] == ["weak-2x1-16envs"]


def test_a_study_is_analysed_from_its_folder(tmp_path, capsys):
    one, two, three = point(), point(processes=2), point(processes=4)
    write_study(tmp_path, one, two, three)
    write_run(tmp_path / one.name / "seed0-repeat0", speeds=[1, 100_000, 100_000])
    write_run(tmp_path / two.name / "seed0-repeat0", speeds=[1, 180_000, 180_000], devices=2)
    write_run(tmp_path / two.name / "seed0-repeat1", speeds=[1, 190_000, 190_000], devices=2)
    write_run(tmp_path / two.name / "seed0-repeat1.old", speeds=[1, 900, 900])  # moved away
    write_run(tmp_path / three.name / "seed0-repeat0", speeds=[1, 1, 1], status="stopped")
    assert scaling.main(["--analyse", str(tmp_path)]) == 0
    table = (tmp_path / "scaling.md").read_text()
    assert table in capsys.readouterr().out
    assert "Abacus, 2 cores; jax 1.2; 2026-11-21." in table
    assert "| 1 process × 1 core | 1 | 8 | 100k | 1.00 | 100 % | 4.0 s |" in table
    assert "| 2 processes × 1 core | 2 | 8 | 185k (180k to 190k) | 1.85 | 92 % | 4.0 s |" in table
    assert "4 processes" not in table
    # -80 and -90 at the end; the running returns there -200 and -350, both after 9 s.
    line = next(x for x in table.splitlines() if x.startswith("| 2 processes × 1 core | 2 | −85.0"))
    assert line.count(" −275.0 (−350.0 to −200.0) | 0.0 (0.0 to 0.0) |") == 2
    assert "final evaluation, with greedy actions." in table
    assert "return at 6 iterations" in table
    assert "return at 480 steps" in table
    assert "return at 9 s" in table
    told = json.loads((tmp_path / "scaling.json").read_text())
    assert told["series"][0][1]["efficiency"] == pytest.approx(0.925)
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_equal_curves_do_not_hide_each_other():
    points = [point(processes=k) for k in (1, 2, 4)]
    series = studies.compare([result(one, trace()) for one in points], None)
    figure = new_figure(4, 3)
    axes = figure.subplots()
    curves = [studies.curves(result(one, trace())) for one in points]
    scaling_plots._draw_curves(axes, [series], [curves], "steps")
    axes.get_legend().remove()
    picture = iio.imread(png(figure), extension=".png")[..., :3]
    for color in COLORS[:3]:
        assert (picture == list(bytes.fromhex(color[1:]))).all(2).sum() > 100


def test_the_table_says_which_actions_the_evaluations_took(tmp_path):
    one, two = point(), point(processes=2)
    write_study(tmp_path, one, two)
    for place, greedy in ((one, False), (two, True)):
        write_run(tmp_path / place.name / "seed0-repeat0", speeds=[1, 2], eval_greedy=greedy)
        scaling.write_results(tmp_path)
        table = (tmp_path / "scaling.md").read_text()
        assert ("greedy" in table.replace("eval_greedy", "")) == greedy
        where = " where eval_greedy is false, and else with greedy ones" * greedy
        assert f"final evaluation, with sampled actions{where}." in table


# --- what to run, and mistakes --------------------------------------------------------------


def planned(monkeypatch, arguments, cores=8, gpus=()):
    monkeypatch.setattr(scaling, "visible_cores", lambda: list(range(cores)))
    monkeypatch.setattr(scaling, "visible_gpus", lambda: list(gpus))
    args, options = scaling.parse(["--config", str(CONFIG), *arguments])
    return scaling.plan(scaling.base(args, options), args, options)


CONFIG = scaling.Path(__file__).parent.parent / "configs" / "acrobot.py"  # 128 envs, 8 shards


def test_the_axes_are_combined(monkeypatch):
    def told(arguments, **machine):
        points = planned(monkeypatch, arguments, **machine)
        return [(p.processes, p.threads, p.devices, p.num_envs) for p in points]

    assert told(["--processes=1,2"]) == [(1, 8, None, 128), (2, 4, None, 128)]
    assert told(["--processes=1x8,4x2"]) == [(1, 8, None, 128), (4, 2, None, 128)]
    assert told(["--devices=1,2"]) == [(1, 1, 1, 128), (1, 2, 2, 128)]
    assert told(["--devices=1,2"], gpus="ab") == [(1, 8, 1, 128), (1, 8, 2, 128)]
    assert told(["--threads", "1,2", "--num_envs", "64,128"]) == [
        *((1, 1, None, 64), (1, 1, None, 128)),
        *((1, 2, None, 64), (1, 2, None, 128)),
    ]
    weak = ["--processes=1,2", "--threads=1", "--mode=both", "--num_envs=128"]
    assert told(weak) == [
        *((1, 1, None, 128), (2, 1, None, 128)),
        *((1, 1, None, 128), (2, 1, None, 256)),
    ]
    # A minibatch that fits to the axis and not to the config's 128 environments × 64 steps.
    assert told(["--num_envs=1024", "--", "--algo.minibatch_size=16384"])[0][3] == 1024
    assert told([*weak[:1], "--mode=weak", "--devices=2"], gpus="ab")[1][3] == 512


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prosesses=1"], "unknown option --prosesses; did you mean --processes?"),
        (["--total_steps=9"], "unknown option --total_steps; those for the trainer follow --"),
        (["--processes=1,,2"], "--processes: '' should be a whole number of at least 1"),
        (["--processes=0"], "--processes: '0' should be a whole number of at least 1"),
        (["--processes=2xa"], "--processes: 'a' should be a whole number of at least 1"),
        (["--threads"], "--threads needs a value; write --threads=VALUE"),
        (["--seeds=1,2"], "--seeds: '1,2' should be a whole number of at least 1"),
        (["--mode=soft"], "--mode=soft should be one of strong, weak, both"),
        (["--processes=3"], "3 processes divide neither num_shards=8 nor num_seeds=1; try 2"),
        (["--processes=16x1"], "--processes=16x1 takes 16 cores, and this machine has"),
        (["--processes=1x2", "--threads=2"], "--processes gives the cores already (1x32); leave"),
        (["--devices=3"], "devices=3 divides neither num_shards=8 nor num_seeds=1"),
        (["--num_envs=100"], "num_envs=100 does not divide by num_shards=8"),
        (["--nodes=2"], "--nodes works in a Slurm job (sbatch, salloc), not in one of its steps"),
        (["--", "--total_step=9"], "unknown option --total_step; did you mean --total_steps?"),
        (
            ["--", "--wandb_project", "config", "--run_dir=x"],
            "--run_dir cannot follow --: the study itself gives it",
        ),
        (["--num_envs=8", "--", "--num_envs=8"], "--num_envs cannot follow --"),
        (["--analyse=x"], "--analyse trains nothing; leave --config out"),
    ],
)
def test_mistakes_are_told_in_one_line(monkeypatch, capsys, tmp_path, arguments, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scaling, "visible_cores", lambda: list(range(8)))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert scaling.main(["--config", str(CONFIG), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {said}")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_run_is_no_folder_of_a_study(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunError, match="holds a run; choose another --out"):
        studies.prepare(tmp_path, "acrobot.py", [], [point()])
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_folder_without_a_study_and_one_of_another_training(tmp_path):
    with pytest.raises(RunError, match=r"holds no scaling study: it has no study\.json"):
        scaling.write_results(tmp_path)
    write_study(tmp_path, point())
    with pytest.raises(RunError, match=r"no run of .* has come to its end"):
        scaling.write_results(tmp_path)
    studies.prepare(tmp_path, "acrobot.py", [], [point(), point(processes=2)])
    points = json.loads((tmp_path / "study.json").read_text())["points"]
    assert [p["processes"] for p in points] == [1, 2]
    (tmp_path / "study.json").write_text('{"points": [{"cores": 3}]}')
    with pytest.raises(RunError, match=r"study\.json is damaged, or of another version"):
        scaling.write_results(tmp_path)
    write_study(tmp_path, point())
    with pytest.raises(RunError, match=r"another training \(acrobot.py\); choose another --out"):
        studies.prepare(tmp_path, "acrobot.py", ["--iterations=3"], [point()])


def test_nodes_go_through_srun(monkeypatch, tmp_path):
    """A stand-in for srun writes down how it was called."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\necho "$@ $JAX_NUM_PROCESSES"\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "7")  # of whoever started the study
    wide = point(nodes=2, processes=4, threads=8)
    assert scaling.launch(wide, ["--seed=1"], tmp_path / "run") == 0
    said = (tmp_path / "run" / "process0.log").read_text()
    assert said.startswith("--nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=8 ")
    assert said.endswith("-m jaxrl_scale.train --seed=1 \n")


# --- for real -------------------------------------------------------------------------------


def study(world, *axes, **changes):
    """The command of a tiny study in the folder ``study``."""
    quiet = {"checkpoint_every": 10_000, "eval_every": 0, "eval_episodes": 4}
    tiny = SMALL | {"compilation_cache": world.cache} | quiet | changes
    own = {"config": world.folder / "tiny.py", "out": "study"}
    (world.folder / "tiny.py").write_text(
        "from jaxrl_scale import Config\n\n\ndef get_config():\n    return Config()\n"
    )
    for axis in axes:
        tiny.pop(axis.split("=")[0].removeprefix("--"), None)
    return [*options(own), *axes, "--", *options(tiny)]


CORES = len(scaling.visible_cores())


def test_a_terminal_shows_what_a_run_prints_while_it_trains(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stderr", Screen())
    text = "import sys, time; print('  6%   40 steps', flush=True); time.sleep(1.2); sys.exit(3)"
    run, program = tmp_path / "run", [sys.executable, "-c", text]
    assert child_runs.together(run, program, [dict(os.environ)]) == 3
    assert "6% 40 steps" in sys.stderr.getvalue()
    assert child_runs.last_line(run / "process0.log") == "6% 40 steps"
    (run / "process0.log").write_text("")
    assert child_runs.last_line(run / "process0.log") == ""


def test_a_tiny_series_trains_and_a_second_call_adds_to_it(world):
    first = well(world.run(*study(world, "--threads=1"), module="jaxrl_scale.scaling"))
    run = world.folder / "study" / "strong-1x1-16envs" / "seed0-repeat0"
    assert first.out.startswith("[1/1] study/strong-1x1-16envs/seed0-repeat0: ")
    assert summary(run)["status"] == "done"
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}

    more = "2" if CORES > 1 else "1"
    again = study(world, "--threads=1", f"--processes=1,{more}")
    second = well(world.run(*again, module="jaxrl_scale.scaling"))
    assert (
        "[1/2] study/strong-1x1-16envs/seed0-repeat0: it was done before\n" in second.out
        or CORES == 1
    )
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before
    (told,) = json.loads((world.folder / "study" / "scaling.json").read_text())["series"]
    assert [each["all_processes"] for each in told] == [1, 2][:CORES]
    if CORES > 1:
        two = world.folder / "study" / "strong-2x1-16envs" / "seed0-repeat0"
        assert rows(two) == rows(run)  # the same learning, to the last bit
        assert told[1]["all_devices"] == 2
        returns = told[1]["returns"]["iterations"]
        assert (returns["difference"], returns["difference_ci95"]) == (0, None)  # of one seed
        assert (two / "process1.log").exists()


def test_an_interrupted_study_goes_on_where_it_was(world):
    long = study(world, "--threads=1", iterations=2000, log_every=40)
    long[3] = "interrupted"
    run = world.folder / "interrupted" / "strong-1x1-16envs" / "seed0-repeat0"
    with world.start("scaling", *long, module="jaxrl_scale") as process:
        while not (run / "metrics.jsonl").exists() or not rows(run):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (75, "\ninterrupted; the same command continues\n")
    assert summary(run)["status"] == "stopped"
    reached = summary(run)["iterations"]
    assert 0 < reached < 2000
    done = well(world.run(*long, module="jaxrl_scale.scaling"))
    assert "steps/s, return" in done.out
    assert summary(run)["status"] == "done"
    assert [row["iteration"] for row in rows(run)] == list(range(40, 2001, 40))
    starts = json.loads((run / "run.json").read_text())["starts"]
    assert [start["resumed_from"] for start in starts] == [0, reached]


def test_no_two_agents_of_a_point_have_the_same_seed(monkeypatch, tmp_path):
    begun = []
    monkeypatch.setattr(child_runs, "train", lambda run, arguments, *_: begun.append(arguments))
    own = ["--num_seeds=4", "--algo.minibatch_size=64", "--seed=1"]
    args, options = scaling.parse(["--config=none", "--seeds=3", "--", *own])
    config, points = scaling.base(args, options), [point(), point(processes=2)]
    assert scaling.run_all(config, points, tmp_path, args, options) == 6
    assert [told[-1] for told in begun] == [f"--seed={k}" for k in (1, 1, 5, 5, 9, 9)]

    write_run(tmp_path / points[1].name / "seed9-repeat0", speeds=[1])  # somebody's own
    with pytest.raises(RunError, match=r"has begun with \w+=\S+, not \S+; choose another --out$"):
        scaling.run_all(config, points, tmp_path, args, options)
    assert len(begun) == 6


def test_a_run_that_fails_is_named_and_the_others_count(world):
    """The folder of the one holds a summary of nothing; the other is done already."""
    spoiled = world.folder / "spoiled" / "strong-1x1-16envs" / "seed0-repeat0"
    spoiled.mkdir(parents=True)
    (spoiled / "summary.json").write_text("{}")
    there = world.folder / "spoiled" / "strong-1x1-32envs" / "seed0-repeat0"
    write_run(there, speeds=[1, 2, 3])
    command = study(world, "--threads=1", "--num_envs=16,32", num_seeds=2)
    command[3] = "spoiled"
    begun = ["--config", command[1], *command[command.index("--") + 1 :], "--num_envs=32"]
    (there / "config.json").write_text(json.dumps(files.to_json(command_line.load(begun)[0])))
    done = world.run(*command, module="jaxrl_scale.scaling")
    assert done.status == 1
    assert "exit status 2: spoiled/strong-1x1-16envs/seed0-repeat0 holds summary.json" in done.out
    assert "[2/2] spoiled/strong-1x1-32envs/seed0-repeat0: it was done before" in done.out
    assert done.err == "error: 1 run did not end well; the same command tries again\n"
    told = json.loads((world.folder / "spoiled" / "scaling.json").read_text())
    assert [[p["num_envs"] for p in one] for one in told["series"]] == [[32]]
