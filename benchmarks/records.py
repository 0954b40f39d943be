"""What logging, checkpoints and the progress bar cost: a run beside the bare loop, in turns.

    python benchmarks/records.py

The run is one as a user makes it, with rows in JSON lines, TensorBoard and wandb (offline), with
the bar, and with five checkpoints; it is timed from its first row of metrics to its last. The bare
loop calls the same compiled program as often and reads the metrics.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from throughput import ENVS, child, make_config

ITERATIONS = {"b": 400, "c": 200}
LOG_EVERY = 10


def bare(env: str, name: str) -> float:
    """Seconds of all iterations but the first that are logged."""
    from jaxrl_scale import envs
    from jaxrl_scale.config import check
    from jaxrl_scale.loop.runner import Runner
    from jaxrl_scale.parallel import backend

    config = make_config(env, name, num_shards=8)
    check(config)
    runner = Runner(config, envs.make(env), backend.initialize(config))
    runner.compile()
    state, done = runner.init(), 0
    while done < ITERATIONS[name]:
        count = min(runner.at_once, LOG_EVERY - done % LOG_EVERY)
        state, *_ = runner.steps(state, count)
        done += count
        if done == LOG_EVERY:
            start = time.perf_counter()
    return time.perf_counter() - start


def whole(env: str, name: str) -> float:
    """The same of a run."""
    from jaxrl_scale import train

    times: list[float] = []
    iterations = ITERATIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(env, name, num_shards=8).replace(
            iterations=iterations,
            log_every=LOG_EVERY,
            checkpoint_every=iterations // 5,
            eval_episodes=1,
            wandb="offline",
            run_dir=str(Path(folder) / "run"),
        )
        train(config, on_row=lambda row: times.append(time.perf_counter()))
    assert len(times) >= iterations // LOG_EVERY
    return times[iterations // LOG_EVERY - 1] - times[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument("--only", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        kind, env, name = args.only
        print(json.dumps({"seconds": {"bare": bare, "whole": whole}[kind](env, name)}))
        return

    def turn(kind: str, env: str, name: str) -> float:
        asked = ["--only", kind, env, name]
        return child(sys.executable, Path(__file__).resolve(), *asked)["seconds"]

    for name in ITERATIONS:
        for env in ENVS:
            pairs = [
                (turn("bare", env, name), turn("whole", env, name)) for _ in range(args.rounds)
            ]
            ratios = [b / a for a, b in pairs]
            a, b = (statistics.median(x) for x in zip(*pairs, strict=True))
            print(
                f"{name} {env:12} bare {a:.2f} s, run {b:.2f} s: "
                f"{statistics.median(ratios):.3f} times ({min(ratios):.3f}–{max(ratios):.3f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
