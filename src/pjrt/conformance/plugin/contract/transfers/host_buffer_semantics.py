"""Host buffer semantics: how long a plugin may use the caller's memory, and how it reports that it is done."""

from __future__ import annotations

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    IMMUTABLE_ZERO_COPY,
    ONLY_DURING_CALL,
    SEMANTICS,
    UNTIL_TRANSFER_COMPLETES,
    address,
    expect_bytes,
    expect_value,
    from_host,
    is_ready,
    ramp,
    read_bytes,
)
from pjrt.conformance.plugin.contract.events.event_calls import on_ready
from pjrt.conformance.plugin.subject import Subject

_FROM_HOST = ("PJRT_Client_BufferFromHostBuffer",)
_ZERO_COPY = ("immutable_zero_copy", "mutable_zero_copy")
_LARGE = 1 << 20


@check(
    "buffer_from_host.value",
    calls=_FROM_HOST,
    rule="The new buffer has the value of the host memory.",
    over=tuple(SEMANTICS),
)
def _value(subject: Subject, semantics: str) -> None:
    array = ramp(5, 7)
    result = from_host(subject, array, SEMANTICS[semantics])
    expect_value(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.done_event",
    calls=_FROM_HOST,
    rule="done_with_host_buffer is an event that becomes ready without an error, at the latest with the buffer's end.",
    over=tuple(SEMANTICS),
)
def _done_event(subject: Subject, semantics: str) -> None:
    array = ramp(1000)
    result = from_host(subject, array, SEMANTICS[semantics])
    subject.await_buffers([result.buffer])
    subject.destroy_buffers(result.buffer)
    event = result.done_with_host_buffer
    error = subject.plugin.call("PJRT_Event_Await", event=event).error
    subject.expect(error is None, "an event without an error", error)
    subject.expect(is_ready(subject, event), "the event to be ready after the wait", "that it is not")
    subject.call("PJRT_Event_Error", event=event)
    subject.call("PJRT_Event_Destroy", event=event)


@check(
    "buffer_from_host.done_callback_once",
    calls=(*_FROM_HOST, "PJRT_Event_OnReady"),
    rule="A callback on done_with_host_buffer is called once.",
    over=tuple(SEMANTICS),
)
def _done_callback_once(subject: Subject, semantics: str) -> None:
    array = ramp(1000)
    result = from_host(subject, array, SEMANTICS[semantics])
    callback = on_ready(subject, result.done_with_host_buffer)
    subject.await_buffers([result.buffer])
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)
    callback.expect_once(None)


@check(
    "buffer_from_host.done_event_destroyed_early",
    calls=(*_FROM_HOST, "PJRT_Event_Destroy"),
    rule="The caller may destroy done_with_host_buffer at any time; the buffer is not affected.",
    over=tuple(SEMANTICS),
)
def _done_event_destroyed_early(subject: Subject, semantics: str) -> None:
    array = ramp(1000)
    result = from_host(subject, array, SEMANTICS[semantics])
    subject.call("PJRT_Event_Destroy", event=result.done_with_host_buffer)
    expect_value(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer_from_host.destroyed_before_done",
    calls=(*_FROM_HOST, "PJRT_Buffer_Destroy"),
    rule="done_with_host_buffer becomes ready also if the buffer is destroyed right after the call.",
    over=tuple(SEMANTICS),
)
def _destroyed_before_done(subject: Subject, semantics: str) -> None:
    array = ramp(_LARGE)
    result = from_host(subject, array, SEMANTICS[semantics])
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.host_memory_changed_after_done",
    calls=_FROM_HOST,
    rule="Once done_with_host_buffer is ready, the host memory is the caller's again: changes do not reach the buffer.",
    over=tuple(SEMANTICS),
)
def _host_memory_changed_after_done(subject: Subject, semantics: str) -> None:
    array = ramp(_LARGE)
    copy = array.copy()
    result = from_host(subject, array, SEMANTICS[semantics])
    event = result.done_with_host_buffer
    if SEMANTICS[semantics] in (ONLY_DURING_CALL, UNTIL_TRANSFER_COMPLETES):
        error = subject.plugin.call("PJRT_Event_Await", event=event).error
        subject.expect(error is None, "an event without an error", error)
    else:
        subject.await_buffers([result.buffer])
    if is_ready(subject, event):  # With zero copy only where the plugin has copied all the same.
        array.fill(-1)
    expect_value(subject, result.buffer, copy)
    subject.destroy_buffers(result.buffer)
    subject.await_event(event)


@check(
    "buffer_from_host.changed_after_the_call",
    calls=_FROM_HOST,
    rule="With kImmutableOnlyDuringCall the plugin holds no reference to the host memory after the call.",
    over=("small", "large"),
)
def _changed_after_the_call(subject: Subject, size: str) -> None:
    array = ramp(3 if size == "small" else _LARGE)
    copy = array.copy()
    result = from_host(subject, array)
    array.fill(-1)
    expect_value(subject, result.buffer, copy)
    subject.await_event(result.done_with_host_buffer)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer_from_host.many_at_once",
    calls=_FROM_HOST,
    rule="Each of many transfers under way has its own value and its own event.",
    over=tuple(SEMANTICS),
)
def _many_at_once(subject: Subject, semantics: str) -> None:
    arrays = [np.full(4099, number, np.int32) for number in range(32)]
    results = [from_host(subject, array, SEMANTICS[semantics]) for array in arrays]
    for array, result in zip(arrays, results, strict=True):
        expect_value(subject, result.buffer, array)
    for result in reversed(results):
        subject.destroy_buffers(result.buffer)
    for result in results:
        subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.host_memory_unchanged",
    calls=_FROM_HOST,
    rule="The plugin only reads the host memory while it makes a buffer.",
    over=tuple(SEMANTICS),
)
def _host_memory_unchanged(subject: Subject, semantics: str) -> None:
    around = np.full(1024 + 128, 0xAB, np.uint8)
    array = around[64:-64]
    array[:] = ramp(1024, dtype=np.uint8)
    before = around.copy()
    result = from_host(subject, array, SEMANTICS[semantics])
    subject.await_buffers([result.buffer])
    read_bytes(subject, result.buffer)
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)
    expect_bytes(subject, around, before)


@check(
    "buffer_from_host.unaligned",
    calls=_FROM_HOST,
    rule="The host memory has any alignment.",
    over=tuple(SEMANTICS),
)
def _unaligned(subject: Subject, semantics: str) -> None:
    memory = np.zeros(4 * 33 + 1, np.uint8)
    array = memory[1:].view(np.float32)
    array[:] = ramp(33)
    result = from_host(subject, array, SEMANTICS[semantics])
    expect_value(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.in_use_while_aliased",
    calls=(*_FROM_HOST, "PJRT_Buffer_OpaqueDeviceMemoryDataPointer"),
    rule="While a buffer uses the host memory in place, done_with_host_buffer is not ready.",
    over=_ZERO_COPY,
)
def _in_use_while_aliased(subject: Subject, semantics: str) -> None:
    subject.require("PJRT_Buffer_OpaqueDeviceMemoryDataPointer")
    array = _aligned(4096)
    result = from_host(subject, array, SEMANTICS[semantics])
    subject.await_buffers([result.buffer])
    pointer = subject.call("PJRT_Buffer_OpaqueDeviceMemoryDataPointer", buffer=result.buffer).device_memory_ptr
    if pointer == address(array):
        subject.expect(
            not is_ready(subject, result.done_with_host_buffer),
            "the event not to be ready: the buffer is alive and lies in the host memory",
            "that it is ready",
        )
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.one_memory_two_buffers",
    calls=_FROM_HOST,
    rule="Two buffers may be made of the same immutable host memory; each has an event of its own.",
    over=("immutable_until_transfer_completes", "immutable_zero_copy"),
)
def _one_memory_two_buffers(subject: Subject, semantics: str) -> None:
    array = _aligned(4096)
    first = from_host(subject, array, SEMANTICS[semantics])
    second = from_host(subject, array, SEMANTICS[semantics])
    subject.destroy_buffers(first.buffer)
    subject.await_event(first.done_with_host_buffer)
    expect_value(subject, second.buffer, array)
    subject.destroy_buffers(second.buffer)
    subject.await_event(second.done_with_host_buffer)


@check(
    "buffer_from_host.zero_copy_read_outlives_the_buffer",
    calls=(*_FROM_HOST, "PJRT_Buffer_ToHostBuffer", "PJRT_Buffer_Destroy"),
    rule="A read that is under way has the value also if the buffer over the host memory is destroyed meanwhile.",
    over=_ZERO_COPY,
)
def _zero_copy_read_outlives_the_buffer(subject: Subject, semantics: str) -> None:
    array = _aligned(_LARGE)
    result = from_host(subject, array, SEMANTICS[semantics])
    data = np.zeros_like(array)
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=result.buffer, dst=data)
    subject.destroy_buffers(result.buffer)
    subject.await_event(read.event)
    expect_bytes(subject, data.view(np.uint8), array.view(np.uint8))
    subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.immutable_zero_copy_not_donated_in_place",
    calls=(*_FROM_HOST, "PJRT_LoadedExecutable_Execute"),
    rule="With kImmutableZeroCopy the plugin never writes to the host memory, also if the buffer is donated.",
)
def _immutable_zero_copy_not_donated_in_place(subject: Subject) -> None:
    executable = subject.compile("donates_first")
    array = _aligned(4)
    before = array.copy()
    result = from_host(subject, array, IMMUTABLE_ZERO_COPY)
    other = subject.buffer(ramp(4) + 1)
    outputs = subject.execute(executable, [[result.buffer, other]])
    subject.await_buffers(outputs[0])
    expect_bytes(subject, array.view(np.uint8), before.view(np.uint8))
    subject.destroy_buffers(*outputs[0], result.buffer, other)
    subject.await_event(result.done_with_host_buffer)


def _aligned(elements: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return a ramp of floats at an address that any device can use in place."""
    memory = np.zeros(4 * elements + 4096, np.uint8)
    begin = -address(memory) % 4096
    array = memory[begin : begin + 4 * elements].view(np.float32)
    array[:] = ramp(elements)
    return array
