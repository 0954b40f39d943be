"""A trained agent in Python: the keys it draws from and the precision it computes with."""

import collections
import re

import jax
import numpy as np
import pytest
from test_evaluate import untrained
from test_randomness import Recorder

from jaxrl_scale import Config
from jaxrl_scale.loop.agent import Agent
from jaxrl_scale.parallel.sums import local_pool


class Filmed(Recorder):
    def render(self, state):
        return np.zeros((2, 2, 3), np.uint8)


def test_no_key_of_a_recorded_episode_is_used_twice():
    recorder = Filmed()
    algo = recorder.make(None, recorder.spec, local_pool(1))
    agent = Agent(Config(), recorder, algo, np.zeros(1), iteration=0)
    frames = agent.record(seed=3)
    jax.effects_barrier()
    used = collections.Counter(who for users in recorder.users.values() for who in users)
    assert len(frames) == 3  # an episode has two steps
    assert used["play"] == 2
    assert used["step"] == 2
    assert {key: users for key, users in recorder.users.items() if len(users) > 1} == {}


def precisions(text):
    """Of the products in a program's text."""
    return set(re.findall(r"stablehlo.dot_general.*precision = \[(\w+), (\w+)\]", text))


@pytest.mark.parametrize("precision", ["highest", "default"])
def test_an_agent_acts_with_the_precision_of_its_run(precision, monkeypatch):
    agent = untrained(matmul_precision=precision)
    programs = []
    compiled = agent._compiled_act

    def lower(*args):
        programs.append(compiled.lower(*args).as_text())
        return compiled(*args)

    monkeypatch.setattr(agent, "_compiled_act", lower)
    agent.act(np.zeros(4))
    assert jax.config.values["jax_default_matmul_precision"] is None
    (text,) = programs
    assert precisions(text) == {(precision.upper(), precision.upper())}


def test_an_agent_acts_in_32_bit_numbers_whatever_is_set_in_jax():
    agent = untrained()
    obs = np.random.default_rng(0).normal(size=(64, 4))
    sampled = agent.act(obs, greedy=False)
    agent.reset()
    with jax.enable_x64(True):
        assert (agent.act(obs, greedy=False) == sampled).all()


def test_an_agent_is_evaluated_with_the_precision_of_its_run(monkeypatch):
    from jaxrl_scale.loop import evaluator

    seen = []

    def play(*_):
        seen.append(jax.config.jax_default_matmul_precision)
        return np.zeros((1, 1))

    monkeypatch.setattr(evaluator.Evaluator, "__call__", play)
    untrained(matmul_precision="high").evaluate(episodes=1)
    assert seen == ["high"]
