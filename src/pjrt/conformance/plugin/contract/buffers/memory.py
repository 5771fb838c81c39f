"""The memory of buffers: its statistics and kinds, external references that keep it, and what must not share it."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.abi.schema import FUNCTIONS, STRUCTS
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.buffers.calls import (
    MISUSE,
    default_memory,
    expect_bytes,
    expect_value,
    memories_of,
    memory_at,
    ramp,
    supported,
)
from pjrt.conformance.plugin.subject import Subject

# External references: claims on the memory of a buffer by code outside of PJRT.

INCREASE = "PJRT_Buffer_IncreaseExternalReferenceCount"
DECREASE = "PJRT_Buffer_DecreaseExternalReferenceCount"
POINTER = "PJRT_Buffer_OpaqueDeviceMemoryDataPointer"
_COUNTS = (INCREASE, DECREASE)


def referenced_buffer(subject: Subject, array: np.ndarray) -> tuple[int, int]:
    """Return a buffer with one external reference, and the pointer to its memory."""
    subject.require(*_COUNTS, POINTER)
    buffer = subject.buffer(array)
    subject.await_buffers([buffer])
    subject.call(INCREASE, buffer=buffer)
    pointer = subject.call(POINTER, buffer=buffer).device_memory_ptr
    subject.expect(pointer, "a pointer", "a null pointer")
    return buffer, int(pointer)


def readable(subject: Subject, buffer: int) -> None:
    """Raise ``Unsupported`` unless the memory of a buffer can be read by this process."""
    subject.require("PJRT_Buffer_IsOnCpu")
    if not subject.call("PJRT_Buffer_IsOnCpu", buffer=buffer).is_on_cpu:
        raise Unsupported("buffers in memory of the CPU")


@check("external_reference.count", calls=_COUNTS)
def _count(subject: Subject) -> None:
    """Each increase of the count is taken back by one decrease."""
    subject.require(*_COUNTS)
    buffer = subject.buffer(ramp(4))
    for _ in range(3):
        subject.call(INCREASE, buffer=buffer)
    for _ in range(3):
        subject.call(DECREASE, buffer=buffer)
    subject.call(INCREASE, buffer=buffer)
    subject.call(DECREASE, buffer=buffer)
    expect_value(subject, buffer, ramp(4))


@check("external_reference.below_zero", calls=_COUNTS, over=("never_increased", "taken_back", "twice_taken_back"))
def _below_zero(subject: Subject, kind: str) -> None:
    """A decrease is an error if the count is zero."""
    subject.require(*_COUNTS)
    buffer = subject.buffer(ramp(4))
    for _ in range({"never_increased": 0, "taken_back": 1, "twice_taken_back": 2}[kind]):
        subject.call(INCREASE, buffer=buffer)
    for _ in range({"never_increased": 0, "taken_back": 1, "twice_taken_back": 2}[kind]):
        subject.call(DECREASE, buffer=buffer)
    subject.fails(DECREASE, MISUSE, buffer=buffer)
    expect_value(subject, buffer, ramp(4))


@check("external_reference.of_each_buffer", calls=_COUNTS)
def _of_each_buffer(subject: Subject) -> None:
    """Each buffer has a count of its own."""
    subject.require(*_COUNTS)
    first, second = subject.buffer(ramp(4)), subject.buffer(ramp(4))
    subject.call(INCREASE, buffer=first)
    subject.fails(DECREASE, MISUSE, buffer=second)
    subject.call(DECREASE, buffer=first)


@check("external_reference.pointer", calls=(POINTER, *_COUNTS))
def _pointer_stays(subject: Subject) -> None:
    """While the count is above zero the memory of a buffer is not moved: the pointer stays the same."""
    buffer, pointer = referenced_buffer(subject, ramp(1000))
    others = [subject.buffer(ramp(1000)) for _ in range(20)]
    expect_value(subject, buffer, ramp(1000))
    subject.destroy_buffers(*others)
    again = subject.call(POINTER, buffer=buffer).device_memory_ptr
    subject.expect(again == pointer, hex(pointer), str(again))
    subject.call(DECREASE, buffer=buffer)


@check("external_reference.pointers_differ", calls=(POINTER, *_COUNTS))
def _pointers_differ(subject: Subject) -> None:
    """Two buffers with contents of their own have memory of their own."""
    first, at_first = referenced_buffer(subject, ramp(100))
    second, at_second = referenced_buffer(subject, ramp(100))
    subject.expect(at_first != at_second, "different pointers", hex(at_first))
    for each in (first, second):
        subject.call(DECREASE, buffer=each)


@check("external_reference.memory_has_the_value", calls=(POINTER, *_COUNTS, "PJRT_Buffer_IsOnCpu"))
def _memory_has_the_value(subject: Subject) -> None:
    """Behind the pointer is the data of the buffer; a buffer on the CPU can be read there."""
    array = ramp(777)
    buffer, pointer = referenced_buffer(subject, array)
    readable(subject, buffer)
    expect_bytes(subject, memory_at(pointer, array.nbytes), array.view(np.uint8))
    subject.call(DECREASE, buffer=buffer)


@check("external_reference.keeps_the_memory", calls=(POINTER, *_COUNTS, "PJRT_Buffer_Delete"))
def _keeps_the_memory(subject: Subject) -> None:
    """While the count is above zero the raw data is not freed, also if the buffer is deleted."""
    array = ramp(4096)
    buffer, pointer = referenced_buffer(subject, array)
    readable(subject, buffer)
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    others = [subject.buffer(np.full_like(array, -1)) for _ in range(20)]
    expect_bytes(subject, memory_at(pointer, array.nbytes), array.view(np.uint8))
    subject.destroy_buffers(*others)
    subject.call(DECREASE, buffer=buffer)
    subject.destroy_buffers(buffer)


@check("external_reference.not_reused_by_donation", calls=(POINTER, *_COUNTS, "PJRT_LoadedExecutable_Execute"))
def _not_reused_by_donation(subject: Subject) -> None:
    """While the count is above zero no execution overwrites the memory: a donation is an error, or a copy is made."""
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


@check("buffer.unsafe_pointer", calls=("PJRT_Buffer_UnsafePointer",))
def _unsafe_pointer(subject: Subject) -> None:
    """PJRT_Buffer_UnsafePointer returns an address for a buffer; different buffers have different ones."""
    name = "PJRT_Buffer_UnsafePointer"
    subject.require(name)
    first, second = subject.buffer(ramp(100)), subject.buffer(ramp(100))
    at_first = subject.call(name, buffer=first).buffer_pointer
    subject.expect(at_first, "an address", "null")
    again = subject.call(name, buffer=first).buffer_pointer
    subject.expect(again == at_first, f"the same address again, {at_first:#x}", f"{again:#x}")
    at_second = subject.call(name, buffer=second).buffer_pointer
    subject.expect(at_second != at_first, "another address for another buffer", f"{at_second:#x}")


# Memory that must be separate: of copies, of references, and of what functions return.

_DIMENSIONS = "PJRT_Buffer_Dimensions"
_X = np.arange(4, dtype=np.float32)
_THREADS, _REFERENCES = 16, 200


@check("buffer.dimensions.of_two_buffers", calls=(_DIMENSIONS,))
def _dimensions(subject: Subject) -> None:
    """The dimensions of a buffer live as long as the buffer, whatever other buffers are asked."""
    first, second = subject.buffer(np.zeros((2, 3), np.float32)), subject.buffer(np.zeros((5, 7), np.float32))
    result = subject.call(_DIMENSIONS, buffer=first)
    offset = STRUCTS[FUNCTIONS[_DIMENSIONS].args].fields["dims"].offset
    address = int.from_bytes(result.struct_bytes[offset : offset + 8], "little")
    subject.call(_DIMENSIONS, buffer=second)
    dims = list((ctypes.c_int64 * 2).from_address(address))
    subject.expect(dims == [2, 3], "the dimensions [2, 3] at the same place", dims)


@check("memory.id.unique_in_its_kind", calls=("PJRT_Memory_Id", "PJRT_Client_AddressableMemories"))
def _memory_ids(subject: Subject) -> None:
    """The id of a memory is unique among the memories of its kind."""
    subject.require("PJRT_Client_AddressableMemories", "PJRT_Memory_Id")
    memories = subject.call("PJRT_Client_AddressableMemories", client=subject.client).addressable_memories or []
    pairs = [
        (subject.call("PJRT_Memory_Kind", memory=each).kind, subject.call("PJRT_Memory_Id", memory=each).id)
        for each in memories
    ]
    subject.expect(len(set(pairs)) == len(pairs), "another id for each memory of a kind", pairs)


def _pointer_on_host(subject: Subject, buffer: int) -> int:
    """Return the address of a buffer's memory, with an external reference to it."""
    subject.await_buffers([buffer])
    subject.require(INCREASE, POINTER, "PJRT_Buffer_IsOnCpu")
    if not subject.call("PJRT_Buffer_IsOnCpu", buffer=buffer).is_on_cpu:
        raise Unsupported("memory of buffers that the host can read")
    subject.call(INCREASE, buffer=buffer)
    return int(subject.call(POINTER, buffer=buffer).device_memory_ptr)


@check("external_reference.keeps_memory", calls=(INCREASE, "PJRT_Buffer_Delete"))
def _keeps_memory(subject: Subject) -> None:
    """While a buffer has an external reference its memory stays as it is, also when the buffer is deleted."""
    array = np.arange(1 << 14, dtype=np.float32)
    buffer = subject.buffer(array)
    address = _pointer_on_host(subject, buffer)
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    for _ in range(4):
        subject.buffer(np.full_like(array, -1))
    contents = np.frombuffer(ctypes.string_at(address, array.nbytes), np.float32)
    subject.expect(np.array_equal(contents, array), "the contents of the buffer", "other contents")
    subject.call(DECREASE, buffer=buffer)


@check("external_reference.prevents_donation", calls=(INCREASE, "PJRT_LoadedExecutable_Execute"))
def _prevents_donation(subject: Subject) -> None:
    """The memory of a buffer with an external reference is not given to the result of an execution."""
    buffer, other = subject.buffer(_X), subject.buffer(_X + 1)
    executable = subject.compile("donates_first")
    address = _pointer_on_host(subject, buffer)
    result = subject.attempt_execute(executable, [[buffer, other]])
    if result.error is None:
        subject.event_error(result.device_complete_events[0])
    contents = np.frombuffer(ctypes.string_at(address, _X.nbytes), np.float32)
    subject.expect(np.array_equal(contents, _X), "the contents of the buffer", contents.tolist())


@check("external_reference.threads", calls=(INCREASE, DECREASE))
def _references_of_threads(subject: Subject) -> None:
    """External references can be taken by several threads at once: each is counted."""
    subject.require(INCREASE, DECREASE)
    buffer = subject.buffer(_X)
    subject.call(INCREASE, buffer=buffer)  # some devices have none
    subject.call(DECREASE, buffer=buffer)

    def work() -> None:
        for _ in range(_REFERENCES):
            subject.plugin.call(INCREASE, buffer=buffer)

    threads = [threading.Thread(target=work) for _ in range(_THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for _ in range(_THREADS * _REFERENCES):
        subject.call(DECREASE, buffer=buffer)
    subject.fails(DECREASE, "INVALID_ARGUMENT", buffer=buffer)


@check("buffer.copy_to_device.is_separate", calls=("PJRT_Buffer_CopyToDevice", "PJRT_LoadedExecutable_Execute"))
def _copy_is_separate(subject: Subject) -> None:
    """A copy has memory of its own: a donation of its source does not change it."""
    _, second = subject.several_devices(2)
    source, other = subject.buffer(_X), subject.buffer(_X + 1)
    executable = subject.compile("donates_first")
    copy = subject.call("PJRT_Buffer_CopyToDevice", buffer=source, dst_device=second).dst_buffer
    subject.await_buffers([copy])
    subject.execute(executable, [[source, other]])
    subject.expect_contents(copy, _X)


# Descriptions of the memories of a device (the extension MemoryDescriptions).

LIST_DESCRIPTIONS, KIND_OF_DESCRIPTION = "PJRT_DeviceDescription_MemoryDescriptions", "PJRT_MemoryDescription_Kind"
_DESCRIPTION_CALLS = (LIST_DESCRIPTIONS, KIND_OF_DESCRIPTION)
_NONE = (1 << 64) - 1


def _descriptions(subject: Subject, device: int) -> tuple[list[int], int]:
    """Return the descriptions of a device's memories, and the index of the default one."""
    subject.require_extension("MemoryDescriptions")
    result = supported(subject, LIST_DESCRIPTIONS, device_description=subject.description(device))
    if not result.memory_descriptions:
        raise Unsupported("descriptions of memories")
    return list(result.memory_descriptions), int(result.default_memory_index) & _NONE


def _kind(subject: Subject, description: int) -> tuple[str, int]:
    result = subject.call(KIND_OF_DESCRIPTION, memory_description=description)
    return bytes(result.kind or b"").decode(), int(result.kind_id)


def _kind_of_memory(subject: Subject, memory: int) -> tuple[str, int]:
    kind = bytes(subject.call("PJRT_Memory_Kind", memory=memory).kind or b"").decode()
    return kind, int(subject.call("PJRT_Memory_Kind_Id", memory=memory).kind_id)


@check("memory_descriptions.kinds", calls=(*_DESCRIPTION_CALLS, "PJRT_Memory_Kind", "PJRT_Memory_Kind_Id"))
def _kinds(subject: Subject) -> None:
    """A device description lists the kinds of the memories that its device has."""
    for device in subject.devices:
        described = sorted(_kind(subject, each) for each in _descriptions(subject, device)[0])
        subject.require("PJRT_Memory_Kind_Id")
        found = sorted(_kind_of_memory(subject, each) for each in memories_of(subject, device))
        subject.expect(described == found, f"{found}, as the memories of the device", str(described))


@check("memory_descriptions.default", calls=(*_DESCRIPTION_CALLS, "PJRT_Device_DefaultMemory"))
def _default(subject: Subject) -> None:
    """The default memory of a description is of the kind of the device's default memory."""
    for device in subject.devices:
        described, index = _descriptions(subject, device)
        if index == _NONE:
            continue
        subject.expect(index < len(described), f"an index below {len(described)}", f"{index}")
        subject.require("PJRT_Memory_Kind_Id")
        expected = _kind_of_memory(subject, default_memory(subject, device))
        found = _kind(subject, described[index])
        subject.expect(found == expected, str(expected), str(found))


@check(
    "memory_descriptions.of_each_topology_device",
    calls=(*_DESCRIPTION_CALLS, "PJRT_TopologyDescription_GetDeviceDescriptions"),
)
def _of_each_topology_device(subject: Subject) -> None:
    """The devices of the client's topology have descriptions of their memories, too."""
    subject.require_extension("MemoryDescriptions")
    subject.require("PJRT_Client_TopologyDescription", LIST_DESCRIPTIONS)
    topology = subject.call("PJRT_Client_TopologyDescription", client=subject.client).topology
    listed = subject.call("PJRT_TopologyDescription_GetDeviceDescriptions", topology=topology).descriptions
    for description in listed or ():
        result = subject.call(LIST_DESCRIPTIONS, device_description=description)
        for each in result.memory_descriptions or ():
            kind, _ = _kind(subject, each)
            subject.expect(kind, "a kind with a name", "an empty one")


@check("memory_descriptions.repeated", calls=_DESCRIPTION_CALLS)
def _repeated(subject: Subject) -> None:
    """The descriptions belong to the device description: they are the same each time."""
    first = _descriptions(subject, subject.device)
    kinds_before = [_kind(subject, each) for each in first[0]]
    for _ in range(10):
        again = _descriptions(subject, subject.device)
        found = [_kind(subject, each) for each in again[0]]
        subject.expect((found, again[1]) == (kinds_before, first[1]), str(kinds_before), str(found))


# The statistics of a device's memory.

STATS = "PJRT_Device_MemoryStats"
_STATISTICS_CALLS = (STATS,)
_SIZE = 1 << 22
_PATIENCE = 20.0
"""The seconds in which a plugin frees the memory of a buffer that nothing uses any more."""


def statistics(subject: Subject) -> dict[str, Any]:
    """Return the statistics of the first device that are set."""
    subject.require(STATS)
    fields = subject.call(STATS, device=subject.device).fields
    return {
        name: value
        for name, value in fields.items()
        if not name.endswith("_is_set") and fields.get(f"{name}_is_set", True)
    }


def _in_use(subject: Subject) -> int:
    return int(statistics(subject)["bytes_in_use"])


def _wait_until(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; the plugin frees memory when operations on it have completed, perhaps later."""
    end = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


@check("memory_stats.sane", calls=_STATISTICS_CALLS)
def _sane(subject: Subject) -> None:
    """The statistics are numbers of bytes: none is negative, and peaks are no smaller."""
    subject.buffer(ramp(1000))
    found = statistics(subject)
    for name, number in found.items():
        subject.expect(number >= 0, f"{name} of at least 0", f"{number}")
    in_use = found["bytes_in_use"]
    for name in ("peak_bytes_in_use", "bytes_limit"):
        if found.get(name):
            subject.expect(found[name] >= in_use, f"{name} of at least {in_use}", f"{found[name]}")


@check("memory_stats.flags", calls=_STATISTICS_CALLS)
def _flags(subject: Subject) -> None:
    """Each flag says whether its statistic is set, whatever the caller's memory held before."""
    names = [name for name in statistics(subject) if name != "bytes_in_use"]
    fields = subject.call(STATS, device=subject.device).fields
    flags = [name for name in fields if name.endswith("_is_set")]
    before = dict.fromkeys(flags, True) | {name.removesuffix("_is_set"): -777 for name in flags}
    after = subject.call(STATS, device=subject.device, **before).fields
    found = sorted(name.removesuffix("_is_set") for name in flags if after[name])
    subject.expect(found == sorted(names), f"the flags of {sorted(names)}", str(found))
    for name in found:
        subject.expect(after[name] != -777, f"a value of {name}", "the value that the caller's memory held before")


@check("memory_stats.grow", calls=_STATISTICS_CALLS)
def _grow(subject: Subject) -> None:
    """bytes_in_use has the bytes of each buffer."""
    before = _in_use(subject)
    buffers = [subject.buffer(np.ones(_SIZE, np.uint8)) for _ in range(3)]
    subject.await_buffers(buffers)
    after = _in_use(subject)
    subject.expect(after >= before + 3 * _SIZE, f"at least {before + 3 * _SIZE} bytes", f"{after}")


@check(
    "memory_stats.shrink",
    calls=(*_STATISTICS_CALLS, "PJRT_Buffer_Destroy", "PJRT_Buffer_Delete"),
    over=("delete", "destroy"),
)
def _shrink(subject: Subject, end: str) -> None:
    """The memory of a buffer is freed when it was deleted or destroyed, and nothing uses it any more."""
    statistics(subject)
    buffers = [subject.buffer(np.ones(_SIZE, np.uint8)) for _ in range(3)]
    subject.await_buffers(buffers)
    full = _in_use(subject)
    for buffer in buffers:
        if end == "delete":
            subject.call("PJRT_Buffer_Delete", buffer=buffer)
        else:
            subject.destroy_buffers(buffer)
    most = full - 3 * _SIZE
    subject.expect(_wait_until(lambda: _in_use(subject) <= most), f"at most {most} bytes in use", f"{_in_use(subject)}")
    if end == "delete":
        subject.destroy_buffers(*buffers)


@check("memory_stats.steady", calls=(*_STATISTICS_CALLS, "PJRT_Buffer_Destroy"))
def _steady(subject: Subject) -> None:
    """Buffers that come and go leave no memory in use."""
    subject.destroy_buffers(subject.buffer(np.ones(_SIZE, np.uint8)))
    before = _in_use(subject)
    for _ in range(50):
        subject.destroy_buffers(subject.buffer(np.ones(_SIZE // 4, np.uint8)))
    subject.expect(
        _wait_until(lambda: _in_use(subject) <= before), f"at most {before} bytes in use", f"{_in_use(subject)}"
    )


@check("memory_stats.peak", calls=_STATISTICS_CALLS)
def _peak(subject: Subject) -> None:
    """peak_bytes_in_use is the most that was in use, also after it is freed."""
    if "peak_bytes_in_use" not in statistics(subject):
        raise Unsupported("the statistic peak_bytes_in_use")
    buffer = subject.buffer(np.ones(2 * _SIZE, np.uint8))
    subject.await_buffers([buffer])
    full = _in_use(subject)
    subject.destroy_buffers(buffer)
    found = statistics(subject)["peak_bytes_in_use"]
    subject.expect(found >= full, f"at least {full} bytes", f"{found}")


@check("memory_stats.allocations", calls=_STATISTICS_CALLS)
def _allocations(subject: Subject) -> None:
    """num_allocs and largest_alloc_size, where they are set, count the buffers that were made."""
    before = statistics(subject)
    if not {"num_allocs", "largest_alloc_size"} & before.keys():
        raise Unsupported("the statistics num_allocs and largest_alloc_size")
    for _ in range(3):
        subject.buffer(np.ones(2 * _SIZE, np.uint8))
    after = statistics(subject)
    if "num_allocs" in before:
        least = before["num_allocs"] + 1
        subject.expect(after["num_allocs"] >= least, f"at least {least} allocations", f"{after['num_allocs']}")
    if "largest_alloc_size" in before:
        found = after["largest_alloc_size"]
        subject.expect(found >= 2 * _SIZE, f"at least {2 * _SIZE} bytes", f"{found}")


@check("memory_stats.external_reference", calls=(*_STATISTICS_CALLS, INCREASE, DECREASE, "PJRT_Buffer_Delete"))
def _external_reference(subject: Subject) -> None:
    """While a buffer has external references, its memory stays in use after PJRT_Buffer_Delete."""
    subject.require(INCREASE, DECREASE)
    statistics(subject)
    buffer = subject.buffer(np.ones(_SIZE, np.uint8))
    subject.await_buffers([buffer])
    subject.call(INCREASE, buffer=buffer)
    full = _in_use(subject)
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    found = _in_use(subject)
    subject.expect(found >= full, f"still {full} bytes in use", f"{found}")
    subject.call(DECREASE, buffer=buffer)
    subject.destroy_buffers(buffer)
    most = full - _SIZE
    subject.expect(_wait_until(lambda: _in_use(subject) <= most), f"at most {most} bytes in use", f"{_in_use(subject)}")


@check("memory_stats.of_each_device", calls=_STATISTICS_CALLS)
def _of_each_device(subject: Subject) -> None:
    """A buffer counts on the device that it is on."""
    subject.require(STATS)
    first, second = subject.several_devices(2)
    before = {each: subject.call(STATS, device=each).bytes_in_use for each in (first, second)}
    buffer = subject.buffer(np.ones(_SIZE, np.uint8), device=second)
    subject.await_buffers([buffer])
    after = subject.call(STATS, device=second).bytes_in_use
    subject.expect(after >= before[second] + _SIZE, f"at least {before[second] + _SIZE} bytes", f"{after}")
