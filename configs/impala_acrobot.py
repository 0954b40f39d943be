r"""Acrobot-v1 with IMPALA, with actors that are one iteration behind: swing a two-link arm up.

    python -m jaxrl_scale.train --config configs/impala_acrobot.py

Training takes 1,000,000 steps. The return is then about -83, and -88 for the worst of 64 agents.

A longer lag shows what V-trace is for:

    python -m jaxrl_scale.train --config configs/impala_acrobot.py --num_seeds=16 \
        --total_steps=500_000 --algo.lag=4
    python -m jaxrl_scale.train --config configs/impala_acrobot.py --num_seeds=16 \
        --total_steps=500_000 --algo.lag=4 --algo.correction=none

With the correction the return is -83.5 in the end (-87 for the worst agent), and -107 on average
over the second sixth of the run. Without it the return is -85.3 in the end (-332 for the worst
agent; three agents are below -90), and -207 over the second sixth.
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
