"""A game of Procgen with IMPALA, on 200 levels, evaluated on these and on unseen ones.

    python -m jaxrl_scale.train --config configs/impala_procgen.py
    python -m jaxrl_scale.train --config configs/impala_procgen.py --env=StarpilotEasy-v0

The actors are one iteration behind. What IMPALA shares with PPO is as in `configs/procgen.py`. The
rollouts have 64 steps, in two gradient steps of 2,048 samples, and one epoch, as in the paper
(https://arxiv.org/abs/1802.01561), whose other options were for other games. Evaluations and
checkpoints come after as many steps as there.

Not tried: a whole run of this config, on any game, and other options.
"""

from jaxrl_scale.algos import impala
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
        eval_greedy=False,
        checkpoint_every=20,
        algo=impala.Config(
            lag=1,
            vtrace_lambda=0.95,
            learning_rate=5e-4,
            lr_schedule="constant",
            gamma=0.999,
            epochs=1,
            minibatch_size=2048,
            entropy_coef=0.01,
            scale_rewards=True,
        ),
    )
