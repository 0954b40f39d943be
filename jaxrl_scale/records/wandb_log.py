"""Rows of metrics at Weights & Biases, sent by a thread of its own."""

from __future__ import annotations

import os
import queue
import secrets
import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxrl_scale.config import Config
from jaxrl_scale.config.files import flatten
from jaxrl_scale.errors import one_line
from jaxrl_scale.records.run_directory import RunDirectory, plain, read_object, short

INIT_SECONDS = 20
FINISH_SECONDS = 20  # a run that has begun at wandb: Slurm leaves 30 s from SIGTERM to SIGKILL


def wandb_mode(config: Config) -> str:
    """``auto``, ``online``, ``offline`` or ``disabled``. The config decides; if it says ``auto``,
    the variable ``WANDB_MODE`` does."""
    if config.wandb != "auto":
        return config.wandb
    mode = os.environ.get("WANDB_MODE", "auto").lower()
    return {"run": "online", "dryrun": "offline"}.get(mode, mode)


class WandbSink:
    """One run at wandb, which a thread feeds. Training does not wait for wandb's start, which takes
    more than a second, nor for the network, and an error of wandb's never ends a run.

    In mode ``auto`` the run is online if wandb finds credentials (in the environment, its settings
    or netrc), and else offline. Nobody is asked for a key. If the server cannot be reached within
    `INIT_SECONDS`, the run is offline and the user is told so in one line; ``wandb sync`` uploads
    it later. Under ``wandb agent`` the sweep chooses the id and the project.

    **After a resume** the run goes on under its id, which is kept in ``wandb.json``. wandb cannot
    take rows back: those that were logged between the checkpoint and the stop stay there, and are
    logged again with the same values at the same ``env_steps``, so that curves over ``env_steps``
    lie on themselves. An offline run becomes two folders of one id, which have to be uploaded in
    their order. The user is told.

    Args:
      repeated: the number of rows that will be logged again; None for a new run.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: Config,
        name: str,
        mode: str,
        repeated: int | None,
        say: Callable[[str], None],
    ):
        self.place: str | None = None  # where the run can be seen
        self._run, self._config, self._name = run, config, name
        self._mode, self._repeated, self._say = mode, repeated, say
        stored = read_object(run.path / "wandb.json")
        self._id = stored.get("id") or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        run.write_json("wandb.json", {"id": self._id})
        # Unbounded, because rows come while wandb starts. A run has few rows, and they are small.
        self._rows: queue.SimpleQueue[dict[str, float] | None] = queue.SimpleQueue()
        self._summary: dict[str, Any] = {}
        self._exit_code = 0
        self._thread = threading.Thread(target=self._work, name="wandb", daemon=True)
        self._thread.start()

    def log(self, values: dict[str, float]) -> None:
        if self._thread.is_alive():
            self._rows.put(values)

    def close(self, summary: dict[str, Any], exit_code: int) -> None:
        self._summary, self._exit_code = summary, exit_code
        self._rows.put(None)
        self._thread.join(INIT_SECONDS + FINISH_SECONDS)
        if self._thread.is_alive():
            self._say("wandb: gave up waiting for it; metrics.jsonl has everything")

    def _work(self) -> None:
        try:
            wandb_run = self._init()
            while (values := self._rows.get()) is not None:
                wandb_run.log(values)
            wandb_run.summary.update(self._summary)
            wandb_run.finish(exit_code=self._exit_code)
        except Exception as error:
            self.place = None
            self._say(f"wandb: off, for {reason(error)}; metrics.jsonl has everything")

    def _init(self) -> Any:
        import wandb

        mode = reachable(wandb, self._mode, self._say)
        if mode != "offline":
            try:
                return self._start(wandb, mode)
            except Exception as error:
                self._say(f"wandb: offline, for {reason(error)}")
                wandb.teardown(exit_code=1)  # frees the id
        return self._start(wandb, "offline")

    def _start(self, wandb: Any, mode: str) -> Any:
        # `silent` given to init alone would leave wandb's later warnings to be heard.
        wandb.setup(wandb.Settings(silent=True, mode=mode))
        in_sweep = "WANDB_SWEEP_ID" in os.environ  # it chooses project and id
        wandb_run = wandb.init(
            project=None if in_sweep else project_of(self._config),
            id=None if in_sweep else self._id,
            name=os.environ.get("WANDB_NAME") or self._name,
            dir=str(self._run.path),
            config=plain(flatten(self._config)),
            resume="allow",
            mode=mode,
            settings=quiet(wandb),
        )
        wandb_run.define_metric("*", step_metric="env_steps")
        self._run.write_json("wandb.json", {"id": wandb_run.id})
        offline = mode == "offline"
        self.place = sync_command(Path(wandb_run.dir).parent) if offline else wandb_run.url
        if self._repeated:
            self._say(
                f"wandb: run {wandb_run.id} goes on; it keeps the rows logged after the "
                f"checkpoint ({self._repeated}) and gets them again with the same values"
            )
        elif self._repeated is not None:
            self._say(f"wandb: run {wandb_run.id} goes on; no row is logged twice")
        return wandb_run


def project_of(config: Config) -> str:
    """The project in wandb: the config's, or else that of wandb's own variable."""
    named = config.wandb_project != Config().wandb_project
    return config.wandb_project if named else os.environ.get("WANDB_PROJECT", config.wandb_project)


def reachable(wandb: Any, mode: str, say: Callable[[str], None]) -> str:
    """``offline``, or for a mode ``auto`` or ``online`` what is possible: ``offline`` without
    credentials, which is said where the user wanted ``online``. Neither prompt nor network."""
    # wandb's own telemetry writes to the terminal when it meets a network error.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    if mode not in ("auto", "online"):
        return mode
    wandb.setup(wandb.Settings(silent=True, mode="online"))
    try:
        if wandb.login(prompt=False, verify=False):
            return "online"
        why = "no account was found; `wandb login` makes it known"
    except Exception as error:  # a malformed key
        why = reason(error)
    if mode == "online":
        say(f"wandb: offline, for {why}")
    return "offline"


def sync_command(folder: Path, pattern: str = "") -> str:
    """What uploads an offline run, typed into a shell.

    Args:
      folder: that of the run, or one that holds several.
      pattern: the names of the runs in it, which the shell finds.
    """
    quoted = shlex.quote(f"{short(folder)}/" if pattern else short(folder))
    return f"wandb sync {quoted}{pattern}"


def quiet(wandb: Any) -> Any:
    """Settings of a run that writes nothing to the terminal and waits for no server for long."""
    return wandb.Settings(
        silent=True, console="off", init_timeout=INIT_SECONDS, finish_timeout=FINISH_SECONDS
    )


def reason(error: BaseException) -> str:
    """An error in one short line."""
    return one_line(error)[:150] or type(error).__name__
