"""Acrobot-v1 with DQN: swing a two-link arm above a line.

    python -m jaxrl_scale.train --config configs/dqn_acrobot.py

Training takes 400,000 steps, or 45 seconds per agent on one core. The return is then about -83,
and -88 for the worst of 8 agents. A long exploration is needed: with a third of these steps, most
agents never reach the end of an episode.
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
            learning_rate=1e-3,
            n_step=5,
            normalize_observations=True,
            batch_size=256,
            updates_per_iteration=32,
            replay_size=102_400,
            learning_starts=4_096,
            tau=0.01,
            epsilon_end=0.02,
            exploration_fraction=0.5,
        ),
    )
