"""Environments on the host: a run is a function of its config and seed there too, whatever the
devices, the simulators' threads and the processes, and although no simulator can be saved."""

import collections
import dataclasses
import importlib
import importlib.util
import os
import signal
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import algorithms
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_cartpole import HostCartPole, Pole, Poles
from processes import assert_same_run, ended, rows, summary, well
from running import differing, run, runner_of, shared, shared_runner, small, steps
from test_randomness import Recorder
from test_throwaway_algorithms import make_recurrent

from jaxrl_scale import load
from jaxrl_scale.algos import pqn
from jaxrl_scale.config import files
from jaxrl_scale.envs.scores import normalized
from jaxrl_scale.errors import RunError
from jaxrl_scale.loop import evaluator, host_rollout, stop
from jaxrl_scale.loop.evaluator import HostEvaluator
from jaxrl_scale.loop.host_rollout import Stage
from jaxrl_scale.loop.host_runner import HostRunner
from jaxrl_scale.loop.keys import COLLECT, EVALUATE, host_seeds
from jaxrl_scale.loop.make import make_runner
from jaxrl_scale.loop.prepare import jax_settings_restored
from jaxrl_scale.parallel import backend
from jaxrl_scale.parallel.peers import Peers
from jaxrl_scale.records.progress import Clock
from jaxrl_scale.train import loop
from jaxrl_scale.types import HostStep

NAME = "host_cartpole:HostCartPole"
T, EVERY, ITERATIONS = 8, 3, 8
CONFIG = small(
    {"minibatch_size": 64, "normalize_observations": True, "scale_rewards": True},
    env=NAME,
    env_kwargs={"lives": 2, "limit": 40},
    num_envs=16,
    num_shards=4,
    rollout_length=T,
    hidden_sizes=(16,),
    restart_every=EVERY,
    iterations=ITERATIONS,
    eval_episodes=4,
    test_env_kwargs={"lives": 1, "limit": 5},
    devices=1,
    num_threads=2,
)
needs_envpool = pytest.mark.skipif(
    importlib.util.find_spec("envpool") is None,
    reason="EnvPool is not installed (make install EXTRA=envpool)",
)


@pytest.fixture(scope="module", autouse=True)
def all_simulators_are_closed():
    yield
    for made in shared.values():
        if isinstance(made, HostRunner):
            made.close()
    assert Poles.alive == 0


@pytest.fixture(scope="module")
def reference():
    """The state after all iterations on one device, and the metrics of each."""
    return run(CONFIG)


# --- the same bits ------------------------------------------------------------------------------


def elsewhere(devices):
    """On one device two groups act in turn, of two shards each; on two with more threads than
    devices, groups of one shard; on four there is one group."""
    return CONFIG.replace(devices=devices, num_threads={1: 2, 2: 3, 4: 4}[devices])


@pytest.mark.parametrize("devices", [2, 4])
def test_a_run_is_the_same_on_more_devices_and_threads(reference, devices):
    state, history = run(elsewhere(devices))
    assert differing(reference, (state, history)) == []


@pytest.mark.parametrize(("half", "devices"), [(2, 2), (3, 4), (4, 1)])
def test_a_run_goes_on_elsewhere_before_at_and_after_a_restart(reference, half, devices, capsys):
    state, _ = run(CONFIG, iterations=half)
    end, _ = run(elsewhere(devices), iterations=ITERATIONS - half, state=state)
    assert differing(reference[0], end) == []
    repeated = half % EVERY * T * CONFIG.num_envs
    said = f"repeating {repeated} steps of the environments, whose state cannot be saved\n"
    assert capsys.readouterr().out == (said if repeated else "")


def test_seeds_that_depend_on_the_place_in_a_simulator_are_caught(reference, monkeypatch):
    """It is the mistake that this file could not see if simulators were as large everywhere."""
    seeds_of = Poles.__init__

    def by_place(self, env, seeds, num_threads):
        seeds_of(self, env, np.arange(len(seeds)), num_threads)

    monkeypatch.setattr(Poles, "__init__", by_place)
    one, _ = run(CONFIG, iterations=1)
    four, _ = run(elsewhere(4), iterations=1)
    assert ".local.envs.obs" in differing(one, four)


def test_an_environment_that_repeats_itself_otherwise_is_an_error(reference, monkeypatch):
    half, _ = run(CONFIG, iterations=4)
    true_step = Poles.step
    monkeypatch.setattr(Poles, "step", lambda self, pole, action: true_step(self, pole, 1))
    said = r"^HostCartPole cannot be resumed: .* the 8 steps .*, here are poles 2\.0$"
    with pytest.raises(RunError, match=said):
        shared_runner(CONFIG).place(half, str)


def test_a_simulator_may_return_what_numpy_computes_with(reference, monkeypatch):
    """Numbers of 64 bits: training, evaluation and a resume see those of 32."""
    receive = Poles.receive

    def exact(poles):
        return np.array([pole.state for pole in poles.poles])

    def received(poles):
        step = receive(poles)
        wide = {name: getattr(step, name).astype(float) for name in ("reward", "score")}
        return step._replace(obs=exact(poles), **wide)

    monkeypatch.setattr(Poles, "reset", exact)
    monkeypatch.setattr(Poles, "receive", received)
    half, _ = run(CONFIG, iterations=4)
    end, _ = run(CONFIG, iterations=ITERATIONS - 4, state=half)
    assert differing(reference[0], end) == []

    seen = []

    def act(t, obs, is_first):
        seen.append(obs)
        return np.zeros(len(obs), np.int32)

    *_, (_, played, _) = host_rollout.play(HostCartPole(limit=9), act, np.arange(2), 1, 9)
    numbers = (*seen, played.returns, *played.info.values())
    assert {x.dtype for x in numbers} == {np.dtype(np.float32)}


def test_an_agent_with_a_memory_among_others_is_the_single_run_of_its_seed():
    """Two devices share the shards of three agents."""
    algo = dataclasses.replace(CONFIG.algo, recurrent=True)
    config = CONFIG.replace(algo=algo, iterations=4)
    several, _ = run(config.replace(num_seeds=3, seed=5, devices=2))
    single, _ = run(config.replace(seed=7))
    assert differing(single, jax.tree.map(lambda x: x[2:], several)) == []


def test_the_metrics_of_an_agent_are_the_same_beside_others():
    """Nothing of an update that one agent makes by itself stands in a loop, unless it is put there:
    then the learning rate, a product and a difference, was rounded otherwise than beside others."""
    sizes = {"num_envs": 16, "num_shards": 2, "rollout_length": 2, "iterations": 7}
    config = CONFIG.replace(algo=pqn.Config(minibatch_size=32), **sizes)
    (alone, history), (two, of_two) = run(config), run(config.replace(num_seeds=2))
    assert differing(history, jax.tree.map(lambda x: x[:1], of_two)) == []
    assert differing(alone, jax.tree.map(lambda x: x[:1], two)) == []


@pytest.mark.quickly
@pytest.mark.parametrize("name", algorithms.NAMES)
def test_every_algorithm_learns_in_environments_on_the_host(name):
    kwargs = {"actions": 0} if name in algorithms.CONTINUOUS else {}
    small = {"num_shards": 4, "iterations": 2, "restart_every": 1}
    config = algorithms.everything(name, env=NAME, env_kwargs=kwargs, **small)
    runner = runner_of(config)
    state, history = steps(runner, 2)
    runner.close()
    assert history[-1]["steps"] > 64
    assert all(np.isfinite(x).all() for metrics in history for x in metrics.values())
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.shared.algo.params))


# --- one that hangs -----------------------------------------------------------------------------


class Slow(Poles):
    """Takes a while to answer."""

    def receive(self):
        time.sleep(0.6)
        return super().receive()


def test_environments_that_do_not_come_back_are_told_with_the_time(monkeypatch, capsys):
    """Less and less often, where they take their time; and not those that come back."""
    env = HostCartPole()
    monkeypatch.setattr(stop, "PATIENCE", 0.2)
    seeds, counts = np.arange(2).reshape(1, 1, 1, 2), []
    with stop.StopRequest():
        for simulator in (Poles, Slow):
            env.simulate = partial(simulator, env)
            stage = Stage(env, (1, 1, 1, 2), 1, 1)
            stage.restart(seeds)
            stage.receive(0)
            stage.send(0, np.zeros((1, 1, 1, 2), np.int32))
            stage.receive(0)
            time.sleep(0.3)  # between two calls nothing is waited for
            counts.append(capsys.readouterr().err)
            stage.close()
    line = "environment 'HostCartPole' has not come back for {} s; a signal, or a second Ctrl-C,"
    assert [err.count(line.format("0.2")) for err in counts] == [0, 1]
    assert [err.count(line.format("0.4")) for err in counts] == [0, 1]
    assert [err.count("\n") for err in counts] == [0, 2]


# --- what a rollout holds -----------------------------------------------------------------------


def test_games_are_cut_at_a_restart_as_a_time_limit_cuts_them():
    """And between restarts the rollouts are what the environments do one by one."""
    env, length = HostCartPole(lives=2, limit=12), 20
    stage, seeds = Stage(env, (1, 1, 2, 8), 1, 2), np.arange(16)
    games = host_rollout.fresh(env.spec, (1, 1, 2), 2 * length, 8)
    room = host_rollout.empty(env.spec, (1, 1, 2), length, 8, ())
    actions = np.random.default_rng(0).integers(0, 2, (2 * length, 1, 1, 2, 8))
    stage.restart(seeds.reshape(1, 1, 2, 8))
    halves = []
    for t in range(2 * length):
        for k, group in enumerate(stage.groups):
            if t % length == 0:
                room.rollout.obs[:, :, group, 0] = games.obs[:, :, group]
                room.rollout.is_first[:, :, group, 0] = games.is_first[:, :, group]
            stage.send(k, actions[t][:, :, group])
            seen = stage.receive(k)
            host_rollout.record(games, room, t % length, group, seen, t == 2 * length - 1)
        if t % length == length - 1:
            halves.append(jax.tree.map(np.copy, room))
    stage.close()

    def whole(part, name):
        """``[2 T, 16]``"""
        parts = [getattr(half, part) for half in halves]
        found = [p[name] if part == "info" else getattr(p, name) for p in parts]
        both = [x[0, 0, :, :length] for x in found]
        return np.concatenate(both, 1).swapaxes(0, 1).reshape(2 * length, 16)

    rolled = {name: whole("rollout", name) for name in ("valid", "terminated", "truncated")}
    obs = np.concatenate([half.rollout.obs[0, 0, :, :length] for half in halves], 1)
    obs = obs.swapaxes(0, 1).reshape(2 * length, 16, 4)
    is_first, angles = whole("rollout", "is_first"), whole("info", "angle")
    assert not is_first[0].any()
    assert not rolled["valid"][0].any()  # the first step is a reset, whatever its action
    for n, seed in enumerate(seeds):
        alone, lost, finished, score = Pole(seed, env.lives, env.limit), False, [], 0.0
        was_lost = True
        for t in range(1, 2 * length):
            np.testing.assert_array_equal(obs[t, n], np.float32(alone.state))
            assert is_first[t, n] == was_lost  # the step before was a reset
            was_lost = lost
            assert rolled["valid"][t, n] == ~np.bool_(was_lost)
            *_, terminated, truncated, gained, over, angle = alone.step(actions[t].ravel()[n])
            assert angles[t, n] == np.float32(angle)
            lost = not was_lost and (terminated or truncated)
            last = t == 2 * length - 1
            assert rolled["terminated"][t, n] == (lost and terminated)
            assert rolled["truncated"][t, n] == (
                not was_lost and (truncated or (last and not terminated))
            )
            if last:
                assert halves[1].cut[0, 0].ravel()[n] == (not was_lost and not lost)
            score += 0 if was_lost else gained
            if over and not was_lost:
                finished.append((t, score))
                score = 0.0
        ended, score = whole("ended", "ended")[:, n], whole("ended", "episode_return")[:, n]
        assert [(t, score[t]) for t in np.flatnonzero(ended)] == finished
        assert (whole("ended", "episode_length")[:, n] * 2 == score).all()  # a score is 2 a step
    lives = rolled["terminated"] & ~whole("ended", "ended")
    assert lives.any()  # some games went on with their second life
    assert (~rolled["valid"][-1]).any()  # some began at the last step
    assert halves[1].cut.any()
    assert games.ended.all()
    assert not games.episode_return.any()


def test_a_restart_cuts_the_episodes_that_have_not_ended_by_themselves():
    spec, kinds = HostCartPole().spec, np.eye(4, dtype=bool)  # terminates, truncated, runs, resets
    terminates, truncated, _, resets = kinds
    games = host_rollout.fresh(spec, (1, 1, 1), 1, 4)
    games.ended[...] = resets
    room = host_rollout.empty(spec, (1, 1, 1), 1, 4, ())
    obs, reward = np.zeros((1, 1, 1, 4, 4), np.float32), np.ones(4, np.float32)
    ends = terminates | truncated
    told = {"angle": reward, "counted": reward}
    seen = HostStep(obs, reward, terminates, truncated, reward, ends, told)
    host_rollout.record(games, room, 0, slice(None), seen, True)
    assert room.cut.ravel().tolist() == [False, False, True, False]
    assert room.rollout.truncated.ravel().tolist() == [False, True, True, False]
    assert room.rollout.terminated.ravel().tolist() == [True, False, False, False]
    assert room.ended.ended.ravel().tolist() == [True, True, False, False]


def test_cut_episodes_are_counted_and_enter_no_return(reference):
    _, history = reference
    cut = np.concatenate([metrics["cut_episodes"] for metrics in history])
    assert (cut > 0).tolist() == [k % EVERY == EVERY - 1 for k in range(ITERATIONS)]
    assert (cut <= CONFIG.num_envs).all()
    for metrics in history:
        assert metrics["total_return"] == 2 * metrics["total_length"]  # whole games of two lives
        assert metrics["env/counted"] == metrics["steps"]
        assert metrics["env_end/counted"] == metrics["ended"]
    assert sum(metrics["ended"] for metrics in history) > 0


def test_every_environment_agent_and_restart_has_seeds_of_its_own():
    index = np.arange(64)
    drawn = [
        host_seeds(seed, purpose, restart, index)
        for seed in (0, 1)
        for purpose in (COLLECT, EVALUATE)
        for restart in (0, 1)
    ]
    together = np.concatenate(drawn)
    assert len(set(together.tolist())) == len(together)
    assert (together >= 0).all()
    assert (together < 2**31).all()
    np.testing.assert_array_equal(host_seeds(0, COLLECT, 0, index[40:]), drawn[0][40:])


def test_environments_are_made_with_the_seeds_of_their_indices_and_of_the_restart(monkeypatch):
    made, init = [], Poles.__init__

    def noted(self, env, seeds, num_threads):
        made.append(seeds.tolist())
        init(self, env, seeds, num_threads)

    monkeypatch.setattr(Poles, "__init__", noted)
    run(CONFIG, iterations=EVERY + 1)
    index = np.arange(CONFIG.num_envs).reshape(2, 8)  # two groups
    assert made == [
        host_seeds(CONFIG.seed, COLLECT, restart, group).tolist()
        for restart in (0, 1)
        for group in index
    ]


def test_a_memory_that_learning_rebuilds_is_that_of_acting(monkeypatch):
    """It begins as it was before the rollout, and is emptied at the same steps."""
    config = CONFIG.replace(iterations=6, env_kwargs={"lives": 2, "limit": 11})
    env = HostCartPole(**config.env_kwargs)
    runner = runner_of(config, env, make_recurrent, monkeypatch)
    _, history = steps(runner, 6)
    runner.close()
    assert sum(metrics["ended"] for metrics in history) > 0
    assert max(metrics["drift"][0] for metrics in history) < 1e-4


class InTheBox(Poles):
    """Takes no other actions than those of its box."""

    def send(self, action):
        assert np.abs(action).max() <= 1
        super().send(action)


@pytest.mark.quickly
def test_actions_are_clipped_for_the_environment_alone(monkeypatch):
    """Learning sees those that the policy chose: as long as it is the policy that acted, their
    likelihood is the same."""
    monkeypatch.setattr(HostCartPole, "simulate", lambda *of: InTheBox(*of))
    algo = dataclasses.replace(CONFIG.algo, learning_rate=0.0)
    config = CONFIG.replace(
        algo=algo, env_kwargs={"actions": 0}, test_env_kwargs={}, eval_greedy=False
    )
    runner = runner_of(config)
    state, history = steps(runner, 2)
    assert max(abs(metrics["approx_kl"][0]) for metrics in history) < 1e-6
    assert runner.evaluate(runner.place(state, str))["eval"].returns.shape == (1, 4)
    runner.close()


def test_no_key_of_a_run_is_used_twice(monkeypatch):
    """Not by two agents, shards, steps or iterations, nor for training and evaluation."""
    sizes = {"num_envs": 4, "num_shards": 2, "num_seeds": 2, "rollout_length": 3, "iterations": 3}
    config = CONFIG.replace(**sizes, algo=dataclasses.replace(CONFIG.algo, minibatch_size=12))
    recorder, env = Recorder(), HostCartPole(limit=5)
    runner = runner_of(config, env, recorder.make, monkeypatch)
    state, _ = steps(runner, 3)
    evaluate = HostEvaluator(env, runner.algo, runner.placement, 4, greedy=False)
    evaluate(runner.fetch_actor(runner.place(state, str)), runner.agents.seeds)
    runner.close()
    jax.effects_barrier()
    used = collections.Counter(who for users in recorder.users.values() for who in users)
    assert used["act"] == 2 * 2 * 3 * 3  # agents, shards, iterations and steps
    assert used["play"] == 2 * 5
    assert {key: users for key, users in recorder.users.items() if len(users) > 1} == {}


# --- evaluation ---------------------------------------------------------------------------------


def test_an_evaluation_plays_whole_games_there_and_in_the_other_environment(reference):
    runner = shared_runner(CONFIG)
    played = runner.evaluate(runner.place(reference[0], str))
    assert played["eval"].returns.shape == played["eval"].lengths.shape == (1, 4)
    assert (played["eval"].returns >= 2 * 2 * 8).all()  # two lives of at least eight steps
    np.testing.assert_array_equal(2 * played["eval"].lengths, played["eval"].returns)
    np.testing.assert_array_equal(played["test"].returns, [[2 * 5] * 4])  # cut by its limit
    np.testing.assert_array_equal(played["test"].lengths, [[5] * 4])
    for angles, longest in ((played["eval"], 0.5), (played["test"], 0.2)):
        np.testing.assert_array_equal(angles.info["env/counted"], angles.lengths)
        np.testing.assert_array_equal(angles.info["env_end/counted"], np.ones((1, 4)))
        assert (abs(angles.info["env_end/angle"]) > 0).all()
        assert (abs(angles.info["env_end/angle"]) < longest).all()


def test_a_score_is_that_of_one_whole_game():
    env, seeds, firsts = HostCartPole(lives=2, limit=100), np.arange(8), []

    def act(t, obs, is_first):
        firsts.append(is_first)
        return (obs[:, 2] > 0.02).astype(np.int32)

    *_, (_, (scores, lengths, info), done) = host_rollout.play(env, act, seeds, 2, 1000)
    assert done.all()
    longest = 0
    for n, (seed, score, length) in enumerate(zip(seeds, scores, lengths, strict=True)):
        alone, gained, over, lost, first, t = Pole(seed, 2, 100), 0.0, False, False, True, 0
        angles = []
        while not over:
            assert firsts[t][n] == first
            first, t = lost, t + 1
            *_, terminated, truncated, more, over, angle = alone.step(int(alone.state[2] > 0.02))
            gained, over = gained + (0 if lost else more), over and not lost
            angles += [] if lost else [angle]
            lost = not lost and (terminated or truncated)
        assert score == gained
        assert info["env/angle"][n] == pytest.approx(sum(angles), abs=1e-5)
        assert info["env_end/angle"][n] == np.float32(angles[-1])
        assert length == t - 1  # a life was lost, and a step began the next episode
        longest = max(longest, length)
    assert len(set(scores.tolist())) > 1
    *_, (_, again, done) = host_rollout.play(env, act, seeds, 2, longest)
    assert done.all()
    np.testing.assert_array_equal(again.returns, scores)
    *_, (_, shorter, done) = host_rollout.play(env, act, seeds, 2, longest - 1)
    assert done.all()
    assert (shorter.returns < scores).any()
    assert shorter.lengths.max() == longest - 1


def test_an_error_in_acting_is_not_told_as_one_of_the_environment():
    def act(t, obs, is_first):
        raise ValueError("no memory")

    before = Poles.alive
    with pytest.raises(ValueError, match=r"^no memory$"):
        list(host_rollout.play(HostCartPole(lives=1, limit=9), act, np.arange(2), 1, 9))
    assert Poles.alive == before


def test_all_simulators_are_closed_where_one_raises_an_error(monkeypatch):
    stage = host_rollout.Stage(HostCartPole(lives=1, limit=9), (1, 1, 2, 1), 1, 2)
    before = Poles.alive
    stage.restart(np.arange(2).reshape(1, 1, 2, 1))
    first = stage._simulators[0]
    with monkeypatch.context() as patched:
        patched.setattr(first, "close", lambda: 1 / 0)
        with pytest.raises(RunError, match=r"'HostCartPole'.*ZeroDivisionError"):
            stage.close()
    first.close()
    assert Poles.alive == before


def test_an_evaluation_has_seeds_of_its_own(reference, monkeypatch):
    made, simulate = [], HostCartPole.simulate

    def noted(self, seeds, num_threads):
        made.append(seeds.tolist())
        return simulate(self, seeds, num_threads)

    runner = shared_runner(CONFIG)
    placed = runner.place(reference[0], str)
    monkeypatch.setattr(HostCartPole, "simulate", noted)
    runner.evaluate(placed)
    assert made == [host_seeds(CONFIG.seed, EVALUATE, 0, np.arange(4)).tolist()] * 2


def test_a_memory_is_carried_from_step_to_step_of_an_evaluation():
    remembered = []

    def act(actor, local, carry, obs, is_first, key, greedy=False):
        carry = jnp.where(is_first, 0, carry) + 1
        jax.debug.callback(lambda x: remembered.append(x.tolist()), carry)
        return jnp.zeros(len(obs), jnp.int32), carry, ()

    algo = SimpleNamespace(act=act, init_carry=lambda number: jnp.full(number, 9, jnp.int32))
    placement = backend.place(CONFIG, jax.local_devices())
    evaluate = HostEvaluator(HostCartPole(limit=5), algo, placement, 2, greedy=True)
    evaluate(np.zeros(1), np.zeros(1, np.uint32))
    jax.effects_barrier()
    assert remembered == [[k, k] for k in range(1, 6)]


def test_a_game_without_end_is_cut(monkeypatch):
    monkeypatch.setattr(evaluator, "LONGEST_EPISODE", 7)
    algo = SimpleNamespace(
        act=lambda actor, local, carry, obs, *_: (jnp.zeros(len(obs), jnp.int32), carry, ()),
        init_carry=lambda number: (),
    )
    placement = backend.place(CONFIG, jax.local_devices())
    evaluate = HostEvaluator(HostCartPole(), algo, placement, 2, greedy=True)
    played = evaluate(np.zeros(1), np.zeros(1, np.uint32))
    np.testing.assert_array_equal(played.returns, [[2 * 7] * 2])
    np.testing.assert_array_equal(played.lengths, [[7] * 2])


def test_a_test_environment_of_another_kind_is_refused():
    config = CONFIG.replace(test_env_kwargs={"actions": 3})
    said = r"test_env_kwargs={'actions': 3} .* whose action is Discrete\(n=3\); .* Discrete\(n=2\)"
    with pytest.raises(RunError, match=said):
        runner_of(config)


@needs_envpool
@pytest.mark.parametrize(
    ("game", "kwargs"), [("CoinrunEasy-v0", {"num_levels": 3}), ("Pong-v5", {"noop_max": 9})]
)
def test_a_game_is_the_same_on_2_devices_with_2_threads_and_resumed(game, kwargs):
    config = small(
        {"minibatch_size": 64},
        env=game,
        env_kwargs=kwargs,
        network="mlp",
        num_envs=8,
        num_shards=4,
        rollout_length=8,
        hidden_sizes=(4,),
        iterations=4,
        restart_every=3,
        num_threads=1,
        devices=1,
    )
    whole = run(config)
    half, _ = run(config.replace(devices=2, num_threads=2), iterations=2)
    assert differing(whole[0], run(config, iterations=2, state=half)[0]) == []
    assert whole[0].local.envs.obs.dtype == np.uint8
    assert [int(metrics["cut_episodes"][0]) for metrics in whole[1]] == [0, 0, 8, 0]


@pytest.mark.slow
def test_gymnasiums_cartpole_is_solved():
    """As `test_host_envs` says of EnvPool's."""
    sizes = {"num_envs": 64, "num_shards": 8, "rollout_length": 64, "iterations": 50}
    name = "gymnasium:CartPole-v1"
    runner = runner_of(
        small(
            {"minibatch_size": 1024, "epochs": 4, "learning_rate": 1e-3},
            env=name,
            **sizes,
            devices=2,
        )
    )
    state = runner.init()
    for _ in range(runner.config.num_iterations):
        state, _ = runner.step(state)
    runner.close()
    assert runner.evaluate(state)["eval"].returns.mean() >= 450


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_envpool
def test_pong_is_won_without_a_gpu():
    """The whole of configs/pong.py, which takes 11 minutes on two cores. People score 14.6."""
    config = files.read_file(Path(__file__).parent.parent / "configs" / "pong.py")
    runner = runner_of(config.replace(devices=2))
    state = runner.init()
    for _ in range(config.num_iterations):
        state, _ = runner.step(state)
    runner.close()
    assert normalized(config.env, runner.evaluate(state)["eval"].returns.mean()) >= 1


# --- the loop -----------------------------------------------------------------------------------


def test_after_a_run_the_folder_is_the_one_before_it(tmp_path, monkeypatch):
    """By whose relative path the next run of a sweep is found."""
    monkeypatch.chdir(here := os.getcwd())  # which it goes back to at the end
    module = importlib.import_module("jaxrl_scale.train")
    monkeypatch.setattr(module, "loop", lambda *_: os.chdir(tmp_path))  # as an environment may
    config = CONFIG.replace(env="host_cartpole:HostCartPole", env_kwargs={})
    with jax_settings_restored():
        module.train_among(Peers(), config, Clock(0.0))
    assert os.getcwd() == here


def test_an_environment_that_breaks_ends_the_run_in_one_line_and_closes_all(tmp_path):
    config = CONFIG.replace(wandb="disabled", tensorboard=False, run_dir=str(tmp_path / "run"))
    placement = backend.place(config, jax.local_devices())
    runner = make_runner(config, HostCartPole(breaks_at=12), placement)
    before = Poles.alive
    with pytest.raises(RunError, match=r"'HostCartPole'.*: RuntimeError: a pole broke$"):
        loop(config, runner, Peers(), Clock(0.0))
    assert Poles.alive == before


def test_two_processes_of_which_one_is_killed_and_one_alone_make_the_same_run(
    world, path, monkeypatch
):
    options = [
        *("--env", NAME, "--env_kwargs.limit", 40, "--env_kwargs.lives", 2),
        *("--restart_every", 3, "--iterations", 8, "--eval_episodes", 4, "--eval_every", 4),
        *("--rollout_length", 8, "--algo.minibatch_size", 64),
    ]
    whole, other = path / "whole", path / "other"
    path.mkdir()
    reference = world.start(*world.small(whole), *options)
    killed = {1: {"signal": "SIGKILL", "at": 6}}
    done = world.run_ranks(2, *world.small(other), *options, accidents=killed)
    assert (done[0].status, done[1].status) == (75, -signal.SIGKILL)
    assert not (other / "summary.json").exists()
    well(world.resume(other, "--num_threads", 2))
    well(ended({0: reference})[0])
    assert_same_run(whole, other)
    assert all(abs(row["env/angle"]) < 0.5 for row in rows(whole) if "env/angle" in row)
    assert "env_end/angle" in rows(whole)[-1]
    evaluation = summary(whole)["evaluation"]
    told = {prefix + name for prefix in ("env/", "env_end/") for name in ("angle", "counted")}
    assert evaluation["info"].keys() == told
    agent = load(whole)
    threads, init = [], Poles.__init__

    def noted(self, env, seeds, num_threads):
        threads.append(num_threads)
        init(self, env, seeds, num_threads)

    monkeypatch.setattr(Poles, "__init__", noted)
    played = agent.evaluate(episodes=4)
    assert played.returns.mean() == pytest.approx(evaluation["mean"])
    assert played.lengths.mean() == pytest.approx(evaluation["length"])
    assert set(threads) == {len(os.sched_getaffinity(0))}  # one for each core
    assert agent.act(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.slow
@needs_envpool
@pytest.mark.parametrize("game", ["CoinrunEasy-v0", "Pong-v5"])
def test_ctrl_c_saves_a_game_which_goes_on_as_if_nothing_had_happened(world, path, game):
    options = [
        *("--config=none", "--env", game, "--network=nature", "--hidden_sizes=16"),
        *("--num_envs=4", "--num_shards=2"),
        *("--rollout_length=4", "--algo.minibatch_size=8", "--iterations=6", "--eval_every=6"),
        *("--eval_episodes=1", "--restart_every=2", "--checkpoint_every=6"),
    ]
    whole, other = path / "whole", path / "other"
    path.mkdir()
    well(world.run(*world.small(whole), *options))
    done = world.run(*world.small(other), *options, accident={"signal": "SIGTERM", "at": 3})
    assert (done.status, done.err) == (75, "")
    told = "stopped by SIGTERM and saved at iteration 3 of 6; continue with: python -m jaxrl_scale"
    assert done.out.splitlines()[-1].startswith(told)
    well(world.resume(other, "--num_threads", 2))
    assert_same_run(other, whole)
