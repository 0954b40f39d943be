"""A trained policy that acts."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale import envs
from jaxrl_scale.config import Config, files
from jaxrl_scale.errors import RunError
from jaxrl_scale.loop import rollout
from jaxrl_scale.loop.evaluator import NO_LIMIT, Evaluator
from jaxrl_scale.loop.runner import Runner
from jaxrl_scale.parallel import backend
from jaxrl_scale.records import checkpoint as checkpoints
from jaxrl_scale.types import Algorithm, Box, Environment, PyTree

# --- a trained run, loaded ------------------------------------------------------------------


@dataclass
class Agent:
    """The trained policies of a run. ``member`` picks one of ``num_seeds``."""

    config: Config
    env: Environment
    algo: Algorithm
    actor: PyTree  # [P, ...]
    iteration: int
    member: int = 0
    failed: Collection[int] = ()  # members whose loss was no longer finite

    def __post_init__(self) -> None:
        self._act = jax.jit(self.algo.act, static_argnums=6)
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """Forget what a recurrent policy remembers; reseed the sampling."""
        self._carry: PyTree = None
        self._key = jax.random.key(seed)

    @property
    def member_actor(self) -> PyTree:
        return jax.tree.map(lambda x: x[self.member], self.actor)

    def act(
        self, obs: np.ndarray, greedy: bool = True, is_first: np.ndarray | None = None
    ) -> np.ndarray:
        """The action for one observation ``[*shape]`` or for a batch ``[B, *shape]``.

        ``is_first`` (``[B]`` bool) matters to recurrent policies only.
        """
        spec = self.env.spec
        try:
            obs = np.asarray(obs, spec.observation_dtype)
        except (TypeError, ValueError) as error:
            raise RunError(f"this is no observation of {spec.id}: {error}") from None
        one = obs.ndim == len(spec.observation_shape)
        batch = obs[None] if one else obs
        if batch.shape[1:] != spec.observation_shape:
            raise RunError(
                f"an observation of shape {obs.shape} is none of {spec.id}; it should be "
                f"{spec.observation_shape}, or a batch of these"
            )
        if self._carry is None:
            self._carry = self.algo.init_carry(len(batch))
        first = np.zeros(len(batch), bool) if is_first is None else np.asarray(is_first)
        self._key, key = jax.random.split(self._key)
        action, self._carry, _ = self._act(
            self.member_actor, None, self._carry, batch, first, key, greedy
        )
        out = np.asarray(action)
        if isinstance(spec.action, Box):
            out = np.clip(out, spec.action.low, spec.action.high)
        return out[0] if one else out

    def evaluate(self, episodes: int = 128, greedy: bool = True) -> np.ndarray:
        """Returns ``[P, episodes]`` of all members in our environment."""
        placement = backend.place(self.config.replace(devices=None), jax.local_devices())
        seeds = Runner(self.config, self.env, placement).seeds
        return Evaluator(self.env, self.algo, placement, episodes, greedy)(self.actor, seeds)

    def evaluate_in_gymnasium(
        self, episodes: int = 128, greedy: bool = True, members: Sequence[int] | None = None
    ) -> np.ndarray:
        """Returns ``[members, episodes]`` in real Gymnasium.

        Episode ``i`` of member ``k`` is seeded with ``k * episodes + i``: with the same starts for
        all members their returns would be no independent samples, and a pooled standard error
        too small.
        """
        import gymnasium

        games = gymnasium.vector.SyncVectorEnv([self.make_in_gymnasium] * episodes)
        chosen = range(self.config.num_seeds) if members is None else members
        before = self.member
        try:
            returns = [self._play_in_gymnasium(games, member, greedy) for member in chosen]
        finally:
            self.member = before
            games.close()
        return np.stack(returns)

    def make_in_gymnasium(self) -> Any:
        """The environment of real Gymnasium that ours reproduces, with the same parameters.

        Raises `RunError` where there is none, or none with such parameters.
        """
        import gymnasium

        name, ours = self.env.spec.gymnasium_id, self.env.spec.solver_kwargs
        if name is None:
            raise RunError(f"{self.env.spec.id} has no counterpart in Gymnasium")
        kwargs = {key: x for key, x in self.config.env_kwargs.items() if key not in ours}
        try:
            return gymnasium.make(name, **kwargs)
        except TypeError as error:
            raise RunError(f"{name} in Gymnasium cannot be made with {kwargs}: {error}") from None

    def _play_in_gymnasium(self, games: Any, member: int, greedy: bool) -> np.ndarray:
        self.member = member
        self.reset(member)
        first_seed = member * games.num_envs
        obs, _ = games.reset(seed=list(range(first_seed, first_seed + games.num_envs)))
        returns, done = np.zeros(games.num_envs), np.zeros(games.num_envs, bool)
        first = ~done
        while not done.all():
            obs, reward, terminated, truncated, _ = games.step(self.act(obs, greedy, first))
            returns += np.where(done, 0.0, reward)
            done |= terminated | truncated
            first = np.zeros_like(done)
        return returns

    def record(self, seed: int = 0, greedy: bool = True) -> list[np.ndarray]:
        """The frames of one episode in our environment, each ``[height, width, 3]`` uint8."""
        render = getattr(self.env, "render", None)
        if render is None:
            raise RunError(f"{self.env.spec.id} has no render(state) method, so no video")
        self.reset(seed)
        key = jax.random.key(seed)
        envs = jax.jit(lambda k: rollout.reset(self.env, k, 1))(key)
        step = jax.jit(lambda keys, envs, action: rollout.step(self.env, keys, envs, action))
        frames = []
        for t in range(self.env.spec.max_episode_steps or NO_LIMIT):
            frames.append(render(jax.tree.map(lambda x: np.asarray(x)[0], envs.state)))
            action = self.act(np.asarray(envs.obs), greedy, np.asarray(envs.is_first))
            keys = jax.random.split(jax.random.fold_in(key, t), (1, 2))
            envs, _ = step(keys, envs, jnp.asarray(action))
            if bool(envs.ended[0]):
                break
        frames.append(render(jax.tree.map(lambda x: np.asarray(x)[0], envs.state)))
        return frames


def load(run_dir: str | Path, member: int = 0, checkpoint: str = "latest") -> Agent:
    """The agent of a run directory; ``checkpoint`` is ``latest`` or ``best``.

    Works while the run is still training. Raises `RunError` where there is no run or no
    whole checkpoint.
    """
    run_dir = Path(run_dir)
    config = files.read_json(run_dir / "config.json")
    if not 0 <= member < config.num_seeds:
        raise RunError(f"member={member}, but the run has members 0 to {config.num_seeds - 1}")
    env = envs.make(config.env, **config.env_kwargs)
    placement = backend.place(config.replace(devices=1), jax.local_devices())
    runner = Runner(config, env, placement)
    found = checkpoints.restore(
        run_dir / "checkpoints",
        runner.abstract_state(),
        lambda text: print(text, file=sys.stderr),
        best=checkpoint == "best",
    )
    if found is None:
        raise RunError(f"{run_dir} has no checkpoint yet")
    iteration, state, meta = found
    failed = [int(k) for k in meta["progress"]["failed"]]
    actor = runner.algo.actor(state.shared.algo, state.shared.iteration)
    return Agent(config, env, runner.algo, actor, iteration, member, failed)
