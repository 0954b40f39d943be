"""Programs of earlier runs: found where they are the same, and nowhere else."""

import dataclasses
import gc
import importlib
import os
import shutil
import sys
import threading
import time
import types

import algorithms
import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from running import differing, small

from jaxrl_scale import user_code
from jaxrl_scale.algos import ppo
from jaxrl_scale.config import files
from jaxrl_scale.loop import programs
from jaxrl_scale.loop import state as run_state
from jaxrl_scale.loop.make import make_runner
from jaxrl_scale.parallel import backend
from jaxrl_scale.parallel.placement import rename

TINY = small(num_envs=8, num_shards=2, hidden_sizes=(8,), devices=2, eval_episodes=4)
TINY = TINY.replace(algo=ppo.Config(minibatch_size=64, epochs=1))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of programs of a process that would be one of the commands."""
    monkeypatch.setattr(programs, "in_a_command", lambda: True)
    options = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: jax.config.values[name] for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield tmp_path / "programs"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def compiled(monkeypatch, config=TINY):
    """The state after two iterations, the metrics and an evaluation, and how many programs had to
    be compiled for it."""
    count, compile = [], jax.stages.Lowered.compile
    with monkeypatch.context() as patch:
        patch.setattr(
            jax.stages.Lowered, "compile", lambda *a, **k: count.append(1) or compile(*a, **k)
        )
        placement = backend.place(config, jax.local_devices())
        runner = make_runner(config, config.make_env(), placement)
        runner.compile()
        state, _ = runner.step(runner.init())
        state, metrics = runner.step(state)
        played = runner.evaluate(state)
        wait_for_writers()
        return (runner.fetch(state), metrics, played), len(count)


@pytest.mark.quickly
def test_a_later_run_finds_what_it_would_compile(folder, monkeypatch):
    """The run of another seed or length, or with other numbers, with the same bits as if it had
    compiled; a run with other options, or of another class of an environment, does not find it."""
    first, count = compiled(monkeypatch)
    assert count == 3
    assert len(list(folder.iterdir())) == 3 + 1  # and the shapes of the state
    with monkeypatch.context() as patch:
        patch.setattr(run_state, "init_agent", None)  # nothing is traced
        again, count = compiled(monkeypatch)
    assert count == 0
    assert differing(first, again) == []
    slower = dataclasses.replace(TINY.algo, learning_rate=1e-4, gamma=0.9)
    longer = TINY.replace(seed=7, iterations=9, log_every=2, algo=slower)
    found, count = compiled(monkeypatch, longer)
    assert count == 0
    with monkeypatch.context() as patch:
        patch.setattr(programs, "in_a_command", lambda: False)
        assert differing(found, compiled(patch, longer)[0]) == []
    others = (
        TINY.replace(hidden_sizes=(4,)),
        TINY.replace(env_kwargs={"length": 1.0}),
        TINY.replace(algo=dataclasses.replace(TINY.algo, epochs=2)),
        TINY.replace(algo=dataclasses.replace(TINY.algo, target_kl=0.1)),
        TINY.replace(devices=1),
        TINY.replace(reduction="fast"),
    )
    for config in others:
        placement = backend.place(config, jax.local_devices())
        assert programs.follows_from(config, placement) != programs.follows_from(
            TINY, backend.place(TINY, jax.local_devices())
        )


def found(folder):
    """What a tiny program that is kept in the folder gives, and how often it had to be traced."""
    count = []

    def trace(name):
        count.append(1)
        lowered = jax.jit(lambda x: 2 * x + 1).lower(np.float32(0))
        if name:
            rename(lowered, name)
        return lowered.compile

    whole = programs.Programs(folder, "all that it follows from", writes=True, alone=True)
    program = whole.program(("tiny",), jax.local_devices()[:1], trace)()
    wait_for_writers()
    return float(program(np.float32(3))), len(count)


def wait_for_writers():
    """As a process does at its end."""
    for thread in threading.enumerate():
        if thread.name == "programs":
            thread.join()


def test_a_file_that_is_damaged_or_somebody_elses_is_not_used(folder, monkeypatch):
    assert found(folder) == (7, 1)
    assert found(folder) == (7, 0)
    (path,) = folder.iterdir()
    content = path.read_bytes()
    middle = len(content) // 2
    for damaged in (  # the run ends well with what JAX has in its own cache
        content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        content[:middle],
        b"",
    ):
        path.write_bytes(damaged)
        assert found(folder) == (7, 1)
    path.unlink()
    for cached in folder.parent.glob("jit*"):
        cached.unlink()
    assert found(folder) == (7, 1)
    assert found(folder) == (7, 0)
    other = path.rename(path.with_name("of_another_program"))
    assert programs._read(other, jax.local_devices()[:1]) is None
    other.rename(path)
    assert found(folder) == (7, 0)
    somebody = os.getuid() + 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: somebody)
        assert found(folder) == (7, 1)


def test_what_jax_had_in_its_own_cache_is_compiled_and_kept_when_it_was_there_twice(folder):
    """Written once more, it could not run."""
    assert found(folder) == (7, 1)
    shutil.rmtree(folder)
    assert found(folder) == (7, 1)
    assert [path.read_bytes()[32:] for path in folder.iterdir()] == [b""]
    assert found(folder) == (7, 1)
    assert found(folder) == (7, 0)


def test_a_folder_that_cannot_be_written_is_no_reason_for_a_word(folder, capfd):
    folder.write_text("not a folder")
    assert found(folder) == (7, 1)
    assert capfd.readouterr() == ("", "")


def test_what_nobody_has_used_for_long_is_removed(folder):
    folder.mkdir()
    old, new, other = folder / ("a" * 64), folder / ("b" * 64), folder / "thesis.tex"
    (folder / "notes").mkdir()
    for path, age in ((old, 60), (new, -60), (other, 60)):
        path.write_text("")
        os.utime(path, (time.time() - programs.FORGOTTEN_AFTER - age,) * 2)
    assert found(folder) == (7, 1)
    assert not old.exists()
    assert new.exists()
    assert other.exists()  # which is no program


def test_a_link_is_no_program_of_ones_own(folder):
    assert found(folder) == (7, 1)
    (path,) = folder.iterdir()
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")
    assert programs._read(path, jax.local_devices()[:1]) is None


def test_what_is_used_is_not_forgotten(folder):
    assert found(folder) == (7, 1)
    (path,) = folder.iterdir()
    os.utime(path, (0, 0))
    assert found(folder) == (7, 0)
    assert path.stat().st_mtime > time.time() - 600


def test_a_program_follows_from_the_package_its_libraries_and_the_machine(monkeypatch):
    placement = backend.place(TINY, jax.local_devices())

    def followed():
        return programs.follows_from(TINY, placement)

    before = followed()
    assert followed() == before
    for name, other in (
        ("digest_of", lambda package: "of other files"),
        ("versions", lambda: {"jax": "0.0.1"}),
        ("processor_features", lambda: "flags: none"),
        ("visible_cores", lambda: range(99)),
        ("last_change", lambda library: 0.0),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(programs, name, other)
            assert followed() != before, name
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_of_another_process=true")
        assert followed() != before
    with monkeypatch.context() as patch:
        patch.setattr(files, "executed", {"a config file of one's own"})
        assert followed() != before
    precision = jax.config.values["jax_default_matmul_precision"]
    jax.config.update("jax_default_matmul_precision", "high")
    try:
        assert followed() != before
    finally:
        jax.config.update("jax_default_matmul_precision", precision)
    assert followed() == before


@pytest.mark.parametrize("name", algorithms.NAMES)
def test_no_program_depends_on_the_options_that_are_left_out(name):
    """Not in one place of its text. That agents have the numbers of their own options, whatever the
    config's are, is in test_algorithms.py, too."""
    config = algorithms.everything(name)
    changed = config.replace(
        **{name: other(config, name) for name in programs.NOT_COMPILED_IN if name != "devices"},
        algo=jax.tree.map(lambda number: 0.75 * number, config.algo),
    )
    assert files.flatten(changed)["algo.gamma"] == 0.75 * config.algo.gamma
    assert all(
        getattr(config, name) != getattr(changed, name)
        for name in programs.NOT_COMPILED_IN
        if name != "devices"  # which tells where the program runs, and is in the placement
    )
    texts = lowered(config)
    assert len(texts) == 3
    assert texts == lowered(changed)
    if name == "a2c":  # it can tell
        assert texts != lowered(config.replace(rollout_length=16))


def other(config, name):
    """Another value of an option."""
    value = getattr(config, name)
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return {"wandb": "disabled"}.get(name, value + "other")
    if isinstance(value, int):
        return value + 1
    paths = dict.fromkeys(("init_from", "run_dir"), "there")
    return ({"target_return": 1.0, "num_threads": 1, "iterations": 3} | paths)[name]


def lowered(config):
    """The texts of the programs that begin, train and evaluate."""
    placement = backend.place(config.replace(devices=1), jax.local_devices())
    runner = make_runner(config, config.make_env(), placement)
    texts = []

    class Uncompiled:
        def memory_analysis(self):
            return None

        def __call__(self, *args):
            raise InterruptedError

    def compile(self, **options):
        texts.append(self.as_text())
        return Uncompiled()

    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), runner.abstract_state())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", compile)
        runner.compile()
        with pytest.raises(InterruptedError):
            runner.evaluate(runner.place(state))
    return sorted(texts)


def test_code_of_ones_own_is_compiled_anew(folder):
    placement = backend.place(TINY, jax.local_devices())
    assert programs.with_programs(TINY, placement) != placement
    for own in (
        {"env": "my_module:MyEnv"},
        {"env": "gymnasium:MyEnv-v0"},
        {"network": "my_module:MyNetwork"},
    ):
        assert programs.with_programs(TINY.replace(**own), placement) == placement


def test_only_a_command_finds_programs(world, path):
    assert not programs.in_a_command()
    (world.folder / "own.py").write_text(
        "from jaxrl_scale.loop import programs\nprint(programs.in_a_command())\n"
    )
    assert world.run(module="own").out == "False\n"
    world.train_well(path)
    assert len(list((world.cache / "programs").iterdir())) >= 3


def test_a_module_of_ones_own_is_known(tmp_path, monkeypatch):
    """It may stand before a library's on sys.path, or be imported by a config file."""
    for name in ("__main__", "__mp_main__"):  # the command's module, by Python and multiprocessing
        monkeypatch.setitem(sys.modules, name, sys.modules[__name__])
    before = user_code.modules_of_ones_own()
    assert "test_programs" in before
    assert not {"jax", "numpy", "os", "pytest", "jaxrl_scale.train"} & {*before}
    assert not {"__main__", "__mp_main__"} & {*before}
    (tmp_path / "some_helper.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "some_helper", raising=False)
    importlib.import_module("some_helper")
    assert [*before, "some_helper"] == user_code.modules_of_ones_own()


def test_modules_that_appear_meanwhile_do_no_harm():
    """As those that another thread imports. Collecting garbage can let it run at any allocation."""
    added = []

    def collecting(phase, info):
        if len(added) < 60:
            added.append(f"made_meanwhile_{len(added)}")
            sys.modules[added[-1]] = types.ModuleType(added[-1])

    before, threshold = user_code.modules_of_ones_own(), gc.get_threshold()
    gc.callbacks.append(collecting)
    gc.set_threshold(1)
    try:
        found = user_code.modules_of_ones_own()
    finally:
        gc.callbacks.remove(collecting)
        gc.set_threshold(*threshold)
        for name in added:
            del sys.modules[name]
    assert found == before


def test_a_config_file_counts_by_what_it_returns_unless_it_does_more(tmp_path, monkeypatch):
    """So a learning rate may be changed in the file, too."""
    monkeypatch.setattr(files, "executed", set())
    came_with_it = [*files.FOLDER.rglob("*.py")]
    assert len(came_with_it) > 40
    assert all(files.only_returns(path.read_bytes()) for path in came_with_it)
    text = files.to_python(TINY, "Mine.")
    path = tmp_path / "mine.py"
    path.write_text(text)
    assert files.read_file(path) == TINY
    assert files.executed == set()
    assert files.only_returns(rb'"A backslash that Python warns of: \d"')
    path.write_text(text + "\nimport jax\n")
    assert files.read_file(path) == TINY
    assert len(files.executed) == 1


@pytest.mark.parametrize(
    "more",
    [
        "import jaxrl_scale.algos.ppo",
        "from my_module import Config",
        "from jaxrl_scale.algos.ppo import update as Config",
        "from jaxrl_scale.algos import ppo\nppo.loss = None",
        "from jaxrl_scale.algos import ppo\nppo.vars()",
        "from jaxrl_scale.algos import ppo\n@ppo.vars\ndef f(): return 1",
        "from .algos import ppo",
        "print(1)",
        "x = 1",
        "def Config(): return 1",
        "class Config: pass",
        "[x for x in (1, 2)]",
        "del Config",
        "lambda: 1",
        "def get_config(",
        "\0",
    ],
)
def test_a_file_that_does_more_is_told(more):
    assert not files.only_returns(more.encode())


def test_a_changed_file_is_another_package(tmp_path, monkeypatch):
    """One that came while this process ran is told by no digest, even with the time of another."""
    started = programs.process_start()
    package = tmp_path / "package"
    package.mkdir()
    for name, text in (("a.py", "x = 1"), ("b.py", "y = 2")):
        (package / name).write_text(text)
    os.utime(package / "a.py", (started - 3600,) * 2)
    with pytest.raises(OSError, match=r"a.py is newer than this process"):
        programs.digest_of(package)
    monkeypatch.setattr(programs, "process_start", lambda: time.time() + 1)
    seen = {programs.digest_of(package)}
    for change in ("x = 2", "x = 1 "):
        copy = shutil.copytree(package, tmp_path / change)
        (copy / "a.py").write_text(change)
        seen.add(programs.digest_of(copy))
    copy = shutil.copytree(package, tmp_path / "renamed")
    (copy / "a.py").rename(copy / "c.py")
    assert len({*seen, programs.digest_of(copy)}) == 4
