"""Make the zoo anew, or some of it: ``python zoo/make.py [NAME ...]``.

Trains each policy with the config of its name in ``configs/``, keeps what acting needs, plays with
it here and in real Gymnasium, and writes the scores beside it and into ``zoo/README.md``.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from jaxrl_scale import load, train
from jaxrl_scale.config import files
from jaxrl_scale.loop.agent import read_acting
from jaxrl_scale.records import array_folder, digest, statistics
from jaxrl_scale.records.checkpoint import Checkpoints
from jaxrl_scale.records.terminal import number

ZOO = Path(__file__).parent
NAMES = ("cartpole", "acrobot", "mountain_car", "pendulum", "lunar_lander")
EPISODES = 256  # in Gymnasium; here four times as many


def make(name: str) -> None:
    """Train one policy, and write its folder."""
    config = files.read_file(ZOO.parent / "configs" / f"{name}.py")
    config = config.replace(wandb="disabled", tensorboard=False)
    with tempfile.TemporaryDirectory() as folder:
        run = train(config.replace(run_dir=f"{folder}/{name}"))
        _, iteration, arrays, _ = read_acting(run.path, config)
    shutil.rmtree(ZOO / name, ignore_errors=True)
    checkpoints = Checkpoints(ZOO / name / "checkpoints", 1)
    checkpoints.save(iteration, arrays, {"progress": {"failed": []}})
    checkpoints.close()
    for path in (ZOO / name).glob(f"checkpoints/{iteration}/*"):
        if path.name != array_folder.FILE:  # what orbax leaves
            path.unlink()
    write(ZOO / name / "config.json", files.to_json(config))
    agent = load(ZOO / name)
    scores = {
        "gymnasium": score(agent.evaluate_in_gymnasium(EPISODES).returns),
        "jaxrl_scale": score(agent.evaluate(4 * EPISODES).returns),
    }
    about = {"env": config.env, "seed": config.seed, "sha256": digest.of_arrays(arrays)}
    write(ZOO / name / "score.json", about | scores)


def score(returns: np.ndarray) -> dict:
    """Mean return of one agent's episodes ``[1, episodes]``, with its 95 % interval."""
    found = statistics.summarize(returns)
    return {name: found[name] for name in ("mean", "ci95", "episodes")}


def write(path: Path, data: dict) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(data, indent=2) + "\n")


def table() -> str:
    """The scores of all, for the README."""
    lines = [
        "| policy | environment | in real Gymnasium | here | SHA-256 of its arrays |",
        "|---|---|---|---|---|",
    ]
    for name in NAMES:
        about = json.loads((ZOO / name / "score.json").read_text())
        cells = [f"`zoo/{name}`", about["env"]]
        for where in ("gymnasium", "jaxrl_scale"):
            low, high = (number(x) for x in about[where]["ci95"])
            cells.append(f"{number(about[where]['mean'])} ({low} to {high})")
        lines.append(f"| {' | '.join([*cells, about['sha256'][:16]])}… |")
    return "\n".join(lines)


def main() -> None:
    """Make those that are named, or all."""
    for name in sys.argv[1:] or NAMES:
        make(name)
    readme = ZOO / "README.md"
    before, _, after = readme.read_text().partition("| policy |")
    _, _, after = after.partition("\n\n")
    readme.write_text(f"{before}{table()}\n\n{after}")


if __name__ == "__main__":
    main()
