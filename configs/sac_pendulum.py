"""Pendulum-v1 with SAC: swing a rod up with a weak motor and hold it there.

    python -m jaxrl_scale.train --config configs/sac_pendulum.py

Training takes 30,000 steps, about 20 seconds per agent on one core after compilation. The return in
real Gymnasium is then about -146, and -153 for the worst of 8 agents (500 episodes each). The
episodes that end after 10,000 steps have about -160 already. PPO (`pendulum.py`) ends at about -168
after 500,000 steps.
"""

from jaxrl_scale.algos import sac
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="Pendulum-v1",
        num_envs=16,
        num_shards=4,
        rollout_length=8,
        total_steps=30_000,
        log_every=20,
        activation="relu",
        algo=sac.Config(
            learning_rate=2e-3,
            gamma=0.98,
            batch_size=256,
            updates_per_iteration=64,
            replay_size=30_720,
            learning_starts=1_024,
            tau=0.01,
        ),
    )
