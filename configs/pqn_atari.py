"""A game of Atari with PQN.

    python -m jaxrl_scale.train --config configs/pqn_atari.py
    python -m jaxrl_scale.train --config configs/pqn_atari.py --env=Breakout-v5

The options are those of the authors' `pqn_atari.yaml` (https://arxiv.org/abs/2407.04811,
mttga/purejaxql): 128 environments, 32 steps, 32 minibatches, 2 epochs, λ = 0.65. They take 50
million steps (200 million frames) and explore in the first tenth of them; this config stops after
10 million, so that this is half of it. The optimizer differs: theirs is RAdam, here it is Adam.
The protocol is the preset `ppo` of docs/environments.md.

Not tried: a whole run of this config, on any game.
"""

from jaxrl_scale.algos import pqn
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="Pong-v5",
        env_kwargs={"preset": "ppo"},
        network="nature",
        num_envs=128,
        rollout_length=32,
        total_steps=10_000_000,
        restart_every=250,
        log_every=5,
        eval_episodes=32,
        checkpoint_every=25,
        algo=pqn.Config(
            learning_rate=2.5e-4,
            lr_schedule="constant",
            gamma=0.99,
            return_lambda=0.65,
            epsilon_end=0.001,
            exploration_fraction=0.5,
            epochs=2,
            minibatch_size=128,
            max_grad_norm=10.0,
        ),
    )
