"""Buffers: their life, to the host and to other places, raw bytes, bitcasts, views, DLPack."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import toys

import pjrt
from pjrt.host import HostClient

LARGE = 1 << 17


@pytest.fixture(name="client")
def a_client() -> Any:
    with toys.negate(num_devices=2) as client:
        yield client


def test_what_a_buffer_says_of_itself(client: HostClient) -> None:
    buffer = client.buffer_from_host(np.zeros((2, 3), ml_dtypes.bfloat16), memory_space=client.memory_spaces[1])
    assert (buffer.shape, buffer.ndim, buffer.size, len(buffer)) == ((2, 3), 2, 6, 2)
    assert buffer.dtype == np.dtype(ml_dtypes.bfloat16)
    assert buffer.layout == pjrt.TiledLayout((1, 0))
    assert buffer.on_device_size == 12
    assert (buffer.device, buffer.memory_space) == (client.devices[0], client.memory_spaces[1])
    assert buffer.client is client
    assert buffer.is_on_cpu
    assert (buffer.dynamic_dimensions, buffer.unpadded_shape) == ((), (2, 3))
    assert repr(buffer) == "<HostBuffer bf16[2,3] on negate(id=0) in pinned_host>"
    buffer.delete()
    assert repr(buffer).endswith("deleted>")


@pytest.mark.parametrize("size", [4, LARGE])
def test_to_host_gives_a_view_or_fills_what_it_is_given(client: HostClient, size: int) -> None:
    array = np.arange(size, dtype=np.float32)
    buffer = client.buffer_from_host(array)
    view = buffer.to_host().result(toys.TIMEOUT)
    assert view.ctypes.data == buffer.unsafe_pointer()
    out = np.empty(size, np.float32)
    future = buffer.to_host(out)
    buffer.delete()
    assert future.result(toys.TIMEOUT) is out
    np.testing.assert_array_equal(out, array)
    np.testing.assert_array_equal(view, array)


@pytest.mark.parametrize("size", [(2, 3), (400, 600)])
def test_to_host_in_another_layout(client: HostClient, size: tuple[int, int]) -> None:
    array = np.arange(size[0] * size[1], dtype=np.int16).reshape(size)
    buffer = client.buffer_from_host(array)
    found = buffer.to_host(layout=pjrt.TiledLayout((0, 1))).result(toys.TIMEOUT)
    assert found.flags.f_contiguous
    np.testing.assert_array_equal(found, array)


def test_to_host_refuses_what_does_not_fit(client: HostClient) -> None:
    buffer = client.buffer_from_host(toys.floats())
    read_only = toys.floats()
    read_only.setflags(write=False)
    for out in (np.empty(3, np.float32), np.empty(4, np.float64), read_only):
        with pytest.raises(pjrt.InvalidArgumentError, match="expected a writable array"):
            buffer.to_host(out)


def test_the_array_protocol(client: HostClient) -> None:
    buffer = client.buffer_from_host(toys.floats())
    assert np.asarray(buffer, np.float64).dtype == np.float64
    copy = np.array(buffer)
    copy[0] = 9
    assert np.asarray(buffer)[0] == 0
    assert float(client.buffer_from_host(np.float32(2)).to_host().result()) == 2
    with pytest.raises(TypeError, match="no length"):
        len(client.buffer_from_host(np.float32(2)))


def test_deleting_lets_work_under_way_finish() -> None:
    client, gate = toys.gated()
    x = client.buffer_from_host(toys.floats())
    (out,) = client.compile("program").execute_sharded([x], client.devices[0])
    gate.wait_entered()
    later = out.to_host()
    copy = out.copy_to(client.devices[0])
    x.delete()
    out.delete()
    assert out.is_deleted
    gate.open()
    np.testing.assert_array_equal(later.result(toys.TIMEOUT), toys.floats() + 1)
    np.testing.assert_array_equal(np.asarray(copy), toys.floats() + 1)
    client.close()


@pytest.mark.parametrize("size", [4, LARGE])
def test_copies_to_devices_and_memory_spaces(client: HostClient, size: int) -> None:
    array = np.arange(size, dtype=np.float32)
    buffer = client.buffer_from_host(array)
    for destination in (client.devices[1], client.devices[1].memory_space("unpinned_host"), client.devices[0]):
        copy = buffer.copy_to(destination)
        copy.ready().result(toys.TIMEOUT)
        assert destination in (copy.device, copy.memory_space)
        assert copy.unsafe_pointer() != buffer.unsafe_pointer()
        np.testing.assert_array_equal(np.asarray(copy), array)
    column_major = client.buffer_from_host(array.reshape(2, -1), layout=pjrt.TiledLayout((0, 1)))
    copy = column_major.copy_to(client.devices[1])
    assert copy.layout == column_major.layout
    np.testing.assert_array_equal(np.asarray(copy), array.reshape(2, -1))


def test_copies_to_another_client(client: HostClient) -> None:
    buffer = client.buffer_from_host(toys.floats())
    other = toys.negate()
    copy = buffer.copy_to(other.devices[0])
    assert copy.client is other
    np.testing.assert_array_equal(np.asarray(copy), toys.floats())
    other.close()
    with pytest.raises(pjrt.FailedPreconditionError, match="closed"):
        buffer.copy_to(other.devices[0])


def test_raw_bytes_to_the_host(client: HostClient) -> None:
    buffer = client.buffer_from_host(np.arange(6, dtype=np.int16).reshape(2, 3), layout=pjrt.TiledLayout((0, 1)))
    as_it_lies = np.arange(6, dtype=np.int16).reshape(2, 3).T.tobytes()
    out = bytearray(12)
    buffer.copy_raw_to_host(out).result(toys.TIMEOUT)
    assert bytes(out) == as_it_lies
    part = bytearray(4)
    buffer.copy_raw_to_host(part, 2).result(toys.TIMEOUT)
    assert bytes(part) == as_it_lies[2:6]
    array = np.zeros(8, np.uint8)
    buffer.copy_raw_to_host(array, 10, 2).result(toys.TIMEOUT)
    assert array.tobytes() == as_it_lies[10:] + bytes(6)
    for out, offset, size in ((bytearray(13), 0, None), (bytearray(4), -1, None), (bytearray(4), 10, 4)):
        with pytest.raises(pjrt.OutOfRangeError, match="the buffer's 12 bytes"):
            buffer.copy_raw_to_host(out, offset, size)
    with pytest.raises(pjrt.InvalidArgumentError, match="room for 4 bytes to copy to, found 2"):
        buffer.copy_raw_to_host(bytearray(2), 0, 4)
    with pytest.raises(pjrt.InvalidArgumentError, match="read-only"):
        buffer.copy_raw_to_host(b"1234")
    with pytest.raises(pjrt.InvalidArgumentError, match="buffer protocol"):
        buffer.copy_raw_to_host("text")


def test_raw_bytes_to_memory_that_comes_later(client: HostClient) -> None:
    buffer = client.buffer_from_host(toys.floats())
    place: pjrt.Promise[Any] = pjrt.Promise()
    done = buffer.copy_raw_to_host_future(place.future, 4, 8)
    buffer.delete()
    assert not done.done()
    out = bytearray(8)
    place.set_result(out)
    done.result(toys.TIMEOUT)
    assert bytes(out) == toys.floats()[1:3].tobytes()
    buffer = client.buffer_from_host(toys.floats())
    failed: pjrt.Promise[Any] = pjrt.Promise()
    done = buffer.copy_raw_to_host_future(failed.future)
    failed.set_error(pjrt.UnavailableError("no memory today"))
    with pytest.raises(pjrt.UnavailableError, match="no memory today"):
        done.result(toys.TIMEOUT)
    small: pjrt.Promise[Any] = pjrt.Promise()
    done = buffer.copy_raw_to_host_future(small.future, 0, 16)
    small.set_result(bytearray(1))
    with pytest.raises(pjrt.InvalidArgumentError):
        done.result(toys.TIMEOUT)


def test_raw_buffers_share_the_memory(client: HostClient) -> None:
    buffer = client.buffer_from_host(toys.floats())
    raw = buffer.raw()
    assert (raw.on_device_size, raw.memory_space) == (16, buffer.memory_space)
    assert raw.host_pointer() == buffer.unsafe_pointer()
    raw.copy_from_host(np.float32(7).tobytes(), 4).result(toys.TIMEOUT)
    np.testing.assert_array_equal(np.asarray(buffer), toys.floats(0, 7, 2, 3))
    buffer.delete()
    out = np.zeros(2, np.float32)
    raw.copy_to_host(out, 4).result(toys.TIMEOUT)
    np.testing.assert_array_equal(out, [7, 2])
    with pytest.raises(pjrt.OutOfRangeError):
        raw.copy_from_host(bytes(8), 12)
    raw.release()
    raw.release()
    with pytest.raises(pjrt.FailedPreconditionError, match="released"):
        raw.host_pointer()


def test_raw_writes_do_not_reach_memory_that_was_promised_to_stay(client: HostClient) -> None:
    array = toys.floats()
    buffer = client.buffer_from_host(array, semantics=pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY)
    with pytest.raises(pjrt.FailedPreconditionError, match="promised"):
        buffer.raw().copy_from_host(bytes(4))
    np.testing.assert_array_equal(array, toys.floats())


def test_external_references_keep_the_memory_and_give_its_address(client: HostClient) -> None:
    buffer = client.buffer_from_host(toys.floats())
    with buffer.external_reference() as reference:
        buffer.delete()
        gc.collect()
        found = (ctypes.c_float * 4).from_address(reference.pointer)
        assert list(found) == [0, 1, 2, 3]
    with pytest.raises(pjrt.FailedPreconditionError, match="released"):
        _ = reference.pointer


def test_bitcast_reads_the_same_bytes_and_takes_them_over(client: HostClient) -> None:
    buffer = client.buffer_from_host(toys.floats())
    pointer = buffer.unsafe_pointer()
    cast = buffer.bitcast(pjrt.ElementType.U16, (2, 4))
    assert buffer.is_deleted
    assert cast.unsafe_pointer() == pointer
    np.testing.assert_array_equal(np.asarray(cast), toys.floats().view(np.uint16).reshape(2, 4))
    column_major = cast.bitcast(pjrt.ElementType.U16, (4, 2), pjrt.TiledLayout((0, 1)))
    np.testing.assert_array_equal(np.asarray(column_major), toys.floats().view(np.uint16).reshape(2, 4).T)
    assert column_major.layout == pjrt.TiledLayout((0, 1))
    with pytest.raises(pjrt.InvalidArgumentError, match="keeps the number of bytes"):
        column_major.bitcast(pjrt.ElementType.F32, (5,))
    assert not column_major.is_deleted


def test_bitcast_of_a_users_array_leaves_the_array_writable(client: HostClient) -> None:
    array = toys.floats()
    buffer = client.buffer_from_host(array, semantics=pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY)
    cast = buffer.bitcast(pjrt.ElementType.S32, (4,))
    assert cast.unsafe_pointer() == array.ctypes.data
    array[0] = 1


def test_bitcast_of_what_is_still_to_come() -> None:
    client, gate = toys.gated()
    (out,) = client.compile("program")(toys.floats())
    cast = out.bitcast(pjrt.ElementType.U8, (16,))
    assert not cast.ready().done()
    gate.open()
    assert np.asarray(cast).tobytes() == (toys.floats() + 1).tobytes()
    bad = client.create_error_buffer(pjrt.DataLossError("gone"), toys.spec("f32[4]"))
    with pytest.raises(pjrt.DataLossError):
        np.asarray(bad.bitcast(pjrt.ElementType.U8, (16,)))
    client.close()


def test_views_of_memory_are_zero_copy_and_released_once(client: HostClient) -> None:
    memory = np.arange(6, dtype=np.int32)
    calls = []
    buffer = client.create_view_of_device_buffer(
        memory.ctypes.data, toys.spec("s32[2,3]"), device=client.devices[1], on_delete=lambda: calls.append(1)
    )
    assert buffer.device is client.devices[1]
    memory[0] = 50
    np.testing.assert_array_equal(np.asarray(buffer), [[50, 1, 2], [3, 4, 5]])
    view = np.asarray(buffer)
    buffer.delete()
    assert not calls
    del view
    assert calls == [1]
    turned = client.create_view_of_device_buffer(
        memory.ctypes.data, pjrt.ShapeSpec((3, 2), pjrt.ElementType.S32, pjrt.TiledLayout((0, 1)))
    )
    np.testing.assert_array_equal(np.asarray(turned), memory.reshape(2, 3).T)
    with pytest.raises(pjrt.InvalidArgumentError, match="address 0"):
        client.create_view_of_device_buffer(0, toys.spec("s32[2]"))
    with pytest.raises(pjrt.InvalidArgumentError, match="no streams"):
        client.create_view_of_device_buffer(memory.ctypes.data, toys.spec("s32[2]"), stream=1)
    with pytest.raises(pjrt.InvalidArgumentError, match="not aligned"):
        toys.negate(alignment=64).create_view_of_device_buffer(4, toys.spec("s32[2]"))


def test_uninitialized_and_error_buffers(client: HostClient) -> None:
    spec = pjrt.ShapeSpec((2, 3), pjrt.ElementType.F32, pjrt.TiledLayout((0, 1)))
    buffer = client.create_uninitialized_buffer(spec, memory_space=client.devices[1].memory_space("pinned_host"))
    assert np.asarray(buffer).shape == (2, 3)
    assert (buffer.layout, buffer.device) == (spec.layout, client.devices[1])
    assert buffer.unsafe_pointer() % 64 == 0
    failed = client.create_error_buffer(pjrt.DataLossError("gone", payloads={"a": b"b"}), spec)
    assert (failed.shape, failed.element_type) == (spec.shape, spec.element_type)
    for use in (
        failed.ready().result,
        lambda: np.asarray(failed),
        failed.unsafe_pointer,
        failed.external_reference,
        failed.__dlpack__,
        failed.raw().host_pointer,
        failed.copy_raw_to_host(bytearray(1)).result,
        failed.to_host(np.empty((2, 3), np.float32)).result,
        failed.copy_to(client.devices[1]).ready().result,
    ):
        with pytest.raises(pjrt.DataLossError, match="gone") as caught:
            use()
        assert dict(caught.value.payloads) == {"a": b"b"}


def test_places_that_do_not_belong_together_are_refused(client: HostClient) -> None:
    with toys.negate() as other:
        for options in (
            {"device": other.devices[0]},
            {"memory_space": other.memory_spaces[0]},
            {"device": client.devices[0], "memory_space": client.devices[1].default_memory_space},
        ):
            with pytest.raises(pjrt.InvalidArgumentError):
                client.buffer_from_host(toys.floats(), **options)


NUMPY_TYPES = [np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float32, np.float64, np.complex64, np.complex128]
CARRIED_TYPES = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu]


@pytest.mark.parametrize("dtype", NUMPY_TYPES + CARRIED_TYPES, ids=lambda d: np.dtype(d).name)
def test_dlpack_out_and_in_shares_memory(client: HostClient, dtype: Any) -> None:
    array = np.array([[1, 0], [1, 1]]).astype(dtype)
    buffer = client.buffer_from_host(array)
    assert buffer.__dlpack_device__() == (1, 0)
    again = client.buffer_from_dlpack(buffer, device=client.devices[1])
    assert again.device is client.devices[1]
    assert again.element_type is buffer.element_type
    assert again.unsafe_pointer() == buffer.unsafe_pointer()
    buffer.delete()
    del buffer
    gc.collect()
    assert np.asarray(again).tobytes() == array.tobytes()


def test_dlpack_with_numpy(client: HostClient) -> None:
    buffer = client.buffer_from_host(np.arange(6, dtype=np.float32).reshape(2, 3))
    taken = np.from_dlpack(buffer)
    assert taken.ctypes.data == buffer.unsafe_pointer()
    array = np.arange(6, dtype=np.int16).reshape(2, 3).T
    shared = client.buffer_from_dlpack(array)
    assert shared.unsafe_pointer() == array.ctypes.data
    assert shared.layout == pjrt.TiledLayout((0, 1))
    array[0, 0] = 77
    assert np.asarray(shared)[0, 0] == 77
    copy = np.from_dlpack(_Capsule(buffer.__dlpack__(copy=True)))
    assert copy.ctypes.data != buffer.unsafe_pointer()


class _Capsule:
    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_dlpack_refuses_what_cannot_be_shared(client: HostClient) -> None:
    class Elsewhere(_Capsule):
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    buffer = client.buffer_from_host(toys.floats())
    with pytest.raises(pjrt.InvalidArgumentError, match=r"found memory of the device \(2, 0\)"):
        client.buffer_from_dlpack(Elsewhere(None))
    with pytest.raises(pjrt.InvalidArgumentError, match="__dlpack__"):
        client.buffer_from_dlpack([1, 2])
    with pytest.raises(pjrt.InvalidArgumentError, match="without a copy"):
        client.buffer_from_dlpack(np.arange(8)[::2])
    with pytest.raises(pjrt.UnimplementedError, match="int4"):
        client.buffer_from_host(np.zeros(2, ml_dtypes.int4)).__dlpack__()
    with pytest.raises(BufferError, match="no streams"):
        buffer.__dlpack__(stream=1)
    with pytest.raises(BufferError, match="wants it on"):
        buffer.__dlpack__(dl_device=(2, 0))
    used = buffer.__dlpack__()
    np.from_dlpack(_Capsule(used))
    with pytest.raises(pjrt.InvalidArgumentError, match="unused"):
        client.buffer_from_dlpack(_Capsule(used))
