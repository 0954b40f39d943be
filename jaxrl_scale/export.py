"""Write a trained policy in forms that run without this package:
``python -m jaxrl_scale.export RUN_DIR``.

==================== ==========================================================================
``policy.py``        a short NumPy file that acts, with its weights in ``policy.npz``
``policy.stablehlo`` the same as a program of XLA's, by `jax.export`
``policy.onnx``      the same for ONNX's runtimes, with ``--onnx``
==================== ==========================================================================

All of them take the best action, for batches of any size. A policy with a memory is given its
memory and returns the next one.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np

from jaxrl_scale import algos, commands
from jaxrl_scale.config import Config, files
from jaxrl_scale.errors import RunError, in_words, make_folder
from jaxrl_scale.loop.agent import Agent, load
from jaxrl_scale.loop.prepare import jax_settings_restored
from jaxrl_scale.parallel import backend
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.portable import numpy_text, onnx_graph, program
from jaxrl_scale.records.run_directory import check_writable, io_errors, replace_file, short
from jaxrl_scale.user_code import errors_in_one_line, is_own

FORMS = ("policy.py", "policy.npz", "policy.stablehlo", "policy.onnx")
"""All files that an export may have written."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    return commands.run(_command, argv)


def _command(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    if args.onnx:
        onnx_graph.check_installed()
    config = files.read_config(args.run_dir / "config.json")
    out = args.out or args.run_dir / "export"
    check_writable(out / "policy.py", "--out=FOLDER")
    with jax_settings_restored():
        backend.initialize(files.to_look_at(config, devices=1))
        agent = load(args.run_dir, args.agent, args.checkpoint)
        if agent.index in agent.failed:
            raise RunError(
                f"agent {agent.index} has failed: its loss or another metric is not finite"
            )
        with commands.working("translating the policy"):
            made, left_out = forms(agent, _title(agent, args.run_dir), args.onnx)
    with io_errors(out):
        make_folder(out)
    for name, data in made.items():
        replace_file(out / name, data)
    if left_out:
        print(left_out, file=sys.stderr)
    if older := [name for name in FORMS if name not in made and (out / name).exists()]:
        print(f"of an earlier export, and left there: {in_words(older)}", file=sys.stderr)
    print(f"wrote {', '.join(made)} into {short(out)}")
    return 0


def _title(agent: Agent, run_dir: Path) -> str:
    """What the policy is, in a line or more."""
    name = run_dir.absolute().name
    whose = f"{name}, agent {agent.index}" if agent.config.num_seeds > 1 else name
    title = f"A policy for {agent.env.spec.id}: {whose}, iteration {agent.iteration}."
    is_gymnasium = agent.config.env.startswith("gymnasium:")
    return "\n".join((title, *(getattr(agent.env, "encoded", ()) if is_gymnasium else ())))


def _parser() -> commands.Parser:
    parser = commands.Parser(
        prog="python -m jaxrl_scale.export",
        usage="python -m jaxrl_scale.export RUN_DIR [--OPTION=VALUE ...]",
        description="Write a trained policy in forms that run without this package: as a short\n"
        "NumPy file, as StableHLO, and as ONNX. All of them take the best action.",
    )
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=commands.path, help="directory of the run"
    )
    parser.option("out", "FOLDER", "folder for the files [RUN_DIR/export]", type=commands.path)
    agent = "index of the agent that is written, from 0 [0]"
    parser.option("agent", "K", agent, type=commands.whole_number(0), default=0)
    commands.add_checkpoint(parser)
    parser.add_argument(
        "--onnx",
        action="store_true",
        help="also write policy.onnx, which needs the extra onnx (make install EXTRA=onnx)",
    )
    return parser


def forms(agent: Agent, title: str, onnx: bool) -> tuple[dict[str, bytes], str]:
    """The files of a policy, by their names, and why others were left out, if any were.

    Args:
      title: what the policy is, in a line or more.
      onnx: whether ``policy.onnx`` is wanted.
    """
    spec, config = agent.env.spec, agent.config
    # Without the products and convolutions whose bits do not depend on the number of threads:
    # what runs an exported policy has its own.
    pool = local_pool(config.num_shards)
    algo = algos.make(config.replace(reduction="fast"), spec, pool)
    actor = jax.tree.map(lambda x: np.asarray(x)[agent.index], agent.actor)
    with jax.default_matmul_precision(config.matmul_precision), _told(config):
        made = {"policy.stablehlo": program.stablehlo(algo, actor, spec)}
    try:
        listed = program.trace(algo, actor, spec)
    except program.NotListed as why:
        return made, f"only StableHLO was written: {why}"
    weights = io.BytesIO()
    np.savez(weights, allow_pickle=False, **listed.weights)
    made["policy.npz"] = weights.getvalue()
    made["policy.py"] = numpy_text.write(listed, title).encode()
    if onnx:
        try:
            made["policy.onnx"] = onnx_graph.write(listed, title)
        except program.NotListed as why:
            return made, f"policy.onnx was not written: {why}"
    return made, ""


@contextmanager
def _told(config: Config) -> Iterator[None]:
    """Tell in one line what fails in code of the user's, which has run with batches of one size."""
    if not is_own(config.network) and not is_own(config.algo.name):
        yield
        return
    try:
        with errors_in_one_line("the policy"):
            yield
    except program.NotListed:
        raise
    except RunError as error:
        raise RunError(
            f"{error}; a policy is exported for batches of any size: their size is obs.shape[0], "
            "and len(obs) is not known"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
