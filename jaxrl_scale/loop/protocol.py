"""What the training loop asks of a runner: all of it, and nothing else.

`jaxrl_scale.loop.runner.Runner` trains in environments that live on the devices,
`jaxrl_scale.loop.host_runner.HostRunner` in those that live on the host. Whatever has these methods
can be trained, logged, saved, stopped and resumed by the same loop (`jaxrl_scale.train.loop`): a
counter in a test, say.

``P`` is the number of agents. A run of several processes has a runner in each of them, and all of
them call `compile`, `init`, `steps`, `evaluate` and `fetch` in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from jaxrl_scale.parallel.machine import Memory
from jaxrl_scale.types import Played, PyTree

State = Any
"""The runner's own: the loop only hands it back. It may live on devices."""


class Runner(Protocol):
    """Trains ``P`` agents, some iterations at a time."""

    @property
    def at_once(self) -> int:
        """The most iterations that the next call of `steps` should make; the same in all
        processes."""
        ...

    def describe(self) -> str:
        """What the run runs on, for the first line that a user sees: ``2 cpu devices with 4 shards
        each``."""
        ...

    def facts(self) -> dict[str, Any]:
        """What the run runs on, for ``run.json``: ``devices``, a text for each, and more."""
        ...

    def compile(self, fresh: bool) -> None:
        """Get ready. Called once, before `init` and `steps`, in a thread. ``fresh``: `init` will be
        called; of a run that is resumed it is not, unless no checkpoint is found."""
        ...

    def init(self) -> State:
        """The state before the first iteration."""
        ...

    def steps(
        self, state: State, count: int, stop: bool, meanwhile: Callable[[], None]
    ) -> tuple[State, list[dict[str, np.ndarray]], bool]:
        """``count`` iterations. ``state`` must not be used any more. ``meanwhile`` is called once,
        before or while the devices are at work.

        Returns:
          The next state; of each iteration the metrics by name, ``[P]`` each; and whether any
          process of the run gave ``stop``, which is how all of them come to stop at the same
          iteration.

        What comes of an iteration does not depend on how many were made at once. Its metrics have
        to hold the sums over the episodes that ended in it (``ended``, ``total_return``,
        ``total_length``) and the number of environment steps (``steps``). An agent of which any
        metric is not finite counts as failed. What begins with one of
        `jaxrl_scale.types.OWN_NUMBERS` is a sum, too, and may be anything.
        """
        ...

    def evaluate(self, state: State) -> dict[str, Played] | None:
        """Whole episodes ``[P, episodes]`` that are played with the agents of ``state``, by what
        their metrics begin with: ``eval``, and maybe ``test``. None in a process that is not needed
        for them; process 0 always has them."""
        ...

    # --- for checkpoints --------------------------------------------------------------------

    def abstract_state(self) -> PyTree:
        """Shapes and dtypes of the whole state as a checkpoint holds it, whatever it runs on."""
        ...

    def parts(self) -> PyTree:
        """Which part of each array of `abstract_state` this process holds: the same tree, with a
        `jaxrl_scale.types.Part` for each array. None: this process holds all of it."""
        ...

    def fetch(self, state: State) -> PyTree:
        """The part of the state that this process holds, in NumPy arrays that nobody changes."""
        ...

    def digests(self, fetched: PyTree) -> dict[int, str]:
        """Of each agent that this process holds, by its index: a digest of what it has learned, the
        same on any devices. ``fetched`` is what `fetch` gave. Called in a thread."""
        ...

    def place(self, saved: PyTree, say: Callable[[str], None]) -> State:
        """The inverse of `fetch`; ``say`` shows the user a line where it takes long."""
        ...

    # --- at the end -------------------------------------------------------------------------

    def memory(self) -> Memory:
        """The memory in use."""
        ...

    def close(self) -> None:
        """Free what ends by no garbage collection, such as threads. Called at the end, whatever the
        end was, and maybe before `compile`."""
        ...
