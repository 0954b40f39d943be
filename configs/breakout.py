"""MinAtar's Breakout (from gymnax) with PPO.

    python -m jaxrl_scale.train --config configs/breakout.py

Training takes 2,000,000 steps. The return is then about 21 while the agent explores and 22 when it
acts greedily (one agent, seed 0). In gymnax's published curves, PPO has 15 to 17 after as many
steps (`benchmarks/minatar.py`). With an entropy bonus of 0.01 and a learning rate of 1e-3, the
greedy return is 7.
"""

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="gymnax:Breakout-MinAtar",
        network="mlp",
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
