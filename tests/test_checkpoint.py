import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxrl_scale.errors import RunError
from jaxrl_scale.records import checkpoint
from jaxrl_scale.records.checkpoint import Checkpoints, kept, restore
from jaxrl_scale.types import Part


class Local(NamedTuple):
    obs: Any
    carry: Any


def state(iteration: int, size: int = 1000) -> dict[str, Any]:
    rng = np.random.default_rng(iteration)
    return {
        "iteration": np.int32(iteration),
        "params": {f"layer{i}": rng.normal(size=size).astype(np.float32) for i in range(4)},
        "local": Local(obs=rng.integers(0, 255, (3, 5), np.uint8), carry=()),
    }


def odd_state() -> dict[str, Any]:
    return {
        "float32": np.float32([[1, -0.0], [np.nan, np.inf]]),
        "minus_zero": np.full(3, -0.0, np.float32),
        "nan_payload": np.uint32([0x7FC12345]).view(np.float32),
        "scalar": np.asarray(np.float32(-0.0)),
        "numpy_scalar": np.int32(7),
        "float64": np.arange(3.0) / 3,
        "int64": np.arange(3) << 40,
        "uint32": np.uint32([0, 2**32 - 1]),
        "uint8": np.zeros((2, 3), np.uint8),
        "bool": np.array([True, False]),
        "bfloat16": np.arange(4).astype(ml_dtypes.bfloat16),
        "no_elements": np.zeros((0, 3), np.float32),
        "transposed": np.arange(12.0).reshape(3, 4).T,
        "broadcast": np.broadcast_to(np.float32(2), (3, 4)),
        "local": Local(obs=np.ones(2, np.float32), carry=()),
        "list": [np.ones(1, np.int32), (np.zeros(1, bool), None)],
        "strange name / of ['a'].leaf": np.ones(1, np.float32),
    }


def assert_same(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert type(x) is np.ndarray
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        assert x.tobytes() == y.tobytes()


def abstract(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def no_warning(message: str) -> None:
    raise AssertionError(message)


def saved(directory: Path, iterations: Any, keep: int = 10) -> Path:
    checkpoints = Checkpoints(directory, keep)
    for iteration in iterations:
        checkpoints.save(iteration, state(iteration), {"env_steps": iteration * 64})
    checkpoints.close()
    return directory


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


# --- saving and restoring -------------------------------------------------------------------


def test_every_kind_of_leaf_comes_back_bit_for_bit_and_nothing_is_printed(tmp_path, capfd):
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(3, odd_state(), {})
    found = checkpoints.restore(abstract(odd_state()), no_warning)
    checkpoints.close()
    assert found is not None
    assert found[0] == 3
    assert_same(found[1], odd_state())
    assert capfd.readouterr() == ("", "")


def test_meta_comes_back_as_it_was_when_saved(tmp_path):
    meta = {"env_steps": 2**40, "window": [0.1, 1e-300, -3], "id": "åbc", "none": None, "d": {}}
    expected = json.loads(json.dumps(meta))
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(1, state(1), meta, score=float("inf"))
    meta["window"].append("changed while it is written")
    assert checkpoints.restore(state(0), no_warning)[2] == expected
    checkpoints.close()


def test_a_folder_without_checkpoints_restores_nothing(tmp_path):
    assert restore(tmp_path / "missing", state(0), no_warning) is None
    (tmp_path / "file").touch()
    assert restore(tmp_path / "file", state(0), no_warning) is None
    assert restore(tmp_path, state(0), no_warning, best=True) is None
    assert not (tmp_path / "missing").exists()


def test_the_newest_is_restored_by_number_and_not_by_name(tmp_path):
    saved(tmp_path, [9, 10, 100])
    assert restore(tmp_path, state(0), no_warning)[0] == 100


def test_an_iteration_that_is_saved_already_is_left_as_it_is(tmp_path):
    saved(tmp_path, [1])
    before = (tmp_path / "1").stat()
    saved(tmp_path, [1])
    assert (tmp_path / "1").stat() == before


def test_restoring_works_inside_a_running_event_loop_as_in_a_notebook(tmp_path):
    saved(tmp_path, [1])

    async def cell() -> Any:
        return restore(tmp_path, state(0), no_warning)

    assert_same(asyncio.run(cell())[1], jax.tree.map(np.asarray, state(1)))


def test_orbax_is_imported_by_the_first_save_or_by_warming_up_and_not_before(tmp_path):
    code = """if True:
        import sys
        from jaxrl_scale.records.checkpoint import Checkpoints, restore
        checkpoints = Checkpoints(sys.argv[1], keep=1)
        assert restore(sys.argv[1], {}, print) is None
        assert "orbax.checkpoint" not in sys.modules
        checkpoints.warm_up()
        checkpoints.close()
        assert "orbax.checkpoint" in sys.modules
    """
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)


# --- in the background ----------------------------------------------------------------------


def test_save_returns_before_anything_is_written(tmp_path, monkeypatch):
    write, may_write = checkpoint._write_arrays, threading.Event()

    def write_later(*args: Any) -> None:
        assert may_write.wait(60)
        write(*args)

    monkeypatch.setattr(checkpoint, "_write_arrays", write_later)
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(1, state(1), {})
    assert names(tmp_path) == set()
    may_write.set()
    checkpoints.wait()
    assert names(tmp_path) == {"1"}
    checkpoints.close()


@pytest.mark.parametrize("then", ["save", "wait", "restore", "close"])
def test_an_error_of_the_background_is_raised_by_the_next_call_and_once(
    tmp_path, monkeypatch, then
):
    def fail(*args: Any) -> None:
        raise OSError(122, "Disk quota exceeded")

    checkpoints = Checkpoints(tmp_path, keep=2)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write_arrays", fail)
        checkpoints.save(1, state(1), {})
        calls = {
            "save": lambda: checkpoints.save(2, state(2), {}),
            "wait": checkpoints.wait,
            "restore": lambda: checkpoints.restore(state(0), no_warning),
            "close": checkpoints.close,
        }
        with pytest.raises(RunError, match=f"^cannot save .*{tmp_path}/1: Disk quota exceeded$"):
            calls[then]()
    if then != "close":
        checkpoints.save(3, state(3), {})
        assert checkpoints.restore(state(0), no_warning)[0] == 3
        checkpoints.close()


# --- which ones are kept --------------------------------------------------------------------


def test_the_last_ones_and_the_best_are_kept():
    none = -float("inf")
    assert kept({1: none}, 1) == {1}
    assert kept({1: none, 2: none, 3: none}, 2) == {2, 3}
    assert kept({1: 5.0, 2: 1.0, 3: 2.0, 4: none}, 2) == {1, 3, 4}
    assert kept({1: -5.0, 2: none, 3: none}, 1) == {1, 3}
    assert kept({1: 5.0, 2: 5.0, 3: 1.0, 4: 1.0}, 1) == {2, 4}, "of equals the latest"


def test_the_folder_holds_the_last_ones_and_the_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    scores = [1.0, 9.0, 3.0, None, float("nan"), 2.0]
    for iteration, score in enumerate(scores):
        checkpoints.save(iteration, state(iteration), {}, score)
    checkpoints.wait()
    assert names(tmp_path) == {"1", "4", "5"}
    assert checkpoints.restore(state(0), no_warning)[0] == 5
    iteration, best, _ = checkpoints.restore(state(0), no_warning, best=True)
    assert iteration == 1
    assert_same(best, jax.tree.map(np.asarray, state(1)))
    checkpoints.close()


def test_without_any_score_the_best_is_the_newest(tmp_path):
    saved(tmp_path, [1, 2, 3])
    assert restore(tmp_path, state(0), no_warning, best=True)[0] == 3


# --- killed at any moment -------------------------------------------------------------------

SAVE_FOR_EVER = """if True:
    import itertools, sys
    sys.path.insert(0, sys.argv[1])
    from test_checkpoint import Checkpoints, no_warning, state
    checkpoints = Checkpoints(sys.argv[2], keep=2)
    found = checkpoints.restore(state(0, 100_000), no_warning)
    for iteration in itertools.count(found[0] + 1 if found else 0):
        checkpoints.save(iteration, state(iteration, 100_000), {"i": iteration}, -iteration)
        print(iteration, flush=True)
"""


def test_a_process_killed_while_it_saves_leaves_whole_checkpoints_only(tmp_path):
    moments, leftovers, reached = random.Random(0), 0, []
    for _ in range(6):
        command = [sys.executable, "-c", SAVE_FOR_EVER, str(Path(__file__).parent), tmp_path]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            first, second = int(process.stdout.readline()), int(process.stdout.readline())
            assert second == first + 1
            time.sleep(moments.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
            printed = process.stdout.read().split()
        announced = int(printed[-1]) if printed else second
        found = restore(tmp_path, state(0, 100_000), no_warning)
        iteration, values, meta = found
        assert iteration in (announced - 1, announced)
        assert meta == {"i": iteration}
        assert_same(values, jax.tree.map(np.asarray, state(iteration, 100_000)))
        assert restore(tmp_path, state(0, 100_000), no_warning, best=True)[0] == 0
        leftovers += any(not name.isdecimal() for name in names(tmp_path))
        reached.append(iteration)
    assert reached == sorted(set(reached)), "each process went on from the one before"
    assert leftovers, "no kill came in the middle of a save"


def test_what_a_killed_process_left_behind_is_removed_at_the_next_start(tmp_path):
    saved(tmp_path, [1])
    for name in ("2.orbax-checkpoint-tmp", "3.orbax-checkpoint-tmp-17", "0.deleted"):
        (tmp_path / name / "d").mkdir(parents=True)
        (tmp_path / name / "d" / "file").write_text("half")
    saved(tmp_path, [2])
    assert names(tmp_path) == {"1", "2"}


# --- damage ---------------------------------------------------------------------------------


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [flip_a_bit, truncate, Path.unlink])
def test_whatever_file_is_damaged_it_is_named_and_the_one_before_used(tmp_path, capfd, damage):
    saved(tmp_path, [1, 2])
    whole = tmp_path / "2"
    backup = shutil.copytree(whole, tmp_path / "backup")
    noticed = set()
    for file in [path for path in whole.rglob("*") if path.is_file()]:
        damage(file)
        warnings: list[str] = []
        iteration, values, meta = restore(tmp_path, state(0), warnings.append)
        assert_same(values, jax.tree.map(np.asarray, state(iteration)))
        assert meta == {"env_steps": iteration * 64}
        assert iteration == 2 - len(warnings)
        for warning in warnings:
            assert warning.startswith(f"checkpoint {whole} is damaged and skipped: ")
            assert "\n" not in warning
            noticed.add(file.relative_to(whole).parts[0])
        shutil.copyfile(backup / file.relative_to(whole), file)
    # `ocdbt.process_0` holds the arrays; the others left over hold nothing that is needed.
    assert noticed >= {"_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt", "d"}
    assert "ocdbt.process_0" in noticed
    assert capfd.readouterr() == ("", "")


def test_an_array_that_is_damaged_is_named(tmp_path):
    path = saved(tmp_path, [1, 2]) / "2"
    flip_a_bit(max((path / "ocdbt.process_0" / "d").iterdir(), key=lambda p: p.stat().st_size))
    warnings: list[str] = []
    restore(tmp_path, state(0), warnings.append)
    assert "params/layer" in warnings[0]
    assert warnings[0].endswith("is not what was written")


def test_a_number_changed_in_the_meta_data_is_damage(tmp_path):
    record = saved(tmp_path, [1, 2]) / "2" / "_CHECKPOINT_METADATA"
    text = record.read_text()
    assert '"env_steps": 128' in text
    record.write_text(text.replace('"env_steps": 128', '"env_steps": 129'))
    warnings: list[str] = []
    assert restore(tmp_path, state(0), warnings.append)[2] == {"env_steps": 64}
    assert warnings[0].endswith("_CHECKPOINT_METADATA is not what was written")


def test_orbax_prints_nothing_of_its_own_on_the_terminal(tmp_path):
    code = """if True:
        import sys
        sys.path.insert(0, sys.argv[1])
        from test_checkpoint import *
        directory = saved(Path(sys.argv[2]), [1, 2])
        flip_a_bit(directory / "2" / "manifest.ocdbt")
        print(restore(directory, state(0), lambda message: print("warned"))[0])
    """
    # A process of its own: pytest diverts what is logged.
    command = [sys.executable, "-c", code, str(Path(__file__).parent), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("warned\n1\n", "")


def test_damaged_ones_are_moved_aside_and_saving_goes_on(tmp_path):
    saved(tmp_path, [1, 2, 3, 4])
    shutil.rmtree(tmp_path / "4")
    (tmp_path / "4").mkdir()  # an empty folder
    truncate(tmp_path / "3" / "_METADATA")
    checkpoints = Checkpoints(tmp_path, keep=2)
    warnings: list[str] = []
    assert checkpoints.restore(state(0), warnings.append)[0] == 2
    assert [w.split(" is damaged")[0] for w in warnings] == [
        f"checkpoint {tmp_path / '4'}",
        f"checkpoint {tmp_path / '3'}",
    ]
    assert names(tmp_path) == {"1", "2", "3.damaged", "4.damaged"}
    checkpoints.save(3, state(3), {})
    assert checkpoints.restore(state(0), no_warning)[0] == 3
    assert names(tmp_path) == {"2", "3", "3.damaged", "4.damaged"}
    truncate(tmp_path / "3" / "_METADATA")  # a second time
    assert checkpoints.restore(state(0), warnings.append)[0] == 2
    checkpoints.close()


def test_the_best_one_damaged_is_named_and_the_next_best_used(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=5)
    for iteration, score in [(1, 3.0), (2, 9.0), (3, 1.0)]:
        checkpoints.save(iteration, state(iteration), {}, score)
    checkpoints.close()
    truncate(tmp_path / "2" / "_CHECKPOINT_METADATA")
    warnings: list[str] = []
    assert restore(tmp_path, state(0), warnings.append, best=True)[0] == 1
    assert [w.split(" is damaged")[0] for w in warnings] == [f"checkpoint {tmp_path / '2'}"]


def test_if_no_checkpoint_is_whole_that_is_an_error_and_all_stay(tmp_path):
    saved(tmp_path, [1, 2])
    for iteration in ("1", "2"):
        (tmp_path / iteration / "_METADATA").unlink()
    checkpoints = Checkpoints(tmp_path, keep=2)
    warnings: list[str] = []
    with pytest.raises(RunError, match=f"^none of the 2 checkpoints in {tmp_path} is whole$") as e:
        checkpoints.restore(state(0), warnings.append)
    assert e.value.status == 74
    assert len(warnings) == 2
    assert names(tmp_path) == {"1", "2"}
    checkpoints.close()


# --- another config -------------------------------------------------------------------------


def with_params(**params: Any) -> dict[str, Any]:
    tree = state(0)
    return tree | {"params": tree["params"] | params}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            with_params(layer2=np.zeros((10, 2), np.float32)),
            r"params/layer2 is float32\[1000\] in it and float32\[10, 2\] in this run",
        ),
        (
            with_params(layer2=np.zeros(1000, np.int32)),
            r"params/layer2 is float32\[1000\] in it and int32\[1000\] in this run",
        ),
        (
            with_params(layer4=np.zeros((), bool)),
            r"params/layer4 is missing in it and bool\[\] in this run",
        ),
        (
            {k: v for k, v in state(0).items() if k != "iteration"},
            r"iteration is int32\[\] in it and missing in this run",
        ),
    ],
)
def test_a_checkpoint_of_another_config_is_an_error_that_names_the_leaf(tmp_path, target, message):
    saved(tmp_path, [1])
    checkpoints = Checkpoints(tmp_path, keep=2)
    for tree in (target, abstract(target)):
        with pytest.raises(RunError, match=f"checkpoint {tmp_path}/1 .*another config: {message}"):
            checkpoints.restore(tree, no_warning)
    checkpoints.close()
    assert names(tmp_path) == {"1"}


# --- reading only ---------------------------------------------------------------------------


def test_reading_changes_nothing_on_the_disk(tmp_path):
    saved(tmp_path, [1, 2])
    truncate(tmp_path / "2" / "_METADATA")
    (tmp_path / "3.orbax-checkpoint-tmp").mkdir()
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    assert restore(tmp_path, state(0), lambda message: None)[0] == 1
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_a_reader_sees_whole_checkpoints_only_while_another_saves_and_deletes(tmp_path):
    saved(tmp_path, [0])
    done, seen = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            iteration, values, _ = restore(tmp_path, state(0), no_warning)
            assert_same(values, jax.tree.map(np.asarray, state(iteration)))
            seen.append(iteration)

    with ThreadPoolExecutor() as thread:
        reader = thread.submit(read)
        saved(tmp_path, range(1, 40), keep=1)
        done.set()
        reader.result()
    assert len(set(seen)) > 5


def test_a_checkpoint_that_is_replaced_while_the_folder_is_listed_is_found(tmp_path, monkeypatch):
    saved(tmp_path, [1])
    scandir = os.scandir

    class Entry(NamedTuple):  # of a file system that does not list what is a folder
        name: str

        def is_dir(self) -> bool:
            return (tmp_path / self.name).is_dir()

    def list_and_be_late(path: Path) -> Any:
        with scandir(path) as entries:
            listed = [Entry(entry.name) for entry in entries]
        monkeypatch.undo()
        saved(tmp_path, [2], keep=1)
        return nullcontext(listed)

    monkeypatch.setattr(os, "scandir", list_and_be_late)
    assert restore(tmp_path, state(0), no_warning)[0] == 2


def test_a_checkpoint_deleted_while_it_is_read_is_not_called_damaged(tmp_path, monkeypatch):
    saved(tmp_path, [1])
    read = checkpoint._read_arrays

    def read_too_late(path: Path, arrays: dict[str, Any], partial: bool) -> Any:
        if path.name == "1":
            saved(tmp_path, [2], keep=1)
        return read(path, arrays, partial)

    monkeypatch.setattr(checkpoint, "_read_arrays", read_too_late)
    assert restore(tmp_path, state(0), no_warning)[0] == 2


# --- disks that refuse ----------------------------------------------------------------------


@pytest.fixture
def mount(tmp_path):
    """``mount(options)``: a small disk of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount_tmpfs(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("this process may not mount a tmpfs (needs root)")
        return disk

    yield mount_tmpfs
    if os.path.ismount(disk):
        subprocess.run(["umount", disk], check=True)


def test_a_full_disk_is_one_clear_error_and_what_was_saved_stays(mount, capfd):
    disk = mount("size=1m")
    directory = saved(disk / "run", [1, 2])
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
    checkpoints = Checkpoints(directory, keep=2)
    # From a disk too small for the arrays down to one without a page, error after error.
    for pages in (12, 8, 4, 3, 2, 1, 0):
        (disk / "filler").write_bytes(bytes(free - 4096 * pages))
        checkpoints.save(3, state(3, size=5000), {})
        with pytest.raises(RunError) as e:
            checkpoints.wait()
        assert str(e.value) == f"cannot save checkpoint {directory}/3: No space left on device"
        assert e.value.status == 74
        assert names(directory) == {"1", "2"}, "the half-written one is removed"
    assert_same(checkpoints.restore(state(0), no_warning)[1], jax.tree.map(np.asarray, state(2)))
    (disk / "filler").unlink()
    checkpoints.save(3, state(3), {})
    assert checkpoints.restore(state(0), no_warning)[0] == 3
    checkpoints.close()
    assert capfd.readouterr() == ("", "")


def test_a_disk_that_cannot_be_written_is_an_error_at_the_start_but_can_be_read(mount):
    disk = mount("size=1m")
    saved(disk, [1])
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    for directory in (disk, disk / "new"):
        with pytest.raises(RunError, match=f"^cannot save checkpoints in {directory}: ") as e:
            Checkpoints(directory, keep=2)
        assert e.value.status == 74
    assert restore(disk, state(0), no_warning)[0] == 1


def test_a_folder_below_a_file_is_an_error_at_the_start(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunError, match=r"checkpoints in .*/file/run: Not a directory$") as e:
        Checkpoints(tmp_path / "file" / "run", keep=2)
    assert e.value.status == 74


# --- several processes ----------------------------------------------------------------------


def test_parts_that_do_not_name_every_leaf_of_the_state_are_refused(tmp_path):
    parts = jax.tree.map(lambda _: Part(), state(1) | {"local": ()})
    checkpoints = Checkpoints(tmp_path, 1, parts=parts)
    checkpoints.save(1, state(1), {})
    with pytest.raises(ValueError, match="does not have the leaves of the state"):
        checkpoints.close()
