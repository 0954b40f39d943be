"""The gradient of the networks for images: ours, plain XLA's and PyTorch's, as samples a second.

    python benchmarks/convolutions.py --torch-python torch-venv/bin/python

Every program runs in a process of its own with one thread, and it is the processor's time that is
measured, so that other programs on the machine disturb little: a run has one device a core anyway.
Programs take turns. ``exact`` makes three gradient steps in a loop, as training does. ``plain`` is
the same network without `jaxrl_scale.learning.products`, one gradient step in no loop: within one,
XLA's own gradient of a kernel takes a hundred times as long (jaxlib 0.10.2).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SHAPES = {"nature": (84, 84, 4), "impala_resnet": (64, 64, 3)}
STEPS = 3


def samples_per_second(call: Any, samples: int, rounds: int = 3) -> float:
    """Of the processor's time, in the fastest round after a first one."""
    seconds = []
    for _ in range(1 + rounds):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return samples / min(seconds[1:])


def jax_speed(network: str, batch: int, exact: bool) -> float:
    import jax
    import numpy as np

    from jaxrl_scale.config import Config
    from jaxrl_scale.learning import networks, products
    from jaxrl_scale.types import Discrete, EnvSpec

    jax.config.update("jax_default_matmul_precision", "highest")
    spec = EnvSpec("images", SHAPES[network], Discrete(15), observation_dtype=np.uint8)
    config = Config(network=network, reduction="exact" if exact else "fast")
    apply = networks.make(config, spec).apply
    params = networks.make(config, spec).init(jax.random.key(0))
    steps = STEPS if exact else 1
    obs = np.random.default_rng(0).integers(0, 256, (steps, batch, *SHAPES[network]), np.uint8)

    def step(params: Any, obs: Any) -> tuple[Any, None]:
        def loss(params: Any) -> Any:
            return sum((x**2).sum() for x in apply(params, obs))

        return jax.tree.map(lambda p, g: p - 1e-6 * g, params, jax.grad(loss)(params)), None

    def program(params: Any, obs: Any) -> Any:
        return jax.lax.scan(step, params, obs)[0] if exact else step(params, obs[0])[0]

    options = products.compiler_options() if exact else {}
    compiled = jax.jit(program, compiler_options=options).lower(params, obs).compile()
    return samples_per_second(lambda: jax.block_until_ready(compiled(params, obs)), steps * batch)


def torch_speed(network: str, batch: int, channels_last: bool) -> float:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    relu = nn.functional.relu

    class Stack(nn.Module):
        def __init__(self, before: int, after: int):
            super().__init__()
            sizes = [before, *[after] * 5]
            pairs = itertools.pairwise(sizes)
            self.layers = nn.ModuleList([nn.Conv2d(a, b, 3, padding=1) for a, b in pairs])

        def forward(self, x: Any) -> Any:
            first, *rest = self.layers
            x = nn.functional.max_pool2d(first(x), 3, 2, 1)
            for a, b in (rest[:2], rest[2:]):
                x = x + b(relu(a(relu(x))))
            return x

    if network == "nature":
        sizes = ((4, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
        convolutions = [layer for size in sizes for layer in (nn.Conv2d(*size), nn.ReLU())]
        dense = [nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 16)]
    else:
        convolutions = [Stack(3, 16), Stack(16, 32), Stack(32, 32), nn.ReLU()]
        dense = [nn.Flatten(), nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 16)]
    layout = torch.channels_last if channels_last else torch.contiguous_format
    net = nn.Sequential(*convolutions, *dense).to(memory_format=layout)
    height, width, channels = SHAPES[network]
    obs = torch.randint(0, 256, (batch, channels, height, width), dtype=torch.uint8)
    obs = obs.contiguous(memory_format=layout)

    def step() -> None:
        net.zero_grad()
        (net(obs.float() / 255) ** 2).sum().backward()

    return samples_per_second(step, batch)


PROGRAMS = {
    "exact": lambda *what: jax_speed(*what, exact=True),
    "plain": lambda *what: jax_speed(*what, exact=False),
    "torch": lambda *what: torch_speed(*what, channels_last=False),
    "torch, channels last": lambda *what: torch_speed(*what, channels_last=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", help="interpreter of the environment that has PyTorch")
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 64])
    parser.add_argument("--rounds", type=int, default=2, help="turns of each program")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        program, network, batch = args.one
        print(json.dumps(PROGRAMS[program](network, int(batch))))
        return
    pythons = {"exact": sys.executable, "plain": sys.executable}
    if args.torch_python:
        pythons |= dict.fromkeys(("torch", "torch, channels last"), args.torch_python)
    for network in SHAPES:
        for batch in args.batches:
            speeds: dict[str, float] = {}
            for _ in range(args.rounds):
                for program, python in pythons.items():
                    done = subprocess.run(
                        [python, Path(__file__).resolve(), "--one", program, network, str(batch)],
                        env=os.environ | {"NPROC": "1"},
                        capture_output=True,
                        text=True,
                        check=True,
                    )
                    speed = json.loads(done.stdout.splitlines()[-1])
                    speeds[program] = max(speeds.get(program, 0.0), speed)
            ratios = ", ".join(
                f"{speeds['exact'] / speed:.2f} of {program} ({speed:.0f}/s)"
                for program, speed in speeds.items()
                if program != "exact"
            )
            print(f"{network} {batch}: {speeds['exact']:.0f}/s, {ratios}", flush=True)


if __name__ == "__main__":
    main()
