"""A game of Atari with PPO.

    python -m jaxrl_scale.train --config configs/atari.py
    python -m jaxrl_scale.train --config configs/atari.py --env=Breakout-v5

The options are those of CleanRL's `ppo_atari_envpool.py`
(https://docs.cleanrl.dev/rl-algorithms/ppo/), which takes 10 million steps (40 million frames) and
reaches 20.4 in Pong and 430 in Breakout. The protocol is the preset `ppo` of docs/environments.md.
There are four shards, so that each has two of the eight environments.

Not tried: a whole run of this config, on any game.
"""

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="Pong-v5",
        env_kwargs={"preset": "ppo"},
        network="nature",
        num_envs=8,
        num_shards=4,
        rollout_length=128,
        total_steps=10_000_000,
        restart_every=1000,
        log_every=10,
        eval_episodes=32,
        eval_greedy=False,
        checkpoint_every=100,
        algo=ppo.Config(
            learning_rate=2.5e-4,
            gamma=0.99,
            gae_lambda=0.95,
            epochs=4,
            minibatch_size=256,
            clip_epsilon=0.1,
            clip_value=True,
            entropy_coef=0.01,
        ),
    )
