"""``sweep.json`` in the folder of a sweep: what is searched, and what trains side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxrl_scale.config import Config
from jaxrl_scale.errors import RunError, make_folder
from jaxrl_scale.loop import origin
from jaxrl_scale.loop.make import check_fit
from jaxrl_scale.records import provenance
from jaxrl_scale.records.run_directory import (
    io_errors,
    plain,
    read_object,
    refuse_run,
    short,
    write_json_once,
)


def begin(
    folder: Path,
    sweep: dict[str, Any],
    divided: Callable[[], list[list[int]]],
    begins_from: Callable[[], dict[str, Any]] = dict,
) -> Any:
    """Write ``sweep.json``, which says what is searched and which settings train side by side. The
    latter depends on the memory that is free, and a sweep that goes on keeps to it.

    Args:
      sweep: what the sweep is.
      divided: decides what a new sweep trains side by side.
      begins_from: of a new sweep, the policy from which all agents begin; empty if there is none.

    Returns:
      What trains side by side. Raises a `RunError` where the folder holds another sweep.
    """
    path, told = folder / "sweep.json", plain(sweep)
    if not path.exists():
        refuse_run(folder)
        mine = {"init_from": begins_from(), "chunks": divided()}
        mine |= {"command": provenance.typed_command(), "modules": provenance.own_modules()}
        with io_errors(folder):
            make_folder(folder)
        write_json_once(path, told | mine)  # jobs of an array may begin at the same time
    there = read_object(path)
    if isinstance(config := there.get("config"), dict):  # earlier versions wrote more of it
        there["config"] = {name: config[name] for name in config.keys() & told["config"].keys()}
    for name in told:
        if there.get(name) != told[name]:
            another = f"other {name}" if name.endswith("s") else f"another {name}"
            raise RunError(
                f"{short(folder)} holds a sweep with {another}; choose another --run_dir, or "
                f"repeat its command: {there.get('command', '')}"
            )
    chunks = there.get("chunks")
    if not isinstance(chunks, list):
        raise RunError(f"{short(path)} is damaged: it has no chunks")
    return chunks


def changed_modules(folder: Path, config: Config) -> str | None:
    """What the user is told of a sweep that goes on, where modules of their own have changed: its
    agents would be compared with others that were trained by other code."""
    if provenance.own_code(config):
        check_fit(config)  # which imports them
    there = read_object(folder / "sweep.json")
    return provenance.changed_modules(config, [there], "this sweep began")


def check_origin(folder: Path, config: Config) -> None:
    """Raise a `RunError` where a run would begin from another policy than those of the sweep that
    began before it, because the run that they begin from has trained on."""
    recorded = read_object(folder / "sweep.json").get("init_from")
    if config.init_from and recorded:
        now = origin.policy(config)
        if now["digest"] != recorded["digest"]:
            raise RunError(
                f"init_from={config.init_from} has trained on since this sweep began: it is at "
                f"iteration {now['iteration']}, and other agents began from iteration "
                f"{recorded['iteration']}; begin another sweep with another --run_dir"
            )
