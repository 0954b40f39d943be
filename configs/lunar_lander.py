"""LunarLander-v3 with PPO: land softly between two flags.

    python -m jaxrl_scale.train --config configs/lunar_lander.py

Training takes 3,000,000 steps, which are 12 seconds on two cores after a compilation of 10. The
return is then about 284; three of 64 agents end below 260 (218, 229 and 245). In real Gymnasium the
first 16 have 284, and their worst 240. After 2,000,000 steps six of the 64 were below 260 (193 at
worst), because they had hovered for long and were still getting better. A discount close to 1 is
important, because fuel is cheap and an episode takes 200 steps.

What makes agents fail is hovering. At 300,000 steps many have learned that a crash costs 100, and
stay in the air until the time limit. They land once they know that hovering costs as much in the
long run. That spreads through their own values, by about a rollout's length with each iteration,
which is probably why many short iterations with many gradient steps help. Agents whose episodes
still had over 900 steps after 650,000 to 700,000 steps: none of 16 with these settings (when the
environment's step rounded otherwise), three of 20 with 256 environments (the worst hovered at a
million steps, too; it was stopped then), and one of 4 with 256 environments and twice the learning
rate. With 512 environments, minibatches of 2,048 and
5,000,000 steps seeds 3 and 15 hovered for over a third of the run; they ended at 153 and -39.
"""

from jaxrl_scale.algos import ppo
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="LunarLander-v3",
        num_envs=128,
        rollout_length=64,
        total_steps=3_000_000,
        algo=ppo.Config(
            learning_rate=1e-3,
            gamma=0.999,
            gae_lambda=0.98,
            epochs=4,
            minibatch_size=512,
            entropy_coef=0.0,
            normalize_observations=True,
            scale_rewards=True,
        ),
    )
