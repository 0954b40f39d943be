"""MinAtar's SpaceInvaders (from gymnax) with PQN.

    python -m jaxrl_scale.train --config configs/pqn_space_invaders.py

Training takes 2,000,000 steps. The return is then about 100 while the agent explores. Greedily it
plays the same game again and again, which brought 70 on one processor and 142 on another (one
agent, seed 0). In gymnax's published curve, PPO has 84 to 101 after as many steps
(`benchmarks/minatar.py`).
"""

from jaxrl_scale.algos import pqn
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="gymnax:SpaceInvaders-MinAtar",
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
