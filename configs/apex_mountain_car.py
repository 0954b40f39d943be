"""MountainCar-v0 with Ape-X: drive a weak car out of a valley in 200 steps, reward -1 per step.

    python -m jaxrl_scale.train --config configs/apex_mountain_car.py

Training takes 250,000 steps, or 45 seconds per agent on one core. The return is then about -103,
and -112 for the worst of 8 agents. With dueling networks and a target network that follows faster,
some agents never leave the valley; `dqn_mountain_car.py` explains why a slow one helps.
"""

from jaxrl_scale.algos import apex
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="MountainCar-v0",
        num_envs=16,
        rollout_length=8,
        total_steps=250_000,
        target_return=-120.0,
        log_every=20,
        hidden_sizes=(128, 128),
        activation="relu",
        algo=apex.Config(
            dueling=False,
            learning_rate=2e-3,
            n_step=3,
            normalize_observations=True,
            batch_size=128,
            updates_per_iteration=32,
            replay_size=102_400,
            learning_starts=4_096,
            tau=1.0,
            target_period=500,
        ),
    )
