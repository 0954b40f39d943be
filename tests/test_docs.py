"""What the pages in docs/ name is there: options, commands, scripts, and what they link to."""

import re
from pathlib import Path

import pytest

from jaxrl_scale import __main__ as package
from jaxrl_scale import sweep
from jaxrl_scale.config import command_line, files
from jaxrl_scale.records import rows
from jaxrl_scale.search import space

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("*/*.md")]
RLLIB, SB3 = ((ROOT / "docs" / f"from_{name}.md").read_text() for name in ("rllib", "sb3"))
ALGORITHMS = {"The run": "ppo", "PPO": "ppo", "IMPALA, APPO": "impala", "DQN": "dqn"}
ALGORITHMS |= {"Ape-X": "apex", "What 46 workers become": "ppo", "Ray Tune": None}
BESIDE_SB3 = {"The run": "ppo", "PPO": "ppo", "DQN": "dqn", "A2C": "a2c", "SAC": "sac"}


def options(text):
    return re.findall(r"--[\w.]+=[^\s`]+", text)


def sections(page=RLLIB, column=1):
    """Of a page for users of other libraries: the options of each row or line, beside its
    heading."""
    for section in page.split("\n## ")[1:]:
        heading, *lines = section.splitlines()
        for line in lines:
            cells = [*line.strip("|").split("|"), "", ""]
            if found := options(cells[column] if line.startswith("|") else line):
                yield heading, found


@pytest.mark.parametrize("heading", [heading for heading in ALGORITHMS if ALGORITHMS[heading]])
def test_each_name_beside_one_of_rllib_is_an_option(heading):
    rows = [found for section, found in sections() if section == heading]
    assert rows
    for found in rows:
        command_line.load([f"--algo={ALGORITHMS[heading]}", "--config=none", *found])


def test_each_name_beside_one_of_tune_is_an_option_of_a_sweep():
    rows = [found for section, found in sections() if section == "Ray Tune"]
    assert len(rows) == 7
    for found in rows:
        args, rest = sweep._parser().parse_known_args(found)
        given = {option.split("=")[0].removeprefix("--") for option in found}
        assert given <= {*vars(args), *(r.split("=")[0].removeprefix("--") for r in rest)}
        if rest:
            assert len(space.split(rest)[1]) == len(rest)


@pytest.mark.parametrize(("heading", "algo"), list(BESIDE_SB3.items()))
def test_each_name_beside_one_of_stable_baselines_is_an_option(heading, algo):
    rows = [found for section, found in sections(SB3, 2) if section == heading]
    assert len(rows) >= 5
    for found in rows:
        env = "--env=Pendulum-v1" if algo == "sac" else "--env=CartPole-v1"
        command_line.load([env, f"--algo={algo}", "--config=none", *found])


def test_the_lines_of_python_for_users_of_stable_baselines_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (cell,) = re.findall(r"```python\n(.*?)```", SB3, re.DOTALL)
    small = "config.replace(seed=1, wandb='disabled', num_envs=8, rollout_length=32, iterations=2"
    small += ", hidden_sizes=(8,), algo=ppo.Config(minibatch_size=64))"
    assert "config.replace(seed=1)" in cell
    cell = cell.replace("config.replace(seed=1)", small).replace("total_steps=500_000, ", "")
    names = {}
    exec(cell, names)
    assert names["agent"].config.seed == 1
    assert names["agent"].act([0.0, 0.1, 0.0, -0.1]) in (0, 1)
    assert names["agent"].outputs([0.0, 0.1, 0.0, -0.1]).keys() == {"probabilities", "value"}
    shipped = files.shipped("CartPole-v1", "dqn")
    assert (shipped.env, shipped.algo.name) == ("CartPole-v1", "dqn")
    assert package.main(["runs", "--csv"]) == 0
    assert "CartPole-v1" in capsys.readouterr().out


EXPLAINED = dict(re.findall(r"`(\w+)` \[(\S+)\]", (ROOT / "docs" / "metrics.md").read_text()))
"""Of each metric that the page explains the tag. Those of the algorithms: test_algorithms.py."""


def test_each_metric_that_has_a_tag_of_its_own_is_explained():
    assert {name: EXPLAINED.get(name) for name in rows.TAGS} == rows.TAGS


def test_the_tables_have_all_headings():
    assert {heading for heading, _ in sections()} == set(ALGORITHMS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_and_links_to_is_there(page):
    text = page.read_text()
    for name in set(re.findall(r"python -m jaxrl_scale\.(\w+)", text)):
        assert name in package.COMMANDS
    for name in set(re.findall(r"(?<![\w/.])(?:launch|configs)/[\w/]+\.\w+", text)):
        assert (ROOT / name).is_file(), name
    for target in set(re.findall(r"\]\((?!http)([^)\s]+)\)", text)):
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in slugs, target
