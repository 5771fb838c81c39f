"""Transfer managers: buffers that are filled piece by piece or by literals; the managers' facts, errors and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.calls import (
    MISUSE,
    Array,
    default_memory,
    expect_bytes,
    expect_same_error,
    is_ready,
    memories_of,
    other_device,
    outcome,
    outcome_of_copy,
    ramp,
    read_error,
    ready_error,
    supported,
    tiled,
)
from pjrt.conformance.plugin.contract.events import on_ready
from pjrt.conformance.plugin.subject import Subject

# Asynchronous transfers to the device: buffers that a transfer manager fills piece by piece.

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
    "async_transfer.whole", calls=_CALLS, over={"rank_0": (), "rank_1": (7,), "rank_3": (2, 3, 4), "large": (1 << 20,)}
)
def _whole(subject: Subject, dims: tuple[int, ...]) -> None:
    """A buffer that is filled by one transfer, the last one, has its value."""
    array = ramp(*dims)
    manager = make_manager(subject, (dims, 11))
    buffer = retrieve(subject, manager)
    transfer(subject, manager, array.reshape(-1))
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check(
    "async_transfer.pieces",
    calls=_CALLS,
    over={
        "in_order": (0, 1, 2, 3),
        "reversed": (3, 2, 1, 0),
        "mixed": (2, 0, 3, 1),
    },
)
def _pieces(subject: Subject, order: tuple[int, ...]) -> None:
    """Transfers fill the bytes from offset on, in any order; the last one is the one that says so."""
    array = _bytes()
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager)
    for number, piece in enumerate(order):
        transfer(subject, manager, array[60 * piece : 60 * piece + 60], 60 * piece, last=number == 3)
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check("async_transfer.pieces_at_once", calls=_CALLS)
def _pieces_at_once(subject: Subject) -> None:
    """Transfers may be under way at once; the buffer is ready when all of them have completed."""
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


@check("async_transfer.odd_pieces", calls=_CALLS)
def _odd_pieces(subject: Subject) -> None:
    """offset and transfer_size are any numbers of bytes inside of the buffer, also none."""
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


@check("async_transfer.waits_for_the_last", calls=(*_CALLS, "PJRT_Buffer_ReadyEvent"))
def _waits_for_the_last(subject: Subject) -> None:
    """The buffer is not ready before a transfer with is_last_transfer."""
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


@check("async_transfer.read_before_the_transfer", calls=(*_CALLS, "PJRT_Buffer_ToHostBuffer"))
def _read_before_the_transfer(subject: Subject) -> None:
    """A read of a buffer waits for its transfers."""
    array, data = _bytes(), np.zeros(240, np.uint8)
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager)
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=data)
    subject.expect(not is_ready(subject, read.event), "a read that waits", "that it is done")
    transfer(subject, manager, array)
    subject.await_event(read.event)
    expect_bytes(subject, data, array)
    end(subject, manager, buffer)


@check("async_transfer.host_memory_changed_after_done", calls=_CALLS)
def _host_memory_changed_after_done(subject: Subject) -> None:
    """Once done_with_h2d_transfer is ready, the host memory is the caller's again."""
    array = ramp(1 << 20, dtype=np.uint8)
    data = array.copy()
    manager = make_manager(subject, ([1 << 20], 6))
    buffer = retrieve(subject, manager)
    transfer(subject, manager, data)
    data.fill(0xAB)
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check("async_transfer.several_buffers", calls=_CALLS)
def _several_buffers(subject: Subject) -> None:
    """Each buffer of a manager has its own type, shape and transfers, in any order."""
    arrays = [ramp(7), ramp(2, 3, dtype=np.int32), ramp(5, dtype=np.uint8)]
    manager = make_manager(subject, ([7], 11), ([2, 3], 4), ([5], 6))
    buffers = {index: retrieve(subject, manager, index) for index in (2, 0, 1)}
    for index in (1, 2, 0):
        transfer(subject, manager, arrays[index].reshape(-1), index=index)
        subject.expect_contents(buffers[index], arrays[index])
    end(subject, manager, *buffers.values())


@check("async_transfer.one_ready_before_the_others", calls=(*_CALLS, "PJRT_Buffer_ReadyEvent"))
def _one_ready_before_the_others(subject: Subject) -> None:
    """A buffer becomes ready when its own transfers are done, whatever the others of its manager do."""
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


@check("async_transfer.retrieved_after_the_transfer", calls=_CALLS)
def _retrieved_after_the_transfer(subject: Subject) -> None:
    """A buffer may be retrieved before, during and after its transfers."""
    array = _bytes()
    manager = make_manager(subject, ([240], 6))
    transfer(subject, manager, array[:120], last=False)
    transfer(subject, manager, array[120:], 120)
    buffer = retrieve(subject, manager)
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check("async_transfer.buffer_outlives_the_manager", calls=_CALLS, over=("waited", "not_waited"))
def _buffer_outlives_the_manager(subject: Subject, kind: str) -> None:
    """A buffer that was filled keeps its value when its manager is destroyed."""
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


@check("async_transfer.in_each_memory", calls=(*_CALLS, "PJRT_Buffer_Memory", f"{MANAGER}_Device"))
def _in_each_memory(subject: Subject) -> None:
    """The buffers are in the memory of the argument, and the manager's device is one of it."""
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


@check("async_transfer.layouts", calls=_CALLS, over=("row_major", "column_major"))
def _layouts(subject: Subject, kind: str) -> None:
    """device_layouts has a layout for each shape; the bytes of a transfer are in the buffer's layout."""
    array = ramp(3, 5)
    order = (1, 0) if kind == "row_major" else (0, 1)
    manager = make_manager(subject, ([3, 5], 11), device_layouts=[tiled(order)])
    buffer = retrieve(subject, manager)
    data = (array if kind == "row_major" else array.T).reshape(-1).copy()
    transfer(subject, manager, data)
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


# Transfer managers: their facts, their errors and their end.

COUNT, SIZE, DEVICE = f"{MANAGER}_BufferCount", f"{MANAGER}_BufferSize", f"{MANAGER}_Device"
SET_ERROR, ADD_METADATA = f"{MANAGER}_SetBufferError", f"{MANAGER}_AddMetadata"
_REASON = "no data, on purpose"


def set_error(subject: Subject, manager: int, index: int, code: StatusCode, message: str = _REASON) -> None:
    """Give a buffer of a manager an error in place of its data."""
    subject.require(SET_ERROR)
    subject.call(SET_ERROR, transfer_manager=manager, buffer_index=index, error_code=int(code), error_message=message)


@check("transfer_manager.buffer_count", calls=(CREATE, COUNT), over=(1, 2, 17))
def _buffer_count(subject: Subject, number: int) -> None:
    """A manager has as many buffers as there were shapes."""
    subject.require(COUNT)
    manager = make_manager(subject, *[([3], 11)] * number)
    found = subject.call(COUNT, transfer_manager=manager).buffer_count
    subject.expect(found == number, f"{number} buffers", f"{found}")
    end(subject, manager)


@check("transfer_manager.buffer_size", calls=(CREATE, SIZE))
def _buffer_size(subject: Subject) -> None:
    """The size of a buffer of a manager is the size of its storage on the device."""
    subject.require(SIZE)
    manager = make_manager(subject, ([7], 11), ([2, 3], 12), ([], 6))
    for index, least in enumerate((28, 48, 1)):
        found = subject.call(SIZE, transfer_manager=manager, buffer_index=index).buffer_size
        subject.expect(found >= least, f"at least {least} bytes", f"{found}")
        buffer = retrieve(subject, manager, index)
        size = subject.call("PJRT_Buffer_OnDeviceSizeInBytes", buffer=buffer).on_device_size_in_bytes
        subject.expect(found == size, f"{size} bytes, as the buffer", f"{found}")
        subject.destroy_buffers(buffer)
    end(subject, manager)


@check("transfer_manager.device", calls=(CREATE, DEVICE))
def _device(subject: Subject) -> None:
    """The device of a manager is that of its buffers."""
    subject.require(DEVICE)
    manager = make_manager(subject, ([7], 11))
    found = subject.call(DEVICE, transfer_manager=manager).device_out
    subject.expect(found == subject.device, "the first device", "another device")
    end(subject, manager)


@check(
    "transfer_manager.properties_of_a_buffer",
    calls=(CREATE, RETRIEVE, "PJRT_Buffer_Dimensions", "PJRT_Buffer_ElementType"),
)
def _properties_of_a_buffer(subject: Subject) -> None:
    """A buffer has its type and its dimensions before there is any data."""
    manager = make_manager(subject, ([2, 3], 12))
    buffer = retrieve(subject, manager)
    subject.expect(subject.shape(buffer) == (2, 3), "the dimensions (2, 3)", str(subject.shape(buffer)))
    number = subject.call("PJRT_Buffer_ElementType", buffer=buffer).type
    subject.expect(number == 12, "the type F64", f"{number}")
    end(subject, manager, buffer)


@check("transfer_manager.destroy_null", calls=(DESTROY,))
def _destroy_null(subject: Subject) -> None:
    """A null pointer is destroyed without an error."""
    subject.require(DESTROY)
    subject.call(DESTROY, transfer_manager=0)


@check(
    "transfer_manager.destroyed_unused",
    calls=(CREATE, DESTROY),
    over=("nothing_retrieved", "one_of_two_retrieved", "partly_filled"),
)
def _destroyed_unused(subject: Subject, kind: str) -> None:
    """A manager may be destroyed before its buffers are retrieved or filled."""
    manager = make_manager(subject, ([240], 6), ([240], 6))
    buffers = [retrieve(subject, manager, 0)] if kind == "one_of_two_retrieved" else []
    if kind == "partly_filled":
        transfer(subject, manager, ramp(100, dtype=np.uint8), last=False)
    end(subject, manager, *buffers)
    subject.expect_contents(subject.buffer(ramp(4)), ramp(4))


@check(
    "transfer_manager.destroyed_before_the_data",
    calls=(CREATE, RETRIEVE, DESTROY, "PJRT_Buffer_ReadyEvent"),
    over=("no_data", "half_of_the_data"),
)
def _destroyed_before_the_data(subject: Subject, kind: str) -> None:
    """A buffer whose data can never come does not stay pending: it has an error when its manager is destroyed."""
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager)
    if kind == "half_of_the_data":
        transfer(subject, manager, ramp(120, dtype=np.uint8), last=False)
    subject.call(DESTROY, transfer_manager=manager)
    error = ready_error(subject, buffer)
    subject.expect(error is not None, "an error", "a ready buffer")
    subject.destroy_buffers(buffer)


@check(
    "transfer_manager.set_error",
    calls=(CREATE, SET_ERROR, RETRIEVE),
    over=tuple(
        f"{code}-{time}"
        for code in ("CANCELLED", "INTERNAL", "UNAVAILABLE")
        for time in ("retrieved_before", "retrieved_after")
    ),
)
def _error_of_buffer(subject: Subject, case: str) -> None:
    """The buffer has the code and the message of PJRT_AsyncHostToDeviceTransferManager_SetBufferError."""
    code, time = case.split("-")
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager) if time == "retrieved_before" else 0
    set_error(subject, manager, 0, StatusCode[code])
    buffer = buffer or retrieve(subject, manager)
    expect_same_error(subject, ready_error(subject, buffer), StatusCode[code], _REASON)
    expect_same_error(subject, read_error(subject, buffer), StatusCode[code], _REASON)
    end(subject, manager, buffer)


@check("transfer_manager.set_error_of_one", calls=(CREATE, SET_ERROR, RETRIEVE, TRANSFER))
def _set_error_of_one(subject: Subject) -> None:
    """The error of one buffer does not reach the other buffers of its manager."""
    manager = make_manager(subject, ([7], 11), ([7], 11))
    first, second = retrieve(subject, manager, 0), retrieve(subject, manager, 1)
    set_error(subject, manager, 0, StatusCode.ABORTED)
    transfer(subject, manager, ramp(7), index=1)
    expect_same_error(subject, ready_error(subject, first), StatusCode.ABORTED, _REASON)
    subject.expect_contents(second, ramp(7))
    end(subject, manager, first, second)


@check("transfer_manager.set_error_during_a_read", calls=(CREATE, SET_ERROR, "PJRT_Buffer_ToHostBuffer"))
def _set_error_during_a_read(subject: Subject) -> None:
    """A read that waits for the data ends with the error of the buffer."""
    manager = make_manager(subject, ([7], 11))
    buffer = retrieve(subject, manager)
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=np.zeros(7, np.float32))
    set_error(subject, manager, 0, StatusCode.ABORTED)
    expect_same_error(subject, subject.event_error(read.event), StatusCode.ABORTED, _REASON)
    end(subject, manager, buffer)


@check("transfer_manager.set_error_and_copy", calls=(CREATE, SET_ERROR, "PJRT_Buffer_CopyToDevice"))
def _set_error_and_copy(subject: Subject) -> None:
    """A copy of a buffer with an error has this error."""
    target = other_device(subject)
    manager = make_manager(subject, ([7], 11))
    buffer = retrieve(subject, manager)
    set_error(subject, manager, 0, StatusCode.ABORTED)
    error = outcome_of_copy(subject, "PJRT_Buffer_CopyToDevice", "dst_buffer", buffer=buffer, dst_device=target)
    expect_same_error(subject, error, StatusCode.ABORTED, _REASON)
    end(subject, manager, buffer)


@check("transfer_manager.transfer_after_error", calls=(CREATE, SET_ERROR, TRANSFER))
def _transfer_after_error(subject: Subject) -> None:
    """A transfer to a buffer with an error harms nothing, and the error stays."""
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager)
    set_error(subject, manager, 0, StatusCode.ABORTED)
    data = ramp(240, dtype=np.uint8)
    outcome(subject, TRANSFER, "done_with_h2d_transfer", **transfer_fields(manager, data))
    expect_same_error(subject, ready_error(subject, buffer), StatusCode.ABORTED, _REASON)
    end(subject, manager, buffer)


@check("transfer_manager.error_after_some_data", calls=(CREATE, SET_ERROR, TRANSFER))
def _error_after_some_data(subject: Subject) -> None:
    """A buffer may get its error when a part of its data was transferred."""
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager)
    transfer(subject, manager, ramp(100, dtype=np.uint8), last=False)
    set_error(subject, manager, 0, StatusCode.ABORTED)
    expect_same_error(subject, ready_error(subject, buffer), StatusCode.ABORTED, _REASON)
    end(subject, manager, buffer)


@check("transfer_manager.transfer_after_the_last", calls=(CREATE, TRANSFER))
def _transfer_after_the_last(subject: Subject) -> None:
    """After the last transfer there is none: a further one is an error, and the value stays."""
    array = ramp(240, dtype=np.uint8)
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager)
    transfer(subject, manager, array)
    subject.await_buffers([buffer])
    error = outcome(subject, TRANSFER, "done_with_h2d_transfer", **transfer_fields(manager, array + 1))
    subject.expect(error is not None, "an error", "that it succeeded")
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check("transfer_manager.retrieved_twice", calls=(CREATE, RETRIEVE))
def _retrieved_twice(subject: Subject) -> None:
    """A buffer belongs to the one who retrieved it; it is not given away a second time."""
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager)
    again = subject.attempt(RETRIEVE, transfer_manager=manager, buffer_index=0)
    if again.error is None:
        subject.expect(again.buffer_out != buffer, "an error, or another buffer", "the same buffer")
        subject.expect(again.buffer_out, "an error, or another buffer", "a null pointer without an error")
        subject.destroy_buffers(again.buffer_out)
    transfer(subject, manager, ramp(240, dtype=np.uint8))
    subject.expect_contents(buffer, ramp(240, dtype=np.uint8))
    end(subject, manager, buffer)


_INDEXED = {"TransferData": TRANSFER, "RetrieveBuffer": RETRIEVE, "BufferSize": SIZE, "SetBufferError": SET_ERROR}


@check(
    "transfer_manager.wrong_index",
    calls=tuple(_INDEXED.values()),
    over=tuple(f"{name} {index}" for name in _INDEXED for index in (-1, 2, 1 << 30)),
)
def _transfer_manager_wrong_index(subject: Subject, case: str) -> None:
    """An index that no buffer of the manager has is an error."""
    short, number = case.split(" ")
    name = _INDEXED[short]
    subject.require(name)
    manager = make_manager(subject, ([7], 11), ([7], 11))
    fields = {"transfer_manager": manager, "buffer_index": int(number)}
    if name == TRANSFER:
        fields = {**transfer_fields(manager, ramp(7)), **fields}
    if name == SET_ERROR:
        fields |= {"error_code": 10, "error_message": _REASON}  # type: ignore[dict-item]
    subject.fails(name, MISUSE, **fields)
    buffer = retrieve(subject, manager, 1)
    transfer(subject, manager, ramp(7), index=1)
    subject.expect_contents(buffer, ramp(7))
    end(subject, manager, buffer)


@check(
    "transfer_manager.outside",
    calls=(TRANSFER,),
    over={
        "one_byte_beyond": (0, 241),
        "offset_at_the_end": (240, 1),
        "offset_beyond": (1000, 1),
        "across_the_end": (200, 100),
        "negative_offset": (-1, 10),
        "negative_size": (0, -10),
        "overflow": (100, (1 << 63) - 1),
    },
)
def _outside(subject: Subject, case: tuple[int, int]) -> None:
    """Bytes that the buffer does not have are an error, of the call or of its event; no other memory is written."""
    offset, size = case
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager)
    on_device = subject.call("PJRT_Buffer_OnDeviceSizeInBytes", buffer=buffer).on_device_size_in_bytes
    if offset > 0 and on_device != 240:
        offset += on_device - 240
    fields = transfer_fields(manager, ramp(4096, dtype=np.uint8), offset, last=False)
    error = outcome(subject, TRANSFER, "done_with_h2d_transfer", **{**fields, "transfer_size": size})
    subject.expect(error is not None, "an error", "that it succeeded")
    end(subject, manager, buffer)


@check("transfer_manager.metadata", calls=(CREATE, ADD_METADATA), over=("one", "several", "none", "twice"))
def _metadata(subject: Subject, kind: str) -> None:
    """Metadata are named values that accompany the transfers; they do not change the data."""
    subject.require(ADD_METADATA)
    manager = make_manager(subject, ([7], 11))
    values = {"one": 1, "several": 5, "none": 0, "twice": 1}[kind]
    for _ in range(2 if kind == "twice" else 1):
        listed = [raw.named_value(f"key{number}", f"value {number}") for number in range(values)]
        supported(subject, ADD_METADATA, transfer_manager=manager, transfer_metadata=listed)
    buffer = retrieve(subject, manager)
    transfer(subject, manager, ramp(7))
    subject.expect_contents(buffer, ramp(7))
    end(subject, manager, buffer)


# Transfers of whole literals by a transfer manager.

LITERAL = f"{MANAGER}_TransferLiteral"
_LITERAL_CALLS = (CREATE, LITERAL)


def _fields(manager: int, array: Array, index: int = 0) -> dict[str, Any]:
    return {
        "transfer_manager": manager,
        "buffer_index": index,
        "data": array,
        "shape_dims": list(array.shape),
        "shape_element_type": int(ElementType.of(array.dtype)),
        "shape_layout": tiled(range(array.ndim)[::-1]),
    }


@check(
    "transfer_literal.value",
    calls=_LITERAL_CALLS,
    over={
        "rank_0": ramp(),
        "rank_1": ramp(7),
        "rank_3": ramp(2, 3, 4),
        "pred": np.array([True, False, True]),
        "u8": ramp(13, dtype=np.uint8),
        "f64": ramp(3, 3, dtype=np.float64),
        "c64": ramp(5, dtype=np.complex64),
        "empty": np.zeros((0, 3), np.float32),
        "large": ramp(1 << 20),
    },
)
def _value(subject: Subject, array: Array) -> None:
    """The buffer has the value of the literal, and is ready when it is transferred."""
    subject.require(LITERAL)
    manager = make_manager(subject, (array.shape, int(ElementType.of(array.dtype))))
    buffer = retrieve(subject, manager)
    result = supported(subject, LITERAL, **_fields(manager, array))
    subject.await_event(result.done_with_h2d_transfer)
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check("transfer_literal.layout", calls=_LITERAL_CALLS, over={"row_major": (1, 0), "column_major": (0, 1)})
def _layout(subject: Subject, order: tuple[int, int]) -> None:
    """shape_layout is the order of the elements in the memory of the literal."""
    subject.require(LITERAL)
    array = ramp(3, 5)
    data = array if order == (1, 0) else np.ascontiguousarray(array.T)
    manager = make_manager(subject, ([3, 5], 11))
    buffer = retrieve(subject, manager)
    fields = {**_fields(manager, array), "data": data, "shape_layout": tiled(order)}
    result = supported(subject, LITERAL, **fields)
    subject.await_event(result.done_with_h2d_transfer)
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check("transfer_literal.without_layout", calls=_LITERAL_CALLS)
def _without_layout(subject: Subject) -> None:
    """The header does not say that shape_layout may be null: then the literal is row-major, or it is an error."""
    subject.require(LITERAL)
    array = ramp(3, 5)
    manager = make_manager(subject, ([3, 5], 11))
    buffer = retrieve(subject, manager)
    if outcome(subject, LITERAL, "done_with_h2d_transfer", **{**_fields(manager, array), "shape_layout": None}) is None:
        subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check("transfer_literal.several", calls=_LITERAL_CALLS)
def _several(subject: Subject) -> None:
    """Each buffer of a manager takes a literal of its own."""
    subject.require(LITERAL)
    arrays = [ramp(4) + number for number in range(4)]
    manager = make_manager(subject, *[([4], 11)] * 4)
    buffers = [retrieve(subject, manager, index) for index in range(4)]
    results = [supported(subject, LITERAL, **_fields(manager, arrays[index], index)) for index in (2, 0, 3, 1)]
    for result in results:
        subject.await_event(result.done_with_h2d_transfer)
    for array, buffer in zip(arrays, buffers, strict=True):
        subject.expect_contents(buffer, array)
    end(subject, manager, *buffers)


@check("transfer_literal.memory_changed_after_done", calls=_LITERAL_CALLS)
def _memory_changed_after_done(subject: Subject) -> None:
    """Once done_with_h2d_transfer is ready, the memory of the literal is the caller's again."""
    subject.require(LITERAL)
    array = ramp(1 << 18)
    data = array.copy()
    manager = make_manager(subject, (array.shape, 11))
    buffer = retrieve(subject, manager)
    result = supported(subject, LITERAL, **_fields(manager, data))
    subject.await_event(result.done_with_h2d_transfer)
    data.fill(-1)
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check("transfer_literal.wrong_shape", calls=_LITERAL_CALLS, over=("more_elements", "wider_type"))
def _wrong_shape(subject: Subject, kind: str) -> None:
    """A literal that is larger than the buffer is an error."""
    subject.require(LITERAL)
    array = ramp(8) if kind == "more_elements" else ramp(7, dtype=np.float64)
    manager = make_manager(subject, ([7], 11))
    error = outcome(subject, LITERAL, "done_with_h2d_transfer", **_fields(manager, array))
    subject.expect(error is not None, "an error", "that it succeeded")
    end(subject, manager)


@check("transfer_literal.wrong_index", calls=_LITERAL_CALLS, over=(-1, 1))
def _transfer_literal_wrong_index(subject: Subject, index: int) -> None:
    """An index that no buffer of the manager has is an error."""
    subject.require(LITERAL)
    manager = make_manager(subject, ([7], 11))
    error = outcome(subject, LITERAL, "done_with_h2d_transfer", **_fields(manager, ramp(7), index))
    subject.expect(error is not None, "an error", "that it succeeded")
    end(subject, manager)


@check("transfer_literal.after_error", calls=_LITERAL_CALLS)
def _after_error(subject: Subject) -> None:
    """A literal for a buffer with an error harms nothing."""
    subject.require(LITERAL)
    manager = make_manager(subject, ([7], 11))
    buffer = retrieve(subject, manager)
    set_error(subject, manager, 0, StatusCode.ABORTED)
    outcome(subject, LITERAL, "done_with_h2d_transfer", **_fields(manager, ramp(7)))
    end(subject, manager, buffer)
    subject.expect_contents(subject.buffer(ramp(4)), ramp(4))
