"""PPO on Acrobot with deliberately poor numbers, from which a search starts (README.md here).

    python -m jaxrl_scale.train --config benchmarks/poor_acrobot.py

Training takes 300,000 steps and learns nothing.
"""

import dataclasses

from jaxrl_scale.config import Config
from jaxrl_scale.config.files import shipped


def get_config() -> Config:
    config = shipped("Acrobot-v1")
    poor = {
        "learning_rate": 1e-5,
        "entropy_coef": 0.1,
        "gae_lambda": 0.5,
        "gamma": 0.9,
        "clip_epsilon": 0.05,
        "max_grad_norm": 0.1,
    }
    return dataclasses.replace(
        config, total_steps=300_000, algo=dataclasses.replace(config.algo, **poor)
    )
