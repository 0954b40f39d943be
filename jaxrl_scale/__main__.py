"""The commands of the package: ``python -m jaxrl_scale`` lists them.

``python -m jaxrl_scale train`` is ``python -m jaxrl_scale.train``, and so are the others. Where the
package is installed, ``jaxrl_scale train`` is the same.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from jaxrl_scale import commands
from jaxrl_scale.errors import RunError, nearest, one_line

COMMANDS = {
    "train": "train agents, or go on with a run that was stopped",
    "evaluate": "play episodes with the agents of a run, and film them",
    "export": "write a policy as NumPy, StableHLO or ONNX, to run without this package",
    "runs": "list runs: how they differ, what they reached, how far they are",
    "report": "write a page with the curves and results of one run or several",
    "sweep": "search for good options, with many agents side by side",
    "compare": "train several configs in several environments and compare them",
    "scaling": "measure speed and learning over processes, devices and environments",
}


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in COMMANDS:  # it answers errors and Ctrl-C by itself
        status: int = importlib.import_module(f"jaxrl_scale.{name}").main(rest)
        return status
    return commands.run(_command, [name])


def _command(argv: list[str]) -> int:
    (name,) = argv
    if name == "--version":
        print(version())
    elif name in ("-h", "--help"):
        print(listed())
    else:
        near = nearest(name, list(COMMANDS))
        raise RunError(f"no command is called {one_line(name)!r}{near or '; --help lists them'}")
    return 0


def listed() -> str:
    """All commands, a line each."""
    lines = [f"  {name:<10} {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "Train agents with JAX. The commands, each of which has a --help:",
            "",
            *lines,
            "",
            "  python -m jaxrl_scale train --config configs/acrobot.py",
            "  python -m jaxrl_scale runs",
            "",
            "--version tells the versions of the package and of what its results depend on.",
        ]
    )


def version() -> str:
    """``jaxrl_scale 0.1.0 (jax 0.10.2, jaxlib 0.10.2, Python 3.11.7)``"""
    from jaxrl_scale.records.provenance import versions

    found = versions()
    own = found.get("jaxrl_scale", "(not installed)")
    others = f"jax {found['jax']}, jaxlib {found['jaxlib']}, Python {found['python']}"
    return f"jaxrl_scale {own} ({others})"


if __name__ == "__main__":
    sys.exit(main())
