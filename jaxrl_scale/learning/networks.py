"""Networks (flax linen, used by ``init`` and ``apply`` only) and the policies they describe.

`make` gives a policy and a value, `make_q` the values of discrete actions, `make_recurrent` a
policy and a value with a memory, `make_actor_critics` a policy of continuous actions and two values
of an action. A network from outside the package is a flax module with one
required field ``policy_size`` whose call maps a batch of observations ``[N, *observation_shape]``
to ``(policy [N, policy_size], value [N])``: ``--network=my_package.my_module:MyNetwork``.
`make_q` reads its ``policy`` as values of actions (as advantages where it is dueling). What a
caller does not use of the two costs nothing: XLA removes it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import zeros_init

from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import normalize, products, torsos
from jaxrl_scale.learning.initializers import orthogonal
from jaxrl_scale.learning.torsos import Features, Torso
from jaxrl_scale.options import Sizes
from jaxrl_scale.types import Array, Box, Discrete, EnvSpec, Key, PyTree, Rollout
from jaxrl_scale.user_code import describe, errors_in_one_line, load_by_name, show_arrays


class Policy(NamedTuple):
    """What an action distribution can do, as functions of the network's ``policy`` output."""

    size: int
    free: int
    """How many of the ``size`` do not depend on the observation: a Gaussian's deviations"""
    sample: Callable[[Key, Array], Array]
    """``(key, policy [..., size]) -> action [..., *action.shape]``"""
    mode: Callable[[Array], Array]
    """``(policy) -> action``, the likeliest"""
    log_prob: Callable[[Array, Array], Array]
    """``(policy, action) -> [...]``"""
    entropy: Callable[[Array], Array]
    """``(policy) -> [...]``"""

    def choose(self, key: Key, policy: Array, greedy: bool) -> Array:
        """A sample, or the likeliest action; ``greedy`` is a Python bool."""
        return self.mode(policy) if greedy else self.sample(key, policy)


class Network(NamedTuple):
    """A flax module as two pure functions, and how its ``policy`` output is read."""

    init: Callable[[Key], PyTree]
    apply: Callable[[PyTree, Array], tuple[Array, Array]]
    """``(params, obs [..., *observation_shape]) -> (policy [..., size], value [...])``"""
    policy: Policy


class Weights(NamedTuple):
    """What a policy acts with: parameters, and the statistics that normalize its observations."""

    params: PyTree
    observation: normalize.Statistics | None


def begin(
    network: Network | QNetwork | RecurrentNetwork | ActorCritics,
    spec: EnvSpec,
    key: Key,
    normalized: bool,
    given: Weights | None,
) -> Weights:
    """What a policy begins with: the weights ``given``, or random parameters, and statistics of
    nothing where observations are ``normalized``."""
    if given is not None:
        return given
    return Weights(network.init(key), normalize.init(normalized, spec.observation_shape))


class QNetwork(NamedTuple):
    """The values of discrete actions."""

    init: Callable[[Key], PyTree]
    apply: Callable[[PyTree, Array], Array]
    """``(params, obs [..., *observation_shape]) -> q [..., num_actions]``"""


class ActorCritics(NamedTuple):
    """A policy of continuous actions and two values of an action. Both take an action for ``n``
    numbers between -1 and 1."""

    size: int
    """``n``"""
    to_box: Callable[[Array], Array]
    """``(x [..., n]) -> action [..., *action.shape]``, in the environment's bounds"""
    from_box: Callable[[Array], Array]
    """The inverse of `to_box`"""
    init: Callable[[Key], PyTree]
    """``(key) -> {"policy": ..., "values": ...}``"""
    policy: Callable[[PyTree, Array], Array]
    """``(params["policy"], obs [..., *observation_shape]) -> policy [..., 2 n]``: means and log
    standard deviations"""
    values: Callable[[PyTree, Array, Array], Array]
    """``(params["values"], obs [..., *observation_shape], action [..., n]) -> q [..., 2]``"""


class RecurrentNetwork(NamedTuple):
    """A policy and a value with a memory, which is emptied where an episode begins."""

    init: Callable[[Key], PyTree]
    init_carry: Callable[[int], PyTree]
    """``(B) -> carry [B, ...]``, an empty memory"""
    apply: Callable[[PyTree, PyTree, Array, Array], tuple[PyTree, tuple[Array, Array]]]
    """``(params, carry [B, ...], obs [T, B, *observation_shape], is_first [T, B]) ->
    (carry [B, ...], (policy [T, B, size], value [T, B]))``; ``carry`` is that before ``obs[0]``"""
    policy: Policy


def make(config: Sizes, spec: EnvSpec) -> Network:
    """The config's network for an environment; `RunError` where the two do not fit."""
    policy = distribution(spec.action)
    module = _policy_and_value(config, spec, policy)
    _check(config, spec, module, policy.size)
    return Network(*_functions(config, module, spec), policy)


def make_policy(config: Sizes, spec: EnvSpec, recurrent: bool) -> RecurrentNetwork:
    """The config's network; one without a memory is called like one that has ``()`` for it."""
    if recurrent:
        return make_recurrent(config, spec)
    network = make(config, spec)
    return RecurrentNetwork(
        init=network.init,
        init_carry=lambda num_envs: (),
        apply=lambda params, carry, obs, is_first: (carry, network.apply(params, obs)),
        policy=network.policy,
    )


def make_q(
    config: Sizes, spec: EnvSpec, dueling: bool = False, layer_norm: bool = False
) -> QNetwork:
    """The config's network as values of actions; `RunError` where actions are not discrete.

    Args:
      dueling: value and advantages from two streams, https://arxiv.org/abs/1511.06581,
        equation 9.
      layer_norm: normalize the features of every layer before its activation; not for networks
        from outside.
    """
    if isinstance(spec.action, Box):
        raise RunError(
            f"algo {config.algo.name} needs discrete actions, but those of {spec.id} are "
            "continuous, which ppo, a2c, impala and sac take; try --algo=sac"
        )
    num_actions = spec.action.n
    if ":" not in config.network:
        layers = torsos.design(config, spec, layer_norm)
        if dueling and not layers.hidden_sizes:
            raise RunError(
                "hidden_sizes=() has no layer for the two streams of a dueling network; try "
                "hidden_sizes=64 or algo.dueling=false"
            )
        module: nn.Module = ActionValues(num_actions, layers.hidden_sizes, layers.features, dueling)
        return QNetwork(*_functions(config, module, spec))
    module = _policy_and_value(config, spec, distribution(spec.action))
    _check(config, spec, module, num_actions)
    init, apply_both = _functions(config, module, spec)

    def apply(params: PyTree, obs: Array) -> Array:
        advantage, value = apply_both(params, obs)
        return _duel(value, advantage) if dueling else advantage

    return QNetwork(init, apply)


def make_actor_critics(config: Sizes, spec: EnvSpec) -> ActorCritics:
    """The config's network as a policy and two values, each with a torso of its own; `RunError`
    where actions are not continuous and bounded."""
    name, action = config.algo.name, spec.action
    if isinstance(action, Discrete):
        raise RunError(
            f"algo {name} needs continuous actions, but those of {spec.id} are discrete, which all "
            "other algorithms take; try --algo=ppo"
        )
    if not (math.isfinite(action.low) and math.isfinite(action.high)):
        raise RunError(
            f"algo {name} needs actions between bounds, but those of {spec.id} are between "
            f"{action.low:g} and {action.high:g}; try --algo=ppo"
        )
    if ":" in config.network:
        raise RunError(
            f"network {config.network} sees observations alone, but the values of algo {name} are "
            "those of an action, too; try --network=auto"
        )
    sizes, features, _ = torsos.design(config, spec)
    size = math.prod(action.shape)
    policy, values = GaussianPolicy(2 * size, sizes, features), TwinValues(sizes, features)
    center, half = (action.low + action.high) / 2, (action.high - action.low) / 2

    def init(key: Key) -> PyTree:
        key_policy, key_values = jax.random.split(key)
        obs = jnp.zeros((1, *spec.observation_shape), spec.observation_dtype)
        return {
            "policy": policy.init(key_policy, obs)["params"],
            "values": values.init(key_values, obs, jnp.zeros((1, size)))["params"],
        }

    def to_box(x: Array) -> Array:
        return (center + half * x).reshape(*x.shape[:-1], *action.shape)

    def from_box(x: Array) -> Array:
        flat = x.reshape(*x.shape[: x.ndim - len(action.shape)], size)
        return (flat - center) * (1 / half)

    return ActorCritics(
        size=size,
        to_box=to_box,
        from_box=from_box,
        init=init,
        policy=_exact(config, lambda params, obs: policy.apply({"params": params}, obs)),
        values=_exact(config, lambda params, *seen: values.apply({"params": params}, *seen)),
    )


def make_recurrent(config: Sizes, spec: EnvSpec) -> RecurrentNetwork:
    """The config's network with a GRU in place of its last hidden layer, of the same size."""
    if ":" in config.network:
        raise RunError(
            f"network {config.network} has no memory; try --network=auto with a recurrent policy"
        )
    layers = torsos.design(config, spec)
    if not layers.hidden_sizes:
        raise RunError(
            "hidden_sizes=() has no layer that algo.recurrent could make a memory; "
            "try hidden_sizes=64,64"
        )
    policy = distribution(spec.action)
    module = RecurrentActorCritic(policy.size, layers.hidden_sizes, layers.features, policy.free)

    def init_carry(num_envs: int) -> PyTree:
        return jnp.zeros((num_envs, layers.hidden_sizes[-1]))

    def init(key: Key) -> PyTree:
        obs = jnp.zeros((1, 1, *spec.observation_shape), spec.observation_dtype)
        return module.init(key, init_carry(1), obs, jnp.ones((1, 1), bool))["params"]

    def apply(params: PyTree, carry: PyTree, obs: Array, is_first: Array) -> Any:
        return module.apply({"params": params}, carry, obs, is_first)

    return RecurrentNetwork(init, init_carry, _exact(config, apply), policy)


_LARGE = 4096
"""An observation of so many numbers is large: what a network makes of a whole rollout of them would
take gigabytes."""


def evaluate(
    network: Network | QNetwork | RecurrentNetwork, weights: Weights, rollout: Rollout
) -> PyTree:
    """What a network makes of one shard's rollout, ``[T + 1, B, ...]``, for which no gradient is
    taken: all at once, or where observations are large one time step after the other, so that
    what its layers compute need not be in memory for all of them."""

    def results(carry: PyTree, obs: Array, is_first: Array) -> tuple[PyTree, PyTree]:
        obs = normalize.apply(weights.observation, obs)
        if isinstance(network, RecurrentNetwork):
            return network.apply(weights.params, carry, obs, is_first)
        return carry, network.apply(weights.params, obs)

    def one_step(carry: PyTree, now: tuple[Array, Array]) -> tuple[PyTree, PyTree]:
        carry, out = results(carry, *(x[None] for x in now))
        return carry, jax.tree.map(lambda x: x[0], out)

    if math.prod(rollout.obs.shape[2:]) < _LARGE:
        return results(rollout.carry, rollout.obs, rollout.is_first)[1]
    return jax.lax.scan(one_step, rollout.carry, (rollout.obs, rollout.is_first))[1]


def values(
    network: Network | RecurrentNetwork, weights: Weights, rollout: Rollout, acted: Array
) -> Array:
    """The values of one shard's rollout, ``[T + 1, B]``: those ``[T, B]`` that the network gave
    when it ``acted``, and that of the last observation. With a memory all are computed again,
    since the rollout holds the memory before its first step alone."""
    if jax.tree.leaves(rollout.carry):
        return evaluate(network, weights, rollout)[1]
    last = rollout._replace(obs=rollout.obs[-1:], is_first=rollout.is_first[-1:])
    return jnp.concatenate([acted, evaluate(network, weights, last)[1]])


def _functions(
    config: Sizes, module: nn.Module, spec: EnvSpec
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """``init(key) -> params`` and ``apply(params, obs)``."""

    def init(key: Key) -> PyTree:
        obs = jnp.zeros((1, *spec.observation_shape), spec.observation_dtype)
        return module.init(key, obs)["params"]

    def apply(params: PyTree, obs: Array) -> Any:
        leading = obs.shape[: obs.ndim - len(spec.observation_shape)]
        if ":" not in config.network or len(leading) == 1:
            return module.apply({"params": params}, obs)
        # One from outside sees one axis in front, as its author knows it from every other library.
        rows = obs.reshape(-1, *spec.observation_shape)
        out = module.apply({"params": params}, rows)
        return jax.tree.map(lambda x: x.reshape(*leading, *x.shape[1:]), out)

    return init, _exact(config, apply)


def _exact(config: Sizes, apply: Callable[..., Any]) -> Callable[..., Any]:
    return apply if config.reduction == "fast" else products.exact(apply, config.portable)


def _check(config: Sizes, spec: EnvSpec, module: nn.Module, size: int) -> None:
    """Raise a `RunError` unless a network from outside the package returns what it should."""
    if ":" not in config.network:
        return
    normalized = config.algo.normalize_observations
    dtype = jnp.float32 if normalized else spec.observation_dtype
    init, apply = _functions(config, module, spec)
    meaning = ", the means and then the logarithms of the standard deviations of the actions"
    several = next(n for n in itertools.count(3) if n not in (size, *spec.observation_shape))
    for batch in (several, 1):
        obs = jax.ShapeDtypeStruct((batch, *spec.observation_shape), dtype)
        should = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((batch, size), (batch,))]
        what = f"network {config.network!r}, called with observations {show_arrays(obs)}"
        what += ", as they are normalized" * (normalized and dtype != spec.observation_dtype)
        with errors_in_one_line(what):
            params = jax.eval_shape(init, jax.random.key(0))
            out = jax.eval_shape(apply, params, obs)
        if show_arrays(out) != show_arrays(tuple(should)):
            raise RunError(
                f"{what}, returned {show_arrays(out)}; it should return (policy, value), "
                f"{show_arrays(tuple(should))}" + meaning * isinstance(spec.action, Box)
            )
    for path, x in jax.tree_util.tree_flatten_with_path(params)[0]:
        if x.dtype != jnp.float32:
            raise RunError(
                f"network {config.network!r} has the parameter {jax.tree_util.keystr(path)} of "
                f"{x.dtype}; parameters should be float32 (flax: dtype=, not param_dtype=)"
            )


# --- modules --------------------------------------------------------------------------------


def _policy_and_value(config: Sizes, spec: EnvSpec, policy: Policy) -> nn.Module:
    if ":" not in config.network:
        layers = torsos.design(config, spec)
        return ActorCritic(policy.size, *layers, free=policy.free)
    wanted = "a flax.linen.Module class"
    build = load_by_name("network", config.network, _is_module, wanted)
    try:
        return build(policy_size=policy.size)
    except Exception as error:
        raise RunError(
            f"network {config.network!r} cannot be made with policy_size={policy.size}"
            f"{describe(error)}; it should have one required field, policy_size: int"
        ) from error


def _is_module(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, nn.Module)


def _dense(size: int, gain: float, name: str) -> nn.Dense:
    return nn.Dense(size, kernel_init=orthogonal(gain), name=name)


def _policy_head(module: ActorCritic | RecurrentActorCritic, x: Array) -> Array:
    dependent = _dense(module.policy_size - module.free, 0.01, "policy")(x)
    if not module.free:
        return dependent
    log_std = module.param("log_std", zeros_init(), (module.free,))
    free = jnp.broadcast_to(log_std, (*dependent.shape[:-1], module.free))
    return jnp.concatenate([dependent, free], -1)


class ActorCritic(nn.Module):
    """Policy and value on one torso or on two; orthogonal initialisation with the gains of
    "The 37 implementation details of PPO" (√2 hidden, 0.01 policy, 1 value)."""

    policy_size: int
    hidden_sizes: tuple[int, ...]
    features: Features
    shared: bool = False
    free: int = 0

    @nn.compact
    def __call__(self, obs: Array) -> tuple[Array, Array]:
        torso = (self.hidden_sizes, self.features)
        actor = Torso(*torso, name="torso" if self.shared else "actor")(obs)
        critic = actor if self.shared else Torso(*torso, name="critic")(obs)
        value = _dense(1, 1.0, "value")(critic)[..., 0]
        return _policy_head(self, actor), value


class RecurrentActorCritic(nn.Module):
    """Policy and value on one torso, whose last layer is a GRU (https://arxiv.org/abs/1406.1078).

    Called with the memory ``[B, n]`` before the first of the observations ``[T, B, ...]``.
    """

    policy_size: int
    hidden_sizes: tuple[int, ...]
    features: Features
    free: int = 0

    @nn.compact
    def __call__(
        self, carry: Array, obs: Array, is_first: Array
    ) -> tuple[Array, tuple[Array, Array]]:
        x = Torso(self.hidden_sizes[:-1], self.features, name="torso")(obs)
        cell = nn.GRUCell(self.hidden_sizes[-1], recurrent_kernel_init=orthogonal(), name="memory")

        def step(cell: nn.GRUCell, carry: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            features, is_first = now
            return cell(jnp.where(is_first[..., None], 0.0, carry), features)

        unroll = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        carry, remembered = unroll(cell, carry, (x, is_first))
        value = _dense(1, 1.0, "value")(remembered)[..., 0]
        return carry, (_policy_head(self, remembered), value)


class ActionValues(nn.Module):
    """The value of each action; where it is dueling, the last layer is there twice, for the
    value and for the advantages."""

    num_actions: int
    hidden_sizes: tuple[int, ...]
    features: Features
    dueling: bool = False

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        if not self.dueling:
            x = Torso(self.hidden_sizes, self.features, name="torso")(obs)
            return _dense(self.num_actions, 1.0, "action_values")(x)
        *common, last = self.hidden_sizes
        x = Torso(tuple(common), self.features, name="torso")(obs)
        stream = (last,), self.features._replace(kind="mlp", observation_rank=1)
        value = _dense(1, 1.0, "value")(Torso(*stream, name="value_stream")(x))
        advantage = _dense(self.num_actions, 1.0, "advantage")(
            Torso(*stream, name="advantage_stream")(x)
        )
        return _duel(value[..., 0], advantage)


class GaussianPolicy(nn.Module):
    """Means and log standard deviations of actions, all of which depend on the observation."""

    policy_size: int
    hidden_sizes: tuple[int, ...]
    features: Features

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        x = Torso(self.hidden_sizes, self.features, name="torso")(obs)
        return _dense(self.policy_size, 0.01, "policy")(x)


class TwinValues(nn.Module):
    """Two values of an action, of networks that share nothing. The action joins the observation, or
    what convolutions make of it, before the hidden layers."""

    hidden_sizes: tuple[int, ...]
    features: Features

    @nn.compact
    def __call__(self, obs: Array, action: Array) -> Array:
        hidden = self.hidden_sizes, self.features._replace(kind="mlp", observation_rank=1)

        def value(k: int) -> Array:
            x = Torso((), self.features, name=f"seen_{k}")(obs)
            x = Torso(*hidden, name=f"torso_{k}")(jnp.concatenate([x, action], -1))
            return _dense(1, 1.0, f"value_{k}")(x)

        return jnp.concatenate([value(0), value(1)], -1)


def _duel(value: Array, advantage: Array) -> Array:
    return value[..., None] + advantage - advantage.mean(-1, keepdims=True)


# --- policies -------------------------------------------------------------------------------


def distribution(action: Discrete | Box) -> Policy:
    """That of an environment's actions."""
    return gaussian(action) if isinstance(action, Box) else categorical(action)


def categorical(action: Discrete) -> Policy:
    """Actions ``0 … n - 1`` with the network's output as logits."""

    def sample(key: Key, logits: Array) -> Array:
        # By the inverse of the cumulative distribution: one random number an action where
        # the Gumbel trick takes n and as many logarithms.
        cumulative = jnp.cumsum(jax.nn.softmax(logits), -1)
        u = jax.random.uniform(key, logits.shape[:-1])[..., None] * cumulative[..., -1:]
        return jnp.minimum((u >= cumulative).sum(-1, dtype=jnp.int32), action.n - 1)

    def log_probs(logits: Array) -> Array:
        # A network may mask an action with a logit of -inf; 0 * -inf would be NaN below.
        return jnp.maximum(jax.nn.log_softmax(logits), jnp.finfo(logits.dtype).min)

    def log_prob(logits: Array, a: Array) -> Array:
        # A product with one-hot rows instead of a gather: faster, and so is its gradient.
        chosen = jax.nn.one_hot(a, action.n, dtype=logits.dtype)
        return (log_probs(logits) * chosen).sum(-1)

    def entropy(logits: Array) -> Array:
        log_p = log_probs(logits)
        return -(jnp.exp(log_p) * log_p).sum(-1)

    return Policy(action.n, 0, sample, lambda logits: logits.argmax(-1), log_prob, entropy)


def gaussian(action: Box) -> Policy:
    """A diagonal Gaussian: the network's output is mean and log standard deviation.

    Samples are not bounded; `jaxrl_scale.loop.rollout` clips what the environment sees to the
    box, the likelihood is that of the unclipped action (as CleanRL and SB3 do).
    """
    size = math.prod(action.shape)

    def split(policy: Array) -> tuple[Array, Array]:
        return policy[..., :size], policy[..., size:]

    def shaped(x: Array) -> Array:
        return x.reshape(*x.shape[:-1], *action.shape)

    def sample(key: Key, policy: Array) -> Array:
        mean, log_std = split(policy)
        return shaped(mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape))

    def log_prob(policy: Array, a: Array) -> Array:
        mean, log_std = split(policy)
        z = (a.reshape(mean.shape) - mean) * jnp.exp(-log_std)
        return (-0.5 * jnp.square(z) - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(policy: Array) -> Array:
        return (split(policy)[1] + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    return Policy(2 * size, size, sample, lambda p: shaped(split(p)[0]), log_prob, entropy)


LOG_STD = -20.0, 2.0
"""Bounds of the log standard deviation of a squashed Gaussian, as published."""


def squashed(policy: Array, noise: Array) -> tuple[Array, Array]:
    """Actions of a squashed Gaussian, the hyperbolic tangent of Gaussian numbers, and the logarithm
    of their density between -1 and 1 (https://arxiv.org/abs/1812.05905, appendix C).

    Args:
      policy: means and log standard deviations, ``[..., 2 n]``.
      noise: standard normal, ``[..., n]``.

    Returns:
      ``[..., n]`` and ``[...]``.
    """
    mean, log_std = jnp.split(policy, 2, axis=-1)
    log_std = jnp.clip(log_std, *LOG_STD)
    gaussian = mean + jnp.exp(log_std) * noise
    log_density = -0.5 * jnp.square(noise) - log_std - 0.5 * math.log(2 * math.pi)
    return jnp.tanh(gaussian), (log_density - log_slope(gaussian)).sum(-1)


@jax.custom_jvp
def log_slope(x: Array) -> Array:
    """``log(1 - tanh(x)²)``, which far from 0 would be the logarithm of a rounding error.

    Its derivative is -2 tanh(x). By itself JAX would take the formula's, which costs more; and XLA
    would vectorize its kernel, or not, by where the program has left its inputs in memory, so that
    SAC on Pendulum had other bits on two devices than on one (jaxlib 0.11.2).
    """
    return 2 * (math.log(2) - x - jax.nn.softplus(-2 * x))


@log_slope.defjvp
def _log_slope_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return log_slope(*primals), -2 * jnp.tanh(primals[0]) * tangents[0]
