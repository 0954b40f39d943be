"""Successive halving: after a part of the run only the best settings go on.

The settings are compared at a few rungs, as https://arxiv.org/abs/1502.07943 proposes: with a
``factor`` of 3 and two rungs, all settings are trained for a ninth of the run, the best third of
them for a third of it, and the best third of those to the end. Who goes on does so from where it
stopped, so that an agent that comes to the end is, to the last bit, one that nothing stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_scale.config import Config
from jaxrl_scale.errors import NOT_FINITE, RunError
from jaxrl_scale.search.results import Outcome, ranked


def iterations(config: Config, rungs: int, factor: int) -> list[int]:
    """The iterations after which settings are compared, the last of the run included.

    Raises a `RunError` where the run has too few for so many rungs.
    """
    last = config.num_iterations
    found = [last // factor**rung for rung in range(rungs, 0, -1)]
    if factor**rungs > last:
        most = max(rung for rung in range(rungs) if factor**rung <= last)
        raise RunError(
            f"--rungs={rungs} needs a run of at least {factor**rungs} iterations, and this one has "
            f"{last}; try --rungs={most}"
        )
    return [*found, last]


def surviving(found: Sequence[Outcome], factor: int) -> list[int]:
    """The settings that go on, in their order: the best ``1 / factor`` of all, rounded up, but none
    of which an agent has failed. Raises a `RunError` where there is no other."""
    ranks = ranked(found)
    kept = [one.setting for one in ranks[: -(-len(ranks) // factor)] if not one.failed]
    if not kept:
        raise RunError(
            "an agent of every setting has failed, so that none goes on; smaller learning rates "
            "may help, or the environment returns NaN",
            NOT_FINITE,
        )
    return sorted(kept)
