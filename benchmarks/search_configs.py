"""A search around each shipped config of the classic tasks, and its table.

    python benchmarks/search_configs.py cartpole dqn_acrobot ...

Settings are drawn evenly (Sobol points) around those of the config, 2 seeds each; one in three is
trained to the end (halving). Eight other seeds decide between the best two, and eight fresh ones
compare the best with the config. A table of each search is written to ``benchmarks/tables/``: the
settings that were trained to the end, the best of the search first, then the best and the config
on the fresh seeds. What is in ``--folder`` already is not run again.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

from searches import fresh, table

from jaxrl_scale.config.files import flatten, read_file
from jaxrl_scale.records.statistics import iqm

ON_POLICY = {"gamma": "uniform:0.97:1"}
REPLAY = {"gamma": "uniform:0.97:1", "tau": "log:0.003:0.03", "n_step": "3,5,10"}
RANGES: dict[str, dict[str, str]] = {
    "ppo": {**ON_POLICY, "gae_lambda": "uniform:0.9:1", "clip_epsilon": "uniform:0.1:0.4"},
    "a2c": {**ON_POLICY, "gae_lambda": "uniform:0.9:1"},
    "impala": {**ON_POLICY, "vtrace_lambda": "uniform:0.9:1"},
    "pqn": {
        "gamma": "uniform:0.97:1",
        "return_lambda": "uniform:0.6:1",
        "epsilon_end": "log:0.005:0.1",
        "exploration_fraction": "log:0.01:0.5",
    },
    "dqn": {**REPLAY, "epsilon_end": "log:0.005:0.1", "exploration_fraction": "uniform:0.05:0.5"},
    "apex": {**REPLAY, "ladder": "uniform:1:7", "priority_exponent": "uniform:0.2:0.8"},
    "sac": {"gamma": "uniform:0.97:1", "tau": "log:0.003:0.03", "n_step": "1,3"},
}
TABLES = Path(__file__).parent / "tables"


def ranges(algo: Any) -> dict[str, str]:
    """What is searched of an algorithm's options: the learning rate and the entropy's weight from
    a third of the config's to three times it, and others. A target that is copied now and then
    has no ``tau``."""

    def around(value: float) -> str:
        return f"log:{value / 3:.6g}:{value * 3:.6g}"

    found = {"learning_rate": around(algo.learning_rate), **RANGES[algo.name]}
    if (entropy := getattr(algo, "entropy_coef", None)) is not None:
        found["entropy_coef"] = around(entropy) if entropy else "0,0.001,0.003,0.01"
    if getattr(algo, "tau", None) == 1.0:
        del found["tau"]
        found["target_period"] = "250,500,1000"
    return found


def write_table(folder: Path, name: str) -> None:
    """Those settings that were trained to the end, and the best and the config on fresh seeds."""
    settings = [row for row in table(folder / "settings.csv") if row["rung"] == "1"]
    best, *_ = table(folder / "finalists.csv")
    columns = [key for key in best if key.startswith("algo.")]
    config = flatten(read_file(f"configs/{name}.py"))
    with (TABLES / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seeds", *columns, "iqm", "worst_seed"])
        for row in settings:
            numbers = [f"{float(row[key]):.4g}" for key in (*columns, "iqm", "worst_seed")]
            writer.writerow(["searched", *numbers])
        for label, which, of in (("fresh, best", 1, best), ("fresh, config", 0, config)):
            returns = fresh(folder, which)
            scores = [f"{iqm(returns):.4g}", f"{returns.min():.4g}"]
            writer.writerow([label, *(f"{float(of[key]):.4g}" for key in columns), *scores])
            print(f"{name}: {label}: IQM {scores[0]}, worst seed {scores[1]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configs", nargs="+", metavar="NAME", help="of configs/NAME.py")
    parser.add_argument("--folder", type=Path, default=Path("runs/search_configs"))
    parser.add_argument("--agents", type=int, default=32)
    parser.add_argument("--fresh_seeds", type=int, default=8)
    args = parser.parse_args()
    TABLES.mkdir(exist_ok=True)
    for name in args.configs:
        path, folder = f"configs/{name}.py", args.folder / name
        if not (folder / "best.py").exists():
            command = [sys.executable, "-m", "jaxrl_scale.sweep", f"--config={path}"]
            command += [f"--agents={args.agents}", "--seeds=2", "--rungs=1", "--finalists=2"]
            command += [f"--fresh_seeds={args.fresh_seeds}", "--eval_episodes=64"]
            command += [f"--run_dir={folder}"]
            command += [f"--algo.{k}={v}" for k, v in ranges(read_file(path).algo).items()]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        write_table(folder, name)


if __name__ == "__main__":
    main()
