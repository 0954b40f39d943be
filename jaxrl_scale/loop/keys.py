"""The keys of a run's random numbers.

Keys derive from the seed, what they are for, the iteration and the global shard index, so that a
resumed run needs no saved key and the number of devices changes none.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.config import Config
from jaxrl_scale.loop.threefry import UNROLLED
from jaxrl_scale.types import Array, Key

INIT, COLLECT, UPDATE, EVALUATE = range(4)
"""What random numbers are drawn for."""


def agent_seeds(config: Config) -> np.ndarray:
    """Agent ``k`` has seed ``config.seed + k``: ``[P]`` uint32."""
    return config.seed + np.arange(config.num_seeds, dtype=np.uint32)


def agent_key(seed: Array, purpose: int, iteration: Array | int = 0) -> Key:
    """The key of one agent for one purpose, the same on all devices.

    The two words of the key are the seed and the iteration, which are below 2**31 (`config.check`),
    with one bit of the purpose on top of each: different keys are all that a counter-based
    generator needs, and hashing them would cost compilation.
    """
    if purpose >> 2:
        raise ValueError(f"purpose {purpose} does not fit into two bits")
    seed_word = jnp.asarray(seed, jnp.uint32) | jnp.uint32((purpose & 1) << 31)
    iteration_word = jnp.asarray(iteration, jnp.uint32) | jnp.uint32((purpose >> 1) << 31)
    words = jnp.stack([seed_word, iteration_word])
    return jax.random.wrap_key_data(words, impl=UNROLLED)


def host_seeds(seed: int, purpose: int, restart: int, index: np.ndarray) -> np.ndarray:
    """Seeds of environments on the host, ``[n]`` from 0 to 2**31 - 1.

    They come from a hash, because libraries count a game's levels from its seed on, so that
    neighbouring seeds would play the same ones.

    Args:
      seed: the agent's.
      restart: how often the environments were made before.
      index: their indices among the environments of all shards, ``[n]``.
    """
    words = [np.random.SeedSequence([seed, purpose, restart, int(i)]) for i in index]
    return np.asarray([word.generate_state(1)[0] >> 1 for word in words], np.int64)
