"""MemoryChain (bsuite, by gymnax) with recurrent PPO: act on what was shown at the beginning.

    python -m jaxrl_scale.train --config configs/memory_chain.py

400,000 steps; the return is 1, the highest there is, with each of 8 seeds, and 0 (chance) without
the memory, `--algo.recurrent=false`. With 3 bits to remember instead of 1, a million steps end at
0.7: two of them are kept.
"""

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="gymnax:MemoryChain-bsuite",
        env_kwargs={"memory_length": 20, "num_bits": 1},
        hidden_sizes=(64,),
        num_envs=128,
        rollout_length=64,
        total_steps=400_000,
        target_return=0.95,
        algo=ppo.Config(
            recurrent=True,
            learning_rate=2e-3,
            gae_lambda=0.95,
            epochs=4,
            minibatch_size=2048,
            entropy_coef=0.01,
        ),
    )
