"""A portable run (`--portable`) does nothing that depends on the kind of processor.

Here is what one processor can show. `portable_digests.json` has the digests by which processors are
compared.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest
import threads
from jax.extend import core
from portable_digests import NAMES, WHOLE, stored
from running import runner_of, small

from jaxrl_scale.config import check
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import products
from jaxrl_scale.parallel import backend
from jaxrl_scale.records import digest

AS_USERS = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
"""The environment of a process that compiles as a user's does: see conftest.py."""


def dots(jaxpr):
    """Columns and terms of a program's products that have several rows, columns and terms: the
    others are loops of XLA's own."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (of_x, _), _ = eqn.params["dimension_numbers"]
            x, w = (atom.aval for atom in eqn.invars)
            terms = x.shape[of_x[0]]
            if min(x.size, w.size) > terms > 1:
                yield w.size // terms, terms
        for param in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_program):
            if _is_program(param):
                yield from dots(getattr(param, "jaxpr", param))


def _is_program(x):
    return isinstance(x, core.ClosedJaxpr | core.Jaxpr)


@pytest.mark.parametrize("name", ["mlp", "cnn", "gru", "nature", "impala_resnet"])
def test_the_products_of_a_portable_network_are_alike_for_all_kernels(name):
    """Whole tiles of 64 columns and at most 512 terms."""

    def of(portable):
        config = (threads.CONFIGS | threads.IMAGES)[name].replace(portable=portable)
        f, params = threads.loss(config)
        return set(dots(jax.make_jaxpr(jax.grad(f, has_aux=True))(params).jaxpr))

    assert [dot for dot in of(True) if dot[0] % 64 or dot[1] > 512] == []
    assert [dot for dot in of(False) if dot[0] % 64 or dot[1] > 512] != []


@pytest.mark.parametrize("rows", [(64,), (33,), (2, 64)])
@pytest.mark.parametrize(("terms", "columns"), [(4, 64), (600, 2), (1025, 65), (7, 1)])
def test_a_portable_product_is_the_product(rows, terms, columns):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(*rows, terms)).astype(np.float32)
    w = rng.normal(size=(terms, columns)).astype(np.float32)
    found = products._portable_product(jnp.asarray(x), jnp.asarray(w), precision="highest")
    np.testing.assert_allclose(found, x.astype(np.float64) @ w, rtol=1e-5, atol=1e-4)


def test_a_portable_run_is_the_same_on_1_and_2_devices_and_another_than_one_that_is_not():
    def learned(**changes):
        runner = runner_of(small(**changes))
        state, _ = runner.step(runner.init())
        return runner.digests(runner.fetch(state))

    one = learned(portable=True, devices=1)
    assert list(one) == [0]
    assert learned(portable=True, devices=2) == one
    assert learned(devices=2) != one


def test_a_portable_gradient_depends_neither_on_the_threads_nor_on_the_c_library():
    """The C library has functions for several kinds of processors, too."""
    older = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX2,-AVX2_Usable"
    runs = [
        subprocess.Popen(
            [sys.executable, Path(__file__).with_name("threads.py"), "portable", devices, "gru"],
            env=AS_USERS | variables,
            stdout=subprocess.PIPE,
            text=True,
        )
        for devices, variables in (
            ("1", {"NPROC": "1"}),
            ("8", {"NPROC": "16", "GLIBC_TUNABLES": older}),
        )
    ]
    one, other = (json.loads(run.communicate(timeout=500)[0]) for run in runs)
    assert one == other


# --- what a portable run cannot have ----------------------------------------------------------


def test_the_cap_is_set_in_time_or_an_error(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_ftz=true")
    with pytest.raises(RunError, match="comes too late"):
        backend.cap(started=True)
    backend.cap(started=False)
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_ftz=true --xla_cpu_max_isa=AVX2"
    backend.cap(started=True)
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_ftz=true --xla_cpu_max_isa=AVX2"
    for flags in ("AVX512", "AVX2 --xla_cpu_max_isa=AVX512"):  # of two, XLA takes the last
        monkeypatch.setenv("XLA_FLAGS", f"--xla_cpu_max_isa={flags}")
        said = r"needs --xla_cpu_max_isa=AVX2, and XLA_FLAGS has .*512"
        with pytest.raises(RunError, match=said):
            backend.cap(started=False)


def test_another_platform_and_a_processor_without_fma_are_errors(monkeypatch):
    with pytest.raises(RunError, match="for CPUs, not for a gpu; try JAX_PLATFORMS=cpu"):
        backend.check_portable("gpu")
    monkeypatch.setattr(backend, "processor_features", lambda: "flags\t\t: sse4_2 avx avx2")
    with pytest.raises(RunError, match="needs an x86 processor with AVX2 and FMA; fma is not"):
        backend.check_portable("cpu")


@pytest.mark.parametrize("option", [{"reduction": "fast"}, {"matmul_precision": "default"}])
def test_options_that_do_not_fit_are_errors(option):
    with pytest.raises(RunError, match=r"portable=True needs .* not "):
        check(small().replace(portable=True, **option))


# --- digests ----------------------------------------------------------------------------------


def test_a_digest_is_of_names_types_shapes_and_bits():
    tree = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.int32(7)}
    others = [
        tree | {"a": np.nextafter(tree["a"], 9, dtype=np.float32)},
        tree | {"a": tree["a"].reshape(3, 2)},
        tree | {"a": tree["a"].view(np.int32)},
        {"a": tree["a"], "c": tree["b"]},
    ]
    found = {digest.of_tree(x) for x in [tree, *others]}
    assert len(found) == 5
    assert digest.of_tree(tree | {"a": np.asfortranarray(tree["a"])}) == digest.of_tree(tree)


# Slow, because few processors have computed these digests (docs/exactness.md): a difference on
# another one would be news, not a fault of the change that is being tested.
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_portable_run_has_the_digest_that_is_stored_for_this_jaxlib(name):
    """As `python tests/portable_digests.py` wrote it."""
    expected = stored().get(jaxlib.__version__, {}).get(name)
    if expected is None:
        pytest.skip(f"no digest of {name} is stored for jaxlib {jaxlib.__version__}")
    assert set(expected) == {"few"} | ({"whole"} if name in WHOLE else set())
    program = Path(__file__).with_name("portable_digests.py")
    done = subprocess.run(
        [sys.executable, program, name], env=AS_USERS, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.removeprefix(name)) == expected
