"""The README's own example, as a reader would type it, its commands and those of the pages that go
on where it ends, and the map of the code."""

import hashlib
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import QUICKLY

from jaxrl_scale import compare, sweep
from jaxrl_scale.search import space

train_module = importlib.import_module("jaxrl_scale.train")
ROOT = Path(__file__).parent.parent
FURTHER = ("runs", "evaluate", "own_environment", "search", "untried", "map")
"""Pages of docs/ that go on where the README ends."""
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in FURTHER)]
TEXT = "\n".join(page.read_text() for page in PAGES)


def code_blocks(language):
    fenced = TEXT.split("```")[1::2]
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
    line = next(line for line in TEXT.splitlines() if "--env=corridor:Corridor" in line)
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
    assert summary["evaluation"]["length"] == -summary["evaluation"]["mean"]
    assert summary["evaluation"]["info"]["env_end/arrived"] > 0.9
    (start,) = json.loads((corridor / "run" / "run.json").read_text())["starts"]
    content = (corridor / "corridor.py").read_bytes()
    assert start["modules"] == {"corridor": hashlib.sha256(content).hexdigest()}


def commands():
    """The commands of the package in the pages' blocks and between backticks: the name and the
    arguments of each."""
    start = r"python -m jaxrl_scale\.(\w+)|launch/(?:local\.sh 2|slurm\.sbatch)(?: (sweep))?"
    blocks = "".join(code_blocks("")).replace("\\\n", "").splitlines()
    prose = re.findall(r"`([^`]+)`", "".join(TEXT.split("```")[::2]).replace("\n", " "))
    for line in blocks + prose:
        if found := re.search(rf"(?:{start})(?= |$)(.*?)(?:  #|$)", line):
            yield found[1] or found[2] or "train", tuple(shlex.split(found[3]))


COMMANDS = sorted(set(commands()))
THERE = ("runs/acrobot-20261121-120000", "runs/acrobot-20261121-130000")
WRITTEN = {
    "evaluate": r"mean return -?[\d.]+ ±|^\{.*\"mean\": ",
    "report": "^wrote report/report.html$",
    "runs": rf"^{THERE[1]} +CartPole-v1 ",
    "export": "^wrote policy.stablehlo, policy.npz, policy.py into runs/.*/export$",
}
"""What a command prints that reads a run."""
FROM_A_RUN = [(name, argv) for name, argv in COMMANDS if name in WRITTEN or "--resume" in argv]
TRAINING = [
    argv
    for name, argv in COMMANDS
    if name == "train" and not re.search("corridor|--resume|--help|--dry_run", " ".join(argv))
]


def by_words(argv):
    return " ".join(argv)


def test_the_blocks_have_commands():
    names = {"train", "evaluate", "report", "runs", "sweep", "compare", "export", "scaling"}
    assert names == {name for name, _ in COMMANDS}
    assert len(COMMANDS) > 20
    assert set(QUICK) <= {by_words(argv) for argv in TRAINING}


@pytest.mark.parametrize(("name", "argv"), COMMANDS, ids=lambda x: " ".join(x[:2]))
def test_each_command_is_understood(name, argv, corridor, monkeypatch, capsys):
    """A run that a command reads has a name that stands for another one, and is not there."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(corridor)
    if name == "sweep":
        args, rest = sweep._parser().parse_known_args(space.with_file(argv))
        assert sweep._asked(args, rest).settings
    elif name == "compare":
        assert compare.plan(*compare.parse(argv))
    elif "--help" in argv:
        with pytest.raises(SystemExit, match="0"):
            train_module.main(argv)
        assert capsys.readouterr().out.startswith("usage: python -m jaxrl_scale.train ")
    elif any("runs/" in text for text in argv):
        assert importlib.import_module(f"jaxrl_scale.{name}").main(argv) == 2
        err = capsys.readouterr().err
        assert re.fullmatch(r"error: .*runs/(acrobot|lunar_lander)-\S+ does not exist.*\n", err)
    elif name == "train":
        assert train_module.main([*argv, "--dry_run"]) == 0


# --- the commands, run ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory, reference):
    """A folder with all that the commands name; both runs are the small one of CartPole."""
    path = tmp_path_factory.mktemp("page")
    for name in ("configs", "zoo"):
        (path / name).symlink_to(ROOT / name)
    for name in THERE:
        shutil.copytree(reference, path / name)
    return path


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        pytest.param(
            *command,
            id=f"{command[0]} {by_words(command[1])}",
            marks=[pytest.mark.slow] * ("--video" in command[1]),  # test_evaluate.py writes one
        )
        for command in FROM_A_RUN
    ],
)
def test_each_command_that_reads_a_run_does_what_it_should(name, argv, folder, monkeypatch, capsys):
    """With few episodes, for which other tests have compiled already."""
    if "--gymnasium" in argv and "zoo/lunar_lander" in argv:
        pytest.importorskip("Box2D")
    monkeypatch.chdir(folder)
    names = iter(THERE)
    argv = [re.sub(r"^runs/\w+-.*", lambda _: next(names), text) for text in argv]
    few = {"evaluate": ["--episodes=16"], "report": ["--episodes=0"]}.get(name, [])
    few += ["--games=2"] * ("--video" in argv and "zoo/lunar_lander" not in argv)
    assert importlib.import_module(f"jaxrl_scale.{name}").main([*argv, *few]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(WRITTEN.get(name, "has finished: nothing is left to do"), out, re.MULTILINE)
    for file in argv[argv.index("--video") + 1 :][:1] if "--video" in argv else []:
        assert (folder / file).read_bytes().startswith(b"GIF89a")


QUICK = ("--config configs/acrobot.py", "--env=CartPole-v1 --algo=dqn")


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(x, id=by_words(x), marks=[pytest.mark.slow] * (by_words(x) not in QUICK))
        for x in TRAINING
    ],
)
def test_each_command_that_trains_does(argv, folder, compiled, tmp_path, monkeypatch, capsys):
    """For one iteration. Where it begins from another run, from one that is there."""
    monkeypatch.chdir(folder)
    argv = [re.sub(r"^runs/lunar_lander-.*", "zoo/lunar_lander", text) for text in argv]
    few = ["--iterations=1", "--eval_episodes=2", "--devices=1", "--wandb=disabled"]
    few += [f"--compilation_cache={compiled}", f"--run_dir={tmp_path / 'run'}"]
    assert train_module.main([*argv, *few]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert " is done\n" in out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["iterations"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "argv"),
    [command for command in COMMANDS if command[0] in ("sweep", "compare")],
    ids=lambda x: " ".join(x[:2]),
)
def test_each_search_and_comparison_comes_to_its_page(name, argv, folder, tmp_path):
    """With few agents and steps."""
    few = {
        "sweep": ["--agents=4", "--seeds=2", "--finalists=2", "--fresh_seeds=2"],
        "compare": ["--seeds=1", "--iterations=1", "--eval_episodes=2"],
    }[name]
    done = subprocess.run(
        [sys.executable, "-m", f"jaxrl_scale.{name}", *argv, *few, f"--run_dir={tmp_path / 'run'}"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "run" / f"{name}.html").read_text()
    assert "<svg" in page or "<img" in page


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
    order = re.findall(r"^\d+\. `([\w/]+\.py)`", TEXT, re.MULTILINE)
    lines = sum(len((ROOT / "jaxrl_scale" / name).read_text().splitlines()) for name in order)
    said = int(re.search(r"eleven files, about ([\d,]+) lines", TEXT)[1].replace(",", ""))
    assert len(order) == 11
    assert abs(lines - said) < 100


def test_every_config_and_script_that_is_named_exists():
    for name in re.findall(r"(?:configs|benchmarks)/[\w/]+\.(?:py|yaml|md)", TEXT):
        assert (ROOT / name).is_file(), name
