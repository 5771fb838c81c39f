"""A memory in Python that lays out arrays its own way: in tiles, with padding, in another order, or packed."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import wait_until

import pjrt
from pjrt import TiledLayout
from pjrt.host import Compiled, HostClient, Memory

ROOT = Path(__file__).parents[3]
CHIP = runpy.run_path(str(ROOT / "examples" / "tiled_chip" / "device.py"))
PACKING = runpy.run_path(str(ROOT / "tests" / "native" / "packing_device.py"))
TILES = ((8, 128),)
ROWS, COLUMNS = TiledLayout((1, 0), TILES), TiledLayout((0, 1), TILES)
X = np.arange(300, dtype=np.float32).reshape(2, 150)
SPEC = pjrt.ShapeSpec((2, 150), np.float32)
IN_ROWS, IN_COLUMNS = 8 * 256 * 4, 152 * 128 * 4
"""The bytes of the array in tiles."""


@pytest.fixture
def chip() -> Iterator[pjrt.Client]:
    with CHIP["make_client"](num_devices=2, memory_kinds=("device", "pinned_host")) as client:
        yield client


def client_of(memory: Memory, compile: Callable[..., Any] | None = None) -> HostClient:
    return HostClient("own", compile=compile or (lambda *_: lambda x: x), memory=memory)


@pytest.mark.parametrize(
    ("asked", "layout", "size"),
    [
        (None, ROWS, IN_ROWS),
        (ROWS, ROWS, IN_ROWS),
        (COLUMNS, COLUMNS, IN_COLUMNS),
        (TiledLayout((0, 1)), COLUMNS, IN_COLUMNS),
        (pjrt.StridedLayout((4, 8)), COLUMNS, IN_COLUMNS),
    ],
)
def test_a_buffer_has_the_layout_of_its_memory(
    chip: pjrt.Client, asked: pjrt.Layout | None, layout: TiledLayout, size: int
) -> None:
    buffer = chip.buffer_from_host(X, layout=asked)
    assert buffer.layout == layout
    assert buffer.on_device_size == size
    assert chip.devices[0].memory_stats().bytes_in_use == size
    np.testing.assert_array_equal(buffer.to_host().result(), X)
    allocation: Any = buffer._storage.array  # type: ignore[attr-defined]
    tiles = allocation.handle.memory
    assert tiles.nbytes == size
    if layout == COLUMNS:  # the first tile has the first 128 numbers of both rows, turned
        np.testing.assert_array_equal(tiles[0, 0, :, :2], X[:, :8].T)
    else:
        np.testing.assert_array_equal(tiles[0, 1, :2, :22], X[:, 128:])


def test_copies_keep_the_order(chip: pjrt.Client) -> None:
    buffer = chip.buffer_from_host(X, layout=COLUMNS)
    for place in (chip.devices[1], chip.devices[0].memory_space("pinned_host")):
        copy = buffer.copy_to(place)
        assert (copy.layout, copy.on_device_size) == (COLUMNS, IN_COLUMNS)
        np.testing.assert_array_equal(np.asarray(copy), X)
    assert chip.default_layout(pjrt.ElementType.F32, (2, 150)) == ROWS
    assert chip.default_layout(pjrt.ElementType.F32, (150,)) == TiledLayout.row_major(1)


def test_a_bitcast_lays_out_the_elements_anew(chip: pjrt.Client) -> None:
    seen = chip.buffer_from_host(X).bitcast(pjrt.ElementType.S32, (300, 1))
    assert (seen.layout, seen.on_device_size) == (ROWS, 304 * 128 * 4)
    np.testing.assert_array_equal(np.asarray(seen), X.view(np.int32).reshape(300, 1))
    assert chip.devices[0].memory_stats().bytes_in_use == 304 * 128 * 4


def test_buffers_that_are_filled_later_have_the_layout(chip: pjrt.Client) -> None:
    spec = replace(SPEC, layout=COLUMNS)
    alias, fulfillment = chip.create_alias_buffer(spec)
    assert alias.layout == COLUMNS
    with pytest.raises(pjrt.InvalidArgumentError, match="the alias has the layout"):
        fulfillment.fulfill(chip.buffer_from_host(X))
    fulfillment.fulfill(chip.buffer_from_host(X, layout=COLUMNS))
    np.testing.assert_array_equal(np.asarray(alias), X)
    with chip.create_buffers_for_async_host_to_device([spec, SPEC]) as manager:
        manager.transfer_data(0, X.tobytes()[:400], is_last_transfer=False)
        manager.transfer_data(0, X.tobytes()[400:], 400)
        manager.transfer_literal(1, X)
        for buffer, layout in ((manager.retrieve_buffer(0), COLUMNS), (manager.retrieve_buffer(1), ROWS)):
            assert buffer.layout == layout
            np.testing.assert_array_equal(np.asarray(buffer), X)
    assert chip.create_uninitialized_buffer(spec).layout == COLUMNS


def test_bytes_in_tiles_are_not_read_one_by_one(chip: pjrt.Client) -> None:
    buffer = chip.buffer_from_host(X)
    for use in (lambda: buffer.copy_raw_to_host(bytearray(4)), buffer.raw):
        with pytest.raises(
            pjrt.UnimplementedError, match=r"expected an array in rows.*\{1,0:T\(8,128\)\}; copy it with"
        ):
            use()
    flat = chip.buffer_from_host(X[0])  # no tiles
    out = bytearray(8)
    flat.copy_raw_to_host(out, 4).result()
    assert np.frombuffer(out, np.float32).tolist() == [1, 2]


def test_other_tiles_are_refused(chip: pjrt.Client) -> None:
    with pytest.raises(pjrt.UnimplementedError, match=r"lays out f32\[2,150\] as .*T\(8,128\).*found .*T\(4,4\)"):
        chip.buffer_from_host(X, layout=TiledLayout((1, 0), ((4, 4),)))
    with pytest.raises(pjrt.InvalidArgumentError, match="2 dimensions"):
        chip.buffer_from_host(X, layout=TiledLayout((0,)))


def test_padding_counts_for_the_limit() -> None:
    with CHIP["make_client"](memory_limit=2 * IN_ROWS) as client:
        held = [client.buffer_from_host(X) for _ in range(2)]
        with pytest.raises(pjrt.ResourceExhaustedError, match=f"2 of {IN_ROWS} bytes"):
            client.buffer_from_host(X[:1])
        del held


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (TiledLayout((0, 1), TILES), r"in the order \{1,0\} from Wrong.layout for f32\[2,150\], found \{0,1:T"),
        ("{1,0}", "pjrt.TiledLayout in the order"),
        (TiledLayout((1, 0), TILES, 4), "packed elements of 1, 2 or 4 bits"),
    ],
)
def test_a_wrong_layout_of_an_author_is_an_error(layout: Any, message: str) -> None:
    class Wrong(CHIP["TiledMemory"]):  # type: ignore[misc]  # a class of the example
        def layout(self, spec: pjrt.ShapeSpec, space: pjrt.MemorySpace) -> Any:
            return layout

    with client_of(Wrong()) as client, pytest.raises(pjrt.InternalError, match=message):
        client.buffer_from_host(X)


def test_elements_of_less_than_a_byte_may_be_packed() -> None:
    values = np.arange(-8, 8).reshape(4, 4).astype(pjrt.ElementType.S4.dtype)
    with PACKING["make_client"]() as client:
        buffer = client.buffer_from_host(values)
        assert str(buffer.layout) == "{1,0:E(4)}"
        assert TiledLayout.parse("{1,0:T(8,128)E(4)}") == TiledLayout((1, 0), TILES, 4)
        assert buffer.on_device_size == 8
        np.testing.assert_array_equal(np.asarray(buffer), values)
        assert client.buffer_from_host(X).layout == TiledLayout.row_major(2)
        with pytest.raises(pjrt.UnimplementedError, match="rows only"):
            client.buffer_from_host(X, layout=TiledLayout((0, 1)))


# Programs.

TURNED = """func.func @main(%x: tensor<2x150xf32> {mhlo.layout_mode = "ARGUMENT"})
    -> (tensor<2x150xf32> {mhlo.layout_mode = "RESULT"}) {
  %0 = stablehlo.add %x, %x : tensor<2x150xf32>
  return %0 : tensor<2x150xf32>
}"""


def turned(argument: str, result: str) -> str:
    return TURNED.replace("ARGUMENT", argument).replace("RESULT", result)


@pytest.mark.parametrize("argument", ["{1,0}", "{0,1}", "{0,1:T(8,128)}"])
@pytest.mark.parametrize("result", ["default", "{0,1:T(8,128)}"])
def test_kernels_get_rows_and_programs_the_layouts_that_they_ask_for(
    chip: pjrt.Client, argument: str, result: str
) -> None:
    executable = chip.compile(turned(argument, result))
    layout = ROWS if argument == "{1,0}" else COLUMNS
    assert list(executable.parameter_layouts) == [layout]
    (y,) = executable(chip.buffer_from_host(X, layout=layout))
    assert y.layout == (ROWS if result == "default" else COLUMNS)
    assert list(executable.output_layouts) == [y.layout]
    assert y.on_device_size == (IN_ROWS if result == "default" else IN_COLUMNS)
    np.testing.assert_array_equal(np.asarray(y), X * 2)


@pytest.mark.parametrize(("result", "size"), [("default", IN_ROWS), ("{0,1}", IN_COLUMNS)])
def test_a_donated_argument_in_another_order_counts_for_itself(chip: pjrt.Client, result: str, size: int) -> None:
    program = turned("default", result).replace(
        "{mhlo.layout_mode", "{tf.aliasing_output = 0 : i32, mhlo.layout_mode", 1
    )
    x = chip.buffer_from_host(X)
    (y,) = chip.compile(program)(x)
    np.testing.assert_array_equal(np.asarray(y), X * 2)
    assert x.is_deleted
    wait_until(lambda: chip.devices[0].memory_stats().bytes_in_use == size)
    assert y.on_device_size == size


def compiling(memory: Memory, declares: bool, fence: bool = False, **options: Any) -> pjrt.StableHloClient:
    """Return a client whose functions double their argument as it lies: in rows, or in columns if they declare that."""

    def compile(program: Any, options: pjrt.CompileOptions) -> Any:
        def run(handle: Any) -> Any:
            assert handle.order == ((1, 0) if declares else (0, 1))
            result = memory.allocate(pjrt.ShapeSpec(SPEC.shape, np.float32, layout), None)  # type: ignore[arg-type]
            if not fence:
                result.memory[...] = handle.memory * 2
                return result

            def work() -> None:
                result.memory[...] = handle.memory * 2

            return pjrt.host.Enqueued(result, work)

        layout = COLUMNS if declares else None
        spec = replace(SPEC, layout=layout)
        return Compiled(run=run, parameters=[spec], outputs=[spec]) if declares else run

    return pjrt.StableHloClient("compiling", compile=compile, memory=memory, **options)


@pytest.mark.parametrize("fence", [False, True])
def test_a_function_for_rows_serves_programs_that_ask_for_another_order(fence: bool) -> None:
    with compiling(CHIP["TiledMemory"](), declares=False, fence=fence) as client:
        (y,) = client.compile(turned("{0,1}", "{0,1}"))(client.buffer_from_host(X, layout=COLUMNS))
        assert y.layout == COLUMNS
        np.testing.assert_array_equal(np.asarray(y), X * 2)
        executable = client.compile(turned("default", "default"))
        (y,) = executable(client.buffer_from_host(X, layout=COLUMNS))  # turned for it
        np.testing.assert_array_equal(np.asarray(y), X * 2)


def test_a_compiler_chooses_layouts() -> None:
    with compiling(CHIP["TiledMemory"](), declares=True) as client:
        executable = client.compile(turned("auto", "auto"))
        assert list(executable.parameter_layouts) == list(executable.output_layouts) == [COLUMNS]
        (y,) = executable(client.buffer_from_host(X, layout=executable.parameter_layouts[0]))
        assert y.layout == COLUMNS
        np.testing.assert_array_equal(np.asarray(y), X * 2)
        with pytest.raises(pjrt.InvalidArgumentError, match=r"argument 0 .* in the layout \{0,1:T.*found .*\{1,0:T"):
            executable(client.buffer_from_host(X))
        with pytest.raises(pjrt.UnimplementedError, match=r"argument 0: the program asks for the layout \{1,0\}"):
            client.compile(turned("{1,0}", "auto"))


def test_a_topology_knows_the_tiles_and_their_bytes() -> None:
    """The device is not there: its client was closed."""
    file = ROOT / "examples" / "tiled_chip" / "device.py"
    topology = pjrt.topology(f"{file}:make_client", "2")
    for each in (topology, topology.deserialize(topology.serialize())):
        executable = each.compile(SUM_OF_ROWS)
        assert list(executable.parameter_layouts) == [ROWS]
        assert list(executable.output_layouts) == [TiledLayout.row_major(1)]
        stats = executable.memory_stats()
        assert (stats.argument_size_in_bytes, stats.output_size_in_bytes) == (IN_ROWS, 600)
        assert each.default_layout(pjrt.ElementType.F32, (2, 150)) == ROWS
        with CHIP["make_client"]() as client:
            (y,) = client.load(executable)(X)
            np.testing.assert_array_equal(np.asarray(y), X.sum(0))


SUM_OF_ROWS = """func.func @main(%x: tensor<2x150xf32>) -> tensor<150xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<2x150xf32>, tensor<f32>) -> tensor<150xf32>
  return %0 : tensor<150xf32>
}"""


def test_a_part_of_a_program_has_no_layouts_of_its_own() -> None:
    with (
        compiling(CHIP["TiledMemory"](), declares=True, fallback="reference") as client,
        pytest.raises(pjrt.InvalidArgumentError, match="declares layouts for compiling_run_0, a part of a program"),
    ):
        client.compile(turned("auto", "auto"))


def test_a_function_that_returns_an_argument_in_another_layout_is_an_error() -> None:
    outputs = [replace(SPEC, layout=COLUMNS)]
    program = Compiled(run=lambda handle: handle, parameters=[SPEC], outputs=outputs)
    with client_of(CHIP["TiledMemory"](), lambda *_: program) as client:
        (y,) = client.compile("any program")(client.buffer_from_host(X))
        with pytest.raises(pjrt.InternalError, match=r"in the layout of rows, expected \{0,1:T\(8,128\)\}; declare"):
            y.to_host().result()


def test_a_memory_without_layouts_takes_rows_only() -> None:
    class Plain(CHIP["TiledMemory"]):  # type: ignore[misc]
        layout = Memory.layout

    spec = replace(SPEC, layout=TiledLayout((0, 1)))
    with client_of(Plain(), lambda *_: Compiled(run=lambda x: x, parameters=[spec], outputs=[spec])) as client:
        assert client.buffer_from_host(X, layout=TiledLayout((1, 0))).layout == TiledLayout((1, 0))
        for use in (
            lambda: client.buffer_from_host(X, layout=TiledLayout((0, 1))),
            lambda: client.compile("any program"),
        ):
            with pytest.raises(
                pjrt.UnimplementedError, match=r"holds row-major arrays only.* Plain has no method layout"
            ):
                use()
