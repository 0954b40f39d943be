"""A game of Procgen with PPO, on 200 levels, evaluated on these and on unseen ones.

    python -m jaxrl_scale.train --config configs/procgen.py
    python -m jaxrl_scale.train --config configs/procgen.py --env=StarpilotEasy-v0

The options are those with which openai/train-procgen made the published figures
(https://arxiv.org/abs/1912.01588, appendix D), but for two: there are 64 environments in all, where
four processes had 64 each, and the network is the Nature CNN, since the ResNet of the published
figures (`--network=impala_resnet`) takes ten times as long on a CPU. The published runs take 25
million steps; this config stops after 5 million, about 50 minutes on two cores. Its learning rate
is constant, so that a longer run begins like a shorter one: `--resume RUN_DIR --total_steps=25e6`
goes on.

`eval_normalized` is the score on the 200 levels, `test_normalized` that on all levels that there
are, of which nearly all are new.

Tried: rollouts of 64 steps with minibatches of 512, so four times the gradient steps, with one seed
and less than a million steps. The mean return of the training episodes rose from 1.7 to 3.7 in
Starpilot, from -2.3 to -0.7 in FruitBot, and in Coinrun to 7 within 340,000 steps, and then no
further, while entropy and the length of the games rose again. Not tried: a whole run of this
config.
"""

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="CoinrunEasy-v0",
        env_kwargs={"num_levels": 200, "start_level": 0},
        test_env_kwargs={"num_levels": 0},
        network="nature",
        num_envs=64,
        rollout_length=256,
        total_steps=5_000_000,
        log_every=1,
        eval_every=20,
        eval_episodes=64,
        eval_greedy=False,
        checkpoint_every=5,
        algo=ppo.Config(
            learning_rate=5e-4,
            lr_schedule="constant",
            gamma=0.999,
            gae_lambda=0.95,
            epochs=3,
            minibatch_size=2048,
            clip_epsilon=0.2,
            clip_value=True,
            entropy_coef=0.01,
            scale_rewards=True,
        ),
    )
