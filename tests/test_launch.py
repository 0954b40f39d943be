"""The launchers, with the real programs of clusters (see `lab`): however a run was started,
stopped, lost and resized, it is the run of one process, to the last bit."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

import lab
import pytest
import warm
from processes import (
    PATIENCE,
    REPOSITORY,
    SMALL,
    TESTS,
    World,
    assert_same_run,
    newest,
    options,
    rows,
    well,
)
from processes import Done as Ended

LAUNCH = REPOSITORY / "launch"
RANKS = LAUNCH / "ranks.sh"
DONE, MISTAKE, STOPPED, IO_ERROR = 0, 2, 75, 74


@pytest.fixture(scope="module")
def slurm():
    with lab.Slurm() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sshd():
    with lab.Sshd() as server:
        yield server


def program(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def quick(world):
    """A Python that has imported all before. Those that `launch` and `submit` have otherwise begin
    as a user's."""
    return program(world.folder / "quick", f'exec {shlex.join(warm.python())} "$@"')


@pytest.fixture(scope="module")
def slow(world):
    """Such a Python whose training takes its time, so that a test can interfere."""
    sabotage = [*warm.python(), str(TESTS / "saboteur.py"), '{"seconds": 0.5}']
    script = f'shift 2  # -m jaxrl_scale.train\nexec {shlex.join(sabotage)} "$@"'
    return program(world.folder / "slow", script)


def start(world, *command, group=None, **environment):
    return subprocess.Popen(
        list(map(str, command)),
        cwd=world.folder,
        env=world.environment | {"PYTHON": sys.executable} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=group,
    )


def end(process):
    with process:
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Ended(process.returncode, out, err)


def launch(world, *command, **environment):
    return end(start(world, *command, **environment))


# --- the lab itself -------------------------------------------------------------------------


def test_slurm_runs_a_step_on_every_node(slurm):
    out = slurm.ask("srun", "--nodes=4", "--ntasks-per-node=2", "printenv", "SLURMD_NODENAME")
    assert sorted(out.split()) == sorted(slurm.nodes * 2)


def test_ssh_reaches_each_host(sshd):
    for host in sshd.HOSTS:
        command = [*sshd.client.split(), host, "echo $SSH_CONNECTION"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.split()[2] == host


def test_a_network_has_named_hosts_and_cables_that_can_be_pulled():
    with lab.Network(3) as network:

        def reaches(host, other):
            connect = ["timeout", "1", "bash", "-c", f"</dev/tcp/{other}/9"]  # refused, or silence
            done = subprocess.run(network.command(host, *connect), capture_output=True)
            return done.returncode != 124

        name = subprocess.run(network.command("h1", "hostname"), capture_output=True, text=True)
        assert name.stdout == "h1\n"
        assert reaches("h0", "h1")
        network.cut("h1")
        assert not reaches("h0", "h1")
        assert reaches("h0", "h2")
        network.mend("h1")
        assert reaches("h0", "h1")


def test_nothing_of_a_lab_is_left():
    with lab.temporary_folder() as folder:
        with lab.Box(folder, "lab", {}) as box:
            daemon = f"exec setsid bash -c 'sleep 600; : {folder}' &"
            box.run("bash", "-c", daemon, stdout=None, stderr=None, capture_output=False)
            search = ["pgrep", "--full", str(folder)]
            lab.until(lambda: subprocess.run(search, capture_output=True).stdout, lambda: "none")
        found = subprocess.run(search, capture_output=True, text=True)
    assert found.stdout == ""
    assert not folder.exists()


# --- starting processes and adding up how they ended ----------------------------------------

STAND_IN = """
import json, os, signal, sys, time
rank = os.environ["JAX_PROCESS_ID"]
secret = os.environ["JAXRL_SECRET_FILE"]
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
print(json.dumps({"rank": rank, "of": os.environ["JAX_NUM_PROCESSES"], "options": sys.argv[1:],
                  "meet": os.environ["JAX_COORDINATOR_ADDRESS"], "in": os.getcwd(),
                  "secret": open(secret).read(), "mode": os.stat(secret).st_mode & 0o777,
                  "given": open("/proc/self/cmdline").read() + str(os.environ)}), flush=True)
accident = json.loads(os.environ.get("XLA_ACCIDENT", "{}")).get(rank, 0)
if accident == "sleep":
    time.sleep(60)
if accident < 0:
    os.kill(os.getpid(), -accident)
sys.exit(accident)
"""


@pytest.fixture
def ranks(tmp_path, world):
    """``ranks.sh`` on hosts that are none, with a stand-in for the training."""
    (tmp_path / "program" / "jaxrl_scale").mkdir(parents=True)
    (tmp_path / "program" / "jaxrl_scale" / "__init__.py").touch()
    (tmp_path / "program" / "jaxrl_scale" / "train.py").write_text(STAND_IN)
    remote_shell = tmp_path / "remote shell"
    remote_shell.write_text('#!/bin/sh\nexec sh -c "$2"\n')
    remote_shell.chmod(0o755)
    (tmp_path / "sh").symlink_to(remote_shell)  # in a path without a blank
    folder = tmp_path / "a folder, it's odd"
    folder.mkdir()

    class Here(World):
        def __init__(self):
            self.folder = folder
            mine = {"PYTHONPATH": str(tmp_path / "program"), "REMOTE_SHELL": str(tmp_path / "sh")}
            self.environment = world.environment | mine

    here = Here()
    here.start = lambda *words, **variables: start(here, RANKS, *words, **variables)
    here.run = lambda *words, **variables: end(here.start(*words, **variables))
    return here


def test_ranks_are_told_where_they_stand_and_log_apart(ranks):
    odd = ["--name", 'it\'s $HOME; "so" *', "--empty", ""]
    done = ranks.run("me@a", "b", "--", "--config=configs/c.py", *odd)
    assert (done.status, done.err) == (0, "")
    (run_dir,) = (ranks.folder / "runs").iterdir()
    assert re.fullmatch(r"c-\d{8}-\d{6}", run_dir.name)
    said = [eval((run_dir / "ranks" / f"{k}.log").read_text()) for k in (0, 1)]
    assert done.out == (run_dir / "ranks" / "0.log").read_text()
    assert [s["rank"] for s in said] == ["0", "1"]
    for s in said:
        assert s["of"] == "2"
        assert re.fullmatch(r"a:2\d{4}", s["meet"])
        assert s["meet"] == said[0]["meet"]
        assert s["in"] == str(ranks.folder)
        assert s["secret"] == said[0]["secret"]
        assert len(s["secret"].strip()) == 64
        assert s["mode"] == 0o600
        assert s["secret"].strip() not in s["given"]  # which others may read, or may be logged
        assert s["options"] == [
            "--config",
            "configs/c.py",
            "--run_dir",
            f"runs/{run_dir.name}",
            *odd,
        ]
    assert {p.name for p in (run_dir / "ranks").iterdir()} == {"0.log", "1.log"}


def test_ranks_are_looked_after_with_the_bash_and_the_tail_of_macos(ranks, tmp_path):
    (tmp_path / "bin").mkdir()
    tail = 'case $1 in --*) exit 1 ;; esac\nPATH=${PATH#*:} exec tail "$@"'
    program(tmp_path / "bin" / "tail", tail)
    (tmp_path / "3.2").write_text(
        'BASH_VERSION=3.2.57; wait() { [ "$1" != -n ] && builtin wait "$@"; }'
    )
    macos = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{ranks.environment['PATH']}"}
    macos["BASH_ENV"] = str(tmp_path / "3.2")
    done = ranks.run("a", "b", "--", "--run_dir=r", XLA_ACCIDENT='{"1": 3}', **macos)
    assert done.status == 3
    assert eval(done.out)["rank"] == "0"
    assert len(done.err.splitlines()) == 1


def test_ranks_are_given_the_variables_that_matter_and_no_key(ranks, tmp_path):
    """By a remote shell that hands on nothing by itself. Command lines can be read by everybody."""
    lines, own = tmp_path / "lines", tmp_path / "own"
    shell = f'echo "$2" >> {shlex.quote(str(lines))}\nexec env -i PATH="$PATH" sh -c "$2"\n'
    (tmp_path / "remote shell").write_text(f"#!/bin/sh\n{shell}")
    own.write_text("a secret of the user's own\n")
    own.chmod(0o600)
    given = {"WANDB_API_KEY": "the key", "WANDB_NAME": "mine", "JAXRL_SECRET_FILE": str(own)}
    done = ranks.run("a", "--", "--run_dir=r", **given)
    assert (done.status, done.err) == (0, "")
    said = eval(done.out)
    assert said["secret"] == own.read_text()
    assert "'WANDB_NAME': 'mine'" in said["given"]
    assert "the key" not in said["given"] + lines.read_text()


@pytest.mark.parametrize("words", [["--run_dir"], ["--resume="], ["--run_dir", ""]])
@pytest.mark.parametrize("script", [[RANKS, "a", "--"], ["bash", LAUNCH / "slurm.sbatch"]])
def test_a_path_that_a_variable_should_have_named_is_missed(ranks, script, words):
    (ranks.folder / "launch").symlink_to(LAUNCH)
    done = launch(ranks, *script, "--config", "c.py", *words, SLURM_JOB_ID="15")
    told = f"error: {words[0].rstrip('=')} should be followed by a path\n"
    assert (done.status, done.out, done.err) == (MISTAKE, "", told)
    assert not (ranks.folder / "runs").exists()


@pytest.mark.parametrize("word", ["--help", "-h", "--dry_run"])
def test_what_starts_nothing_is_one_process_and_leaves_no_folder(ranks, tmp_path, word):
    (tmp_path / "secret").touch()
    alone = {"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "1", "JAX_COORDINATOR_ADDRESS": "a:1"}
    alone["JAXRL_SECRET_FILE"] = str(tmp_path / "secret")
    done = ranks.run("a", "b", "--", "--config", "c.py", word, **alone)
    assert (done.status, done.err) == (0, "")
    assert eval(done.out)["options"] == ["--config", "c.py", word]
    assert list(ranks.folder.iterdir()) == []


def test_ranks_resume_a_run_that_is_there(ranks):
    (ranks.folder / "r").mkdir()
    (ranks.folder / "r" / "config.json").touch()
    (ranks.folder / "r" / "ranks").mkdir()
    gone, here = f"{socket.gethostname()}.4999999", f"{socket.gethostname()}.{os.getpid()}"
    for left in (gone, here, "elsewhere.4999999"):  # by launchers that were killed, or run now
        (ranks.folder / "r" / "ranks" / f"0.{left}.pid").touch()
        (ranks.folder / "r" / "ranks" / f"secret.{left}.abc123").touch()
    out = ranks.run("a", "--", "--config", "c.py", "--seed=1", "--run_dir", "r").out
    assert eval(out)["options"] == ["--resume", "r", "--seed=1"]
    kept = [f"0.{who}.pid" for who in (here, "elsewhere.4999999")]
    kept += [f"secret.{who}.abc123" for who in (here, "elsewhere.4999999")]
    assert {file.name for file in (ranks.folder / "r" / "ranks").iterdir()} == {"0.log", *kept}


def test_a_run_directory_at_home_is_the_one_that_the_trainer_means(ranks, tmp_path):
    """No shell has said what ``~`` is in ``--run_dir=~/r``."""
    home, given = {"HOME": str(tmp_path / "home")}, ["a", "--", "--config", "c.py", "--run_dir=~/r"]
    told = eval(ranks.run(*given, **home).out)["options"]
    assert told == ["--config", "c.py", "--run_dir", f"{home['HOME']}/r"]
    (tmp_path / "home" / "r" / "config.json").touch()
    assert eval(ranks.run(*given, **home).out)["options"] == ["--resume", f"{home['HOME']}/r"]
    assert list(ranks.folder.iterdir()) == []


@pytest.mark.parametrize("number", ["", "two", "0", "08", "-1", "99999999999999999999"])
def test_local_processes_are_a_small_whole_number(ranks, number):
    done = launch(ranks, LAUNCH / "local.sh", number, "--config=c.py")
    told = f"usage: {LAUNCH / 'local.sh'} N [sweep] --config C [options]\n"
    assert (done.status, done.err) == (MISTAKE, told)


def test_ranks_of_a_sweep_run_its_command(ranks, tmp_path):
    (tmp_path / "program" / "jaxrl_scale" / "sweep.py").write_text(STAND_IN)
    (tmp_path / "program" / "jaxrl_scale" / "train.py").unlink()
    out = ranks.run("a", "--", "sweep", "--rungs", "2", "--config=c.py", "--run_dir", "r").out
    assert eval(out)["options"] == ["--config", "c.py", "--run_dir", "r", "--rungs", "2"]


@pytest.mark.parametrize(
    ("accident", "status"),
    [
        ({"0": 75, "1": 2}, MISTAKE),
        ({"0": 2, "1": 75}, MISTAKE),
        ({"0": 3, "1": 75}, 3),
        ({"1": 74}, IO_ERROR),
        ({"0": 75, "1": 1}, 1),  # a bug
        ({"0": 75, "1": -9}, STOPPED),
        ({"0": 134}, STOPPED),
    ],
)
def test_ranks_end_with_the_status_that_matters(ranks, accident, status):
    done = ranks.run("a", "b", "--", "--run_dir=r", XLA_ACCIDENT=str(accident).replace("'", '"'))
    assert done.status == status
    if odd := [k for k, s in accident.items() if s != 75]:
        said = re.search(rf"^rank {odd[0]} on (\w) ended with status \d+: (.*)$", done.err, re.M)
        assert said[1] == "ab"[int(odd[0])]
        assert said[2] == f"r/ranks/{odd[0]}.log" or f'"rank": "{odd[0]}"' in said[2]
    assert (ranks.folder / "r").exists() == (status != MISTAKE)


def test_a_mistake_removes_nothing_that_was_there(ranks):
    (ranks.folder / "r").mkdir()
    done = ranks.run("a", "--", "--run_dir=r", XLA_ACCIDENT='{"0": 2}')
    assert done.status == MISTAKE
    assert (ranks.folder / "r" / "ranks" / "0.log").exists()


def test_ranks_without_a_python_are_a_mistake(ranks):
    done = ranks.run("a", "--", "--run_dir=r", PYTHON="none")
    assert done.status == MISTAKE
    assert re.search(r"^rank 0 on a ended with status 127: .*none.*: No such file", done.err, re.M)
    assert ranks.run("a", "--run_dir=r").status == MISTAKE
    assert list(ranks.folder.iterdir()) == []


def test_a_rank_that_does_not_end_with_the_others_is_ended(ranks):
    both = {"XLA_ACCIDENT": '{"0": "sleep", "1": 3}', "GRACE": "1"}
    begun = time.monotonic()
    assert ranks.run("a", "b", "--", "--run_dir=r", **both).status == 3
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_signal_makes_all_ranks_save(ranks, number):
    run = ranks.start("a", "b", "--", "--run_dir=r", XLA_ACCIDENT='{"0": "sleep", "1": "sleep"}')
    logs = [ranks.folder / "r" / "ranks" / f"{k}.log" for k in (0, 1)]
    lab.until(lambda: all(p.exists() and p.read_text() for p in logs), lambda: "no log")
    run.send_signal(number)
    done = end(run)
    assert done.status == STOPPED
    assert done.err.startswith("Ctrl-C: the run stops after ") == (number == signal.SIGINT)


def test_a_signal_reaches_ranks_that_have_not_started_yet(ranks, tmp_path):
    """The first of many sends it, while the launcher starts the others."""
    asleep = program(tmp_path / "asleep", "exec sleep 20")
    sends = '() { [ -e sent ] || { : >sent; kill -USR2 $$; }; exec sh -c "$2"; }'
    shell = {"REMOTE_SHELL": "sends", "BASH_FUNC_sends%%": sends}
    begun = time.monotonic()
    assert (
        ranks.run(*"abcdefghijklmnopqrstuvwx", "--", "--run_dir=r", PYTHON=asleep, **shell).status
        == STOPPED
    )
    assert time.monotonic() - begun < 15


def test_a_signal_to_a_whole_job_ends_with_the_last_line_of_rank_0(ranks):
    last = "import atexit; atexit.register(print, 'saved', flush=True)"
    (ranks.folder.parent / "program" / "jaxrl_scale" / "train.py").write_text(
        f"{last}\nimport signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n{STAND_IN}"
    )
    sleeping = {"XLA_ACCIDENT": '{"0": "sleep", "1": "sleep"}'}
    run = ranks.start("a", "b", "--", "--run_dir=r", group=0, **sleeping)
    logs = [ranks.folder / "r" / "ranks" / f"{k}.log" for k in (0, 1)]
    lab.until(lambda: all(p.exists() and p.read_text() for p in logs), lambda: "no log")
    os.killpg(run.pid, signal.SIGTERM)
    done = end(run)
    assert (done.status, done.err) == (STOPPED, "")
    assert done.out.splitlines()[-1] == "saved"


STOPPING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def test_pbs_starts_one_process_on_each_host_of_the_job_by_its_own_remote_shell(ranks, tmp_path):
    """It is found where PBS says that it is installed, and PBS's signals do not end it."""
    (tmp_path / "bin").mkdir()
    tmrsh = tmp_path / "bin" / "pbs_tmrsh"
    # It takes words, that no shell reads.
    tmrsh.write_text('#!/bin/sh\nshift\ngrep SigIgn /proc/$$/status >> ignored\nexec "$@"\n')
    tmrsh.chmod(0o755)
    (tmp_path / "pbs.conf").write_text(f"PBS_SERVER=h0\nPBS_EXEC={tmp_path}\n")
    (tmp_path / "nodes").write_text("h1\nh1\nh0\nh0\n")
    (ranks.folder / "launch").symlink_to(LAUNCH)
    job = {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "12.server"}
    job |= {"PBS_O_WORKDIR": str(ranks.folder), "OPTIONS": "--config c.py"}
    job |= {"PBS_CONF_FILE": str(tmp_path / "pbs.conf")}
    done = launch(ranks, LAUNCH / "pbs.sh", **job)
    assert (done.status, done.err) == (0, "")
    said = eval(done.out)
    assert said["of"] == "2"
    assert said["meet"].startswith("h1:")
    assert said["options"] == ["--config", "c.py", "--run_dir", "runs/pbs-12"]
    masks = re.findall(r"\t(\w+)", (ranks.folder / "ignored").read_text())
    heard = sum(1 << (number - 1) for number in STOPPING)
    assert [int(mask, 16) & heard for mask in masks] == [heard] * 2


@pytest.mark.parametrize("word", ["--run_dir", "--resume=runs/other"])
def test_a_job_of_oar_takes_no_run_directory_but_that_of_its_name(ranks, word):
    (ranks.folder / "launch").symlink_to(LAUNCH)
    done = launch(ranks, LAUNCH / "oar.sh", "--env=E", word, OAR_JOB_NAME="first")
    told = f"error: the run directory is that of the job's name, runs/first; leave {word} out\n"
    assert (done.status, done.err) == (MISTAKE, told)


SRUN = """
while [ "${1#--}" != "$1" ]; do case $1 in --output=*) log=${1#*=} ;; esac; shift; done
exec "$@" >> "${log%/*}/0.log" 2>&1
"""
OF_AN_ARRAY = {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.mark.parametrize(
    ("words", "job", "options"),
    [
        ("--config c.py", {}, "--config c.py --run_dir runs/slurm-15"),
        ("--config=c.py --run_dir=r --seed=2", {}, "--config c.py --run_dir r --seed=2"),
        ("--config=c.py --run_dir known", {}, "--resume known"),
        ("--resume known", {}, "--resume known"),
        ("", {"RUN_DIR": "known"} | OF_AN_ARRAY, "--run_dir known_3 --seed=3"),
        ("--env=E", OF_AN_ARRAY, "--run_dir runs/slurm-12_3 --seed=3 --env=E"),
        ("--seed=7", OF_AN_ARRAY, "each job of an array has a --seed of its own; leave --seed=7"),
        ("sweep --task 7", OF_AN_ARRAY, "each job of an array has a --task of its own; leave"),
    ],
)
def test_a_slurm_job_knows_the_run_directory_and_what_is_its_own_in_an_array(
    ranks, tmp_path, words, job, options
):
    """Without a Slurm, whose commands have stand-ins. A job that is requeued has to find its run,
    whichever way the folder was given."""
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin" / "srun", SRUN)
    (ranks.folder / "launch").symlink_to(LAUNCH)
    (ranks.folder / "known").mkdir()
    (ranks.folder / "known" / "config.json").touch()
    (tmp_path / "secret").touch()
    where = "--resume" if "--resume" in options else "--run_dir"
    job |= {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{ranks.environment['PATH']}"}
    job |= {"SLURM_JOB_ID": "15", "SLURM_JOB_NUM_NODES": "1", "JAX_PROCESS_ID": "0"}
    job |= {"JAX_NUM_PROCESSES": "1", "JAX_COORDINATOR_ADDRESS": "h0:1"}
    job |= {"JAXRL_SECRET_FILE": str(tmp_path / "secret")}
    with open(tmp_path / "err", "w+") as err:  # which a pipe's reader would wait for, for the tail
        command = ["bash", LAUNCH / "slurm.sbatch", *words.split()]
        outputs = {"stdout": subprocess.DEVNULL, "stderr": err}
        environment = ranks.environment | {"PYTHON": sys.executable} | job
        status = subprocess.run(command, cwd=ranks.folder, env=environment, **outputs).returncode
        err.seek(0)
        told = err.read()
    if options.startswith("each job"):
        assert status == MISTAKE
        assert told.startswith(f"error: {options}")
        return
    assert (status, told) == (DONE, "")
    (log,) = ranks.folder.glob("**/0.log")
    said = eval(log.read_text())
    assert said["options"] == options.split()
    assert log == ranks.folder / said["options"][said["options"].index(where) + 1] / "ranks/0.log"


# --- training: on this machine, by ssh, PBS, mpirun -----------------------------------------


def test_local_processes_stop_on_a_signal_and_resume_by_the_same_command(
    world, path, reference, slow
):
    command = [LAUNCH / "local.sh", 2, *world.small(path)]
    run = start(world, *command, PYTHON=slow)
    lab.until(lambda: newest(path) >= 4 or run.poll() is not None, lambda: "nothing saved")
    run.terminate()
    stopped = end(run)
    assert (stopped.status, stopped.err) == (STOPPED, ""), stopped
    assert "resumed at iteration" in well(launch(world, *command)).out
    assert_same_run(path, reference)


def test_ssh(world, path, reference, sshd, quick):
    hosts = [*sshd.HOSTS, sshd.HOSTS[2]]  # 4 processes: a number that divides the shards
    command = [LAUNCH / "ssh.sh", *hosts, "--", *world.small(path)]
    well(launch(world, *command, SSH=sshd.client, PYTHON=quick))
    assert_same_run(path, reference)


def test_pbs(world, path, reference, sshd, quick):
    nodes = world.folder / "nodes"
    nodes.write_text("".join(f"{host}\n" * 2 for host in sshd.HOSTS[:2]))
    job = {"PBS_NODEFILE": str(nodes), "PBS_JOBID": "1", "PBS_O_WORKDIR": str(REPOSITORY)}
    job |= {"SSH": sshd.client, "PYTHON": quick}
    well(launch(world, LAUNCH / "pbs.sh", *world.small(path), **job))
    assert_same_run(path, reference)


def test_mpirun(world, path, reference):
    lab.need("mpirun", root=False)
    root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    train = [sys.executable, "-m", "jaxrl_scale.train", *world.small(path)]
    well(launch(world, "mpirun", "-n", 2, "--oversubscribe", *train, **root))
    assert_same_run(path, reference)


# --- training: Slurm ------------------------------------------------------------------------


def submit(slurm, world, run_dir, python, *options, train=()):
    environment = world.environment | {"PYTHON": python, "RUN_DIR": str(run_dir)}
    few = [f"--chdir={world.folder}", "--cpus-per-task=1", *options]
    if not (world.folder / "launch").exists():
        (world.folder / "launch").symlink_to(LAUNCH)
    small = world.small(run_dir)
    del small[small.index("--run_dir") :]
    return slurm.submit(*few, LAUNCH / "slurm.sbatch", *small, *train, env=environment)


def advance(slurm, job, run_dir):
    """Wait until the job has trained and saved after its latest start."""
    before = newest(run_dir)
    lab.until(
        lambda: newest(run_dir) > before and slurm.state(job) == "RUNNING",
        lambda: f"{slurm.show(job)}\n{(run_dir / 'ranks' / '0.log').read_text()}\n{slurm.logs()}",
        PATIENCE,
    )


def test_a_bare_srun_without_a_home_that_the_nodes_share(slurm, world, path, reference):
    """Its processes know each other by munge, as Slurm does."""
    home = world.folder / "homes" / path.name
    own_home = f'mkdir -p {home}/$SLURM_PROCID; HOME={home}/$SLURM_PROCID exec "$@"'
    train = [sys.executable, "-m", "jaxrl_scale.train", *world.small(path)]
    command = ["srun", "-N2", "-n4", "bash", "-c", own_home, "bash", *train]
    done = slurm.run(*command, env=world.environment, timeout=PATIENCE)
    well(Ended(done.returncode, done.stdout, done.stderr))
    assert len(list(home.iterdir())) == 4
    assert list(home.rglob("secret")) == []
    assert_same_run(path, reference)


FORGE = """
import os
from jaxrl_scale.parallel.secret import Munge
proof = Munge().prove(b"this")
assert Munge().check(b"this", proof)
assert not Munge().check(b"this", proof), "it was read before"
assert not Munge().check(b"that", Munge().prove(b"this"))
assert not Munge().check(b"this", b"MUNGE:AwQFAACm:")
for_root = Munge().prove(b"this")
os.setuid(65534)
assert not Munge().check(b"this", for_root), "it is for root alone"
others = os.popen("munge --string=" + __import__("hashlib").sha256(b"this").hexdigest()).read()
print(others)
"""


def test_munge_tells_who_proved_what(slurm, world):
    forge = slurm.run(sys.executable, "-c", FORGE, env=world.environment)
    assert forge.returncode == 0, forge.stderr
    # Another user's, for everybody to read, with the right content.
    check = "import sys; from jaxrl_scale.parallel.secret import Munge; "
    check += "sys.exit(Munge().check(b'this', sys.argv[1].encode()))"
    others = forge.stdout.strip()
    assert others.startswith("MUNGE:")
    command = [sys.executable, "-c", check, others]
    assert slurm.run(*command, env=world.environment).returncode == 0


def test_a_slurm_job_that_is_preempted_and_signalled_is_requeued_and_ends_the_same(
    slurm, world, path, reference, slow
):
    job = submit(slurm, world, path, slow, "--nodes=2", "--ntasks-per-node=2")
    advance(slurm, job, path)
    slurm.preempt(job)
    slurm.wait(job, "RUNNING", restarts=1)
    advance(slurm, job, path)
    slurm.ask("scancel", "--signal=USR1", job)
    ended = slurm.wait(job, "COMPLETED", "FAILED", "CANCELLED", restarts=2, patience=PATIENCE)
    said = (world.folder / f"slurm-{job}.out").read_text()
    assert ended["JobState"] == "COMPLETED", said
    assert said.count("and saved at iteration") == 2
    assert_same_run(path, reference)


def test_a_slurm_job_goes_on_with_other_numbers_of_nodes_and_after_the_loss_of_one(
    slurm, world, path, reference, slow
):
    job = submit(slurm, world, path, slow, "--nodes=4")
    restarts = 0
    for nodes in (2, 1, 4):
        advance(slurm, job, path)
        slurm.ask(LAUNCH / "resize.sh", job, nodes)
        restarts += 1
        now = slurm.wait(job, "RUNNING", restarts=restarts)
        assert int(now["NumNodes"]) == nodes
        if nodes == 2:
            advance(slurm, job, path)
            slurm.kill_node("n1")
            restarts += 1
            slurm.wait(job, "RUNNING", restarts=restarts)
            slurm.restart_node("n1")
    ended = slurm.wait(job, "COMPLETED", "FAILED", "CANCELLED", patience=PATIENCE)
    assert ended["JobState"] == "COMPLETED", (world.folder / f"slurm-{job}.out").read_text()
    assert_same_run(path, reference)


@pytest.mark.slow
def test_qbert_goes_on_with_4_then_2_then_1_processes_to_the_same_end(slurm, world, path, slow):
    pytest.importorskip("envpool")
    qbert = [
        *("--config", "none", "--env", "Qbert-v5", "--env_kwargs.preset", "ppo"),
        *("--network", "nature"),
        *("--restart_every", 5, "--eval_every", 0, "--eval_episodes", 4),
    ]
    whole = path.with_suffix(".whole")
    world.train_well(whole, *qbert)
    job = submit(slurm, world, path, slow, "--nodes=4", train=qbert)
    for restarts, nodes in ((1, 2), (2, 1)):
        advance(slurm, job, path)
        slurm.ask(LAUNCH / "resize.sh", job, nodes)
        assert int(slurm.wait(job, "RUNNING", restarts=restarts)["NumNodes"]) == nodes
    ended = slurm.wait(job, "COMPLETED", "FAILED", "CANCELLED", patience=PATIENCE)
    assert ended["JobState"] == "COMPLETED", (world.folder / f"slurm-{job}.out").read_text()
    assert_same_run(path, whole)


def test_a_slurm_array_does_a_comparison_and_a_signalled_job_of_it_goes_on(slurm, world):
    """Two seeds, of which the first is stopped once."""
    if not (world.folder / "launch").exists():
        (world.folder / "launch").symlink_to(LAUNCH)
    (world.folder / "few.py").write_text(
        "from jaxrl_scale import Config\n\n\ndef get_config():\n    return Config()\n"
    )
    small = SMALL | {"compilation_cache": world.cache}
    small |= {"iterations": 3000, "log_every": 50, "checkpoint_every": 3000, "eval_every": 0}
    own = {"envs": "CartPole-v1", "configs": "few.py", "seeds": 2, "run_dir": "compared"}
    few = [f"--chdir={world.folder}", "--cpus-per-task=1", "--array=0-1"]
    environment = world.environment | {"PYTHON": sys.executable}
    array = slurm.submit(*few, LAUNCH / "compare.sbatch", *options(own | small), env=environment)
    cells = world.folder / "compared" / "CartPole-v1" / "few"

    def told():
        return "\n".join(path.read_text() for path in world.folder.glob(f"slurm-{array}_*.out"))

    lab.until(lambda: list(cells.glob("seed0/metrics.jsonl")) and rows(cells / "seed0"), told)
    slurm.ask("scancel", "--batch", "--signal=USR1", f"{array}_0")
    for task, restarts in ((0, 1), (1, 0)):
        ended = slurm.wait(f"{array}_{task}", "COMPLETED", "FAILED", restarts=restarts)
        assert ended["JobState"] == "COMPLETED", told()
    starts = json.loads((cells / "seed0" / "run.json").read_text())["starts"]
    assert [start["resumed_from"] > 0 for start in starts] == [False, True]
    analyse = ["--analyse", world.folder / "compared"]
    well(world.run(*analyse, module="jaxrl_scale.compare"))
    (one,) = json.loads((world.folder / "compared" / "compare.json").read_text())
    assert one["seeds"] == [0, 1]


@pytest.mark.slow
def test_a_slurm_array_and_then_a_job_of_two_nodes_do_a_sweep(slurm, world, path):
    """The job gets a signal when the second rung has begun, is requeued and goes on."""
    small = {k: v for k, v in SMALL.items() if k not in ("eval_every", "devices")}
    small |= {"iterations": 6, "algo.learning_rate": "1e-3,1e-2,3e-2,1e-1"}
    small |= {"compilation_cache": world.cache, "checkpoint_every": 1, "eval_episodes": 4}
    own = {"draw": "grid", "seeds": 2, "chunk": 4, "rungs": 1, "factor": 2, "fresh_seeds": 4}
    arguments, whole = options(own | small), path.with_suffix(".whole")
    well(world.run(*arguments, "--run_dir", whole, module="jaxrl_scale.sweep"))
    if not (world.folder / "launch").exists():
        (world.folder / "launch").symlink_to(LAUNCH)

    def submit(*few):
        environment = world.environment | {"PYTHON": sys.executable, "RUN_DIR": str(path)}
        few = [f"--chdir={world.folder}", "--cpus-per-task=1", *few]
        return slurm.submit(*few, LAUNCH / "slurm.sbatch", "sweep", *arguments, env=environment)

    def told():
        return "\n".join(log.read_text() for log in sorted(path.rglob("*.log")))

    array = submit("--array=0-1", "--nodes=1")
    for task in (0, 1):
        ended = slurm.wait(f"{array}_{task}", "COMPLETED", "FAILED", patience=PATIENCE)
        assert ended["JobState"] == "COMPLETED", told()
        assert "saved at iteration 3 of 6" in (path / f"ranks/chunk{task}/0.log").read_text()
    job = submit("--nodes=2")
    lab.until(lambda: (path / "rung1-chunk0" / "config.json").exists(), told, PATIENCE)
    slurm.ask("scancel", "--signal=USR1", job)
    ended = slurm.wait(job, "COMPLETED", "FAILED", restarts=1, patience=PATIENCE)
    assert ended["JobState"] == "COMPLETED", told()
    assert (path / "ranks/0.log").read_text().count("and saved at iteration 4 of 6; the same") == 1
    for name in ("agents.csv", "settings.csv", "curves.csv", "best.py"):
        assert (path / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_slurm_job_is_not_requeued_for_a_mistake_nor_when_it_is_cancelled(
    slurm, world, path, slow
):
    mistaken = submit(slurm, world, path, slow, "--nodes=3")  # 3 processes for 4 shards
    assert slurm.wait(mistaken, "FAILED", patience=PATIENCE)["ExitCode"] == "2:0"
    job = submit(slurm, world, path.with_suffix(".cancelled"), slow, "--nodes=1")
    advance(slurm, job, path.with_suffix(".cancelled"))
    slurm.ask("scancel", job)
    slurm.wait(job, "CANCELLED")
    time.sleep(8)  # longer than a requeued job waits
    assert slurm.state(job) == "CANCELLED"
