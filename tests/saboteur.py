"""A command with an accident: ``python saboteur.py ACCIDENT --config …``.

ACCIDENT is a JSON object:

``{"kill_at_file_event": n}``   SIGKILL at the n-th thing done to a file of the run directory
``{"kill_at_evaluation": n}``   SIGKILL in the n-th evaluation
``{"kill_at_devices": true}``   SIGKILL while the other processes wait for this one's devices
``{"no_devices": true}``        what JAX says to those, at once: it may say so before anybody else
``{"signal": "SIGTERM", "at": k}``  that signal while iteration ``k`` is computed
``{"seconds": s}``              every iteration takes ``s`` seconds longer
``{"largest_file": n}``         no file can grow beyond ``n`` bytes
``{"count": path}``             writes the number of file events there at the end
``{"module": name}``            the command; that of training by default
"""

import atexit
import importlib.util
import itertools
import json
import os
import resource
import runpy
import signal
import sys
import time

accident = json.loads(sys.argv.pop(1))
options = sys.argv
run_dir = next(b for a, b in itertools.pairwise(options) if a in ("--run_dir", "--resume"))
events = itertools.count(1)
seen = 0


def watch(event, arguments):
    global seen
    if event == "open" or event.startswith(("os.", "shutil.")):
        paths = [os.fsdecode(x) for x in arguments[:2] if isinstance(x, str | bytes)]
        if any(run_dir in path for path in paths):
            seen = next(events)
            if seen == accident.get("kill_at_file_event"):
                os.kill(os.getpid(), signal.SIGKILL)


sys.addaudithook(watch)

if size := accident.get("largest_file"):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

if path := accident.get("count"):

    @atexit.register
    def write_count():
        with open(path, "w") as file:
            file.write(str(seen))


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import jax  # noqa: E402

from jaxrl_scale.loop import evaluator, host_runner, runner  # noqa: E402
from jaxrl_scale.parallel import placement  # noqa: E402

true_evaluate, true_devices = evaluator.Evaluator.__call__, jax.devices
evaluations = itertools.count(1)


def disturbed(true_steps):
    def steps(self, state, count, stop=False, *others):
        done = int(placement.first_to_host(state.shared.iteration).ravel()[0])
        if done + 1 == accident.get("at"):
            os.kill(os.getpid(), getattr(signal, accident["signal"]))
        time.sleep(accident.get("seconds", 0))
        return true_steps(self, state, count, stop, *others)

    return steps


def devices():
    if accident.get("kill_at_devices"):
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    if accident.get("no_devices"):
        raise RuntimeError("Unable to initialize backend 'cpu': UNAVAILABLE: recvmsg: reset")
    return true_devices()


def play(self, *arguments):
    if next(evaluations) == accident.get("kill_at_evaluation"):
        os.kill(os.getpid(), signal.SIGKILL)
    return true_evaluate(self, *arguments)


for kind in (runner.Runner, host_runner.HostRunner):
    kind.steps = disturbed(kind.steps)
    kind.at_once = 1  # so that an accident happens at its iteration
evaluator.Evaluator.__call__, jax.devices = play, devices
module = accident.get("module", "jaxrl_scale.train")
sys.argv[0] = f"{module.rpartition('.')[2]}.py"
# What is disturbed is outside the compiled programs, so that they are found as in the command.
sys.modules["__main__"].__spec__ = importlib.util.find_spec(module)
runpy.run_module(module, run_name="__main__")
