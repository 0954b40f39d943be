"""LunarLanderContinuous-v3 with SAC: land softly between two flags.

    python -m jaxrl_scale.train --config configs/sac_lunar_lander_continuous.py

Training takes 1,000,000 steps, each of which is learned from 8 times; an agent takes about a
minute and a half on one core. Eight agents, seeds 0 to 7, have an interquartile mean of 278.0
(worst 273.9; 128 episodes each), and in real Gymnasium of 277.8 (worst 272.3; 100 episodes each).
When the environment's step was rounded otherwise one of them failed (48.1, and 100.1 in real
Gymnasium). The settings were chosen on seeds 0 and 1.

At first they hover: most of their episodes take 1,000 steps, until they learn to land. With long
returns (`n_step`) that comes earlier. The last 100 episodes have a mean of 240 after 15,200 and
12,800 gradient steps. With returns of 5 steps and batches of 256 it does after 22,400 and 17,600,
and these two ended at 273.8 and 281.3; with the settings before (returns of 3 steps, a discount of
0.99, batches of 256, 32 environments) after 36,800 and 11,200, and these ended at 255.7 and 273.0.
"""

from jaxrl_scale.algos import sac
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="LunarLanderContinuous-v3",
        num_envs=64,
        num_shards=4,
        rollout_length=8,
        total_steps=1_000_000,
        log_every=50,
        hidden_sizes=(128, 128),
        activation="relu",
        algo=sac.Config(
            learning_rate=1e-3,
            gamma=0.995,
            n_step=8,
            batch_size=128,
            updates_per_iteration=32,
            replay_size=512_000,
            learning_starts=10_240,
            tau=0.01,
        ),
    )
