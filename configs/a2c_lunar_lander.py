"""LunarLander-v3 with A2C: set a lander down softly between two flags.

    python -m jaxrl_scale.train --config configs/a2c_lunar_lander.py

15,000,000 steps; the return is about 262 here and 260 in real Gymnasium (211 and 206 with the worst
of 8 seeds; all eight in one program take 34 minutes on one core). With 64 environments and
10,000,000 steps it is about 235, and two of the seeds end below 200. Rollouts matter: with 16 steps
instead of 32, or a horizon of 0.99, many seeds hover until the time is up.
"""

from jaxrl_scale.algos import a2c
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="LunarLander-v3",
        num_envs=128,
        rollout_length=32,
        total_steps=15_000_000,
        algo=a2c.Config(
            learning_rate=3e-3,
            gamma=0.999,
            gae_lambda=0.98,
            entropy_coef=0.0,
            normalize_advantages=True,
            normalize_observations=True,
            scale_rewards=True,
        ),
    )
