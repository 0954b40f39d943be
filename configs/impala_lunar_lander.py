"""LunarLander-v3 with IMPALA, with actors that are one iteration behind: land between two flags.

    python -m jaxrl_scale.train --config configs/impala_lunar_lander.py

Training takes 12,000,000 steps; eight agents in one program take 7 minutes on two cores. The return
is then about 267 here (221 for the worst of the 8 agents) and 264 in real Gymnasium (222). With
8,000,000 steps it is about 252 (211). Of 16 other agents (seeds 3000 to 3015), with 6,000,000
steps, none was below 218.

Two sweeps with other seeds (1000 and 1001, 2000 to 2003) led to the settings. Nothing clips the
steps of the policy; what seems to keep them small is that gradients are short and the learning rate
falls to 0. The entropy bonus matters, too: with 0.003, five of 12 agents ended below 200 with
6,000,000 steps.
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
            learning_rate=1e-3,
            lr_schedule="linear",
            gamma=0.9975,
            vtrace_lambda=0.975,
            minibatch_size=512,
            entropy_coef=0.01,
            max_grad_norm=0.06,
            normalize_observations=True,
            scale_rewards=True,
        ),
    )
