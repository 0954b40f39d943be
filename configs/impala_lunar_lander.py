"""LunarLander-v3 with IMPALA, whose actors are one iteration behind: land between two flags.

    python -m jaxrl_scale.train --config configs/impala_lunar_lander.py

6,000,000 steps; the return is about 224 here and 217 in real Gymnasium (175 and 169 with the
worst of 8 seeds; all eight in one program take 17 minutes on one core). A learning rate of 1e-3
with more epochs or longer rollouts learns faster and then falls back: nothing clips the policy's
steps.
"""

from jaxrl_scale.algos import impala
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="LunarLander-v3",
        num_envs=128,
        rollout_length=32,
        total_steps=6_000_000,
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
