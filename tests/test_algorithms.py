"""What holds for every algorithm: see `algorithms.CASES`."""

import dataclasses
import functools
import re
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import algorithms
import collectives
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import Mixture, asked, check_values, rollout_of
from running import differing, first_shared, runner_of, steps, time_at
from test_docs import EXPLAINED

from jaxrl_scale import algos
from jaxrl_scale.config import Config
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import networks, normalize, returns
from jaxrl_scale.loop import state as run_state
from jaxrl_scale.options import option, register
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.records.rows import scalars
from jaxrl_scale.types import Box, Discrete, EnvSpec

every_algorithm = pytest.mark.parametrize("name", algorithms.NAMES)


@every_algorithm
def test_a_longer_run_begins_otherwise_where_its_length_is_in_a_schedule(name):
    options, constant = algos.get(name).Config, {"lr_schedule": "constant"}
    for schedule in ("linear", "cosine"):
        assert options(lr_schedule=schedule).depends_on_budget
    explores = "exploration_fraction" in algorithms.options(name)
    assert options(**constant).depends_on_budget == explores
    if explores:
        assert not options(**constant, epsilon_start=0.1, epsilon_end=0.1).depends_on_budget


PROBED = [(name, "discrete") for name in algorithms.NAMES if name not in algorithms.CONTINUOUS]
PROBED += [("sac", "continuous"), ("a2c", "parts"), ("impala", "parts")]
"""Algorithms and kinds of actions. PPO learns with parts in test_recurrent.py, with a memory."""


@pytest.mark.quickly
@pytest.mark.parametrize(("name", "kind"), PROBED)
def test_the_values_and_the_policy_of_the_probe_environments_are_learned(name, kind):
    config = algorithms.probing(name)
    env = Mixture(kind)
    state, _ = steps(runner_of(config, env), config.num_iterations)
    params = jax.tree.map(lambda x: x[0], state.shared.algo.params)
    action, value = algorithms.learned(config, env.spec, params)
    check_values(asked(value))
    np.testing.assert_array_equal(asked(action)["Both"], [0, 1])


@functools.cache
def single(name):
    """A runner of one agent, whose program was compiled for a config with all numbers halved: a
    number that a program takes from its config, not from the agent, is noticed."""
    config = algorithms.everything(name)
    return runner_of(config.replace(algo=halved(config.algo, *algorithms.numbers(config.algo))))


def halved(options, *names):
    return dataclasses.replace(options, **{name: getattr(options, name) / 2 for name in names})


def after(runner, options, seeds, iterations=7):
    """The state and the metrics of all iterations, of agents with these options and seeds."""
    numbers = jax.tree.map(lambda *x: np.asarray(x, np.float32), *options)
    agents = run_state.Agents(np.asarray(seeds, np.uint32), numbers)
    return steps(runner, iterations, runner.fetch(runner.init(agents)))


class Population(NamedTuple):
    """Agents on eight devices, each of which holds one shard of every agent: the first has the
    config's numbers and seed, the next another seed, each of the others half the value of one
    number, and the last of all."""

    changes: list[tuple[str, ...]]
    """The numbers that are halved, of each."""

    options: list[Any]
    seeds: list[int]
    half: Any
    """The state after four iterations."""

    end: Any
    """And after all seven: the progress of a run is then no binary fraction."""

    history: list[dict[str, np.ndarray]]

    unordered: list[tuple[str, str]]
    """Collectives of its program that a device may begin at the same time."""


@functools.cache
def population(name):
    config = algorithms.everything(name, devices=8)
    names = algorithms.numbers(config.algo)
    changes = [(), (), *((option,) for option in names), names]
    options = [halved(config.algo, *change) for change in changes]
    seeds = [config.seed, config.seed + 1, *[config.seed] * (len(names) + 1)]
    runner = runner_of(config.replace(num_seeds=len(options)))
    assert not runner.placement.by_agents  # not whole agents on devices
    half, before = after(runner, options, seeds, 4)
    end, later = steps(runner, 3, half)
    at_once = collectives.unordered(runner._compiled_steps.as_text())
    return Population(changes, options, seeds, half, end, before + later, at_once)


def of_agent(tree, k):
    return jax.tree.map(lambda x: x[k : k + 1], tree)


@every_algorithm
def test_each_metric_is_explained_under_its_tag(name):
    metrics = set(population(name).history[-1]) - {"ended", "steps", "total_return", "total_length"}
    for metric in metrics:
        (tag,) = scalars({metric: 0.0})
        told = EXPLAINED[re.sub(r"\d+$", "k", metric)]
        assert told == re.sub(r"\d+$", "k", tag)


@every_algorithm
def test_a_run_with_every_option_is_the_same_on_1_and_8_devices_and_goes_on_elsewhere(name):
    """One device that holds all eight shards, and eight that hold one each, of several agents."""
    config, eight = algorithms.everything(name), population(name)
    end, history = after(single(name), [config.algo], [config.seed])
    assert differing(end, of_agent(eight.end, 0)) == []
    assert differing(history, of_agent(eight.history, 0)) == []
    assert differing(end, steps(single(name), 3, of_agent(eight.half, 0))[0]) == []
    if "replay" in history[-1]:
        assert history[-1]["replay"][0] == 1  # the ring has wrapped around


@every_algorithm
def test_agents_with_different_numbers_and_seeds_are_the_single_runs(name):
    several = population(name)
    first = of_agent(several.end.shared.algo.params, 0)
    for k, change in enumerate(several.changes):
        end, history = after(single(name), several.options[k : k + 1], several.seeds[k : k + 1])
        assert differing(of_agent(several.end, k), end) == [], change
        assert all(np.isfinite(x).all() for x in history[-1].values()), change
        if k:  # each of the numbers is heard, and so is the seed
            assert differing(first, end.shared.algo.params) != [], change


@every_algorithm
def test_a_device_begins_one_collective_after_the_other(name):
    """On CPUs XLA takes one for the other if a device has begun two."""
    assert population(name).unordered == []


# --- one update --------------------------------------------------------------------------------

S, T, B = 2, 8, 4
SPEC = EnvSpec("twin", (4,), Discrete(2))
CONTINUOUS = EnvSpec("twin", (4,), Box(-2.0, 1.0, (2,)))
LAST = 4  # iterations of the run
ACTOR_CRITICS = pytest.mark.parametrize("name", ["ppo", "a2c"])


class Updating(NamedTuple):
    """One compiled update with every option on, and the state before it."""

    algo: Any
    config: Config
    start: Any
    update: Any
    """``(start, rollout, iteration=0) -> (Shared, metrics)``"""


@functools.cache
def updating(name, **changes):
    whole = {"num_envs": S * B, "num_shards": S, "rollout_length": T, "hidden_sizes": (8,)}
    options = algorithms.CASES[name].everything
    sizes = {"minibatch_size": S * T * B // 2, "replay_size": 2 * S * T * B, "learning_starts": 0}
    sizes |= {"batch_size": 256}  # so that most rows are drawn
    sizes |= {"target_kl": None}  # random log-probabilities are far from those of the policy
    options = options | {key: size for key, size in sizes.items() if key in options} | changes
    config = Config(algo=algos.get(name).Config(**options), iterations=LAST, **whole)
    spec = CONTINUOUS if name in algorithms.CONTINUOUS else SPEC
    algo = algos.get(name).make(config, spec, local_pool(S))
    local = jax.vmap(algo.init_local, (None, 0))(jax.random.key(0), jnp.arange(S))
    quickly = {"xla_backend_optimization_level": "0"}
    compiled = jax.jit(algo.update, compiler_options=quickly)
    start = first_shared(algo, config)

    def update(start, rollout, iteration=0):
        rollout = jax.tree.map(jnp.asarray, rollout)
        key, time = jax.random.key(1), time_at(iteration, LAST)
        after, _, metrics = compiled(start, local, rollout, key, time)
        return after, metrics

    return Updating(algo, config, start, update)


def acted(name, seed):
    """A random rollout with what acting said beside the actions."""
    rollout = rollout_of(seed, S, T, B, actions=2, ending=0.2)
    rng = np.random.default_rng(seed)
    noise = rng.normal(-0.7, 0.1, (2, S, T, B)).astype(np.float32)
    both = (noise[0], noise[1])
    if name in algorithms.CONTINUOUS:
        action = rng.uniform(-2, 1, (S, T, B, 2)).astype(np.float32)
        rollout = rollout._replace(action=action)
    extras = {"ppo": both, "a2c": noise[0], "impala": noise[0], "apex": both}
    return rollout._replace(extras=extras.get(name, ()))


def assert_near(one, other, atol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), one, other)


@every_algorithm
@pytest.mark.parametrize("anything", [1e3, np.nan])
def test_what_a_reset_step_holds_reaches_nothing(name, anything):
    """Nor what is seen at the end of a terminated episode, which acting at the reset step sees."""
    _, _, start, update = updating(name)
    rollout = acted(name, 0)
    assert rollout.terminated[:, :-1].any()
    behind = np.concatenate([np.zeros((S, 1, B), bool), rollout.terminated], 1)
    if name in algorithms.CONTINUOUS:
        action = np.where(rollout.valid[..., None], rollout.action, np.float32(anything))
    else:
        action = np.where(rollout.valid, rollout.action, 1 - rollout.action)
    spoiled = rollout._replace(
        obs=np.where(behind[..., None], np.float32(anything), rollout.obs),
        action=action,
        extras=jax.tree.map(
            lambda x: np.where(behind[:, :-1], np.float32(anything), x), rollout.extras
        ),
    )
    (one, metrics), (other, spoiled_metrics) = update(start, rollout), update(start, spoiled)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(one.params))
    assert differing((one, metrics), (other, spoiled_metrics)) == []
    moved = rollout._replace(reward=rollout.reward + np.float32(rollout.valid))
    assert differing(one.params, update(start, moved)[0].params) != []  # it can tell


@every_algorithm
def test_the_reward_of_a_reset_step_reaches_nothing(name):
    """Where rewards are scaled, the loop's zeros there are relied upon."""
    scaled = "scale_rewards" in algorithms.options(name)
    _, _, start, update = updating(name, **({"scale_rewards": False} if scaled else {}))
    rollout = acted(name, 0)
    spoiled = rollout._replace(reward=np.where(rollout.valid, rollout.reward, np.float32(1e3)))
    assert differing(rollout.reward, spoiled.reward) != []
    assert differing(update(start, rollout), update(start, spoiled)) == []


@every_algorithm
def test_the_statistics_are_those_of_the_observations_that_a_step_was_taken_from(name):
    _, _, start, update = updating(name)
    rollout = acted(name, 1)
    after, _ = update(start, rollout)
    seen = rollout.obs[:, :-1][rollout.valid]
    assert int(after.observation.low) == len(seen) < S * T * B
    np.testing.assert_allclose(after.observation.mean, seen.mean(0), atol=1e-5)
    np.testing.assert_allclose(after.observation.variance, seen.var(0), rtol=1e-4)


NEUTRAL = normalize.init(True, SPEC.observation_shape)
MEAN, VARIANCE = jnp.asarray([1.0, -2.0, 0.0, 5.0]), jnp.asarray([4.0, 0.25, 9.0, 1.0])
SEEN = NEUTRAL._replace(low=jnp.int32(99), mean=MEAN, variance=VARIANCE)
OTHER = SEEN._replace(mean=MEAN + 1, variance=2 * VARIANCE)


def observing(shared, statistics, older=None):
    """The state with these statistics, and others in what is left of earlier iterations."""
    if hasattr(shared, "older"):
        kept = statistics if older is None else older
        shared = shared._replace(older=tuple(w._replace(observation=kept) for w in shared.older))
    return shared._replace(observation=statistics)


@every_algorithm
def test_learning_looks_at_normalized_observations(name):
    """By the statistics that the iteration began with, everywhere in the loss: as if observations
    had been normalized before they came."""
    _, _, start, update = updating(name)
    rollout = acted(name, 2)
    before = rollout._replace(obs=np.asarray(normalize.apply(SEEN, rollout.obs)))
    one, metrics = update(observing(start, SEEN, OTHER), rollout)
    other, expected = update(observing(start, NEUTRAL, NEUTRAL), before)
    assert_near((one.params, metrics), (other.params, expected), atol=1e-4)
    raw, _ = update(observing(start, NEUTRAL, NEUTRAL), rollout)
    with pytest.raises(AssertionError):  # it can tell
        assert_near(one.params, raw.params, atol=1e-4)


@every_algorithm
@pytest.mark.parametrize("evaluated", [False, True])
def test_acting_looks_at_normalized_observations(name, evaluated):
    algo, _, start, _ = updating(name)
    rng = np.random.default_rng(3)
    params = jax.tree.map(  # without biases, which could decide every action
        lambda x: jnp.asarray(
            rng.normal(size=x.shape) * (x.ndim > 1) + (np.asarray(x) == 1), jnp.float32
        ),
        start.params,
    )
    start = start._replace(params=params)
    if hasattr(start, "older"):
        start = start._replace(older=tuple(w._replace(params=params) for w in start.older))
    obs, key = jnp.asarray(rng.normal(0, 3, (8, B, 4)), jnp.float32), jax.random.key(4)
    local = None if evaluated else algo.init_local(jax.random.key(0), jnp.int32(1))

    def act(statistics, obs):
        actor = algo.actor(observing(start, statistics), time_at(LAST - 1, LAST))
        first = jnp.zeros(B, bool)
        keys = jax.random.split(key, len(obs))
        return [
            algo.act(actor, local, (), seen, first, each, greedy)
            for greedy in (False, True)
            for seen, each in zip(obs, keys, strict=True)
        ]

    expected = act(NEUTRAL, normalize.apply(SEEN, obs))
    assert_near(act(SEEN, obs), expected, atol=1e-3)
    with pytest.raises(AssertionError):  # it can tell
        assert_near(act(NEUTRAL, obs), expected, atol=1e-3)


lagging = pytest.mark.parametrize(
    "name", [name for name in algorithms.NAMES if "lag" in algorithms.options(name)]
)


@lagging
def test_training_acts_with_the_oldest_and_evaluation_with_the_newest_weights(name):
    algo, config, *_ = updating(name)
    actors = [algo.actor(first_shared(algo, config, seed), time_at(0)) for seed in (0, 1)]
    mixed = actors[0]._replace(newest=actors[1].newest)
    obs, first = jax.random.normal(jax.random.key(2), (64, B, 4)), jnp.zeros(B, bool)
    keys = jax.random.split(jax.random.key(3), len(obs))

    @functools.partial(jax.jit, static_argnames="greedy")
    def acted(actor, local, greedy=False):
        act = jax.vmap(lambda obs, key: algo.act(actor, local, (), obs, first, key, greedy))
        return act(obs, keys)

    local = algo.init_local(jax.random.key(0), jnp.int32(1))
    assert differing(acted(mixed, local), acted(actors[0], local)) == []
    assert differing(acted(mixed, local), acted(actors[1], local)) != []
    for greedy in (False, True):
        played = [acted(actor, None, greedy) for actor in (mixed, *actors)]
        assert differing(played[0], played[2]) == []
        assert differing(played[0], played[1]) != []


@lagging
def test_the_acting_parameters_are_those_of_so_many_iterations_ago(name):
    runner = single(name)
    assert runner.config.algo.lag == 2
    states = [runner.fetch(runner.init()), *(steps(runner, k)[0] for k in range(1, 8))]
    actors = [runner.algo.actor(state.shared.algo, time_at(k)) for k, state in enumerate(states)]
    newest = [actor.newest for actor in actors]
    assert differing(newest[6].params, newest[7].params) != []
    for k in range(1, 8):
        assert differing(newest[k - 1].observation, newest[k].observation) != []
        assert differing(actors[k].behaviour, newest[max(k - 2, 0)]) == []


@pytest.mark.parametrize(
    "name", [name for name in algorithms.NAMES if "scale_rewards" in algorithms.options(name)]
)
def test_scaled_rewards_have_no_unit(name):
    _, _, start, update = updating(name)
    rollout = acted(name, 5)
    one, metrics = update(start, rollout)
    other, expected = update(start, rollout._replace(reward=100 * rollout.reward))
    assert_near((one.params, metrics), (other.params, expected), atol=1e-4)
    unscaled = updating(name, scale_rewards=False)
    one, _ = unscaled.update(unscaled.start, rollout)
    other, _ = unscaled.update(unscaled.start, rollout._replace(reward=100 * rollout.reward))
    with pytest.raises(AssertionError):  # it can tell
        assert_near(one.params, other.params, atol=1e-4)


@every_algorithm
def test_the_learning_rate_is_that_of_the_schedule(name):
    """Nothing moves at the end of a schedule that ends at 0, but half-way there."""
    _, config, start, update = updating(name)
    rollout = acted(name, 6)
    for iteration, part in ((0, 1.0), (LAST // 2, 0.5), (LAST, 0.0)):
        after, metrics = update(start, rollout, iteration)
        assert metrics["updates" if "updates" in metrics else "loss"] != 0
        expected = part * config.algo.learning_rate
        assert float(metrics["learning_rate"]) == pytest.approx(expected, abs=1e-6)
        moved = [
            float(abs(x - y).max())
            for x, y in zip(*map(jax.tree.leaves, (after.params, start.params)), strict=True)
        ]
        assert (max(moved) > 1e-7) == (part > 0)


@pytest.mark.parametrize("wrong", [0.5, np.float64(0), np.bool_(True), np.zeros(2, np.float32)])
def test_a_metric_that_is_no_scalar_of_float32_or_int32_is_an_error(wrong):
    metrics = {"good": np.zeros((3, 2), np.float32), "worse": np.ones((3, 2), np.float32)}
    counts = {"steps": np.arange(24, dtype=np.int32).reshape(3, 2, 4)}  # of 4 shards
    pack = jax.vmap(jax.vmap(run_state.pack))
    reports = run_state.Report(pack(metrics), jax.vmap(pack)(counts))
    rows = run_state.unpack(jax.device_get(run_state.summed(local_pool(4), reports)), 2)
    assert len(rows) == 2
    for k, row in enumerate(rows):
        for name, x in (metrics | {"steps": counts["steps"].sum(2, dtype=np.int32)}).items():
            np.testing.assert_array_equal(row[name], x[:, k], strict=True)
    with pytest.raises(RunError, match=r"metric 'wrong' .* should be a scalar of dtype float32"):
        run_state.pack({"good": np.float32(0), "wrong": wrong})


def module_of(decorate=lambda c: register(dataclasses.dataclass(frozen=True)(c)), **changed):
    body = {"__annotations__": {"rate": float}, "rate": option(0.1, "speed"), "name": "mine"}
    body |= {"check": lambda self, config: None, "depends_on_budget": False} | changed
    return SimpleNamespace(
        Config=decorate(type("Config", (), {k: v for k, v in body.items() if v is not None})),
        make=changed.get("make", lambda config, spec, pool: None),
    )


def typed(hint):
    return {"__annotations__": {"rate": hint}}


@pytest.mark.parametrize(
    ("said", "changed"),
    [
        ("there should be a make(config, spec, pool)", {"make": None}),
        ("Config should be a frozen dataclass", {"decorate": lambda c: c}),
        ("Config should be a frozen dataclass", {"decorate": dataclasses.dataclass}),
        ("Config.name should be 'mine'", {"name": "a2c"}),
        ("Config should have depends_on_budget", {"depends_on_budget": None}),
        ("Config should have check", {"check": None}),
        ("rate should have an option(default, help) for its default", {"rate": 0.1}),
        (
            "Config should be decorated by jaxrl_scale.options.register",
            {"decorate": dataclasses.dataclass(frozen=True)},
        ),
        ("rate is of type list[float]; it should be bool, int,", typed(list[float])),
        ("rate is of type tuple[int, int]; it should be", typed(tuple[int, int])),
        ("rate is of type Literal[1, 2]; it should be", typed(Literal[1, 2])),
        ("rate is of type int | str; it should be bool, int,", typed(int | str)),
        ("rate is of type dict[str, int]; it should be bool,", typed(dict[str, int])),
    ],
)
def test_what_an_own_algorithm_lacks_is_said(said, changed):
    for hint in (float, bool | None, Literal["a", "b"] | None, tuple[int, ...]):
        algos.check_module("mine", module_of(**typed(hint)))
    with pytest.raises(RunError, match=re.escape(f"algorithm 'mine': {said}")):
        algos.check_module("mine", module_of(**changed))


@ACTOR_CRITICS
def test_explained_variance_is_what_the_values_explain_of_their_targets(name):
    _, config, start, update = updating(name, scale_rewards=False)
    rollout = acted(name, 7)
    network = networks.make(config, SPEC)
    last = jax.vmap(lambda obs: network.apply(start.params, obs)[1])(rollout.obs[:, -1:])
    *_, acting = jax.tree.leaves(rollout.extras)  # the values that acting gave
    value = jnp.concatenate([acting, last], 1)
    options = config.algo
    advantage = jax.vmap(lambda v, r: returns.gae(v, r, options.gamma, options.gae_lambda))(
        value, jax.tree.map(jnp.asarray, rollout)
    )
    error = np.asarray(advantage)[rollout.valid]
    target = error + np.asarray(value[:, :-1])[rollout.valid]
    _, metrics = update(start, rollout)
    expected = 1 - error.var() / target.var()
    assert float(metrics["explained_variance"]) == pytest.approx(expected, abs=1e-4)
