"""What a sweep searches, and which agents train side by side: those that differ only in numbers are
one program."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_scale.config import Config, check, command_line, files
from jaxrl_scale.errors import RunError
from jaxrl_scale.loop.make import make_runner
from jaxrl_scale.loop.prepare import copies, jax_settings_restored, num_bytes
from jaxrl_scale.loop.state import Agents, State
from jaxrl_scale.parallel import backend
from jaxrl_scale.parallel.machine import free_memory
from jaxrl_scale.search.space import Draws, Range, Setting, texts


@dataclass(frozen=True)
class Chunk:
    """Agents that train side by side, ``P`` of them: a run with its own directory."""

    name: str
    config: Config  # with the options of its first agent; those of the others are in `agents`
    settings: tuple[int, ...]  # [P] indices of the agents' settings
    agents: Agents
    until: int  # the iteration after which it stops

    def named(self) -> list[tuple[int, int]]:
        """Setting and seed of each agent, ``[P]``."""
        return list(zip(self.settings, self.agents.seeds.tolist(), strict=True))

    def to_json(self) -> dict[str, Any]:
        """As data for JSON, for other processes."""
        return {
            **{"name": self.name, "until": self.until, "settings": self.settings},
            "config": files.to_json(self.config),
            "seeds": self.agents.seeds.tolist(),
            "options": [x.tolist() for x in jax.tree.leaves(self.agents.options)],
        }

    @staticmethod
    def from_json(told: dict[str, Any]) -> Chunk:
        """The inverse of `to_json`."""
        config = files.from_json(told["config"])
        options = [np.asarray(x, np.float32) for x in told["options"]]
        agents = Agents(
            np.asarray(told["seeds"], np.uint32),
            jax.tree.unflatten(jax.tree.structure(config.algo), options),
        )
        return Chunk(told["name"], config, tuple(told["settings"]), agents, told["until"])


class Start(NamedTuple):
    """What the agents of a chunk go on from."""

    chunks: Sequence[Chunk]  # which have stopped
    parents: Sequence[tuple[int, int]] | None = None
    """For each agent the one that it goes on from, by `Chunk.named`; None: from itself."""

    def of(self, chunk: Chunk) -> Start:
        """What of it this chunk goes on from."""
        parents = list(self.parents or chunk.named())
        return Start([one for one in self.chunks if {*one.named()} & {*parents}], parents)


def configs_of(base: Config, settings: Sequence[Setting]) -> list[Config]:
    """What each setting makes of the config, checked."""
    configs = []
    for setting in settings:
        config = command_line.with_options(base, setting)
        try:
            check(config)
        except RunError as error:
            raise RunError(f"with {shown(setting)}: {error}") from None
        configs.append(config)
    return configs


def shown(setting: Setting) -> str:
    """A setting as it is written on the command line."""
    written = texts(setting).items()
    return " ".join(f"--{name}={text}" for name, text in written) or "the starting config"


MOST = 256
"""Agents of a chunk where nobody says how many. On a CPU agents take turns, so that more of them
would only make each chunk longer."""


def programs(configs: Sequence[Config]) -> list[list[int]]:
    """Which configs differ only in numbers, in which agents of one program may: their indices."""
    groups: dict[Any, list[int]] = {}
    for k, config in enumerate(configs):
        algo = jax.tree.structure(config.algo)
        groups.setdefault((algo, repr(config.replace(algo=None))), []).append(k)
    return list(groups.values())


def divide(
    configs: Sequence[Config], num_seeds: int, most: int | None, fresh_seeds: int = 1
) -> list[list[int]]:
    """Which configs train side by side: their indices, in as few programs as there can be.

    Args:
      num_seeds: agents of each config.
      most: agents of a program; None: as many as fit into the memory, but at most `MOST`.
      fresh_seeds: agents of the best config, which train side by side in the end.
    """
    found = []
    for group in programs(configs):
        fitting = _fitting(configs[group[0]])
        if fresh_seeds > fitting:  # told now, and not when all else is trained
            raise RunError(
                f"the agents of --fresh_seeds={fresh_seeds} train side by side, and only {fitting} "
                f"fit into the memory; try --fresh_seeds={max(1, fitting)}"
            )
        limit = min(most or MOST, fitting)
        if limit < num_seeds:
            raise RunError(
                f"the {num_seeds} agents of a setting train side by side, and only {limit} may or "
                f"fit into the memory; try --seeds={max(1, limit)}"
            )
        size = limit // num_seeds
        found += [group[first : first + size] for first in range(0, len(group), size)]
    return found


@dataclass(frozen=True)
class Plan:
    """All settings of a sweep, and how far each is trained on which rung."""

    configs: Sequence[Config]  # of the settings
    stops: Sequence[Sequence[int]]  # of the settings: the iteration at which each rung ends
    seeds: range
    most: int | None  # agents of a chunk
    fresh_seeds: int = 1  # agents of the best setting in the end

    def divide(self, chosen: Sequence[int]) -> list[list[int]]:
        """As `divide`, of the chosen settings."""
        configs = [self.configs[k] for k in chosen]
        parts = divide(configs, len(self.seeds), self.most, self.fresh_seeds)
        return [[chosen[k] for k in part] for part in parts]

    def chunks(self, rung: int, parts: Sequence[list[int]]) -> list[Chunk]:
        """Those of a rung, from the settings of each."""
        before = f"rung{rung}-" if rung else ""
        return [
            chunk_of(f"{before}chunk{k}", self.configs, part, self.seeds, self.stops[part[0]][rung])
            for k, part in enumerate(parts)
        ]


class Search(NamedTuple):
    """What a sweep searches, and how: the command's options, checked."""

    base: Config  # to which the settings are changes
    ranges: list[Range]
    settings: list[Setting]  # the first of them, where a model proposes more
    plan: Plan
    folder: Path
    agents: int
    draw: Draws
    draw_seed: int
    rungs: int
    factor: int
    perturb_every: int
    finalists: int
    fresh_seeds: int

    @property
    def num_settings(self) -> int:
        """Settings in all, those among them that a model is still to propose."""
        if self.draw == "tpe":
            return self.agents // len(self.plan.seeds)
        return len(self.settings)

    def to_json(self) -> dict[str, Any]:
        """All that what is found depends on, as data for JSON."""
        free = command_line.CHANGEABLE  # nothing that is found depends on it
        config = {name: x for name, x in files.to_json(self.base).items() if name not in free}
        told: dict[str, Any] = {"config": config, "settings": self.settings}
        told["seeds"] = list(self.plan.seeds)
        alike = ("rungs", "factor", "perturb_every", "finalists", "fresh_seeds")
        told |= {name: getattr(self, name) for name in alike}
        if self.draw == "tpe" or self.perturb_every:  # which draw more than the settings
            told |= {"draw_seed": self.draw_seed, "ranges": [str(each) for each in self.ranges]}
        if self.draw == "tpe":
            told |= {"agents": self.agents}
        return told


def chunk_of(
    name: str, configs: Sequence[Config], chosen: list[int], seeds: range, until: int | None = None
) -> Chunk:
    """The agents of some configs, each with every seed, which train to their end or ``until``."""
    members = [k for k in chosen for _ in seeds]
    algos = [configs[k].algo for k in members]
    return Chunk(
        name,
        # wandb and TensorBoard would draw means over different settings.
        configs[members[0]].replace(
            seed=seeds.start, num_seeds=len(members), wandb="disabled", tensorboard=False
        ),
        tuple(members),
        Agents(
            np.tile(np.asarray(seeds, np.uint32), len(chosen)),
            jax.tree.map(lambda *x: np.asarray(x, np.float32), *algos),
        ),
        until or configs[members[0]].num_iterations,
    )


def abstract_state(config: Config) -> State:
    """Shapes and dtypes of what a checkpoint of a config holds."""
    return _looked_at(config)[0]


def _fitting(config: Config) -> int:
    """How many agents fit into the memory, by what `check_memory` would say of them. Where agents
    do not divide by the devices, each device holds what the shards of an agent share."""
    state, devices = _looked_at(config.replace(num_seeds=1))
    of_one = num_bytes(state) + (len(devices) - 1) * num_bytes(state.shared)
    return free_memory(devices) // (copies(devices) * of_one)


def _looked_at(config: Config) -> tuple[State, tuple[jax.Device, ...]]:
    """The shapes and dtypes of a config's state, and the devices that it would be on."""
    with jax_settings_restored():
        placement = backend.initialize(config)
        runner = make_runner(config, config.make_env(), placement)
        with closing(runner):
            return runner.abstract_state(), placement.at_hand
