"""Functions of the host inside programs."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt
from pjrt.devices.xla import ffi_handler

X = np.arange(4, dtype=np.float32)

_seen: list[Any] = []


def _same(x: Any, out: Any) -> None:
    _seen.extend((x.copy(), out.copy()))
    out[...] = x


def idle(x: Any, out: Any) -> None:
    """Fills nothing."""


def test_a_python_function(client: pjrt.Client, programs: Any) -> None:
    seen: list[Any] = []

    def scale(x: Any, out: Any, *, by: float, times: int, words: str, table: Any, on: bool, inner: Any) -> None:
        seen.extend([x.flags.writeable, by, times, words, table.tolist(), on, inner])
        out[...] = x * by

    client.register_ffi_handler("test_ffi.scale", scale)
    attributes = (
        'by = 2.5 : f64, times = 3 : i32, words = "good", table = array<i64: 7, 8>, on = true, inner = {a = 1 : i8}'
    )
    (result,) = client.compile(programs.call("test_ffi.scale", attributes))(X)
    assert np.asarray(result).tolist() == [0, 2.5, 5, 7.5]
    assert seen == [False, 2.5, 3, "good", [7, 8], True, {"a": 1}]


@pytest.mark.full
@settings(max_examples=12)
@given(
    kind=st.sampled_from(["i4", "ui4", "i2", "ui2", "f4E2M1FN"]),
    shape=st.lists(st.integers(1, 5), max_size=3),
    seed=st.integers(0, 2**16),
)
def test_elements_of_less_than_a_byte(client: pjrt.Client, kind: str, shape: list[int], seed: int) -> None:
    """XLA packs them; the function sees each as numpy holds it, and so do its callers."""
    dtype = pjrt.ElementType.from_mlir(kind).dtype
    every = np.arange(-8, 8).astype(dtype)
    x = every[np.random.default_rng(seed).integers(0, len(every), shape)]
    _seen.clear()
    client.register_ffi_handler("test_ffi.same", _same)
    of = "".join(f"{size}x" for size in shape) + kind
    executable = client.compile(f"""
        func.func public @main(%x: tensor<{of}>) -> tensor<{of}> {{
          %0 = stablehlo.custom_call @test_ffi.same(%x) {{api_version = 4 : i32}}
            : (tensor<{of}>) -> tensor<{of}>
          return %0 : tensor<{of}>
        }}""")
    (result,) = executable(np.asarray(x, dtype))
    got = np.asarray(result)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, x)
    np.testing.assert_array_equal(_seen[0], x)
    np.testing.assert_array_equal(_seen[1], np.zeros_like(x))


def test_several_operands_and_results_of_several_types(client: pjrt.Client) -> None:
    def swap(x: Any, y: Any, first: Any, second: Any) -> None:
        first[...], second[...] = y, x

    client.register_ffi_handler("test_ffi.swap", swap)
    executable = client.compile("""
        func.func public @main(%x: tensor<2xbf16>, %y: tensor<2x2xi32>) -> (tensor<2x2xi32>, tensor<2xbf16>) {
          %0:2 = stablehlo.custom_call @test_ffi.swap(%x, %y) {api_version = 4 : i32}
            : (tensor<2xbf16>, tensor<2x2xi32>) -> (tensor<2x2xi32>, tensor<2xbf16>)
          return %0#0, %0#1 : tensor<2x2xi32>, tensor<2xbf16>
        }""")
    bf16 = pjrt.ElementType.BF16.dtype
    first, second = executable(np.array([1, 2], bf16), np.array([[1, 2], [3, 4]], np.int32))
    assert np.asarray(first).tolist() == [[1, 2], [3, 4]]
    assert np.asarray(second).tolist() == [1, 2]


def test_a_function_that_fills_nothing_gives_no_old_memory_away(client: pjrt.Client) -> None:
    client.register_ffi_handler("test_ffi.idle", idle)
    executable = client.compile("""
        func.func public @main(%x: tensor<4096xf32>) -> tensor<4096xf32> {
          %0 = stablehlo.custom_call @test_ffi.idle(%x) {api_version = 4 : i32} : (tensor<4096xf32>) -> tensor<4096xf32>
          return %0 : tensor<4096xf32>
        }""")
    x = np.full(4096, np.nan, np.float32)
    assert all((np.asarray(executable(x)[0]) == 0).all() for _ in range(20))


def test_a_function_that_takes_over_an_operands_memory_sees_its_value(client: pjrt.Client) -> None:
    client.register_ffi_handler("test_ffi.idle", idle)
    executable = client.compile("""
        func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
          %y = stablehlo.add %x, %x : tensor<4xf32>
          %0 = stablehlo.custom_call @test_ffi.idle(%y) {api_version = 4 : i32, output_operand_aliases = [
            #stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>]}
            : (tensor<4xf32>) -> tensor<4xf32>
          return %0 : tensor<4xf32>
        }""")
    assert np.asarray(executable(X)[0]).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (pjrt.DataLossError("lost"), pjrt.DataLossError),
        (ValueError("bad"), pjrt.InvalidArgumentError),
        (ZeroDivisionError("none"), pjrt.InternalError),
        (MemoryError(), pjrt.ResourceExhaustedError),
    ],
)
def test_an_exception_is_the_error_of_the_results(
    client: pjrt.Client, programs: Any, raised: Exception, expected: type[pjrt.PjrtError]
) -> None:
    def fail(x: Any, out: Any) -> None:
        raise raised

    name = f"test_ffi.fail.{type(raised).__name__}"
    client.register_ffi_handler(name, fail)
    executable = client.compile(programs.call(name))
    futures: list[pjrt.Future[None]] = []
    (result,) = executable(X)
    with pytest.raises(expected):
        result.to_host().result()
    executable.execute([[client.buffer_from_host(X)]], returned_futures=futures)
    assert isinstance(futures[0].exception(), expected)


def test_an_address(client: pjrt.Client, programs: Any) -> None:
    """A handler that returns null at once has succeeded: the result is what was in its memory."""
    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_describe)
    test_an_address.keep = handler  # type: ignore[attr-defined]  # XLA keeps the address for ever
    address = ctypes.cast(handler, ctypes.c_void_p).value
    assert address
    client.register_ffi_handler("test_ffi.address", address)
    assert np.asarray(client.compile(programs.call("test_ffi.address"))(X)[0]).shape == (4,)


def _describe(frame: int) -> None:
    """Answers XLA's question for the handler's version, the first and third word of the frame's extension."""
    extension = ctypes.c_void_p.from_address(frame + 8).value
    if extension:
        metadata = ctypes.c_void_p.from_address(extension + 24).value
        assert metadata
        ctypes.c_int.from_address(metadata + 8 + 16).value = 0
        ctypes.c_int.from_address(metadata + 8 + 20).value = 1


@pytest.mark.parametrize("wrong", [0, -1, None, "name"])
def test_what_is_no_handler(client: pjrt.Client, wrong: Any) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="expected the address of an FFI handler or a Python function"):
        client.register_ffi_handler("test_ffi.wrong", wrong)


def test_a_target_that_is_not_there(client: pjrt.Client, programs: Any) -> None:
    with pytest.raises(pjrt.NotFoundError, match=r"test_ffi.nobody"):
        client.compile(programs.call("test_ffi.nobody"))


def test_a_second_handler_of_a_name(client: pjrt.Client) -> None:
    client.register_ffi_handler("test_ffi.twice", lambda *_: None)
    with pytest.raises(pjrt.PjrtError, match=r"test_ffi.twice"):
        client.register_ffi_handler("test_ffi.twice", lambda *_: None)


def test_a_name_of_a_handler_of_jaxlib(client: pjrt.Client) -> None:
    """jaxlib registers its own with the first program that calls any, and XLA takes no second one."""
    with pytest.raises(pjrt.AlreadyExistsError, match=r"jaxlib has a handler of its own for 'lapack_strsm_ffi'"):
        client.register_ffi_handler("lapack_strsm_ffi", lambda *_: None)


def test_each_call_is_one_execution() -> None:
    """This holds for each path of an execution, and for programs without results."""
    client = pjrt.client("cpu", asynchronous=False)
    calls: list[float] = []
    client.register_ffi_handler("test_ffi.count", lambda x: calls.append(float(x[1])))
    for donates in ("", " {jax.buffer_donor = true}"):
        executable = client.compile(f"""
            func.func public @main(%x: tensor<4xf32>{donates}) {{
              stablehlo.custom_call @test_ffi.count(%x) {{api_version = 4 : i32, has_side_effect = true}}
                : (tensor<4xf32>) -> ()
              return
            }}""")
        for execute in (
            lambda x, run=executable: run(x),  # type: ignore[misc]
            lambda _, run=executable: run(X),  # type: ignore[misc]
            lambda x, run=executable: run.execute([[x]]),  # type: ignore[misc]
            lambda x, run=executable: run.execute_sharded([x], x.device),  # type: ignore[misc]
        ):
            calls.clear()
            execute(client.buffer_from_host(X))
            assert calls == [1.0]
    client.close()


def test_functions_on_a_gpu_get_addresses_and_the_stream() -> None:
    calls: list[Any] = []
    frame, _ = _frame_on_device(stream=77, failing=False)
    assert _call(lambda *arrays: calls.append(arrays), frame) is None
    ((x, out),) = calls
    assert (x.pointer, x.shape, x.dtype, x.stream, x.writable) == (0x1000, (2, 3), np.float32, 77, False)
    assert out.__cuda_array_interface__ == {
        "version": 3,
        "shape": (2, 3),
        "typestr": "<f4",
        "data": (0x2000, False),
        "strides": None,
        "stream": 77,
    }


def test_a_program_on_a_gpu_without_a_stream() -> None:
    frame, kept = _frame_on_device(stream=0, failing=True)
    assert _call(lambda x, out: None, frame) == 1
    assert "expected the program's stream" in kept[-1]


def _call(function: Any, frame: Any) -> int | None:
    address = ffi_handler.handler_of(function, 0, on_device=True)
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)(ctypes.addressof(frame))


def _frame_on_device(*, stream: int, failing: bool) -> tuple[Any, list[Any]]:
    """Return a call frame as XLA makes it for a GPU, and what must outlive the call; the last is an error's message."""
    kept: list[Any] = []

    def get_stream(arguments: Any) -> int:
        arguments.contents.stream = stream
        return int(failing)

    def create_error(arguments: Any) -> int:
        kept.append(arguments.contents.message.decode())
        return 1

    def values(address: int) -> Any:
        dims = (ctypes.c_int64 * 2)(2, 3)
        buffer = ffi_handler._Buffer(0, None, 11, address, 2, dims)  # 11 is f32
        pointers = (ctypes.POINTER(ffi_handler._Buffer) * 1)(ctypes.pointer(buffer))
        kept.extend([dims, buffer, pointers])
        return ffi_handler._Values(0, None, 1, None, pointers)

    api = ffi_handler._Api()
    api.stream_get, api.error_create = ffi_handler._StreamGet(get_stream), ffi_handler._ErrorCreate(create_error)
    kept.append(api)
    return ffi_handler._CallFrame(0, None, ctypes.pointer(api), None, 3, values(0x1000), values(0x2000)), kept
