"""Reinforcement learning in JAX, from the physics to the gradient, on any number of devices.

``from jaxrl_scale import Config, load, train``. Nothing is imported before it is asked for,
so that the commands can set JAX up first.
"""

import os
from typing import Any

# XLA's C++ log would be written into progress bars and results. XLA reads this variable when JAX is
# imported, so it is set here, before any module of the package imports JAX.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def __getattr__(name: str) -> Any:
    if name == "Config":
        from jaxrl_scale.config import Config

        return Config
    if name == "load":
        from jaxrl_scale.loop.agent import load

        return load
    raise AttributeError(f"module 'jaxrl_scale' has no attribute {name!r}")
