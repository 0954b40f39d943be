"""Masks: which samples of a batch count."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_scale.types import Array, PyTree


def trailing(x: Array, like: Array) -> Array:
    """``x [...]`` with axes of length 1 behind its own, so that it can stand beside ``like [...,
    *]``."""
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))


def masked(valid: Array, samples: PyTree) -> PyTree:
    """The samples with zeros where they are not valid. What an environment shows at an episode's
    end may be NaN, and a mask on the loss alone lets 0 * NaN into the gradient.

    Args:
      valid: ``[...]`` bool.
      samples: arrays ``[..., *]``.
    """
    return jax.tree.map(lambda x: jnp.where(trailing(valid, x), x, jnp.zeros_like(x)), samples)
