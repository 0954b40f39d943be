"""Random numbers are random: no key is used for two things, in a whole run or in an algorithm."""

import collections
from typing import NamedTuple

import algorithms
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from running import runner_of, small, time_at
from scipy import stats

from jaxrl_scale import algos
from jaxrl_scale.config import Config
from jaxrl_scale.learning import permute
from jaxrl_scale.loop import threefry
from jaxrl_scale.loop.evaluator import Evaluator
from jaxrl_scale.loop.threefry import UNROLLED
from jaxrl_scale.options import traced
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.types import Algorithm, Box, Discrete, EnvSpec, TimeStep

AGENTS, SHARDS, ENVS, STEPS, ITERATIONS, EPISODES = 2, 2, 2, 3, 3, 4


class Shared(NamedTuple):
    params: jax.Array
    observation: None = None


class Recorder:
    """Everything that gets a key, as stubs that write down which; episodes have two steps."""

    spec = EnvSpec("Recorder", (1,), Discrete(2))

    def __init__(self):
        self.users = collections.defaultdict(list)  # the two words of a key: who was given it

    def note(self, who, key):
        """Also what a user may draw from: a key split or folded once more is another key, but
        two users who split one key would have the same numbers."""
        keys = {who: key}
        keys |= {f"{who}, split {i}": k for i, k in enumerate(jax.random.split(key))}
        for name, each in keys.items():
            jax.debug.callback(self._write, jax.random.key_data(each), name=name)

    def _write(self, words, name):
        self.users[tuple(np.asarray(words).tolist())].append(name)

    # --- an environment -----------------------------------------------------------------------

    def reset(self, key):
        self.note("reset", key)
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def step(self, key, state, action):
        self.note("step", key)
        no = jnp.zeros((), bool)
        return state + 1, TimeStep(jnp.zeros(1), jnp.float32(1), state + 1 >= 2, no)

    # --- an algorithm -------------------------------------------------------------------------

    def make(self, config, spec, pool):
        def init_shared(key, options):
            self.note("init_shared", key)
            return Shared(jnp.zeros(()))

        def init_local(key, shard):
            self.note("init_local", key)
            return jnp.zeros(())

        def act(actor, local, carry, obs, is_first, key, greedy=False):
            self.note("play" if local is None else "act", key)
            return jnp.zeros(len(obs), jnp.int32), carry, ()

        def update(shared, local, rolled, key, time):
            def shard(index, local):
                self.note("update", jax.random.fold_in(key, index))
                return local

            return shared, pool.map(shard, pool.shard_index(), local), {"loss": jnp.zeros(())}

        return Algorithm(
            init_shared=init_shared,
            init_local=init_local,
            init_carry=lambda num_envs: (),
            actor=lambda shared, time: shared,
            act=act,
            outputs=lambda *_: {},
            update=update,
        )


def test_no_key_of_a_run_is_used_twice(monkeypatch):
    """Not by two agents, shards, environments, steps or iterations; not for acting and learning,
    for a reset and a step, for training and evaluation."""
    config = small(
        num_envs=SHARDS * ENVS,
        num_shards=SHARDS,
        num_seeds=AGENTS,
        rollout_length=STEPS,
        devices=1,
        algo={"minibatch_size": SHARDS * ENVS * STEPS},
    )
    recorder = Recorder()
    runner = runner_of(config, recorder, recorder.make, monkeypatch)
    state = runner.init()
    for _ in range(ITERATIONS):
        state, _ = runner.step(state)
    evaluate = Evaluator(recorder, runner.algo, runner.placement, EPISODES, greedy=False)
    evaluate(runner.fetch_actor(state), runner.agents.seeds)
    jax.effects_barrier()

    used = collections.Counter(who for users in recorder.users.values() for who in users)
    each = AGENTS * SHARDS * ITERATIONS  # shards that collect and update
    steps = each * STEPS * ENVS + AGENTS * 2 * EPISODES
    # All begin together and end after two steps, so that every third step resets; those that end
    # in an evaluation are not reset any more.
    resets = each * STEPS * ENVS // 3 + AGENTS * (SHARDS * ENVS + EPISODES)
    assert used["init_shared"] == AGENTS
    assert used["init_local"] == AGENTS * SHARDS
    assert used["update"] == each
    assert used["act"] == each * STEPS
    assert used["play"] == AGENTS * 2
    assert (used["step"], used["reset"]) == (steps, resets)
    assert {key: users for key, users in recorder.users.items() if len(users) > 1} == {}


REPLAY = {"batch_size": 4, "updates_per_iteration": 1, "replay_size": 64, "learning_starts": 0}
SIZES = {
    "ppo": {"minibatch_size": 8},
    "pqn": {"minibatch_size": 8},
    "impala": {"minibatch_size": 16},
    "dqn": REPLAY,
    "apex": REPLAY,
    "sac": REPLAY,
}


@pytest.mark.parametrize("name", algos.names())
def test_beginning_and_acting_draw_once_from_each_key(name):
    """JAX itself follows the keys through a program. Among others: whether to explore and which
    action to take then are drawn from two keys."""
    config = Config(num_envs=64, hidden_sizes=(4,), algo=algos.get(name).Config())
    action = Box(-1.0, 1.0, (2,)) if name in algorithms.CONTINUOUS else Discrete(2)
    algo = algos.get(name).make(config, EnvSpec("any", (3,), action), local_pool(8))

    def act(key_shared, key_local, key_act):
        actor = algo.actor(algo.init_shared(key_shared, traced(config.algo)), time_at(0))
        local, carry = algo.init_local(key_local, 0), algo.init_carry(8)
        return algo.act(actor, local, carry, jnp.ones((8, 3)), jnp.ones(8, bool), key_act)

    with jax.debug_key_reuse(True):
        jax.jit(act)(*jax.random.split(jax.random.key(0), 3))


def test_shards_are_cut_into_minibatches_in_orders_of_their_own():
    orders = permute.minibatches(local_pool(4), jax.random.key(0), 64, 2, 4)  # [S, 2 * 4, 16]
    different = {row.tobytes() for row in np.asarray(orders).reshape(4 * 2, 64)}
    assert len(different) == 4 * 2


@pytest.mark.parametrize("n", [64, 96])
def test_where_a_sample_goes_says_nothing_of_where_another_one_goes(n):
    orders = np.asarray(permute.permutation(jax.random.key(0), n, 4000))
    for a, b in ((0, 1), (0, n // 2), (3, n - 1)):
        assert stats.chisquare(np.bincount(orders[:, a], minlength=n)).pvalue > 1e-4
        apart = (orders[:, a] - orders[:, b]) % n
        assert stats.chisquare(np.bincount(apart, minlength=n)[1:]).pvalue > 1e-4


DRAWS = {
    "split": lambda key: jax.random.key_data(jax.random.split(key, (3, 5))),
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 2**32 - 1)),
    "bits of 8": lambda key: jax.random.bits(key, (7,), "uint8"),
    "bits of 16": lambda key: jax.random.bits(key, (7,), "uint16"),
    "bits of 32": lambda key: jax.random.bits(key, (2, 3, 4)),
    "bits of 64": lambda key: jax.random.bits(key, (7,), "uint64"),
    "uniform": lambda key: jax.random.uniform(key),
    "randint": lambda key: jax.random.randint(key, (9,), -3, 4),
    "permutation": lambda key: jax.random.permutation(key, 100),
    "none": lambda key: jax.random.normal(key, (0,)),
    "of several": lambda key: jax.vmap(jax.random.normal)(jax.random.split(key, 17)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("seed", [0, 2**31 - 1])
def test_our_generator_has_the_bits_of_jax_own(seed, draw):
    with jax.enable_x64(True):
        ours, theirs = (
            jax.jit(lambda seed, impl=impl: draw(jax.random.key(seed, impl=impl)))(seed)
            for impl in (UNROLLED, "threefry2x32")
        )
    np.testing.assert_array_equal(ours, theirs, strict=True)


def test_the_bits_of_our_generator_are_computed_once_for_all_that_is_made_of_them():
    """On CPUs. XLA would compute them again in each of the four columns that are read."""

    def rounds(draw):
        def columns(keys):
            x = jax.vmap(lambda key: draw(key, 32, (4,)))(keys)
            return [x[:, i] >> i for i in range(4)]

        program = jax.jit(columns).lower(jnp.zeros((64, 2), jnp.uint32)).compile()
        return program.as_text().count(" shift-left(")

    assert rounds(threefry._walled_bits) == 20
    assert rounds(threefry._bits) == 4 * 20
