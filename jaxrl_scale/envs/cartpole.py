"""CartPole-v1: balance a pole on a cart by pushing the cart left or right.

The task is from Barto, Sutton & Anderson (1983), "Neuronlike adaptive elements that can solve
difficult learning control problems". The equations of motion are from Florian (2007), "Correct
equations for the dynamics of the cart-pole system".

Reference implementation, used by the tests: gymnasium/envs/classic_control/cartpole.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.types import Array, Discrete, EnvSpec, Key, TimeStep


class CartPoleState(NamedTuple):
    """Scalars. The angle is 0 when the pole stands upright."""

    x: Array  # m
    x_dot: Array  # m/s
    theta: Array  # rad
    theta_dot: Array  # rad/s


@dataclass(frozen=True)
class CartPole:
    """Actions: push left, push right. Observation ``[4]``: the state. Reward: 1 per step."""

    gravity: float = 9.8  # m/s²
    masscart: float = 1.0  # kg
    masspole: float = 0.1  # kg
    length: float = 0.5  # m, half the length of the pole
    force_mag: float = 10.0  # N
    tau: float = 0.02  # s per step
    kinematics_integrator: str = "euler"  # or "semi-implicit euler"
    theta_threshold_radians: float = 12 * 2 * math.pi / 360
    x_threshold: float = 2.4  # m
    sutton_barto_reward: bool = False  # reward 0 per step and -1 for a fall

    def __post_init__(self) -> None:
        if self.kinematics_integrator not in ("euler", "semi-implicit euler"):
            raise ValueError(
                f"kinematics_integrator={self.kinematics_integrator!r} should be 'euler' or "
                "'semi-implicit euler'"
            )

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            id="CartPole-v1",
            observation_shape=(4,),
            action=Discrete(2),
            max_episode_steps=500,
            gymnasium_id="CartPole-v1",
        )

    def reset(self, key: Key) -> tuple[CartPoleState, Array]:
        """Every number of the state is drawn uniformly from ±0.05."""
        obs = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return CartPoleState(*obs), obs

    def step(self, key: Key, state: CartPoleState, action: Array) -> tuple[CartPoleState, TimeStep]:
        """Make one step of Euler's method. ``key`` is not used."""
        x, x_dot, theta, theta_dot = state
        total_mass = self.masscart + self.masspole
        polemass_length = self.masspole * self.length

        force = jnp.where(action == 1, self.force_mag, -self.force_mag).astype(x.dtype)
        cos, sin = jnp.cos(theta), jnp.sin(theta)
        temp = (force + polemass_length * jnp.square(theta_dot) * sin) / total_mass
        theta_acc = (self.gravity * sin - cos * temp) / (
            self.length * (4.0 / 3.0 - self.masspole * jnp.square(cos) / total_mass)
        )
        x_acc = temp - polemass_length * theta_acc * cos / total_mass

        new_x_dot = x_dot + self.tau * x_acc
        new_theta_dot = theta_dot + self.tau * theta_acc
        explicit = self.kinematics_integrator == "euler"
        new = CartPoleState(
            x=x + self.tau * (x_dot if explicit else new_x_dot),
            x_dot=new_x_dot,
            theta=theta + self.tau * (theta_dot if explicit else new_theta_dot),
            theta_dot=new_theta_dot,
        )
        fallen = (jnp.abs(new.x) > self.x_threshold) | (
            jnp.abs(new.theta) > self.theta_threshold_radians
        )
        fell = fallen.astype(x.dtype)
        return new, TimeStep(
            obs=jnp.stack(new),
            reward=-fell if self.sutton_barto_reward else jnp.ones_like(fell),
            terminated=fallen,
            truncated=jnp.zeros_like(fallen),
        )

    def render(self, state: CartPoleState) -> np.ndarray:
        """A frame, ``[400, 600, 3]`` uint8, with the layout of Gymnasium's."""
        from jaxrl_scale.envs.draw import Canvas, rectangle

        width, height, track, axle_height = 600, 400, 100, 7.5
        scale = width / (2 * self.x_threshold)
        cart = (width / 2 + float(state.x) * scale, track)
        axle = (cart[0], track + axle_height)
        canvas = Canvas(width, height)
        canvas.line([(0, track), (width, track)], (0, 0, 0))
        canvas.polygon(rectangle((-25, -15), (25, 15), at=cart), (0, 0, 0))
        pole = rectangle(
            (-5, -5), (5, 2 * self.length * scale - 5), angle=-float(state.theta), at=axle
        )
        canvas.polygon(pole, (202, 152, 101))
        canvas.circle(axle, 5, (129, 132, 203))
        return canvas.pixels()
