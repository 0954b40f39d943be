"""Configs and the command line: every field is reachable, every mistake is told in one line."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_scale
from jaxrl_scale import algos, config, envs, options
from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config, command_line, files, shipped
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import networks

REPOSITORY = Path(__file__).parents[1]
DEFAULTS = Config()
ALGORITHMS = f"(there are: {', '.join(algos.names())}, and your own as my_package.my_module:Config)"
FLAT = files.flatten(DEFAULTS)
HINTS = get_type_hints(Config) | {f"algo.{k}": v for k, v in get_type_hints(ppo.Config).items()}
FIELDS = [name for name in FLAT if name not in ("algo", *files.DICTS)]


def loaded(*argv):
    return command_line.load(argv)[0]


def environment(*argv):
    chosen = loaded(*argv)
    return chosen.make_env()


def refused(*argv):
    """What the user is told; one line, always."""
    with pytest.raises(RunError) as caught:
        command_line.load(argv)
    assert caught.value.status == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a config file into the current directory."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="mine.py"):
        (tmp_path / name).write_text(textwrap.dedent(text))
        return name

    return write


@pytest.fixture
def run(tmp_path):
    """A run directory of a config."""

    def run(config_of_run=DEFAULTS, **changes):
        data = files.to_json(config_of_run) | changes
        (tmp_path / "config.json").write_text(json.dumps(data))
        return str(tmp_path)

    return run


# --- every field ----------------------------------------------------------------------------


def another(name):
    """A value that fits, unlike the default, and its text on the command line."""
    fitting = {
        "env": "Acrobot-v1",
        "num_envs": 128,
        "num_shards": 4,
        "rollout_length": 256,
        "algo.minibatch_size": 1024,
        "algo.gamma": 0.5,
        "algo.gae_lambda": 0.5,
        "hidden_sizes": (32, 16),
        "activation": "relu",
    }
    value, hint = FLAT[name], HINTS[name]
    if name in fitting:
        value = fitting[name]
    elif get_origin(hint) is Literal:
        value = next(choice for choice in get_args(hint) if choice != value)
    elif hint is bool:
        value = not value
    elif hint is int or int in get_args(hint):
        value = (value or 0) + 1
    elif hint is float or float in get_args(hint):
        value = (value or 0.0) + 0.25
    else:
        value = "another"
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return value, text


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_can_be_set_on_the_command_line(name):
    value, text = another(name)
    assert value != FLAT[name]
    for argv in ([f"--{name}={text}"], [f"--{name}", text]):
        flat = files.flatten(loaded("--config=none", *argv))
        assert flat == FLAT | {name: value}
        assert type(flat[name]) is type(value)


def test_help_explains_every_field_and_shows_its_default(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as end:
        command_line.load(["--help"])
    assert end.value.code == 0
    lines = capsys.readouterr().out.replace("[=BOOL]", "=BOOL").splitlines()
    for name in FIELDS:
        start = next(i for i, line in enumerate(lines) if line.startswith(f"  --{name}="))
        text = " ".join(lines[start : start + 2]).split("  --")[1].strip()
        explained, default = text.rsplit("[", 1)
        assert len(explained.split()) > 1, name
        given = f"--{name}={default.rstrip(']')}"
        assert loaded("--config=none", given) == DEFAULTS, name


def test_help_shows_the_config_files_defaults(write, capsys):
    file = write(
        """
        from jaxrl_scale import Config
        def get_config(): return Config(num_envs=4096, env_kwargs={"gravity": 5.5})
        """
    )
    with pytest.raises(SystemExit):
        command_line.load(["--config", file, "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "number of environments per agent, over all devices [4096]" in out
    assert "[gravity=5.5]" in out


def test_the_last_of_two_wins():
    assert loaded("--seed=1", "--seed=2").seed == 2


@pytest.mark.parametrize(
    ("text", "value"), [("1e3", 1000), ("1_000", 1000), ("1000.0", 1000), (" 8 ", 8)]
)
def test_whole_numbers_may_be_written_in_several_ways(text, value):
    found = loaded(f"--log_every={text}").log_every
    assert found == value
    assert type(found) is int


def test_a_whole_number_keeps_every_digit():
    assert loaded("--total_steps=1_000_000_000_001").total_steps == 1_000_000_000_001


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        (["--shared_torso"], True),
        (["--shared_torso", "--seed=1"], True),
        (["--shared_torso=True"], True),
        (["--shared_torso", "1"], True),
        (["--shared_torso=false"], False),
        (["--shared_torso=0"], False),
    ],
)
def test_a_bool_is_a_flag_or_takes_a_value(argv, value):
    assert loaded(*argv).shared_torso is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("32", (32,)),
        ("32,", (32,)),
        ("64,32", (64, 32)),
        ("(64, 32)", (64, 32)),
        ("[64,32]", (64, 32)),
        ("()", ()),
    ],
)
def test_hidden_sizes_are_written_with_commas(text, value):
    assert loaded(f"--hidden_sizes={text}").hidden_sizes == value


def test_none_clears_an_optional_field(write):
    file = write(
        """
        from jaxrl_scale import Config
        def get_config(): return Config(iterations=3, target_return=5, devices=1, run_dir="x")
        """
    )
    cleared = ("iterations", "target_return", "devices", "run_dir")
    found = loaded(f"--config={file}", *(f"--{name}=none" for name in cleared))
    assert [getattr(found, name) for name in cleared] == [None] * 4


def test_negative_numbers_need_no_equals_sign():
    assert loaded("--target_return", "-100").target_return == -100.0


def test_total_steps_replaces_the_config_files_iterations(write):
    file = write(
        """
        from jaxrl_scale import Config
        def get_config(): return Config(iterations=3)
        """
    )
    assert loaded("--config", file).num_iterations == 3
    assert loaded("--config", file, "--total_steps=8193").num_iterations == 2
    both = loaded("--config", file, "--total_steps=8193", "--iterations=7")
    assert both.num_iterations == 7


def test_the_run_is_called_after_its_config_file_or_its_environment(write):
    file = write("from jaxrl_scale import Config as get_config", "short.py")
    assert command_line.load(["--config", file])[1:] == ("short", None)
    assert command_line.load(["--env=some.module:Class"])[1:] == ("Class", None)


CONFIGS = REPOSITORY / "configs"


def test_an_environment_alone_starts_from_the_settings_that_come_with_the_package():
    pendulum = files.read_file(CONFIGS / "pendulum.py")
    assert loaded("--env=Pendulum-v1") == loaded("--env=Pendulum-v1", "--algo=ppo") == pendulum
    assert loaded("--env", "Pendulum-v1", "--num_envs=32") == pendulum.replace(num_envs=32)
    assert command_line.load(["--env=Pendulum-v1"])[1:] == ("Pendulum-v1", None)
    assert loaded("--env=CartPole-v1", "--algo=dqn") == files.read_file(CONFIGS / "dqn_cartpole.py")
    assert loaded("--env=CartPole-v1", "--config=none") == DEFAULTS
    assert loaded() == DEFAULTS
    for env in ("gymnasium:CartPole-v1", "MountainCarContinuous-v0", "my_module:CartPole"):
        assert loaded(f"--env={env}") == DEFAULTS.replace(env=env)
    for algo in ("dqn", "apex"):  # PPO's sizes would not suit it
        assert loaded("--env=Pendulum-v1", f"--algo={algo}").num_envs == DEFAULTS.num_envs


def test_a_game_without_settings_of_its_own_has_those_of_its_suite():
    starpilot = loaded("--env=StarpilotEasy-v0")
    assert starpilot == files.read_file(CONFIGS / "procgen.py").replace(env="StarpilotEasy-v0")
    a2c = loaded("--env=CrazyClimber-v5", "--algo=a2c")
    assert a2c == files.read_file(CONFIGS / "a2c_atari.py").replace(env="CrazyClimber-v5")


def test_each_config_file_is_that_of_its_environment_and_algorithm():
    found = {path: files.read_file(path) for path in CONFIGS.glob("*.py")}
    settings = {path: shipped.config_file(c.env, c.algo.name) for path, c in found.items()}
    others = {path.name for path, file in settings.items() if file != path}
    # `--env=Pong-v5` alone has the published options, not those for a computer without a GPU.
    assert others == {"acrobot_scaling.py", "pong.py", "apex_pong.py"}


@pytest.mark.parametrize("kept", ["portable", "matmul_precision"])  # they exclude each other
def test_a_config_survives_its_json(kept):
    config = loaded(*(f"--{name}={another(name)[1]}" for name in FIELDS if name != kept))
    changed = files.flatten(config)
    assert all(changed[name] != FLAT[name] for name in FIELDS if name != kept)
    there = json.loads(json.dumps(files.to_json(config)))
    assert files.flatten(files.from_json(there)) == changed


# --- unknown and unreadable -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--nun_envs=8"], "unknown option --nun_envs; did you mean --num_envs?"),
        (["--num-envs=8"], "unknown option --num-envs; did you mean --num_envs?"),
        (
            ["--learning_rate=1"],
            "unknown option --learning_rate; did you mean --algo.learning_rate?",
        ),
        (["--batch_size", "8"], "unknown option --batch_size; did you mean --algo.minibatch_size?"),
        (["--lr=1"], "unknown option --lr; did you mean --algo.learning_rate?"),
        (
            ["--algo.tau=1"],
            "--algo.tau belongs to dqn, apex and sac; the algorithm is ppo",
        ),
        (["--algo=sac", "--algo.dueling"], "--algo.dueling belongs to dqn and apex; the alg"),
        (["--conf=x.py"], "unknown option --conf; did you mean --config?"),
        (["--zzz"], "unknown option --zzz; --help lists the options"),
        (["-n", "3"], "unknown option -n; --help lists the options"),
        (["--env_kwargs=3"], "unknown option --env_kwargs; did you mean --env_kwargs.NAME?"),
        (["--env_kwargs.=3"], "unknown option --env_kwargs.; did you mean --env_kwargs.NAME?"),
        (
            ["num_envs=8"],
            "unexpected argument 'num_envs=8': options are written --name=value; "
            "did you mean --num_envs?",
        ),
        (
            ["--num_envs=64", "128"],
            "unexpected argument '128': options are written --name=value; --help lists the options",
        ),
        (["--num_envs"], "--num_envs needs a value; write --num_envs=VALUE"),
        (["--num_envs", "--seed=1"], "--num_envs needs a value; write --num_envs=VALUE"),
        (["--config"], "--config needs a value; write --config=VALUE"),
        (["--env_kwargs.gravity"], "--env_kwargs.gravity needs a value; write "),
        (
            ["--algo=pp0"],
            f"algorithm 'pp0' does not exist {ALGORITHMS}; did you mean ppo?",
        ),
        (
            ["--algo=PPO"],
            f"algorithm 'PPO' does not exist {ALGORITHMS}; did you mean ppo?",
        ),
        (["--algo="], f"algorithm '' does not exist {ALGORITHMS}"),
    ],
)
def test_an_argument_that_does_not_exist_is_refused_with_the_nearest(argv, said):
    assert refused(*argv).startswith(said)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        *(
            (f"--num_envs={text}", f"--num_envs={text} should be a whole number")
            for text in (
                "many",
                "",
                "1.5",
                "nan",
                "inf",
                "1e400",
                "none",
                "true",
                "0x10",
            )
        ),
        ("--num_envs=8\n9", "--num_envs=8 9 should be a whole number"),
        ("--iterations=few", "--iterations=few should be a whole number or none"),
        ("--algo.learning_rate=fast", "--algo.learning_rate=fast should be a number"),
        ("--algo.learning_rate=none", "--algo.learning_rate=none should be a number"),
        ("--algo.target_kl=x", "--algo.target_kl=x should be a number or none"),
        ("--shared_torso=maybe", "--shared_torso=maybe should be true or false"),
        ("--shared_torso=", "--shared_torso= should be true or false"),
        ("--hidden_sizes=a,b", "--hidden_sizes=a,b should be whole numbers separated by commas"),
        ("--hidden_sizes=", "--hidden_sizes= should be whole numbers separated by commas"),
        (
            "--hidden_sizes=64,,64",
            "--hidden_sizes=64,,64 should be whole numbers separated by comm",
        ),
        (
            "--activation=thnh",
            "--activation=thnh should be one of tanh, relu, silu, gelu or none; did you mean tanh?",
        ),
        ("--wandb=of", "--wandb=of should be one of auto, online, offline, disabled"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(argv, said):
    assert refused(argv).startswith(said)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--num_envs=-8"], "num_envs=-8 should be at least 1"),
        (["--num_envs=0"], "num_envs=0 should be at least 1"),
        *(
            (
                [f"--{name}={text}"],
                f"{name}={text!r} should be a name, or two with a colon between them, such as "
                "my_package.my_module:MyClass",
            )
            for name in ("env", "network")
            for text in ("", ":Class", "module:", "a::b")
        ),
        (["--run_dir="], "run_dir='' should be the path of a folder, or none"),
        (["--resume="], "--resume= should be the directory of a run; give --resume=RUN_DIR"),
        (["--init_from="], "init_from='' should be the path of a folder, or none"),
        *(
            (
                [f"--wandb_project={text}"],
                f"wandb_project={said} should have 1 to 128 characters and none of / \\ # ? % :, "
                "which wandb does not take in a name",
            )
            for text, said in (
                ("", "''"),
                ("team/project", "'team/project'"),
                ("a:b", "'a:b'"),
                ("p" * 129, f"'{'p' * 58}…"),
            )
        ),
        (["--seed=-1"], "seed=-1 should be at least 0"),
        (["--devices=0"], "devices=0 should be at least 1"),
        (["--iterations=0"], "iterations=0 should be at least 1"),
        (["--hidden_sizes=64,0"], "hidden_sizes=(64, 0) should be at least 1"),
        (["--algo.learning_rate=-1e-3"], "algo.learning_rate=-0.001 should be at least 0"),
        (["--algo.gamma=1.01"], "algo.gamma=1.01 should be at most 1"),
        (["--algo.learning_rate=1e39"], "algo.learning_rate=1e+39 should be at most 3e+38"),
        (["--algo.clip_epsilon=0"], "algo.clip_epsilon=0.0 should be above 0"),
        (["--num_envs=" + "9" * 400], f"num_envs={'9' * 59}… should be at most {2**63 - 1}"),
        (["--num_envs=" + "9" * 5000], f"--num_envs={'9' * 59}… should be a whole number"),
    ],
)
def test_a_value_out_of_bounds_is_refused(argv, said):
    assert refused(*argv) == said


def test_what_a_function_is_given_in_python_is_checked():
    assert options.given_path("run_dir", "~/x") == Path.home() / "x"
    assert options.given_path("run_dir", Path("x")) == Path("x")
    assert options.given_number("episodes", np.int32(3)) == 3
    for wrong in (None, 3, ["x"], Config(), "a\0b", "a\ud800b"):
        with pytest.raises(RunError, match=r"^run_dir=.{1,60} should be a path$"):
            options.given_path("run_dir", wrong)
    for wrong in (0, -1, 2.5, "3", None, True, np.arange(2)):
        with pytest.raises(RunError, match=r"^episodes=.* should be a whole number of at least 1$"):
            options.given_number("episodes", wrong)


@pytest.mark.parametrize("path", ["a\0b", "a\ud800b"])
@pytest.mark.parametrize(
    ("name", "without"),
    [("run_dir", "none"), ("init_from", "none"), ("compilation_cache", "empty")],
)
def test_a_path_that_no_file_system_takes_is_refused(name, without, path):
    said = f"^{name}='.*' should be the path of a folder, or {without}$"
    with pytest.raises(RunError, match=said):
        config.check(DEFAULTS.replace(**{name: path}))
    config.check(DEFAULTS.replace(**{name: os.fsdecode(b"a\xffb")}))  # it is no UTF-8


def test_a_number_of_too_many_digits_for_python_is_refused():
    large = 10**5000
    with pytest.raises(RunError, match=r"num_envs=0x\w{57}… should be at most"):
        config.check(DEFAULTS.replace(num_envs=large))
    with pytest.raises(RunError, match=r"^hidden_sizes=a tuple that .* should be at most"):
        config.check(DEFAULTS.replace(hidden_sizes=(large,)))
    with pytest.raises(RunError, match=r"^env_kwargs=a dict that .* should hold finite numbers"):
        config.check(DEFAULTS.replace(env_kwargs={"length": large}))
    with pytest.raises(RunError, match=r"^episodes=0x\w{57}… should be a whole number of at most"):
        options.given_number("episodes", large)
    with pytest.raises(RunError, match=r"^run_dir=0x\w{57}… should be a path$"):
        options.given_path("run_dir", large)


def test_a_value_is_shown_in_one_line():
    with pytest.raises(RunError) as error:
        config.check(DEFAULTS.replace(num_envs=np.arange(4).reshape(2, 2)))
    assert str(error.value) == "num_envs=array([[0, 1], [2, 3]]) should be a whole number"


NUMBERS = [
    (algo, f"algo.{name}")
    for algo in algos.names()
    for name, hint in get_type_hints(algos.get(algo).Config).items()
    if hint in (float, float | None)
]


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(("algo", "name"), [*NUMBERS, ("ppo", "target_return")])
def test_a_number_that_is_not_finite_is_refused(algo, name, text):
    assert refused(f"--algo={algo}", f"--{name}={text}") == (
        f"{name}={text} should be a finite number"
    )


@pytest.mark.parametrize("algo", algos.names())
def test_gradients_are_clipped_to_a_length_or_not_at_all(algo):
    said = refused(f"--algo={algo}", "--algo.max_grad_norm=0")
    assert said == "algo.max_grad_norm=0.0 should be above 0"
    assert loaded(f"--algo={algo}", "--algo.max_grad_norm=none").algo.max_grad_norm is None


# --- sizes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--num_shards=6"], "num_shards=6 is not a power of two; try num_shards=8"),
        (["--num_envs=100"], "num_envs=100 does not divide by num_shards=8; try num_envs=104"),
        (["--num_envs=4"], "num_envs=4 does not divide by num_shards=8; try num_envs=8"),
        (
            ["--devices=3"],
            "devices=3 divides neither num_shards=8 nor num_seeds=1; try devices=2",
        ),
        (
            ["--devices=7", "--num_seeds=12"],
            "devices=7 divides neither num_shards=8 nor num_seeds=12; try devices=6",
        ),
        (
            ["--algo.minibatch_size=1001"],
            "algo.minibatch_size=1001 does not divide by num_shards=8; "
            "try algo.minibatch_size=1000",
        ),
        (
            ["--algo.minibatch_size=1000"],
            "algo.minibatch_size=1000 does not divide an iteration of num_envs * rollout_length "
            "= 64 * 128 = 8192 steps; try algo.minibatch_size=1024",
        ),
        (
            ["--rollout_length=3", "--num_envs=8"],
            "algo.minibatch_size=2048 does not divide an iteration of num_envs * rollout_length "
            "= 8 * 3 = 24 steps; try algo.minibatch_size=24",
        ),
        (
            ["--seed=2147483647", "--num_seeds=2"],
            "seed=2147483647 and num_seeds=2: the last seed is 2147483648, which should be at "
            "most 2147483647",
        ),
        (
            ["--num_envs=1e18"],
            "num_envs * rollout_length = 1000000000000000000 * 128 = 128000000000000000000 steps "
            "in an iteration should be at most 2147483647",
        ),
        (
            ["--total_steps=1e18"],
            "total_steps=1000000000000000000 makes 122070312500000 iterations of 8192 steps; "
            "there should be at most 2147483647",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_what_would(argv, said):
    assert refused(*argv) == said
    for _ in range(3):  # one size follows from another, so the advice may come in steps
        if "; try " not in said:
            return
        argv = [*argv, "--" + said.split("; try ")[1]]
        try:
            said = ""
            loaded(*argv)
        except RunError as error:
            said = str(error)
    assert not said


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_devices_may_divide_the_shards(devices):
    assert loaded(f"--devices={devices}").devices == devices


def test_devices_may_divide_the_seeds_instead():
    assert loaded("--devices=6", "--num_seeds=12").devices == 6


def test_the_minibatch_that_is_proposed_is_the_nearest_that_fits():
    base = DEFAULTS.replace(num_envs=24, num_shards=4, rollout_length=30)  # 720 steps
    fitting = [d for d in range(1, 721) if 720 % d == 0 and d % 4 == 0]
    for size in range(4, 1000, 4):
        if size in fitting:
            options.check_minibatches(base, size)
            continue
        with pytest.raises(RunError) as caught:
            options.check_minibatches(base, size)
        proposed = int(str(caught.value).split("=")[-1])
        assert proposed in fitting
        assert abs(proposed - size) == min(abs(d - size) for d in fitting)


def test_the_largest_divisor_is_not_above_the_limit():
    assert [options.largest_divisor(12, limit) for limit in (1, 5, 6, 11, 12, 99)] == [
        *(1, 4, 6, 6, 12, 12)
    ]


def test_a_huge_iteration_is_refused_at_once():
    assert refused("--num_envs=1048576", "--rollout_length=2047", "--algo.minibatch_size=4104")


@pytest.mark.parametrize(
    ("given", "shown", "hint"),
    [
        ({"num_envs": 8}, "{'num_envs': 8}", ""),
        (
            "configs/acrobot.py",
            "'configs/acrobot.py'",
            "; jaxrl_scale.config.files.read_file reads one from a file",
        ),
        (Config, "the class Config", ""),
        (None, "None", ""),
    ],
)
def test_what_is_no_config_is_refused(given, shown, hint):
    with pytest.raises(RunError) as caught:
        config.check(given)
    assert str(caught.value) == f"config={shown} should be an instance of jaxrl_scale.Config{hint}"


# --- environments and networks --------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "kwargs"),
    [
        (["--env_kwargs.gravity=9.8"], {"gravity": 9.8}),
        (["--env_kwargs.gravity", "-1.5"], {"gravity": -1.5}),
        (["--env_kwargs.a=1_000", "--env_kwargs.b=two"], {"a": 1000, "b": "two"}),
        (["--env_kwargs.a=True", "--env_kwargs.b=none"], {"a": True, "b": None}),
        (["--env_kwargs.a=[1, 2]", "--env_kwargs.b=1e3"], {"a": [1, 2], "b": 1000.0}),
        (["--env_kwargs.a=semi-implicit euler"], {"a": "semi-implicit euler"}),
        (["--env_kwargs.a="], {"a": ""}),
    ],
)
def test_parameters_of_the_environment_are_numbers_words_or_texts(argv, kwargs):
    for prefix, option in (("--", "env_kwargs"), ("--test_", "test_env_kwargs")):
        texts = [prefix + text.removeprefix("--") if "kwargs" in text else text for text in argv]
        config = loaded(*texts)
        found = getattr(config, option)
        assert found == kwargs
        assert [type(v) for v in found.values()] == [type(v) for v in kwargs.values()]
        assert sum(len(getattr(config, other)) for other in files.DICTS) == len(kwargs)


def test_parameters_add_to_the_config_files_and_go_with_its_environment(write):
    file = write(
        """
        from jaxrl_scale import Config
        def get_config(): return Config(env_kwargs={"gravity": 5.0, "length": 1.0})
        """
    )
    assert loaded("--config", file, "--env_kwargs.gravity=6").env_kwargs == {
        "gravity": 6,
        "length": 1.0,
    }
    assert loaded("--config", file, "--env=CartPole-v1").env_kwargs == {
        "gravity": 5.0,
        "length": 1.0,
    }
    assert loaded("--config", file, "--env=Acrobot-v1").env_kwargs == {}


@pytest.mark.parametrize(
    ("env", "kept"), [("StarpilotHard-v0", 200), ("Pong-v5", None), ("CartPole-v1", None)]
)
def test_parameters_go_from_one_game_of_a_suite_to_another(write, env, kept):
    file = write(
        """
        from jaxrl_scale import Config
        def get_config(): return Config(
            env="CoinrunEasy-v0", env_kwargs={"num_levels": 200}, test_env_kwargs={"num_levels": 0}
        )
        """
    )
    moved = loaded("--config", file, f"--env={env}", "--env_kwargs.start_level=3")
    assert moved.env_kwargs.get("num_levels") == kept
    assert moved.env_kwargs["start_level"] == 3
    assert bool(moved.test_env_kwargs) == bool(kept)


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ((), 475.0),
        (("--env=CartPole-v1",), 475.0),
        (("--env=Acrobot-v1",), None),
        (("--env=Acrobot-v1", "--target_return=-100"), -100.0),
    ],
)
def test_a_target_return_goes_with_its_environment(write, options, target):
    file = write(
        """
        from jaxrl_scale import Config
        def get_config(): return Config(env="CartPole-v1", target_return=475.0)
        """
    )
    assert loaded("--config", file, *options).target_return == target


def test_a_parameter_that_json_does_not_know_is_refused():
    said = "should hold finite numbers, texts and lists, because it becomes JSON"
    assert said in refused("--env_kwargs.gravity=NaN")
    with pytest.raises(RunError, match=said):
        config.check(DEFAULTS.replace(env_kwargs={"gravity": object()}))
    with pytest.raises(RunError, match="should be a dict with texts for keys"):
        config.check(DEFAULTS.replace(env_kwargs={3: 4}))


def test_parameters_that_hold_themselves_or_are_nested_too_deeply_are_refused(write, tmp_path):
    endless, rings, deep = {}, [], {}
    endless["a"] = endless
    rings.append(rings)
    for _ in range(5000):
        deep = {"a": deep}
    for name in ("env_kwargs", "test_env_kwargs"):
        for value in (endless, {"a": rings}, deep):
            with pytest.raises(
                RunError, match=f"^{name} holds itself, or is nested too deeply; it"
            ):
                DEFAULTS.replace(**{name: value})
    file = write(
        """
        from jaxrl_scale import Config
        def get_config():
            endless = {}
            endless["a"] = endless
            return Config(env="CartPole-v1", env_kwargs=endless)
        """
    )
    assert f"config file {file}: env_kwargs holds itself" in refused("--config", file)
    many = "[" * 100_000 + "]" * 100_000  # JSON reads 5,000 of them with Python 3.13
    as_text = loaded(f"--env_kwargs.gravity={many}")
    with pytest.raises(RunError, match=r"^env_kwargs\.gravity='\[{58}… should be a number$"):
        as_text.make_env()
    (tmp_path / "config.json").write_text(f'{{"env_kwargs": {many}}}')
    assert f"{tmp_path / 'config.json'} is damaged: " in refused("--resume", str(tmp_path))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--env=CartPol-v1"], r"Did you mean 'CartPole-v1'\?"),
        (["--env=Walker"], "unknown environment 'Walker'"),
        (["--env_kwargs.g=9.8"], "'g'; its parameters: gravity, "),
        (["--env_kwargs.gravity=heavy"], "env_kwargs.gravity='heavy' should be a number"),
        (["--env_kwargs.sutton_barto_reward=1"], "sutton_barto_reward=1 should be true or false"),
        (
            ["--env_kwargs.kinematics_integrator=rk4"],
            "kinematics_integrator='rk4' should be 'euler' or 'semi-implicit euler'",
        ),
        (["--env=no_such_module:Env"], "there is no module 'no_such_module'"),
        (["--env=jaxrl_scale.envs.cartpole:CartPool"], "did you mean CartPole\\?"),
        (["--env=jaxrl_scale.config:Config"], "'Config' was not called, because it should be a cl"),
    ],
)
def test_an_environment_that_does_not_exist_is_refused(argv, said):
    with pytest.raises(RunError, match=said) as caught:
        environment(*argv)
    assert "\n" not in str(caught.value)


def test_an_environment_is_made_with_its_parameters():
    env = environment("--env_kwargs.gravity=5", "--env_kwargs.length=1.5")
    assert (env.gravity, env.length) == (5, 1.5)


class Linear(nn.Module):
    """Returns what its subclasses make of a policy and a value."""

    policy_size: int

    @nn.compact
    def __call__(self, obs):
        return self.outputs(nn.Dense(self.policy_size)(obs), nn.Dense(1)(obs))


class Talkative(Linear):
    def outputs(self, policy, value):
        raise ValueError("\nno policy" + "\nfor many reasons" * 30)


class WrongShape(Linear):
    def outputs(self, policy, value):
        return policy, value


class PolicyOnly(Linear):
    def outputs(self, policy, value):
        return policy


class Nothing(Linear):
    def outputs(self, policy, value):
        return None


class Half(Linear):
    def outputs(self, policy, value):
        return policy.astype(jnp.float16), value[..., 0]


class Typo(Linear):
    def outputs(self, policy, value):
        return polic, value[..., 0]  # noqa: F821


class MoreFields(Linear):
    width: int


class Leaves(Linear):
    def __post_init__(self):
        sys.exit(0)


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ("mpl", r"network 'mpl' does not exist; did you mean mlp\?"),
        ("cnn", "network 'cnn' needs images"),
        ("no_such_module:Net", "network 'no_such_module:Net': there is no module 'no_such_module'"),
        (f"{__name__}:WrongShap", r"has no 'WrongShap'; did you mean WrongShape\?"),
        (
            "__main__:OfNotebook",
            "has no .OfNotebook.; it was defined in another program or",
        ),
        ("os:system", "'system' was not called, because it should be a flax.linen.Module class"),
        (
            f"{__name__}:WrongShape",
            r"WrongShape', called with observations float32\[3,4\], returned \(float32\[3,2\], "
            r"float32\[3,1\]\); it should return \(policy, value\), \(float32\[3,2\], float32\[3\]",
        ),
        (f"{__name__}:PolicyOnly", r"returned float32\[3,2\]; it should return \(policy, value\)"),
        (f"{__name__}:Nothing", r"returned None; it should return \(policy, value\)"),
        (f"{__name__}:Half", r"returned \(float16\[3,2\], float32\[3\]\); it should return"),
        (f"{__name__}:Talkative", r"line \d+: ValueError: no policy$"),
        (f"{__name__}:Typo", r"Typo', called .*test_config.py, line \d+: NameError: name 'polic'"),
        (
            f"{__name__}:MoreFields",
            "cannot be made with policy_size=2: TypeError: .*missing 1 required .*'width'; it "
            "should have one required field, policy_size: int",
        ),
        (f"{__name__}:Leaves", r"cannot be made with policy_size=2, tests\S+ line .*SystemExit: 0"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(network, said):
    chosen = loaded(f"--network={network}")
    spec = envs.make(chosen.env).spec
    with pytest.raises(RunError, match=said) as caught:
        networks.make(chosen, spec)
    assert "\n" not in str(caught.value)


# --- config files ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file", sorted((REPOSITORY / "configs").glob("*.py")), ids=lambda f: f.stem
)
def test_the_repositorys_configs_are_whole(file):
    environment("--config", str(file))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "has no function get_config()"),
        ("get_config = 3", "has no function get_config()"),
        ("def get_config(:\n    pass", ", line 1: SyntaxError: invalid syntax"),
        (
            "\nimport no_such_module",
            ", line 2: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (
            "def get_config():\n    return {}",
            "get_config() returned dict, it should return a jaxrl",
        ),
        ("def get_config(): pass", "get_config() returned NoneType, it should return a jaxrl"),
        (
            "from jaxrl_scale import Config\ndef get_config():\n    return Config",
            "get_config() returned Config, it should",
        ),
        ("def get_config():\n    return {}['x']", ", line 2: KeyError: 'x'"),
        ("def get_config(size): pass", ": TypeError: get_config() missing 1 required"),
        (
            "from jaxrl_scale import Config\ndef get_config():\n    return Config(num_env=3)",
            ", line 3: TypeError: Config.__init__() got an unexpected keyword argument 'num_env'; "
            "did you mean num_envs?",
        ),
        (
            "from jaxrl_scale.algos import ppo\ndef get_config():\n    return ppo.Config(gama=1)",
            "'gama'; did you mean gamma?",
        ),
        (
            "from jaxrl_scale import Config\ndef get_config():\n    return Config(gamma=1)",
            "'gamma'; it is a field of the algorithm's Config",
        ),
        (
            "from jaxrl_scale.algos import ppo\ndef get_config():\n    return ppo.Config(tau=1)",
            "'tau'; it is a field of the Config of dqn, apex and sac",
        ),
        (
            "from jaxrl_scale.algos import ppo\ndef get_config():\n    return ppo.Config(seed=1)",
            "'seed'; it is a field of jaxrl_scale.Config",
        ),
        ("from jaxrl_scale import algos\nalgos.get('dqn0')", ": algorithm 'dqn0' does not exist"),
        (
            "import sys\ndef get_config(): sys.exit(0)",
            ", line 2: SystemExit: 0, which would end the program",
        ),
    ],
)
def test_a_config_file_that_is_wrong_is_refused_with_its_line(text, said, write):
    message = refused("--config", write(text))
    assert message.startswith("config file mine.py")
    assert message.count("mine.py") == 1
    assert said in message


def test_a_config_of_a_class_with_other_fields_is_refused(write):
    file = write(
        """
        import dataclasses
        from jaxrl_scale import Config
        @dataclasses.dataclass(frozen=True)
        class Mine(Config):
            note: str = ""
        def get_config(): return Mine()
        """
    )
    assert refused("--config", file) == (
        "config is of the class Mine, which has other fields than jaxrl_scale.Config; it should "
        "be a Config itself"
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            "algo='ppo'",
            "algo='ppo' should be an instance of an algorithm's Config, such as jaxrl_scale.algos",
        ),
        ("algo=ppo.Config", "algo=Config should be an instance of an algorithm's Config"),
        ("num_envs='64'", "num_envs='64' should be a whole number"),
        ("num_envs=64.0", "num_envs=64.0 should be a whole number"),
        ("num_envs=True", "num_envs=True should be a whole number"),
        ("num_envs=10**5000", "num_envs=0x"),
        ("num_envs=None", "num_envs=None should be a whole number"),
        ("shared_torso=1", "shared_torso=1 should be true or false"),
        ("target_return=True", "target_return=True should be a number or none"),
        ("hidden_sizes=64", "hidden_sizes=64 should be whole numbers separated by commas, in Pyt"),
        ("hidden_sizes=[6.4]", "hidden_sizes=(6.4,) should be whole numbers separated by commas"),
        ("hidden_sizes=(64, 'a')", "hidden_sizes=(64, 'a') should be whole numbers"),
        (
            "activation='rely'",
            "activation='rely' should be one of tanh, relu, silu, gelu or none; did you",
        ),
        ("activation=['relu']", "activation=['relu'] should be one of tanh, relu, silu, gelu"),
        ("env=3", "env=3 should be a text"),
        (
            "env=Config",
            "env=<class 'jaxrl_scale.config.Config'> should be a text, jaxrl_scale.c",
        ),
        ("env_kwargs=None", "env_kwargs=None should be a dict with texts for keys"),
        ("algo=ppo.Config(epochs=0.5)", "algo.epochs=0.5 should be a whole number"),
    ],
)
def test_a_config_file_with_a_wrong_value_is_refused(fields, said, write):
    file = write(
        f"""
        from jaxrl_scale import Config
        from jaxrl_scale.algos import ppo
        def get_config(): return Config({fields})
        """
    )
    assert refused("--config", file).startswith(said)


class Env:
    """Whatever somebody gives in place of an environment's name."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"env": Env()},
            r"env=<test_config\.Env object .+> should be a text, test_config:Env, the name of its "
            "class, whose arguments are env_kwargs",
        ),
        ({"network": nn.Dense(2)}, r"network=Dense.+, flax\S+:Dense, the name of its class"),
        ({"env": Path("CartPole-v1")}, r"env=PosixPath\('CartPole-v1'\) should be a text"),
    ],
)
def test_what_is_given_in_place_of_its_name_is_answered_with_the_name(given, said):
    with pytest.raises(RunError) as caught:
        config.check(Config(**given))
    assert re.fullmatch(said, str(caught.value))


def test_paths_and_lists_of_python_are_what_the_command_line_has():
    names = ("run_dir", "init_from", "compilation_cache")
    config = Config(hidden_sizes=[32, 16], **{name: Path(f"runs/{name}") for name in names})
    told = [f"--{name}=runs/{name}" for name in names]
    assert config == loaded("--hidden_sizes=32,16", *told)


def test_numbers_of_numpy_are_those_of_python():
    config = Config(
        seed=np.int64(3),
        portable=np.bool_(True),
        target_return=np.float64(2.5),
        hidden_sizes=[np.int32(32)],
        env_kwargs={"a": [np.float64(0.5)]},
        algo=ppo.Config(epochs=np.int64(2), learning_rate=np.float32(0.5)),
    )
    numbers = config.seed, config.portable, config.target_return, *config.hidden_sizes
    numbers += *config.env_kwargs["a"], config.algo.epochs, config.algo.learning_rate
    assert numbers == (3, True, 2.5, 32, 0.5, 2, 0.5)
    assert [type(x) for x in numbers] == [int, bool, float, int, float, int, float]


def test_a_config_file_that_does_not_exist_is_refused_with_the_nearest(write):
    write("", "acrobot.py")
    said = refused("--config=acrobat.py")
    assert said == "config file acrobat.py does not exist; did you mean acrobot.py?"
    for short in ("--config=cartpole", "--config=configs/cartpole.py"):
        assert refused(short).endswith("/configs/cartpole.py?")
    Path("link.py").symlink_to("nowhere.py")
    assert refused("--config=link.py") == "config file link.py does not exist"
    assert refused("--config=.") == "config file . is a directory; give one of its Python files"
    assert "is a directory" in refused("--config=")
    assert refused("--config=/dev/null") == (
        "config file /dev/null is a pipe or a device; give a Python file"
    )


def test_another_algorithm_has_its_own_defaults_and_the_same_keeps_the_files(write):
    file = write(
        """
        from jaxrl_scale import Config
        from jaxrl_scale.algos import ppo
        def get_config(): return Config(algo=ppo.Config(learning_rate=7.0))
        """
    )
    assert loaded("--config", file, "--algo=ppo").algo.learning_rate == 7.0


# --- resuming -------------------------------------------------------------------------------


def test_a_resumed_run_has_the_config_that_it_began_with(run):
    began = loaded("--num_envs=128", "--hidden_sizes=32", "--env_kwargs.gravity=5")
    path = run(began)
    assert command_line.load(["--resume", path]) == (began, "CartPole-v1", path)


def test_what_the_result_does_not_depend_on_may_change_on_resume(run):
    path = run()
    found = loaded("--resume", path, "--devices=2", "--wandb=disabled", "--num_envs=64")
    assert (found.devices, found.wandb, found.num_envs) == (2, "disabled", 64)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--num_envs=128", "--num_envs cannot change on --resume: the run has num_envs=64; what"),
        (
            "--algo.gamma=0.9",
            "--algo.gamma cannot change on --resume: the run has algo.gamma=0.99;",
        ),
        (
            "--env_kwargs.gravity=9",
            "--env_kwargs cannot change on --resume: the run has env_kwargs=n",
        ),
        (
            "--iterations=3",
            "--iterations cannot change on --resume: the run has iterations=none, on ",
        ),
        (
            "--total_steps=2e6",
            "--total_steps cannot change on --resume: the run has total_steps=1_000_000, on which "
            "its schedule depends unless the run is started with --algo.lr_schedule=constant; what "
            "can change: target_return, devices, ",
        ),
        ("--seed=x", "--seed=x should be a whole number"),
        ("--devices=3", "devices=3 divides neither"),
        ("--config=x.py", "--resume takes its config from the run directory; leave --config out"),
        ("--algo=dqn", "--algo cannot change on --resume"),
    ],
)
def test_what_the_result_depends_on_cannot_change_on_resume(argv, said, run):
    assert refused("--resume", run(), argv).startswith(said)


@pytest.mark.parametrize("name", algos.names())
def test_the_options_that_are_proposed_make_a_run_that_can_become_longer(name, run):
    said = refused("--resume", run(loaded(f"--algo={name}")), "--total_steps=2e6")
    proposed = re.search(r"depends unless the run is started with (.*); what can change", said)[1]
    path = run(loaded(f"--algo={name}", *proposed.split(" and ")))
    assert loaded("--resume", path, "--total_steps=2e6").total_steps == 2_000_000


def test_a_run_without_schedule_may_be_made_longer(run):
    path = run(loaded("--algo.lr_schedule=constant"))
    assert loaded("--resume", path, "--total_steps=2e6").total_steps == 2_000_000
    assert loaded("--resume", path, "--iterations=7").num_iterations == 7


def test_total_steps_cannot_lengthen_a_run_of_fixed_iterations_by_the_back_door(run):
    said = refused("--resume", run(loaded("--iterations=10")), "--total_steps=1_000_000")
    assert said.startswith("--iterations cannot change on --resume: the run has iterations=10")


def test_a_folder_of_runs_in_place_of_one_is_answered_with_one(run, tmp_path):
    """As that of a sweep."""
    path = Path(run(loaded("--iterations=10")))
    assert refused("--resume", str(path.parent)) == (
        f"{path.parent} is not a run directory: it has no config.json, but it holds runs, such as "
        f"{path}"
    )


def test_a_run_directory_that_is_none_is_refused(run, tmp_path):
    assert refused("--resume", str(tmp_path)) == (
        f"{tmp_path} is not a run directory: it has no config.json"
    )
    near = tmp_path / "acrobot-1"
    near.mkdir()
    assert refused("--resume", str(tmp_path / "acrobat-1")) == (
        f"run directory {tmp_path / 'acrobat-1'} does not exist; did you mean {near}?"
    )
    unlike = tmp_path / "nothing-of-the-kind"
    assert refused("--resume", str(unlike)) == f"run directory {unlike} does not exist"
    assert refused("--resume", str(tmp_path / "a" / "b")).endswith("b does not exist")
    file = tmp_path / "summary.json"
    file.touch()
    assert refused("--resume", str(file)) == (
        f"{file} is a file; give the run directory that holds it"
    )
    assert refused("--resume=/dev/null") == (
        "/dev/null is a pipe or a device; give a run directory"
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "3", "{", "{}", '{"algo": 3}', '{"algo": {"name": 3}}'),
        '{"algo": {"name": "ppo"}, "num_envs": "x"}',
    ],
)
def test_a_damaged_config_of_a_run_is_refused(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    assert refused("--resume", str(tmp_path)).startswith(f"{tmp_path / 'config.json'} is damaged: ")


def test_the_config_of_another_version_is_refused(run, tmp_path):
    assert refused("--resume", run(colour="red")) == (
        f"{tmp_path / 'config.json'} has a field 'colour' that this version of jaxrl_scale does "
        "not know"
    )


# --- names of the package -------------------------------------------------------------------


def test_the_names_of_the_package_are_listed_and_typed():
    """Type checkers read the imports under TYPE_CHECKING, Python the table beside them."""
    assert set(jaxrl_scale.__all__) <= set(dir(jaxrl_scale))
    block = next(
        node
        for node in ast.parse(Path(jaxrl_scale.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    typed = {node.names[0].name: node.module for node in block.body}
    assert typed == jaxrl_scale._HOMES
    assert sorted(typed) == sorted(jaxrl_scale.__all__)
    assert inspect.isfunction(jaxrl_scale.train)
    with pytest.raises(AttributeError, match="module 'jaxrl_scale' has no attribute 'trian'"):
        _ = jaxrl_scale.trian


# --- the command ----------------------------------------------------------------------------


def command(*argv, folder=REPOSITORY):
    return subprocess.run(
        [sys.executable, "-m", "jaxrl_scale.train", *argv],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--config=configs/acrobat.py"], "did you mean configs/acrobot.py?"),
        (["--env=CartPol-v1"], "Did you mean 'CartPole-v1'?"),
        (
            ["--network=tests.test_config:WrongShape"],
            "returned (float32[3,2], float32[3,1]); it should return",
        ),
    ],
)
def test_the_command_tells_a_mistake_in_one_line_and_exits_with_2(argv, said):
    done = command(*argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


HEAVY = ("wandb", "orbax", "gymnax", "gymnasium", "tensorboardX", "scipy", "matplotlib", "imageio")


def test_help_goes_to_stdout_and_loads_no_heavy_library():
    code = f"""
import sys
from jaxrl_scale.train import main
try:
    main(["--help"])
finally:
    print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert done.stdout.startswith("usage: python -m jaxrl_scale.train ")
    assert "exit status:" in done.stdout


def test_jax_starts_no_backend_before_the_devices_are_set():
    code = """
from jax._src import xla_bridge
from jaxrl_scale.config import command_line
from jaxrl_scale.loop.make import check_fit
for given in ("--env=Acrobot-v1", "--env=Pendulum-v1 --algo=sac", "--env=CartPole-v1 --algo=apex"):
    check_fit(command_line.load(given.split())[0])
assert not xla_bridge.backends_are_initialized()
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY, timeout=120)


def test_the_options_that_a_resumed_run_may_have_otherwise():
    """In whichever way they are written."""
    given = ["--config", "x.py", "--num_envs=8", "--target_return", "5", "--wandb=disabled"]
    assert command_line.changeable(given) == ["--target_return", "5", "--wandb=disabled"]
    assert command_line.changeable(["--seed=3", "devices=2"]) == []
    bare = ["--tensorboard", "--total_steps", "1000", "--wandb", "online", "--tensorboard"]
    assert command_line.changeable(bare) == ["--tensorboard", *bare[3:]]
