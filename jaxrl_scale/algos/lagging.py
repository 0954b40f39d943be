"""Actors that are behind the learner, in IMPALA and Ape-X: a number of iterations, the option
`common.lag`, for which the shared state keeps the weights of as many iterations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxrl_scale.learning import networks
from jaxrl_scale.learning.networks import QNetwork, RecurrentNetwork, Weights
from jaxrl_scale.types import Array, PyTree


class Actor(NamedTuple):
    """Training acts with the oldest weights; what is evaluated and kept are the newest."""

    behaviour: Weights
    newest: Weights

    @property
    def params(self) -> PyTree:
        return self.newest.params


def actor(shared: Any) -> Actor:
    """Of a shared state with ``params``, ``observation`` and ``older``."""
    newest = Weights(shared.params, shared.observation)
    return Actor((newest, *shared.older)[-1], newest)


def weights(actor: Any, local: PyTree | None) -> Weights:
    """Those of an actor's ``behaviour`` and ``newest`` that act; ``local`` is as in
    `types.Algorithm.act`."""
    chosen: Weights = actor.newest if local is None else actor.behaviour
    return chosen


def outputs(network: RecurrentNetwork | QNetwork) -> Callable[..., dict[str, Array]]:
    """`types.Algorithm.outputs`, of the newest weights."""
    return lambda actor, *seen: networks.outputs(network, actor.newest, *seen)


def older(shared: Any) -> tuple[Weights, ...]:
    """The ``older`` of the state that follows ``shared``."""
    return (Weights(shared.params, shared.observation), *shared.older)[: len(shared.older)]
