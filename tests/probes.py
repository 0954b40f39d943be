"""Probe environments: each isolates one ability, so that the failing test names the broken part.

After Andy L. Jones, https://andyljones.com/posts/rl-debugging.html.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.types import Box, Discrete, EnvSpec, MultiDiscrete, TimeStep

NO = jnp.zeros((), bool)
YES = jnp.ones((), bool)


def spec(name, actions=1, size=1, limit=None):
    return EnvSpec(name, (size,), Discrete(actions), limit)


class ValueOnly:
    """One action, one observation, one step, reward 1: the value must become 1."""

    spec = spec("ValueOnly")

    def reset(self, key):
        return (), jnp.zeros(1)

    def step(self, key, state, action):
        return (), TimeStep(jnp.zeros(1), jnp.float32(1), YES, NO)


class Observation:
    """One action; the observation, -1 or 1, is the reward: the value must read it."""

    spec = spec("Observation")

    def reset(self, key):
        obs = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)[None]
        return obs, obs

    def step(self, key, state, action):
        return state, TimeStep(state, state[0], YES, NO)


class Discount:
    """Two steps, reward 1 at the end: the first value must be gamma times the second."""

    spec = spec("Discount")

    def reset(self, key):
        return jnp.zeros(()), jnp.zeros(1)

    def step(self, key, state, action):
        return state + 1, TimeStep((state + 1)[None], state, state == 1, NO)


class Truncation:
    """Reward 1 for ever, cut after every step: the value must be 1 / (1 - gamma), not 1."""

    spec = spec("Truncation", limit=1)

    def reset(self, key):
        return (), jnp.zeros(1)

    def step(self, key, state, action):
        return (), TimeStep(jnp.zeros(1), jnp.float32(1), NO, NO)


class Action:
    """Two actions, the second is rewarded, the first punished."""

    spec = spec("Action", actions=2)

    def reset(self, key):
        return (), jnp.zeros(1)

    def step(self, key, state, action):
        return (), TimeStep(jnp.zeros(1), jnp.where(action == 1, 1.0, -1.0), YES, NO)


class Both:
    """The right action depends on the observation."""

    spec = spec("Both", actions=2)

    def reset(self, key):
        obs = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)[None]
        return obs, obs

    def step(self, key, state, action):
        right = (state[0] > 0) == (action == 1)
        return state, TimeStep(state, jnp.where(right, 1.0, -1.0), YES, NO)


class Memory:
    """The observation is shown at the first step only; the action of the third step must
    repeat it. Without memory the mean return is 0, and so it is with one that outlives its
    episode."""

    spec = spec("Memory", actions=2)

    def reset(self, key):
        cue = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        return (cue, jnp.zeros((), jnp.int32)), cue[None]

    def step(self, key, state, action):
        cue, t = state
        right = (cue > 0) == (action == 1)
        reward = jnp.where(t == 2, jnp.where(right, 1.0, -1.0), 0.0)
        return (cue, t + 1), TimeStep(jnp.zeros(1), reward, t == 2, NO)


class MemoryOfParts(Memory):
    """As `Memory`, of two observations at once, each to be repeated by a part of the action. The
    second part has a number more, which is never right."""

    spec = EnvSpec("MemoryOfParts", (2,), MultiDiscrete((2, 3)))

    def reset(self, key):
        cue = jnp.where(jax.random.bernoulli(key, shape=(2,)), 1.0, -1.0)
        return (cue, jnp.zeros((), jnp.int32)), cue

    def step(self, key, state, action):
        cue, t = state
        right = action == (cue > 0).astype(jnp.int32)
        reward = jnp.where(t == 2, jnp.where(right, 1.0, -1.0).mean(), 0.0)
        return (cue, t + 1), TimeStep(jnp.zeros(2), reward, t == 2, NO)


class Counter:
    """Observes how many steps the episode has seen; ends after ``length`` of them, by
    termination or, where ``limit`` is given, by truncation before that."""

    def __init__(self, length=3, limit=None):
        self.length = length
        self.spec = EnvSpec("Counter", (1,), Discrete(2), limit)

    def reset(self, key):
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def step(self, key, state, action):
        state = state + 1
        return state, TimeStep(
            state[None].astype(jnp.float32), state.astype(jnp.float32), state >= self.length, NO
        )


class Push:
    """Continuous actions: two forces push a point, whose episode ends two away from the middle, and
    is cut after 20 steps."""

    spec = EnvSpec("Push", (2,), Box(-1.0, 3.0, (1, 2)), 20)

    def reset(self, key):
        state = jax.random.uniform(key, (2,), minval=-1.0)
        return state, state

    def step(self, key, state, action):
        position, speed = state
        speed = speed + 0.5 * (action[0, 0] - action[0, 1])
        state = jnp.stack([position + 0.2 * speed, speed])
        return state, TimeStep(state, -jnp.square(position), jnp.abs(state[0]) > 2, NO)


class Formulas:
    """Observations and rewards of products and sums, which can be rounded in several ways."""

    spec = spec("Formulas", actions=3, size=3, limit=7)

    def reset(self, key):
        state = jnp.tanh(jax.random.normal(key, (3,)))
        return state, state * 2 - 0.3

    def step(self, key, state, action):
        push = jnp.sin(state) * action + jax.random.normal(key) * state[::-1]
        state = state + 0.1 * jnp.tanh(push)
        reward = jnp.cos(state[0]) * state[2] - 0.1 * jnp.square(state).sum()
        obs = jnp.tanh(state * state[0] - push) + state * 0.5
        return state, TimeStep(obs, reward, jnp.abs(state[0]) > 1, NO)


class Pixels:
    """Images of bytes, with as many pixels along an edge as asked for: a bright bar that moves a
    column a step; the reward says whether it is in the left half, as the action should.
    Its own numbers are where the bar is, and whether the action was right."""

    def __init__(self, edge=36, channels=4):
        self.edge = edge
        self.spec = EnvSpec("Pixels", (edge, edge, channels), Discrete(2), 20, None, (), np.uint8)

    def reset(self, key):
        column = jax.random.randint(key, (), 0, self.edge)
        return column, self.observe(column)

    def step(self, key, state, action):
        right = (state < self.edge // 2) == (action == 1)
        state = (state + 1) % self.edge
        info = {"place": state / 7, "right": right}
        return state, TimeStep(self.observe(state), jnp.where(right, 1.0, 0.0), NO, NO, info)

    def observe(self, column):
        shape = self.spec.observation_shape
        bar = jnp.where(jnp.arange(self.edge) == column, 255, 20).astype(jnp.uint8)
        return jnp.broadcast_to(bar[:, None], shape)
