"""Buffers: metadata, reading, copies, raw bytes, other hands."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.devices.xla import _jaxlib

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_metadata(client: pjrt.Client) -> None:
    buffer = client.buffer_from_host(X, device=client.devices[1])
    assert (buffer.shape, buffer.ndim, buffer.size, len(buffer)) == ((2, 3), 2, 6, 2)
    assert (buffer.element_type, buffer.dtype) == (pjrt.ElementType.F32, np.float32)
    assert buffer.layout == pjrt.TiledLayout((1, 0))
    assert (buffer.on_device_size, buffer.is_on_cpu) == (24, True)
    assert (buffer.client, buffer.device) == (client, client.devices[1])
    assert buffer.memory_space is client.devices[1].default_memory_space
    assert (buffer.dynamic_dimensions, buffer.unpadded_shape) == ((), (2, 3))
    assert repr(buffer) == "<XlaBuffer f32[2,3] on cpu:1 in device>"


def test_the_buffer_protocol_gives_numpy_the_memory(client: pjrt.Client) -> None:
    buffer = client.buffer_from_host(X)
    buffer.ready().result()
    memory = memoryview(buffer)  # type: ignore[arg-type]  # the class of `cpu` has the protocol, the public class has not
    assert (memory.readonly, memory.shape) == (True, (2, 3))
    assert np.asarray(buffer).ctypes.data == buffer.unsafe_pointer()
    buffer.delete()
    assert np.asarray(memory).tolist() == X.tolist()  # which it keeps
    with pytest.raises(BufferError, match="no value yet"):
        memoryview(buffer)  # type: ignore[arg-type]
    with pytest.raises(pjrt.FailedPreconditionError, match="was deleted"):
        np.asarray(buffer)


@pytest.mark.parametrize("element", [pjrt.ElementType.BF16, pjrt.ElementType.S4])
def test_elements_without_a_letter_have_no_buffer_protocol(client: pjrt.Client, element: pjrt.ElementType) -> None:
    buffer = client.buffer_from_host(np.ones(4, element.dtype))
    buffer.ready().result()
    with pytest.raises(BufferError, match="elements without a format"):
        memoryview(buffer)  # type: ignore[arg-type]
    assert np.asarray(buffer).tolist() == [1, 1, 1, 1]


def test_jaxs_guard_of_transfers_is_for_arrays_of_jax(client: pjrt.Client) -> None:
    guard = _jaxlib.jax.guard_lib
    state, level = guard.thread_local_state(), guard.TransferGuardLevel.DISALLOW_EXPLICIT
    state.host_to_device = state.device_to_device = state.device_to_host = level  # jax.transfer_guard
    try:
        for dtype in (np.float32, pjrt.ElementType.S4.dtype):
            buffer = client.buffer_from_host(np.ones(4, dtype)).copy_to(client.devices[1])
            assert np.asarray(buffer).tolist() == [1, 1, 1, 1]
        assert (state.host_to_device, state.device_to_device, state.device_to_host) == (level, level, level)
    finally:
        state.host_to_device = state.device_to_device = state.device_to_host = None


def test_reading(client: pjrt.Client) -> None:
    buffer = client.buffer_from_host(X)
    view = buffer.to_host().result()
    assert view.tolist() == X.tolist()
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        view.flags.writeable = True
    out = np.zeros((2, 3), np.float32)
    assert buffer.to_host(out).result() is out
    assert out.tolist() == X.tolist()
    turned = buffer.to_host(layout=pjrt.TiledLayout((0, 1))).result()
    assert turned.strides == (4, 8)
    assert turned.tolist() == X.tolist()
    for wrong in (np.zeros((3, 2), np.float32), np.zeros((2, 3), np.int32), view):
        with pytest.raises(pjrt.InvalidArgumentError, match="expected a"):
            buffer.to_host(wrong)


def test_what_is_read_outlives_the_buffer(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    x = np.arange(4, dtype=np.float32)
    view = np.asarray(add(x, x)[0])
    gc.collect()
    assert view.tolist() == [0, 2, 4, 6]


def test_reading_goes_on_when_the_buffer_is_deleted(hold: Callable[[], Any]) -> None:
    held = hold()
    out = np.zeros((512, 512), np.float32)
    read, filled, ready = held.result.to_host(), held.result.to_host(out), held.result.ready()
    held.result.delete()
    assert not any(future.done() for future in (read, filled, ready))
    held.let_go()
    assert read.result()[5, 5] == 1
    assert filled.result()[5, 5] == 1
    assert ready.result() is None


@pytest.mark.parametrize("kind", ["device", "pinned_host", "unpinned_host"])
def test_copies_between_places(client: pjrt.Client, kind: str) -> None:
    buffer = client.buffer_from_host(X)
    there = client.devices[3].memory_space(kind)
    copied = buffer.copy_to(there)
    assert copied.memory_space is there
    assert copied.unsafe_pointer() != buffer.unsafe_pointer()
    buffer.delete()
    assert np.asarray(copied).tolist() == X.tolist()
    back = copied.copy_to(client.devices[0])
    assert back.memory_space is client.devices[0].default_memory_space
    assert np.asarray(back).tolist() == X.tolist()


def test_a_copy_of_what_is_not_there_yet(client: pjrt.Client, hold: Callable[[], Any]) -> None:
    held = hold()
    copied = held.result.copy_to(client.devices[1])
    held.result.delete()
    assert not copied.ready().done()
    held.let_go()
    assert np.asarray(copied)[9, 9] == 1


def test_raw_bytes(client: pjrt.Client) -> None:
    buffer = client.buffer_from_host(X)
    out = bytearray(8)
    buffer.copy_raw_to_host(out, offset=4).result()
    assert np.frombuffer(out, np.float32).tolist() == [1, 2]
    later: pjrt.Promise[Any] = pjrt.Promise()
    done = buffer.copy_raw_to_host_future(later.future, 8, 4)
    buffer.delete()
    assert not done.done()
    memory = bytearray(16)
    later.set_result(memory)
    done.result()
    assert np.frombuffer(memory, np.float32).tolist() == [2, 0, 0, 0]
    with pytest.raises(pjrt.OutOfRangeError, match="the buffer's 24 bytes, found bytes 20 to 28"):
        client.buffer_from_host(X).copy_raw_to_host(out, offset=20)
    with pytest.raises(pjrt.InvalidArgumentError, match="read-only"):
        client.buffer_from_host(X).copy_raw_to_host(b"12345678")


def test_a_raw_buffer_is_the_buffer_s_own_memory(client: pjrt.Client) -> None:
    buffer = client.buffer_from_host(X)
    raw = buffer.raw()
    assert (raw.on_device_size, raw.memory_space) == (24, buffer.memory_space)
    assert raw.host_pointer() == buffer.unsafe_pointer()
    raw.copy_from_host(np.array([7], np.float32), offset=4).result()
    assert np.asarray(buffer).tolist() == [[0, 7, 2], [3, 4, 5]]
    out = bytearray(4)
    raw.copy_to_host(out, 4).result()
    assert np.frombuffer(out, np.float32)[0] == 7
    with pytest.raises(pjrt.OutOfRangeError):
        raw.copy_from_host(bytes(8), offset=20)
    raw.release()
    raw.release()
    with pytest.raises(pjrt.FailedPreconditionError, match="was released"):
        raw.copy_to_host(out)


def test_bitcast(client: pjrt.Client) -> None:
    buffer = client.buffer_from_host(X)
    address = buffer.unsafe_pointer()
    cast = buffer.bitcast(pjrt.ElementType.U8, (24,))
    assert buffer.is_deleted
    cast.ready().result()
    assert cast.unsafe_pointer() == address
    assert np.asarray(cast).tobytes() == X.tobytes()
    with pytest.raises(pjrt.InvalidArgumentError, match=r"u8\[24\], 24 bytes, found u8\[23\] of 23 bytes"):
        cast.bitcast(pjrt.ElementType.U8, (23,))
    with pytest.raises(pjrt.UnimplementedError, match="less than a byte"):
        cast.bitcast(pjrt.ElementType.S4, (48,))
    assert not cast.is_deleted


def test_a_donation_with_a_control_dependency(client: pjrt.Client) -> None:
    for outcome in (None, pjrt.AbortedError("no")):
        buffer = client.buffer_from_host(X)
        gate: pjrt.Promise[None] = pjrt.Promise()
        gated = buffer.donate_with_control_dependency(gate.future)
        assert buffer.is_deleted
        assert not gated.ready().done()
        read = gated.to_host()
        if outcome is None:
            gate.set_result(None)
            assert read.result().tolist() == X.tolist()
        else:
            gate.set_error(outcome)
            with pytest.raises(pjrt.AbortedError):
                read.result()


def test_external_references(client: pjrt.Client) -> None:
    buffer = client.buffer_from_host(X)
    with buffer.external_reference() as reference:
        buffer.delete()
        array = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_float * 6).from_address(reference.pointer))
        assert array.tolist() == X.ravel().tolist()
    with pytest.raises(pjrt.FailedPreconditionError, match="was released"):
        _ = reference.pointer


def test_dlpack_to_numpy(client: pjrt.Client) -> None:
    buffer = client.buffer_from_host(X)
    shared = np.from_dlpack(buffer)
    assert shared.ctypes.data == buffer.unsafe_pointer()
    buffer.delete()
    del buffer
    gc.collect()
    assert shared.tolist() == X.tolist()
    with pytest.raises(BufferError, match="DLPack's device"):
        client.buffer_from_host(X).__dlpack__(dl_device=(2, 0))
    assert client.buffer_from_host(X).__dlpack_device__() == (1, 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "uint8", "complex64"])
@pytest.mark.torch
def test_dlpack_with_torch(client: pjrt.Client, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([[1, 0, 3], [4, 5, 6]]).to(getattr(torch, dtype))
    for device in client.devices[:2]:
        buffer = client.buffer_from_dlpack(tensor, device=device)
        assert buffer.unsafe_pointer() == tensor.data_ptr()
        assert (buffer.shape, buffer.device, str(buffer.dtype)) == ((2, 3), device, dtype)
    back = torch.from_dlpack(buffer)
    assert back.data_ptr() == tensor.data_ptr()
    assert torch.equal(back, tensor)
    del tensor, back
    gc.collect()
    assert np.asarray(buffer).astype(np.complex64).tolist() == np.asarray(buffer).tolist()


def test_dlpack_of_what_cannot_be_shared(client: pjrt.Client) -> None:
    raw = np.zeros(256, np.uint8)
    start = -raw.ctypes.data % 64
    odd = raw[start + 4 : start + 20].view(np.float32)
    with pytest.raises(pjrt.InvalidArgumentError, match=r"aligned to 64 bytes; this is at .*buffer_from_host"):
        client.buffer_from_dlpack(odd)
    strided = raw[start : start + 64].view(np.float32)[::2]
    with pytest.raises(pjrt.InvalidArgumentError, match="row-major"):
        client.buffer_from_dlpack(strided)
    with pytest.raises(pjrt.InvalidArgumentError, match="expected an object with __dlpack__, found str"):
        client.buffer_from_dlpack("text")


FAILED = """
import resource, sys
from pathlib import Path
import numpy as np
import pjrt

n = 60_000
PRODUCT = f'''func.func @main(%x: tensor<{n}x1xf32>, %y: tensor<1x{n}xf32>) -> tensor<{n}x{n}xTYPE> {{
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
    : (tensor<{n}x1xf32>, tensor<1x{n}xf32>) -> tensor<{n}x{n}xTYPE>
  return %0 : tensor<{n}x{n}xTYPE> }}'''
FIRST = f'''func.func @main(%x: tensor<{n}x{n}xTYPE> ALIAS) -> tensor<RESULTxTYPE> {{
  %0 = OP : (tensor<{n}x{n}xTYPE>) -> tensor<RESULTxTYPE>
  return %0 : tensor<RESULTxTYPE> }}'''
PART = FIRST.replace("OP", "stablehlo.slice %x [0:1, 0:1]").replace("ALIAS", "").replace("RESULT", "1x1")
ALL = FIRST.replace("OP", "stablehlo.negate %x").replace("ALIAS", "{tf.aliasing_output = 0 : i32}")
ALL = ALL.replace("RESULT", f"{n}x{n}")

ways = {
    "numpy": np.asarray,
    "__array__": lambda buffer: buffer.__array__(),
    "pointer": lambda buffer: buffer.unsafe_pointer(),
    "memoryview": memoryview,
    "dlpack": np.from_dlpack,
    "to_host": lambda buffer: buffer.to_host().result(),
    "raw": lambda buffer: buffer.copy_raw_to_host(np.empty(4, np.uint8), 0, 4).result(),
    "raw buffer": lambda buffer: buffer.raw().host_pointer(),
    "external": lambda buffer: buffer.external_reference(),
    "copy": lambda buffer: np.asarray(buffer.copy_to(client.devices[-1])),
    "bitcast": lambda buffer: np.asarray(buffer.bitcast(CAST, (n, n))),
    "argument": lambda buffer: np.asarray(part(buffer)[0]),
    "donation": lambda buffer: np.asarray(whole(buffer)[0]),
}
with pjrt.client("cpu", num_devices=2) as client:
    for mlir, CAST in (("f32", pjrt.ElementType.S32), ("bf16", pjrt.ElementType.U16)):
        product, part, whole = (client.compile(text.replace("TYPE", mlir)) for text in (PRODUCT, PART, ALL))
        column, row = (client.buffer_from_host(np.ones(shape, np.float32)) for shape in ((n, 1), (1, n)))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
        for waits in (True, False):
            for name, way in ways.items():
                (buffer,) = product(column, row)
                if waits:
                    assert isinstance(buffer.ready().exception(), pjrt.ResourceExhaustedError)
                try:
                    way(buffer)
                except (pjrt.PjrtError, BufferError) as error:
                    assert "memory" in str(error).lower() or name == "memoryview", error
                else:
                    raise AssertionError(name)
                assert client.devices[0].memory_stats().bytes_in_use >= column.on_device_size
        resource.setrlimit(resource.RLIMIT_AS, before)
        print(mlir)
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of a process's memory is Linux's")
def test_a_result_that_found_no_memory_is_an_error_wherever_it_is_read() -> None:
    """XLA would end the process."""
    done = subprocess.run([sys.executable, "-c", FAILED], capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout.split()) == (0, ["f32", "bf16"]), done.stderr[-2000:]
