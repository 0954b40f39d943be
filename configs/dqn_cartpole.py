"""CartPole-v1 with DQN: balance a pole on a cart.

    python -m jaxrl_scale.train --config configs/dqn_cartpole.py

Training takes 150,000 steps; 64 agents take 5 minutes together on one core. Of them 63 reach 490
or more (500 is the maximum), and one ends at 486. The long returns do that: with 5 steps instead
of 10, three of the 64 end below 490, the worst at 446; with 3 steps nine, the worst at 129; with 1
step, 23 of 32 others stay below 250. With 3 steps none of these helped: a wider or a dueling
network, a slower target network, more random actions, a replay of the whole run, half the learning
rate, twice the gradient steps. Without normalized observations, all four agents that were tried
stayed below 400.
"""

from jaxrl_scale.algos import dqn
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="CartPole-v1",
        num_envs=32,
        rollout_length=8,
        total_steps=150_000,
        target_return=475.0,
        log_every=20,
        activation="relu",
        algo=dqn.Config(
            learning_rate=1e-3,
            n_step=10,
            normalize_observations=True,
            batch_size=256,
            updates_per_iteration=16,
            replay_size=51_200,
            learning_starts=1_024,
            tau=0.01,
            epsilon_end=0.02,
            exploration_fraction=0.3,
        ),
    )
