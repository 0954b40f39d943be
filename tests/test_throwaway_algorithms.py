"""Other kinds of algorithm fit the loop: its runner carries memory and replay."""

import re
from collections import namedtuple
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from running import differing, run, runner_of, small

from jaxrl_scale.errors import RunError
from jaxrl_scale.types import Algorithm


class Shared(NamedTuple):
    params: Any
    optimizer: Any
    observation: None = None


def make_recurrent(config, spec, pool):
    """REINFORCE with an Elman network: enough to need its memory and the resets of it."""
    size, rate = 16, 0.03

    def cell(params, carry, obs, is_first):
        carry = jnp.where(is_first[..., None], 0.0, carry)
        carry = jnp.tanh(obs @ params["in"] + carry @ params["memory"])
        return carry, carry @ params["out"]

    def init_shared(key, options):
        keys = jax.random.split(key, 3)
        params = {
            "in": jax.random.normal(keys[0], (*spec.observation_shape, size)),
            "memory": jax.random.normal(keys[1], (size, size)) / 4,
            "out": jax.random.normal(keys[2], (size, 2)) / 4,
        }
        return Shared(params, optax.adam(rate).init(params))

    def act(actor, local, carry, obs, is_first, key, greedy=False):
        carry, logits = cell(actor, carry, obs, is_first)
        return logits.argmax(-1) if greedy else jax.random.categorical(key, logits), carry, logits

    def update(shared, local, rollout, key, time):
        params, opt_state, _ = shared
        flat, unravel = jax.flatten_util.ravel_pytree(params)

        def shard_loss(flat, rollout):
            def unroll(carry, step):
                return cell(unravel(flat), carry, *step)

            _, logits = jax.lax.scan(
                unroll, rollout.carry, (rollout.obs[:-1], rollout.is_first[:-1])
            )
            # The replayed memory must be that of acting: same carry, same resets.
            drift = jnp.abs(logits - rollout.extras).max()

            def to_go(total, step):
                reward, is_next_first = step
                total = reward + jnp.where(is_next_first, 0.0, total)
                return total, total

            ended = rollout.terminated | rollout.truncated
            _, credit = jax.lax.scan(
                to_go, jnp.zeros(ended.shape[1]), (rollout.reward, ended), reverse=True
            )
            chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), rollout.action[..., None], -1)[
                ..., 0
            ]
            return -jnp.where(rollout.valid, chosen * credit, 0.0).mean(), {"drift": drift}

        gradient, metrics = pool.grad(shard_loss, flat, rollout)
        step, opt_state = optax.adam(rate).update(unravel(gradient), opt_state)
        return Shared(optax.apply_updates(params, step), opt_state), local, metrics

    return Algorithm(
        init_shared=init_shared,
        init_local=lambda key, shard: jnp.zeros(()),
        init_carry=lambda num_envs: jnp.zeros((num_envs, size)),
        actor=lambda shared, time: shared.params,
        act=act,
        outputs=lambda *_: {},
        update=update,
    )


@pytest.mark.quickly
def test_a_recurrent_policy_goes_through_the_loop_and_remembers(monkeypatch):
    config = small(devices=2, iterations=150)
    state, history = run(config, probes.Memory(), algo=make_recurrent, monkeypatch=monkeypatch)
    late = history[-10:]
    mean = sum(m["total_return"][0] for m in late) / sum(m["ended"][0] for m in late)
    assert mean > 0.8  # 0 without memory, or with one that outlives its episode
    assert max(m["drift"][0] for m in history) < 1e-4
    assert state.local.carry.shape == (1, 8, 8, 16)


class Replay(NamedTuple):
    """A ring of one shard."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    filled: jax.Array


def make_replay(config, spec, pool):
    """One-step Q-learning of immediate rewards from a replay ring of each shard."""
    capacity = 4 * config.rollout_length * config.envs_per_shard

    def q(params, obs):
        return jnp.tanh(obs @ params["in"]) @ params["out"]

    def init_shared(key, options):
        return Shared({"in": jax.random.normal(key, (1, 8)), "out": jnp.zeros((8, 2))}, ())

    def init_local(key, shard):
        return Replay(
            jnp.zeros((capacity, 1)),
            jnp.zeros(capacity, jnp.int32),
            jnp.zeros(capacity),
            jnp.zeros((), jnp.int32),
        )

    def act(actor, local, carry, obs, is_first, key, greedy=False):
        explore, choice = jax.random.split(key)
        best = q(actor, obs).argmax(-1)
        random = jax.random.randint(choice, best.shape, 0, 2)
        exploring = jax.random.bernoulli(explore, 0.3, best.shape) & (not greedy)
        return jnp.where(exploring, random, best), (), ()

    def insert(local, rollout):
        n = rollout.valid.size
        at = (local.filled + jnp.cumsum(rollout.valid.reshape(-1)) - 1) % capacity
        at = jnp.where(rollout.valid.reshape(-1), at, capacity)  # masked: dropped
        return Replay(
            local.obs.at[at].set(rollout.obs[:-1].reshape(n, 1), mode="drop"),
            local.action.at[at].set(rollout.action.reshape(n), mode="drop"),
            local.reward.at[at].set(rollout.reward.reshape(n), mode="drop"),
            local.filled + rollout.valid.sum(dtype=jnp.int32),
        )

    def update(shared, local, rollout, key, time):
        local = pool.map(insert, local, rollout)
        flat, unravel = jax.flatten_util.ravel_pytree(shared.params)

        def shard_loss(flat, index, local):
            shard_key = jax.random.fold_in(key, index)
            size = jnp.minimum(local.filled, capacity)
            pick = jax.random.randint(shard_key, (64,), 0, size)
            predicted = q(unravel(flat), local.obs[pick])[jnp.arange(64), local.action[pick]]
            return jnp.square(predicted - local.reward[pick]).mean(), {}

        gradient, _ = pool.grad(shard_loss, flat, pool.shard_index(), local)
        params = unravel(flat - 0.05 * gradient)
        return Shared(params, ()), local, {"grad": jnp.abs(gradient).max()}

    return Algorithm(
        init_shared=init_shared,
        init_local=init_local,
        init_carry=lambda num_envs: (),
        actor=lambda shared, time: shared.params,
        act=act,
        outputs=lambda *_: {},
        update=update,
    )


def test_a_replay_buffer_goes_through_the_loop_and_is_learnt_from(monkeypatch):
    config = small(iterations=60)
    state, _ = run(
        config.replace(devices=1), probes.Both(), algo=make_replay, monkeypatch=monkeypatch
    )
    assert (state.local.algo.filled > 200).all()
    params = jax.tree.map(lambda x: x[0], state.shared.algo.params)
    values = np.tanh(np.asarray([[-1.0], [1.0]]) @ params["in"]) @ params["out"]
    np.testing.assert_array_equal(values.argmax(-1), [0, 1])
    # Replay is a shard's own, so it too is the same on any number of devices.
    other, _ = run(
        config.replace(devices=4), probes.Both(), algo=make_replay, monkeypatch=monkeypatch
    )
    assert differing(state, other) == []


@pytest.mark.quickly
@pytest.mark.parametrize("make", [make_recurrent, make_replay])
def test_throwaway_algorithms_train_as_a_population_too(make, monkeypatch):
    config = small(num_seeds=2, devices=2, iterations=2)
    state, history = run(config, probes.Both(), algo=make, monkeypatch=monkeypatch)
    assert history[0]["steps"].shape == (2,)
    leaf = jax.tree.leaves(state.shared.algo)[0]
    assert (leaf[0] != leaf[1]).any()


def changed(**functions):
    """The algorithm with a replay buffer, with what some of its functions return changed."""

    def make(config, spec, pool):
        algo = make_replay(config, spec, pool)

        def wrapped(name):
            return lambda *args: functions[name](*getattr(algo, name)(*args))

        return algo._replace(**{name: wrapped(name) for name in functions})

    return make


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda action: action.astype(jnp.float32), r"shape \(8,\) and dtype float32"),
        (lambda action: action == 1, r"shape \(8,\) and dtype bool"),
        (lambda action: action[:, None], r"shape \(8, 1\) and dtype int32"),
        (lambda action: action[0], r"shape \(\) and dtype int32"),
        (lambda action: None, "of type NoneType"),
    ],
)
def test_actions_that_are_not_those_of_the_environment_are_an_error(change, found, monkeypatch):
    algo = changed(act=lambda action, *rest: (change(action), *rest))
    error = rf"action of the algorithm is .*{found}; it should be one of shape \(8,\) and .*int32"
    with pytest.raises(RunError, match=error):
        runner_of(small(devices=1), probes.Both(), algo, monkeypatch)


@pytest.mark.parametrize(
    ("function", "change", "told"),
    [
        (
            "update",
            lambda s, r, m: (s, r),
            "returned a tuple of 2; it should return (shared, local",
        ),
        ("update", lambda s, r, m: (s, r, tuple(m)), "returned metrics of type tuple, no dict"),
        ("init_shared", lambda *s: s, "returned a tuple without params"),
        ("init_shared", lambda *s: namedtuple("Bare", "params")(s), "a Bare without observation"),
        ("act", lambda *x: list(x), "returned a list; it should return (action, carry, extras)"),
        (
            "act",
            lambda a, c, e: (a, c, "text"),
            "returned extras of type str for a batch of 8",
        ),
        ("act", lambda a, c, e: (a, c, a[:3]), "returned extras an array of shape (3,) and dtype"),
        ("act", lambda a, c, e: (a, a, e), "given carry () and returned int32[8]; they should be"),
        ("update", lambda s, r, m: (s.params, r, m), "given shared Shared(params={'in': float32"),
        (
            "update",
            lambda s, r, m: (s, r._replace(filled=r.filled + 0.5), m),
            "given local/filled int32[8] and returned float32[8]; they should be alike",
        ),
        (
            "update",
            lambda s, r, m: (s._replace(params=s.params | {"in": jnp.zeros(2)}), r, m),
            "given shared/params/in float32[1,8] and returned float32[2]; they should be alike",
        ),
    ],
)
def test_what_a_function_of_an_algorithm_should_not_return_is_an_error(
    function, change, told, monkeypatch
):
    with pytest.raises(RunError, match=f"^{function} of the algorithm .*{re.escape(told)}"):
        runner_of(small(devices=1), probes.Both(), changed(**{function: change}), monkeypatch)


def test_a_metric_without_a_name_is_an_error(monkeypatch):
    algo = changed(update=lambda shared, local, metrics: (shared, local, metrics | {3: 0.0}))
    with pytest.raises(RunError, match=r"^metric 3 of the algorithm should have a text for"):
        runner_of(small(devices=1), probes.Both(), algo, monkeypatch)


def test_a_key_in_the_state_of_an_algorithm_is_an_error(monkeypatch):
    algo = changed(init_local=lambda *local: Replay(jax.random.key(0), *local[1:]))
    with pytest.raises(RunError, match=r"^local/algo/obs is a key; keep its words"):
        runner_of(small(devices=1), probes.Both(), algo, monkeypatch)


def test_an_empty_array_in_the_state_of_an_algorithm_is_an_error(monkeypatch):
    empty = jnp.zeros((8, 0))
    algo = changed(init_carry=lambda: empty, act=lambda action, _, extras: (action, empty, extras))
    with pytest.raises(RunError, match=r"^local/carry is an empty array; leave it out"):
        runner_of(small(devices=1), probes.Both(), algo, monkeypatch)


@pytest.mark.parametrize(
    "name",
    [
        "return",
        "steps",
        "env_steps",
        "param_norm",
        "env/x",
        "env_end/x",
        "eval_env/x",
        "test_env_end/x",
    ],
)
def test_a_metric_with_the_name_of_a_number_of_the_run_is_an_error(name, monkeypatch):
    algo = changed(
        update=lambda shared, local, metrics: (shared, local, {name: metrics["grad"]}),
    )
    with pytest.raises(RunError, match=f"metric '{name}' of the algorithm has the name of a numb"):
        runner_of(small(devices=1), probes.Both(), algo, monkeypatch)
