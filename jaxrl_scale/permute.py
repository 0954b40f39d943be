"""Random permutations without a sort."""
from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_scale.types import Array, Key


def permutation(key: Key, n: int, count: int) -> Array:
    """``count`` permutations of ``0 … n - 1``, ``[count, n]`` int32."""
    return jax.vmap(lambda k: jax.random.permutation(k, n))(jax.random.split(key, count))
