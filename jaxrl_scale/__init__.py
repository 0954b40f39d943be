"""Reinforcement learning in JAX, from the physics to the gradient, on any number of devices.

``from jaxrl_scale import Config, load, train``. A name is imported when it is first used, so that
the commands can set up JAX before it is imported.
"""

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["Config", "load", "train"]

if TYPE_CHECKING:
    from jaxrl_scale.config import Config
    from jaxrl_scale.loop.agent import load
    from jaxrl_scale.train import train

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


_HOMES = {
    "Config": "jaxrl_scale.config",
    "load": "jaxrl_scale.loop.agent",
    "train": "jaxrl_scale.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
