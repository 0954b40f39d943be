"""The three verbs of an update: the mean gradient over all shards, a loop of gradient steps that
averages their metrics, and the optimizer.

Parameters are one flat vector ``[N]`` here (`jax.flatten_util.ravel_pytree`): what a collective
sums and an optimizer steps along. Every number of an optimizer is traced, so that the agents of
one program may differ in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl_scale.types import Array, Metrics, Pool, PyTree

Kind = Literal["adam", "rmsprop"]
Schedule = Literal["constant", "linear", "cosine"]


def masked_sums(valid: Array, parts: Metrics) -> Metrics:
    """The sum of each part over the valid samples, and their number as ``count``.

    Args:
      valid: ``[...]`` bool.
      parts: of each sample, ``[...]``.
    """
    sums = {name: jnp.where(valid, part, 0.0).sum() for name, part in parts.items()}
    return sums | {"count": valid.sum(dtype=jnp.float32)}


def mean_gradient(
    pool: Pool, loss: Callable[..., tuple[Array, Metrics]], params: Array, *shards: PyTree
) -> tuple[Array, Metrics]:
    """The gradient of the mean loss of the valid samples of all shards; one collective.

    Args:
      loss: ``(params [N], *shard) -> (loss, sums)``, for one shard: both are *sums* over its
        valid samples, and ``sums["count"]`` is their number.
      params: ``[N]``.
      shards: what ``loss`` is given of each shard, ``[S, ...]``.

    Returns:
      The gradient ``[N]``, and the means by name with ``grad_norm`` beside them.
    """
    gradient, sums = pool.grad(loss, params, *shards)
    # The count came in the same collective. A product, not a division: see docs/exactness.md.
    per_sample = 1.0 / jnp.maximum(sums.pop("count"), 1.0)
    gradient = gradient * per_sample
    means = {name: total * per_sample for name, total in sums.items()}
    return gradient, means | {"grad_norm": optax.tree.norm(gradient)}


def average_over(
    steps: int | Array,
    step: Callable[[Array, PyTree], tuple[PyTree, Metrics]],
    carry: PyTree,
    stop: Callable[[Metrics], Array] | None = None,
) -> tuple[PyTree, Metrics]:
    """``steps`` times ``carry, metrics = step(k, carry)``, and the mean of the metrics.

    Args:
      steps: how many; may be traced, and 0.
      stop: of a step's metrics, which are of the carry before it, whether that has gone too far
        already: the step is then undone, and is the last. All shards see the same metrics, so all
        of them leave the loop together.

    Returns:
      The last carry, and the metrics' means over all steps that were made, the undone one
      included; ``updates`` is the number of steps that were not undone.
    """
    step = jax.jit(step, inline=True)  # traced once, for its shapes and for the loop
    _, shapes = jax.eval_shape(step, jnp.int32(0), carry)
    # One vector of metrics: each would be an output of the loop to compile.
    zeros, unravel = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))

    def one_step(moving: tuple) -> tuple:
        k, carry, _, totals = moving
        moved, metrics = step(k, carry)
        stopped = jnp.zeros((), bool)
        if stop is not None:
            stopped = stop(metrics)
            moved = jax.tree.map(lambda new, old: jnp.where(stopped, old, new), moved, carry)
        return k + 1, moved, stopped, totals + ravel_pytree(metrics)[0]

    done, carry, stopped, totals = jax.lax.while_loop(
        lambda moving: (moving[0] < steps) & ~moving[2],
        one_step,
        (jnp.int32(0), carry, jnp.zeros((), bool), zeros),
    )
    means = unravel(totals * (1.0 / jnp.maximum(done, 1).astype(jnp.float32)))
    return carry, means | {"updates": (done - stopped.astype(jnp.int32)).astype(jnp.float32)}


class Numbers(Protocol):
    """The options that an optimizer is made of, traced."""

    @property
    def learning_rate(self) -> Any: ...
    @property
    def lr_schedule(self) -> Schedule: ...
    @property
    def max_grad_norm(self) -> Any: ...
    @property
    def optimizer_epsilon(self) -> Any: ...


class Optimizer(NamedTuple):
    """An optimizer of one flat vector of parameters ``[N]``."""

    init: Callable[[PyTree], PyTree]
    """``(params) -> state``, of parameters that are not flat yet"""
    step: Callable[[Array, Array, PyTree], tuple[Array, PyTree]]
    """``(gradient, params, state) -> (params, state)``"""
    learning_rate: Array
    """``[]``, what the schedule has made of it"""


def make(options: Numbers, progress: Array | float = 0.0) -> Optimizer:
    """Adam (https://arxiv.org/abs/1412.6980), or RMSProp where ``options.optimizer`` says so,
    behind a limit of the gradient's norm. RMSProp is TensorFlow's, with which A2C and IMPALA were
    published: its mean square begins at 1, so that the first steps are short, and ε is added to it
    under the root.

    Args:
      options: the algorithm's, `jaxrl_scale.options.traced`.
      progress: 0 at the start of the run, 1 at its end; the schedule depends on it.
    """
    epsilon, rate = options.optimizer_epsilon, options.learning_rate
    learning_rate = scheduled(options.lr_schedule, rate, progress)
    kind: Kind = getattr(options, "optimizer", "adam")
    transforms = [
        optax.scale_by_adam(eps=epsilon)
        if kind == "adam"
        else optax.scale_by_rms(decay=0.99, eps=epsilon, initial_scale=1.0),
        optax.scale(-learning_rate),
    ]
    if options.max_grad_norm is not None:
        transforms.insert(0, optax.clip_by_global_norm(options.max_grad_norm))
    transform = optax.chain(*transforms)

    def step(gradient: Array, params: Array, state: PyTree) -> tuple[Array, PyTree]:
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an int32 count
            change, state = transform.update(gradient, state)
        return params + change, state

    def init(params: PyTree) -> PyTree:
        return transform.init(ravel_pytree(params)[0])

    return Optimizer(init, step, learning_rate)


def scheduled(schedule: Schedule, learning_rate: Any, progress: Array | float) -> Array:
    """The learning rate after ``progress`` (0 to 1) of the run."""
    if schedule == "linear":
        return learning_rate * (1 - progress)
    if schedule == "cosine":
        return learning_rate * 0.5 * (1 + jnp.cos(jnp.pi * progress))
    if schedule == "constant":
        return learning_rate
    raise ValueError(f"lr_schedule={schedule!r} has no formula in jaxrl_scale.learning.optim")
