"""LunarLander-v3 with PPO: set a lander down softly between two flags."""

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="LunarLander-v3",
        num_envs=512,
        rollout_length=64,
        total_steps=5_000_000,
        algo=ppo.Config(
            learning_rate=1e-3,
            gamma=0.999,
            gae_lambda=0.98,
            epochs=4,
            minibatch_size=2048,
            entropy_coef=0.0,
            normalize_observations=True,
            scale_rewards=True,
        ),
    )
