"""Checks of devices, their descriptions, what they can be asked for, and their memories."""

from __future__ import annotations

import ctypes

from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.subject import Subject, expect_named_values, read_named_values

# Devices and their descriptions.

_DESCRIPTION = "PJRT_DeviceDescription_"
_DESCRIPTION_GETTERS = ("Id", "ProcessIndex", "Attributes", "Kind", "DebugString", "ToString")
_DEVICE_GETTERS = ("GetDescription", "IsAddressable", "LocalHardwareId", "AddressableMemories", "DefaultMemory")
_ATTRIBUTES = "PJRT_Device_GetAttributes"


def _devices(subject: Subject) -> list[int]:
    return list(subject.call("PJRT_Client_Devices", client=subject.client).devices or ())


@check(
    "device_description.getters.stable",
    calls=[f"{_DESCRIPTION}{name}" for name in _DESCRIPTION_GETTERS],
    over=_DESCRIPTION_GETTERS,
)
def _device_description_getters_stable(subject: Subject, name: str) -> None:
    """What a getter of a description returns lives as long as the description: the same comes each time."""
    function = f"{_DESCRIPTION}{name}"
    for device in _devices(subject):
        description = subject.description(device)
        answers = {subject.call(function, device_description=description).struct_bytes for _ in range(2)}
        subject.expect(len(answers) == 1, "the same answer as before", "another one")


@check("device.getters.stable", calls=[f"PJRT_Device_{name}" for name in _DEVICE_GETTERS], over=_DEVICE_GETTERS)
def _device_stable(subject: Subject, name: str) -> None:
    """What a getter of a device returns lives as long as the device: the same comes each time."""
    function = f"PJRT_Device_{name}"
    subject.require(function)
    for device in subject.devices:
        answers = {subject.call(function, device=device).struct_bytes for _ in range(2)}
        subject.expect(len(answers) == 1, "the same answer as before", "another one")


@check("device_description.id.unique", calls=(f"{_DESCRIPTION}Id",))
def _device_description_id_unique(subject: Subject) -> None:
    """Each device of a client has an id of its own, of at least 0."""
    ids = [
        subject.call(f"{_DESCRIPTION}Id", device_description=subject.description(device)).id
        for device in _devices(subject)
    ]
    subject.expect(len(set(ids)) == len(ids), "different ids", ids)
    subject.expect(min(ids) >= 0, "ids of at least 0", ids)


@check(
    "device_description.texts",
    calls=[f"{_DESCRIPTION}{name}" for name in ("Kind", "DebugString", "ToString")],
    over={"Kind": "device_kind", "DebugString": "debug_string", "ToString": "to_string"},
)
def _device_description_texts(subject: Subject, field: str) -> None:
    """A device has a kind and two descriptions, as text in UTF-8 that is not empty."""
    name = {"device_kind": "Kind", "debug_string": "DebugString", "to_string": "ToString"}[field]
    for device in _devices(subject):
        result = subject.call(f"{_DESCRIPTION}{name}", device_description=subject.description(device))
        text = result.fields[field]
        subject.expect(text and _is_text(text), "a text in UTF-8", repr(text))


@check("device_description.debug_string.distinct", calls=(f"{_DESCRIPTION}DebugString",))
def _device_description_debug_string_distinct(subject: Subject) -> None:
    """The debug string describes the device unambiguously: two devices have different ones."""
    devices = _devices(subject)
    texts = [
        subject.call(f"{_DESCRIPTION}DebugString", device_description=subject.description(device)).debug_string
        for device in devices
    ]
    subject.expect(len(set(texts)) == len(devices), "different debug strings", repr(texts))


@check("device_description.kind.size", calls=(f"{_DESCRIPTION}Kind",))
def _kind_size(subject: Subject) -> None:
    """The kind is a text of its own, and the number of its bytes is stated."""
    for device in _devices(subject):
        result = subject.call(f"{_DESCRIPTION}Kind", device_description=subject.description(device))
        subject.expect(result.device_kind_size == len(result.device_kind or b""), "the size of the kind", result)
        subject.expect(b"\0" not in (result.device_kind or b""), "a kind without zeros", repr(result.device_kind))


@check("device_description.attributes.types", calls=(f"{_DESCRIPTION}Attributes",))
def _attributes(subject: Subject) -> None:
    """The attributes of a device have names of their own, are texts, numbers or lists of numbers, and state their
    struct sizes.
    """
    for device in _devices(subject):
        result = subject.call(f"{_DESCRIPTION}Attributes", device_description=subject.description(device))
        expect_named_values(subject, result, "attributes")


@check("device.get_attributes.types", calls=(_ATTRIBUTES,))
def _device_attributes(subject: Subject) -> None:
    """The attributes of a device that may change have names of their own, and live until their deleter is called."""
    subject.require(_ATTRIBUTES)
    result = subject.call(_ATTRIBUTES, device=subject.device)
    expect_named_values(subject, result, "attributes")
    subject.expect(result.attributes_deleter, "a deleter", "a null pointer")
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(result.attributes_deleter)(result.device_attributes)


@check("device.get_attributes.independent", calls=(_ATTRIBUTES,))
def _independent_attributes(subject: Subject) -> None:
    """Each call returns attributes of its own: those of one call stay when those of another are deleted."""
    subject.require(_ATTRIBUTES)
    first, second = (subject.call(_ATTRIBUTES, device=subject.device) for _ in range(2))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(first.attributes_deleter)(first.device_attributes)
    after = read_named_values(second, "attributes", second.num_attributes)
    subject.expect(after == (second.attributes or []), "the same attributes", repr(after))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(second.attributes_deleter)(second.device_attributes)


@check("device.local_hardware_id.unique", calls=("PJRT_Device_LocalHardwareId",))
def _local_hardware_ids(subject: Subject) -> None:
    """The local hardware ids of the addressable devices are different, but for -1, which means that there is none."""
    ids = [subject.call("PJRT_Device_LocalHardwareId", device=device).local_hardware_id for device in subject.devices]
    defined = [number for number in ids if number != -1]
    subject.expect(len(set(defined)) == len(defined), "different ids", ids)


@check("device.get_description.own", calls=("PJRT_Device_GetDescription",))
def _own_description(subject: Subject) -> None:
    """Each device has a description of its own."""
    devices = _devices(subject)
    descriptions = {subject.description(device) for device in devices}
    subject.expect(len(descriptions) == len(devices), f"{len(devices)} descriptions", len(descriptions))


@check("device_description.coordinates", calls=(f"{_DESCRIPTION}Attributes",))
def _coordinates(subject: Subject) -> None:
    """The coordinates of a device, where the attribute coords states them, are a list of whole numbers, of the same
    length for all devices.
    """
    lengths = set()
    for device in _devices(subject):
        result = subject.call(f"{_DESCRIPTION}Attributes", device_description=subject.description(device))
        for each in result.attributes or ():
            if each.name == b"coords":
                subject.expect(isinstance(each.value, list), "a list of numbers", repr(each.value))
                lengths.add(len(each.value))
    subject.expect(len(lengths) <= 1, "coordinates of the same length", sorted(lengths))


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


# What can be asked of a device: tracking events, poisoned executions, cleared statistics.

_TRACKING = "PJRT_Device_CreateAsyncTrackingEvent"
_TRACKING_DESTROY = "PJRT_AsyncTrackingEvent_Destroy"
_POISON = "PJRT_Device_PoisonExecution"
_CLEAR = "PJRT_Device_ClearMemoryStats"
_STATS = "PJRT_Device_MemoryStats"
_TEXTS = {"short": "step", "empty": "", "long": "x" * 10000, "of any language": "Schritt für Schritt ▸ 步骤"}


@check("device.create_async_tracking_event.description", calls=(_TRACKING, _TRACKING_DESTROY), over=_TEXTS)
def _tracking_event(subject: Subject, text: str) -> None:
    """A tracking event takes a description, of which the memory is the plugin's only during the call, and is destroyed.
    A device that tracks nothing returns a null pointer.
    """
    subject.require(_TRACKING, _TRACKING_DESTROY)
    event = subject.call(_TRACKING, device=subject.device, description=text).event
    if event:
        subject.call(_TRACKING_DESTROY, event=event)


@check("device.create_async_tracking_event.several", calls=(_TRACKING, _TRACKING_DESTROY))
def _several_events(subject: Subject) -> None:
    """Several tracking events of a device live side by side, and are destroyed in any order."""
    subject.require(_TRACKING, _TRACKING_DESTROY)
    events = [subject.call(_TRACKING, device=subject.device, description=f"event {i}").event for i in range(8)]
    real = [each for each in events if each]
    subject.expect(len(set(real)) == len(real), "different events", "the same event twice")
    for each in [*real[::2], *real[1::2]]:
        subject.call(_TRACKING_DESTROY, event=each)


@check("device.poison_execution.unknown_launch", calls=(_POISON,))
def _poison_nothing(subject: Subject) -> None:
    """No execution with the launch id runs: nothing is poisoned."""
    subject.require(_POISON)
    result = subject.attempt(
        _POISON, device=subject.device, launch_id=12345, error_code="ABORTED", error_message="no such launch"
    )
    if result.error is not None:
        subject.expect_code(result.error, ("NOT_FOUND", "INVALID_ARGUMENT", "UNIMPLEMENTED"), _POISON)
    else:
        subject.expect(not result.poisoned, "nothing that is poisoned", "that something is")
    subject.expect_contents(subject.buffer([1.0, 2.0]), [1.0, 2.0])


@check("device.clear_memory_stats.peak", calls=(_CLEAR, _STATS))
def _clear(subject: Subject) -> None:
    """After the statistics of a device are cleared, the peak is what is in use, and what is in use stays."""
    import numpy as np

    subject.require(_CLEAR, _STATS)
    large = subject.buffer(np.zeros(1 << 18, np.float32))
    subject.destroy_buffers(large)
    kept = subject.buffer(np.zeros(1 << 10, np.float32))
    before = subject.call(_STATS, device=subject.device)
    subject.call(_CLEAR, device=subject.device)
    after = subject.call(_STATS, device=subject.device)
    if after.peak_bytes_in_use_is_set:
        subject.expect(
            after.bytes_in_use <= after.peak_bytes_in_use <= max(before.peak_bytes_in_use, after.bytes_in_use),
            f"a peak from {after.bytes_in_use} to {before.peak_bytes_in_use}",
            after.peak_bytes_in_use,
        )
    subject.expect_contents(kept, np.zeros(1 << 10, np.float32))


# The memories of a client.

_MEMORIES = "PJRT_Client_AddressableMemories"
_DEVICE_MEMORIES = "PJRT_Device_AddressableMemories"
_MEMORY_DEVICES = "PJRT_Memory_AddressableByDevices"
_DEFAULT_MEMORY = "PJRT_Device_DefaultMemory"
_MEMORY_GETTERS = ("Id", "Kind", "Kind_Id", "DebugString", "ToString", "AddressableByDevices")


def _memories(subject: Subject) -> list[int]:
    subject.require(_MEMORIES)
    memories = subject.call(_MEMORIES, client=subject.client).addressable_memories or []
    if not memories:
        raise Unsupported("memories of a client")
    return list(memories)


@check("memory.getters.stable", calls=[f"PJRT_Memory_{name}" for name in _MEMORY_GETTERS], over=_MEMORY_GETTERS)
def _memory_getters_stable(subject: Subject, name: str) -> None:
    """What a getter of a memory returns lives as long as the memory: the same comes each time."""
    function = f"PJRT_Memory_{name}"
    memories = _memories(subject)
    subject.require(function)
    for memory in memories:
        answers = {subject.call(function, memory=memory).struct_bytes for _ in range(2)}
        subject.expect(len(answers) == 1, "the same answer as before", "another one")


@check(
    "memory.texts",
    calls=("PJRT_Memory_Kind", "PJRT_Memory_DebugString", "PJRT_Memory_ToString"),
    over={"Kind": "kind", "DebugString": "debug_string", "ToString": "to_string"},
)
def _memory_texts(subject: Subject, field: str) -> None:
    """A memory has a kind and two descriptions, as text in UTF-8 that is not empty."""
    name = {"kind": "Kind", "debug_string": "DebugString", "to_string": "ToString"}[field]
    for memory in _memories(subject):
        text = subject.call(f"PJRT_Memory_{name}", memory=memory).fields[field]
        subject.expect(text, "a text that is not empty", repr(text))
        subject.expect(text.decode("utf-8", "replace").encode() == text, "a text in UTF-8", repr(text))


@check("memory.id.unique", calls=("PJRT_Memory_Id",))
def _memory_id_unique(subject: Subject) -> None:
    """Two memories of one kind have different ids."""
    ids = [
        (subject.call("PJRT_Memory_Kind", memory=each).kind, subject.call("PJRT_Memory_Id", memory=each).id)
        for each in _memories(subject)
    ]
    subject.expect(len(set(ids)) == len(ids), "different ids for memories of one kind", ids)


@check("memory.debug_string.distinct", calls=("PJRT_Memory_DebugString",))
def _memory_debug_string_distinct(subject: Subject) -> None:
    """The debug string describes the memory unambiguously: two memories have different ones."""
    memories = _memories(subject)
    texts = [subject.call("PJRT_Memory_DebugString", memory=each).debug_string for each in memories]
    subject.expect(len(set(texts)) == len(memories), "different debug strings", repr(texts))


@check("memory.kind_id.follows_kind", calls=("PJRT_Memory_Kind", "PJRT_Memory_Kind_Id"))
def _kind_ids(subject: Subject) -> None:
    """The id of a kind identifies it: equal kinds have equal ids, and different kinds have different ones."""
    subject.require("PJRT_Memory_Kind_Id")
    pairs = {
        (
            subject.call("PJRT_Memory_Kind", memory=each).kind,
            subject.call("PJRT_Memory_Kind_Id", memory=each).kind_id,
        )
        for each in _memories(subject)
    }
    kinds, ids = ({pair[i] for pair in pairs} for i in range(2))
    subject.expect(len(kinds) == len(ids) == len(pairs), "one id for each kind", sorted(pairs))


@check("memory.devices.both_directions", calls=(_MEMORY_DEVICES, _DEVICE_MEMORIES))
def _both_directions(subject: Subject) -> None:
    """A memory lists the devices that can address it, and they list the memory."""
    memories = _memories(subject)
    by_memory = {
        (device, memory)
        for memory in memories
        for device in subject.call(_MEMORY_DEVICES, memory=memory).devices or ()
        if subject.call("PJRT_Device_IsAddressable", device=device).is_addressable
    }
    by_device = {
        (device, memory)
        for device in subject.devices
        for memory in subject.call(_DEVICE_MEMORIES, device=device).memories or ()
    }
    subject.expect(by_memory == by_device, f"{len(by_device)} pairs of device and memory", f"{len(by_memory)}")


@check("memory.devices.not_empty", calls=(_MEMORY_DEVICES,))
def _some_device(subject: Subject) -> None:
    """An addressable memory can be addressed by a device of its client."""
    devices = set(subject.call("PJRT_Client_Devices", client=subject.client).devices)
    for memory in _memories(subject):
        own = subject.call(_MEMORY_DEVICES, memory=memory).devices or []
        subject.expect(own, "a device that can address the memory", "none")
        subject.expect(set(own) <= devices, "devices of the client", "others")


@check("client.addressable_memories.of_devices", calls=(_MEMORIES, _DEVICE_MEMORIES))
def _of_devices(subject: Subject) -> None:
    """The memories of a client are those of its addressable devices, each once."""
    memories = _memories(subject)
    of_devices = {
        memory for device in subject.devices for memory in subject.call(_DEVICE_MEMORIES, device=device).memories or ()
    }
    subject.expect(len(set(memories)) == len(memories), "each memory once", "a memory that comes twice")
    subject.expect(set(memories) == of_devices, f"{len(of_devices)} memories", len(memories))


@check("device.default_memory.is_addressable", calls=(_DEFAULT_MEMORY, _DEVICE_MEMORIES))
def _default(subject: Subject) -> None:
    """The default memory of a device is one of those that it can address."""
    subject.require(_DEFAULT_MEMORY)
    for device in subject.devices:
        memory = subject.call(_DEFAULT_MEMORY, device=device).memory
        subject.expect(memory, "a memory", "a null pointer")
        listed = subject.call(_DEVICE_MEMORIES, device=device).memories or []
        subject.expect(memory in listed, "one of the device's memories", "another one")


@check("device.addressable_memories.kinds", calls=(_DEVICE_MEMORIES, "PJRT_Memory_Kind"))
def _kinds(subject: Subject) -> None:
    """Frameworks choose a memory of a device by its kind: one memory of each kind is advice."""
    for device in subject.devices:
        memories = subject.call(_DEVICE_MEMORIES, device=device).memories or []
        kinds = [subject.call("PJRT_Memory_Kind", memory=each).kind for each in memories]
        subject.advise(len(set(kinds)) == len(kinds), "one memory of each kind", kinds)


@check(
    "memory_descriptions.agree_with_memories",
    calls=("PJRT_DeviceDescription_MemoryDescriptions", "PJRT_MemoryDescription_Kind", "PJRT_Memory_Kind_Id"),
)
def _descriptions(subject: Subject) -> None:
    """The memories that a device's description states are those that the device has: kinds, their ids, and the
    default.
    """
    subject.require_extension("MemoryDescriptions")
    subject.require("PJRT_DeviceDescription_MemoryDescriptions", "PJRT_Memory_Kind_Id", _DEVICE_MEMORIES)
    for device in subject.devices:
        stated = subject.call(
            "PJRT_DeviceDescription_MemoryDescriptions", device_description=subject.description(device)
        )
        if not stated.memory_descriptions:
            raise Unsupported("descriptions of memories")
        described = {}
        for each in stated.memory_descriptions:
            result = subject.call("PJRT_MemoryDescription_Kind", memory_description=each)
            described[result.kind] = result.kind_id
        found = {
            subject.call("PJRT_Memory_Kind", memory=each).kind: subject.call("PJRT_Memory_Kind_Id", memory=each).kind_id
            for each in subject.call(_DEVICE_MEMORIES, device=device).memories or ()
        }
        subject.expect(described == found, f"the kinds {found}", described)
        if stated.memory_descriptions and 0 <= stated.default_memory_index < len(described):
            default = list(described)[stated.default_memory_index]
            memory = subject.call(_DEFAULT_MEMORY, device=device).memory
            kind = subject.call("PJRT_Memory_Kind", memory=memory).kind
            subject.expect(kind == default, f"the default memory {kind}", default)
