"""Published scores by which the scores of games are normalized, so that games can be averaged.

Procgen: the ranges of Cobbe et al. (2020, arXiv 1912.01588), appendix C. The lower end is what an
agent reaches that does not see the picture, the upper end what is possible, or where that is not
known, what was reached with much more training.

Atari: the mean scores of random actions and of a professional tester after up to 30 frames without
an action, from Wang et al. (2016, arXiv 1511.06581), as everyone since has used them.
"""

from __future__ import annotations

_PROCGEN = {  # Easy, then Hard
    "Bigfish": ((1, 40), (0, 40)),
    "Bossfight": ((0.5, 13), (0.5, 13)),
    "Caveflyer": ((3.5, 12), (2, 13.4)),
    "Chaser": ((0.5, 13), (0.5, 14.2)),
    "Climber": ((2, 12.6), (1, 12.6)),
    "Coinrun": ((5, 10), (5, 10)),
    "Dodgeball": ((1.5, 19), (1.5, 19)),
    "Fruitbot": ((-1.5, 32.4), (-0.5, 27.2)),
    "Heist": ((3.5, 10), (2, 10)),
    "Jumper": ((3, 10), (1, 10)),
    "Leaper": ((3, 10), (1.5, 10)),
    "Maze": ((5, 10), (4, 10)),
    "Miner": ((1.5, 13), (1.5, 20)),
    "Ninja": ((3.5, 10), (2, 10)),
    "Plunder": ((4.5, 30), (3, 30)),
    "Starpilot": ((2.5, 64), (1.5, 35)),
}

RANGES: dict[str, tuple[float, float]] = {
    "BeamRider-v5": (363.9, 16926.5),
    "Breakout-v5": (1.7, 30.5),
    "Pong-v5": (-20.7, 14.6),
    "Qbert-v5": (163.9, 13455.0),
    "SpaceInvaders-v5": (148.0, 1668.7),
} | {
    f"{game}{mode}-v0": ends
    for game, modes in _PROCGEN.items()
    for mode, ends in zip(("Easy", "Hard"), modes, strict=True)
}
"""The scores that count as 0 and as 1, by the id of the environment."""


def normalized(env_id: str, score: float) -> float | None:
    """The score of a game on the scale where `RANGES` is 0 to 1, which it may leave; None where no
    range was published."""
    ends = RANGES.get(env_id.removeprefix("envpool:"))
    if ends is None:
        return None
    low, high = ends
    return (score - low) / (high - low)
