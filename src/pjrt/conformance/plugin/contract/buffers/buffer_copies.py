"""Copies of buffers to devices and memories."""

from __future__ import annotations

import numpy as np

from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.buffers.alias_buffers import fulfill, make_alias
from pjrt.conformance.plugin.contract.buffers.buffer_calls import REFUSAL, expect_value, from_host, is_ready, ramp
from pjrt.conformance.plugin.contract.buffers.buffer_placement import (
    default_memory,
    memories_of,
    other_device,
    other_memory,
)
from pjrt.conformance.plugin.subject import Subject

TO_DEVICE, TO_MEMORY = "PJRT_Buffer_CopyToDevice", "PJRT_Buffer_CopyToMemory"
_BOTH = (TO_DEVICE, TO_MEMORY)


def copy_elsewhere(subject: Subject, name: str, buffer: int) -> int:
    """Return a copy of a buffer of the first device: on another device, or in another memory.

    Raises:
        Unsupported: there is no other one, or the plugin cannot copy to it.
    """
    subject.require(name)
    place = {"dst_device": other_device(subject)} if name == TO_DEVICE else {"dst_memory": other_memory(subject)}
    result = subject.attempt(name, buffer=buffer, **place)
    if result.error is not None and result.error.code in REFUSAL:
        raise Unsupported(f"{name}: {result.error.message}")
    subject.expect(result.error is None, f"{name} to succeed", str(result.error))
    subject.expect(result.dst_buffer, "a buffer", "a null pointer")
    return int(result.dst_buffer)


@check(
    "buffer.copy_to_each_device",
    calls=(TO_DEVICE, "PJRT_Buffer_Device"),
    rule="PJRT_Buffer_CopyToDevice copies the buffer to another device of the client.",
)
def _copy_to_each_device(subject: Subject) -> None:
    subject.require(TO_DEVICE)
    other_device(subject)
    array = ramp(3, 5)
    for source in subject.devices:
        buffer = subject.buffer(array, device=source)
        for target in subject.devices:
            if target != source:
                copy = subject.call(TO_DEVICE, buffer=buffer, dst_device=target).dst_buffer
                found = subject.call("PJRT_Buffer_Device", buffer=copy).device
                subject.expect(found == target, "the device of the argument", "another device")
                subject.expect_contents(copy, array)
                subject.destroy_buffers(copy)
        subject.destroy_buffers(buffer)


@check(
    "buffer.copy_to_each_memory",
    calls=(TO_MEMORY, "PJRT_Buffer_Memory"),
    rule="PJRT_Buffer_CopyToMemory copies the buffer to another memory of the client.",
)
def _copy_to_each_memory(subject: Subject) -> None:
    subject.require(TO_MEMORY)
    array = ramp(3, 5)
    memories = [memory for device in subject.devices for memory in memories_of(subject, device)]
    if len(memories) < 2:
        raise Unsupported("the client has one memory")
    source = subject.buffer(array)
    home = subject.call("PJRT_Buffer_Memory", buffer=source).memory
    for target in memories:
        if target == home:
            continue
        copy = subject.call(TO_MEMORY, buffer=source, dst_memory=target).dst_buffer
        found = subject.call("PJRT_Buffer_Memory", buffer=copy).memory
        subject.expect(found == target, "the memory of the argument", "another memory")
        subject.expect_contents(copy, array)
        back = subject.call(TO_MEMORY, buffer=copy, dst_memory=home).dst_buffer
        subject.expect_contents(back, array)
        subject.destroy_buffers(copy, back)
    subject.destroy_buffers(source)


@check(
    "buffer.copy_to_its_own_place",
    calls=_BOTH,
    rule="A copy to the place where the buffer is already is an error; plugins of XLA make a copy with the same value.",
    over=_BOTH,
)
def _copy_to_its_own_place(subject: Subject, name: str) -> None:
    subject.require(name)
    array = ramp(6)
    buffer = subject.buffer(array)
    place = (
        {"dst_device": subject.device} if name == TO_DEVICE else {"dst_memory": default_memory(subject, subject.device)}
    )
    result = subject.attempt(name, buffer=buffer, **place)
    if result.error is None:
        subject.expect(result.dst_buffer != buffer, "a buffer of its own", "the same buffer")
        subject.destroy_buffers(buffer)
        subject.expect_contents(result.dst_buffer, array)
        subject.destroy_buffers(result.dst_buffer)
    else:
        subject.expect_contents(buffer, array)
        subject.destroy_buffers(buffer)


@check(
    "buffer.copy_is_independent",
    calls=_BOTH,
    rule="A copy has memory of its own: it keeps its value when the source is gone, and the source when the copy is.",
    over=_BOTH,
)
def _copy_is_independent(subject: Subject, name: str) -> None:
    array = ramp(1000)
    buffer = subject.buffer(array)
    copy = copy_elsewhere(subject, name, buffer)
    subject.await_buffers([copy])
    second = copy_elsewhere(subject, name, buffer)
    subject.destroy_buffers(second)
    expect_value(subject, buffer, array)
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    other = subject.buffer(np.full_like(array, -1))
    subject.expect_contents(copy, array)
    subject.destroy_buffers(copy, buffer, other)


@check(
    "buffer.copy_of_a_released_source",
    calls=(*_BOTH, "PJRT_Buffer_Destroy"),
    rule="The source may be deleted or destroyed while the copy is under way.",
    over=tuple(f"{name}-{end}" for name in _BOTH for end in ("delete", "destroy")),
)
def _copy_of_a_released_source(subject: Subject, case: str) -> None:
    name, end = case.split("-")
    array = ramp(1 << 20)
    buffer = subject.buffer(array)
    copy = copy_elsewhere(subject, name, buffer)
    if end == "delete":
        subject.call("PJRT_Buffer_Delete", buffer=buffer)
    else:
        subject.destroy_buffers(buffer)
    other = subject.buffer(np.full_like(array, -1))
    subject.expect_contents(copy, array)
    subject.destroy_buffers(copy, other, *([buffer] if end == "delete" else []))


@check(
    "buffer.copy_before_ready",
    calls=(*_BOTH, "PJRT_Client_BufferFromHostBuffer"),
    rule="A buffer may be copied before it is ready; the copy becomes ready after it.",
    over=_BOTH,
)
def _copy_before_ready(subject: Subject, name: str) -> None:
    array = ramp(1 << 20)
    result = from_host(subject, array, 1)
    copy = copy_elsewhere(subject, name, result.buffer)
    subject.expect_contents(copy, array)
    subject.await_event(result.done_with_host_buffer)
    subject.destroy_buffers(copy, result.buffer)


@check(
    "buffer.copy_of_a_pending_buffer",
    calls=(*_BOTH, "PJRT_Client_CreateAliasBuffer"),
    rule="A copy of a buffer whose data is not there yet waits for the data.",
    over=_BOTH,
)
def _copy_of_a_pending_buffer(subject: Subject, name: str) -> None:
    array = ramp(4)
    alias, handle = make_alias(subject, [4])
    copy = copy_elsewhere(subject, name, alias)
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=copy).event
    subject.expect(not is_ready(subject, event), "a copy that is not ready", "that it is ready")
    buffer = subject.buffer(array)
    fulfill(subject, handle, buffer)
    subject.await_event(event)
    subject.expect_contents(copy, array)
    subject.destroy_buffers(copy, alias, buffer)


@check(
    "buffer.copy_keeps_the_type",
    calls=(*_BOTH, "PJRT_Buffer_ElementType", "PJRT_Buffer_Dimensions"),
    rule="A copy has the type, the dimensions and the value of its source.",
    over=tuple(
        f"{name}-{kind}" for name in _BOTH for kind in ("pred", "u8", "f64", "c64", "scalar", "empty", "rank_5")
    ),
)
def _copy_keeps_the_type(subject: Subject, case: str) -> None:
    name, kind = case.split("-")
    array = {
        "pred": np.array([True, False, True]),
        "u8": ramp(5, dtype=np.uint8),
        "f64": ramp(2, 2, dtype=np.float64),
        "c64": ramp(3, dtype=np.complex64),
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 3), np.float32),
        "rank_5": ramp(1, 2, 3, 2, 1),
    }[kind]
    buffer = subject.buffer(array)
    copy = copy_elsewhere(subject, name, buffer)
    subject.expect_contents(copy, array)
    subject.destroy_buffers(copy, buffer)


@check(
    "buffer.copy_around_all_devices",
    calls=(TO_DEVICE,),
    rule="Copies of copies keep the value, also without a wait between them.",
)
def _copy_around_all_devices(subject: Subject) -> None:
    subject.require(TO_DEVICE)
    other_device(subject)
    array = ramp(4099)
    buffer = subject.buffer(array)
    for target in [*subject.devices[1:], subject.device] * 3:
        copy = subject.call(TO_DEVICE, buffer=buffer, dst_device=target).dst_buffer
        subject.destroy_buffers(buffer)
        buffer = copy
    subject.expect_contents(buffer, array)
    subject.destroy_buffers(buffer)
