"""How numbers were made, and on what: command, commit, versions, machine. A run records it at every
start, a study once."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import shlex
import socket
import subprocess
import sys
import time
import types
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxrl_scale.config import Config
from jaxrl_scale.errors import in_words
from jaxrl_scale.parallel.machine import processor_features, visible_cores
from jaxrl_scale.user_code import is_own, modules_of_ones_own

_PACKAGES = (
    *("jaxrl_scale", "jax", "jaxlib", "flax", "optax", "chex", "orbax-checkpoint", "numpy"),
    *("scipy", "gymnasium", "gymnax", "envpool", "wandb", "tensorboardX"),
    *("brax", "craftax", "jumanji", "playground", "mujoco", "mujoco-mjx"),
    *("jax-cuda12-plugin", "jax-cuda13-plugin"),
)
_JAX_FLAGS = (
    *("jax_default_matmul_precision", "jax_enable_x64", "jax_default_prng_impl"),
    *("jax_threefry_partitionable", "jax_platforms", "jax_num_cpu_devices"),
    *("jax_compilation_cache_dir", "jax_debug_nans", "jax_use_shardy_partitioner"),
)


def describe_process() -> dict[str, Any]:
    """How this process was started: command, folder, host, commit, versions, flags of JAX."""
    flags = {name: getattr(jax.config, name, None) for name in _JAX_FLAGS}
    environment = {k: v for k, v in os.environ.items() if k.startswith(("JAX_", "XLA_", "FLAX_"))}
    return {
        "time": time.time(),
        "command": shlex.join(sys.orig_argv),
        "directory": os.getcwd(),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "platform": platform.platform(),
        "git_commit": git_commit(),
        "versions": versions(),
        "jax_flags": flags,
        "environment": environment,
    }


def typed_command() -> str:
    """The command of this process, to be typed again."""
    return shlex.join(["python", *sys.orig_argv[1:]])


def describe_machine() -> dict[str, Any]:
    """What this process computes on and with, for the head of a table of measurements."""
    wanted = ("python", "jaxrl_scale", "jax", "jaxlib")
    return {
        "processor": _processor() or platform.processor() or platform.machine(),
        "cores": len(visible_cores()),
        "system": platform.platform(),
        "versions": {name: version for name, version in versions().items() if name in wanted},
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str | None:
    """The processor's name, in Linux."""
    with contextlib.suppress(OSError):
        for line in processor_features().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return None


def own_code(config: Config) -> bool:
    """Whether a run's environment, network or algorithm may be written by the user."""
    of_others = config.env.startswith(("gymnax:", "envpool:"))
    return (
        is_own(config.network) or is_own(config.algo.name) or (is_own(config.env) and not of_others)
    )


_digests: weakref.WeakKeyDictionary[types.ModuleType, str] = weakref.WeakKeyDictionary()
"""A file may be edited while the process goes on with what it has imported."""


def own_modules() -> dict[str, str]:
    """The modules of the user's own that are imported, each with the SHA-256 of its file as it was
    when this was asked first."""
    found = {}
    for name in modules_of_ones_own():
        with contextlib.suppress(OSError, KeyError, TypeError):
            module = sys.modules[name]
            if module not in _digests:
                content = Path(str(module.__file__)).read_bytes()
                _digests[module] = hashlib.sha256(content).hexdigest()
            found[name] = _digests[module]
    return found


def changed_modules(
    config: Config, starts: Sequence[Mapping[str, Any]], then: str = "this run was last started"
) -> str | None:
    """What the user is told where modules of their own differ from those of ``then``, the last of
    ``starts``; those of a run are in its ``run.json``."""
    before = starts[-1].get("modules") if starts and own_code(config) else None
    now = own_modules() if isinstance(before, dict) else {}
    changed = [name for name in sorted(now) if before and before.get(name, now[name]) != now[name]]
    if not changed:
        return None
    have = "has" if len(changed) == 1 else "have"
    return (
        f"{in_words(changed)} {have} changed since {then}: what it computes now may be something "
        "else"
    )


def changed_environment(
    facts: Mapping[str, Any], starts: Sequence[Mapping[str, Any]]
) -> str | None:
    """What the user is told where an environment on the host has other versions or options than
    when the run was last started; both are in ``facts``, those of a start."""
    before, now = (x.get("environment") for x in (starts[-1] if starts else {}, facts))
    if not isinstance(before, dict) or not isinstance(now, dict) or before == now:
        return None
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    differ = "differs" if len(names) == 1 else "differ"
    return (
        f"{in_words(names)} of the environment {differ} from when this run was last started: what "
        "it computes now may be something else"
    )


@functools.cache  # it reads a file for each package
def versions() -> dict[str, str]:
    """The versions of Python and of the packages that matter, where they are installed. Nothing
    is imported for it."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """The git commit of this package's files, followed by ``-dirty`` if files were changed since;
    ``None`` if the package is installed and not a checkout."""
    folder = Path(__file__).parents[1]
    # An installed package may lie in another project's repository, in its .venv for example.
    if _git(folder, "ls-files", "--error-unmatch", "types.py") is None:
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
