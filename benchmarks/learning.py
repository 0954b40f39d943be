"""What the configs reach: 64 seeds in one program, and ten of the policies in real Gymnasium.

    python benchmarks/learning.py [--configs cartpole acrobot mountain_car pendulum] [--seed 0]

Final greedy evaluation over 128 episodes of each seed. A seed fails below CartPole 475,
Acrobot -100, MountainCar -130, Pendulum -300. In Gymnasium: 256 episodes of each of the first
ten policies; the pooled means should differ by at most max(3 standard errors, 1 point).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

FAILED_BELOW = {"cartpole": 475.0, "acrobot": -100.0, "mountain_car": -130.0, "pendulum": -300.0}
POLICIES = ",".join(map(str, range(10)))


def command(*args: str) -> str:
    done = subprocess.run([sys.executable, "-m", *args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", nargs="+", default=list(FAILED_BELOW))
    parser.add_argument("--seed", type=int, default=0, help="the first of the 64")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    args = parser.parse_args()
    for name in args.configs:
        run = args.runs / f"learning-{name}-{args.seed}"
        options = [f"--seed={args.seed}", "--num_seeds=64", f"--run_dir={run}"]
        command("jaxrl_scale.train", f"--config=configs/{name}.py", *options)
        summary = json.loads((run / "summary.json").read_text())
        result = summary["evaluation"]
        failed = sum(score < FAILED_BELOW[name] for score in result["per_seed"])
        low, high = result["ci95"]
        print(
            f"{name}: IQM {result['iqm']:.2f} ({low:.2f} to {high:.2f}), worst seed "
            f"{min(result['per_seed']):.2f}, {failed} of 64 failed; {summary['env_steps']:,} steps "
            f"at {summary['steps_per_second']:,.0f} a second, {summary['wall_seconds']:.0f} s",
            flush=True,
        )
        chosen = [str(run), "--episodes=256", f"--members={POLICIES}", "--json"]
        here = json.loads(command("jaxrl_scale.evaluate", *chosen))
        there = json.loads(command("jaxrl_scale.evaluate", *chosen, "--gymnasium"))
        error = math.hypot(here["standard_error"], there["standard_error"])
        difference = here["mean"] - there["mean"]
        verdict = "same" if abs(difference) <= max(3 * error, 1.0) else "DIFFERENT"
        print(
            f"  ten policies: here {here['mean']:.2f}, in Gymnasium {there['mean']:.2f}, "
            f"difference {difference:+.2f} (standard error {error:.2f}): {verdict}",
            flush=True,
        )


if __name__ == "__main__":
    main()
