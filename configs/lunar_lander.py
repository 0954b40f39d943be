"""LunarLander-v3 with PPO: land softly between two flags.

    python -m jaxrl_scale.train --config configs/lunar_lander.py

Training takes 5,000,000 steps, which are about 40 seconds on two cores after a compilation of 20
seconds. The return is then about 280 (interquartile mean), here and in real Gymnasium. Of 16 agents
two end below 240: seeds 3 and 15, with 153 and -39. A discount close to 1 is important, because
fuel is cheap and an episode takes 200 steps.
"""

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
