"""Pendulum-v1 with PPO: swing a rod up with a weak motor and hold it there.

    python -m jaxrl_scale.train --config configs/pendulum.py

Training takes 500,000 steps, which are about two seconds on two cores after compilation. The
return is then about -169, and -295 for the worst of 64 agents. The mean return of the last 100
episodes reaches -250 after about 143,000 steps (265,000 for the slowest agent).
"""

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="Pendulum-v1",
        num_envs=64,
        rollout_length=64,
        total_steps=500_000,
        target_return=-250.0,
        algo=ppo.Config(
            learning_rate=2e-3,
            gamma=0.95,
            gae_lambda=0.9,
            epochs=4,
            minibatch_size=512,
            entropy_coef=0.0,
            normalize_observations=True,
            scale_rewards=True,
        ),
    )
