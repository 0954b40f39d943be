"""CartPole-v1 with PQN: balance a pole on a cart.

    python -m jaxrl_scale.train --config configs/pqn_cartpole.py

Training takes 300,000 steps; 64 agents take three minutes together on two cores. Of them 62 then
reach a return of 490 or more (500 is the maximum), and the other two 479 and 482. Half of the steps
explore less and less, and agents balance the pole by then. Some forget it later, probably because
gradients become so small that Adam makes large steps of the first larger one. So the learning
rate falls to 0, Adam's epsilon is large, and training ends early. With a constant rate, γ 0.99,
an epsilon of 1e-5 and 500,000 steps, nine of 32 end below 490 (λ 0.95) or five (λ 0.9).
"""

from jaxrl_scale.algos import pqn
from jaxrl_scale.config import Config


def get_config() -> Config:
    return Config(
        env="CartPole-v1",
        num_envs=64,
        rollout_length=32,
        total_steps=300_000,
        target_return=475.0,
        activation="relu",
        algo=pqn.Config(
            learning_rate=1e-3,
            lr_schedule="linear",
            gamma=0.995,
            return_lambda=0.95,
            epsilon_end=0.02,
            exploration_fraction=0.5,
            epochs=4,
            minibatch_size=256,
            optimizer_epsilon=1e-3,
            scale_rewards=True,
        ),
    )
