"""The kinds of bad input that `bad_input` types, by group."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """One mistake: a command line, and the folder in which it is typed."""

    group: str
    argv: tuple[str, ...]
    said: str  # what the one line contains
    command: str = "train"  # or "python": argv is code that is run
    status: int = 2
    files: dict[str, str | bytes] = {}  # noqa: RUF012  read only; in the folder, by their names
    run: str = ""  # the name under which the folder holds a finished run
    damage: Callable[[Path], object] | None = None  # to that run, or to the folder without one
    environment: dict[str, str] = {}  # noqa: RUF012  read only
    alone: bool = False  # in a process of its own

    @property
    def typed(self) -> str:
        """The kind in a line, for people."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        text = " ".join(
            [*variables, self.command, *self.argv, *(f"[{name}]" for name in self.files)]
        )
        return " ".join(text.split())[:160]


def lines(group: str, *typed: tuple[str, str], **more: Any) -> Iterator[Kind]:
    """Kinds that are command lines without blanks within their words, and what is said."""
    for text, said in typed:
        yield Kind(group, tuple(text.split()), said, **more)


# --- the command line of train --------------------------------------------------------------

HUGE = "9" * 400


def command_line() -> Iterator[Kind]:
    yield from lines(
        "command line",
        # options that do not exist, or in a wrong form
        ("--nun_envs=8", "did you mean --num_envs"),
        ("--num-envs=8", "did you mean --num_envs"),
        ("--NUM_ENVS=8", "did you mean --num_envs"),
        ("--n_envs=8", "did you mean --num_envs"),
        ("--envs=8", "unknown option --envs"),
        ("--learning_rate=1", "did you mean --algo.learning_rate"),
        ("--algo.lerning_rate=1", "did you mean --algo.learning_rate"),
        ("--lr=1", "did you mean --algo.learning_rate"),
        ("--batch_size=8", "did you mean --algo.minibatch_size"),
        ("--total-timesteps=8", "--total"),
        ("--env-id=CartPole-v1", "unknown option --env-id"),
        ("--timesteps=9", "unknown option --timesteps"),
        ("--algorithm=ppo", "did you mean --algo"),
        ("--conf=x.py", "did you mean --config"),
        ("--algo.ppo.gamma=1", "unknown option --algo.ppo.gamma"),
        ("--zzz", "unknown option --zzz"),
        ("-n 3", "unknown option -n"),
        ("-s=3", "unknown option -s"),
        ("--", "unknown option --;"),
        ("---seed=3", "unknown option ---seed"),
        ("seed=3", "options are written --name=value"),
        ("configs/acrobot.py", "options are written --name=value"),
        ("CartPole-v1", "options are written --name=value"),
        ("--seed=3 4", "unexpected argument '4'"),
        ("--env_kwargs=3", "did you mean --env_kwargs.NAME"),
        ("--env_kwargs.=3", "did you mean --env_kwargs.NAME"),
        ("--num_envs", "--num_envs needs a value"),
        ("--num_envs --seed=1", "--num_envs needs a value"),
        ("--config", "--config needs a value"),
        ("--resume", "--resume needs a value"),
        ("--algo", "--algo needs a value"),
        ("--run_dir", "--run_dir needs a value"),
        ("--env_kwargs.gravity", "--env_kwargs.gravity needs a value"),
        ("--dry_run=maybe", "--dry_run"),
        # values of a wrong type
        ("--num_envs=many", "--num_envs=many should be a whole number"),
        ("--num_envs=", "--num_envs= should be a whole number"),
        ("--num_envs=1.5", "--num_envs=1.5 should be a whole number"),
        ("--num_envs=nan", "--num_envs=nan should be a whole number"),
        ("--num_envs=inf", "--num_envs=inf should be a whole number"),
        ("--num_envs=none", "--num_envs=none should be a whole number"),
        ("--num_envs=true", "--num_envs=true should be a whole number"),
        ("--num_envs=0x10", "--num_envs=0x10 should be a whole number"),
        ("--num_envs=8,16", "--num_envs=8,16 should be a whole number"),
        ("--num_envs=$N", "--num_envs=$N should be a whole number"),
        ("--seed='3'", "--seed='3' should be a whole number"),
        ("--seed=a", "--seed=a should be a whole number"),
        ("--iterations=few", "--iterations=few should be a whole number or none"),
        ("--total_steps=1M", "--total_steps=1M should be a whole number"),
        ("--total_steps=10**6", "--total_steps=10**6 should be a whole number"),
        ("--algo.learning_rate=fast", "--algo.learning_rate=fast should be a number"),
        ("--algo.learning_rate=", "--algo.learning_rate= should be a number"),
        ("--algo.learning_rate=none", "--algo.learning_rate=none should be a number"),
        ("--algo.learning_rate=1e-", "--algo.learning_rate=1e- should be a number"),
        ("--algo.learning_rate=3,4", "--algo.learning_rate=3,4 should be a number"),
        ("--algo.target_kl=x", "--algo.target_kl=x should be a number or none"),
        ("--target_return=high", "--target_return=high should be a number or none"),
        ("--shared_torso=maybe", "--shared_torso=maybe should be true or false"),
        ("--shared_torso=", "--shared_torso= should be true or false"),
        ("--tensorboard=2", "--tensorboard=2 should be true or false"),
        ("--hidden_sizes=a,b", "--hidden_sizes=a,b should be whole numbers"),
        ("--hidden_sizes=", "--hidden_sizes= should be whole numbers"),
        ("--hidden_sizes=64,,64", "--hidden_sizes=64,,64 should be whole numbers"),
        ("--hidden_sizes=64x64", "--hidden_sizes=64x64 should be whole numbers"),
        ("--activation=thnh", "did you mean tanh"),
        ("--activation=swish", "--activation=swish should be one of"),
        ("--wandb=of", "--wandb=of should be one of"),
        ("--wandb=true", "--wandb=true should be one of"),
        ("--reduction=exactly", "did you mean exact"),
        ("--matmul_precision=float32", "--matmul_precision=float32 should be one of"),
        ("--algo.lr_schedule=step", "--algo.lr_schedule=step should be one of"),
        ("--start_timeout=soon", "--start_timeout=soon should be a number"),
        ("--heartbeat=x", "--heartbeat=x should be a number"),
        ("--num_processes=two", "--num_processes=two should be a whole number"),
        # values out of range
        ("--num_envs=-8", "num_envs=-8 should be at least 1"),
        ("--num_envs=0", "num_envs=0 should be at least 1"),
        ("--rollout_length=0", "rollout_length=0 should be at least 1"),
        ("--num_seeds=0", "num_seeds=0 should be at least 1"),
        ("--num_shards=0", "num_shards=0 should be at least 1"),
        ("--num_shards=1e9", "num_shards=1000000000 should be at most"),
        ("--seed=-1", "seed=-1 should be at least 0"),
        ("--seed=1e12", "seed=1000000000000 should be at most"),
        ("--devices=0", "devices=0 should be at least 1"),
        ("--devices=256 --num_seeds=256", "this process has"),
        ("--num_threads=0", "num_threads=0 should be at least 1"),
        ("--iterations=0", "iterations=0 should be at least 1"),
        ("--total_steps=0", "total_steps=0 should be at least 1"),
        ("--total_steps=-5", "total_steps=-5 should be at least 1"),
        ("--hidden_sizes=64,0", "hidden_sizes=(64, 0) should be at least 1"),
        ("--hidden_sizes=-64", "hidden_sizes=(-64,) should be at least 1"),
        ("--network_width=0", "network_width=0 should be at least 1"),
        ("--log_every=0", "log_every=0 should be at least 1"),
        ("--eval_every=-1", "eval_every=-1 should be at least 0"),
        ("--eval_episodes=0", "eval_episodes=0 should be at least 1"),
        ("--checkpoint_every=0", "checkpoint_every=0 should be at least 1"),
        ("--keep_checkpoints=0", "keep_checkpoints=0 should be at least 1"),
        ("--restart_every=0", "restart_every=0 should be at least 1"),
        ("--algo.learning_rate=-1e-3", "algo.learning_rate=-0.001 should be at least 0"),
        ("--algo.learning_rate=nan", "algo.learning_rate=nan should be a finite number"),
        ("--algo.learning_rate=inf", "algo.learning_rate=inf should be a finite number"),
        ("--algo.learning_rate=1e39", "algo.learning_rate=1e+39 should be at most 3e+38"),
        ("--algo.gamma=1.01", "algo.gamma=1.01 should be at most 1"),
        ("--algo.gamma=-0.1", "algo.gamma=-0.1 should be at least 0"),
        ("--algo.gae_lambda=2", "algo.gae_lambda=2.0 should be at most 1"),
        ("--algo.epochs=0", "algo.epochs=0 should be at least 1"),
        ("--algo.clip_epsilon=0", "algo.clip_epsilon=0.0 should be above 0"),
        ("--algo.max_grad_norm=0", "algo.max_grad_norm=0.0 should be above 0"),
        ("--algo.target_kl=-1", "algo.target_kl=-1.0 should be above 0"),
        ("--target_return=nan", "target_return=nan should be a finite number"),
        ("--start_timeout=0", "start_timeout=0.0 should be at least 1"),
        ("--heartbeat=1e9", "heartbeat=1000000000.0 should be at most"),
        (f"--num_envs={HUGE}", "should be at most"),
        (f"--num_envs={'9' * 5000}", "should be a whole number"),
        (f"--algo.learning_rate=1e{HUGE}", "finite number"),
        # sizes that do not fit each other
        ("--num_shards=6", "is not a power of two; try num_shards=8"),
        ("--num_envs=100", "does not divide by num_shards=8; try num_envs=104"),
        ("--num_envs=4", "try num_envs=8"),
        ("--devices=3", "divides neither num_shards=8 nor num_seeds=1; try devices=2"),
        ("--algo.minibatch_size=1001", "try algo.minibatch_size=1000"),
        ("--algo.minibatch_size=1000", "try algo.minibatch_size=1024"),
        ("--algo.minibatch_size=4096", "try algo.minibatch_size=2048"),
        ("--algo.recurrent --algo.minibatch_size=256", "whole trajectories"),
        ("--seed=2147483647 --num_seeds=2", "should be at most 2147483647"),
        ("--num_envs=1e18", "should be at most 2147483647"),
        ("--iterations=none --total_steps=1e18", "should be at most 2147483647"),
        # memory
        ("--hidden_sizes=300000,300000", "memory"),
        ("--num_seeds=100000000", "memory"),
        # algorithms
        ("--algo=pp0", "did you mean ppo"),
        ("--algo=PPO", "did you mean ppo"),
        ("--algo=", "algorithm '' does not exist"),
        ("--algo=td3", "algorithm 'td3' does not exist"),
        ("--algo=os:system", "should be a class Config beside make(config, spec, pool); write it"),
        ("--algo=os:Config", "module 'os' has no 'Config'"),
        ("--algo=nowhere:Config", "there is no module 'nowhere' on sys.path"),
        ("--algo=jaxrl_scale.algos.a2c:Config", "name should be 'jaxrl_scale.algos.a2c:Config'"),
        ("--algo=dqn --algo.clip_epsilon=1", "--algo.clip_epsilon belongs to ppo; the"),
        ("--algo=dqn --algo.replay_size=0", "algo.replay_size=0 should be at least"),
        ("--algo=dqn --algo.replay_size=7", "replay_size"),
        ("--algo=dqn --env=Pendulum-v1", "discrete"),
        ("--algo=pqn --env=MountainCarContinuous-v0", "discrete"),
        ("--algo=apex --algo.batch_size=7", "batch_size"),
        # folders
        ("--init_from=nowhere", "nowhere"),
        ("--init_from=", "init_from='' should be"),
        ("--resume=nowhere", "nowhere"),
        ("--resume=", "--resume"),
        ("--resume nowhere --config=x.py", "--resume takes its config from the run directory"),
        ("--coordinator=here", "given without --num_processes and --process_id"),
        ("--num_processes=2", "given without --coordinator"),
        ("--coordinator=h:x --num_processes=2 --process_id=0", "HOST:PORT"),
        ("--coordinator=h:99999 --num_processes=2 --process_id=0", "HOST:PORT"),
        ("--coordinator=h:1 --num_processes=2 --process_id=2", "from 0 to 1"),
    )
    yield Kind("command line", ("--num_envs=8\n9",), "should be a whole number")
    yield Kind("command line", ("",), "unexpected argument")
    yield Kind("command line", ("--env= CartPole-v1",), "Did you mean 'CartPole-v1'")
    yield Kind("command line", ("--seed=3\x00",), "should be a whole number")
    yield Kind("command line", ("—seed=3",), "—seed")
    file, folder = {"there": ""}, {"there/x": ""}
    cannot = "cannot write"
    yield Kind("command line", ("--run_dir=there",), cannot, status=74, files=file)
    yield Kind("command line", ("--run_dir=there/in",), cannot, status=74, files=file)
    yield Kind("command line", ("--run_dir=/proc/x/y",), cannot, status=74)
    yield Kind(
        "command line",
        ("--run_dir=away",),
        "is a symbolic link to gone, which does not exist",
        status=74,
        damage=lambda p: (p / "away").symlink_to("gone"),
    )
    long = "File name too long"
    yield Kind("command line", (f"--run_dir={'x' * 300}",), long, status=74)
    yield Kind("command line", (f"--config={'x' * 300}",), f"cannot be read: {long}")
    yield Kind("command line", (f"--resume={'x' * 300}",), f"cannot be read: {long}")
    yield Kind("command line", ("--run_dir=",), "run_dir='' should be", files=folder)
    yield Kind("command line", ("--resume=there",), "there is a file", files=file)
    yield Kind("command line", ("--resume=there",), "has no config.json", files=folder)
    yield Kind("command line", ("--init_from=there",), "there is a file", files=file)
    yield Kind("command line", ("--init_from=there",), "has no config.json", files=folder)


# --- all commands together ------------------------------------------------------------------


def commands() -> Iterator[Kind]:
    yield from lines(
        "commands",
        ("trian", "did you mean train"),
        ("tain --config=x", "did you mean train"),
        ("foo", "--help lists them"),
        ("--verion", "no command is called '--verion'"),
        ("-v", "no command is called '-v'"),
        ("train --nun_envs=8", "did you mean --num_envs"),
        ("runs nowhere", "nowhere"),
        ("evaluate nowhere", "nowhere"),
        ("report", "RUN_DIR"),
        command="",
    )


# --- config files ---------------------------------------------------------------------------


def config_files() -> Iterator[Kind]:
    def of(text: str, said: str, name: str = "mine.py") -> Kind:
        return Kind("config files", (f"--config={name}",), said, files={name: text})

    def fields(text: str, said: str) -> Kind:
        imports = "from jaxrl_scale import Config\nfrom jaxrl_scale.algos import dqn, ppo\n"
        return of(f"{imports}def get_config():\n    return Config({text})\n", said)

    yield from (
        of("", "has no function get_config()"),
        of("x = 1", "has no function get_config()"),
        of("get_config = 3", "has no function get_config()"),
        of("def get_confg(): pass", "has no function get_config()"),
        of("def get_config(:\n    pass", "line 1: SyntaxError"),
        of("def get_config():\n  x = 1\n\ty = 2", "TabError"),
        of("def get_config():\npass", "IndentationError"),
        of("\nimport no_such_module", "line 2: ModuleNotFoundError"),
        of("from jaxrl_scale.algos import ppoo", "ImportError"),
        of("from jaxrl_scale import Confg", "Confg"),
        of("1 / 0", "line 1: ZeroDivisionError"),
        of("def get_config():\n    return {}", "returned dict"),
        of("def get_config(): pass", "returned NoneType"),
        of("def get_config(): return 'ppo'", "returned str"),
        of("def get_config(): return {}['x']", "KeyError: 'x'"),
        of("def get_config(size): pass", "missing 1 required"),
        of("def get_config(): assert False", "AssertionError"),
        of("def get_config(): return get_config()", "RecursionError"),
        of("def get_config(): yield 3", "returned generator"),
        of("async def get_config(): return 3", "returned coroutine"),
        of("class get_config: pass", "returned get_config"),
        of("import sys\nsys.exit(0)", "SystemExit: 0"),
        of("def get_config(): raise SystemExit", "SystemExit"),
        of("import os\nos.environ['NO_SUCH']", "KeyError: 'NO_SUCH'"),
        of("open('nowhere.txt')", "FileNotFoundError"),
        of("from jaxrl_scale import Config\ndef get_config(): return Config", "returned Config"),
        of("from jaxrl_scale import Config\nget_config = Config(", "SyntaxError"),
        of("from jaxrl_scale import algos\nalgos.get('dqn0')", "'dqn0' does not exist"),
        of("x", "NameError: name 'x'"),
        of("{\n", "SyntaxError"),
        of("env: CartPole-v1\nseed: 3\n", "", "mine.yaml"),
        of('{"env": "CartPole-v1"}', "", "mine.json"),
        of("﻿﻿def", "SyntaxError"),
        fields("num_env=3", "did you mean num_envs"),
        fields("lr=3", "did you mean learning_rate"),
        fields("gamma=1", "field of the algorithm's Config"),
        fields("'CartPole-v1', 3", "env_kwargs=3 should be a dict"),
        fields("algo=ppo.Config(gama=1)", "did you mean gamma"),
        fields("algo=ppo.Config(seed=1)", "field of jaxrl_scale.Config"),
        fields("algo='ppo'", "algo='ppo' should be an instance"),
        fields("algo=ppo.Config", "algo=Config should be an instance"),
        fields("algo=ppo", "should be an instance"),
        fields("algo=None", "algo=None should be an instance"),
        fields("algo=Config()", "should be an instance"),
        fields("algo=dqn.Config(target_every=0)", ""),
        fields("algo=ppo.Config(epochs=0.5)", "algo.epochs=0.5 should be a whole number"),
        fields("algo=ppo.Config(learning_rate='1e-3')", "algo.learning_rate='1e-3' should be"),
        fields("algo=ppo.Config(learning_rate=None)", "algo.learning_rate=None should be"),
        fields("algo=ppo.Config(learning_rate=lambda t: t)", "algo.learning_rate="),
        fields("seed='1'", "seed='1' should be a whole number"),
        fields("seed=True", "seed=True should be a whole number"),
        fields("seed=1.0", "seed=1.0 should be a whole number"),
        fields("seed=10**5000", "seed="),
        fields("shared_torso=1", "shared_torso=1 should be true or false"),
        fields("target_return=True", "target_return=True should be a number"),
        fields("target_return=float('nan')", "target_return=nan should be a finite"),
        fields("network=None", "network=None should be a text"),
        fields("activation='rely'", "did you mean relu"),
        fields("activation=max", "activation=<built-in function max> should be one of"),
        fields("env=3", "env=3 should be a text"),
        fields("env=['CartPole-v1']", "env=['CartPole-v1'] should be a text"),
        fields("env_kwargs=None", "env_kwargs=None should be a dict"),
        fields("env_kwargs={3: 4}", "env_kwargs={3: 4} should be a dict with texts"),
        fields("env_kwargs={'gravity': object()}", "because it becomes JSON"),
        fields("env_kwargs={'gravity': float('inf')}", "because it becomes JSON"),
        fields("env_kwargs={'gravitas': 1}", "gravitas"),
        fields("run_dir=3", "run_dir=3 should be a text or none"),
        fields("devices='gpu'", "devices='gpu' should be a whole number or none"),
        fields("keep_checkpoints=False", "keep_checkpoints=False should be a whole number"),
    )
    yield Kind("config files", ("--config=nowhere.py",), "nowhere.py does not exist")
    acrobot = {"acrobot.py": ""}
    yield Kind("config files", ("--config=acrobat.py",), "did you mean acrobot.py", files=acrobot)
    yield Kind("config files", ("--config=acrobot",), "did you mean acrobot.py", files=acrobot)
    yield Kind("config files", ("--config=.",), "is a directory")
    yield Kind("config files", ("--config=",), "is a directory")
    yield Kind("config files", ("--config=there/",), "is a directory", files={"there/x.py": ""})
    yield Kind("config files", ("--config=x.py",), "x.py", files={"x.py": b"\x00\x01\x02"})
    yield Kind("config files", ("--config=x.py",), "x.py", files={"x.py": b"\xff\xfe = 3"})
    yield Kind(
        "config files", ("--config=x.py",), "", damage=lambda p: (p / "x.py").symlink_to("y")
    )
    yield Kind(
        "config files", ("--config=x.py",), "", damage=lambda p: (p / "x.py").symlink_to("x.py")
    )


# --- environments and games by their names --------------------------------------------------


def named_environments() -> Iterator[Kind]:
    yield from lines(
        "environments",
        ("--env=CartPol-v1", "Did you mean 'CartPole-v1'"),
        ("--env=cartpole", "Did you mean 'CartPole-v1'"),
        ("--env=CartPole", "Did you mean 'CartPole-v1'"),
        ("--env=CartPole-v0", "Did you mean 'CartPole-v1'"),
        ("--env=Walker", "unknown environment 'Walker'"),
        ("--env=HalfCheetah-v5", "unknown environment 'HalfCheetah-v5'"),
        ("--env=ALE/Pong-v5", "Did you mean 'Pong-v5'"),
        ("--env=PongNoFrameskip-v4", "Did you mean 'Pong-v5'"),
        ("--env=procgen:coinrun", "Did you mean"),
        ("--env=coinrun", "Did you mean"),
        ("--env=Breakout-MinAtar", "Did you mean 'gymnax:Breakout-MinAtar'"),
        ("--env=", "env='' should be a name"),
        ("--env=:Class", "should be a name"),
        ("--env=module:", "should be a name"),
        ("--env=a::b", "should be a name"),
        ("--env=gymnax:", "should be a name"),
        ("--env=gymnax:Breakout", "Did you mean 'gymnax:Breakout-MinAtar'"),
        ("--env=gymnax:nothing", "gymnax has no environment"),
        ("--env=gymnax:CartPole-v1 --env_kwargs.gravitas=1", "gravitas"),
        ("--env=gymnasium:CartPol-v1", "Gymnasium has no environment"),
        ("--env=gymnasium:HalfCheetah-v5", ""),
        ("--env=gymnasium:CartPole-v1 --env_kwargs.gravitas=1", "gravitas"),
        ("--env=gymnasium:Blackjack-v1 --algo=sac", "needs continuous actions"),
        ("--env=envpool:CartPol-v1", "EnvPool has no environment"),
        ("--env=envpool:CartPole-v1 --env_kwargs.gravity=1", "has no parameter gravity"),
        ("--env=CoinrunEasy-v1", "Did you mean"),
        ("--env=CoinrunEasy-v0 --env_kwargs.levels=1", "did you mean num_levels"),
        ("--env=CoinrunEasy-v0 --env_kwargs.num_levels=-1", "num_levels=-1 should be at least 0"),
        ("--env=CoinrunEasy-v0 --env_kwargs.num_levels=x", "num_levels='x' should be a whole"),
        ("--env=CoinrunEasy-v0 --env_kwargs.num_levels=1.5", "num_levels=1.5 should be a whole"),
        ("--env=CoinrunEasy-v0 --env_kwargs.start_level=3", "needs env_kwargs.num_levels"),
        (
            "--env=CoinrunEasy-v0 --env_kwargs.num_levels=2147483647 --env_kwargs.start_level=9",
            "should be at most",
        ),
        ("--env=Pong-v5 --env_kwargs.preset=nature", "preset='nature' should be one of"),
        ("--env=Pong-v5 --env_kwargs.frame_skip=0", "frame_skip=0 should be at least 1"),
        ("--env=Pong-v5 --env_kwargs.num_levels=3", "has no parameter num_levels"),
        ("--env=Pong-v6", "Did you mean 'Pong-v5'"),
        ("--env=CartPole-v1 --env_kwargs.g=9.8", "its parameters: gravity"),
        ("--env=CartPole-v1 --env_kwargs.gravity=heavy", "gravity='heavy' should be a number"),
        ("--env=CartPole-v1 --env_kwargs.gravity=", "gravity='' should be a number"),
        ("--env=CartPole-v1 --env_kwargs.gravity=none", "gravity=None should be a number"),
        ("--env=CartPole-v1 --env_kwargs.gravity=NaN", "because it becomes JSON"),
        ("--env=CartPole-v1 --env_kwargs.gravity=[1]", "gravity=[1] should be a number"),
        ("--env=CartPole-v1 --env_kwargs.sutton_barto_reward=1", "should be true or false"),
        ("--env=CartPole-v1 --env_kwargs.kinematics_integrator=rk4", "should be 'euler'"),
        ("--env=CartPole-v1 --test_env_kwargs.g=9.8", "its parameters: gravity"),
        ("--env=LunarLander-v3 --env_kwargs.wind=1", "its parameters: "),
        ("--network=mpl", "did you mean mlp"),
        ("--network=cnn", "needs images"),
        ("--network=nature", "needs images"),
        ("--network=", "network='' should be a name"),
        ("--network=MLP", "did you mean mlp"),
        ("--network=resnet", "network 'resnet' does not exist"),
    )


# --- environments of one's own --------------------------------------------------------------

GOOD_ENV = """
import sys
from typing import NamedTuple
import jax
import jax.numpy as jnp
import numpy as np
from jaxrl_scale.types import Box, Discrete, EnvSpec, TimeStep

class Mine:
    spec = EnvSpec("Mine", (2,), Discrete(2), max_episode_steps=9)

    def reset(self, key):
        return jnp.zeros((), jnp.int32), jnp.zeros(2)

    def step(self, key, state, action):
        state = state + 1
        obs, reward, end, cut = jnp.zeros(2), jnp.float32(1), state >= 5, jnp.zeros((), bool)
        return state, TimeStep(obs, reward, end, cut)

def build():
    return Mine()
"""


def own_environments() -> Iterator[Kind]:
    def named(text: str, said: str, source: str = GOOD_ENV, *more: str) -> Kind:
        return Kind("own environments", (f"--env={text}", *more), said, files={"mine.py": source})

    def source(old: str, new: str, said: str) -> Kind:
        assert old in GOOD_ENV, old
        return named("mine:Mine", said, GOOD_ENV.replace(old, new))

    def spec(text: str, said: str) -> Kind:
        return source('EnvSpec("Mine", (2,), Discrete(2), max_episode_steps=9)', text, said)

    def reset(text: str, said: str) -> Kind:
        return source("return jnp.zeros((), jnp.int32), jnp.zeros(2)", text, said)

    def step(text: str, said: str) -> Kind:
        return source("return state, TimeStep(obs, reward, end, cut)", text, said)

    def before(text: str, said: str) -> Kind:
        return source("state = state + 1", f"state = state + 1\n        {text}", said)

    yield from (
        # its name and its module
        named("mine:Mien", "did you mean Mine"),
        named("mine:", "should be a name"),
        named("mine.py:Mine", "such as mine:Mine"),
        named("./mine:Mine", "such as mine:Mine"),
        named("./mine.py:Mine", "such as mine:Mine"),
        named("sub/mine:Mine", "such as sub.mine:Mine"),
        named("mine.Mine", "unknown environment 'mine.Mine'"),
        named("mien:Mine", "there is no module 'mien'"),
        named("my-module:Mine", "is not the name of a module"),
        named("mine:instance", "name the class instead", GOOD_ENV + "instance = Mine()"),
        named("mine:build", "was not called, because it should be a class"),
        named("mine:jnp", "was not called"),
        named("mine:make", "was not called", "import jax\ndef make() -> 'jax.Nope': pass"),
        named("os:system", "was not called"),
        named("mine:Mine", "its parameters: none", GOOD_ENV, "--env_kwargs.length=3"),
        named("mine:Mine", "line 1: SyntaxError", "class Mine(:"),
        named("mine:Mine", "IndentationError", "class Mine:\npass"),
        named("mine:Mine", "ModuleNotFoundError", "import no_such_package"),
        named("mine:Mine", "ZeroDivisionError", "x = 1 / 0"),
        named("mine:Mine", "SystemExit: 0", "import sys\nsys.exit(0)"),
        named("mine:Mine", "SystemExit", "raise SystemExit"),
        named("mine:Mine", "was not called", "class Mine: pass"),
        named("mine:Mine", "has no 'Mine'", ""),
        source("class Mine:", "class Mine:\n    def __init__(self): 1 / 0", "ZeroDivisionError"),
        source("class Mine:", "class Mine:\n    def __init__(self, n): pass", "its parameters: n"),
        source("class Mine:", "class Mine:\n    def __init__(self): sys.exit(0)", "SystemExit: 0"),
        # its specification
        spec("None", "spec is of type NoneType"),
        spec("{}", "spec is of type dict"),
        spec("property(lambda self: 1 / 0)", "ZeroDivisionError"),
        spec("property(lambda self: self.nothing)", "has no attribute 'nothing'"),
        source("    spec = ", "    spek = ", "has no attribute spec"),
        spec('EnvSpec("Mine", (2,))', "missing 1 required"),
        spec('EnvSpec("Mine", (2,), Discrete(2), size=3)', "size"),
        spec("EnvSpec(3, (2,), Discrete(2))", "spec.id=3 should be a text"),
        spec('EnvSpec("Mine", 2, Discrete(2))', "spec.observation_shape=2 should be"),
        spec('EnvSpec("Mine", [2], Discrete(2))', "spec.observation_shape=[2] should be"),
        spec('EnvSpec("Mine", (0,), Discrete(2))', "spec.observation_shape=(0,) should be"),
        spec('EnvSpec("Mine", (2.0,), Discrete(2))', "spec.observation_shape=(2.0,) should be"),
        spec('EnvSpec("Mine", (2,), 2)', "spec.action is of type int"),
        spec('EnvSpec("Mine", (2,), Discrete)', "spec.action is of type type"),
        spec('EnvSpec("Mine", (2,), Discrete(0))', "spec.action.n=0 should be"),
        spec('EnvSpec("Mine", (2,), Discrete(2.0))', "spec.action.n=2.0 should be"),
        spec('EnvSpec("Mine", (2,), Box(1, -1, (1,)))', "should be below spec.action.high=-1"),
        spec('EnvSpec("Mine", (2,), Box(-1, 1, 1))', "spec.action.shape=1 should be"),
        spec('EnvSpec("Mine", (2,), Box(-1, np.ones(2), (2,)))', "should be one number"),
        spec('EnvSpec("Mine", (2,), Box(float("nan"), 1, (2,)))', "should be one number"),
        spec('EnvSpec("Mine", (2,), Discrete(2), max_episode_steps=0)', "max_episode_steps=0"),
        spec('EnvSpec("Mine", (2,), Discrete(2), max_episode_steps=-5)', "max_episode_steps=-5"),
        spec('EnvSpec("Mine", (2,), Discrete(2), max_episode_steps="9")', "max_episode_steps='9'"),
        spec('EnvSpec("Mine", (2,), Discrete(2), worst_return=np.inf)', "worst_return=inf"),
        spec(
            'EnvSpec("Mine", (2,), Discrete(2), observation_dtype="c8")', "'c8' should be a dtype"
        ),
        spec('EnvSpec("Mine", (2,), Discrete(2), observation_dtype="int64")', "int64"),
        spec('EnvSpec("Mine", (2,), Discrete(2), observation_dtype="uint8")', "spec says uint8[2]"),
        spec(
            'EnvSpec("Mine", (2,), Discrete(2), observation_dtype=None)', "observation_dtype=None"
        ),
        spec('EnvSpec("Mine", (3,), Discrete(2))', "spec says float32[3]"),
        # its methods
        source("def reset(self, key):", "def restart(self, key):", "was not called"),
        source("def step(self", "def stepp(self", "was not called"),
        source("def reset(self, key):", "def reset(self):", "is called as reset(key)"),
        source(
            "def step(self, key, state, action)", "def step(self, state, action)", "is called as"
        ),
        source(
            "def step(self, key, state, action)",
            "def step(self, key, action, params, x)",
            "is called as",
        ),
        reset("return jnp.zeros(2)", "reset returned float32[2]; it should return"),
        reset("return jnp.zeros(2), {}", "reset returned observation {}"),
        reset("pass", "reset returned None; it should return"),
        reset("return 'ready', jnp.zeros(2)", "reset: TypeError"),
        reset("return 0, jnp.zeros(3)", "reset returned observation float32[3]"),
        reset("return 0, jnp.zeros(2, int)", "reset returned observation int32[2]"),
        reset("return 0, [0.0, 0.0]", "reset returned observation"),
        reset("return None, jnp.zeros(2)", ""),
        reset("return {'t': 0}, jnp.zeros(2)", "TypeError"),
        reset("return 0, np.sin(key)", "reset"),
        reset("raise ValueError('no')", "ValueError: no"),
        reset("sys.exit(0)", "SystemExit: 0"),
        step("return state, (obs, reward, end, cut)", "it should return (state, TimeStep"),
        step("return obs, reward, end, cut, {}", "it should return (state, TimeStep"),
        step("return TimeStep(obs, reward, end, cut)", "it should return (state, TimeStep"),
        step("pass", "step returned None"),
        step("return state, TimeStep(obs, reward, end)", "missing 1 required"),
        step("return [state], TimeStep(obs, reward, end, cut)", "same structure"),
        step("return state * 1.0, TimeStep(obs, reward, end, cut)", "after step"),
        step("return state[None], TimeStep(obs, reward, end, cut)", "after step"),
        step("return state, TimeStep(obs[:1], reward, end, cut)", "step returned obs float32[1]"),
        step("return state, TimeStep(state, reward, end, cut)", "step returned obs int32[]"),
        step("return state, TimeStep(obs, [reward], end, cut)", "step returned reward"),
        step(
            "return state, TimeStep(obs, reward[None], end, cut)", "step returned reward float32[1]"
        ),
        step("return state, TimeStep(obs, 1, end, cut)", "step returned reward int32[]"),
        step("return state, TimeStep(obs, None, end, cut)", "step returned reward None"),
        step("return state, TimeStep(obs, reward, 1.0 * end, cut)", "terminated float32[]"),
        step("return state, TimeStep(obs, reward, 0, cut)", "terminated int32[]"),
        step("return state, TimeStep(obs, reward, end, cut[None])", "truncated bool[1]"),
        step("return state, TimeStep(obs, reward, end, cut, 3)", "info"),
        step("return state, TimeStep(obs, reward, end, cut, {'v': obs})", "info['v'] float32[2]"),
        step(
            "return state, TimeStep(obs, reward, end, cut, {'a b': 1.0})", "'a b' should be a text"
        ),
        step("return state, TimeStep(obs, reward, end, cut, {'a': {'b': 1.0}})", "info['a']"),
        before("if state > 3: return", "use jnp.where"),
        before("while state < 3: state += 1", "use jnp.where"),
        before("x = np.sin(state)", "use jax.numpy"),
        before("x = float(state)", "cannot take an array"),
        before("x = [1, 2][state]", "step"),
        before("x = jnp.ones(3) + jnp.ones(4)", "incompatible shapes"),
        before("x = undefined", "NameError: name 'undefined'"),
        before("x = jnp.zeros(state)", "step"),
        before("action.foo()", "foo"),
        before("state = state.at[3].set(1)", "step"),
        before("sys.exit(0)", "SystemExit: 0"),
        before("raise RuntimeError('a' * 5000)", "RuntimeError: aaa"),
        before("raise RuntimeError('one\\ntwo')", "RuntimeError: one two"),
        before("return self.step(key, state, action)", "RecursionError"),
    )


HOST_ENV = """
import numpy as np
from jaxrl_scale.types import Discrete, EnvSpec, HostStep

class Simulator:
    def __init__(self, number):
        self.no, self.zero = np.zeros(number, bool), np.zeros(number, np.float32)
        self.obs = np.zeros((number, 2), np.float32)

    def reset(self):
        return self.obs

    def send(self, action):
        pass

    def receive(self):
        return HostStep(self.obs, self.zero, self.no, self.no, self.zero, self.no)

    def close(self):
        pass

class Mine:
    spec = EnvSpec("Mine", (2,), Discrete(2), max_episode_steps=9)

    def simulate(self, seeds, num_threads):
        return Simulator(len(seeds))

    def facts(self):
        return {}
"""


def own_host_environments() -> Iterator[Kind]:
    for old, new, said in (
        ("(number, 2)", "(number, 3)", "reset returned observations float32[2,3], it should be"),
        ("(number, 2)", "(9, 2)", "reset returned observations float32[9,2], it should be"),
        ("return self.obs", "return self.obs.tolist()", "it should be NumPy's float32[2,2]"),
        ("return self.obs", "pass", "reset returned observations None"),
        ("return self.obs", "return 1 / 0", "ZeroDivisionError"),
        ("return HostStep", "return tuple", "tuple"),
        ("self.zero, self.no, self.no, ", "None, self.no, self.no, ", "receive returned reward"),
        ("self.zero, self.no, self.no, ", "self.zero, 0, self.no, ", "receive returned terminated"),
        ("self.zero, self.no)", "self.zero)", "game_over"),
        ("(self, action)", "(self)", "TypeError"),
        ("def close", "def end", "without a method close"),
        ("return Simulator(len(seeds))", "pass", "simulate returned a NoneType"),
        ("(self, seeds, num_threads)", "(self, seeds)", "simulate: TypeError"),
        ("def facts", "def versions", "has no method facts()"),
        ("return {}", "return {'version': 3}", "should be a dict of texts by name"),
    ):
        source = HOST_ENV.replace(old, new, 1)
        assert source != HOST_ENV, old
        yield Kind("own host environments", ("--env=mine:Mine",), said, files={"mine.py": source})


# --- networks of one's own ------------------------------------------------------------------

GOOD_NET = """
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

class Net(nn.Module):
    policy_size: int

    @nn.compact
    def __call__(self, obs):
        policy, value = nn.Dense(self.policy_size)(obs), nn.Dense(1)(obs)[..., 0]
        return policy, value

def function(obs):
    return obs
"""


_SPLIT = "nn.with_partitioning(nn.initializers.ones, (None, 'model'))"


def own_networks() -> Iterator[Kind]:
    def named(text: str, said: str, source: str = GOOD_NET) -> Kind:
        return Kind("own networks", (f"--network={text}",), said, files={"nets.py": source})

    def source(old: str, new: str, said: str) -> Kind:
        assert old in GOOD_NET, old
        return named("nets:Net", said, GOOD_NET.replace(old, new))

    def returns(text: str, said: str) -> Kind:
        return source("return policy, value", f"return {text}", said)

    yield from (
        named("nets:Nett", "did you mean Net"),
        named("nets.py:Net", "such as nets:Net"),
        named("nests:Net", "there is no module 'nests'"),
        named("nets:instance", "name the class instead", GOOD_NET + "instance = Net(2)"),
        named("nets:function", "was not called, because it should be a flax.linen.Module"),
        named("nets:nn", "was not called"),
        named("os:system", "was not called"),
        named("nets:Net", "SyntaxError", "class Net(:"),
        named("nets:Net", "ModuleNotFoundError", "import torch_"),
        named("nets:Net", "SystemExit", "raise SystemExit(0)"),
        named("nets:Net", "was not called", "from flax import nnx\nclass Net(nnx.Module): pass"),
        named("nets:Net", "was not called", "class Net: pass"),
        returns("policy", "it should return (policy, value)"),
        returns("None", "returned None"),
        returns("value, policy", "it should return (policy, value)"),
        returns("{'policy': policy, 'value': value}", "it should return (policy, value)"),
        returns("policy, value, obs", "it should return (policy, value)"),
        returns("policy, value[..., None]", "it should return (policy, value)"),
        returns("policy[..., :1], value", "it should return (policy, value)"),
        returns("policy.astype(jnp.float16), value", "float16"),
        returns("policy.astype(int), value", "int32"),
        returns("policy, 3", "it should return (policy, value)"),
        returns("policyy, value", "NameError: name 'policyy'"),
        returns("policy @ policy, value", "TypeError"),
        returns("policy.reshape(7), value", "TypeError"),
        returns("np.tanh(policy), value", "nets.py, line"),
        returns("(policy if policy > 0 else value), value", "nets.py, line"),
        source("    policy_size: int\n", "", "should have one required field, policy_size"),
        source("policy_size: int", "policy_size: int\n    width: int", "should have one required"),
        source("policy_size: int", "size: int", "should have one required field, policy_size"),
        source("(self, obs)", "(self)", "nets:Net"),
        source("(self, obs)", "(self, obs, train)", "nets:Net"),
        source("__call__", "forward", "nets:Net"),
        source("    @nn.compact\n", "", "compact"),
        source("nn.Dense(1)", "nn.Dense('1')", "nets"),
        source("nn.Dense(1)", f"nn.Dense(1, kernel_init={_SPLIT})", "says how it is partitioned"),
    )


# --- variables ------------------------------------------------------------------------------


def variables() -> Iterator[Kind]:
    def of(said: str, alone: bool = False, **environment: str) -> Kind:
        return Kind("variables", (), said, environment=environment, alone=alone)

    slurm = {"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "0"}
    jax = {"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}
    yield from (
        of("JAX_PLATFORMS=cuda", True, JAX_PLATFORMS="cuda"),
        of("JAX_PLATFORMS=gpu", True, JAX_PLATFORMS="gpu"),
        of("JAX_PLATFORMS=tpu", True, JAX_PLATFORMS="tpu"),
        of("JAX_PLATFORMS=cpuu", True, JAX_PLATFORMS="cpuu"),
        of("JAX_ENABLE_X64", True, JAX_ENABLE_X64="maybe"),
        of("JAX_DEFAULT_MATMUL_PRECISION", True, JAX_DEFAULT_MATMUL_PRECISION="best"),
        of("JAX_NUM_CPU_DEVICES", True, JAX_NUM_CPU_DEVICES="many"),
        of("JAX_TRANSFER_GUARD=disallow forbids", True, JAX_TRANSFER_GUARD="disallow"),
        of("FLAX_PROFILE", True, FLAX_PROFILE="maybe"),
        of("SLURM_CPUS_PER_TASK=999", SLURM_CPUS_PER_TASK="9" * 5000),
        of("XLA_FLAGS", True, XLA_FLAGS="--xla_no_such_flag=1"),
        of("XLA_FLAGS", True, XLA_FLAGS="nonsense"),
        of("given without JAX_NUM_PROCESSES", JAX_COORDINATOR_ADDRESS="h:1"),
        of("given without JAX_COORDINATOR_ADDRESS", JAX_NUM_PROCESSES="2"),
        of("JAX_NUM_PROCESSES=two should be a whole number", **jax | {"JAX_NUM_PROCESSES": "two"}),
        of("JAX_NUM_PROCESSES= should be a whole number", **jax | {"JAX_NUM_PROCESSES": ""}),
        of("JAX_NUM_PROCESSES=9999", **jax | {"JAX_NUM_PROCESSES": "99999999999999999"}),
        of("JAX_PROCESS_ID=2 should be from 0 to 1", **jax | {"JAX_PROCESS_ID": "2"}),
        of("JAX_PROCESS_ID=-1 should be from 0", **jax | {"JAX_PROCESS_ID": "-1"}),
        of("should be HOST or HOST:PORT", **jax | {"JAX_COORDINATOR_ADDRESS": "h:port"}),
        of("should be HOST or HOST:PORT", **jax | {"JAX_COORDINATOR_ADDRESS": "h:0"}),
        of("SLURM_NTASKS=four should be a whole number", **slurm, SLURM_NTASKS="four"),
        of("SLURM_PROCID=0 should be from 0", **slurm, SLURM_NTASKS="0"),
        of("SLURM_PROCID=9 should be from 0", **slurm | {"SLURM_PROCID": "9"}, SLURM_NTASKS="2"),
        of(
            "SLURM_STEP_NODELIST= should be",
            **slurm | {"SLURM_STEP_NODELIST": ""},
            SLURM_NTASKS="2",
        ),
        of(
            "SLURM_STEP_NODELIST=[ should be",
            **slurm | {"SLURM_STEP_NODELIST": "["},
            SLURM_NTASKS="2",
        ),
        of("SLURM_STEP_ID=x should be", **slurm | {"SLURM_STEP_ID": "x"}, SLURM_NTASKS="2"),
        of("SLURM_JOB_ID=x should be", **slurm, SLURM_NTASKS="2", SLURM_JOB_ID="x"),
        of("OMPI_COMM_WORLD_RANK", OMPI_COMM_WORLD_SIZE="2"),
        of("OMPI_COMM_WORLD_SIZE=x", OMPI_COMM_WORLD_SIZE="x", OMPI_COMM_WORLD_RANK="0"),
        of("where rank 0 is", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0"),
        of("MPLBACKEND=nonsense", True, MPLBACKEND="nonsense")._replace(
            command="report", argv=("run",), run="run"
        ),
    )


# --- runs that are damaged, or not as the command needs them --------------------------------


def _edit(name: str, **changes: Any) -> Callable[[Path], object]:
    """Change fields of one of a run's JSON files; a field that becomes `...` is left out."""

    def damage(run: Path) -> None:
        data = json.loads((run / name).read_text())
        for key, value in changes.items():
            part, _, option = key.rpartition("__")
            (data[part] if part else data)[option] = value
        (run / name).write_text(json.dumps(data))

    return damage


def _without(name: str, field: str) -> Callable[[Path], object]:
    def damage(run: Path) -> None:
        data = json.loads((run / name).read_text())
        del data[field]
        (run / name).write_text(json.dumps(data))

    return damage


def _write(name: str, data: str | bytes) -> Callable[[Path], object]:
    def damage(run: Path) -> None:
        (run / name).write_bytes(data.encode() if isinstance(data, str) else data)

    return damage


def _delete(name: str) -> Callable[[Path], object]:
    return lambda run: shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()


def _folder_instead(name: str) -> Callable[[Path], object]:
    def damage(run: Path) -> None:
        _delete(name)(run)
        (run / name).mkdir()

    return damage


def _all_checkpoints(change: Callable[[Path], object]) -> Callable[[Path], object]:
    """Do something to each of a run's checkpoints."""

    def damage(run: Path) -> None:
        for path in sorted((run / "checkpoints").iterdir()):
            change(path)

    return damage


def _flip(name: str) -> Callable[[Path], object]:
    """Change a bit of each of 512 bytes in the middle of a file."""

    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        for k in range(len(data) // 2, len(data) // 2 + 512):
            data[k] ^= 1
        (folder / name).write_bytes(bytes(data))

    return damage


def _cut(name: str) -> Callable[[Path], object]:
    """Leave the first half of a file."""

    def damage(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return damage


def run_directories() -> Iterator[Kind]:
    def of(
        command: str, damage: Any, said: str, *more: str, status: int = 2, group: str = "run files"
    ) -> Kind:
        argv = ("--resume=run",) if command == "train" else ("run",)
        return Kind(group, (*argv, *more), said, command, status, run="run", damage=damage)

    # config.json, which all commands read
    for command in ("train", "evaluate", "export", "report"):
        yield from (
            of(command, _delete("config.json"), "has no config.json"),
            of(command, _write("config.json", ""), "config.json is damaged"),
            of(command, _cut("config.json"), "config.json is damaged"),
            of(command, _write("config.json", "[]"), "config.json is damaged"),
            of(command, _write("config.json", b"\xff\xfe"), "config.json is damaged"),
            of(
                command, _edit("config.json", num_envs="x"), "num_envs='x' should be a whole number"
            ),
            of(command, _edit("config.json", newer=3), "'newer' that this version"),
            of(command, _edit("config.json", algo__newer=3), "'newer' that this version"),
            of(command, _edit("config.json", algo__name="pp0"), "algorithm 'pp0' does not exist"),
            of(command, _without("config.json", "algo"), "config.json is damaged"),
            of(command, _folder_instead("config.json"), "config.json"),
        )
    # what goes on differently, or is not there
    for command in ("train", "evaluate", "export"):
        longer = ("--iterations=3",) if command == "train" else ()
        yield from (
            of(command, _all_checkpoints(_cut("arrays.npz")), "checkpoints in", *longer, status=74),
            of(
                command, _all_checkpoints(_flip("arrays.npz")), "checkpoints in", *longer, status=74
            ),
        )
    yield from (
        of("evaluate", _edit("config.json", env="CartPol-v1"), "Did you mean 'CartPole-v1'"),
        of("evaluate", _edit("config.json", env="os:system"), "was not called"),
        of("evaluate", _edit("config.json", network="os:system"), "was not called"),
        of("evaluate", _edit("config.json", hidden_sizes=[16]), "is of another config"),
        of("evaluate", _delete("checkpoints"), "has no checkpoint any more"),
        of("evaluate", _all_checkpoints(shutil.rmtree), "has no checkpoint any more"),
        of("export", _delete("checkpoints"), "has no checkpoint any more"),
        of("export", _edit("config.json", env="no_such:Env"), "there is no module 'no_such'"),
        of("train", _edit("config.json", env="no_such:Env", iterations=3), "there is no module"),
        of("train", _folder_instead("summary.json"), "summary.json cannot be read"),
        of("report", _write("metrics.jsonl", ""), "no metrics yet"),
        of("report", _write("metrics.jsonl", "3\n"), "should be a JSON object"),
        of("report", _write("metrics.jsonl", '{"loss": 1}\n'), "line 1 is damaged"),
        of("report", _write("metrics.jsonl", "{}\n{}\n"), "line 1 is damaged"),
        of("report", _write("metrics.jsonl", b"\xff\xff\n{}\n"), "metrics.jsonl"),
        of("report", _write("summary.json", "{"), "summary.json is damaged"),
        of("report", _write("summary.json", "[]"), "summary.json is damaged"),
        of("report", _write("summary.json", "{}"), "summary.json is damaged"),
        of("report", _edit("summary.json", evaluation={"mean": "x"}), "summary.json is damaged"),
        of("report", _edit("summary.json", status=3), "summary.json"),
        of("report", _edit("run.json", starts=3), "run.json is damaged"),
        of("report", _write("run.json", "{"), "run.json is damaged"),
        of("report", _delete("metrics.jsonl"), "run"),
        of("report", _folder_instead("metrics.jsonl"), "metrics.jsonl"),
    )


def resumes() -> Iterator[Kind]:
    for text, said in (
        ("--seed=9", "--seed cannot change on --resume"),
        ("--num_envs=16", "--num_envs cannot change on --resume"),
        ("--num_seeds=2", "--num_seeds cannot change on --resume"),
        ("--num_shards=4", "--num_shards cannot change on --resume"),
        ("--algo=dqn", "--algo cannot change on --resume"),
        ("--algo.gamma=0.5", "--algo.gamma cannot change on --resume"),
        ("--algo.learning_rate=1", "--algo.learning_rate cannot change on --resume"),
        ("--env=Acrobot-v1", "--env cannot change on --resume"),
        ("--env_kwargs.gravity=1", "cannot change on --resume"),
        ("--network=cnn", "--network cannot change on --resume"),
        ("--hidden_sizes=16", "--hidden_sizes cannot change on --resume"),
        ("--activation=relu", "--activation cannot change on --resume"),
        ("--rollout_length=16", "--rollout_length cannot change on --resume"),
        ("--eval_episodes=3", "--eval_episodes cannot change on --resume"),
        ("--checkpoint_every=3", "--checkpoint_every cannot change on --resume"),
        ("--log_every=3", "--log_every cannot change on --resume"),
        ("--reduction=fast", "--reduction cannot change on --resume"),
        ("--run_dir=other", "--run_dir cannot change on --resume"),
        ("--init_from=other", "--init_from cannot change on --resume"),
        ("--config=x.py", "--resume takes its config from the run directory"),
        ("--seed=x", "--seed=x should be a whole number"),
        ("--nun_envs=3", "did you mean --num_envs"),
        ("--devices=0", "devices=0 should be at least 1"),
        ("--target_return=nan", "finite number"),
    ):
        yield Kind("resume", ("--resume=run", text), said, run="run")
    yield Kind("resume", ("--resume=rum",), "did you mean run", run="run")
    yield Kind("resume", ("--resume=run/checkpoints",), "has no config.json", run="run")
    yield Kind("resume", ("--resume=run/config.json",), "is a file", run="run")
    yield Kind("resume", ("--run_dir=run",), "already holds a run", run="run")
    yield Kind(
        "resume", ("--run_dir=run",), "but no config.json", run="run", damage=_delete("config.json")
    )
    for text, said in (
        ("--hidden_sizes=16", "is none of this one"),
        ("--config=none --env=Acrobot-v1", "is none of this one"),
        ("--activation=relu", "try --activation=tanh"),
        ("--algo.normalize_observations=true", "normalized observations"),
        ("--algo.recurrent=true", "is none of this one"),
        ("--algo=dqn --algo.replay_size=4096", "init_from=run"),
    ):
        yield Kind("resume", ("--init_from=run", *text.split()), said, run="run")
    yield Kind(
        "resume",
        ("--init_from=run",),
        "has no checkpoint",
        run="run",
        damage=_delete("checkpoints"),
    )


# --- evaluate, export, report, runs ---------------------------------------------------------


def of_runs() -> Iterator[Kind]:
    def of(command: str, *typed: tuple[str, str], status: int = 2, **more: Any) -> Iterator[Kind]:
        for text, said in typed:
            yield Kind(command, tuple(text.split()), said, command, status, run="run", **more)

    yield from of(
        "evaluate",
        ("", "RUN_DIR"),
        ("rum", "did you mean run"),
        ("run/config.json", "is a file"),
        ("run/checkpoints", "has no config.json"),
        (".", "has no config.json"),
        ("run run", "unexpected argument 'run'"),
        ("run --episodes=0", "'0' should be a whole number of at least 1"),
        ("run --episodes=x", "'x' should be a whole number of at least 1"),
        ("run --episodes=-3", "'-3' should be a whole number of at least 1"),
        ("run --episodes=1e3", "'1e3' should be a whole number of at least 1"),
        ("run --episodes=1.5", "'1.5' should be a whole number of at least 1"),
        ("run --episodes", "--episodes needs a value"),
        ("run --episods=3", "did you mean --episodes"),
        ("run --seed=-1", "should be"),
        ("run --env_kwargs.lenght=3", "unexpected keyword argument 'lenght'; its parameters:"),
        ("run --env_kwargs.length --json", "--env_kwargs.length needs a value"),
        ("run --sed=3", "unknown option --sed; did you mean --seed"),
        ("run --agents=0,1", "the run has one agent, 0"),
        ("run --agents=-1", "--agents=-1"),
        ("run --agents=a", "should be whole numbers separated by commas"),
        ("run --agents=", "--agents="),
        ("run --agents=0,0", "--agents=0,0"),
        ("run --checkpoint=worst", "should be one of latest, best"),
        ("run --checkpoint=2", "should be one of latest, best"),
        ("run --video=out.avi", "should end in .gif or .mp4"),
        ("run --video=out", "should end in .gif or .mp4"),
        ("run --video=no/out.gif", "no is no folder"),
        ("run --video=", "should be a path"),
        ("run --games=2", "add --video=FILE"),
        ("run --games=0 --video=x.gif", "should be a whole number of at least 1"),
        ("run --gymnasium=yes", "--gymnasium"),
        ("run --json=1", "--json"),
        ("--run_dir=run", "RUN_DIR"),
    )
    yield from of("evaluate", ("run --video=out.mp4", "ffmpeg"), environment={"PATH": ""})
    yield from of(
        "export",
        ("", "RUN_DIR"),
        ("rum", "did you mean run"),
        ("run/config.json", "is a file"),
        (".", "has no config.json"),
        ("run --agent=1", "the run has one agent, 0"),
        ("run --agent=-1", "should be a whole number of at least 0"),
        ("run --agent=x", "should be a whole number of at least 0"),
        ("run --checkpoint=worst", "should be one of latest, best"),
        ("run --format=onnx", "unknown option --format"),
        ("run --onxx", "did you mean --onnx"),
        ("run other", "unexpected argument 'other'"),
    )
    yield from of("export", ("run --out=run/config.json", "cannot write"), status=74)
    yield from of("export", ("run --out=/proc/x", "cannot write"), status=74)
    yield from of(
        "report",
        ("", "RUN_DIR"),
        ("rum", "rum"),
        ("run rum", "rum"),
        ("run/config.json", "is a file"),
        (".", "has no config.json"),
        ("run --episodes=-1", "should be a whole number of at least 0"),
        ("run --episodes=x", "should be a whole number of at least 0"),
        ("run --episods=1", "did you mean --episodes"),
        ("run --out", "--out needs a value"),
        ("--out=x.html", "RUN_DIR"),
    )
    yield from of("report", ("run --episodes=0 --out=/proc/x.html", "cannot write"), status=74)
    yield from of("report", ("run --episodes=0 --out=run/config.json/x", "cannot write"), status=74)
    yield from of(
        "runs",
        ("nowhere", "nowhere"),
        ("run/checkpoints", "run/checkpoints"),
        ("run/config.json", "run/config.json"),
        ("run --csvv", "did you mean --csv"),
        ("run --json", "unknown option --json"),
        ("", "runs"),
        ("--csv=x run", "--csv"),
    )


# --- studies: compare, sweep, scaling -------------------------------------------------------


def studies() -> Iterator[Kind]:
    acrobot = {"quick.py": "from jaxrl_scale import Config\ndef get_config(): return Config()\n"}
    first = "--envs=CartPole-v1 --configs=quick.py"
    yield from lines(
        "compare",
        ("", "give --envs=NAME,... and --configs=FILE"),
        ("--envs=CartPole-v1", "give --envs=NAME,... and --configs=FILE"),
        ("--configs=quick.py", "give --envs=NAME,... and --configs=FILE"),
        ("--envs=CartPol-v1 --configs=quick.py", "Did you mean 'CartPole-v1'"),
        ("--envs=CartPole-v1,CartPole-v1 --configs=quick.py", "give no name twice"),
        ("--envs=CartPole-v1 --configs=quik.py", "did you mean quick.py"),
        (f"{first} --seeds=0", "should be a whole number of at least 1"),
        (f"{first} --seeds=x", "should be a whole number of at least 1"),
        (f"{first} --seed=3", "give --seeds"),
        (f"{first} --env=CartPole-v1", "give --envs"),
        (f"{first} --config=quick.py", "give --configs"),
        (f"{first} --num_seeds=3", "give --seeds"),
        (f"{first} --resume=x", "is given by the comparison itself"),
        (f"{first} --total_step=9", "did you mean --total_steps"),
        (f"{first} --num_envs=3", "does not divide by num_shards=8"),
        (f"{first} --num_envs=x", "--num_envs=x should be a whole number"),
        (f"{first} --task=3", "should be less than 3"),
        (f"{first} --task=-1", "should be a whole number of at least 0"),
        (f"{first} --dry_run", "only jaxrl_scale.train has --dry_run"),
        (f"{first} --analyse=.", "give no other option with it"),
        ("--analyse=nowhere", "nowhere"),
        ("--analyse=.", "has come to its end"),
        ("--analyse", "--analyse needs a value"),
        (f"{first} stray", "stray"),
        command="compare",
        files=acrobot,
    )
    search = "--agents=8 --seeds=4 --num_envs=16"
    yield from lines(
        "sweep",
        (search, "there is nothing to search"),
        (f"{search} --algo.gama=0.9,0.99", "did you mean --algo.gamma"),
        (f"{search} --algo.gamma=uniform:0.9:2", "algo.gamma=2.0 should be at most 1"),
        (f"{search} --algo.gamma=uniform:0.9", "should be uniform:LOW:HIGH"),
        (f"{search} --algo.gamma=uniform:a:b", "--algo.gamma=a should be a number"),
        (f"{search} --algo.gamma=uniform:0.9:0.9", "is empty"),
        (f"{search} --algo.gamma=uniform:0.9:0.1", "is empty"),
        (f"{search} --algo.gamma=log:0:0.9", "should begin above 0"),
        (f"{search} --algo.gamma=log:1e-3", "should be log:LOW:HIGH"),
        (f"{search} --algo.gamma=0.9,0.9", "holds a value twice"),
        (f"{search} --algo.gamma=0.9,x", "--algo.gamma=x should be a number"),
        (f"{search} --algo.gamma=normal:0:1", "--algo.gamma=normal:0:1 should be a number"),
        (f"{search} --algo.lr_schedule=log:1:2", "should be one of constant"),
        (f"{search} --seed=1,2", "cannot vary in a sweep"),
        (f"{search} --env=CartPole-v1,Acrobot-v1", "--env cannot vary in a sweep"),
        (f"{search} --algo=ppo,dqn", "ppo,dqn"),
        (f"{search} --algo.gamma=0.9,1 --algo.gamma=0.8,1", "has two ranges"),
        (f"{search} --algo.gamma=0.9,1 --agents=7", "does not divide by --seeds=4"),
        (f"{search} --algo.gamma=0.9,1 --agents=0", "should be a whole number of at least 1"),
        (f"{search} --algo.gamma=0.9,1 --chunk=3", "side by side"),
        (f"{search} --algo.gamma=0.9,1 --factor=1", "should be a whole number of at least 2"),
        (f"{search} --algo.gamma=0.9,1 --draw=sobl", "did you mean sobol"),
        (f"{search} --algo.gamma=uniform:0:1 --draw=grid", "--draw=grid takes choices only"),
        (f"{search} --algo.gamma=0.9,1 --draw=tpe --rungs=1", "--draw=tpe takes neither"),
        (f"{search} --algo.gamma=0.9,1 --rungs=9 --iterations=80", "try --rungs="),
        (f"{search} --algo.gamma=0.9,1 --perturb_every=2", "--perturb_every takes --seeds=1"),
        (f"{search} --algo.gamma=0.9,1 --resume=x", "a sweep has no --resume"),
        (f"{search} --algo.gamma=0.9,1 --dry_run", "only jaxrl_scale.train has --dry_run"),
        (f"{search} --algo.gamma=0.9,1 --num_envs=3", "does not divide by num_shards=8"),
        (f"{search} --algo.minibatch_size=16,102", "with --algo.minibatch_size=102"),
        (f"{search} --algo.gamma=0.9,1 --env=CartPol-v1", "Did you mean 'CartPole-v1'"),
        (f"{search} --algo.gamma=0.9,1 --config=nowhere.py", "nowhere.py does not exist"),
        (f"{search} --sweep=nowhere.py", "nowhere.py does not exist"),
        (f"{search} --sweep=.", "is a directory"),
        (f"{search} --sweep=quick.py", "has no function get_sweep()"),
        (f"{search} --sweep=list.py", "returned list"),
        (f"{search} --sweep=name.py", "did you mean --algo.gamma"),
        (f"{search} --sweep=code.py", "ZeroDivisionError"),
        (f"{search} --sweep=empty.py", "there is nothing to search"),
        (f"{search} --sweep=other.py", "names another one, sweep='empty.py'"),
        (f"{search} --algo.gamma=0.9,1 --agens=8", "unknown option --agens"),
        (f"{search} --algo.gamma=0.9,1 stray", "stray"),
        command="sweep",
        files=acrobot
        | {
            "list.py": "def get_sweep(): return ['--algo.gamma=0.9,1']",
            "name.py": "def get_sweep(): return {'algo.gama': [0.9, 1.0]}",
            "code.py": "def get_sweep(): return 1 / 0",
            "empty.py": "def get_sweep(): return {}",
            "other.py": "def get_sweep(): return {'sweep': 'empty.py', 'algo.gamma': [0.9, 1]}",
        },
    )
    yield from lines(
        "scaling",
        ("", "give --config=FILE to train"),
        ("--config=quik.py", "did you mean quick.py"),
        ("--config=quick.py --processes=0", "should be a whole number of at least 1"),
        ("--config=quick.py --processes=x", "--processes"),
        ("--config=quick.py --processes=1,,2", "--processes"),
        ("--config=quick.py --processes=1x", "--processes"),
        ("--config=quick.py --processes=3x100", "cores"),
        ("--config=quick.py --processes=1x100000", "cores"),
        ("--config=quick.py --processes=1x1 --threads=1", "leave --threads out"),
        ("--config=quick.py --devices=0", "should be a whole number of at least 1"),
        ("--config=quick.py --mode=weakly", "did you mean weak"),
        ("--config=quick.py --seeds=0", "should be a whole number of at least 1"),
        ("--config=quick.py --repeats=x", "should be a whole number of at least 1"),
        ("--config=quick.py --nodes=2", "--nodes works in a Slurm job"),
        ("--config=quick.py --process=2", "did you mean --processes"),
        ("--config=quick.py --worst_return=low", "'low' should be a number"),
        ("--config=quick.py --num_envs=3", "num_envs=3"),
        ("--config=quick.py -- --config=x", "cannot follow --"),
        ("--config=quick.py -- --run_dir=x", "cannot follow --"),
        ("--config=quick.py -- --nun_envs=3", "did you mean --num_envs"),
        ("--config=quick.py -- --num_envs=3", "does not divide by num_shards=8"),
        ("--config=quick.py --seed=3", "did you mean --seeds"),
        ("--analyse=nowhere", "nowhere"),
        ("--analyse=.", ""),
        command="scaling",
        files=acrobot,
    )


# --- from Python ----------------------------------------------------------------------------


def from_python() -> Iterator[Kind]:
    def of(code: str, said: str, **more: Any) -> Kind:
        imports = "from jaxrl_scale import Config, load, train\nfrom jaxrl_scale import envs\n"
        return Kind("from Python", (imports + code,), said, "python", **more)

    yield from (
        of("train()", "train() needs a config, or resume=RUN_DIR"),
        of("train({'num_envs': 8})", "should be an instance of jaxrl_scale.Config"),
        of("train('configs/acrobot.py')", "should be an instance of jaxrl_scale.Config"),
        of("train(Config)", "should be an instance of jaxrl_scale.Config"),
        of("train(3)", "should be an instance of jaxrl_scale.Config"),
        of("train(Config(algo='dqn'))", "algo='dqn' should be an instance"),
        of("train(Config(num_envs='8'))", "num_envs='8' should be a whole number"),
        of("train(Config(num_envs=7))", "try num_envs=8"),
        of("train(Config(env='CartPol-v1'))", "Did you mean 'CartPole-v1'"),
        of("train(Config(env=object()))", "should be a text"),
        of("train(Config(), on_row=3)", "should be a function"),
        of("train(resume='nowhere')", "nowhere does not exist"),
        of(
            "train(load('run').config.replace(seed=9), resume='run')",
            "seed cannot change",
            run="run",
        ),
        of("load('nowhere')", "nowhere does not exist"),
        of("load('run', 1)", "the run has one agent, 0", run="run"),
        of("load('run', -1)", "the run has one agent, 0", run="run"),
        of("load('run', 'best')", "agent='best': the run has one agent, 0", run="run"),
        of("load(3)", "run_dir=3 should be a path"),
        of("train(resume=Config())", "should be a path"),
        of("from jaxrl_scale import plot\nplot(3)", "run_dir=3 should be a path"),
        of("from jaxrl_scale import plot\nplot('run', metric=3)", "metric=3", run="run"),
        of("from jaxrl_scale.config.files import read_file\nread_file(3)", "path=3 should be"),
        of("load('run').evaluate(0)", "episodes=0 should be a whole number", run="run"),
        of("load('run').evaluate(2.5)", "episodes=2.5 should be a whole number", run="run"),
        of("load('run').evaluate_in_gymnasium(0)", "episodes=0 should be", run="run"),
        of("load('run').act([])", "observation", run="run"),
        of("import numpy\nload('run').act(numpy.zeros((0, 4)))", "observation", run="run"),
        of("load('run').act([0.0])", "observation", run="run"),
        of("load('run').act(None)", "observation", run="run"),
        of("load('run').act('left')", "observation", run="run"),
        of("envs.make('CartPol-v1')", "Did you mean 'CartPole-v1'"),
        of("envs.check_env(3)", "has no attribute spec"),
        of("envs.check_env(None)", "has no attribute spec"),
        of("envs.check_env(dict)", "dict is a class; give an environment"),
        of("envs.check_env('CartPole-v1')", "is a text; give an environment"),
        of("envs.play(dict)", "dict is a class; give an environment"),
        of("envs.play(envs.make('CartPole-v1'), steps=-1)", "steps=-1 should be a whole number"),
        of("import gymnasium\nenvs.check_env(gymnasium.make('CartPole-v1'))", "EnvSpec"),
        of("envs.play(envs.make('gymnasium:CartPole-v1'))", "runs on the host"),
    )


KINDS: tuple[Kind, ...] = (
    *command_line(),
    *commands(),
    *config_files(),
    *named_environments(),
    *own_environments(),
    *own_host_environments(),
    *own_networks(),
    *variables(),
    *run_directories(),
    *resumes(),
    *of_runs(),
    *studies(),
    *from_python(),
)
