"""What the tests of A2C, IMPALA and PQN share: all probe environments in one, random rollouts."""

import jax
import jax.numpy as jnp
import numpy as np
import probes

from jaxrl_scale.types import Box, Discrete, EnvSpec, MultiDiscrete, Rollout

GAMMA = 0.9
MIXED = (probes.Observation(), probes.Discount(), probes.Truncation(), probes.Both())


class Mixture:
    """Every episode is one of some probe environments, and is told which: what each of them
    isolates is still told apart by its own values, for one compilation instead of many. Of the
    `SPACES` of actions `meant` says which of them are action 1."""

    def __init__(self, kind="discrete"):
        self.spec = EnvSpec("Mixture", (len(MIXED) + 1,), SPACES[kind])

    def reset(self, key):
        key_kind, key = jax.random.split(key)
        kind = jax.random.randint(key_kind, (), 0, len(MIXED))
        states, obs = zip(*(env.reset(key) for env in MIXED), strict=True)
        return (kind, states), observed(kind, jnp.stack(obs)[kind])

    def step(self, key, state, action):
        kind, states = state
        action = meant(self.spec.action, action)
        states, seen = zip(
            *(env.step(key, s, action) for env, s in zip(MIXED, states, strict=True)), strict=True
        )
        seen = jax.tree.map(lambda *x: jnp.stack(x)[kind], *seen)
        cut = jnp.asarray([env.spec.max_episode_steps == 1 for env in MIXED])
        return (kind, states), seen._replace(
            obs=observed(kind, seen.obs), truncated=seen.truncated | cut[kind]
        )


SPACES = {
    "discrete": Discrete(2),
    "parts": MultiDiscrete((2, 3)),
    "continuous": Box(-1.0, 1.0, (1,)),
}


def meant(space, action):
    """Which of two actions ``[..., *action.shape]`` stand for: action 1 are the numbers above 0,
    and of several parts those of which the first is 1 and the second is 2."""
    if isinstance(space, Discrete):
        return action
    if isinstance(space, MultiDiscrete):
        return ((action[..., 0] == 1) & (action[..., 1] == 2)).astype(jnp.int32)
    return (action[..., 0] > 0).astype(jnp.int32)


def observed(kind, obs):
    return jnp.concatenate([jax.nn.one_hot(kind, len(MIXED)), jnp.asarray(obs, jnp.float32)])


SHOWN = {"Observation": (-1.0, 1.0), "Discount": (0.0, 1.0), "Truncation": (0.0,), "Both": (-1, 1)}


def asked(apply):
    """``{probe: apply(observations)}`` of all observations of `MIXED`."""
    return {
        env.spec.id: np.asarray(
            apply(jnp.stack([observed(k, jnp.asarray([x])) for x in SHOWN[env.spec.id]]))
        )
        for k, env in enumerate(MIXED)
    }


def check_values(value):
    """Of the probes' values ``{probe: [observations]}``; of Both only that they are good."""
    np.testing.assert_allclose(value["Observation"], [-1.0, 1.0], atol=0.15)
    np.testing.assert_allclose(value["Discount"], [GAMMA, 1.0], atol=0.15)  # it discounts
    # Cut is not ended: 1, and then for ever.
    np.testing.assert_allclose(value["Truncation"], [1 / (1 - GAMMA)], rtol=0.1)
    assert (value["Both"] > 0.3).all()


def rollout_of(seed, S=2, T=8, B=4, actions=3, ending=0.1, extras=()):
    """Random data that obeys the auto-reset contract."""
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, S, T, B)) < ending
    valid = np.ones((S, T, B), bool)
    for t in range(1, T):
        valid[:, t] = ~(terminated | truncated)[:, t - 1] | ~valid[:, t - 1]
        terminated[:, t] &= valid[:, t]
        truncated[:, t] &= valid[:, t]
    return Rollout(
        obs=rng.normal(size=(S, T + 1, B, 4)).astype(np.float32),
        is_first=np.zeros((S, T + 1, B), bool),
        action=rng.integers(0, actions, (S, T, B)).astype(np.int32),
        reward=rng.normal(size=(S, T, B)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        carry=(),
        extras=extras,
    )


def random_parameters(network):
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: jnp.asarray(rng.normal(0, 0.5, x.shape), jnp.float32),
        jax.eval_shape(network.init, jax.random.key(0)),
    )
