"""From observations to features: dense layers, and the convolutions before them where there are
images ``[height, width, channels]``.

What the names of networks mean is `KINDS`: ``mlp`` and ``cnn`` are small, ``nature`` is DQN's
network (https://www.nature.com/articles/nature14236), ``impala_resnet`` the large one of IMPALA
(https://arxiv.org/abs/1802.01561, figure 3) without its LSTM, and ``impoola`` the same with an
average over the image in place of flattening (https://arxiv.org/abs/2503.05546).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import variance_scaling

from jaxrl_scale.errors import RunError, nearest
from jaxrl_scale.learning.initializers import orthogonal
from jaxrl_scale.options import Sizes
from jaxrl_scale.types import Array, EnvSpec
from jaxrl_scale.user_code import is_own, load_by_name

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": nn.relu,
    "silu": nn.silu,
    "gelu": nn.gelu,
}

_NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, window, stride
_RESNET = (16, 32, 32)  # channels


class Kind(NamedTuple):
    """What a network's name stands for, where the config says nothing else."""

    hidden_sizes: tuple[int, ...]
    activation: str
    always_shared: bool
    """Policy and value have one torso whatever ``shared_torso`` says, because convolutions are
    most of the work."""
    smallest_image: int
    """Pixels along an edge; 0: it takes vectors too"""


KINDS = {
    "mlp": Kind((64, 64), "tanh", False, 0),
    "cnn": Kind((64, 64), "tanh", False, 1),
    "nature": Kind((512,), "relu", True, 36),
    "impala_resnet": Kind((256,), "relu", True, 1),
    "impoola": Kind((256,), "relu", True, 1),
}


class Features(NamedTuple):
    """What all torsos of a network have in common."""

    kind: str
    activation: str
    observation_rank: int
    width: int = 1
    """Channels of the convolutions, as a multiple of the published ones."""
    layer_norm: bool = False


class Design(NamedTuple):
    """A network's layers."""

    hidden_sizes: tuple[int, ...]
    features: Features
    shared: bool


def design(config: Sizes, spec: EnvSpec, layer_norm: bool = False) -> Design:
    """What the config's network is for an environment; `RunError` where the two do not fit."""
    name = config.network
    choices = ("auto", *KINDS)
    if name not in choices:
        raise RunError(
            f"network {name!r} does not exist{nearest(name, choices)}; there are: "
            f"{', '.join(choices)} and my_package.my_module:MyNetwork"
        )
    shape = spec.observation_shape
    name = _automatic(shape) if name == "auto" else name
    kind = KINDS[name]
    if kind.smallest_image and (len(shape) != 3 or min(shape[:2]) < kind.smallest_image):
        of_size = f" of at least {kind.smallest_image} by {kind.smallest_image} pixels"
        raise RunError(
            f"network {name!r} needs images [height, width, channels]"
            f"{of_size if kind.smallest_image > 1 else ''}, but {spec.id} observes "
            f"shape {shape}; try --network={_automatic(shape)}"
        )
    features = Features(
        kind=name,
        activation=config.activation or kind.activation,
        observation_rank=len(shape),
        width=config.network_width,
        layer_norm=layer_norm,
    )
    sizes = kind.hidden_sizes if config.hidden_sizes is None else config.hidden_sizes
    return Design(sizes, features, config.shared_torso or kind.always_shared)


def without_effect(config: Sizes, spec: EnvSpec) -> str | None:
    """What the user is told of options that were set and that this network does not have."""
    if is_own(config.network):
        name, known = config.network, own_options(config)
        unused = [option for option in _set(config) if option not in known]
    else:
        name = design(config, spec).features.kind
        unused = [x for x in _set(config) if x == "network_width" and name in ("mlp", "cnn")]
    have = "has" if len(unused) == 1 else "have"
    return f"{', '.join(unused)} {have} no effect on network {name!r}" if unused else None


def _set(config: Sizes) -> dict[str, Any]:
    """The options of a network that do not have their defaults."""
    unset = {"hidden_sizes": None, "activation": None, "shared_torso": False, "network_width": 1}
    return {name: getattr(config, name) for name, x in unset.items() if getattr(config, name) != x}


def own_module(config: Sizes) -> type[nn.Module]:
    """The class of the config's network, which is from outside the package; a `RunError` where
    there is no such module, or no such class in it."""
    wanted = "a flax.linen.Module class"
    found: type[nn.Module] = load_by_name("network", config.network, _is_module, wanted)
    return found


def _is_module(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, nn.Module)


def own_options(config: Sizes) -> dict[str, Any]:
    """The options of a network that were set, and of which the config's network, from outside the
    package, has a field."""
    fields = {field.name for field in dataclasses.fields(own_module(config))}
    return {name: x for name, x in _set(config).items() if name in fields}


def axes_told(config: Sizes, spec: EnvSpec) -> str | None:
    """What the user is told of images whose channels seem to come first, as in PyTorch."""
    shape, no_image = spec.observation_shape, is_own(config.network) or config.network == "mlp"
    if no_image or len(shape) != 3 or shape[0] > 4 or min(shape[1:]) < 8:
        return None
    rows, columns, channels = shape
    return (
        f"observations {list(shape)} are read as images of {rows} by {columns} pixels with "
        f"{channels} channels; put the channels last if they are the first axis"
    )


def _automatic(shape: tuple[int, ...]) -> str:
    """The network that published scores are made with: Procgen's images of 64 by 64 pixels go with
    IMPALA's network, on which DQN's generalizes worse (https://arxiv.org/abs/1912.01588), Atari's
    of 84 by 84 with DQN's. Smaller ones than DQN's windows fit into are MinAtar's."""
    if len(shape) != 3:
        return "mlp"
    edge = min(shape[:2])
    if edge < KINDS["nature"].smallest_image:
        return "cnn"
    return "impala_resnet" if edge < 84 else "nature"


class Torso(nn.Module):
    """Observations to features: convolutions for images, then dense layers."""

    hidden_sizes: tuple[int, ...]
    features: Features

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        own = self.features

        def act(x: Array) -> Array:
            return _ACTIVATIONS[own.activation](nn.LayerNorm()(x) if own.layer_norm else x)

        x = obs.astype(jnp.float32)
        if obs.dtype == jnp.uint8:
            x = x / 255.0
        if own.kind == "cnn":
            x = act(nn.Conv(16, (3, 3), kernel_init=orthogonal(math.sqrt(2)))(x))
        elif own.kind == "nature":
            x = _nature(x, act, own.width)
        elif own.kind in ("impala_resnet", "impoola"):
            x = _resnet(x, act, own.width)
        if own.kind == "impoola":
            x = x.mean((-3, -2))
        x = x.reshape(*obs.shape[: obs.ndim - own.observation_rank], -1)
        for size in self.hidden_sizes:
            x = act(nn.Dense(size, kernel_init=orthogonal(math.sqrt(2)))(x))
        return x


def _nature(x: Array, act: Callable[[Array], Array], width: int) -> Array:
    for channels, window, stride in _NATURE:
        convolve = nn.Conv(
            channels * width,
            (window, window),
            (stride, stride),
            padding="VALID",
            kernel_init=orthogonal(math.sqrt(2)),
        )
        x = act(convolve(x))
    return x


def _resnet(x: Array, act: Callable[[Array], Array], width: int) -> Array:
    def convolve(channels: int, x: Array) -> Array:
        # As PyTorch begins, and CleanRL with it: with √2 the residual blocks would add up to
        # large features, since nothing normalizes them.
        small = variance_scaling(1 / 3, "fan_in", "uniform")
        return nn.Conv(channels * width, (3, 3), kernel_init=small)(x)

    for channels in _RESNET:
        x = max_pool(convolve(channels, x))
        for _ in range(2):
            x = x + convolve(channels, act(convolve(channels, act(x))))
    return act(x)


def max_pool(x: Array) -> Array:
    """The largest of every 3 by 3 pixels, of which every second is kept along both edges, padded as
    "SAME": ``[..., H, W, C] -> [..., ceil(H / 2), ceil(W / 2), C]``.

    The gradient goes to the first of the largest in the window, as `flax.linen.max_pool`'s does.
    That one's gradient is XLA's select-and-scatter, which takes 5 to 10 times as long on a CPU
    (benchmarks/convolutions.md).
    """
    return _max_of_three(_max_of_three(x, x.ndim - 2), x.ndim - 3)


def _max_of_three(x: Array, axis: int) -> Array:
    size = x.shape[axis]
    out = -(-size // 2)
    low = size % 2
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = (low, 2 * out + 1 - size - low, 0)
    x = jax.lax.pad(x, jnp.full((), -jnp.inf, x.dtype), edges)
    first, second, third = (
        jax.lax.slice_in_dim(x, at, at + 2 * out - 1, stride=2, axis=axis) for at in range(3)
    )
    pair = jnp.where(first >= second, first, second)
    return jnp.where(pair >= third, pair, third)
