"""PPO's and PQN's curves on two MinAtar games beside those that gymnax published.

    train="python -m jaxrl_scale.train --config configs"
    for name in breakout pqn_breakout space_invaders; do
      $train/$name.py --num_seeds=8 --run_dir runs/minatar/$name-0
    done
    $train/pqn_space_invaders.py --run_dir runs/minatar/pqn_space_invaders-0
    python benchmarks/minatar.py [--runs runs/minatar] [--plot docs/minatar.png]

Published: ``log_return`` of ``agents/{Breakout,SpaceInvaders}-MinAtar/ppo*.pkl`` in
https://github.com/RobertTLange/gymnax-blines: PPO with an MLP of 256 and 256 units, 64
environments, 10 million steps, one seed for each of three learning rates, 164 episodes each.
The higher of the two better rates is quoted at each step count, which is in their favour. Ours are
training returns (exploration included), the interquartile mean of the seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from jaxrl_scale.records import past_run

GAMES = {"breakout": "Breakout", "space_invaders": "SpaceInvaders"}
EVERY = 320_000  # steps between the published points; the first is at 319,936
PUBLISHED = {  # by learning rate
    "breakout": {
        "5e-4": [8.37, 15.45, 16.63, 15.71, 16.02, 15.42, 16.29, 16.23, 15.63, 15.54],
        "1e-3": [10.7, 19.24, 20.3, 18.91, 20.59, 17.4, 20.1, 17.93, 21.67, 19.91],
    },
    "space_invaders": {
        "5e-4": [19.4, 30.37, 50.38, 58.38, 71.53, 84.32, 87.51, 89.55, 94.06, 90.36],
        "1e-3": [21.29, 28.35, 58.13, 71.9, 96.53, 100.59, 103.57, 110.41, 92.41, 113.85],
    },
}


def curve(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Steps of one seed, and the mean return of the last 100 episodes of each, its
    interquartile mean over the seeds."""
    found = past_run.read(run)
    returns = found.column("return_100")
    known = np.isfinite(returns)
    return found.agent_steps[known], returns[known]


def plot(file: Path, curves: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(GAMES), figsize=(11, 4), layout="constrained")
    for axis, (game, title) in zip(axes, GAMES.items(), strict=True):
        for name, (steps, returns) in curves[game].items():
            axis.plot(steps, returns, label=name)
        for rate, returns in PUBLISHED[game].items():
            steps = EVERY * np.arange(1, len(returns) + 1)
            axis.plot(steps, returns, "--", marker=".", label=f"gymnax's PPO, {rate}")
        axis.set(title=f"{title}-MinAtar", xlabel="steps", ylabel="return")
        axis.legend(fontsize="small")
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/minatar"))
    parser.add_argument("--plot", type=Path, help="write the curves to this picture")
    args = parser.parse_args()
    curves = {
        game: {
            name: curve(run)
            for name, stem in (("PPO", game), ("PQN", f"pqn_{game}"))
            if (run := args.runs / f"{stem}-0").is_dir()
        }
        for game in GAMES
    }
    print("| steps | game | gymnax's PPO | ours: PPO | PQN |\n|---|---|---|---|---|")
    for game, ours in curves.items():
        published = np.max(list(PUBLISHED[game].values()), axis=0)
        for i in range(1, len(published), 2):
            at = EVERY * (i + 1)
            row = [f"{np.interp(at, *own):.1f}" for own in ours.values() if at <= own[0][-1]]
            if row:
                cells = f"{at / 1e6:.2f}M", GAMES[game], f"{published[i]:.1f}", *row
                print(f"| {' | '.join(cells)} |")
    if args.plot:
        plot(args.plot, curves)


if __name__ == "__main__":
    main()
