"""The config files that come with the package, by environment and algorithm.

``configs/<environment>.py`` is PPO's, ``configs/<algorithm>_<environment>.py`` another algorithm's.
"""

from __future__ import annotations

from pathlib import Path

from jaxrl_scale.envs import games

FOLDER = Path(__file__).parents[1] / "configs"
"""In the repository it is a link to the folder beside the package."""

_NAMES = {
    "CartPole-v1": "cartpole",
    "Acrobot-v1": "acrobot",
    "MountainCar-v0": "mountain_car",
    "Pendulum-v1": "pendulum",
    "LunarLander-v3": "lunar_lander",
    "LunarLanderContinuous-v3": "lunar_lander_continuous",
    "gymnax:Breakout-MinAtar": "breakout",
    "gymnax:SpaceInvaders-MinAtar": "space_invaders",
    "gymnax:MemoryChain-bsuite": "memory_chain",
    "CrazyClimber-v5": "crazy_climber",
    **dict.fromkeys(games.PROCGEN, "procgen"),
}


def config_file(env: str, algo: str) -> Path | None:
    """The file with the settings of an environment and an algorithm, or None if there is none. That
    of a suite's other game will do, where a game has none of its own."""
    names = [_NAMES.get(env), "atari" if env in games.ATARI else None]
    files = [FOLDER / f"{'' if algo == 'ppo' else f'{algo}_'}{name}.py" for name in names if name]
    return next((file.resolve() for file in files if file.is_file()), None)
