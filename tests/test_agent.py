"""A trained agent in Python: the keys it draws from and the precision it computes with."""

import collections
import re
import shutil

import algorithms
import host_cartpole
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from running import begun, differing
from test_evaluate import untrained
from test_randomness import Recorder

from jaxrl_scale import Config, algos
from jaxrl_scale.envs.draw import side_by_side
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import networks, normalize
from jaxrl_scale.learning.normalize import Statistics
from jaxrl_scale.loop.agent import Agent, load, read_acting
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.records.checkpoint import Checkpoints
from jaxrl_scale.types import Discrete, EnvSpec, Played, TimeStep


class Filmed(Recorder):
    def render(self, state):
        return np.zeros((2, 2, 3), np.uint8)


def test_no_key_of_a_recorded_episode_is_used_twice():
    recorder = Filmed()
    algo = recorder.make(None, recorder.spec, local_pool(1))
    agent = Agent(Config(), recorder, algo, np.zeros(1), iteration=0)
    frames = agent.record(seed=3)
    jax.effects_barrier()
    used = collections.Counter(who for users in recorder.users.values() for who in users)
    assert len(frames) == 3  # an episode has two steps
    assert used["play"] == 2
    assert used["step"] == 2
    assert {key: users for key, users in recorder.users.items() if len(users) > 1} == {}


class Ages:
    """Episodes of one to six steps; a picture is as bright as its episode is old."""

    spec = EnvSpec("Ages", (1,), Discrete(2))

    def reset(self, key):
        last = jax.random.randint(key, (), 1, 7)
        return (jnp.int32(0), last), jnp.zeros(1)

    def step(self, key, state, action):
        age, last = state[0] + 1, state[1]
        ended = age == last
        return (age, last), TimeStep(jnp.zeros(1), jnp.float32(0), ended, jnp.bool_(False))

    def render(self, state):
        return np.full((2, 3, 3), state[0], np.uint8)


class Never:
    """Takes action 0."""

    @staticmethod
    def act(actor, local, carry, obs, is_first, key, greedy=False):
        return jnp.zeros(obs.shape[0], jnp.int32), carry, ()

    init_carry = staticmethod(lambda number: ())


def test_of_several_recorded_games_each_stands_still_when_it_is_over():
    frames = Agent(Config(), Ages(), Never(), np.zeros(1), iteration=0).record(seed=1, games=5)
    assert {frame.shape for frame in frames} == {(6, 13, 3)}  # three columns, two rows
    padded = np.pad(np.stack(frames), ((0, 0), (0, 2), (0, 2), (0, 0)), constant_values=128)
    grid = padded.reshape(-1, 2, 4, 3, 5, 3)  # [T, rows, 2 and a line, columns, 3 and a line, 3]
    assert (grid[:, :, 2:] == 128).all()
    assert (grid[:, :, :, :, 3:] == 128).all()
    grid = grid[:, :, :2, :, :3]
    ages = grid[:, :, 0, :, 0, 0].reshape(-1, 6)
    assert (grid == ages.reshape(-1, 2, 1, 3, 1, 1)).all()
    lengths = ages.max(0)
    assert lengths[5] == 0, "nothing is in the last place"
    assert len(set(lengths[:5])) > 2, "another seed is needed"
    assert (ages == np.minimum(np.arange(len(frames))[:, None], lengths)).all()
    assert len(frames) == 1 + lengths.max()


class Stateless(Ages):
    """Episodes of one step, with nothing to remember."""

    def reset(self, key):
        return (), jnp.zeros(1)

    def step(self, key, state, action):
        return (), TimeStep(jnp.zeros(1), jnp.float32(0), jnp.bool_(True), jnp.bool_(False))

    def render(self, state):
        return np.full((2, 3, 3), 7, np.uint8)


def test_an_environment_without_a_state_is_recorded():
    frames = Agent(Config(), Stateless(), Never(), np.zeros(1), iteration=0).record(games=3)
    assert [frame[0, 0, 0] for frame in frames] == [7, 7]


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (
            lambda _: np.zeros((4, 5)),
            r"render returned float64 \[4, 5\]; it should return uint8 \[",
        ),
        (
            lambda state: state.x,
            r"Ages: render, \S*test_agent.py, line \d+: AttributeError: .* 'x'",
        ),
        (
            lambda _: np.zeros((0, 5, 3), np.uint8),
            r"render returned uint8 \[0, 5, 3\]; it should return uint8 \[height, width, 3\]",
        ),
        (
            lambda state: np.zeros((2 + state[0], 5, 3), np.uint8),  # by its age
            r"two sizes, \[2, 5, 3\] and \[3, 5, 3\]; all should have one",
        ),
        (
            lambda state: np.zeros((2, state[1], 3), np.uint8),  # by the length of the episode
            r"two sizes, \[2, \d, 3\] and \[2, \d, 3\]; all should have one",
        ),
    ],
)
def test_a_picture_that_is_none_is_told_in_one_line(draw, said, monkeypatch):
    monkeypatch.setattr(Ages, "render", lambda _, state: draw(state))
    agent = Agent(Config(), Ages(), Never(), np.zeros(1), iteration=0)
    with pytest.raises(RunError, match=said):
        agent.record(games=3)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((2, 5, 3), r"uint8 \[2, 5, 3\]; it should return uint8 \[2, height, width, 3\]"),
        ((1, 4, 5, 3), r"uint8 \[1, 4, 5, 3\]; it should return uint8 \[2, height, width, 3\]"),
        (None, r"HostCartPole: render, \S*test_agent.py, line \d+: TypeError"),
    ],
)
def test_a_picture_of_games_on_the_host_that_is_none_is_told_in_one_line(shape, said, monkeypatch):
    def draw(_):
        return np.zeros((*shape,), np.uint8)

    monkeypatch.setattr(host_cartpole.Poles, "render", draw, raising=False)
    agent = Agent(Config(), host_cartpole.HostCartPole(), Never(), np.zeros(1), iteration=0)
    with pytest.raises(RunError, match=said):
        agent.record(games=2)


def test_large_pictures_are_shrunk_to_be_side_by_side():
    pictures = np.stack([np.full((400, 600, 3), k, np.uint8) for k in range(2)])
    assert (side_by_side(pictures[1:]) == pictures[1]).all()
    both = side_by_side(pictures)
    assert both.shape == (213, 640, 3)
    assert both[100, [0, 318, 319, 320, 321, 639], 0].tolist() == [0, 0, 128, 128, 1, 1]


def precisions(text):
    """Of the products in a program's text."""
    return set(re.findall(r"stablehlo.dot_general.*precision = \[(\w+), (\w+)\]", text))


@pytest.mark.parametrize("precision", ["highest", "default"])
def test_an_agent_acts_with_the_precision_of_its_run(precision, monkeypatch):
    agent = untrained(matmul_precision=precision)
    programs = []
    compiled = agent._compiled_act

    def lower(*args):
        programs.append(compiled.lower(*args).as_text())
        return compiled(*args)

    monkeypatch.setattr(agent, "_compiled_act", lower)
    agent.act(np.zeros(4))
    assert jax.config.values["jax_default_matmul_precision"] is None
    (text,) = programs
    assert precisions(text) == {(precision.upper(), precision.upper())}


def test_an_agent_acts_in_32_bit_numbers_whatever_is_set_in_jax():
    agent = untrained()
    obs = np.random.default_rng(0).normal(size=(64, 4))
    sampled = agent.act(obs, greedy=False)
    agent.reset()
    frames = agent.record()
    with jax.enable_x64(True):
        assert (agent.act(obs, greedy=False) == sampled).all()
        np.testing.assert_array_equal(agent.record(), frames)


def test_what_no_agent_can_play_is_told_in_one_line():
    agent = untrained()
    for play, wrong, said in (
        (agent.record, {"games": 0}, "games=0 should be a whole number of at least 1"),
        (agent.record, {"seed": 1.5}, "seed=1.5 should be a whole number of at least 0"),
        (agent.reset, {"seed": 2**70}, "should be a whole number of at most 2147483647"),
        (agent.evaluate_in_gymnasium, {"agents": [0, 1]}, "agent=1: the run has one agent, 0"),
        (agent.evaluate_in_gymnasium, {"agents": [True]}, "agent=True: the run has one agent, 0"),
        (agent.evaluate_in_gymnasium, {"agents": []}, "agents=[] should be a list of the numbers"),
        (agent.evaluate_in_gymnasium, {"agents": 1}, "agents=1 should be a list of the numbers"),
        (agent.act, {"obs": np.zeros((2, 4)), "is_first": [1]}, "(1,); it should have (2,)"),
        (agent.act, {"obs": np.zeros(4), "greedy": np.ones(2, bool)}, "greedy=array(["),
        (agent.evaluate, {"greedy": "no"}, "greedy='no' should be True or False"),
        (agent.evaluate_in_gymnasium, {"greedy": None}, "greedy=None should be True or False"),
        (agent.record, {"greedy": "no"}, "greedy='no' should be True or False"),
        (agent.record, {"greedy": 1, "games": 10**6}, "greedy=1 should be True or False"),
    ):
        with pytest.raises(RunError, match=re.escape(said)):
            play(**wrong)


def test_the_seeds_of_an_evaluation_are_those_that_a_run_could_have():
    """Beyond them a seed of 2**31 would start the episodes of seed 0."""
    agents = untrained(num_seeds=2)
    with pytest.raises(RunError, match="the last seed is 2147483648, which should be at most"):
        agents.evaluate(1, seed=2**31 - 1)
    last = untrained().evaluate(1, seed=2**31 - 1)
    assert last.returns.shape == (1, 1)


def test_an_agent_is_evaluated_with_the_precision_of_its_run(monkeypatch):
    from jaxrl_scale.loop import evaluator

    seen = []

    def play(*_):
        seen.append(jax.config.jax_default_matmul_precision)
        return Played(np.zeros((1, 1)), np.ones((1, 1)), {})

    monkeypatch.setattr(evaluator.Evaluator, "__call__", play)
    untrained(matmul_precision="high").evaluate(episodes=1)
    assert seen == ["high"]


@pytest.mark.quickly
@pytest.mark.parametrize("algo", ["dqn", "impala"])
def test_an_agent_loads_from_the_arrays_that_acting_needs_alone(algo, tmp_path):
    sizes = (
        {"replay_size": 2048, "batch_size": 64} if algo != "impala" else {"minibatch_size": 1024}
    )
    options = algos.get(algo).Config(**sizes)
    config = Config(algo=options, num_envs=64, rollout_length=16, iterations=8, num_seeds=2)
    begun(tmp_path / "run", config)
    _, iteration, arrays, counts = read_acting(tmp_path / "run", config)
    assert not any(name.startswith(("local", "shared/algo/optimizer")) for name in arrays)
    (tmp_path / "small").mkdir()
    shutil.copy(tmp_path / "run" / "config.json", tmp_path / "small")
    saved = Checkpoints(tmp_path / "small" / "checkpoints", 1)
    saved.save(iteration, arrays, counts)
    saved.close()
    whole, small = load(tmp_path / "run", 1), load(tmp_path / "small", 1)
    assert differing(whole.actor, small.actor) == []
    obs = np.random.default_rng(0).normal(size=(64, 4))
    for greedy in (True, False):
        assert (whole.act(obs, greedy) == small.act(obs, greedy)).all()
    assert differing(whole.outputs(obs), small.outputs(obs)) == []


def test_each_agent_of_a_population_acts_with_weights_of_its_own():
    agent, alone, draw = untrained(num_seeds=2), untrained(), np.random.default_rng(0)
    agent.actor = jax.tree.map(lambda x: draw.normal(size=x.shape).astype(np.float32), agent.actor)
    alone.actor = jax.tree.map(lambda x: x[1:], agent.actor)
    obs = draw.normal(size=(64, 4))
    first = agent.act(obs)
    agent.index = 1
    np.testing.assert_array_equal(agent.act(obs), alone.act(obs))
    assert (agent.act(obs) != first).any()


def test_an_episode_is_recorded_with_the_actions_that_were_asked_for(monkeypatch):
    agent, asked, act = untrained(), [], Agent._act

    def noted(self, obs, greedy, is_first):
        asked.append((greedy, is_first.tolist()))
        return act(self, obs, greedy, is_first)

    monkeypatch.setattr(Agent, "_act", noted)
    for greedy in (True, False):
        asked.clear()
        frames = agent.record(greedy=greedy)
        assert asked == [(greedy, [t == 0]) for t in range(len(frames) - 1)]


# --- what the network says ----------------------------------------------------------------------


def told(name="ppo", env="CartPole-v1", **options):
    """An agent with random parameters and statistics, the second of two, and 32 observations."""
    if name in ("dqn", "apex", "sac"):
        options |= {"replay_size": 2048}
    config = algos.get(name).Config(normalize_observations=True, **options)
    agent, draw = untrained(env=env, algo=config, num_seeds=2), np.random.default_rng(0)

    def random(x):
        drawn = np.abs(draw.normal(size=x.shape)).astype(x.dtype) + 0.5
        return drawn * draw.choice([-1, 1], x.shape).astype(x.dtype)

    actor = jax.tree.map(random, agent.actor)

    def seen(x):
        return x._replace(variance=np.abs(x.variance)) if isinstance(x, Statistics) else x

    agent.actor = jax.tree.map(seen, actor, is_leaf=lambda x: isinstance(x, Statistics))
    agent.index = 1
    return agent, draw.normal(size=(32, *agent.env.spec.observation_shape)).astype(np.float32)


def by_hand(agent, obs, torso, head):
    """Dense layers of NumPy, on normalized observations."""
    statistics = getattr(agent.actor, "newest", agent.actor).observation
    mean, variance = statistics.mean[1], statistics.variance[1]
    layer, last = agent.params[torso]["Dense_0"], agent.params[head]
    hidden = np.tanh((obs - mean) / np.sqrt(variance + 1e-8) @ layer["kernel"] + layer["bias"])
    return hidden @ last["kernel"] + last["bias"]


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


CONTINUOUS = "LunarLanderContinuous-v3"  # whose actions are two numbers


def assert_told(agent, obs, wanted):
    said = agent.outputs(obs)
    assert said.keys() == wanted.keys()
    for name, x in wanted.items():
        np.testing.assert_allclose(said[name], x, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(agent.outputs(obs[3])[name], x[3], rtol=1e-4, atol=1e-5)
        assert isinstance(said[name], np.ndarray)


def test_ppo_tells_the_probabilities_of_actions_and_the_value():
    agent, obs = told()
    logits, value = by_hand(agent, obs, "actor", "policy"), by_hand(agent, obs, "critic", "value")
    assert_told(agent, obs, {"probabilities": softmax(logits), "value": value[:, 0]})


def test_ppo_tells_the_probabilities_of_each_part_of_an_action():
    """Of parts of two and three numbers."""
    agent, obs = told(env="probes:MemoryOfParts")
    logits, value = by_hand(agent, obs, "actor", "policy"), by_hand(agent, obs, "critic", "value")
    parts = softmax(logits[:, :2]), softmax(logits[:, 2:])
    wanted = np.stack([np.pad(parts[0], ((0, 0), (0, 1))), parts[1]], 1)
    assert_told(agent, obs, {"probabilities": wanted, "value": value[:, 0]})
    best = agent.act(obs)
    np.testing.assert_array_equal(best, np.stack([part.argmax(-1) for part in parts], -1))
    np.testing.assert_array_equal(agent.act(obs[3]), best[3])


def test_ppo_tells_the_gaussian_of_continuous_actions_and_the_value():
    agent, obs = told(env=CONTINUOUS)
    mean, value = by_hand(agent, obs, "actor", "policy"), by_hand(agent, obs, "critic", "value")
    std = np.broadcast_to(np.exp(agent.params["log_std"]), (len(obs), 2))
    assert_told(agent, obs, {"mean": mean, "std": std, "value": value[:, 0]})
    np.testing.assert_allclose(agent.act(obs), np.clip(mean, -1, 1), rtol=1e-4, atol=1e-5)


def test_dqn_tells_the_values_of_actions():
    agent, obs = told("dqn")
    assert_told(agent, obs, {"q_values": by_hand(agent, obs, "torso", "action_values")})


def test_sac_tells_the_gaussian_that_it_squashes():
    agent, obs = told("sac", CONTINUOUS)
    policy = by_hand(agent, obs, "torso", "policy")
    mean, log_std = policy[:, :2], policy[:, 2:]
    assert (log_std > 2).any()  # which are bounded
    assert_told(agent, obs, {"mean": mean, "std": np.exp(np.clip(log_std, -20, 2))})
    np.testing.assert_allclose(agent.act(obs), np.tanh(mean), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", algorithms.NAMES)
def test_every_algorithm_acts_by_what_it_tells(name):
    agent, obs = told(name, CONTINUOUS if name in algorithms.CONTINUOUS else "CartPole-v1")
    said, actions = agent.outputs(obs), agent.act(obs)
    if name in algorithms.CONTINUOUS:
        np.testing.assert_allclose(np.tanh(said["mean"]), actions, rtol=1e-5)
        return
    best = said["q_values"] if "q_values" in said else said["probabilities"]
    assert best.shape == (32, 2)
    np.testing.assert_array_equal(best.argmax(-1), actions)
    assert set(actions) == {0, 1}, "another seed is needed"
    whole = jax.tree.map(lambda x: x[1], getattr(agent.actor, "newest", agent.actor).params)
    assert differing(whole, agent.params) == []


def test_the_probabilities_are_those_of_sampled_actions():
    agent, obs = told()
    agent.actor = jax.tree.map(lambda x: x / 4 if x.dtype == np.float32 else x, agent.actor)
    (probabilities,) = agent.outputs(obs[:1])["probabilities"]
    assert 0.2 < probabilities[0] < 0.8, "another seed is needed"
    drawn = agent.act(obs[:1].repeat(4000, 0), greedy=False)
    assert abs((drawn == 0).mean() - probabilities[0]) < 0.03


def test_a_policy_with_a_memory_tells_what_it_makes_of_it_and_remembers_nothing_new():
    """At every step before it acts, as its network says of the whole sequence at once."""
    agent, obs = told(recurrent=True)
    sequence, first = obs.reshape(8, 4, -1), np.zeros((8, 4), bool)
    first[0], first[5, 2] = True, True
    network = networks.make_recurrent(agent.config, agent.env.spec)
    weights = jax.tree.map(lambda x: x[1], agent.actor)
    _, (policy, value) = network.apply(
        weights.params,
        network.init_carry(4),
        normalize.apply(weights.observation, sequence),
        first,
    )
    for t in range(8):
        for _ in range(2):
            said = agent.outputs(sequence[t], first[t])
            np.testing.assert_allclose(said["probabilities"], softmax(policy[t]), rtol=1e-4)
            np.testing.assert_allclose(said["value"], value[t], rtol=1e-4)
        agent.act(sequence[t], is_first=first[t])
    with pytest.raises(RunError, match="remembers 4 episodes, and this is a batch of 32; agent"):
        agent.outputs(obs)
    with pytest.raises(RunError, match=r"shape \(3,\) is none of CartPole-v1"):
        agent.outputs(np.zeros(3))
