"""MinAtar's Breakout (from gymnax) with DQN.

    python -m jaxrl_scale.train --config configs/dqn_breakout.py

Training takes 600,000 steps, or four minutes on one core. The return is then 19.5 while the agent
explores and 23 when it acts greedily (one agent, seed 0). With a learning rate that falls to 0 and
random actions that end after a tenth of the run, these are 12.7 and 14.5.
"""

from jaxrl_scale.algos import dqn
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="gymnax:Breakout-MinAtar",
        network="mlp",
        hidden_sizes=(256, 256),
        activation="relu",
        num_envs=64,
        rollout_length=4,
        total_steps=600_000,
        log_every=20,
        algo=dqn.Config(
            learning_rate=3e-4,
            lr_schedule="constant",
            n_step=3,
            batch_size=128,
            updates_per_iteration=16,
            replay_size=131_072,
            learning_starts=8_192,
            tau=0.01,
            epsilon_end=0.02,
            exploration_fraction=0.3,
        ),
    )
