"""Transfer managers: their facts, their errors and their end."""

from __future__ import annotations

import numpy as np

from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    MISUSE,
    expect_same_error,
    outcome,
    outcome_of_copy,
    ramp,
    read_error,
    ready_error,
    supported,
)
from pjrt.conformance.plugin.contract.buffers.buffer_placement import other_device
from pjrt.conformance.plugin.contract.transfers.async_transfers import (
    CREATE,
    DESTROY,
    MANAGER,
    RETRIEVE,
    TRANSFER,
    end,
    make_manager,
    retrieve,
    transfer,
    transfer_fields,
)
from pjrt.conformance.plugin.subject import Subject

COUNT, SIZE, DEVICE = f"{MANAGER}_BufferCount", f"{MANAGER}_BufferSize", f"{MANAGER}_Device"
SET_ERROR, ADD_METADATA = f"{MANAGER}_SetBufferError", f"{MANAGER}_AddMetadata"
_REASON = "no data, on purpose"


def set_error(subject: Subject, manager: int, index: int, code: StatusCode, message: str = _REASON) -> None:
    """Give a buffer of a manager an error in place of its data."""
    subject.require(SET_ERROR)
    subject.call(SET_ERROR, transfer_manager=manager, buffer_index=index, error_code=int(code), error_message=message)


@check(
    "transfer_manager.buffer_count",
    calls=(CREATE, COUNT),
    rule="A manager has as many buffers as there were shapes.",
    over=(1, 2, 17),
)
def _buffer_count(subject: Subject, number: int) -> None:
    subject.require(COUNT)
    manager = make_manager(subject, *[([3], 11)] * number)
    found = subject.call(COUNT, transfer_manager=manager).buffer_count
    subject.expect(found == number, f"{number} buffers", f"{found}")
    end(subject, manager)


@check(
    "transfer_manager.buffer_size",
    calls=(CREATE, SIZE),
    rule="The size of a buffer of a manager is the size of its storage on the device.",
)
def _buffer_size(subject: Subject) -> None:
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


@check("transfer_manager.device", calls=(CREATE, DEVICE), rule="The device of a manager is that of its buffers.")
def _device(subject: Subject) -> None:
    subject.require(DEVICE)
    manager = make_manager(subject, ([7], 11))
    found = subject.call(DEVICE, transfer_manager=manager).device_out
    subject.expect(found == subject.device, "the first device", "another device")
    end(subject, manager)


@check(
    "transfer_manager.properties_of_a_buffer",
    calls=(CREATE, RETRIEVE, "PJRT_Buffer_Dimensions", "PJRT_Buffer_ElementType"),
    rule="A buffer has its type and its dimensions before there is any data.",
)
def _properties_of_a_buffer(subject: Subject) -> None:
    manager = make_manager(subject, ([2, 3], 12))
    buffer = retrieve(subject, manager)
    subject.expect(subject.shape(buffer) == (2, 3), "the dimensions (2, 3)", str(subject.shape(buffer)))
    number = subject.call("PJRT_Buffer_ElementType", buffer=buffer).type
    subject.expect(number == 12, "the type F64", f"{number}")
    end(subject, manager, buffer)


@check("transfer_manager.destroy_null", calls=(DESTROY,), rule="A null pointer is destroyed without an error.")
def _destroy_null(subject: Subject) -> None:
    subject.require(DESTROY)
    subject.call(DESTROY, transfer_manager=0)


@check(
    "transfer_manager.destroyed_unused",
    calls=(CREATE, DESTROY),
    rule="A manager may be destroyed before its buffers are retrieved or filled.",
    over=("nothing_retrieved", "one_of_two_retrieved", "partly_filled"),
)
def _destroyed_unused(subject: Subject, kind: str) -> None:
    manager = make_manager(subject, ([240], 6), ([240], 6))
    buffers = [retrieve(subject, manager, 0)] if kind == "one_of_two_retrieved" else []
    if kind == "partly_filled":
        transfer(subject, manager, ramp(100, dtype=np.uint8), last=False)
    end(subject, manager, *buffers)
    subject.expect_contents(subject.buffer(ramp(4)), ramp(4))


@check(
    "transfer_manager.destroyed_before_the_data",
    calls=(CREATE, RETRIEVE, DESTROY, "PJRT_Buffer_ReadyEvent"),
    rule="A buffer whose data can never come does not stay pending: it has an error when its manager is destroyed.",
    over=("no_data", "half_of_the_data"),
)
def _destroyed_before_the_data(subject: Subject, kind: str) -> None:
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
    rule="The buffer has the code and the message of PJRT_AsyncHostToDeviceTransferManager_SetBufferError.",
    over=tuple(
        f"{code}-{time}"
        for code in ("CANCELLED", "INTERNAL", "UNAVAILABLE")
        for time in ("retrieved_before", "retrieved_after")
    ),
)
def _error_of_buffer(subject: Subject, case: str) -> None:
    code, time = case.split("-")
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager) if time == "retrieved_before" else 0
    set_error(subject, manager, 0, StatusCode[code])
    buffer = buffer or retrieve(subject, manager)
    expect_same_error(subject, ready_error(subject, buffer), StatusCode[code], _REASON)
    expect_same_error(subject, read_error(subject, buffer), StatusCode[code], _REASON)
    end(subject, manager, buffer)


@check(
    "transfer_manager.set_error_of_one",
    calls=(CREATE, SET_ERROR, RETRIEVE, TRANSFER),
    rule="The error of one buffer does not reach the other buffers of its manager.",
)
def _set_error_of_one(subject: Subject) -> None:
    manager = make_manager(subject, ([7], 11), ([7], 11))
    first, second = retrieve(subject, manager, 0), retrieve(subject, manager, 1)
    set_error(subject, manager, 0, StatusCode.ABORTED)
    transfer(subject, manager, ramp(7), index=1)
    expect_same_error(subject, ready_error(subject, first), StatusCode.ABORTED, _REASON)
    subject.expect_contents(second, ramp(7))
    end(subject, manager, first, second)


@check(
    "transfer_manager.set_error_during_a_read",
    calls=(CREATE, SET_ERROR, "PJRT_Buffer_ToHostBuffer"),
    rule="A read that waits for the data ends with the error of the buffer.",
)
def _set_error_during_a_read(subject: Subject) -> None:
    manager = make_manager(subject, ([7], 11))
    buffer = retrieve(subject, manager)
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=np.zeros(7, np.float32))
    set_error(subject, manager, 0, StatusCode.ABORTED)
    expect_same_error(subject, subject.event_error(read.event), StatusCode.ABORTED, _REASON)
    end(subject, manager, buffer)


@check(
    "transfer_manager.set_error_and_copy",
    calls=(CREATE, SET_ERROR, "PJRT_Buffer_CopyToDevice"),
    rule="A copy of a buffer with an error has this error.",
)
def _set_error_and_copy(subject: Subject) -> None:
    target = other_device(subject)
    manager = make_manager(subject, ([7], 11))
    buffer = retrieve(subject, manager)
    set_error(subject, manager, 0, StatusCode.ABORTED)
    error = outcome_of_copy(subject, "PJRT_Buffer_CopyToDevice", "dst_buffer", buffer=buffer, dst_device=target)
    expect_same_error(subject, error, StatusCode.ABORTED, _REASON)
    end(subject, manager, buffer)


@check(
    "transfer_manager.transfer_after_error",
    calls=(CREATE, SET_ERROR, TRANSFER),
    rule="A transfer to a buffer with an error harms nothing, and the error stays.",
)
def _transfer_after_error(subject: Subject) -> None:
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager)
    set_error(subject, manager, 0, StatusCode.ABORTED)
    data = ramp(240, dtype=np.uint8)
    outcome(subject, TRANSFER, "done_with_h2d_transfer", **transfer_fields(manager, data))
    expect_same_error(subject, ready_error(subject, buffer), StatusCode.ABORTED, _REASON)
    end(subject, manager, buffer)


@check(
    "transfer_manager.error_after_some_data",
    calls=(CREATE, SET_ERROR, TRANSFER),
    rule="A buffer may get its error when a part of its data was transferred.",
)
def _error_after_some_data(subject: Subject) -> None:
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager)
    transfer(subject, manager, ramp(100, dtype=np.uint8), last=False)
    set_error(subject, manager, 0, StatusCode.ABORTED)
    expect_same_error(subject, ready_error(subject, buffer), StatusCode.ABORTED, _REASON)
    end(subject, manager, buffer)


@check(
    "transfer_manager.transfer_after_the_last",
    calls=(CREATE, TRANSFER),
    rule="After the last transfer there is none: a further one is an error, and the value stays.",
)
def _transfer_after_the_last(subject: Subject) -> None:
    array = ramp(240, dtype=np.uint8)
    manager = make_manager(subject, ([240], 6))
    buffer = retrieve(subject, manager)
    transfer(subject, manager, array)
    subject.await_buffers([buffer])
    error = outcome(subject, TRANSFER, "done_with_h2d_transfer", **transfer_fields(manager, array + 1))
    subject.expect(error is not None, "an error", "that it succeeded")
    subject.expect_contents(buffer, array)
    end(subject, manager, buffer)


@check(
    "transfer_manager.retrieved_twice",
    calls=(CREATE, RETRIEVE),
    rule="A buffer belongs to the one who retrieved it; it is not given away a second time.",
)
def _retrieved_twice(subject: Subject) -> None:
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
    rule="An index that no buffer of the manager has is an error.",
    over=tuple(f"{name} {index}" for name in _INDEXED for index in (-1, 2, 1 << 30)),
)
def _wrong_index(subject: Subject, case: str) -> None:
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
    rule="Bytes that the buffer does not have are an error, of the call or of its event; no other memory is written.",
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


@check(
    "transfer_manager.metadata",
    calls=(CREATE, ADD_METADATA),
    rule="Metadata are named values that accompany the transfers; they do not change the data.",
    over=("one", "several", "none", "twice"),
)
def _metadata(subject: Subject, kind: str) -> None:
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
