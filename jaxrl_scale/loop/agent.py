"""A trained policy that acts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_scale import envs
from jaxrl_scale.config import Config, check_run, files
from jaxrl_scale.errors import RunError, how_many, one_line, printable
from jaxrl_scale.loop import film
from jaxrl_scale.loop.evaluator import LONGEST_EPISODE, make_alike, make_evaluator
from jaxrl_scale.loop.host_runner import HostRunner
from jaxrl_scale.loop.keys import agent_seeds
from jaxrl_scale.loop.make import make_runner
from jaxrl_scale.loop.programs import with_programs
from jaxrl_scale.loop.runner import Runner
from jaxrl_scale.loop.state import Shared, time_of
from jaxrl_scale.options import given_bool, given_number, given_path
from jaxrl_scale.parallel import backend
from jaxrl_scale.parallel.machine import visible_cores
from jaxrl_scale.records import past_run, pieces, provenance
from jaxrl_scale.records.checkpoint import restore_some
from jaxrl_scale.records.run_directory import read_starts
from jaxrl_scale.types import Algorithm, Array, Environment, HostEnvironment, Played, PyTree


@dataclass(repr=False)
class Agent:
    """A trained agent that acts, with the other agents of its run beside it.

    It computes as its run did, in 32-bit numbers and with the run's ``matmul_precision``, whatever
    is set in JAX.
    """

    config: Config
    env: Environment | HostEnvironment
    algo: Algorithm
    actor: PyTree  # [P, ...] of all agents of the run
    iteration: int
    index: int = 0  # of the agent that acts
    failed: Collection[int] = ()  # the agents of which some metric was not finite

    def __repr__(self) -> str:
        algo, env = self.config.algo.name, self.env.spec.id
        return f"Agent({algo} in {env}, iteration {self.iteration}, index={self.index})"

    def __post_init__(self) -> None:
        self._compiled_act = jax.jit(self.algo.act, static_argnums=6)
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """Forget what a recurrent policy remembers, and seed the sampling of actions."""
        self._carry: PyTree = None
        self._key = jax.random.key(given_number("seed", seed, 0))

    def act(
        self, obs: np.ndarray, greedy: bool = True, is_first: np.ndarray | None = None
    ) -> np.ndarray:
        """The action for one observation ``[*shape]``, or those for a batch ``[B, *shape]``. In an
        environment of Gymnasium (``gymnasium:NAME``) both are as Gymnasium has them: a discrete
        observation is a whole number, or ``[B]`` of them, and discrete actions begin where its
        space does, and have its shape.

        Args:
          obs: what the agent sees.
          greedy: take the best action instead of a sampled one.
          is_first: ``[B]`` bool, or one bool for one observation: whether it opens an episode. It
            matters to recurrent policies only, which forget there.
        """
        if (env := self._of_gymnasium) is not None:
            taken: np.ndarray = env.taken(self._act(env.seen(obs), greedy, is_first))
            return taken
        return self._act(obs, greedy, is_first)

    def outputs(self, obs: np.ndarray, is_first: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """What the agent's network says of one observation, or of a batch of ``B``: arrays by
        name, without the first axis of those below for one observation.

        ================== =====================================================================
        PPO, A2C, IMPALA   ``value [B]``, the estimate of the discounted return; of discrete
                           actions ``probabilities [B, n]``, of those of several parts
                           ``[B, parts, n]`` where ``n`` is the largest size and smaller parts have
                           zeros behind theirs; of continuous ones ``mean`` and ``std``,
                           ``[B, *action.shape]``, of the Gaussian whose numbers are clipped to the
                           bounds
        SAC                ``mean`` and ``std`` of the Gaussian whose hyperbolic tangent, scaled to
                           the bounds, is the action
        DQN, Ape-X, PQN    ``q_values [B, n]``, the values of the actions
        ================== =====================================================================

        With ``scale_rewards`` (PPO, A2C, IMPALA, PQN) values are in scaled rewards. Actions are
        counted from 0, in an environment of Gymnasium too. A policy with a memory sees the
        observations with what it remembers, and remembers nothing new: ask before `act`.

        Args:
          obs, is_first: as for `act`.
        """
        if (env := self._of_gymnasium) is not None:
            obs = env.seen(obs)
        batch, carry, first, one = self._seen(obs, is_first)
        with backend.settings_of(self.config):
            said = self._compiled_outputs(self._own(self.actor), carry, batch, first)
        return {name: np.asarray(x)[0] if one else np.asarray(x) for name, x in said.items()}

    @property
    def _of_gymnasium(self) -> Any:
        """The environment, if it is one of Gymnasium's (``gymnasium:NAME``); else None."""
        return self.env if self.env.spec.id.startswith("gymnasium:") else None

    @cached_property
    def _compiled_outputs(self) -> Callable[..., dict[str, Array]]:
        return jax.jit(self.algo.outputs)

    @property
    def params(self) -> PyTree:
        """The parameters of the agent's network, a tree of NumPy arrays; of SAC those of its
        policy, since acting needs no critic."""
        return jax.tree.map(np.asarray, self._own(self.actor.params))

    def _own(self, of_all: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x[self.index], of_all)

    def _act(self, obs: np.ndarray, greedy: bool, is_first: np.ndarray | None) -> np.ndarray:
        """As `act`, in what the run's algorithm saw and did."""
        greedy = given_bool("greedy", greedy)
        batch, carry, first, one = self._seen(obs, is_first)
        self._key, key = jax.random.split(self._key)
        with backend.settings_of(self.config):
            action, self._carry, _ = self._compiled_act(
                self._own(self.actor), None, carry, batch, first, key, greedy
            )
        out = self.env.spec.action.clip(np.asarray(action))
        return out[0] if one else out

    def _seen(
        self, obs: np.ndarray, is_first: np.ndarray | None
    ) -> tuple[np.ndarray, PyTree, np.ndarray, bool]:
        """The observations as a batch ``[B, ...]``, what the agent remembers before them, which of
        them open an episode, ``[B]``, and whether it is one observation alone."""
        spec = self.env.spec
        try:
            given = np.asarray(obs)
            if given.dtype.kind in "OUSc":  # NumPy makes NaN of None, and numbers of texts
                raise TypeError(f"an array of {given.dtype}, not of numbers")
            with np.errstate(invalid="ignore"):  # NaN is no whole number, as is told below
                obs = given.astype(spec.observation_dtype, copy=False)
        except jax.errors.TracerArrayConversionError:
            raise RunError(
                "an agent acts on the values of observations, which have none within jax.jit, "
                "jax.vmap and the like; call it outside of them, with a whole batch"
            ) from None
        except (TypeError, ValueError, OverflowError) as error:
            raise RunError(f"this is no observation of {spec.id}: {error}") from None
        if obs.dtype.kind != "f" and (unlike := obs != given).any():
            raise RunError(
                f"this is no observation of {spec.id}: its numbers are {obs.dtype}, and "
                f"{given[unlike][0]} is none"
            )
        one = obs.ndim == len(spec.observation_shape)
        batch = obs[None] if one else obs
        if batch.shape[1:] != spec.observation_shape or not len(batch):
            raise RunError(
                f"an observation of shape {obs.shape} is none of {spec.id}; it should be "
                f"{spec.observation_shape}, or a batch of these"
            )
        carry = self.algo.init_carry(len(batch)) if self._carry is None else self._carry
        remembers = [len(x) for x in jax.tree.leaves(carry)]
        if remembers and remembers[0] != len(batch):
            raise RunError(
                f"the agent remembers {how_many(remembers[0], 'episode')}, and this is a batch of "
                f"{len(batch)}; agent.reset() makes it forget them"
            )
        first = np.zeros(len(batch), bool)
        if is_first is not None:
            first = np.atleast_1d(np.asarray(is_first, bool))
        if first.shape != (len(batch),):
            raise RunError(f"is_first has shape {first.shape}; it should have ({len(batch)},)")
        return batch, carry, first, one

    def evaluate(self, episodes: int = 128, greedy: bool = True, seed: int | None = None) -> Played:
        """Play whole episodes in our environment with all agents of the run. Returns their
        undiscounted ``returns``, their ``lengths`` in steps and the sums of the environment's own
        numbers, ``info`` (see `jaxrl_scale.types.Played`), each ``[P, episodes]``.

        Args:
          seed: of the episodes of the first agent; each has the one after that of the agent before.
            None: the seeds of the agents, as the run's own evaluations have.
        """
        episodes, greedy = given_number("episodes", episodes), given_bool("greedy", greedy)
        config = self.config
        if seed is not None:
            config = config.replace(seed=given_number("seed", seed, 0))
            check_run(config)  # the seeds of the agents behind the first
        with backend.settings_of(self.config):
            devices, cores = jax.local_devices(), len(visible_cores())
            placement = backend.place(self.config.replace(devices=None), devices, cores)
            placement = with_programs(self.config, placement)
            name = f"play {episodes} {'greedy' if greedy else 'sampled'}"
            evaluator = make_evaluator(self.env, self.algo, placement, episodes, greedy, name)
            played = evaluator(self.actor, agent_seeds(config))
        assert played is not None  # there is one process
        return played

    def evaluate_in_gymnasium(
        self,
        episodes: int = 128,
        greedy: bool = True,
        agents: Sequence[int] | None = None,
        seed: int = 0,
    ) -> Played:
        """Play whole episodes in real Gymnasium, with all agents or with those named. Returns their
        ``returns`` and ``lengths``, ``[agents, episodes]``. What Gymnasium calls ``info`` is left
        out.

        Episode ``i`` of agent ``k`` is seeded with ``(seed + k) * episodes + i``. If all agents had
        the same starts, their returns would be no independent samples, and the standard error of
        their mean would come out too small.
        """
        import gymnasium

        episodes, seed = given_number("episodes", episodes), given_number("seed", seed, 0)
        greedy = given_bool("greedy", greedy)
        chosen = range(self.config.num_seeds) if agents is None else agents
        if not isinstance(chosen, Sequence | np.ndarray) or len(chosen) == 0:
            raise RunError(f"agents={chosen!r} should be a list of the numbers of agents, or None")
        for agent in chosen:
            _check_agent(agent, self.config)
        games = gymnasium.vector.SyncVectorEnv([self.make_in_gymnasium] * episodes)
        with self._as_it_was(), closing(games):
            played = [self._play_in_gymnasium(games, agent, greedy, seed) for agent in chosen]
            return jax.tree.map(lambda *x: np.stack(x), *played)

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """Give whoever acts with this agent their agent back: its index, memory and key."""
        before = self.index, self._carry, self._key
        try:
            yield
        finally:
            self.index, self._carry, self._key = before

    def make_in_gymnasium(self) -> Any:
        """The environment of real Gymnasium that ours reproduces, with the same parameters.

        Raises `RunError` where there is none, or none with such parameters, or where a package that
        it needs is not installed.
        """
        import gymnasium

        name, ours = self.env.spec.gymnasium_id, self.env.spec.solver_kwargs
        if name is None:
            raise RunError(f"{self.env.spec.id} has no counterpart in Gymnasium")
        if (env := self._of_gymnasium) is not None:
            return env.make()
        kwargs = {key: x for key, x in self.config.env_kwargs.items() if key not in ours}
        try:
            return gymnasium.make(name, **kwargs)
        except TypeError as error:
            raise RunError(f"{name} in Gymnasium cannot be made with {kwargs}: {error}") from None
        except gymnasium.error.DependencyNotInstalled as error:
            raise RunError(f"{name} in Gymnasium cannot be made: {one_line(error)}") from None

    def _play_in_gymnasium(self, games: Any, agent: int, greedy: bool, seed: int) -> Played:
        self.index = agent
        self.reset(agent)
        first_seed = (seed + agent) * games.num_envs
        obs, _ = games.reset(seed=list(range(first_seed, first_seed + games.num_envs)))
        returns, lengths = np.zeros(games.num_envs), np.zeros(games.num_envs, np.int32)
        done = np.zeros(games.num_envs, bool)
        first = ~done
        for _ in range(self.env.spec.max_episode_steps or LONGEST_EPISODE):
            obs, reward, terminated, truncated, _ = games.step(self.act(obs, greedy, first))
            returns += np.where(done, 0.0, reward)
            lengths += ~done
            done |= terminated | truncated
            first = np.zeros_like(done)
            if done.all():
                break
        return Played(returns, lengths, {})

    def record(self, seed: int = 0, greedy: bool = True, games: int = 1) -> list[np.ndarray]:
        """The frames of an episode in our environment, each ``[height, width, 3]`` uint8, or of
        several episodes with starts of their own, side by side (`draw.side_by_side`). An episode
        that has ended stands still until all have. Of games on the host these are the first
        `film.LONGEST_VIDEO` frames."""
        seed, games = given_number("seed", seed, 0), given_number("games", games)
        greedy = given_bool("greedy", greedy)
        env: Any = self.env

        def act(obs: np.ndarray, is_first: np.ndarray) -> np.ndarray:
            return self._act(obs, greedy, is_first)

        with backend.settings_of(self.config), self._as_it_was():
            self.reset(seed)
            if envs.on_host(env):
                return film.frames(env, film.on_host(env, act, seed, games))
            self._key, key_reset, key_steps = jax.random.split(self._key, 3)
            return film.frames(env, film.on_devices(env, act, key_reset, key_steps, games))


def load(
    run_dir: str | Path,
    agent: int = 0,
    checkpoint: str = "latest",
    env_kwargs: dict[str, Any] | None = None,
) -> Agent:
    """A trained agent of a run, which may still be training.

    Args:
      run_dir: the directory of the run.
      agent: which of its agents, from 0 to ``num_seeds - 1``.
      checkpoint: ``latest``, or ``best``: the one with the best score.
      env_kwargs: parameters of the environment that differ from those of the run, for what the
        agent plays by itself (`Agent.evaluate`, `Agent.record`). Observations and actions have to
        be the same.

    Raises:
      RunError: where there is no such run, agent or checkpoint, or no whole one, and where such an
        environment has other observations or actions.
    """
    if checkpoint not in ("latest", "best"):
        raise RunError(f"checkpoint={checkpoint!r} should be 'latest' or 'best'")
    backend.cpu_devices(len(visible_cores()))  # before this starts JAX, for what trains later
    run_dir = given_path("run_dir", run_dir)
    config = files.read_config(run_dir / "config.json")
    _check_agent(agent, config)
    if env_kwargs is not None:
        check_run(config.replace(env_kwargs=env_kwargs))
    runner, iteration, arrays, saved = read_acting(run_dir, config, checkpoint == "best")
    if provenance.own_code(config):
        with suppress(RunError):  # of a damaged run.json, which a policy does not need
            if changed := provenance.changed_modules(config, read_starts(run_dir)):
                print(changed, file=sys.stderr)
    failed = [int(k) for k in saved["progress"]["failed"]]
    shapes = runner.abstract_state().shared
    leaves = [arrays.get(name, shape) for name, shape in _named(shapes).items()]
    shared = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    actor = runner.algo.actor(shared.algo, time_of(shared, np.int32(config.num_iterations)))
    env: Any = runner.env
    if env_kwargs:
        env = make_alike(config, env, env_kwargs, "env_kwargs")
        config = config.replace(env_kwargs=config.env_kwargs | env_kwargs)
    return Agent(config, env, runner.algo, actor, iteration, agent, failed)


def _check_agent(agent: Any, config: Config) -> None:
    is_whole = isinstance(agent, Integral) and not isinstance(agent, bool)
    if not is_whole or agent not in range(config.num_seeds):
        there = f"agents 0 to {config.num_seeds - 1}" if config.num_seeds > 1 else "one agent, 0"
        raise RunError(f"agent={agent!r}: the run has {there}")


def read_acting(
    run_dir: Path, config: Config, best: bool = False
) -> tuple[Runner | HostRunner, int, dict[str, np.ndarray], dict[str, Any]]:
    """Of a run's newest or best checkpoint what acting depends on: a runner that trains nothing,
    the iteration, the arrays by their names, and the counters.

    A checkpoint of these arrays and counters alone is enough to `load`.
    """
    env = config.make_env()
    placement = backend.place(config.replace(devices=1), jax.local_devices())
    runner = make_runner(config, env, placement)
    wanted = _acting(runner.algo, runner.abstract_state().shared)
    checkpoints = run_dir / "checkpoints"
    found = restore_some(
        checkpoints,
        wanted.__contains__,
        lambda text: print(printable(text), file=sys.stderr),
        best,
    )
    if found is None:
        raise RunError(f"{run_dir} {past_run.lacks_checkpoint(run_dir)}")
    iteration, arrays, saved = found
    there = {name: {"shape": x.shape, "dtype": x.dtype.name} for name, x in arrays.items()}
    pieces.check_fits(checkpoints / str(iteration), there, wanted)
    return runner, iteration, arrays, saved


def _acting(algo: Algorithm, shared: Shared) -> dict[str, Any]:
    """Of a state ``Shared[P, ...]`` what `Algorithm.actor` reads: shapes and dtypes by the names
    that the arrays have in a checkpoint."""
    program = jax.make_jaxpr(lambda shared: algo.actor(shared.algo, time_of(shared, np.int32(1))))(
        shared
    )
    used = {id(x) for equation in program.eqns for x in equation.invars}
    used |= {id(x) for x in program.jaxpr.outvars}
    leaves = zip(_named(shared).items(), program.jaxpr.invars, strict=True)
    return {name: shape for (name, shape), x in leaves if id(x) in used}


def _named(shared: Shared) -> dict[str, Any]:
    return pieces.named_leaves({"shared": shared})
