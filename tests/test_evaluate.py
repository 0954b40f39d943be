"""Evaluation of a trained run: the command, the Python API, and the statistics."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from processes import PATIENCE, SMALL, checkpoints, summary, well
from running import begun, first_shared, small, time_at
from scipy import stats
from test_report import make_run

from jaxrl_scale import envs, evaluate, load, plot, report, train
from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config, files
from jaxrl_scale.errors import RunError
from jaxrl_scale.figures.video import check_video, write_video
from jaxrl_scale.loop import evaluator
from jaxrl_scale.loop.agent import Agent
from jaxrl_scale.loop.evaluator import make_evaluators, play_all
from jaxrl_scale.loop.keys import agent_seeds
from jaxrl_scale.loop.runner import Runner
from jaxrl_scale.parallel import backend
from jaxrl_scale.types import Discrete, EnvSpec, Played, TimeStep

EPISODES = str(SMALL["eval_episodes"])  # in most tests: each other number is compiled anew


@pytest.fixture(scope="module")
def run(world, reference):
    """A short run. It is a copy, which no other module has a lock on."""
    return shutil.copytree(reference, world.folder / "trained")


@pytest.fixture(scope="module")
def agent(run):
    return load(run)


def command(run, *more, capfd):
    """The command in this process, whose settings it leaves alone: exit status and what it
    printed."""
    precision = jax.config.values["jax_default_matmul_precision"]
    status = evaluate.main([str(run), *map(str, more)])
    assert jax.config.values["jax_default_matmul_precision"] == precision
    return status, *capfd.readouterr()


def in_json(run, *more, capfd):
    status, out, err = command(run, "--json", *more, capfd=capfd)
    assert (status, err) == (0, "")
    return json.loads(out)


# --- the command ----------------------------------------------------------------------------


def test_the_command_repeats_the_runs_own_evaluation_to_the_last_digit(world, run):
    arguments = [run, "--episodes", EPISODES, "--json"]
    done = well(world.run(*arguments, module="jaxrl_scale.evaluate"))
    result = json.loads(done.out)
    own = summary(run)["evaluation"]
    assert {name: result[name] for name in own} == own
    assert (result["env"], result["where"]) == ("CartPole-v1", "jaxrl_scale")
    assert (result["greedy"], result["agents"]) == (True, [0])
    assert result["iteration"] == SMALL["iterations"]
    assert result["standard_error"] > 0
    assert result["length"] == result["mean"]  # CartPole gives 1 a step
    assert result["info"] == {}


def test_a_path_in_python_may_begin_with_a_tilde(run, monkeypatch, capfd):
    monkeypatch.setenv("HOME", str(run.parent))
    assert load(f"~/{run.name}").iteration == SMALL["iterations"]
    assert plot(f"~/{run.name}").axes
    assert train(resume=f"~/{run.name}").path == run
    assert "has finished: nothing is left to do" in capfd.readouterr().out
    (run.parent / "mine.py").write_text("def get_config():\n    return 1\n")
    with pytest.raises(RunError, match="returned int, it should return"):
        files.read_file("~/mine.py")


def test_the_command_in_gymnasium_prints_two_lines_and_no_warning(world, run):
    arguments = [run, "--episodes", "4", "--gymnasium"]
    done = well(world.run(*arguments, module="jaxrl_scale.evaluate"))
    pattern = (
        r"CartPole-v1 in real Gymnasium, greedy actions, iteration 24: mean return [\d.]+ ± "
        r"[\d.]+ \(standard error over 4 episodes\)\nmean length [\d.]+ steps\n"
    )
    assert re.fullmatch(pattern, done.out)
    mean, length = re.search(r"return ([\d.]+) .* length ([\d.]+) ", done.out, re.DOTALL).groups()
    assert mean == length


def test_sampled_and_greedy_play_differ_and_each_repeats_itself(run, capfd):
    greedy = in_json(run, "--episodes", EPISODES, capfd=capfd)
    sampled = [in_json(run, "--episodes", EPISODES, "--sampled", capfd=capfd) for _ in range(2)]
    assert sampled[0] == sampled[1]
    assert sampled[0]["greedy"] is False
    assert sampled[0]["mean"] < greedy["mean"] - 5  # hardly trained: its samples are noise


def test_a_run_is_evaluated_as_its_config_says(run, agent, world, capfd):
    """While it trains, and by the command, which may be told otherwise."""
    copy = world.folder / "sampled"
    shutil.copytree(run, copy)
    sampled = agent.config.replace(eval_greedy=False)
    (copy / "config.json").write_text(json.dumps(files.to_json(sampled)))
    for config, path in ((agent.config, run), (sampled, copy)):
        placement = backend.place(config, jax.local_devices())
        evaluators = make_evaluators(config, agent.env, agent.algo, placement)
        returns = play_all(evaluators, agent.actor, agent_seeds(config))["eval"].returns
        result = in_json(path, "--episodes", EPISODES, capfd=capfd)
        assert result["greedy"] is config.eval_greedy
        own = agent.evaluate(16, config.eval_greedy).returns
        assert result["mean"] == returns.mean() == own.mean()
        other = "--sampled" if config.eval_greedy else "--no-sampled"
        assert in_json(path, "--episodes", EPISODES, other, capfd=capfd)["mean"] != result["mean"]


def test_the_best_checkpoint_can_be_chosen(run, world, capfd):
    copy = world.folder / "best"
    shutil.copytree(run, copy)
    scores = {k: -1 if score is None else score for k, score in checkpoints(copy).items()}
    best = max(scores, key=lambda k: (scores[k], k))
    assert (
        in_json(copy, "--episodes", EPISODES, "--checkpoint=best", capfd=capfd)["iteration"] == best
    )
    assert in_json(copy, "--episodes", EPISODES, capfd=capfd)["iteration"] == 24


def test_many_episodes_are_played_in_blocks(agent, monkeypatch):
    monkeypatch.setattr(evaluator, "AT_ONCE", 4)
    (returns,) = agent.evaluate(10).returns
    assert returns.shape == (10,)
    assert (returns[:4] != returns[4:8]).any(), "each block has episodes of its own"


def test_an_evaluation_takes_no_lock_and_changes_nothing(run, capfd):
    def snapshot():
        return {p: p.stat().st_mtime_ns for p in run.rglob("*")}

    before = snapshot()
    code = f"import fcntl, sys; f = open({str(run / '.lock')!r}); fcntl.flock(f, fcntl.LOCK_EX); "
    code += "print('locked', flush=True); sys.stdin.read()"  # as a run that is still training
    ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **ends) as other:
        assert other.stdout.readline() == b"locked\n"
        in_json(run, "--episodes", EPISODES, capfd=capfd)
    assert snapshot() == before


def test_what_an_environment_prints_is_not_in_the_json(run, capfd, monkeypatch):
    monkeypatch.setattr(Agent, "evaluate", speaking(Agent.evaluate))
    status, out, err = command(run, "--json", "--episodes", EPISODES, capfd=capfd)
    assert (status, err) == (0, "it speaks\n")
    assert json.loads(out)["episodes"] == int(EPISODES)
    assert command(run, "--episodes", EPISODES, capfd=capfd)[1].startswith("it speaks\n")


def speaking(method):
    return lambda *arguments: print("it speaks") or method(*arguments)


def test_a_video_shows_the_episodes(run, tmp_path, capfd):
    from PIL import Image

    file = tmp_path / "out.gif"
    arguments = ["--episodes", EPISODES, "--video", file, "--games", 2]
    status, out, err = command(run, *arguments, capfd=capfd)
    assert (status, err) == (0, "")
    frames = int(re.search(rf"wrote {file} \((\d+) frames\)", out)[1])
    with Image.open(file) as image:
        assert image.format == "GIF"
        assert image.width == 640  # two games side by side
        shown = image.n_frames
    assert 9 < shown <= frames <= 501


def test_a_video_stays_in_this_folder_where_an_environment_goes_to_another(
    run, tmp_path, capfd, monkeypatch
):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)

    def record(*_):
        os.chdir("other")
        return [np.zeros((4, 4, 3), np.uint8)]

    monkeypatch.setattr(Agent, "record", record)
    status, out, err = command(run.absolute(), "--episodes=1", "--video=out.gif", capfd=capfd)
    assert (status, err) == (0, "")
    assert "wrote out.gif (1 frame)" in out
    assert (tmp_path / "out.gif").exists()


def test_games_side_by_side_need_a_video(run, capfd):
    status, out, err = command(run, "--games", 2, capfd=capfd)
    assert (status, out) == (2, "")
    assert err == "error: --games=2 says how many games a video shows; add --video=FILE\n"


def test_half_an_mp4_replaces_nothing(tmp_path, monkeypatch):
    """The disk is full for a stand-in for ffmpeg, which takes what precedes a colon for a
    protocol."""
    stand_in, film = tmp_path / "ffmpeg", tmp_path / "a:b.mp4"
    write = (
        "for file; do :; done; case $file in *:*) exit 1;; esac; cat >/dev/null; echo mp4 >$file"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for end in ("", "; echo full >&2; exit 1"):
        stand_in.write_text(f"#!/bin/sh\n{write}{end}\n")
        stand_in.chmod(0o755)
        with pytest.raises(RunError, match="ffmpeg says full") if end else nullcontext():
            write_video(film, [np.zeros((4, 4, 3), np.uint8)])
        assert film.read_text() == "mp4\n"


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")
def test_a_video_can_be_an_mp4(run, tmp_path, capfd):
    file = tmp_path / "out.mp4"
    assert command(run, "--episodes", EPISODES, "--video", file, capfd=capfd)[0] == 0
    assert file.read_bytes()[4:8] == b"ftyp"


def test_a_video_cannot_be_written_into_a_folder_of_somebody_else(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(RunError, match="is no folder that can be written") as raised:
        check_video(tmp_path / "out.gif")
    assert raised.value.status == 74


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--episodes", "0"], "--episodes: '0' should be a whole number of at least 1"),
        (["--episodes", "x"], "--episodes: 'x' should be a whole number of at least 1"),
        (["--episods", "3"], "unknown option --episods; did you mean --episodes?"),
        (["--agents", "0,1"], "--agents=0,1: the run has one agent, 0"),
        (["--agents", "0,0"], "--agents=0,0 should name no agent twice"),
        (["--agents", "-1"], "--agents=-1: the run has one agent, 0"),
        (["--agents", "a"], "--agents=a should be whole numbers separated by commas"),
        (["--agents", "9" * 5000], f"--agents={'9' * 59}… should be whole numbers"),
        (["--checkpoint", "worst"], "--checkpoint=worst should be one of latest, best"),
        (["--video", "out.avi"], "video out.avi should end in .gif or .mp4"),
        (["--video", "out.mp4"], "out.mp4: mp4 needs the ffmpeg command; install it or write"),
        (["--video", "no/out.gif"], "cannot write no/out.gif: no is no folder that can be written"),
    ],
    ids=lambda x: "=".join(x)[:20] if isinstance(x, list) else "",
)
def test_a_mistake_is_told_in_one_line(run, arguments, message, capfd, monkeypatch):
    monkeypatch.setenv("PATH", "")  # no ffmpeg
    status, out, err = command(run, *arguments, capfd=capfd)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {message}"), err
    assert err.count("\n") == 1


def test_a_folder_that_is_no_run_or_has_no_checkpoint_is_told(run, tmp_path, capfd):
    status, _, err = command(tmp_path, capfd=capfd)
    wanted = f"error: {tmp_path} is not a run directory: it has no config.json\n"
    assert (status, err) == (2, wanted)
    shutil.copy(run / "config.json", tmp_path)
    status, _, err = command(tmp_path, capfd=capfd)
    assert (status, err) == (2, f"error: {tmp_path} has no checkpoint yet\n")
    assert evaluate.main([]) == 2
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("told", "how"),
    [
        ('{"status": "failed"}', ": the run failed before its first one"),
        ('{"status": "done"}', " any more: the run has ended, and what it saved is gone"),
        ('{"status": "stopped"}', " any more: the run has ended, and what it saved is gone"),
        ('{"status": ["failed"]}', " yet"),
        ("{", " yet"),
    ],
)
def test_how_a_run_without_a_checkpoint_ended_is_told(told, how, run, tmp_path, capfd):
    shutil.copy(run / "config.json", tmp_path)
    (tmp_path / "summary.json").write_text(told)
    status, _, err = command(tmp_path, capfd=capfd)
    assert (status, err) == (2, f"error: {tmp_path} has no checkpoint{how}\n")


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_played(run, world, capfd):
    copy = world.folder / "damaged"
    shutil.copytree(run, copy)
    (copy / "checkpoints" / "24" / "arrays.npz").write_text("{")
    status, out, err = command(copy, "--json", "--episodes", EPISODES, capfd=capfd)
    assert status == 0
    assert json.loads(out)["iteration"] == 22
    assert f"checkpoint {copy}/checkpoints/24 is damaged and skipped" in err


def test_the_standard_error_is_of_agents_where_several_play(tmp_path, capfd, monkeypatch):
    """Two agents, one of which always gets 0 and the other 100, play 128 episodes each."""
    agent = untrained(num_seeds=2)
    (tmp_path / "config.json").write_text(json.dumps(files.to_json(agent.config)))
    monkeypatch.setattr(evaluate, "load", lambda *_: agent)
    both = np.repeat([[0.0], [100.0]], 128, axis=1)
    monkeypatch.setattr(agent, "evaluate", lambda *_: Played(both, both.astype(int), {}))
    result = in_json(tmp_path, capfd=capfd)
    assert (result["mean"], result["standard_error"]) == (50, 50)
    _, out, _ = command(tmp_path, capfd=capfd)
    assert "mean return 50.0 ± 50.0 (standard error over 2 agents with 128 episodes each)" in out
    assert "\nmean length 50.0 steps\n" in out
    one = in_json(tmp_path, "--agents=1", capfd=capfd)
    assert (one["mean"], one["standard_error"], one["agents"]) == (100, 0, [1])
    one_each = Played(both[:, :1], both[:, :1].astype(int), {})
    monkeypatch.setattr(agent, "evaluate", lambda *_: one_each)
    _, out, _ = command(tmp_path, "--agents=1", capfd=capfd)
    assert "mean return 100.0 of 1 episode\n" in out  # which has no standard error
    monkeypatch.setattr(agent, "evaluate", lambda *_: Played(both, both.astype(int), {}))
    agent.failed = [1]
    _, out, _ = command(tmp_path, capfd=capfd)
    assert "mean return 0.0 ± 0.0 (standard error over 128 episodes)" in out
    assert out.endswith(
        "left out, as the loss, another metric or the return is not finite: agent 1\n"
    )
    one = in_json(tmp_path, "--agents=1", capfd=capfd)
    assert (one["mean"], one["standard_error"], one["failed"]) == (None, None, [1])
    assert one["length"] is None
    _, out, _ = command(tmp_path, "--agents=1", capfd=capfd)
    assert "length" not in out


@pytest.mark.parametrize("name", ["env", "network"])
def test_looking_at_a_strangers_run_directory_calls_nothing_that_it_names(tmp_path, capfd, name):
    """``os:system`` is neither an environment nor a network."""
    run, proof = make_run(tmp_path / "run"), tmp_path / "proof"
    config = json.loads((run / "config.json").read_text())
    kwargs = {"command": f"touch {proof}"} if name == "env" else {}
    changed = config | {name: "os:system", "env_kwargs": kwargs}
    (run / "config.json").write_text(json.dumps(changed))
    status, _, err = command(run, capfd=capfd)
    assert (status, err.count("\n")) == (2, 1)
    assert "'system' was not called, because it should be " in err
    assert report.main([str(run)]) == 0
    assert "was not called, because it should be" in (run / "report.html").read_text()
    with pytest.raises(RunError, match="was not called"):
        load(run)
    assert not proof.exists()


# --- in Python ------------------------------------------------------------------------------


def test_three_lines_of_python_act(run):
    code = """
import sys
from jaxrl_scale import load
agent = load(sys.argv[1])
print(agent.act([0.0, 0.0, 0.1, 0.5]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, run], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("0\n", "1\n")


def test_one_observation_is_answered_by_one_action_and_a_batch_by_a_batch(agent):
    batch = np.random.default_rng(0).normal(size=(64, 4))
    actions = agent.act(batch)
    assert actions.shape == (64,)
    assert set(actions) == {0, 1}
    assert actions.tolist() == [agent.act(obs) for obs in batch[:8]] + actions[8:].tolist()
    assert agent.act(batch[0]).shape == ()
    assert agent.act(batch[:1]).shape == (1,)


def test_sampled_actions_come_from_the_policy_and_a_reset_repeats_them(agent):
    obs = np.zeros((2000, 4))
    agent.reset(seed=3)
    first = agent.act(obs, greedy=False)
    assert 0.3 < first.mean() < 0.7  # hardly trained: the policy is near even
    assert (agent.act(obs, greedy=False) != first).any()
    agent.reset(seed=3)
    assert (agent.act(obs, greedy=False) == first).all()


@pytest.mark.parametrize("shape", [(), (3,), (5,), (2, 3), (2, 2, 4)])
def test_an_observation_of_a_wrong_shape_is_told_with_the_right_one(agent, shape):
    message = rf"shape {re.escape(str(shape))} is none of CartPole-v1; it should be \(4,\), or a b"
    with pytest.raises(RunError, match=message):
        agent.act(np.zeros(shape))


def test_what_is_no_array_of_numbers_is_no_observation(agent):
    texts = ["1", "0", "0", "0"]
    for wrong in ("left", [1.0, "x", 0.0, 0.0], [[1.0], [1.0, 2.0]], [None] * 4, texts, [1j] * 4):
        with pytest.raises(RunError, match="this is no observation of CartPole-v1: "):
            agent.act(wrong)


@pytest.mark.parametrize("of", [jax.jit, jax.vmap])
def test_within_a_program_of_ones_own_an_agent_says_that_it_acts_outside(agent, of):
    for asked in (agent.act, agent.outputs):
        with pytest.raises(RunError, match=r"within jax\.jit, .*; call it outside"):
            of(asked)(jnp.zeros((1, 4)))


def test_numbers_that_bytes_cannot_hold_are_no_observation():
    """As those of an image that was scaled to be between 0 and 1, of which NumPy makes zeros."""
    agent = untrained(env="probes:Pixels", env_kwargs={"edge": 6, "channels": 1})
    image = np.full((6, 6, 1), 200)
    assert agent.act(image.astype(np.float32)) == agent.act(image)
    for wrong in (0.5, 300, -1, np.nan):
        said = f"this is no observation of Pixels: its numbers are uint8, and {wrong} is none"
        with pytest.raises(RunError, match=re.escape(said)):
            agent.act(np.full((6, 6, 1), wrong))


def test_an_agent_that_the_run_does_not_have_cannot_be_loaded(run):
    with pytest.raises(RunError, match="agent=1: the run has one agent, 0"):
        load(run, agent=1)


def untrained(scale=1, **options):
    """An agent as it is initialised, with parameters ``scale`` times as large."""
    config = Config(num_envs=4, num_shards=1, rollout_length=512, hidden_sizes=(8,), **options)
    env = config.make_env()
    placement = backend.place(config.replace(devices=1), jax.local_devices()[:1])
    algo = Runner(config, env, placement).algo
    actor = jax.tree.map(
        lambda x: jnp.stack([scale * x] * config.num_seeds),
        algo.actor(first_shared(algo, config), time_at(0)),
    )
    return Agent(config, env, algo, actor, iteration=0)


def test_evaluating_and_recording_leave_an_agents_memory_as_it_was():
    agent = untrained(env="Pendulum-v1", algo=ppo.Config(recurrent=True))
    obs = np.asarray([1.0, 0.2, 0.0])
    first = agent.act(obs)
    agent.reset()
    agent.evaluate_in_gymnasium(3)
    np.testing.assert_array_equal(agent.act(obs), first)
    agent.reset()
    agent.record()
    np.testing.assert_array_equal(agent.act(obs), first)
    with pytest.raises(RunError, match="remembers 1 episode, and this is a batch of 3; agent"):
        agent.act(np.stack([obs] * 3))
    agent.reset()
    assert agent.act(np.stack([obs] * 3)).shape == (3, 1)


def test_a_run_whose_environment_has_a_tuple_among_its_parameters_can_be_loaded(tmp_path):
    changes = {"env": "Acrobot-v1", "env_kwargs": {"avail_torque": (-2.0, 0.0, 2.0)}}
    begun(tmp_path / "run", small(hidden_sizes=(8,), **changes))
    assert load(tmp_path / "run").env.avail_torque == (-2.0, 0.0, 2.0)
    with pytest.raises(RunError, match="avail_torque=3 should be numbers separated by commas"):
        envs.make("Acrobot-v1", avail_torque=3)


def test_continuous_actions_stay_in_their_box():
    agent = untrained(scale=1000, env="Pendulum-v1")
    obs = np.random.default_rng(0).normal(size=(256, 3))
    for greedy in (True, False):
        actions = agent.act(obs, greedy=greedy)
        assert actions.shape == (256, 1)
        assert np.abs(actions).max() == 2.0
    assert agent.act(obs[0]).shape == (1,)


def test_a_policy_earns_the_same_in_our_cartpole_and_in_gymnasiums(agent):
    ours = agent.evaluate(episodes=400, greedy=False).returns[0]
    theirs = agent.evaluate_in_gymnasium(episodes=400, greedy=False).returns[0]
    spread = np.sqrt(ours.var() / len(ours) + theirs.var() / len(theirs))
    assert abs(ours.mean() - theirs.mean()) < 3 * spread
    assert stats.ks_2samp(ours, theirs).pvalue > 0.01
    assert spread < 2  # else it would prove nothing


class Walk:
    """Episodes of one to four steps, each of which earns 1 and tells its number, and whether it is
    odd."""

    spec = EnvSpec("Walk", (1,), Discrete(2))

    def reset(self, key):
        return (jnp.int32(0), jax.random.randint(key, (), 1, 5)), jnp.zeros(1)

    def step(self, key, state, action):
        step, last = state[0] + 1, state[1]
        info = {"step": step, "odd": step % 2 == 1}
        seen = TimeStep(jnp.zeros(1), jnp.float32(1), step == last, jnp.zeros((), bool), info)
        return (step, last), seen


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_an_evaluation_tells_an_environments_own_numbers(num_seeds, tmp_path, capfd, monkeypatch):
    """To the command, to Python, in the summary and in the row, by the definition of training; in
    blocks, too."""
    monkeypatch.setattr(evaluator, "AT_ONCE", 8)
    own = {"env": "test_evaluate:Walk", "eval_every": 1, "eval_episodes": 20, "iterations": 1}
    quiet = {"wandb": "disabled", "tensorboard": False, "run_dir": str(tmp_path / "run")}
    config = small(num_seeds=num_seeds, **own, **quiet)
    run = train(config)
    capfd.readouterr()
    agent = run.agent()
    lengths = agent.evaluate(config.eval_episodes).lengths
    assert lengths.shape == (num_seeds, 20)
    assert len(set(lengths[0].tolist())) > 1
    returns, again, info = agent.evaluate(config.eval_episodes)
    np.testing.assert_array_equal(again, lengths)
    np.testing.assert_array_equal(returns, lengths)
    assert sorted(info) == ["env/odd", "env/step", "env_end/odd", "env_end/step"]
    np.testing.assert_array_equal(info["env/step"], lengths * (lengths + 1) / 2)
    np.testing.assert_array_equal(info["env_end/step"], lengths)
    np.testing.assert_array_equal(info["env/odd"], (lengths + 1) // 2)
    np.testing.assert_array_equal(info["env_end/odd"], lengths % 2)

    result = in_json(run.path, "--episodes", config.eval_episodes, capfd=capfd)
    assert result["length"] == pytest.approx(lengths.mean())
    wanted = {
        "env/odd": np.mean(info["env/odd"].sum(1) / lengths.sum(1)),
        "env/step": np.mean(info["env/step"].sum(1) / lengths.sum(1)),
        "env_end/odd": np.mean(lengths % 2),
        "env_end/step": lengths.mean(),
    }
    assert result["info"] == pytest.approx(wanted)
    assert run.summary["evaluation"]["info"] == pytest.approx(wanted)
    row = {name: run.metrics[-1][f"eval_{name}"] for name in ("length", *wanted)}
    assert row == pytest.approx({"length": lengths.mean(), **wanted})
    _, out, _ = command(run.path, "--episodes", config.eval_episodes, capfd=capfd)
    (line,) = [line for line in out.splitlines() if line.startswith("mean length")]
    told = dict(re.findall(r"(env\S+) ([\d.]+)", line))
    assert {name: float(x) for name, x in told.items()} == pytest.approx(wanted, rel=5e-3)


class Countdown(gymnasium.Env):
    """Gives a reward of 1 a step. An episode lasts ``1 + seed`` steps, without a seed one."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.left = 1 + (seed or 0)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(4, np.float32), 1.0, self.left == 0, False, {}


def test_in_gymnasium_every_episode_has_its_own_start_and_counts_to_its_first_end(monkeypatch):
    agent = untrained(num_seeds=2)
    monkeypatch.setattr(agent, "make_in_gymnasium", Countdown)
    returns, lengths, info = agent.evaluate_in_gymnasium(3)
    assert returns.tolist() == lengths.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert info == {}


def test_a_run_is_evaluated_with_other_parameters_and_other_seeds(run, agent, capfd):
    """A pole so long that it hardly falls: the agent of CartPole lasts longer."""
    usual = command(run, "--episodes=16", "--json", capfd=capfd)[1]
    changed = ["--episodes=16", "--json", "--env_kwargs.length=8.0"]
    told = json.loads(command(run, *changed, capfd=capfd)[1])
    assert told["env_kwargs"] == {"length": 8.0}
    assert told["mean"] > json.loads(usual)["mean"] + 20
    longer = load(run, env_kwargs={"length": 8.0})
    assert longer.evaluate(16).returns.mean() == pytest.approx(told["mean"])
    assert longer.config.env_kwargs == {"length": 8.0}
    for wrong in (8.0, ["length"], {1: 8.0}):
        with pytest.raises(RunError, match=r"^env_kwargs=.* should be a dict with texts for keys"):
            load(run, env_kwargs=wrong)
    said = command(run, "--episodes=2", "--env_kwargs.length", "8.0", capfd=capfd)[1]
    assert said.startswith("CartPole-v1 (length=8.0) in jaxrl_scale, ")
    status, _, err = command(run, "--env_kwargs.lenght=8", capfd=capfd)
    assert status == 2
    assert "unexpected keyword argument 'lenght'; its parameters: " in err

    own = agent.evaluate(8).returns
    assert (agent.evaluate(8, seed=0).returns == own).all()
    assert (agent.evaluate(8, seed=1).returns != own).any()
    two = Agent(agent.config.replace(num_seeds=2), agent.env, agent.algo, agent.actor, 0)
    with pytest.raises(RunError, match="seed=-1 should be"):
        two.evaluate(8, seed=-1)


def test_other_parameters_may_not_change_what_an_agent_sees_or_does():
    agent = untrained(env="LunarLander-v3")
    with pytest.raises(RunError, match=r"env_kwargs={'continuous': True} makes an"):
        evaluator.make_alike(agent.config, agent.env, {"continuous": True}, "env_kwargs")


def test_whoever_looks_at_a_run_keeps_programs_in_a_folder_of_their_own(run, monkeypatch):
    """Those in the folder that the run names may be anybody's."""
    asked = []
    monkeypatch.setattr(backend, "initialize", lambda config: asked.append(config))
    told = json.loads((run / "config.json").read_text())
    for folder in ("gift/cache", ""):
        (run / "config.json").write_text(json.dumps(told | {"compilation_cache": folder}))
        evaluate.main([str(run), "--episodes=1"])
    (run / "config.json").write_text(json.dumps(told))
    assert [config.compilation_cache for config in asked] == ["~/.cache/jaxrl_scale", ""]


class Endless(Countdown):
    def step(self, action):
        return np.zeros(4, np.float32), 1.0, False, False, {}


def test_an_episode_in_gymnasium_that_never_ends_is_cut_as_ours_is(monkeypatch):
    agent = untrained()
    monkeypatch.setattr(agent, "make_in_gymnasium", Endless)
    played = agent.evaluate_in_gymnasium(2)
    assert played.returns.tolist() == played.lengths.tolist() == [[500, 500]]


class OfNumbers(Countdown):
    """Shows the numbers 5, 6 and 7, has the actions 7 and 8, and takes no others."""

    observation_space = gymnasium.spaces.Discrete(3, start=5)
    action_space = gymnasium.spaces.Discrete(2, start=7)

    def reset(self, *, seed=None, options=None):
        return 6, super().reset(seed=seed)[1]

    def step(self, action):
        assert self.action_space.contains(action)
        return 7, *super().step(action)[1:]


def test_an_agent_of_gymnasiums_numbers_sees_and_takes_them_as_they_are(monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("OfNumbers-v0", OfNumbers, max_episode_steps=9)
    monkeypatch.setitem(gymnasium.registry, "OfNumbers-v0", spec)
    agent = untrained(env="gymnasium:OfNumbers-v0")
    assert agent.evaluate_in_gymnasium(3).returns.tolist() == [[1, 2, 3]]
    game = gymnasium.make("OfNumbers-v0")
    obs, _ = game.reset(seed=0)
    assert game.step(agent.act(obs))[2]
    seen = np.asarray([5, 7, 6, 5])
    actions = agent.act(seen)
    assert set(actions) <= {7, 8}
    np.testing.assert_array_equal(agent.act(np.eye(3)[seen - 5]), actions)
    said = agent.outputs(seen)["probabilities"]
    np.testing.assert_array_equal(7 + said.argmax(-1), actions)
    np.testing.assert_array_equal(agent.outputs(np.eye(3)[seen - 5])["probabilities"], said)
    assert agent.evaluate(2).returns.shape == (1, 2)


def test_an_agent_is_shown_in_one_line():
    assert repr(untrained()) == "Agent(ppo in CartPole-v1, iteration 0, index=0)"


@pytest.mark.parametrize("checkpoint", ["bst", 13, None])
def test_a_checkpoint_that_is_neither_the_latest_nor_the_best_is_refused(run, checkpoint):
    with pytest.raises(RunError, match=r"checkpoint=.* should be 'latest' or 'best'"):
        load(run, checkpoint=checkpoint)


def test_what_only_concerns_our_solver_is_kept_from_gymnasium():
    pytest.importorskip("Box2D")
    kwargs = {"velocity_iterations": 10, "gravity": -5.0}
    agent = untrained(env="LunarLander-v3", env_kwargs=kwargs)
    assert agent.evaluate_in_gymnasium(episodes=2).returns.shape == (1, 2)


def test_a_parameter_that_gymnasium_does_not_have_is_told_in_one_line():
    agent = untrained(env="CartPole-v1", env_kwargs={"masspole": 0.2})
    with pytest.raises(RunError, match=r"CartPole-v1 in Gymnasium .*masspole") as raised:
        agent.evaluate_in_gymnasium(episodes=2)
    assert "\n" not in str(raised.value)
