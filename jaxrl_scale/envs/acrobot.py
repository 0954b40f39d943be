"""Acrobot-v1: swing a two-link arm above a bar with a motor at its elbow.

The task is from Sutton (1996), "Generalization in reinforcement learning: successful examples
using sparse coarse coding", and from Sutton & Barto, "Reinforcement Learning".

Reference implementation, used by the tests: gymnasium/envs/classic_control/acrobot.py.

A state is float32, but the step between two states is computed in float64. At the speeds that
the observation space allows, one Runge-Kutta step of 0.2 s reaches accelerations of 10⁵ rad/s².
In float32 the error is then up to 2e-5 in the angles and 6e-3 in the velocities, in whatever
order the sums are computed. `_sin_cos` makes float64 affordable: on one CPU core this step is
faster than a float32 step that calls ``jnp.sin`` and ``jnp.cos``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.types import Array, Discrete, EnvSpec, Key, TimeStep

Reals = tuple[Array, ...]
"""Angles and velocities, or their rates of change: shoulder, elbow, shoulder, elbow."""


class AcrobotState(NamedTuple):
    """Scalars. Both angles are 0 when the arm hangs; that of the elbow is relative to the upper
    link."""

    theta1: Array  # rad, shoulder
    theta2: Array  # rad, elbow
    theta1_dot: Array  # rad/s
    theta2_dot: Array  # rad/s


@dataclass(frozen=True)
class Acrobot:
    """Actions: the torques -1, 0, +1. Observation ``[6]``: cos and sin of both angles, then
    both angular velocities. Reward: -1 per step, 0 at the goal."""

    dt: float = 0.2  # s per step
    gravity: float = 9.8  # m/s²
    link_length_1: float = 1.0  # m
    link_length_2: float = 1.0  # m; only used for drawing, as in Gymnasium
    link_mass_1: float = 1.0  # kg
    link_mass_2: float = 1.0  # kg
    link_com_pos_1: float = 0.5  # m
    link_com_pos_2: float = 0.5  # m
    link_moi: float = 1.0  # kg m², of each link
    max_vel_1: float = 4 * math.pi  # rad/s
    max_vel_2: float = 9 * math.pi  # rad/s
    avail_torque: tuple[float, ...] = (-1.0, 0.0, 1.0)  # N m
    torque_noise_max: float = 0.0  # N m
    book_or_nips: str = "book"  # the equations of the book, or of the 1996 paper

    def __post_init__(self) -> None:
        if self.book_or_nips not in ("book", "nips"):
            raise ValueError(f"book_or_nips={self.book_or_nips!r} should be 'book' or 'nips'")

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            id="Acrobot-v1",
            observation_shape=(6,),
            action=Discrete(len(self.avail_torque)),
            max_episode_steps=500,
            gymnasium_id="Acrobot-v1",
            worst_return=-500.0,
        )

    def reset(self, key: Key) -> tuple[AcrobotState, Array]:
        """The arm hangs. Every number of the state is drawn uniformly from ±0.1."""
        state = AcrobotState(*jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1))
        cos, sin = jnp.cos(jnp.stack(state[:2])), jnp.sin(jnp.stack(state[:2]))
        return state, jnp.stack([cos[0], sin[0], cos[1], sin[1], *state[2:]])

    def step(self, key: Key, state: AcrobotState, action: Array) -> tuple[AcrobotState, TimeStep]:
        """Make one Runge-Kutta step. ``key`` is used only if ``torque_noise_max`` is set."""
        dtype = state.theta1.dtype
        noise = self.torque_noise_max
        jolt = jax.random.uniform(key, minval=-noise, maxval=noise) if noise > 0 else None

        with jax.enable_x64(True):
            torque = jnp.asarray(self.avail_torque, jnp.float64)[action]
            if jolt is not None:
                torque = torque + jolt.astype(jnp.float64)
            theta1, theta2, theta1_dot, theta2_dot = self._integrate(
                tuple(x.astype(jnp.float64) for x in state), torque
            )
            theta1, theta2 = _wrap(theta1), _wrap(theta2)
            theta1_dot = jnp.clip(theta1_dot, -self.max_vel_1, self.max_vel_1)
            theta2_dot = jnp.clip(theta2_dot, -self.max_vel_2, self.max_vel_2)
            (sin1, cos1), (sin2, cos2) = _sin_cos(theta1), _sin_cos(theta2)
            # Of the tip, in m, for links of 1 m as in Gymnasium.
            height = -cos1 - (cos1 * cos2 - sin1 * sin2)
            above = height > 1.0
            obs = jnp.stack([cos1, sin1, cos2, sin2, theta1_dot, theta2_dot]).astype(dtype)
            new = AcrobotState(*(x.astype(dtype) for x in (theta1, theta2, theta1_dot, theta2_dot)))
            reward = above.astype(dtype) - 1
        return new, TimeStep(obs, reward, terminated=above, truncated=jnp.zeros_like(above))

    def _integrate(self, start: Reals, torque: Array) -> Reals:
        """The state ``dt`` later, by one step of the classical Runge-Kutta method.

        The four slopes are computed in a loop, so that they are compiled once: Acrobot starts a
        quarter of a second earlier, of five, and its steps take as long.
        """

        def along(slope: Reals, time: Array | float) -> Reals:
            return tuple(x + time * dx for x, dx in zip(start, slope, strict=True))

        def add_slope(
            slopes: tuple[Reals, Reals], by: tuple[Array, Array]
        ) -> tuple[tuple[Reals, Reals], None]:
            (before, mean), (time, weight) = slopes, by
            slope = self._derivatives(along(before, time), torque)
            return (slope, tuple(m + weight * dx for m, dx in zip(mean, slope, strict=True))), None

        zero = tuple(jnp.zeros_like(x) for x in start)
        times = jnp.array([0, 1 / 2, 1 / 2, 1]) * self.dt
        weights = jnp.array([1, 2, 2, 1]) / 6
        (_, mean), _ = jax.lax.scan(add_slope, (zero, zero), (times, weights))
        return along(mean, self.dt)

    def _derivatives(self, at: Reals, torque: Array) -> Reals:
        """Velocities and accelerations of both joints, in the notation of the book."""
        m1, m2, l1 = self.link_mass_1, self.link_mass_2, self.link_length_1
        lc1, lc2, moi, g = self.link_com_pos_1, self.link_com_pos_2, self.link_moi, self.gravity
        theta1, theta2, dtheta1, dtheta2 = at
        sin1, cos1 = _sin_cos(theta1)
        sin2, cos2 = _sin_cos(theta2)
        coupling = m2 * l1 * lc2

        d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2) + 2 * moi + 2 * coupling * cos2
        d2 = m2 * lc2**2 + moi + coupling * cos2
        phi2 = m2 * lc2 * g * (sin1 * cos2 + cos1 * sin2)
        phi1 = (
            -coupling * dtheta2 * (dtheta2 + 2 * dtheta1) * sin2
            + (m1 * lc1 + m2 * l1) * g * sin1
            + phi2
        )
        ratio = d2 / d1
        push = torque + ratio * phi1 - phi2
        if self.book_or_nips == "book":
            push = push - coupling * jnp.square(dtheta1) * sin2
        ddtheta2 = push / (m2 * lc2**2 + moi - d2 * ratio)
        ddtheta1 = -(d2 * ddtheta2 + phi1) / d1
        return dtheta1, dtheta2, ddtheta1, ddtheta2

    def render(self, state: AcrobotState) -> np.ndarray:
        """A frame, ``[500, 500, 3]`` uint8, with the layout of Gymnasium's."""
        from jaxrl_scale.envs.draw import Canvas, rectangle, turned

        size = 500
        scale = size / (2 * (self.link_length_1 + self.link_length_2 + 0.2))
        shoulder = (size / 2, size / 2)
        canvas = Canvas(size, size)
        bar = size / 2 + scale
        canvas.line([(0, bar), (size, bar)], (0, 0, 0))

        angle1 = float(state.theta1) - math.pi / 2
        angle2 = angle1 + float(state.theta2)
        length1, length2 = self.link_length_1 * scale, self.link_length_2 * scale
        elbow = turned((length1, 0), angle=angle1, at=shoulder)
        for joint, angle, length in ((shoulder, angle1, length1), (elbow, angle2, length2)):
            link = rectangle((0, -0.1 * scale), (length, 0.1 * scale), angle=angle, at=joint)
            canvas.polygon(link, (0, 204, 204))
            canvas.circle(joint, 0.1 * scale, (204, 204, 0))
        return canvas.pixels()


def _wrap(angle: Array) -> Array:
    """The same angle in the interval ±π."""
    return angle - 2 * math.pi * jnp.round(angle / (2 * math.pi))


def _sin_cos(angle: Array) -> tuple[Array, Array]:
    """Sine and cosine in float64, within 1e-13 for angles of up to 100 rad.

    Computed by Taylor's series about the nearest multiple of π, up to the power 19. There are no
    branches, and sine and cosine share everything but the sums. This is several times faster than
    ``jnp.sin`` and ``jnp.cos``.
    """
    turns = jnp.round(angle / math.pi)
    rest = angle - math.pi * turns  # in ±π/2
    # An odd number of half turns flips both signs.
    sign = 1 - 2 * (turns - 2 * jnp.floor(turns / 2))
    square = jnp.square(rest)
    sin = cos = jnp.zeros_like(angle)
    for power in range(18, -1, -2):
        sign_of_term = (-1) ** (power // 2)
        cos = cos * square + sign_of_term / math.factorial(power)
        sin = sin * square + sign_of_term / math.factorial(power + 1)
    return sign * rest * sin, sign * cos
