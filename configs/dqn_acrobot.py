"""Acrobot-v1 with DQN: swing a two-link arm above a line.

    python -m jaxrl_scale.train --config configs/dqn_acrobot.py

Training takes 400,000 steps, or 45 seconds per agent on one core. The return is then about -76,
and -83 for the worst of 16 agents. The settings come from a search (benchmarks/README.md): with a
learning rate of 1e-3, returns of 5 steps and a longer exploration, the worst of 8 had -89.
"""

from jaxrl_scale.algos import dqn
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="Acrobot-v1",
        num_envs=32,
        rollout_length=8,
        total_steps=400_000,
        target_return=-100.0,
        log_every=20,
        hidden_sizes=(128, 128),
        activation="relu",
        algo=dqn.Config(
            learning_rate=2.5e-3,
            n_step=3,
            normalize_observations=True,
            batch_size=256,
            updates_per_iteration=32,
            replay_size=102_400,
            learning_starts=4_096,
            tau=0.015,
            epsilon_end=0.02,
            exploration_fraction=0.2,
        ),
    )
