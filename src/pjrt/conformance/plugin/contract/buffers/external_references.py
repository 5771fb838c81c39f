"""External references: claims on the memory of a buffer by code outside of PJRT."""

from __future__ import annotations

import numpy as np

from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import MISUSE, expect_bytes, expect_value, memory_at, ramp
from pjrt.conformance.plugin.subject import Subject

INCREASE = "PJRT_Buffer_IncreaseExternalReferenceCount"
DECREASE = "PJRT_Buffer_DecreaseExternalReferenceCount"
POINTER = "PJRT_Buffer_OpaqueDeviceMemoryDataPointer"
_COUNTS = (INCREASE, DECREASE)


def referenced_buffer(subject: Subject, array: np.ndarray) -> tuple[int, int]:
    """Return a buffer with one external reference, and the pointer to its memory."""
    subject.require(*_COUNTS, POINTER)
    buffer = subject.buffer(array)
    subject.call(INCREASE, buffer=buffer)
    pointer = subject.call(POINTER, buffer=buffer).device_memory_ptr
    subject.expect(pointer, "a pointer", "a null pointer")
    return buffer, int(pointer)


def readable(subject: Subject, buffer: int) -> None:
    """Raise ``Unsupported`` unless the memory of a buffer can be read by this process."""
    subject.require("PJRT_Buffer_IsOnCpu")
    if not subject.call("PJRT_Buffer_IsOnCpu", buffer=buffer).is_on_cpu:
        raise Unsupported("buffers in memory of the CPU")


@check("external_reference.count", calls=_COUNTS, rule="Each increase of the count is taken back by one decrease.")
def _count(subject: Subject) -> None:
    subject.require(*_COUNTS)
    buffer = subject.buffer(ramp(4))
    for _ in range(3):
        subject.call(INCREASE, buffer=buffer)
    for _ in range(3):
        subject.call(DECREASE, buffer=buffer)
    subject.call(INCREASE, buffer=buffer)
    subject.call(DECREASE, buffer=buffer)
    expect_value(subject, buffer, ramp(4))
    subject.destroy_buffers(buffer)


@check(
    "external_reference.below_zero",
    calls=_COUNTS,
    rule="A decrease is an error if the count is zero.",
    over=("never_increased", "taken_back", "twice_taken_back"),
)
def _below_zero(subject: Subject, kind: str) -> None:
    subject.require(*_COUNTS)
    buffer = subject.buffer(ramp(4))
    for _ in range({"never_increased": 0, "taken_back": 1, "twice_taken_back": 2}[kind]):
        subject.call(INCREASE, buffer=buffer)
    for _ in range({"never_increased": 0, "taken_back": 1, "twice_taken_back": 2}[kind]):
        subject.call(DECREASE, buffer=buffer)
    subject.fails(DECREASE, MISUSE, buffer=buffer)
    expect_value(subject, buffer, ramp(4))
    subject.destroy_buffers(buffer)


@check("external_reference.of_each_buffer", calls=_COUNTS, rule="Each buffer has a count of its own.")
def _of_each_buffer(subject: Subject) -> None:
    subject.require(*_COUNTS)
    first, second = subject.buffer(ramp(4)), subject.buffer(ramp(4))
    subject.call(INCREASE, buffer=first)
    subject.fails(DECREASE, MISUSE, buffer=second)
    subject.call(DECREASE, buffer=first)
    subject.destroy_buffers(first, second)


@check(
    "external_reference.pointer",
    calls=(POINTER, *_COUNTS),
    rule="While the count is above zero the memory of a buffer is not moved: the pointer stays the same.",
)
def _pointer_stays(subject: Subject) -> None:
    buffer, pointer = referenced_buffer(subject, ramp(1000))
    others = [subject.buffer(ramp(1000)) for _ in range(20)]
    expect_value(subject, buffer, ramp(1000))
    subject.destroy_buffers(*others)
    again = subject.call(POINTER, buffer=buffer).device_memory_ptr
    subject.expect(again == pointer, hex(pointer), str(again))
    subject.call(DECREASE, buffer=buffer)
    subject.destroy_buffers(buffer)


@check(
    "external_reference.pointers_differ",
    calls=(POINTER, *_COUNTS),
    rule="Two buffers with contents of their own have memory of their own.",
)
def _pointers_differ(subject: Subject) -> None:
    first, at_first = referenced_buffer(subject, ramp(100))
    second, at_second = referenced_buffer(subject, ramp(100))
    subject.expect(at_first != at_second, "different pointers", hex(at_first))
    for each in (first, second):
        subject.call(DECREASE, buffer=each)
    subject.destroy_buffers(first, second)


@check(
    "external_reference.memory_has_the_value",
    calls=(POINTER, *_COUNTS, "PJRT_Buffer_IsOnCpu"),
    rule="Behind the pointer is the data of the buffer; a buffer on the CPU can be read there.",
)
def _memory_has_the_value(subject: Subject) -> None:
    array = ramp(777)
    buffer, pointer = referenced_buffer(subject, array)
    readable(subject, buffer)
    expect_bytes(subject, memory_at(pointer, array.nbytes), array.view(np.uint8))
    subject.call(DECREASE, buffer=buffer)
    subject.destroy_buffers(buffer)


@check(
    "external_reference.keeps_the_memory",
    calls=(POINTER, *_COUNTS, "PJRT_Buffer_Delete"),
    rule="While the count is above zero the raw data is not freed, also if the buffer is deleted.",
)
def _keeps_the_memory(subject: Subject) -> None:
    array = ramp(4096)
    buffer, pointer = referenced_buffer(subject, array)
    readable(subject, buffer)
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    others = [subject.buffer(np.full_like(array, -1)) for _ in range(20)]
    expect_bytes(subject, memory_at(pointer, array.nbytes), array.view(np.uint8))
    subject.destroy_buffers(*others)
    subject.call(DECREASE, buffer=buffer)
    subject.destroy_buffers(buffer)


@check(
    "external_reference.not_reused_by_donation",
    calls=(POINTER, *_COUNTS, "PJRT_LoadedExecutable_Execute"),
    rule="While the count is above zero no execution overwrites the memory: a donation is an error, or a copy is made.",
)
def _not_reused_by_donation(subject: Subject) -> None:
    executable = subject.compile("donates_first")
    array = ramp(4) + 1
    buffer, pointer = referenced_buffer(subject, array)
    readable(subject, buffer)
    other = subject.buffer(ramp(4))
    result = subject.attempt_execute(executable, [[buffer, other]])
    if result.error is None:
        for event in result.device_complete_events:
            subject.event_error(event)
        for output in result.output_lists[0]:
            subject.event_error(subject.call("PJRT_Buffer_ReadyEvent", buffer=output).event)
    expect_bytes(subject, memory_at(pointer, array.nbytes), array.view(np.uint8))
    subject.call(DECREASE, buffer=buffer)
    subject.destroy_buffers(buffer, other)


@check(
    "buffer.unsafe_pointer",
    calls=("PJRT_Buffer_UnsafePointer",),
    rule="PJRT_Buffer_UnsafePointer returns an address for a buffer; different buffers have different ones.",
)
def _unsafe_pointer(subject: Subject) -> None:
    name = "PJRT_Buffer_UnsafePointer"
    subject.require(name)
    first, second = subject.buffer(ramp(100)), subject.buffer(ramp(100))
    at_first = subject.call(name, buffer=first).buffer_pointer
    subject.expect(at_first, "an address", "null")
    again = subject.call(name, buffer=first).buffer_pointer
    subject.expect(again == at_first, f"the same address again, {at_first:#x}", f"{again:#x}")
    at_second = subject.call(name, buffer=second).buffer_pointer
    subject.expect(at_second != at_first, "another address for another buffer", f"{at_second:#x}")
    subject.destroy_buffers(first, second)
