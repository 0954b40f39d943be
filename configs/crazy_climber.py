"""CrazyClimber seen at 42 x 42 pixels: a game of Atari that a computer without a GPU learns soon.

    python -m jaxrl_scale.train --config configs/crazy_climber.py
    python -m jaxrl_scale.evaluate RUN_DIR --video climber.gif --games 4

The protocol is the preset `ppo` of docs/environments.md with images of half the size, for which the
Nature CNN takes a ninth of the arithmetic. Beside `configs/atari.py` there are twice the
environments and the learning rate, and three epochs instead of four.

An agent takes 700,000 steps (2.8 million frames). Random actions score 10,780, and the people of
Mnih et al. (2015) 35,829. All of three agents learned (`--num_seeds=3`, 30 minutes on two cores,
beside other work): their last 100 training games score 52,300, 44,400 and 44,000, and 16 further
games of each, with sampled actions, 39,400 to 62,300, 50,500 in the mean. With the most probable
actions they score only 3,100 to 11,100, hence `eval_greedy=False`.

Tried: the same options for Pong did not move the score from -20.3 in 700,000 steps, three seeds.
`configs/pong.py` has what Pong needs.
"""

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="CrazyClimber-v5",
        env_kwargs={"preset": "ppo", "img_height": 42, "img_width": 42},
        network="nature",
        num_envs=16,
        num_shards=2,
        rollout_length=128,
        total_steps=700_000,
        restart_every=1000,
        log_every=5,
        eval_every=0,
        eval_episodes=16,
        eval_greedy=False,
        checkpoint_every=50,
        algo=ppo.Config(
            learning_rate=5e-4,
            epochs=3,
            minibatch_size=256,
            clip_epsilon=0.2,
            clip_value=True,
            entropy_coef=0.01,
        ),
    )
