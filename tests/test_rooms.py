"""The plan of the package: imports run downwards only, from one floor to those below it."""

import ast
from pathlib import Path

import pytest

import jaxrl_scale

PACKAGE = Path(jaxrl_scale.__file__).parent
FLOORS = (
    {"__main__"},
    {"compare", "sweep"},
    {"train", "evaluate", "export", "report", "runs", "scaling", "search"},
    {"loop", "figures", "portable", "child_runs"},
    {"records"},
    {"parallel"},
    {"config"},
    {"algos"},
    {"learning", "envs"},
    {"commands"},
    {"options", "user_code"},
    {"interrupts"},
    {"errors", "types"},
)
"""The rooms, from the roof to the ground. The package itself imports when a name is first used."""


def name_of(file):
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}
ROOMS = {module: module.split(".")[1] for module in MODULES if "." in module}


def imports(module):
    """The modules of the package that a module imports anywhere in its file."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return (found & set(ROOMS)) - {module}


def floor(module):
    return next(n for n, rooms in enumerate(FLOORS) if ROOMS[module] in rooms)


@pytest.mark.parametrize("module", ROOMS)
def test_imports_run_downwards(module):
    upwards = [
        other
        for other in imports(module)
        if ROOMS[other] != ROOMS[module] and floor(other) <= floor(module)
    ]
    assert not upwards


def test_no_module_imports_itself_by_way_of_others():
    left = {module: imports(module) for module in ROOMS}
    while ready := [module for module, others in left.items() if not others & set(left)]:
        for module in ready:
            del left[module]
    assert not left
