"""Acrobot-v1 with PPO: swing a two-link arm above a line.

    python -m jaxrl_scale.train --config configs/acrobot.py

Training takes 600,000 steps, which are about two seconds on two cores after compilation. The
return is then about -79, and -90 for the worst of 256 agents (seeds 1000 to 1255, on which nothing
was chosen). The mean return of the last 100 episodes reaches -100 after about 155,000 steps
(179,000 for the slowest of 64 agents).
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
