"""Ranges of options, and the settings that are drawn from them.

On the command line a range stands where a value would: ``--algo.learning_rate=log:1e-4:1e-2``,
``--algo.gae_lambda=uniform:0.8:1``, ``--algo.entropy_coef=0,0.003,0.01``. Options whose values have
commas take semicolons between their choices: ``--hidden_sizes=64,64;256,256``.
"""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxrl_scale.config import Config, command_line
from jaxrl_scale.config.files import DICTS, returned_by
from jaxrl_scale.config.shipped import FOLDER
from jaxrl_scale.errors import RunError
from jaxrl_scale.options import can_be_option, check_fields, has_type

Setting = dict[str, Any]
"""Options and their values, by their names on the command line without dashes."""

Draws = Literal["sobol", "random", "grid", "tpe"]

SHAPES = (
    *("network", "network_width", "hidden_sizes", "activation", "shared_torso"),
    *("num_envs", "rollout_length"),
)
"""What may vary beside the algorithm's options. Each combination is a program of its own."""
_CAN_VARY = f"the algorithm's options can, and {', '.join(SHAPES)}"


@dataclass(frozen=True)
class Range:
    """What one option may be: some ``choices``, or all numbers from the first to the second of
    ``values``, as likely everywhere (``uniform``) or in every order of magnitude (``log``)."""

    option: str
    kind: Literal["choices", "uniform", "log"]
    values: tuple[Any, ...]
    whole: bool = False

    @property
    def of_reals(self) -> bool:
        """Whether all values are real numbers, in which agents of one program may differ."""
        return all(isinstance(x, float) for x in self.values)

    def at(self, part: float) -> Any:
        """The value at ``part`` of the way, from 0 up to but not including 1."""
        if self.kind == "choices":
            return self.values[int(part * len(self.values))]
        low, high = self.values
        high += self.whole  # so that the last is as likely as the others
        if self.kind == "log":
            found = math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
        else:
            found = low + part * (high - low)
        return int(found) if self.whole else found

    def part(self, value: Any) -> float:
        """How far along the range a value lies, from 0 to 1; the middle of its share for one of
        several choices."""
        if self.kind == "choices":
            return (self.values.index(value) + 0.5) / len(self.values)
        ends = np.array([*self.values, value], np.float64)
        low, high, at = np.log(ends) if self.kind == "log" else ends
        return float((at - low) / (high - low))


def with_file(argv: Sequence[str]) -> list[str]:
    """The command line with what the file of ``--sweep=FILE`` says before it; an option that is
    given on the command line has its value there.

    The file's ``get_sweep()`` returns a dict of options by their names without dashes, and their
    values as they are written on the command line; choices may be a list.
    """
    texts = _joined(argv)
    given = {text.partition("=")[0] for text in texts}
    files = [text.partition("=")[2] for text in texts if text.startswith("--sweep=")]
    rest = [text for text in texts if not text.startswith("--sweep=")]
    if not files:
        return rest
    said = "a dict of options by their names"
    path, folder = Path(files[-1]), FOLDER / "sweeps"
    options = returned_by(path, "sweep file", folder, "get_sweep", dict, said)
    if "sweep" in options:
        raise RunError(
            f"sweep file {path} names another one, sweep={options['sweep']!r}; a sweep has one "
            "file, so its options should stand in this one"
        )
    chosen = [f"--{k}={options[k]}" for k in ("config", "algo", "env") if k in options]
    varied = [f"--{name}" for name, value in options.items() if isinstance(value, list)]
    lists = _lists([*chosen, *rest], [*varied, *rest])
    own = {f"--{name}": _as_written(str(name), value, lists) for name, value in options.items()}
    return [f"{name}={text}" for name, text in own.items() if name not in given] + rest


def _as_written(name: str, value: Any, lists: set[str]) -> str:
    if isinstance(value, list):
        return _between(name, lists).join(map(command_line.written, value))
    return command_line.written(value)


def split(argv: Sequence[str]) -> tuple[Config, list[Range]]:
    """The trainer's command line in which ranges stand for some values: the config without them,
    where each of these options has its value of the config file, and the ranges, checked.

    Raises a `RunError` for an option that does not exist or cannot vary, and for a range that is
    empty or holds what the option may not be.
    """
    fixed, found, values = [], dict[str, str](), set[str]()
    texts = _joined(argv)
    lists = _lists(texts, [text for text in texts if "," in text])
    for text in texts:
        name, given, value = text.removeprefix("--").partition("=")
        if name.split(".")[0] in DICTS and re.match(r"(log|uniform):|[\d.e+-]+,", value):
            raise RunError(f"--{name} cannot vary in a sweep; {_CAN_VARY}")
        if text.startswith("--") and given and _is_range(name, value, lists):
            if name in found:
                raise RunError(f"--{name} has two ranges; give one")
            found[name] = value
        else:
            fixed.append(text)
            values.add(name)
    for name in values & found.keys():
        raise RunError(f"--{name} has a range and a value; give one")
    if any(text.startswith("--resume") for text in fixed):
        raise RunError("a sweep has no --resume; the same command with its --run_dir goes on")
    if refused := [text for text in fixed if text.startswith("--num_seeds=")]:
        count = refused[-1].partition("=")[2]
        raise RunError(
            f"a sweep has no --num_seeds; give --seeds={count}, the seeds of each setting"
        )
    config, *_ = command_line.load(fixed)
    return config, [_read(config, name, text, lists) for name, text in found.items()]


def draw(ranges: Sequence[Range], number: int, how: Draws, seed: int) -> list[Setting]:
    """Settings from these ranges: all combinations of choices, or ``number`` drawn ones.

    ``sobol``, with which ``tpe`` begins too, fills the space more evenly than ``random`` does:
    scrambled Sobol points (https://doi.org/10.1016/0041-5553(67)90144-9).
    """
    names = [each.option for each in ranges]
    if how == "grid":
        if others := [each.option for each in ranges if each.kind != "choices"]:
            raise RunError(
                f"--draw=grid takes choices only, such as --{others[0]}=A,B,C; --{others[0]} "
                "has a range of numbers"
            )
        values = itertools.product(*(each.values for each in ranges))
        return [dict(zip(names, row, strict=True)) for row in values]
    if how != "random":
        from scipy.stats import qmc

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a number which is no power of two is less even
            parts = qmc.Sobol(len(ranges), rng=np.random.default_rng(seed)).random(number)
    else:
        parts = np.random.default_rng(seed).random((number, len(ranges)))
    return [
        {each.option: each.at(float(part)) for each, part in zip(ranges, row, strict=True)}
        for row in parts
    ]


def _joined(argv: Sequence[str]) -> list[str]:
    """``--name value`` as ``--name=value``."""
    texts: list[str] = []
    for text in argv:
        if texts and not text.startswith("--") and re.fullmatch(r"--[\w.]+", texts[-1]):
            texts[-1] += f"={text}"
        else:
            texts.append(text)
    return texts


def _is_range(name: str, text: str, lists: set[str]) -> bool:
    if name in ("config", "resume", "algo") or name.split(".")[0] in DICTS:
        return False
    return text.startswith(("log:", "uniform:")) or _between(name, lists) in text


def _lists(argv: Sequence[str], asked: Sequence[str]) -> set[str]:
    """The options whose values have commas. Those of an algorithm of one's own are looked for only
    where some option of the algorithm is ``asked`` for."""
    found = {"hidden_sizes"}
    if any(text.startswith("--algo.") for text in asked) and not any(
        text.startswith("--resume") for text in argv
    ):
        types = command_line.types_of(command_line.starting(argv)).items()
        found |= {name for name, hint in types if can_be_option(hint) and has_type((), hint)}
    return found


def _between(name: str, lists: set[str]) -> str:
    """What separates the choices of an option."""
    return ";" if name in lists else ","


def _read(config: Config, name: str, text: str, lists: set[str]) -> Range:
    """A range, from its text."""
    found = re.fullmatch(r"(log|uniform):(.*)", text)
    between = _between(name, lists)
    kind, rest = (found[1], found[2].split(":")) if found else ("", text.split(between))
    said, texts = f"--{name}={text}", [part for part in rest if part]
    if not kind and len(texts) < len(rest):
        raise RunError(f"{said} should have a value on both sides of every {between!r}")
    if kind and len(texts) != 2:
        raise RunError(f"{said} should be {kind}:LOW:HIGH, such as {kind}:1e-4:1e-2")
    values = [_value(config, name, part) for part in texts]
    if not name.startswith("algo.") and name not in SHAPES:
        raise RunError(f"--{name} cannot vary in a sweep; {_CAN_VARY}")
    if not kind:
        if len(set(values)) < len(values):
            raise RunError(f"{said} holds a value twice")
        return Range(name, "choices", tuple(values))
    low, high = values
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in values):
        raise RunError(f"{said}: {name} is no number; give its choices, separated by commas")
    if not low < high:
        raise RunError(f"{said} is empty: {low} should be below {high}")
    if kind == "log" and low <= 0:
        raise RunError(f"{said} should begin above 0; uniform:{low}:{high} may begin there")
    return Range(name, "log" if kind == "log" else "uniform", (low, high), isinstance(low, int))


def texts(setting: Setting) -> dict[str, str]:
    """A setting's values as they are written on the command line."""
    return {name: command_line.written(value) for name, value in setting.items()}


def from_texts(config: Config, written: dict[str, str]) -> Setting:
    """The setting of which `texts` were written."""
    return {name: _value(config, name, text) for name, text in written.items()}


def _value(config: Config, name: str, text: str) -> Any:
    """What the option would be, with the trainer's own checks of its name, type and bounds."""
    changes = command_line.changes_of(config, [f"--{name}={text}"])
    changed = command_line.with_options(config, changes)
    check_fields(changed, "")
    check_fields(changed.algo, "algo.")
    return changes[name]
