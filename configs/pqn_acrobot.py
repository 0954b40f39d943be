"""Acrobot-v1 with PQN: swing a two-link arm above a line.

    python -m jaxrl_scale.train --config configs/pqn_acrobot.py

Training takes 1,000,000 steps. The return is then about -80, and -92 for the worst of 64 agents,
which take 17 minutes together on one core. Small iterations and few random actions are important:
with 128 environments and 2 % of random actions the return is -91.
"""

from jaxrl_scale.algos import pqn
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="Acrobot-v1",
        num_envs=32,
        rollout_length=32,
        total_steps=1_000_000,
        target_return=-100.0,
        hidden_sizes=(128, 128),
        activation="relu",
        algo=pqn.Config(
            learning_rate=1e-3,
            return_lambda=0.95,
            epsilon_end=0.01,
            exploration_fraction=0.1,
            epochs=4,
            minibatch_size=256,
            normalize_observations=True,
            scale_rewards=True,
        ),
    )
