"""MountainCar-v0 with PQN: rock a weak car out of a valley, reward -1 a step, 200 steps.

    python -m jaxrl_scale.train --config configs/pqn_mountain_car.py

1,000,000 steps; the return is about -101 (-120 with the worst of 16 seeds; 30 seconds a seed on one
core). Chance never reaches the flag; large steps and random actions that end early do, while values
are still sinking from 0 (`dqn_mountain_car.py`). LayerNorm keeps what was found.
"""

from jaxrl_scale.algos import pqn
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="MountainCar-v0",
        num_envs=16,
        rollout_length=16,
        total_steps=1_000_000,
        target_return=-120.0,
        hidden_sizes=(128, 128),
        activation="relu",
        algo=pqn.Config(
            learning_rate=5e-3,
            return_lambda=0.8,
            epsilon_end=0.05,
            exploration_fraction=0.01,
            epochs=4,
            minibatch_size=64,
            normalize_observations=True,
        ),
    )
