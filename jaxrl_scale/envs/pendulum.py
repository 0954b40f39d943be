"""Pendulum-v1: swing a rod up with a weak motor and hold it there.

Reference implementation, used by the tests: gymnasium/envs/classic_control/pendulum.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.types import Array, Box, EnvSpec, Key, TimeStep


class PendulumState(NamedTuple):
    """Scalars. The angle is 0 when the rod stands upright."""

    theta: Array  # rad
    theta_dot: Array  # rad/s


@dataclass(frozen=True)
class Pendulum:
    """Action ``[1]``: the torque. Observation ``[3]``: cos θ, sin θ, angular velocity.

    Reward: -(angle² + 0.1 velocity² + 0.001 torque²), computed from the state before the step.
    """

    g: float = 10.0  # m/s²
    m: float = 1.0  # kg
    l: float = 1.0  # m  # noqa: E741, Gymnasium's name
    dt: float = 0.05  # s per step
    max_speed: float = 8.0  # rad/s
    max_torque: float = 2.0  # N m

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            id="Pendulum-v1",
            observation_shape=(3,),
            action=Box(-self.max_torque, self.max_torque, (1,)),
            max_episode_steps=200,
            gymnasium_id="Pendulum-v1",
        )

    def reset(self, key: Key) -> tuple[PendulumState, Array]:
        """The angle is drawn uniformly from ±π, the angular velocity from ±1."""
        angle, speed = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        state = PendulumState(math.pi * angle, speed)
        return state, _observe(state)

    def step(self, key: Key, state: PendulumState, action: Array) -> tuple[PendulumState, TimeStep]:
        """Make one step of the semi-implicit Euler method. ``key`` is not used.

        In Gymnasium the angle grows with every turn. Here each step begins with the same angle in
        the interval ±π, so that float32 loses no precision in a long spin.
        """
        theta = state.theta - 2 * math.pi * jnp.round(state.theta / (2 * math.pi))
        torque = jnp.clip(action[0].astype(theta.dtype), -self.max_torque, self.max_torque)
        cost = jnp.square(theta) + 0.1 * jnp.square(state.theta_dot) + 0.001 * jnp.square(torque)
        acceleration = (
            3 * self.g / (2 * self.l) * jnp.sin(theta) + 3 / (self.m * self.l**2) * torque
        )
        theta_dot = jnp.clip(
            state.theta_dot + self.dt * acceleration, -self.max_speed, self.max_speed
        )
        new = PendulumState(theta + self.dt * theta_dot, theta_dot)
        never = jnp.zeros_like(theta, dtype=bool)
        return new, TimeStep(obs=_observe(new), reward=-cost, terminated=never, truncated=never)

    def render(self, state: PendulumState) -> np.ndarray:
        """A frame, ``[500, 500, 3]`` uint8, with the layout of Gymnasium's."""
        from jaxrl_scale.envs.draw import Canvas, rectangle, turned

        size, red = 500, (204, 77, 77)
        scale = size / 4.4
        center = (size / 2, size / 2)
        angle = float(state.theta) + math.pi / 2
        canvas = Canvas(size, size)
        canvas.polygon(
            rectangle((0, -0.1 * scale), (scale, 0.1 * scale), angle=angle, at=center), red
        )
        canvas.circle(center, 0.1 * scale, red)
        canvas.circle(turned((scale, 0), angle=angle, at=center), 0.1 * scale, red)
        canvas.circle(center, 0.05 * scale, (0, 0, 0))
        return canvas.pixels()


def _observe(state: PendulumState) -> Array:
    return jnp.stack([jnp.cos(state.theta), jnp.sin(state.theta), state.theta_dot])
