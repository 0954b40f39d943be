"""Training in a process that takes the GPUs it sees, even if others take them too.

    python -m sharing --config …

So several processes can be tried where there is one GPU. NCCL refuses two processes with the same
GPU, unless they are on different hosts: it is told that each is on one of its own, and then sends
through sockets, as between hosts of a cluster without a faster network.
"""

import os
import sys

from jaxrl_scale.parallel import backend, machine

if len(machine.visible_gpus()) < int(os.environ["JAX_NUM_PROCESSES"]):
    os.environ["NCCL_HOSTID"] = os.environ["JAX_PROCESS_ID"]
    os.environ |= {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
    backend.split = lambda mine, owned, most=None: owned[mine][1][:most]

from jaxrl_scale.train import main

if __name__ == "__main__":
    sys.exit(main())
