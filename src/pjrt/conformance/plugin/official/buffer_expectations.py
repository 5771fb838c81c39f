"""Expectations of XLA's test of the C API: buffers."""

from __future__ import annotations

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject

_INCREASE = "PJRT_Buffer_IncreaseExternalReferenceCount"
_DECREASE = "PJRT_Buffer_DecreaseExternalReferenceCount"
_POINTER = "PJRT_Buffer_OpaqueDeviceMemoryDataPointer"
FLOATS = np.arange(41, 45, dtype=np.float32)
"""The contents of the buffer of XLA's test."""


@check(
    "official.buffer_transfer_immutable_until_transfer_completes",
    calls=("PJRT_Client_BufferFromHostBuffer", "PJRT_Event_Await"),
    rule="A transfer from memory that stays unchanged until it ends is done when its event is.",
)
def _buffer_transfer(subject: Subject) -> None:
    buffer = subject.buffer(FLOATS, host_buffer_semantics="ImmutableUntilTransferCompletes")
    subject.destroy_buffers(buffer)


@check(
    "official.buffer_is_deleted",
    calls=("PJRT_Buffer_IsDeleted", "PJRT_Buffer_Delete"),
    rule="A buffer is deleted after PJRT_Buffer_Delete, and not before.",
)
def _is_deleted(subject: Subject) -> None:
    buffer = subject.buffer(FLOATS)
    before = subject.call("PJRT_Buffer_IsDeleted", buffer=buffer, is_deleted=True).is_deleted
    subject.expect(not before, "a buffer that is not deleted", "that it is deleted")
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    after = subject.call("PJRT_Buffer_IsDeleted", buffer=buffer).is_deleted
    subject.expect(after, "a buffer that is deleted", "that it is not deleted")


@check(
    "official.buffer_on_device_size_in_bytes",
    calls=("PJRT_Buffer_OnDeviceSizeInBytes",),
    rule="A buffer of four floats occupies memory on its device.",
)
def _on_device_size(subject: Subject) -> None:
    size = subject.call("PJRT_Buffer_OnDeviceSizeInBytes", buffer=subject.buffer(FLOATS)).on_device_size_in_bytes
    subject.expect(size > 0, "more than 0 bytes", size)


@check(
    "official.buffer_ready_event",
    calls=("PJRT_Buffer_ReadyEvent", "PJRT_Event_Await", "PJRT_Event_IsReady", "PJRT_Event_Destroy"),
    rule="A buffer has an event, which is ready once it was awaited.",
)
def _ready_event(subject: Subject) -> None:
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=subject.buffer(FLOATS)).event
    subject.expect(event, "an event", "a null pointer")
    subject.call("PJRT_Event_Await", event=event)
    subject.expect(subject.call("PJRT_Event_IsReady", event=event).is_ready, "an event that is ready", "that it is not")
    subject.call("PJRT_Event_Destroy", event=event)


@check(
    "official.buffer_to_host_buffer_no_host_layout",
    calls=("PJRT_Buffer_ToHostBuffer",),
    rule="Without a host layout, the elements of a buffer arrive in the host's memory.",
)
def _to_host_buffer(subject: Subject) -> None:
    target = np.zeros(4, np.float32)
    result = subject.call("PJRT_Buffer_ToHostBuffer", src=subject.buffer(FLOATS), dst=target)
    subject.await_event(result.event)
    subject.expect(np.array_equal(target, FLOATS), f"the elements {FLOATS.tolist()}", target.tolist())


@check(
    "official.buffer_increase_and_decrease_reference_count",
    calls=(_INCREASE, _DECREASE),
    rule="An external reference to a buffer is taken and given back.",
)
def _reference_count(subject: Subject) -> None:
    subject.require(_INCREASE, _DECREASE)
    buffer = subject.buffer(FLOATS)
    subject.call(_INCREASE, buffer=buffer)
    subject.call(_DECREASE, buffer=buffer)


@check(
    "official.buffer_decrease_reference_count_returns_error",
    calls=(_DECREASE,),
    rule="Giving back a reference that was not taken is an error with the code INVALID_ARGUMENT.",
)
def _too_many_decreases(subject: Subject) -> None:
    subject.require(_DECREASE)
    error = subject.fails(_DECREASE, "INVALID_ARGUMENT", buffer=subject.buffer(FLOATS))
    message = "Attempting to decrease reference on a buffer with zero reference count."
    subject.advise(error.message == message, f"the message {message!r}", repr(error.message))


@check(
    "official.buffer_opaque_device_memory_data_pointer",
    calls=(_POINTER,),
    rule="The pointer to the memory of a buffer is not null.",
)
def _opaque_pointer(subject: Subject) -> None:
    subject.require(_POINTER)
    pointer = subject.call(_POINTER, buffer=subject.buffer(FLOATS)).device_memory_ptr
    subject.expect(pointer, "a pointer that is not null", pointer)
