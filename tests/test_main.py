"""The commands by one name, and the config that a run would have."""

import argparse
import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import processes
import pytest

from jaxrl_scale import __main__ as package
from jaxrl_scale import commands
from jaxrl_scale.config import Config, files
from jaxrl_scale.errors import INPUT_OUTPUT_ERROR

train_module = importlib.import_module("jaxrl_scale.train")


def test_all_commands_are_listed_and_each_has_a_help(capsys):
    assert package.main([]) == 0
    out = capsys.readouterr().out
    for name, what in package.COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(what)}$", out, re.MULTILINE)
        with pytest.raises(SystemExit) as ended:
            package.main([name, "--help"])
        assert ended.value.code == 0
        assert f"python -m jaxrl_scale.{name}" in capsys.readouterr().out
    folder = Path(package.__file__).parent
    runnable = {path.stem for path in folder.glob("*.py") if "sys.exit(main())" in path.read_text()}
    assert runnable - {"__main__"} == set(package.COMMANDS)


CALLS = """
from pathlib import Path
import jax, numpy
from jaxrl_scale import __main__ as package
from jaxrl_scale.loop.programs import Programs

for call in (
    "train --config=private/mine.py", "sweep --sweep=private/mine.py", "train --resume=private/run",
    "evaluate private", "evaluate run", "export run",
):
    print(call, package.main(call.split()))
programs = Programs(Path("private"), "all that it follows from", True, False)
trace = lambda name: jax.jit(lambda x: x + 1).lower(numpy.float32(0)).compile
print(programs.program(("tiny",), jax.devices(), trace)()(numpy.float32(3)))
"""


def test_what_the_user_may_not_read_is_told_in_one_line(tmp_path):
    """And a compilation cache that may not be read is as good as none."""
    private, run = tmp_path / "private", tmp_path / "run"
    private.mkdir()
    (run / "checkpoints" / "5").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(files.to_json(Config(devices=1))))
    for closed in (private, run / "checkpoints" / "5"):
        closed.chmod(0)
    command = [*processes.as_a_user(), sys.executable, "-c", CALLS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    for closed in (private, run / "checkpoints" / "5"):
        closed.chmod(0o700)
    *statuses, number = done.stdout.splitlines()
    assert [line.split()[-1] for line in statuses] == ["2", "2", "2", "2", "74", "74"], done.stderr
    assert number == "4.0"
    errors = done.stderr.splitlines()
    assert len(errors) == len(statuses)
    assert all(x.startswith("error: ") and x.endswith("Permission denied") for x in errors)


def test_a_folder_that_is_gone_is_told_in_one_line(monkeypatch, tmp_path, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert train_module.main(["--env=CartPole-v1"]) == 2
    told = "error: this folder cannot be used (No such file or directory); go to another by cd\n"
    assert capsys.readouterr().err == told


def test_a_command_that_does_not_exist_is_answered_with_the_nearest(capsys):
    assert package.main(["trian"]) == 2
    assert capsys.readouterr().err == "error: no command is called 'trian'; did you mean train?\n"
    assert package.main(["--nothing"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_version_names_what_results_depend_on(capsys):
    assert package.main(["--version"]) == 0
    jax = importlib.import_module("jax").__version__
    assert re.fullmatch(
        rf"jaxrl_scale \S+ \(jax {jax}, jaxlib \S+, Python 3\.\d+\.\d+\)\n", capsys.readouterr().out
    )


def test_the_installed_command_is_the_same():
    command = Path(sys.executable).parent / "jaxrl_scale"
    if not command.exists():
        pytest.skip("the package is not installed")
    done = subprocess.run([command, "train", "--nothing"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown option --nothing")


def test_memory_that_is_not_enough_is_one_line(capsys):
    def command(argv):
        return jax.numpy.zeros((1 << 20, 1 << 24), jax.numpy.int8).block_until_ready()

    assert commands.run(command, []) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the memory is not enough; ")
    assert "17592186044416 bytes" in line


def test_an_error_in_a_callback_of_the_users_ends_with_one_line(tmp_path, capfd, monkeypatch):
    """Which JAX has logged before, and shows again when the process ends."""
    monkeypatch.chdir(tmp_path)
    at_the_end = []
    monkeypatch.setattr(commands.atexit, "register", at_the_end.append)
    (tmp_path / "calls.py").write_text("def called(x):\n    raise ValueError(f'no {x}')\n")
    called = runpy.run_path(str(tmp_path / "calls.py"))["called"]

    def command(argv):
        jax.jit(lambda x: jax.pure_callback(called, x, x))(jax.numpy.ones(3)).block_until_ready()

    assert commands.run(command, []) == 2
    said = "error: a callback of the compiled program, calls.py, line 2: ValueError: no [1. 1. 1.]"
    assert said in capfd.readouterr().err.splitlines()
    assert at_the_end == [commands.say_no_more]


def test_what_the_output_cannot_show_is_escaped():
    script = "from jaxrl_scale import commands; print(commands.run(lambda _: print('é'), []))"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment)
    assert (done.stdout, done.stderr) == (b"\\xe9\nNone\n", b"")


def test_a_command_runs_where_standard_output_is_closed():
    script = (
        "import sys; from jaxrl_scale import commands; "
        "commands.run(lambda _: print(sys.stdout.isatty(), file=sys.stderr), [])"
    )
    command = f"{sys.executable} -c '{script}' >&-"
    assert subprocess.run(command, shell=True, stderr=subprocess.PIPE).stderr == b"False\n"


OF_TWO = ("--coordinator=localhost", "--num_processes=2")


def test_the_first_process_says_from_which_file_the_settings_are(monkeypatch, capsys):
    trained = []

    def train(config, *how):
        trained.append(config)
        return SimpleNamespace(exit_status=0)

    monkeypatch.setattr(train_module, "_train", train)
    monkeypatch.chdir(Path(__file__).parents[1])
    told = "The settings are those of configs/{}.py; --config=none takes the defaults.\n"
    for argv, said in (
        (["--env=CartPole-v1"], told.format("cartpole")),
        (["--env=CartPole-v1", "--algo=dqn"], told.format("dqn_cartpole")),
        (["--env=CartPole-v1", "--config=none"], ""),
        (["--config=configs/cartpole.py", "--env=CartPole-v1"], ""),
        ([], ""),
        (["--env=CartPole-v1", *OF_TWO, "--process_id=0"], told.format("cartpole")),
        (["--env=CartPole-v1", *OF_TWO, "--process_id=1"], ""),
    ):
        assert package.main(["train", *argv]) == 0
        assert capsys.readouterr() == (said, ""), argv
    assert trained[0] == trained[3] != trained[2]


def test_what_stands_in_a_config_is_text_in_a_file_made_of_it(tmp_path):
    nasty = 'a"""+str(1/0)+"""\\é🚀'
    (tmp_path / "again.py").write_text(files.to_python(Config(run_dir=nasty), nasty))
    assert files.read_file(tmp_path / "again.py").run_dir == nasty


def test_a_dry_run_prints_the_config_as_a_file_that_train_takes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["--env=Pendulum-v1", "--num_envs=32", "--algo.minibatch_size=64", "--seed=9"]
    assert package.main(["train", *given, "--dry_run"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "again.py").write_text(out)
    config = files.read_file(tmp_path / "again.py")
    assert (config.env, config.num_envs, config.seed) == ("Pendulum-v1", 32, 9)
    assert (config.algo.minibatch_size, config.algo.gamma) == (64, 0.95)
    assert package.main(["train", "--config", "again.py", "--dry_run"]) == 0
    again = capsys.readouterr().out
    assert out.splitlines()[2].endswith("configs/pendulum.py; --config=none takes the defaults.")
    assert again.splitlines()[1:] == out.splitlines()[3:]
    assert package.main(["train", *given, "--num_envs=31", "--dry_run"]) == 2
    for wrong in ("--env=Pendulum-v2", "--env_kwargs.weight=2", "--init_from=nowhere"):
        assert package.main(["train", *given, wrong, "--dry_run"]) == 2
    tested = ["--env=LunarLander-v3", "--test_env_kwargs.continuous=true"]
    capsys.readouterr()
    assert package.main(["train", *tested, "--dry_run"]) == 2
    assert "makes an environment whose action is Box" in capsys.readouterr().err
    for other in (["sweep", "--config=again.py"], ["compare", "--envs=X", "--configs=again.py"]):
        capsys.readouterr()
        assert package.main([*other, "--dry_run"]) == 2
        assert capsys.readouterr().err == "error: only jaxrl_scale.train has --dry_run\n"


def test_what_ones_own_code_prints_is_not_in_the_file_of_a_dry_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    line = "print('it speaks')\nfrom host_cartpole import HostCartPole\n"
    (tmp_path / "speaking.py").write_text(line)
    assert package.main(["train", "--env=speaking:HostCartPole", "--dry_run"]) == 0
    out, err = capsys.readouterr()
    assert err == "it speaks\n"
    assert "it speaks" not in out
    (tmp_path / "loud.py").write_text(f"print('it speaks')\n{out}")
    assert package.main(["train", "--config=loud.py", "--dry_run"]) == 0
    assert "it speaks" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--env=Pendulum-v1 --algo=dqn", "algo dqn needs discrete actions, but those of Pendulum"),
        ("--env=Acrobot-v1 --algo=sac", "algo sac needs continuous actions, but those of Acrobot"),
        ("--env=CartPole-v1 --network=nature", "network 'nature' needs images [height, width, ch"),
        ("--env=CartPole-v1 --network=test_main:NoNetwork", "network 'test_main:NoNetwork'"),
        ("--env=Pendulum-v1 --algo=sac --network=a:B", "network a:B sees observations alone, but"),
        ("--env=CartPole-v1 --test_env_kwargs.lenght=1", "environment 'CartPole-v1': got an unex"),
    ],
)
def test_a_dry_run_refuses_in_the_words_of_train_what_fits_nowhere(argv, said, tmp_path, capsys):
    given = [*argv.split(), f"--run_dir={tmp_path / 'run'}"]
    assert train_module.main([*given, "--dry_run"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: {said}")
    assert train_module.main(given) == 2
    assert capsys.readouterr().err == err
    assert list(tmp_path.iterdir()) == []


class NoNetwork:
    """A class that is no network."""


@pytest.mark.parametrize(("unbuffered", "status"), [("1", INPUT_OUTPUT_ERROR), ("", 0)])
def test_a_command_whose_output_nobody_reads_ends_without_a_word(unbuffered, status):
    """As before `| head`. With a buffer it has printed all by the time that it could notice."""
    unread, output = os.pipe()
    os.close(unread)
    with open(output, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "jaxrl_scale"],
            stdout=closed,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    assert (done.returncode, done.stderr) == (status, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux only")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_output_on_a_full_disk_is_told_in_one_line(unbuffered):
    command = [sys.executable, "-m", "jaxrl_scale"]
    variables = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=variables, timeout=60
        )
    said = "error: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (INPUT_OUTPUT_ERROR, said)


def test_a_flag_takes_no_value(capsys):
    assert train_module.main(["--config=none", "--dry_run=true"]) == 2
    assert capsys.readouterr().err == "error: --dry_run takes no value\n"


def test_a_path_may_begin_with_a_tilde_and_is_never_empty(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert commands.path("~/runs") == Path("/home/somebody/runs")
    assert commands.path("runs/~x") == Path("runs/~x")
    with pytest.raises(argparse.ArgumentTypeError, match="'' should be a path"):
        commands.path("")
    with pytest.raises(argparse.ArgumentTypeError, match="should be at most 1000000"):
        commands.whole_number()("9" * 5000)
