"""Action masks: the numbers at the end of an observation that say which actions are allowed there
(`jaxrl_scale.types.EnvSpec.action_mask`).

A network does not see them, and running statistics leave them as they are. The logits and values
of actions that are not allowed become -inf, so that no distribution gives them a probability and
no maximum is theirs.
"""

from __future__ import annotations

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np

from jaxrl_scale.types import Array, EnvSpec


def parts(spec: EnvSpec) -> tuple[int, ...]:
    """The sizes of an action's parts, in the mask's order; empty where there is no mask."""
    return spec.action.sizes if spec.action_mask else ()


def without(spec: EnvSpec) -> EnvSpec:
    """The environment as a network sees it, whose observations have no mask."""
    if not (size := sum(parts(spec))):
        return spec
    (length,) = spec.observation_shape
    return dataclasses.replace(spec, observation_shape=(length - size,), action_mask=False)


def split(spec: EnvSpec, obs: Array) -> tuple[Array, Array | None]:
    """What a network sees of ``obs [..., *observation_shape]``, and the mask ``[..., actions]``;
    None where there is none."""
    if not (size := sum(parts(spec))):
        return obs, None
    return obs[..., :-size], obs[..., -size:]


def forbid(spec: EnvSpec, mask: Array | None, scores: Array) -> Array:
    """Logits or values ``[..., actions]`` with -inf for those that the mask forbids. A mask of
    zeros alone, which a step without a meaning may have, forbids nothing."""
    if mask is None:
        return scores
    # The largest number of each part is 1, or 0 where all are: NumPy and ONNX can do that, too.
    ends = np.cumsum((0, *parts(spec))).tolist()
    of_parts = [mask[..., start:end] for start, end in itertools.pairwise(ends)]
    allowed = [part >= part.max(-1, keepdims=True) for part in of_parts]
    return jnp.where(jnp.concatenate(allowed, -1), scores, -jnp.inf)
