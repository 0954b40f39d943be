"""A game of Procgen with PPO, on 200 levels, evaluated on these and on unseen ones.

    python -m jaxrl_scale.train --config configs/procgen.py
    python -m jaxrl_scale.train --config configs/procgen.py --env=StarpilotEasy-v0

The options are those with which openai/train-procgen made the published figures
(https://arxiv.org/abs/1912.01588, appendix D), but for two: there are 64 environments in all, where
four processes had 64 each, and the network is the Nature CNN, since the ResNet of the published
figures (`--network=impala_resnet`) takes seven to ten times as long on a CPU. The published runs
take 25 million steps; this config stops after 5 million, about 50 minutes on two cores. Its
learning rate is constant, so that a longer run begins like a shorter one: `--resume RUN_DIR
--total_steps=25e6` goes on.

`eval_normalized` is the score on the 200 levels, `test_normalized` that on all levels that there
are, of which nearly all are new.

Tried, always with rollouts of 64 steps and minibatches of 512, so with four times the gradient
steps (returns are the mean of the last 100 training episodes):

- Coinrun, two epochs, three seeds: 5.4 in the beginning, 6.9 after 200,000 steps each, and no
  higher until 490,000, where evaluation gives 6.8 on the 200 levels and 6.7 on all;
- Starpilot, three seeds: from 1.5 to 3.2 after 300,000 steps each with three epochs, and to 3.1
  after 365,000 with one, in less than half the time;
- Starpilot without backgrounds (`use_backgrounds=false`), three seeds, three epochs: from 1.3 to
  5.2 in 800,000 steps each, half an hour for all three; docs/environments.md has the curves;
- FruitBot, one seed, three epochs: from -2.3 to -0.7 in less than a million steps.

The original paper found the Nature CNN unable to learn many of these games. Not tried: a whole
run, and one with the ResNet.
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
