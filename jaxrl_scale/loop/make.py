"""The runner for an environment."""

from __future__ import annotations

from jaxrl_scale import envs
from jaxrl_scale.config import Config
from jaxrl_scale.loop.host_runner import HostRunner
from jaxrl_scale.loop.runner import Runner
from jaxrl_scale.parallel.placement import Placement
from jaxrl_scale.types import Environment, HostEnvironment


def make_runner(
    config: Config, env: Environment | HostEnvironment, placement: Placement
) -> Runner | HostRunner:
    """For an environment whose steps are computed on the devices, or on the host."""
    if envs.on_host(env):
        return HostRunner(config, env, placement)
    return Runner(config, env, placement)  # type: ignore[arg-type]
