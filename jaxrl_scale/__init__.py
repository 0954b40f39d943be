"""Reinforcement learning in JAX, from the physics to the gradient, on any number of devices.

``from jaxrl_scale import Config, load, train``. Nothing is imported before it is asked for,
so that the commands can set JAX up first.
"""

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_scale.config import Config as Config
    from jaxrl_scale.loop.agent import load as load
    from jaxrl_scale.train import train as train

# XLA's C++ log would be written into progress bars and results. XLA reads this variable when JAX is
# imported, so it is set here, before any module of the package imports JAX.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


class _Package(ModuleType):
    """A package whose ``train`` is the function, not the module that has it. Python sets a
    package's attribute to a module of that name whenever somebody imports the module first."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "train" and isinstance(value, ModuleType):
            value = value.train
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name == "Config":
        from jaxrl_scale.config import Config

        return Config
    if name == "load":
        from jaxrl_scale.loop.agent import load

        return load
    if name == "train":
        from jaxrl_scale.train import train

        return train
    raise AttributeError(f"module 'jaxrl_scale' has no attribute {name!r}")
