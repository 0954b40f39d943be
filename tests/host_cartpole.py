"""A small environment on the host: CartPole in plain Python, stepped by threads."""

import math
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from jaxrl_scale.types import Box, Discrete, EnvSpec, HostStep

LIMIT = 0.2095, 2.4  # rad, m


class Pole:
    """One environment, with auto-reset on the next step."""

    def __init__(self, seed, lives, limit):
        self.random, self.lives, self.limit = random.Random(int(seed)), lives, limit
        self.left = 0  # lives of the game at hand
        self.begin()

    def begin(self):
        self.state = [self.random.uniform(-0.05, 0.05) for _ in range(4)]
        self.ended, self.age = False, 0
        if self.left == 0:
            self.left = self.lives
        return self.seen(0.0)

    def step(self, action):
        if self.ended:
            obs, *_ = self.begin()
            return obs, 99.0, True, True, 99.0, True, 99.0  # which mean nothing
        x, x_dot, theta, theta_dot = self.state
        force = (10.0 if action else -10.0) + 0.05 * theta_dot**2 * math.sin(theta)
        angular = 9.8 * math.sin(theta) - math.cos(theta) * force / 1.1
        angular /= 0.5 * (4 / 3 - 0.1 * math.cos(theta) ** 2 / 1.1)
        linear = (force - 0.05 * angular * math.cos(theta)) / 1.1
        self.state = [
            x + 0.02 * x_dot,
            x_dot + 0.02 * linear,
            theta + 0.02 * theta_dot,
            theta_dot + 0.02 * angular,
        ]
        self.age += 1
        fell = abs(self.state[2]) > LIMIT[0] or abs(self.state[0]) > LIMIT[1]
        cut = not fell and self.age == self.limit
        self.ended = fell or cut
        self.left -= fell
        self.left = 0 if cut else self.left
        return self.seen(1.0, fell, cut, self.ended and self.left == 0)

    def seen(self, reward, terminated=False, truncated=False, game_over=False):
        obs, score = np.float32(self.state), 2 * reward
        return obs, reward, terminated, truncated, score, game_over, self.state[2]


class Poles:
    """A simulator."""

    alive = 0  # simulators that were made and not closed

    def __init__(self, env, seeds, num_threads):
        self.poles = [Pole(seed, env.lives, env.limit) for seed in seeds]
        self.env, self.steps, self.closed = env, 0, False
        self.threads = ThreadPoolExecutor(num_threads, thread_name_prefix="poles")
        Poles.alive += 1

    def reset(self):
        return np.stack([np.float32(pole.state) for pole in self.poles])

    def send(self, action):
        if isinstance(self.env.spec.action, Box):
            assert action.dtype == np.float32
            action = action[:, 0] > 0
        else:
            assert action.dtype == np.int32
        self.steps += 1
        self.underway = [
            self.threads.submit(self.step, *each) for each in zip(self.poles, action, strict=True)
        ]

    def step(self, pole, action):
        if self.steps == self.env.breaks_at:
            raise RuntimeError("a pole broke")
        return pole.step(action)

    def receive(self):
        *columns, angles = zip(*(each.result() for each in self.underway), strict=True)
        info = {"counted": np.ones(len(angles), bool), "angle": np.array(angles)}
        return HostStep(*map(_array, HostStep._fields, columns), info)

    def close(self):
        Poles.alive -= not self.closed
        self.closed = True
        self.threads.shutdown()


def _array(name, column):
    dtypes = {"obs": np.float32, "reward": np.float32, "score": np.float32}
    return np.stack([np.asarray(x, dtypes.get(name, bool)) for x in column])


class HostCartPole:
    """A score is twice the reward, a game has ``lives``, and each step tells the ``angle`` and a 1.
    ``actions``: how many, of which the last two are told apart; 0: one number, which pushes right
    where it is above 0."""

    def __init__(self, lives: int = 1, limit: int = 500, breaks_at: int = 0, actions: int = 2):
        self.lives, self.limit, self.breaks_at = lives, limit, breaks_at
        action = Discrete(actions) if actions else Box(-1.0, 1.0, (1,))
        self.spec = EnvSpec("HostCartPole", (4,), action, info=("angle", "counted"))

    def simulate(self, seeds, num_threads):
        return Poles(self, seeds, num_threads)

    def facts(self):
        return {"poles": "2.0"}
