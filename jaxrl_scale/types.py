"""The contracts that the whole package shares, and the glossary.

Axes, always in this order when several meet:

====== ==============================================================================
``D``  devices of one process; in `parallel.placement`, and where the host steps environments
``P``  population: agents that are trained side by side in one compiled program
``P'`` agents of one device: ``P``, or fewer where whole agents are placed on devices
``S``  shards: fixed slices of the environments, the unit of placement and randomness
``S'`` shards of one device: ``S``, or fewer where an agent is spread over devices
``T``  time within one rollout
``B``  environments of one shard
====== ==============================================================================

The **host** is where Python runs, beside the devices, and where libraries outside JAX step their
environments. The processes of a run, of which one machine may have several, are **peers**
(`jaxrl_scale.parallel.peers`).

An algorithm's equations see ``[T, B]``; its ``update`` sees ``[S, T, B]``, where ``S``
counts the shards that live on the calling device.

Auto-reset happens **on the next step**, as in EnvPool and Gymnasium >= 1.0: the step that
ends an episode returns the true last observation; the step after it ignores its action,
returns the first observation of the next episode and is marked ``valid=False``. So
``obs[t + 1]`` is the true successor of ``obs[t]`` wherever ``valid[t]`` holds, and a
truncated episode bootstraps from ``obs[t + 1]`` like any other step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
Key = jax.Array
"""A typed PRNG key, ``jax.random.key``."""
PyTree = Any


def is_key(x: Any) -> bool:
    """Whether what has a dtype, an array or its shape, is one of keys."""
    return jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)


@dataclass(frozen=True)
class Discrete:
    """Actions ``0 … n - 1``, int32 scalars."""

    n: int

    @property
    def sizes(self) -> tuple[int]:
        """As `MultiDiscrete` has them, of its one part."""
        return (self.n,)

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int32)

    def clip(self, action: Any) -> Any:
        """As `Box.clip`: what an algorithm chooses is one of them already."""
        return action


@dataclass(frozen=True)
class MultiDiscrete:
    """Actions of several parts, int32 of the shape ``(len(sizes),)``: part ``i`` is one of the
    numbers ``0 … sizes[i] - 1``. Switches that are on or off are parts of size 2."""

    sizes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.sizes),)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int32)

    def clip(self, action: Any) -> Any:
        """As `Discrete.clip`."""
        return action


@dataclass(frozen=True)
class Box:
    """Actions in the box ``[low, high]``, float32 of the given shape."""

    low: float
    high: float
    shape: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """As `MultiDiscrete` has them: there are no parts to choose from."""
        return ()

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def clip(self, action: Any) -> Any:
        """Chosen actions ``[..., *shape]``, of NumPy or JAX, as an environment is given them: a
        policy's Gaussian knows no bounds."""
        return action.clip(self.low, self.high)


ActionSpace = Discrete | MultiDiscrete | Box


@dataclass(frozen=True)
class EnvSpec:
    """What a trainer has to know of an environment before it runs it.

    ``max_episode_steps`` is Gymnasium's ``TimeLimit``: `jaxrl_scale.loop.rollout` truncates there,
    the physics never counts steps. On the host, the simulator itself truncates. ``gymnasium_id``
    names the environment of real Gymnasium that this one reproduces, ``None`` where there is none.
    ``solver_kwargs`` are parameters that it does not have, since they say how the physics is
    computed, not what it is. ``worst_return`` is the lowest undiscounted return that an episode can
    have: an agent that ends there has learned nothing. It is ``None`` where there is no such bound.
    ``frames_per_step`` says how many frames of a game one step takes, since scores of Atari are
    stated in frames. ``info`` names the numbers that each `HostStep` of an environment on the host
    has of its own; for an environment on the devices, its steps say so themselves. ``costly_reset``
    says that its reset takes as long as several steps, as where a world is generated: then the
    environments of a shard that have ended begin a few at a time, instead of all of the shard.

    ``action_mask`` says that an observation, which is a vector then, ends with a number for each
    action: 1 where the action is allowed at the next step, else 0. Of actions of several parts
    these are the numbers of the first part, then those of the second, and so on, and the parts are
    allowed each by itself. Agents take no other actions, and their networks see what stands before.
    """

    id: str
    observation_shape: tuple[int, ...]
    action: ActionSpace
    max_episode_steps: int | None = None
    gymnasium_id: str | None = None
    solver_kwargs: tuple[str, ...] = ()
    observation_dtype: Any = np.float32
    worst_return: float | None = None
    frames_per_step: int = 1
    info: tuple[str, ...] = ()
    costly_reset: bool = False
    action_mask: bool = False


class TimeStep(NamedTuple):
    """What one step of one environment returns.

    ``terminated``: the task ended, nothing follows, its value is 0. ``truncated``: the
    episode was cut although the task goes on, so its value is bootstrapped from ``obs``.

    ``info`` holds numbers of the environment's own, by name, of which the run reports two means
    each: ``env/<name>`` over all valid steps, and ``env_end/<name>`` over the last steps of the
    episodes that ended, by the time limit too. Nothing learns from them.
    """

    obs: Array  # [*observation_shape]
    reward: Array  # [] float32
    terminated: Array  # [] bool
    truncated: Array  # [] bool
    info: dict[str, Array] | None = None  # each [], a number or a bool


class Environment(Protocol):
    """ONE environment: physics only, no batch, no auto-reset, no time limit.

    Both methods are pure. Batched, ``step`` is computed for every environment at every step, and
    ``reset`` for all of them where any episode has ended (but see `EnvSpec.costly_reset`).
    `jaxrl_scale.loop.rollout` throws away what it does not need: the reset of an episode that goes
    on, the step from a fresh state where one has just ended.

    A class that has an attribute ``spec`` and the two pure methods is an environment. A
    method ``render(state) -> uint8 [height, width, 3]`` (host side, NumPy) is optional.
    """

    @property
    def spec(self) -> EnvSpec: ...

    def reset(self, key: Key) -> tuple[PyTree, Array]:
        """A fresh episode: its state and first observation."""
        ...

    def step(self, key: Key, state: PyTree, action: Array) -> tuple[PyTree, TimeStep]:
        """The next state and what is seen there. Never called on an ended episode."""
        ...


class HostStep(NamedTuple):
    """What one step of ``n`` environments on the host returns: NumPy arrays, ``[n, ...]``.

    Where the step before ended an episode, this one ignored its action and returns the first
    observation of the next episode; its other entries mean nothing then.

    ``info`` has the numbers of the environment's own that its `EnvSpec` names. The run reports them
    as those of a `TimeStep`; an episode whose last step counts is a whole game.
    """

    obs: np.ndarray  # [n, *observation_shape]
    reward: np.ndarray  # [n] float32, what an agent learns from
    terminated: np.ndarray  # [n] bool
    truncated: np.ndarray  # [n] bool
    score: np.ndarray  # [n] float32, the task's own reward, in which returns are reported
    game_over: np.ndarray  # [n] bool: a return is complete. A lost life may end an episode earlier
    info: dict[str, np.ndarray] | None = None  # [n] each, numbers or bools


class Simulator(Protocol):
    """``n`` environments that run on the host, with auto-reset on the next step.

    What they return is a function of their seeds and the actions alone, not of the number of
    threads and not of which other environments are in the same simulator.
    """

    def reset(self) -> np.ndarray:
        """Begin the first episodes: observations ``[n, *observation_shape]``. Called once."""
        ...

    def send(self, action: np.ndarray) -> None:
        """Begin a step of all with actions ``[n, *action.shape]``, which are within the bounds of a
        `Box`, and return at once."""
        ...

    def receive(self) -> HostStep:
        """Wait for the step that `send` began. What went wrong in it is raised here."""
        ...

    def close(self) -> None:
        """End threads and free memory. May be called twice."""
        ...

    # Optional: ``render() -> uint8 [n, height, width, 3]``, the environments as they are now,
    # after `reset` or `receive` and before the next `send`.


class HostEnvironment(Protocol):
    """An environment whose steps are computed on the host, by a library outside JAX."""

    @property
    def spec(self) -> EnvSpec: ...

    def simulate(self, seeds: np.ndarray, num_threads: int) -> Simulator:
        """One environment for each of the seeds ``[n]``, from 0 to 2**31 - 1."""
        ...

    def facts(self) -> dict[str, str]:
        """Versions of the library that the frames depend on, for ``run.json``."""
        ...


class Rollout(NamedTuple):
    """``T`` steps of the ``B`` environments of one shard (``[S, ...]`` for all of a device's).

    ``obs[t]`` is what ``action[t]`` was chosen from and ``obs[t + 1]`` what followed.
    """

    obs: Array  # [T + 1, B, *observation_shape]
    is_first: Array  # [T + 1, B] bool: obs[t] is the first of an episode
    action: Array  # [T, B, *action.shape]
    reward: Array  # [T, B] float32
    terminated: Array  # [T, B] bool
    truncated: Array  # [T, B] bool
    valid: Array  # [T, B] bool: False where the step was a reset, which is no experience
    carry: PyTree  # [B, ...] the policy's memory before obs[0]; () for feed-forward
    extras: PyTree  # [T, B, ...] what `Algorithm.act` returned beside the action


class Span(NamedTuple):
    """A stretch of an axis: of ``whole`` entries those from ``start`` up to ``stop``."""

    start: int
    stop: int
    whole: int


@dataclass(frozen=True)
class Part:
    """Which part of an array one process holds: a span for each of its leading axes, and all of
    the axes after them. It is a dataclass so that JAX takes it for a leaf of a tree."""

    spans: tuple[Span, ...] = ()


Metrics = dict[str, Array]
"""Scalars by name, as an algorithm's ``update`` returns them: pooled, equal on all devices."""


OWN_NUMBERS = {"env/": "steps", "env_end/": "ended"}
"""What stands before the names of an environment's own numbers (`TimeStep.info`) among the metrics.
An iteration has their sums, and beside them how many numbers each is a sum of, under this name."""


class Played(NamedTuple):
    """Whole episodes that were played: arrays ``[P, episodes]``, or ``[episodes]`` of one agent.

    ``info`` has the environment's own numbers (`TimeStep`), under the names that they have in a row
    of metrics: ``env/<name>`` is the sum over an episode's steps, ``env_end/<name>`` the number at
    its last step. It is empty where an environment has none.
    """

    returns: Array | np.ndarray  # float32, undiscounted
    lengths: Array | np.ndarray  # int32, steps
    info: dict[str, Any]  # float32 each


MOST_SHARDS = 4096
"""The largest number of parts that an agent's environments may have: whole numbers are summed over
them exactly."""


class Pool(NamedTuple):
    """How an algorithm works on shards without knowing where they are.

    Every ``f`` below takes the arrays of ONE shard. ``S`` counts the shards at hand; the
    sums run over all shards of all devices in one fixed order, so that they are the same
    to the last bit wherever the shards are (see `jaxrl_scale.parallel.sums`).
    """

    num_shards: int
    """Shards of an agent, on all devices."""
    shard_index: Callable[[], Array]
    """The global indices of the shards at hand, ``[S]`` int32."""
    map: Callable[..., PyTree]
    """``map(f, *trees[S, ...]) -> [S, ...]``: ``f`` on each shard."""
    sum: Callable[[PyTree], PyTree]
    """``sum(tree[S, ...]) -> [...]``: over all shards of all devices, of float32 and int32."""
    grad: Callable[..., tuple[Array, PyTree]]
    """``grad(f, params[N], *trees[S, ...]) -> (gradient[N], aux)``, both summed over all
    shards, where ``f(params, *shard) -> (loss, aux)`` and ``params`` is one flat vector.
    One collective."""
    after: Callable[[PyTree], Pool]
    """``after(tree)``: a pool whose sums begin when all arrays of ``tree`` are there. Two sums of
    which neither follows from the other have to be ordered by this, since a device may begin them
    at the same time."""


class Time(NamedTuple):
    """How far an agent is, before an iteration."""

    iteration: Array
    """``[]`` int32: iterations done"""
    progress: Array
    """``[]`` float32: the part of the run that they are, from 0 to 1"""


class Algorithm(NamedTuple):
    """An algorithm as a handful of pure functions, in the manner of optax.

    ``Shared`` is what is the same everywhere: the options' numbers, parameters, optimizer,
    statistics, lagged copies. ``Shared.params`` are the parameters that are trained: the runner
    reports their norm and marks an agent as failed where it is not finite. ``Shared.observation``
    are the statistics that normalize observations, or None. ``Local`` belongs to one shard (replay,
    running returns), ``Carry`` is a policy's memory, one per environment, and
    ``Actor`` the part of ``Shared`` that acting needs. None of them counts iterations: the runner
    does, and says how far the agent is (`Time`).

    ``act`` and ``update`` return their memory and state with the structure, shapes and dtypes that
    they were given. Neither holds a typed key, which no checkpoint could: keep its words,
    ``jax.random.key_data``. ``Metrics`` are scalars, float32 or int32, equal on all devices. None
    has a name that a row of metrics has already (`jaxrl_scale.records.rows.OF_THE_RUN`), or one
    that begins as those of an environment's own numbers do (`OWN_NUMBERS`). Anything else is an
    error when the run begins.
    """

    init_shared: Callable[..., PyTree]
    """``(key, options, weights=None) -> Shared``; ``options`` are the algorithm's with traced
    numbers (`jaxrl_scale.options.traced`), which may differ from agent to agent; ``weights`` are
    what the policy begins with (`jaxrl_scale.learning.networks.Weights`), None: random ones"""
    init_local: Callable[[Key, Array], PyTree]
    """``(key, shard_index) -> Local``, for one shard"""
    init_carry: Callable[[int], PyTree]
    """``(B) -> Carry[B, ...]``; ``()`` for feed-forward policies"""
    actor: Callable[[PyTree, Time], PyTree]
    """``(Shared, Time) -> Actor``, whose ``params`` are those of an agent that is evaluated"""
    act: Callable[..., tuple[Array, PyTree, PyTree]]
    """``(Actor, Local, Carry, obs[B], is_first[B], key, greedy=False) ->
    (action[B], Carry, extras[B])``; ``greedy`` is a Python bool. ``Local`` is None where an agent
    is evaluated, which no shard does."""
    outputs: Callable[..., dict[str, Array]]
    """``(Actor, Carry, obs[B], is_first[B]) -> {name: [B, ...]}``: what the network of an agent
    that is evaluated says, for whoever asks (`jaxrl_scale.learning.networks.outputs`)"""
    update: Callable[[PyTree, PyTree, Rollout, Key, Time], tuple[PyTree, PyTree, Metrics]]
    """``(Shared, Local[S], Rollout[S], key, Time) -> (Shared, Local[S], Metrics)``. The key is
    the same on every device: fold in `Pool.shard_index` for what belongs to a shard."""
