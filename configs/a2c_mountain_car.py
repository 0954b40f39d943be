"""MountainCar-v0 with A2C: rock a weak car out of a valley, reward -1 a step, 200 steps.

    python -m jaxrl_scale.train --config configs/a2c_mountain_car.py

2,000,000 steps; the return is about -113 (-130 with the worst of 32 seeds; eight of them in one
program take a minute and a half on one core). The large entropy bonus keeps the policy from
settling on a needless extra swing: with 0.02 or 0.05 all end at about -127.
"""

from jaxrl_scale.algos import a2c
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="MountainCar-v0",
        num_envs=16,
        rollout_length=32,
        total_steps=2_000_000,
        target_return=-120.0,
        algo=a2c.Config(
            learning_rate=3e-3,
            gae_lambda=0.98,
            entropy_coef=0.08,
            normalize_advantages=True,
            normalize_observations=True,
            scale_rewards=True,
        ),
    )
