"""Asynchronous transfers to the device: buffers that a transfer manager fills piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.capi import raw
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import Array, expect_bytes, is_ready, ramp, supported, tiled
from pjrt.conformance.plugin.contract.buffers.buffer_placement import default_memory, memories_of
from pjrt.conformance.plugin.contract.events.event_calls import on_ready
from pjrt.conformance.plugin.subject import Subject

CREATE = "PJRT_Client_CreateBuffersForAsyncHostToDevice"
MANAGER = "PJRT_AsyncHostToDeviceTransferManager"
TRANSFER, RETRIEVE, DESTROY = f"{MANAGER}_TransferData", f"{MANAGER}_RetrieveBuffer", f"{MANAGER}_Destroy"
_CALLS = (CREATE, TRANSFER, RETRIEVE, DESTROY)


def make_manager(subject: Subject, *shapes: tuple[Sequence[int], int], **fields: Any) -> int:
    """Return a manager of buffers of some dimensions and types, in the default memory of the first device.

    Raises:
        Unsupported: the plugin has no transfer managers.
    """
    subject.require(*_CALLS)
    result = supported(
        subject,
        CREATE,
        **{
            "client": subject.client,
            "shape_specs": [
                raw.Struct("PJRT_ShapeSpec", dims=list(dims), element_type=number) for dims, number in shapes
            ],
            "memory": default_memory(subject, subject.device),
            **fields,
        },
    )
    subject.expect(result.transfer_manager, "a manager", "a null pointer")
    return int(result.transfer_manager)


def retrieve(subject: Subject, manager: int, index: int = 0) -> int:
    """Return a buffer of a manager."""
    buffer = subject.call(RETRIEVE, transfer_manager=manager, buffer_index=index).buffer_out
    subject.expect(buffer, "a buffer", "a null pointer")
    return int(buffer)


def transfer_fields(manager: int, data: Array, offset: int = 0, *, last: bool = True, index: int = 0) -> dict[str, Any]:
    """Return the arguments of ``PJRT_AsyncHostToDeviceTransferManager_TransferData`` for some bytes."""
    return {
        "transfer_manager": manager,
        "buffer_index": index,
        "data": data,
        "offset": offset,
        "transfer_size": data.nbytes,
        "is_last_transfer": last,
    }


def transfer(
    subject: Subject, manager: int, data: Array, offset: int = 0, *, last: bool = True, index: int = 0
) -> None:
    """Transfer bytes, and wait until the host memory is the caller's again."""
    result = subject.call(TRANSFER, **transfer_fields(manager, data, offset, last=last, index=index))
    subject.await_event(result.done_with_h2d_transfer)


def end(subject: Subject, manager: int, *buffers: int) -> None:
    """Destroy a manager, and buffers."""
    subject.call(DESTROY, transfer_manager=manager)
    subject.destroy_buffers(*buffers)


def _bytes(size: int = 240) -> Array:
    return ramp(size, dtype=np.uint8)


@check(
    "async_transfer.whole",
    calls=_CALLS,
    rule="A buffer that is filled by one transfer, the last one, has its value.",
    over={"rank_0": (), "rank_1": (7,), "rank_3": (2, 3, 4), "large": (1 << 20,)},
)
def _whole(subject: Subject, dims: tuple[int, ...]) -> None:
    array = ramp(*dims)
    manager = make_manager(subject, (dims, 11))
    buffer = retrieve(subject, manager)
    transfer(subject, manager, array.reshape(-1))
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check(
    "async_transfer.pieces",
    calls=_CALLS,
    rule="Transfers fill the bytes from offset on, in any order; the last one is the one that says so.",
    over={
        "in_order": (0, 1, 2, 3),
        "reversed": (3, 2, 1, 0),
        "mixed": (2, 0, 3, 1),
    },
)
def _pieces(subject: Subject, order: tuple[int, ...]) -> None:
    array = _bytes()
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager)
    for number, piece in enumerate(order):
        transfer(subject, manager, array[60 * piece : 60 * piece + 60], 60 * piece, last=number == 3)
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check(
    "async_transfer.pieces_at_once",
    calls=_CALLS,
    rule="Transfers may be under way at once; the buffer is ready when all of them have completed.",
)
def _pieces_at_once(subject: Subject) -> None:
    array = ramp(1 << 20, dtype=np.uint8)
    manager = make_manager(subject, ([1 << 20], 6))
    buffer = retrieve(subject, manager)
    step = 1 << 16
    results = [
        subject.call(TRANSFER, **transfer_fields(manager, array[at : at + step], at, last=at + step == 1 << 20))
        for at in range(0, 1 << 20, step)
    ]
    subject.expect_contents(buffer, array)
    for result in reversed(results):
        subject.await_event(result.done_with_h2d_transfer)
    end(subject, manager, buffer)


@check(
    "async_transfer.odd_pieces",
    calls=_CALLS,
    rule="offset and transfer_size are any numbers of bytes inside of the buffer, also none.",
)
def _odd_pieces(subject: Subject) -> None:
    array = _bytes()
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager)
    at = 0
    for size in (1, 3, 0, 7, 100, 0, 61):
        transfer(subject, manager, array[at : at + size], at, last=False)
        at += size
    transfer(subject, manager, array[at:], at)
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check(
    "async_transfer.waits_for_the_last",
    calls=(*_CALLS, "PJRT_Buffer_ReadyEvent"),
    rule="The buffer is not ready before a transfer with is_last_transfer.",
)
def _waits_for_the_last(subject: Subject) -> None:
    array = _bytes()
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager)
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=buffer).event
    calls = on_ready(subject, event)
    subject.expect(not is_ready(subject, event), "a buffer that is not ready", "that it is ready")
    transfer(subject, manager, array[:120], last=False)
    subject.expect(
        not is_ready(subject, event), "a buffer that is not ready after half of its data", "that it is ready"
    )
    calls.expect_none()
    transfer(subject, manager, array[120:], 120)
    subject.await_event(event)
    calls.expect_once(None)
    end(subject, manager, buffer)


@check(
    "async_transfer.read_before_the_transfer",
    calls=(*_CALLS, "PJRT_Buffer_ToHostBuffer"),
    rule="A read of a buffer waits for its transfers.",
)
def _read_before_the_transfer(subject: Subject) -> None:
    array, data = _bytes(), np.zeros(240, np.uint8)
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager)
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=data)
    subject.expect(not is_ready(subject, read.event), "a read that waits", "that it is done")
    transfer(subject, manager, array)
    subject.await_event(read.event)
    expect_bytes(subject, data, array)
    end(subject, manager, buffer)


@check(
    "async_transfer.host_memory_changed_after_done",
    calls=_CALLS,
    rule="Once done_with_h2d_transfer is ready, the host memory is the caller's again.",
)
def _host_memory_changed_after_done(subject: Subject) -> None:
    array = ramp(1 << 20, dtype=np.uint8)
    data = array.copy()
    manager = make_manager(subject, ([1 << 20], 6))
    buffer = retrieve(subject, manager)
    transfer(subject, manager, data)
    data.fill(0xAB)
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check(
    "async_transfer.several_buffers",
    calls=_CALLS,
    rule="Each buffer of a manager has its own type, shape and transfers, in any order.",
)
def _several_buffers(subject: Subject) -> None:
    arrays = [ramp(7), ramp(2, 3, dtype=np.int32), ramp(5, dtype=np.uint8)]
    manager = make_manager(subject, ([7], 11), ([2, 3], 4), ([5], 6))
    buffers = {index: retrieve(subject, manager, index) for index in (2, 0, 1)}
    for index in (1, 2, 0):
        transfer(subject, manager, arrays[index].reshape(-1), index=index)
        subject.expect_contents(buffers[index], arrays[index])
    end(subject, manager, *buffers.values())


@check(
    "async_transfer.one_ready_before_the_others",
    calls=(*_CALLS, "PJRT_Buffer_ReadyEvent"),
    rule="A buffer becomes ready when its own transfers are done, whatever the others of its manager do.",
)
def _one_ready_before_the_others(subject: Subject) -> None:
    manager = make_manager(subject, ([7], 11), ([7], 11))
    first, second = retrieve(subject, manager, 0), retrieve(subject, manager, 1)
    transfer(subject, manager, ramp(7), index=1)
    subject.expect_contents(second, ramp(7))
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=first).event
    subject.expect(not is_ready(subject, event), "the other buffer not to be ready", "that it is")
    transfer(subject, manager, ramp(7) + 1, index=0)
    subject.await_event(event)
    subject.expect_contents(first, ramp(7) + 1)
    end(subject, manager, first, second)


@check(
    "async_transfer.retrieved_after_the_transfer",
    calls=_CALLS,
    rule="A buffer may be retrieved before, during and after its transfers.",
)
def _retrieved_after_the_transfer(subject: Subject) -> None:
    array = _bytes()
    manager = make_manager(subject, ([240], 6))
    transfer(subject, manager, array[:120], last=False)
    transfer(subject, manager, array[120:], 120)
    buffer = retrieve(subject, manager)
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check(
    "async_transfer.buffer_outlives_the_manager",
    calls=_CALLS,
    rule="A buffer that was filled keeps its value when its manager is destroyed.",
    over=("waited", "not_waited"),
)
def _buffer_outlives_the_manager(subject: Subject, kind: str) -> None:
    array = ramp(1 << 20, dtype=np.uint8)
    manager = make_manager(subject, ([1 << 20], 6))
    buffer = retrieve(subject, manager)
    result = subject.call(TRANSFER, **transfer_fields(manager, array))
    if kind == "waited":
        subject.await_buffers([buffer])
    subject.call(DESTROY, transfer_manager=manager)
    subject.expect_contents(buffer, array)
    subject.await_event(result.done_with_h2d_transfer)
    subject.destroy_buffers(buffer)


@check(
    "async_transfer.in_each_memory",
    calls=(*_CALLS, "PJRT_Buffer_Memory", f"{MANAGER}_Device"),
    rule="The buffers are in the memory of the argument, and the manager's device is one of it.",
)
def _in_each_memory(subject: Subject) -> None:
    subject.require(*_CALLS)
    for device in subject.devices:
        for memory in memories_of(subject, device):
            manager = make_manager(subject, ([7], 11), memory=memory)
            buffer = retrieve(subject, manager)
            found = subject.call("PJRT_Buffer_Memory", buffer=buffer).memory
            subject.expect(found == memory, "the memory of the argument", "another memory")
            if subject.plugin.has(f"{MANAGER}_Device"):
                owners = subject.call("PJRT_Memory_AddressableByDevices", memory=memory).devices
                place = subject.call(f"{MANAGER}_Device", transfer_manager=manager).device_out
                subject.expect(place in (owners or ()), "a device of the memory", "another device")
            transfer(subject, manager, ramp(7))
            subject.expect_contents(buffer, ramp(7))
            end(subject, manager, buffer)


@check(
    "async_transfer.layouts",
    calls=_CALLS,
    rule="device_layouts has a layout for each shape; the bytes of a transfer are in the buffer's layout.",
    over=("row_major", "column_major"),
)
def _layouts(subject: Subject, kind: str) -> None:
    array = ramp(3, 5)
    order = (1, 0) if kind == "row_major" else (0, 1)
    manager = make_manager(subject, ([3, 5], 11), device_layouts=[tiled(order)])
    buffer = retrieve(subject, manager)
    data = (array if kind == "row_major" else array.T).reshape(-1).copy()
    transfer(subject, manager, data)
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)
