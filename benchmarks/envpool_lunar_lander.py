r"""Speed of EnvPool's LunarLander (C++, Box2D), to set beside our own.

`benchmarks/lunar_lander.py speed` runs this file with an interpreter that has EnvPool:

    python -m venv /tmp/envpool && /tmp/envpool/bin/pip install envpool
    /tmp/envpool/bin/python benchmarks/envpool_lunar_lander.py --num_envs 256 --seconds 3

One thread a core; all environments step together, as PPO needs it. The actions are drawn
beforehand, so that Python's generator costs EnvPool nothing. The steps that only reset an
environment (``elapsed_step`` is 0) are not counted; ours are not either.
"""

import argparse
import json
import os
import time

import envpool
import numpy as np


def measure(num_envs: int, threads: int, seconds: float, seed: int) -> dict:
    games = envpool.make(
        "LunarLander-v3",
        env_type="gymnasium",
        num_envs=num_envs,
        num_threads=min(threads, num_envs),
        seed=seed,
    )
    games.reset()
    actions = np.random.default_rng(seed).integers(0, 4, (256, num_envs)).astype(np.int32)

    def play(calls: int) -> int:
        valid = 0
        for action in actions[:calls]:
            *_, info = games.step(action)
            valid += int(np.count_nonzero(info["elapsed_step"]))
        return valid

    play(256)  # the first episodes all begin together; by now they are mixed
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        steps += play(32)
    return {
        "steps_per_second": steps / (time.perf_counter() - start),
        "steps": steps,
        "envpool": envpool.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num_envs", type=int, default=256)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="[one a core]")
    parser.add_argument("--seconds", type=float, default=3.0, help="time to measure for")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(json.dumps(measure(args.num_envs, args.threads, args.seconds, args.seed)))


if __name__ == "__main__":
    main()
