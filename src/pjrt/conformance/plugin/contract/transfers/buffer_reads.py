"""Reads of buffers to host memory."""

from __future__ import annotations

import threading

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.alias_buffers import fulfill, make_alias
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    MISUSE,
    Array,
    address,
    expect_bytes,
    from_host,
    is_ready,
    outcome,
    ramp,
    read_size,
)
from pjrt.conformance.plugin.contract.events.event_calls import on_ready
from pjrt.conformance.plugin.subject import Subject

_READ = ("PJRT_Buffer_ToHostBuffer",)
_LARGE = 1 << 20


@check(
    "to_host.size_query",
    calls=_READ,
    rule="With dst null the call only sets dst_size to the bytes that are needed, whatever dst_size was.",
    over=("zero_before", "garbage_before"),
)
def _size_query(subject: Subject, before: str) -> None:
    buffer = subject.buffer(ramp(3, 5))
    size = 0 if before == "zero_before" else 987654321
    found = subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=0, dst_size=size).dst_size
    subject.expect(found == 60, "60 bytes", found)
    subject.destroy_buffers(buffer)


@check(
    "to_host.size_query_of_an_empty_buffer",
    calls=_READ,
    rule="With dst null the call sets dst_size to the bytes that are needed: none for a buffer without elements.",
    over=("zero_before", "garbage_before"),
)
def _size_query_of_an_empty_buffer(subject: Subject, before: str) -> None:
    buffer = subject.buffer(np.zeros((4, 0), np.float32))
    size = 0 if before == "zero_before" else 987654321
    result = subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=0, dst_size=size)
    subject.expect(result.dst_size == 0, "0 bytes", result.dst_size)
    if result.event:
        subject.await_event(result.event)
    subject.destroy_buffers(buffer)


@check(
    "to_host.exact_size",
    calls=_READ,
    rule="The copy fills the needed bytes of dst and no other byte.",
    over=("exact", "larger"),
)
def _exact_size(subject: Subject, kind: str) -> None:
    array = ramp(7, 3)
    buffer = subject.buffer(array)
    around = np.full(array.nbytes + 256, 0xAB, np.uint8)
    expected = around.copy()
    expected[128:-128] = array.reshape(-1).view(np.uint8)
    size = array.nbytes if kind == "exact" else array.nbytes + 100
    error = outcome(subject, "PJRT_Buffer_ToHostBuffer", src=buffer, dst=address(around) + 128, dst_size=size)
    subject.expect(error is None, "a read without an error", error)
    expect_bytes(subject, around, expected)
    subject.destroy_buffers(buffer)


@check(
    "to_host.too_small",
    calls=_READ,
    rule="dst_size is at least the needed size; otherwise the call is an error and writes nothing.",
    over=("one_byte_less", "one_byte", "none"),
)
def _too_small(subject: Subject, kind: str) -> None:
    buffer = subject.buffer(ramp(10))
    data = np.full(40, 0xAB, np.uint8)
    size = {"one_byte_less": 39, "one_byte": 1, "none": 0}[kind]
    subject.fails("PJRT_Buffer_ToHostBuffer", MISUSE, src=buffer, dst=address(data), dst_size=size)
    subject.expect(bool((data == 0xAB).all()), "no byte to be written", "changed bytes")
    subject.destroy_buffers(buffer)


@check("to_host.event", calls=_READ, rule="The event becomes ready, without an error, when the copy has completed.")
def _event(subject: Subject) -> None:
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
    subject.call("PJRT_Event_Destroy", event=found)
    subject.destroy_buffers(buffer)


@check(
    "to_host.data_there_when_ready",
    calls=(*_READ, "PJRT_Event_OnReady"),
    rule="When the event is ready the whole copy is in dst, also inside of its callback.",
)
def _data_there_when_ready(subject: Subject) -> None:
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
    subject.destroy_buffers(buffer)


@check(
    "to_host.data_there_when_pending_is_ready",
    calls=(*_READ, "PJRT_Event_OnReady", "PJRT_Client_CreateAliasBuffer"),
    rule="The event of a read that waited for its buffer is ready when the whole copy is in dst, and not before.",
)
def _data_there_when_pending_is_ready(subject: Subject) -> None:
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
    subject.destroy_buffers(alias, buffer)


@check(
    "to_host.callback_once",
    calls=(*_READ, "PJRT_Event_OnReady"),
    rule="A callback on the event is called once, also if it is registered after the event is ready.",
)
def _callback_once(subject: Subject) -> None:
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
    subject.destroy_buffers(buffer)


@check(
    "to_host.event_destroyed_early",
    calls=(*_READ, "PJRT_Event_Destroy"),
    rule="The event may be destroyed before the copy has completed; the copy goes on.",
)
def _event_destroyed_early(subject: Subject) -> None:
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


@check("to_host.several_at_once", calls=_READ, rule="A buffer may be read several times at once.")
def _several_at_once(subject: Subject) -> None:
    array = ramp(10_007)
    buffer = subject.buffer(array)
    copies = [np.zeros_like(array) for _ in range(16)]
    reads = [subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=copy) for copy in copies]
    for read in reversed(reads):
        subject.await_event(read.event)
    for copy in copies:
        expect_bytes(subject, copy.view(np.uint8), array.view(np.uint8))
    subject.destroy_buffers(buffer)


@check("to_host.from_many_threads", calls=_READ, rule="Threads may read the same buffer at the same time.")
def _from_many_threads(subject: Subject) -> None:
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
    subject.destroy_buffers(buffer)


@check(
    "to_host.before_the_buffer_is_ready",
    calls=("PJRT_Client_BufferFromHostBuffer", *_READ),
    rule="A buffer may be read before it is ready; the copy is made when it is.",
)
def _before_the_buffer_is_ready(subject: Subject) -> None:
    array = ramp(_LARGE)
    result = from_host(subject, array, 1)
    data = np.zeros_like(array)
    _read_into(subject, result.buffer, data)
    expect_bytes(subject, data.view(np.uint8), array.view(np.uint8))
    subject.await_event(result.done_with_host_buffer)
    subject.destroy_buffers(result.buffer)


@check(
    "to_host.released_during_the_copy",
    calls=(*_READ, "PJRT_Buffer_Delete", "PJRT_Buffer_Destroy"),
    rule="The memory of a buffer is freed when all operations that use it have completed: a copy under way goes on.",
    over=("delete", "destroy"),
)
def _released_during_the_copy(subject: Subject, kind: str) -> None:
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


@check("to_host.unaligned", calls=_READ, rule="dst has any alignment.")
def _unaligned(subject: Subject) -> None:
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
    subject.destroy_buffers(buffer)


@check("to_host.repeated", calls=_READ, rule="A read does not change the buffer: each one has the same value.")
def _repeated(subject: Subject) -> None:
    array = ramp(17)
    buffer = subject.buffer(array)
    for _ in range(50):
        data = np.zeros_like(array)
        _read_into(subject, buffer, data)
        expect_bytes(subject, data.view(np.uint8), array.view(np.uint8))
        data.fill(-1)
    subject.expect(read_size(subject, buffer) == array.nbytes, f"{array.nbytes} bytes", read_size(subject, buffer))
    subject.destroy_buffers(buffer)


def _read_into(subject: Subject, buffer: int, data: Array) -> None:
    error = outcome(subject, "PJRT_Buffer_ToHostBuffer", src=buffer, dst=data)
    subject.expect(error is None, "a read without an error", error)
