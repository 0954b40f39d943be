"""LunarLander beside the original: what policies reach in both, its speed, and its picture.

    python benchmarks/lunar_lander.py statistics
    python benchmarks/lunar_lander.py transfer RUN_DIR
    python benchmarks/lunar_lander.py transfer --policy sb3.npz
    python benchmarks/lunar_lander.py speed --envpool /tmp/envpool/bin/python
    python benchmarks/lunar_lander.py frames OUT.png

``statistics``: policies that need no training, first of all Gymnasium's own heuristic.
``transfer``: a policy trained here flies in Gymnasium, or one that `sb3_lunar_lander.py`
trained there flies here; the mean returns should differ by at most 5. Both exit with 1 where
a figure is out of its band. ``speed``: how to make EnvPool's environment stands in
`envpool_lunar_lander.py`. Gymnasium needs Box2D and pygame, which the extra ``test`` brings.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before JAX is imported
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

import argparse
import functools
import json
import math
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.config import Config
from jaxrl_scale.config.files import read_config
from jaxrl_scale.envs import lunar_lander_physics as physics
from jaxrl_scale.envs.lunar_lander import LunarLander
from jaxrl_scale.envs.rigid_body import Vec
from jaxrl_scale.loop import rollout
from jaxrl_scale.loop.agent import Agent, load
from jaxrl_scale.loop.rollout import Environments
from jaxrl_scale.options import largest_divisor
from jaxrl_scale.parallel import backend
from jaxrl_scale.parallel.machine import visible_cores
from jaxrl_scale.records.provenance import describe_machine

ENV = "LunarLander-v3"
CHUNK = 500  # episodes that a device flies at once
BATCH = 100  # episodes that a process of Gymnasium flies before it asks for more
LIMIT = 1000  # steps
LARGEST_DIFFERENCE = 5.0  # of the mean returns of a policy here and in Gymnasium

CONSTANT = {"no-op": 0, "always main": 2, "always left": 1}
POLICIES = ("heuristic", "no-op", "random", "always main", "always left")
TARGETS = {
    ("heuristic", "return"): (240.0, 5.0),
    ("heuristic", "landed"): (0.925, 0.015),
    ("heuristic", "at least 200"): (0.90, 0.02),
    ("heuristic", "length"): (251.0, 8.0),
    ("no-op", "return"): (-133.6, 5.5),
    ("no-op", "length"): (70.1, 1.7),
    ("random", "return"): (-184.0, 14.0),
}
"""Of ours: a figure of Gymnasium's and how far from it ours may be."""
QUANTILES = (5, 25, 50, 75, 95)


class Flights(NamedTuple):
    """Episodes, ``[N]``, of NumPy or in compiled code."""

    returns: Any
    lengths: Any
    landed: Any  # bool: came to rest, for which the last reward is 100
    contact: Any  # the step after which a leg was down for the first time, or 0


def machine() -> str:
    import gymnasium

    told = describe_machine()
    versions = told["versions"] | {"gymnasium": gymnasium.__version__}
    return ", ".join(
        [
            told["processor"],
            f"{told['cores']} cores",
            *(f"{name} {version}" for name, version in versions.items()),
        ]
    )


def error_of(sample: np.ndarray) -> float:
    """The standard error of the mean."""
    return float(sample.std(ddof=1) / math.sqrt(sample.size)) if sample.size > 1 else math.nan


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for row in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(row) + " |")
    print(flush=True)


# --- flights here ---------------------------------------------------------------------------


def heuristic(obs: Any) -> jax.Array:
    """The action of Gymnasium's `heuristic` for one observation ``[8]``."""
    angle = (jnp.clip(0.5 * obs[0] + obs[2], -0.4, 0.4) - obs[4]) * 0.5 - obs[5]
    hover = (0.55 * jnp.abs(obs[0]) - obs[1]) * 0.5 - obs[3] * 0.5
    down = (obs[6] > 0) | (obs[7] > 0)
    angle = jnp.where(down, 0.0, angle)
    hover = jnp.where(down, -0.5 * obs[3], hover)
    turn = jnp.where(angle < -0.05, 3, jnp.where(angle > 0.05, 1, 0))
    return jnp.where((hover > jnp.abs(angle)) & (hover > 0.05), 2, turn)


def network(layers: Mapping[str, Any], obs: Any, numpy: Any) -> Any:
    """The greedy action of the policy in the file of `sb3_lunar_lander.py`."""
    last = len(layers) // 2 - 1
    for n in range(last):
        obs = numpy.tanh(obs @ layers[f"w{n}"] + layers[f"b{n}"])
    return (obs @ layers[f"w{last}"] + layers[f"b{last}"]).argmax(-1)


def policy_here(name: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """``(key, obs [B, 8]) -> action [B]``."""
    if name == "heuristic":
        return lambda key, obs: jax.vmap(heuristic)(obs)
    if name == "random":
        return lambda key, obs: jax.random.randint(key, obs.shape[:1], 0, 4)
    if name in CONSTANT:
        return lambda key, obs: jnp.full(obs.shape[:1], CONSTANT[name])
    layers = dict(np.load(name))
    return lambda key, obs: network(layers, obs, jnp)


def fly_here(env: LunarLander, name: str, episodes: int) -> Flights:
    """Chunk by chunk on every device, so that memory stays small."""
    choose = policy_here(name)

    def fly_chunk(key: jax.Array) -> Flights:
        key_reset, key_steps = jax.random.split(key)
        state, obs = jax.vmap(env.reset)(jax.random.split(key_reset, CHUNK))
        nothing = jnp.zeros(CHUNK, int)
        flights = Flights(nothing * 0.0, nothing, nothing > 0, nothing)

        def running(moving: tuple) -> jax.Array:
            t, _, _, flying, _ = moving
            return (t < LIMIT) & flying.any()

        def one_step(moving: tuple) -> tuple:
            t, state, obs, flying, so_far = moving
            key_act, key_env = jax.random.split(jax.random.fold_in(key_steps, t))
            action = choose(key_act, obs)
            state, seen = jax.vmap(env.step)(jax.random.split(key_env, CHUNK), state, action)
            first = flying & (so_far.contact == 0) & seen.obs[:, 6:].any(1)
            flights = Flights(
                returns=so_far.returns + jnp.where(flying, seen.reward, 0.0),
                lengths=so_far.lengths + flying,
                landed=so_far.landed | (flying & seen.terminated & (seen.reward == 100)),
                contact=jnp.where(first, t + 1, so_far.contact),
            )
            return t + 1, state, seen.obs, flying & ~seen.terminated, flights

        start = (jnp.zeros((), int), state, obs, jnp.ones(CHUNK, bool), flights)
        return jax.lax.while_loop(running, one_step, start)[-1]

    devices = jax.local_device_count()
    rounds = math.ceil(episodes / (CHUNK * devices))
    fly = jax.pmap(fly_chunk)
    keys = jax.random.split(jax.random.key(0), (rounds, devices))
    parts = [jax.tree.map(lambda x: np.asarray(x).reshape(-1), fly(k)) for k in keys]
    return Flights(*(np.concatenate(column)[:episodes] for column in zip(*parts, strict=True)))


# --- flights in Gymnasium -------------------------------------------------------------------


@functools.cache
def loaded(run_dir: str) -> Agent:
    """In a process of its own, which has one device."""
    backend.initialize(read_config(Path(run_dir) / "config.json").replace(devices=1))
    return load(run_dir)


def policy_there(name: str, index: int, games: list) -> Callable[[np.ndarray, bool], Any]:
    """``(obs [B, 8], is_first) -> action [B]``; of the games that ended any action will do."""
    from gymnasium.envs.box2d import lunar_lander as gymnasiums

    if name == "heuristic":
        return lambda obs, first: [
            gymnasiums.heuristic(game, x) if game else 0 for game, x in zip(games, obs, strict=True)
        ]
    if name == "random":
        generator = np.random.default_rng(games[0].unwrapped.np_random.integers(2**32))
        return lambda obs, first: generator.integers(0, 4, len(obs))
    if name in CONSTANT:
        return lambda obs, first: np.full(len(obs), CONSTANT[name])
    if Path(name).is_file():
        layers = dict(np.load(name))
        return lambda obs, first: network(layers, obs, np)
    agent = loaded(name)
    agent.index = index
    agent.reset(index)
    return lambda obs, first: agent.act(obs, is_first=np.full(len(obs), first))


def fly_batch(name: str, index: int, seeds: Sequence[int]) -> Flights:
    """An episode of each seed, in step with each other, which suits a network."""
    import gymnasium

    trained = Path(name).is_dir()
    make = loaded(name).make_in_gymnasium if trained else lambda: gymnasium.make(ENV)
    games: list = [make() for _ in seeds]
    obs = np.stack([game.reset(seed=seed)[0] for game, seed in zip(games, seeds, strict=True)])
    choose = policy_there(name, index, games)
    nothing = np.zeros(len(games), int)
    flights = Flights(nothing * 0.0, nothing.copy(), nothing > 0, nothing.copy())
    for t in range(1, LIMIT + 1):
        actions = choose(obs, t == 1)
        for i, game in enumerate(games):
            if game is None:
                continue
            obs[i], reward, terminated, truncated, _ = game.step(actions[i])
            flights.returns[i] += reward
            flights.lengths[i] = t
            if flights.contact[i] == 0 and obs[i, 6:].any():
                flights.contact[i] = t
            if terminated or truncated:
                flights.landed[i] = terminated and reward == 100
                games[i] = game.close()
        if not any(games):
            break
    return flights


def fly_there(name: str, episodes: int, indices: Sequence[int] = (0,)) -> Flights:
    """``episodes`` of each agent in Gymnasium, every core busy. No two have the same seed."""
    jobs = []
    for index in indices:
        first, end = index * episodes, (index + 1) * episodes
        for seed in range(first, end, BATCH):
            jobs.append((name, index, range(seed, min(seed + BATCH, end))))
    # A process forked from one in which JAX runs may hang.
    with multiprocessing.get_context("spawn").Pool(len(visible_cores())) as pool:
        parts = pool.starmap(fly_batch, jobs, chunksize=1)
    return Flights(*(np.concatenate(column) for column in zip(*parts, strict=True)))


# --- statistics -----------------------------------------------------------------------------


def same_heuristic(count: int = 10_000) -> int:
    """On how many of ``count`` random observations both heuristics act the same."""
    import gymnasium
    from gymnasium.envs.box2d import lunar_lander as gymnasiums

    generator = np.random.default_rng(0)
    obs = generator.normal(0.0, 0.3, (count, 8)).astype(np.float32)
    obs[:, 6:] = generator.random((count, 2)) < 0.15
    game = gymnasium.make(ENV)
    theirs = np.array([gymnasiums.heuristic(game, x) for x in obs])
    game.close()
    return int((np.asarray(jax.vmap(heuristic)(obs)) == theirs).sum())


def figures(name: str, flights: Flights) -> dict[str, np.ndarray]:
    result = {"return": flights.returns, "length": flights.lengths}
    if name == "heuristic":
        result |= {"landed": flights.landed, "at least 200": flights.returns >= 200}
    return result


def measured(figure: str, mean: float, error: float, sign: str = "") -> str:
    digits = 3 if figure in ("landed", "at least 200") else 1
    return f"{mean:{sign}.{digits}f} ± {error:.{digits}f}"


def statistics_command(args: argparse.Namespace) -> int:
    same = same_heuristic()
    print(f"the heuristics agree on {same:,} of 10,000 observations\n", flush=True)
    if same < 9_990:  # a rounding may tip a few
        print("the heuristic here is not Gymnasium's")
        return 1
    env = LunarLander(
        velocity_iterations=args.velocity_iterations, position_iterations=args.position_iterations
    )
    rows, settling, good = [], [], True
    for name in POLICIES:
        here = fly_here(env, name, args.episodes)
        there = fly_there(name, args.gymnasium_episodes) if args.gymnasium_episodes else None
        for figure, sample in figures(name, here).items():
            mean, error = float(sample.mean()), error_of(sample)
            row = [name, figure, measured(figure, mean, error)]
            if there is None:
                row += ["", ""]
            else:
                other = figures(name, there)[figure]
                their_mean, their_error = float(other.mean()), error_of(other)
                row.append(measured(figure, their_mean, their_error))
                both = math.hypot(error, their_error)
                row.append(measured(figure, mean - their_mean, both, "+"))
            if (name, figure) in TARGETS:
                target, band = TARGETS[name, figure]
                inside = abs(mean - target) <= band
                good &= inside
                row += [f"{target:g} ± {band:g}", "ok" if inside else "OUT OF BAND"]
            else:
                row += ["", ""]
            rows.append(row)
        if name == "heuristic":
            for where, flights in (("jaxrl_scale", here), ("Gymnasium", there)):
                if flights is not None and flights.landed.any():
                    steps = (flights.lengths - flights.contact)[flights.landed]
                    values = np.percentile(steps, QUANTILES)
                    settling.append([where, f"{steps.size:,}", *(f"{x:.0f}" for x in values)])
    sweeps = f"{args.velocity_iterations}/{args.position_iterations} iterations"
    print(
        f"episodes of each policy: {args.episodes:,} here ({sweeps}), "
        f"{args.gymnasium_episodes:,} in Gymnasium\n"
    )
    header = ["policy", "figure", "jaxrl_scale", "Gymnasium", "difference", "target of ours", ""]
    table(header, rows)
    print("Steps from the first contact to rest, heuristic, episodes that landed:\n")
    table(["", "episodes", *(f"{q} %" for q in QUANTILES)], settling)
    return 0 if good else 1


# --- transfer -------------------------------------------------------------------------------


def transfer_command(args: argparse.Namespace) -> int:
    if args.policy:
        name, episodes = args.policy, args.episodes
        here = fly_here(LunarLander(), name, episodes).returns
        there = fly_there(name, episodes).returns
    else:
        name = args.run_dir
        agent = load(name)
        indices = args.agents or list(range(agent.config.num_seeds))
        episodes = math.ceil(args.episodes / len(indices))
        here = agent.evaluate(episodes).returns[indices].reshape(-1)
        there = fly_there(name, episodes, indices).returns
        print(f"{len(indices)} agent(s), iteration {agent.iteration}, {episodes:,} episodes each")
    both = math.hypot(error_of(here), error_of(there))
    difference = float(here.mean() - there.mean())
    good = abs(difference) <= LARGEST_DIFFERENCE
    print(f"{here.size:,} episodes here, {there.size:,} in Gymnasium, greedy\n")
    header = ["policy", "figure", "jaxrl_scale", "Gymnasium", "difference", "at most", ""]
    row = [Path(name).name, "return"]
    row += [measured("return", float(x.mean()), error_of(x)) for x in (here, there)]
    row += [measured("return", difference, both, "+"), f"{LARGEST_DIFFERENCE:g}"]
    shares = [(x >= 200).astype(float) for x in (here, there)]
    errors = [error_of(x) for x in shares]
    second = [row[0], "at least 200"]
    second += [
        measured("at least 200", float(x.mean()), e) for x, e in zip(shares, errors, strict=True)
    ]
    apart = float(shares[0].mean() - shares[1].mean())
    second += [measured("at least 200", apart, math.hypot(*errors), "+"), "", ""]
    table(header, [[*row, "ok" if good else "OUT OF BAND"], second])
    return 0 if good else 1


# --- speed ----------------------------------------------------------------------------------


def our_speed(num_envs: int, iterations: tuple[int, int]) -> Callable[[float], float]:
    """Compiled and warm: ``seconds`` to measure for -> valid steps a second."""
    env = LunarLander(velocity_iterations=iterations[0], position_iterations=iterations[1])
    devices = largest_divisor(num_envs, jax.local_device_count())
    each = num_envs // devices

    def play(batch: Environments, key: jax.Array) -> tuple[Environments, jax.Array]:
        def one_step(batch: Environments, key: jax.Array) -> tuple[Environments, jax.Array]:
            keys = jax.random.split(key, 1 + 2 * each)
            action = jax.random.randint(keys[0], (each,), 0, 4)
            batch, seen = rollout.step(env, keys[1:].reshape(each, 2), batch, action)
            return batch, seen.valid.sum()

        batch, valid = jax.lax.scan(one_step, batch, jax.random.split(key, 128))
        return batch, valid.sum()

    def keys(n: int) -> jax.Array:
        return jax.random.split(jax.random.key(n), devices)

    step = jax.pmap(play)
    batch = jax.pmap(lambda key: rollout.reset(env, key, each))(keys(0))
    for n in (1, 2):  # the first episodes all begin together; after this they are mixed
        batch, _ = step(batch, keys(n))
    jax.block_until_ready(batch)

    def measure(seconds: float) -> float:
        nonlocal batch
        steps, calls, start = 0, 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            calls += 1
            batch, valid = step(batch, keys(2 + calls))
            steps += int(valid.sum())
        return steps / (time.perf_counter() - start)

    return measure


def envpool_speed(python: str, num_envs: int, seconds: float) -> float:
    script = Path(__file__).resolve().with_name("envpool_lunar_lander.py")
    command = [python, str(script), f"--num_envs={num_envs}", f"--seconds={seconds}"]
    command.append(f"--threads={len(visible_cores())}")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{script.name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])["steps_per_second"]


def speed_command(args: argparse.Namespace) -> int:
    print(
        f"valid steps a second, random actions; {jax.local_device_count()} devices here, "
        f"{len(visible_cores())} threads in EnvPool; medians of {args.repeats} turns "
        f"of {args.seconds:g} s (lowest to highest)\n",
        flush=True,
    )
    rows = []
    for num_envs in args.num_envs:
        programs = [our_speed(num_envs, iterations) for iterations in args.iterations]
        ours: list[list[float]] = [[] for _ in programs]
        theirs: list[float] = []
        for _ in range(args.repeats):
            for program, speeds in zip(programs, ours, strict=True):
                speeds.append(program(args.seconds))
                # Next to the first, so that a machine whose speed drifts does so for both.
                if args.envpool and program is programs[0]:
                    theirs.append(envpool_speed(args.envpool, num_envs, args.seconds))
        for n, (iterations, speeds) in enumerate(zip(args.iterations, ours, strict=True)):
            row = [f"{num_envs:,}", "{}/{}".format(*iterations), spread(speeds, ",.0f")]
            if theirs and n == 0:
                pairs = [a / b for a, b in zip(speeds, theirs, strict=True)]
                row += [spread(theirs, ",.0f"), spread(pairs, ".2f")]
            elif theirs:
                row += ["", f"{statistics.median(speeds) / statistics.median(theirs):.2f}"]
            else:
                row += ["", ""]
            rows.append(row)
    table(["environments", "iterations", "jaxrl_scale", "EnvPool", "ratio"], rows)
    return 0


def spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


# --- frames ---------------------------------------------------------------------------------


def frames_command(args: argparse.Namespace) -> int:
    import gymnasium
    from gymnasium.envs.box2d import lunar_lander as gymnasiums
    from PIL import Image

    game = gymnasium.make(ENV, render_mode="rgb_array")
    obs, _ = game.reset(seed=args.seed)
    theirs = game.render()
    for t in range(args.steps):
        action = 2 if t == args.steps - 1 else gymnasiums.heuristic(game, obs)
        obs, _, terminated, _, _ = game.step(action)
        theirs = game.render()  # each step: this is what lets the particles fade
        if terminated:
            break
    inside: Any = game.unwrapped
    bodies = [inside.lander, *inside.legs]
    center = np.array([tuple(body.worldCenter) for body in bodies], np.float32).T
    angle = np.array([body.angle for body in bodies], np.float32)
    sky = inside.sky_polys
    env = LunarLander()
    state, _ = env.reset(jax.random.key(0))
    state = state._replace(
        world=physics.at_rest(Vec(*center), angle),
        ground=np.array([polygon[0][1] for polygon in sky] + [sky[-1][1][1]]),
        engines=np.array([1.0, 0.0]),
    )
    ours = env.render(state)
    game.close()
    gap = np.full((ours.shape[0], 10, 3), 255, np.uint8)
    Image.fromarray(np.concatenate([ours, gap, theirs], axis=1)).save(args.out)
    apart = np.abs(ours.astype(int) - theirs).max(-1)
    print(f"wrote {args.out}: ours on the left, Gymnasium's on the right (step {t + 1})\n")
    counts = [f"{int((apart > level).sum()):,}" for level in (0, 64, 128)]
    table(
        ["pixels", "differ", "by more than 64", "by more than 128"], [[f"{apart.size:,}", *counts]]
    )
    return 0


# --- the command ----------------------------------------------------------------------------


def rounds(text: str) -> tuple[int, int]:
    velocity, position = text.split("/")
    return int(velocity), int(position)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)

    sub = commands.add_parser("statistics", help="policies that need no training")
    sub.add_argument("--episodes", type=int, default=4000, help="of each policy, here [4000]")
    sub.add_argument(
        "--gymnasium_episodes",
        type=int,
        default=4000,
        help="of each policy, in Gymnasium; 0: none [4000]",
    )
    sub.add_argument("--velocity_iterations", type=int, default=LunarLander.velocity_iterations)
    sub.add_argument("--position_iterations", type=int, default=LunarLander.position_iterations)
    sub.set_defaults(run=statistics_command)

    sub = commands.add_parser("transfer", help="a trained policy here and in Gymnasium")
    which = sub.add_mutually_exclusive_group(required=True)
    which.add_argument("run_dir", metavar="RUN_DIR", nargs="?", help="directory of a run")
    which.add_argument("--policy", help="file that sb3_lunar_lander.py wrote")
    sub.add_argument("--agents", type=int, nargs="+", help="of the run [all]")
    sub.add_argument("--episodes", type=int, default=4000, help="of all agents together [4000]")
    sub.set_defaults(run=transfer_command)

    sub = commands.add_parser("speed", help="steps a second, beside EnvPool")
    sub.add_argument("--envpool", metavar="PYTHON", help="interpreter that has EnvPool")
    sub.add_argument("--num_envs", type=int, nargs="+", default=[64, 256, 1024])
    sub.add_argument("--seconds", type=float, default=3.0, help="measured, each time")
    sub.add_argument("--repeats", type=int, default=3, help="turns of each program")
    sub.add_argument(
        "--iterations",
        type=rounds,
        nargs="+",
        default=[(20, 20), (60, 20), (180, 60)],
        metavar="VELOCITY/POSITION",
        help="ours; the first takes turns with EnvPool [20/20 60/20 180/60]",
    )
    sub.set_defaults(run=speed_command)

    sub = commands.add_parser("frames", help="our picture beside Gymnasium's")
    sub.add_argument("out", metavar="OUT.png")
    sub.add_argument("--steps", type=int, default=60, help="flown by the heuristic [60]")
    sub.add_argument("--seed", type=int, default=0)
    sub.set_defaults(run=frames_command)

    args = parser.parse_args()
    backend.initialize(Config(env=ENV))  # one CPU device a core
    print(machine() + "\n", flush=True)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
