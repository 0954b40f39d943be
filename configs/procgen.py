"""A game of Procgen with PPO, on 200 levels, evaluated on these and on unseen ones.

    python -m jaxrl_scale.train --config configs/procgen.py
    python -m jaxrl_scale.train --config configs/procgen.py --env=StarpilotEasy-v0

The numbers are for two cores of a CPU, where 5 million steps of Coinrun take about 50 minutes: the
Nature CNN, and 64 environments with rollouts of 64 steps in eight gradient steps of 512 samples,
three times. Everything else is as in openai/train-procgen, which made the published figures
(https://arxiv.org/abs/1912.01588, appendix D) in 25 million steps with a larger network and larger
batches. Nearer to it, and ten times as slow on a CPU, are

    --network=impala_resnet --rollout_length=256 --algo.minibatch_size=2048 --total_steps=25e6

There, four processes had 64 environments each, and so four times the samples in each gradient step.
The learning rate is constant, so that a longer run begins like a shorter one:
`--resume RUN_DIR --total_steps=25e6` goes on.

`eval_normalized` is the score on the 200 levels, `test_normalized` that on all levels that there
are, of which nearly all are new.

Not tried: a whole run of this config, on any game.
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
        rollout_length=64,
        total_steps=5_000_000,
        restart_every=400,
        log_every=4,
        eval_every=80,
        eval_episodes=64,
        checkpoint_every=20,
        algo=ppo.Config(
            learning_rate=5e-4,
            lr_schedule="constant",
            gamma=0.999,
            gae_lambda=0.95,
            epochs=3,
            minibatch_size=512,
            clip_epsilon=0.2,
            clip_value=True,
            entropy_coef=0.01,
            scale_rewards=True,
        ),
    )
