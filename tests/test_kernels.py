"""What XLA makes of a shard's computation is the same on one device and on two.

Runs with the same bits show it for their numbers; here the kernels themselves are compared.
"""

from pathlib import Path

import algorithms
import jax
import jax.numpy as jnp
import kernels
import pytest
from running import program_of

from jaxrl_scale.config import files
from jaxrl_scale.learning import distributions
from jaxrl_scale.parallel import placement

CONFIGS = Path(__file__).parents[1] / "configs"
TASKS = ("cartpole", "acrobot", "mountain_car", "pendulum")
NAMES = sorted(path.stem for path in CONFIGS.glob("*.py") if path.stem.endswith(TASKS))


def of(config, devices):
    found = kernels.rounding(program_of(config.replace(devices=devices)), config.num_shards)
    assert sum(found.values()) > 10
    return found


def test_kernels_are_the_same_on_one_device_and_on_two_because_equal_operations_are_merged(
    monkeypatch,
):
    """XLA itself merges those of a program for two devices before it simplifies, and of a program
    for one device later. Seen with a derivative that is used no longer."""

    def log_slope(x):
        return 2 * (jnp.log(2.0) - x - jax.nn.softplus(-2 * x))

    monkeypatch.setattr(distributions, "log_slope", log_slope)
    config = files.read_file(CONFIGS / "sac_pendulum.py")
    two = of(config, 2)
    assert of(config, 1) == two
    monkeypatch.setattr(placement, "merge_equal", lambda lowered: None)
    assert of(config, 1) != two


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.NAMES)
def test_kernels_of_every_algorithm_are_the_same_on_1_and_2_devices(name):
    """On 8, each with one shard, jaxlib 0.10.2 hands parameters to some of them in other pieces."""
    config = algorithms.everything(name)
    assert of(config, 2) == of(config, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_kernels_of_shipped_configs_are_the_same_on_1_and_2_devices(name):
    config = files.read_file(CONFIGS / f"{name}.py")
    assert of(config, 2) == of(config, 1)
