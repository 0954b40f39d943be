"""The list of runs, of run directories that are written by hand."""

import csv
import io
import json
import re

import pytest
from test_report import make_run

from jaxrl_scale import runs
from jaxrl_scale.records import past_run


@pytest.fixture
def listed(tmp_path, capsys, monkeypatch):
    """What the command prints about some folders below the working directory, and its status."""
    monkeypatch.chdir(tmp_path)

    def run(*argv):
        status = runs.main(list(argv))
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_a_line_tells_steps_score_interval_status_and_what_is_unlike_the_others(listed, tmp_path):
    for k in range(3):
        make_run(tmp_path / "runs" / f"a{k}", seed=k)
    make_run(tmp_path / "runs" / "deep" / "b", learning_rate=1e-3, seeds=4)
    make_run(tmp_path / "runs" / "c", rows=10, finished=False)
    make_run(tmp_path / "runs" / "d", env="Acrobot-v1", final=-80.0, learning_rate=0.5)
    status, out, err = listed()
    assert (status, err) == (0, "")
    head, *lines = out.splitlines()
    assert head.split()[:2] == ["run", "environment"]
    by_name = {line.split()[0]: line for line in lines}
    assert list(by_name) == [f"runs/{name}" for name in ("d", "a0", "a1", "a2", "c", "deep/b")]
    words = by_name["runs/a1"].split()
    assert words[1:8] == ["CartPole-v1", "ppo", "1", "328k", "488.5", "469.5", "to"]
    assert words[8] == "491.2"
    assert words[-1] == "done"  # nothing differs
    four = by_name["runs/deep/b"]
    assert " 0-3 " in four  # seeds
    assert " 487.5 " in four  # the interquartile mean of several agents
    assert four.endswith("algo.learning_rate=0.001")
    assert re.search(r" - +[\d.]+ +\S+ +no summary yet: iteration 10 of 40$", by_name["runs/c"])
    assert by_name["runs/d"].endswith("done")  # it is alone in its environment
    # A folder of one run, or a run directory itself, is listed too, and none twice.
    assert len(listed("runs/deep", "runs/deep/b")[1].splitlines()) == 2


def test_the_csv_has_all_numbers_and_a_column_for_each_option_that_differs(listed, tmp_path):
    make_run(tmp_path / "one")
    make_run(tmp_path / "two", learning_rate=0.25, num_envs=32)
    status, out, err = listed(".", "--csv")
    assert (status, err) == (0, "")
    one, two = csv.DictReader(io.StringIO(out))
    assert (one["run"], two["run"]) == ("one", "two")
    assert float(one["score"]) == 488.5
    assert (float(one["score_low"]), float(one["score_high"])) == (469.5, 491.25)
    different = {name for name in one if "." in name or name == "num_envs"}
    assert different == {"algo.learning_rate", "num_envs"}
    assert [float(run["algo.learning_rate"]) for run in (one, two)] == [3e-4, 0.25]


def test_two_runs_that_differ_are_both_unlike_the_other(listed, tmp_path):
    make_run(tmp_path / "runs" / "one")
    make_run(tmp_path / "runs" / "two", learning_rate=0.25)
    _, one, two = listed()[1].splitlines()
    assert one.endswith(" algo.learning_rate=0.0003")
    assert two.endswith(" algo.learning_rate=0.25")


def test_agents_with_seeds_and_options_of_their_own_are_listed_with_them(listed, tmp_path):
    """Those of a sweep: the config in the folder is that of the first setting."""
    for name in ("chunk", "other"):
        make_run(tmp_path / "runs" / name, seeds=4)
    own = {"seed": [5, 6, 5, 6], "algo.gamma": [0.9, 0.9, 0.8, 0.8]}
    record = tmp_path / "runs" / "chunk" / "run.json"
    record.write_text(json.dumps({"starts": [{"agents": own}]}))
    other, chunk = sorted(listed()[1].splitlines()[1:], key=lambda line: "chunk" in line)
    assert " 5-6 " in chunk
    assert chunk.endswith(" algo.gamma=several")
    assert " 0-3 " in other
    assert "several" not in other
    found = {row["run"]: row for row in csv.DictReader(io.StringIO(listed("--csv")[1]))}
    seeds = {name: [row[x] for x in ("seed", "num_seeds", "agents")] for name, row in found.items()}
    assert seeds == {"runs/chunk": ["5", "2", "4"], "runs/other": ["0", "4", "4"]}
    record.write_text(json.dumps({"starts": [{"agents": {"seed": [5]}}]}))
    assert "runs/chunk/run.json does not fit num_seeds=4 of config.json" in listed()[2]


def test_agents_that_failed_are_told(listed, tmp_path):
    make_run(tmp_path / "runs" / "some", seeds=4, failed=(1, 5))
    make_run(tmp_path / "runs" / "none", seeds=4)
    lines = {line.split()[0]: line for line in listed()[1].splitlines()}
    assert lines["runs/some"].endswith(" done, 1 of 4 agents failed")
    assert lines["runs/none"].endswith(" done")
    found = {row["run"]: row["failed"] for row in csv.DictReader(io.StringIO(listed("--csv")[1]))}
    assert found == {"runs/some": "1", "runs/none": "0"}


def test_a_run_without_a_row_has_a_line_with_its_status(listed, tmp_path):
    """It is running, was stopped or failed before its first row."""
    for name, status in (("running", None), ("stopped", "stopped"), ("failed", "failed")):
        run = make_run(tmp_path / "runs" / name, finished=False)
        (run / "metrics.jsonl").write_text("")
        if status:
            told = {"status": status, "iterations": 3, "failed": [], "compile_seconds": 1.5}
            (run / "summary.json").write_text(json.dumps(told | {"env_steps": 24_576}))
    status, out, err = listed()
    assert (status, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines()}
    rest = r" +CartPole-v1 +ppo +0 +{} +- +- +- +{}"
    for name, steps, said in (
        ("running", "-", "no summary yet: iteration 0 of 40"),
        ("stopped", "24.6k", "stopped: iteration 3 of 40"),
        ("failed", "24.6k", "failed: iteration 3 of 40"),
    ):
        assert re.fullmatch(f"runs/{name}" + rest.format(steps, said), lines[f"runs/{name}"])
    found = list(csv.DictReader(io.StringIO(listed("--csv")[1])))
    assert [run["env_steps"] for run in found] == ["24576", "", "24576"]
    assert {run["score"] + run["return_100"] for run in found} == {""}


def test_a_folder_that_cannot_be_read_is_told(tmp_path, capsys):
    assert list(runs.found([tmp_path / "gone"])) == []
    told = f"left out: {tmp_path / 'gone'}: No such file or directory\n"
    assert capsys.readouterr().err == told


def test_a_terminal_obeys_no_name(listed, tmp_path):
    make_run(tmp_path / "runs" / "a\x1b[2Kb\N{NO-BREAK SPACE}é")
    out = listed()[1]
    assert "a\\x1b[2Kb\N{NO-BREAK SPACE}é" in out
    assert "\x1b" not in out + listed("c\x1b[2Kd")[2]


def test_what_cannot_be_listed_is_told(listed, tmp_path):
    assert listed("nowhere") == (
        2,
        "",
        "error: nowhere does not exist; give a folder with run directories\n",
    )
    (tmp_path / "runs").mkdir()
    assert listed() == (2, "", "error: no run was found in runs\n")
    make_run(tmp_path / "runs" / "good")
    broken = make_run(tmp_path / "runs" / "broken")
    (broken / "config.json").write_text("{")
    status, out, err = listed()
    assert status == 0
    assert "runs/good" in out
    assert "broken" not in out
    assert re.fullmatch(r"left out: .*runs/broken/config.json.*\n", err)
    assert listed("--cvs")[2] == "error: unknown option --cvs; did you mean --csv?\n"


@pytest.mark.parametrize(
    ("summary", "done"),
    [
        ({"iterations": 5}, True),
        ({"iterations": 4}, False),
        ({"iterations": "many"}, False),
        ({}, False),
    ],
)
def test_whether_a_run_has_come_to_an_iteration_is_asked_of_any_summary(tmp_path, summary, done):
    (tmp_path / "summary.json").write_text(json.dumps({"status": "stopped"} | summary))
    assert past_run.finished(tmp_path, until=5) == done
