"""What a run records: its rows of metrics and its summary.

A **row** is a flat dict. It has

- ``iteration``, ``time`` (Unix seconds), ``wall_seconds``, ``compile_seconds``,
  ``steps_per_second`` (since the row before), ``env_steps`` (valid steps of all agents together);
- ``episodes``, ``return`` and ``length``: the number of episodes that ended since the row before,
  and their mean return and length;
- ``return_100``: the mean return over the most recent iterations that together contain at least
  100 finished episodes;
- ``eval_return`` and ``eval_length``, if the agents were evaluated in this iteration, and
  ``test_return`` and ``test_length``, if they were evaluated with ``test_env_kwargs`` too;
  ``eval_normalized`` and ``test_normalized``, the returns by the range that was published for the
  environment, if one was;
- ``memory_mb`` and ``peak_memory_mb``;
- ``env/<name>`` and ``env_end/<name>``, the means since the row before of the numbers that the
  environment reports by itself (`jaxrl_scale.types.TimeStep`); of an evaluation they are
  ``eval_env/<name>`` and so on;
- the metrics of the algorithm, which ``docs/metrics.md`` explains.

With several agents a number that each of them has is the interquartile mean over those that have
not failed; ``episodes``, ``env_steps`` and ``steps_per_second`` are those of all agents together;
``per_agent`` holds ``{metric: [one number for each agent]}``, and ``failed`` the indices of the
agents of which some metric was not finite. ``null`` stands for a number that does not exist, and
for NaN and infinities, which JSON does not know.

``metrics.jsonl`` has one row a line and is the truth. TensorBoard's events are derived from it.
When a run is resumed, both are cut back to its checkpoint, so that they read as if the run had
never stopped. wandb takes no row back: see `jaxrl_scale.records.wandb_log`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from jaxrl_scale.envs import scores
from jaxrl_scale.errors import RunError
from jaxrl_scale.records.run_directory import parsed, read_bytes, short

Row = dict[str, Any]

TIMINGS = frozenset(
    {
        *("time", "wall_seconds", "steps_per_second", "compile_seconds"),
        *("memory_mb", "peak_memory_mb"),
    }
)
"""What depends on the clock and the machine in a row. Everything else is the same in runs of one
config."""

OF_THE_RUN = TIMINGS | {
    *("iteration", "env_steps", "episodes", "return", "length", "return_100"),
    *("eval_return", "test_return", "eval_normalized", "test_normalized"),
    *("eval_length", "test_length"),
    *("param_norm", "per_agent", "failed"),
}
"""What a row has of the run itself: no metric of an algorithm may have such a name."""

_OF_GRADIENT_STEPS = {
    *("loss", "policy_loss", "value_loss", "temperature_loss", "grad_norm"),
    *("entropy", "temperature", "approx_kl", "clip_fraction", "q_mean", "td_error"),
}


def is_of_gradient_steps(metric: str) -> bool:
    """Whether it is a mean over the gradient steps of an iteration."""
    return metric in _OF_GRADIENT_STEPS or metric.startswith("loss_shard_")


TAGS = {
    "return": "episode/return",
    "return_100": "episode/return_100",
    "length": "episode/length",
    "episodes": "episode/count",
    "eval_return": "evaluation/return",
    "test_return": "evaluation/test_return",
    "eval_length": "evaluation/length",
    "test_length": "evaluation/test_length",
    "eval_normalized": "evaluation/normalized",
    "test_normalized": "evaluation/test_normalized",
    "loss": "loss/total",
    "policy_loss": "loss/policy",
    "value_loss": "loss/value",
    "temperature_loss": "loss/temperature",
    "entropy": "policy/entropy",
    "temperature": "policy/temperature",
    "approx_kl": "policy/approx_kl",
    "clip_fraction": "policy/clip_fraction",
    "explained_variance": "value/explained_variance",
    "learning_rate": "optimizer/learning_rate",
    "grad_norm": "optimizer/grad_norm",
    "param_norm": "optimizer/param_norm",
    "updates": "optimizer/updates",
    "iteration": "time/iteration",
    "wall_seconds": "time/wall_seconds",
    "steps_per_second": "time/steps_per_second",
    "compile_seconds": "time/compile_seconds",
    "memory_mb": "memory/now_mb",
    "peak_memory_mb": "memory/peak_mb",
}
"""Names in TensorBoard and wandb; ``algo/<name>`` for what is not listed, unless it has a
slash, as the names of an environment's own numbers do. The horizontal axis is ``env_steps`` of one
agent. With several agents ``agents/<metric>_min`` and ``_max`` show the spread of the returns,
``agents/failed`` the number of those that failed."""

_NOT_DRAWN = ("env_steps", "time", "per_agent", "failed")
_SPREAD = ("return", "return_100", "eval_return")


def normalized(env_id: str, means: Mapping[str, float | None]) -> dict[str, float | None]:
    """``eval_normalized`` for ``eval_return``, and so on, where a range was published."""
    if scores.normalized(env_id, 0.0) is None:
        return {}
    return {
        name.replace("_return", "_normalized"): x if x is None else scores.normalized(env_id, x)
        for name, x in means.items()
    }


class Evaluation(TypedDict):
    """The final evaluation: statistics of returns over agents, or over the episodes of one."""

    mean: float | None
    iqm: float | None  # interquartile mean
    # The 95 % interval of the IQM; of the mean where there is one agent.
    ci95: tuple[float | None, float | None]
    episodes: int  # of each agent
    per_agent: list[float | None]  # each agent's mean return; None where it failed
    # The 95 % interval of each agent's mean, over its episodes. Runs of earlier versions have none.
    per_agent_ci95: NotRequired[list[tuple[float | None, float | None]] | None]
    # Means over the agents that did not fail: the length of episodes in steps, and the
    # environment's own numbers by their names in a row. Runs of earlier versions have none.
    length: NotRequired[float | None]
    info: NotRequired[dict[str, float | None] | None]


def centre(evaluation: Evaluation) -> float | None:
    """What `Evaluation.ci95` is the interval of."""
    return evaluation["iqm" if len(evaluation["per_agent"]) > 1 else "mean"]


class Summary(TypedDict, total=False):
    """``summary.json``: the result of a run. The times of a resumed run include those before."""

    status: str  # done, stopped (by a signal, saved) or failed (every agent has)
    iterations: int  # done, of those that the config asks for
    num_seeds: int
    failed: list[int]  # agents of which some metric was not finite
    # SHA-256 of what the agents have learned (`PlacedAgents.digests`); None if failed.
    digest: str | None
    env_steps: int  # valid steps of all agents
    return_100: float | None  # training return of the last 100 episodes; IQM over agents
    evaluation: Evaluation | None
    test: Evaluation  # in the environment of test_env_kwargs, where there are any
    # What the intervals of these are of, by the range that was published, if one was.
    eval_normalized: float | None
    test_normalized: float | None
    target_return: float | None
    seconds_to_target: float | None  # from the start of the process, compilation included
    wall_seconds: float  # all of it: compilation, training, evaluation
    compile_seconds: float
    steps_per_second: float  # env_steps over the time that is not compilation
    peak_memory_mb: float  # of the process on CPUs, of one device on GPUs


# --- rows -----------------------------------------------------------------------------------


def read_rows(path: Path) -> list[Row]:
    """The rows of a ``metrics.jsonl``; a last line that was torn by a crash is left out."""
    lines, rows = (read_bytes(path) or b"").splitlines(), []
    for number, line in enumerate(lines, 1):
        try:
            row = parsed(line)
        except (ValueError, RecursionError):
            if number < len(lines):
                raise RunError(f"{short(path)}, line {number} is damaged") from None
            continue
        if not isinstance(row, dict) or not isinstance(row.get("iteration"), int):
            where = f"{short(path)}, line {number}"
            raise RunError(f"{where} is damaged: it should be a JSON object with an iteration")
        rows.append(row)
    return rows


def thinned(number: int, most: int) -> slice:
    """Of so many rows at most ``most``, equally far apart, the last one among them."""
    stride = -(-number // most)
    return slice((number - 1) % stride, None, stride)


def scalars(row: Row) -> dict[str, float]:
    """What TensorBoard and wandb draw of a row: tag and number."""
    drawn = {
        TAGS.get(k, k if "/" in k else f"algo/{k}"): v
        for k, v in row.items()
        if k not in _NOT_DRAWN
    }
    per_agent = row.get("per_agent") or {}
    for metric in _SPREAD:
        if values := [v for v in per_agent.get(metric, ()) if v is not None]:
            drawn[f"agents/{metric}_min"] = min(values)
            drawn[f"agents/{metric}_max"] = max(values)
    if "failed" in row:
        drawn["agents/failed"] = len(row["failed"])
    return {tag: v for tag, v in drawn.items() if isinstance(v, int | float)}
