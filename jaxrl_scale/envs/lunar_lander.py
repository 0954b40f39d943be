"""LunarLander-v3 and LunarLanderContinuous-v3: land softly between two flags.

Reference implementation, used by the tests: gymnasium/envs/box2d/lunar_lander.py. Gymnasium leaves
the physics to Box2D; here they are in `jaxrl_scale.envs.lunar_lander_physics`, whose docstring says
what is simplified. In 72 flights of 70 steps, the largest difference of an observation from
Gymnasium's was 5e-5 at the median and 8e-3 at worst. After a contact only statistics can agree,
because Box2D itself takes another course after a disturbance of one part in a million.
benchmarks/README.md compares these statistics.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.envs import lunar_lander_physics as physics
from jaxrl_scale.envs.lunar_lander_physics import CENTER, DT, HEIGHT, INERTIA, MASS, SCALE, WIDTH
from jaxrl_scale.envs.rigid_body import Vec, batch_last, cross, rotation, turn
from jaxrl_scale.types import Array, Box, Discrete, EnvSpec, Key, TimeStep

MAIN_ENGINE_POWER = 13.0
SIDE_ENGINE_POWER = 0.6
INITIAL_RANDOM = 1000.0  # N
LEG_DOWN = 18 / SCALE  # m


class LunarLanderState(NamedTuple):
    """The bodies, the ground, and the rest of what Gymnasium keeps in its environment."""

    world: physics.World
    ground: Array  # [11] m, the heights of its corners
    legs_down: Array  # [2] bool, changed by contact events as in Gymnasium
    shaping: Array  # the potential; rewards contain its differences
    engines: Array  # [2] power in the last step: main 0 … 1, side -1 … 1; only used for drawing
    wind_index: Array  # int32
    torque_index: Array  # int32


@dataclass(frozen=True)
class LunarLander:
    """Actions: no engine, left, main or right engine. If ``continuous``: main and side engine,
    ``[2]``.

    Observation ``[8]``: position, velocity, angle, angular velocity, and whether each leg touches
    the ground. Reward: progress towards rest on the pad, minus fuel; -100 for a crash, +100 for
    coming to rest.
    """

    continuous: bool = False
    gravity: float = -10.0  # m/s²
    enable_wind: bool = False
    wind_power: float = 15.0  # N
    turbulence_power: float = 1.5  # N m
    velocity_iterations: int = 20  # the most rounds of the solver; Gymnasium gives Box2D 180
    position_iterations: int = 20  # Gymnasium gives Box2D 60

    def __post_init__(self) -> None:
        if not -12.0 < self.gravity < 0.0:
            raise ValueError(f"gravity={self.gravity} should be between -12 and 0")
        for name, most in (("wind_power", 20.0), ("turbulence_power", 2.0)):
            if not 0.0 <= getattr(self, name) <= most:
                warnings.warn(
                    f"{name} is recommended to be between 0 and {most:g}, not "
                    f"{getattr(self, name)}",
                    stacklevel=3,
                )
        for name in ("velocity_iterations", "position_iterations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} should be at least 1")

    @property
    def spec(self) -> EnvSpec:
        name = "LunarLanderContinuous-v3" if self.continuous else "LunarLander-v3"
        return EnvSpec(
            id=name,
            observation_shape=(8,),
            action=Box(-1.0, 1.0, (2,)) if self.continuous else Discrete(4),
            max_episode_steps=1000,
            gymnasium_id=name,
            solver_kwargs=("velocity_iterations", "position_iterations"),
        )

    def reset(self, key: Key) -> tuple[LunarLanderState, Array]:
        """The lander starts above the middle of random ground, pushed by a random force."""
        ground_key, force_key, wind_key = jax.random.split(key, 3)
        heights = jax.random.uniform(ground_key, (12,), maxval=HEIGHT / 2)
        force = jax.random.uniform(force_key, (2,), minval=-INITIAL_RANDOM, maxval=INITIAL_RANDOM)
        wind = jax.random.randint(wind_key, (2,), -9999, 9999) if self.enable_wind else None
        return self.start(heights, force, wind)

    def start(
        self, heights: Array, force: Array, wind: Array | None = None
    ) -> tuple[LunarLanderState, Array]:
        """Start an episode from given numbers instead of random ones.

        Args:
          heights: ``[12]`` m, of the ground, before it is levelled at the pad and smoothed.
          force: ``[2]`` N, which acts on the hull during one step.
          wind: ``[2]`` int32, the positions at which the patterns of wind and turbulence begin.
        """
        heights = heights.at[3:8].set(HEIGHT / 4)
        ground = 0.33 * (jnp.roll(heights, 1) + heights + jnp.roll(heights, -1))[:11]
        wind = jnp.zeros(2, jnp.int32) if wind is None else wind
        return batch_last(self._start)(ground, force, wind)

    def step(
        self, key: Key, state: LunarLanderState, action: Array
    ) -> tuple[LunarLanderState, TimeStep]:
        """Make one step of 1/50 s. The key is for the noise of the engines.

        Raises ``ValueError`` for a continuous action that is not finite, if it is called outside
        of compiled code. Compiled code clips infinities, and treats NaN as an engine that is off.
        """
        concrete = not isinstance(action, jax.core.Tracer)
        if self.continuous and concrete and not np.isfinite(action).all():
            raise ValueError(f"an action is two finite numbers in [-1, 1], not {action}")
        return self.move(state, action, jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0))

    def move(
        self, state: LunarLanderState, action: Array, noise: Array
    ) -> tuple[LunarLanderState, TimeStep]:
        """As `step`, with given noise of the engines, ``[2]`` in ±1."""
        return batch_last(self._move)(state, action, noise)

    # From here on, the batch is the last axis (see `rigid_body`).

    def _start(self, ground: Array, force: Array, wind: Array) -> tuple[LunarLanderState, Array]:
        """As Gymnasium does, place the bodies apart and run one step, which joins them."""
        zero = jnp.zeros_like(force[0])

        def three(hull: Any, right: Any, left: Any) -> Array:
            return jnp.stack([zero + hull, zero + right, zero + left])

        x = three(WIDTH / 2 + CENTER[0][0], WIDTH / 2 + 20 / SCALE, WIDTH / 2 - 20 / SCALE)
        y = three(HEIGHT + CENTER[0][1], HEIGHT, HEIGHT)
        world = physics.at_rest(Vec(x, y), three(0.0, *physics.REST_ANGLE))
        state = LunarLanderState(
            world=world,
            ground=ground,
            legs_down=jnp.zeros((2, *zero.shape), bool),
            shaping=zero,
            engines=jnp.zeros((2, *zero.shape), zero.dtype),
            wind_index=wind[0],
            torque_index=wind[1],
        )
        push = Vec(force[0] * (DT / MASS[0]), force[1] * (DT / MASS[0]))
        state = _kicked(self._blown(state), push, zero)
        # None of four million starts needed more than 20 rounds and 3; on a GPU all are made.
        world = physics.fall(state.world, self.gravity, 32, 8)
        obs = _observe(state._replace(world=world))
        return state._replace(world=world, shaping=_potential(obs)), obs

    def _move(
        self, state: LunarLanderState, action: Array, noise: Array
    ) -> tuple[LunarLanderState, TimeStep]:
        main, side = self._throttle(action, noise.dtype)
        state = _driven(self._blown(state), main, side, noise / SCALE)
        world, events = physics.advance(
            state.world,
            state.ground,
            self.gravity,
            self.velocity_iterations,
            self.position_iterations,
        )
        legs_down = (~events.lost & (state.legs_down | events.gained)) | events.hit
        engines = jnp.stack([main, side])
        state = state._replace(world=world, legs_down=legs_down, engines=engines)
        obs = _observe(state)
        shaping = _potential(obs)
        reward = shaping - state.shaping - 0.3 * main - 0.03 * jnp.abs(side)
        lost = events.crashed | (jnp.abs(obs[0]) >= 1)
        reward = jnp.where(events.asleep, 100.0, jnp.where(lost, -100.0, reward))
        ended = lost | events.asleep
        time_step = TimeStep(obs, reward, terminated=ended, truncated=jnp.zeros_like(ended))
        return state._replace(shaping=shaping), time_step

    def _throttle(self, action: Array, dtype: Any) -> tuple[Array, Array]:
        """The power of the main engine, 0 … 1, and of the side engines, -1 (left) … 1 (right)."""
        if not self.continuous:
            side = (action == 3).astype(dtype) - (action == 1).astype(dtype)
            return (action == 2).astype(dtype), side
        action = jnp.clip(action.astype(dtype), -1, 1)
        main = jnp.where(action[0] > 0, (action[0] + 1) / 2, 0)
        side = jnp.where(jnp.abs(action[1]) > 0.5, action[1], 0)
        return main, side

    def _blown(self, state: LunarLanderState) -> LunarLanderState:
        """The state after wind and turbulence, which act while no leg touches the ground."""
        if not self.enable_wind:
            return state
        free = ~(state.legs_down[0] | state.legs_down[1])
        dtype = state.shaping.dtype

        def gust(index: Array, power: float) -> Array:
            k = index.astype(dtype)
            strength = jnp.tanh(jnp.sin(0.02 * k) + jnp.sin(math.pi * 0.01 * k))
            return jnp.where(free, strength, 0) * power

        wind = gust(state.wind_index, self.wind_power)
        torque = gust(state.torque_index, self.turbulence_power)
        push = Vec(wind * (DT / MASS[0]), jnp.zeros_like(wind))
        state = _kicked(state, push, torque * (DT / INERTIA[0]))
        one = free.astype(jnp.int32)
        return state._replace(
            wind_index=state.wind_index + one, torque_index=state.torque_index + one
        )

    def render(self, state: LunarLanderState) -> np.ndarray:
        """A frame, ``[400, 600, 3]`` uint8, with the layout of Gymnasium's."""
        from jaxrl_scale.envs.draw import Canvas

        canvas = Canvas(int(WIDTH * SCALE), int(HEIGHT * SCALE))
        ground = np.asarray(state.ground) * SCALE
        chunk = physics.CHUNK * SCALE
        left, right, top = -1.0, WIDTH * SCALE + 1, HEIGHT * SCALE + 1  # beyond the frame
        skyline = [(i * chunk, float(y)) for i, y in enumerate(ground)]
        skyline = [(left, skyline[0][1]), *skyline, (right, skyline[-1][1])]
        canvas.polygon([*skyline, (right, top), (left, top)], (0, 0, 0))

        motion = jax.tree.map(np.asarray, state.world.motion)
        for at, radius, colour in _flames(motion, np.asarray(state.engines)):
            canvas.circle(at, radius, colour)
        for body, shape in enumerate((physics.HULL, physics.LEG, physics.LEG)):
            turned = Vec(math.cos(motion.angle[body]), math.sin(motion.angle[body]))
            corners = [
                _pixel(
                    motion.center[body]
                    + turn(turned, Vec(x - CENTER[body][0], y - CENTER[body][1]))
                )
                for x, y in shape.corners
            ]
            canvas.polygon(corners, (128, 102, 230))
            canvas.line([*corners, corners[0]], (77, 77, 128))
        for x in (4 * chunk, 6 * chunk):
            foot = HEIGHT / 4 * SCALE
            canvas.line([(x, foot), (x, foot + 50)], (255, 255, 255))
            canvas.polygon([(x, foot + 50), (x, foot + 40), (x + 25, foot + 45)], (204, 204, 0))
        return canvas.pixels()


@dataclass(frozen=True)
class LunarLanderContinuous(LunarLander):
    """`LunarLander` with ``continuous=True``, which has a name of its own in Gymnasium."""

    continuous: bool = True


def _kicked(state: LunarLanderState, push: Vec, twist: Array) -> LunarLanderState:
    """The state after a change of the hull's velocity (m/s) and spin (rad/s)."""
    motion = state.world.motion
    velocity = Vec(motion.velocity.x.at[0].add(push.x), motion.velocity.y.at[0].add(push.y))
    motion = motion._replace(velocity=velocity, spin=motion.spin.at[0].add(twist))
    return state._replace(world=state.world._replace(motion=motion))


def _driven(state: LunarLanderState, main: Array, side: Array, noise: Array) -> LunarLanderState:
    """The state after the impulses of the engines, which act exactly as Gymnasium's do.

    ``noise``: ``[2]`` m, added to the points where the impulses act.
    """
    motion = state.world.motion
    cos, sin = jnp.cos(motion.angle[0]), jnp.sin(motion.angle[0])
    lever = turn(Vec(cos, sin), Vec(-CENTER[0][0], -CENTER[0][1]))  # to the hull's origin

    def exhaust(down: Array, right: Array) -> Vec:
        return Vec(sin * down - cos * right, -cos * down - sin * right)

    out = exhaust(4 / SCALE + 2 * noise[0], noise[1])
    main_impulse = out * (-MAIN_ENGINE_POWER * main)
    twist = cross(lever + out, main_impulse)
    out = exhaust(noise[0], 3 * noise[1] + jnp.sign(side) * (12 / SCALE))
    side_impulse = out * (-SIDE_ENGINE_POWER * jnp.abs(side))
    twist = twist + cross(lever + out + Vec(-sin * (17 / SCALE), cos * (14 / SCALE)), side_impulse)
    return _kicked(state, (main_impulse + side_impulse) * (1 / MASS[0]), twist * (1 / INERTIA[0]))


def _observe(state: LunarLanderState) -> Array:
    motion = state.world.motion
    origin = motion.center[0] - turn(rotation(motion.angle[0]), Vec(*CENTER[0]))
    down = state.legs_down.astype(origin.x.dtype)
    return jnp.stack(
        [
            (origin.x - WIDTH / 2) * (2 / WIDTH),
            (origin.y - (HEIGHT / 4 + LEG_DOWN)) * (2 / HEIGHT),
            motion.velocity.x[0] * (WIDTH / 2 * DT),
            motion.velocity.y[0] * (HEIGHT / 2 * DT),
            motion.angle[0],
            motion.spin[0] * (20 * DT),
            down[0],
            down[1],
        ]
    )


def _potential(obs: Array) -> Array:
    distance = jnp.sqrt(obs[0] * obs[0] + obs[1] * obs[1])
    speed = jnp.sqrt(obs[2] * obs[2] + obs[3] * obs[3])
    return -100 * (distance + speed + jnp.abs(obs[4])) + 10 * (obs[6] + obs[7])


def _pixel(point: Vec) -> tuple[float, float]:
    return float(point.x) * SCALE, float(point.y) * SCALE


def _flames(motion: Any, engines: np.ndarray) -> list[tuple[tuple[float, float], float, tuple]]:
    """Circles (centre, radius, colour) that show the engines that fired in the last step."""
    main, side = engines
    turned = Vec(math.cos(motion.angle[0]), math.sin(motion.angle[0]))
    origin = motion.center[0] - turn(turned, Vec(*CENTER[0]))
    circles = []
    jets = [
        (main, Vec(0.0, -14 / SCALE), Vec(0.0, -1.0)),
        (
            abs(side),
            Vec(-math.copysign(19 / SCALE, side), 13 / SCALE),
            Vec(-math.copysign(1, side), 0.0),
        ),
    ]
    for power, nozzle, away in jets:
        if power > 0:
            for step in range(4):
                at = origin + turn(turned, nozzle + away * (step * 4 / SCALE))
                heat = float(power) * (1 - step / 4)
                colour = (int(255 * max(0.2, 0.15 + heat)), *(int(255 * max(0.2, 0.5 * heat)),) * 2)
                circles.append((_pixel(at), 3 - step / 2, (min(colour[0], 255), *colour[1:])))
    return circles
