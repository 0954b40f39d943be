"""A run is a function of its config and seed: bit for bit the same on 1, 2, 4 and 8 devices.

And the test can tell: three classic mistakes in pooling are made on purpose, and seen. Here it is
PPO in several environments; ``test_algorithms.py`` has every algorithm.
"""

import dataclasses
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from running import (
    beginning,
    beginnings_that_differ,
    differing,
    run,
    runner_of,
    shared_runner,
    small,
    steps,
    whole,
)

from jaxrl_scale.algos import a2c, dqn, impala, sac
from jaxrl_scale.config import Config
from jaxrl_scale.loop import state as run_state
from jaxrl_scale.parallel import backend, sums
from jaxrl_scale.parallel.placement import Placement
from jaxrl_scale.parallel.sums import AXIS
from jaxrl_scale.types import MOST_SHARDS

EVERYTHING = {
    "normalize_observations": True,
    "scale_rewards": True,
    "clip_value": True,
    "target_kl": 0.02,
    "lr_schedule": "cosine",
}
CONFIGS = {
    "cartpole": small({"normalize_observations": True, "scale_rewards": True}, iterations=24),
    "pendulum, every option": small(
        EVERYTHING, env="Pendulum-v1", shared_torso=True, activation="relu"
    ),
    "lunar lander": small(env="LunarLander-v3", rollout_length=96, iterations=3),
    "acrobot": small(env="Acrobot-v1"),
    "pendulum, SAC": Config(
        algo=sac.Config(
            batch_size=512, updates_per_iteration=4, replay_size=4096, learning_starts=512
        ),
        env="Pendulum-v1",
        activation="relu",
        num_envs=64,
        num_shards=8,
        rollout_length=16,
        iterations=2,
    ),
}

DEVICES = [(name, 8) for name in CONFIGS] + [("cartpole", 2), ("cartpole", 4)]
"""Eight: one for each shard."""

SLOW = [("lunar lander", 8), ("acrobot", 8), ("pendulum, SAC", 8), ("cartpole", 4), ("cartpole", 8)]
"""XLA takes long to compile the physics of the first three. LunarLander's in batches of several
sizes is in test_lunar_lander.py, SAC with products of this size in test_algorithms.py, and so is
every algorithm in CartPole on eight devices. Four are among those that train in test_peers.py and
test_train.py."""

PIXELS = small(
    {"minibatch_size": 32, "epochs": 1},
    env="probes:Pixels",
    hidden_sizes=(16,),
    num_envs=16,
    num_shards=2,
    rollout_length=4,
    iterations=2,
)


@pytest.mark.parametrize("network", ["cnn", pytest.param("nature", marks=pytest.mark.slow)])
def test_a_network_for_images_trains_the_same_on_1_and_2_devices(network):
    config = PIXELS.replace(network=network)
    one, two = (whole(config.replace(devices=devices)) for devices in (1, 2))
    assert differing(one, two) == []
    assert {"env/place", "env_end/right"} <= set(one[1][0]), "the environment's own numbers too"


@pytest.mark.parametrize(
    ("name", "devices"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case in SLOW)) for case in DEVICES],
)
def test_a_run_ends_bit_identical_on_1_device_and_on_more(name, devices):
    reference, history = whole(CONFIGS[name].replace(devices=1))
    state, other = whole(CONFIGS[name].replace(devices=devices))
    assert differing(reference, state) == []
    assert differing(history, other) == []


def test_iterations_of_one_call_are_those_of_several():
    runner = shared_runner(CONFIGS["cartpole"].replace(devices=2))
    ends = []
    for counts in ([6], [1, 2, 3]):
        placed, history = runner.place(beginning(runner.config)), []
        for count in counts:
            placed, rows, _ = runner.steps(placed, count)
            history += rows
        ends.append((runner.fetch(placed), history))
    assert len(ends[0][1]) == 6
    assert differing(*ends) == []


def test_a_call_should_make_as_many_iterations_as_take_a_fifth_of_a_second(monkeypatch):
    runner = runner_of(CONFIGS["cartpole"].replace(devices=2))
    ticks = iter(0.03 * tick for tick in range(20))  # a call lasts from one to the next
    clock = SimpleNamespace(perf_counter=lambda: next(ticks))
    monkeypatch.setattr("jaxrl_scale.loop.runner.time", clock)
    state, counts, heard = runner.place(beginning(runner.config)), [], []
    for stop in (False, False, False, True, False):
        counts.append(runner.at_once)
        state, _, stops = runner.steps(state, counts[-1], stop)
        heard.append(stops)
    assert counts == [1, 1, 6, 6, 1]
    assert runner.at_once == 32
    assert heard == [False, False, False, True, False]


class Own(nn.Module):
    """A network of one's own, with flax's own initializers."""

    policy_size: int

    @nn.compact
    def __call__(self, obs):
        x = nn.relu(nn.Dense(64)(obs))
        return nn.Dense(self.policy_size)(x), nn.Dense(1)(x)[..., 0]


@pytest.mark.parametrize(
    "config",
    [
        Config(algo=dqn.Config(), network="test_invariance:Own"),
        Config(algo=impala.Config(recurrent=True, minibatch_size=8192)),
    ],
    ids=["own network, DQN", "GRU, IMPALA"],
)
def test_an_agent_begins_with_the_same_bits_beside_others(config):
    """XLA fused flax's initializers with what is done with the weights, in a loop over the agents
    of a device otherwise than without one."""
    assert beginnings_that_differ(config) == []


def test_an_agent_of_one_shard_has_the_same_bits_beside_others():
    """Its computations stand in a loop where a device holds several agents, and by themselves where
    it holds one. Rollouts of one step are in no loop of their own."""
    sizes = {"num_envs": 8, "num_shards": 1, "rollout_length": 1, "hidden_sizes": (16,)}
    config = Config(env="probes:Formulas", algo=a2c.Config(), devices=1, iterations=7, **sizes)
    alone, history = whole(config)
    two, of_two = whole(config.replace(num_seeds=2))
    assert differing(alone, jax.tree.map(lambda x: x[:1], two)) == []
    assert differing(history, jax.tree.map(lambda x: x[:1], of_two)) == []


@pytest.mark.slow
@pytest.mark.parametrize("agents", [4, 3])
def test_an_agent_of_a_population_is_the_single_run_of_its_seed(agents):
    """Whole agents on devices, and shards on devices: smaller ones are in test_train.py and in
    test_algorithms.py."""
    config = CONFIGS["cartpole"].replace(devices=4)
    runner = shared_runner(config)
    seventh = runner.init(run_state.agents(config.replace(seed=7)))
    single, _ = steps(runner, 8, runner.fetch(seventh))
    several = config.replace(num_seeds=agents, seed=5, devices=2)
    ends, _ = run(several, iterations=8)
    agent = jax.tree.map(lambda x: x[2:3], ends)
    assert differing(single, agent) == []


def test_the_state_of_one_placement_goes_on_in_another():
    config = CONFIGS["cartpole"]
    whole, _ = run(config.replace(devices=2), iterations=6)
    half, _ = run(config.replace(devices=1), iterations=3)
    rest, _ = run(config.replace(devices=2), iterations=3, state=half)
    assert differing(whole, rest) == []


@pytest.mark.quickly
def test_a_run_that_is_made_longer_is_the_run_of_that_length():
    """Where nothing falls over the run."""
    config = small({"lr_schedule": "constant"}, iterations=2, devices=2)
    longer = config.replace(iterations=4)
    half, _ = run(config)
    assert differing(run(longer)[0], run(longer, iterations=2, state=half)[0]) == []


@pytest.mark.quickly
def test_fast_sums_agree_within_rounding_at_the_first_update():
    config = CONFIGS["cartpole"]
    exact, _ = run(config.replace(devices=1), iterations=1)
    for devices in (1, 4):
        fast, _ = run(config.replace(devices=devices, reduction="fast"), iterations=1)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6, rtol=2e-5),
            exact.shared.algo.params,
            fast.shared.algo.params,
        )


def spoiled(pool, **wrong):
    """A pool that does some things wrongly, also in its later sums."""
    return pool._replace(**wrong, after=lambda before: spoiled(pool.after(before), **wrong))


def per_device_mean(placement):
    """Gradients are averaged over a device's own shards only, as if each trained alone."""
    right = sums.device_pool(placement.num_shards, placement.num_devices, True)
    alone = sums.local_pool(placement.num_shards // placement.num_devices)
    return spoiled(right, grad=alone.grad)


def per_device_key(placement):
    """Shards are numbered within their device, so that devices repeat each other's numbers."""
    right = sums.device_pool(placement.num_shards, placement.num_devices, True)
    count = placement.num_shards // placement.num_devices
    return spoiled(right, shard_index=lambda: jnp.arange(count, dtype=jnp.int32))


def plain_psum(placement):
    """Sums by ``psum``: right within rounding, in an order that depends on the devices."""
    right = sums.device_pool(placement.num_shards, placement.num_devices, True)

    def grad(f, params, *shards):
        gradients = right.map(lambda *s: jax.grad(f, has_aux=True)(params, *s), *shards)
        return jax.lax.psum(jax.tree.map(lambda x: x.sum(0), gradients), AXIS)

    return spoiled(right, grad=grad)


def no_mistake(placement):
    """What is right, in the way in which the mistakes are made."""
    return spoiled(sums.device_pool(placement.num_shards, placement.num_devices, True))


@pytest.mark.parametrize("pool", [no_mistake, per_device_mean, per_device_key, plain_psum])
def test_a_wrong_pooling_is_caught(pool, monkeypatch):
    config = CONFIGS["cartpole"]
    right, _ = run(config.replace(devices=1), iterations=8)
    monkeypatch.setattr(Placement, "pool", pool)
    found, _ = steps(runner_of(config.replace(devices=2)), 8, beginning(config))
    same = differing(right.shared.algo.params, found.shared.algo.params) == []
    assert same == (pool is no_mistake)


def test_the_tree_adds_neighbours_first():
    terms = np.asarray([1e8, 1.0, -1e8, 1.0, 3.0, 4.0, 5.0, 6.0], np.float32)
    f = np.float32
    by_hand = f(f(terms[0] + terms[1]) + f(terms[2] + terms[3])) + f(
        f(terms[4] + terms[5]) + f(terms[6] + terms[7])
    )
    assert float(sums.tree_sum(jnp.asarray(terms))) == float(by_hand)
    walled = sums.walled_sum(jnp.stack([terms, terms, terms], 1))
    np.testing.assert_array_equal(walled, [by_hand] * 3)


@pytest.mark.parametrize("shards", [1, 8, MOST_SHARDS])
def test_whole_numbers_are_summed_exactly_beside_others(shards):
    rng, most = np.random.default_rng(0), 2**31 // shards
    whole = rng.integers(-most, most, (shards, 50)).astype(np.int32)
    whole[:, 0], whole[:, 1] = most - 1, -most
    rest = rng.normal(size=(shards, 2, 3)).astype(np.float32)
    for exact in (True, False):
        a, b = jax.jit(sums.local_pool(shards, exact).sum)((whole, rest))
        np.testing.assert_array_equal(a, whole.sum(0, dtype=np.int32))
        np.testing.assert_allclose(b, rest.sum(0), rtol=1e-3, atol=1e-3)
    with pytest.raises(TypeError, match="should be float32 or int32; this is bool"):
        sums.local_pool(shards).sum(whole > 0)


def test_placement_goes_there_and_back():
    shared = {"x": np.arange(6.0).reshape(6, 1)}
    local = {"y": np.arange(6 * 8 * 2).reshape(6, 8, 2)}
    both = (None,) * 2
    for by_agents in (True, False):
        placement = Placement(both, both, 0, 6, 8, by_agents, True)  # type: ignore[arg-type]
        for split, join, tree in (
            (placement.split_shared, placement.join_shared, shared),
            (placement.split_local, placement.join_local, local),
        ):
            there = split(tree)
            assert jax.tree.leaves(there)[0].shape[0] == 2
            assert differing(join(there), tree) == []


def test_devices_that_divide_nothing_are_left_idle():
    config = small()
    placement = backend.place(config, jax.local_devices()[:3])
    assert (placement.num_devices, placement.idle) == (2, 1)
    assert "1 idle" in placement.describe()
    assert dataclasses.replace(placement, idle=0).describe().startswith("2 cpu devices with 4")
