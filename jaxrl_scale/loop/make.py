"""The runner for an environment, and whether a config can have one."""

from __future__ import annotations

from jaxrl_scale import envs
from jaxrl_scale.config import Config
from jaxrl_scale.loop import origin
from jaxrl_scale.loop.evaluator import environments
from jaxrl_scale.loop.host_runner import HostRunner
from jaxrl_scale.loop.programs import with_programs
from jaxrl_scale.loop.runner import Runner
from jaxrl_scale.loop.state import Agents
from jaxrl_scale.parallel import backend
from jaxrl_scale.parallel.placement import Placement
from jaxrl_scale.types import Environment, EnvSpec, HostEnvironment


def make_runner(
    config: Config,
    env: Environment | HostEnvironment,
    placement: Placement,
    agents: Agents | None = None,
) -> Runner | HostRunner:
    """For an environment whose steps are computed on the devices, or on the host.

    Args:
      agents: default: those of the config, which differ by their seeds.
    """
    placement = with_programs(config, placement)
    if envs.on_host(env):
        return HostRunner(config, env, placement, agents)
    return Runner(config, env, placement, agents)  # type: ignore[arg-type]


def check_fit(config: Config) -> EnvSpec:
    """The spec of a config's environment. Raises a `RunError` as its run would, where there is no
    such environment, no such test environment, or the algorithm or the network does not fit.

    Only shapes are worked out: nothing is compiled, and no device is used.
    """
    with backend.settings_of(config):
        env = config.make_env()
        environments(config, env)
        origin.weights(config, env.spec)
        spec: EnvSpec = env.spec
        return spec
