"""Evaluation of a trained run, in our environment or in real Gymnasium:
``python -m jaxrl_scale.evaluate RUN_DIR --episodes 128``.

In Python::

    from jaxrl_scale import load
    agent = load("runs/acrobot")
    action = agent.act(observation)  # a NumPy observation, one or a batch
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_scale import commands
from jaxrl_scale.config import files
from jaxrl_scale.errors import RunError
from jaxrl_scale.figures.video import check_video, write_video
from jaxrl_scale.loop.agent import load
from jaxrl_scale.parallel import backend
from jaxrl_scale.records.statistics import summarize
from jaxrl_scale.records.terminal import number

# --- the command ----------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    return commands.run(lambda argv: _evaluate(_parser().parse_args(argv)), argv)


def _parser() -> commands.Parser:
    parser = commands.Parser(
        prog="python -m jaxrl_scale.evaluate",
        description="Play whole episodes with the trained policies of a run.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run")
    parser.add_argument(
        "--episodes",
        metavar="N",
        type=commands.whole_number(),
        default=128,
        help="for each seed [128]",
    )
    parser.add_argument("--sampled", action="store_true", help="sample actions [greedy]")
    parser.add_argument("--gymnasium", action="store_true", help="play in real Gymnasium")
    parser.add_argument("--members", help="only these of the run's seeds: 0,1,2 [all]")
    parser.add_argument(
        "--checkpoint", choices=("latest", "best"), default="latest", help="which one [latest]"
    )
    parser.add_argument("--video", type=Path, help="render an episode to FILE.gif or FILE.mp4")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _evaluate(args: argparse.Namespace) -> int:
    config = files.read_json(Path(args.run_dir) / "config.json")
    members = _members(args.members, config.num_seeds)
    if args.video:
        check_video(args.video)
    backend.initialize(config.replace(devices=None))
    agent = load(args.run_dir, members[0], args.checkpoint)
    greedy = not args.sampled
    if args.gymnasium:
        returns = agent.evaluate_in_gymnasium(args.episodes, greedy, members)
    else:
        returns = agent.evaluate(args.episodes, greedy)[members]
    failed = [i for i, member in enumerate(members) if member in agent.failed]
    result: dict[str, Any] = {**summarize(returns, failed)}
    known = returns[[score is not None for score in result["per_seed"]]]
    error = float(known.std(ddof=1) / np.sqrt(known.size)) if known.size > 1 else None
    result |= {
        "env": agent.env.spec.gymnasium_id if args.gymnasium else agent.env.spec.id,
        "where": "gymnasium" if args.gymnasium else "jaxrl_scale",
        "greedy": greedy,
        "members": members,
        "iteration": agent.iteration,
        "standard_error": error,
    }
    if args.video:
        frames = agent.record(greedy=greedy)
        write_video(args.video, frames)
        result["video"] = str(args.video)
    if args.json:
        print(json.dumps(result))
        return 0
    where = "real Gymnasium" if args.gymnasium else "jaxrl_scale"
    print(
        f"{result['env']} in {where}, {'greedy' if greedy else 'sampled'}, iteration "
        f"{agent.iteration}: mean return {number(result['mean'])} ± {number(error)}"
        f" (standard error) over {returns.shape[1]} episodes of {len(known)} seed(s)"
    )
    if len(known) > 1:
        low, high = result["ci95"]
        worst = min(score for score in result["per_seed"] if score is not None)
        print(
            f"interquartile mean over seeds {number(result['iqm'])} (95 % interval {number(low)} "
            f"to {number(high)}), worst seed {number(worst)}"
        )
    if failed:
        seeds = ", ".join(str(agent.config.seed + members[i]) for i in failed)
        print(f"left out, as their loss was no longer finite: seed(s) {seeds}")
    if args.video:
        print(f"wrote {args.video} ({len(frames)} frames)")
    return 0


def _members(text: str | None, count: int) -> list[int]:
    if text is None:
        return list(range(count))
    try:
        members = [int(part) for part in text.split(",")]
    except ValueError:
        raise RunError(f"--members={text} should be whole numbers separated by commas") from None
    if not all(0 <= m < count for m in members):
        raise RunError(f"--members={text}: the run has members 0 to {count - 1}")
    return members


if __name__ == "__main__":
    sys.exit(main())
