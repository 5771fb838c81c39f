"""Buffers that come from neither an array nor an execution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pjrt

F32_4 = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
X = np.arange(4, dtype=np.float32)


def test_uninitialized(client: pjrt.Client) -> None:
    space = client.devices[1].memory_space("pinned_host")
    buffer = client.create_uninitialized_buffer(F32_4, memory_space=space)
    assert (buffer.shape, buffer.memory_space) == ((4,), space)
    assert np.asarray(buffer).shape == (4,)
    packed = client.create_uninitialized_buffer(pjrt.ShapeSpec((5,), pjrt.ElementType.S4))
    assert np.asarray(packed).shape == (5,)
    with pytest.raises(pjrt.UnimplementedError, match=r"new buffers with the layout \{0,1\}"):
        client.create_uninitialized_buffer(pjrt.ShapeSpec((2, 2), pjrt.ElementType.F32, pjrt.TiledLayout((0, 1))))


def test_an_error_arrives_wherever_the_value_would(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    error = pjrt.PjrtError.of(pjrt.StatusCode.DATA_LOSS, "gone", {"why": b"x"})
    buffer = client.create_error_buffer(error, F32_4)
    assert (buffer.shape, buffer.is_deleted, buffer.on_device_size) == ((4,), False, 16)
    (result,) = add(buffer, X)
    copied = buffer.copy_to(client.devices[1])
    raw = bytearray(16)
    for future in (
        buffer.ready(), buffer.to_host(), buffer.copy_raw_to_host(raw), result.ready(), result.to_host(),
        copied.ready(), add(result, result)[0].ready(),
    ):  # fmt: skip
        with pytest.raises(pjrt.DataLossError, match="gone") as caught:
            future.result()
        assert caught.value.payloads == {"why": b"x"}
    with pytest.raises(pjrt.FailedPreconditionError, match="no memory yet"):
        buffer.unsafe_pointer()
    buffer.delete()
    with pytest.raises(pjrt.FailedPreconditionError, match="deleted"):
        buffer.ready()


def test_an_alias_becomes_what_it_is_said_to_be(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    alias, fulfillment = client.create_alias_buffer(F32_4)
    read = alias.to_host()
    (result,) = add(alias, X)
    futures: list[pjrt.Future[None]] = []
    (second,) = add.execute([[result, alias]], returned_futures=futures)[0]
    assert not any(f.done() for f in (alias.ready(), result.ready(), second.ready(), read, futures[0]))
    source = client.buffer_from_host(X)
    fulfillment.fulfill(source)
    assert np.asarray(result).tolist() == [0, 2, 4, 6]
    assert np.asarray(second).tolist() == [0, 3, 6, 9]
    assert read.result().tolist() == X.tolist()
    assert futures[0].result() is None
    assert alias.unsafe_pointer() == source.unsafe_pointer()
    assert np.asarray(alias.copy_to(client.devices[1])).tolist() == X.tolist()
    with pytest.raises(pjrt.FailedPreconditionError, match="fulfilled or failed already"):
        fulfillment.fail(pjrt.AbortedError("late"))


def test_an_alias_that_fails(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    alias, fulfillment = client.create_alias_buffer(F32_4)
    (result,) = add(alias, alias)
    with pytest.raises(pjrt.InvalidArgumentError, match=r"the alias is f32\[4\] on cpu:0, found"):
        fulfillment.fulfill(client.buffer_from_host(np.ones(3, np.float32)))
    fulfillment.fail(pjrt.AbortedError("no"))
    with pytest.raises(pjrt.AbortedError):
        np.asarray(result)


def test_an_alias_that_nobody_fulfils_fails(client: pjrt.Client) -> None:
    alias, fulfillment = client.create_alias_buffer(F32_4)
    del fulfillment
    with pytest.raises(pjrt.InternalError, match="dropped"):
        alias.ready().result(timeout=120)


def test_an_alias_of_an_alias(client: pjrt.Client) -> None:
    first, first_is = client.create_alias_buffer(F32_4)
    second, second_is = client.create_alias_buffer(F32_4)
    second_is.fulfill(first)
    assert not second.ready().done()
    first_is.fulfill(client.buffer_from_host(X))
    assert np.asarray(second).tolist() == X.tolist()


def test_a_promised_argument_can_be_deleted_or_donated(client: pjrt.Client, programs: Any) -> None:
    executable = client.compile(programs.add_in_place)
    alias, fulfillment = client.create_alias_buffer(F32_4)
    y = client.buffer_from_host(X)
    (result,) = executable(alias, y)
    y.delete()
    assert alias.is_deleted
    with pytest.raises(pjrt.FailedPreconditionError, match="donated"):
        alias.to_host()
    fulfillment.fulfill(client.buffer_from_host(X))
    assert np.asarray(result).tolist() == [0, 2, 4, 6]


def test_views_of_foreign_memory(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    raw = np.zeros(256, np.uint8)
    memory = raw[-raw.ctypes.data % 64 :][:16].view(np.float32)
    memory[:] = X
    told: list[int] = []
    done: pjrt.Promise[None] = pjrt.Promise()
    view = client.create_view_of_device_buffer(
        memory.ctypes.data, F32_4, on_delete=lambda: (told.append(1), done.set_result(None))
    )
    assert view.unsafe_pointer() == memory.ctypes.data
    assert np.asarray(add(view, view)[0]).tolist() == [0, 2, 4, 6]
    assert told == []
    view.delete()
    done.future.result(timeout=120)
    with pytest.raises(pjrt.InvalidArgumentError, match="aligned to 64 bytes"):
        client.create_view_of_device_buffer(memory.ctypes.data + 4, F32_4)
    with pytest.raises(pjrt.UnimplementedError, match="with a stream"):
        client.create_view_of_device_buffer(memory.ctypes.data, F32_4, stream=1)
    assert told == [1]


def test_transfers_in_pieces(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    specs = [F32_4, pjrt.ShapeSpec((2, 3), pjrt.ElementType.S32), pjrt.ShapeSpec((3,), pjrt.ElementType.S4)]
    with client.create_buffers_for_async_host_to_device(specs) as transfer:
        assert (transfer.buffer_count, transfer.buffer_size(0), transfer.device) == (3, 16, client.devices[0])
        first = transfer.retrieve_buffer(0)
        (result,) = add(first, first)
        with pytest.raises(pjrt.FailedPreconditionError, match="can be retrieved once"):
            transfer.retrieve_buffer(0)
        transfer.transfer_data(0, X[2:].tobytes(), 8, is_last_transfer=False).result()
        assert not first.ready().done()
        transfer.transfer_data(0, X[:2]).result()
        assert np.asarray(first).tolist() == X.tolist()
        assert np.asarray(result).tolist() == [0, 2, 4, 6]
        with pytest.raises(pjrt.FailedPreconditionError, match="its last transfer already"):
            transfer.transfer_data(0, X[:2])
        literal = np.arange(6, dtype=np.int32).reshape(3, 2).T
        transfer.transfer_literal(1, literal).result()
        assert np.asarray(transfer.retrieve_buffer(1)).tolist() == literal.tolist()
        with pytest.raises(pjrt.UnimplementedError, match="use transfer_literal"):
            transfer.transfer_data(2, b"123")
        transfer.transfer_literal(2, np.ones(3, pjrt.ElementType.S4.dtype))
        transfer.add_metadata({"step": 3})
        assert np.asarray(transfer.retrieve_buffer(2)).tolist() == [1, 1, 1]


def test_transfers_that_go_wrong(client: pjrt.Client) -> None:
    transfer = client.create_buffers_for_async_host_to_device([F32_4, F32_4])
    never, failed = transfer.retrieve_buffer(0), transfer.retrieve_buffer(1)
    with pytest.raises(pjrt.OutOfRangeError, match="bytes 8 to 24"):
        transfer.transfer_data(0, X, 8)
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected an array of f32\[4\], found int32\[4\]"):
        transfer.transfer_literal(0, X.astype(np.int32))
    with pytest.raises(pjrt.OutOfRangeError, match="no buffer 2, the transfer manager has 2"):
        transfer.buffer_size(2)
    transfer.set_buffer_error(1, pjrt.DataLossError("lost"))
    with pytest.raises(pjrt.DataLossError):
        failed.ready().result()
    transfer.close()
    transfer.close()
    with pytest.raises(pjrt.CancelledError, match="closed before the buffer got its last piece"):
        never.ready().result()
