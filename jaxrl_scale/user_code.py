"""Code that the user brings: a class found by its name, and its errors told in one line.

``--env``, ``--network`` and ``--algo`` take ``my_package.my_module:MyClass``. The name may also
come from the ``config.json`` of somebody else's run, so what is named must be a class of the right
kind before it is called: ``os:system`` is refused, not run. Only the import of the module itself
runs code.
"""

from __future__ import annotations

import importlib
import keyword
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from jaxrl_scale.errors import RunError, nearest, one_line


def is_own(name: str) -> bool:
    """Whether a name has the form of one of your own, ``module:Name``."""
    return ":" in name


def load_by_name(kind: str, name: str, fits: Callable[[Any], bool], wanted: str) -> Any:
    """Import what ``module:Name`` names. It is looked at, and not called.

    Args:
      kind: what the name stands for, such as ``"environment"``; errors begin with it.
      fits: whether an object is of that kind.
      wanted: what the object should be, in words that complete "it should be …".

    Raises:
      RunError: if there is no such module or object, if the module cannot be imported, or if the
        object is of another kind.
    """
    module_name, _, attribute = name.partition(":")
    what = f"{kind} {name!r}"
    if module_name.endswith(".py") or not _is_module_name(module_name):
        stem = re.sub(r"\.py$", "", module_name).strip("./\\").replace("/", ".")
        near = f"{stem if _is_module_name(stem) else 'my_module'}:{attribute}"
        raise RunError(
            f"{what}: {module_name!r} is not the name of a module; write it as Python's import "
            f"does, such as {one_line(near)}"
        )
    look_in_this_folder()
    try:
        with errors_in_one_line(what):
            module = importlib.import_module(module_name)
    except RunError as error:
        missing = getattr(error.__cause__, "name", None)
        if isinstance(error.__cause__, ModuleNotFoundError) and f"{module_name}.".startswith(
            f"{missing}."
        ):
            raise RunError(
                f"{what}: there is no module {missing!r} on sys.path or in the current directory "
                f"{os.getcwd()}"
            ) from None
        raise  # the module is there; something that it imports is not
    with errors_in_one_line(what):
        is_there = hasattr(module, attribute)
    if not is_there:
        fitting = [known for known, value in vars(module).items() if fits(value)]
        hint = nearest(attribute, fitting) or ("; it has " + ", ".join(fitting) if fitting else "")
        if module_name == "__main__":
            hint = "; it was defined in another program or notebook, and should stand in a file"
        raise RunError(f"{what}: module {module_name!r} has no {attribute!r}{hint}")
    found = getattr(module, attribute)
    if fits(found):
        return found
    if fits(type(found)):
        hint = f"{attribute!r} is an instance of {type(found).__name__}; name the class instead"
        raise RunError(f"{what}: {hint}")
    raise RunError(f"{what}: {attribute!r} was not called, because it should be {wanted}")


def look_in_this_folder() -> None:
    """Let Python import modules from where the command was started, which an installed command does
    not do."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def _is_module_name(text: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in text.split("."))


def modules_of_ones_own() -> list[str]:
    """The modules that this process has imported from elsewhere than the package, Python itself and
    the folders of installed libraries: from the folder of work, say, or from PYTHONPATH. Each could
    have changed any function, and with a file that nobody knows of."""
    known = (os.path.dirname(__file__) + os.sep, os.path.dirname(os.__file__) + os.sep)
    return [
        name
        for name, module in sys.modules.copy().items()
        if name not in ("__main__", "__mp_main__")  # the second is multiprocessing's, of the same
        # Not getattr, for which a lazy module would be imported.
        and isinstance(file := getattr(module, "__dict__", {}).get("__file__"), str)
        and not file.startswith(known)
        and not {"site-packages", "dist-packages"} & set(file.split(os.sep))
    ]


@contextmanager
def errors_in_one_line(what: str) -> Iterator[None]:
    """Raise a `RunError` for whatever the user's code raises, ``sys.exit()`` included: ``what``,
    the file and line of the user's code, and the error."""
    try:
        yield
    except RunError:
        raise
    except (Exception, SystemExit) as error:
        raise RunError(f"{what}{describe(error)}") from error


def describe(error: BaseException, file: str = "") -> str:
    """``", mine.py, line 3: KeyError: 'x'"``, without the place if no code of the user's is
    involved, and without the file's name if it is ``file``, which the message names already."""
    place = _place(error, file)
    message = str(error.msg if isinstance(error, SyntaxError) else error).strip()
    if len(message) > 300:
        message = message.splitlines()[0][:300]
    if isinstance(error, SystemExit):
        message = f"{message or 'None'}, which would end the program"
    return f"{place}: {type(error).__name__}" + (f": {one_line(message)}" if message else "")


def describe_callback(message: str) -> str | None:
    """What JAX's message says of an error in a callback of a compiled program, such as
    `jax.pure_callback` has; None where it is about something else."""
    _, found, trace = message.partition("error calling callback: Traceback")
    if not found:
        return None
    lines = trace.splitlines()
    frames = [(k, re.match(r'  File "(.+)", line (\d+)', line)) for k, line in enumerate(lines)]
    known = [(k, frame[1], int(frame[2])) for k, frame in frames if frame]
    last = known[-1][0] if known else 0
    error = " ".join(line for line in lines[last + 1 :] if not line.startswith("    "))
    place = _last_of_the_user([(file, number) for _, file, number in known])
    return f"a callback of the compiled program{place}: {one_line(error)[:300]}"


def show_arrays(tree: Any) -> str:
    """A tree of abstract arrays in JAX's notation: ``(float32[4], {'time': int32[]})``."""
    if isinstance(tree, jax.ShapeDtypeStruct):
        return f"{tree.dtype}[{','.join(map(str, tree.shape))}]"
    if fields := getattr(tree, "_fields", None):
        parts = ", ".join(f"{k}={show_arrays(v)}" for k, v in zip(fields, tree, strict=True))
        text = f"{type(tree).__name__}({parts})"
    elif isinstance(tree, tuple | list):
        text = f"({', '.join(map(show_arrays, tree))})"
    elif isinstance(tree, dict):
        text = "{" + ", ".join(f"{k!r}: {show_arrays(v)}" for k, v in tree.items()) + "}"
    else:
        text = "None" if tree is None else f"a {type(tree).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}…"


def _place(error: BaseException, known: str) -> str:
    """``", FILE, line NUMBER"`` of the last line of the user's code that ran."""
    if isinstance(error, SyntaxError) and error.filename:
        places: list[tuple[str, int | None]] = [(error.filename, error.lineno)]
    else:
        frames = traceback.extract_tb(error.__traceback__)
        places = [(frame.filename, frame.lineno) for frame in frames]
    return _last_of_the_user(places, known)


def _last_of_the_user(places: Sequence[tuple[str, int | None]], known: str = "") -> str:
    """As `_place`, of files and lines in the order in which they ran."""
    of_the_user = [place for place in places if not _is_library(place[0])]
    if not of_the_user:
        return ""
    file, line = of_the_user[-1]
    if file == known:
        return f", line {line}"
    near = os.path.relpath(file)
    return f", {file if near.startswith('..') else near}, line {line}"


def _is_library(file: str) -> bool:
    """Whether a file belongs to Python, to this package, or to the libraries below it."""
    # Dataclasses write code of their own, and parts of NumPy are compiled.
    if file.startswith(("<frozen", "<string>")) or file.endswith(".pyx"):
        return True
    standard = sysconfig.get_paths()["stdlib"]
    if file.startswith(standard) and "-packages" not in file:
        return True
    names = (__package__, "jax", "jaxlib", "flax", "numpy", "gymnasium", "wandb")
    libraries = [sys.modules.get(name) for name in names]
    folders = [os.path.dirname(module.__file__ or "") for module in libraries if module]
    return any(file.startswith(folder + os.sep) for folder in folders if folder)
