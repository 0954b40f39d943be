"""Steps per second of the whole loop on a GPU, against the number of environments.

    python benchmarks/gpu.py speed --env CartPole-v1 --num_envs 1024 65536 1048576
    python benchmarks/gpu.py profile --env CartPole-v1 --num_envs 65536
    python benchmarks/gpu.py digests --num_envs 1024

Valid environment steps, all training included (rollout, advantages, gradient steps), nothing else:
compilation, evaluation and logging are left out. PPO as in configuration c of `throughput.py`:
separate 64-64 tanh actor and critic in float32, rollouts of 32 steps, 4 minibatches, 2 epochs.

``profile`` shows where the time of an iteration goes: how long the GPU computes, and the kernels
that take longest. ``digests`` trains the same run several times at once, with its programs compiled
anew each time, and shows whether the digests agree.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxrl_scale.config import Config
    from jaxrl_scale.loop.runner import Runner

SIZES = tuple(1024 * 4**k for k in range(6))
LONGEST_KERNELS = 15


def make_config(args: argparse.Namespace, num_envs: int) -> Config:
    """Configuration c of `throughput.py`, with another number of environments."""
    from jaxrl_scale.algos import ppo
    from jaxrl_scale.config import Config, check

    steps = num_envs * args.rollout_length
    config = Config(
        env=args.env,
        num_envs=num_envs,
        rollout_length=args.rollout_length,
        num_shards=args.num_shards,
        reduction=args.reduction,
        deterministic=args.deterministic,
        matmul_precision=args.matmul_precision,
        compilation_cache="",
        algo=ppo.Config(minibatch_size=steps // args.minibatches, epochs=args.epochs),
    )
    check(config)
    return config


def make_runner(args: argparse.Namespace, num_envs: int) -> Runner:
    from jaxrl_scale import envs
    from jaxrl_scale.loop.runner import Runner
    from jaxrl_scale.parallel import backend

    config = make_config(args, num_envs)
    return Runner(config, envs.make(config.env), backend.initialize(config))


def compiled(runner: Runner) -> float | str:
    """The seconds that compiling took, beside others, or why it was not possible."""
    from jaxrl_scale.errors import RunError

    start = time.perf_counter()
    try:
        runner.compile()
    except RunError as error:
        return str(error)
    return time.perf_counter() - start


def speed(args: argparse.Namespace) -> None:
    """A line for each number of environments: median and best of the calls of a few seconds."""
    runners = [make_runner(args, num_envs) for num_envs in args.num_envs]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        compilations = list(pool.map(compiled, runners))
    for runner, compilation in zip(runners, compilations, strict=True):
        name = f"{args.env:14} {runner.config.num_envs:9,} envs"
        if isinstance(compilation, str):
            print(f"{name}  {compilation}", flush=True)
            continue
        state, speeds, iterations = runner.init(), [], 0
        for _ in range(3):  # the first two make one iteration each, and tell how long it takes
            state, _, _ = runner.steps(state, runner.at_once)
        start = time.perf_counter()
        while time.perf_counter() - start < args.seconds:
            began, count = time.perf_counter(), runner.at_once
            state, rows, _ = runner.steps(state, count)
            steps = sum(int(metrics["steps"].sum()) for metrics in rows)
            speeds.append(steps / (time.perf_counter() - began))
            iterations += count
        each = (time.perf_counter() - start) / iterations
        print(
            f"{name}  {statistics.median(speeds):13,.0f} steps/s (best {max(speeds):13,.0f})"
            f"  {each * 1e3:8.2f} ms an iteration  at most {runner.memory().peak:7,.0f} MB so far"
            f"  compiled in {compilation:.1f} s beside others",
            flush=True,
        )
        del state


def profile(args: argparse.Namespace) -> None:
    """Where the time of an iteration goes, for each number of environments."""
    import jax

    for num_envs in args.num_envs:
        runner = make_runner(args, num_envs)
        runner.compile()
        state, count = runner.init(), 4
        for _ in range(2):  # the second is timed
            start = time.perf_counter()
            state, _, _ = runner.steps(state, count)
        plain = (time.perf_counter() - start) / count
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                state, _, _ = runner.steps(state, count)
            (file,) = Path(folder).rglob("*.xplane.pb")
            kernels = kernels_in(file)
        begin, end = min(k[1] for k in kernels), max(k[2] for k in kernels)
        busy, until = 0.0, begin
        for _, first, last in sorted(kernels, key=lambda kernel: kernel[1]):
            busy += max(0.0, last - max(first, until))
            until = max(until, last)
        print(
            f"{args.env} {num_envs:,} envs: {plain * 1e3:.2f} ms an iteration; traced, "
            f"{(end - begin) / count / 1e6:.2f} ms, of which the GPU computes "
            f"{100 * busy / (end - begin):.0f} %, in {len(kernels) / count:,.0f} kernels",
            flush=True,
        )
        seconds: collections.Counter[str] = collections.Counter()
        calls: collections.Counter[str] = collections.Counter()
        for name, first, last in kernels:
            seconds[name] += (last - first) / count / 1e6
            calls[name] += 1
        for name, milliseconds in seconds.most_common(LONGEST_KERNELS):
            print(f"  {milliseconds:8.3f} ms  {calls[name] / count:7.1f} times  {name[:90]}")


def kernels_in(file: Path) -> list[tuple[str, float, float]]:
    """Of a trace what ran on the GPU: names, and when each began and ended, in nanoseconds."""
    import jax

    return [
        (event.name, event.start_ns, event.end_ns)
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        if line.name.startswith("Stream")
        for event in line.events
    ]


def digests(args: argparse.Namespace) -> None:
    """The digests of runs that should agree, of processes that train at the same time."""
    cases = [(how, deterministic) for how in ("exact", "fast") for deterministic in (True, False)]
    common = ["--config", "configs/cartpole.py", "--wandb=disabled", "--tensorboard=false"]
    common += ["--compilation_cache=", f"--num_envs={args.num_envs[0]}", "--eval_episodes=8"]
    common += [f"--iterations={args.iterations}", "--algo.minibatch_size=8192"]
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with tempfile.TemporaryDirectory() as folder:

        def start(reduction: str, deterministic: bool, turn: int) -> subprocess.Popen[str]:
            own = [f"--reduction={reduction}", f"--deterministic={deterministic}"]
            own += [f"--run_dir={folder}/{reduction}-{deterministic}-{turn}"]
            command = [sys.executable, "-m", "jaxrl_scale.train", *common, *own]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            return subprocess.Popen(command, text=True, env=environment, **pipes)

        def digest(run: subprocess.Popen[str]) -> str:
            output, _ = run.communicate()
            found = re.search(r"digest +(\w+)", output)
            return found[1] if found else output[-300:]

        runs = {case: [start(*case, turn) for turn in range(args.turns)] for case in cases}
        for (reduction, deterministic), started in runs.items():
            found = [digest(run) for run in started]
            same = "the same" if len(set(found)) == 1 else "not the same"
            print(f"reduction={reduction} deterministic={deterministic}: {same}: {' '.join(found)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["speed", "profile", "digests"])
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--num_envs", nargs="+", type=int, default=SIZES)
    parser.add_argument("--num_shards", type=int, default=8)
    parser.add_argument("--rollout_length", type=int, default=32)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--reduction", choices=["auto", "exact", "fast"], default="auto")
    parser.add_argument("--deterministic", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--matmul_precision", default="highest")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured, for each size")
    parser.add_argument("--turns", type=int, default=2, help="runs of each kind")
    parser.add_argument("--iterations", type=int, default=50, help="of each run")
    args = parser.parse_args()
    {"speed": speed, "profile": profile, "digests": digests}[args.what](args)


if __name__ == "__main__":
    main()
