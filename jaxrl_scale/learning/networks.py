"""The config's network for an environment, as pure functions: flax modules of which only ``init``
and ``apply`` are used.

`make` gives a policy and a value, `make_recurrent` the same with a memory, `make_policy` either of
them under one face. `make_q`, `make_recurrent_q` and `make_q_policy` are their counterparts for the
values of discrete actions of one part; `make_actor_critics` gives a policy of continuous actions
and two values of an action. A network from outside the package is a flax module with one required
field ``policy_size`` whose call maps a batch of observations ``[N, *observation_shape]`` to
``(policy [N, policy_size], value [N])``:
``--network=my_package.my_module:MyNetwork``. A field with the name of an option of networks, such
as ``hidden_sizes``, gets its value where it is set. Where values of actions are wanted, its
``policy`` is taken for them (for advantages where it is dueling). What a caller does not use of the
two costs nothing: XLA removes it.

One with a memory has a method ``init_carry(N) -> carry [N, ...]``, an empty memory, and its call
maps ``(carry, obs [N, *observation_shape])`` to ``(carry, (policy [N, policy_size], value [N]))``,
one step of time. It is called step by step, and its memory is emptied where an episode begins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_scale.errors import RunError, how_many
from jaxrl_scale.learning import action_mask, distributions, normalize, products, torsos
from jaxrl_scale.learning.distributions import Distribution
from jaxrl_scale.learning.masks import trailing
from jaxrl_scale.learning.modules import (
    ActionValues,
    ActorCritic,
    GaussianPolicy,
    RecurrentActionValues,
    RecurrentActorCritic,
    TwinValues,
    duel,
)
from jaxrl_scale.learning.wall import walled
from jaxrl_scale.options import Sizes
from jaxrl_scale.types import Array, Box, Discrete, EnvSpec, Key, MultiDiscrete, PyTree, Rollout
from jaxrl_scale.user_code import describe, errors_in_one_line, is_own, show_arrays


class Network(NamedTuple):
    """A flax module as two pure functions, and how its ``policy`` output is read."""

    init: Callable[[Key], PyTree]
    apply: Callable[[PyTree, Array], tuple[Array, Array]]
    """``(params, obs [..., *observation_shape]) -> (policy [..., size], value [...])``"""
    policy: Distribution


class Weights(NamedTuple):
    """What a policy acts with: parameters, and the statistics that normalize its observations."""

    params: PyTree
    observation: normalize.Statistics | None


def begin(
    network: AnyNetwork,
    spec: EnvSpec,
    key: Key,
    normalized: bool,
    given: Weights | None,
) -> Weights:
    """What a policy begins with: the weights ``given``, or random parameters, and statistics of
    nothing where observations are ``normalized``."""
    if given is not None:
        return given
    shape = action_mask.without(spec).observation_shape
    return Weights(network.init(key), normalize.init(normalized, shape))


class QNetwork(NamedTuple):
    """The values of discrete actions of one part."""

    init: Callable[[Key], PyTree]
    apply: Callable[[PyTree, Array], Array]
    """``(params, obs [..., *observation_shape]) -> q [..., num_actions]``"""
    masked: bool = False
    """Whether actions that an environment does not allow have the value -inf"""


class ActorCritics(NamedTuple):
    """A policy of continuous actions and two values of an action. Both take an action for ``n``
    numbers between -1 and 1."""

    size: int
    """``n``"""
    shaped: Callable[[Array], Array]
    """``(x [..., n]) -> [..., *action.shape]``"""
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
    policy: Distribution


class RecurrentQNetwork(NamedTuple):
    """The values of discrete actions of one part, with a memory as `RecurrentNetwork` has it."""

    init: Callable[[Key], PyTree]
    init_carry: Callable[[int], PyTree]
    apply: Callable[[PyTree, PyTree, Array, Array], tuple[PyTree, Array]]
    """``(params, carry [B, ...], obs [T, B, *observation_shape], is_first [T, B]) ->
    (carry [B, ...], q [T, B, num_actions])``"""
    masked: bool = False
    """As that of `QNetwork`"""


AnyNetwork = Network | QNetwork | RecurrentNetwork | RecurrentQNetwork | ActorCritics


def make(config: Sizes, spec: EnvSpec) -> Network:
    """The config's network for an environment; `RunError` where the two do not fit."""
    policy, seen = distributions.of(spec.action, spec.action_mask), action_mask.without(spec)
    module = _policy_and_value(config, seen, policy)
    init, apply_to_seen = _functions(config, module, seen)
    if is_own(config.network):
        _check(config, seen, policy.size, init, apply_to_seen)

    def apply(params: PyTree, obs: Array) -> tuple[Array, Array]:
        obs, mask = action_mask.split(spec, obs)
        logits, value = apply_to_seen(params, obs)
        return action_mask.forbid(spec, mask, logits), value

    return Network(init, apply, policy)


def make_policy(config: Sizes, spec: EnvSpec, recurrent: bool) -> RecurrentNetwork:
    """The config's network, with a memory or called as if it had one."""
    return make_recurrent(config, spec) if recurrent else without_memory(make(config, spec))


def without_memory(network: Network) -> RecurrentNetwork:
    """A network that is called like one with a memory, and has ``()`` for it."""
    return RecurrentNetwork(
        init=network.init,
        init_carry=lambda num_envs: (),
        apply=lambda params, carry, obs, is_first: (carry, network.apply(params, obs)),
        policy=network.policy,
    )


def make_q(
    config: Sizes, spec: EnvSpec, dueling: bool = False, layer_norm: bool = False
) -> QNetwork:
    """The config's network as values of actions; `RunError` where actions are not `Discrete`.

    Args:
      dueling: value and advantages from two streams, https://arxiv.org/abs/1511.06581,
        equation 9.
      layer_norm: normalize the features of every layer before its activation; not for networks
        from outside.
    """
    num_actions, seen = _num_actions(config, spec), action_mask.without(spec)
    if not is_own(config.network):
        layers = torsos.design(config, seen, layer_norm)
        if dueling and not layers.hidden_sizes:
            raise RunError(
                "hidden_sizes=() has no layer for the two streams of a dueling network; try "
                "hidden_sizes=64 or algo.dueling=false"
            )
        module: nn.Module = ActionValues(num_actions, layers.hidden_sizes, layers.features, dueling)
        init, apply_to_seen = _functions(config, module, seen)
    else:
        module = _policy_and_value(config, seen, distributions.of(spec.action))
        init, apply_both = _functions(config, module, seen)
        _check(config, seen, num_actions, init, apply_both)

        def apply_to_seen(params: PyTree, obs: Array) -> Array:
            advantage, value = apply_both(params, obs)
            return duel(value, advantage) if dueling else advantage

    def apply(params: PyTree, obs: Array) -> Array:
        obs, mask = action_mask.split(spec, obs)
        return action_mask.forbid(spec, mask, apply_to_seen(params, obs))

    return QNetwork(init, apply, spec.action_mask)


def _num_actions(config: Sizes, spec: EnvSpec) -> int:
    """How many actions there are; `RunError` where they are not `Discrete`."""
    if isinstance(spec.action, Box):
        raise RunError(
            f"algo {config.algo.name} needs discrete actions, but those of {spec.id} are "
            "continuous, which ppo, a2c, impala and sac take; try --algo=sac"
        )
    if isinstance(spec.action, MultiDiscrete):
        raise RunError(
            f"algo {config.algo.name} needs discrete actions of one part, but those of {spec.id} "
            f"have {how_many(len(spec.action.sizes), 'part')}, which ppo, a2c and impala take; "
            "try --algo=ppo"
        )
    return spec.action.n


def make_actor_critics(config: Sizes, spec: EnvSpec) -> ActorCritics:
    """The config's network as a policy and two values, each with a torso of its own; `RunError`
    where actions are not continuous and bounded."""
    name, action = config.algo.name, spec.action
    if not isinstance(action, Box):
        takers = "all other algorithms" if isinstance(action, Discrete) else "ppo, a2c and impala"
        raise RunError(
            f"algo {name} needs continuous actions, but those of {spec.id} are discrete, which "
            f"{takers} take; try --algo=ppo"
        )
    if not (math.isfinite(action.low) and math.isfinite(action.high)):
        raise RunError(
            f"algo {name} needs actions between bounds, but those of {spec.id} are between "
            f"{action.low:g} and {action.high:g}; try --algo=ppo"
        )
    if is_own(config.network):
        raise RunError(
            f"network {config.network} sees observations alone, but the values of algo {name} are "
            "those of an action, too; try --network=auto"
        )
    sizes, features, _ = torsos.design(config, spec)
    size = math.prod(action.shape)
    policy = GaussianPolicy(2 * size, sizes, features)
    values = TwinValues(sizes, features)
    center, half = (action.low + action.high) / 2, (action.high - action.low) / 2

    def init(key: Key) -> PyTree:
        key_policy, key_values = jax.random.split(key)
        obs = jnp.zeros((1, *spec.observation_shape), spec.observation_dtype)
        return {
            "policy": policy.init(key_policy, obs)["params"],
            "values": values.init(key_values, obs, jnp.zeros((1, size)))["params"],
        }

    def shaped(x: Array) -> Array:
        return x.reshape(*x.shape[:-1], *action.shape)

    def to_box(x: Array) -> Array:
        return shaped(center + half * x)

    def from_box(x: Array) -> Array:
        flat = x.reshape(*x.shape[: x.ndim - len(action.shape)], size)
        return (flat - center) * (1 / half)

    return ActorCritics(
        size=size,
        shaped=shaped,
        to_box=to_box,
        from_box=from_box,
        init=init,
        policy=_exact(config, lambda params, obs: policy.apply({"params": params}, obs)),
        values=_exact(config, lambda params, *seen: values.apply({"params": params}, *seen)),
    )


def make_recurrent(config: Sizes, spec: EnvSpec) -> RecurrentNetwork:
    """The config's network with a GRU in place of its last hidden layer, of the same size, or one
    from outside that has a memory."""
    if is_own(config.network):
        return _own_recurrent(config, spec)
    policy, seen = distributions.of(spec.action, spec.action_mask), action_mask.without(spec)
    layers = _layers_with_memory(config, seen)
    module = RecurrentActorCritic(policy.size, layers.hidden_sizes, layers.features, policy.free)
    init, init_carry, apply = _recurrent_functions(config, module, layers, seen)
    return RecurrentNetwork(init, init_carry, _masked(spec, apply), policy)


def make_recurrent_q(config: Sizes, spec: EnvSpec, layer_norm: bool = False) -> RecurrentQNetwork:
    """As `make_recurrent`, the values of actions; ``layer_norm`` is as in `make_q`, and not for the
    GRU."""
    num_actions, seen = _num_actions(config, spec), action_mask.without(spec)
    if is_own(config.network):
        both = make_recurrent(config, spec)

        def values_alone(params: PyTree, *seen: Any) -> tuple[PyTree, Array]:
            carry, (q, _) = both.apply(params, *seen)
            return carry, q

        return RecurrentQNetwork(both.init, both.init_carry, values_alone, spec.action_mask)
    layers = _layers_with_memory(config, seen, layer_norm)
    module = RecurrentActionValues(num_actions, layers.hidden_sizes, layers.features)
    init, init_carry, apply_to_seen = _recurrent_functions(config, module, layers, seen)

    def apply(params: PyTree, carry: PyTree, obs: Array, is_first: Array) -> tuple[PyTree, Array]:
        obs, mask = action_mask.split(spec, obs)
        carry, q = apply_to_seen(params, carry, obs, is_first)
        return carry, action_mask.forbid(spec, mask, q)

    return RecurrentQNetwork(init, init_carry, apply, spec.action_mask)


def make_q_policy(
    config: Sizes, spec: EnvSpec, recurrent: bool, layer_norm: bool = False
) -> RecurrentQNetwork:
    """The config's network as values of actions, with a memory or called as if it had one."""
    if recurrent:
        return make_recurrent_q(config, spec, layer_norm)
    return q_without_memory(make_q(config, spec, layer_norm=layer_norm))


def q_without_memory(network: QNetwork) -> RecurrentQNetwork:
    """As `without_memory`, values of actions."""
    return RecurrentQNetwork(
        init=network.init,
        init_carry=lambda num_envs: (),
        apply=lambda params, carry, obs, is_first: (carry, network.apply(params, obs)),
        masked=network.masked,
    )


def _layers_with_memory(config: Sizes, spec: EnvSpec, layer_norm: bool = False) -> torsos.Design:
    """The layers of which the last is to have a memory."""
    layers = torsos.design(config, spec, layer_norm)
    if not layers.hidden_sizes:
        raise RunError(
            "hidden_sizes=() has no layer that algo.recurrent could make a memory; "
            "try hidden_sizes=64,64"
        )
    return layers


def _recurrent_functions(
    config: Sizes, module: nn.Module, layers: torsos.Design, spec: EnvSpec
) -> tuple[Callable[[Key], PyTree], Callable[[int], PyTree], Callable[..., Any]]:
    """``init``, ``init_carry`` and ``apply`` of a module with a GRU, which sees no action mask."""

    def init_carry(num_envs: int) -> PyTree:
        return jnp.zeros((num_envs, layers.hidden_sizes[-1]))

    def init(key: Key) -> PyTree:
        obs = jnp.zeros((1, 1, *spec.observation_shape), spec.observation_dtype)
        return module.init(key, init_carry(1), obs, jnp.ones((1, 1), bool))["params"]

    def apply(params: PyTree, carry: PyTree, obs: Array, is_first: Array) -> Any:
        return module.apply({"params": params}, carry, obs, is_first)

    return walled(init), init_carry, _exact(config, apply)


def _masked(spec: EnvSpec, apply_to_seen: Callable[..., Any]) -> Callable[..., Any]:
    """`RecurrentNetwork.apply` of what sees no action mask."""

    def apply(params: PyTree, carry: PyTree, obs: Array, is_first: Array) -> Any:
        obs, mask = action_mask.split(spec, obs)
        carry, (logits, value) = apply_to_seen(params, carry, obs, is_first)
        return carry, (action_mask.forbid(spec, mask, logits), value)

    return apply


def _own_recurrent(config: Sizes, spec: EnvSpec) -> RecurrentNetwork:
    """A network from outside with a memory, checked."""
    policy, seen = distributions.of(spec.action, spec.action_mask), action_mask.without(spec)
    module: Any = _policy_and_value(config, seen, policy, recurrent=True)

    def init(key: Key) -> PyTree:
        obs = jnp.zeros((1, *seen.observation_shape), seen.observation_dtype)
        return module.init(key, module.init_carry(1), obs).get("params", {})

    def step(params: PyTree, carry: PyTree, obs: Array) -> Any:
        return module.apply({"params": params}, carry, obs)

    def apply(params: PyTree, carry: PyTree, obs: Array, is_first: Array) -> Any:
        empty = module.init_carry(obs.shape[1])

        def one_step(carry: PyTree, now: tuple[Array, Array]) -> Any:
            obs, first = now
            carry = jax.tree.map(lambda x, y: jnp.where(trailing(first, x), y, x), carry, empty)
            return step(params, carry, obs)

        return jax.lax.scan(one_step, carry, (obs, is_first))

    _check(config, seen, policy.size, init, step, module.init_carry)
    apply_masked = _masked(spec, _exact(config, apply))
    return RecurrentNetwork(walled(init), module.init_carry, apply_masked, policy)


_LARGE = 4096
"""An observation of so many numbers is large: what a network makes of a whole rollout of them would
take gigabytes."""


def evaluate(
    network: Network | QNetwork | RecurrentNetwork | RecurrentQNetwork,
    weights: Weights,
    rollout: Rollout,
) -> PyTree:
    """What a network makes of one shard's rollout, ``[T + 1, B, ...]``, for which no gradient is
    taken: all at once, or where observations are large one time step after the other, so that
    what its layers compute need not be in memory for all of them."""

    def results(carry: PyTree, obs: Array, is_first: Array) -> tuple[PyTree, PyTree]:
        obs = normalize.apply(weights.observation, obs)
        if isinstance(network, RecurrentNetwork | RecurrentQNetwork):
            return network.apply(weights.params, carry, obs, is_first)
        return carry, network.apply(weights.params, obs)

    def one_step(carry: PyTree, now: tuple[Array, Array]) -> tuple[PyTree, PyTree]:
        carry, out = results(carry, *(x[None] for x in now))
        return carry, jax.tree.map(lambda x: x[0], out)

    if math.prod(rollout.obs.shape[2:]) < _LARGE:
        return results(rollout.carry, rollout.obs, rollout.is_first)[1]
    return jax.lax.scan(one_step, rollout.carry, (rollout.obs, rollout.is_first))[1]


def one_step(
    network: RecurrentNetwork | RecurrentQNetwork,
    weights: Any,
    carry: PyTree,
    obs: Array,
    is_first: Array,
) -> tuple[PyTree, Any]:
    """The next memory ``[B, ...]``, and policy ``[B, size]`` and value ``[B]`` or the values of
    actions ``[B, num_actions]``, for a batch of observations ``[B, *observation_shape]``;
    ``weights`` has the fields of `Weights`."""
    obs = normalize.apply(weights.observation, obs)
    carry, out = network.apply(weights.params, carry, obs[None], is_first[None])
    return carry, jax.tree.map(lambda x: x[0], out)


def outputs(
    network: AnyNetwork,
    weights: Any,
    carry: PyTree,
    obs: Array,
    is_first: Array,
) -> dict[str, Array]:
    """What a network says of a batch of observations ``[B, *observation_shape]``, by name.

    Of discrete actions these are ``probabilities [B, n]``, of those of several parts ``[B, parts,
    n]`` where ``n`` is the largest size and smaller parts have zeros behind theirs; of continuous
    ones ``mean`` and ``std``, ``[B, *action.shape]`` each, before they are clipped; and of all the
    observation's ``value [B]``. Of values of actions it is ``q_values [B, n]``, and from
    `make_actor_critics` ``mean`` and ``std`` of the Gaussian numbers of which the hyperbolic
    tangent, scaled to the bounds, is the action.

    Args:
      weights: what has the fields of `Weights`; ``params`` are those that act.
      carry: the memory ``[B, ...]``, ``()`` without one.
    """
    if isinstance(network, RecurrentNetwork):
        _, (policy, value) = one_step(network, weights, carry, obs, is_first)
        return network.policy.parameters(policy) | {"value": value}
    if isinstance(network, RecurrentQNetwork):
        return {"q_values": one_step(network, weights, carry, obs, is_first)[1]}
    obs = normalize.apply(weights.observation, obs)
    if isinstance(network, QNetwork):
        return {"q_values": network.apply(weights.params, obs)}
    if isinstance(network, ActorCritics):
        mean, log_std = distributions.gaussian_of(network.policy(weights.params, obs))
        return {"mean": network.shaped(mean), "std": network.shaped(jnp.exp(log_std))}
    policy, value = network.apply(weights.params, obs)
    return network.policy.parameters(policy) | {"value": value}


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
    """``init(key) -> params`` and ``apply(params, obs)``.

    The initializers of flax are polynomials of random numbers. XLA would fuse them with whatever is
    done with the weights, which depends on how many agents a device holds, and so would the last
    bits of the weights. `initializers.orthogonal` needs no wall against it, as it ends with a loop.
    """

    def init(key: Key) -> PyTree:
        obs = jnp.zeros((1, *spec.observation_shape), spec.observation_dtype)
        return module.init(key, obs).get("params", {})

    def apply(params: PyTree, obs: Array) -> Any:
        leading = obs.shape[: obs.ndim - len(spec.observation_shape)]
        if not is_own(config.network) or len(leading) == 1:
            return module.apply({"params": params}, obs)
        # One from outside sees one axis in front, as its author knows it from every other library.
        rows = obs.reshape(-1, *spec.observation_shape)
        out = module.apply({"params": params}, rows)
        return jax.tree.map(lambda x: x.reshape(*leading, *x.shape[1:]), out)

    return walled(init) if is_own(config.network) else init, _exact(config, apply)


def _exact(config: Sizes, apply: Callable[..., Any]) -> Callable[..., Any]:
    return apply if config.reduction == "fast" else products.exact(apply, config.portable)


def _check(
    config: Sizes,
    spec: EnvSpec,
    size: int,
    init: Callable[[Key], PyTree],
    apply: Callable[..., Any],
    init_carry: Callable[[int], PyTree] | None = None,
) -> None:
    """Raise a `RunError` unless a network from outside the package returns what it should.

    Args:
      size: that of its ``policy``.
      apply: ``(params, obs [N, ...])``, or with a memory ``(params, carry, obs [N, ...])``.
      init_carry: that of one with a memory.
    """
    # An algorithm of one's own may have no such option.
    normalized = getattr(config.algo, "normalize_observations", False)
    dtype = jnp.float32 if normalized else spec.observation_dtype
    meaning = ""
    if isinstance(spec.action, Box):
        meaning = ", the means and then the logarithms of the standard deviations of the actions"
    elif isinstance(spec.action, MultiDiscrete):
        meaning = ", the logits of an action's first part, then those of the next, and so on"
    several = next(n for n in itertools.count(3) if n not in (size, *spec.observation_shape))
    for batch in (several, 1):
        obs = jax.ShapeDtypeStruct((batch, *spec.observation_shape), dtype)
        policy, value = (jax.ShapeDtypeStruct((batch, *n), jnp.float32) for n in ((size,), ()))
        should: Any = (policy, value)
        named, what, given = "(policy, value)", f"network {config.network!r}, called with ", [obs]
        if init_carry is not None:
            carry = _empty_memory(config, init_carry, batch)
            what += f"the memory {show_arrays(carry)} and "
            named, should, given = f"(memory, {named})", (carry, should), [carry, obs]
        what += f"observations {show_arrays(obs)}"
        what += ", as they are normalized" * (normalized and dtype != spec.observation_dtype)
        with errors_in_one_line(what):
            params = jax.eval_shape(init, jax.random.key(0))
            out = jax.eval_shape(apply, params, *given)
        if show_arrays(out) != show_arrays(should):
            raise RunError(
                f"{what}, returned {show_arrays(out)}; it should return {named}, "
                f"{show_arrays(should)}{meaning}"
            )
    leaves = jax.tree_util.tree_flatten_with_path(
        params, is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata)
    )[0]
    if not leaves:
        raise RunError(
            f"network {config.network!r} has no parameters, so that nothing can be learned; it "
            "should have layers, such as flax.linen.Dense"
        )
    for path, x in leaves:
        what = f"network {config.network!r} has the parameter {jax.tree_util.keystr(path)}"
        if isinstance(x, nn.meta.AxisMetadata):
            raise RunError(
                f"{what}, which says how it is partitioned (flax: with_partitioning); a run has "
                "whole networks on its devices, so leave that out"
            )
        if x.dtype != jnp.float32:
            said = "parameters should be float32 (flax: dtype=, not param_dtype=)"
            raise RunError(f"{what} of {x.dtype}; {said}")


def _empty_memory(config: Sizes, init_carry: Callable[[int], PyTree], batch: int) -> PyTree:
    """The shapes and dtypes of a network's empty memory for a batch, if that is what it is."""
    what = f"network {config.network!r}: init_carry({batch})"
    with errors_in_one_line(what):
        carry = jax.eval_shape(lambda: init_carry(batch))
    leaves = jax.tree.leaves(carry)
    if not leaves or any(x.shape[:1] != (batch,) for x in leaves):
        raise RunError(
            f"{what} returned {show_arrays(carry)}; it should return an array, or a tree of "
            f"arrays, whose first axis is {batch}"
        )
    return carry


def _policy_and_value(
    config: Sizes, spec: EnvSpec, policy: Distribution, recurrent: bool = False
) -> nn.Module:
    if not is_own(config.network):
        layers = torsos.design(config, spec)
        return ActorCritic(policy.size, *layers, free=policy.free)
    build, fields = torsos.own_module(config), {"policy_size": policy.size}
    fields |= torsos.own_options(config)
    try:
        module = build(**fields)
    except (Exception, SystemExit) as error:
        given = ", ".join(f"{name}={x!r}" for name, x in fields.items())
        raise RunError(
            f"network {config.network!r} cannot be made with {given}{describe(error)}; it should "
            "have one required field, policy_size: int"
        ) from error
    has_memory = callable(getattr(module, "init_carry", None))
    if has_memory and not recurrent:
        advice = "; give"
        if not hasattr(config.algo, "recurrent"):
            advice = ", which ppo, a2c, impala and pqn take; give --algo=ppo"
        raise RunError(f"network {config.network!r} has a memory{advice} --algo.recurrent=true")
    if recurrent and not has_memory:
        raise RunError(
            f"network {config.network!r} has no memory, which algo.recurrent=true asks for; it "
            "should have a method init_carry(batch_size), or try --network=auto"
        )
    return module
