"""MountainCar-v0 with A2C: drive a weak car out of a valley in 200 steps, reward -1 per step.

    python -m jaxrl_scale.train --config configs/a2c_mountain_car.py

Training takes 2,000,000 steps; eight agents in one program take a minute and a half on one core.
The return is then about -111, and -126 for the worst of 32 agents. The large entropy bonus keeps
the policy from settling on one swing more than it needs: with a bonus of 0.02 or 0.05, all agents
end at about -127.
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
