"""Real cluster programs on this one machine, for tests: Slurm, an ssh server, hosts in a network.

Slurm and the hosts live in namespaces of the kernel: own names, network and processes, nothing of
which the machine sees, and nothing of which is left when their first process ends, or when this
one does, however it does. That needs root. The programs are Debian packages, installed where
``CI=true`` or ``JAXRL_LAB=install`` says so, else tests that need a missing one are skipped.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jaxrl_scale.parallel.machine import free_port

PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "unshare": "util-linux",
    "mpirun": "openmpi-bin",
}
SLURM = ("slurmctld", "slurmd", "sbatch", "munged")
PATIENCE = 300  # seconds; the machine may be busy with other things
os.environ["PATH"] += os.pathsep + "/usr/sbin"  # where Debian keeps daemons


def need(*programs: str, root: bool = True) -> None:
    """Skip the test that calls this where it cannot run."""
    if root and os.geteuid() != 0:
        pytest.skip("needs root, for namespaces")
    missing = [PACKAGES[p] for p in programs if shutil.which(p) is None]
    if missing and (reason := _install(tuple(missing))):
        pytest.skip(reason)


@functools.cache
def _install(packages: tuple[str, ...]) -> str:
    """Why these could not be installed; empty where they are."""
    command = f"apt-get install {' '.join(packages)}"
    allowed = os.environ.get("CI") == "true" or os.environ.get("JAXRL_LAB") == "install"
    if not allowed or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"needs `{command}` (root on Debian with JAXRL_LAB=install: the test does it)"
    policy = Path("/usr/sbin/policy-rc.d")  # Debian asks it whether to start a daemon
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            done = subprocess.run(
                ["apt-get", "-qq", *words],
                env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
                capture_output=True,
                text=True,
            )
            if done.returncode != 0:
                return f"`apt-get {words[0]}` failed: {done.stderr.strip()[-200:]}"
    finally:
        if ours:
            policy.unlink()
    return ""


def until(
    condition: Callable[[], Any],
    what: Callable[[], str],
    patience: float = PATIENCE,
    pause: float = 0.05,
) -> Any:
    """Wait for a condition, asked for after every ``pause``; ``what`` tells the error what it was
    like instead."""
    limit = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > limit:
            raise AssertionError(what())
        time.sleep(pause)
    return value


class Box:
    """Namespaces of its own: host name, hosts file (``names`` to addresses), network, processes."""

    def __init__(self, folder: Path, name: str, names: dict[str, str], processes: bool = True):
        self.folder, self.name, self.names, self.processes = folder, name, names, processes

    def __enter__(self) -> Box:
        hosts = self.folder / f"hosts-{self.name}"
        lines = [f"{address} {name}\n" for name, address in self.names.items()]
        hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
        ready = self.folder / f"ready-{self.name}"
        begin = f"""
            set -e
            mount --bind {hosts} /etc/hosts
            mount -t tmpfs tmpfs /run
            mkdir /run/munge
            hostname {self.name}
            ip link set lo up
            # Slurm looks addresses up with AI_ADDRCONFIG, for which the loopback is no network.
            ip link add lan type bridge
            ip address add 10.76.0.1/24 dev lan
            ip link set lan up
            touch {ready}
            while :; do sleep 60 & wait || true; done  # and reap, as the first process
        """
        own = ["--mount", "--net", "--uts"]
        if self.processes:
            own += ["--pid", "--fork", "--kill-child", "--mount-proc"]
        self._outer = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", *own, "bash", "-c", begin],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            until(
                lambda: ready.exists() or self._outer.poll() is not None, lambda: "a box is stuck"
            )
            if self._outer.poll() is not None:
                assert self._outer.stdout is not None
                said = self._outer.stdout.read().decode()
                pytest.skip(f"needs namespaces, which this machine refuses: {said.strip()[-200:]}")
        except BaseException:
            self.__exit__()
            raise
        children = psutil.Process(self._outer.pid).children()
        self.pid = children[0].pid if self.processes else self._outer.pid
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._outer.pid).children(recursive=True):
                process.kill()
        self._outer.kill()
        self._outer.wait()
        if self._outer.stdout is not None:
            self._outer.stdout.close()

    def command(self, *command: Any) -> list[str]:
        """What runs a command in there, in the present working directory.

        It becomes that command (no process between), but for boxes with processes of their own.
        """
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--net", "--uts"]
        enter += ["--pid"] if self.processes else []
        return [*enter, "--", "env", f"--chdir={os.getcwd()}", *map(str, command)]

    def run(self, *command: Any, **how: Any) -> subprocess.CompletedProcess[str]:
        how = {"capture_output": True, "text": True, "timeout": PATIENCE} | how
        return subprocess.run(self.command(*command), **how)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """With a path short enough for sockets, and open to all users, as munge wants it."""
    path = Path(tempfile.mkdtemp(prefix="lab-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Slurm:
    """A Slurm cluster of virtual nodes ``n0`` …, which share this machine and its files.

    Every node claims two cores. A job that waits in partition ``high`` preempts those of ``low``
    (the default), which are requeued. A node is lost some seconds after its daemon.
    """

    def __init__(self, nodes: int = 4):
        need(*SLURM, "ip", "unshare")
        self.nodes = [f"n{k}" for k in range(nodes)]

    def __enter__(self) -> Slurm:
        with contextlib.ExitStack() as stack:
            self.folder = stack.enter_context(temporary_folder())
            self._conf = self.folder / "slurm.conf"
            version = subprocess.run(["slurmd", "-V"], capture_output=True, text=True).stdout
            if int(re.search(r"(\d+)\.", version)[1]) > 22:
                # It looks for control groups otherwise, and does not take those of every machine.
                (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
            self._conf.write_text(self._configuration())
            self._daemons: dict[str, subprocess.Popen[bytes]] = {}
            stack.callback(lambda: [daemon.wait() for daemon in self._daemons.values()])
            names = dict.fromkeys(("lab", *self.nodes), "127.0.0.1")
            self._box = stack.enter_context(Box(self.folder, "lab", names))
            self._start_daemons()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _configuration(self) -> str:
        nodes = "\n".join(
            f"NodeName={name} NodeHostname=lab NodeAddr=127.0.0.1 Port={17000 + k} "
            "CPUs=2 RealMemory=1000 State=UNKNOWN"
            for k, name in enumerate(self.nodes)
        )
        # cred_expire is also how long a requeued job waits (two minutes by default).
        return f"""
ClusterName=lab
SlurmctldHost=lab(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=5
MessageTimeout=3
TCPTimeout=1
KillWait=5
JobRequeue=1
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/%n.pid
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=60 MaxTime=INFINITE
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF MaxTime=INFINITE
"""

    def _start_daemons(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        files = [f"--{k}-file={self.folder}/munge.{k}" for k in ("key", "pid", "log", "seed")]
        self._daemon("munged", "--foreground", "--force", *files)
        until(lambda: self._box.run("munge", "--no-input").returncode == 0, self.logs)
        self._daemon("slurmctld", "-D", "-i")
        for name in self.nodes:
            self.restart_node(name)
        until(lambda: set(self.node_states().values()) == {"IDLE"}, self.logs)

    def _daemon(self, name: str, *command: Any, **environment: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._daemons[name] = subprocess.Popen(
                self._box.command(*(command if name in self.nodes else (name, *command))),
                env=os.environ | {"SLURM_CONF": str(self._conf)} | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def logs(self) -> str:
        """The last of what the daemons said, for errors."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-1000:]}" for log in logs)

    # --- commands ---

    def run(self, *command: Any, **how: Any) -> subprocess.CompletedProcess[str]:
        """A command on the head node, such as ``srun …``."""
        environment = how.pop("env", dict(os.environ)) | {"SLURM_CONF": str(self._conf)}
        return self._box.run(*command, env=environment, **how)

    def ask(self, *command: Any, **how: Any) -> str:
        """A command that must succeed; what it prints."""
        done = self.run(*command, **how)
        assert done.returncode == 0, f"{shlex.join(map(str, command))}: {done}\n{self.logs()}"
        return done.stdout

    def submit(self, *arguments: Any, **how: Any) -> int:
        """``sbatch``: options, script, its arguments. The job's number."""
        return int(self.ask("sbatch", "--parsable", *arguments, **how).split(";")[0])

    def show(self, job: int) -> dict[str, str]:
        """All that Slurm knows of a job: JobState, ExitCode, Restarts, NumNodes, NodeList …"""
        text = self.ask("scontrol", "--oneliner", "show", "job", job)
        return dict(field.split("=", 1) for field in text.split() if "=" in field)

    def state(self, job: int) -> str:
        return self.show(job)["JobState"]

    def wait(
        self, job: int, *states: str, restarts: int | None = None, patience: float = PATIENCE
    ) -> dict[str, str]:
        """Until a job is in one of the states (and was requeued so often); what it is like."""

        def there() -> dict[str, str] | None:
            now = self.show(job)
            again = restarts is None or int(now["Restarts"]) == restarts
            return now if now["JobState"] in states and again else None

        wanted = f"job {job} did not become {' or '.join(states)}"
        said = lambda: f"{wanted}: {self.show(job)}\n{self.logs()}"  # noqa: E731
        return until(there, said, patience, pause=0.5)  # asking takes 10 ms of a processor

    def preempt(self, job: int) -> None:
        """Take the job's nodes for a moment, with another job that comes first."""
        nodes = self.show(job)["NodeList"]
        self.ask("srun", "--partition=high", "--exclusive", f"--nodelist={nodes}", "true")

    # --- nodes ---

    def node_states(self) -> dict[str, str]:
        """IDLE, ALLOCATED, MIXED, DOWN …, with a star where a node does not answer."""
        text = self.run("scontrol", "--oneliner", "show", "nodes").stdout
        return dict(re.findall(r"NodeName=(\S+).*? State=(\S+)", text))

    def kill_node(self, name: str) -> None:
        """As if it lost its power: its daemon and all that runs there."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                own = process.environ()
                there = name in (own.get("LAB_NODE"), own.get("SLURMD_NODENAME"))
                if there and own.get("SLURM_CONF") == str(self._conf):
                    process.kill()
        self._daemons[name].wait()

    def restart_node(self, name: str) -> None:
        self._daemon(name, "slurmd", "-D", "-N", name, LAB_NODE=name)


class Sshd:
    """An ssh server on 127.0.0.2, .3 and .4, which stand for three hosts.

    ``client`` is the ssh to use: no password, and no file of the user's is read or written.
    """

    HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")

    def __enter__(self) -> Sshd:
        need("sshd", "ssh")
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(temporary_folder())
            port = free_port()
            for key in ("host_key", "user_key"):
                subprocess.run(
                    ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True
                )
            listen = "\n".join(f"ListenAddress {host}:{port}" for host in self.HOSTS)
            (folder / "server").write_text(
                f"{listen}\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/user_key.pub\n"
                "PidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nMaxStartups 100\n"
            )
            public = (folder / "host_key.pub").read_text()
            known = "".join(f"[{host}]:{port} {public}" for host in self.HOSTS)
            (folder / "known").write_text(known)
            (folder / "client").write_text(
                f"Port {port}\nIdentityFile {folder}/user_key\nIdentitiesOnly yes\nBatchMode yes\n"
                f"GlobalKnownHostsFile none\nUserKnownHostsFile {folder}/known\nLogLevel ERROR\n"
            )
            self.client = f"ssh -F {folder}/client"
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it, and the system removes it
            log = stack.enter_context(open(folder / "log", "wb"))
            program = shutil.which("sshd") or ""  # it starts itself again, by its whole path
            command = ["setpriv", "--pdeathsig", "TERM", program, "-D", "-e", "-f"]
            server = subprocess.Popen([*command, str(folder / "server")], stderr=log)
            stack.callback(server.wait)
            stack.callback(server.terminate)
            command = [*self.client.split(), self.HOSTS[0], "true"]
            until(
                lambda: subprocess.run(command, capture_output=True).returncode == 0,
                lambda: (folder / "log").read_text(),
                20,
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


class Network:
    """Hosts ``h0``, ``h1`` … with names and addresses of their own, joined by a switch."""

    def __init__(self, hosts: int = 2):
        need("ip", "unshare")
        self.hosts = {f"h{k}": f"10.77.0.{k + 1}" for k in range(hosts)}

    def __enter__(self) -> Network:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(temporary_folder())
            self._switch = stack.enter_context(Box(folder, "switch", {}, processes=False))
            self._in_switch("ip", "link", "add", "bridge", "type", "bridge")
            self._in_switch("ip", "link", "set", "bridge", "up")
            self._boxes = {}
            for name, address in self.hosts.items():
                box = stack.enter_context(Box(folder, name, self.hosts, processes=False))
                self._boxes[name] = box
                other_end = ["peer", "name", "eth0", "netns", str(box.pid)]
                self._in_switch("ip", "link", "add", name, "type", "veth", *other_end)
                self._in_switch("ip", "link", "set", name, "master", "bridge", "up")
                self._do(box, "ip", "address", "add", f"{address}/24", "dev", "eth0")
                self._do(box, "ip", "link", "set", "eth0", "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _in_switch(self, *command: str) -> None:
        self._do(self._switch, *command)

    @staticmethod
    def _do(box: Box, *command: str) -> None:
        done = box.run(*command)
        assert done.returncode == 0, (command, done.stderr)

    def command(self, host: str, *command: Any) -> list[str]:
        """What runs a command on a host; a signal to it is one to the command."""
        return self._boxes[host].command(*command)

    def cut(self, host: str) -> None:
        """Pull the host's cable: what is sent gets lost, and nobody is told."""
        self._in_switch("ip", "link", "set", host, "nomaster")

    def mend(self, host: str) -> None:
        self._in_switch("ip", "link", "set", host, "master", "bridge")
