"""Buffers that get their value later and from elsewhere: aliases, control dependencies, transfers in pieces."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
import toys

import pjrt
from pjrt.host import HostClient
from pjrt.host.work_queue import Call


@pytest.fixture(name="client")
def a_client() -> Any:
    with toys.negate() as client:
        yield client


def test_an_alias_can_be_used_before_anybody_says_of_what(client: HostClient) -> None:
    alias, fulfillment = client.create_alias_buffer(toys.spec("f32[4]"))
    (out,) = client.compile("program")(alias)
    assert not alias.ready().done()
    x = client.buffer_from_host(toys.floats())
    fulfillment.fulfill(x)
    np.testing.assert_array_equal(np.asarray(out), -toys.floats())
    assert alias.unsafe_pointer() == x.unsafe_pointer()
    x.delete()
    np.testing.assert_array_equal(np.asarray(alias), toys.floats())


def test_an_alias_of_what_a_later_program_of_the_same_device_makes(client: HostClient) -> None:
    alias, fulfillment = client.create_alias_buffer(toys.spec("f32[4]"))
    exe = client.compile("program")
    (waits,) = exe(alias)
    (later,) = exe(toys.floats())
    fulfillment.fulfill(later)
    np.testing.assert_array_equal(np.asarray(waits), toys.floats())


def test_launches_on_many_devices_do_not_wait_behind_one_that_waits_for_an_alias() -> None:
    with toys.collective(2) as client:
        exe = client.compile("program", toys.replicas(2))
        first, second = client.devices
        alias, fulfillment = client.create_alias_buffer(toys.spec("f32[4]"), memory_space=second.default_memory_space)

        def on(device: pjrt.Device) -> pjrt.Buffer:
            return client.buffer_from_host(toys.floats(), device=device)

        ((waits,), _) = exe.execute([[on(first)], [alias]])
        (_, (later,)) = exe.execute([[on(first)], [on(second)]])
        fulfillment.fulfill(later)
        np.testing.assert_array_equal(np.asarray(waits), 3 * toys.floats())


def test_an_alias_can_fail_and_be_forgotten(client: HostClient) -> None:
    alias, fulfillment = client.create_alias_buffer(toys.spec("f32[4]"))
    (out,) = client.compile("program")(alias)
    fulfillment.fail(pjrt.AbortedError("never mind"))
    with pytest.raises(pjrt.AbortedError, match="never mind"):
        np.asarray(out)
    with pytest.raises(pjrt.FailedPreconditionError, match="already"):
        fulfillment.fulfill(client.buffer_from_host(toys.floats()))
    alias, fulfillment = client.create_alias_buffer(toys.spec("f32[4]"))
    del fulfillment
    gc.collect()
    with pytest.raises(pjrt.InternalError, match="dropped"):
        np.asarray(alias)


def test_an_alias_is_of_its_own_kind_and_place_only(client: HostClient) -> None:
    alias, fulfillment = client.create_alias_buffer(toys.spec("f32[4]"))
    for wrong in (
        client.buffer_from_host(np.zeros(3, np.float32)),
        client.buffer_from_host(np.zeros(4, np.int32)),
        client.buffer_from_host(toys.floats(), memory_space=client.memory_spaces[1]),
        alias,
    ):
        with pytest.raises(pjrt.InvalidArgumentError):
            fulfillment.fulfill(wrong)
    turned = pjrt.ShapeSpec((2, 2), pjrt.ElementType.F32, pjrt.TiledLayout((0, 1)))
    turned_alias, turned_fulfillment = client.create_alias_buffer(turned)
    with pytest.raises(pjrt.InvalidArgumentError, match="layout"):
        turned_fulfillment.fulfill(client.buffer_from_host(np.zeros((2, 2), np.float32)))
    fulfillment.fulfill(client.buffer_from_host(toys.floats()))
    assert turned_alias.layout == turned.layout


def test_aliases_of_failed_and_deleted_buffers(client: HostClient) -> None:
    alias, fulfillment = client.create_alias_buffer(toys.spec("f32[4]"))
    deleted = client.buffer_from_host(toys.floats())
    deleted.delete()
    with pytest.raises(pjrt.FailedPreconditionError):
        fulfillment.fulfill(deleted)
    fulfillment.fulfill(client.create_error_buffer(pjrt.DataLossError("gone"), toys.spec("f32[4]")))
    with pytest.raises(pjrt.DataLossError, match="gone"):
        np.asarray(alias)


def test_closing_ends_the_wait_for_what_nobody_will_say() -> None:
    client = toys.negate()
    alias, fulfillment = client.create_alias_buffer(toys.spec("f32[4]"))
    manager = client.create_buffers_for_async_host_to_device([toys.spec("f32[4]")])
    exe = client.compile("program")
    ready = [exe(alias)[0].ready(), exe(manager.retrieve_buffer(0))[0].ready(), alias.ready()]
    promise: pjrt.Promise[None] = pjrt.Promise()
    depends = client.buffer_from_host(toys.floats()).donate_with_control_dependency(promise.future)
    ready.append(exe(depends)[0].ready())
    client.close()
    for future in ready:
        with pytest.raises(pjrt.CancelledError, match="closed"):
            future.result(toys.TIMEOUT)
    promise.set_result(None)
    with pytest.raises(pjrt.FailedPreconditionError):
        fulfillment.fail(pjrt.AbortedError("late"))


def test_a_control_dependency_delays_the_value_and_takes_the_memory_over(client: HostClient) -> None:
    x = client.buffer_from_host(toys.floats())
    pointer = x.unsafe_pointer()
    promise: pjrt.Promise[str] = pjrt.Promise()
    waits = x.donate_with_control_dependency(promise.future)
    assert x.is_deleted
    (out,) = client.compile("program")(waits)
    assert not waits.ready().done()
    assert not out.ready().done()
    promise.set_result("anything")
    np.testing.assert_array_equal(np.asarray(out), -toys.floats())
    assert waits.unsafe_pointer() == pointer
    failed = waits.donate_with_control_dependency(pjrt.Future.failed(pjrt.AbortedError("no")))
    with pytest.raises(pjrt.AbortedError, match="no"):
        np.asarray(failed)


def test_transfers_in_pieces_from_several_threads(client: HostClient) -> None:
    values = np.arange(1 << 18, dtype=np.float32)
    spec = pjrt.ShapeSpec(values.shape, pjrt.ElementType.F32)
    with client.create_buffers_for_async_host_to_device([spec, toys.spec("f32[4]")]) as manager:
        assert (manager.buffer_count, manager.buffer_size(0), manager.buffer_size(1)) == (2, values.nbytes, 16)
        assert manager.device is client.devices[0]
        buffer = manager.retrieve_buffer(0)
        half = values.nbytes // 2
        futures: list[pjrt.Future[None]] = []

        def send(offset: int, is_last: bool) -> None:
            data = values.view(np.uint8)[offset : offset + half]
            futures.append(manager.transfer_data(0, data, offset, is_last_transfer=is_last))

        first = threading.Thread(target=send, args=(half, False))
        first.start()
        first.join()
        assert not buffer.ready().done()
        send(0, True)
        for future in futures:
            future.result(toys.TIMEOUT)
        np.testing.assert_array_equal(np.asarray(buffer), values)
        small = manager.retrieve_buffer(1)
        (out,) = client.compile("program")(small)
        manager.add_metadata({"step": 3})
        manager.transfer_literal(1, toys.floats()).result(toys.TIMEOUT)
        np.testing.assert_array_equal(np.asarray(out), -toys.floats())


def test_the_value_is_there_when_all_pieces_are_whichever_comes_last(client: HostClient) -> None:
    values = np.arange(1 << 18, dtype=np.float32)
    manager = client.create_buffers_for_async_host_to_device([pjrt.ShapeSpec(values.shape, pjrt.ElementType.F32)])
    buffer = manager.retrieve_buffer(0)
    gate = threading.Event()
    client.devices[0].transfers.put(Call(lambda: gate.wait(toys.TIMEOUT)))
    large = manager.transfer_data(0, values[:-4], is_last_transfer=False)
    manager.transfer_data(0, values[-4:], values[:-4].nbytes, is_last_transfer=True).result(toys.TIMEOUT)
    assert not large.done()
    assert not buffer.ready().done()
    gate.set()
    np.testing.assert_array_equal(np.asarray(buffer), values)


def test_a_transferred_buffer_has_its_memory_for_itself(client: HostClient) -> None:
    with toys.client(lambda x: np.add(x, 1, out=x), facts={"aliases": {0: 0}}) as donating:
        manager = donating.create_buffers_for_async_host_to_device([toys.spec("f32[4]")])
        manager.transfer_literal(0, toys.floats())
        buffer = manager.retrieve_buffer(0)
        pointer = buffer.unsafe_pointer()
        (out,) = donating.compile("program")(buffer)
        np.testing.assert_array_equal(np.asarray(out), toys.floats() + 1)
        assert out.unsafe_pointer() == pointer


def test_transfers_refuse_what_does_not_fit(client: HostClient) -> None:
    manager = client.create_buffers_for_async_host_to_device([toys.spec("f32[4]")])
    with pytest.raises(pjrt.OutOfRangeError, match="no buffer 1"):
        manager.buffer_size(1)
    with pytest.raises(pjrt.OutOfRangeError, match="no buffer -1"):
        manager.retrieve_buffer(-1)
    with pytest.raises(pjrt.OutOfRangeError, match="the buffer's 16 bytes"):
        manager.transfer_data(0, bytes(8), 12)
    with pytest.raises(pjrt.InvalidArgumentError, match=r"f32\[4\]"):
        manager.transfer_literal(0, np.zeros(4, np.int32))
    with pytest.raises(pjrt.InvalidArgumentError, match="contiguous"):
        manager.transfer_data(0, np.zeros(4, np.uint8)[::2])
    buffer = manager.retrieve_buffer(0)
    with pytest.raises(pjrt.FailedPreconditionError, match="retrieved already"):
        manager.retrieve_buffer(0)
    manager.transfer_literal(0, toys.floats())
    with pytest.raises(pjrt.FailedPreconditionError, match="takes no more data"):
        manager.transfer_data(0, bytes(4))
    with pytest.raises(pjrt.FailedPreconditionError, match="already"):
        manager.set_buffer_error(0, pjrt.AbortedError("late"))
    np.testing.assert_array_equal(np.asarray(buffer), toys.floats())


def test_a_transfer_can_fail_and_end_early(client: HostClient) -> None:
    manager = client.create_buffers_for_async_host_to_device([toys.spec("f32[4]")] * 3)
    failed, unfinished, whole = (manager.retrieve_buffer(index) for index in range(3))
    manager.set_buffer_error(0, pjrt.DataLossError("disk"))
    manager.transfer_data(1, bytes(4), is_last_transfer=False).result(toys.TIMEOUT)
    manager.transfer_data(2, toys.floats()).result(toys.TIMEOUT)
    manager.close()
    manager.close()
    with pytest.raises(pjrt.DataLossError, match="disk"):
        np.asarray(failed)
    with pytest.raises(pjrt.CancelledError, match="closed before"):
        np.asarray(unfinished)
    np.testing.assert_array_equal(np.asarray(whole), toys.floats())
    with pytest.raises(pjrt.FailedPreconditionError):
        manager.transfer_data(1, bytes(4))


def test_a_dropped_manager_fails_what_it_did_not_fill(client: HostClient) -> None:
    buffer = client.create_buffers_for_async_host_to_device([toys.spec("f32[4]")]).retrieve_buffer(0)
    gc.collect()
    with pytest.raises(pjrt.CancelledError):
        np.asarray(buffer)


def test_transfers_keep_the_layout_that_is_asked_for(client: HostClient) -> None:
    spec = pjrt.ShapeSpec((2, 3), pjrt.ElementType.S16, pjrt.TiledLayout((0, 1)))
    values = np.arange(6, dtype=np.int16).reshape(2, 3)
    manager = client.create_buffers_for_async_host_to_device([spec, spec])
    manager.transfer_data(0, values.T.copy())
    manager.transfer_literal(1, values)
    for index in range(2):
        buffer = manager.retrieve_buffer(index)
        assert buffer.layout == spec.layout
        np.testing.assert_array_equal(np.asarray(buffer), values)
