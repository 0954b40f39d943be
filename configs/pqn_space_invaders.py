"""MinAtar's SpaceInvaders (by gymnax) with PQN.

    python -m jaxrl_scale.train --config configs/pqn_space_invaders.py

2,000,000 steps; the return is about 97 while it explores and 70 without, where it plays the one
same game again and again (seed 0). gymnax publishes PPO's curve, 84 to 101 at that point:
`benchmarks/minatar.py`.
"""

from jaxrl_scale.algos import pqn
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="gymnax:SpaceInvaders-MinAtar",
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
