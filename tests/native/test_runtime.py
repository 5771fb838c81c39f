"""The runtime in C, over the example's chip: tiles, a queue, fences, and two devices."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import pjrt
from pjrt import native
from pjrt.api.client import Client
from pjrt.capi.import_spec import find_attribute
from pjrt.native import compiling
from pjrt.stablehlo.ir import mlir_module

EXAMPLES = Path(__file__).parents[2] / "examples"
ADD = """
func.func @add(%x: tensor<3x200xf32>, %y: tensor<3x200xf32>) -> tensor<3x200xf32> {
  %0 = stablehlo.add %x, %y : tensor<3x200xf32>
  return %0 : tensor<3x200xf32>
}"""
DONATE = """
func.func @main(%x: tensor<3x200xf32> {tf.aliasing_output = 0 : i32}) -> tensor<3x200xf32> {
  %0 = stablehlo.add %x, %x : tensor<3x200xf32>
  return %0 : tensor<3x200xf32>
}"""
DONATE_ONE_OF_TWO = ADD.replace(
    "@add(%x: tensor<3x200xf32>", "@main(%x: tensor<3x200xf32> {tf.aliasing_output = 0 : i32}"
)
FAIL = """
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.custom_call @chip.fail() {backend_config = "8"} : () -> tensor<f32>
  %1 = stablehlo.add %0, %x : tensor<f32>
  return %1 : tensor<f32>
}"""
X = np.arange(600, dtype=np.float32).reshape(3, 200)


def test_a_program_runs(chip: Client) -> None:
    executable = chip.compile(ADD)
    (result,) = executable(X, X)
    np.testing.assert_array_equal(result, X + X)
    assert [device.kind for device in chip.devices] == ["Simulated chip, 8x128 tiles"] * 2
    assert executable.executable.cost_analysis()["flops"] > 0


def test_both_devices_compute(chip: Client) -> None:
    for device in chip.devices:
        executable = chip.compile(ADD, pjrt.CompileOptions(device_assignment=[[device.id]]))
        (result,) = executable(*[chip.buffer_from_host(X, device=device) for _ in range(2)])
        np.testing.assert_array_equal(result, X + X)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.int32, np.bool_]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=300).filter(lambda s: np.prod(s) < 50_000),
        elements={"allow_nan": False},
    ),
    st.randoms(use_true_random=False),
)
def test_an_array_comes_back(chip: Client, array: np.ndarray, random: object) -> None:
    order = list(range(array.ndim))
    random.shuffle(order)  # type: ignore[attr-defined]
    turned = array.transpose(order)
    first, second = chip.devices
    buffer = chip.buffer_from_host(turned, device=first)
    np.testing.assert_array_equal(buffer, turned)
    np.testing.assert_array_equal(buffer.copy_to(second), turned)


def test_arrays_of_types_that_the_chip_only_keeps(chip: Client) -> None:
    for dtype in ("int8", "uint16", "float16", "uint32", "int64", "float64", "complex64", "complex128"):
        array = np.arange(3 * 130).reshape(3, 130).astype(dtype)
        buffer = chip.buffer_from_host(array)
        np.testing.assert_array_equal(buffer, array)
        np.testing.assert_array_equal(buffer.copy_to(chip.devices[1]), array)


def test_an_array_that_the_device_does_not_have(chip: Client) -> None:
    with pytest.raises(pjrt.UnimplementedError, match="with up to 8 dimensions"):
        chip.buffer_from_host(np.zeros((1,) * 9, np.float32))


def test_a_program_with_an_array_that_the_device_does_not_have(chip: Client) -> None:
    """It is refused when it is compiled, as one with an operation that the device does not have."""
    program = """func.func @main(%x: tensor<4xf32>) -> tensor<4x1x1x1x1x1x1x1x1xf32> {
      %0 = stablehlo.reshape %x : (tensor<4xf32>) -> tensor<4x1x1x1x1x1x1x1x1xf32>
      return %0 : tensor<4x1x1x1x1x1x1x1x1xf32>
    }"""
    with pytest.raises(pjrt.UnimplementedError, match="with up to 8 dimensions"):
        chip.compile(program)


def test_the_memory_of_a_program_has_the_padding(chip: Client) -> None:
    program = """func.func @main(%x: tensor<3x40xf32>) -> tensor<3x200xf32> {
      %0 = stablehlo.constant dense<1.0> : tensor<3x200xf32>
      return %0 : tensor<3x200xf32>
    }"""
    stats = chip.compile(program).executable.memory_stats()
    assert (stats.argument_size_in_bytes, stats.output_size_in_bytes) == (8 * 128 * 4, 8 * 256 * 4)


def test_an_array_in_pieces(chip: Client) -> None:
    """The data are the bytes of the array in rows, whatever the device makes of them."""
    manager = chip.create_buffers_for_async_host_to_device([pjrt.ShapeSpec((3, 200), pjrt.ElementType.F32)])
    buffer, data = manager.retrieve_buffer(0), X.tobytes()
    assert manager.buffer_size(0) == buffer.on_device_size == 8 * 256 * 4
    with pytest.raises(pjrt.InvalidArgumentError, match="expected a range within a buffer of 2400 bytes"):
        manager.transfer_data(0, data[:600], 2400)
    for start in (1200, 0, 600, 1800):
        manager.transfer_data(0, data[start : start + 600], start, is_last_transfer=start == 1800)
    np.testing.assert_array_equal(buffer, X)


def test_padding_counts(chip: Client) -> None:
    gc.collect()
    before = chip.devices[0].memory_stats().bytes_in_use
    buffer = chip.buffer_from_host(X)
    buffer.ready().result()
    assert buffer.on_device_size == 8 * 256 * 4  # 3 x 200 in tiles of 8 x 128
    assert chip.devices[0].memory_stats().bytes_in_use - before == 8 * 256 * 4
    del buffer
    gc.collect()
    assert chip.devices[0].memory_stats().bytes_in_use == before


@pytest.mark.parametrize("bits", [4, 2, 1])
def test_packed_elements(chip: Client, bits: int) -> None:
    """The host has a byte for each element, the chip as many bits as it needs."""
    for element in (pjrt.ElementType[f"S{bits}"], pjrt.ElementType[f"U{bits}"]):
        low = 0 if element.name.startswith("U") else -(1 << bits - 1)
        values = (np.arange(600) % (1 << bits) + low).astype(element.dtype).reshape(3, 200)
        buffer = chip.buffer_from_host(values)
        np.testing.assert_array_equal(np.asarray(buffer), values)
        assert buffer.on_device_size == 8 * 256 * bits // 8
        assert not buffer.is_on_cpu
        other = buffer.copy_to(chip.devices[1])
        np.testing.assert_array_equal(np.asarray(other), values)
        turned = chip.buffer_from_host(values, layout=pjrt.TiledLayout((0, 1)))
        assert turned.on_device_size == 200 * 128 * bits // 8
        np.testing.assert_array_equal(np.asarray(turned), values)
        manager = chip.create_buffers_for_async_host_to_device([pjrt.ShapeSpec((64, 256), element)])
        many = np.resize(values, (64, 256))
        manager.transfer_data(0, many.tobytes()[:9000], 0, is_last_transfer=False)
        manager.transfer_data(0, many.tobytes()[9000:], 9000)
        np.testing.assert_array_equal(np.asarray(manager.retrieve_buffer(0)), many)
        scalar = chip.buffer_from_host(values[0, 0])
        np.testing.assert_array_equal(np.asarray(scalar), values[0, 0])
        assert scalar.on_device_size == 4


def test_a_donated_argument_is_gone(chip: Client) -> None:
    executable = chip.compile(DONATE)
    buffer = chip.buffer_from_host(X)
    ((result,),) = executable.execute([[buffer]])
    np.testing.assert_array_equal(result, X + X)
    assert buffer.is_deleted
    with pytest.raises(pjrt.FailedPreconditionError, match="donated"):
        np.asarray(buffer)


def test_a_donated_argument_that_others_read(chip: Client) -> None:
    """What was enqueued before sees the old values, whatever the donation writes."""
    double, add = chip.compile(DONATE), chip.compile(ADD)
    for _ in range(20):
        buffer = chip.buffer_from_host(X)
        ((read,),) = add.execute([[buffer, buffer]])
        ((doubled,),) = double.execute([[buffer]])
        np.testing.assert_array_equal(read, X + X)
        np.testing.assert_array_equal(doubled, X + X)


def test_a_refused_call_takes_nothing(chip_library: Path) -> None:
    """Neither where another argument is wrong, nor where memory is missing."""
    size = 8 * 256 * 4
    with pjrt.load_plugin(chip_library).client(memory=5 * size) as client:
        add, donate = client.compile(ADD), client.compile(DONATE_ONE_OF_TWO)
        x, y = client.buffer_from_host(X), client.buffer_from_host(X)
        y.delete()
        with pytest.raises(pjrt.PjrtError, match="deleted"):
            donate.execute([[x, y]])
        manager = client.create_buffers_for_async_host_to_device([pjrt.ShapeSpec((3, 200), pjrt.ElementType.F32)])
        y, later = client.buffer_from_host(X), manager.retrieve_buffer(0)
        ((waiting,),) = add.execute([[x, later]])  # reads x when the caller has filled the other
        with pytest.raises(pjrt.ResourceExhaustedError):  # so the result cannot take its memory
            donate.execute([[x, y]])
        np.testing.assert_array_equal(x, X)
        manager.transfer_literal(0, X)
        np.testing.assert_array_equal(waiting, X + X)
        ((result,),) = donate.execute([[x, y]])
        np.testing.assert_array_equal(result, X + X)


def test_an_error_travels(chip: Client) -> None:
    fail, scalar = chip.compile(FAIL), np.float32(1)
    ((failed,),) = fail.execute([[chip.buffer_from_host(scalar)]])
    ((after,),) = fail.execute([[failed]])
    for buffer in (failed, after, after.copy_to(chip.devices[1])):
        with pytest.raises(pjrt.ResourceExhaustedError, match="the chip was told to fail"):
            np.asarray(buffer)
    (good,) = chip.compile(ADD)(X, X)  # the device goes on
    np.testing.assert_array_equal(good, X + X)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([X], "expected 2 arguments, found 1|2 arguments"),
        ([X, X.astype(np.int32)], r"f32\[3,200\].*s32\[3,200\]"),
        ([X, X[:2]], r"f32\[3,200\].*f32\[2,200\]"),
    ],
)
def test_wrong_arguments(chip: Client, arguments: list[np.ndarray], message: str) -> None:
    executable = chip.compile(ADD)
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        executable.execute([[chip.buffer_from_host(each) for each in arguments]])


def test_an_argument_of_another_device(chip: Client) -> None:
    executable = chip.compile(ADD)
    wrong = chip.buffer_from_host(X, device=chip.devices[1])
    with pytest.raises(pjrt.InvalidArgumentError, match=r"chip\(id=0\).*chip\(id=1\)"):
        executable.execute([[wrong, wrong]])


def test_run_ahead_waits_for_memory(chip_library: Path) -> None:
    """Two arrays are enough for a chain, however far the caller is ahead."""
    size = 8 * 256 * 4
    with pjrt.load_plugin(chip_library).client(memory=6 * size) as client:
        executable = client.compile(ADD)
        x = client.buffer_from_host(X)
        for _ in range(60):
            ((x,),) = executable.execute([[x, x]])
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(x, X * np.float32(2) ** 60)
        held = [x]
        for _ in range(4):
            held += executable.execute([[held[-1], held[-1]]])[0]
        with pytest.raises(pjrt.ResourceExhaustedError, match=f"{size} bytes are wanted"):
            held += [executable.execute([[held[-1], held[-1]]])[0][0] for _ in range(3)]


def test_a_buffer_that_the_caller_fills(chip: Client) -> None:
    """An execution that waits for the caller is enqueued, and runs when the buffer is complete."""
    executable = chip.compile(ADD)
    manager = chip.create_buffers_for_async_host_to_device([pjrt.ShapeSpec((3, 200), pjrt.ElementType.F32)])
    buffer = manager.retrieve_buffer(0)
    ((result,),) = executable.execute([[buffer, buffer]])
    assert not result.ready().done()
    manager.transfer_literal(0, X)
    np.testing.assert_array_equal(result, X + X)


def test_the_bytes_of_a_buffer(chip: Client) -> None:
    """The bytes are the device's own: tiles, with their padding."""
    buffer = chip.buffer_from_host(X)
    raw = buffer.raw()
    out = bytearray(raw.on_device_size)
    raw.copy_to_host(out).result()
    tiles = np.frombuffer(out, np.float32).reshape(2, 8, 128)  # two columns of tiles
    np.testing.assert_array_equal(np.concatenate(list(tiles), axis=1)[:3, :200], X)
    raw.copy_from_host(np.float32([7]), 4).result()
    changed = X.copy()
    changed[0, 1] = 7
    np.testing.assert_array_equal(chip.compile(ADD)(buffer, buffer)[0], changed + changed)


def test_an_executable_is_loaded_without_python(chip: Client, chip_driver: Path, tmp_path: Path) -> None:
    """A library without a compiler runs what was serialized, and says so where it must compile."""
    serialized = chip.compile(ADD).executable.serialize()
    runner = native.write_library(tmp_path / "runner.so", driver=chip_driver)
    with pjrt.load_plugin(runner).client() as client:
        (result,) = client.deserialize(serialized)(X, X)
        np.testing.assert_array_equal(result, X + X)
        with pytest.raises(pjrt.UnimplementedError, match="only runs executables that were serialized"):
            client.compile(ADD)


def test_a_damaged_executable(chip: Client) -> None:
    """Each cut and each flipped bit is noticed; a cut between two fields looks whole but for its checksum."""
    serialized = chip.compile(ADD).executable.serialize()
    flipped = [
        serialized[:at] + bytes([serialized[at] ^ 1 << at % 8]) + serialized[at + 1 :] for at in range(len(serialized))
    ]
    for damaged in [*(serialized[:end] for end in range(len(serialized))), *flipped, b"PJRT" * 100, serialized * 2]:
        with pytest.raises(pjrt.PjrtError):
            chip.deserialize(damaged)
    chip.deserialize(serialized)


def test_the_compiler_refuses(tmp_path: Path, chip_driver: Path) -> None:
    without_fallback = f"{EXAMPLES / 'native_chip' / 'compiler.py'}:compile_kernel"
    library = native.write_library(tmp_path / "chip.so", without_fallback, driver=chip_driver)
    with pjrt.load_plugin(library).client() as client:
        with pytest.raises(pjrt.UnimplementedError, match=r"the chip has no stablehlo\.cbrt"):
            client.compile(ADD.replace("add %x, %y", "cbrt %x"))
        with pytest.raises(pjrt.InvalidArgumentError):
            client.compile("this is no program")
        assert client.compile(ADD)  # by the same process


def test_a_damaged_program(chip: Client) -> None:
    """Bytecode with an operation's name that is not UTF-8, at which MLIR's bindings abort the process."""
    text = ADD.replace("stablehlo.add %x, %y", "stablehlo.tanh %x")
    bytecode = mlir_module.write_bytecode(mlir_module.parse(text.encode()))
    with pytest.raises(pjrt.DataLossError, match="make the native parser crash"):
        chip.compile(bytecode.replace(b"tanh", b"tan\xff"))
    with pytest.raises(pjrt.PjrtError):
        chip.compile(bytecode[: len(bytecode) // 2])
    assert chip.compile(bytecode)


def test_no_process_looks_at_a_program_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that compiles is one of its own already."""
    code = pjrt.stablehlo.serialize(ADD.replace("@add", "@first_look"), "1.0.0").code

    def started(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", started)
    options = pjrt.CompileOptions().to_proto()
    request = compiling.REQUEST(method="compile", program=code, format="mlir", options=options)
    compile_function = find_attribute(f"{EXAMPLES / 'native_chip' / 'compiler.py'}:compile")
    assert compiling.compiled(compile_function, request)


def test_a_program_for_several_partitions(chip: Client) -> None:
    options = pjrt.CompileOptions(num_partitions=2, use_spmd_partitioning=True)
    executable = chip.compile(ADD.replace("@add", "@main"), options)
    arguments = [[chip.buffer_from_host(X, device=device)] * 2 for device in chip.devices]
    for (result,) in executable.execute(arguments):
        np.testing.assert_array_equal(result, 2 * X)


def test_replicas(chip: Client) -> None:
    executable = chip.compile(ADD, pjrt.CompileOptions(num_replicas=2))
    arguments = [[chip.buffer_from_host(X + n, device=device)] * 2 for n, device in enumerate(chip.devices)]
    for number, (result,) in enumerate(executable.execute(arguments)):
        np.testing.assert_array_equal(result, 2 * (X + number))


def test_the_compiling_process_ends(tmp_path: Path, chip_driver: Path) -> None:
    compiler = tmp_path / "dying.py"
    compiler.write_text("import os\ndef compile(program, options):\n    os._exit(3)\n")
    library = native.write_library(tmp_path / "dying.so", f"{compiler}:compile", driver=chip_driver)
    with pjrt.load_plugin(library).client() as client:
        for _ in range(2):
            with pytest.raises(pjrt.UnavailableError, match="ended with exit status 3"):
                client.compile(ADD)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("def compile(program, options):\n    return b''\n", pjrt.InternalError, "expected pjrt.native.Code"),
        ("def compile(program, options):\n    return 1 / 0\n", pjrt.InternalError, r"compiler\.py:2"),
        ("def other(): pass\n", pjrt.NotFoundError, "has no 'compile'"),
        ("import no_such_module\n", pjrt.FailedPreconditionError, "no_such_module"),
    ],
)
def test_a_compiler_with_a_fault(
    tmp_path: Path, chip_driver: Path, text: str, error: type[Exception], message: str
) -> None:
    compiler = tmp_path / "compiler.py"
    compiler.write_text(text)
    library = native.write_library(tmp_path / "faulty.so", f"{compiler}:compile", driver=chip_driver)
    with pjrt.load_plugin(library).client() as client, pytest.raises(error, match=message):
        client.compile(ADD)


def test_the_library_needs_the_system_alone(chip_library: Path) -> None:
    listed = subprocess.run(["ldd", str(chip_library)], capture_output=True, text=True, check=True).stdout
    names = {line.split()[0].partition(".so")[0].rpartition("/")[2] for line in listed.splitlines()}
    assert names <= {"linux-vdso", "libc", "libdl", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64"}


EXIT = """
import os, sys, numpy as np, pjrt
client = pjrt.load_plugin(sys.argv[1]).client()
x = np.ones((3, 200), np.float32)
executable = client.compile(sys.argv[2])
buffers = [executable.execute([[client.buffer_from_host(x)] * 2])[0][0] for _ in range(50)]
if sys.argv[3] == "fork":
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    np.testing.assert_array_equal(buffers[-1], x + x)
if sys.argv[3] == "close":
    client.close()
if sys.argv[3] == "exit":
    os._exit(0)
"""


@pytest.mark.parametrize("end", ["exit", "close", "fork", "return"])
def test_the_end_of_a_process(chip_library: Path, end: str) -> None:
    done = subprocess.run([sys.executable, "-c", EXIT, str(chip_library), ADD, end], timeout=120, check=False)
    assert done.returncode == 0


def test_the_compiling_process_ends_with_its_parent(chip_library: Path) -> None:
    """Also where the parent is killed: nothing is left behind."""
    script = (
        "import sys, pjrt\n"
        "from pathlib import Path\n"
        "client = pjrt.load_plugin(sys.argv[1]).client(); client.compile(sys.argv[2])\n"
        "(child,) = "
        "{pid for each in Path('/proc/self/task').glob('*/children') for pid in each.read_text().split()}\n"
        "print(child, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(chip_library), ADD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        pidfd = os.pidfd_open(child)
        os.kill(parent.pid, signal.SIGKILL)
    import select

    assert select.select([pidfd], [], [], 60)[0]  # readable when the process has ended
    os.close(pidfd)


def test_an_array_in_another_order(chip: Client) -> None:
    """The driver lays it out; the host has it in rows, or as it is asked for."""
    values = np.arange(3 * 130, dtype=np.float32).reshape(3, 130)
    columns = pjrt.TiledLayout((0, 1), ((8, 128),))
    buffer = chip.buffer_from_host(values, layout=pjrt.TiledLayout((0, 1)))
    assert buffer.layout == columns
    assert buffer.on_device_size == 136 * 128 * 4
    np.testing.assert_array_equal(buffer, values)
    other = buffer.copy_to(chip.devices[1])
    assert other.layout == columns
    np.testing.assert_array_equal(other, values)
    np.testing.assert_array_equal(chip.buffer_from_host(values, layout=columns), values)
    with pytest.raises(pjrt.UnimplementedError, match="device's own tiles"):
        chip.buffer_from_host(values, layout=pjrt.TiledLayout((0, 1), ((4, 4),)))


ASKS = """func.func @main(%x: tensor<3x130xf32> {mhlo.layout_mode = "{0,1:T(8,128)}"})
    -> (tensor<3x130xf32> {mhlo.layout_mode = "{0,1}"}, tensor<3x130xf32>) {
  %0 = stablehlo.add %x, %x : tensor<3x130xf32>
  return %0, %0 : tensor<3x130xf32>, tensor<3x130xf32>
}"""


def test_launches_that_are_done_when_they_return(chip_library: Path) -> None:
    x = np.ones((3, 200), np.float32)
    with pjrt.load_plugin(chip_library).client(at_once=True) as client:
        add, fail = client.compile(ADD), client.compile(FAIL)
        y = client.buffer_from_host(x)
        y.ready().result()
        for _ in range(5):
            (y,) = add(y, y)
            assert y.ready().done()
        np.testing.assert_array_equal(y, 32 * x)
        with pytest.raises(pjrt.ResourceExhaustedError, match="told to fail"):
            np.asarray(fail(np.float32(1))[0])


def test_a_program_in_hlo(chip: Client) -> None:
    """The format in which PyTorch/XLA gives a program is none in which it reads the optimized one."""
    executable = chip.compile(pjrt.stablehlo.to_hlo(ADD.replace("@add", "@main")))
    optimized = executable.executable.optimized_program()
    assert optimized.format == pjrt.ProgramFormat.HLO_WITH_CONFIG
    x = np.ones((3, 200), np.float32)
    np.testing.assert_array_equal(chip.compile(optimized)(x, x)[0], x + x)


def test_a_program_that_asks_for_layouts(chip: Client) -> None:
    values = np.arange(3 * 130, dtype=np.float32).reshape(3, 130)
    columns, rows = pjrt.TiledLayout((0, 1), ((8, 128),)), pjrt.TiledLayout((1, 0), ((8, 128),))
    executable = chip.compile(ASKS)
    assert list(executable.executable.parameter_layouts) == [columns]
    assert list(executable.executable.output_layouts) == [columns, rows]
    ((first, second),) = executable.execute([[chip.buffer_from_host(values, layout=columns)]])
    assert (first.layout, second.layout) == (columns, rows)
    np.testing.assert_array_equal(first, values * 2)
    np.testing.assert_array_equal(second, values * 2)
    with pytest.raises(pjrt.InvalidArgumentError, match=r"argument 0: expected the layout \{0,1\}, found \{1,0\}"):
        executable.execute([[chip.buffer_from_host(values)]])
    with pytest.raises(pjrt.UnimplementedError, match=r"layout \{0,1:T\(8,128\)\}, found the layout \{0,1:T\(4,4\)\}"):
        chip.compile(ASKS.replace("T(8,128)", "T(4,4)"))
