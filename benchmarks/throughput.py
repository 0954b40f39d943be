"""Steps per second of the whole PPO loop, beside Rejax in one run.

Valid environment steps, all training included (rollout, advantages, gradient steps), nothing else:
compilation, evaluation and logging are left out on both sides. The two programs take turns
(A B A B …), so that a machine whose speed drifts does so for both.

    python benchmarks/throughput.py --rejax-python path/to/rejax-venv/bin/python

How to make that environment stands in `rejax_throughput.py`. Configuration b: 64 environments × 128
steps, 4 minibatches, 4 epochs; c: 1,024 × 32, 4, 2; separate 64-64 tanh actor and critic.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ENVS = ("CartPole-v1", "Acrobot-v1")
SIZES = {
    "b": {"num_envs": 64, "rollout_length": 128, "epochs": 4},
    "c": {"num_envs": 1024, "rollout_length": 32, "epochs": 2},
}


def measure(env: str, name: str, seconds: float, num_shards: int) -> dict[str, float]:
    """Our median and best speed over calls of a few iterations."""
    from jaxrl_scale import envs
    from jaxrl_scale.algos import ppo
    from jaxrl_scale.config import Config, check
    from jaxrl_scale.loop.runner import Runner
    from jaxrl_scale.parallel import backend

    size = dict(SIZES[name])
    epochs = size.pop("epochs")
    minibatch = size["num_envs"] * size["rollout_length"] // 4
    config = Config(
        env=env,
        num_shards=num_shards,
        reduction="exact",
        algo=ppo.Config(minibatch_size=minibatch, epochs=epochs),
        **size,
    )
    check(config)
    runner = Runner(config, envs.make(env), backend.initialize(config))
    start = time.perf_counter()
    runner.compile()
    compile_seconds = time.perf_counter() - start
    state, *_ = runner.step(runner.init())
    block = 131_072 // config.steps_per_iteration
    speeds: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        began, steps = time.perf_counter(), 0
        for _ in range(block):
            state, metrics, _ = runner.step(state)
            steps += int(metrics["steps"][0])
        speeds.append(steps / (time.perf_counter() - began))
    return {
        "steps_per_second": statistics.median(speeds),
        "best": max(speeds),
        "compile_seconds": compile_seconds,
    }


def child(python: str, script: Path, *args: str, **environment: str) -> dict[str, float]:
    """What a program prints in its last line: a JSON object of numbers."""
    done = subprocess.run(
        [python, str(script), *args], capture_output=True, text=True, env=os.environ | environment
    )
    if done.returncode:
        sys.exit(f"{script} failed:\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rejax-python", help="interpreter of the environment that has Rejax")
    parser.add_argument("--seconds", type=float, default=8.0, help="measured, each time")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each program")
    parser.add_argument("--num_shards", type=int, default=8)
    parser.add_argument("--ours", nargs=2, metavar=("ENV", "CONFIG"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ours:
        print(json.dumps(measure(*args.ours, args.seconds, args.num_shards)))
        return
    here = Path(__file__).resolve()
    print(f"{os.cpu_count()} cores, {args.num_shards} shards, {args.rounds} rounds, medians")
    for name in SIZES:
        for env in ENVS:
            ours, theirs = [], []
            common = ["--seconds", str(args.seconds)]
            for _ in range(args.rounds):
                shards = ["--num_shards", str(args.num_shards)]
                ours.append(child(sys.executable, here, "--ours", env, name, *common, *shards))
                if args.rejax_python:
                    rejax = here.with_name("rejax_throughput.py")
                    where = ["--env", env, "--config", name]
                    theirs.append(child(args.rejax_python, rejax, *where, *common))
            a = statistics.median(x["steps_per_second"] for x in ours)
            best = max(x["best"] for x in ours)
            compiling = statistics.median(x["compile_seconds"] for x in ours)
            line = f"{name} {env:12} ours {a:9,.0f} (best {best:9,.0f}, compile {compiling:.1f} s)"
            if theirs:
                pairs = [
                    x["steps_per_second"] / y["steps_per_second"]
                    for x, y in zip(ours, theirs, strict=True)
                ]
                b = statistics.median(y["steps_per_second"] for y in theirs)
                their_best = max(y["best"] for y in theirs)
                line += f"  Rejax {b:9,.0f} (best {their_best:9,.0f})"
                line += (
                    f"  ratio {statistics.median(pairs):.2f} ({min(pairs):.2f}–{max(pairs):.2f})"
                )
            print(line, flush=True)


if __name__ == "__main__":
    main()
