"""Steps per second of the whole loop, beside Rejax in one run.

Valid environment steps, all training included (rollout, advantages, gradient steps), nothing else:
compilation, evaluation and logging are left out on both sides. The two programs take turns
(A B A B …), so that a machine whose speed drifts does so for both.

    python benchmarks/throughput.py --rejax-python path/to/rejax-venv/bin/python

How to make that environment stands in `rejax_throughput.py`. PPO with separate 64-64 tanh actor and
critic, configuration b: 64 environments × 128 steps, 4 minibatches, 4 epochs; c: 1,024 × 32, 4, 2.
``--configs a2c dqn pqn``: A2C with 64 environments × 16 steps, beside Rejax's PPO with one epoch of
one minibatch, which is A2C (https://arxiv.org/abs/2205.09123); DQN with 32 environments and a
gradient step of 256 transitions for each 16 steps; PQN with the sizes of b.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_scale.config import Config

ENVS = ("CartPole-v1", "Acrobot-v1")
CONFIGS = ("b", "c", "a2c", "dqn", "pqn")


def make_config(env: str, name: str, num_shards: int) -> Config:
    """As `rejax_throughput.CONFIGS`."""
    from jaxrl_scale.algos import a2c, dqn, ppo, pqn
    from jaxrl_scale.config import Config

    def config(num_envs: int, rollout_length: int, algo: Any, activation: str) -> Config:
        return Config(
            env=env,
            num_envs=num_envs,
            rollout_length=rollout_length,
            num_shards=num_shards,
            reduction="exact",
            activation=activation,
            algo=algo,
        )

    if name == "b":
        return config(64, 128, ppo.Config(minibatch_size=2048, epochs=4), "tanh")
    if name == "c":
        return config(1024, 32, ppo.Config(minibatch_size=8192, epochs=2), "tanh")
    if name == "a2c":
        return config(64, 16, a2c.Config(optimizer="adam"), "tanh")
    if name == "pqn":
        return config(64, 128, pqn.Config(minibatch_size=2048, epochs=4), "relu")
    options = dqn.Config(
        updates_per_iteration=16, replay_size=51_200, learning_starts=1_024, tau=0.01
    )
    return config(32, 8, options, "relu")


def measure(env: str, name: str, seconds: float, num_shards: int) -> dict[str, float]:
    """Our median and best speed over calls of a few iterations."""
    from jaxrl_scale import envs
    from jaxrl_scale.config import check
    from jaxrl_scale.loop.runner import Runner
    from jaxrl_scale.parallel import backend

    config = make_config(env, name, num_shards)
    check(config)
    runner = Runner(config, envs.make(env), backend.initialize(config))
    start = time.perf_counter()
    runner.compile()
    compile_seconds = time.perf_counter() - start
    state = runner.init()
    for _ in range(1 + getattr(config.algo, "learning_starts", 0) // config.steps_per_iteration):
        state, _ = runner.step(state)
    block = 131_072 // config.steps_per_iteration
    speeds: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        began = time.perf_counter()
        state, steps = iterate(runner, state, block)
        speeds.append(steps / (time.perf_counter() - began))
    return {
        "steps_per_second": statistics.median(speeds),
        "best": max(speeds),
        "compile_seconds": compile_seconds,
    }


def iterate(runner: Any, state: Any, iterations: int) -> tuple[Any, int]:
    """So many iterations, in calls as long as the runner would have them: the state afterwards, and
    the valid steps of all agents."""
    steps = done = 0
    while done < iterations:
        state, rows, _ = runner.steps(state, min(iterations - done, runner.at_once))
        steps += sum(int(metrics["steps"].sum()) for metrics in rows)
        done += len(rows)
    return state, steps


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
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=["b", "c"])
    parser.add_argument("--ours", nargs=2, metavar=("ENV", "CONFIG"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ours:
        print(json.dumps(measure(*args.ours, args.seconds, args.num_shards)))
        return
    here = Path(__file__).resolve()
    print(f"{os.cpu_count()} cores, {args.num_shards} shards, {args.rounds} rounds, medians")
    for name in args.configs:
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
                b = statistics.median(y["steps_per_second"] for y in theirs)
                their_best = max(y["best"] for y in theirs)
                line += f"  Rejax {b:9,.0f} (best {their_best:9,.0f})  {ratio(ours, theirs)}"
            print(line, flush=True)


def ratio(ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]]) -> str:
    """The median and the range of the ratios of both speeds, turn by turn."""
    pairs = [
        x["steps_per_second"] / y["steps_per_second"] for x, y in zip(ours, theirs, strict=True)
    ]
    return f"ratio {statistics.median(pairs):.2f} ({min(pairs):.2f}–{max(pairs):.2f})"


if __name__ == "__main__":
    main()
