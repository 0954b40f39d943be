"""MinAtar's Breakout (by gymnax) with PPO.

    python -m jaxrl_scale.train --config configs/breakout.py

2,000,000 steps; the return is about 21 while it explores and 22 without (seed 0). gymnax
publishes PPO's curve, 15 to 20 at that point: `benchmarks/minatar.py`. With an entropy bonus of
0.01 and a learning rate of 1e-3 it ends in a game of 7.
"""

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="gymnax:Breakout-MinAtar",
        hidden_sizes=(256, 256),
        activation="relu",
        num_envs=128,
        rollout_length=64,
        total_steps=2_000_000,
        algo=ppo.Config(
            learning_rate=5e-4,
            gamma=0.995,
            gae_lambda=0.95,
            epochs=4,
            minibatch_size=1024,
            entropy_coef=0.03,
        ),
    )
