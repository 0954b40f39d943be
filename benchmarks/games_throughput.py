"""Steps a second of PPO's whole loop in Coinrun and Pong, beside PyTorch in CleanRL's manner.

    python benchmarks/games_throughput.py --torch-python torch-venv/bin/python

Both sides have the same environments (EnvPool, same options), the Nature CNN, the same numbers of
environments, steps, epochs and samples in a minibatch, and all cores. They take turns (A B A B …).
What is timed are whole iterations: acting, simulating, advantages and gradient steps; compilation,
logging and evaluation are left out on both sides. How to make PyTorch's environment stands in
`torch_games.py`.

Then come the parts of our loop, each run alone: simulating (random actions), acting, learning (the
compiled update). What acting and simulating take together is less than their sum, since they
overlap. ``ceiling`` is the speed of the loop if nothing but the update took time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from throughput import child, ratio

GAMES: dict[str, dict[str, Any]] = {
    "Coinrun": {
        **{"task": "CoinrunEasy-v0", "options": {"num_levels": 200, "start_level": 0}},
        **{"num_envs": 64, "length": 64, "minibatch": 512, "epochs": 3, "clip": 0.2},
        "shards_per_core": 2,
    },
    "Pong": {
        **{"task": "Pong-v5", "options": {"preset": "ppo"}},
        **{"num_envs": 8, "length": 128, "minibatch": 256, "epochs": 4, "clip": 0.1},
        "shards_per_core": 1,  # with 2, all 1.7 million parameters are read and written more often
    },
}


def for_torch(game: str) -> dict[str, Any]:
    """The game with all of EnvPool's options spelled out, those that we leave at our defaults
    too."""
    from jaxrl_scale.envs import games

    own = {name: value for name, value in GAMES[game].items() if name != "shards_per_core"}
    options = games.atari_options if own["task"] in games.ATARI else games.procgen_options
    return {**own, "options": dataclasses.asdict(options(own["task"], own["options"]))}


def shortest(call: Callable[[], object], rounds: int = 4) -> float:
    """Seconds of the fastest of some calls after a first one."""
    seconds = []
    for _ in range(1 + rounds):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def measure(game: str, seconds: float) -> dict[str, float]:
    """Our median speed over iterations, and the seconds of the parts of one."""
    import jax

    from jaxrl_scale.algos import ppo
    from jaxrl_scale.config import Config, check
    from jaxrl_scale.loop.make import make_runner
    from jaxrl_scale.parallel import backend

    own = GAMES[game]
    cores = len(os.sched_getaffinity(0))
    config = Config(
        env=own["task"],
        env_kwargs=own["options"],
        network="nature",
        num_envs=own["num_envs"],
        num_shards=own["shards_per_core"] * cores,
        rollout_length=own["length"],
        restart_every=1000,
        algo=ppo.Config(
            **{"learning_rate": 2.5e-4, "clip_epsilon": own["clip"], "clip_value": True},
            **{"epochs": own["epochs"], "minibatch_size": own["minibatch"]},
        ),
    )
    check(config)
    env = config.make_env()
    runner: Any = make_runner(config, env, backend.initialize(config))
    runner.compile()
    state, _ = runner.step(runner.init())
    speeds: list[float] = []
    began = time.perf_counter()
    while len(speeds) < 2 or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        state, metrics = runner.step(state)
        speeds.append(int(metrics["steps"][0]) / (time.perf_counter() - start))

    devices = state._replace(local=state.local._replace(envs=()))
    group = runner._stage.groups[0]
    seen = state.local.envs.obs[:, :, group], state.local.envs.is_first[:, :, group]
    turn = np.zeros((len(seen[1]), 2), np.int32)
    turns = len(runner._stage.groups) * config.rollout_length
    told = *seen, turn, runner._num_iterations
    act = shortest(lambda: jax.block_until_ready(runner._compiled_act(devices, *told)))
    action = np.random.default_rng(0).integers(0, env.spec.action.n, seen[1].shape)

    def simulate() -> None:
        for k in range(len(runner._stage.groups)):
            runner._stage.send(k, action)
        for k in range(len(runner._stage.groups)):
            runner._stage.receive(k)

    simulating = shortest(lambda: [simulate() for _ in range(config.rollout_length)])
    carry, held = devices.local.carry, [devices]

    def learn() -> None:
        rest = runner._gathered, runner._num_iterations, runner.placement.split_scalar(0.0)
        held[0], *_ = runner._compiled_update(held[0], carry, *rest)
        jax.block_until_ready(held[0])

    return {
        "steps_per_second": statistics.median(speeds),
        "iteration": config.steps_per_iteration / statistics.median(speeds),
        "simulating": simulating,
        "acting": act * turns,
        "learning": shortest(learn),
        "steps": config.steps_per_iteration,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", help="interpreter of the environment that has PyTorch")
    parser.add_argument("--seconds", type=float, default=15.0, help="measured, each time")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each program")
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES))
    parser.add_argument("--ours", metavar="GAME", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ours:
        print(json.dumps(measure(args.ours, args.seconds)))
        return
    here, cores = Path(__file__).resolve(), len(os.sched_getaffinity(0))
    print(f"{cores} cores, {args.rounds} rounds, medians")
    for game in args.games:
        ours, theirs = [], []
        told = json.dumps({**for_torch(game), "seconds": args.seconds, "threads": cores})
        for _ in range(args.rounds):
            ours.append(child(sys.executable, here, "--ours", game, "--seconds", str(args.seconds)))
            if args.torch_python:
                theirs.append(child(args.torch_python, here.with_name("torch_games.py"), told))
        mine = {name: statistics.median(x[name] for x in ours) for name in ours[0]}
        line = f"{game:8} ours {mine['steps_per_second']:7,.0f}"
        if theirs:
            median = statistics.median(y["steps_per_second"] for y in theirs)
            line += f"  PyTorch {median:7,.0f}  {ratio(ours, theirs)}"
        print(line)
        parts = "  ".join(
            f"{name} {mine[name]:.2f} s ({mine[name] / mine['iteration']:.0%})"
            for name in ("simulating", "acting", "learning")
        )
        ceiling = mine["steps"] / mine["learning"]
        print(f"{'':8} of {mine['iteration']:.2f} s: {parts}  ceiling {ceiling:,.0f}", flush=True)


if __name__ == "__main__":
    main()
