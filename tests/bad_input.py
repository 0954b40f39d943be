"""How bad input is answered, kind by kind: ``python tests/bad_input.py [GROUP ...]``.

Each kind of `bad_input_kinds` has one mistake. It is answered well if the command ends with
the status that docs/runs.md gives it (2 where nothing else is said), if standard error is one short
line that names the mistake, without a traceback, and if no file has appeared, gone or changed. A
checkpoint that is damaged and skipped has a line of its own before it.

Most kinds run in this process, by the command's own ``main`` in a fresh folder; those that JAX
looks at when it starts have a process of their own. A line is printed for each kind that is
answered badly, and the total of each group at the end; the exit status is 0 if 98 of 100 are well.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
from bad_input_kinds import KINDS, Kind

REPOSITORY = Path(__file__).parents[1]
TINY = (
    *("--num_envs=8", "--rollout_length=256", "--iterations=2", "--eval_episodes=1"),
    *("--hidden_sizes=8", "--wandb=disabled", "--tensorboard=false", "--compilation_cache="),
    "--checkpoint_every=1",
)
"""What comes before a kind's own options of `train`, so that one which is not refused is quick."""
LONGEST_LINE = 700
SECONDS = 60  # of processor time until a kind that is not answered is given up


class Answer(NamedTuple):
    """What a command did."""

    status: int
    err: str
    changed: list[str]


def faults(kind: Kind, answer: Answer) -> str:
    """What is wrong with an answer; an empty text if it is well."""
    lines = [line for line in answer.err.splitlines() if "is damaged and skipped" not in line]
    wrong = []
    if "Traceback" in answer.err:
        wrong.append(f"a traceback: {lines[-1][:300] if lines else ''}")
    if answer.status != kind.status:
        wrong.append(f"status {answer.status} instead of {kind.status}")
    if len(lines) != 1:
        wrong.append(f"{len(lines)} lines")
    if max(map(len, lines), default=0) > LONGEST_LINE:
        wrong.append(f"a line of {max(map(len, lines))} characters")
    if kind.said not in answer.err:
        wrong.append(f"{kind.said!r} is not said")
    if answer.changed:
        wrong.append(f"changed: {', '.join(answer.changed[:4])}")
    return "; ".join(wrong)


def answered(kind: Kind, folder: Path, finished: Path) -> Answer:
    """Type the kind in a new folder.

    Args:
      finished: the directory of a run that has finished, of which the kind may have a copy.
    """
    folder.mkdir()
    for name, content in kind.files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        data = content if isinstance(content, bytes) else textwrap.dedent(content).encode()
        file.write_bytes(data)
    if kind.run:
        shutil.copytree(finished, folder / kind.run, symlinks=True)
    if kind.damage:
        kind.damage(folder / kind.run)
    before = _contents(folder)
    status, err = (_own_process if kind.alone else _this_process)(kind, folder)
    after = _contents(folder)
    changed = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
    return Answer(status, err, changed)


def _argv(kind: Kind) -> list[str]:
    resumes = any(text.startswith("--resume") for text in kind.argv)
    return [*(() if resumes or kind.command != "train" else TINY), *kind.argv]


def _main(kind: Kind) -> int:
    if kind.command == "python":
        commands = importlib.import_module("jaxrl_scale.commands")

        def run(argv: list[str]) -> int:
            exec(textwrap.dedent(argv[0]), {"__name__": "user"})
            return 0

        return commands.run(run, _argv(kind))
    name = f"jaxrl_scale.{kind.command}" if kind.command else "jaxrl_scale.__main__"
    return importlib.import_module(name).main(_argv(kind))


def _this_process(kind: Kind, folder: Path) -> tuple[int, str]:
    def give_up(*_: object) -> None:
        raise TimeoutError(f"no answer in {SECONDS} seconds of processor time")

    modules, path, environment = set(sys.modules), list(sys.path), dict(os.environ)
    signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    importlib.invalidate_caches()
    with contextlib.chdir(folder), _captured() as texts:
        try:
            os.environ.update(kind.environment)
            status = _main(kind)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
            status = 1
    signal.setitimer(signal.ITIMER_PROF, 0)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    for name in set(sys.modules) - modules:  # another kind's module may have the same name
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(folder)):
            del sys.modules[name]
    return status, texts[1]


@contextlib.contextmanager
def _captured() -> Iterator[list[str]]:
    """Standard output and error of this process, those of libraries in C++ too, in a list that is
    filled at the end."""
    texts: list[str] = []
    streams = sys.stdout, sys.stderr
    kept = [os.dup(stream.fileno()) for stream in streams]
    files = [tempfile.TemporaryFile() for _ in streams]  # noqa: SIM115  closed below
    for stream, file in zip(streams, files, strict=True):
        stream.flush()
        os.dup2(file.fileno(), stream.fileno())
    try:
        yield texts
    finally:
        for stream, file, there in zip(streams, files, kept, strict=True):
            stream.flush()
            os.dup2(there, stream.fileno())
            os.close(there)
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()


def _own_process(kind: Kind, folder: Path) -> tuple[int, str]:
    module = f"jaxrl_scale.{kind.command}"
    done = subprocess.run(
        [sys.executable, "-m", module, *_argv(kind)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **kind.environment},
        capture_output=True,
        text=True,
        timeout=10 * SECONDS,
    )
    return done.returncode, done.stderr


def _contents(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Of everything below a folder, its mode, the time of its last change, and a digest."""
    found = {}
    for path in folder.rglob("*"):
        is_file = path.is_file() and not path.is_symlink()
        stat = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if is_file else ""
        if path.name == ".lock":  # it stays, and says who used the run last
            continue
        time_of_change = stat.st_mtime_ns if is_file else 0
        found[str(path.relative_to(folder))] = stat.st_mode, time_of_change, digest
    return found


def finished_run(folder: Path) -> None:
    """A run of one agent in CartPole that has finished, with two checkpoints."""
    train = importlib.import_module("jaxrl_scale.train")
    with _captured() as texts:
        status = train.main([*TINY, "--algo.lr_schedule=constant", f"--run_dir={folder}"])
    assert status == 0, texts


def main(argv: Sequence[str]) -> int:
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "WANDB_MODE": "disabled"}
    sys.path.insert(0, str(REPOSITORY))
    jax.config.update("jax_disable_most_optimizations", True)  # nothing here trains for long
    groups = list(dict.fromkeys(kind.group for kind in KINDS))
    if unknown := [name for name in argv if name not in groups]:
        print(f"no group is called {unknown[0]!r}; there are {', '.join(groups)}", file=sys.stderr)
        return 2
    asked = [kind for kind in KINDS if not argv or kind.group in argv]
    well, everything, began = Counter[str](), Counter[str](), time.process_time()
    with tempfile.TemporaryDirectory() as name:
        finished = Path(name) / "finished"
        finished_run(finished)  # also where no kind asks for it: JAX has its devices from then on
        for number, kind in enumerate(asked):
            answer = answered(kind, Path(name) / str(number), finished)
            wrong = faults(kind, answer)
            everything[kind.group] += 1
            well[kind.group] += not wrong
            if wrong:
                print(f"{kind.group}: {kind.typed}: {wrong}\n    {answer.err[-600:]}", flush=True)
            elif os.environ.get("SHOW"):
                print(f"{kind.typed}\n    {answer.err}", end="", flush=True)
            shutil.rmtree(Path(name) / str(number))
    for group, number in everything.items():
        print(f"{well[group]:4d} of {number:4d}  {group}")
    print(f"{well.total():4d} of {everything.total():4d}  all are answered well")
    children = os.times().children_user + os.times().children_system
    print(f"{time.process_time() - began + children:.0f} seconds of processor time")
    return int(well.total() < 0.98 * everything.total())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
