"""Policies with a memory: against a slow NumPy twin, their resets, their sequences, their bits."""

import dataclasses
import functools
import importlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
import test_a2c
import test_impala
from learners import GAMMA, rollout_of
from processes import REPOSITORY
from running import differing, first_shared, run, runner_of, small, steps, time_at
from test_ppo import CLIP, ENTROPY, VALUE, actions_of, of_each_space, twin_loss

from jaxrl_scale.algos import a2c, dqn, impala, ppo, pqn
from jaxrl_scale.config import Config, check
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import networks
from jaxrl_scale.loop.evaluator import Evaluator
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.records.checkpoint import Checkpoints
from jaxrl_scale.types import Discrete, EnvSpec, Rollout

SPEC = EnvSpec("twin", (5,), Discrete(3))


def recurrent(algo=None, **changes):
    """A small run whose rollouts, of 18 steps, begin within the probe's episodes of 4."""
    own = {"recurrent": True, "learning_rate": 1e-2, "gamma": 0.9, "lr_schedule": "constant"}
    whole = {"hidden_sizes": (16,), "devices": 4, "rollout_length": 18}
    return small(own | {"minibatch_size": 288} | (algo or {}), **whole | changes)


def random_network(rng, make=networks.make_recurrent, hidden_sizes=(6, 8), spec=SPEC):
    network = make(Config(hidden_sizes=hidden_sizes, algo=ppo.Config(recurrent=True)), spec)
    params = jax.tree.map(
        lambda x: jnp.asarray(rng.normal(0, 0.5, x.shape), jnp.float32),
        network.init(jax.random.key(0)),
    )
    return network, params


def dense(layer, x):
    return x @ np.asarray(layer["kernel"]) + np.asarray(layer.get("bias", 0.0))


def twin_memory(params, carry, obs, is_first):
    """What one environment remembers, one step after the other: a dense layer and a GRU as in
    https://arxiv.org/abs/1406.1078, with the reset gate behind the matrix product (as cuDNN)."""

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    gru, remembered = params["memory"], []
    for seen, first in zip(obs, is_first, strict=True):
        h = np.zeros_like(carry) if first else carry
        x = np.tanh(dense(params["torso"]["Dense_0"], seen))
        reset = sigmoid(dense(gru["ir"], x) + dense(gru["hr"], h))
        update = sigmoid(dense(gru["iz"], x) + dense(gru["hz"], h))
        new = np.tanh(dense(gru["in"], x) + reset * dense(gru["hn"], h))
        carry = (1 - update) * new + update * h
        remembered.append(carry)
    return remembered


def twin_unroll(params, carry, obs, is_first):
    remembered = twin_memory(params, carry, obs, is_first)
    free = params.get("log_std", [])
    policies = [np.append(dense(params["policy"], x), free) for x in remembered]
    values = [dense(params["value"], x)[0] for x in remembered]
    return remembered[-1], np.asarray(policies), np.asarray(values)


@of_each_space
def test_the_loss_of_sequences_equals_its_slow_twin(space):
    rng = np.random.default_rng(0)
    network, params = random_network(rng, spec=EnvSpec("twin", (5,), space))
    L, n = 12, 5
    batch = ppo.Samples(
        carry=rng.normal(size=(1, n, 8)).astype(np.float32),
        obs=rng.normal(size=(L, n, 5)).astype(np.float32),
        is_first=rng.random((L, n)) < 0.2,
        action=actions_of(space, rng, L, n),
        log_prob=rng.normal(-1.1, 0.3, (L, n)).astype(np.float32),
        value=rng.normal(size=(L, n)).astype(np.float32),
        advantage=rng.normal(size=(L, n)).astype(np.float32),
        target=rng.normal(size=(L, n)).astype(np.float32),
        valid=rng.random((L, n)) < 0.8,
    )
    options = ppo.Config(clip_epsilon=CLIP, entropy_coef=ENTROPY, value_coef=VALUE)
    total, sums = ppo.loss(network, options, params, jax.tree.map(jnp.asarray, batch))
    assert float(sums.pop("count")) == batch.valid.sum()
    expected = dict.fromkeys(sums, 0.0)
    for i in range(n):
        _, policy, value = twin_unroll(
            params, batch.carry[0, i], batch.obs[:, i], batch.is_first[:, i]
        )
        alone = jax.tree.map(lambda x, i=i: x[:, i], batch._replace(carry=()))
        for name, number in twin_loss(policy, value, alone, space, False).items():
            expected[name] += number
    assert 0 < expected["clip_fraction"] < batch.valid.sum()  # both branches are exercised
    assert float(total) == pytest.approx(expected["loss"], rel=1e-4)
    for name, number in expected.items():
        assert float(sums[name]) == pytest.approx(number, rel=1e-4), name


def with_memory(rollout, rng):
    """The rollout ``[T, B]`` with episodes that begin here and there, and a memory before it."""
    _, B = rollout.valid.shape
    is_first = rng.random(rollout.is_first.shape) < 0.2
    carry = rng.normal(size=(1, B, 8)).astype(np.float32)
    return rollout._replace(is_first=is_first, carry=carry)


def unrolled(params, batch):
    """`twin_unroll` of every environment: ``policy [T, B, size]`` and ``value [T, B]``."""
    carry, B = batch.carry[0], batch.obs.shape[1]
    each = [twin_unroll(params, carry[i], batch.obs[:, i], batch.is_first[:, i]) for i in range(B)]
    return np.stack([x[1] for x in each], 1), np.stack([x[2] for x in each], 1)


def assert_sums(found, expected):
    total, sums = found
    assert float(total) == pytest.approx(expected["loss"], rel=1e-4)
    assert set(sums) == set(expected)
    for name, number in expected.items():
        assert float(sums[name]) == pytest.approx(number, rel=1e-4), name


def test_the_loss_of_a2c_with_a_memory_equals_its_slow_twin():
    rng = np.random.default_rng(5)
    network, params = random_network(rng, spec=EnvSpec("twin", (4,), Discrete(3)))
    rollout = with_memory(jax.tree.map(lambda x: x[0], rollout_of(5, S=1, T=12, B=5)), rng)
    batch = a2c.Samples(
        carry=rollout.carry,
        obs=rollout.obs[:-1],
        is_first=rollout.is_first[:-1],
        action=rollout.action,
        advantage=rng.normal(size=(12, 5)).astype(np.float32),
        target=rollout.reward,
        valid=rollout.valid,
    )
    options = a2c.Config(entropy_coef=test_a2c.ENTROPY, value_coef=test_a2c.VALUE)
    expected = test_a2c.twin_loss(*unrolled(params, batch), batch, Discrete(3))
    assert_sums(jax.jit(functools.partial(a2c.loss, network, options))(params, batch), expected)


def test_the_loss_of_impala_with_a_memory_equals_its_slow_twin():
    rng = np.random.default_rng(6)
    network, params = random_network(rng, spec=EnvSpec("twin", (4,), Discrete(3)))
    acted = test_impala.acted_rollout(6, S=1, T=12, B=5)
    batch = with_memory(jax.tree.map(lambda x: x[0], acted), rng)
    expected = test_impala.twin_loss(*unrolled(params, batch), batch, "vtrace", 1.0, 1.0)
    options = impala.Config(
        gamma=GAMMA, entropy_coef=test_impala.ENTROPY, value_coef=test_impala.VALUE
    )
    assert_sums(jax.jit(functools.partial(impala.loss, network, options))(params, batch), expected)


def test_the_loss_of_pqn_with_a_memory_equals_its_slow_twin():
    rng = np.random.default_rng(7)
    network, params = random_network(rng, networks.make_recurrent_q)
    batch = pqn.Samples(
        carry=rng.normal(size=(1, 5, 8)).astype(np.float32),
        obs=rng.normal(size=(12, 5, 5)).astype(np.float32),
        is_first=rng.random((12, 5)) < 0.2,
        action=rng.integers(0, 3, (12, 5)),
        target=rng.normal(size=(12, 5)).astype(np.float32),
        valid=rng.random((12, 5)) < 0.8,
    )
    chosen, error = 0.0, 0.0
    for i in range(5):
        seen = batch.carry[0, i], batch.obs[:, i], batch.is_first[:, i]
        for t, remembered in enumerate(twin_memory(params, *seen)):
            q = dense(params["action_values"], remembered)[batch.action[t, i]]
            chosen += q * batch.valid[t, i]
            error += 0.5 * (q - batch.target[t, i]) ** 2 * batch.valid[t, i]
    expected = {"loss": error, "q_mean": chosen, "count": batch.valid.sum()}
    assert_sums(jax.jit(functools.partial(pqn.loss, network))(params, batch), expected)


# --- an episode's memory ends with it -------------------------------------------------------


def make_of(module):
    """What makes an algorithm's network."""
    return networks.make_recurrent_q if module is pqn else networks.make_recurrent


def options_of(module, **own):
    """An algorithm's options with a memory. IMPALA's actors are not behind, PQN acts greedily and
    has no LayerNorm."""
    own = {
        impala: {"lag": 0},
        pqn: {"layer_norm": False, "epsilon_start": 0.0, "epsilon_end": 0.0},
    }.get(module, {}) | own
    return module.Config(recurrent=True, **own)


def extras_of(module, log_prob, value):
    """What the algorithm's ``act`` returns beside the action."""
    return {ppo: (log_prob, value), a2c: value, impala: log_prob, pqn: ()}[module]


each_algorithm = pytest.mark.parametrize(
    "module", [ppo, a2c, impala, pqn], ids=lambda module: module.Config.name
)


def two_episodes(rng, module=ppo):
    """Two episodes of four and five observations as rollouts ``[S=1, T, B]``: one behind the
    other in one environment, and each in its own."""
    first, second = rng.normal(size=(4, 5)), rng.normal(size=(5, 5))
    names = {name: rng.normal(size=8) for name in ("reward", "extras")}
    action = rng.integers(0, 3, 8).astype(np.int32)
    ends = np.arange(8) == 2  # the step after it is a reset

    def rollout(shape, obs, is_first, carry):
        def stepwise(x):  # [8] to [1, T, B]
            return np.asarray(x).reshape(shape[::-1]).T[None]

        unused = np.full((1, *shape), np.nan, np.float32)  # values are computed with the memory

        return Rollout(
            obs=np.asarray(obs, np.float32)[None],
            is_first=np.asarray(is_first)[None],
            action=stepwise(action),
            reward=stepwise(names["reward"]).astype(np.float32),
            terminated=stepwise(ends),
            truncated=np.zeros((1, *shape), bool),
            valid=stepwise(np.arange(8) != 3),
            carry=np.asarray(carry, np.float32)[None],
            extras=extras_of(
                module, stepwise(names["extras"] / 9 - 1.1).astype(np.float32), unused
            ),
        )

    together = rollout(
        (8, 1),
        np.concatenate([first, second])[:, None],
        (np.arange(9) % 4 == 0)[:, None] & (np.arange(9) < 8)[:, None],
        rng.normal(size=(1, 16)),
    )
    apart = rollout(
        (4, 2),
        np.stack([np.concatenate([first, second[:1]]), second], 1),
        np.asarray([[True, True], *[[False, False]] * 3, [True, False]]),
        rng.normal(size=(2, 16)),  # a memory of what was before, which is_first empties
    )
    return together, apart


@functools.cache
def program(module, T, B, exact):
    """A compiled update, and the state before the first."""
    own = {} if module is a2c else {"minibatch_size": T * B, "epochs": 2}
    config = Config(
        num_envs=B,
        num_shards=1,
        rollout_length=T,
        hidden_sizes=(16,),
        algo=options_of(module, **own),
    )
    check(config)
    algo = module.make(config, SPEC, local_pool(1, exact))
    return jax.jit(algo.update), first_shared(algo, config)


def updated(rollout, exact=True, module=ppo):
    _, T, B = rollout.valid.shape
    update, shared = program(module, T, B, exact)
    return update(shared, jnp.zeros((1, B)), rollout, jax.random.key(1), time_at(0))


def assert_near(one, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), one, other)


@pytest.mark.quickly
@each_algorithm
def test_two_episodes_in_one_rollout_teach_what_they_teach_apart(module):
    together, apart = two_episodes(np.random.default_rng(1), module)
    one, _, metrics = updated(together, module=module)
    other, _, other_metrics = updated(apart, module=module)
    assert_near((one.params, metrics), (other.params, other_metrics))
    # What a reset step holds teaches nothing.
    spoiled = apart._replace(
        reward=np.where(apart.valid, apart.reward, 1e3),
        extras=jax.tree.map(lambda x: np.where(apart.valid, x, -9.0), apart.extras),
        action=np.where(apart.valid, apart.action, (apart.action + 1) % 3),
    )
    assert differing(other.params, updated(spoiled, module=module)[0].params) == []
    # One big batch does the same within rounding.
    assert_near(other.params, updated(apart, exact=False, module=module)[0].params)


@pytest.mark.quickly
@each_algorithm
def test_learning_begins_with_the_memory_that_each_environment_had(module):
    """Without a step of the optimiser the entropy is that of the policy that acted; PQN's values
    are those of the network that did."""
    _, rollout = two_episodes(np.random.default_rng(2), module)
    rollout = rollout._replace(is_first=rollout.is_first & (np.arange(5) > 0)[:, None])
    update, shared = program(module, 4, 2, True)
    params = jax.tree.map(lambda x: 20 * x, shared.params)  # not the uniform policy
    options = dataclasses.replace(shared.options, learning_rate=jnp.float32(0))
    config = Config(hidden_sizes=(16,), algo=options_of(module))
    network = make_of(module)(config, SPEC)

    def told(carry):
        _, out = network.apply(params, carry, rollout.obs[0, :4], rollout.is_first[0, :4])
        if module is pqn:
            each = np.take_along_axis(np.asarray(out), rollout.action[0, ..., None], -1)[..., 0]
        else:
            each = network.policy.entropy(out[0])
        return each[rollout.valid[0]].mean()

    expected = pytest.approx(float(told(rollout.carry[0])), rel=1e-5)
    for others in (rollout.carry[0, ::-1], np.zeros((2, 16), np.float32)):
        assert told(others) != expected
    for seed in range(4):  # the orders in which environments are learned from
        start = shared._replace(params=params, options=options)
        key = jax.random.key(seed)
        _, _, metrics = update(start, jnp.zeros((1, 2)), rollout, key, time_at(0))
        assert metrics["q_mean" if module is pqn else "entropy"] == expected


@pytest.mark.quickly
@each_algorithm
def test_acting_empties_the_memory_where_an_episode_begins(module):
    rng = np.random.default_rng(3)
    _, params = random_network(rng, make_of(module), (6, 16))
    config = Config(hidden_sizes=(6, 16), algo=options_of(module))
    algo = module.make(config, SPEC, local_pool(8))
    actor = algo.actor(first_shared(algo, config)._replace(params=params), time_at(0))
    obs = rng.normal(size=(6, 2, 5)).astype(np.float32)
    is_first = np.asarray([[0, 1], [0, 0], [1, 0], [0, 0], [0, 1], [0, 0]], bool)
    start = rng.normal(size=(2, 16)).astype(np.float32)
    carry = played = jnp.asarray(start)
    for t in range(6):
        key = jax.random.key(t)
        said = algo.outputs(actor, carry, obs[t], is_first[t])
        action, carry, extras = algo.act(actor, None, carry, obs[t], is_first[t], key)
        sampled, played, _ = algo.act(actor, None, played, obs[t], is_first[t], key, False)
        np.testing.assert_array_equal(action, sampled)
        greedy, *_ = algo.act(actor, None, played, obs[t], is_first[t], key, True)
        for i in range(2):
            seen = start[i], obs[: t + 1, i], is_first[: t + 1, i]
            remembered = twin_memory(params, *seen)[-1]
            np.testing.assert_allclose(carry[i], remembered, atol=1e-5)
            if module is pqn:
                q = dense(params["action_values"], remembered)
                assert_near(said["q_values"][i], q)
                assert action[i] == greedy[i] == q.argmax()
                continue
            _, policy, values = twin_unroll(params, *seen)
            p = np.exp(policy[-1]) / np.exp(policy[-1]).sum()
            assert_near((said["probabilities"][i], said["value"][i]), (p, values[-1]))
            expected = extras_of(module, np.log(p[action[i]]), values[-1])
            assert_near(jax.tree.map(lambda x, i=i: x[i], extras), expected)
    assert greedy.shape == (2,)
    assert (algo.init_carry(3) == 0).all()


def test_large_observations_are_evaluated_step_by_step_as_small_ones_are_at_once(monkeypatch):
    rng = np.random.default_rng(4)
    network, params = random_network(rng)
    weights = networks.Weights(params, None)
    together, _ = two_episodes(rng)
    rollout = jax.tree.map(lambda x: x[0], together)
    rollout = rollout._replace(carry=rng.normal(size=(1, 8)).astype(np.float32))
    at_once = networks.evaluate(network, weights, rollout)
    monkeypatch.setattr(networks, "_LARGE", 1)
    assert_near(networks.evaluate(network, weights, rollout), at_once)


# --- the whole loop -------------------------------------------------------------------------

EVERYTHING = {
    "normalize_observations": True,
    "scale_rewards": True,
    "clip_value": True,
    "target_kl": 0.05,
}
ITERATIONS = 60


@pytest.fixture(scope="module")
def remembering():
    """A run on one device on the task that needs memory, for each part of an action: runner, final
    state, history."""
    config = recurrent(EVERYTHING, iterations=ITERATIONS, devices=1)
    runner = runner_of(config, probes.MemoryOfParts())
    return runner, *steps(runner, ITERATIONS)


def mean_return(history):
    return sum(m["total_return"][0] for m in history) / sum(m["ended"][0] for m in history)


def test_a_memory_solves_what_needs_memory(remembering):
    runner, final, history = remembering
    assert mean_return(history[-5:]) > 0.9
    play = Evaluator(runner.env, runner.algo, runner.placement, 64, greedy=True)
    actor = runner.algo.actor(final.shared.algo, time_at(ITERATIONS))
    assert play(actor, runner.agents.seeds).returns.mean() == 1.0


@pytest.mark.quickly
def test_without_a_memory_it_is_not_solved():
    _, history = run(recurrent({"recurrent": False}, iterations=ITERATIONS), probes.Memory())
    assert abs(mean_return(history[-20:])) < 0.1


def test_learning_sees_the_policy_that_acted(remembering):
    # Without a step of the optimiser all ratios are 1, if the memory is rebuilt as it was.
    runner, final, history = remembering
    assert max(m["approx_kl"][0] for m in history) > 1e-5  # a step of the optimiser shows in it
    assert history[-1]["entropy"][0] < 0.6  # not the uniform policy, where any memory would do
    assert np.abs(final.local.carry).max() > 0.1
    options = final.shared.algo.options
    still = dataclasses.replace(options, learning_rate=np.zeros_like(options.learning_rate))
    frozen = final._replace(
        shared=final.shared._replace(algo=final.shared.algo._replace(options=still))
    )
    _, history = steps(runner, 3, frozen)
    assert max(m["approx_kl"][0] for m in history) < 1e-9
    assert max(m["clip_fraction"][0] for m in history) == 0


def test_a_run_is_the_same_on_any_number_of_devices_and_in_a_population(remembering):
    """On eight devices, each of which holds one shard of both agents."""
    runner, final, _ = remembering
    config = runner.config.replace(devices=8, num_seeds=2)
    other, _ = run(config, probes.MemoryOfParts())
    assert differing(final, jax.tree.map(lambda x: x[:1], other)) == []


IN_MINIBATCHES = {"minibatch_size": 288, "epochs": 2, "normalize_observations": True}


@pytest.mark.parametrize(
    ("module", "own"),
    [
        (impala, IN_MINIBATCHES),
        (pqn, IN_MINIBATCHES | {"epsilon_end": 0.0, "exploration_fraction": 0.5}),
        pytest.param(a2c, {}, marks=pytest.mark.slow),
    ],
    ids=["impala", "pqn", "a2c"],
)
def test_the_others_learn_what_needs_a_memory_and_have_the_bits_of_any_devices(module, own):
    """IMPALA's actors are an iteration behind; so is the memory that their next rollout begins
    with."""
    algo = module.Config(
        recurrent=True, learning_rate=1e-2, gamma=0.9, lr_schedule="constant", **own
    )
    config = recurrent(iterations=60, devices=1).replace(algo=algo)
    one, history = run(config, probes.Memory())
    assert mean_return(history[-20:]) > 0.9
    many, _ = run(config.replace(devices=8, num_seeds=2), probes.Memory())
    assert differing(one, jax.tree.map(lambda x: x[:1], many)) == []


def test_a_checkpoint_goes_on_as_if_nothing_had_happened(remembering, tmp_path):
    runner, final, _ = remembering
    state, _ = steps(runner, ITERATIONS - 3)
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(ITERATIONS - 3, state, {}, None)
    checkpoints.wait()
    _, saved, _ = checkpoints.restore(runner.abstract_state(), print)
    checkpoints.close()
    state, _ = steps(runner, 3, saved)
    assert differing(final, state) == []


# --- sizes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "try_instead"), [(64, 128), (200, 256), (384, 256), (640, 512), (4096, 1024)]
)
def test_minibatches_of_broken_sequences_are_refused(size, try_instead):
    config = recurrent(
        {"minibatch_size": 128}, rollout_length=16
    )  # 8 environments a shard, 16 steps, 8 shards
    wrong = config.replace(algo=dataclasses.replace(config.algo, minibatch_size=size))
    with pytest.raises(
        RunError, match=rf"^algo.minibatch_size={size} does not cut .* whole traj.*\S$"
    ) as e:
        check(wrong)
    assert str(e.value).endswith(f"try algo.minibatch_size={try_instead}")
    check(config.replace(algo=dataclasses.replace(config.algo, minibatch_size=try_instead)))


def test_a_memory_needs_a_hidden_layer():
    with pytest.raises(RunError, match="try hidden_sizes=64,64"):
        ppo.make(recurrent(hidden_sizes=()), SPEC, local_pool(8))


# --- a network of one's own -----------------------------------------------------------------

PAGE = (REPOSITORY / "docs" / "algorithms.md").read_text()
EXAMPLE = next(x for x in re.findall(r"```python\n(.*?)```", PAGE, re.S) if "init_carry" in x)
OTHERS = """
class Counts(LSTM):
    '''Remembers, too, how many steps it has seen.'''

    def init_carry(self, batch_size):
        return *super().init_carry(batch_size), jnp.full((batch_size,), 0)

    def __call__(self, carry, obs):
        *carry, steps = carry
        carry, seen = super().__call__(tuple(carry), obs)
        return (*carry, steps + 1), seen


class Forgetful(nn.Module):
    policy_size: int

    @nn.compact
    def __call__(self, obs):
        return nn.Dense(self.policy_size)(obs), nn.Dense(1)(obs)[..., 0]


class Unbatched(LSTM):
    def init_carry(self, batch_size):
        return jnp.zeros(32)


class Failing(LSTM):
    def init_carry(self, batch_size):
        raise ValueError("lost")


class Changing(LSTM):
    def __call__(self, carry, obs):
        carry, seen = super().__call__(carry, obs)
        return carry[0], seen
"""


@pytest.fixture(scope="module")
def remember(tmp_path_factory):
    """The module of the page, on the path, with others that are like it."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "remember.py").write_text(EXAMPLE + OTHERS)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        yield importlib.import_module("remember")
    del sys.modules["remember"]


def test_a_memory_of_ones_own_learns_what_needs_one_and_has_the_bits_of_any_devices(remember):
    """It remembers numbers of two kinds, alone on a device and as one of two agents on eight. A2C's
    program compiles fastest."""
    algo = a2c.Config(recurrent=True, learning_rate=1e-2, gamma=0.9, lr_schedule="constant")
    config = recurrent(iterations=ITERATIONS, devices=1, network="remember:Counts")
    config = config.replace(algo=algo)
    final, history = run(config, probes.Memory())
    assert mean_return(history[-5:]) > 0.9
    counted = final.local.carry[2]
    assert counted.dtype == np.int32
    assert counted.max() == 3 or counted.max() == 4  # an episode's steps and its reset
    other, _ = run(config.replace(devices=8, num_seeds=2), probes.Memory())
    assert differing(final, jax.tree.map(lambda x: x[:1], other)) == []


def test_a_memory_of_ones_own_is_carried_and_emptied_step_by_step(remember):
    config = Config(network="remember:Counts", algo=ppo.Config(recurrent=True))
    network = networks.make_policy(config, SPEC, recurrent=True)
    params, rng = network.init(jax.random.key(0)), np.random.default_rng(0)
    obs = rng.normal(size=(7, 3, 5)).astype(np.float32)
    is_first = rng.random((7, 3)) < 0.3
    start = jax.tree.map(
        lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), network.init_carry(3)
    )
    start = (*start[:2], jnp.asarray([5, 6, 7]))
    carry, (policy, value) = network.apply(params, start, obs, is_first)
    module = remember.Counts(policy_size=3)
    for i in range(3):
        alone = jax.tree.map(lambda x, i=i: x[i : i + 1], start)
        for t in range(7):
            alone = module.init_carry(1) if is_first[t, i] else alone
            alone, said = module.apply({"params": params}, alone, obs[t, i : i + 1])
            assert_near((policy[t, i], value[t, i]), jax.tree.map(lambda x: x[0], said))
        assert_near(jax.tree.map(lambda x, i=i: x[i], carry), jax.tree.map(lambda x: x[0], alone))
    since = [7 - max(np.flatnonzero(is_first[:, i]), default=-5 - i) for i in range(3)]
    assert carry[2].tolist() == since


@pytest.mark.parametrize(
    ("network", "algo", "said"),
    [
        (
            "Forgetful",
            {},
            "has no memory, which algo.recurrent=true asks for; it should have a met",
        ),
        (
            "LSTM",
            {"recurrent": False},
            "has a memory; give --algo.recurrent=true$",
        ),
        (
            "Unbatched",
            {},
            r": init_carry\(4\) returned float32\[32\]; it should return an array, or",
        ),
        ("Failing", {}, r": init_carry\(4\), \S+remember.py, line \d+: ValueError: lost"),
        (
            "Changing",
            {},
            r", called with the memory \(float32\[4,32\], float32\[4,32\]\) and observations "
            r"float32\[4,5\], returned \(float32\[4,32\], \(.*; it should return \(memory, \(pol",
        ),
    ],
)
def test_what_a_memory_of_ones_own_lacks_is_said(remember, network, algo, said):
    options = ppo.Config(**{"recurrent": True} | algo)
    config = Config(network=f"remember:{network}", algo=options)
    with pytest.raises(RunError, match=f"^network 'remember:{network}'.*{said}"):
        ppo.make(config, SPEC, local_pool(8))


def test_which_algorithms_take_a_memory_is_said(remember):
    config = Config(network="remember:LSTM", algo=dqn.Config())
    said = (
        "has a memory, which ppo, a2c, impala and pqn take; give --algo=ppo --algo.recurrent=true$"
    )
    with pytest.raises(RunError, match=said):
        dqn.make(config, SPEC, local_pool(8))
