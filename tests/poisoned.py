"""An environment of which some episodes pay NaN."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_scale import envs
from jaxrl_scale.types import EnvSpec


class State(NamedTuple):
    game: Any
    poisoned: jax.Array  # [] bool


class CartPole:
    """CartPole; an episode is poisoned with the probability ``dose``."""

    def __init__(self, dose: float = 0.0):
        self.dose, self.game = dose, envs.make("CartPole-v1")
        self.spec: EnvSpec = dataclasses.replace(self.game.spec, id="Poisoned")

    def reset(self, key):
        state, obs = self.game.reset(key)
        return State(state, jax.random.uniform(jax.random.fold_in(key, 1)) < self.dose), obs

    def step(self, key, state, action):
        game, seen = self.game.step(key, state.game, action)
        reward = jnp.where(state.poisoned, jnp.nan, seen.reward)
        return State(game, state.poisoned), seen._replace(reward=reward)
