"""MountainCar-v0 with PPO: rock a weak car out of a valley, reward -1 a step, 200 steps.

    python -m jaxrl_scale.train --config configs/mountain_car.py

1,000,000 steps take about three seconds on two cores after compilation; the return is about
-105 (-110 with the worst of 64 seeds). The last 100 episodes reach a mean of -120 after
about 684,000 steps (814,000 with the slowest). The large entropy bonus keeps the policy from
settling on a needless extra swing.
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
