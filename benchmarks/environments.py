"""Steps a second of the environments alone, random actions, beside gymnax in one run.

    python benchmarks/environments.py --gymnax-python rejax-venv/bin/python

How to make that environment stands in `rejax_throughput.py`. Both sides scan 128 steps of
vectorised environments that begin anew at their ends, have their keys split before the scan, draw
random actions by the same calls, and are pmapped over as many CPU devices as there are cores. Ours
have the random numbers and the options of XLA that training gives them, gymnax's those of JAX; your
XLA_FLAGS hold for both. They take turns (A B A B …). Only valid steps count: with us a step that
resets is none, while gymnax resets within the step that ends an episode.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from throughput import child

LENGTH = 128  # steps in one call
Player = tuple[Callable[[Any], Any], Callable[[Any, Any], tuple[Any, Any]], int]
"""``reset(key) -> batch``, ``step(batch, keys) -> (batch, number of valid steps)``, and how many
keys a step needs"""


def ours(name: str, each: int) -> Player:
    """``each`` of our environments."""
    import jax

    from jaxrl_scale import envs
    from jaxrl_scale.loop import rollout

    env: Any = envs.make(name)

    def step(batch: Any, keys: Any) -> tuple[Any, Any]:
        action = jax.random.randint(keys[0], (each,), 0, env.spec.action.n)
        batch, seen = rollout.step(env, keys[1:].reshape(each, 2), batch, action)
        return batch, seen.valid.sum()

    return lambda key: rollout.reset(env, key, each), step, 1 + 2 * each


def gymnaxs(name: str, each: int) -> Player:
    """``each`` of gymnax's, vectorised as in its README."""
    import gymnax
    import jax

    env, params = gymnax.make(name)

    def reset(key: Any) -> Any:
        return jax.vmap(env.reset, (0, None))(jax.random.split(key, each), params)[1]

    def step(state: Any, keys: Any) -> tuple[Any, Any]:
        action = jax.random.randint(keys[0], (each,), 0, env.num_actions)
        stepped = jax.vmap(env.step, (0, 0, 0, None))(keys[1:], state, action, params)
        obs, state, reward, done, _ = stepped
        # All results are used, so that none is left out of the program.
        used = (obs.sum() + reward.sum() + done.sum()) * 0
        return state, each + used.astype(int)

    return reset, step, 1 + each


def measure(side: str, name: str, num_envs: int, seconds: float) -> float:
    """Valid steps a second of one side, after a warm-up."""
    cores = len(os.sched_getaffinity(0))
    flag = f"--xla_force_host_platform_device_count={cores}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    import jax

    reset, step, keys = (ours if side == "ours" else gymnaxs)(name, num_envs // cores)
    impl: Any = "threefry2x32"
    options: dict[str, Any] = {}
    if side == "ours":  # as training has them
        from jaxrl_scale.config import Config
        from jaxrl_scale.loop.threefry import UNROLLED as impl
        from jaxrl_scale.parallel import backend

        options = backend.place(Config(env=name), jax.local_devices()).compiler_options

    def play(batch: Any, key: Any) -> tuple[Any, Any]:
        batch, valid = jax.lax.scan(step, batch, jax.random.split(key, (LENGTH, keys)))
        return batch, valid.sum()

    def keys_of(call: int) -> Any:
        return jax.random.split(jax.random.key(call, impl=impl), cores)

    batch = jax.pmap(reset)(keys_of(0))
    played = jax.pmap(play).lower(batch, keys_of(0)).compile(compiler_options=options)
    calls = steps = 0
    start = time.perf_counter()
    while calls < 3 or time.perf_counter() - start < seconds:
        if calls == 2:  # compiled, and no longer all at the same step of their episodes
            steps, start = 0, time.perf_counter()
        batch, valid = played(batch, keys_of(calls))
        steps += int(valid.sum())
        calls += 1
    return steps / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gymnax-python", help="interpreter of the environment that has gymnax")
    parser.add_argument("--num_envs", type=int, nargs="+", default=[64, 2048])
    parser.add_argument("--seconds", type=float, default=3.0, help="measured, each time")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        side, name, num_envs = args.side
        speed = measure(side, name, int(num_envs), args.seconds)
        print(json.dumps({"steps_per_second": speed}))
        return

    def turn(python: str, side: str, name: str, num_envs: int) -> float:
        asked = ["--side", side, name, str(num_envs), "--seconds", str(args.seconds)]
        return child(python, Path(__file__).resolve(), *asked)["steps_per_second"]

    for name in ("CartPole-v1", "Acrobot-v1"):
        for num_envs in args.num_envs:
            here, there = [], []
            for _ in range(args.rounds):
                here.append(turn(sys.executable, "ours", name, num_envs))
                if args.gymnax_python:
                    there.append(turn(args.gymnax_python, "gymnax", name, num_envs))
            line = f"{name:12} {num_envs:6,} environments: ours {statistics.median(here):12,.0f}"
            if there:
                pairs = [a / b for a, b in zip(here, there, strict=True)]
                low, middle, high = min(pairs), statistics.median(pairs), max(pairs)
                line += f"  gymnax {statistics.median(there):12,.0f}"
                line += f"  ratio {middle:.2f} ({low:.2f}–{high:.2f})"
            print(line, flush=True)


if __name__ == "__main__":
    main()
