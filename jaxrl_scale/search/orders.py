"""What the processes of a sweep train: process 0 decides, and tells the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_scale.errors import RunError
from jaxrl_scale.loop.state import State
from jaxrl_scale.loop.stop import StopRequest
from jaxrl_scale.parallel.peers import Peers
from jaxrl_scale.records.checkpoint import restore
from jaxrl_scale.records.run_directory import short
from jaxrl_scale.search.plan import Chunk, Start, abstract_state


class Order(NamedTuple):
    """What all processes do next: train a chunk, or end."""

    chunk: Chunk | None = None
    start: Start | None = None
    resume: bool = False
    status: int = 0  # with which they end

    def to_json(self) -> dict[str, Any]:
        """As data for JSON."""
        start = self.start and {
            "chunks": [one.to_json() for one in self.start.chunks],
            "parents": self.start.parents,
        }
        chunk = self.chunk and self.chunk.to_json()
        return {"chunk": chunk, "start": start, "resume": self.resume, "status": self.status}

    @staticmethod
    def from_json(told: dict[str, Any]) -> Order:
        """The inverse of `to_json`."""
        chunk, start = told["chunk"], told["start"]
        if start:
            parents = [(setting, seed) for setting, seed in start["parents"]]
            start = Start([Chunk.from_json(one) for one in start["chunks"]], parents)
        return Order(chunk and Chunk.from_json(chunk), start, told["resume"], told["status"])


def agreed(peers: Peers, stop: StopRequest, order: Order | None = None) -> Order | None:
    """The order that process 0 gives, the same in all processes; None where one of them has heard
    a signal and it is an order to train."""
    said = peers.gather("order", [order and order.to_json(), stop.requested])
    told = Order.from_json(said[0][0])
    return None if told.chunk and any(requested for _, requested in said) else told


def carried_over(order: Order, folder: Path, peers: Peers) -> tuple[int, State] | None:
    """The iteration at which the chunks stopped from which an order starts, and the whole state, as
    a checkpoint holds it, in which its agents go on from there with their own seeds and options.
    None where they begin at the beginning. All processes call this together."""
    chunk, start = order.chunk, order.start
    if chunk is None or start is None or start.parents is None:
        return None
    iteration, states, places = 0, [], dict[tuple[int, int], int]()
    for one in start.chunks:
        checkpoints = folder / one.name / "checkpoints"
        found = restore(checkpoints, abstract_state(one.config), print, peers=peers)
        if found is None or found[0] != one.until:
            raise RunError(f"{short(checkpoints)} has no checkpoint {one.until}")
        iteration, state, _ = found
        states.append(state)
        places |= {agent: len(places) + k for k, agent in enumerate(one.named())}
    index = np.array([places[agent] for agent in start.parents])
    state = jax.tree.map(lambda *x: np.concatenate(x)[index], *states)
    algo = state.shared.algo._replace(options=chunk.agents.options)
    shared = state.shared._replace(seed=chunk.agents.seeds, algo=algo)
    return iteration, state._replace(shared=shared)
