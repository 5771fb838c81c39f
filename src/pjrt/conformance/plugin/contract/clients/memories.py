"""Checks of the memories of a client."""

from __future__ import annotations

from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.subject import Subject

_MEMORIES = "PJRT_Client_AddressableMemories"
_DEVICE_MEMORIES = "PJRT_Device_AddressableMemories"
_DEVICES = "PJRT_Memory_AddressableByDevices"
_DEFAULT = "PJRT_Device_DefaultMemory"
_GETTERS = ("Id", "Kind", "Kind_Id", "DebugString", "ToString", "AddressableByDevices")


def _memories(subject: Subject) -> list[int]:
    subject.require(_MEMORIES)
    memories = subject.call(_MEMORIES, client=subject.client).addressable_memories or []
    if not memories:
        raise Unsupported("memories of a client")
    return list(memories)


@check(
    "memory.getters.stable",
    calls=[f"PJRT_Memory_{name}" for name in _GETTERS],
    rule="What a getter of a memory returns lives as long as the memory: the same comes each time.",
    over=_GETTERS,
)
def _stable(subject: Subject, name: str) -> None:
    function = f"PJRT_Memory_{name}"
    memories = _memories(subject)
    subject.require(function)
    for memory in memories:
        answers = {subject.call(function, memory=memory).struct_bytes for _ in range(2)}
        subject.expect(len(answers) == 1, "the same answer as before", "another one")


@check(
    "memory.texts",
    calls=("PJRT_Memory_Kind", "PJRT_Memory_DebugString", "PJRT_Memory_ToString"),
    rule="A memory has a kind and two descriptions, as text in UTF-8 that is not empty.",
    over={"Kind": "kind", "DebugString": "debug_string", "ToString": "to_string"},
)
def _texts(subject: Subject, field: str) -> None:
    name = {"kind": "Kind", "debug_string": "DebugString", "to_string": "ToString"}[field]
    for memory in _memories(subject):
        text = subject.call(f"PJRT_Memory_{name}", memory=memory).fields[field]
        subject.expect(text, "a text that is not empty", repr(text))
        subject.expect(text.decode("utf-8", "replace").encode() == text, "a text in UTF-8", repr(text))


@check(
    "memory.id.unique",
    calls=("PJRT_Memory_Id",),
    rule="Two memories of one kind have different ids.",
)
def _unique_ids(subject: Subject) -> None:
    ids = [
        (subject.call("PJRT_Memory_Kind", memory=each).kind, subject.call("PJRT_Memory_Id", memory=each).id)
        for each in _memories(subject)
    ]
    subject.expect(len(set(ids)) == len(ids), "different ids for memories of one kind", ids)


@check(
    "memory.debug_string.distinct",
    calls=("PJRT_Memory_DebugString",),
    rule="The debug string describes the memory unambiguously: two memories have different ones.",
)
def _distinct(subject: Subject) -> None:
    memories = _memories(subject)
    texts = [subject.call("PJRT_Memory_DebugString", memory=each).debug_string for each in memories]
    subject.expect(len(set(texts)) == len(memories), "different debug strings", repr(texts))


@check(
    "memory.kind_id.follows_kind",
    calls=("PJRT_Memory_Kind", "PJRT_Memory_Kind_Id"),
    rule="The id of a kind identifies it: equal kinds have equal ids, and different kinds have different ones.",
)
def _kind_ids(subject: Subject) -> None:
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


@check(
    "memory.devices.both_directions",
    calls=(_DEVICES, _DEVICE_MEMORIES),
    rule="A memory lists the devices that can address it, and they list the memory.",
)
def _both_directions(subject: Subject) -> None:
    memories = _memories(subject)
    by_memory = {
        (device, memory)
        for memory in memories
        for device in subject.call(_DEVICES, memory=memory).devices or ()
        if subject.call("PJRT_Device_IsAddressable", device=device).is_addressable
    }
    by_device = {
        (device, memory)
        for device in subject.devices
        for memory in subject.call(_DEVICE_MEMORIES, device=device).memories or ()
    }
    subject.expect(by_memory == by_device, f"{len(by_device)} pairs of device and memory", f"{len(by_memory)}")


@check(
    "memory.devices.not_empty",
    calls=(_DEVICES,),
    rule="An addressable memory can be addressed by a device of its client.",
)
def _some_device(subject: Subject) -> None:
    devices = set(subject.call("PJRT_Client_Devices", client=subject.client).devices)
    for memory in _memories(subject):
        own = subject.call(_DEVICES, memory=memory).devices or []
        subject.expect(own, "a device that can address the memory", "none")
        subject.expect(set(own) <= devices, "devices of the client", "others")


@check(
    "client.addressable_memories.of_devices",
    calls=(_MEMORIES, _DEVICE_MEMORIES),
    rule="The memories of a client are those of its addressable devices, each once.",
)
def _of_devices(subject: Subject) -> None:
    memories = _memories(subject)
    of_devices = {
        memory for device in subject.devices for memory in subject.call(_DEVICE_MEMORIES, device=device).memories or ()
    }
    subject.expect(len(set(memories)) == len(memories), "each memory once", "a memory that comes twice")
    subject.expect(set(memories) == of_devices, f"{len(of_devices)} memories", len(memories))


@check(
    "device.default_memory.is_addressable",
    calls=(_DEFAULT, _DEVICE_MEMORIES),
    rule="The default memory of a device is one of those that it can address.",
)
def _default(subject: Subject) -> None:
    subject.require(_DEFAULT)
    for device in subject.devices:
        memory = subject.call(_DEFAULT, device=device).memory
        subject.expect(memory, "a memory", "a null pointer")
        listed = subject.call(_DEVICE_MEMORIES, device=device).memories or []
        subject.expect(memory in listed, "one of the device's memories", "another one")


@check(
    "device.addressable_memories.kinds",
    calls=(_DEVICE_MEMORIES, "PJRT_Memory_Kind"),
    rule="Frameworks choose a memory of a device by its kind: one memory of each kind is advice.",
)
def _kinds(subject: Subject) -> None:
    for device in subject.devices:
        memories = subject.call(_DEVICE_MEMORIES, device=device).memories or []
        kinds = [subject.call("PJRT_Memory_Kind", memory=each).kind for each in memories]
        subject.advise(len(set(kinds)) == len(kinds), "one memory of each kind", kinds)


@check(
    "memory_descriptions.agree_with_memories",
    calls=("PJRT_DeviceDescription_MemoryDescriptions", "PJRT_MemoryDescription_Kind", "PJRT_Memory_Kind_Id"),
    rule="The memories that a device's description states are those that the device has: kinds, their ids, and the "
    "default.",
)
def _descriptions(subject: Subject) -> None:
    subject.require_extension("MemoryDescriptions")
    subject.require("PJRT_DeviceDescription_MemoryDescriptions", "PJRT_Memory_Kind_Id", _DEVICE_MEMORIES)
    for device in subject.devices:
        stated = subject.call(
            "PJRT_DeviceDescription_MemoryDescriptions", device_description=subject.description(device)
        )
        described = {}
        for each in stated.memory_descriptions or ():
            result = subject.call("PJRT_MemoryDescription_Kind", memory_description=each)
            described[result.kind] = result.kind_id
        found = {
            subject.call("PJRT_Memory_Kind", memory=each).kind: subject.call("PJRT_Memory_Kind_Id", memory=each).kind_id
            for each in subject.call(_DEVICE_MEMORIES, device=device).memories or ()
        }
        subject.expect(described == found, f"the kinds {found}", described)
        if stated.memory_descriptions and 0 <= stated.default_memory_index < len(described):
            default = list(described)[stated.default_memory_index]
            memory = subject.call(_DEFAULT, device=device).memory
            kind = subject.call("PJRT_Memory_Kind", memory=memory).kind
            subject.expect(kind == default, f"the default memory {kind}", default)
