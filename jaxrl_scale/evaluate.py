"""Evaluation of a trained run, in our environment or in real Gymnasium:
``python -m jaxrl_scale.evaluate RUN_DIR --episodes 128``.

In Python::

    from jaxrl_scale import load
    agent = load("runs/acrobot")
    action = agent.act(observation)  # a NumPy observation, one or a batch
"""

from __future__ import annotations

import os

# XLA's C++ log would be seen among the results. It reads this when JAX is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale import checkpoint as checkpoints
from jaxrl_scale import config as cfg
from jaxrl_scale import distributed, rollout
from jaxrl_scale.config import Config
from jaxrl_scale.distributed import Placement
from jaxrl_scale.metrics import Evaluation
from jaxrl_scale.run_directory import INPUT_OUTPUT_ERROR, io_errors
from jaxrl_scale.runner import EVALUATE, Runner, member_key
from jaxrl_scale.terminal import number
from jaxrl_scale.types import Algorithm, Array, Box, Environment, Key, PyTree, UserError

NO_LIMIT = 10_000
"""Steps after which an episode of an environment without a time limit is cut."""


# --- evaluation of all members --------------------------------------------------------------


class Evaluator:
    """Plays whole episodes with every member; compiled once, at its first use.

    A member's episodes are played by one inner program on one device, so that the result
    does not depend on the devices either.
    """

    def __init__(
        self, env: Environment, algo: Algorithm, placement: Placement, episodes: int, greedy: bool
    ):
        limit = env.spec.max_episode_steps or NO_LIMIT

        def play(actor: PyTree, carry: PyTree, obs: Array, is_first: Array, key: Key) -> Any:
            return algo.play(actor, carry, obs, is_first, key, greedy)

        def play_member(actor: PyTree, seed: Array) -> Array:
            returns, _ = rollout.play_episodes(
                env,
                play,
                actor,
                algo.init_carry(episodes),
                episodes,
                limit,
                member_key(seed, EVALUATE),
            )
            return returns

        self._play = lambda actor, seeds: placement.map_members(play_member, actor, seeds)
        self._play_all = lambda *args: placement.publish(self._play(*args))
        self._placement = placement
        self._compiled: Any = None

    def __call__(self, actor: PyTree, seeds: np.ndarray) -> np.ndarray:
        """Undiscounted returns ``[P, episodes]`` of the members' ``actor [P_own, …]``.

        Whole members on devices: every process must call it, with those that it holds. Else one
        process is enough. The same seeds start the same episodes at every call.
        """
        placement = self._placement
        args = (actor, seeds)
        if placement.by_members:
            args = placement.split_shared(args)
            if self._compiled is None:
                self._compiled = placement.compile(self._play_all, *args)
            return placement.read(self._compiled(*args))
        if self._compiled is None:
            self._compiled = jax.jit(self._play)
        return np.asarray(self._compiled(*args))


def summarize(returns: np.ndarray, failed: Collection[int] = ()) -> Evaluation:
    """``evaluation`` of ``summary.json`` from returns ``[P, episodes]``.

    Of several members: ``iqm`` is the interquartile mean of their mean returns and ``ci95``
    its 95 % percentile bootstrap interval over members, as in
    https://arxiv.org/abs/2108.13264. Of one member the sample is its episodes, and ``ci95``
    that of ``mean``. Members that ``failed`` are left out and are ``None`` in ``per_seed``.
    """
    from scipy import stats

    per_seed = returns.mean(1, dtype=np.float64)
    alive = [m for m in range(len(returns)) if m not in failed and np.isfinite(per_seed[m])]
    result: Evaluation = {
        "mean": None,
        "iqm": None,
        "ci95": (None, None),
        "episodes": int(returns.shape[1]),
        "per_seed": [float(x) if m in alive else None for m, x in enumerate(per_seed)],
    }
    if not alive:
        return result

    def iqm(x: np.ndarray, axis: int = -1) -> np.ndarray:
        return stats.trim_mean(x, 0.25, axis=axis)

    several = len(returns) > 1
    sample = per_seed[alive] if several else returns[0].astype(np.float64)
    centre = iqm if several else np.mean
    low = high = float(centre(sample))
    if np.ptp(sample) > 0:
        interval = stats.bootstrap(
            (sample,), centre, n_resamples=2000, method="percentile", rng=np.random.default_rng(0)
        ).confidence_interval
        low, high = float(interval.low), float(interval.high)
    result["mean"], result["iqm"] = float(sample.mean()), float(iqm(sample))
    result["ci95"] = (low, high)
    return result


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
        self._play = jax.jit(self.algo.play, static_argnums=5)
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
            raise UserError(f"this is no observation of {spec.id}: {error}") from None
        one = obs.ndim == len(spec.observation_shape)
        batch = obs[None] if one else obs
        if batch.shape[1:] != spec.observation_shape:
            raise UserError(
                f"an observation of shape {obs.shape} is none of {spec.id}; it should be "
                f"{spec.observation_shape}, or a batch of these"
            )
        if self._carry is None:
            self._carry = self.algo.init_carry(len(batch))
        first = np.zeros(len(batch), bool) if is_first is None else np.asarray(is_first)
        self._key, key = jax.random.split(self._key)
        action, self._carry = self._play(self.member_actor, self._carry, batch, first, key, greedy)
        out = np.asarray(action)
        if isinstance(spec.action, Box):
            out = np.clip(out, spec.action.low, spec.action.high)
        return out[0] if one else out

    def evaluate(self, episodes: int = 128, greedy: bool = True) -> np.ndarray:
        """Returns ``[P, episodes]`` of all members in our environment."""
        placement = distributed.place(self.config.replace(devices=None), jax.local_devices())
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

        Raises `UserError` where there is none, or none with such parameters.
        """
        import gymnasium

        name, ours = self.env.spec.gymnasium_id, self.env.spec.solver_kwargs
        if name is None:
            raise UserError(f"{self.env.spec.id} has no counterpart in Gymnasium")
        kwargs = {key: x for key, x in self.config.env_kwargs.items() if key not in ours}
        try:
            return gymnasium.make(name, **kwargs)
        except TypeError as error:
            raise UserError(f"{name} in Gymnasium cannot be made with {kwargs}: {error}") from None

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
            raise UserError(f"{self.env.spec.id} has no render(state) method, so no video")
        self.reset(seed)
        key = jax.random.key(seed)
        batch = jax.jit(lambda k: rollout.reset(self.env, k, 1))(key)
        step = jax.jit(lambda keys, batch, action: rollout.step(self.env, keys, batch, action))
        frames = []
        for t in range(self.env.spec.max_episode_steps or NO_LIMIT):
            frames.append(render(jax.tree.map(lambda x: np.asarray(x)[0], batch.state)))
            action = self.act(np.asarray(batch.obs), greedy, np.asarray(batch.is_first))
            keys = jax.random.split(jax.random.fold_in(key, t), (1, 2))
            batch, _ = step(keys, batch, jnp.asarray(action))
            if bool(batch.ended[0]):
                break
        frames.append(render(jax.tree.map(lambda x: np.asarray(x)[0], batch.state)))
        return frames


def load(run_dir: str | Path, member: int = 0, checkpoint: str = "latest") -> Agent:
    """The agent of a run directory; ``checkpoint`` is ``latest`` or ``best``.

    Works while the run is still training. Raises `UserError` where there is no run or no
    whole checkpoint.
    """
    run_dir = Path(run_dir)
    config = cfg.read_json(run_dir / "config.json")
    if not 0 <= member < config.num_seeds:
        raise UserError(f"member={member}, but the run has members 0 to {config.num_seeds - 1}")
    env = cfg.make_env(config)
    placement = distributed.place(config.replace(devices=1), jax.local_devices())
    runner = Runner(config, env, placement)
    found = checkpoints.restore(
        run_dir / "checkpoints",
        runner.abstract_state(),
        lambda text: print(text, file=sys.stderr),
        best=checkpoint == "best",
    )
    if found is None:
        raise UserError(f"{run_dir} has no checkpoint yet")
    iteration, state, meta = found
    failed = [int(k) for k in meta["progress"]["failed"]]
    actor = runner.algo.actor(state.shared.algo)
    return Agent(config, env, runner.algo, actor, iteration, member, failed)


def check_video(path: Path) -> None:
    """Raise `UserError` where `write_video` could not write ``path``."""
    if path.suffix not in (".gif", ".mp4"):
        raise UserError(f"video {path} should end in .gif or .mp4")
    if path.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise UserError(f"{path}: mp4 needs the ffmpeg command; install it or write a .gif")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"cannot write {path}: {path.parent} is no folder that can be written")


def write_video(path: Path, frames: Sequence[np.ndarray], fps: int = 30) -> None:
    """Write frames as ``.gif``, or as ``.mp4`` where the ffmpeg command is installed."""
    check_video(path)
    if path.suffix == ".gif":
        import imageio.v3 as iio

        with io_errors(path):
            iio.imwrite(path, np.stack(frames), duration=1000 / fps, loop=0)
        return
    height, width = frames[0].shape[:2]
    command = f"ffmpeg -y -loglevel error -f rawvideo -pix_fmt rgb24 -s {width}x{height}"
    command += f" -r {fps} -i - -pix_fmt yuv420p -vf pad=ceil(iw/2)*2:ceil(ih/2)*2"
    done = subprocess.run(
        [*command.split(), str(path)], input=np.stack(frames).tobytes(), capture_output=True
    )
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise UserError(f"cannot write {path}: ffmpeg says {' '.join(reason)}", INPUT_OUTPUT_ERROR)


# --- the command ----------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit status."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # libraries' warnings are not the user's
    try:
        return _evaluate(_parser().parse_args(argv))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = cfg.Parser(
        prog="python -m jaxrl_scale.evaluate",
        description="Play whole episodes with the trained policies of a run.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a run")
    parser.add_argument("--episodes", type=int, default=128, help="for each seed [128]")
    parser.add_argument("--sampled", action="store_true", help="sample actions [greedy]")
    parser.add_argument("--gymnasium", action="store_true", help="play in real Gymnasium")
    parser.add_argument("--members", help="only these of the run's seeds: 0,1,2 [all]")
    parser.add_argument(
        "--checkpoint", choices=("latest", "best"), default="latest", help="which one [latest]"
    )
    parser.add_argument("--video", type=Path, help="render an episode to FILE.gif or FILE.mp4")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _evaluate(args: argparse.Namespace) -> int:
    if args.episodes < 1:
        raise UserError(f"--episodes={args.episodes} should be at least 1")
    config = cfg.read_json(Path(args.run_dir) / "config.json")
    members = _members(args.members, config.num_seeds)
    if args.video:
        check_video(args.video)
    distributed.initialize(config.replace(devices=None))
    agent = load(args.run_dir, members[0], args.checkpoint)
    greedy = not args.sampled
    if args.gymnasium:
        returns = agent.evaluate_in_gymnasium(args.episodes, greedy, members)
    else:
        returns = agent.evaluate(args.episodes, greedy)[members]
    failed = [i for i, member in enumerate(members) if member in agent.failed]
    result: dict[str, Any] = {**summarize(returns, failed)}
    known = returns[[score is not None for score in result["per_seed"]]]
    error = float(known.std(ddof=1) / np.sqrt(known.size)) if known.size > 1 else None
    result |= {
        "env": agent.env.spec.gymnasium_id if args.gymnasium else agent.env.spec.id,
        "where": "gymnasium" if args.gymnasium else "jaxrl_scale",
        "greedy": greedy,
        "members": members,
        "iteration": agent.iteration,
        "standard_error": error,
    }
    if args.video:
        frames = agent.record(greedy=greedy)
        write_video(args.video, frames)
        result["video"] = str(args.video)
    if args.json:
        print(json.dumps(result))
        return 0
    where = "real Gymnasium" if args.gymnasium else "jaxrl_scale"
    print(
        f"{result['env']} in {where}, {'greedy' if greedy else 'sampled'}, iteration "
        f"{agent.iteration}: mean return {number(result['mean'])} ± {number(error)}"
        f" (standard error) over {returns.shape[1]} episodes of {len(known)} seed(s)"
    )
    if len(known) > 1:
        low, high = result["ci95"]
        worst = min(score for score in result["per_seed"] if score is not None)
        print(
            f"interquartile mean over seeds {number(result['iqm'])} (95 % interval {number(low)} "
            f"to {number(high)}), worst seed {number(worst)}"
        )
    if failed:
        seeds = ", ".join(str(agent.config.seed + members[i]) for i in failed)
        print(f"left out, as their loss was no longer finite: seed(s) {seeds}")
    if args.video:
        print(f"wrote {args.video} ({len(frames)} frames)")
    return 0


def _members(text: str | None, count: int) -> list[int]:
    if text is None:
        return list(range(count))
    try:
        members = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--members={text} should be whole numbers separated by commas") from None
    if not all(0 <= m < count for m in members):
        raise UserError(f"--members={text}: the run has members 0 to {count - 1}")
    return members


if __name__ == "__main__":
    sys.exit(main())
