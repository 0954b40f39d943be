"""A sweep at Weights & Biases: a run for each setting, all in one group."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_scale.config import Config, command_line
from jaxrl_scale.config.files import flatten
from jaxrl_scale.errors import how_many
from jaxrl_scale.records.run_directory import plain, read_object, write_json
from jaxrl_scale.records.wandb_log import project_of, quiet, reachable, reason, sync_command
from jaxrl_scale.search.results import Outcome, Ranked, iqm_curve
from jaxrl_scale.search.space import Setting


def log(
    folder: Path,
    base: Config,
    settings: Sequence[Setting],
    found: Sequence[Outcome],
    ranks: Sequence[Ranked],
) -> None:
    """Log a finished sweep where ``base.wandb`` is ``online`` or ``offline``: of each setting the
    config, the learning curve over its seeds, and its place among the others. It is logged once,
    whatever was interrupted; an error of wandb's is told and ends nothing."""
    if base.wandb not in ("online", "offline"):
        return
    known = read_object(folder / "wandb.json") or {"group": secrets.token_hex(4), "logged": False}
    if known["logged"]:
        return
    write_json(folder / "wandb.json", known)
    try:
        _log_all(folder, known["group"], base, settings, found, ranks)
    except Exception as error:
        print(f"wandb: off, for {reason(error)}; the tables have everything")
        return
    write_json(folder / "wandb.json", known | {"logged": True})


def _log_all(
    folder: Path,
    group: str,
    base: Config,
    settings: Sequence[Setting],
    found: Sequence[Outcome],
    ranks: Sequence[Ranked],
) -> None:
    import wandb

    mode: Any = reachable(wandb, base.wandb, print)
    wandb.setup(wandb.Settings(silent=True, mode=mode))
    for place, one in enumerate(ranks, 1):
        config = command_line.with_options(base, settings[one.setting])
        run = wandb.init(
            project=project_of(base),
            group=f"{folder.name}-{group}",
            id=f"{group}-{one.setting}",
            name=f"setting {one.setting}",
            dir=str(folder),
            config=plain(flatten(config)),
            resume="allow",
            mode=mode,
            settings=quiet(wandb),
        )
        run.define_metric("*", step_metric="env_steps")
        steps, returns = iqm_curve([x.curve for x in found if x.setting == one.setting])
        for at, value in zip(steps.tolist(), returns.tolist(), strict=True):
            if np.isfinite(value):
                run.log({"env_steps": at, "return": value})
        low, high = one.ci95
        run.summary.update(
            {"rank": place, "iqm": one.iqm, "ci95_low": low, "ci95_high": high}
            | {"failed": one.failed, "rung": one.rung}
        )
        run.finish()
    where = sync_command(folder / "wandb", "*") if mode == "offline" else f"group {group}"
    print(f"wandb: {how_many(len(ranks), 'run')}; {where}")
