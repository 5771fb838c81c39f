"""Transfers between host memory and a device: host buffer semantics, reads, and memory mapped or allocated for them."""

from __future__ import annotations

import ctypes
import mmap
import threading

import numpy as np

from pjrt.abi.schema import FUNCTIONS
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.calls import (
    IMMUTABLE_ZERO_COPY,
    MISUSE,
    ONLY_DURING_CALL,
    SEMANTICS,
    UNTIL_TRANSFER_COMPLETES,
    Array,
    address,
    expect_bytes,
    expect_value,
    from_host,
    is_ready,
    memory_at,
    outcome,
    ramp,
    read_bytes,
    read_size,
    supported,
)
from pjrt.conformance.plugin.contract.buffers.pending import fulfill, make_alias
from pjrt.conformance.plugin.contract.events import on_ready
from pjrt.conformance.plugin.subject import Subject

# Host buffer semantics: how long a plugin may use the caller's memory, and how it reports that it is done.

_FROM_HOST = ("PJRT_Client_BufferFromHostBuffer",)
_ZERO_COPY = ("immutable_zero_copy", "mutable_zero_copy")
_LARGE = 1 << 20


@check("buffer_from_host.value", calls=_FROM_HOST, over=tuple(SEMANTICS))
def _value(subject: Subject, semantics: str) -> None:
    """The new buffer has the value of the host memory."""
    array = ramp(5, 7)
    result = from_host(subject, array, SEMANTICS[semantics])
    expect_value(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)


@check("buffer_from_host.done_event", calls=_FROM_HOST, over=tuple(SEMANTICS))
def _done_event(subject: Subject, semantics: str) -> None:
    """done_with_host_buffer is an event that becomes ready without an error, at the latest with the buffer's end."""
    array = ramp(1000)
    result = from_host(subject, array, SEMANTICS[semantics])
    subject.await_buffers([result.buffer])
    subject.destroy_buffers(result.buffer)
    event = result.done_with_host_buffer
    error = subject.plugin.call("PJRT_Event_Await", event=event).error
    subject.expect(error is None, "an event without an error", error)
    subject.expect(is_ready(subject, event), "the event to be ready after the wait", "that it is not")
    subject.call("PJRT_Event_Error", event=event)


@check("buffer_from_host.done_callback_once", calls=(*_FROM_HOST, "PJRT_Event_OnReady"), over=tuple(SEMANTICS))
def _done_callback_once(subject: Subject, semantics: str) -> None:
    """A callback on done_with_host_buffer is called once."""
    array = ramp(1000)
    result = from_host(subject, array, SEMANTICS[semantics])
    callback = on_ready(subject, result.done_with_host_buffer)
    subject.await_buffers([result.buffer])
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)
    callback.expect_once(None)


@check("buffer_from_host.done_event_destroyed_early", calls=(*_FROM_HOST, "PJRT_Event_Destroy"), over=tuple(SEMANTICS))
def _done_event_destroyed_early(subject: Subject, semantics: str) -> None:
    """The caller may destroy done_with_host_buffer at any time; the buffer is not affected."""
    array = ramp(1000)
    result = from_host(subject, array, SEMANTICS[semantics])
    subject.call("PJRT_Event_Destroy", event=result.done_with_host_buffer)
    expect_value(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)


@check("buffer_from_host.destroyed_before_done", calls=(*_FROM_HOST, "PJRT_Buffer_Destroy"), over=tuple(SEMANTICS))
def _destroyed_before_done(subject: Subject, semantics: str) -> None:
    """done_with_host_buffer becomes ready also if the buffer is destroyed right after the call."""
    array = ramp(_LARGE)
    result = from_host(subject, array, SEMANTICS[semantics])
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)


@check("buffer_from_host.host_memory_changed_after_done", calls=_FROM_HOST, over=tuple(SEMANTICS))
def _host_memory_changed_after_done(subject: Subject, semantics: str) -> None:
    """Once done_with_host_buffer is ready, the host memory is the caller's again: changes do not reach the buffer."""
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


@check("buffer_from_host.changed_after_the_call", calls=_FROM_HOST, over=("small", "large"))
def _changed_after_the_call(subject: Subject, size: str) -> None:
    """With kImmutableOnlyDuringCall the plugin holds no reference to the host memory after the call."""
    array = ramp(3 if size == "small" else _LARGE)
    copy = array.copy()
    result = from_host(subject, array)
    array.fill(-1)
    expect_value(subject, result.buffer, copy)
    subject.await_event(result.done_with_host_buffer)


@check("buffer_from_host.many_at_once", calls=_FROM_HOST, over=tuple(SEMANTICS))
def _many_at_once(subject: Subject, semantics: str) -> None:
    """Each of many transfers under way has its own value and its own event."""
    arrays = [np.full(4099, number, np.int32) for number in range(32)]
    results = [from_host(subject, array, SEMANTICS[semantics]) for array in arrays]
    for array, result in zip(arrays, results, strict=True):
        expect_value(subject, result.buffer, array)
    for result in reversed(results):
        subject.destroy_buffers(result.buffer)
    for result in results:
        subject.await_event(result.done_with_host_buffer)


@check("buffer_from_host.host_memory_unchanged", calls=_FROM_HOST, over=tuple(SEMANTICS))
def _host_memory_unchanged(subject: Subject, semantics: str) -> None:
    """The plugin only reads the host memory while it makes a buffer."""
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


@check("buffer_from_host.unaligned", calls=_FROM_HOST, over=tuple(SEMANTICS))
def _buffer_from_host_unaligned(subject: Subject, semantics: str) -> None:
    """The host memory has any alignment."""
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
    over=_ZERO_COPY,
)
def _in_use_while_aliased(subject: Subject, semantics: str) -> None:
    """While a buffer uses the host memory in place, done_with_host_buffer is not ready."""
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
    over=("immutable_until_transfer_completes", "immutable_zero_copy"),
)
def _one_memory_two_buffers(subject: Subject, semantics: str) -> None:
    """Two buffers may be made of the same immutable host memory; each has an event of its own."""
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
    over=_ZERO_COPY,
)
def _zero_copy_read_outlives_the_buffer(subject: Subject, semantics: str) -> None:
    """A read that is under way has the value also if the buffer over the host memory is destroyed meanwhile."""
    array = _aligned(_LARGE)
    result = from_host(subject, array, SEMANTICS[semantics])
    data = np.zeros_like(array)
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=result.buffer, dst=data)
    subject.destroy_buffers(result.buffer)
    subject.await_event(read.event)
    expect_bytes(subject, data.view(np.uint8), array.view(np.uint8))
    subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.immutable_zero_copy_not_donated_in_place", calls=(*_FROM_HOST, "PJRT_LoadedExecutable_Execute")
)
def _immutable_zero_copy_not_donated_in_place(subject: Subject) -> None:
    """With kImmutableZeroCopy the plugin never writes to the host memory, also if the buffer is donated."""
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


# Reads of buffers to host memory.

_READ = ("PJRT_Buffer_ToHostBuffer",)


@check("to_host.size_query", calls=_READ, over=("zero_before", "garbage_before"))
def _size_query(subject: Subject, before: str) -> None:
    """With dst null the call only sets dst_size to the bytes that are needed, whatever dst_size was."""
    buffer = subject.buffer(ramp(3, 5))
    size = 0 if before == "zero_before" else 987654321
    found = subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=0, dst_size=size).dst_size
    subject.expect(found == 60, "60 bytes", found)


@check("to_host.size_query_of_an_empty_buffer", calls=_READ, over=("zero_before", "garbage_before"))
def _size_query_of_an_empty_buffer(subject: Subject, before: str) -> None:
    """With dst null the call sets dst_size to the bytes that are needed: none for a buffer without elements."""
    buffer = subject.buffer(np.zeros((4, 0), np.float32))
    size = 0 if before == "zero_before" else 987654321
    result = subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=0, dst_size=size)
    subject.expect(result.dst_size == 0, "0 bytes", result.dst_size)
    if result.event:
        subject.await_event(result.event)


@check("to_host.exact_size", calls=_READ, over=("exact", "larger"))
def _exact_size(subject: Subject, kind: str) -> None:
    """The copy fills the needed bytes of dst and no other byte."""
    array = ramp(7, 3)
    buffer = subject.buffer(array)
    around = np.full(array.nbytes + 256, 0xAB, np.uint8)
    expected = around.copy()
    expected[128:-128] = array.reshape(-1).view(np.uint8)
    size = array.nbytes if kind == "exact" else array.nbytes + 100
    error = outcome(subject, "PJRT_Buffer_ToHostBuffer", src=buffer, dst=address(around) + 128, dst_size=size)
    subject.expect(error is None, "a read without an error", error)
    expect_bytes(subject, around, expected)


@check("to_host.too_small", calls=_READ, over=("one_byte_less", "one_byte", "none"))
def _too_small(subject: Subject, kind: str) -> None:
    """dst_size is at least the needed size; otherwise the call is an error and writes nothing."""
    buffer = subject.buffer(ramp(10))
    data = np.full(40, 0xAB, np.uint8)
    size = {"one_byte_less": 39, "one_byte": 1, "none": 0}[kind]
    subject.fails("PJRT_Buffer_ToHostBuffer", MISUSE, src=buffer, dst=address(data), dst_size=size)
    subject.expect(bool((data == 0xAB).all()), "no byte to be written", "changed bytes")


@check("to_host.event", calls=_READ)
def _event(subject: Subject) -> None:
    """The event becomes ready, without an error, when the copy has completed."""
    array = ramp(_LARGE)
    buffer = subject.buffer(array)
    data = np.zeros_like(array)
    found = subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=data).event
    subject.expect(found != 0, "an event", "a null pointer")
    error = subject.plugin.call("PJRT_Event_Await", event=found).error
    subject.expect(error is None, "no error", error)
    expect_bytes(subject, data.view(np.uint8), array.view(np.uint8))
    subject.expect(is_ready(subject, found), "the event to be ready after the wait", "that it is not")
    subject.call("PJRT_Event_Error", event=found)


@check("to_host.data_there_when_ready", calls=(*_READ, "PJRT_Event_OnReady"))
def _data_there_when_ready(subject: Subject) -> None:
    """When the event is ready the whole copy is in dst, also inside of its callback."""
    array = ramp(_LARGE, dtype=np.int32) + 1
    buffer = subject.buffer(array)
    data = np.zeros_like(array)
    seen: list[bool] = []
    done = threading.Event()

    def called(error: int, user_arg: int) -> None:
        seen.append(not error and bool((data == array).all()))
        done.set()

    read = subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=data)
    _kept = subject.call("PJRT_Event_OnReady", event=read.event, callback=called)
    subject.expect(done.wait(30), "a call of the callback", "no call")
    subject.expect(seen == [True], "the whole copy inside of the callback", "a part of it")
    subject.await_event(read.event)


@check(
    "to_host.data_there_when_pending_is_ready", calls=(*_READ, "PJRT_Event_OnReady", "PJRT_Client_CreateAliasBuffer")
)
def _data_there_when_pending_is_ready(subject: Subject) -> None:
    """The event of a read that waited for its buffer is ready when the whole copy is in dst, and not before."""
    array = ramp(_LARGE, dtype=np.int32) + 1
    alias, handle = make_alias(subject, array.shape, element_type=4)
    data = np.zeros_like(array)
    complete: list[bool] = []
    done = threading.Event()

    def called(error: int, user_arg: int) -> None:
        complete.append(not error and bool((data == array).all()))
        done.set()

    read = subject.call("PJRT_Buffer_ToHostBuffer", src=alias, dst=data)
    _kept = subject.call("PJRT_Event_OnReady", event=read.event, callback=called)
    buffer = subject.buffer(array)
    fulfill(subject, handle, buffer)
    subject.expect(done.wait(30), "a call of the callback", "no call")
    subject.expect(complete == [True], "the whole copy inside of the callback", "a part of it")
    subject.await_event(read.event)


@check("to_host.callback_once", calls=(*_READ, "PJRT_Event_OnReady"))
def _callback_once(subject: Subject) -> None:
    """A callback on the event is called once, also if it is registered after the event is ready."""
    array = ramp(100)
    buffer = subject.buffer(array)
    data = np.zeros_like(array)
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=data)
    before = on_ready(subject, read.event)
    error = subject.plugin.call("PJRT_Event_Await", event=read.event).error
    subject.expect(error is None, "no error", error)
    after = on_ready(subject, read.event)
    subject.await_event(read.event)
    before.expect_once(None)
    after.expect_once(None)


@check("to_host.event_destroyed_early", calls=(*_READ, "PJRT_Event_Destroy"))
def _event_destroyed_early(subject: Subject) -> None:
    """The event may be destroyed before the copy has completed; the copy goes on."""
    array = ramp(_LARGE)
    buffer = subject.buffer(array)
    first, second = np.zeros_like(array), np.zeros_like(array)
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=first)
    calls = on_ready(subject, read.event)
    subject.call("PJRT_Event_Destroy", event=read.event)
    _read_into(subject, buffer, second)
    calls.wait()
    expect_bytes(subject, first.view(np.uint8), array.view(np.uint8))
    expect_bytes(subject, second.view(np.uint8), array.view(np.uint8))
    subject.destroy_buffers(buffer)


@check("to_host.several_at_once", calls=_READ)
def _several_at_once(subject: Subject) -> None:
    """A buffer may be read several times at once."""
    array = ramp(10_007)
    buffer = subject.buffer(array)
    copies = [np.zeros_like(array) for _ in range(16)]
    reads = [subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=copy) for copy in copies]
    for read in reversed(reads):
        subject.await_event(read.event)
    for copy in copies:
        expect_bytes(subject, copy.view(np.uint8), array.view(np.uint8))


@check("to_host.from_many_threads", calls=_READ)
def _from_many_threads(subject: Subject) -> None:
    """Threads may read the same buffer at the same time."""
    array = ramp(4099)
    buffer = subject.buffer(array)
    copies = [np.zeros_like(array) for _ in range(16)]
    errors: list[BaseException] = []

    def read(copy: Array) -> None:
        try:
            _read_into(subject, buffer, copy)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    for copy in copies:
        expect_bytes(subject, copy.view(np.uint8), array.view(np.uint8))


@check("to_host.before_the_buffer_is_ready", calls=("PJRT_Client_BufferFromHostBuffer", *_READ))
def _before_the_buffer_is_ready(subject: Subject) -> None:
    """A buffer may be read before it is ready; the copy is made when it is."""
    array = ramp(_LARGE)
    result = from_host(subject, array, 1)
    data = np.zeros_like(array)
    _read_into(subject, result.buffer, data)
    expect_bytes(subject, data.view(np.uint8), array.view(np.uint8))
    subject.await_event(result.done_with_host_buffer)


@check(
    "to_host.released_during_the_copy",
    calls=(*_READ, "PJRT_Buffer_Delete", "PJRT_Buffer_Destroy"),
    over=("delete", "destroy"),
)
def _released_during_the_copy(subject: Subject, kind: str) -> None:
    """The memory of a buffer is freed when all operations that use it have completed: a copy under way goes on."""
    array = ramp(_LARGE)
    buffer = subject.buffer(array)
    data = np.zeros_like(array)
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=data)
    if kind == "delete":
        subject.call("PJRT_Buffer_Delete", buffer=buffer)
    else:
        subject.destroy_buffers(buffer)
    later = subject.buffer(np.full_like(array, -1))  # perhaps in the memory that was freed too early
    subject.await_event(read.event)
    expect_bytes(subject, data.view(np.uint8), array.view(np.uint8))
    subject.destroy_buffers(later, *([buffer] if kind == "delete" else []))


@check("to_host.unaligned", calls=_READ)
def _to_host_unaligned(subject: Subject) -> None:
    """dst has any alignment."""
    array = ramp(33)
    buffer = subject.buffer(array)
    memory = np.zeros(array.nbytes + 8, np.uint8)
    for offset in (1, 2, 3, 5):
        memory.fill(0)
        error = outcome(
            subject, "PJRT_Buffer_ToHostBuffer", src=buffer, dst=address(memory) + offset, dst_size=array.nbytes
        )
        subject.expect(error is None, "a read without an error", error)
        expect_bytes(subject, memory[offset : offset + array.nbytes], array.view(np.uint8))


@check("to_host.repeated", calls=_READ)
def _repeated(subject: Subject) -> None:
    """A read does not change the buffer: each one has the same value."""
    array = ramp(17)
    buffer = subject.buffer(array)
    for _ in range(50):
        data = np.zeros_like(array)
        _read_into(subject, buffer, data)
        expect_bytes(subject, data.view(np.uint8), array.view(np.uint8))
        data.fill(-1)
    subject.expect(read_size(subject, buffer) == array.nbytes, f"{array.nbytes} bytes", read_size(subject, buffer))


def _read_into(subject: Subject, buffer: int, data: Array) -> None:
    error = outcome(subject, "PJRT_Buffer_ToHostBuffer", src=buffer, dst=data)
    subject.expect(error is None, "a read without an error", error)


# Host memory that is mapped for transfers.

MAP, UNMAP = "PJRT_Client_DmaMap", "PJRT_Client_DmaUnmap"
_CALLS = (MAP, UNMAP)


def _mapped(subject: Subject, size: int = 1 << 16) -> Array:
    """Return memory of whole pages that is mapped."""
    subject.require(*_CALLS)
    data = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    supported(subject, MAP, client=subject.client, data=address(data), size=data.nbytes)
    return data


@check("dma.map_and_unmap", calls=_CALLS)
def _map_and_unmap(subject: Subject) -> None:
    """Memory is mapped by its address and size, and unmapped by its address."""
    data = _mapped(subject)
    data[:] = 7
    subject.call(UNMAP, client=subject.client, data=address(data))
    subject.expect(bool((data == 7).all()), "memory that keeps its bytes", "changed bytes")


@check(
    "dma.transfers",
    calls=(*_CALLS, "PJRT_Client_BufferFromHostBuffer", "PJRT_Buffer_ToHostBuffer"),
    over=tuple(SEMANTICS),
)
def _transfers(subject: Subject, semantics: str) -> None:
    """Mapped memory is used for transfers as any other."""
    data = _mapped(subject)
    source, target = data[:4096], data[8192 : 8192 + 4096]
    source[:] = np.arange(4096).astype(np.uint8)
    result = from_host(subject, source, SEMANTICS[semantics])
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=result.buffer, dst=target)
    subject.await_event(read.event)
    expect_bytes(subject, target, source)
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)
    subject.call(UNMAP, client=subject.client, data=address(data))


@check("dma.again", calls=_CALLS)
def _again(subject: Subject) -> None:
    """Memory that was unmapped may be mapped again."""
    data = _mapped(subject)
    for _ in range(20):
        subject.call(UNMAP, client=subject.client, data=address(data))
        subject.call(MAP, client=subject.client, data=address(data), size=data.nbytes)
    subject.call(UNMAP, client=subject.client, data=address(data))


@check("dma.several", calls=_CALLS)
def _dma_several(subject: Subject) -> None:
    """Several pieces of memory are mapped at once, and unmapped in any order."""
    pieces = [_mapped(subject, 1 << 14) for _ in range(8)]
    for piece in pieces[::2] + pieces[1::2]:
        subject.call(UNMAP, client=subject.client, data=address(piece))


@check("dma.unmap_unknown", calls=_CALLS)
def _unmap_unknown(subject: Subject) -> None:
    """Unmapping memory that is not mapped harms nothing."""
    data = _mapped(subject)
    other = np.zeros(4096, np.uint8)
    subject.attempt(UNMAP, client=subject.client, data=address(other))
    subject.call(UNMAP, client=subject.client, data=address(data))
    subject.attempt(UNMAP, client=subject.client, data=address(data))
    subject.expect_contents(subject.buffer(other), other)


# Host memory that the plugin allocates for transfers (the extensions HostAllocator and HostMemoryAllocator).


def _names(extension: str) -> dict[str, str]:
    """Return the functions of an extension by the ends of their names."""
    return {name.rpartition("_")[2].lower(): name for name, each in FUNCTIONS.items() if each.extension == extension}


_OLD, _NEW = _names("HostAllocator"), _names("HostMemoryAllocator")
_ALIGNMENT, _ALLOCATE, _FREE = _OLD["getpreferredalignment"], _OLD["allocate"], _OLD["free"]
_ALLOCATE_NEW = _NEW["allocate"]
_SIZES = (1, 100, 4096, 1 << 20)


@check("host_allocator.alignment", calls=(_ALIGNMENT,))
def _alignment(subject: Subject) -> None:
    """The preferred alignment is a power of two."""
    subject.require_extension("HostAllocator")
    found = supported(subject, _ALIGNMENT, client=subject.client).preferred_alignment
    subject.expect(found > 0 and not found & (found - 1), "a power of two", f"{found}")


@check("host_allocator.allocate", calls=(_ALLOCATE, _FREE), over=_SIZES)
def _allocate(subject: Subject, size: int) -> None:
    """The memory has the size and the alignment of the arguments, and is the caller's until it is freed."""
    subject.require_extension("HostAllocator")
    for alignment_wanted in (16, 64, 4096):
        pointer = supported(subject, _ALLOCATE, client=subject.client, size=size, alignment=alignment_wanted).ptr
        subject.expect(pointer, "memory", "a null pointer")
        subject.expect(pointer % alignment_wanted == 0, f"a multiple of {alignment_wanted}", hex(pointer))
        _use(subject, pointer, size)
        subject.call(_FREE, client=subject.client, ptr=pointer)


@check("host_allocator.several", calls=(_ALLOCATE, _FREE))
def _host_allocator_several(subject: Subject) -> None:
    """Pieces of memory do not overlap, and are freed in any order."""
    subject.require_extension("HostAllocator")
    pointers = [supported(subject, _ALLOCATE, client=subject.client, size=1000, alignment=64).ptr for _ in range(16)]
    for number, pointer in enumerate(pointers):
        ctypes.memset(pointer, number, 1000)
    for number, pointer in enumerate(pointers):
        subject.expect(bool((memory_at(pointer, 1000) == number).all()), "memory of its own", "changed bytes")
    for pointer in pointers[::2] + pointers[1::2]:
        subject.call(_FREE, client=subject.client, ptr=pointer)


@check("host_memory_allocator.allocate", calls=(_ALLOCATE_NEW,), over=_SIZES)
def _allocate_with_deleter(subject: Subject, size: int) -> None:
    """The memory has the size of the argument, and is the caller's until the deleter is called."""
    subject.require_extension("HostMemoryAllocator")
    result = supported(subject, _ALLOCATE_NEW, client=subject.client, size=size, numa_node=-1)
    subject.expect(result.ptr, "memory", "a null pointer")
    subject.expect(result.deleter, "a deleter", "a null pointer")
    _use(subject, result.ptr, size)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(result.deleter)(result.ptr, result.deleter_arg)


@check("host_memory_allocator.several", calls=(_ALLOCATE_NEW,))
def _several_with_deleters(subject: Subject) -> None:
    """Pieces of memory do not overlap, and are freed in any order."""
    subject.require_extension("HostMemoryAllocator")
    results = [supported(subject, _ALLOCATE_NEW, client=subject.client, size=1000, numa_node=-1) for _ in range(16)]
    for number, result in enumerate(results):
        ctypes.memset(result.ptr, number, 1000)
    for number, result in enumerate(results):
        subject.expect(bool((memory_at(result.ptr, 1000) == number).all()), "memory of its own", "changed bytes")
    for result in results[::2] + results[1::2]:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(result.deleter)(result.ptr, result.deleter_arg)


def _use(subject: Subject, pointer: int, size: int) -> None:
    """Make a buffer of the memory, and read it back into the memory."""
    ctypes.memset(pointer, 0x5A, size)
    result = subject.call(
        "PJRT_Client_BufferFromHostBuffer",
        client=subject.client,
        data=pointer,
        type=6,
        dims=[size],
        host_buffer_semantics=ONLY_DURING_CALL,
        device=subject.device,
    )
    subject.await_event(result.done_with_host_buffer)
    ctypes.memset(pointer, 0, size)
    error = outcome(subject, "PJRT_Buffer_ToHostBuffer", src=result.buffer, dst=pointer, dst_size=size)
    subject.expect(error is None, "a read without an error", str(error))
    subject.expect(bool((memory_at(pointer, size) == 0x5A).all()), "the value in the memory", "other bytes")
    subject.destroy_buffers(result.buffer)
    subject.expect_contents(subject.buffer(ramp(3, dtype=np.int32)), ramp(3, dtype=np.int32))
