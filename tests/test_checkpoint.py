import asyncio
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxrl_scale.errors import RunError
from jaxrl_scale.records import array_folder
from jaxrl_scale.records.checkpoint import Checkpoints, kept, restore, restore_some
from jaxrl_scale.records.pieces import named_leaves
from jaxrl_scale.records.run_directory import write_atomically
from jaxrl_scale.types import Part, Span


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


def best(directory: Path, warn: Any = no_warning) -> Any:
    """The iteration, the arrays by name, and the meta of the best checkpoint."""
    return restore_some(directory, lambda name: True, warn, best=True)


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
    assert best(tmp_path) is None
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
    write, may_write = array_folder.write, threading.Event()

    def write_later(*args: Any) -> None:
        assert may_write.wait(60)
        write(*args)

    monkeypatch.setattr(array_folder, "write", write_later)
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
        patch.setattr(array_folder, "write", fail)
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
    assert kept({1: None}, 1) == {1}
    assert kept({1: None, 2: None, 3: None}, 2) == {2, 3}
    assert kept({1: 5.0, 2: 1.0, 3: 2.0, 4: None}, 2) == {1, 3, 4}
    assert kept({1: -5.0, 2: None, 3: None}, 1) == {1, 3}
    assert kept({1: -float("inf"), 2: None, 3: None}, 1) == {1, 3}
    assert kept({1: 5.0, 2: 5.0, 3: 1.0, 4: 1.0}, 1) == {2, 4}, "of equals the latest"


def test_the_folder_holds_the_last_ones_and_the_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    scores = [1.0, 9.0, 3.0, None, float("nan"), 2.0]
    for iteration, score in enumerate(scores):
        checkpoints.save(iteration, state(iteration), {}, score)
    checkpoints.wait()
    assert names(tmp_path) == {"1", "4", "5"}
    assert checkpoints.restore(state(0), no_warning)[0] == 5
    iteration, arrays, _ = best(tmp_path)
    assert iteration == 1
    assert_same(arrays, named_leaves(jax.tree.map(np.asarray, state(1))))
    checkpoints.close()


def test_the_best_is_one_that_was_evaluated_and_it_is_never_deleted(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    evaluated = {4: 500.0, 8: 10.0, 12: 500.0}  # and no score between two evaluations
    for iteration in (2, 4, 6, 8, 10, 11):
        checkpoints.save(iteration, state(iteration), {}, evaluated.get(iteration))
        if iteration >= 4:
            checkpoints.wait()
            assert best(tmp_path)[0] == 4
            assert names(tmp_path) == {"4", str(iteration)}
    checkpoints.save(12, state(12), {}, evaluated[12])
    checkpoints.wait()
    assert best(tmp_path)[0] == 12, "of equals the latest"
    assert names(tmp_path) == {"12"}
    checkpoints.close()


@pytest.mark.parametrize("shift", [0.0, -9.0])
def test_of_equally_good_ones_the_latest_is_restored_as_the_best(tmp_path, shift):
    checkpoints = Checkpoints(tmp_path, keep=4)
    for iteration, score in [(1, 2.0), (2, 3.0), (3, 3.0), (4, None)]:
        checkpoints.save(iteration, state(iteration), {}, None if score is None else score + shift)
    checkpoints.close()
    assert best(tmp_path)[0] == 3


def test_one_that_the_disk_does_not_give_now_is_not_deleted(tmp_path, monkeypatch):
    """It may be the best."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    for iteration, score in [(1, 9.0), (2, 1.0)]:
        checkpoints.save(iteration, state(iteration), {}, score)
    checkpoints.wait()
    with monkeypatch.context() as patch:
        read = array_folder.read_record

        def refused(path: Path) -> dict[str, Any]:
            with array_folder._damage("arrays.npz"):
                if path.name == "1":
                    raise OSError(errno.EIO, "Input/output error")
            return read(path)

        patch.setattr(array_folder, "read_record", refused)
        checkpoints.save(3, state(3), {}, 2.0)
        checkpoints.wait()
    assert names(tmp_path) == {"1", "3"}
    checkpoints.close()
    assert best(tmp_path)[0] == 1


@pytest.mark.parametrize(
    "changed",
    [
        [],
        {"arrays": None},
        {"arrays": {"w": {"dtype": "float31", "shape": [2], "box": [[0, 2]]}}},
        {"arrays": {"w": {"dtype": "float32", "shape": [-2], "box": [[0, 2]]}}},
        {"arrays": {"w": {"dtype": "float32", "shape": [2], "box": [[0]]}}},
        {"arrays": {"w": {"dtype": "float32", "shape": [2], "box": []}}},
        {"ids": [3]},
        {"ids": []},
        {"score": "high"},
        {"score": [1]},
        {"meta": "none"},
    ],
)
def test_a_record_that_is_none_of_a_checkpoint_is_skipped(tmp_path, changed):
    saved(tmp_path, [1, 2])
    record = array_folder.read_record(tmp_path / "2")
    record = record | changed if changed else changed
    with zipfile.ZipFile(tmp_path / "2" / "arrays.npz", "w") as file:
        file.writestr("record.json", json.dumps(record))
    warnings: list[str] = []
    assert restore(tmp_path, state(0), warnings.append)[0] == 1
    assert "2 is damaged and skipped: record.json is none of a checkpoint" in warnings[0]
    assert restore_some(tmp_path, lambda _: True, warnings.append)[0] == 1


def test_a_damaged_one_does_not_take_the_place_of_the_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for iteration, score in [(1, 9.0), (2, 1.0), (3, 2.0)]:
        checkpoints.save(iteration, state(iteration), {}, score)
    checkpoints.wait()
    truncate(tmp_path / "2" / "arrays.npz")
    checkpoints.save(4, state(4), {}, 3.0)
    checkpoints.close()
    assert names(tmp_path) == {"1", "3", "4"}


def test_a_file_that_is_called_like_a_checkpoint_is_none(tmp_path):
    saved(tmp_path, [1, 2])
    (tmp_path / "3").touch()
    assert restore(tmp_path, state(0), no_warning)[0] == 2
    saved(tmp_path, [4], keep=1)
    assert names(tmp_path) == {"3", "4"}


def test_what_is_saved_is_on_the_disk(tmp_path, monkeypatch):
    written, fsync = [], os.fsync

    def on_disk(descriptor: int) -> None:
        written.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", on_disk)
    saved(tmp_path, [1])
    assert (tmp_path / "1" / "arrays.npz").stat().st_ino in written
    written.clear()
    write_atomically(tmp_path / "file", b"text")
    assert written == [(tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino]


def test_what_is_deleted_disappears_from_its_name_at_once(tmp_path, monkeypatch):
    rmtree, removed = shutil.rmtree, []

    def watched(path: Path, **how: Any) -> None:
        removed.extend([path.name] if path.exists() else [])
        rmtree(path, **how)

    monkeypatch.setattr(shutil, "rmtree", watched)
    saved(tmp_path, [1, 2, 3], keep=1)
    assert removed == ["1.deleted", "2.deleted"]


def test_without_any_score_the_best_is_the_newest(tmp_path):
    saved(tmp_path, [1, 2, 3])
    assert best(tmp_path)[0] == 3


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
        assert best(tmp_path)[0] == 0
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
    assert noticed == {"arrays.npz"}, "orbax's other files hold nothing that is needed"
    assert capfd.readouterr() == ("", "")


def test_whatever_byte_is_damaged_no_wrong_number_is_restored(tmp_path):
    small = {"a": np.arange(3, dtype=np.float32), "b": np.arange(2).astype(ml_dtypes.bfloat16)}
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(1, small, {"x": 1})
    checkpoints.close()
    file = tmp_path / "1" / "arrays.npz"
    whole, harmless = file.read_bytes(), 0
    for at in range(len(whole)):
        for bit in (1, 128):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            warnings: list[str] = []
            try:
                _, values, meta = restore(tmp_path, small, warnings.append)
            except RunError:
                assert len(warnings) == 1, "damaged, and no other is left"
            else:
                assert_same(values, small)
                assert meta == {"x": 1}
                harmless += 1
    assert harmless < len(whole), "dates, permissions and the like in the zip file"


def test_an_array_that_is_damaged_is_named(tmp_path):
    flip_a_bit(saved(tmp_path, [1, 2]) / "2" / "arrays.npz")
    warnings: list[str] = []
    restore(tmp_path, state(0), warnings.append)
    assert "params/layer" in warnings[0]
    assert warnings[0].endswith("is not what was written")


@pytest.mark.parametrize("size", ["(1000,)", "(9999,)"])
def test_a_damaged_shape_is_found_before_it_is_believed(tmp_path, size):
    saved(tmp_path, [1])
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(2, state(2, 5000), {})
    checkpoints.close()
    file = tmp_path / "2" / "arrays.npz"
    file.write_bytes(file.read_bytes().replace(b"(5000,)", size.encode()))
    warnings: list[str] = []
    said = "/1 is of another config, or code of your own has changed since: params/layer0"
    with pytest.raises(RunError, match=said):
        restore(tmp_path, state(2, 5000), warnings.append)
    assert warnings[0].endswith("params/layer0 is not what was written")


def test_a_number_changed_in_the_meta_data_is_damage(tmp_path):
    file = saved(tmp_path, [1, 2]) / "2" / "arrays.npz"
    data = file.read_bytes()
    assert b'"env_steps": 128' in data
    file.write_bytes(data.replace(b'"env_steps": 128', b'"env_steps": 129'))
    warnings: list[str] = []
    assert restore(tmp_path, state(0), warnings.append)[2] == {"env_steps": 64}
    assert warnings[0].endswith("arrays.npz is not what was written")


def test_the_arrays_can_be_opened_by_numpy_alone(tmp_path):
    with np.load(saved(tmp_path, [1]) / "1" / "arrays.npz") as arrays:
        assert arrays["params/layer0"].tobytes() == state(1)["params"]["layer0"].tobytes()
        assert json.loads(arrays["record.json"])["meta"] == {"env_steps": 64}


def test_a_checkpoint_in_the_earlier_format_is_told_in_one_line(tmp_path):
    (tmp_path / "7").mkdir()
    for name in ("_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt"):
        (tmp_path / "7" / name).write_text("{}")
    message = f"^{tmp_path}/7 was written by an earlier version of jaxrl_scale in a format"
    for read in (best, lambda folder: restore(folder, state(0), no_warning)):
        with pytest.raises(RunError, match=message):
            read(tmp_path)


def test_orbax_prints_nothing_of_its_own_on_the_terminal(tmp_path):
    code = """if True:
        import sys
        sys.path.insert(0, sys.argv[1])
        from test_checkpoint import *
        directory = saved(Path(sys.argv[2]), [1, 2])
        flip_a_bit(directory / "2" / "arrays.npz")
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
    truncate(tmp_path / "3" / "arrays.npz")
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
    truncate(tmp_path / "3" / "arrays.npz")  # a second time
    assert checkpoints.restore(state(0), warnings.append)[0] == 2
    checkpoints.close()


def test_a_checkpoint_under_the_name_of_another_iteration_is_not_believed(tmp_path):
    saved(tmp_path, [1, 2])
    shutil.copytree(tmp_path / "2", tmp_path / "9")
    warnings: list[str] = []
    assert restore(tmp_path, state(0), warnings.append)[0] == 2
    found = restore_some(tmp_path, lambda name: True, warnings.append)
    assert found is not None
    assert found[0] == 2
    why = "it is the checkpoint of iteration 2"
    assert warnings == [f"checkpoint {tmp_path / '9'} is damaged and skipped: {why}"] * 2


def test_a_folder_that_cannot_be_read_is_told(tmp_path, monkeypatch):
    saved(tmp_path, [1])

    def refused(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(RunError, match="cannot be read: Permission denied"):
        restore(tmp_path, state(0), no_warning)


def test_the_best_one_damaged_is_named_and_the_next_best_used(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=5)
    for iteration, score in [(1, 3.0), (2, 9.0), (3, 1.0)]:
        checkpoints.save(iteration, state(iteration), {}, score)
    checkpoints.close()
    truncate(tmp_path / "2" / "arrays.npz")
    warnings: list[str] = []
    assert best(tmp_path, warnings.append)[0] == 1
    assert [w.split(" is damaged")[0] for w in warnings] == [f"checkpoint {tmp_path / '2'}"]


def test_if_no_checkpoint_is_whole_that_is_an_error_and_all_stay(tmp_path):
    saved(tmp_path, [1, 2])
    for iteration in ("1", "2"):
        (tmp_path / iteration / "arrays.npz").unlink()
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
    said = f"checkpoint {tmp_path}/1 is of another config, or code .* has changed since: {message}"
    for tree in (target, abstract(target)):
        with pytest.raises(RunError, match=said):
            checkpoints.restore(tree, no_warning)
    checkpoints.close()
    assert names(tmp_path) == {"1"}


# --- reading only ---------------------------------------------------------------------------


def test_reading_changes_nothing_on_the_disk(tmp_path):
    saved(tmp_path, [1, 2])
    truncate(tmp_path / "2" / "arrays.npz")
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
    read = array_folder.read_arrays

    def read_too_late(path: Path, dtypes: dict[str, Any]) -> Any:
        if path.name == "1":
            saved(tmp_path, [2], keep=1)
        return read(path, dtypes)

    monkeypatch.setattr(array_folder, "read_arrays", read_too_late)
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


class Link:
    """`Peers` for processes that are threads of this one."""

    def __init__(self, process_id: int, meeting: "Meeting"):
        self.process_id, self.num_processes = process_id, meeting.number
        self.leader, self.several, self.meeting = process_id == 0, meeting.number > 1, meeting
        self.calls = {"main": 0, "save": 0}

    def gather(self, name: str, value: Any, thread: str = "main") -> list[Any]:
        self.calls[thread] += 1
        return self.meeting.gather((thread, self.calls[thread], name), self.process_id, value)

    def barrier(self, name: str, thread: str = "main") -> None:
        self.gather(name, None, thread)


class Meeting:
    def __init__(self, number: int):
        self.number, self.given, self.changed = number, {}, threading.Condition()

    def gather(self, call: Any, process: int, value: Any) -> list[Any]:
        with self.changed:
            given = self.given.setdefault(call, {})
            given[process] = json.loads(json.dumps(value))
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: len(given) == self.number, 60), call
            return [given[process] for process in range(self.number)]


def in_processes(number: int, f: Any) -> list[Any]:
    """``f(link, k)`` in ``number`` processes at once."""
    meeting = Meeting(number)
    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(lambda k: f(Link(k, meeting), k), range(number)))


SHARDS = 4


def whole_state(history: int) -> dict[str, Any]:
    """Of 2 agents and 4 shards."""
    rng = np.random.default_rng(history)
    return {
        "for_all": {"seed": np.arange(2, dtype=np.uint32), "mean": rng.normal(size=(2, 3))},
        "for_each_shard": {
            "obs": rng.normal(size=(2, SHARDS, 5)).astype(np.float32),
            "empty": np.zeros((2, SHARDS, 0), np.float32),
        },
    }


def held_by(process: int, processes: int) -> Any:
    """Which part of `whole_state` a process holds: all agents, and a block of their shards."""
    each = SHARDS // processes
    agents, shards = Span(0, 2, 2), Span(process * each, (process + 1) * each, SHARDS)
    whole = whole_state(0)
    return {
        "for_all": jax.tree.map(lambda _: Part((agents,)), whole["for_all"]),
        "for_each_shard": jax.tree.map(lambda _: Part((agents, shards)), whole["for_each_shard"]),
    }


def part_of(whole: Any, process: int, processes: int) -> Any:
    def cut(x: np.ndarray, part: Part) -> np.ndarray:
        return x[tuple(slice(span.start, span.stop) for span in part.spans)]

    return jax.tree.map(cut, whole, held_by(process, processes))


def save_together(folders: list[Path], iteration: int, history: int, held: Any = held_by) -> None:
    number = len(folders)

    def save(link: Link, k: int) -> None:
        checkpoints = Checkpoints(folders[k], 1, link, held(k, number))
        checkpoints.save(iteration, part_of(whole_state(history), k, number), {"by": history})
        checkpoints.close()

    in_processes(number, save)


def restore_together(folders: list[Path], warn: Any = no_warning) -> list[Any]:
    number = len(folders)

    def load(link: Link, k: int) -> Any:
        checkpoints = Checkpoints(folders[k], 1, link, held_by(k, number))
        try:
            return checkpoints.restore(abstract(whole_state(0)), warn)
        finally:
            checkpoints.close()

    return in_processes(number, load)


def assert_all_have(found: list[Any], iteration: int, history: int) -> None:
    for k, (its_iteration, values, meta) in enumerate(found):
        assert (its_iteration, meta) == (iteration, {"by": history})
        assert_same(values, part_of(whole_state(history), k, len(found)))


@pytest.mark.parametrize("number", [1, 2, 4])
def test_what_some_processes_save_any_number_restores(tmp_path, number):
    save_together([tmp_path] * number, 3, history=1)
    for restoring in (1, 2, 4):
        assert_all_have(restore_together([tmp_path] * restoring), 3, history=1)
    assert_same(restore(tmp_path, whole_state(0), no_warning)[1], whole_state(1))


def test_on_a_shared_folder_only_process_0_writes_what_all_hold(tmp_path):
    for iteration in (2, 3):  # of which one is kept
        save_together([tmp_path] * 2, iteration, history=1)
    written = {p.name: set(np.load(p / "arrays.npz")) - {"record.json"} for p in tmp_path.iterdir()}
    of_shards = {"for_each_shard/obs", "for_each_shard/empty"}
    assert written.keys() == {"3", "3.part-1-of-2"}
    assert written["3"] == {"for_all/seed", "for_all/mean"} | of_shards
    assert written["3.part-1-of-2"] == of_shards


def test_processes_with_folders_of_their_own_restore_from_them(tmp_path):
    disks = [tmp_path / "disk0", tmp_path / "disk1"]
    for iteration in (1, 2):
        save_together(disks, iteration, history=iteration)
    assert [names(disk) for disk in disks] == [{"2"}, {"2.part-1-of-2"}]
    assert_all_have(restore_together(disks), 2, history=2)


def test_every_process_removes_what_it_left_unfinished_on_a_folder_of_its_own(tmp_path):
    disks = [tmp_path / "disk0", tmp_path / "disk1"]
    for disk, name in zip(disks, ("7", "7.part-1-of-2"), strict=True):
        (disk / f"{name}.orbax-checkpoint-tmp").mkdir(parents=True)
    save_together(disks, 1, history=1)
    assert [names(disk) for disk in disks] == [{"1"}, {"1.part-1-of-2"}]
    assert_all_have(restore_together(disks), 1, history=1)


@pytest.mark.parametrize("damaged", ["2", "2.part-1-of-2"])
def test_what_one_process_finds_damaged_all_skip(tmp_path, damaged):
    def save(link: Link, k: int) -> None:
        checkpoints = Checkpoints(tmp_path, 2, link, held_by(k, 2))
        for iteration in (1, 2):
            state = part_of(whole_state(iteration), k, 2)
            checkpoints.save(iteration, state, {"by": iteration})
        checkpoints.close()

    in_processes(2, save)
    truncate(tmp_path / damaged / "arrays.npz")
    warnings: list[str] = []
    assert_all_have(restore_together([tmp_path] * 2, warnings.append), 1, history=1)
    assert len(warnings) == 2
    assert "2.damaged" in names(tmp_path)
    save_together([tmp_path] * 2, 2, history=5)
    assert_all_have(restore_together([tmp_path] * 2), 2, history=5)


def test_nothing_is_saved_where_processes_do_not_hold_the_same_of_an_agent(tmp_path):
    def save(link: Link, k: int) -> None:
        of_agents = {0: "the same", 1: "the same" if k < 2 else "another"}
        checkpoints = Checkpoints(tmp_path, 2, link, held_by(k, 3), lambda _: of_agents)
        checkpoints.save(1, part_of(whole_state(1), k, 3), {})
        with pytest.raises(RunError, match="process 2 holds other parameters of agent 1 than"):
            checkpoints.wait()
        checkpoints.close()

    in_processes(3, save)
    assert names(tmp_path) == set()


def test_a_bug_while_saving_is_told_as_one_and_not_as_a_disk_that_refuses(tmp_path):
    checkpoints = Checkpoints(tmp_path, 2, digests=lambda _: {}["a bug"])
    checkpoints.save(1, state(1), {})
    with pytest.raises(KeyError, match="a bug"):
        checkpoints.wait()
    checkpoints.close()


@pytest.mark.parametrize("shared", [True, False])
def test_a_part_that_a_killed_run_left_behind_is_not_taken_over(tmp_path, shared):
    disks = [tmp_path] * 2 if shared else [tmp_path / "disk0", tmp_path / "disk1"]
    save_together(disks, 200, history=1)
    shutil.rmtree(disks[0] / "200")  # killed after process 1 had written and before process 0
    assert [f is None for f in restore_together(disks)] == [True, True]
    save_together(disks, 200, history=2)
    assert_all_have(restore_together(disks), 200, history=2)


def test_a_part_of_another_history_is_not_read(tmp_path):
    save_together([tmp_path] * 2, 200, history=1)
    shutil.move(tmp_path / "200.part-1-of-2", tmp_path / "aside")
    shutil.rmtree(tmp_path / "200")
    save_together([tmp_path] * 2, 200, history=2)
    shutil.rmtree(tmp_path / "200.part-1-of-2")
    shutil.move(tmp_path / "aside", tmp_path / "200.part-1-of-2")
    warnings: list[str] = []
    with pytest.raises(RunError, match="none of the 1 checkpoints"):
        restore(tmp_path, whole_state(0), warnings.append)
    assert "for_each_shard/obs is not whole in the folders" in warnings[0]


def test_parts_that_do_not_name_every_leaf_of_the_state_are_refused(tmp_path):
    def renamed(process: int, processes: int) -> Any:
        parts = held_by(process, processes)
        return {"for_all": parts["for_all"], "for_every_shard": parts["for_each_shard"]}

    with pytest.raises(ValueError, match="does not have the leaves of the state"):
        save_together([tmp_path], 1, 1, renamed)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("what", ["write", "delete"])
def test_processes_that_do_the_same_at_once_do_not_disturb_each_other(tmp_path, what):
    """As those of one machine do where the machines do not share the directory."""
    ready = threading.Barrier(4)

    def at_once(_):
        ready.wait()
        if what == "write":
            write_atomically(tmp_path / "file", b"the same" * 1000)
        else:
            array_folder.delete(tmp_path / "folder")

    with ThreadPoolExecutor(4) as pool:
        for _ in range(50):
            (tmp_path / "folder").mkdir()
            list(pool.map(at_once, range(4)))
            if what == "delete":
                assert not (tmp_path / "folder").exists()
            else:
                (tmp_path / "folder").rmdir()
    assert [path.name for path in tmp_path.iterdir()] == ["file"] * (what == "write")
