"""Acrobot-v1 with IMPALA, whose actors are one iteration behind: swing a two-link arm up.

    python -m jaxrl_scale.train --config configs/impala_acrobot.py

1,000,000 steps; the return is about -82 (-88 with the worst of 64 seeds).

What V-trace is for shows with a longer lag:

    python -m jaxrl_scale.train --config configs/impala_acrobot.py --num_seeds=16 \
        --total_steps=500_000 --algo.lag=4
    python -m jaxrl_scale.train --config configs/impala_acrobot.py --num_seeds=16 \
        --total_steps=500_000 --algo.lag=4 --algo.correction=none

With the correction: -83.5 (-87 with the worst seed), and -107 on average in the second sixth
of the run. Without: -85.3 (-332; three seeds below -90), and -207.
"""

from jaxrl_scale.algos import impala
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="Acrobot-v1",
        num_envs=64,
        rollout_length=32,
        total_steps=1_000_000,
        target_return=-100.0,
        algo=impala.Config(
            lag=1,
            learning_rate=2e-3,
            vtrace_lambda=0.95,
            minibatch_size=512,
            entropy_coef=0.0,
            normalize_observations=True,
            scale_rewards=True,
        ),
    )
