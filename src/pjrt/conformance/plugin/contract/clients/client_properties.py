"""Checks of the getters of a client."""

from __future__ import annotations

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject

_GETTERS = {
    "PlatformName": ("platform_name", "platform_name_size"),
    "PlatformVersion": ("platform_version", "platform_version_size"),
    "ProcessIndex": ("process_index",),
    "Devices": ("devices", "num_devices"),
    "AddressableDevices": ("addressable_devices", "num_addressable_devices"),
    "AddressableMemories": ("addressable_memories", "num_addressable_memories"),
    "TopologyDescription": ("topology",),
}
_NAMES = {name: f"PJRT_Client_{name}" for name in _GETTERS}


@check(
    "client.getters.stable",
    calls=_NAMES.values(),
    rule="What a getter returns lives as long as the client: the same pointers and numbers come each time.",
    over=_NAMES,
)
def _stable(subject: Subject, function: str) -> None:
    subject.require(function)
    first = subject.call(function, client=subject.client).struct_bytes
    subject.devices  # noqa: B018  # other calls come between
    second = subject.call(function, client=subject.client).struct_bytes
    subject.expect(first == second, "the same answer as before", "another one")


@check(
    "client.getters.of_each_client",
    calls=("PJRT_Client_Devices", "PJRT_Client_Create"),
    rule="The devices of a client are owned by it: two clients have different ones.",
)
def _devices_of_each_client(subject: Subject) -> None:
    other = subject.new_client()
    first = set(subject.call("PJRT_Client_Devices", client=subject.client).devices or ())
    second = set(subject.call("PJRT_Client_Devices", client=other).devices or ())
    subject.expect(not first & second, "devices that belong to one client", "devices that two clients share")


@check("client.platform_name.text", calls=("PJRT_Client_PlatformName",), rule="The platform's name is a text.")
def _platform_name(subject: Subject) -> None:
    name = subject.call("PJRT_Client_PlatformName", client=subject.client).platform_name
    subject.expect(name and _is_text(name), "a name in UTF-8", repr(name))
    subject.expect(b"\0" not in name, "a name without zeros", repr(name))


@check(
    "client.platform_version.text",
    calls=("PJRT_Client_PlatformVersion",),
    rule="The platform's version is human-readable text.",
)
def _platform_version(subject: Subject) -> None:
    version = subject.call("PJRT_Client_PlatformVersion", client=subject.client).platform_version
    subject.expect(version is not None and _is_text(version), "a version in UTF-8", repr(version))
    subject.advise(version, "a version that is not empty", repr(version))


@check(
    "client.process_index.of_addressable_devices",
    calls=("PJRT_Client_ProcessIndex", "PJRT_DeviceDescription_ProcessIndex"),
    rule="The addressable devices of a client belong to its process, and no others do.",
)
def _process_index(subject: Subject) -> None:
    own = subject.call("PJRT_Client_ProcessIndex", client=subject.client).process_index
    for device in subject.call("PJRT_Client_Devices", client=subject.client).devices:
        description = subject.description(device)
        index = subject.call("PJRT_DeviceDescription_ProcessIndex", device_description=description).process_index
        addressable = subject.call("PJRT_Device_IsAddressable", device=device).is_addressable
        expected = f"the process index {own} of an addressable device, and of no other"
        subject.expect((index == own) == addressable, expected, f"{index}, addressable: {addressable}")


@check(
    "client.addressable_devices.agree_with_devices",
    calls=("PJRT_Client_Devices", "PJRT_Client_AddressableDevices", "PJRT_Device_IsAddressable"),
    rule="The addressable devices are those of the client's devices that say so, each once.",
)
def _addressable_devices(subject: Subject) -> None:
    every = subject.call("PJRT_Client_Devices", client=subject.client).devices
    flags = {device: subject.call("PJRT_Device_IsAddressable", device=device).is_addressable for device in every}
    expected = sorted(device for device, flag in flags.items() if flag)
    subject.expect(len(set(every)) == len(every), "each device once", "a device that comes twice")
    subject.expect(sorted(subject.devices) == expected, f"{len(expected)} devices", f"{len(subject.devices)}")


@check(
    "client.devices.null_free",
    calls=("PJRT_Client_Devices", "PJRT_Device_GetDescription"),
    rule="No device and no description of a device is a null pointer.",
)
def _null_free(subject: Subject) -> None:
    for device in subject.call("PJRT_Client_Devices", client=subject.client).devices:
        subject.expect(device, "a device", "a null pointer")
        subject.expect(subject.description(device), "a description of a device", "a null pointer")


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
