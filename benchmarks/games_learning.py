"""A game's learning curves: the return of every agent, and evaluations on known and unseen levels.

    python -m jaxrl_scale.train --config configs/procgen.py --env=StarpilotEasy-v0 --num_seeds=3
    python benchmarks/games_learning.py RUN_DIR [--plot docs/starpilot.png]

Prints a line for every agent of the run: the mean return of its last 100 training episodes, early
and at the end, and its last evaluations. The return at the first row is that of a policy which has
hardly learned. Scores are normalized as in `jaxrl_scale.envs.scores`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from jaxrl_scale.envs import scores
from jaxrl_scale.records import past_run


def plot(file: Path, run: past_run.PastRun) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    evaluations = {
        label: run.column(metric)
        for metric, label in (("eval_return", "levels of training"), ("test_return", "all levels"))
    }
    evaluations = {k: found for k, found in evaluations.items() if np.isfinite(found).sum() > 1}
    panels = 2 if evaluations else 1
    figure, grid = plt.subplots(
        1, panels, figsize=(5.5 * panels, 4), sharey=True, squeeze=False, layout="constrained"
    )
    training, *evaluated = grid[0]
    millions, returns = run.agent_steps / 1e6, run.per_agent("return_100")
    for agent, seed in enumerate(run.seeds):
        (line,) = training.plot(millions, returns[:, agent], label=f"seed {seed}")
        recent = run.per_agent("return")[:, agent]
        training.plot(millions, recent, ".", markersize=3, alpha=0.4, color=line.get_color())
    title = "last 100 training episodes; dots: those since the dot before"
    training.set(title=title, ylabel="return")
    for axis in evaluated:
        for label, found in evaluations.items():
            known = np.isfinite(found)
            axis.plot(millions[known], found[known], marker=".", label=label)
        axis.set(title=f"evaluation, mean of {len(run.seeds)} agents")
    for axis in grid[0]:
        axis.set(xlabel="million steps of an agent")
        axis.title.set_fontsize("small")
        axis.legend(fontsize="small")
    figure.suptitle(run.config.env)
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--plot", type=Path, help="write the curves to this picture")
    args = parser.parse_args()
    run = past_run.read(args.run)
    returns = run.per_agent("return_100")
    known = np.isfinite(returns).all(1)
    if not known.any():
        sys.exit(f"{args.run}: there are no 100 episodes of each agent yet")
    first, last = (returns[known][k] for k in (0, -1))
    print(f"{run.config.env}, {run.agent_steps[-1] / 1e6:.2f}M steps, {run.status}")
    print("| seed | return at first | at the end | evaluation | on all levels | normalized |")
    print("|---|---|---|---|---|---|")
    empty = [float("nan")] * len(run.seeds)
    on_known, on_all = (
        (run.summary.get(name) or {}).get("per_agent", empty) for name in ("evaluation", "test")
    )
    for seed, *numbers in zip(run.seeds, first, last, on_known, on_all, strict=True):
        share = scores.normalized(run.config.env, numbers[2])
        cells = [f"{x:.2f}" for x in (*numbers, np.nan if share is None else share)]
        print(f"| {seed} | {' | '.join(cells)} |")
    if args.plot:
        plot(args.plot, run)


if __name__ == "__main__":
    main()
