"""What each way of searching finds, and with how many steps: a table.

    python benchmarks/searches.py

PPO's options on Acrobot from wide ranges, 64 settings (a population: 64 agents), each way with
three draws. ``steps to target`` counts those of all agents until the first setting whose seeds
reach the target in the search, one setting after the other; a population, and halving, have it when
they end. ``fresh`` is the best setting on 16 fresh seeds, beside the starting config. What is in
``--folder`` already is not run again.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from jaxrl_scale.records.run_directory import read_object
from jaxrl_scale.records.statistics import iqm

TARGET = -80.0
COMMON = (
    *("--config=configs/acrobot.py", "--total_steps=300_000", "--eval_episodes=32"),
    "--finalists=1",
    *("--algo.learning_rate=log:1e-5:1e-1", "--algo.entropy_coef=log:1e-4:1e-1"),
    *("--algo.gae_lambda=uniform:0.5:1", "--algo.gamma=uniform:0.9:1"),
    *("--algo.clip_epsilon=uniform:0.05:0.5", "--algo.max_grad_norm=0.1,0.5,2"),
)
WAYS = {
    "random": ("--draw=random", "--agents=128", "--seeds=2"),
    "halving": ("--draw=random", "--agents=128", "--seeds=2", "--rungs=2"),
    "population": ("--draw=random", "--agents=64", "--seeds=1", "--perturb_every=4"),
    "model": ("--draw=tpe", "--agents=128", "--seeds=2", "--batch=8"),
}


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def steps_to_target(folder: Path, way: str) -> float | None:
    """Steps of all agents, or None where none reaches it."""
    agents, settings = table(folder / "agents.csv"), table(folder / "settings.csv")
    reached = {x["setting"] for x in settings if x["iqm"] and float(x["iqm"]) >= TARGET}
    total = 0.0
    for k, row in enumerate(agents):
        total += float(row["env_steps"])
        last = k + 1 == len(agents) or agents[k + 1]["setting"] != row["setting"]
        if way in ("random", "model") and last and row["setting"] in reached:
            return total
    return total if reached and way in ("halving", "population") else None


def fresh(folder: Path, which: int) -> np.ndarray:
    """Returns of the fresh seeds with the starting config (0) and with the best setting (1), minus
    infinity where an agent failed."""
    *_, last = sorted(
        folder.glob(f"fresh{which}*"), key=lambda path: int(f"0{path.name.partition('-round')[2]}")
    )
    returns = read_object(last / "summary.json")["evaluation"]["per_agent"]
    return np.array([-np.inf if x is None else x for x in returns])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/searches"))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    args = parser.parse_args()
    print("| search | draw | steps | steps to target | best in it | fresh | starting config | s |")
    print("|---|---|---|---|---|---|---|---|")
    for draw in range(args.repetitions):
        for way in args.ways:
            folder, seconds = args.folder / f"{way}{draw}", "-"
            if not (folder / "best.py").exists():
                began = time.perf_counter()
                own = [*WAYS[way], f"--draw_seed={draw}", f"--run_dir={folder}"]
                command = [sys.executable, "-m", "jaxrl_scale.sweep", *COMMON, *own]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                seconds = f"{time.perf_counter() - began:.0f}"
            steps = sum(float(row["env_steps"]) for row in table(folder / "agents.csv"))
            reached = steps_to_target(folder, way)
            best = table(folder / "settings.csv")[0]["iqm"]
            print(
                f"| {way} | {draw} | {steps / 1e6:.1f}M | "
                f"{f'{reached / 1e6:.1f}M' if reached else 'not reached'} | {float(best):.1f} | "
                f"{iqm(fresh(folder, 1)):.1f} | {iqm(fresh(folder, 0)):.1f} | {seconds} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
