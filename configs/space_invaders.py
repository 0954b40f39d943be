"""MinAtar's SpaceInvaders (from gymnax) with PPO.

    python -m jaxrl_scale.train --config configs/space_invaders.py

Training takes 2,000,000 steps. The return is then about 125 while the agent explores, and 143 or
149 when it acts greedily (one agent, seed 0, on two processors). In gymnax's published curve, PPO
has 84 to 101 after as many steps (`benchmarks/minatar.py`).
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
