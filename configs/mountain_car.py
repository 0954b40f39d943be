"""MountainCar-v0 with PPO: drive a weak car out of a valley in 200 steps, reward -1 per step.

    python -m jaxrl_scale.train --config configs/mountain_car.py

Training takes 1,000,000 steps, which are about three seconds on two cores after compilation. The
return is then about -105, and -110 for the worst of 64 agents. The mean return of the last 100
episodes reaches -120 after about 684,000 steps (814,000 for the slowest agent). The large entropy
bonus keeps the policy from settling on one swing more than it needs.
"""

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="MountainCar-v0",
        num_envs=256,
        rollout_length=64,
        total_steps=1_000_000,
        target_return=-120.0,
        algo=ppo.Config(
            learning_rate=3e-3,
            gae_lambda=0.95,
            epochs=4,
            minibatch_size=1024,
            entropy_coef=0.05,
            normalize_observations=True,
            scale_rewards=True,
        ),
    )
