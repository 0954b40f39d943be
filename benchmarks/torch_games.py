"""Throughput of a PPO script in PyTorch, in the manner of CleanRL, to set beside our own.

It is the loop of CleanRL's `ppo_atari_envpool.py` and `ppo_procgen.py`
(https://docs.cleanrl.dev/rl-algorithms/ppo/): one file, eager PyTorch, EnvPool's synchronous step,
the whole rollout as one float32 tensor, the Nature CNN in PyTorch's own layout. The sizes come from
the caller, so that both sides take the same. It needs an environment of its own (Python 3.11):

    python3.11 -m venv torch-venv
    torch-venv/bin/pip install torch numpy envpool==1.2.5
    torch-venv/bin/python benchmarks/torch_games.py '{"task": "Pong-v5", ...}'

Procgen needs Qt 5 there: a system's, or `pip install PyQt5-Qt5` with its `Qt5/lib` in
LD_LIBRARY_PATH. `games_throughput.py` calls it. What is timed are whole iterations after the first:
rollout, advantages and all gradient steps. Steps are valid ones: those that only reset do not
count.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import envpool
import numpy as np
import torch
from torch import nn
from torch.distributions.categorical import Categorical


def layer(module: nn.Module, scale: float = np.sqrt(2)) -> nn.Module:
    nn.init.orthogonal_(module.weight, scale)
    nn.init.constant_(module.bias, 0.0)
    return module


class Agent(nn.Module):
    """The Nature CNN with a policy and a value on top."""

    def __init__(self, shape: tuple[int, int, int], actions: int) -> None:
        super().__init__()
        convolutions = nn.Sequential(
            *(layer(nn.Conv2d(shape[0], 32, 8, stride=4)), nn.ReLU()),
            *(layer(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU()),
            *(layer(nn.Conv2d(64, 64, 3, stride=1)), nn.ReLU()),
            nn.Flatten(),
        )
        features = convolutions(torch.zeros(1, *shape)).shape[1]
        self.network = nn.Sequential(convolutions, layer(nn.Linear(features, 512)), nn.ReLU())
        self.actor = layer(nn.Linear(512, actions), 0.01)
        self.critic = layer(nn.Linear(512, 1), 1.0)

    def forward(self, obs: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        hidden = self.network(obs / 255.0)
        return Categorical(logits=self.actor(hidden)), self.critic(hidden).flatten()


def measure(task, options, num_envs, length, minibatch, epochs, clip, seconds, threads):
    """Steps a second of whole iterations: the median."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    envs = envpool.make_gymnasium(
        task, num_envs=num_envs, num_threads=threads, seed=list(range(num_envs)), **options
    )
    shape, actions = envs.observation_space.shape, envs.action_space.n
    agent = Agent(shape, actions)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    obs = torch.zeros((length, num_envs, *shape))
    action, logprob, reward, done, value = (torch.zeros((length, num_envs)) for _ in range(5))
    next_obs = torch.Tensor(envs.reset()[0])
    next_done = torch.zeros(num_envs)

    def iteration() -> int:
        nonlocal next_obs, next_done
        for t in range(length):
            obs[t], done[t] = next_obs, next_done
            with torch.no_grad():
                policy, value[t] = agent(next_obs)
                chosen = policy.sample()
                action[t], logprob[t] = chosen, policy.log_prob(chosen)
            seen, rewards, terminated, truncated, _ = envs.step(chosen.numpy().astype(np.int32))
            reward[t] = torch.tensor(rewards)
            next_obs, next_done = torch.Tensor(seen), torch.Tensor(terminated | truncated)
        with torch.no_grad():
            following, advantage, last = agent(next_obs)[1], torch.zeros_like(reward), 0
            for t in reversed(range(length)):
                going_on = 1.0 - (next_done if t == length - 1 else done[t + 1])
                after = following if t == length - 1 else value[t + 1]
                delta = reward[t] + 0.99 * after * going_on - value[t]
                advantage[t] = last = delta + 0.99 * 0.95 * going_on * last
            target = advantage + value
        flat = [
            x.reshape(-1, *x.shape[2:]) for x in (obs, action, logprob, advantage, target, value)
        ]
        order = np.arange(length * num_envs)
        for _ in range(epochs):
            np.random.shuffle(order)
            for start in range(0, len(order), minibatch):
                rows = order[start : start + minibatch]
                o, a, old, adv, goal, v = (x[rows] for x in flat)
                policy, new = agent(o)
                ratio = (policy.log_prob(a) - old).exp()
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                losses = -adv * ratio, -adv * torch.clamp(ratio, 1 - clip, 1 + clip)
                near = v + torch.clamp(new - v, -clip, clip)
                error = 0.5 * torch.max((new - goal) ** 2, (near - goal) ** 2).mean()
                loss = torch.max(*losses).mean() + 0.5 * error - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        return int((1 - done).sum())  # a step from an ended episode only resets

    iteration()
    speeds, began = [], time.perf_counter()
    while len(speeds) < 2 or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        steps = iteration()
        speeds.append(steps / (time.perf_counter() - start))
    return {"steps_per_second": statistics.median(speeds)}


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
