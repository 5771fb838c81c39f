"""Expectations of XLA's test of the C API: a client and its devices, in a job of one process."""

from __future__ import annotations

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject

_LOOKUP = "PJRT_Client_LookupDevice"
_LOOKUP_ADDRESSABLE = "PJRT_Client_LookupAddressableDevice"
_ASSIGNMENT = "PJRT_Client_DefaultDeviceAssignment"


def _devices(subject: Subject) -> list[int]:
    devices = subject.call("PJRT_Client_Devices", client=subject.client).devices
    subject.expect(devices, "a client with devices", "none")
    return list(devices)


def _id(subject: Subject, device: int) -> int:
    description = subject.description(device)
    return int(subject.call("PJRT_DeviceDescription_Id", device_description=description).id)


def _hardware_id(subject: Subject, device: int) -> int:
    return int(subject.call("PJRT_Device_LocalHardwareId", device=device).local_hardware_id)


@check("official.platform_name", calls=("PJRT_Client_PlatformName",), rule="The client's platform has a name.")
def _platform_name(subject: Subject) -> None:
    name = subject.call("PJRT_Client_PlatformName", client=subject.client).platform_name
    subject.expect(name, "the name of a platform", name)


@check(
    "official.client_process_index",
    calls=("PJRT_Client_ProcessIndex",),
    rule="The process index of a client of a single process is 0.",
)
def _client_process_index(subject: Subject) -> None:
    index = subject.call("PJRT_Client_ProcessIndex", client=subject.client, process_index=-1).process_index
    subject.expect(index == 0, "the process index 0", index)


@check(
    "official.client_devices",
    calls=("PJRT_Client_Devices", "PJRT_Device_GetDescription", "PJRT_DeviceDescription_Id"),
    rule="A client has devices, and their ids are at least 0.",
)
def _client_devices(subject: Subject) -> None:
    for device in _devices(subject):
        number = _id(subject, device)
        subject.expect(number >= 0, "an id of at least 0", number)


@check(
    "official.client_addressable_devices",
    calls=("PJRT_Client_AddressableDevices", "PJRT_Client_Devices"),
    rule="A client has addressable devices, with ids of at least 0, and each is one of its devices.",
)
def _client_addressable_devices(subject: Subject) -> None:
    devices = _devices(subject)
    for device in subject.devices:
        number = _id(subject, device)
        subject.expect(number >= 0, "an id of at least 0", number)
        subject.expect(device in devices, "an addressable device that is among the client's devices", "another one")


@check("official.lookup_device", calls=(_LOOKUP,), rule="The id 0 finds the device with the id 0.")
def _lookup_device(subject: Subject) -> None:
    device = subject.call(_LOOKUP, client=subject.client, id=0).device
    subject.expect(device, "a device", "a null pointer")
    number = _id(subject, device)
    subject.expect(number == 0, "the device with the id 0", f"one with the id {number}")


@check(
    "official.lookup_addressable_device",
    calls=(_LOOKUP_ADDRESSABLE, "PJRT_Device_LocalHardwareId"),
    rule="The local hardware id 0 finds the addressable device with that id.",
)
def _lookup_addressable_device(subject: Subject) -> None:
    device = subject.call(_LOOKUP_ADDRESSABLE, client=subject.client, local_hardware_id=0).addressable_device
    subject.expect(device, "a device", "a null pointer")
    number = _hardware_id(subject, device)
    subject.expect(number == 0, "the device with the local hardware id 0", f"one with {number}")


def _outside_of(subject: Subject, number: int) -> None:
    error = subject.fails(_LOOKUP, "INVALID_ARGUMENT", client=subject.client, id=number)
    message = f"No matching device found for device_id {number}"
    subject.advise(error.message == message, f"the message {message!r}", repr(error.message))


@check(
    "official.lookup_device_negative_id",
    calls=(_LOOKUP,),
    rule="The id -1 is an error with the code INVALID_ARGUMENT.",
)
def _lookup_device_negative_id(subject: Subject) -> None:
    _outside_of(subject, -1)


@check(
    "official.lookup_device_out_of_range_id",
    calls=(_LOOKUP,),
    rule="The number of devices, as an id that no device has, is an error with the code INVALID_ARGUMENT.",
)
def _lookup_device_out_of_range_id(subject: Subject) -> None:
    devices = _devices(subject)
    _outside_of(subject, max(len(devices), 1 + max(_id(subject, device) for device in devices)))


@check(
    "official.get_default_device_assignment_nominal",
    calls=(_ASSIGNMENT,),
    rule="There is a default device assignment of 2 replicas and 1 partition, whatever devices the client has.",
)
def _default_device_assignment(subject: Subject) -> None:
    subject.call(
        _ASSIGNMENT, client=subject.client, num_replicas=2, num_partitions=1, default_assignment_size=2,
        default_assignment=[0, 0],
    )  # fmt: skip


@check(
    "official.get_default_device_assignment_buffer_too_small",
    calls=(_ASSIGNMENT,),
    rule="An assignment of 4 replicas and 2 partitions does not fit into 7 numbers: FAILED_PRECONDITION.",
)
def _default_device_assignment_too_small(subject: Subject) -> None:
    error = subject.fails(
        _ASSIGNMENT, "FAILED_PRECONDITION", client=subject.client, num_replicas=4, num_partitions=2,
        default_assignment_size=7, default_assignment=[0] * 7,
    )  # fmt: skip
    message = (
        "PJRT_Client_DefaultDeviceAssignment: `default_assignment_size` 7 < `num_replicas * num_partitions`, 4 * 2 = 8"
    )
    subject.advise(error.message == message, f"the message {message!r}", repr(error.message))


@check("official.device_id", calls=("PJRT_DeviceDescription_Id",), rule="The first device of the client has the id 0.")
def _device_id(subject: Subject) -> None:
    number = _id(subject, _devices(subject)[0])
    subject.expect(number == 0, "the id 0", number)


@check(
    "official.device_process_index",
    calls=("PJRT_DeviceDescription_ProcessIndex",),
    rule="The first device of a client of a single process belongs to process 0.",
)
def _device_process_index(subject: Subject) -> None:
    description = subject.description(_devices(subject)[0])
    index = subject.call("PJRT_DeviceDescription_ProcessIndex", device_description=description).process_index
    subject.expect(index == 0, "the process index 0", index)


@check(
    "official.device_is_addressable",
    calls=("PJRT_Device_IsAddressable",),
    rule="The first device of a client of a single process is addressable.",
)
def _device_is_addressable(subject: Subject) -> None:
    answer = subject.call("PJRT_Device_IsAddressable", device=_devices(subject)[0]).is_addressable
    subject.expect(answer, "an addressable device", "one that is not")


@check(
    "official.device_local_hardware_id",
    calls=("PJRT_Device_LocalHardwareId",),
    rule="The first device of the client has the local hardware id 0.",
)
def _device_local_hardware_id(subject: Subject) -> None:
    number = _hardware_id(subject, _devices(subject)[0])
    subject.expect(number == 0, "the local hardware id 0", number)


@check(
    "official.device_description_and_memory_descriptions",
    calls=("PJRT_DeviceDescription_MemoryDescriptions", "PJRT_MemoryDescription_Kind"),
    rule="A device's description has a default memory, and each memory has a kind with a name and a number other than "
    "0.",
)
def _memory_descriptions(subject: Subject) -> None:
    subject.require_extension("MemoryDescriptions")
    described = subject.call(
        "PJRT_DeviceDescription_MemoryDescriptions", device_description=subject.description(_devices(subject)[0])
    )
    memories = described.memory_descriptions or []
    default = described.default_memory_index
    subject.expect(0 <= default < len(memories), f"a default memory among {len(memories)}", f"the index {default}")
    for memory in memories:
        kind = subject.call("PJRT_MemoryDescription_Kind", memory_description=memory)
        subject.expect(kind.kind, "a kind with a name", repr(kind.kind))
        subject.expect(kind.kind_id != 0, "a kind id other than 0", kind.kind_id)
