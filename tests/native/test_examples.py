"""The examples under JAX: a training step on the chip, and programs whose code a compiler emitted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pjrt
from pjrt import native
from pjrt.conformance import check_plugin
from pjrt.conformance.plugin.check import Verdict

COMPILER = Path(__file__).parents[2] / "examples" / "emitted_c" / "compiler.py"

TRAINING = """
import sys
import jax, jax.numpy as jnp, numpy as np, pjrt

platform = pjrt.frameworks.jax.register(sys.argv[1], platform="under_test")
devices, cpu = jax.devices(platform), jax.devices("cpu")[0]
random = np.random.default_rng(0)
params = {
    "w1": random.normal(0, 0.3, (20, 30)), "b1": np.zeros(30), "w2": random.normal(0, 0.3, (30, 5)), "b2": np.zeros(5),
}
params = {name: value.astype(np.float32) for name, value in params.items()}
x, y = random.normal(size=(16, 20)).astype(np.float32), random.integers(0, 5, 16).astype(np.int32)

def loss(p, x, y):
    hidden = jnp.maximum(x @ p["w1"] + p["b1"], 0)
    z = hidden @ p["w2"] + p["b2"]
    z = z - z.max(axis=1, keepdims=True)
    return -((z - jnp.log(jnp.exp(z).sum(axis=1, keepdims=True))) * (jnp.arange(5) == y[:, None])).sum() / 16

def step(p, m, v, x, y):
    value, g = jax.value_and_grad(loss)(p, x, y)
    m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
    v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
    return jax.tree.map(lambda a, b, c: a - 0.01 * b / (jnp.sqrt(c) + 1e-8), p, m, v), m, v, value

step = jax.jit(step, donate_argnums=(0, 1, 2))

def train(device):
    put = lambda tree: jax.tree.map(lambda a: jax.device_put(a, device), tree)
    zeros = jax.tree.map(np.zeros_like, params)
    state, data, losses = (put(params), put(zeros), put(zeros)), put((x, y)), []
    for _ in range(10):
        *new, value = step(*state, *data)
        assert all(a.is_deleted() for a in jax.tree.leaves(state)) or device.platform == "cpu"
        state = tuple(new)
        losses.append(value)
    return np.array(losses)

expected = train(cpu)
for device in devices:
    np.testing.assert_allclose(train(device), expected, rtol=1e-5, atol=1e-6)
moved = jax.device_put(jax.device_put(x, devices[0]), devices[-1])
np.testing.assert_array_equal(moved, x)
print(len(devices), "devices trained")
"""


@pytest.mark.full
def test_jax_trains_on_the_chip(chip_library: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(chip_library)], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert "2 devices trained" in done.stdout


SHARDING = """
import sys, threading
import jax, jax.numpy as jnp, numpy as np, pjrt
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

platform = pjrt.frameworks.jax.register(sys.argv[1], platform="under_test")
mesh = Mesh(np.array(jax.devices(platform)), ("i",))
x = np.arange(16, dtype=np.float32).reshape(8, 2)
xs = jax.device_put(x, NamedSharding(mesh, P("i")))
first, second = x[:4], x[4:]

def check(function, expected, specs):
    mapped = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("i"), out_specs=specs, check_vma=False))
    np.testing.assert_allclose(mapped(xs), expected, rtol=1e-6)
    return mapped, expected

total = check(lambda a: jax.lax.psum(a * 2, "i"), 2 * (first + second), P())
check(lambda a: jax.lax.pmax(a, "i"), second, P())
check(lambda a: jax.lax.pmean(a, "i"), (first + second) / 2, P())
check(lambda a: jax.lax.all_gather(a, "i", axis=1), np.stack([first, second], 1), P())
check(lambda a: jax.lax.all_gather(a, "i", tiled=True), x, P())
check(lambda a: jax.lax.ppermute(a, "i", [(0, 1), (1, 0)]), np.concatenate([second, first]), P("i"))
check(lambda a: jax.lax.psum_scatter(a, "i", tiled=True), first + second, P("i"))
turned = np.concatenate([first[:2], second[:2], first[2:], second[2:]])
check(lambda a: jax.lax.all_to_all(a, "i", 0, 0, tiled=True), turned, P("i"))
check(lambda a: a + jax.lax.axis_index("i"), np.concatenate([first, second + 1]), P("i"))
steps = check(lambda a: jax.lax.psum(jnp.sort(-jax.lax.psum(a, "i"), 0), "i"), 2 * np.sort(-(first + second), 0), P())

# XLA places what is computed: by the shardings of arguments and results.
product = jax.jit(lambda a: (a @ a.T).sum(0), out_shardings=NamedSharding(mesh, P("i")))
np.testing.assert_allclose(product(xs), (x @ x.T).sum(0))
assert not product(xs).sharding.is_fully_replicated
y, step = xs, jax.jit(lambda a: a - jnp.mean(a) / 8, donate_argnums=0)
for _ in range(20):
    y = step(y)
np.testing.assert_allclose(y, x - np.mean(x) * (1 - (7 / 8) ** 20), rtol=1e-5, atol=1e-5)

# Two threads: the chips get programs that meet in the same order, also where one has steps of the host.
def run(function, expected):
    for _ in range(30):
        result = function(xs)
    np.testing.assert_allclose(result, expected, rtol=1e-6)

threads = [threading.Thread(target=run, args=case) for case in (total, steps, total)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("sharded")
"""


@pytest.mark.full
def test_jax_shards_over_the_chips(chip_library: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHARDING, str(chip_library)], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert "sharded" in done.stdout


LAYOUTS = """
import sys
import jax, jax.numpy as jnp, numpy as np, pjrt
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

platform = pjrt.frameworks.jax.register(sys.argv[1], platform="under_test")
place = SingleDeviceSharding(jax.devices(platform)[0])
tiles = ((8, 128),)
a = np.arange(300, dtype=np.float32).reshape(2, 150)
x = jax.device_put(a, place)
assert x.format.layout == Layout((0, 1), tiles), x.format
columns = Format(Layout((1, 0), tiles), place)
z = jax.device_put(x, columns)
y = jax.jit(lambda v: v * 2, out_shardings=columns)(x)
for array, expected in ((z, a), (y, a * 2)):
    assert array.format == columns, array.format
    assert array.on_device_size_in_bytes() == 152 * 128 * 4
    np.testing.assert_array_equal(array, expected)
for function in (lambda v: v + 1, lambda v: jnp.sort(v, 1) + 1, lambda v: jnp.cbrt(v) ** 3 + 1):
    np.testing.assert_allclose(jax.jit(function)(z), a + 1, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(function, in_shardings=columns, out_shardings=columns)(z), a + 1, rtol=1e-5)
donated = jax.jit(lambda v: v + 1, donate_argnums=0, out_shardings=columns)(jax.device_put(a, place))
np.testing.assert_array_equal(donated, a + 1)

# Elements of four bits are packed, and a framework sees that.
n = np.arange(-8, 8).astype(jnp.int4).repeat(20).reshape(2, 160)
packed = jax.device_put(n, place)
assert packed.format.layout == Layout((0, 1), tiles, 4), packed.format
assert packed.on_device_size_in_bytes() == 8 * 256 // 2
np.testing.assert_array_equal(packed, n)
columns = Format(Layout((1, 0), tiles, 4), place)
turned = jax.device_put(packed, columns)
assert turned.format == columns, turned.format
assert turned.on_device_size_in_bytes() == 160 * 128 // 2
np.testing.assert_array_equal(turned, n)
for array in (packed, turned):
    np.testing.assert_array_equal(jax.jit(lambda v: v + 1)(array), n + jnp.int4(1))
    np.testing.assert_array_equal(jax.jit(lambda v: v.astype(jnp.float32) * 2)(array), 2 * n.astype(np.float32))
to_columns = jax.jit(lambda v: v * v, in_shardings=columns, out_shardings=columns, donate_argnums=0)
squares = to_columns(turned)
assert squares.format == columns, squares.format
np.testing.assert_array_equal(squares, n * n)
assert to_columns.lower(squares).compile().memory_analysis().argument_size_in_bytes == 160 * 128 // 2

# Weights are laid out once, as the compiler wants them.
weights = np.random.default_rng(0).normal(size=(5, 150)).astype(np.float32)
shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=place) for each in (weights, a)]
step = jax.jit(lambda w, v: v @ w.T, in_shardings=Format(Layout.AUTO))
compiled = step.lower(*shapes).compile()
chosen, kept = compiled.input_formats[0]
assert (chosen.layout, kept.layout) == (Layout((1, 0), tiles), Layout((0, 1), tiles))
np.testing.assert_allclose(compiled(jax.device_put(weights, chosen), x), a @ weights.T, rtol=1e-4)

try:
    jax.device_put(x, Format(Layout((1, 0), ((4, 4),)), place))
except jax.errors.JaxRuntimeError as error:
    assert "device's layout {0,1:T(8,128)}, found the layout {0,1:T(4,4)}" in str(error), error
    print("laid out")
"""


@pytest.mark.full
def test_jax_sees_and_chooses_layouts_of_the_chip(chip_library: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAYOUTS, str(chip_library)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "laid out" in done.stdout


@pytest.fixture(scope="module")
def emitted_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return native.write_library(
        tmp_path_factory.mktemp("emitted") / "emitted.so", f"{COMPILER}:compile", name="emitted"
    )


@pytest.mark.full
def test_jax_trains_on_emitted_code(emitted_library: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(emitted_library)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 devices trained" in done.stdout


SIGN = """
func.func @main(%x: tensor<6xf32>) -> tensor<6xf32> {
  %0 = stablehlo.sign %x : tensor<6xf32>
  return %0 : tensor<6xf32>
}"""


@pytest.mark.parametrize("example", ["emitted_library", "chip_library"])
def test_the_sign_of_special_numbers(example: str, request: pytest.FixtureRequest) -> None:
    x = np.array([np.nan, -0.0, 0.0, -3, np.inf, -np.inf], np.float32)
    with pjrt.load_plugin(request.getfixturevalue(example)).client() as client:
        (signs,) = client.compile(SIGN)(x)
        np.testing.assert_array_equal(signs, np.array([np.nan, -0.0, 0.0, -1, 1, -1], np.float32))
        assert np.signbit(np.asarray(signs)[1])


EMPTY = {
    "stablehlo.add %0, %1 : tensor<0xf32>": ([0], [0], [0]),
    "stablehlo.slice %0 [1:1] : (tensor<2xf32>) -> tensor<0xf32>": ([2], [0], [0]),
    "stablehlo.dot %0, %1 : (tensor<0x3xf32>, tensor<3x2xf32>) -> tensor<0x2xf32>": ([0, 3], [3, 2], [0, 2]),
    "stablehlo.reduce(%0 init: %1) applies stablehlo.add across dimensions = [1] : "
    "(tensor<2x0xf32>, tensor<f32>) -> tensor<2xf32>": ([2, 0], [], [2]),
}
"""Operations with the shapes of two arguments and of the result."""


@pytest.mark.parametrize("example", ["emitted_library", "chip_library"])
@pytest.mark.parametrize("operation", EMPTY)
def test_arrays_without_elements(example: str, operation: str, request: pytest.FixtureRequest) -> None:
    """A program whose values on the way have none has no memory for them."""
    x, y, result = ("x".join([*map(str, shape), "f32"]) for shape in EMPTY[operation])
    program = f"""func.func @main(%0: tensor<{x}>, %1: tensor<{y}>) -> tensor<{result}> {{
      %2 = {operation}
      return %2 : tensor<{result}>
    }}"""
    arrays = [np.ones(shape, np.float32) for shape in EMPTY[operation]]
    with pjrt.load_plugin(request.getfixturevalue(example)).client() as client:
        (found,) = client.compile(program)(*arrays[:2])
        np.testing.assert_array_equal(found, arrays[2])


@pytest.mark.full
@pytest.mark.parametrize("example", ["emitted_library", "chip_library"])
def test_calls_of_a_framework_with_an_option_of_others(example: str, request: pytest.FixtureRequest) -> None:
    """TorchTPU gives each plugin an option of TPUs; the recording is of one device, and the chip has two."""
    report = check_plugin(
        request.getfixturevalue(example), tiers=["framework"], filters=["torch_tpu.in_place"], time_limit=120
    )
    assert report.passes_strictly, str(report)
    assert [each.verdict for each in report.outcomes] == [Verdict.PASSED]


def test_what_emitted_code_lacks_is_interpreted(emitted_library: Path) -> None:
    """Between what the compiler does translate: a power of integers, and an array of a type that it does not know."""
    program = """func.func @main(%x: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xbf16>) {
      %0 = stablehlo.add %x, %x : tensor<4xi32>
      %1 = stablehlo.power %0, %x : tensor<4xi32>
      %2 = stablehlo.subtract %1, %x : tensor<4xi32>
      %3 = stablehlo.convert %2 : (tensor<4xi32>) -> tensor<4xbf16>
      return %2, %3 : tensor<4xi32>, tensor<4xbf16>
    }"""
    x = np.arange(1, 5, dtype=np.int32)
    with pjrt.load_plugin(emitted_library).client() as client:
        powers, converted = client.compile(program)(x)
        np.testing.assert_array_equal(powers, (2 * x) ** x - x)
        np.testing.assert_array_equal(np.asarray(converted).astype(np.float32), [1, 14, 213, 4096])


EXTREMES = """
func.func @main(%x: tensor<3x3xf32>, %y: tensor<3x3xf32>) -> (tensor<3x3xf32>, tensor<3x3xf32>, tensor<3x3xf32>) {
  %0 = stablehlo.maximum %x, %y : tensor<3x3xf32>
  %1 = stablehlo.minimum %x, %y : tensor<3x3xf32>
  %2 = stablehlo.abs %x : tensor<3x3xf32>
  return %0, %1, %2 : tensor<3x3xf32>, tensor<3x3xf32>, tensor<3x3xf32>
}"""


@pytest.mark.parametrize("example", ["emitted_library", "chip_library"])
def test_extremes_of_special_numbers(example: str, request: pytest.FixtureRequest) -> None:
    x, y = np.meshgrid(np.float32([np.nan, -0.0, 1]), np.float32([np.nan, -0.0, 1]))
    with pjrt.load_plugin(request.getfixturevalue(example)).client() as client:
        results = client.compile(EXTREMES)(x, y)
        for result, expected in zip(results, (np.maximum(x, y), np.minimum(x, y), np.abs(x)), strict=True):
            np.testing.assert_array_equal(result, expected)
        assert not np.signbit(np.nan_to_num(np.asarray(results[2]), nan=1)).any()


def test_programs_are_told_apart(emitted_library: Path) -> None:
    """The dynamic linker knows libraries by their paths, and the files of programs come and go."""
    program = """
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
      %0 = stablehlo.{0} %x, %x : tensor<4xf32>
      return %0 : tensor<4xf32>
    }}"""
    x = np.arange(1, 5, dtype=np.float32)
    with pjrt.load_plugin(emitted_library).client() as client:
        executables = {name: client.compile(program.format(name)) for name in ("add", "multiply", "subtract", "divide")}
        for name, executable in executables.items():
            np.testing.assert_array_equal(executable(x)[0], getattr(np, name)(x, x))


def test_what_is_lent_keeps_its_value(emitted_library: Path) -> None:
    """A donation writes elsewhere as long as somebody looks at the memory."""
    text = """func.func @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
    ones, seen = np.ones(4, np.float32), np.zeros(4, np.float32)
    with pjrt.load_plugin(emitted_library).client() as client:
        double = client.compile(text)
        x = client.buffer_from_host(ones)
        raw = x.raw()
        (y,) = double(x)
        np.testing.assert_array_equal(y, 2 * ones)
        raw.copy_to_host(seen).result(60)
        np.testing.assert_array_equal(seen, ones)
        raw.release()
        with y.external_reference(), pytest.raises(pjrt.InvalidArgumentError, match="1 external references"):
            double(y)
        pointer = y.unsafe_pointer()
        assert double(y)[0].unsafe_pointer() == pointer


def test_a_large_program_leaves_the_callers_thread(emitted_library: Path) -> None:
    program = """
    func.func @main(%x: tensor<300x300xf32>) -> tensor<300x300xf32> {
      %0 = stablehlo.dot %x, %x : (tensor<300x300xf32>, tensor<300x300xf32>) -> tensor<300x300xf32>
      return %0 : tensor<300x300xf32>
    }"""
    x = np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
    with pjrt.load_plugin(emitted_library).client(num_devices=2) as client:
        executable = client.compile(program)
        ((y,),) = executable.execute([[client.buffer_from_host(x)]])
        ((z,),) = executable.execute([[y]])  # is enqueued behind the first
        np.testing.assert_allclose(z, (x @ x) @ (x @ x), rtol=1e-3, atol=1e-2)
        other = y.copy_to(client.devices[1])
        np.testing.assert_array_equal(other, y)


PRODUCTS = """
func.func @main(%x: tensor<300x300xf32>) -> tensor<300x300xf32> {
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
    : (tensor<300x300xf32>, tensor<300x300xf32>) -> tensor<300x300xf32>
  return %0 : tensor<300x300xf32>
}"""


@pytest.mark.full
def test_a_copy_waits_for_the_program_before_it(tmp_path: Path) -> None:
    """The result is still computed, on the device's thread, when it is copied to another device."""
    library = native.write_library(tmp_path / "emitted.so", f"{COMPILER}:compile", name="emitted")
    x = np.ones((300, 300), np.float32)
    with pjrt.load_plugin(library).client(num_devices=2) as client:
        executable = client.compile(PRODUCTS)
        for _ in range(5):
            ((result,),) = executable.execute([[client.buffer_from_host(x)]])
            np.testing.assert_array_equal(result.copy_to(client.devices[1]), x * 300)
