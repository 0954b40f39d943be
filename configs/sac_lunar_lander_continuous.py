"""LunarLanderContinuous-v3 with SAC: land softly between two flags.

    python -m jaxrl_scale.train --config configs/sac_lunar_lander_continuous.py

Training takes 500,000 steps, each of which is learned from 32 times; a gradient step takes 2.4 ms
on one core, which makes two and a half minutes per agent. The return is then about 264 here and 265
in real Gymnasium (269 and 262, 200 episodes each). Two agents, seeds 0 and 1, are all that were
trained. At first they hover: episodes take 965 steps after 51,000 steps of training, 409 after
205,000.
"""

from jaxrl_scale.algos import sac
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="LunarLanderContinuous-v3",
        num_envs=32,
        num_shards=4,
        rollout_length=8,
        total_steps=500_000,
        log_every=50,
        hidden_sizes=(128, 128),
        activation="relu",
        algo=sac.Config(
            learning_rate=1e-3,
            gamma=0.99,
            n_step=3,
            batch_size=256,
            updates_per_iteration=32,
            replay_size=512_000,
            learning_starts=10_240,
            tau=0.01,
        ),
    )
