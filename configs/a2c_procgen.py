"""A game of Procgen with A2C, on 200 levels, evaluated on these and on unseen ones.

    python -m jaxrl_scale.train --config configs/a2c_procgen.py
    python -m jaxrl_scale.train --config configs/a2c_procgen.py --env=StarpilotEasy-v0

What A2C shares with PPO is as in `configs/procgen.py`. There are no published A2C figures whose
options could be taken: rollouts of 16 steps make 1,024 samples a gradient step, and the schedule,
the optimizer and the learning rate are PPO's. Evaluations and checkpoints come after as many steps
as there.

Not tried: a whole run of this config, on any game, and other options.
"""

from jaxrl_scale.algos import a2c
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="CoinrunEasy-v0",
        env_kwargs={"num_levels": 200, "start_level": 0},
        test_env_kwargs={"num_levels": 0},
        network="nature",
        num_envs=64,
        rollout_length=16,
        total_steps=5_000_000,
        restart_every=1600,
        log_every=16,
        eval_every=320,
        eval_episodes=64,
        eval_greedy=False,
        checkpoint_every=80,
        algo=a2c.Config(
            learning_rate=5e-4,
            lr_schedule="constant",
            gamma=0.999,
            gae_lambda=0.95,
            entropy_coef=0.01,
            normalize_advantages=True,
            scale_rewards=True,
        ),
    )
