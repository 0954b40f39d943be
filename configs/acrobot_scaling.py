"""Acrobot-v1 with PPO, for the study of many environments (benchmarks/scaling.md).

    python -m jaxrl_scale.scaling --config configs/acrobot_scaling.py --num_envs=8,80,368

One set of numbers from 8 environments to thousands: 40 iterations suffice with 8. An iteration of
4,096 makes 512 times as many gradient steps. Before the first episode has ended they follow what
the value function happens to believe, and with a short horizon (λ = 0.9) some seeds learn to brake
and never swing up: hence λ = 0.98, a little entropy, and the bound on the KL divergence. Four
shards, so that 8 environments are two a shard: every batched call then has a batch.
"""

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="Acrobot-v1",
        num_envs=8,
        num_shards=4,
        rollout_length=128,
        iterations=40,
        log_every=1,
        algo=ppo.Config(
            learning_rate=3e-3,
            gae_lambda=0.98,
            epochs=4,
            minibatch_size=256,
            entropy_coef=0.01,
            target_kl=0.01,
            normalize_observations=True,
            scale_rewards=True,
        ),
    )
