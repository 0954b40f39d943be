"""Train PPO of Stable-Baselines3 in real Gymnasium, for the way back of the transfer test.

Stable-Baselines3 (and with it PyTorch) is kept out of this project's dependencies: give it an
environment of its own, then let `benchmarks/lunar_lander.py --policy` fly what it learnt.

    python -m venv /tmp/sb3 && /tmp/sb3/bin/pip install stable-baselines3 "gymnasium[box2d]"
    /tmp/sb3/bin/python benchmarks/sb3_lunar_lander.py --out sb3.npz

Hyper-parameters are those of the RL Baselines3 Zoo. One million steps take about ten minutes
on one core. The file holds the layers of the greedy policy: ``w0, b0, w1, b1, w2, b2``, tanh
between them, the action being the argmax of the last.
"""

from __future__ import annotations

import argparse

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="sb3.npz", help="the file to write")
    parser.add_argument("--steps", type=int, default=1_000_000, help="environment steps")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)
    env = make_vec_env(lambda: gymnasium.make("LunarLander-v3"), n_envs=16, seed=args.seed)
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=1024,
        batch_size=64,
        gae_lambda=0.98,
        gamma=0.999,
        n_epochs=4,
        ent_coef=0.01,
        seed=args.seed,
        device="cpu",
    )
    model.learn(args.steps)
    layers = [*model.policy.mlp_extractor.policy_net[::2], model.policy.action_net]
    arrays = {}
    for number, layer in enumerate(layers):
        arrays[f"w{number}"] = layer.weight.detach().numpy().T
        arrays[f"b{number}"] = layer.bias.detach().numpy()
    np.savez(args.out, **arrays)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
