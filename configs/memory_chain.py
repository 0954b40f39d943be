"""MemoryChain (bsuite, from gymnax) with recurrent PPO: act on what the first observation showed.

    python -m jaxrl_scale.train --config configs/memory_chain.py

Training takes 400,000 steps. Each of 8 agents then reaches a return of 1, the maximum. Without the
memory (`--algo.recurrent=false`) the return is 0.05, where chance gives 0. With 3 bits to
remember instead of 1, a million steps end at 0.7: the agent then remembers two of the bits.
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
