"""Acrobot-v1 with Ape-X: swing a two-link arm above a line.

    python -m jaxrl_scale.train --config configs/apex_acrobot.py

Training takes 400,000 steps, or 80 seconds per agent on one core. The return is then about -77,
and -86 for the worst of 8 agents.
"""

from jaxrl_scale.algos import apex
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
        algo=apex.Config(
            learning_rate=1e-3,
            n_step=5,
            normalize_observations=True,
            batch_size=256,
            updates_per_iteration=32,
            replay_size=102_400,
            learning_starts=4_096,
            tau=0.01,
        ),
    )
