"""MinAtar's Breakout (by gymnax) with A2C.

    python -m jaxrl_scale.train --config configs/a2c_breakout.py

2,000,000 steps, 90 seconds on one core; the return is 8.9 while it explores and 9 without (seed 0).
With an entropy bonus of 0.01, or with normalised advantages, it ends in a game of 5.5.
"""

from jaxrl_scale.algos import a2c
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="gymnax:Breakout-MinAtar",
        hidden_sizes=(256, 256),
        activation="relu",
        num_envs=64,
        rollout_length=8,
        total_steps=2_000_000,
        algo=a2c.Config(
            learning_rate=1e-3,
            gamma=0.995,
            gae_lambda=0.95,
            entropy_coef=0.03,
        ),
    )
