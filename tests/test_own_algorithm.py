"""An algorithm of one's own: the example in the docs, and what is said where one is wrong."""

import hashlib
import json
import re
import sys
import textwrap

import pytest
from processes import QUICKLY, REPOSITORY, checkpoints, options, summary, well
from running import runner_of

from jaxrl_scale import algos
from jaxrl_scale.config import Config, check, files
from jaxrl_scale.errors import MISTAKE, STOPPED, RunError

PAGE = (REPOSITORY / "docs" / "own_algorithm.md").read_text()
EXAMPLE = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.S))
(LINE,) = re.findall(r"^python -m jaxrl_scale.train (.*vpg:Config --env.*)$", PAGE, re.M)
SIZES = {"num_envs": 16, "num_shards": 4, "rollout_length": 16, "iterations": 12}
SIZES |= {"hidden_sizes": 16, "checkpoint_every": 3, "log_every": 4, "eval_episodes": 4}


@pytest.fixture(scope="module")
def folder(world):
    (world.folder / "vpg.py").write_text(EXAMPLE)
    return world.folder


@pytest.fixture(scope="module")
def trained(world, folder):
    """A run of the example on one device."""
    given = SIZES | {"algo": "vpg:Config", "devices": 1, "run_dir": "run"}
    done = world.run(*options(given | {"compilation_cache": world.cache, "algo.gamma": 0.98}))
    well(done)
    return folder / "run"


def test_the_example_learns_by_the_line_on_the_page(world, folder):
    done = world.run(*LINE.split(), "--run_dir=learned", environment=QUICKLY)
    assert well(done).out.startswith("CartPole-v1: CartPole-v1, vpg:Config, ")
    assert summary(folder / "learned")["evaluation"]["mean"] > 100  # at random: 22


def test_the_example_has_the_same_bits_on_two_devices_and_after_a_stop(world, folder, trained):
    path = folder / "stopped"
    given = SIZES | {"algo": "vpg:Config", "devices": 2, "run_dir": path, "algo.gamma": 0.98}
    accident = {"signal": "SIGTERM", "at": 8}
    done = world.run(*options(given | {"compilation_cache": world.cache}), accident=accident)
    assert (done.status, max(checkpoints(path))) == (STOPPED, 8)
    well(world.resume(path))
    one, other = summary(trained), summary(path)
    assert one["digest"] == other["digest"]
    assert one["evaluation"] == other["evaluation"]


def test_what_a_run_of_it_leaves_can_be_read_again(world, folder, trained):
    (start,) = json.loads((trained / "run.json").read_text())["starts"]
    assert start["modules"]["vpg"] == hashlib.sha256(EXAMPLE.encode()).hexdigest()
    done = well(world.run(trained, "--episodes=4", "--json", module="jaxrl_scale.evaluate"))
    own = summary(trained)["evaluation"]
    assert {name: json.loads(done.out)[name] for name in own} == own
    well(world.run(trained, module="jaxrl_scale.report"))
    assert re.search(r">\s*vpg on CartPole-v1 · done\s*<", (trained / "report.html").read_text())

    shown = well(world.run("--algo=vpg:Config", "--algo.gamma=0.9", "--dry_run")).out
    (folder / "mine.py").write_text(shown)
    assert "\nimport vpg\n" in shown
    assert "algo=vpg.Config(\n            gamma=0.9,\n        )" in shown
    again = well(world.run("--config=mine.py", "--dry_run")).out
    assert again.splitlines()[1:] == shown.splitlines()[1:]


# --- what is wrong with one -------------------------------------------------------------------


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Puts the example, with one text in it changed, into a module of a new name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, old="", new=""):
        assert old in EXAMPLE
        text = EXAMPLE.replace("vpg:Config", f"{name}:Config").replace(old, new)
        (tmp_path / f"{name}.py").write_text(text)
        return f"{name}:Config"

    yield write
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def begun(name):
    config = Config(algo=algos.get(name).Config(), num_envs=8, hidden_sizes=(4,), devices=1)
    check(config)
    runner_of(config)


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (
            "frozen",
            "@register\n@dataclass(frozen=True)\n",
            "@dataclass\n",
            "'Config' was not called, because it should be a frozen dataclass, the options of an",
        ),
        ("unnamed", 'name: ClassVar[str] = "', 'nam: ClassVar[str] = "', "Config.name should be"),
        ("typed", "max_grad_norm: float |", "max_grad_norm: list |", "max_grad_norm is of type"),
        ("makes", "def make(", "def build(", "there should be a make(config, spec, pool)"),
        ("returns", "return Algorithm(", "return dict(", ": TypeError: make returned a dict, no"),
        (
            "fails",
            "params = network.init(key) if",
            "params = netw.init(key) if",
            "fails.py, line 48: NameError: name 'netw' is not defined",
        ),
        (
            "traced",
            "network.apply(actor.params, obs)",
            "network.apply(actor.params, obs, obs)",
            "traced.py, line 52: TypeError: ",
        ),
        (
            "shapes",
            "unravel(params), state), local",
            "params, state), local",
            "update of the algorithm was given shared Shared(",
        ),
    ],
)
def test_what_is_wrong_with_it_is_said_in_one_line(name, old, new, said, module):
    with pytest.raises(RunError, match=re.escape(said)) as caught:
        begun(module(name, old, new))
    assert "\n" not in str(caught.value)


@pytest.mark.quickly
def test_the_example_begins_as_it_is(module):
    begun(module("right"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:Config", "algorithm 'nowhere:Config': there is no module 'nowhere' on sys.path"),
        ("os:system", "its options should be a class Config beside make(config, spec, pool)"),
        ("os:Config", "module 'os' has no 'Config'"),
        ("vpg.py:Config", "'vpg.py' is not the name of a module; write it as Python's import does"),
        ("vgp", "algorithm 'vgp' does not exist (there are: ppo, "),
    ],
)
def test_a_name_that_stands_for_none_is_refused(name, said):
    with pytest.raises(RunError, match=re.escape(said)):
        algos.get(name)


def test_a_copy_with_the_name_of_the_original_is_refused(module, tmp_path):
    """Or it would be the original that trains."""
    module("copied")
    text = (tmp_path / "copied.py").read_text().replace("copied:Config", "a2c")
    (tmp_path / "copied.py").write_text(text)
    config = tmp_path / "config.py"
    config.write_text(
        textwrap.dedent("""
            import copied
            from jaxrl_scale import Config
            def get_config():
                return Config(algo=copied.Config())
        """)
    )
    said = "algo is of the class copied.Config, but its name, 'a2c', is that of jaxrl_scale.algos."
    with pytest.raises(RunError, match=re.escape(said) + r".*has name='copied:Config'"):
        check(files.read_file(config))


def test_a_mistake_in_it_ends_the_command_with_one_line(world, folder):
    (folder / "wrong.py").write_text(
        EXAMPLE.replace("vpg:Config", "wrong:Config").replace("rollout.valid", "rollout.value")
    )
    done = world.run(*options(SIZES | {"algo": "wrong:Config", "run_dir": "wrong"}))
    said = "algorithm 'wrong:Config': update, wrong.py, line 69: AttributeError: 'Rollout'"
    assert done.status == MISTAKE
    assert re.fullmatch(rf"error: {said} .*\n", done.err), done.err
