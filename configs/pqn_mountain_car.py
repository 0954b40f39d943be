"""MountainCar-v0 with PQN: drive a weak car out of a valley in 200 steps, reward -1 per step.

    python -m jaxrl_scale.train --config configs/pqn_mountain_car.py

Training takes 1,000,000 steps, or 30 seconds per agent on one core. The return is then about -100,
and -121 for the worst of 16 agents. Random actions never reach the flag. Large learning steps and
random actions that end early do, while values are still sinking from 0 (`dqn_mountain_car.py`
explains it). LayerNorm keeps the agent from forgetting the way.
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
