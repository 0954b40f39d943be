"""What communication costs: measured on this machine, predicted for 1 to 512 hosts.

    python benchmarks/communication.py measure                    # a minute; prints JSON
    python benchmarks/communication.py measure --configs configs/acrobot.py configs/lunar_lander.py
    python benchmarks/communication.py predict --plot docs/scaling.png

The model and what follows from it: docs/scaling.md. `measure` starts processes of this file, each
bound to one core, which meet as those of a run do; the machine should have nothing else to do.
`predict` computes from what `measure` found on the machine of docs/scaling.md: `SUMS`, `WORK` and
`POINTS` below. `measure` prints these three on the standard error, to be pasted in their place.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HOSTS = tuple(2**k for k in range(10))  # 1 to 512
SIZES = tuple(2**k for k in range(10, 23, 2))  # 1 KB to 4 MB, bytes of a device's vector
SHARES = (Fraction(1), Fraction(1, 8))  # of a config's work, on one device

# --- the model ------------------------------------------------------------------------------


class Link(NamedTuple):
    """A way from one member of a run to another."""

    name: str
    round: float  # s, a short message, from its sending to its being received and added
    byte: float  # s a byte, sending and adding it
    start: float = 0.0  # s, entering a collective
    reach: int = HOSTS[-1]  # members at most


class Step(NamedTuple):
    """One iteration of a config, on one core a device."""

    name: str
    fixed: float  # s of work that every device does whole (the optimiser, say)
    split: float  # s of work that the devices share
    sums: tuple[tuple[int, int], ...]  # bytes of a device's vector, how many: see `count`
    most: int  # devices that its environments can be spread over


Way = Callable[[int, float, Link], float]
"""Seconds of one sum over ``n`` devices of a vector of ``size`` bytes on each."""


def exchange(n: int, size: float, link: Link) -> float:
    """The trainer's (`sums.device_pool`), recursive doubling: ``log2 n`` rounds, each a
    collective in which two partners swap what they have and add it."""
    return math.ceil(math.log2(n)) * (link.start + link.round + size * link.byte)


def ring_gather(n: int, size: float, link: Link) -> float:
    """Gloo's all-gather: ``n - 1`` rounds, in each of which a whole vector goes on to the next;
    then each device adds all of them, in the same order: the same bits."""
    return 0.0 if n == 1 else link.start + (n - 1) * (link.round + size * link.byte)


def communication(step: Step, n: int, link: Link, way: Way = exchange) -> float:
    """Seconds that an iteration on ``n`` devices communicates."""
    return sum(count * way(n, size, link) for size, count in step.sums)


def strong(step: Step, n: int, link: Link, way: Way = exchange, on_a_core: float = 1) -> float:
    """Seconds of an iteration whose environments and minibatches ``n`` devices share, so many of
    them on a core."""
    return on_a_core * (step.fixed + step.split / n) + communication(step, n, link, way)


def weak(step: Step, n: int, link: Link, way: Way = exchange, on_a_core: float = 1) -> float:
    """Seconds of an iteration of ``n`` times the environments in minibatches of ``n`` times the
    size. (With minibatches of the same size it is ``n * strong``: their number grows.)"""
    return on_a_core * (step.fixed + step.split) + communication(step, n, link, way)


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """``(a, b)`` such that ``a + b * size`` is nearest to ``seconds``, relative to them."""
    rows = np.array([[1.0, size] for size in sizes]) / np.array(seconds)[:, None]
    a, b = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)[0]
    return float(a), float(b)


# --- what was measured, and what is taken from others ---------------------------------------

# These three are what `measure` prints last.
# Processes on the 2 cores of docs/scaling.md: seconds of one of the trainer's sums, and a byte.
SUMS = {2: (4.34e-05, 2.71e-10), 4: (9.78e-05, 1.05e-09)}
# Seconds of an iteration on one core: what every device does whole, and what they share.
WORK = {"acrobot": (0.000264, 0.0189), "lunar_lander": (0.000619, 0.0544)}
# Seconds of an iteration, the least of all, by processes: strong, weak.
POINTS: dict[str, dict[int, tuple[float, float]]] = {
    "acrobot": {1: (0.0192, 0.0192), 2: (0.0127, 0.0223), 4: (0.0202, 0.0498)},
    "lunar_lander": {1: (0.055, 0.055), 2: (0.0324, 0.0603), 4: (0.0424, 0.136)},
}
CORES = 2  # of the machine of POINTS


def loopback(n: int) -> Link:
    """One round of an exchange between ``n`` processes of this machine."""
    rounds = math.log2(n)
    return Link(f"loopback, {n} processes", *(seconds / rounds for seconds in SUMS[n]))


NOTHING = Link("no communication", 0.0, 0.0)
ETHERNET = 17.8e-6  # s, one way through two Linux TCP stacks: sockperf, two hosts with 10 GbE
NETWORKS = (
    # Gloo's own time as on loopback, and the wire's on top: the TCP stack counts twice, so that
    # these are rather too slow. Payload is 94 % of the line rate. 25 GbE: latency assumed equal.
    Link("10 GbE", loopback(2).round + ETHERNET, loopback(2).byte + 8 / 9.4e9),
    Link("25 GbE", loopback(2).round + ETHERNET, loopback(2).byte + 8 / 23.5e9),
    # NCCL between GPUs, a member each: latencies of its own cost model (src/graph/tuning.cc,
    # ring, LL); line rates, which LL does not reach. The addition is neglected.
    Link("InfiniBand 100 Gb/s", 2.7e-6, 8 / 100e9, start=6.6e-6),
    Link("NVLink 4", 0.6e-6, 1 / 450e9, start=6.6e-6, reach=8),
)

STEPS = (
    Step(
        "acrobot",
        *WORK["acrobot"],
        sums=((37944, 64), (808, 1), (288, 1), (768, 1), (16, 1)),
        most=128,
    ),
    Step(
        "lunar_lander",
        *WORK["lunar_lander"],
        sums=((39228, 64), (816, 1), (296, 1), (12, 1), (4, 1), (768, 1), (16, 1)),
        most=128,
    ),
)
STEPS_AN_ITERATION = {"acrobot": 128 * 64, "lunar_lander": 128 * 64}

# --- counting collectives -------------------------------------------------------------------

OPERATIONS = ("collective-permute", "all-gather", "all-reduce")


def collectives(hlo: str, num_devices: int) -> Counter[tuple[str, int]]:
    """How often one call of a compiled program enters each collective: by its operation and the
    bytes that a device gives. ``hlo`` is the text of the compiled program, in which XLA notes
    how often each loop runs; one of unknown length (`sums.map_exact`) runs once."""
    bodies: dict[str, list[str]] = {}
    entry = name = ""
    for line in hlo.splitlines():
        if opened := re.match(r"(ENTRY )?%?([\w.-]+) \(.*\{$", line):
            name = opened[2]
            bodies[name] = []
            entry = name if opened[1] else entry
        elif name:
            bodies[name].append(line)
    found: Counter[tuple[str, int]] = Counter()

    def visit(name: str, times: int) -> None:
        for line in bodies[name]:
            if here := re.search(rf" = (.*?) ({'|'.join(OPERATIONS)})\(", line):
                gathers = here[2] == "all-gather"
                found[here[2], _bytes(here[1]) // (num_devices if gathers else 1)] += times
                continue
            trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
            for called in re.findall(r"(?:body|calls|to_apply)=%?([\w.-]+)", line):
                visit(called, times * (int(trips[1]) if trips else 1))

    visit(entry, 1)
    return found


def _bytes(shapes: str) -> int:
    """``f32[2,217]{1,0}``: 1736 bytes."""
    total = 0
    for dtype, shape in re.findall(r"(pred|[a-z]+\d+)\[([\d,]*)\]", shapes):
        width = 1 if dtype == "pred" else int(re.sub(r"\D", "", dtype)) // 8
        total += width * math.prod(int(size) for size in shape.split(",") if size)
    return total


def count(file: str) -> list[list[Any]]:
    """The collectives of a call that makes one iteration of a config on two devices:
    ``[operation, bytes, how many]``. On ``n`` devices there are ``log2 n`` collective-permutes for
    each of them."""
    runner, _ = _runner(file, Fraction(1), devices=2)
    runner.compile()
    found = collectives(runner._compiled_steps.as_text(), 2)
    # The seconds of several processes, with a number of each array of the reports: see
    # `Placement.publish`.
    found["collective-permute", 16] += 1
    return [[*what, times] for what, times in sorted(found.items())]


# --- measuring ------------------------------------------------------------------------------


def scaled(config: Any, growth: Fraction) -> Any:
    """``growth`` times the environments, in as many times the shards and the minibatch size."""
    size = int(config.algo.minibatch_size * growth)
    return config.replace(
        num_envs=int(config.num_envs * growth),
        num_shards=int(config.num_shards * growth),
        algo=dataclasses.replace(config.algo, minibatch_size=size),
    )


def _peers() -> Any:
    from jaxrl_scale.config import Launch
    from jaxrl_scale.parallel.cluster import find
    from jaxrl_scale.parallel.peers import join

    return join(find(Launch(), os.environ), Launch())


def _runner(file: str, growth: Fraction, devices: int = 1) -> tuple[Any, Any]:
    from jaxrl_scale.config import files
    from jaxrl_scale.loop.runner import Runner
    from jaxrl_scale.parallel import backend

    config, peers = scaled(files.read_file(Path(file)), growth).replace(devices=devices), _peers()
    env = config.make_env()
    return Runner(config, env, backend.initialize(config, peers)), peers


def iteration(file: str, growth: Fraction, seconds: float = 4.0) -> list[float]:
    """Seconds of iterations, one after the other, on all processes of the run."""
    from jaxrl_scale.loop.prepare import compile_in_turn

    runner, peers = _runner(file, growth)
    compile_in_turn(runner, peers, bool(runner.config.compilation_cache), fresh=True)
    state, _ = runner.step(runner.init())
    state, _ = runner.step(state)
    once = -time.perf_counter()
    state, _ = runner.step(state)
    once += time.perf_counter()
    number = peers.gather("iterations", max(8, int(seconds / once)))[0]
    times = []
    for _ in range(number):
        began = time.perf_counter()
        state, _ = runner.step(state)
        times.append(time.perf_counter() - began)
    peers.close()
    return times


def sums(repeats: int = 40, window: float = 0.02) -> dict[str, list[list[float]]]:
    """Seconds of one collective, ``[size][repeat]`` by its name: many of them in one program, in
    which each waits for the one before, as the trainer's do."""
    import jax

    from jaxrl_scale.config import Config
    from jaxrl_scale.parallel import backend, sums

    peers = _peers()
    n = peers.num_processes
    placement = backend.initialize(Config(devices=1, num_shards=n, num_envs=n), peers)
    pool, axis = placement.pool(), sums.AXIS
    ways = {
        "sum": lambda x: pool.sum(x[None]) / n,
        "all_gather": lambda x: jax.lax.all_gather(x, axis)[jax.lax.axis_index(axis) - 1],
        "psum": lambda x: jax.lax.psum(x, axis) / n,
    }
    times: dict[str, list[list[float]]] = {name: [] for name in ways}
    for name, way in ways.items():
        for size in SIZES:
            x = np.ones((1, size // 4), np.float32)

            def program(x: Any, calls: Any, way: Any = way) -> Any:
                return jax.lax.fori_loop(0, calls, lambda _, x: way(x), x)

            compiled = placement.compile(program, x, np.ones(1, np.int32))

            def seconds(calls: int, compiled: Any = compiled, x: Any = x) -> float:
                began = time.perf_counter()
                jax.block_until_ready(compiled(x, np.full(1, calls, np.int32)))
                return (time.perf_counter() - began) / calls

            seconds(4)
            calls = int(window / seconds(8))
            calls = peers.gather(f"{name} {size}", max(4, min(400, calls)))[0]
            times[name].append([seconds(calls) for _ in range(repeats)])
    peers.close()
    return times


def processes(n: int, *arguments: Any) -> Any:
    """What the first of ``n`` processes of this file finds, each bound to a core."""
    from jaxrl_scale.parallel.machine import free_port, visible_cores

    cores, address = visible_cores(), f"127.0.0.1:{free_port()}"
    started = []
    for k in range(n):
        several = {
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_NUM_PROCESSES": str(n),
            "JAX_PROCESS_ID": str(k),
        }
        core = str(cores[k % len(cores)])
        started.append(
            subprocess.Popen(
                [sys.executable, __file__, "one", core, *map(str, arguments)],
                env=os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"} | several,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    out = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit(f"communication.py one {arguments} failed")
    return json.loads(out[0].splitlines()[-1])


def one(core: int, what: str, *arguments: str) -> Any:
    """One of those processes."""
    os.sched_setaffinity(0, {core})
    if what == "sums":
        return sums()
    if what == "count":
        return count(*arguments)
    file, growth = arguments
    return iteration(file, Fraction(growth))


def measure(configs: Sequence[str], numbers: Sequence[int], rounds: int) -> dict[str, Any]:
    """Everything that the model needs; the least of ``rounds`` that take turns (other programs
    of a shared machine only ever add time), and the median beside it."""

    def least(runs: list[list[float]]) -> list[float]:
        every = [x for run in runs for x in run]
        return [min(every), statistics.median(every)]

    def tell(*what: Any) -> None:
        print(*what, file=sys.stderr, flush=True)

    found: dict[str, Any] = {"sizes": SIZES, "collectives": {}, "configs": {}}
    for n in numbers:
        runs = [processes(n, "sums") for _ in range(rounds)]
        table = {}
        for name in runs[0]:
            every = [least([run[name][i] for run in runs]) for i in range(len(SIZES))]
            best, middle = zip(*every, strict=True)
            table[name] = {"least": best, "median": middle, "fit": fit(SIZES, best)}
            tell(n, name, table[name])
        found["collectives"][n] = table
    for file in configs:
        cases = [(1, share) for share in SHARES]
        cases += [(n, growth) for n in numbers for growth in (Fraction(1), Fraction(n))]
        timed: dict[tuple[int, Fraction], list[list[float]]] = {case: [] for case in cases}
        for _ in range(rounds):
            for n, growth in cases:
                timed[n, growth].append(processes(n, "iteration", file, growth))
                tell(file, n, "processes,", growth, "of the work", *least(timed[n, growth]))
        times = {f"{n} processes, {growth}": least(timed[n, growth]) for n, growth in cases}
        alone = [times[f"1 processes, {share}"][0] for share in SHARES]
        fixed = max(0.0, fit([float(share) for share in SHARES], alone)[0])
        found["configs"][file] = {
            "collectives": processes(1, "count", file),
            "seconds": times,
            "fixed": fixed,
            "split": alone[0] - fixed,
        }
        tell(file, found["configs"][file])
    return found


def entries(found: dict[str, Any]) -> str:
    """What `measure` found as this file's constants, to be pasted in their place."""

    def short(*seconds: float) -> tuple[float, ...]:
        return tuple(float(f"{x:.3g}") for x in seconds)

    sums = {n: short(*table["sum"]["fit"]) for n, table in found["collectives"].items()}
    work, points = {}, {}
    for file, config in found["configs"].items():
        times = {case: least for case, (least, _) in config["seconds"].items()}
        both = {n: (f"{n} processes, 1", f"{n} processes, {n}") for n in (1, *sums)}
        work[Path(file).stem] = short(config["fixed"], config["split"])
        points[Path(file).stem] = {n: short(*(times[c] for c in both[n])) for n in both}
    constants = {"SUMS": sums, "WORK": work, "POINTS": points}
    return "\n".join(f"{name} = {value}" for name, value in constants.items() if value)


# --- predicting -----------------------------------------------------------------------------


WAYS: dict[Way, str] = {exchange: "exchange", ring_gather: "ring"}


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.{0 if seconds >= 0.1 else 1}f}"


def tables() -> str:
    """Markdown: what the model says of the measured points, and of 1 to 512 hosts."""
    heads = ("strong, predicted", "measured", "weak, predicted", "measured")
    lines = _heads("milliseconds of an iteration", "processes", *heads)
    for step in STEPS:
        for n, measured in POINTS[step.name].items():
            link, on_a_core = NOTHING if n == 1 else loopback(n), max(1, n / CORES)
            cells = [step.name, str(n)]
            for scaling, seconds in zip((strong, weak), measured, strict=True):
                predicted = scaling(step, n, link, exchange, on_a_core)
                cells += [milliseconds(predicted), milliseconds(seconds)]
            lines.append(f"| {' | '.join(cells)} |")
    cases = [(step, scaling, way) for step in STEPS for scaling in (strong, weak) for way in WAYS]
    names = [f"{s.name}, {scaling.__name__}, {WAYS[way]}" for s, scaling, way in cases]
    lines += ["", *_heads("hosts", *names)]
    for n in HOSTS:
        cells = [str(n)]
        for step, scaling, way in cases:
            fits = scaling is weak or n <= step.most
            cells.append(milliseconds(scaling(step, n, NETWORKS[0], way)) if fits else "–")
        lines.append(f"| {' | '.join(cells)} |")
    wired = [(step, link) for step in STEPS for link in NETWORKS]
    lines += ["", *_heads("members", *(f"{step.name}, {link.name}" for step, link in wired))]
    for n in HOSTS[1:]:
        cells = [str(n)]
        for step, link in wired:
            cells.append(milliseconds(communication(step, n, link)) if n <= link.reach else "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _heads(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


DARK = "#1b1f24"


def plot(path: Path) -> None:
    """Environment steps a second over hosts, predicted and measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    ethernet = NETWORKS[0]
    drawn: tuple[tuple[str, str, str, Link, Way], ...] = (
        ("10 GbE", "#0072B2", "-", ethernet, exchange),
        ("10 GbE, were it an all-gather in a ring", "#D55E00", "--", ethernet, ring_gather),
        ("no communication", "#9aa3ad", ":", NOTHING, exchange),
    )
    figure, panels = plt.subplots(2, len(STEPS), figsize=(9, 7), sharex=True, layout="constrained")
    for column, step in zip(panels.T, STEPS, strict=True):
        one = STEPS_AN_ITERATION[step.name]
        for panel, scaling in zip(column, (strong, weak), strict=True):
            grows = scaling is weak
            hosts = [n for n in HOSTS if grows or n <= step.most]
            for label, color, line, link, way in drawn:
                speeds = [one * (n if grows else 1) / scaling(step, n, link, way) for n in hosts]
                panel.plot(hosts, speeds, line, color=color, label=label)
            points = POINTS[step.name]
            for label, face, numbers in (
                ("measured, processes of one machine", DARK, [n for n in points if n <= CORES]),
                ("the same, more than one a core", "none", [n for n in points if n > CORES]),
            ):
                speeds = [one * (n if grows else 1) / points[n][grows] for n in numbers]
                if numbers:
                    panel.plot(numbers, speeds, "o", color=DARK, mfc=face, label=label)
            panel.set_title(f"{step.name}, {scaling.__name__}", loc="left", fontsize=10)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_xticks(HOSTS, [str(n) for n in HOSTS])
            panel.grid(color="#e3e6ea", linewidth=0.6)
            panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[:, 0]:
        panel.set_ylabel("environment steps / s")
    for panel in panels[-1]:
        panel.set_xlabel("hosts, one core each")
    lines = panels[0, 0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--configs", nargs="*", default=[], metavar="FILE")
    measuring.add_argument("--processes", nargs="*", type=int, default=[2, 4], metavar="N")
    measuring.add_argument("--rounds", type=int, default=3, help="turns of each measurement")
    predicting = commands.add_parser("predict")
    predicting.add_argument("--plot", type=Path, metavar="PNG")
    commands.add_parser("one").add_argument("arguments", nargs="+")
    args = parser.parse_args()
    if args.command == "one":
        core, *arguments = args.arguments
        print(json.dumps(one(int(core), *arguments)))
    elif args.command == "predict":
        print(tables())
        if args.plot:
            plot(args.plot)
    else:
        found = measure(args.configs, args.processes, args.rounds)
        print(json.dumps(found))
        print(entries(found), file=sys.stderr)


if __name__ == "__main__":
    main()
