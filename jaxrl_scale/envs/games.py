"""The games that EnvPool has, and their options: the 16 of Procgen and 104 of Atari.

Nothing here imports EnvPool. A name or an option that it would not understand is refused in one
line, and so are values that would end the whole process, because EnvPool checks them in C++.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from jaxrl_scale.errors import RunError, nearest
from jaxrl_scale.options import INT32_MAX, check_fields, option

_ALL = (
    "bigfish bossfight caveflyer chaser climber coinrun dodgeball fruitbot heist jumper leaper "
    "maze miner ninja plunder starpilot"
)
_MODES = {
    "Easy": _ALL,
    "Hard": _ALL,
    "Extreme": "chaser dodgeball leaper starpilot",
    "Memory": "caveflyer dodgeball heist jumper maze miner",
    "Exploration": "caveflyer climber coinrun heist jumper leaper maze ninja",
}
PROCGEN = tuple(
    f"{game.capitalize()}{mode}-v0" for mode, games in _MODES.items() for game in games.split()
)
"""The ids of Procgen's games: ``CoinrunEasy-v0``. All have Easy and Hard."""

_ATARI_GAMES = """
    Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis Atlantis2 Backgammon BankHeist
    BasicMath BattleZone BeamRider Berzerk Blackjack Bowling Boxing Breakout Carnival Casino
    Centipede ChopperCommand CrazyClimber Crossbow Darkchambers Defender DemonAttack DonkeyKong
    DoubleDunk Earthworld ElevatorAction Enduro Entombed Et FishingDerby FlagCapture Freeway Frogger
    Frostbite Galaxian Gopher Gravitar Hangman HauntedHouse Hero HumanCannonball IceHockey Jamesbond
    JourneyEscape Kaboom Kangaroo KeystoneKapers KingKong Klax Koolaid Krull KungFuMaster LaserGates
    LostLuggage MarioBros MiniatureGolf MontezumaRevenge MrDo MsPacman NameThisGame Othello Pacman
    Phoenix Pitfall Pitfall2 Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest
    SirLancelot Skiing Solaris SpaceInvaders SpaceWar StarGunner Superman Surround Tennis Tetris
    TicTacToe3d TimePilot Trondead Turmoil Tutankham UpNDown Venture VideoCheckers VideoChess
    VideoCube VideoPinball WizardOfWor WordZapper YarsRevenge Zaxxon
"""
ATARI = tuple(f"{game}-v5" for game in _ATARI_GAMES.split())
"""The ids of Atari's games: ``Pong-v5``."""

_IDS = {id.lower(): id for id in (*PROCGEN, *ATARI)}
_OTHER_SUITES = r"^ALE/|^procgen[:-](procgen-)?|NoFrameskip|Deterministic|-v\d+$"
_ENDS = ("easy-v0", "-v0", "-v5")


def known_elsewhere(name: str) -> str | None:
    """The id of the game that Gymnasium, Procgen itself or a user calls ``name``, as in ``pong``,
    ``PongNoFrameskip-v4``, ``ALE/Pong-v5`` and ``procgen-coinrun-v0``; None where there is none."""
    game = re.sub(_OTHER_SUITES, "", name).replace("_", "").lower()
    return next((_IDS[id] for end in _ENDS if (id := game + end) in _IDS), None)


def same_suite(one: str, other: str) -> bool:
    """Whether both are games of Procgen, or both of Atari, which have the same options."""
    return any(one in suite and other in suite for suite in (PROCGEN, ATARI))


@dataclass(frozen=True)
class ProcgenOptions:
    """What a Procgen game can be told; the names are Procgen's.

    ``use_sequential_levels`` is missing, because EnvPool has taken half of it out.
    """

    num_levels: int = option(
        0, "levels that episodes are drawn from; 0: all that there are", low=0, high=INT32_MAX
    )
    start_level: int = option(0, "the first of num_levels levels", low=0, high=INT32_MAX)
    use_backgrounds: bool = option(True, "draw pictures behind the game, not black")
    center_agent: bool = option(True, "keep the agent in the middle of the picture")
    restrict_themes: bool = option(False, "draw with one theme only")
    use_monochrome_assets: bool = option(False, "draw with plain colours")
    use_generated_assets: bool = option(False, "draw with shapes made at random")
    paint_vel_info: bool = option(False, "draw the agent's velocity into a corner")
    use_easy_jump: bool = option(False, "make jumping easier where there is jumping")


@dataclass(frozen=True)
class AtariOptions:
    """What an Atari game can be told; the names are EnvPool's. The defaults are those of the preset
    ``ppo``."""

    noop_max: int = option(
        30, "a game begins with 1 to this many frames without an action", low=1, high=10_000
    )
    frame_skip: int = option(4, "frames in which an action is repeated", low=1, high=1_000)
    stack_num: int = option(4, "frames that are observed together", low=1, high=64)
    repeat_action_probability: float = option(
        0.0, "chance that a frame takes the previous action: sticky actions", low=0.0, high=1.0
    )
    episodic_life: bool = option(True, "end an episode where a life is lost")
    reward_clip: bool = option(True, "learn from the sign of the reward")
    use_fire_reset: bool = option(True, "begin with the action FIRE where the game has it")
    full_action_space: bool = option(False, "all 18 actions, not only those the game uses")
    max_episode_steps: int = option(
        27_000, "steps after which a game is cut", low=1, high=INT32_MAX
    )
    gray_scale: bool = option(True, "observe grey pictures, not coloured ones")
    img_height: int = option(84, "height of an observation in pixels", low=1, high=1024)
    img_width: int = option(84, "width of an observation in pixels", low=1, high=1024)
    mode: int = option(-1, "mode of the game in ALE; -1: its first", low=-1, high=255)
    difficulty: int = option(-1, "difficulty of the game in ALE; -1: its first", low=-1, high=255)


_PPO = AtariOptions()
_DOPAMINE = dataclasses.replace(
    _PPO, noop_max=1, repeat_action_probability=0.25, episodic_life=False, use_fire_reset=False
)
PRESETS = {
    "ppo": _PPO,
    "dqn": dataclasses.replace(_PPO, use_fire_reset=False),
    "dopamine": _DOPAMINE,
    "machado": dataclasses.replace(
        _DOPAMINE, frame_skip=5, full_action_space=True, max_episode_steps=3_600
    ),
}
"""Protocols of Atari by name. All repeat an action, show four grey frames of 84 × 84 pixels, each
the maximum of the last two of the game, and learn from the sign of the reward.

``ppo``: Schulman et al. (2017, arXiv 1707.06347), with the wrappers of OpenAI Baselines: up to 30
frames without an action, then FIRE; frame skip 4; a lost life ends an episode; a game is cut after
108,000 frames.
``dqn``: Mnih et al. (2015, Nature 518): the same, but the agent has to press FIRE by itself.
``dopamine``: Castro et al. (2018, arXiv 1812.06110): sticky actions of 0.25 instead of frames
without an action; lives do not matter. (EnvPool makes at least one such frame.)
``machado``: Machado et al. (2018, arXiv 1709.06009): as ``dopamine``, with frame skip 5, all 18
actions, and games of at most 18,000 frames.
"""

Preset = Literal["ppo", "dqn", "dopamine", "machado"]


@dataclass(frozen=True)
class _WithPreset:
    preset: Preset = "ppo"


Options = TypeVar("Options", ProcgenOptions, AtariOptions, _WithPreset)


def procgen_options(name: str, kwargs: dict[str, Any]) -> ProcgenOptions:
    """The options of a Procgen game, checked. Raises a `RunError` of one line."""
    options = _set(name, ProcgenOptions(), kwargs)
    levels, start = options.num_levels, options.start_level
    if "Exploration" in name and (levels or start):
        raise RunError(
            f"environment {name!r} is one level, so it takes neither num_levels nor start_level"
        )
    if start and not levels:
        raise RunError(
            f"env_kwargs.start_level={start} needs env_kwargs.num_levels of at least 1; with "
            "num_levels=0 all levels are drawn, from 0 on"
        )
    if start + levels > INT32_MAX:
        raise RunError(
            f"env_kwargs.start_level={start} + env_kwargs.num_levels={levels} should be at most "
            f"{INT32_MAX}"
        )
    return options


def atari_options(name: str, kwargs: dict[str, Any]) -> AtariOptions:
    """The options of an Atari game, checked: those of its ``preset``, ``ppo`` by default, with what
    else is given. With another frame skip a game is cut after as many frames as before. Raises a
    `RunError` of one line."""
    chosen = {key: value for key, value in kwargs.items() if key == "preset"}
    rest = {key: value for key, value in kwargs.items() if key != "preset"}
    preset = _set(name, _WithPreset(), chosen).preset
    usual = PRESETS[preset]
    options = _set(name, usual, rest, "preset")
    if "max_episode_steps" in rest:
        return options
    frames = usual.max_episode_steps * usual.frame_skip
    return dataclasses.replace(options, max_episode_steps=frames // options.frame_skip)


def _set(name: str, defaults: Options, kwargs: dict[str, Any], *others: str) -> Options:
    known: list[str] = [field.name for field in dataclasses.fields(defaults)]
    if unknown := [key for key in kwargs if key not in known]:
        every = [*others, *known]
        raise RunError(
            f"environment {name!r} has no parameter {unknown[0]}{nearest(unknown[0], every)}; "
            f"its parameters: {', '.join(every)}"
        )
    options = dataclasses.replace(defaults, **kwargs)
    check_fields(options, "env_kwargs.")
    return options
