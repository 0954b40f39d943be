"""MinAtar's Breakout (from gymnax) with PQN.

    python -m jaxrl_scale.train --config configs/pqn_breakout.py

Training takes 2,000,000 steps. The return is then 15 to 18 while the agent explores and 21 to 24
when it acts greedily (one agent, seed 0, on two processors). In gymnax's published curves, PPO has
15 to 17 after as many steps (`benchmarks/minatar.py`).
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
