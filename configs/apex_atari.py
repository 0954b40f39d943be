"""A game of Atari with Ape-X.

    python -m jaxrl_scale.train --config configs/apex_atari.py
    python -m jaxrl_scale.train --config configs/apex_atari.py --env=Breakout-v5

The options are those of the paper (https://arxiv.org/abs/1803.00933, appendix C: n = 3, α = 0.6,
β = 0.4, ε = 0.4 with a ladder of 7, a target network that is copied every 2,500 gradient steps,
gradients of at most 40), but for the scale: 64 environments where the paper has 360, a gradient
step for every 16 environment steps, and a replay of 65,536 steps where the paper has 2 million. A
step is 84 × 84 × 4 bytes, so that the replay takes 1.85 GB, and as much again while it is saved.
With `--algo.replay_size=1048576` it would take 30 GB. The learning rate and ε are Adam's of Rainbow
(https://arxiv.org/abs/1710.02298); Ape-X has RMSProp. The protocol is the preset `dqn` of
docs/environments.md, where the agent has to press FIRE by itself.

Not tried: a whole run of this config, on any game, and other options.
"""

from jaxrl_scale.algos import apex
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="Pong-v5",
        env_kwargs={"preset": "dqn"},
        network="nature",
        num_envs=64,
        rollout_length=4,
        total_steps=10_000_000,
        restart_every=5000,
        log_every=50,
        eval_episodes=32,
        checkpoint_every=2000,
        keep_checkpoints=1,
        algo=apex.Config(
            lag=1,
            learning_rate=6.25e-5,
            lr_schedule="constant",
            gamma=0.99,
            n_step=3,
            batch_size=256,
            updates_per_iteration=16,
            replay_size=65_536,
            learning_starts=20_000,
            target_period=2500,
            tau=1.0,
            max_grad_norm=40.0,
            optimizer_epsilon=1.5e-4,
        ),
    )
