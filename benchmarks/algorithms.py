"""What every algorithm reaches on every environment: many seeds in one program, one table.

    python benchmarks/algorithms.py                     # all that there is a config for
    python benchmarks/algorithms.py --algos dqn pqn --environments cartpole acrobot
    python benchmarks/algorithms.py --no-train          # the table of what is trained already

Trains ``configs/<algo>_<environment>.py`` (PPO's is ``configs/<environment>.py``) in
``runs/algorithms`` and prints a row for each: the final greedy evaluation over 128 episodes of each
agent. A config that is trained already is not trained again, and one that was interrupted goes on.
An agent fails if it ends below its target in ``targets.py``. LunarLander is judged in real
Gymnasium (500 episodes of each agent); with ``--transfer`` the first ten policies of the others are
played there too, 256 episodes each: the mean difference of a policy's two means should be at most
max(3 standard errors, 1 point).
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from targets import TARGETS

from jaxrl_scale.config import command_line, files
from jaxrl_scale.records.past_run import read_summary
from jaxrl_scale.records.run_directory import read_object

CONFIGS = Path(__file__).parents[1] / "configs"
ALGOS = ("ppo", "a2c", "impala", "dqn", "apex", "pqn", "sac")
ENVIRONMENTS = (
    *("cartpole", "acrobot", "mountain_car", "pendulum", "lunar_lander"),
    *("lunar_lander_continuous", "memory_chain", "breakout", "space_invaders"),
)
JUDGED_IN_GYMNASIUM = ("lunar_lander", "lunar_lander_continuous")


class Row(NamedTuple):
    """One line of the table."""

    algo: str
    environment: str
    seeds: str
    score: str  # interquartile mean (95 % interval)
    worst: str
    failed: str
    gymnasium: str
    steps: str  # of one seed
    speed: str
    seconds: str


HEADER = Row(
    *("algorithm", "environment", "seeds", "IQM (95 % interval)", "worst seed", "failed"),
    *("in Gymnasium ± standard error", "steps a seed", "steps/s, all seeds", "seconds, all seeds"),
)


def command(*args: str) -> str:
    done = subprocess.run([sys.executable, "-m", *args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr or f"{' '.join(args)} ended with status {done.returncode}")
    return done.stdout


def config_of(algo: str, environment: str) -> Path:
    return CONFIGS / (f"{environment}.py" if algo == "ppo" else f"{algo}_{environment}.py")


def finished(run: Path) -> bool:
    return read_object(run / "summary.json").get("status") == "done"


def train(config: Path, run: Path, seed: int, num_seeds: int) -> None:
    """Train what is not trained yet; exits where ``run`` holds that of another config."""
    options = [f"--config={config}", f"--seed={seed}", f"--num_seeds={num_seeds}"]
    options += [f"--run_dir={run}", "--wandb=disabled", "--tensorboard=false"]
    if (run / "config.json").is_file():
        before = files.flatten(files.read_config(run / "config.json"))
        now = files.flatten(command_line.load(options)[0])
        changed = [name for name in now if now[name] != before[name] and name != "run_dir"]
        if changed:
            sys.exit(f"{run} was trained with other {', '.join(changed)}; remove it to train again")
        options = [f"--resume={run}"]
    if not finished(run):
        command("jaxrl_scale.train", *options)


def played(run: Path, where: str, episodes: int, policies: int) -> dict[str, Any]:
    """The evaluation of the first policies of a run, ``here`` or in ``gymnasium``; kept there."""
    file = run / f"{where}.json"
    if not file.is_file():
        agents = ",".join(map(str, range(policies)))
        options = [str(run), f"--episodes={episodes}", f"--agents={agents}", "--json"]
        options += ["--gymnasium"] if where == "gymnasium" else []
        file.write_text(command("jaxrl_scale.evaluate", *options))
    return read_object(file)


def row_of(algo: str, environment: str, run: Path, transfer: bool) -> Row:
    config = files.read_config(run / "config.json")
    summary = read_summary(run, config.num_seeds)
    result, gymnasium = summary["evaluation"], ""
    if environment in JUDGED_IN_GYMNASIUM:
        result = played(run, "gymnasium", 500, config.num_seeds)
        gymnasium = f"{result['mean']:.1f} ± {result['standard_error']:.1f}"
    elif transfer and config.make_env().spec.gymnasium_id:
        policies = min(10, config.num_seeds)
        here, there = (played(run, w, 256, policies) for w in ("here", "gymnasium"))
        # The same policies play both, so how they differ from each other is no error of this.
        pairs = zip(here["per_agent"], there["per_agent"], strict=True)
        moved = np.array([b - a for a, b in pairs if a is not None and b is not None])
        difference = moved.mean()
        error = moved.std(ddof=1) / math.sqrt(len(moved))
        verdict = "same" if abs(difference) <= max(3 * error, 1.0) else "DIFFERENT"
        gymnasium = f"{difference:+.2f} ± {error:.2f}: {verdict}"
    scores = [-math.inf if x is None else x for x in result["per_agent"]]
    target = TARGETS.get(config_of(algo, environment).stem)
    interval = [x for x in result["ci95"] if x is not None]
    digits = 1 if max(map(abs, [result["iqm"], *interval])) >= 10 else 2
    centre, worst, *bounds = (f"{x:.{digits}f}" for x in (result["iqm"], min(scores), *interval))
    return Row(
        algo=algo + (" (GRU)" if getattr(config.algo, "recurrent", False) else ""),
        environment=environment,
        seeds=f"{len(scores)}",
        score=centre + (f" ({' to '.join(bounds)})" if bounds else ""),
        worst=worst,
        failed="" if target is None else failures(scores, target.target),
        gymnasium=gymnasium,
        steps=f"{summary['env_steps'] / len(scores) / 1e6:.2f}M",
        speed=f"{summary['steps_per_second']:,.0f}",
        seconds=f"{summary['wall_seconds']:,.0f}",
    )


def failures(scores: list[float], target: float) -> str:
    return f"{sum(x < target for x in scores)} below {target:g}"


def line(row: Row) -> str:
    return f"| {' | '.join(row)} |".replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algos", nargs="+", choices=ALGOS, default=ALGOS)
    parser.add_argument("--environments", nargs="+", choices=ENVIRONMENTS, default=ENVIRONMENTS)
    parser.add_argument("--seed", type=int, default=0, help="the first [0]")
    parser.add_argument("--num_seeds", type=int, help="how many [as in targets.py, else 8]")
    parser.add_argument("--runs", type=Path, default=Path("runs/algorithms"))
    parser.add_argument("--transfer", action="store_true", help="ten policies in Gymnasium too")
    parser.add_argument("--no-train", action="store_true", help="only the rows of finished runs")
    args = parser.parse_args()
    print(line(HEADER), "|---" * len(HEADER) + "|", sep="\n", flush=True)
    for environment in args.environments:
        for algo in args.algos:
            config = config_of(algo, environment)
            if not config.is_file():
                continue
            run = args.runs / f"{config.stem}-{args.seed}"
            if not args.no_train:
                known = TARGETS.get(config.stem)
                train(config, run, args.seed, args.num_seeds or (known.seeds if known else 8))
            if finished(run):
                print(line(row_of(algo, environment, run, args.transfer)), flush=True)


if __name__ == "__main__":
    main()
