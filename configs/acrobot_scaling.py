"""Acrobot-v1 with PPO, for the study of many environments (benchmarks/scaling.md).

    python -m jaxrl_scale.scaling --config configs/acrobot_scaling.py --num_envs=8,80,368

The same options serve 8 environments and thousands of them. With 8 environments, 40 iterations are
enough. An iteration with 4,096 environments makes 512 times as many gradient steps. Before the
first episode has ended, these steps follow the initial guesses of the value function, and with a
short horizon (λ = 0.9) some agents learn to brake and never swing up. This is why λ is 0.98, why
there is a small entropy bonus, and why the KL divergence is bounded. There are four shards, so
that even 8 environments make two per shard and every batched call has a batch.
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
