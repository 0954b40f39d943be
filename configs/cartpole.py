"""CartPole-v1 with PPO: balance a pole on a cart.

    python -m jaxrl_scale.train --config configs/cartpole.py

Training takes 500,000 steps, which are two seconds or less on two cores after compilation. The
return is then 500, the maximum, for each of 256 agents (seeds 2000 to 2255, of which none was used
to choose the settings). The mean return of the last 100 episodes reaches 475 after about 113,000
steps (171,000 for the slowest of 128 agents).
"""

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="CartPole-v1",
        num_envs=128,
        rollout_length=32,
        total_steps=500_000,
        target_return=475.0,
        algo=ppo.Config(
            learning_rate=2e-3,
            gae_lambda=0.9,
            epochs=4,
            minibatch_size=512,
            entropy_coef=0.0,
        ),
    )
