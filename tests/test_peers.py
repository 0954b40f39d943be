"""Runs of several processes: found, met, the same to the last bit, and never left waiting."""

import asyncio
import contextlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import lab
import numpy as np
import pytest
import warm
from processes import (
    PATIENCE,
    SMALL_A2C,
    assert_same_bits,
    assert_same_run,
    ended,
    newest,
    options,
    rows,
    state,
    summary,
    well,
)
from threads import CONFIGS, IMAGES

from jaxrl_scale.config import Launch, files
from jaxrl_scale.config.command_line import load_launch
from jaxrl_scale.errors import RunError
from jaxrl_scale.loop import prepare
from jaxrl_scale.parallel import cluster, handshake, machine, peers, secret
from jaxrl_scale.parallel.cluster import Cluster, find
from jaxrl_scale.parallel.machine import free_port, split
from jaxrl_scale.parallel.secret import Key

DONE, MISTAKE, IO_ERROR, AGAIN = 0, 2, 74, 75
HEARTBEAT = 6.0  # seconds; short, for tests that wait for it


# --- finding the others ---------------------------------------------------------------------

SLURM = {
    "SLURM_JOB_ID": "70",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "n[07-12,20],m1",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_PROCID": "5",
}
OPENMPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}
MANY = "9" * 5000  # digits: Python reads 4,300
JAX = {
    "JAX_COORDINATOR_ADDRESS": "node1:7000",
    "JAX_NUM_PROCESSES": "3",
    "JAX_PROCESS_ID": "2",
}


def test_a_process_by_itself_is_alone():
    assert find(Launch(), {}) == Cluster(num_processes=1, process_id=0)


def test_the_batch_script_of_a_slurm_job_is_alone():
    batch = {"SLURM_JOB_ID": "70", "SLURM_NTASKS": "16", "SLURM_PROCID": "0"}
    assert find(Launch(), batch).num_processes == 1


def test_slurm_tells_all():
    found = find(Launch(), SLURM)
    assert (found.num_processes, found.process_id, found.host) == (16, 5, "n07")
    other_step = find(Launch(), SLURM | {"SLURM_STEP_ID": "3"})
    assert other_step.port != found.port
    assert {found.port, other_step.port} <= set(range(61_440, 65_536))
    assert find(Launch(), SLURM | {"SLURM_STEP_NUM_NODES": "1"}).is_local
    assert find(Launch(), SLURM | {"SLURM_NTASKS": "32"}).num_processes == 16, "those of the step"
    assert not found.is_local


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n-a,b", "n-a"),
        ("n[3]", "n3"),
        ("x[001,007-9]", "x001"),
        ("r[1-2]n[3,5-6]-ib,m1", "r1n3-ib"),
    ],
)
def test_the_first_node_of_a_list(nodes, first):
    assert find(Launch(), SLURM | {"SLURM_STEP_NODELIST": nodes}).host == first


def test_openmpi_tells_all_even_under_slurm():
    found = find(Launch(), OPENMPI | SLURM)
    assert (found.num_processes, found.process_id, found.host) == (4, 3, "10.96.0.1")
    assert find(Launch(), OPENMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}).host == "127.0.0.1"
    other = OPENMPI | {"OMPI_MCA_orte_hnp_uri": "1531641856.0;tcp://10.96.0.1:34911"}
    assert find(Launch(), other).port != found.port, "two jobs may run side by side"


def test_openmpi_that_does_not_tell_where_rank_0_is():
    told = {k: v for k, v in OPENMPI.items() if "uri" not in k}
    with pytest.raises(RunError, match="--coordinator=HOST"):
        find(Launch(), told)
    assert find(Launch(), told | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}).host == "127.0.0.1"


def test_variables_come_before_the_launcher_and_flags_before_variables():
    assert find(Launch(), JAX | OPENMPI | SLURM) == Cluster(3, 2, "node1", 7000)
    flags = load_launch(["--coordinator=[fe80::1]:7001", "--num_processes", "2", "--process_id=0"])
    assert find(flags, JAX | SLURM) == Cluster(2, 0, "fe80::1", 7001)


def test_an_ipv6_address_stands_in_brackets_before_a_port():
    assert Cluster(host="fe80::1").address(7001) == "[fe80::1]:7001"
    assert Cluster(host="node1").address(7001) == "node1:7001"
    assert Cluster(host="::1").is_local


def test_a_coordinator_without_a_port_has_ours():
    assert find(Launch("node1", 2, 1), {}) == Cluster(2, 1, "node1", cluster.FIRST_PORT)


@pytest.mark.parametrize(
    ("launch", "environment", "message"),
    [
        (Launch(num_processes=2, process_id=1), {}, "given without --coordinator"),
        (Launch(coordinator="a:1"), {}, "without --num_processes and --process_id"),
        (Launch("a:1", 2, 2), {}, "--process_id=2 should be from 0 to 1, as --num_processes=2"),
        (Launch("a:b", 2, 1), {}, "--coordinator=a:b should be HOST or HOST:PORT"),
        (Launch("a:70000", 2, 1), {}, "should be HOST or HOST:PORT"),
        (Launch(f"a:{MANY}", 2, 1), {}, "should be HOST or HOST:PORT"),
        (Launch(), JAX | {"JAX_PROCESS_ID": "x"}, "JAX_PROCESS_ID=x should be a whole number"),
        (Launch(), JAX | {"JAX_NUM_PROCESSES": ""}, "JAX_NUM_PROCESSES= should be a whole number"),
        (Launch(), JAX | {"JAX_NUM_PROCESSES": MANY}, r"PROCESSES=9{59}… should be a whole number"),
        (Launch(), JAX | {"JAX_NUM_PROCESSES": "10000000"}, "=10000000 should be at most 1000000"),
        (Launch("a:1", 2**62, 1), {}, "--num_processes=4611686018427387904 should be at most"),
        (Launch(), OPENMPI | {"OMPI_MCA_orte_hnp_uri": f"{MANY}.0;tcp://n:1"}, "does not tell"),
        (Launch(), {"JAX_PROCESS_ID": "1"}, "without JAX_COORDINATOR_ADDRESS and JAX_NUM_PROC"),
        (Launch(), SLURM | {"SLURM_STEP_NODELIST": "[1-2]"}, r"NODELIST=\[1-2\] should be a list"),
        (Launch(), SLURM | {"SLURM_STEP_NODELIST": "n[1-2"}, r"should be a list of nodes such as"),
        (Launch(), SLURM | {"SLURM_STEP_NODELIST": ""}, "NODELIST= should be a list of nodes"),
        (Launch(), SLURM | {"SLURM_STEP_NUM_TASKS": "16(x2)"}, r"NUM_TASKS=16\(x2\) should be a"),
        (Launch(), SLURM | {"SLURM_PROCID": "many"}, "SLURM_PROCID=many should be a whole number"),
        (Launch(), SLURM | {"SLURM_PROCID": "16"}, "SLURM_PROCID=16 should be from 0 to 15, as"),
        (Launch(), SLURM | {"SLURM_JOB_ID": "x"}, "SLURM_JOB_ID=x should be a whole number"),
        (Launch(), SLURM | {"SLURM_STEP_ID": "x"}, "SLURM_STEP_ID=x should be a whole number"),
        (
            Launch(),
            OPENMPI | {"OMPI_COMM_WORLD_SIZE": "x"},
            "SIZE=x should be a whole number",
        ),
        (Launch(), OPENMPI | {"OMPI_COMM_WORLD_RANK": "4"}, "RANK=4 should be from 0 to 3, as"),
        (Launch(), {"OMPI_COMM_WORLD_SIZE": "4"}, "WORLD_RANK=None should be a whole number"),
        (Launch(), OPENMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "x"}, "LOCAL_SIZE=x should be a whole"),
    ],
)
def test_half_of_it_is_told_in_one_line(launch, environment, message):
    with pytest.raises(RunError, match=message) as error:
        find(launch, environment)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("owned", "shares"),
    [
        # Four processes on one machine that is not bound: they share its cores out.
        ([("m", [0, 1, 2, 3])] * 4, [[0], [1], [2], [3]]),
        ([("m", [0, 1, 2])] * 2, [[0], [1, 2]]),
        # Bound by the launcher: each keeps its own.
        ([("m", [0, 1]), ("m", [2, 3])], [[0, 1], [2, 3]]),
        # Two machines of the same kind.
        ([("m", [0, 1]), ("n", [0, 1])], [[0, 1], [0, 1]]),
        # Four processes that see the two GPUs of their node: two go without.
        ([("m", ["a", "b"])] * 4, [[], ["a"], [], ["b"]]),
        ([("m", ["a", "b"])] * 2 + [("n", ["c"])], [["a"], ["b"], ["c"]]),
    ],
)
def test_what_processes_see_together_they_share_out(owned, shares):
    assert [split(k, owned) for k in range(len(owned))] == shares


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Sets what the driver's own command prints; this machine may have neither GPU nor driver, nor
    a JAX that knows of them."""

    def prints(text, first=""):
        command = tmp_path / "nvidia-smi"
        command.write_text(f"#!/bin/sh\n{first}\ncat <<END\n{text}END\n")
        (tmp_path / "jax_plugins").mkdir()
        monkeypatch.syspath_prepend(tmp_path)
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        for name in ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS"):
            monkeypatch.delenv(name, raising=False)

    return prints


@pytest.mark.parametrize(
    ("environment", "seen"),
    [
        ({}, ["GPU-a", "GPU-b", "GPU-c"]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, ["GPU-c", "GPU-a"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, ["GPU-b"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"JAX_PLATFORMS": "cpu"}, []),
    ],
)
def test_the_gpus_that_a_process_sees(nvidia_smi, monkeypatch, environment, seen):
    lines = [f"GPU {k}: NVIDIA H100 80GB HBM3 (UUID: GPU-{name})" for k, name in enumerate("abc")]
    nvidia_smi("\n".join(lines) + "\n")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert machine.visible_gpus() == seen


def test_a_jax_without_plugins_sees_no_gpu(nvidia_smi, tmp_path):
    nvidia_smi("GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-a)\n")
    assert machine.visible_gpus() == ["GPU-a"]
    (tmp_path / "jax_plugins").rmdir()
    importlib.invalidate_caches()
    if importlib.util.find_spec("jax_plugins"):
        pytest.skip("JAX has a plugin here")
    assert machine.visible_gpus() == []


def test_a_driver_that_does_not_answer_is_told_in_one_line(nvidia_smi, monkeypatch):
    nvidia_smi("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a)\n", first="exec sleep 100")
    monkeypatch.setattr(machine, "_PATIENCE", 0.1)
    with pytest.raises(RunError, match=r"nvidia-smi -L, .* has not ended after 0\.1 s; JAX_PLATF"):
        machine.visible_gpus()


MIG = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)
  MIG 3g.20gb     Device  0: (UUID: MIG-a0)
  MIG 3g.20gb     Device  1: (UUID: MIG-a1)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-b)
"""


@pytest.mark.parametrize(
    ("chosen", "seen"),
    [
        (None, ["MIG-a0"]),  # all that CUDA lets one process use
        ("MIG-a1", ["MIG-a1"]),
        ("MIG-a1,MIG-a0", ["MIG-a1"]),
        ("0", ["MIG-a0"]),
        ("1", ["GPU-b"]),
        ("GPU-b", ["GPU-b"]),
        ("1,0", ["MIG-a0"]),
        ("GPU-none,1", []),  # CUDA stops at what does not exist
    ],
)
def test_a_gpu_that_is_divided_into_instances_is_not_counted_beside_them(
    nvidia_smi, monkeypatch, chosen, seen
):
    nvidia_smi(MIG)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert machine.visible_gpus() == seen


def test_a_process_uses_no_more_cores_than_slurm_gives_it(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 2, 4, 5}, raising=False)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    assert machine.visible_cores() == [2, 4, 5, 7]
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    assert machine.visible_cores() == [2, 4, 5]


@pytest.mark.parametrize(("most", "uses"), [(None, 4), (4, 4), (3, 3), (8, 4)])
def test_processes_that_slurm_has_not_bound_divide_all_cores(most, uses):
    """Each has as many as Slurm gives it, if there are so many for each."""
    owned = [("m", list(range(8)))] * 2
    first, second = (machine.split(k, owned, most) for k in (0, 1))
    assert len(first) == len(second) == uses
    assert not {*first} & {*second}


@pytest.mark.parametrize(
    ("given", "shown"), [("8(x2)", r"8\(x2\)"), ("0", "0"), ("٣", "٣"), (MANY, "9{59}…")]
)
def test_garbage_for_slurms_number_of_cores_is_one_line(monkeypatch, given, shown):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", given)
    with pytest.raises(RunError, match=f"SLURM_CPUS_PER_TASK={shown} should be a number of cores"):
        machine.visible_cores()


def test_the_memory_that_control_groups_leave(tmp_path):
    def group(path, **files):
        folder = tmp_path / "sys/fs/cgroup" / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("memory_", "memory.", 1)).write_text(f"{text}\n")

    (tmp_path / "proc/self").mkdir(parents=True)
    own = tmp_path / "proc/self/cgroup"
    assert machine.memory_left_in_groups(tmp_path) == []
    own.write_text("0::/slurm/job_7/step\n")
    group("slurm/job_7/step", memory_max="max", memory_current=5)
    stat = "anon 700\ninactive_file 200\nactive_file 1"
    group("slurm/job_7", memory_max=1000, memory_current=900, memory_stat=stat)
    group("slurm", memory_max=9000, memory_current=900, memory_stat="")
    assert machine.memory_left_in_groups(tmp_path) == [300, 8100]
    own.write_text("4:cpu,memory:/docker/x\n3:pids:/docker/x\n")  # version 1
    stat = "inactive_file 1\ntotal_inactive_file 2"
    files = {"memory_limit_in_bytes": 50, "memory_usage_in_bytes": 30, "memory_stat": stat}
    group("memory/docker/x", **files)
    assert machine.memory_left_in_groups(tmp_path) == [22]


def test_peak_memory_is_this_processs_not_its_parents():
    child = (
        "import jax; from jaxrl_scale.parallel.machine import memory; "
        "print(memory(jax.devices('cpu')[0]).peak)"
    )
    large = (
        "import subprocess, sys; x = bytearray(10**9); "
        f"print(subprocess.run([sys.executable, '-c', {child!r}], capture_output=True, text=True))"
    )
    done = subprocess.run([sys.executable, "-c", large], capture_output=True, text=True)
    assert float(re.search(r"stdout='([\d.]+)", done.stdout)[1]) < 900


def test_processors_that_cannot_do_the_same_are_told(monkeypatch):
    """XLA uses other instructions on them, with which results round otherwise."""
    links, of_thread = meet(3), threading.local()

    def told(features, portable=False):
        def one(link):
            of_thread.features = features[link.process_id]
            return prepare.other_processors(link, portable)

        return in_all(links, one)

    monkeypatch.setattr(prepare, "processor_features", lambda: of_thread.features)
    new, old = "flags: fpu avx2 avx512f", "flags: fpu avx2"
    assert told([new, "flags: fpu avx512f ibrs avx2", new]) == [None] * 3
    assert told([new, new, old], portable=True) == [None] * 3
    for said in told([new, new, old]):
        assert said.startswith("process 2 of 3 on ")
        assert "another kind of processor" in said
    in_all(links, close)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
@pytest.mark.parametrize("chosen", ["SCHED_OTHER", "SCHED_IDLE"])
def test_what_starts_later_is_batch_work_unless_the_user_has_chosen(chosen):
    def policies():
        os.sched_setscheduler(0, getattr(os, chosen), os.sched_param(0))
        machine.schedule_as_batch()
        with ThreadPoolExecutor(1) as started_later:
            return {
                os.sched_getscheduler(0),
                started_later.submit(os.sched_getscheduler, 0).result(),
            }

    before = os.sched_getscheduler(0)
    with ThreadPoolExecutor(1) as thread:
        expected = os.SCHED_IDLE if chosen == "SCHED_IDLE" else os.SCHED_BATCH
        assert thread.submit(policies).result() == {expected}
    assert os.sched_getscheduler(0) == before


# --- meeting --------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def own_secret(monkeypatch):
    """No test here makes a file in the home of whoever runs it."""
    monkeypatch.setenv("JAXRL_SECRET", "known to these tests alone")


def coming(number, *processes, port, host="127.0.0.1", **launch):
    """Futures of the links of some processes of a run, here threads."""
    pool = ThreadPoolExecutor(len(processes))
    links = [
        pool.submit(peers.join, Cluster(number, k, host, port), Launch(**launch)) for k in processes
    ]
    pool.shutdown(wait=False)
    return links


def meet(number, **launch):
    """The links of ``number`` processes, here threads."""
    links = coming(number, *reversed(range(number)), port=free_port(), **launch)
    return [link.result(PATIENCE) for link in reversed(links)]


def in_all(links, act):
    results = {}
    threads = [
        threading.Thread(target=lambda link=link: results.update({link.process_id: act(link)}))
        for link in links
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[k] for k in range(len(links))]


def test_all_get_what_each_gave_in_any_order():
    links = meet(3)

    def act(link):
        names = ["a", "b"] if link.leader else ["b", "a"]  # as two threads of a process might
        with ThreadPoolExecutor() as pool:
            given = {n: pool.submit(link.gather, n, [n, link.process_id], n) for n in names}
            return {n: future.result() for n, future in given.items()}

    for answer in in_all(links, act):
        assert answer == {n: [[n, 0], [n, 1], [n, 2]] for n in ("a", "b")}
    in_all(links, close)


@pytest.mark.parametrize("who", [0, 1])
def test_processes_that_do_not_wait_for_the_same_thing_end_with_both_names(tmp_path, who):
    code = """if k == %d: link.barrier("the other")
link.barrier("one")
link.barrier("and on")"""
    for k, done in links_run(tmp_path, code % who, 3).items():
        assert done.status == 1
        assert "'the other'" in done.err
        assert "'one'" in done.err
        assert done.err.startswith(f"error: process {k} of 3 on ")
        assert done.err.count("\n") == 1


@pytest.mark.parametrize("number", [1, 2])
def test_what_is_no_json_data_is_an_error_of_the_process_that_gathers_it(number):
    for link in (links := meet(number)):
        with pytest.raises(TypeError, match="not JSON serializable"):
            link.gather("an array", np.zeros(3))
    assert (
        in_all(links, lambda link: link.gather("a tuple", (1, 2))) == [[[1, 2]] * number] * number
    )
    in_all(links, close)


def test_a_process_alone_gathers_its_own_value():
    assert peers.Peers().gather("anything", 3) == [3]


LINKED = """
import asyncio, json, os, sys, time
from jaxrl_scale.config import Launch, files
from jaxrl_scale.parallel import peers
from jaxrl_scale.parallel.cluster import Cluster
k, number, port = map(int, sys.argv[1:])
link = peers.join(Cluster(number, k, "127.0.0.1", port), Launch())
"""


def links_run(folder, code, number):
    """How ``number`` processes end that meet, without training, and then run ``code``."""
    program, port = folder / "linked.py", free_port()
    program.write_text(LINKED + code)
    commands = {k: [*map(str, (program, k, number, port))] for k in range(number)}
    return ended({k: warm.Process(one, dict(os.environ), folder) for k, one in commands.items()})


INTERRUPTED = """
with link.end_together():
    link.barrier("all are here")
    if k == 1:
        raise KeyboardInterrupt
    link.barrier("never")
"""


def test_an_interrupt_of_one_process_ends_all_as_one(tmp_path):
    for done in links_run(tmp_path, INTERRUPTED, 2).values():
        assert done.status == 130
        assert done.err.endswith("interrupted; what was saved stays saved\n")


FAILING = """
drain = asyncio.StreamWriter.drain

async def drain_slowly(writer):
    await drain(writer)
    await asyncio.sleep(0.7)

asyncio.StreamWriter.drain = drain_slowly
link.barrier("all are here")
if k == WHO:
    time.sleep(0.3)
    link.fail("out of luck", 74)
link._loop.call_soon_threadsafe(time.sleep, 0.6)  # hears the reason and the silence at once
link.barrier("never")
"""


@pytest.mark.parametrize("who", [0, 1])
def test_the_end_of_those_who_were_told_is_not_taken_for_a_loss(tmp_path, who):
    for k, done in links_run(tmp_path, FAILING.replace("WHO", str(who)), 3).items():
        by = "" if k == who else rf"ended by process {who} of 3 on \S+: "
        assert re.fullmatch(rf"error: process {k} of 3 on \S+: {by}out of luck\n", done.err)
        assert done.status == IO_ERROR


MISTAKEN = """
link.after_mistake(lambda: print("undone", flush=True))
link.barrier("all are here")
if k == 1:
    link.fail("a mistake", STATUS)
link.barrier("never")
"""


@pytest.mark.parametrize(("status", "undone"), [(MISTAKE, "undone\n"), (IO_ERROR, "")])
def test_what_a_mistake_has_left_is_undone_by_all(tmp_path, status, undone):
    """Whoever has noticed it."""
    for done in links_run(tmp_path, MISTAKEN.replace("STATUS", str(status)), 2).values():
        assert (done.out, done.status) == (undone, status)


UNHEARD = """
sys.stderr = open("/dev/full", "w")
link.barrier("all are here")
if k == 0:
    link.fail("the disk is full", 74)
link.barrier("never")
"""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux only")
def test_a_process_that_cannot_say_why_it_ends_ends_all_the_same(tmp_path):
    """Its log may be on the disk that is full."""
    assert {done.status for done in links_run(tmp_path, UNHEARD, 2).values()} == {IO_ERROR}


def test_silence_counts_from_when_all_have_come(monkeypatch):
    """The first may have waited for minutes, and has not sent anything meanwhile."""
    link, lost = peers.Peers(Cluster(2, 0), heartbeat=2.0), []
    link._heard = {1: time.monotonic() - 100}

    async def note(*who):
        lost.append(who)

    async def watched():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(link._watch(), 0.8)

    monkeypatch.setattr(link, "_lost", note)
    asyncio.run(watched())
    assert lost == []


POLICIES = """
from pathlib import Path
from jaxrl_scale.config import Config
from jaxrl_scale.parallel import backend
backend.initialize(Config(num_shards=2, num_envs=2, devices=1), link)
tasks = [(os.sched_getscheduler(int(task.name)), (task / "comm").read_text().strip())
         for task in Path("/proc/self/task").iterdir()]
print(json.dumps(tasks))
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
def test_the_threads_that_compute_and_exchange_are_batch_work(tmp_path):
    """Gloo's thread has no name of its own."""
    for done in links_run(tmp_path, POLICIES, 2).values():
        tasks = json.loads(done.out)
        computing = {policy for policy, name in tasks if name.startswith("tf_XLA")}
        unnamed = [policy for policy, name in tasks if name.startswith("python")]
        assert computing == {os.SCHED_BATCH}
        assert unnamed.count(os.SCHED_BATCH) > unnamed.count(os.SCHED_OTHER)


def test_of_two_processes_with_one_number_the_second_is_refused():
    port = free_port()
    leader, one, other = coming(3, 0, 1, 1, port=port)
    error = next(iter(wait([one, other], PATIENCE, FIRST_COMPLETED).done)).exception()
    assert isinstance(error, RunError)
    assert re.search(r"refuses it: another process on \S+ is process 1 already", str(error))
    assert error.status == MISTAKE
    stayed = other if one.done() else one
    links = [leader, stayed, *coming(3, 2, port=port)]  # nothing has changed for the others
    in_all([link.result(PATIENCE) for link in links], lambda link: link.close())


def test_process_0_says_whom_it_refused():
    port = free_port()
    (leader,) = coming(2, 0, port=port, start_timeout=2)
    (other,) = coming(4, 1, port=port, start_timeout=2)
    refusal = "it is process 1 of 4, this run has 2"
    assert isinstance(other.exception(PATIENCE), RunError)
    assert str(other.exception()).endswith(f"refuses it: {refusal}")
    assert str(leader.exception(PATIENCE)).endswith(f"; one that came was refused: {refusal}")


def test_an_option_that_only_one_process_has_is_told():
    def checked(link):
        try:
            link.check_alike({"a": "1"} | ({} if link.leader else {"b": "2"}))
        except RunError as error:
            return str(error)
        return ""

    said = "this process was started with b=2, process 0 with b=None; all should be started alike"
    links = meet(2)
    assert in_all(links, checked) == ["", said]
    in_all(links, close)


def test_a_process_that_does_not_come_is_named(world, path):
    started = time.monotonic()
    done = world.run_ranks(4, *world.small(path), "--start_timeout", 4, ranks=[0, 2])
    assert time.monotonic() - started < 40
    message = r"processes 1 and 3 of 4 did not come to 127.0.0.1:\d+ within 4 s \(--start_timeout\)"
    for k in (0, 2):
        assert done[k].status == AGAIN
        assert re.fullmatch(rf"error: process {k} of 4 on \S+: {message}\n", done[k].err)
    assert not path.exists()


def test_a_leader_that_does_not_come_is_named(world, path):
    (done,) = world.run_ranks(2, *world.small(path), "--start_timeout", 2, ranks=[1]).values()
    assert done.status == AGAIN
    assert re.search(r"process 0 could not be reached at \S+ within 2 s .*: .*refused", done.err)
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", 1], r"this process was started with seed=1, process 0 with seed=0"),
        (["--num_processes", 2], "given without --coordinator"),
    ],
)
def test_processes_that_were_not_started_alike_all_end(world, path, options, message):
    address = f"127.0.0.1:{free_port()}"
    first = world.start_ranks(2, *world.small(path), ranks=[0], coordinator=address)
    other = world.start_ranks(2, *world.small(path), *options, ranks=[1], coordinator=address)
    done = ended({1: other[1]})
    assert done[1].status == MISTAKE
    assert re.search(message, done[1].err)
    if "seed" in message:
        done = ended(first)
        assert done[0].status == MISTAKE
        assert re.search(f"ended by process 1 of 2 on .*: {message}", done[0].err)
    first[0].kill()
    first[0].communicate()


def test_a_run_directory_in_use_ends_all_with_the_reason(world, reference, path):
    done = world.run_ranks(2, *world.small(reference))
    assert {k: d.status for k, d in done.items()} == {0: MISTAKE, 1: MISTAKE}
    assert all("already holds a run: --resume" in d.err for d in done.values())
    assert "ended by process 0 of 2" in done[1].err


def test_processes_that_do_not_divide_the_shards(world, path):
    done = world.run_ranks(3, *world.small(path))
    assert {d.status for d in done.values()} == {MISTAKE}
    assert "3 processes divide neither num_shards=4 nor num_seeds=1; try 2 processes" in done[0].err


# --- strangers ------------------------------------------------------------------------------


@pytest.fixture
def connect():
    """Connects to the port where processes meet, as soon as process 0 listens there."""
    with contextlib.ExitStack() as connections:

        def connect(port, host="127.0.0.1"):
            limit = time.monotonic() + PATIENCE
            while True:
                try:
                    one = socket.create_connection((host, port), timeout=PATIENCE)
                    return connections.enter_context(one)
                except ConnectionRefusedError:
                    assert time.monotonic() < limit
                    time.sleep(0.02)

        yield connect


def message(text):
    return len(text).to_bytes(4, "big") + text


def said(connection):
    """The next message; an empty one where the connection was closed."""
    with contextlib.suppress(ConnectionError):
        if head := connection.recv(4):
            return connection.recv(int.from_bytes(head, "big"))
    return b""


def hello_with(key, challenge, who=(1, 2, "impostor", "x")):
    claim = b"0" * 32 + b" " + (who if isinstance(who, bytes) else json.dumps(who).encode())
    return Key(key).prove(b"member %b %b" % (challenge, claim)) + b" " + claim


OUR_KEY = b"known to these tests alone"
STRANGERS = {
    "says nothing": lambda challenge: b"",
    "hangs in the middle": lambda challenge: message(b"x" * 900)[:-1],
    "an old hello": lambda challenge: b'{"process": 1, "of": 2, "name": "x", "machine": "x"}\n',
    "too much": lambda challenge: (2**30).to_bytes(4, "big") + b"x" * 2**20,
    "nothing at all": lambda challenge: message(b""),
    "no proof": lambda challenge: message(json.dumps([1, 2, "x", "x"]).encode()),
    "another secret": lambda challenge: message(hello_with(b"guessed", challenge)),
    "an old challenge": lambda challenge: message(hello_with(OUR_KEY, b"0" * 32)),
    # With the right secret, as a process of another version might:
    "a number as text": lambda c: message(hello_with(OUR_KEY, c, ("1", 2, "x", "x"))),
    "a fraction": lambda c: message(hello_with(OUR_KEY, c, (1.0, 2, "x", "x"))),
    "a truth value": lambda c: message(hello_with(OUR_KEY, c, (True, 2, "x", "x"))),
    "too few": lambda c: message(hello_with(OUR_KEY, c, (1, 2))),
    "deep": lambda c: message(hello_with(OUR_KEY, c, b"[" * 900)),
}


@pytest.mark.parametrize("what", STRANGERS)
def test_strangers_are_told_once_and_change_nothing(connect, what, capfd, monkeypatch):
    monkeypatch.setattr(handshake, "INTRODUCTION_SECONDS", 1.0)
    port = free_port()
    (leader,) = coming(2, 0, port=port)
    strangers = [connect(port) for _ in range(2)]
    for stranger in strangers:
        name, way, challenge = said(stranger).split()
        assert (name, way, len(challenge)) == (b"jaxrl_scale", b"key", 32)
        with contextlib.suppress(ConnectionError):
            stranger.sendall(STRANGERS[what](challenge))
    for stranger in strangers:
        assert said(stranger) in (b"", b"?")
        assert said(stranger) == b""  # turned away
    connect(port)  # one is there while the processes meet, talk and leave
    links = [leader.result(PATIENCE) for leader in (leader, *coming(2, 1, port=port))]
    assert in_all(links, lambda link: link.gather("who", link.process_id)) == [[0, 1]] * 2
    begun = time.monotonic()
    in_all(links, lambda link: link.close())
    assert time.monotonic() - begun < 30
    (warning,) = capfd.readouterr().err.splitlines()
    assert "somebody at 127.0.0.1 connected to this run and was turned away" in warning


def test_a_stranger_that_sends_byte_by_byte_has_no_more_time(connect, capfd, monkeypatch):
    monkeypatch.setattr(handshake, "INTRODUCTION_SECONDS", 1.0)
    port = free_port()
    (leader,) = coming(2, 0, port=port)
    stranger = connect(port)
    begun = time.monotonic()
    with contextlib.suppress(ConnectionError):
        for byte in message(b"x" * 900):
            stranger.sendall(bytes([byte]))
            time.sleep(0.1)
    assert time.monotonic() - begun < 60
    in_all([leader.result(PATIENCE) for leader in (leader, *coming(2, 1, port=port))], close)
    assert "did not introduce itself in time" in capfd.readouterr().err


def close(link):
    link.close()


def test_a_crowd_of_idle_strangers_keeps_nobody_out(connect, monkeypatch):
    monkeypatch.setattr(handshake, "INTRODUCTION_SECONDS", PATIENCE)  # they do not go by themselves
    port = free_port()
    (leader,) = coming(3, 0, port=port)
    crowd = [connect(port) for _ in range(100)]
    assert said(crowd[0]) != b""
    assert said(crowd[0]) == b""  # the first to come has to go
    links = [link.result(PATIENCE) for link in (leader, *coming(3, 1, 2, port=port))]
    in_all(links, close)


def test_nobody_listens_once_all_have_come():
    port = free_port()
    links = [link.result(PATIENCE) for link in coming(2, 0, 1, port=port)]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    in_all(links, close)


@pytest.mark.parametrize(
    ("host", "elsewhere"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)]
)
def test_processes_of_one_machine_meet_where_no_other_machine_can_come(connect, host, elsewhere):
    port = free_port()
    (leader,) = coming(2, 0, port=port, host=host)
    connect(port)
    if elsewhere:
        socket.create_connection(("127.0.0.2", port)).close()
    else:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))
    links = [link.result(PATIENCE) for link in (leader, *coming(2, 1, port=port))]
    in_all(links, close)


def test_a_process_with_another_secret_is_told_so_and_the_others_go_on(connect, monkeypatch, capfd):
    port = free_port()
    (leader,) = coming(2, 0, port=port)
    connect(port)  # process 0 has read its secret
    monkeypatch.setenv("JAXRL_SECRET", "some other secret")
    with pytest.raises(RunError, match=r"have different secrets.*JAXRL_SECRET") as error:
        peers.join(Cluster(2, 1, "127.0.0.1", port), Launch())
    assert error.value.status == MISTAKE
    monkeypatch.undo()
    monkeypatch.setenv("JAXRL_SECRET", OUR_KEY.decode())
    in_all([link.result(PATIENCE) for link in (leader, *coming(2, 1, port=port))], close)
    assert "does not know the run's secret" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("greeting", "answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request", b"", "within 1 s .*: it sent a message of"),
        (message(b"hello"), b"", "within 1 s .*: another program listens there"),
        (message(b"jaxrl_scale key " + b"0" * 32), message(b"0" * 64), "different secrets"),
        (b"", b"", "within 1 s .*: it hung up"),
    ],
)
def test_who_only_pretends_to_be_process_0_is_not_talked_to(greeting, answer, reason):
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def pretend():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = impostor.accept()
                    connection.sendall(greeting)
                    if answer:
                        said(connection)
                        connection.sendall(answer)
                    connection.close()

        threading.Thread(target=pretend, daemon=True).start()
        port = impostor.getsockname()[1]
        with pytest.raises(RunError, match=reason):
            peers.join(Cluster(2, 1, "127.0.0.1", port), Launch(start_timeout=1))


def test_nobody_else_can_be_process_0():
    who = handshake.Hello(0, 2, "impostor", "x")
    refusal = peers.Peers(Cluster(2, 0))._seat(who, None, None)
    assert refusal == "it is process 0 of 2, this run has 2"


class Wire:
    """What one side of an introduction writes, which ``between`` may change."""

    def __init__(self, reader, between):
        self.reader, self.between = reader, between

    def write(self, data):
        self.reader.feed_data(self.between(data))

    async def drain(self):
        pass


def introduced(between):
    """What process 0 and process 1 take each other for, where process 1 is heard changed."""

    async def both():
        here, there = asyncio.StreamReader(), asyncio.StreamReader()
        environment = {"JAXRL_SECRET": OUR_KEY.decode()}
        who = handshake.Hello(1, 2, "node1", "x")
        return await asyncio.gather(
            handshake.admit(here, Wire(there, bytes), Key(OUR_KEY)),
            handshake.introduce(there, Wire(here, between), who, environment),
            return_exceptions=True,
        )

    return asyncio.run(both())


def test_nobody_between_two_processes_can_change_what_one_says():
    assert introduced(bytes) == [handshake.Hello(1, 2, "node1", "x"), None]
    leader, member = introduced(lambda data: data.replace(b"node1", b"node2"))
    assert isinstance(leader, handshake.Stranger)
    assert "have different secrets" in str(member)


def answered(answer):
    """What process 1 takes somebody for who greets as an earlier process 0 did, and gives this
    answer to what it says."""

    async def alone():
        there = asyncio.StreamReader()
        there.feed_data(message(b"jaxrl_scale key " + b"0" * 32))

        def replied(data):
            there.feed_data(message(answer(data[4:])))
            return b""

        who, environment = handshake.Hello(1, 2, "x", "x"), {"JAXRL_SECRET": OUR_KEY.decode()}
        wire = Wire(asyncio.StreamReader(), replied)
        await handshake.introduce(there, wire, who, environment)

    asyncio.run(alone())


def test_what_a_process_said_itself_or_was_told_earlier_proves_nothing(monkeypatch):
    def as_process_0(said):
        """The right answer, by the code of process 0."""

        async def admitted():
            reader, told = asyncio.StreamReader(), asyncio.StreamReader()
            reader.feed_data(message(said))
            with monkeypatch.context() as patch:
                patch.setattr(handshake.secrets, "token_hex", lambda _: "0" * 32)
                await handshake.admit(reader, Wire(told, bytes), Key(OUR_KEY))
            await handshake._read(told, 1024)  # the greeting
            return await handshake._read(told, 1024)

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, admitted()).result()

    earlier = []

    def right(said):
        earlier.append(as_process_0(said))
        return earlier[-1]

    answered(right)
    for answer in (lambda said: earlier[0], lambda said: said.split(b" ")[0]):
        with pytest.raises(RunError, match="have different secrets"):
            answered(answer)


# --- the secret -----------------------------------------------------------------------------


def test_all_processes_of_a_user_have_one_secret_that_nobody_else_can_read(tmp_path):
    environment = {"HOME": str(tmp_path)}
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: secret.choose(environment).text, range(64)))
    (key,) = keys
    assert len(key) == 64
    file = tmp_path / ".config" / "jaxrl_scale" / "secret"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    with pytest.raises(RunError, match=r"others can read .*chmod 600"):
        secret.choose(environment)


def test_a_full_disk_leaves_no_empty_secret(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make = os.open
    with monkeypatch.context() as patched:
        patched.setattr(secret.os, "open", lambda *how: (make(*how), make("/dev/full", 1))[1])
        with pytest.raises(RunError, match=r"no secret can be kept in .*JAXRL_SECRET"):
            secret.choose({"HOME": str(tmp_path)})
    assert len(secret.choose({"HOME": str(tmp_path)}).text) == 64


def test_without_a_home_the_secret_is_in_a_folder_of_the_user_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    keys = {secret.choose({"HOME": "/proc/none"}).text for _ in range(2)}
    assert len(keys) == 1
    folder = tmp_path / f"jaxrl_scale-{os.geteuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    refused = r"no secret can be kept in .*JAXRL_SECRET"
    for mode in (0o777, 0o720):
        folder.chmod(mode)
        with pytest.raises(RunError, match=refused):
            secret.choose({"HOME": "/proc/none"})
    folder.chmod(0o700)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")  # it may be changed to another place
    with pytest.raises(RunError, match=refused):
        secret.choose({"HOME": "/proc/none"})
    somebody_else = os.geteuid() + 1
    (tmp_path / "elsewhere").rename(tmp_path / f"jaxrl_scale-{somebody_else}")
    monkeypatch.setattr(os, "geteuid", lambda: somebody_else)
    with pytest.raises(RunError, match=refused):
        secret.choose({"HOME": "/proc/none"})


def test_a_secret_that_is_given_comes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(secret, "_munge_works", lambda environment: True)
    assert secret.choose({"SLURM_JOB_ID": "1"}) == secret.Munge()
    file = tmp_path / "secret"
    given = {"JAXRL_SECRET_FILE": str(file), "SLURM_JOB_ID": "1"}
    with pytest.raises(RunError, match=r"cannot read .*No such file"):
        secret.choose(given)
    file.write_text("sixteen characters or more\n")
    with pytest.raises(RunError, match="others can read"):
        secret.choose(given)
    file.chmod(0o600)
    assert secret.choose(given).text == b"sixteen characters or more"
    assert secret.choose(given | {"JAXRL_SECRET": "x" * 16}).text == b"x" * 16
    for choose in (secret.choose, secret.check_given):
        with pytest.raises(RunError, match="JAXRL_SECRET should hold at least 16 characters"):
            choose(given | {"JAXRL_SECRET": "short"})
    secret.check_given({})


def test_a_proof_of_munge_can_be_read_by_the_user_alone(tmp_path, monkeypatch):
    command = tmp_path / "munge"
    command.write_text('#!/bin/sh\necho "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert secret.Munge().prove(b"this") == b"--restrict-uid=%d" % os.geteuid()


def test_a_proof_holds_for_one_statement_and_one_secret():
    key = Key(b"a secret")
    assert key.check(b"this", key.prove(b"this"))
    assert not key.check(b"that", key.prove(b"this"))
    assert not Key(b"another").check(b"this", key.prove(b"this"))
    for garbage in (b"", b"\xff", key.prove(b"this")[:-1]):
        assert not key.check(b"this", garbage)


# --- the same run, whatever it ran on -------------------------------------------------------


def all_well(done):
    for one in done.values():
        well(one)


@pytest.mark.parametrize(("number", "devices"), [(2, 1), (2, 2)])  # 4: in the test after next
def test_processes_change_no_bit(world, reference, path, number, devices):
    done = world.run_ranks(number, *world.small(path), "--devices", devices)
    all_well(done)
    assert f"{number} processes of {devices} cpu device" in done[0].out
    assert all(done[k].out == "" for k in range(1, number))  # process 0 alone writes
    assert_same_run(path, reference)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batch", "mlp", "cnn", "gru", "dqn", "nature"])
def test_large_products_on_four_processes_change_no_bit(world, path, name):
    """XLA would share these among the threads of a process, of which four processes have others
    than one has. What is trained is in threads.py."""
    config = world.folder / f"{name}.py"
    whole = (CONFIGS | IMAGES)[name].replace(num_shards=4, devices=1)
    config.write_text(files.to_python(whole, "Large products."))
    well(world.run("--config", config, "--run_dir", path))
    together = path.with_name(f"{name}_together")
    all_well(world.run_ranks(4, "--config", config, "--run_dir", together))
    assert_same_run(together, path)


@pytest.mark.parametrize(
    ("processes", "changes", "said"),
    [
        (2, {"num_seeds": 4}, "2 agents each"),
        (3, {"num_seeds": 3, "iterations": 2, "devices": 1}, "1 agent each"),
    ],
)
def test_whole_seeds_on_processes_change_no_bit(world, path, processes, changes, said):
    """Of 4 agents the programs are those of a sweep in test_search.py. Whole agents may be on any
    number of processes, not only on a power of two."""
    seeds = options(SMALL_A2C | changes | {"compilation_cache": world.cache})
    alone = path.with_name(f"{path.name}_alone")
    well(world.run(*seeds, "--run_dir", alone))
    done = world.run_ranks(processes, *seeds, "--run_dir", path)
    all_well(done)
    assert said in done[0].out
    assert_same_run(path, alone)


def test_a_run_goes_on_with_4_then_2_then_1_then_4_processes(world, reference, path):
    stops = [(4, 5, 3), (2, 11, 1), (1, 16, 0), (4, None, 0)]  # processes, iteration, who is told
    states = []
    for number, at, who in stops:
        accidents = {who: {"signal": "SIGUSR1", "at": at}} if at else {}
        call = ["--resume", path] if states else world.small(path)
        done = world.run_ranks(number, *call, accidents=accidents)
        assert {d.status for d in done.values()} == {AGAIN if at else DONE}, done
        assert all(d.err == "" for d in done.values())
        states.append(state(path))
    assert_same_run(path, reference)
    # At each hand-over the state is that of the run which nobody stopped, leaf by leaf.
    undisturbed = path.with_name("every_iteration")
    world.train_well(undisturbed, "--checkpoint_every", 1, "--keep_checkpoints", 24)
    for (_, at, _), (iteration, leaves) in zip(stops[:-1], states[:-1], strict=True):
        assert at <= iteration <= at + 1
        assert_same_bits(leaves, state(undisturbed, iteration)[1])


def test_hosts_without_a_shared_folder_keep_their_own_parts(world, reference, path):
    lab.need("unshare")
    path.mkdir()
    disks = [path.with_name(f"{path.name}_disk{k}") for k in (0, 1)]
    for disk in disks:
        disk.mkdir()
    withins = [on_own_disk(disk, path) for disk in disks]
    stopped = world.run_ranks(
        2, *world.small(path), withins=withins, accidents={1: {"signal": "SIGTERM", "at": 9}}
    )
    assert {d.status for d in stopped.values()} == {AGAIN}, stopped
    assert "not one folder for all processes" in stopped[0].out
    parts = [sorted(p.name for p in (disk / "checkpoints").glob("[0-9]*")) for disk in disks]
    assert all("part" not in name for name in parts[0])
    assert all("part" in name for name in parts[1])
    assert len(parts[0]) == len(parts[1])
    all_well(world.run_ranks(2, "--resume", path, "--wandb_project=other", withins=withins))
    configs = [json.loads((disk / "config.json").read_text()) for disk in disks]
    assert configs[0] == configs[1]  # or the next resume would find two runs
    # The two disks together are the run.
    shutil.copytree(disks[1], path, dirs_exist_ok=True)
    shutil.copytree(disks[0], path, dirs_exist_ok=True)
    assert_same_run(path, reference)


def on_own_disk(disk, path):
    """Runs a command where ``path`` is a folder of its own."""

    def within(*command):
        mount = f'mount --bind {disk} {path} && exec "$@"'
        return ["unshare", "--mount", "bash", "-c", mount, "bash", *command]

    return within


# --- whatever happens to one, all end -------------------------------------------------------

SLOWLY = {"seconds": 0.05}


class Trial:
    """A run of several processes to which something happens in the middle of it."""

    def __init__(self, world, path, number=2, accidents=None, withins=None, more=(), **how):
        self.world, self.path, self.number = world, path, number
        self.accidents = dict.fromkeys(range(number), SLOWLY) | (accidents or {})
        self.withins, self.how, self.begun = withins, how, newest(path)
        self.processes = world.start_ranks(
            number,
            *(world.small(path) if not (path / "config.json").exists() else ("--resume", path)),
            *("--heartbeat", HEARTBEAT),
            *more,
            accidents=self.accidents,
            withins=withins,
            **how,
        )

    def saved(self, iterations):
        """Wait until it has gone on by so many iterations and saved."""
        limit = time.monotonic() + PATIENCE
        while newest(self.path) < self.begun + iterations:
            for k, process in self.processes.items():
                assert process.poll() is None, (k, process.communicate())
            assert time.monotonic() < limit
            time.sleep(0.02)
        return self

    def send(self, k, number):
        self.since = time.monotonic()
        self.processes[k].send_signal(number)
        return self

    def survivors(self, *victims):
        """How the others ended, and how many seconds it took them to."""
        others = {k: p for k, p in self.processes.items() if k not in victims}
        done = ended(others, patience=60)
        seconds = time.monotonic() - self.since
        for k in victims:
            self.processes[k].kill()
            self.processes[k].communicate()
        print(f"the others had ended {seconds:.2f} s later")
        return done, seconds

    def resume(self):
        """Again, undisturbed, with the same processes: as a scheduler would requeue it."""
        all_well(
            self.world.run_ranks(
                self.number, "--resume", self.path, withins=self.withins, **self.how
            )
        )


def assert_lost(done, who, why):
    for one in done.values():
        if who == 0 and one.status == -signal.SIGABRT:
            continue  # XLA's own abort, where its service goes with process 0, may come first
        assert one.status == AGAIN, one
        assert re.search(rf"process {who} of \d on \S+ was lost: {why}.*--resume", one.err), one
        # XLA may get a word in where process 0 is gone.
        assert one.err.count("error: ") == 1


# What follows happens to two runs, one thing after the other, each in one directory. In the end
# both are the run that nobody disturbed.


@pytest.fixture(scope="module")
def stricken(world):
    """The directory of the one."""
    return world.folder / "stricken"


@pytest.mark.parametrize("victim", [0, 1])  # of four: in the slow soak
def test_a_killed_process_ends_all_at_once(world, stricken, victim):
    trial = Trial(world, stricken).saved(2).send(victim, signal.SIGKILL)
    done, seconds = trial.survivors(victim)
    assert_lost(done, victim, "(its connection closed|.*reset)")
    assert seconds < HEARTBEAT


@pytest.mark.parametrize("victim", [0, 1])
def test_one_killed_while_the_other_waits_for_its_devices_is_named(world, stricken, victim):
    """JAX says to the other that it has no devices, which is no mistake of the user's."""
    accidents = {victim: {"kill_at_devices": True}, 1 - victim: {"no_devices": True}}
    done = ended(Trial(world, stricken, accidents=accidents).processes)
    assert done[victim].status == -signal.SIGKILL
    other = done[1 - victim]
    assert other.status == AGAIN, other
    assert re.search(rf"error: .*process {victim} of 2 on \S+ was lost: ", other.err), other


@pytest.mark.parametrize("victim", [0, 1])
def test_a_frozen_process_is_noticed_after_the_heartbeat(world, stricken, victim):
    trial = Trial(world, stricken).saved(2).send(victim, signal.SIGSTOP)
    done, seconds = trial.survivors(victim)
    assert_lost(done, victim, rf"silent for {HEARTBEAT:g} s \(--heartbeat\)")
    assert HEARTBEAT - 2 < seconds < HEARTBEAT + 10


def test_a_signal_to_one_process_stops_all_at_one_iteration(world, stricken):
    trial = Trial(world, stricken).saved(2).send(1, signal.SIGTERM)
    done, _ = trial.survivors()
    assert {d.status for d in done.values()} == {AGAIN}
    assert all(d.err == "" for d in done.values())
    assert re.search(r"stopped by .* and saved at iteration \d+ of 24", done[0].out)
    assert summary(stricken)["iterations"] == newest(stricken)


def test_a_process_frozen_for_a_while_loses_nothing(world, reference, stricken):
    trial = Trial(world, stricken).saved(2).send(1, signal.SIGSTOP)
    time.sleep(HEARTBEAT / 3)
    trial.send(1, signal.SIGCONT)
    all_well(ended(trial.processes))
    assert_same_run(stricken, reference)


@pytest.fixture(scope="module")
def struck(world):
    """The directory of the other."""
    return world.folder / "struck"


@pytest.mark.parametrize(
    ("victim", "event"),  # of different kinds, in different saves
    [(0, 90), (0, 60), (1, 50), (1, 40)],
)
def test_a_process_killed_while_it_saves_leaves_whole_checkpoints(world, struck, victim, event):
    before = newest(struck)
    trial = Trial(world, struck, accidents={victim: {"kill_at_file_event": event}})
    done = ended(trial.processes)
    assert done[victim].status == -signal.SIGKILL, done
    assert done[1 - victim].status == AGAIN, done
    print(f"the newest checkpoint was that of iteration {before} and is that of {newest(struck)}")


def test_after_all_that_it_is_the_run_that_nobody_disturbed(world, reference, struck):
    all_well(world.run_ranks(2, "--resume", struck))
    assert_same_run(struck, reference)


@pytest.fixture
def small_disk(path):
    """A disk of its own for the run: ``small_disk(size)`` makes it, or gives it another size."""
    lab.need("unshare")

    def resize(size):
        path.mkdir(exist_ok=True)
        how = f"size={size},remount" if os.path.ismount(path) else f"size={size}"
        command = ["mount", "-t", "tmpfs", "-o", how, "tmpfs", path]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("this process may not mount a tmpfs (needs root)")

    yield resize
    if os.path.ismount(path):
        subprocess.run(["umount", path], check=True)


def test_a_full_folder_ends_all_and_keeps_what_was_saved(world, reference, path, small_disk):
    small_disk("300k")
    trial = Trial(world, path, more=["--keep_checkpoints", 20])
    done = ended(trial.processes)
    assert {d.status for d in done.values()} == {IO_ERROR}, done
    assert all("No space left on device" in d.err for d in done.values())
    assert newest(path) >= 2  # else the disk is too small to show anything
    small_disk("100m")
    trial.resume()
    assert rows(path) == rows(reference)
    assert_same_bits(state(path)[1], state(reference)[1])


# --- the network ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network():
    with lab.Network(hosts=2) as network:
        yield network


@pytest.fixture(scope="module")
def divided(world):
    """The directory of a run on two hosts whose network fails."""
    return world.folder / "divided"


def on(network):
    def within(host):
        return lambda *command: network.command(host, *command)

    return {"withins": [within("h0"), within("h1")], "coordinator": "h0:6000"}


def test_a_link_cut_for_good_ends_both_sides(world, divided, network):
    trial = Trial(world, divided, **on(network)).saved(6)
    network.cut("h1")
    trial.since = time.monotonic()
    done, seconds = trial.survivors()
    network.mend("h1")
    for k in (0, 1):
        assert done[k].status == AGAIN, done
        assert f"process {1 - k} of 2 on h{1 - k} was lost: silent for" in done[k].err
    assert seconds < HEARTBEAT + 10


def test_a_link_cut_for_three_seconds_is_waited_for(world, reference, divided, network):
    trial = Trial(world, divided, **on(network)).saved(6)
    network.cut("h1")
    time.sleep(3)
    network.mend("h1")
    all_well(ended(trial.processes))
    assert_same_run(divided, reference)


# --- again and again ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_random_kills_lose_nothing(world, path):
    """Any process, at any moment, the meeting at the start included."""
    longer = ["--iterations", 1500, "--checkpoint_every", 5, "--eval_every", 500]
    alone = path.with_name("soak_alone")
    world.train_well(alone, *longer)
    random_, before, kills = random.Random(0), [0], 0
    while kills < 20:
        number = random_.choice([2, 4])
        resumes = (path / "config.json").exists()
        more = ["--start_timeout", 20, *(() if resumes else longer)]
        trial = Trial(world, path, number, more=more)
        victim = random_.randrange(number)
        if random_.random() < 0.75:  # else while they start
            trial.saved(5)
        time.sleep(random_.uniform(0, 3))
        assert trial.processes[victim].poll() is None, "it ended before it could be killed"
        done, _ = trial.send(victim, signal.SIGKILL).survivors(victim)
        # XLA's own abort may come first where its service goes with process 0.
        again = {AGAIN} if victim else {AGAIN, -signal.SIGABRT}
        assert {one.status for one in done.values()} <= again, done
        before.append(newest(path))
        assert before[-1] >= before[-2]
        kills += 1
    print(f"the newest checkpoint after each kill: {before[1:]}")
    trial = Trial(world, path)
    all_well(ended(trial.processes))
    assert_same_run(path, alone)
