"""MountainCar-v0 with IMPALA, with actors that are one iteration behind: drive a car out of a
valley.

    python -m jaxrl_scale.train --config configs/impala_mountain_car.py

Training takes 1,500,000 steps. The return is then about -115, and -127 for the worst of 16 agents,
which take 40 seconds together on two cores. With an entropy bonus of 0.005 or 0.012, all
agents end at about -130, with one swing too many.
"""

from jaxrl_scale.algos import impala
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="MountainCar-v0",
        num_envs=64,
        rollout_length=32,
        total_steps=1_500_000,
        target_return=-120.0,
        algo=impala.Config(
            lag=1,
            learning_rate=2e-3,
            vtrace_lambda=0.98,
            minibatch_size=512,
            entropy_coef=0.03,
            normalize_observations=True,
            scale_rewards=True,
        ),
    )
