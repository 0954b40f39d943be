"""The bits of a run do not depend on how many cores XLA sees, large products included.

`threads.py` says what is trained. Each number of threads needs a process of its own: XLA's pool is
made once, when the first device is used.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warm
from running import AS_USERS

from jaxrl_scale.config import Config
from jaxrl_scale.learning import products
from jaxrl_scale.parallel import backend

NAMES = ("batch", "mlp", "cnn", "gru")
REPLAYING = ("dqn", "sac")
IMPORTED = ("seaborn", "jaxrl_scale.algos.dqn", "jaxrl_scale.algos.sac")
"""What takes long to import of all that `threads.py` needs. Gymnax imports seaborn, and no nursery
may import Gymnax: that uses a device."""
SMALL_IMAGES, IMAGES = ("nature", "impala_resnet"), ("impala_resnet", "atari", "procgen")


def start(threads, what, *arguments, core=None):
    """`threads.py` in a process whose XLA has so many threads; on one ``core`` only, if given."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    own = {"NPROC": threads, "CORE": core}
    own = {name: str(value) for name, value in own.items() if value is not None}
    program = Path(__file__).with_name("threads.py")
    command = [str(program), what, *map(str, arguments)]
    return warm.Process(command, kept | own, Path.cwd(), imported=IMPORTED)


def printed(process, seconds=500):
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err
    return json.loads(out)


def test_a_gradient_has_the_same_bits_for_1_2_4_and_16_threads_and_on_one_core():
    """The network for images with 1 and 16 threads only: XLA compiles it for long."""
    one = printed(start(1, "gradient", 1, *NAMES, "nature"))
    assert printed(start(16, "gradient", 8, *NAMES, "nature")) == one, "16 threads"
    others = {name: one[name] for name in NAMES}
    for threads, devices, core in ((2, 4, None), (4, 1, None), (None, 1, 0)):
        found = printed(start(threads, "gradient", devices, *NAMES, core=core))
        assert found == others, f"{threads} threads"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_gradient_of_images_has_the_same_bits_for_any_number_of_threads():
    """Of Atari's and of Procgen's size, and of 20 by 20 pixels. Its limits are those of a machine
    with other work."""
    one = printed(start(1, "gradient", 1, *IMAGES), 1800)
    for threads in (2, 3, 4, 6, 8, 16, 24, 64, 128):
        assert printed(start(threads, "gradient", 1, *IMAGES), 1800) == one, f"{threads} threads"


def test_without_the_rewriting_of_products_the_bits_depend_on_the_threads():
    """Tells when a new XLA makes `products.exact` superfluous."""
    one, many = (printed(start(threads, "unsafe", 1, *NAMES)) for threads in (1, 16))
    assert [name for name in NAMES if one[name] != many[name]] == list(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "devices"), [(1, 1), (2, 4), (4, 2), (16, 1)])
@pytest.mark.parametrize("name", [*NAMES, *REPLAYING, *SMALL_IMAGES])
def test_a_run_has_the_same_bits_for_any_number_of_threads_and_devices(
    name, threads, devices, reference
):
    """State, metrics and evaluation."""
    assert printed(start(threads, "run", devices, name))[name] == reference[name]


@pytest.fixture(scope="module")
def reference():
    return printed(start(8, "run", 1, *NAMES, *REPLAYING, *SMALL_IMAGES))


@pytest.mark.slow
def test_a_run_has_the_same_bits_on_a_loaded_machine(reference):
    several = [start(None, "run", 2, "batch", "cnn") for _ in range(3)]
    for process in several:
        done = printed(process)
        assert done == {name: reference[name] for name in done}


class Convolutions(nn.Module):
    """All that `products` knows of convolutions: strides, dilation, all kinds of padding, few and
    many channels."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(16, (3, 2))(x)  # 3 channels: folded
        x = nn.Conv(16, (3, 3), strides=(2, 2), padding="VALID")(x) + x[:, 1:8:2, 1:7:2]
        x = nn.Conv(16, (2, 2), padding=((3, 2), (3, 3)))(nn.relu(x))
        x = nn.relu(nn.Conv(8, (4, 3), strides=(2, 1), padding="VALID")(x))
        x = nn.relu(nn.Conv(4, (3, 3), kernel_dilation=(1, 2))(x))
        x = nn.Conv(4, (3,), padding="CIRCULAR")(x.reshape(*x.shape[:-3], -1, 4))
        return nn.Dense(3)(x.reshape(x.shape[0], -1))


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.RNN(nn.GRUCell(8))(x.reshape(x.shape[0], 9, -1)))


@pytest.mark.quickly
@pytest.mark.parametrize("network", [Convolutions(), Recurrent()], ids=["cnn", "gru"])
def test_rewritten_networks_have_the_values_and_gradients_of_the_originals(network):
    x = jax.random.normal(jax.random.key(0), (5, 9, 8, 3))
    params = network.init(jax.random.key(1), x)

    def loss(apply):
        return lambda params, x: jnp.sum(jnp.sin(apply(params, x)))

    ours, theirs = (
        jax.jit(jax.value_and_grad(loss(apply), argnums=(0, 1)))(params, x)
        for apply in (products.exact(network.apply), network.apply)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), ours, theirs)


def test_a_product_keeps_the_dtype_that_is_asked_for():
    """Bytes of two are multiplied and added as those of four, not rounded in between."""
    x = jax.random.normal(jax.random.key(0), (4, 512), jnp.bfloat16)

    def product(x):
        return jnp.matmul(x, x.T[:, :3], preferred_element_type=jnp.float32)

    exact = jax.jit(products.exact(product))(x)
    assert exact.dtype == jnp.float32
    np.testing.assert_array_equal(exact, jax.jit(product)(x))


class OfBytes(nn.Module):
    """A network for images as they are stored."""

    @nn.compact
    def __call__(self, x):
        x = x.astype(jnp.float32) / 255
        x = nn.relu(nn.Conv(16, (4, 4), strides=(2, 2), padding="SAME")(x) - 1)
        return nn.Conv(4, (3, 3))(x)


@pytest.mark.quickly
@pytest.mark.parametrize("channels", [8, 3])
def test_what_is_made_of_bytes_has_the_values_and_gradients_of_the_original(channels):
    """8 channels stay bytes until the products, 3 until they are laid out."""
    x = jax.random.bits(jax.random.key(0), (2, 3, 9, 8, channels), jnp.uint8)
    network = OfBytes()
    params = network.init(jax.random.key(1), x)

    def loss(apply):
        return lambda params: jnp.sum(jnp.sin(apply(params, x)))

    ours, theirs = (
        jax.jit(jax.value_and_grad(loss(apply)))(params)
        for apply in (products.exact(network.apply), network.apply)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), ours, theirs)


@pytest.mark.parametrize("rows", [7, 1025, 16_385, 32_769, 40_001])
def test_compiled_sums_are_those_of_numpy(rows):
    """jaxlib 0.10.2 leaves terms out without the flag: https://github.com/jax-ml/jax/issues/39103."""
    i = np.arange(rows, dtype=np.float32)
    x = np.stack([i, 0 * i, 0 * i], axis=1)
    matrix = np.eye(3, dtype=np.float32)

    def f(x):
        return jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2))(x)

    expected = np.square(x @ matrix).sum(1)
    for options in ({}, products.compiler_options()):
        compiled = jax.jit(f, compiler_options=options | AS_USERS)
        np.testing.assert_array_equal(compiled(x), expected)


@pytest.mark.parametrize("loops", ["{}=0,other=1", "other=1,{}=1024"])
def test_the_users_own_choice_of_flags_stands(loops, monkeypatch):
    assert products.compiler_options() != {}
    chosen = (
        "--xla_cpu_ftz=true --xla_cpu_experimental_ynn_fusion_type=+reduce "
        "--xla_backend_extra_options=" + loops.format("xla_cpu_small_while_loop_byte_threshold")
    )
    monkeypatch.setenv("XLA_FLAGS", chosen)
    assert products.compiler_options() == {}
    script = "import jaxrl_scale, os; print(os.environ['XLA_FLAGS'])"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert shown.stdout.strip() == chosen


def test_flags_may_stand_in_a_file(tmp_path, monkeypatch):
    """For XLA, what does not begin with a dash is the name of one."""
    (tmp_path / "flags").write_text("\n--xla_cpu_ftz=true\n--xla_dump_to=x\n")
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))
    script = "import jaxrl_scale, os; print(os.environ['XLA_FLAGS'])"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    first, second, *ours = shown.stdout.split()
    assert (first, second) == ("--xla_cpu_ftz=true", "--xla_dump_to=x")
    assert [flag.split("=")[0] for flag in ours] == [
        "--xla_cpu_experimental_ynn_fusion_type",
        "--xla_backend_extra_options",
    ]


def test_wide_vectors_are_asked_for_but_where_the_run_is_portable_or_the_user_chose(monkeypatch):
    option, [device, *_] = "xla_cpu_prefer_vector_width", jax.local_devices()
    placed, portable = (
        backend.place(Config(env="CartPole-v1", portable=which), [device])
        for which in (False, True)
    )
    assert placed.compiler_options[option] == 512
    assert option not in portable.compiler_options
    monkeypatch.setenv("XLA_FLAGS", f"--xla_cpu_ftz=true --{option}=256")
    assert option not in placed.compiler_options
