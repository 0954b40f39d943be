"""Runs that begin from the policy of another run."""

import dataclasses
import functools
import json
import re
import shutil

import algorithms
import jax
import numpy as np
import pytest
from probes import Pixels
from running import begun, differing

from jaxrl_scale import sweep
from jaxrl_scale.algos import ppo
from jaxrl_scale.config import files
from jaxrl_scale.envs.cartpole import CartPole
from jaxrl_scale.errors import RunError
from jaxrl_scale.loop import origin
from jaxrl_scale.loop.make import make_runner
from jaxrl_scale.loop.state import Agents
from jaxrl_scale.loop.stop import StopRequest
from jaxrl_scale.parallel import backend
from jaxrl_scale.parallel.peers import Peers
from jaxrl_scale.types import MultiDiscrete


class Parts:
    """CartPole, but for its actions."""

    def __init__(self, sizes: list):
        self.spec = dataclasses.replace(CartPole().spec, action=MultiDiscrete(tuple(sizes)))

    def reset(self, key):
        return CartPole().reset(key)

    def step(self, key, state, action):
        return CartPole().step(key, state, action[0])


class Floats(Pixels):
    """The same images, of other numbers."""

    def __init__(self, dtype="float32"):
        super().__init__(8, 1)
        self.spec = dataclasses.replace(self.spec, observation_dtype=np.dtype(dtype))

    def observe(self, column):
        return super().observe(column).astype(self.spec.observation_dtype)


def of_parts(*sizes):
    return config_of().replace(env="test_origin:Parts", env_kwargs={"sizes": [*sizes]})


def config_of(name="ppo", **changes):
    config = algorithms.everything(name)
    return config.replace(hidden_sizes=(8,), devices=1, **changes)


def found(config, other, agents=None, resume=None):
    spec = config.make_env().spec
    config = config.replace(init_from=str(other))
    return origin.find(config, spec, agents, resume, Peers())


def beginning(config, agents=None):
    """The state before the first iteration, canonical."""
    placement = backend.place(config, jax.local_devices())
    runner = make_runner(config, config.make_env(), placement, agents)
    return runner.fetch(runner.init())


def copies(shared):
    """Parameters of an algorithm's state, and all copies of them."""
    older = getattr(shared, "older", ())
    return [
        shared.params,
        *([shared.target_params] if hasattr(shared, "target_params") else []),
        *(weights.params for weights in older),
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """``f(name, seeds) -> (path, state)``: the directory of a run that is about to begin."""
    folder, made = tmp_path_factory.mktemp("others"), {}

    def run(name, seeds=1):
        if (name, seeds) not in made:
            config = config_of(name, seed=77, num_seeds=seeds)
            path = folder / f"{name}-{seeds}"
            made[name, seeds] = path, begun(path, config)
        return made[name, seeds]

    return run


@pytest.mark.parametrize("name", algorithms.NAMES)
def test_the_policy_is_the_other_runs_and_all_else_is_that_of_a_new_run(name, runs):
    path, other = runs(name)
    config = config_of(name, seed=3)
    fresh, begins = beginning(config), beginning(config, found(config, path).agents)
    for params in copies(begins.shared.algo):
        assert differing(params, other.shared.algo.params) == []
    assert differing(begins.shared.algo.observation, other.shared.algo.observation) == []
    assert differing(begins.local, fresh.local) == []
    assert (begins.shared.seed, begins.shared.iteration) == (fresh.shared.seed, 0)
    changed = differing(begins.shared.algo, fresh.shared.algo)
    names = {re.split(r"[.\[]", name)[1] for name in changed}
    assert names <= {"params", "target_params", "older"}
    assert "params" in names


def test_the_statistics_of_observations_go_with_the_policy(runs):
    path, _ = runs("a2c")
    file = path / "checkpoints" / "0" / "arrays.npz"
    with np.load(file) as arrays:
        assert "shared/algo/observation/mean.npy" in [f"{name}.npy" for name in arrays.files]
    weights = found(config_of("a2c"), path).agents.weights
    assert weights.observation.mean.shape == (1, 4)


def test_agents_begin_from_the_only_one_or_each_from_its_own(runs):
    one, several = runs("ppo"), runs("ppo", 2)
    config = config_of("ppo", num_seeds=2)
    for devices in (1, 2, 8):
        config = config.replace(devices=devices)
        of_one = beginning(config, found(config, one[0]).agents).shared.algo.params
        twice = jax.tree.map(lambda x: np.concatenate([x, x]), one[1].shared.algo.params)
        assert differing(of_one, twice) == []
        of_two = beginning(config, found(config, several[0]).agents).shared.algo.params
        assert differing(of_two, several[1].shared.algo.params) == []
    with pytest.raises(RunError, match=r"ppo-2 has 2 agents and this run 3; it should have 1 or 3"):
        found(config.replace(num_seeds=3, devices=1), several[0])
    with pytest.raises(RunError, match=r"has 2 agents and this run 1; it should have 1 agent$"):
        found(config_of("ppo"), several[0])


def test_agents_of_a_sweep_keep_their_seeds_and_options(runs):
    path, _ = runs("ppo")
    config = config_of("ppo")
    own = Agents(np.array([4, 9], np.uint32), jax.tree.map(lambda x: np.full(2, x), config.algo))
    agents = found(config, path, own).agents
    assert agents[:2] == own[:2]
    assert {len(x) for x in jax.tree.leaves(agents.weights)} == {2}


def test_the_digest_is_that_of_what_was_taken(runs):
    path, _ = runs("ppo")
    record = found(config_of("ppo"), path).record
    assert record["run_dir"] == str(path)
    assert record["iteration"] == 0
    assert re.fullmatch(r"[0-9a-f]{64}", record["digest"])
    assert found(config_of("ppo", seed=5), path).record == record
    others = runs("ppo", 2)[0]
    assert found(config_of(num_seeds=2), others).record["digest"] != record["digest"]


def test_the_agents_of_a_sweep_begin_from_one_policy(runs, tmp_path, monkeypatch):
    """It is recorded before anything is trained; what has begun needs the other run no more."""
    path, _ = runs("ppo")
    record = found(config_of("ppo"), path).record
    (tmp_path / "mine.py").write_text(files.to_python(config_of("ppo"), "Mine."))
    given = [f"--config={tmp_path / 'mine.py'}", "--agents=2", "--seeds=1"]

    def begin(other, folder="sweep", varied="--algo.gamma=0.9,1"):
        more = [varied, f"--init_from={other}", f"--run_dir={tmp_path / folder}"]
        asked = sweep._asked(*sweep._parser().parse_known_args([*given, *more]))
        (chunk,) = asked.plan.chunks(0, sweep._begin(asked, None))
        return chunk

    with pytest.raises(RunError, match="has 2 agents and this run 1; it should have 1 agent"):
        begin(runs("ppo", 2)[0])
    with pytest.raises(RunError, match=r"^init_from=\S+: run directory"):
        begin(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"^with --hidden_sizes=16: init_from=\S+: the policy of"):
        begin(path, varied="--hidden_sizes=8;16")
    assert not (tmp_path / "sweep").exists()
    other = shutil.copytree(path, tmp_path / "other")
    chunk = begin(other)
    told = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["init_from"]
    assert told == {name: record[name] for name in ("iteration", "digest")}

    trained = []
    monkeypatch.setattr(sweep, "_obey", lambda *_: trained.append(1))
    train = functools.partial(sweep.train_chunk, Peers(), StopRequest(), tmp_path / "sweep", chunk)
    train("1/1")
    later = {"iteration": 5, "digest": "of a later policy"}
    monkeypatch.setattr(origin, "policy", lambda _: later)
    with pytest.raises(RunError, match=r"has trained on .*: it is at iteration 5"):
        train("1/1")
    (tmp_path / "sweep" / chunk.name).mkdir()
    (tmp_path / "sweep" / chunk.name / "config.json").write_text("{}")
    shutil.rmtree(other)
    train("1/1")  # it goes on
    assert len(trained) == 2
    assert begin(other).name == chunk.name


def test_before_its_first_checkpoint_a_run_starts_again_from_the_same_policy(runs, tmp_path):
    path, _ = runs("ppo")
    config, record = config_of("ppo"), found(config_of("ppo"), path).record
    (tmp_path / "run.json").write_text(json.dumps({"starts": [{"init_from": record}, {}]}))
    again = found(config, "it was called otherwise there", resume=tmp_path)
    assert again.record == record
    changed = record | {"digest": "0"}
    (tmp_path / "run.json").write_text(json.dumps({"starts": [{"init_from": changed}]}))
    with pytest.raises(RunError, match=r"has another policy than the one that this run began from"):
        found(config, path, resume=tmp_path)
    (tmp_path / "checkpoints" / "2").mkdir(parents=True)
    assert found(config, "gone", resume=tmp_path) == origin.Origin(None, {})


MISTAKES = {
    "no folder": (lambda: config_of(), "nowhere", r"run directory \S*nowhere does not exist"),
    "no run": (lambda: config_of(), ".", r"is not a run directory: it has no config\.json"),
    "width": (
        lambda: config_of().replace(hidden_sizes=(16,)),
        "ppo",
        r"init_from=\S+ppo-1: the policy of that run \(ppo in CartPole-v1\) is none of this one "
        r"\(ppo in CartPole-v1\): params/actor/Dense_0/bias is \[8\] there and \[16\] here",
    ),
    "space": (
        lambda: config_of().replace(env="Acrobot-v1"),
        "ppo",
        r"params/actor/Dense_0/kernel is \[4, 8\] there and \[6, 8\] here",
    ),
    "depth": (
        lambda: config_of().replace(hidden_sizes=(8, 8)),
        "ppo",
        r"params/actor/Dense_1/bias is missing there and \[8\] here",
    ),
    "algorithm": (
        lambda: config_of("dqn"),
        "ppo",
        r"\(ppo in CartPole-v1\) is none of this one \(dqn in CartPole-v1\): params/\S+ is missing",
    ),
    "activation": (
        lambda: config_of().replace(activation="relu"),
        "ppo",
        r"its activation is tanh; try --activation=tanh",
    ),
    "actions": (
        lambda: of_parts(1, 1),
        "ppo",
        r"ppo-1: the policy of that run chooses actions of Discrete\(n=2\) in CartPole-v1; here "
        r"they are of MultiDiscrete\(sizes=\(1, 1\)\)$",
    ),
    "normalized": (
        lambda: config_of().replace(algo=ppo.Config(normalize_observations=False)),
        "ppo",
        r"its policy sees normalized observations; try --algo.normalize_observations=true",
    ),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_policy_that_does_not_fit_is_told_in_one_line(kind, runs, tmp_path):
    make, where, message = MISTAKES[kind]
    other = runs(where)[0] if where == "ppo" else tmp_path / where
    with pytest.raises(RunError, match=message) as raised:
        found(make(), other)
    assert "\n" not in str(raised.value)
    assert raised.value.status == 2


def test_a_policy_that_has_seen_bytes_is_not_taken_for_other_numbers(tmp_path):
    pixels = {"env": "probes:Pixels", "env_kwargs": {"edge": 8, "channels": 1}}
    begun(tmp_path / "bytes", config_of(**pixels))
    begun(tmp_path / "floats", config_of(env="test_origin:Floats"))
    told = r"bytes: the policy of that run sees observations of uint8 in probes:Pixels; here they "
    with pytest.raises(RunError, match=told + r"are of float32$"):
        found(config_of(env="test_origin:Floats"), tmp_path / "bytes")
    with pytest.raises(RunError, match=r"of float32 in test_origin:Floats; here they are of uint8"):
        found(config_of(**pixels), tmp_path / "floats")
    bytes_too = config_of(env="test_origin:Floats", env_kwargs={"dtype": "uint8"})
    assert found(bytes_too, tmp_path / "bytes").record
    whole = config_of(env="test_origin:Floats", env_kwargs={"dtype": "int32"})
    assert found(whole, tmp_path / "floats").record


def test_a_policy_is_taken_for_actions_that_differ_in_name_or_cannot_be_compared(runs, tmp_path):
    path, _ = runs("ppo")
    assert found(of_parts(2), path).record
    other = shutil.copytree(path, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"env": "nowhere:Environment"}))
    assert found(of_parts(1, 1), other).record


def test_a_run_without_a_checkpoint_or_with_a_failed_agent_is_told(runs, tmp_path):
    path, _ = runs("ppo")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.json").write_bytes((path / "config.json").read_bytes())
    with pytest.raises(RunError, match=r"init_from=\S+new has no checkpoint yet"):
        found(config_of(), tmp_path / "new")
    (tmp_path / "new" / "summary.json").write_text('{"status": "failed"}')
    with pytest.raises(RunError, match=r"=\S+new has no checkpoint: the run failed before its"):
        found(config_of(), tmp_path / "new")
    begun(tmp_path / "failed", config_of(num_seeds=2), failed={1: 12})
    with pytest.raises(
        RunError, match=r"failed: the loss or another metric of agent 1 is not finite there"
    ):
        found(config_of(num_seeds=2), tmp_path / "failed")


def test_a_run_in_an_environment_on_the_host_begins_from_a_policy_too(runs):
    path, other = runs("ppo")
    config = config_of("ppo", num_shards=4).replace(env="host_cartpole:HostCartPole")
    begins = beginning(config, found(config, path).agents)
    assert differing(begins.shared.algo.params, other.shared.algo.params) == []


def test_another_algorithm_with_the_same_network_fits(runs):
    path, other = runs("ppo")
    config = config_of("a2c")
    begins = beginning(config, found(config, path).agents)
    assert differing(begins.shared.algo.params, other.shared.algo.params) == []
