"""MountainCar-v0 and MountainCarContinuous-v0: drive a weak car out of a valley.

The task is from Moore (1990), "Efficient memory-based learning for robot control".

Reference implementations, used by the tests: mountain_car.py and continuous_mountain_car.py in
gymnasium/envs/classic_control/.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.types import Array, Box, Discrete, EnvSpec, Key, TimeStep


class MountainCarState(NamedTuple):
    """Scalars, in the units of the paper. The height of the ground is ``sin(3 * position)``."""

    position: Array
    velocity: Array  # per step


@dataclass(frozen=True)
class MountainCar:
    """Actions: push left, nothing, push right. Observation ``[2]``. Reward: -1 per step."""

    min_position: float = -1.2
    max_position: float = 0.6
    max_speed: float = 0.07
    goal_position: float = 0.5
    goal_velocity: float = 0.0
    force: float = 0.001
    gravity: float = 0.0025

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            id="MountainCar-v0",
            observation_shape=(2,),
            action=Discrete(3),
            max_episode_steps=200,
            gymnasium_id="MountainCar-v0",
            worst_return=-200.0,
        )

    def reset(self, key: Key) -> tuple[MountainCarState, Array]:
        """The car rests near the bottom, at a position drawn uniformly from [-0.6, -0.4]."""
        return _at_rest(key)

    def step(
        self, key: Key, state: MountainCarState, action: Array
    ) -> tuple[MountainCarState, TimeStep]:
        """Move the car by one step. ``key`` is not used."""
        push = (action - 1).astype(state.position.dtype) * self.force
        new, at_goal = _drive(self, state, push, self.gravity)
        return new, TimeStep(
            obs=jnp.stack(new),
            reward=-jnp.ones_like(new.position),
            terminated=at_goal,
            truncated=jnp.zeros_like(at_goal),
        )

    def render(self, state: MountainCarState) -> np.ndarray:
        """A frame, ``[400, 600, 3]`` uint8, with the layout of Gymnasium's."""
        return _draw(self, state)


@dataclass(frozen=True)
class MountainCarContinuous:
    """Action ``[1]``: the push. Observation ``[2]``. Reward: 100 at the goal, minus effort."""

    min_position: float = -1.2
    max_position: float = 0.6
    max_speed: float = 0.07
    goal_position: float = 0.45
    goal_velocity: float = 0.0
    power: float = 0.0015
    min_action: float = -1.0
    max_action: float = 1.0

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            id="MountainCarContinuous-v0",
            observation_shape=(2,),
            action=Box(self.min_action, self.max_action, (1,)),
            max_episode_steps=999,
            gymnasium_id="MountainCarContinuous-v0",
        )

    def reset(self, key: Key) -> tuple[MountainCarState, Array]:
        """The car rests near the bottom, at a position drawn uniformly from [-0.6, -0.4]."""
        return _at_rest(key)

    def step(
        self, key: Key, state: MountainCarState, action: Array
    ) -> tuple[MountainCarState, TimeStep]:
        """Move the car by one step. ``key`` is not used.

        As in Gymnasium, the effort is computed from the action before it is clipped.
        """
        push = action[0].astype(state.position.dtype)
        clipped = jnp.clip(push, self.min_action, self.max_action)
        new, at_goal = _drive(self, state, self.power * clipped, gravity=0.0025)
        return new, TimeStep(
            obs=jnp.stack(new),
            reward=100.0 * at_goal.astype(push.dtype) - 0.1 * jnp.square(push),
            terminated=at_goal,
            truncated=jnp.zeros_like(at_goal),
        )

    def render(self, state: MountainCarState) -> np.ndarray:
        """A frame, ``[400, 600, 3]`` uint8, with the layout of Gymnasium's."""
        return _draw(self, state)


def _at_rest(key: Key) -> tuple[MountainCarState, Array]:
    position = jax.random.uniform(key, minval=-0.6, maxval=-0.4)
    state = MountainCarState(position, jnp.zeros_like(position))
    return state, jnp.stack(state)


def _drive(
    car: MountainCar | MountainCarContinuous, state: MountainCarState, push: Array, gravity: float
) -> tuple[MountainCarState, Array]:
    """The next state, and whether it is at the goal. The left wall stops the car."""
    velocity = state.velocity + push - gravity * jnp.cos(3 * state.position)
    velocity = jnp.clip(velocity, -car.max_speed, car.max_speed)
    position = jnp.clip(state.position + velocity, car.min_position, car.max_position)
    at_wall = (position <= car.min_position) & (velocity < 0)
    velocity = jnp.where(at_wall, jnp.zeros_like(velocity), velocity)
    at_goal = (position >= car.goal_position) & (velocity >= car.goal_velocity)
    return MountainCarState(position, velocity), at_goal


def _draw(car: MountainCar | MountainCarContinuous, state: MountainCarState) -> np.ndarray:
    from jaxrl_scale.envs.draw import Canvas, rectangle, turned

    width, height = 600, 400
    scale = width / (car.max_position - car.min_position)

    def ground(position: float) -> tuple[float, float]:
        return (position - car.min_position) * scale, (0.55 + 0.45 * math.sin(3 * position)) * scale

    canvas = Canvas(width, height)
    hill = np.linspace(car.min_position, car.max_position, 100).tolist()
    canvas.line([ground(position) for position in hill], (0, 0, 0))

    flag_x, flag_bottom = ground(car.goal_position)
    flag_top = flag_bottom + 50
    canvas.line([(flag_x, flag_bottom), (flag_x, flag_top)], (0, 0, 0))
    canvas.polygon(
        [(flag_x, flag_top), (flag_x, flag_top - 10), (flag_x + 25, flag_top - 5)], (204, 204, 0)
    )

    position = float(state.position)
    x, y = ground(position)
    angle, at = math.cos(3 * position), (x, y + 10)
    canvas.polygon(rectangle((-20, 0), (20, 20), angle=angle, at=at), (0, 0, 0))
    for side in (-10, 10):
        canvas.circle(turned((side, 0), angle=angle, at=at), 8, (128, 128, 128))
    return canvas.pixels()
