"""Slow: runs of random configs have the same bits on 1 and on 8 devices. ``make test-slow``."""

import dataclasses
import random

import pytest
from running import differing, forget_programs, whole

from jaxrl_scale.algos import a2c, apex, dqn, impala, ppo, pqn, sac
from jaxrl_scale.config import Config, check
from jaxrl_scale.errors import RunError

pytestmark = [pytest.mark.slow, pytest.mark.as_users]

ALGORITHMS = (a2c, apex, dqn, impala, ppo, pqn, sac)
DISCRETE = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3")
CONTINUOUS = ("Pendulum-v1", "MountainCarContinuous-v0", "LunarLanderContinuous-v3")
WIDTHS = ((8,), (64, 64), (33,), (48, 17), (256,))


def drawn(seed):
    """A config of eight shards with one to eight environments each, and each switch of its
    algorithm thrown at random."""
    rng = random.Random(seed)
    algo = rng.choice(ALGORITHMS)
    spaces = {sac: CONTINUOUS, dqn: DISCRETE, apex: DISCRETE, pqn: DISCRETE}
    num_envs, length = 8 * rng.choice([1, 2, 3, 4, 8]), rng.choice([1, 2, 5, 8, 16, 33])
    steps = num_envs * length
    sizes = {
        "minibatch_size": steps // rng.choice([k for k in (1, 2, 4) if steps % (8 * k) == 0]),
        "epochs": rng.choice([1, 2, 3]),
        "lag": rng.choice([0, 1, 2]),
        "replay_size": 6 * steps,
        "learning_starts": steps,
        "batch_size": 8 * rng.choice([2, 4, 8]),
        "updates_per_iteration": rng.choice([1, 2, 4]),
        "max_grad_norm": rng.choice([None, 0.5, 10.0]),
    }
    options = algo.Config()
    fields = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    switches = {name: rng.random() < 0.5 for name, x in fields.items() if isinstance(x, bool)}
    taken = {name: x for name, x in (sizes | switches).items() if name in fields}
    return Config(
        env=rng.choice(spaces.get(algo, DISCRETE + CONTINUOUS)),
        num_envs=num_envs,
        num_shards=8,
        num_seeds=rng.choice([1, 1, 3]),
        rollout_length=length,
        iterations=6,
        seed=rng.randrange(100),
        hidden_sizes=rng.choice(WIDTHS),
        activation=rng.choice(["tanh", "relu", "silu", "gelu"]),
        shared_torso=rng.random() < 0.3,
        algo=dataclasses.replace(options, **taken),
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_random_config_has_the_same_bits_on_one_and_on_eight_devices(seed):
    """What its algorithm refuses is drawn anew."""
    for attempt in range(100):
        config = drawn(1_000 * seed + attempt)
        try:
            check(config)
            state, history = whole(config.replace(devices=1))
            break
        except RunError:
            continue
    other_state, other_history = whole(config.replace(devices=8))
    assert differing(state, other_state) == [], config
    assert differing(history, other_history) == [], config
    forget_programs()
