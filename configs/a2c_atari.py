"""A game of Atari with A2C.

    python -m jaxrl_scale.train --config configs/a2c_atari.py
    python -m jaxrl_scale.train --config configs/a2c_atari.py --env=Breakout-v5

The options are those of A2C in OpenAI Baselines: 16 environments, 5 steps, RMSProp with a
learning rate of 7e-4, which falls to 0. Their weight of the value loss is 0.5 without the factor
½ that ours has. The protocol is the preset `ppo` of docs/environments.md. There are four shards,
so that each has four environments.

Not tried: a whole run of this config, on any game.
"""

from jaxrl_scale.algos import a2c
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="Pong-v5",
        env_kwargs={"preset": "ppo"},
        network="nature",
        num_envs=16,
        num_shards=4,
        rollout_length=5,
        total_steps=10_000_000,
        restart_every=10_000,
        log_every=200,
        eval_episodes=32,
        eval_greedy=False,
        checkpoint_every=2000,
        algo=a2c.Config(
            learning_rate=7e-4,
            gamma=0.99,
            gae_lambda=1.0,
            entropy_coef=0.01,
            value_coef=1.0,
            optimizer="rmsprop",
        ),
    )
