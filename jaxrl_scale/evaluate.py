"""Evaluate a trained run, in our environment or in real Gymnasium:
``python -m jaxrl_scale.evaluate RUN_DIR --episodes=128``.

In Python::

    from jaxrl_scale import load
    agent = load("runs/acrobot")
    action = agent.act(observation)  # a NumPy observation, one or a batch

The mean return comes with its standard error. Several agents are independent of each other, but
the episodes of one agent are not: they share its policy. So the error is that of the mean over
the agents, and only where a single agent is evaluated that of the mean over its episodes.

Beside it stand the mean length of the episodes in steps and the means of the environment's own
numbers, where it has any: ``env/<name>`` over all steps and ``env_end/<name>`` over the episodes'
last steps, as in the rows of a run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from typing import Any

import jax
import numpy as np

from jaxrl_scale import commands
from jaxrl_scale.config import command_line, files
from jaxrl_scale.errors import RunError, how_many
from jaxrl_scale.figures.video import check_video, write_video
from jaxrl_scale.loop.agent import load
from jaxrl_scale.loop.prepare import jax_settings_restored
from jaxrl_scale.options import INT32_MAX, shortened
from jaxrl_scale.parallel import backend
from jaxrl_scale.records.statistics import evaluation, standard_error
from jaxrl_scale.records.terminal import between, number


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    return commands.run(_command, argv)


def _command(argv: list[str]) -> int:
    argv, env_kwargs = command_line.kwargs_given(argv, "env_kwargs")
    args = _parser().parse_args(argv)
    # What the user's code prints is not part of the JSON.
    prints = redirect_stdout(sys.stderr) if args.json else nullcontext()
    with jax_settings_restored(), prints:
        result, frames = evaluate(args, env_kwargs)
    print(json.dumps(result) if args.json else describe(result, frames))
    return 0


def _parser() -> commands.Parser:
    parser = commands.Parser(
        prog="python -m jaxrl_scale.evaluate",
        usage="python -m jaxrl_scale.evaluate RUN_DIR [--OPTION=VALUE ...]",
        description="Play whole episodes with the trained agents of a run, and tell their mean\n"
        "return and length, and the means of the environment's own numbers, where it has\n"
        "any. A run that is still training can be evaluated too: its newest checkpoint plays.",
    )
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=commands.path, help="directory of the run"
    )
    add, whole = parser.option, commands.whole_number
    episodes = "number of episodes that each agent plays [128]"
    add("episodes", "N", episodes, type=whole(), default=128)
    add("agents", "K,K,...", "indices of the agents that play, from 0 [all]")
    commands.add_checkpoint(parser)
    add(
        "seed",
        "N",
        "seed of the first agent's episodes; each agent has the one after that of the agent "
        "before [the seeds of the agents; with --gymnasium and --video 0]",
        type=whole(0, INT32_MAX),
    )
    another = "another value of a parameter of the environment, for these episodes"
    add("env_kwargs.NAME", "VALUE", another)  # `command_line.kwargs_given` reads it
    parser.add_argument(
        "--sampled",
        action=argparse.BooleanOptionalAction,
        help="sample actions from the policy, or take the best ones [as the run's own evaluations]",
    )
    parser.add_argument(
        "--gymnasium", action="store_true", help="play in real Gymnasium [in our environment]"
    )
    add(
        "video",
        "FILE",
        "also write an episode to FILE.gif or FILE.mp4; of a game on the host at most 1,000 frames",
        type=commands.path,
    )
    games = "number of episodes that the video shows side by side, each with its own start [1]"
    add("games", "N", games, type=whole(), default=1)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def evaluate(args: argparse.Namespace, env_kwargs: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Play the episodes that the command line asks for. Returns the result and the number of the
    video's frames.

    Args:
      env_kwargs: parameters of the environment that differ from those of the run.
    """
    config = files.read_config(args.run_dir / "config.json")
    agents = _agents(args.agents, config.num_seeds)
    if args.video:
        check_video(args.video)
    elif args.games > 1:
        raise RunError(f"--games={args.games} says how many games a video shows; add --video=FILE")
    backend.initialize(files.to_look_at(config, devices=None))
    with commands.working(f"loading {args.run_dir}"):
        agent = load(args.run_dir, agents[0], args.checkpoint, env_kwargs)
    greedy = config.eval_greedy if args.sampled is None else not args.sampled
    frames, video = [], args.video and args.video.absolute()  # the environment may go elsewhere
    if args.video:  # first, since it is quick to tell that an environment cannot be drawn
        with commands.working("playing and drawing the video"):
            frames = agent.record(args.seed or 0, greedy, args.games)
            write_video(video, frames)
    episodes = how_many(args.episodes, "episode") + " of each agent" * (len(agents) > 1)
    with commands.working(f"playing {episodes}{' in real Gymnasium' * args.gymnasium}"):
        if args.gymnasium:
            played = agent.evaluate_in_gymnasium(args.episodes, greedy, agents, args.seed or 0)
        else:
            by_all = agent.evaluate(args.episodes, greedy, args.seed)
            played = jax.tree.map(lambda x: x[agents], by_all)
    result: dict[str, Any] = dict(
        evaluation(played, [i for i, k in enumerate(agents) if k in agent.failed])
    )
    known = [score is not None for score in result["per_agent"]]
    result |= {
        "env": agent.env.spec.gymnasium_id if args.gymnasium else agent.env.spec.id,
        "where": "gymnasium" if args.gymnasium else "jaxrl_scale",
        "greedy": greedy,
        "agents": agents,
        "failed": [k for k, counts in zip(agents, known, strict=True) if not counts],
        "iteration": agent.iteration,
        "standard_error": standard_error(np.asarray(played.returns)[known]) if any(known) else None,
    }
    if args.seed is not None:
        result["seed"] = args.seed
    if env_kwargs:
        result["env_kwargs"] = env_kwargs
    if args.video:
        result["video"] = str(args.video)
    return result, len(frames)


def describe(result: dict[str, Any], frames: int = 0) -> str:
    """The result in words."""
    scores = [score for score in result["per_agent"] if score is not None]
    where = "real Gymnasium" if result["where"] == "gymnasium" else "jaxrl_scale"
    episodes = how_many(result["episodes"], "episode")
    over = f"{len(scores)} agents with {episodes} each" if len(scores) > 1 else episodes
    error = result["standard_error"]
    within = f" ± {number(error)} (standard error over {over})" if error is not None else ""
    changed = result.get("env_kwargs")
    with_these = f" ({command_line.written(changed)})" if changed else ""
    lines = [
        f"{result['env']}{with_these} in {where}, "
        f"{'greedy' if result['greedy'] else 'sampled'} actions, iteration {result['iteration']}: "
        f"mean return {number(result['mean'])}" + (within or f" of {over}")
    ]
    if scores:
        means = [f"mean length {number(result['length'])} steps"]
        means += [f"{name} {number(x)}" for name, x in result["info"].items()]
        lines.append(", ".join(means))
    if len(scores) > 1:
        lines.append(
            f"interquartile mean over agents {number(result['iqm'])} (95 % interval "
            f"{between(result['ci95'])}), worst agent {number(min(scores))}"
        )
    if result["failed"]:
        failed = ", ".join(map(str, result["failed"]))
        agents = "agent" if len(result["failed"]) == 1 else "agents"
        lines.append(
            f"left out, as the loss, another metric or the return is not finite: {agents} {failed}"
        )
    if "video" in result:
        lines.append(f"wrote {result['video']} ({how_many(frames, 'frame')})")
    return "\n".join(lines)


def _agents(text: str | None, count: int) -> list[int]:
    """The indices that ``--agents`` names, by default all ``count``."""
    if text is None:
        return list(range(count))
    try:
        agents = [int(part) for part in text.split(",")]
    except ValueError:  # no numbers, or more than the 4,300 digits that Python reads
        said = f"--agents={shortened(text)} should be whole numbers separated by commas"
        raise RunError(said) from None
    if len(set(agents)) < len(agents):
        raise RunError(f"--agents={text} should name no agent twice")
    if min(agents) < 0 or max(agents) >= count:
        there = f"agents 0 to {count - 1}" if count > 1 else "one agent, 0"
        raise RunError(f"--agents={text}: the run has {there}")
    return agents


if __name__ == "__main__":
    sys.exit(main())
