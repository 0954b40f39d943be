"""Environments that run on the host: EnvPool's (Procgen, Atari) and Gymnasium's.

EnvPool itself is the judge of the first. Its extra is installed by `make test`.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from functools import partial

import gymnasium
import jax
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from host_cartpole import HostCartPole, Poles
from processes import QUICKLY, REPOSITORY, rows, well
from running import run, runner_of, small, steps

from jaxrl_scale import envs
from jaxrl_scale.config import Config
from jaxrl_scale.envs import envpool_adapter, games, gymnasium_spaces, scores
from jaxrl_scale.errors import RunError
from jaxrl_scale.loop import host_rollout
from jaxrl_scale.loop.agent import Agent
from jaxrl_scale.types import Box, Discrete, HostStep, MultiDiscrete

HAS_ENVPOOL = importlib.util.find_spec("envpool") is not None
needs_envpool = pytest.mark.skipif(
    not HAS_ENVPOOL, reason="EnvPool is not installed (make install EXTRA=envpool)"
)
PROCGEN, ATARI, CARTPOLE = "LeaperEasy-v0", "Qbert-v5", "envpool:CartPole-v1"
ENVPOOL = [pytest.param(name, marks=needs_envpool) for name in (PROCGEN, ATARI, CARTPOLE)]
ALL = [*ENVPOOL, "gymnasium:CartPole-v1"]
SEEDS = np.array([7, 2**31 - 1, 3, 0])
STEPS = {PROCGEN: 250, ATARI: 150}  # some episodes end: of Atari, lives are lost


def actions(env, seeds, steps):
    """Random ones, ``[steps, n]``: a function of an environment's own seed."""
    count = env.spec.action.n
    columns = [np.random.default_rng(seed).integers(0, count, steps) for seed in seeds]
    return np.stack(columns, axis=1).astype(np.int32)


def play(env, seeds, steps, threads=1):
    """First observations ``[n, ...]`` and what ``steps`` random actions bring, ``[steps, n, ...]``,
    copied at once."""
    simulator = env.simulate(seeds, threads)
    first, seen = simulator.reset().copy(), []
    for action in actions(env, seeds, steps):
        simulator.send(action)
        action[:] = 0  # whoever sent it may write over it
        seen.append(jax.tree.map(np.copy, simulator.receive()))
    simulator.close()
    return first, jax.tree.map(lambda *parts: np.stack(parts), *seen)


def same(one, other):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, one, other)))


# --- names and options --------------------------------------------------------------------


@needs_envpool
def test_all_games_of_procgen_and_atari_have_their_names():
    from jaxrl_scale.envs.envpool_adapter import _envpool

    of = _envpool("").registration.registry.specs
    for suite, names in (("procgen", games.PROCGEN), ("atari", games.ATARI)):
        assert sorted(names) == sorted(id for id in of if of[id][0] == f"envpool.{suite}")


OF_GYMNASIUM = ("Ant-v5", "Walker2d-v5", "Hopper-v5", "CarRacing-v3", "Blackjack-v1")
"""That sound like games of Atari."""


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CoinrunEas-v0", "Did you mean 'CoinrunEasy-v0'?"),
        ("procgen:procgen-coinrun-v0", "Did you mean 'CoinrunEasy-v0'?"),
        ("Pong-v4", "Did you mean 'Pong-v5'?"),
        ("Pong", "Did you mean 'Pong-v5'?"),
        ("ALE/Pong-v5", "Did you mean 'Pong-v5'?"),
        ("SpaceInvadersNoFrameskip-v4", "Did you mean 'SpaceInvaders-v5'?"),
        ("Taxi-v9", "Did you mean 'gymnasium:Taxi-v"),
        *((name, f"'{name}'. Gymnasium has it: --env=gymnasium:{name}. ") for name in OF_GYMNASIUM),
        ("CartPole-v0", "Did you mean 'CartPole-v1'?"),  # which Gymnasium has, too
        ("gymnasium:CartPol-v1", "did you mean 'gymnasium:CartPole-v1'?"),
        pytest.param("envpool:CartPole-v7", "did you mean CartPole-v1?", marks=needs_envpool),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(name, hint):
    with pytest.raises(RunError, match=re.escape(hint)) as raised:
        envs.make(name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "kwargs", "said"),
    [
        (
            PROCGEN,
            {"num_level": 1},
            r"no parameter num_level; did you mean num_levels\?; its param",
        ),
        (PROCGEN, {"num_levels": -1}, "env_kwargs.num_levels=-1 should be at least 0"),
        (PROCGEN, {"num_levels": 2.5}, "env_kwargs.num_levels=2.5 should be a whole number"),
        (PROCGEN, {"start_level": 9}, "start_level=9 needs env_kwargs.num_levels of at least 1"),
        (PROCGEN, {"num_levels": 2**30, "start_level": 2**30}, "should be at most 2147483647"),
        ("CoinrunExploration-v0", {"num_levels": 9}, "is one level, so it takes neither"),
        ("MazeExploration-v0", {"start_level": 9}, "is one level, so it takes neither"),
        (ATARI, {"sticky": 1}, "no parameter sticky; its parameters: preset, noop_max, frame_skip"),
        (ATARI, {"preset": "dqm"}, "one of ppo, dqn, dopamine, machado; did you mean dqn"),
        (ATARI, {"noop_max": 0}, "env_kwargs.noop_max=0 should be at least 1"),
        (ATARI, {"stack_num": 0}, "env_kwargs.stack_num=0 should be at least 1"),
        (ATARI, {"frame_skip": 0}, "env_kwargs.frame_skip=0 should be at least 1"),
        (ATARI, {"img_height": 0}, "env_kwargs.img_height=0 should be at least 1"),
        (ATARI, {"repeat_action_probability": 1.5}, "should be at most 1.0"),
        (ATARI, {"episodic_life": 1}, "env_kwargs.episodic_life=1 should be true or false"),
        pytest.param(ATARI, {"mode": 99}, "mode=99.*Invalid game mode", marks=needs_envpool),
        pytest.param(CARTPOLE, {"length": 1}, "no parameter length", marks=needs_envpool),
        ("gymnasium:CartPole-v1", {"lenght": 1}, "unexpected keyword argument 'lenght'"),
    ],
)
def test_a_wrong_option_is_refused_before_envpool_sees_it(name, kwargs, said):
    """EnvPool would end this whole process at some of them."""
    with pytest.raises(RunError, match=said) as raised:
        envs.make(name, **kwargs)
    assert "\n" not in str(raised.value)


def test_without_envpool_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(RunError, match=r"not installed: make install EXTRA=envpool \(or pip"):
        envs.make("Pong-v5")


@pytest.mark.parametrize(
    ("library", "brings"),
    [("libEGL.so.1", "apt install libegl1 "), ("libQt5Gui.so.5", "make install EXTRA=envpool")],
)
@needs_envpool
def test_a_library_that_envpool_misses_is_told_with_what_brings_it(monkeypatch, library, brings):
    def module():
        raise ImportError(f"{library}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(envpool_adapter, "_envpool_module", module)
    with pytest.raises(RunError, match=rf"cannot be loaded: {library}: .*; .*{brings}"):
        envs.make("Pong-v5")


@needs_envpool
def test_the_presets_of_atari():
    ppo, machado = envs.make("Pong-v5"), envs.make("Pong-v5", preset="machado")
    assert (ppo.spec.action, ppo.spec.frames_per_step) == (Discrete(6), 4)
    assert (machado.spec.action, machado.spec.frames_per_step) == (Discrete(18), 5)
    assert ppo.spec.observation_shape == machado.spec.observation_shape == (84, 84, 4)
    assert "repeat_action_probability=0.25" in machado.facts()["env_options"]
    assert (ppo.spec.max_episode_steps, machado.spec.max_episode_steps) == (27_000, 3_600)
    fire = [name for name in games.PRESETS if games.PRESETS[name].use_fire_reset]
    assert fire == ["ppo"]
    changed = envs.make("Pong-v5", preset="machado", frame_skip=4, stack_num=2, gray_scale=False)
    assert changed.spec.frames_per_step == 4
    assert changed.spec.observation_shape == (84, 84, 6)
    assert "full_action_space=True" in changed.facts()["env_options"]
    frames = 18_000  # with another frame skip, too
    assert changed.spec.max_episode_steps * changed.spec.frames_per_step == frames
    given = envs.make("Pong-v5", preset="machado", frame_skip=4, max_episode_steps=50)
    assert given.spec.max_episode_steps == 50


def test_scores_are_normalized_by_what_was_published():
    assert scores.normalized("CoinrunEasy-v0", 9.5) == pytest.approx(0.9)
    assert scores.normalized("StarpilotHard-v0", 1.5) == 0
    assert scores.normalized("Pong-v5", 14.6) == 1
    assert scores.normalized("CartPole-v1", 500) is None
    assert set(scores.RANGES) <= {*games.PROCGEN, *games.ATARI}
    assert sum(name.endswith("-v0") for name in scores.RANGES) == 32


OF_MY_OWN = "host_cartpole:HostCartPole"


def test_a_host_environment_of_ones_own_is_found_by_its_name_and_tried(monkeypatch):
    alive, received = Poles.alive, []
    receive = Poles.receive
    monkeypatch.setattr(Poles, "receive", lambda self: received.append(1) or receive(self))
    for actions in (2, 0):
        assert envs.on_host(envs.make(OF_MY_OWN, actions=actions))
    assert received == [1, 1] * 2  # by two simulators each, which should be the same
    assert Poles.alive == alive
    with pytest.raises(RunError, match=r"spec.action.n=-1 should be"):
        envs.make(OF_MY_OWN, actions=-1)
    with pytest.raises(RunError, match=r"env_kwargs.lives='no' should be a whole number"):
        envs.make(OF_MY_OWN, lives="no")


def test_an_environment_that_changes_the_folder_does_not_move_a_run(monkeypatch, tmp_path):
    """Relative paths, such as that of the run directory, mean where the command was typed."""
    monkeypatch.chdir(here := os.getcwd())  # which it goes back to at the end
    simulate = HostCartPole.simulate

    def elsewhere(self, *arguments):
        os.chdir(tmp_path)
        return simulate(self, *arguments)

    monkeypatch.setattr(HostCartPole, "simulate", elsewhere)
    envs.make(OF_MY_OWN)
    assert os.getcwd() == here


def test_a_simulator_may_write_over_its_actions_in_an_evaluation_too(monkeypatch):
    """Those that a program of JAX returns cannot be written."""
    env, send = envs.make(OF_MY_OWN), Poles.send

    def writes(self, action):
        action %= 2
        send(self, action)

    def act(t, obs, is_first):
        return np.asarray(jax.numpy.ones(2, np.int32))

    monkeypatch.setattr(Poles, "send", writes)
    *_, (_, played, done) = host_rollout.play(env, act, SEEDS[:2], 1, 30)
    assert done.all()
    assert (played.lengths < 30).all()


NO, ZERO = np.zeros(2, bool), np.zeros(2, np.float32)
STEP = HostStep(
    np.zeros((2, 4), np.float32), ZERO, NO, NO, ZERO, NO, {"angle": ZERO, "counted": NO}
)


@pytest.mark.parametrize(
    ("method", "returned", "said"),
    [
        ("reset", np.zeros((2, 3), np.float32), r"reset returned observations float32\[2,3\], it"),
        ("reset", [[0.0] * 4] * 2, "reset returned observations .*it should be NumPy's"),
        ("reset", None, r"observations None, it should be NumPy's float32\[2,4\] for 2 env"),
        ("receive", tuple(STEP), "receive returned a tuple; it should return a .*HostStep"),
        ("receive", None, "receive returned a NoneType; it should return a .*HostStep"),
        ("receive", STEP._replace(obs=np.zeros((3, 4))), r"obs float64\[3,4\], it should"),
        ("receive", STEP._replace(reward=np.zeros((2, 1))), r"reward float64\[2,1\], it should"),
        ("receive", STEP._replace(terminated=np.zeros(2, int)), r"NumPy's bool\[2\] for 2"),
        (
            "receive",
            STEP._replace(info=None),
            r"with the names \[\]; spec.info names \['angle', 'co",
        ),
        (
            "receive",
            STEP._replace(info={"age": ZERO}),
            r"with the names \['age'\]; spec.info names",
        ),
        ("receive", STEP._replace(info=[ZERO]), "an info with a list; spec.info names"),
        (
            "receive",
            STEP._replace(info=STEP.info | {"angle": 1.0}),
            r"info\['angle'\] a float, it should",
        ),
    ],
)
def test_what_a_simulator_returned_and_should_return_is_told(monkeypatch, method, returned, said):
    """When the environment is made, and in a run."""
    env = envs.make(OF_MY_OWN)
    monkeypatch.setattr(Poles, method, lambda self: returned)
    with pytest.raises(RunError, match=f"environment '{OF_MY_OWN}': .*{said}"):
        envs.make(OF_MY_OWN)
    stage = host_rollout.Stage(env, (1, 1, 1, 2), 1, 1)
    stage.restart(np.zeros((1, 1, 1, 2), int))

    def steps():
        for _ in range(2):
            stage.send(0, np.zeros((1, 1, 1, 2), np.int32))
            stage.receive(0)

    with pytest.raises(RunError, match=f"environment 'HostCartPole': .*{said}"):
        steps()
    stage.close()
    with pytest.raises(RunError, match=said):
        list(host_rollout.play(env, lambda t, obs, first: np.zeros(2, np.int32), SEEDS[:2], 1, 3))


@pytest.mark.parametrize(
    ("method", "returned", "said"),
    [
        ("simulate", None, "simulate returned a NoneType, without a method reset"),
        ("simulate", STEP, "simulate returned a .*HostStep, without a method reset"),
        ("facts", None, r"facts\(\)=None should be a dict of texts"),
        ("facts", {"version": 3}, r"facts\(\)={'version': 3} should be a dict of texts"),
    ],
)
def test_what_else_a_host_environment_needs_is_told(monkeypatch, method, returned, said):
    monkeypatch.setattr(HostCartPole, method, lambda *_: returned)
    with pytest.raises(RunError, match=f"environment '{OF_MY_OWN}': {said}"):
        envs.make(OF_MY_OWN)


PAGE = (REPOSITORY / "docs" / "environments.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
(LINE,) = re.findall(r"^python -m jaxrl_scale.train (.*thermostat:.*)$", PAGE, re.M)


def test_the_example_on_the_page_keeps_the_contract_and_is_learned(world, monkeypatch):
    (world.folder / "thermostat.py").write_text(EXAMPLE)
    monkeypatch.syspath_prepend(world.folder)
    env = envs.make("thermostat:Thermostat", limit=20)
    first, seen = play(env, SEEDS, 60)
    halves = [play(env, part, 60) for part in np.split(SEEDS, 2)]
    assert np.array_equal(first, np.concatenate([half[0] for half in halves]))
    both = jax.tree.map(lambda *x: np.concatenate(x, axis=1), *(half[1] for half in halves))
    assert same(seen, both)
    assert seen.truncated.sum(0).tolist() == [2] * 4  # 20 steps and one that begins, twice
    run_dir = world.folder / "thermostat"
    well(world.run(*LINE.split(), "--run_dir", run_dir, environment=QUICKLY))
    told = [row["return"] for row in rows(run_dir)]
    assert told[-1] > told[0] + 5


# --- the contract -------------------------------------------------------------------------


@needs_envpool
def test_the_last_step_of_a_game_of_procgen_says_whether_the_level_was_completed():
    """Coinrun's coin, which is worth 10, completes it."""
    env = envs.make(PROCGEN)
    assert env.spec.info == ("level_complete",)
    _, seen = play(env, np.arange(8), 250)
    ends = seen.terminated | seen.truncated
    completed = seen.info["level_complete"][ends] == 1
    assert completed.tolist() == (seen.reward[ends] == 10).tolist()
    assert 0 < completed.sum() < len(completed)


@needs_envpool
def test_what_else_envpool_has_tells_its_own_numbers():
    told = envs.make("envpool:HalfCheetah-v4").spec.info
    assert sorted(told) == ["reward_ctrl", "reward_run", "x_position", "x_velocity"]
    for name in (ATARI, CARTPOLE):
        assert envs.make(name).spec.info == ()


@needs_envpool
@pytest.mark.parametrize("name", [PROCGEN, ATARI, CARTPOLE])
def test_what_is_seen_is_what_envpool_says(name):
    """Its own pool, told the same: pictures with channels last; after an end, a new episode."""
    env, steps = envs.make(name), STEPS.get(name, 100)
    first, seen = play(env, SEEDS, steps)
    from jaxrl_scale.envs.envpool_adapter import _envpool

    options = {"episodic_life": True, "reward_clip": True} if name == ATARI else {}
    judge = _envpool(name).make_dm(
        name.removeprefix("envpool:"), num_envs=4, seed=SEEDS.tolist(), **options
    )

    def channels_last(obs):
        return np.moveaxis(obs, 1, -1) if obs.ndim == 4 else obs

    np.testing.assert_array_equal(first, channels_last(judge.reset().observation.obs))
    ended = np.zeros(4, bool)
    for t, action in enumerate(actions(env, SEEDS, steps)):
        step = judge.step(action)
        np.testing.assert_array_equal(seen.obs[t], channels_last(step.observation.obs))
        np.testing.assert_array_equal(step.step_type == 0, ended)  # FIRST
        np.testing.assert_array_equal(seen.reward[t][~ended], step.reward[~ended])
        ends = seen.terminated[t] | seen.truncated[t]
        np.testing.assert_array_equal(ends, step.step_type == 2)  # LAST
        assert not ends[ended].any()
        ended = ends
    assert (seen.terminated | seen.truncated).sum() >= 2


@pytest.mark.parametrize("name", ALL)
def test_shapes_and_dtypes_are_those_of_the_contract(name):
    env = envs.make(name)
    assert envs.on_host(env)
    assert not envs.on_host(envs.make("CartPole-v1"))
    first, seen = play(env, SEEDS, 3)
    assert env.spec.observation_dtype == first.dtype == seen.obs.dtype
    assert first.shape == (4, *env.spec.observation_shape)
    assert seen.obs.shape == (3, 4, *env.spec.observation_shape)
    assert {part.shape for part in jax.tree.leaves(seen[1:])} == {(3, 4)}
    assert [x.dtype for x in seen[1:-1]] == [np.float32, bool, bool, np.float32, bool]
    assert tuple(seen.info) == env.spec.info
    assert all(isinstance(text, str) for text in env.facts().values())
    frames = {PROCGEN: 1, ATARI: 4}.get(name, 1)
    assert env.spec.frames_per_step == frames


@pytest.mark.parametrize("name", ALL)
def test_two_simulators_of_half_the_seeds_do_what_one_of_all_does(name, monkeypatch):
    """To the last bit, with 1 and 2 threads. It is seen if a simulator numbers by itself."""
    env, steps = envs.make(name), STEPS.get(name, 100)
    whole = play(env, SEEDS, steps)

    def halves(threads):
        (a, seen_a), (b, seen_b) = (play(env, part, steps, threads) for part in np.split(SEEDS, 2))
        both = jax.tree.map(lambda *x: np.concatenate(x, axis=1), seen_a, seen_b)
        return np.concatenate([a, b]), both

    assert same(whole, halves(threads=2))
    if name != ATARI:  # ALE takes 0.1 s to begin a game
        assert same(whole, play(env, SEEDS, steps, threads=2))
    assert not np.array_equal(whole[0][0], whole[0][1])

    if name == PROCGEN:
        import envpool

        make = envpool.make_gymnasium

        def numbered_by_the_pool(task, seed, **kwargs):
            return make(task, seed=min(seed), **kwargs)

        monkeypatch.setattr(envpool, "make_gymnasium", numbered_by_the_pool)
        assert not same(play(env, SEEDS, steps), halves(threads=2))


@needs_envpool
def test_envpool_gives_matplotlib_no_folder_that_all_users_share():
    """Whoever imported it second on a machine read warnings in every command that drew."""
    script = """
import os
before = dict(os.environ)
from jaxrl_scale import envs
envs.make("CoinrunEasy-v0")
import matplotlib
print(matplotlib.get_configdir(), matplotlib.get_cachedir())
print({name for name in os.environ if name.startswith("MPL") and name not in before})
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MPL")}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "envpool" not in done.stdout
    assert done.stdout.endswith("\nset()\n")


@pytest.mark.parametrize("name", ALL)
def test_close_ends_the_threads_even_in_the_middle_of_a_step(name):
    env, process = envs.make(name), psutil.Process()
    first = env.simulate(SEEDS[:2], 2)  # with it a library may start threads that stay
    first.reset()
    first.close()
    gc.collect()  # pools of other tests
    before = process.num_threads()
    simulator = env.simulate(SEEDS[:2], 2)
    simulator.reset()
    simulator.send(np.zeros(2, np.int32))
    assert process.num_threads() > before
    simulator.close()
    simulator.close()
    deadline = time.monotonic() + 10
    while process.num_threads() > before:  # Python's are joined a little before they are gone
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- Atari and Procgen --------------------------------------------------------------------


@needs_envpool
def test_a_lost_life_ends_an_episode_and_four_lives_are_a_game():
    _, seen = play(envs.make("Qbert-v5"), SEEDS[:2], 700, threads=2)
    assert set(np.unique(seen.reward)) == {0.0, 1.0}  # one is paid 25 a cube
    assert set(np.unique(seen.score)) >= {0.0, 25.0}
    np.testing.assert_array_equal(seen.reward, np.sign(seen.score))
    assert not seen.truncated.any()
    assert seen.terminated[seen.game_over].all()
    for i in range(2):
        games_before = np.cumsum(seen.game_over[:, i]) - seen.game_over[:, i]
        lives = np.bincount(games_before[seen.terminated[:, i]])
        assert len(lives) >= 2
        assert set(lives[:-1]) == {4}


@needs_envpool
def test_without_life_loss_and_clipping_reward_and_score_are_one():
    env = envs.make("Qbert-v5", preset="dopamine", reward_clip=False, max_episode_steps=60)
    _, seen = play(env, SEEDS[:2], 130)
    np.testing.assert_array_equal(seen.reward, seen.score)
    assert seen.reward.max() >= 25
    assert not seen.terminated.any()  # the game is cut before it ends
    np.testing.assert_array_equal(seen.truncated, seen.game_over)
    assert set(np.flatnonzero(seen.truncated[:, 0])) == {59, 120}  # the 61st step is a reset


@needs_envpool
def test_a_game_that_ends_at_the_step_of_its_limit_is_terminated():
    _, seen = play(envs.make("Qbert-v5"), SEEDS[:1], 400)
    end = np.flatnonzero(seen.game_over)[0]
    resets = seen.terminated[:end].sum()  # the steps after lost lives are none of the game's
    limited = envs.make("Qbert-v5", max_episode_steps=int(end + 1 - resets))
    _, seen = play(limited, SEEDS[:1], end + 1)
    assert (seen.terminated[-1], seen.truncated[-1], seen.game_over[-1]) == (True, False, True)
    assert not seen.game_over[:-1].any()


@needs_envpool
def test_num_levels_and_start_level_choose_the_levels():
    def starts(**kwargs):
        simulator = envs.make(PROCGEN, **kwargs).simulate(np.arange(32), 1)
        obs = simulator.reset()
        simulator.close()
        return {picture.tobytes() for picture in obs}

    five, others = starts(num_levels=5), starts(num_levels=5, start_level=5)
    assert len(five) <= 5
    assert len(others) <= 5
    assert not five & others
    assert len(starts()) > 25


@needs_envpool
def test_a_game_of_procgen_that_takes_too_long_is_cut():
    env = envs.make("MazeEasy-v0")
    simulator = env.simulate(SEEDS[:1], 1)
    simulator.reset()
    for _ in range(env.spec.max_episode_steps):
        simulator.send(np.array([4], np.int32))  # stand still
        seen = simulator.receive()
    assert (seen.terminated, seen.truncated, seen.game_over) == (False, True, True)
    simulator.close()


@needs_envpool
@pytest.mark.parametrize(("name", "size"), [(PROCGEN, (384, 384)), (ATARI, (420, 320))])
def test_frames_are_the_games_own_pictures(name, size):
    simulator = envs.make(name).simulate(SEEDS[:2], 1)
    obs = simulator.reset()
    frames = simulator.render()
    assert frames.shape == (2, *size, 3)
    assert frames.dtype == np.uint8
    if name == PROCGEN:
        np.testing.assert_array_equal(frames[:, ::6, ::6], obs)
    simulator.send(np.array([1, 4], np.int32))
    simulator.receive()
    assert not np.array_equal(simulator.render(), frames)
    simulator.close()


@needs_envpool
def test_an_action_that_a_game_does_not_have_is_an_error():
    simulator = envs.make(PROCGEN).simulate(SEEDS[:1], 1)
    simulator.reset()
    with pytest.raises(ValueError, match="actions of LeaperEasy-v0 are 0 to 14"):
        simulator.send(np.array([15], np.int32))
    simulator.close()


# --- Gymnasium ----------------------------------------------------------------------------


class Told(gymnasium.Env):
    """Does what the test says; it steps while ``go`` is set."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, obs=None, act=None, seen=6, fails=False):
        self.observation_space = spaces.Discrete(3, start=5) if obs is None else obs
        self.action_space = spaces.Discrete(2, start=7) if act is None else act
        self.seen, self.fails, self.go = seen, fails, threading.Event()
        self.go.set()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen, {}

    def step(self, action):
        assert self.go.wait(60)
        if self.fails:
            raise KeyError("lost")
        assert self.action_space.contains(action)
        return self.seen, 2, bool(np.all(action == 8)), True, {}


@pytest.fixture
def told():
    gymnasium.register("Told-v0", Told)
    yield "gymnasium:Told-v0"
    del gymnasium.registry["Told-v0"]


def test_send_returns_before_the_step_is_done_and_receive_waits_for_it(told):
    env = envs.make(told)
    assert env.spec.observation_shape == (3,)
    assert env.spec.action == Discrete(2)
    simulator = env.simulate(SEEDS[:2], 1)
    np.testing.assert_array_equal(simulator.reset(), [[0, 1, 0]] * 2)  # one-hot
    assert env.encoded == [
        "An observation is a one-hot vector, which stands for Gymnasium's 5 to 7.",
        "Its action 0 is Gymnasium's 7, and so on.",
    ]
    for env in simulator._envs:
        env.unwrapped.go.clear()
    simulator.send(np.array([0, 1], np.int32))
    for env in simulator._envs:  # only now
        env.unwrapped.go.set()
    seen = simulator.receive()
    assert seen.terminated.tolist() == [False, True]
    assert seen.truncated.tolist() == [True, False]  # an end is no cut
    assert seen.game_over.all()
    assert seen.score.tolist() == seen.reward.tolist() == [2, 2]
    simulator.send(np.array([1, 1], np.int32))
    assert not simulator.receive().game_over.any()  # a reset
    with pytest.raises(RunError, match="'gymnasium:Told-v0' draws no pictures"):
        simulator.render()
    simulator.close()


def test_an_error_in_a_step_is_raised_by_receive(told):
    simulator = envs.make(told).simulate(SEEDS[:2], 2)
    simulator.reset()
    for env in simulator._envs:
        env.unwrapped.fails = True
    simulator.send(np.array([0, 1], np.int32))
    with pytest.raises(KeyError, match="lost") as raised:
        simulator.receive()
    assert raised.value.__notes__ == ["in gymnasium:Told-v0 with seed 7"]
    simulator.close()


def test_an_environment_that_fails_to_close_leaves_no_other_open(told):
    simulator = envs.make(told).simulate(SEEDS[:3], 1)
    closed = []
    for k, env in enumerate(simulator._envs):
        env.unwrapped.close = lambda k=k: closed.append(k) or (k == 1 and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        simulator.close()
    assert sorted(closed) == [0, 1, 2]
    simulator.close()
    assert len(closed) == 3


class Drawn:
    """Another number whenever it is looked at."""

    shape = (1,)

    def __array__(self, dtype=None, copy=None):
        return np.random.default_rng().random(1).astype(dtype or float)


OBS = np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"obs": spaces.Box(0, 1, (3,)), "seen": np.ones(1)}, r"shape \(1,\); its space says \(3,"),
        ({"seen": 4}, r"returned the observation 4; its space is Discrete\(3, start=5\)"),
        (
            {"obs": spaces.Box(0, 255, (2,), np.uint8), "seen": np.array([0.5, 0.9])},
            r"returned an observation of float64, from 0\.5 to 0\.9; its space says uint8",
        ),
        (
            {"obs": spaces.Box(0, 255, (2,), np.uint8), "seen": np.array([-1, 300])},
            r"returned an observation of int64, from -1 to 300; its space says uint8",
        ),
        (
            {"obs": spaces.Box(0, 1, (1,)), "seen": Drawn()},
            "two simulators with the same seeds begin differently; all that is random must",
        ),
        ({"fails": True}, r"test_host_envs.py, line \d+: KeyError: 'lost'"),
    ],
)
def test_the_mistakes_of_an_own_environment_are_told_before_a_run(told, wrong, said):
    with pytest.raises(RunError, match=f"environment '{told}'.*{said}"):
        envs.make(told, **wrong)


@pytest.mark.parametrize(
    ("reset", "step", "said"),
    [
        (OBS, (), r"reset returned a ndarray; it should return \(observation, info\)"),
        ((OBS, {}), (OBS, 1.0, False, {}), r"step returned a tuple of 4; it should return \(obs"),
        ((OBS, {}), None, r"step returned a NoneType; it should return \(obs"),
        (
            (OBS, {}),
            (OBS, np.ones(1), False, False, {}),
            r"the reward array\(\[1\.\]\); it should be a numb",
        ),
        ((OBS, {}), (OBS, "1", False, False, {}), "the reward '1'; it should be a number"),
        ((OBS, {}), (OBS, 1j, False, False, {}), "the reward 1j; it should be a number"),
        ((OBS, {}), (OBS, None, False, False, {}), "the reward None; it should be a number"),
    ],
)
def test_what_an_environment_of_gymnasium_should_return_is_told(monkeypatch, reset, step, said):
    env = envs.make("gymnasium:CartPole-v1")
    made = gymnasium.make("CartPole-v1").unwrapped
    made.reset, made.step = lambda seed: reset, lambda action: step
    monkeypatch.setattr(env, "make", lambda: made)
    with pytest.raises(RunError, match=f"environment 'gymnasium:CartPole-v1': .*{said}"):
        list(host_rollout.play(env, lambda t, obs, first: np.zeros(1, np.int32), SEEDS[:1], 1, 2))


class Unfinished(gymnasium.Env):
    """Gymnasium's time limit would take apart what its step returns."""

    observation_space = spaces.Box(0, 1, OBS.shape)
    action_space = spaces.Discrete(2)

    def __init__(self, lacks=""):
        setattr(self, lacks or "unused", None)

    def reset(self, seed=None, options=None):
        return OBS, {}

    def step(self, action):
        return OBS, 1.0, False, {}


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({}, r": step returned a tuple of 4; it should return \(observation, reward, terminated, "),
        ({"lacks": "action_space"}, " has no action_space; it should be a gymnasium.spaces.Space$"),
        ({"lacks": "observation_space"}, " has no observation_space; it should be a gymnasium.sp"),
        ({"unknown": 1}, r": TypeError: .*unexpected keyword argument 'unknown'"),
    ],
)
def test_what_an_environment_behind_gymnasiums_time_limit_lacks_is_told(kwargs, said):
    gymnasium.register("Unfinished-v0", entry_point=Unfinished, max_episode_steps=9)
    try:
        with pytest.raises(RunError, match=f"^environment 'gymnasium:Unfinished-v0'{said}"):
            envs.make("gymnasium:Unfinished-v0", **kwargs)
    finally:
        del gymnasium.registry["Unfinished-v0"]


@pytest.mark.parametrize(
    ("spaces_of_it", "said"),
    [
        ({"obs": spaces.Tuple([spaces.Box(0, 1, (8, 8, 3))])}, "observes Tuple.*; .* without imag"),
        (
            {"obs": spaces.Discrete(10**9)},
            r"observes Discrete\(10{9}\), as a vector of 1,000,000,000 nu.* at most 10,000,000 a",
        ),
        ({"obs": spaces.Dict(a=spaces.MultiDiscrete([2**30] * 2))}, "of 2,147,483,648 numbers"),
        ({"obs": spaces.Sequence(spaces.Discrete(2))}, "observes Sequence.*; Discrete, MultiDisc"),
        (
            {"obs": spaces.Dict(a=spaces.Text(3))},
            "observes Dict.*; Discrete, MultiDiscrete, MultiBinary and",
        ),
        (
            {"act": spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)])},
            "acts in Tuple.*; Discrete, MultiDiscrete, MultiBinary, and Box with an axis, are supp",
        ),
        ({"act": spaces.MultiDiscrete([])}, r"acts in MultiDiscrete\(\[\]\); Discrete, MultiDiscr"),
        ({"act": spaces.Box(0, 3, (1,), np.int32)}, r"must be real, .*, and not int32"),
        (
            {"act": spaces.Box(np.array([0, 1]), np.array([2, np.inf]), dtype=float)},
            "acts in Box.*; where bounds differ, all should be finite",
        ),
    ],
)
def test_what_a_spec_cannot_say_is_refused_in_one_line(told, spaces_of_it, said):
    with pytest.raises(RunError, match=said) as raised:
        envs.make(told, **spaces_of_it)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("obs", "seen", "vector"),
    [
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
        (spaces.MultiDiscrete([2, 3], start=[0, 4]), np.array([1, 5]), [0, 1, 0, 1, 0]),
        (spaces.Box(-1, 1, ()), np.array(0.25, np.float32), [0.25]),
        (
            spaces.Dict(
                {
                    "arm": spaces.Box(-1, 1, (2,)),
                    "room": spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(0, 9, (1,))]),
                }
            ),
            {"arm": np.float32([0.5, -0.5]), "room": (np.int64(3), np.float32([7]))},
            [0.5, -0.5, 0, 0, 1, 7],
        ),
    ],
)
def test_observations_of_several_parts_become_one_vector(told, obs, seen, vector):
    env = envs.make(told, obs=obs, seen=seen)
    assert (env.spec.observation_shape, env.spec.observation_dtype) == ((len(vector),), np.float32)
    simulator = env.simulate(SEEDS[:2], 1)
    np.testing.assert_array_equal(simulator.reset(), [vector] * 2)
    simulator.close()
    np.testing.assert_array_equal(env.seen(seen), vector)
    batch = gymnasium.vector.utils.concatenate(
        obs, [seen] * 3, gymnasium.vector.utils.create_empty_array(obs, 3)
    )
    np.testing.assert_array_equal(env.seen(batch), [vector] * 3)
    kind = type(obs).__name__
    assert env.encoded[0] == (
        f"An observation is Gymnasium's {kind} as gymnasium.spaces.flatten makes it."
    )
    with pytest.raises(RunError, match="this is no observation of"):
        env.seen("neither" if kind != "Dict" else {"arm": 3})


@pytest.mark.parametrize(
    ("seen", "vector"),
    [
        ((np.float64([2.5, 0]), 3), [2.5, 0, 0, 0, 1]),  # another dtype, and beyond the bounds
        (([0.5, -0.5], True), [0.5, -0.5, 1, 0, 0]),
        ((np.float32([0.5]), 1), None),
        ((np.float32([0.5, 0]), 0), None),  # would be the last of the three
        ((np.float32([0.5, 0]), 4), None),
        ((np.float32([0.5, 0]), 1.0), None),
        ((np.float32([0.5, 0]),), None),
    ],
)
def test_an_observation_of_parts_is_one_in_a_run_where_it_is_one_of_an_agent(told, seen, vector):
    parts = spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3, start=1)])
    if vector:
        env = envs.make(told, obs=parts, seen=seen)
        simulator = env.simulate(SEEDS[:1], 1)
        np.testing.assert_array_equal(simulator.reset(), [vector])
        np.testing.assert_array_equal(env.seen(seen), vector)
        simulator.close()
        return
    with pytest.raises(RunError, match=r"returned the observation .*; its space is Tuple"):
        envs.make(told, obs=parts, seen=seen)
    with pytest.raises(RunError, match="this is no observation of Tuple"):
        gymnasium_spaces.seen(parts, seen)


def test_actions_of_different_bounds_are_scaled_from_minus_one_to_one(told):
    low, high = np.float32([0.1, -2]), np.float32([0.3, 6])
    env = envs.make(told, act=spaces.Box(low, high))
    assert env.spec.action == Box(-1.0, 1.0, (2,))
    both = np.float32([[-1, -1], [1, 1], [0, 0.5]])
    np.testing.assert_array_equal(env.taken(both)[:2], [low, high])
    np.testing.assert_allclose(env.taken(both)[2], [0.2, 4], rtol=1e-6)
    assert env.taken(both[0]).dtype == np.float32
    assert "Its actions are from -1 to 1, which stand for [0.1" in env.encoded[1]
    simulator = env.simulate(SEEDS[:3], 1)
    simulator.reset()
    simulator.send(both)
    assert simulator.receive().reward.tolist() == [2, 2, 2]  # `Told` takes none beyond its bounds
    simulator.close()


@pytest.mark.parametrize(
    ("act", "sizes", "ours", "theirs", "said"),
    [
        (
            spaces.MultiDiscrete([3, 2], start=[-1, 4]),
            (3, 2),
            [[0, 0], [2, 1]],
            [[-1, 4], [1, 5]],
            ["Its numbers begin at 0, where Gymnasium's begin at [-1, 4]."],
        ),
        (
            spaces.MultiDiscrete([[2, 3, 4]], np.uint8, start=[[250, 0, 0]]),
            (2, 3, 4),
            [[0, 0, 3], [1, 2, 0]],
            [[[250, 0, 3]], [[251, 2, 0]]],
            [
                "Its actions are vectors of 3 numbers, Gymnasium's array of shape (1, 3) row by "
                "row.",
                "Its numbers begin at 0, where Gymnasium's begin at [[250, 0, 0]].",
            ],
        ),
        (spaces.MultiBinary(3), (2, 2, 2), [[0, 1, 1], [1, 0, 0]], [[0, 1, 1], [1, 0, 0]], []),
        (
            spaces.MultiBinary([2, 2]),
            (2, 2, 2, 2),
            [[0, 1, 1, 1], [1, 0, 0, 0]],
            [[[0, 1], [1, 1]], [[1, 0], [0, 0]]],
            ["Its actions are vectors of 4 numbers, Gymnasium's array of shape (2, 2) row by row."],
        ),
    ],
)
def test_actions_of_several_parts_are_those_of_gymnasium(told, act, sizes, ours, theirs, said):
    env = envs.make(told, act=act)
    assert env.spec.action == MultiDiscrete(sizes)
    assert env.encoded[1:] == said
    both = env.taken(np.int32(ours))
    np.testing.assert_array_equal(both, theirs)
    for one, taken in zip(np.int32(ours), both, strict=True):
        np.testing.assert_array_equal(env.taken(one), taken)
        assert act.contains(env.taken(one))
    simulator = env.simulate(SEEDS[:2], 1)
    simulator.reset()
    simulator.send(np.int32(ours))
    assert simulator.receive().reward.tolist() == [2, 2]  # `Told` takes no others
    simulator.close()


class Reach(gymnasium.Env):
    """A goal to be reached, as of a robot: the observation has parts, and actions have bounds of
    their own."""

    observation_space = spaces.Dict(
        {"goal": spaces.Box(-1, 1, (2,)), "at": spaces.Box(-9, 9, (2,)), "left": spaces.Discrete(9)}
    )
    action_space = spaces.Box(np.float32([-1, -3]), np.float32([2, 1]))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.at, self.left = np.zeros(2, np.float32), 8
        return self._seen(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.at, self.left = np.clip(self.at + 0.2 * action, -9, 9), self.left - 1
        near = bool(np.abs(self.at - self.goal).max() < 0.3)
        return self._seen(), float(near), near, self.left == 0, {"is_success": near}

    def _seen(self):
        return {"goal": self.goal, "at": self.at, "left": self.left}


class Steps(Reach):
    """Reached by steps of one of three lengths along each axis."""

    action_space = spaces.MultiDiscrete([[3], [3]], start=[[-1], [-1]])

    def step(self, action):
        assert self.action_space.contains(action)
        self.at, self.left = np.float32(self.at + 0.2 * action[:, 0]), self.left - 1
        near = bool(np.abs(self.at - self.goal).max() < 0.3)
        return self._seen(), float(near), near, self.left == 0, {"is_success": near}


@pytest.mark.parametrize("kind", [Reach, Steps])
def test_an_agent_plays_with_a_goal_as_gymnasium_has_it(kind):
    gymnasium.register("Reach-v0", entry_point=kind)
    try:
        config = small({}, env="gymnasium:Reach-v0", iterations=2, devices=1, eval_episodes=4)
        runner = runner_of(config)
        state, history = steps(runner, 2)
        assert 0 < history[-1]["env_end/is_success"] <= history[-1]["ended"]
        actor = runner.fetch_actor(runner.place(state, str))
        agent = Agent(config, runner.env, runner.algo, actor, iteration=2)
        played = agent.evaluate_in_gymnasium(3)
        runner.close()
        assert played.returns.shape == (1, 3)
        one = kind()
        obs, _ = one.reset(seed=0)
        assert one.action_space.contains(agent.act(obs))
    finally:
        del gymnasium.registry["Reach-v0"]


def test_an_episode_is_gymnasiums():
    """Its own environment, told the same, with one seed and many episodes."""
    env = envs.make("gymnasium:CartPole-v1")
    first, seen = play(env, SEEDS[:1], 60)
    judge = gymnasium.make("CartPole-v1")
    np.testing.assert_array_equal(first[0], judge.reset(seed=int(SEEDS[0]))[0])
    ended, ends = False, 0
    for t, action in enumerate(actions(env, SEEDS[:1], 60)):
        if ended:
            obs, ended = judge.reset()[0], False
        else:
            obs, reward, terminated, truncated, _ = judge.step(int(action[0]))
            ended = terminated or truncated
            assert (seen.reward[t, 0], seen.terminated[t, 0]) == (reward, terminated)
        np.testing.assert_array_equal(seen.obs[t, 0], obs)
        ends += ended
    assert ends >= 2


class Telling(gymnasium.Env):
    """Counts its steps, of which the third one tells of no success."""

    observation_space, action_space = spaces.Box(0, 1, OBS.shape), spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.steps = 0
        return OBS, {"only_here": 1}

    def step(self, action):
        self.steps += 1
        told = {"steps": np.array(self.steps), "is_success": self.steps == 2, "half": 0.5}
        none = {"text": "3", "vector": np.ones(2), "with spaces": 1, 7: 1, "nothing": None}
        if self.steps == 3:
            del told["is_success"]
            told |= {"half": "0.5", "later": 1}
        return OBS, 1.0, self.steps == 4, False, told | none


def test_numbers_of_gymnasiums_info_are_told_where_the_first_step_has_them():
    gymnasium.register("Telling-v0", entry_point=Telling)
    try:
        env = envs.make("gymnasium:Telling-v0")
        _, seen = play(env, SEEDS[:2], 4)
    finally:
        del gymnasium.registry["Telling-v0"]
    assert env.spec.info == ("steps", "is_success", "half")
    for name, wanted in {
        "steps": [1, 2, 3, 4],
        "is_success": [0, 1, np.nan, 0],
        "half": [0.5, 0.5, np.nan, 0.5],
    }.items():
        np.testing.assert_array_equal(seen.info[name].T, [wanted] * 2)


def test_where_an_environment_of_gymnasium_cannot_be_made_those_before_it_are_closed(monkeypatch):
    env, made, closed = envs.make("gymnasium:CartPole-v1"), [], []
    make = env.make

    def limited():
        if len(made) == 2:
            raise RunError("no third one")
        made.append(make())
        monkeypatch.setattr(made[-1], "close", partial(closed.append, len(made)))
        return made[-1]

    monkeypatch.setattr(env, "make", limited)
    with pytest.raises(RunError, match="no third one"):
        env.simulate(SEEDS[:3], 1)
    assert sorted(closed) == [1, 2]
    made.pop(), closed.clear()
    simulator = env.simulate(SEEDS[:1], 1)
    assert closed == []
    simulator.close()
    assert closed == [2]


def test_pictures_of_gymnasium():
    pytest.importorskip("pygame")
    simulator = envs.make("gymnasium:CartPole-v1").simulate(SEEDS[:2], 1)
    simulator.reset()
    frames = simulator.render()
    assert frames.shape == (2, 400, 600, 3)
    assert frames.dtype == np.uint8
    simulator.close()


# --- an agent in them ---------------------------------------------------------------------


@needs_envpool
def test_agents_learn_envpools_cartpole_as_they_learn_ours():
    """The same algorithm, on the host and on the devices: both agents reach the score."""
    algo = {"minibatch_size": 256, "epochs": 4, "learning_rate": 3e-3, "gae_lambda": 0.9}
    sizes = {"num_seeds": 2, "num_shards": 2, "rollout_length": 32, "iterations": 80}
    for name in ("CartPole-v1", CARTPOLE):
        _, history = run(small(algo, env=name, hidden_sizes=(64,), devices=1, **sizes))
        returns, ended = (
            sum(metrics[what] for metrics in history[-10:]) for what in ("total_return", "ended")
        )
        assert (returns / ended > 450).all(), name


@needs_envpool
def test_a_video_shows_the_real_frames_until_the_game_is_over():
    env = envs.make(ATARI, max_episode_steps=30)

    class Random:
        @staticmethod
        def act(actor, local, carry, obs, is_first, key, greedy=False):
            return jax.random.randint(key, obs.shape[:1], 0, 6), carry, ()

        init_carry = staticmethod(lambda number: ())

    frames = Agent(Config(), env, Random(), np.zeros(1), iteration=0).record(seed=3)
    assert len(frames) == 31
    assert {frame.shape for frame in frames} == {(420, 320, 3)}
    assert len({frame.tobytes() for frame in frames}) > 15
