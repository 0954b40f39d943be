"""A real OAR with two nodes: on a machine made of this one and thrown away afterwards.

An overlay file system over this machine's, in namespaces of its own, holds all that is installed,
configured and started; nothing of it remains. That takes Linux, root, and Debian's packages.

The two nodes are two addresses of the loopback, behind one sshd.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGES = (
    "oar-server oar-server-pgsql oar-user oar-user-pgsql oar-node "
    "postgresql taktuk openssh-server procps iproute2"
)
NODES = ("127.0.0.2", "127.0.0.3")
USER = "researcher"  # OAR lets neither root nor oar submit
HOME = Path("/home", USER)  # not in /tmp, where OAR deletes a user's files after a job
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

UNSHARE = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
ENTER = ["nsenter", "--mount", "--uts", "--pid", "--net", "--root"]

# Process 1 of the new machine; when its standard input closes, all of it ends.
MACHINE = r"""
set -eu
folder=$1 home=$2; shift 2
read -r pid _ < /proc/self/stat  # as the outside counts

mount --make-rprivate /
mount -t tmpfs overlay "$folder"
cd "$folder"
mkdir above work root
mount -t overlay overlay -o lowerdir=/,upperdir=above,workdir=work root
cd root
mount --rbind /dev dev
mount --rbind /sys sys
mount -t proc proc proc
for place in dev/shm run tmp; do mount -t tmpfs -o mode=1777 tmpfs $place; done
mkdir -p run/lock run/sshd run/postgresql
cp --remove-destination -L /etc/resolv.conf etc/resolv.conf

for path in "$@"; do  # these may lie elsewhere, or where only root can go
  mkdir -p ".$path"
  mount --rbind "$path" ".$path"
  mount -o remount,bind,ro ".$path"
  while path=$(dirname "$path"); [ "$path" != / ]; do chmod -f o+x ".$path" || true; done
done
mkdir -p ".$home"
mount --bind "$folder.home" ".$home"

printf '#!/bin/sh\nexit 101\n' > usr/sbin/policy-rc.d  # installing starts nothing
chmod +x usr/sbin/policy-rc.d
hostname localhost  # gloo listens at the address of the host's own name
export DEBIAN_FRONTEND=noninteractive HOME=/root LC_ALL=C
chroot . sh -ec "$INSTALL" >&2
exec unshare --net chroot . bash -euc "$START" start "$pid"
"""

NOT_INSTALLED = 69
INSTALL = f"""
install="apt-get install -qq --no-install-recommends {PACKAGES}"
$install || {{ apt-get update -qq && $install; }} || exit {NOT_INSTALLED}
"""

START = rf"""
ip link set lo up
chmod 755 /  # sshd and OAR want the paths to their files to be root's alone
useradd --no-create-home --home-dir {HOME} --shell /bin/bash {USER}
touch {HOME}/.bashrc  # OAR reads it
chown -R {USER} {HOME}

# The database. The package's own cluster may be in use outside.
data=/var/lib/oar-database bin=$(echo /usr/lib/postgresql/*/bin | tr ' ' '\n' | tail -n 1)
install -d -o postgres -m 700 $data
chown postgres /run/postgresql
cd /
runuser -u postgres -- "$bin/initdb" -A trust -N -D $data >&2
runuser -u postgres -- "$bin/pg_ctl" -D $data -l $data/log -o '-F' -w start >&2

sed -i -E '
  s/^#?(DB_BASE_PASSWD(_RO)?)=.*/\1="oar"/
  s/^#?(SERVER_HOSTNAME)=.*/\1="localhost"/
  s/^#?(SCHEDULER_JOB_SECURITY_TIME)=.*/\1="2"/
  s/^#?(JOB_RESOURCE_MANAGER_FILE)=.*/\1="\/etc\/oar\/end_of_job.pl"/
  s/^(CPUSET_PATH=.*)/#\1/
' /etc/oar/oar.conf
cat > /etc/oar/end_of_job.pl <<'end'
# In place of OAR's own, which does this with cpusets: machines that test may lack them.
my $job = eval(join("", <STDIN>));
exit(0) if ($ARGV[0] ne "clean");
system("oardodo pkill -KILL -u $job->{{user}}");
system("oardodo find /tmp/. /dev/shm/. /var/tmp/. -user $job->{{user}} -delete");
exit(0);
end
oar-database --create --db-is-local >&2

# The nodes.
addresses=$(printf 'ListenAddress %s\n' {" ".join(NODES)})
printf '%s\n' "$addresses" >> /etc/oar/sshd_config
/usr/sbin/sshd -f /etc/oar/sshd_config >&2
runuser -u oar -- /usr/sbin/Almighty >/var/log/almighty 2>&1 </dev/null &
for node in {" ".join(NODES)}; do
  oarnodesetting -a -h $node -p cpuset=0 >&2
done
timeout 30 bash -c 'until true > /dev/tcp/localhost/6666; do sleep 0.2; done' 2>/dev/null
echo "$1"
cat >/dev/null  # until the other end closes
"""


def need() -> None:
    """Skip the test that calls this where the lab cannot be."""
    if reason := _missing():
        pytest.skip(reason)


def _missing() -> str | None:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs Linux and root"
    if not shutil.which("apt-get"):
        return "needs apt-get, and OAR among its packages (Debian 12)"
    if os.environ.get("CI") != "true" and os.environ.get("JAXRL_LAB") != "install":
        return "installs OAR, on a copy of this machine that it throws away: JAXRL_LAB=install"
    trial = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs trial /mnt"]
    if subprocess.run(trial, capture_output=True).returncode != 0:
        return "needs a root that may mount (a container: --privileged)"
    return None


class Lab:
    """The machine. ``home`` is the home of the user who submits, as the outside sees it."""

    def __init__(self, folder: Path):
        self.folder, self.home = folder / "machine", folder / "machine.home"
        self.log = folder / "machine.log"

    def __enter__(self) -> Lab:
        self.folder.mkdir()
        self.home.mkdir()
        places = [REPOSITORY, sys.prefix, sys.base_prefix]
        with self.log.open("w") as log:
            self.machine = subprocess.Popen(
                [*UNSHARE, "bash", "-c", MACHINE, "machine", self.folder, HOME, *places],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"INSTALL": INSTALL, "START": START},
            )
        self.pid = self.machine.stdout.readline().strip()
        if not self.pid:
            self.machine.communicate()
            if self.machine.returncode == NOT_INSTALLED:
                pytest.skip(f"could not install OAR: {tail(self.log)}")
            raise RuntimeError(f"no machine with OAR: {tail(self.log)}")
        return self

    def __exit__(self, *_: object) -> None:
        self.machine.stdin.close()
        self.machine.wait(timeout=30)
        self.machine.stdout.close()
        self.folder.rmdir()

    def run(self, *command: object, user: str = "root") -> str:
        """What a command says on the machine, run in the user's home."""
        enter = [*ENTER, f"--target={self.pid}", f"--wdns={HOME}", "runuser", "-u", user, "--"]
        done = subprocess.run(
            [*enter, *map(str, command)],
            env={"HOME": str(HOME), "PWD": str(HOME), "PATH": PATH},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def submit(self, command: str, *options: object) -> int:
        """Its number."""
        said = self.run("oarsub", *options, command, user=USER)
        return int(re.search(r"OAR_JOB_ID=(\d+)", said).group(1))

    def state(self, job: int) -> str:
        """The state, with the exit status if there is one: `Running`, `Terminated 0`."""
        query = f"select concat_ws(' ', state, exit_code >> 8) from jobs where job_id = {job}"
        return self.sql(query)

    def end(self, job: int) -> str:
        """The state once the job has ended."""
        ended = ("Terminated", "Error")
        return until(lambda: (now := self.state(job)).startswith(ended) and now, self.story)

    def successor(self, job: int) -> int:
        """The job that OAR submitted in this one's place."""
        query = f"select job_id from jobs where resubmit_job_id = {job}"
        return int(until(lambda: self.sql(query), self.story))

    def events(self, job: int) -> list[str]:
        """What OAR has done to a job."""
        return self.sql(f"select type from event_logs where job_id = {job} order by 1").split()

    def sql(self, query: str) -> str:
        return self.run("psql", "-At", "-U", "postgres", "-c", query, "oar").strip()

    def story(self) -> str:
        """For the message of a failed check."""
        logs = [*sorted(self.home.glob("OAR.*")), *sorted(self.home.glob("runs/*/ranks/*.log"))]
        return "\n".join(f"--- {log}\n{tail(log)}" for log in [self.log, *logs])


def tail(path: Path) -> str:
    return path.read_text(errors="replace")[-3000:]


def until(condition: Callable[[], Any], story: Callable[[], str], patience: float = 600) -> Any:
    deadline = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < deadline, story()
        time.sleep(1)
    return value
