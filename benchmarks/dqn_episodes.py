"""DQN on CartPole by training episodes: time on 1 and 2 devices, losses, steps survived.

    python benchmarks/dqn_episodes.py [--output runs/dqn_episodes]

Replaces a DQN on one or two GPUs (DDP) that took 6.4, 19.5, 108 and 735 seconds on one for 100,
200, 500 and 1,000 episodes, and whose model of 1,000 episodes played worst. Here a run of
``configs/dqn_cartpole.py`` with few environments (`CHANGES`) is looked at whenever so many of its
episodes have ended: its time so far, and the steps that its greedy policy survives (500 at most),
100 episodes of each of 16 seeds. Those are trained in one program; the times, on 1 and on 2
devices, are of one seed alone. Writes ``results.json`` and ``dqn_episodes.png`` with the losses of
all shards.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_scale.config import Config, check, files
from jaxrl_scale.loop.evaluator import Evaluator
from jaxrl_scale.loop.runner import Runner
from jaxrl_scale.parallel import backend

MILESTONES = (100, 200, 500, 1000)
REPLACED = (6.4, 19.5, 108.0, 735.0)  # seconds on one GPU
SMOOTH = 100  # iterations that a point of the loss curves is the mean of
# As few environments as there can be on two devices, so that an episode is much experience; 500,000
# steps are 1,000 of the longest episodes.
CHANGES: dict[str, Any] = {
    "num_envs": 4,
    "num_shards": 2,
    "rollout_length": 16,
    "total_steps": 500_000,
}
OWN: dict[str, Any] = {
    "n_step": 3,
    "updates_per_iteration": 16,
    "learning_starts": 512,
    "epsilon_end": 0.05,
    "exploration_fraction": 0.01,
    "shard_losses": True,
}


def config_of(devices: int, num_seeds: int) -> Config:
    config = files.read_file(Path(__file__).parents[1] / "configs" / "dqn_cartpole.py")
    algo = dataclasses.replace(config.algo, **OWN)
    config = config.replace(devices=devices, num_seeds=num_seeds, algo=algo, **CHANGES)
    check(config)
    return config


def measure(config: Config) -> dict[str, Any]:
    """One run until all members have ended 1,000 episodes, or until its end.

    Returns:
      By milestone and member, ``[N, P]`` (NaN where it was not reached): ``seconds`` of training,
      ``steps`` taken, ``survived`` (mean of the greedy episodes); ``loss [iterations, S, P]``,
      ``episodes [iterations, P]``, and the seconds of ``compile``.
    """
    placement = backend.initialize(config)
    env = config.make_env()
    runner = Runner(config, env, placement)
    started = time.perf_counter()
    runner.compile()
    state = runner.init()
    actors = [runner.fetch_actor(state)] * len(MILESTONES)
    compiled = time.perf_counter()

    nothing = np.full((len(MILESTONES), config.num_seeds), np.nan)
    seconds, steps, taken = nothing.copy(), nothing.copy(), np.zeros(config.num_seeds)
    ended = [np.zeros(config.num_seeds, int)]
    losses = []
    while len(losses) < config.num_iterations and np.isnan(seconds).any():
        state, metrics = runner.step(state)
        losses.append([metrics[f"loss_shard_{k}"] for k in range(config.num_shards)])
        ended.append(ended[-1] + metrics["ended"])
        taken = taken + metrics["steps"]
        for i, milestone in enumerate(MILESTONES):
            passed = (ended[-2] < milestone) & (ended[-1] >= milestone)
            if passed.any():
                seconds[i, passed] = time.perf_counter() - compiled
                steps[i, passed] = taken[passed]
                actors[i] = jax.tree.map(
                    lambda new, old, passed=passed: np.where(
                        passed.reshape(-1, *(1,) * (new.ndim - 1)), new, old
                    ),
                    runner.fetch_actor(state),
                    actors[i],
                )
    play = Evaluator(env, runner.algo, placement, 100, greedy=True)
    survived = np.stack([play(actor, runner.seeds).returns.mean(1) for actor in actors])
    return {
        "compile": compiled - started,
        "seconds": seconds.tolist(),
        "steps": steps.tolist(),
        "survived": np.where(np.isnan(seconds), np.nan, survived).tolist(),
        "loss": np.asarray(losses, float).tolist(),
        "episodes": np.stack(ended[1:]).tolist(),
    }


def in_a_process(devices: int, num_seeds: int) -> dict[str, Any]:
    """`measure` where nothing has chosen the devices yet."""
    command = [sys.executable, __file__, "--measure", str(devices), str(num_seeds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def verdict(before: np.ndarray, after: np.ndarray) -> str:
    """Whether more training is worse, beyond twice the standard error of the seeds' differences."""
    difference = after - before
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return "WORSE" if difference.mean() < -2 * error else "no worse"


def plot(file: Path, one: dict[str, Any], many: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    loss, episodes = np.asarray(one["loss"])[..., 0], np.asarray(one["episodes"])[:, 0]
    for k, shard in enumerate(loss.T):
        smooth = np.convolve(shard, np.full(SMOOTH, 1 / SMOOTH), "valid")
        left.plot(episodes[SMOOTH - 1 :], smooth, linewidth=0.9, label=f"shard {k}")
    label = f"loss, mean of {SMOOTH} iterations (seed 0)"
    left.set(xlabel="training episodes", ylabel=label, yscale="log")
    left.legend(fontsize="small", ncols=2)
    survived = np.asarray(many["survived"])
    right.plot(MILESTONES, survived, color="tab:blue", alpha=0.25, linewidth=0.8)
    right.plot(
        MILESTONES, survived.mean(1), color="tab:blue", marker="o", label="mean of the seeds"
    )
    right.set(xlabel="training episodes", ylabel="greedy steps survived", ylim=(0, 510))
    right.legend(fontsize="small")
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("runs/dqn_episodes"))
    parser.add_argument("--num_seeds", type=int, default=16)
    parser.add_argument("--measure", nargs=2, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(config_of(*args.measure))))
        return
    args.output.mkdir(parents=True, exist_ok=True)
    one, two, many = in_a_process(1, 1), in_a_process(2, 1), in_a_process(2, args.num_seeds)
    results = {"1 device": one, "2 devices": two, "seeds": many}
    (args.output / "results.json").write_text(json.dumps(results))
    plot(args.output / "dqn_episodes.png", one, many)

    survived, steps = np.asarray(many["survived"]), np.asarray(many["steps"])
    print(
        f"compilation: {one['compile']:.1f} s for 1 device, {two['compile']:.1f} s for 2; losses "
        f"of all shards on both: {'the same bits' if one['loss'] == two['loss'] else 'DIFFERENT'}"
    )
    print(
        "| episodes | steps | seconds, 1 device | 2 devices | replaced, 1 GPU | survived, mean "
        f"({args.num_seeds} seeds) | median | worst | than before |\n|" + "---|" * 9
    )
    for i, milestone in enumerate(MILESTONES):
        scores = survived[i]
        than_before = verdict(survived[i - 1], scores) if i else ""
        print(
            f"| {milestone:,} | {np.nanmean(steps[i]):,.0f} | {one['seconds'][i][0]:.2f} | "
            f"{two['seconds'][i][0]:.2f} | {REPLACED[i]} | {scores.mean():.1f} ± "
            f"{scores.std(ddof=1) / np.sqrt(len(scores)):.1f} | {np.median(scores):.1f} | "
            f"{scores.min():.1f} | {than_before} |"
        )


if __name__ == "__main__":
    main()
