"""MinAtar's Breakout (from gymnax) with PQN.

    python -m jaxrl_scale.train --config configs/pqn_breakout.py

Training takes 2,000,000 steps. The return is then about 18 while the agent explores and 26 when it
acts greedily: the interquartile means of 8 agents (seeds 0 to 7), of which the worst has 21. In
gymnax's published curves, PPO has 15 to 17 after as many steps (`benchmarks/minatar.py`).
"""

from jaxrl_scale.algos import pqn
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="gymnax:Breakout-MinAtar",
        network="mlp",
        hidden_sizes=(256, 256),
        activation="relu",
        num_envs=128,
        rollout_length=32,
        total_steps=2_000_000,
        algo=pqn.Config(
            learning_rate=5e-4,
            return_lambda=0.65,
            epsilon_end=0.05,
            exploration_fraction=0.1,
            epochs=2,
            minibatch_size=256,
        ),
    )
