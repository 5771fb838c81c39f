"""Descriptions of the memories of a device (the extension MemoryDescriptions)."""

from __future__ import annotations

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import supported
from pjrt.conformance.plugin.contract.buffers.buffer_placement import default_memory, memories_of
from pjrt.conformance.plugin.subject import Subject

LIST, KIND = "PJRT_DeviceDescription_MemoryDescriptions", "PJRT_MemoryDescription_Kind"
_CALLS = (LIST, KIND)
_NONE = (1 << 64) - 1


def _descriptions(subject: Subject, device: int) -> tuple[list[int], int]:
    """Return the descriptions of a device's memories, and the index of the default one."""
    subject.require_extension("MemoryDescriptions")
    result = supported(subject, LIST, device_description=subject.description(device))
    return list(result.memory_descriptions or ()), int(result.default_memory_index) & _NONE


def _kind(subject: Subject, description: int) -> tuple[str, int]:
    result = subject.call(KIND, memory_description=description)
    return bytes(result.kind or b"").decode(), int(result.kind_id)


def _kind_of_memory(subject: Subject, memory: int) -> tuple[str, int]:
    kind = bytes(subject.call("PJRT_Memory_Kind", memory=memory).kind or b"").decode()
    return kind, int(subject.call("PJRT_Memory_Kind_Id", memory=memory).kind_id)


@check(
    "memory_descriptions.kinds",
    calls=(*_CALLS, "PJRT_Memory_Kind", "PJRT_Memory_Kind_Id"),
    rule="A device description lists the kinds of the memories that its device has.",
)
def _kinds(subject: Subject) -> None:
    for device in subject.devices:
        described = sorted(_kind(subject, each) for each in _descriptions(subject, device)[0])
        subject.require("PJRT_Memory_Kind_Id")
        found = sorted(_kind_of_memory(subject, each) for each in memories_of(subject, device))
        subject.expect(described == found, f"{found}, as the memories of the device", str(described))


@check(
    "memory_descriptions.default",
    calls=(*_CALLS, "PJRT_Device_DefaultMemory"),
    rule="The default memory of a description is of the kind of the device's default memory.",
)
def _default(subject: Subject) -> None:
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
    calls=(*_CALLS, "PJRT_TopologyDescription_GetDeviceDescriptions"),
    rule="The devices of the client's topology have descriptions of their memories, too.",
)
def _of_each_topology_device(subject: Subject) -> None:
    subject.require_extension("MemoryDescriptions")
    subject.require("PJRT_Client_TopologyDescription", LIST)
    topology = subject.call("PJRT_Client_TopologyDescription", client=subject.client).topology
    listed = subject.call("PJRT_TopologyDescription_GetDeviceDescriptions", topology=topology).descriptions
    for description in listed or ():
        result = subject.call(LIST, device_description=description)
        for each in result.memory_descriptions or ():
            kind, _ = _kind(subject, each)
            subject.expect(kind, "a kind with a name", "an empty one")


@check(
    "memory_descriptions.repeated",
    calls=_CALLS,
    rule="The descriptions belong to the device description: they are the same each time.",
)
def _repeated(subject: Subject) -> None:
    first = _descriptions(subject, subject.device)
    kinds_before = [_kind(subject, each) for each in first[0]]
    for _ in range(10):
        again = _descriptions(subject, subject.device)
        found = [_kind(subject, each) for each in again[0]]
        subject.expect((found, again[1]) == (kinds_before, first[1]), str(kinds_before), str(found))
