"""Starting JAX: what the environment asks for in vain, and what a later JAX may lack."""

import os
import subprocess
import sys
import time
import types
from pathlib import Path

import jax
import numpy as np
import pytest
from jax._src import cache_key

from jaxrl_scale.config import Config
from jaxrl_scale.errors import RunError
from jaxrl_scale.loop import prepare
from jaxrl_scale.parallel import backend, placement
from jaxrl_scale.parallel.peers import Peers

REPOSITORY = Path(__file__).parents[1]


@pytest.mark.parametrize("asked", ["cuda", "cpuu"])
def test_a_platform_that_is_not_there_is_an_error_of_one_line(asked, world):
    done = world.run("--iterations", 1, "--run_dir", "run", environment={"JAX_PLATFORMS": asked})
    assert done.status == 2
    assert done.err.startswith(f"error: JAX finds no device for JAX_PLATFORMS={asked}; try ")
    assert done.err.count("\n") == 1


def test_a_plugin_that_cannot_start_is_told_in_one_line(tmp_path):
    """As CUDA's on a machine without a driver: JAX goes on with what else it has."""
    (tmp_path / "jax_plugins").mkdir()
    fails = "def initialize():\n    raise RuntimeError('no driver\\nis here')\n"
    (tmp_path / "jax_plugins" / "broken.py").write_text(fails)
    script = (
        "from jaxrl_scale.parallel import backend; "
        "print(backend.find_devices()[0].platform, backend.logging.getLogger('jax').handlers)"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    environment.pop("JAX_PLATFORMS")  # with "cpu" JAX asks no plugin
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.endswith(" []\n")  # JAX's logger is left as it was
    assert done.stderr == "JAX goes on without a plugin that cannot start: no driver is here\n"


def test_this_jax_has_the_private_names_by_which_processes_share_compiled_programs():
    """Where it fails, nothing breaks: every process compiles for itself."""
    for name in ("custom_hook", "_hash_accelerator_config", "_hash_devices"):
        assert hasattr(cache_key, name)


def test_a_jax_without_these_names_is_left_alone():
    script = (
        "from jax._src import cache_key; del cache_key._hash_devices; "
        "from jaxrl_scale.parallel import backend; before = cache_key._hash_accelerator_config; "
        "backend._cache_for_all_processes(); "
        "assert cache_key._hash_accelerator_config is before"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_variable_of_jax_without_a_valid_value_is_an_error_of_one_line(world):
    variable = {"JAX_DEFAULT_MATMUL_PRECISION": "maybe"}
    done = world.run("--iterations", 1, "--run_dir", "run", environment=variable)
    assert done.status == 2
    assert done.err.count("\n") == 1
    assert done.err.startswith("error: ")
    assert '"maybe"' in done.err
    assert "JAX_DEFAULT_MATMUL_PRECISION" in done.err
    assert not (world.folder / "run").exists()


@pytest.mark.parametrize("deterministic", [True, False])
def test_on_a_gpu_sums_are_fast_and_kernels_those_of_the_last_compilation(deterministic):
    """Unless it is asked for the fastest kernels. `test_gpu.py` has runs, where there is a GPU."""
    gpu = types.SimpleNamespace(platform="gpu", process_index=0)
    config = Config() if deterministic else Config(deterministic=False)
    placed = backend.place(config, [gpu])
    assert placed.compiler_options["xla_gpu_deterministic_ops"] is deterministic
    assert placed.reduction == "fast"


def test_a_program_that_needs_more_memory_than_there_is_is_not_run():
    rows = jax.ShapeDtypeStruct((1_000_000, 2), np.float32)
    program = jax.jit(lambda x: x @ x.T).lower(rows).compile()
    with pytest.raises(RunError, match=r"this takes 4\.0 TB of memory, but .* is free; smaller"):
        placement.check_program(program, jax.local_devices()[:1])


def test_a_run_is_refused_where_it_could_not_be_compiled_or_kept(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    file = tmp_path / "cache"
    file.touch()
    with pytest.raises(RunError, match=f"compilation_cache={file} is a file; it should be a"):
        backend.initialize(Config(compilation_cache=str(file)))
    link = tmp_path / "link"
    link.symlink_to("nowhere")
    with pytest.raises(RunError, match=f"compilation_cache={link} is a symbolic link to nowhere"):
        backend.initialize(Config(compilation_cache=str(link)))
    for settings, told in (
        (jax.disable_jit(), "JAX_DISABLE_JIT is set, but a run is"),
        (jax.transfer_guard("disallow"), "JAX_TRANSFER_GUARD=disallow forbids what a run does"),
    ):
        with prepare.jax_settings_restored(), settings, pytest.raises(RunError, match=told):
            backend.initialize(Config(compilation_cache=""))


def test_a_folder_of_compiled_programs_that_jax_was_told_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "theirs")  # which JAX reads when it is imported
    before = jax.config.jax_compilation_cache_dir
    with prepare.jax_settings_restored():
        backend.initialize(Config(compilation_cache=str(tmp_path)))
        assert jax.config.jax_compilation_cache_dir == before


@pytest.fixture
def no_folder_told(monkeypatch):
    """The config says where compiled programs are kept."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")


@pytest.mark.usefixtures("no_folder_told")
def test_programs_are_not_kept_where_others_may_put_theirs(tmp_path, monkeypatch, capsys):
    def told(mode, owner, user):
        os.chmod(tmp_path, mode)
        found = tmp_path.stat()
        with monkeypatch.context() as patch, prepare.jax_settings_restored():
            whose = types.SimpleNamespace(st_uid=owner, st_mode=found.st_mode)
            patch.setattr(backend.os, "stat", lambda *_, **__: whose)
            patch.setattr(backend.os, "geteuid", lambda: user)
            backend.initialize(Config(compilation_cache=str(tmp_path)))
            used = jax.config.jax_compilation_cache_dir == str(tmp_path)
        said = capsys.readouterr().err.removeprefix(f"compilation_cache={tmp_path} ")
        assert used == (not said)
        return said.partition(",")[0]

    assert told(0o755, owner=1000, user=1000) == told(0o775, owner=1000, user=1000) == ""
    assert told(0o755, owner=0, user=1000) == told(0o755, owner=1000, user=0) == ""
    assert told(0o755, owner=1001, user=1000) == "belongs to another user"
    assert told(0o777, owner=1000, user=1000) == "may be written by everybody"


@pytest.mark.usefixtures("no_folder_told")
def test_every_run_of_a_process_keeps_its_programs_in_its_own_folder(tmp_path):
    before = jax.config.jax_compilation_cache_dir
    for k, name in enumerate(("first", "second")):
        with prepare.jax_settings_restored():
            backend.initialize(Config(compilation_cache=str(tmp_path / name)))
            jax.config.update(backend.CACHE_FROM, 0.0)
            jax.jit(lambda x, k=k: jax.numpy.sin(x) + k)(np.float32(1)).block_until_ready()
        assert any((tmp_path / name).iterdir())
        assert jax.config.jax_compilation_cache_dir == before


def test_a_process_steps_environments_in_the_threads_that_are_asked_for_or_one_a_core():
    for asked, threads in ((None, 5), (3, 3)):
        placed = backend.place(Config(num_threads=asked), jax.local_devices()[:1], cores=5)
        assert placed.num_threads == threads


def test_processes_that_divide_the_agents_alone_hold_whole_agents():
    """On as many of their devices as divide these."""
    devices = [types.SimpleNamespace(platform="cpu", process_index=k // 4) for k in range(12)]
    for agents, used in ((3, 1), (6, 2), (9, 3), (12, 4)):
        placed = backend.place(Config(num_seeds=agents), devices, cores=4)
        assert (placed.by_agents, placed.num_devices, placed.idle) == (True, 3 * used, 4 - used)
    with pytest.raises(RunError, match="3 processes divide neither num_shards=8 nor num_seeds=4"):
        backend.place(Config(num_seeds=4), devices, cores=4)


def test_a_run_says_that_jax_had_started_with_fewer_devices_than_it_could_use(monkeypatch):
    monkeypatch.setattr(backend, "visible_cores", lambda: range(99))  # the tests have eight devices
    assert backend.fewer_devices(Config(num_shards=8), Peers()) is None
    assert backend.fewer_devices(Config(num_shards=16, devices=8), Peers()) is None
    assert backend.fewer_devices(Config(num_shards=16), Peers()) == (
        "JAX has started in this process before, with 8 CPU devices; train before anything else "
        "uses JAX, and this run has 99 (its result is the same)"
    )


def test_a_process_that_loads_an_agent_can_train_on_all_cores():
    program = "from jaxrl_scale import load; load('zoo/cartpole'); import jax; print(jax.devices())"
    told = subprocess.check_output([sys.executable, "-c", program], cwd=REPOSITORY, text=True)
    assert told.count("CpuDevice") == len(os.sched_getaffinity(0))


def test_a_process_knows_when_it_began_to_a_tenth_of_a_second():
    code = "from jaxrl_scale.parallel.machine import process_start; print(process_start())"
    before = time.time()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert before - 0.05 < float(done.stdout) < before + 0.3


USE = "import jax; jax.numpy.zeros(3)"
TRAIN = (
    "from jaxrl_scale import Config, train; "
    "train(Config(iterations=1, run_dir='run', wandb='disabled'))"
)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (f"{USE}; import jaxrl_scale; {TRAIN}", "before jaxrl_scale was imported"),
        (f"import jaxrl_scale; {USE}; {TRAIN}", ""),
    ],
)
def test_a_process_in_which_xla_reads_no_flags_any_more_is_refused(code, said, tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=env
    )
    assert (said in done.stderr, done.returncode) == (True, bool(said)), done.stderr
