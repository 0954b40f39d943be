"""MinAtar's Breakout (from gymnax) with IMPALA, with actors that are one iteration behind.

    python -m jaxrl_scale.train --config configs/impala_breakout.py

Training takes 2,000,000 steps, or two and a half minutes on one core. The return is then 14.4
while the agent explores and 15.5 when it acts greedily (one agent, seed 0). With an entropy bonus
of 0.01 and a discount of 0.99, the greedy return is 6.
"""

from jaxrl_scale.algos import impala
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="gymnax:Breakout-MinAtar",
        network="mlp",
        hidden_sizes=(256, 256),
        activation="relu",
        num_envs=64,
        rollout_length=32,
        total_steps=2_000_000,
        algo=impala.Config(
            lag=1,
            gamma=0.995,
            epochs=2,
            learning_rate=5e-4,
            vtrace_lambda=0.95,
            minibatch_size=512,
            entropy_coef=0.03,
        ),
    )
