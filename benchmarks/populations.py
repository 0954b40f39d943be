"""Steps a second of many small agents in one program, all together, beside Rejax's vmapped seeds.

    python benchmarks/populations.py --rejax-python path/to/rejax-venv/bin/python

PPO on CartPole, 8 environments × 128 steps an agent, 4 minibatches, 4 epochs, 64-64 tanh actor and
critic. Valid steps, all training included, as in `throughput.py`; the programs take turns. Ours is
measured twice: with ``--reduction=exact`` a device trains its agents one after the other inside the
program, so that each has the bits of its single run; with ``--reduction=fast`` they are vmapped.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

from throughput import child, iterate

STEPS = 131_072  # of all agents together in one timed call, if that is an iteration at least


def measure(agents: int, reduction: str, seconds: float) -> dict[str, float]:
    """Our median speed, and the seconds that compiling takes."""
    from jaxrl_scale import envs
    from jaxrl_scale.algos import ppo
    from jaxrl_scale.config import Config, check
    from jaxrl_scale.loop.runner import Runner
    from jaxrl_scale.parallel import backend

    config = Config(
        env="CartPole-v1",
        num_envs=8,
        num_shards=1 if agents > 1 else 2,
        rollout_length=128,
        num_seeds=agents,
        reduction=reduction,
        algo=ppo.Config(minibatch_size=256, epochs=4),
    )
    check(config)
    runner = Runner(config, envs.make(config.env), backend.initialize(config))
    start = time.perf_counter()
    runner.compile()
    compile_seconds = time.perf_counter() - start
    state, _ = runner.step(runner.init())
    block = max(1, STEPS // (agents * config.steps_per_iteration))
    speeds: list[float] = []
    start = time.perf_counter()
    while len(speeds) < 3 or time.perf_counter() - start < seconds:
        began = time.perf_counter()
        state, steps = iterate(runner, state, block)
        speeds.append(steps / (time.perf_counter() - began))
    return {"steps_per_second": statistics.median(speeds), "compile_seconds": compile_seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rejax-python", help="interpreter of the environment that has Rejax")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured, each time")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each program")
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 8, 64, 512, 4096])
    parser.add_argument("--ours", nargs=2, metavar=("AGENTS", "REDUCTION"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ours:
        agents, reduction = args.ours
        print(json.dumps(measure(int(agents), reduction, args.seconds)))
        return
    here = Path(__file__).resolve()
    rejax = here.with_name("rejax_throughput.py")
    print(f"{os.cpu_count()} cores, {args.rounds} rounds, medians")
    for agents in map(str, args.agents):
        told = ["--seconds", str(args.seconds)]
        programs = {
            name: (sys.executable, here, "--ours", agents, name, *told)
            for name in ("exact", "fast")
        }
        if args.rejax_python:
            where = ["--env", "CartPole-v1", "--config", "d", "--agents", agents]
            programs["Rejax"] = (args.rejax_python, rejax, *where, *told)
        speeds: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(args.rounds):
            for name, program in programs.items():
                speeds[name].append(child(*program)["steps_per_second"])
        line = f"{agents:>5} agents"
        for name, found in speeds.items():
            line += f"  {name} {statistics.median(found):9,.0f}"
        for name in ("exact", "fast") if args.rejax_python else ():
            pairs = [x / y for x, y in zip(speeds[name], speeds["Rejax"], strict=True)]
            line += (
                f"  {name}/Rejax {statistics.median(pairs):.2f} ({min(pairs):.2f}–{max(pairs):.2f})"
            )
        print(line, flush=True)


if __name__ == "__main__":
    main()
