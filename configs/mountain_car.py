"""MountainCar-v0 with PPO: drive a weak car out of a valley in 200 steps, reward -1 per step.

    python -m jaxrl_scale.train --config configs/mountain_car.py

Training takes 400,000 steps, about two and a half seconds of a busy core for each agent, after
compilation. The return is then about -102, and -113 for the worst of 256 agents (seeds 1000 to
1255, on which nothing was chosen). The mean return of the last 100 episodes reaches -120 after
about 182,000 steps (264,000 for the slowest of 32 agents). The large learning rate and the discount
close to 1 come from a search (benchmarks/README.md); the entropy bonus keeps the policy from
settling on one swing more than it needs.
"""

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="MountainCar-v0",
        num_envs=64,
        rollout_length=64,
        total_steps=400_000,
        target_return=-120.0,
        algo=ppo.Config(
            learning_rate=8e-3,
            gamma=0.999,
            gae_lambda=0.98,
            epochs=4,
            minibatch_size=512,
            entropy_coef=0.02,
            normalize_observations=True,
            scale_rewards=True,
        ),
    )
