"""The devices and memories that buffers are made in."""

from __future__ import annotations

from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    SEMANTICS,
    expect_value,
    from_host,
    ramp,
    supported_from_host,
)
from pjrt.conformance.plugin.subject import Subject

_FROM_HOST = ("PJRT_Client_BufferFromHostBuffer",)


def memories_of(subject: Subject, device: int) -> list[int]:
    """Return the memories of a device; none if the plugin does not report them."""
    subject.require("PJRT_Device_AddressableMemories")
    return list(subject.call("PJRT_Device_AddressableMemories", device=device).memories or ())


def default_memory(subject: Subject, device: int) -> int:
    """Return the default memory of a device."""
    subject.require("PJRT_Device_DefaultMemory")
    return int(subject.call("PJRT_Device_DefaultMemory", device=device).memory)


def other_device(subject: Subject) -> int:
    """Return the second device of the client.

    Raises:
        Unsupported: the client has one device.
    """
    if len(subject.devices) < 2:
        raise Unsupported("the client has one device")
    return int(subject.devices[1])


def other_memory(subject: Subject) -> int:
    """Return a memory of the first device that is not its default memory.

    Raises:
        Unsupported: the device has one memory.
    """
    usual = default_memory(subject, subject.device)
    others = [each for each in memories_of(subject, subject.device) if each != usual]
    if not others:
        raise Unsupported("the device has one memory")
    return others[0]


@check(
    "buffer_from_host.to_each_device",
    calls=(*_FROM_HOST, "PJRT_Buffer_Device", "PJRT_Buffer_Memory"),
    rule="With device set and memory null, the buffer is in the default memory of the device.",
    over=tuple(SEMANTICS),
)
def _to_each_device(subject: Subject, semantics: str) -> None:
    for number, device in enumerate(subject.devices):
        array = ramp(7) + number
        result = from_host(subject, array, SEMANTICS[semantics], device=device)
        found = subject.call("PJRT_Buffer_Device", buffer=result.buffer).device
        subject.expect(found == device, f"device {number}", "another device")
        if subject.plugin.has("PJRT_Buffer_Memory"):
            memory = subject.call("PJRT_Buffer_Memory", buffer=result.buffer).memory
            subject.expect(memory == default_memory(subject, device), "its default memory", "another memory")
        expect_value(subject, result.buffer, array)
        subject.destroy_buffers(result.buffer)
        subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.to_each_memory",
    calls=(*_FROM_HOST, "PJRT_Buffer_Device", "PJRT_Buffer_Memory"),
    rule="With memory set, the buffer is in that memory, and on a device that the memory belongs to.",
    over=tuple(SEMANTICS),
)
def _to_each_memory(subject: Subject, semantics: str) -> None:
    for device in subject.devices:
        for number, memory in enumerate(memories_of(subject, device)):
            array = ramp(7) + number
            result = supported_from_host(subject, array, SEMANTICS[semantics], device=0, memory=memory)
            found = subject.call("PJRT_Buffer_Memory", buffer=result.buffer).memory
            subject.expect(found == memory, f"memory {number}", "another memory")
            owners = subject.call("PJRT_Memory_AddressableByDevices", memory=memory).devices
            place = subject.call("PJRT_Buffer_Device", buffer=result.buffer).device
            subject.expect(place in (owners or ()), "a device of the memory", "another device")
            expect_value(subject, result.buffer, array)
            subject.destroy_buffers(result.buffer)
            subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.memory_wins",
    calls=(*_FROM_HOST, "PJRT_Buffer_Memory"),
    rule="If memory is not null, the data goes there, whatever device is.",
)
def _memory_wins(subject: Subject) -> None:
    memory = other_memory(subject)
    array = ramp(7)
    result = supported_from_host(subject, array, memory=memory)
    found = subject.call("PJRT_Buffer_Memory", buffer=result.buffer).memory
    subject.expect(found == memory, "the memory of the argument", "another memory")
    expect_value(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.memory_of_another_device_wins",
    calls=(*_FROM_HOST, "PJRT_Buffer_Memory", "PJRT_Buffer_Device"),
    rule="If memory is not null, the data goes there, also if it belongs to another device than device.",
)
def _memory_of_another_device_wins(subject: Subject) -> None:
    device = other_device(subject)
    memory = default_memory(subject, device)
    array = ramp(7)
    result = supported_from_host(subject, array, memory=memory)
    found = subject.call("PJRT_Buffer_Device", buffer=result.buffer).device
    subject.expect(found == device, "the device of the memory", "another device")
    expect_value(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)
