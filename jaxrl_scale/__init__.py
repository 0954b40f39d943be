"""Reinforcement learning in JAX, from the physics to the gradient, on any number of devices.

``from jaxrl_scale import Config, load, plot, train``. A name is imported when it is first used, so
that the commands can set up JAX before it is imported.
"""

import atexit
import contextlib
import gc
import importlib
import os
import re
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["Config", "load", "plot", "train"]

if TYPE_CHECKING:
    from jaxrl_scale.config import Config
    from jaxrl_scale.figures.report_plots import plot
    from jaxrl_scale.loop.agent import load
    from jaxrl_scale.train import train

# XLA's C++ log would be written into progress bars and results. XLA reads this variable when JAX is
# imported, so it is set here, before any module of the package imports JAX.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# XLA takes what does not begin with "-" for the name of a file that has the flags. What is added to
# them here would become a part of that name.
_flags = os.environ.get("XLA_FLAGS", "").strip()
if _flags and not _flags.startswith("-"):
    with contextlib.suppress(OSError, ValueError):  # it is no file, or none of text
        _in_file = Path(_flags).read_text()
        if _in_file.strip()[:1] in ("", "-"):
            os.environ["XLA_FLAGS"] = _in_file

# On CPUs, XLA's library YNNPACK must not compute plain sums: in jaxlib 0.10.2 it leaves terms out
# (https://github.com/jax-ml/jax/issues/39103), and it adds in an order that depends on the number
# of threads.
_NO_SUMS = "--xla_cpu_experimental_ynn_fusion_type=-reduce"
# On CPUs, a small loop must not become one kernel, as XLA makes it below 1 KB: there LLVM fuses
# products of one operation with sums of the next, or not, as the memory of the whole program has
# been assigned, which depends on the number of devices (docs/exactness.md).
NO_LOOP_KERNELS = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=0"
# XLA reads the variable when the first device is used; a choice of the user's stands.
for _flag in (_NO_SUMS, NO_LOOP_KERNELS):
    _flags = os.environ.get("XLA_FLAGS", "").strip()
    if _flag.split("=")[-2] not in _flags and _flags[:1] in ("", "-"):
        os.environ["XLA_FLAGS"] = f"{_flags} {_flag}".strip()

# Python calls a command "-m" until it has found its module; `jaxrl_scale` is the installed one.
if os.path.basename("".join(sys.argv[:1])) in ("-m", "jaxrl_scale"):
    # Importing and tracing make a million objects that stay, through which the garbage collector
    # would go again and again: half a second of the four that a start takes.
    gc.set_threshold(50_000, 20, 100)
    # At the end of the process it would go through all of them, for another 0.3 s.
    atexit.register(gc.freeze)
    # What is left to do then takes 0.1 s, in which no signal shall change how the command ends.
    for _number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        atexit.register(signal.signal, _number, signal.SIG_IGN)
    # Ctrl-C while modules are imported ends the process without a word, and not with a traceback;
    # from then on `jaxrl_scale.commands` answers it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.environ.get("XLA_FLAGS", "").strip()[:1] not in ("", "-"):
        print(
            f"error: XLA_FLAGS={os.environ['XLA_FLAGS']} should begin with --, or be the name of a "
            "file of flags that can be read",
            file=sys.stderr,
        )
        sys.exit(2)
    # JAX refuses a JAX_* variable with a value that is none while it is imported, and flax a FLAX_*
    # variable. A command answers that in one line like any other mistake.
    try:
        import jax as jax

        if any(name.startswith("FLAX_") for name in os.environ):  # not every command needs it
            import flax as flax
    except ModuleNotFoundError as error:
        print(
            f"error: {sys.executable} has no module {error.name!r}; is the environment active? "
            "(. .venv/bin/activate)",
            file=sys.stderr,
        )
        sys.exit(2)
    except ValueError as error:
        told = re.sub(r"JAX flag (jax_\w+)", lambda found: found[1].upper(), str(error))
        print(f"error: {told}", file=sys.stderr)
        sys.exit(2)


class _Package(ModuleType):
    """A package whose ``train`` is the function, not the module that has it. Python sets a
    package's attribute to a module of that name whenever somebody imports the module first."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "train" and isinstance(value, ModuleType):
            value = value.train
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


_HOMES = {
    "Config": "jaxrl_scale.config",
    "load": "jaxrl_scale.loop.agent",
    "plot": "jaxrl_scale.figures.report_plots",
    "train": "jaxrl_scale.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
