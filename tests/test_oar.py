"""Training under a real OAR with two nodes: to its end, killed, and stopped in time.

`JAXRL_LAB=install pytest -m slow tests/test_oar.py`, as root; see `oar_lab.py`.
"""

import sys

import oar_lab
import pytest
from processes import REPOSITORY, SMALL, TESTS, World, assert_same_run, checkpoints, options

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PACE = 0.5  # seconds that an iteration takes longer
LONG, LONGER = 60, 200  # iterations
JOB = SMALL | {"wandb": "disabled", "checkpoint_every": 8, "target_return": 15}
AGAIN = ("-t", "besteffort", "-t", "idempotent")

# As a checkout has it, but slow.
PYTHON = f"""#!/bin/sh
shift 2  # -m jaxrl_scale.train
export PYTHONPATH={REPOSITORY}:{TESTS}
exec {sys.executable} {TESTS}/saboteur.py '{{"seconds": {PACE}}}' "$@"
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    oar_lab.need()
    with oar_lab.Lab(tmp_path_factory.mktemp("oar")) as lab:
        (lab.home / "launch").symlink_to(REPOSITORY / "launch")
        python = lab.home / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(PYTHON)
        python.chmod(0o755)
        yield lab


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    return World(folder, folder / "cache")


def command(iterations):
    return " ".join(["launch/oar.sh", *options(JOB | {"iterations": iterations})])


def assert_as_alone(run_dir, iterations, world):
    """The run of the jobs is that of one process, bit for bit."""
    alone = world.folder / str(iterations)
    if not alone.exists():
        world.train_well(alone, *options(JOB | {"iterations": iterations}))
    assert_same_run(run_dir, alone)


def test_as_the_head_of_the_script_says_and_stopped_at_once(lab, world):
    job = lab.submit(command(LONG), "-S", "-n", "stopped")
    oar_lab.until(lambda: lab.state(job) == "Running", lab.story)
    urgent = lab.submit("true", "-l", "nodes=2")

    assert lab.end(job) == "Terminated 99", lab.story()
    assert "CHECKPOINT" in lab.events(job)
    assert lab.end(urgent) == "Terminated 0"
    assert lab.end(lab.successor(job)) == "Terminated 0", lab.story()
    assert_as_alone(lab.home / "runs" / "stopped", LONG, world)
    assert len(list((lab.home / "runs" / "stopped" / "ranks").glob("*.log"))) == 2


def test_killed_without_asking(lab, world):
    run_dir = lab.home / "runs" / "killed"
    job = lab.submit(command(LONG), "-l", "nodes=2", *AGAIN, "-n", "killed")
    oar_lab.until(lambda: run_dir.exists() and checkpoints(run_dir), lab.story)
    urgent = lab.submit("true", "-l", "nodes=2")

    assert lab.end(job) == "Error"
    assert "BESTEFFORT_KILL" in lab.events(job)
    assert "CHECKPOINT" not in lab.events(job)
    assert lab.end(urgent) == "Terminated 0"
    assert 0 < max(checkpoints(run_dir)) < LONG
    assert lab.end(lab.successor(job)) == "Terminated 0", lab.story()
    assert_as_alone(run_dir, LONG, world)


def test_stopped_before_its_walltime(lab, world):
    run_dir = lab.home / "runs" / "walltime"
    limits = ("-l", "nodes=2,walltime=0:02:00", "--checkpoint", 50)
    job = lab.submit(command(LONGER), *limits, *AGAIN, "-n", "walltime")

    assert lab.end(job) == "Terminated 99", lab.story()
    assert "CHECKPOINT" in lab.events(job)
    assert 0 < max(checkpoints(run_dir)) < LONGER
    while lab.state(job) == "Terminated 99":  # more than once where the machine is slow
        job = lab.successor(job)
        lab.end(job)
    assert lab.state(job) == "Terminated 0", lab.story()
    assert_as_alone(run_dir, LONGER, world)


def test_a_mistake_is_not_submitted_again(lab):
    job = lab.submit("launch/oar.sh --env=Nonsense", "-l", "nodes=2", *AGAIN, "-n", "mistake")
    assert lab.end(job) == "Terminated 2"
    assert "Nonsense" in lab.story()
    assert lab.sql(f"select count(*) from jobs where resubmit_job_id = {job}") == "0"
