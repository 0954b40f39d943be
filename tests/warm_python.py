"""What stands for ``python`` where a launcher, Slurm, ssh or nsenter starts a process, no test.

``python -I -S warm_python.py SOCKET -m MODULE …`` has the nursery of `warm` go on with that command
in this process's environment, folder and namespaces, on its cores and with its output. This process
hands on every signal and ends as the other one ends; where this one is killed, so is the other.
"""

import json
import os
import signal
import socket
import sys

HANDED_ON = ("SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
NAMESPACES = ("uts", "net", "pid", "mnt")  # as in warm.py

address, *command = sys.argv[1:]
nursery = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
nursery.connect(address)
for name in HANDED_ON:
    number = getattr(signal, name)
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, lambda number, _: nursery.send(bytes([number])))
told, tell = os.pipe()
request = [[], [command, list(os.environ.items()), os.getcwd(), list(os.sched_getaffinity(0))]]
ends = [1, 2, tell, *(os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in NAMESPACES)]
socket.send_fds(nursery, [json.dumps(request).encode()], ends)
os.close(tell)
with os.fdopen(told) as lines:
    lines.readline()  # its number
    ended = os.waitstatus_to_exitcode(int(lines.readline()))
if ended < 0:
    signal.signal(-ended, signal.SIG_DFL)
    os.kill(os.getpid(), -ended)
sys.exit(ended)
