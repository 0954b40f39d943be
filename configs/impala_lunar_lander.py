"""LunarLander-v3 with IMPALA, with actors that are one iteration behind: land between two flags.

    python -m jaxrl_scale.train --config configs/impala_lunar_lander.py

Training takes 12,000,000 steps; eight agents in one program take 5 minutes on two cores. The return
is then about 256 here (158 and 198 for the worst of the 8 agents) and 252 in real Gymnasium (174).
The same seeds rounded otherwise had about 262 (183 at worst), and before that 277. With
half the steps it is about 220, and three of the agents end below 200. With a learning rate of 1e-3
and more epochs or longer rollouts, agents learn faster and then become worse again, because nothing
clips the steps of the policy.
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
