"""Checks that memory which must be separate is: of copies, of references, and of what functions return."""

from __future__ import annotations

import ctypes
import threading

import numpy as np

from pjrt.capi.layer.schema import FUNCTIONS, STRUCTS
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.subject import Subject

_INCREASE = "PJRT_Buffer_IncreaseExternalReferenceCount"
_DECREASE = "PJRT_Buffer_DecreaseExternalReferenceCount"
_POINTER = "PJRT_Buffer_OpaqueDeviceMemoryDataPointer"
_DIMENSIONS = "PJRT_Buffer_Dimensions"
_X = np.arange(4, dtype=np.float32)
_THREADS, _REFERENCES = 16, 200


@check(
    "buffer.dimensions.of_two_buffers",
    calls=(_DIMENSIONS,),
    rule="The dimensions of a buffer live as long as the buffer, whatever other buffers are asked.",
)
def _dimensions(subject: Subject) -> None:
    first, second = subject.buffer(np.zeros((2, 3), np.float32)), subject.buffer(np.zeros((5, 7), np.float32))
    result = subject.call(_DIMENSIONS, buffer=first)
    offset = STRUCTS[FUNCTIONS[_DIMENSIONS].args].fields["dims"].offset
    address = int.from_bytes(result.struct_bytes[offset : offset + 8], "little")
    subject.call(_DIMENSIONS, buffer=second)
    dims = list((ctypes.c_int64 * 2).from_address(address))
    subject.expect(dims == [2, 3], "the dimensions [2, 3] at the same place", dims)


@check(
    "memory.id.unique_in_its_kind",
    calls=("PJRT_Memory_Id", "PJRT_Client_AddressableMemories"),
    rule="The id of a memory is unique among the memories of its kind.",
)
def _memory_ids(subject: Subject) -> None:
    subject.require("PJRT_Client_AddressableMemories", "PJRT_Memory_Id")
    memories = subject.call("PJRT_Client_AddressableMemories", client=subject.client).addressable_memories or []
    pairs = [
        (subject.call("PJRT_Memory_Kind", memory=each).kind, subject.call("PJRT_Memory_Id", memory=each).id)
        for each in memories
    ]
    subject.expect(len(set(pairs)) == len(pairs), "another id for each memory of a kind", pairs)


def _pointer_on_host(subject: Subject, buffer: int) -> int:
    """Return the address of a buffer's memory, with an external reference to it."""
    subject.require(_INCREASE, _POINTER, "PJRT_Buffer_IsOnCpu")
    if not subject.call("PJRT_Buffer_IsOnCpu", buffer=buffer).is_on_cpu:
        raise Unsupported("memory of buffers that the host can read")
    subject.call(_INCREASE, buffer=buffer)
    return int(subject.call(_POINTER, buffer=buffer).device_memory_ptr)


@check(
    "external_reference.keeps_memory",
    calls=(_INCREASE, "PJRT_Buffer_Delete"),
    rule="While a buffer has an external reference its memory stays as it is, also when the buffer is deleted.",
)
def _keeps_memory(subject: Subject) -> None:
    array = np.arange(1 << 14, dtype=np.float32)
    buffer = subject.buffer(array)
    address = _pointer_on_host(subject, buffer)
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    others = [subject.buffer(np.full_like(array, -1)) for _ in range(4)]
    contents = np.frombuffer(ctypes.string_at(address, array.nbytes), np.float32)
    subject.expect(np.array_equal(contents, array), "the contents of the buffer", "other contents")
    subject.call(_DECREASE, buffer=buffer)
    subject.destroy_buffers(buffer, *others)


@check(
    "external_reference.prevents_donation",
    calls=(_INCREASE, "PJRT_LoadedExecutable_Execute"),
    rule="The memory of a buffer with an external reference is not given to the result of an execution.",
)
def _prevents_donation(subject: Subject) -> None:
    buffer, other = subject.buffer(_X), subject.buffer(_X + 1)
    executable = subject.compile("donates_first")
    address = _pointer_on_host(subject, buffer)
    result = subject.attempt_execute(executable, [[buffer, other]])
    if result.error is None:
        subject.event_error(result.device_complete_events[0])
    contents = np.frombuffer(ctypes.string_at(address, _X.nbytes), np.float32)
    subject.expect(np.array_equal(contents, _X), "the contents of the buffer", contents.tolist())


@check(
    "external_reference.threads",
    calls=(_INCREASE, _DECREASE),
    rule="External references can be taken by several threads at once: each is counted.",
)
def _references_of_threads(subject: Subject) -> None:
    subject.require(_INCREASE, _DECREASE)
    buffer = subject.buffer(_X)
    subject.call(_INCREASE, buffer=buffer)  # some devices have none
    subject.call(_DECREASE, buffer=buffer)

    def work() -> None:
        for _ in range(_REFERENCES):
            subject.plugin.call(_INCREASE, buffer=buffer)

    threads = [threading.Thread(target=work) for _ in range(_THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for _ in range(_THREADS * _REFERENCES):
        subject.call(_DECREASE, buffer=buffer)
    subject.fails(_DECREASE, "INVALID_ARGUMENT", buffer=buffer)


@check(
    "buffer.copy_to_device.is_separate",
    calls=("PJRT_Buffer_CopyToDevice", "PJRT_LoadedExecutable_Execute"),
    rule="A copy has memory of its own: a donation of its source does not change it.",
)
def _copy_is_separate(subject: Subject) -> None:
    _, second = subject.several_devices(2)
    source, other = subject.buffer(_X), subject.buffer(_X + 1)
    executable = subject.compile("donates_first")
    copy = subject.call("PJRT_Buffer_CopyToDevice", buffer=source, dst_device=second).dst_buffer
    subject.await_buffers([copy])
    subject.execute(executable, [[source, other]])
    subject.expect_contents(copy, _X)
