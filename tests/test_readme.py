"""The README's own example, as a reader would type it, and its map."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from processes import QUICKLY

from jaxrl_scale import compare, sweep
from jaxrl_scale.search import space

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def code_blocks(language):
    fenced = README.split("```")[1::2]
    return [b.removeprefix(language + "\n") for b in fenced if b.startswith(language + "\n")]


@pytest.fixture
def corridor(tmp_path):
    """The example of an environment, in a file."""
    example = next(block for block in code_blocks("python") if block.startswith("# corridor.py"))
    assert len(example.splitlines()) <= 45
    (tmp_path / "corridor.py").write_text(example)
    return tmp_path


def test_the_example_can_be_stepped_through(corridor, monkeypatch, capsys):
    monkeypatch.syspath_prepend(corridor)
    exec(next(block for block in code_blocks("python") if block.startswith("from corridor")), {})
    del sys.modules["corridor"]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all(re.fullmatch(r"\d+ \[[\d.]+\] [01] -1.0 (True|False)", line) for line in lines)


def test_the_example_of_an_environment_and_a_network_of_your_own_trains(corridor):
    line = next(line for line in README.splitlines() if "--env=corridor:Corridor" in line)
    words = line.split()
    assert words[:3] == ["python", "-m", "jaxrl_scale.train"]
    sizes = ["--num_envs=32", "--rollout_length=64", "--algo.minibatch_size=256"]
    sizes += ["--iterations=25", "--algo.learning_rate=3e-3", "--run_dir=run", "--wandb=disabled"]
    done = subprocess.run(
        [sys.executable, *words[1:], *sizes],
        cwd=corridor,
        env=os.environ | QUICKLY,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    summary = json.loads((corridor / "run" / "summary.json").read_text())
    last = json.loads((corridor / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["env_end/arrived"] > 0.9, "the rate of success"
    assert 0 < last["env/arrived"] < 0.3
    # It starts anywhere in 12 places and walks to the end: 6.5 steps on average, -50 at worst.
    assert summary["evaluation"]["mean"] > -8


def commands():
    """The commands of the package in the README's blocks: the name and the arguments of each."""
    start = r"python -m jaxrl_scale\.(\w+)|launch/(?:local\.sh 2|slurm\.sbatch)(?: (sweep))?"
    for line in "".join(code_blocks("")).replace("\\\n", "").splitlines():
        if found := re.search(rf"(?:{start})(?= |$)(.*?)(?:  #|$)", line):
            yield found[1] or found[2] or "train", tuple(shlex.split(found[3]))


COMMANDS = sorted(set(commands()))


def test_the_blocks_have_commands():
    assert {"train", "evaluate", "report", "runs", "sweep", "compare"} == {n for n, _ in COMMANDS}
    assert len(COMMANDS) > 20


@pytest.mark.parametrize(("name", "arguments"), COMMANDS, ids=lambda x: " ".join(x[:2]))
def test_each_command_is_understood(name, arguments, monkeypatch, capsys):
    """A run that a command reads has a name that stands for another one, and is not there."""
    monkeypatch.chdir(ROOT)
    arguments = [text for text in arguments if text != "--help"]
    if name == "sweep":
        args, rest = sweep._parser().parse_known_args(space.with_file(arguments))
        assert sweep._asked(args, rest).settings
    elif name == "compare":
        assert compare.plan(*compare.parse(arguments))
    elif name == "train" and "--resume" not in arguments:
        assert importlib.import_module("jaxrl_scale.train").main([*arguments, "--dry_run"]) == 0
    elif any("runs/" in text for text in arguments):
        assert importlib.import_module(f"jaxrl_scale.{name}").main(arguments) == 2
        err = capsys.readouterr().err
        assert re.fullmatch(r"error: .*runs/(acrobot|lunar_lander)-\S+ does not exist.*\n", err)


def test_the_notebooks_cell_runs(tmp_path, monkeypatch):
    """With a shorter run."""
    monkeypatch.chdir(ROOT)
    cell = next(block for block in code_blocks("python") if "run.plot()" in block)
    file = 'read_file("configs/cartpole.py")'
    shorter = {"iterations": 2, "num_envs": 16, "eval_episodes": 1, "log_every": 1}
    shorter |= {"run_dir": str(tmp_path / "run"), "hidden_sizes": (8,), "wandb": "disabled"}
    assert file in cell
    cell = cell.replace(file, f"{file}.replace(**shorter)")
    exec(cell, {"shorter": shorter})
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_policy_acts_in_gymnasium(monkeypatch):
    """With one that is there."""
    monkeypatch.chdir(ROOT)
    cell = next(block for block in code_blocks("python") if block.startswith("import gymnasium"))
    names = {}
    exec(re.sub(r"runs/acrobot-\d+-\d+", "zoo/acrobot", cell), names)
    assert names["action"] in (0, 1, 2)


def test_every_module_is_on_the_map_and_every_file_of_the_map_exists():
    tree = next(block for block in code_blocks("") if "jaxrl_scale/\n" in block)
    package = tree[tree.index("jaxrl_scale/\n") :]
    listed = re.findall(r"\b\w+\.py\b", package.replace("__init__.py", ""))
    modules = [p.name for p in (ROOT / "jaxrl_scale").rglob("*.py") if p.name != "__init__.py"]
    assert sorted(set(listed)) == sorted(modules)
    for folder in re.findall(r"^ *([\w/]+/) ", tree, re.MULTILINE):
        assert (ROOT / folder).is_dir() or (ROOT / "jaxrl_scale" / folder).is_dir(), folder


def test_the_files_of_the_reading_order_exist_and_are_as_short_as_it_says():
    order = re.findall(r"^\d+\. `([\w/]+\.py)`", README, re.MULTILINE)
    lines = sum(len((ROOT / "jaxrl_scale" / name).read_text().splitlines()) for name in order)
    said = int(re.search(r"ten files, about ([\d,]+) lines", README)[1].replace(",", ""))
    assert len(order) == 10
    assert abs(lines - said) < 100


def test_every_config_and_script_that_is_named_exists():
    for name in re.findall(r"(?:configs|benchmarks)/[\w/]+\.(?:py|yaml|md)", README):
        assert (ROOT / name).is_file(), name
