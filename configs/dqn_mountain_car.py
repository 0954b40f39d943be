"""MountainCar-v0 with DQN: drive a weak car out of a valley in 200 steps, reward -1 per step.

    python -m jaxrl_scale.train --config configs/dqn_mountain_car.py

Training takes 250,000 steps, or 40 seconds per agent on one core. The return is then about -100,
and -109 for the worst of 16 agents. Random actions never reach the flag. Optimistic values do:
they begin at 0, which is too high, and sink where the car has been, so that it drives to where it
has not. Therefore the target network follows slowly and the random actions end early. With a
target network that follows at once and random actions during half of the run, none of four agents
leaves the valley. With a target period of 200 instead of 500 and random actions during a fifth of
the run, ten of fourteen do.
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
