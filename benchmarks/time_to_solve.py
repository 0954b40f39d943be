"""Seconds from the start of the process until the config's target return, cold and warm.

    python benchmarks/time_to_solve.py configs/cartpole.py configs/acrobot.py --seeds 5

Each run is the plain command of the README with one seed. Cold: an empty compilation cache;
warm: the same command again. Logging (JSON lines, TensorBoard, wandb offline) and checkpoints
are on, as by default.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def solve(config: str, seed: int, cache: Path, run_dir: Path) -> dict[str, float | None]:
    command = [sys.executable, "-m", "jaxrl_scale.train", "--config", config, f"--seed={seed}"]
    command += [f"--compilation_cache={cache}", f"--run_dir={run_dir}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    summary = json.loads((run_dir / "summary.json").read_text())
    with (run_dir / "metrics.jsonl").open() as rows:
        first = json.loads(next(rows))  # before the evaluation at the end is compiled
    return {k: (summary | first)[k] for k in ("seconds_to_target", "compile_seconds")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configs", nargs="+")
    parser.add_argument("--seeds", type=int, default=5, help="0, 1, … [5]")
    args = parser.parse_args()
    for config in args.configs:
        for kind in ("cold", "warm"):
            times = []
            with tempfile.TemporaryDirectory() as folder:
                warm = Path(folder) / "cache"
                if kind == "warm":
                    solve(config, 0, warm, Path(folder) / "first")
                for seed in range(args.seeds):
                    cache = warm if kind == "warm" else Path(folder) / f"cache{seed}"
                    times.append(solve(config, seed, cache, Path(folder) / f"run{seed}"))
            solved = [t["seconds_to_target"] for t in times]
            reached = sorted(t for t in solved if t is not None)
            compiling = statistics.median(t["compile_seconds"] or 0 for t in times)
            print(
                f"{config} {kind}: {len(reached)} of {len(solved)} seeds solved, seconds "
                + ", ".join(f"{t:.1f}" for t in reached)
                + (f"; median {statistics.median(reached):.1f}" if reached else "")
                + f"; compilation {compiling:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
