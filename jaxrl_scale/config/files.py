"""Configs in files: Python files with ``get_config()``, and the JSON of run directories."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
import re
import runpy
import warnings
from pathlib import Path
from typing import Any

from jaxrl_scale import algos
from jaxrl_scale.config import Config, check, check_run
from jaxrl_scale.config.shipped import FOLDER, config_file
from jaxrl_scale.errors import RunError, closest, in_words, nearest, one_line, raise_if_hidden
from jaxrl_scale.options import given_path
from jaxrl_scale.user_code import describe, is_own, look_in_this_folder

executed: set[str] = set()
"""The SHA-256 of each config or sweep file that this process has run and that `only_returns` does
not know to be harmless. Such a file is a program: it may change what the package computes."""

_DATA = (
    *(ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Name, ast.Attribute, ast.Load, ast.keyword),
    *(ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.Subscript),  # -110.0, 2**20
)
_STATEMENTS = (ast.Module, ast.Expr, ast.alias, ast.arguments, ast.Return)

DICTS = ("env_kwargs", "test_env_kwargs")
"""The options that are dicts: on the command line each NAME in them is an option of its own."""


def read_file(path: str | Path) -> Config:
    """The config that ``get_config()`` of a Python file returns."""
    said = "a jaxrl_scale.Config"
    return returned_by(given_path("path", path), "config file", FOLDER, "get_config", Config, said)


def shipped(env: str, algo: str = "ppo") -> Config:
    """The config that comes with the package for an environment and an algorithm, as the command
    line takes it for ``--env``. Raises a `RunError` where there is none."""
    file = config_file(env, algo)
    if file is None:
        raise RunError(f"the package has no config for {env!r} and {algo}; use Config(env=…)")
    return read_file(file)


def returned_by(path: Path, kind: str, folder: Path, name: str, wanted: type, said: str) -> Any:
    """What a function of a Python file returns.

    Args:
      kind: what the file is, for people.
      folder: that of the files of this kind that come with the package.
      name: of the function, which takes no arguments.
      wanted: the type of what it should return, which is ``said`` to be so in the error.
    """
    path = Path(os.path.expanduser(path))
    what = f"{kind} {path}"
    try:
        raise_if_hidden(path)
        if path.is_dir():
            raise RunError(f"{what} is a directory; give one of its Python files")
        if path.exists() and not path.is_file():
            raise RunError(f"{what} is a pipe or a device; give a Python file")
        if not path.is_file():
            near = _nearest_path(path, "*.py") or _of_the_name(path, folder)
            raise RunError(f"{what} does not exist{near}")
    except OSError as error:
        raise RunError(f"{what} cannot be read: {error.strerror}") from None
    try:
        if not only_returns(program := path.read_bytes()):
            executed.add(hashlib.sha256(program).hexdigest())
        look_in_this_folder()
        function = runpy.run_path(str(path)).get(name)
        value = function() if callable(function) else None
    except RunError as error:
        raise RunError(f"{what}: {error}") from None
    except (Exception, SystemExit) as error:
        text = describe(error, str(path))
        found = re.search(r"unexpected keyword argument '(\w+)'", text)
        if found and (hint := _nearest_field(found[1])):
            text = text[: found.end()] + hint  # in place of Python's own hint (from 3.13 on)
        raise RunError(f"{what}{text}") from error
    if not callable(function):
        raise RunError(f"{what} has no function {name}()")
    if not isinstance(value, wanted):
        returned = value.__qualname__ if isinstance(value, type) else type(value).__name__
        raise RunError(f"{what}: {name}() returned {returned}, it should return {said}")
    return value


def only_returns(text: bytes) -> bool:
    """Whether a config or sweep file does nothing but return what it holds, as those do that come
    with the package. Then all that it decides is in the config that it returns. It imports from the
    package, defines functions, and calls nothing but classes of the name ``Config``."""
    try:
        with warnings.catch_warnings(action="ignore"):  # which Python gives when the file is run
            nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):  # a zero byte
        return False

    def is_harmless(node: ast.AST) -> bool:
        match node:
            case ast.ImportFrom(module=module, level=0):
                named = not any(alias.asname for alias in node.names)
                return named and f"{module}.".startswith("jaxrl_scale.")
            case ast.FunctionDef(name=name):
                return name != "Config" and not node.decorator_list
            case ast.Call(func=ast.Name(id="Config") | ast.Attribute(attr="Config")):
                return True
        return isinstance(node, _DATA + _STATEMENTS)

    return all(map(is_harmless, nodes))


def _of_the_name(path: Path, folder: Path) -> str:
    """``'; did you mean configs/acrobot.py?'`` for ``acrobot`` and ``acrobot.py`` in any folder, if
    it is in this one."""
    file = (folder / path.name).with_suffix(".py").resolve()
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"; did you mean {shown}?" if file.is_file() else ""


def _nearest_path(path: Path, pattern: str) -> str:
    """``'; did you mean X?'`` for what beside the path is called like it. The names alone are
    compared, as a folder that all share would make them alike."""
    near = closest(path.name, [p.name for p in path.parent.glob(pattern) if p.exists()])
    return f"; did you mean {path.with_name(near)}?" if near else ""


def _nearest_field(name: str) -> str:
    """What to say of a field that a config file gives to the wrong class, or misspells."""
    of_algorithms = [f.name for n in algos.names() for f in dataclasses.fields(algos.get(n).Config)]
    of_run = [f.name for f in dataclasses.fields(Config)]
    if name in of_run:
        return "; it is a field of jaxrl_scale.Config"
    if owners := algos.with_option(name):
        of_all = len(owners) == len(algos.names())
        whose = "the algorithm's Config" if of_all else f"the Config of {in_words(owners)}"
        return f"; it is a field of {whose}"
    return nearest(name, of_algorithms + of_run)


def to_json(config: Config) -> dict[str, Any]:
    """A config as data for JSON. `from_json` reads it back."""
    data = dataclasses.asdict(config)
    data["algo"] = {"name": config.algo.name, **data["algo"]}
    return data


def to_python(config: Config, text: str) -> str:
    """A config file, which `read_file` reads back: what differs from the defaults.

    Args:
      text: the file's docstring.
    """
    algo, quoted = config.algo, text.replace("\\", "\\\\").replace('"', '\\"')
    module, _, own = algo.name.partition(":")
    imported, called = f"from jaxrl_scale.algos import {module}", module
    if own:
        imported, called = f"import {module} as algorithm\n", "algorithm"
    options = _changed_arguments(algo, type(algo)(), 12)
    others = _changed_arguments(config.replace(algo=None), Config(algo=None), 8)  # type: ignore[arg-type]
    return (
        f'"""{quoted}\n"""\n\n{imported}\nfrom jaxrl_scale.config import Config\n\n\n'
        "def get_config() -> Config:\n"
        f"    return Config(\n{others}        algo={called}.Config(\n{options}        ),\n    )\n"
    )


def _changed_arguments(part: Any, default: Any, indent: int) -> str:
    fields = [(f.name, getattr(part, f.name)) for f in dataclasses.fields(part)]
    changed = [(name, x) for name, x in fields if x != getattr(default, name)]
    return "".join(
        f"{' ' * indent}{name}={_quoted(x) if isinstance(x, str) else repr(x)},\n"
        for name, x in changed
    )


def _quoted(text: str) -> str:
    """As Python reads it, in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def from_json(data: dict[str, Any], look: bool = False) -> Config:
    """The inverse of `to_json`; ``look`` as for `read_config`."""
    data = dict(data)
    options = _tuples(dict(data.pop("algo")))
    name = options.pop("name")
    unread = look and is_own(name)
    algo = algos.unread(name, options) if unread else algos.get(name).Config(**options)
    return Config(**_tuples(data), algo=algo)


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


def read_config(path: Path, look: bool = False) -> Config:
    """The config of a run, checked; ``path`` is the ``config.json`` in its run directory.

    ``look``: the run is only looked at. An algorithm of the user's own, whose module somebody else
    may have named, is then not imported, and its options are not checked (`algos.unread`).
    """
    try:
        raise_if_hidden(path)
        if path.parent.is_file():
            raise RunError(f"{path.parent} is a file; give the run directory that holds it")
        if path.parent.exists() and not path.parent.is_dir():
            raise RunError(f"{path.parent} is a pipe or a device; give a run directory")
        if not path.parent.is_dir():
            near = _nearest_path(path.parent, "*")
            raise RunError(f"run directory {path.parent} does not exist{near}")
        if not path.is_file():
            runs = sorted(path.parent.glob(f"*/{path.name}"))  # of a sweep, or runs/ itself
            hint = f", but it holds runs, such as {runs[0].parent}" if runs else ""
            raise RunError(f"{path.parent} is not a run directory: it has no {path.name}{hint}")
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    name = ""
    try:
        data = json.loads(path.read_text())
        name = str(data["algo"]["name"])
        unread = look and is_own(name)
        if is_own(name) and not unread:
            _find(name, path)
        config = from_json(data, look)
        (check_run if unread else check)(config)
        return config
    except _NotThere:
        raise
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    # A RunError is a ValueError; of lists that are nested too deeply JSON makes a RecursionError.
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if found := re.search(r"unexpected keyword argument '(\w+)'", str(error)):
            whose = f"algorithm {name!r}" if is_own(name) else "this version of jaxrl_scale"
            raise RunError(f"{path} has a field {found[1]!r} that {whose} does not know") from None
        raise RunError(f"{path} is damaged: {one_line(error)}") from None


class _NotThere(RunError):
    """The algorithm of a run cannot be imported, whose config is as it was."""


def _find(name: str, path: Path) -> None:
    try:
        algos.get(name)
    except RunError as error:
        raise _NotThere(f"{path}: {error}") from error


def to_look_at(config: Config, **changes: Any) -> Config:
    """The config of a run for whoever only looks at it, with these changes. Its programs are kept
    in the user's folder: what lies in the one that the run names is run, whoever has put it
    there."""
    if config.compilation_cache:
        changes["compilation_cache"] = Config().compilation_cache
    return config.replace(**changes)


def flatten(config: Config) -> dict[str, Any]:
    """The values of all options, by their names on the command line."""
    flat: dict[str, Any] = {"algo": config.algo.name}
    for prefix, part in (("", config), ("algo.", config.algo)):
        for f in dataclasses.fields(part):
            if f.name != "algo":
                flat[prefix + f.name] = getattr(part, f.name)
    return flat
