"""Is one commit faster than another? Both train in turns, as `throughput.py` measures it.

    python benchmarks/compare.py HEAD~1 HEAD

prints, for the configurations b and c on CartPole and Acrobot, the steps per second of both, how
many times those of the first the second makes (the median of the pairs, and the lowest and highest
of them), and the seconds of compiling. Each commit is checked out beside this clone, and its own
`benchmarks/throughput.py` measures it with this interpreter's libraries. ``.`` is the clone as it
lies here. On a machine that does other things the range is wide: then the ratio says nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from throughput import ENVS, child

HERE = Path(__file__).resolve().parents[1]


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """The files of a commit."""
    if commit == ".":
        yield HERE
        return
    git = ("git", "-C", str(HERE), "worktree")
    done = subprocess.run([*git, "add", "--detach", str(folder), commit], capture_output=True)
    if done.returncode:
        sys.exit(f"compare.py: {commit!r} cannot be checked out: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def measured(checkout: Path, env: str, size: str, seconds: float) -> dict[str, float]:
    """One turn of a checkout."""
    script = checkout / "benchmarks" / "throughput.py"
    where = ["--ours", env, size, "--seconds", str(seconds)]
    return child(sys.executable, script, *where, PYTHONPATH=str(checkout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", metavar="COMMIT")
    parser.add_argument("second", metavar="COMMIT")
    parser.add_argument("--seconds", type=float, default=6.0, help="measured, each time")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each commit")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        checked_out(args.first, Path(folder) / "first") as first,
        checked_out(args.second, Path(folder) / "second") as second,
    ):
        print(f"{os.cpu_count()} cores; {args.first} and {args.second}, {args.rounds} rounds")
        for size in ("b", "c"):
            for env in ENVS:
                rounds = [
                    [measured(checkout, env, size, args.seconds) for checkout in (first, second)]
                    for _ in range(args.rounds)
                ]
                ratios = [b["steps_per_second"] / a["steps_per_second"] for a, b in rounds]
                medians = [
                    {name: statistics.median(x[name] for x in turns) for name in turns[0]}
                    for turns in zip(*rounds, strict=True)
                ]
                speeds = ", ".join(f"{x['steps_per_second']:,.0f}" for x in medians)
                compiling = ", ".join(f"{x['compile_seconds']:.1f}" for x in medians)
                print(
                    f"{size} {env:12} {speeds} steps/s: {statistics.median(ratios):.2f} times "
                    f"({min(ratios):.2f}–{max(ratios):.2f}); compilation {compiling} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
