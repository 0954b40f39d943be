"""The digests of portable runs of the classic configs, and the command that writes them anew:

    python tests/portable_digests.py --write              # all of them
    python tests/portable_digests.py --write cartpole     # one config's
    python tests/portable_digests.py cartpole acrobot     # prints, writes nothing

`portable_digests.json` has them by the version of jaxlib and the name of the config: of a run of a
few iterations, and for the configs in `WHOLE` also of the whole run.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path

import jaxlib

from jaxrl_scale import train
from jaxrl_scale.config import Config, files

FILE = Path(__file__).with_suffix(".json")
CONFIGS = Path(__file__).parents[1] / "configs"
CLASSIC = ("cartpole", "acrobot", "mountain_car", "pendulum", "lunar_lander")
NAMES = tuple(sorted(p.stem for p in CONFIGS.glob("*.py") if p.stem.endswith(CLASSIC)))
WHOLE = ("acrobot", "a2c_cartpole", "cartpole", "impala_cartpole", "pqn_cartpole")
"""The configs of which a whole run is cheap."""


def few(config: Config) -> int:
    """So many iterations that every algorithm takes gradient steps in ten of them."""
    return 10 + getattr(config.algo, "learning_starts", 0) // config.steps_per_iteration


def digest_of(config: Config) -> str:
    """Of a portable run."""
    quiet = {"wandb": "disabled", "tensorboard": False, "eval_every": 0, "eval_episodes": 1}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        run = train(config.replace(portable=True, run_dir=f"{folder}/run", **quiet))
    assert run.summary["digest"] is not None
    return run.summary["digest"]


def digests_of(name: str) -> dict[str, str]:
    """Of a config's run of a few iterations, and of the whole run if it is in `WHOLE`."""
    config = files.read_file(CONFIGS / f"{name}.py")
    found = {"few": digest_of(config.replace(iterations=few(config)))}
    return found | ({"whole": digest_of(config)} if name in WHOLE else {})


def stored() -> dict[str, dict[str, dict[str, str]]]:
    """By the version of jaxlib and the name of the config."""
    found: dict[str, dict[str, dict[str, str]]] = json.loads(FILE.read_text())
    return found


if __name__ == "__main__":
    write = "--write" in sys.argv[1:]
    for name in [x for x in sys.argv[1:] if x != "--write"] or NAMES:
        found = digests_of(name)
        print(name, json.dumps(found), flush=True)
        if write:
            whole = stored() if FILE.exists() else {}
            whole.setdefault(jaxlib.__version__, {})[name] = found
            FILE.write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")
