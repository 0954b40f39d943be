"""The report of runs whose directories are written here by hand."""

import base64
import dataclasses
import html
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import processes
import pytest
from PIL import Image
from scipy import stats

from jaxrl_scale import report
from jaxrl_scale.figures import report_plots, video
from jaxrl_scale.loop import agent
from jaxrl_scale.records import past_run, statistics, study, terminal

REPOSITORY = Path(__file__).parents[1]
VERSIONS = {"python": "3.11.9", "jaxlib": "0.10.2", "numpy": "2.4.1"}


def make_run(
    path,
    *,
    env="CartPole-v1",
    algo="ppo",
    learning_rate=3e-4,
    seeds=1,
    rows=40,
    iterations=40,
    target=475.0,
    final=490.0,
    speed=500_000.0,
    finished=True,
    failed=None,
    **config,
):
    """A run directory as `jaxrl_scale.train` leaves it; ``failed`` is (agent, row)."""
    path.mkdir(parents=True)
    own = {"name": algo, "learning_rate": learning_rate, "gamma": 0.99}
    settings = {
        "env": env,
        "env_kwargs": {},
        "algo": own,
        "hidden_sizes": [64, 64],
        "seed": 0,
        "num_seeds": seeds,
        "num_envs": 64,
        "rollout_length": 128,
        "total_steps": iterations * 64 * 128,
        "iterations": None,
        "target_return": target,
        "run_dir": str(path),
    }
    (path / "config.json").write_text(json.dumps(settings | config))
    start = {"versions": VERSIONS, "devices": ["cpu", "cpu"], "command": "python -m x --a <b>"}
    (path / "run.json").write_text(json.dumps({"starts": [start, start]}))

    rng = np.random.default_rng(7)
    lines, pace = [], rng.uniform(4, 9, seeds)
    for k in range(1, rows + 1):
        mean = final * (1 - np.exp(-pace * k / rows)) * rng.normal(1, 0.01, seeds)
        done = [int(failed[0])] if failed and k >= failed[1] else []
        agent = {
            "return": mean * rng.normal(1, 0.08, seeds),
            "return_100": mean if k > 2 else np.full(seeds, np.nan),
            "length": np.abs(mean),
            "loss": np.exp(-k / 20) + rng.normal(0, 0.02, seeds),
            "policy_loss": rng.normal(-0.01, 0.003, seeds),
            "value_loss": np.exp(-k / 15) * 20 * np.ones(seeds),
            "entropy": 0.69 * np.exp(-k / rows) * np.ones(seeds),
            "approx_kl": np.abs(rng.normal(0.008, 0.002, seeds)),
            "clip_fraction": rng.uniform(0.05, 0.15, seeds),
            "explained_variance": (1 - np.exp(-k / 8)) * np.ones(seeds),
            "grad_norm": np.exp(rng.normal(0, 0.3, seeds)),
            "learning_rate": learning_rate * (1 - k / rows) * np.ones(seeds),
        }
        alive = [m for m in range(seeds) if m not in done]
        steps = k * 64 * 128 * seeds
        row = {
            "iteration": k,
            "env_steps": steps,
            "time": 1.7e9 + k,
            "wall_seconds": 5 + steps / speed,
            "compile_seconds": 2.5,
            "steps_per_second": speed * rng.normal(1, 0.05),
            "episodes": 12,
        }
        row |= {
            name: None if np.isnan(x[alive]).any() else float(stats.trim_mean(x[alive], 0.25))
            for name, x in agent.items()
        }
        if seeds > 1:
            row["per_agent"] = {
                n: [None if math.isnan(v) else float(v) for v in x] for n, x in agent.items()
            }
            row["failed"] = done
        lines.append(json.dumps(row))
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if finished:
        per_agent = [None if failed and m == failed[0] else final - 3.0 * m for m in range(seeds)]
        summary = {
            "status": "done",
            "iterations": rows,
            "num_seeds": seeds,
            "failed": [failed[0]] if failed else [],
            "env_steps": row["env_steps"],
            "return_100": row["return_100"],
            "evaluation": {
                "mean": final - 1.5,
                "iqm": final - 2.5,
                "ci95": [final - 20.5, final + 1.25],
                "episodes": 128,
                "per_agent": per_agent,
            },
            "target_return": target,
            "seconds_to_target": 71.0,
            "wall_seconds": row["wall_seconds"] + 1,
            "compile_seconds": 2.5,
            "steps_per_second": speed,
            "peak_memory_mb": 1234.4,
        }
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def write(tmp_path, *runs, episodes=0):
    """The page of the runs as text, and the folder where it was written."""
    out = tmp_path / "out" / "page.html"
    report.report(runs, out, episodes)
    return out.read_text(), out.parent


def page_of(*runs):
    """The page without its plots, which take a second or two."""
    return report.page(report.read_runs(runs), ([], [], []), [])


def episode_of(run):
    (found,) = report.read_runs([run])
    return report.episode(found)[1:]


def table_after(page, heading):
    """The cells of the first table below a heading, as text, row by row."""
    table = re.search(r"<table>.*?</table>", page[page.index(f"<h2>{heading}") :], re.S)[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.S)
    return [
        [
            " ".join(html.unescape(re.sub(r"<[^>]+>", " ", cell)).split())
            for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)
        ]
        for row in rows
    ]


def results(page):
    heads, *rows = table_after(page, "Results")
    return [dict(zip(heads, row, strict=True)) for row in rows]


# --- numbers --------------------------------------------------------------------------------


def test_the_table_shows_the_numbers_of_the_summary(tmp_path):
    run = make_run(tmp_path / "first", seeds=5, seed=10, failed=(4, 30))
    summary = json.loads((run / "summary.json").read_text())
    (row,) = results(page_of(run))
    assert row == {
        "Run": "first done",
        "Environment": "CartPole-v1",
        "Algorithm": "PPO",
        "Seeds": "5 10 to 14",
        "Env steps": "1,638,400",
        "Evaluation return": "487.5 469.5 to 491.2",
        "Worst seed": "481.0 seed 13",
        "Failed seeds": "1 seed 14",
        "Training return": f"{summary['return_100']:.1f}",
        "Wall time": "9.3 s",
        "Compile time": "2.5 s",
        "Steps/s": "500k",
        "Time to target": "1:11",
        "Peak memory": "1,234 MB",
    }


def test_terminal_summary_report_and_study_say_the_same_of_the_same_run(tmp_path):
    run = make_run(tmp_path / "run", seeds=7)
    returns = np.random.default_rng(5).normal(-80, 9, (7, 1)) + np.arange(16.0)
    done = json.loads((run / "summary.json").read_text())
    done["evaluation"] = statistics.summarize(returns)
    (run / "summary.json").write_text(json.dumps(done))
    found = past_run.read(run)

    center, (low, high) = done["evaluation"]["iqm"], done["evaluation"]["ci95"]
    assert low < center < high
    interval = f"{low:.1f} to {high:.1f}"
    lines = dict(terminal.summary_lines(found.summary))
    assert lines["evaluation return"].startswith(f"{center:.1f}  (IQM, 95% interval {interval};")
    assert results(page_of(run))[0]["Evaluation return"] == f"{center:.1f} {interval}"
    point = study.Point("strong", None, 1, 1, None, 8, 8)
    only = study.Result(point, [found.config], [past_run.read_trace(run)], [])
    (row,) = study.compare([only], None)
    learned = row["returns"]["iterations"]
    assert (learned["iqm"], learned["ci95"]) == (center, (low, high))


def test_agents_of_a_sweep_that_share_seeds_are_named_by_their_indices(tmp_path):
    run = make_run(tmp_path / "run", seeds=4, failed=(3, 5))
    start = json.loads((run / "run.json").read_text())["starts"][0]
    start["agents"] = {"seed": [5, 6, 5, 6], "algo.gamma": [0.9, 0.9, 1.0, 1.0]}
    (run / "run.json").write_text(json.dumps({"starts": [start]}))
    (row,) = results(page_of(run))
    assert row["Seeds"] == "2 5 to 6, 4 agents"
    assert row["Failed seeds"] == "1 agent 3"
    assert row["Worst seed"].endswith(" agent 2")


def test_one_seed_shows_its_mean_and_no_worst_seed(tmp_path):
    page = page_of(make_run(tmp_path / "first"))
    (row,) = results(page)
    assert row["Evaluation return"].startswith("488.5")
    assert row["Worst seed"] == "-"


def test_a_run_without_a_summary_shows_what_its_rows_say(tmp_path):
    run = make_run(tmp_path / "going", finished=False, rows=10, iterations=40)
    page = page_of(run)
    (row,) = results(page)
    assert row["Run"] == "going no summary yet: iteration 10 of 40"
    assert row["Env steps"] == "81,920"
    assert row["Evaluation return"] == "-"
    assert row["Time to target"] == "-"
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["Training return"] == f"{last['return_100']:.1f}"


def test_a_finished_run_that_missed_its_target_says_so(tmp_path):
    run = make_run(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"seconds_to_target": None}))
    page = page_of(run)
    assert results(page)[0]["Time to target"] == "not reached"


@pytest.mark.parametrize(
    ("greedy", "said"),
    [
        ((True,), "episodes after training, with greedy actions."),
        ((False, False), "episodes after training, with sampled actions."),
        (
            (True, False),
            "episodes after training, with sampled actions where eval_greedy is false, and else "
            "with greedy ones.",
        ),
    ],
)
def test_the_page_says_which_actions_the_evaluations_took(tmp_path, greedy, said):
    runs = [make_run(tmp_path / str(k), eval_greedy=each) for k, each in enumerate(greedy)]
    text = " ".join(page_of(*runs).split())
    assert f"Evaluation is the undiscounted return of {said}" in text


# --- curves ---------------------------------------------------------------------------------


def rows_of(tmp_path, rows, **config):
    """A run that has exactly these rows."""
    run = make_run(tmp_path / "rows", **config)
    times = {"wall_seconds": 1.0, "compile_seconds": 0.5, "steps_per_second": 1.0}
    lines = [json.dumps({"iteration": k + 1, **times, **row}) for k, row in enumerate(rows)]
    (run / "metrics.jsonl").write_text("\n".join(lines))
    return report.read_runs([run])[0].run


def test_a_curve_is_drawn_over_the_steps_of_one_agent_and_drops_failed_seeds(tmp_path):
    run = rows_of(
        tmp_path,
        [
            {"env_steps": 30, "x": None, "per_agent": {"x": [1.0, None, 3.0]}, "failed": []},
            {"env_steps": 60, "x": 2.0, "per_agent": {"x": [1.0, 2.0, 3.0]}, "failed": []},
            {"env_steps": 90, "x": 2.0, "per_agent": {"x": [2.0, 2.0, 9.0]}, "failed": [2]},
        ],
        seeds=3,
    )
    curve = report_plots.curve(run, "x")
    np.testing.assert_array_equal(curve.steps, [10, 20, 30])
    np.testing.assert_array_equal(curve.center, [np.nan, 2, 2])
    np.testing.assert_array_equal(curve.agents[:, 2], [3, 3, np.nan])
    low, high = curve.interval()
    # No number yet; three seeds, whose least value alone has 1 / 27 > 2.5 %; two that agree.
    np.testing.assert_array_equal(low, [np.nan, 1, 2])
    np.testing.assert_array_equal(high, [np.nan, 3, 2])


def test_a_target_is_drawn(tmp_path):
    runs = [make_run(tmp_path / str(target), target=target) for target in (475.0, None)]
    with_target, without = (report_plots.learning_plots(report.read_runs([run])) for run in runs)
    assert all(x.png != y.png for x, y in zip(with_target, without, strict=True))


def test_no_two_runs_have_the_same_colour_and_line(tmp_path):
    run = report.read_runs([make_run(tmp_path / "run")])[0].run
    runs = [dataclasses.replace(run, path=tmp_path / str(k)) for k in range(28)]
    assert len({(one.color, one.line) for one in report_plots.drawn(runs)}) == 28


def test_a_long_run_is_thinned_and_keeps_its_last_row(tmp_path):
    run = rows_of(tmp_path, [{"env_steps": k, "x": float(k)} for k in range(1, 1002)])
    curve = report_plots.curve(run, "x")
    assert 200 <= len(curve.steps) <= report_plots.CURVE_POINTS
    assert curve.steps[-1] == 1001


# --- the page -------------------------------------------------------------------------------


def test_the_page_needs_nothing_but_itself(tmp_path):
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b", seeds=3)
    page, _ = write(tmp_path, a, b)
    sources = re.findall(r"<img[^>]* src=\"([^\"]{30})", page)
    assert len(sources) > 10
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    page = re.sub(r"base64,[\w+/=]+", "", page)
    assert not re.search(r"https?:|//[a-z]|@import|<script|url\(|<link(?! rel=\"icon\")", page)


def test_every_text_of_a_run_is_escaped(tmp_path):
    run = make_run(tmp_path / "<script>a", env="<script>b:C")
    start = {
        "command": "<script>c",
        "versions": {"<script>d": "<script>e"},
        "devices": ["<script>"],
    }
    (run / "run.json").write_text(json.dumps({"starts": [start]}))
    shown = report.read_runs([run])
    page = report.page(shown, ([], [], []), [report.Episode("<script>f", b"", "<script>g")])
    assert "<script" not in page
    assert all(f"&lt;script&gt;{letter}" in page for letter in "abcdefg")


def test_the_images_beside_the_page_are_the_ones_within(tmp_path):
    page, folder = write(tmp_path, make_run(tmp_path / "a", env="Acrobot-v1"))
    files = sorted(folder.glob("page-*.png"))
    assert {"page-return-by-steps-Acrobot-v1.png", "page-entropy.png"} <= {f.name for f in files}
    for file in files:
        Image.open(file).verify()
        assert base64.b64encode(file.read_bytes()).decode() in page
    assert page.count("data:image/png") == len(files)


def test_each_environment_has_its_own_curves(tmp_path):
    runs = [make_run(tmp_path / env, env=env) for env in ("CartPole-v1", "Acrobot-v1")]
    names = [plot.name for plot in report_plots.learning_plots(report.read_runs(runs))]
    over = [f"return-by-{x}" for x in ("steps", "time")]
    assert names == [f"{x}-{env}" for env in ("CartPole-v1", "Acrobot-v1") for x in over]


def test_only_what_differs_between_configs_is_listed(tmp_path):
    a = make_run(tmp_path / "a", learning_rate=3e-4)
    b = make_run(tmp_path / "b", learning_rate=1e-3, env_kwargs={"length": 0.7})
    page = page_of(a, b)
    assert table_after(page, "Configuration") == [
        ["Option", "a", "b"],
        ["algo.learning_rate", "0.0003", "0.001"],
        ["env_kwargs.length", "-", "0.7"],
    ]


def test_one_run_has_its_whole_config_folded(tmp_path):
    page = page_of(make_run(tmp_path / "a"))
    cells = dict(table_after(page, "Configuration"))
    assert cells["algo"] == "ppo"
    assert cells["algo.gamma"] == "0.99"
    assert cells["hidden_sizes"] == "64, 64"
    assert "<details>" in page


def test_versions_and_devices_are_those_of_the_last_start(tmp_path):
    page = page_of(make_run(tmp_path / "a"))
    assert table_after(page, "Versions") == [
        ["", "a"],
        ["devices", "2 × cpu"],
        ["starts", "2"],
        ["command", "python -m x --a <b>"],
        *([name, version] for name, version in VERSIONS.items()),
    ]


def test_runs_of_the_same_name_are_told_apart_and_one_given_twice_is_one(tmp_path):
    a, b = make_run(tmp_path / "x" / "run"), make_run(tmp_path / "y" / "run")
    assert [r.label for r in report.read_runs([a, b, a])] == ["x/run", "y/run"]


# --- the episode ----------------------------------------------------------------------------


class Noise:
    """An agent whose frames no compression makes small."""

    iteration = 40

    def record(self, greedy):
        return list(np.random.default_rng(0).integers(0, 256, (20, 60, 80, 3), np.uint8))


def test_an_episode_that_is_too_large_is_shrunk_until_it_fits(tmp_path, monkeypatch):
    assert report.EPISODE_BYTES <= 2_000_000
    monkeypatch.setattr(report, "EPISODE_BYTES", 50_000)
    monkeypatch.setattr(agent, "load", lambda path: Noise())
    page, folder = write(tmp_path, make_run(tmp_path / "a"), episodes=1)
    gif = (folder / "page-episode.gif").read_bytes()
    assert 10_000 < len(gif) <= 50_000
    assert Image.open(io.BytesIO(gif)).n_frames == 10
    assert f"data:image/gif;base64,{base64.b64encode(gif).decode()}" in page
    assert "19 steps, greedy, after iteration 40; one frame of 2" in page
    assert not (folder / ".episode.gif").exists()


def test_a_long_episode_is_shown_faster_than_it_was_played():
    frames = [np.full((8, 8, 3), k % 256, np.uint8) for k in range(600)]
    gif, every = video.small_gif(frames, 10**6)
    with Image.open(io.BytesIO(gif)) as image:
        assert (every, image.n_frames, image.info["duration"]) == (3, 200, 100)


def test_an_episode_that_lies_in_the_run_directory_is_used(tmp_path):
    run = make_run(tmp_path / "a")
    video.write_video(run / "episode.gif", [np.full((8, 8, 3), k, np.uint8) for k in (0, 99)])
    assert episode_of(run)[0] == (run / "episode.gif").read_bytes()


def test_without_a_checkpoint_there_is_a_sentence_instead(tmp_path):
    run = make_run(tmp_path / "a", finished=False)
    assert episode_of(run) == (b"", "the run has no checkpoint yet")
    (run / "summary.json").write_text(json.dumps(DONE | {"status": "failed"}))
    failed = "the run has no checkpoint: the run failed before its first one"
    assert episode_of(run) == (b"", failed)


def test_an_environment_that_breaks_while_drawing_costs_only_the_episode(tmp_path, monkeypatch):
    def load(path):
        raise RuntimeError("no <display>")

    monkeypatch.setattr(agent, "load", load)
    run = make_run(tmp_path / "a")
    page = report.page(
        report.read_runs([run]), ([], [], []), [report.Episode("a", *episode_of(run))]
    )
    assert "RuntimeError: no &lt;display&gt;" in page


# --- the command ----------------------------------------------------------------------------


def test_the_command_writes_into_the_run_directory_and_names_every_file(tmp_path, capsys):
    run = make_run(tmp_path / "a")
    assert report.main([str(run), "--episodes", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    written = {line.removeprefix("wrote ") for line in lines}
    assert written == {str(file) for file in run.glob("report*")}
    assert str(run / "report.html") in written


@pytest.mark.parametrize(("asked", "used"), [(None, "cpu"), ("cuda,cpu", "cuda,cpu")])
def test_the_command_leaves_gpus_to_those_that_train(tmp_path, asked, used):
    run = make_run(tmp_path / "a")
    program = (
        "import sys, jax; from jaxrl_scale.__main__ import main; main(sys.argv[1:])\n"
        "print(jax.config.jax_platforms)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    environment |= {"JAX_PLATFORMS": asked} if asked else {}
    command = [sys.executable, "-c", program, "report", run, "--episodes=0"]
    told = subprocess.check_output(command, env=environment, cwd=REPOSITORY, text=True)
    assert told.splitlines()[-1] == used


GOOD_ROW = {"iteration": 1, "env_steps": 64, "wall_seconds": 1, "compile_seconds": 1}
TWO_AGENTS = {"steps_per_second": 1, "per_agent": {"loss": [1, 2]}}
DONE = {"status": "done", "failed": [], "compile_seconds": 1}
OF_TWO = {"mean": 1, "iqm": 1, "ci95": [1, 1], "episodes": 1, "per_agent": [1, 1]}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("", "", "/bad is a file; give the directory of a run"),
        (".", "", "/bad is not a run directory: it has no config.json"),
        ("config.json", "{", "bad/config.json is damaged: "),
        ("config.json", [], "bad/config.json is damaged: "),
        (
            "config.json",
            {"algo": {"name": "ppo"}, "num_envs": "x"},
            "num_envs='x' should be a",
        ),
        ("metrics.jsonl", "", "bad has no metrics yet; the run's --log_every says when rows are"),
        *(
            (
                "metrics.jsonl",
                row,
                "line 1 is damaged: it should be a JSON object with an iteration",
            )
            for row in (3, {}, {"loss": 1}, {"iteration": "1"})
        ),
        ("metrics.jsonl", {"iteration": 1}, "line 1 is damaged: it lacks compile_seconds, env_ste"),
        ("metrics.jsonl", ..., "bad/metrics.jsonl cannot be read: Is a directory"),
        ("metrics.jsonl", GOOD_ROW | {"steps_per_second": "fast"}, 'steps_per_second is "fast"'),
        ("metrics.jsonl", GOOD_ROW | TWO_AGENTS, "line 1 does not fit num_seeds=1 of config.json"),
        ("metrics.jsonl", GOOD_ROW | {"steps_per_second": 1, "loss": {}}, "damaged: loss is {}"),
        ("summary.json", DONE | {"wall_seconds": 10**20}, f"the whole number {10**20} is too larg"),
        ("summary.json", DONE | {"compile_seconds": math.inf}, "compile_seconds is null"),
        ("summary.json", "{", "bad/summary.json is damaged: "),
        ("summary.json", [], "bad/summary.json is damaged: it should hold a JSON object"),
        ("summary.json", {}, "bad/summary.json is damaged: it should hold a JSON object with"),
        ("summary.json", {"status": "done"}, "summary.json is damaged: it lacks compile_seconds"),
        ("summary.json", DONE | {"evaluation": {"mean": 3}}, 'evaluation is {"mean": 3}'),
        ("summary.json", DONE | {"failed": [1]}, "summary.json does not fit num_seeds=1 of config"),
        ("summary.json", DONE | {"test": OF_TWO}, "summary.json does not fit num_seeds=1 of"),
        ("metrics.jsonl", GOOD_ROW | {"steps_per_second": True}, "steps_per_second is true"),
        ("run.json", {"starts": 3}, "bad/run.json is damaged: starts is 3"),
    ],
)
def test_what_is_damaged_or_no_run_directory_is_one_line(tmp_path, capsys, file, content, message):
    good, bad = make_run(tmp_path / "good"), tmp_path / "bad"
    if file == "":
        bad.touch()
    elif file == ".":
        bad.mkdir()
    elif content is ...:
        (make_run(bad) / file).unlink()
        (bad / file).mkdir()
    else:
        text = content if isinstance(content, str) else json.dumps(content)
        (make_run(bad) / file).write_text(text)
    assert report.main([str(good), str(bad), "--out", str(tmp_path / "x.html")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "x.html").exists()


def test_a_metric_may_have_the_name_of_a_field_of_another_file(tmp_path):
    run = make_run(tmp_path / "run")
    row = GOOD_ROW | {"steps_per_second": 1, "agents": 2, "evaluation": 3, "test": 4}
    (run / "metrics.jsonl").write_text(json.dumps(row))
    (run / "summary.json").write_text(json.dumps(DONE | {"per_agent": {"loss": 1}}))
    assert past_run.read(run).column("test") == [4]


@pytest.mark.parametrize(("status", "how"), [("failed", "failed"), ("stopped", "was stopped")])
def test_a_run_that_ended_before_its_first_row_is_refused_with_its_end(
    status, how, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "run", finished=False)
    (run / "metrics.jsonl").write_text("")
    (run / "summary.json").write_text(json.dumps(DONE | {"status": status}))
    assert report.main(["run"]) == 2
    assert capsys.readouterr().err == (
        f"error: run has no metrics: it {how} before its first row; the run's --log_every says "
        "when rows are written\n"
    )


def test_the_report_of_several_runs_has_a_folder(tmp_path, monkeypatch, capsys):
    runs = [str(make_run(tmp_path / name)) for name in "ab"]
    monkeypatch.chdir(tmp_path)
    assert report.main([*runs, "--episodes", "0"]) == 0
    assert capsys.readouterr().out.endswith("wrote report/report.html\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "report"]


@pytest.mark.parametrize(
    ("out", "written"),
    [("rep x", "rep x.html"), ("there", "there/report.html"), ("page.htm", "page.htm")],
)
def test_the_file_of_a_report_is_an_html_file(out, written, tmp_path, monkeypatch, capsys):
    run = str(make_run(tmp_path / "run", rows=3))
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    assert report.main([run, "--episodes=0", f"--out={out}"]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {written}\n")
    assert (tmp_path / written).read_text().startswith("<!doctype html>")


def test_a_report_is_not_written_into_a_file_of_another_kind(tmp_path, monkeypatch, capsys):
    run = str(make_run(tmp_path / "run", rows=3))
    monkeypatch.chdir(tmp_path)
    assert report.main([run, "--episodes=0", "--out=page.png"]) == 2
    said = "error: --out=page.png should be a folder or a file that ends with .html\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "page.png").exists()


def test_a_run_that_was_stopped_has_come_as_far_as_its_summary_says(tmp_path):
    run = past_run.read(make_run(tmp_path / "a"))
    last = run.rows[-1]["iteration"]
    summary = {**run.summary, "status": "stopped", "iterations": last + 4}
    config = run.config.replace(iterations=last + 9)
    stopped = dataclasses.replace(run, config=config, summary=summary)
    assert stopped.status == f"stopped: iteration {last + 4} of {last + 9}"


def test_a_misspelt_option_is_answered_with_the_nearest_in_one_line(tmp_path, capsys):
    assert report.main([str(make_run(tmp_path / "a")), "--episods", "0"]) == 2
    wanted = "error: unknown option --episods; did you mean --episodes?\n"
    assert capsys.readouterr().err == wanted


def test_ctrl_c_is_one_line_and_status_130(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "report", interrupted)
    assert report.main([str(tmp_path)]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path, capsys):
    run = make_run(tmp_path / "a")
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "page.html")
    assert report.main([str(run), "--episodes", "0", "--out", out]) == 74
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: cannot write ")


def test_a_run_of_somebody_else_is_told_to_have_its_report_elsewhere(tmp_path):
    run = make_run(tmp_path / "theirs")
    run.chmod(0o500)
    command = [*processes.as_a_user(), sys.executable, "-m", "jaxrl_scale.report", run]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (74, "", 1)
    wanted = "theirs/report.html: Permission denied; --out=FILE names another place\n"
    assert done.stderr.endswith(wanted)


def test_help_explains_every_option(capsys):
    with pytest.raises(SystemExit, match="0"):
        report.main(["--help"])
    text = capsys.readouterr().out
    for option in ("RUN_DIR", "--out=FILE", "--episodes=N"):
        explained = re.search(rf"^  {option} +(\S.*)$|^  {option}\n +(\S.*)$", text, re.M)
        assert explained, option
    said = " ".join(text.split())
    assert "It needs no other file: the plots are also written beside it as PNG files" in said


def test_the_name_of_a_run_stands_in_a_legend_as_it_is(tmp_path):
    for name in ("_under", "a$b$"):
        make_run(tmp_path / name)
    figure = report_plots.plot(tmp_path / "_under", tmp_path / "a$b$")
    _, labels = figure.axes[0].get_legend_handles_labels()
    assert labels == [" _under", r"a\$b\$"]
