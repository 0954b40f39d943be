"""Acrobot-v1 with PPO: swing a two-link arm above a line.

    python -m jaxrl_scale.train --config configs/acrobot.py

600,000 steps take about two seconds on two cores after compilation; the return is about -78
(-89 with the worst of 64 seeds). The last 100 episodes reach a mean of -100 after about
155,000 steps (179,000 with the slowest).
"""

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="Acrobot-v1",
        num_envs=128,
        rollout_length=64,
        total_steps=600_000,
        target_return=-100.0,
        algo=ppo.Config(
            learning_rate=2e-3,
            gae_lambda=0.9,
            epochs=4,
            minibatch_size=512,
            entropy_coef=0.0,
            normalize_observations=True,
        ),
    )
