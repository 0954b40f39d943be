"""MinAtar's SpaceInvaders (from gymnax) with PPO.

    python -m jaxrl_scale.train --config configs/space_invaders.py

Training takes 2,000,000 steps. The return is then about 120 with sampled actions: the interquartile
mean of 8 agents (seeds 0 to 7), of which the worst has 116. Greedily an agent plays the same game
again and again, which brings 39 to 163. In gymnax's published curve, PPO has 84 to 101 after as
many steps (`benchmarks/minatar.py`).
"""

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="gymnax:SpaceInvaders-MinAtar",
        network="mlp",
        hidden_sizes=(256, 256),
        activation="relu",
        num_envs=128,
        rollout_length=64,
        total_steps=2_000_000,
        algo=ppo.Config(
            learning_rate=1e-3,
            gamma=0.99,
            gae_lambda=0.95,
            epochs=2,
            minibatch_size=1024,
            entropy_coef=0.01,
        ),
    )
