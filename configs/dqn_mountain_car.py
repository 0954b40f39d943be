"""MountainCar-v0 with DQN: rock a weak car out of a valley, reward -1 a step, 200 steps.

    python -m jaxrl_scale.train --config configs/dqn_mountain_car.py

250,000 steps; the return is about -100 (-106 with the worst of 16 seeds; 40 seconds a seed on one
core). Chance never reaches the flag. What does is that values begin at 0, too high, and sink where
the car has been: so the target network follows slowly, and random actions end early. With a target
network that follows at once and half of the run explored none of four seeds leaves the valley; with
a period of 200 instead of 500 and a fifth explored ten of fourteen do.
"""

from jaxrl_scale.algos import dqn
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="MountainCar-v0",
        num_envs=16,
        rollout_length=8,
        total_steps=250_000,
        target_return=-120.0,
        log_every=20,
        hidden_sizes=(128, 128),
        activation="relu",
        algo=dqn.Config(
            learning_rate=2e-3,
            n_step=3,
            normalize_observations=True,
            batch_size=128,
            updates_per_iteration=32,
            replay_size=102_400,
            learning_starts=4_096,
            tau=1.0,
            target_period=500,
            epsilon_end=0.05,
            exploration_fraction=0.05,
        ),
    )
