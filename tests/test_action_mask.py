"""Environments that say which actions are allowed: no agent takes another one."""

import dataclasses
from contextlib import closing
from functools import partial

import algorithms
import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from gymnasium import spaces
from running import differing, run, runner_of, small, steps

from jaxrl_scale import envs
from jaxrl_scale.algos import q_learning
from jaxrl_scale.config import Config
from jaxrl_scale.envs import check_env, play
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import action_mask, distributions, networks, normalize
from jaxrl_scale.loop.agent import Agent
from jaxrl_scale.loop.make import check_fit
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.types import Box, Discrete, EnvSpec, MultiDiscrete, TimeStep

ONE = EnvSpec("One", (5,), Discrete(3), action_mask=True)
PARTS = EnvSpec("Parts", (7,), MultiDiscrete((2, 3)), action_mask=True)
DISCRETE = [name for name in algorithms.NAMES if name not in algorithms.CONTINUOUS]


def test_what_is_forbidden_has_minus_infinity_and_a_mask_of_zeros_forbids_nothing():
    obs = jnp.asarray([[0.1, 0.2, 1, 0, 1], [0.3, 0.4, 0, 0, 0]])
    seen, mask = action_mask.split(ONE, obs)
    np.testing.assert_array_equal(seen, obs[:, :2])
    scores = action_mask.forbid(ONE, mask, jnp.asarray([[1.0, 2, 3]] * 2))
    np.testing.assert_array_equal(scores, [[1, -np.inf, 3], [1, 2, 3]])


def test_parts_are_allowed_each_by_itself():
    obs = jnp.asarray([[9.0, 9.0, 0, 1, 1, 0, 1], [9.0, 9.0, 0, 0, 0, 0, 1]])
    _, mask = action_mask.split(PARTS, obs)
    scores = action_mask.forbid(PARTS, mask, jnp.asarray([[1.0, 2, 3, 4, 5]] * 2))
    no = -np.inf
    np.testing.assert_array_equal(scores, [[no, 2, 3, no, 5], [1, 2, no, no, 5]])


@pytest.mark.parametrize("sizes", [(4,), (4, 2)])
def test_sums_that_are_rounded_up_draw_nothing_that_is_forbidden(sizes, monkeypatch):
    """As if the sum of the probabilities grew where an action has none."""
    true = jnp.cumsum
    monkeypatch.setattr(jnp, "cumsum", lambda x, axis: true(x, axis).at[..., 3].mul(1.5))
    space = Discrete(4) if len(sizes) == 1 else MultiDiscrete(sizes)
    policy = distributions.of(space, masked=True)
    logits = jnp.zeros((1000, policy.size)).at[:, 3].set(-jnp.inf).at[:, 2].set(2.0)
    drawn = policy.sample(jax.random.key(0), logits).reshape(1000, -1)[:, 0]
    assert {*drawn.tolist()} == {0, 1, 2}


def test_statistics_leave_the_mask_as_it_is():
    rng = np.random.default_rng(0)
    obs = rng.normal(3, 2, (2, 50, 5)).astype(np.float32)
    obs[..., 2:] = rng.random((2, 50, 3)) < 0.5
    begun = networks.begin(networks.make(Config(), ONE), ONE, jax.random.key(0), True, None)
    seen = normalize.update(local_pool(2), begun.observation, obs, np.ones((2, 50), bool))
    plain = normalize.update(
        local_pool(2), normalize.init(True, (2,)), obs[..., :2], np.ones((2, 50), bool)
    )
    jax.tree.map(np.testing.assert_array_equal, seen, plain)
    normalized = normalize.apply(seen, jnp.asarray(obs))
    np.testing.assert_array_equal(normalized[..., 2:], obs[..., 2:])
    np.testing.assert_array_equal(normalized[..., :2], normalize.apply(plain, obs[..., :2]))


class Choice:
    """Of four actions two or three are allowed, and the right one is the first of these or the
    last, as is shown. One that is not allowed pays more, and is counted."""

    spec = EnvSpec("Choice", (5,), Discrete(4), action_mask=True)

    def reset(self, key):
        obs = self.shown(key)
        return (obs, jnp.zeros((), jnp.int32)), obs

    def step(self, key, state, action):
        obs, steps = state
        mask, steps = obs[1:], steps + 1
        right = jnp.where(obs[0] > 0, 3 - mask[::-1].argmax(), mask.argmax())
        forbidden = mask[action] == 0
        reward = jnp.where(forbidden, 5.0, jnp.where(action == right, 1.0, 0.0))
        obs = self.shown(key)
        info = {"forbidden": forbidden}
        return (obs, steps), TimeStep(obs, reward, steps == 4, probes.NO, info)

    def shown(self, key):
        keys = jax.random.split(key, 3)
        last = jax.random.bernoulli(keys[0], shape=(1,)).astype(jnp.float32)
        two = jax.random.permutation(keys[1], jnp.asarray([1.0, 1.0, 0.0, 0.0]))
        more = jax.nn.one_hot(jax.random.randint(keys[2], (), 0, 4), 4)
        return jnp.concatenate([last, jnp.maximum(two, more)])


class ChoiceOfParts(Choice):
    """As `Choice`, of two parts: the second has two numbers, of which one is allowed."""

    spec = EnvSpec("ChoiceOfParts", (7,), MultiDiscrete((4, 2)), action_mask=True)

    def step(self, key, state, action):
        obs, steps = state
        (new, steps), out = super().step(key, (obs[:5], steps), action[0])
        forbidden = out.info["forbidden"] | (obs[5:][action[1]] == 0)
        return (new, steps), out._replace(info={"forbidden": forbidden})

    def shown(self, key):
        one = jax.nn.one_hot(jax.random.bernoulli(key).astype(jnp.int32), 2)
        return jnp.concatenate([super().shown(key), one])


def learner(name, **changes):
    """A config that learns `Choice`, with statistics of observations, on two devices."""
    config = algorithms.probing(name)
    own = dataclasses.replace(config.algo, normalize_observations=True)
    return config.replace(algo=own, **changes)


@pytest.mark.parametrize("name", DISCRETE)
def test_every_algorithm_learns_which_of_the_allowed_actions_is_right(name):
    config = learner(name)
    _, history = run(config, Choice())
    assert not any(metrics["env/forbidden"].any() for metrics in history)
    last = history[-10:]
    assert np.mean([m["total_return"].sum() / m["ended"].sum() for m in last]) > 2.5


@pytest.mark.as_users
@pytest.mark.parametrize(
    ("name", "options"),
    [("a2c", {}), pytest.param("ppo", {"recurrent": True}, marks=pytest.mark.slow)],
)
def test_with_masked_parts_the_bits_are_the_same_on_any_devices(name, options):
    config = learner(name, iterations=3, rollout_length=4, hidden_sizes=(4,), devices=1)
    config = config.replace(algo=dataclasses.replace(config.algo, **options))
    one, history = run(config, ChoiceOfParts())
    assert not any(metrics["env/forbidden"].any() for metrics in history)
    four, _ = run(config.replace(devices=4), ChoiceOfParts())
    assert differing(one, four) == []


def test_random_actions_of_q_learning_are_any_that_are_allowed():
    network = networks.make_q(Config(hidden_sizes=(4,)), ONE)
    q = jnp.broadcast_to(jnp.asarray([3.0, -jnp.inf, 1.0]), (20_000, 3))
    drawn = q_learning.choose(network, jax.random.key(0), q, 1.0)
    np.testing.assert_allclose(np.bincount(drawn) / 20_000, [0.5, 0, 0.5], atol=0.02)


class Own(nn.Module):
    """A network that asserts that it sees no mask."""

    policy_size: int

    def init_carry(self, number):
        return jnp.zeros((number, 1))

    @nn.compact
    def __call__(self, *seen):
        assert seen[-1].shape[-1] == 2
        x = nn.Dense(8)(seen[-1])
        out = nn.Dense(self.policy_size)(x), nn.Dense(1)(x)[..., 0]
        return (seen[0], out) if len(seen) > 1 else out


class OwnWithoutMemory(Own):
    init_carry = None


def test_networks_of_ones_own_see_no_mask():
    obs = jnp.asarray([[[0.5, -0.5, 0, 1, 1]]])
    config = Config(network="test_action_mask:OwnWithoutMemory")
    without, q = networks.make(config, ONE), networks.make_q(config, ONE)
    memory = networks.make_recurrent(Config(network="test_action_mask:Own"), ONE)
    key = jax.random.key(0)
    policy, _ = without.apply(without.init(key), obs)
    values = q.apply(q.init(key), obs)
    first = jnp.ones((1, 1), bool)
    _, (remembered, _) = memory.apply(memory.init(key), memory.init_carry(1), obs, first)
    for scores in (policy, values, remembered):
        assert (np.isneginf(scores) == [[[True, False, False]]]).all()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"action_mask": 1}, "spec.action_mask=1 should be True or False"),
        ({"action": Box(-1.0, 1.0, (2,))}, "action_mask=True should be False where actions are a"),
        (
            {"observation_shape": (3,)},
            r"shape=\(3,\) should be \(n,\) where n is more than 3",
        ),
        ({"observation_shape": (5, 5)}, r"n is more than 3, the length of the action mask at its"),
        ({"action": MultiDiscrete((3, 2))}, "n is more than 5, the length of the action mask"),
    ],
)
def test_a_mask_that_cannot_be_is_refused(changed, said):
    env = Choice()
    env.spec = dataclasses.replace(ONE, **changed)
    with pytest.raises(RunError, match=said):
        check_env(env)


def test_played_as_plain_python_random_actions_are_allowed():
    for env in (Choice(), ChoiceOfParts()):
        check_env(env)
        made = play(env, 6)
        assert not any(step.info["forbidden"] for *_, step in made)
        assert len({str(action) for _, _, action, _ in made}) > 2


class Maskable(Choice):
    def __init__(self, masked=True):
        self.spec = dataclasses.replace(Choice.spec, action_mask=masked)


def test_agents_are_tested_where_observations_end_with_a_mask_as_in_training():
    config = Config(env="test_action_mask:Maskable", test_env_kwargs={"masked": False})
    with pytest.raises(RunError, match="whose action_mask is False; it should be that of the env"):
        check_fit(config)


class Cards(gymnasium.Env):
    """As `Choice`, of Gymnasium: only an action that is allowed may be taken. The mask's name comes
    first in a Dict, which sorts its names."""

    observation_space = spaces.Dict(
        {"last": spaces.Box(0, 1, (2,)), "action_mask": spaces.MultiBinary(3)}
    )
    action_space = spaces.Discrete(3, start=4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.shown(), {}

    def step(self, action):
        assert self.mask[action - 4], "an action that is not allowed"
        self.steps += 1
        return self.shown(), 1.0, self.steps == 5, False, {}

    def shown(self):
        self.mask = self.np_random.permutation(np.array([0, 0, 1], np.int8))
        self.last = self.np_random.random(2).astype(np.float32)
        return {"last": self.last, "action_mask": self.mask}


class OtherCards(Cards):
    observation_space = spaces.Dict({**Cards.observation_space, "action_mask": spaces.Discrete(3)})


class Throttle(Cards):
    """Of a Box nothing can be forbidden: its mask is a part like any other."""

    action_space = spaces.Box(0.0, 1.0, (1,))

    def step(self, action):
        return self.shown(), 1.0, True, False, {}


class Beside(Cards):
    """It says beside its observations what is allowed."""

    observation_space = spaces.Box(0, 1, (2,))

    def shown(self):
        return super().shown()["last"]


class Asked(Beside):
    """When it is asked, as MaskablePPO does."""

    def action_masks(self):
        assert self.steps < 5, "nothing follows"
        return self.mask.astype(bool)


class Asking(gymnasium.Wrapper):
    """As ActionMasker of sb3-contrib: the environment itself tells nothing."""

    def __init__(self):
        super().__init__(Beside())

    def action_masks(self):
        return self.unwrapped.mask


class Informed(Beside):
    """In its info, as Taxi does."""

    def reset(self, **how):
        obs, _ = super().reset(**how)
        return obs, {"action_mask": self.mask}

    def step(self, action):
        return *super().step(action)[:4], {"action_mask": self.mask}


class Misinformed(Informed):
    def step(self, action):
        return *super().step(action)[:4], {"action_mask": [1, 0]}


class Weighing(Informed):
    """These numbers are none of which each says yes or no."""

    def reset(self, **how):
        return super().reset(**how)[0], {"action_mask": [0.2, 0.8, 0]}


class Painted(Informed):
    """An image has no place for a mask."""

    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def shown(self):
        self.mask = [1, 1, 1]
        return np.zeros((8, 8, 3), np.uint8)


KINDS = (Cards, OtherCards, Throttle, Asked, Asking, Informed, Misinformed, Weighing, Painted)


@pytest.fixture
def cards():
    for kind in KINDS:
        gymnasium.register(f"{kind.__name__}-v0", entry_point=partial(kind))
    yield
    for kind in KINDS:
        del gymnasium.registry[f"{kind.__name__}-v0"]


def test_an_action_mask_in_an_observation_of_gymnasium_is_heeded(cards):
    """In training, evaluation and in its own environment."""
    config = small({}, env="gymnasium:Cards-v0", iterations=2, devices=1, eval_episodes=4)
    runner = runner_of(config)
    assert runner.env.spec.action_mask
    check_env(runner.env)
    state, history = steps(runner, 2)
    assert history[-1]["total_return"] == 5 * history[-1]["ended"] > 0
    actor = runner.fetch_actor(runner.place(state, str))
    agent = Agent(config, runner.env, runner.algo, actor, iteration=2)
    assert (agent.evaluate_in_gymnasium(3).returns == 5).all()
    assert agent.env.encoded[0].endswith("makes it, with action_mask at its end.")
    runner.close()
    seen = {"last": np.float32([0.1, 0.2]), "action_mask": np.int8([0, 1, 0])}
    np.testing.assert_array_equal(agent.env.seen(seen), np.float32([0.1, 0.2, 0, 1, 0]))
    assert agent.act(seen) == 5
    np.testing.assert_array_equal(agent.outputs(seen)["probabilities"], [0, 1, 0])


def test_an_action_mask_of_gymnasium_that_is_none_is_told(cards):
    with pytest.raises(RunError, match=r"has action_mask Discrete\(3\); it should be MultiBinary"):
        envs.make("gymnasium:OtherCards-v0")
    assert not envs.make("gymnasium:Throttle-v0").spec.action_mask


@pytest.mark.parametrize("kind", ["Asked", "Asking", "Informed"])
def test_a_mask_that_is_told_beside_the_observations_of_gymnasium_is_heeded(kind, cards):
    """As if both were a Dict, in its own environment too."""
    env = envs.make(f"gymnasium:{kind}-v0")
    assert (env.spec.observation_shape, env.spec.action_mask) == ((5,), True)
    assert env.encoded[0].endswith("flatten makes of Gymnasium's, and then the mask of actions.")
    check_env(env)
    with closing(env.simulate(np.arange(4), 2)) as games:
        obs = games.reset()
        for step in range(5):
            assert (np.sort(obs[:, 2:], 1) == [0, 0, 1]).all()
            games.send(obs[:, 2:].argmax(1))  # any other raises an error
            seen = games.receive()
            obs = seen.obs
            assert (seen.terminated == (step == 4)).all()
        assert not obs[:, 2:].any()
    with closing(env.make()) as one:
        obs, _ = one.reset(seed=3)
        allowed = one.unwrapped.mask
        np.testing.assert_array_equal(env.seen(obs), [*one.unwrapped.last, *allowed])
        obs, *_ = one.step(4 + allowed.argmax())
        np.testing.assert_array_equal(obs["action_mask"], one.unwrapped.mask)


def test_a_told_mask_that_is_none_is_an_error_and_an_image_has_none(cards):
    said = r"info\['action_mask'\] has the shape \(2,\); it should be \(3,\), a number for"
    with pytest.raises(RunError, match=said):
        envs.make("gymnasium:Misinformed-v0")
    said = r"info\['action_mask'\] is \[0.2 0.8 0. \]; it should be 1 or 0 for each action"
    with pytest.raises(RunError, match=said):
        envs.make("gymnasium:Weighing-v0")
    spec = envs.make("gymnasium:Painted-v0").spec
    assert (spec.observation_shape, spec.action_mask) == ((8, 8, 3), False)


def test_taxis_mask_in_its_info_is_heeded():
    env = envs.make("gymnasium:Taxi-v4")
    with closing(env.simulate(np.arange(3), 1)) as games, closing(env.make()) as taxi:
        for k, obs in enumerate(games.reset()):
            place, mask = np.flatnonzero(obs[:500]), obs[500:]
            told = taxi.reset(seed=k)[0]
            assert (place, 0 < mask.sum() < 6) == (told["observation"], True)
            np.testing.assert_array_equal(mask, taxi.unwrapped.action_mask(place[0]))
