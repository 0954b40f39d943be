"""A game of Atari with IMPALA, with actors that are one iteration behind.

    python -m jaxrl_scale.train --config configs/impala_atari.py
    python -m jaxrl_scale.train --config configs/impala_atari.py --env=Breakout-v5

The options are those of the paper for single games (https://arxiv.org/abs/1802.01561, appendix
G): 32 rollouts of 20 steps in a gradient step, RMSProp with a learning rate of 6e-4, which falls
to 0, an entropy bonus of 0.01. The paper adds the losses of the 640 samples up, and here they are
averaged, so that its longest gradient of 40 is divided by 640, and its ε of 0.01, which is added
to squares of gradients, by the square of 640. RMSProp's mean square begins at 1, as theirs did,
which here keeps the first 1,300 of 15,625 gradient steps short. It takes 50 million steps (200
million frames); this config stops after 10 million. The protocol is the preset `ppo` of
docs/environments.md.

Not tried: a whole run of this config, on any game.
"""

from jaxrl_scale.algos import impala
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="Pong-v5",
        env_kwargs={"preset": "ppo"},
        network="nature",
        num_envs=32,
        rollout_length=20,
        total_steps=10_000_000,
        restart_every=1500,
        log_every=20,
        eval_episodes=32,
        eval_greedy=False,
        checkpoint_every=200,
        algo=impala.Config(
            lag=1,
            learning_rate=6e-4,
            gamma=0.99,
            epochs=1,
            minibatch_size=640,
            entropy_coef=0.01,
            max_grad_norm=40 / 640,
            optimizer="rmsprop",
            optimizer_epsilon=0.01 / 640**2,
        ),
    )
