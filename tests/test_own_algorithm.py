"""An algorithm of one's own: the example in the docs, and what is said where one is wrong."""

import csv
import hashlib
import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest
from processes import QUICKLY, REPOSITORY, checkpoints, options, summary, well
from running import beginnings_that_differ, differing, runner_of, steps

from jaxrl_scale import algos, runs
from jaxrl_scale.config import Config, check, files
from jaxrl_scale.errors import MISTAKE, STOPPED, RunError
from jaxrl_scale.loop import origin
from jaxrl_scale.records import checkpoint, past_run

PAGE = (REPOSITORY / "docs" / "own_algorithm.md").read_text()
EXAMPLE = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.S))
(LINE,) = re.findall(
    r"^python -m jaxrl_scale.train (.*vpg:Config --env.*)$", PAGE.replace("\\\n", ""), re.M
)
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
    assert "\nimport vpg as algorithm\n" in shown
    assert "algo=algorithm.Config(\n            gamma=0.9,\n        )" in shown
    again = well(world.run("--config=mine.py", "--dry_run")).out
    assert again.splitlines()[1:] == shown.splitlines()[1:]


def test_an_agent_of_a_sweep_of_it_is_the_single_run(world, folder, trained):
    given = SIZES | {"algo": "vpg:Config", "algo.gamma": "0.9,0.98", "draw": "grid", "agents": 2}
    given |= {"seeds": 1, "finalists": 1, "fresh_seeds": 2, "run_dir": "swept"}
    done = world.run(
        *options(given | {"compilation_cache": world.cache}), module="jaxrl_scale.sweep"
    )
    well(done)
    (agent,) = (
        row
        for row in csv.DictReader((folder / "swept" / "agents.csv").read_text().splitlines())
        if row["algo.gamma"] == "0.98"
    )
    (_, one, _), (_, both, _) = (
        checkpoint.restore_some(run / "checkpoints", lambda name: name.startswith("shared/"), print)
        for run in (trained, folder / "swept" / agent["run"])
    )
    k = int(agent["agent"])
    assert any("critic" in name for name in one)
    assert differing(one, {name: x[k : k + 1] for name, x in both.items()}) == []


def test_a_command_that_does_not_look_where_it_is_started_finds_it(world, folder):
    """As the installed one, whose sys.path begins with its own folder."""
    shown = well(world.run("--algo=vpg:Config", "--dry_run")).out
    (folder / "again.py").write_text(shown)
    command = [sys.executable, "-P", "-m", "jaxrl_scale.train", "--config=again.py", "--dry_run"]
    environment = world.environment | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1:] == shown.splitlines()[1:]


def test_who_only_looks_at_a_run_of_it_imports_nothing(trained, tmp_path, monkeypatch, capsys):
    """The module of a run that came from elsewhere may do anything."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "vpg.py").write_text("raise SystemError('imported')")
    assert runs.main(["."]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^run +CartPole-v1 +vpg:Config ", out, re.M)
    assert err == ""
    read = past_run.read_any(tmp_path / "run")
    assert (read.config.algo.name, read.config.algo.gamma) == ("vpg:Config", 0.98)
    assert "vpg" not in sys.modules
    said = "^run/config.json: algorithm 'vpg:Config', vpg.py, line 1: SystemError: imported$"
    with pytest.raises(RunError, match=said):
        files.read_config(Path("run/config.json"))


@pytest.mark.quickly
def test_one_within_a_package_trains_several_agents(tmp_path, monkeypatch):
    (tmp_path / "agents_of_mine").mkdir()
    (tmp_path / "agents_of_mine" / "first.py").write_text(
        EXAMPLE.replace("vpg:Config", "agents_of_mine.first:Config")
    )
    monkeypatch.syspath_prepend(tmp_path)
    algo = algos.get("agents_of_mine.first:Config").Config()
    config = Config(algo=algo, num_envs=8, hidden_sizes=(4,), num_seeds=2, devices=2)
    state, rows = steps(runner_of(config), 2)
    assert np.isfinite([row["value_loss"] for row in rows]).all()
    assert differing(*(jax.tree.map(lambda x, k=k: x[k], state.shared.algo.params) for k in (0, 1)))


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
            "PATH, line 48: NameError: name 'netw' is not defined",
        ),
        (
            "traced",
            "network.apply(actor.params, obs)",
            "network.apply(actor.params, obs, obs)",
            "PATH, line 52: TypeError: ",
        ),
        (
            "shapes",
            "unravel(params), state), local",
            "params, state), local",
            "update of the algorithm was given shared Shared(",
        ),
        (
            "greedy",
            "        policy, _ = network.apply(actor.params, obs)",
            "        policy, _ = network.apply(actor.params, obs)\n        greedy and netw",
            "act, PATH, line 53: NameError: name 'netw'",
        ),
        (
            "said",
            "outputs=partial(networks.outputs, network)",
            "outputs=lambda *_: [1]",
            "outputs of the algorithm returned a list, no dict of arrays by name",
        ),
        (
            "unsaid",
            "outputs=partial(networks.outputs, network)",
            "outputs=lambda *_: {'value': jax.numpy.zeros(3)}",
            "outputs of the algorithm returned an array of shape (3,) and dtype float32 for",
        ),
        (
            "bare",
            "networks.Weights(shared.params, None)",
            "(shared.params,)",
            "actor of the algorithm returned a tuple without params",
        ),
        (
            "remembers",
            "init_carry=lambda num_envs: ()",
            "init_carry=lambda num_envs: 3",
            "init_carry of the algorithm returned of type int for a batch of 2; the first axis",
        ),
        ("text", "index: (),", "index: 'text',", "TypeError"),
        (
            "checks",
            '"""Any sizes fit: the rollout is the batch."""',
            "return {}['x']",
            "algorithm 'checks:Config', PATH, line 32: KeyError: 'x'",
        ),
        (
            "depends",
            "property(common.has_schedule)",
            "property(lambda self: self.x)",
            "'Config' object has no attribute 'x'",
        ),
    ],
)
def test_what_is_wrong_with_it_is_said_in_one_line(name, old, new, said, module):
    with pytest.raises(RunError) as caught:
        begun(module(name, old, new))
    told = re.sub(r"\S*/\w+\.py", "PATH", str(caught.value))
    assert said in told
    assert "\n" not in told


@pytest.mark.quickly
def test_the_example_begins_as_it_is(module):
    begun(module("right"))


def test_its_agents_begin_with_the_same_bits_beside_others(module):
    """With weights that it draws itself, as the initializers of flax do, and keeps twice."""
    old = "params = network.init(key) if weights is None else weights.params\n"
    new = """params = jax.tree.map(
            lambda x: jax.nn.initializers.truncated_normal(0.1)(key, x.shape),
            jax.eval_shape(network.init, key),
        )
        return Shared(options, params, (optim.make(options).init(params), params))
"""
    algo = algos.get(module("twice", old, new)).Config()
    config = Config(algo=algo, num_envs=8, hidden_sizes=(64, 32))
    assert beginnings_that_differ(config) == []


class Network(nn.Module):
    """A network of one's own."""

    policy_size: int

    @nn.compact
    def __call__(self, obs):
        return nn.Dense(self.policy_size)(obs), nn.Dense(1)(obs)[..., 0]


@pytest.mark.quickly
def test_it_takes_a_network_of_ones_own(module):
    """The example has no option that normalizes observations."""
    config = Config(algo=algos.get(module("with_network")).Config(), num_envs=8, devices=1)
    _, rows = steps(runner_of(config.replace(network=f"{__name__}:Network")), 1)
    assert np.isfinite(rows[0]["value_loss"])


def test_parameters_that_are_one_array_are_taken_from_another_run():
    """They lie under ``params`` itself in a checkpoint."""
    names = "params", "params/kernel", "observation/mean", "params_before", "optimizer"
    assert [origin.is_taken(f"shared/algo/{name}") for name in names] == [True] * 3 + [False] * 2


def test_what_it_cannot_normalize_is_told_without_an_option_that_it_lacks(module):
    config = Config(algo=algos.get(module("unnormalized")).Config())
    arrays = {"observation/mean": np.zeros((1, 4))}
    with pytest.raises(RunError, match=r"sees normalized observations; that of unn.* does not$"):
        origin._check_fit("init_from=x", config, config, None, arrays, {"params": np.zeros(7)})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:Config", "algorithm 'nowhere:Config': there is no module 'nowhere' on sys.path"),
        ("os:system", "its options should be a class Config beside make(config, spec, pool)"),
        ("os:Config", "module 'os' has no 'Config'"),
        ("vpg.py:Config", "'vpg.py' is not the name of a module; write it as Python's import does"),
        ("vgp", "algorithm 'vgp' does not exist (there are: ppo, "),
        ("my-mod:Config", "write it as Python's import does, such as my_module:Config"),
        ("lambda:Config", "'lambda' is not the name of a module"),
        ("__main__:Config", "should stand in a file of its own, where the run finds it again"),
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


def test_one_that_stands_in_a_config_file_is_refused(tmp_path):
    config = tmp_path / "config.py"
    text = EXAMPLE.replace("vpg:Config", "a2c")
    config.write_text(f"{text}\ndef get_config():\n    return cfg.Config(algo=Config())\n")
    config.write_text("import jaxrl_scale.config as cfg\n" + config.read_text())
    with pytest.raises(RunError, match="your own should stand in a module that this file imports"):
        check(files.read_file(config))


def test_an_option_that_it_has_no_more_is_its_own(trained, tmp_path, monkeypatch, module):
    module("renamed", "value_weight", "weight")
    shutil.copytree(trained, tmp_path / "run")
    text = (tmp_path / "run" / "config.json").read_text().replace("vpg:Config", "renamed:Config")
    (tmp_path / "run" / "config.json").write_text(text)
    with pytest.raises(RunError, match="'value_weight' that algorithm 'renamed:Config' does not"):
        files.read_config(tmp_path / "run" / "config.json")


def test_a_mistake_in_it_ends_the_command_with_one_line(world, folder):
    (folder / "wrong.py").write_text(
        EXAMPLE.replace("vpg:Config", "wrong:Config").replace("rollout.valid", "rollout.value")
    )
    done = world.run(*options(SIZES | {"algo": "wrong:Config", "run_dir": "wrong"}))
    said = "algorithm 'wrong:Config': update, wrong.py, line 69: AttributeError: 'Rollout'"
    assert done.status == MISTAKE
    assert re.fullmatch(rf"error: {said} .*\n", done.err), done.err
