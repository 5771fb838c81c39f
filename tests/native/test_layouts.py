"""JAX on devices in Python whose memory lays out arrays its own way, in this process and in a worker."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import waiting
from waiting import wait_until

import pjrt
from pjrt import native

ROOT = Path(__file__).parents[2]
TILED = ROOT / "examples" / "tiled_chip" / "device.py"
PACKING = ROOT / "tests" / "native" / "packing_device.py"

JAX = """
import runpy, sys
sys.path.append(sys.argv.pop(1))
from waiting import wait_until
import jax, jax.numpy as jnp, numpy as np, pjrt
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

plugins = [
    each if each.endswith(".so") else pjrt.export(runpy.run_path(each)["make_client"], name="python")
    for each in sys.argv[1:]
]
names = [pjrt.frameworks.jax.register(each, platform=f"python_{n}") for n, each in enumerate(plugins)]
(device, _), (packing,) = map(jax.devices, names)
place = SingleDeviceSharding(device)
tiles = ((8, 128),)
a = np.arange(300, dtype=np.float32).reshape(2, 150)
x = jax.device_put(a, place)
assert x.format.layout == Layout((0, 1), tiles), x.format
assert device.memory_stats()["bytes_in_use"] == x.on_device_size_in_bytes() == 8 * 256 * 4
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
value, gradient = jax.jit(jax.value_and_grad(lambda w, x: jnp.tanh(x @ w * 1e-5).sum()))(jnp.ones((150, 5)), x)
np.testing.assert_allclose(gradient[:, 0], a.T @ (1 / np.cosh(a.sum(1) * 1e-5) ** 2 * 1e-5), rtol=1e-4)
assert gradient.format.layout == Layout((0, 1), tiles)
compiled = jax.jit(lambda v: v + v).lower(z).compile()
assert compiled.input_formats[0][0] == columns
assert compiled.memory_analysis().argument_size_in_bytes == 152 * 128 * 4
assert compiled.memory_analysis().output_size_in_bytes == compiled(z).on_device_size_in_bytes()
try:
    jax.device_put(x, Format(Layout((1, 0), ((4, 4),)), place))
    raise AssertionError("other tiles were taken")
except jax.errors.JaxRuntimeError as error:
    assert "as {0,1:T(8,128)}, found the layout {0,1:T(4,4)}" in str(error), error
del x, y, z, array, donated, value, gradient
import gc; gc.collect()
wait_until(lambda: device.memory_stats()["bytes_in_use"] == 0)  # executions that nobody waits for hold their arguments

place = SingleDeviceSharding(packing)
n = np.arange(-8, 8).astype(jnp.int4).repeat(20).reshape(2, 160)
x = jax.device_put(n, place)
assert x.format.layout == Layout((0, 1), (), 4), x.format
assert x.on_device_size_in_bytes() == 160
np.testing.assert_array_equal(x, n)
np.testing.assert_array_equal(jax.jit(lambda v: v * v)(x), n * n)
print("laid out")
"""


@pytest.mark.full
@pytest.mark.parametrize("is_worker", [False, True])
def test_jax_sees_and_chooses_layouts_of_a_device_in_python(is_worker: bool, tmp_path: Path) -> None:
    arguments = [str(TILED), str(PACKING)]
    for number, file in enumerate(arguments if is_worker else ()):
        library = native.write_library(tmp_path / f"{number}.so", f"{file}:make_client", driver="worker", name="python")
        arguments[number] = str(library)
    done = subprocess.run(
        [sys.executable, "-c", JAX, str(Path(waiting.__file__).parent), *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "laid out" in done.stdout


CHOOSING = """
import runpy
from dataclasses import replace
import pjrt
from pjrt.host import Compiled
from pjrt.native import asked_layouts


def make_client(**options):
    \"\"\"Return a client that multiplies by the transpose of weights, which it wants in columns.\"\"\"
    memory = runpy.run_path(TILED)["TiledMemory"]()

    def compile(program, options):
        asked, _ = asked_layouts(program)
        types = [each.type for each in (*program.entry.arguments, *program.entry.body.outputs)]
        *parameters, output = [pjrt.ShapeSpec(each.shape, each.dtype) for each in types]
        if len(parameters) == 1:  # a copy to another layout
            return lambda handle: handle

        def run(weights, x):
            assert weights.order == ((1, 0) if asked[0] == "auto" else (0, 1))
            product = memory.allocate(output, None)
            product.write(x.read() @ weights.read().T)
            return product

        if asked[0] == "auto":
            parameters[0] = replace(parameters[0], layout=pjrt.TiledLayout((0, 1)))
        return Compiled(run=run, parameters=parameters, outputs=[output])

    return pjrt.StableHloClient("choosing", compile=compile, memory=memory, **options)
"""

WEIGHTS = """
import runpy, sys
import jax, numpy as np, pjrt
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

library, tiles = sys.argv[1], ((8, 128),)
plugin = library if library.endswith(".so") else pjrt.export(runpy.run_path(library)["make_client"], name="choosing")
place = SingleDeviceSharding(jax.devices(pjrt.frameworks.jax.register(plugin, platform="choosing"))[0])
a = np.arange(300, dtype=np.float32).reshape(2, 150)
weights = np.random.default_rng(0).normal(size=(5, 150)).astype(np.float32)
shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=place) for each in (weights, a)]
compiled = jax.jit(lambda w, v: v @ w.T, in_shardings=Format(Layout.AUTO)).lower(*shapes).compile()
chosen, kept = compiled.input_formats[0]
assert (chosen.layout, kept.layout) == (Layout((1, 0), tiles), Layout((0, 1), tiles)), (chosen, kept)
laid_out, x = jax.device_put(weights, chosen), jax.device_put(a, place)
np.testing.assert_allclose(compiled(laid_out, x), a @ weights.T, rtol=1e-4)
sizes = laid_out.on_device_size_in_bytes() + x.on_device_size_in_bytes()
assert compiled.memory_analysis().argument_size_in_bytes == sizes == 152 * 128 * 4 + 8 * 256 * 4
np.testing.assert_allclose(jax.jit(lambda w, v: v @ w.T)(laid_out, x), a @ weights.T, rtol=1e-4)
print("chosen")
"""


@pytest.mark.full
@pytest.mark.parametrize("is_worker", [False, True])
def test_weights_are_laid_out_once_as_the_compiler_wants_them(is_worker: bool, tmp_path: Path) -> None:
    device, library = tmp_path / "choosing.py", tmp_path / "choosing.so"
    device.write_text(CHOOSING.replace("TILED", repr(str(TILED))))
    if is_worker:
        native.write_library(library, f"{device}:make_client", driver="worker", name="choosing")
    arguments = [sys.executable, "-c", WEIGHTS, str(library if is_worker else device)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert "chosen" in done.stdout


def test_padding_alone_counts_and_bytes_are_read_as_before(tmp_path: Path) -> None:
    device = tmp_path / "padding.py"
    device.write_text(
        "import runpy\nfrom pjrt.host import HostClient, Memory\n"
        f"Tiled = runpy.run_path({str(TILED)!r})['TiledMemory']\n"
        "class Padded(Tiled):\n"
        "    layout = Memory.layout\n"
        "    def size_of(self, spec, space):\n"
        "        return -(-spec.size_in_bytes // 512) * 512\n"
        "def make_client():\n"
        "    return HostClient('padded', compile=lambda *_: lambda x: x, memory=Padded())\n"
    )
    library = native.write_library(tmp_path / "padded.so", f"{device}:make_client", driver="worker", name="padded")
    x = np.arange(300, dtype=np.float32).reshape(2, 150)
    with pjrt.load_plugin(library).client() as client:
        buffer = client.buffer_from_host(x)
        assert buffer.layout == pjrt.TiledLayout((1, 0))
        assert buffer.on_device_size == client.devices[0].memory_stats().bytes_in_use == 1536
        out = np.empty_like(x)
        buffer.copy_raw_to_host(out).result()
        np.testing.assert_array_equal(out, x)
        with pytest.raises(pjrt.PjrtError, match="within a buffer of 1200 bytes"):
            buffer.copy_raw_to_host(bytearray(8), 1196).result()
        seen = buffer.bitcast(pjrt.ElementType.S32, (300,))
        np.testing.assert_array_equal(np.asarray(seen), x.view(np.int32).reshape(-1))


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return native.write_library(tmp_path / "tiled.so", f"{TILED}:make_client", driver="worker", name="tiled")


def test_the_c_api_has_the_tiles_and_the_bytes_of_a_memory_in_python(library: Path) -> None:
    x = np.arange(300, dtype=np.float32).reshape(2, 150)
    tiles = ((8, 128),)
    with pjrt.load_plugin(library).client(memory_limit=2**20) as client:
        device = client.devices[0]
        buffer = client.buffer_from_host(x, layout=pjrt.TiledLayout((0, 1), tiles))
        assert buffer.layout == pjrt.TiledLayout((0, 1), tiles)
        assert buffer.on_device_size == device.memory_stats().bytes_in_use == 152 * 128 * 4
        np.testing.assert_array_equal(np.asarray(buffer), x)
        with pytest.raises(pjrt.UnimplementedError, match="rows"):
            buffer.copy_raw_to_host(bytearray(4))
        rows = client.buffer_from_host(x)
        with pytest.raises(pjrt.UnimplementedError, match="rows"):
            rows.copy_raw_to_host(bytearray(4)).result()
        seen = rows.bitcast(pjrt.ElementType.S32, (300, 1))
        assert seen.layout == pjrt.TiledLayout((1, 0), tiles)
        assert seen.on_device_size == 304 * 128 * 4
        assert device.memory_stats().bytes_in_use == (152 + 304) * 128 * 4
        np.testing.assert_array_equal(np.asarray(seen), x.view(np.int32).reshape(300, 1))
        with pytest.raises(pjrt.ResourceExhaustedError, match="950272 bytes are wanted"):
            client.buffer_from_host(np.zeros((1849, 1), np.float32))  # 7,396 bytes without padding
        flat = client.buffer_from_host(x[0])  # without tiles: its bytes can be read
        out = bytearray(8)
        flat.copy_raw_to_host(out, 4).result()
        assert np.frombuffer(out, np.float32).tolist() == [1, 2]


@pytest.mark.parametrize("kind", ["driver", "worker"])
def test_a_program_for_a_topology_has_the_tiles_of_its_devices(kind: str, chip_library: Path, tmp_path: Path) -> None:
    library = chip_library
    if kind == "worker":
        library = native.write_library(tmp_path / "tiled.so", f"{TILED}:make_client", driver="worker", name="tiled")
    program = """func.func @main(%x: tensor<2x150xf32>) -> tensor<2x150xf32> {
      %0 = stablehlo.add %x, %x : tensor<2x150xf32>
      return %0 : tensor<2x150xf32>
    }"""
    executable = pjrt.load_plugin(library).topology().compile(program)
    tiles = [pjrt.TiledLayout((1, 0), ((8, 128),))]
    assert (list(executable.parameter_layouts), list(executable.output_layouts)) == (tiles, tiles)
    stats = executable.memory_stats()
    assert (stats.argument_size_in_bytes, stats.output_size_in_bytes) == (8 * 256 * 4, 8 * 256 * 4)


def test_a_bitcast_on_the_chip_lays_out_the_elements_anew(chip_library: Path) -> None:
    x = np.arange(300, dtype=np.float32).reshape(2, 150)
    double = (
        "func.func @main(%x: tensor<2x150xf32>) -> tensor<2x150xf32> {\n%0 = stablehlo.add %x, %x : tensor<2x150xf32>"
    )
    with pjrt.load_plugin(chip_library).client() as client:
        (y,) = client.compile(f"{double}\nreturn %0 : tensor<2x150xf32>\n}}")(x)
        seen = y.bitcast(pjrt.ElementType.S32, (300, 1))  # perhaps before the value is there
        assert seen.layout == pjrt.TiledLayout((1, 0), ((8, 128),))
        assert y.is_deleted
        np.testing.assert_array_equal(np.asarray(seen), (2 * x).view(np.int32).reshape(300, 1))
        small = client.buffer_from_host(np.arange(16).astype(pjrt.ElementType.S4.dtype))  # packed on the chip
        four = small.bitcast(pjrt.ElementType.S4, (4, 4))
        np.testing.assert_array_equal(
            np.asarray(four).astype(int), np.arange(16).astype(pjrt.ElementType.S4.dtype).astype(int).reshape(4, 4)
        )
        with pytest.raises(pjrt.InvalidArgumentError, match="as many bits as"):
            seen.bitcast(pjrt.ElementType.S32, (299, 1))
        failed = client.create_error_buffer(pjrt.InternalError("no value"), pjrt.ShapeSpec((2, 150), np.float32))
        with pytest.raises(pjrt.InternalError, match="no value"):
            np.asarray(failed.bitcast(pjrt.ElementType.S32, (300, 1)))
        del y, seen, small, four, failed
        gc.collect()
        wait_until(lambda: client.devices[0].memory_stats().bytes_in_use == 0)
