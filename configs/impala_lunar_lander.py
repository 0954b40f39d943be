"""LunarLander-v3 with IMPALA, whose actors are one iteration behind: land between two flags.

    python -m jaxrl_scale.train --config configs/impala_lunar_lander.py

12,000,000 steps; the return is about 277 here and 275 in real Gymnasium (260 and 249 with the
worst of 8 seeds; all eight in one program take 23 minutes on one core). With half the steps it is
about 220, and three of the seeds end below 200. A learning rate of 1e-3 with more epochs or longer
rollouts learns faster and then falls back: nothing clips the policy's steps.
"""

from jaxrl_scale.algos import impala
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="LunarLander-v3",
        num_envs=128,
        rollout_length=32,
        total_steps=12_000_000,
        algo=impala.Config(
            lag=1,
            learning_rate=6e-4,
            gamma=0.995,
            vtrace_lambda=0.98,
            minibatch_size=512,
            entropy_coef=0.0,
            normalize_observations=True,
            scale_rewards=True,
        ),
    )
