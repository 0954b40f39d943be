"""MinAtar's Breakout (by gymnax) with PQN.

    python -m jaxrl_scale.train --config configs/pqn_breakout.py

2,000,000 steps; the return is about 18 while it explores and 23.5 without (seed 0). gymnax
publishes PPO's curve, 15 to 20 at that point: `benchmarks/minatar.py`.
"""

from jaxrl_scale.algos import pqn
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="gymnax:Breakout-MinAtar",
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
