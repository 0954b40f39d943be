"""Optimisers built from traced numbers, so that a population may differ in them.

They see the parameters as one flat vector ``[N]``: what a collective has just summed.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
import optax

from jaxrl_scale.types import Array

Kind = Literal["adam", "rmsprop"]
Schedule = Literal["constant", "linear", "cosine"]


def adam(
    learning_rate: Array, epsilon: Array, max_grad_norm: Array
) -> optax.GradientTransformation:
    """Adam (https://arxiv.org/abs/1412.6980) behind a clip of the gradient's norm."""
    return optax.chain(
        optax.clip_by_global_norm(max_grad_norm),
        optax.scale_by_adam(eps=epsilon),
        optax.scale(-learning_rate),
    )


def make(
    kind: Kind, learning_rate: Array, epsilon: Array, max_grad_norm: Array
) -> optax.GradientTransformation:
    """An optimiser by name; ``rmsprop`` is what A2C and IMPALA were published with."""
    if kind == "adam":
        return adam(learning_rate, epsilon, max_grad_norm)
    return optax.chain(
        optax.clip_by_global_norm(max_grad_norm),
        optax.scale_by_rms(decay=0.99, eps=epsilon),
        optax.scale(-learning_rate),
    )


def scheduled(schedule: Schedule, learning_rate: Array, progress: Array) -> Array:
    """The learning rate after ``progress`` (0 to 1) of the run."""
    if schedule == "linear":
        return learning_rate * (1 - progress)
    if schedule == "cosine":
        return learning_rate * 0.5 * (1 + jnp.cos(jnp.pi * progress))
    return learning_rate
