"""Checks of the functions that find a device of a client by a number."""

from __future__ import annotations

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject

_LOOKUP = "PJRT_Client_LookupDevice"
_LOOKUP_ADDRESSABLE = "PJRT_Client_LookupAddressableDevice"
_ABSENT = {"-1": -1, "-2**31": -(2**31), "2**31-1": 2**31 - 1, "12345": 12345}


def device_ids(subject: Subject) -> dict[int, int]:
    """Return the ids of all devices of the client, and the devices."""
    devices = subject.call("PJRT_Client_Devices", client=subject.client).devices or []
    return {
        subject.call("PJRT_DeviceDescription_Id", device_description=subject.description(device)).id: device
        for device in devices
    }


def local_hardware_ids(subject: Subject) -> dict[int, int]:
    """Return the local hardware ids of the addressable devices that have one, and the devices."""
    ids = {
        subject.call("PJRT_Device_LocalHardwareId", device=device).local_hardware_id: device
        for device in subject.devices
    }
    return {number: device for number, device in ids.items() if number != -1}


@check(
    "client.lookup_device.each_id",
    calls=(_LOOKUP, "PJRT_Client_Devices", "PJRT_DeviceDescription_Id"),
    rule="The id of each device of the client finds that device.",
)
def _each_id(subject: Subject) -> None:
    for number, device in device_ids(subject).items():
        match = subject.call(_LOOKUP, client=subject.client, id=number).device
        subject.expect(match == device, f"the device with the id {number}", "another device")


@check(
    "client.lookup_device.absent_id",
    calls=(_LOOKUP,),
    rule="An id that no device has is an error with the code INVALID_ARGUMENT.",
    over=_ABSENT,
)
def _absent_id(subject: Subject, number: int) -> None:
    if number in device_ids(subject):
        return
    subject.fails(_LOOKUP, "INVALID_ARGUMENT", client=subject.client, id=number)


@check(
    "client.lookup_device.next_id",
    calls=(_LOOKUP,),
    rule="The number behind the greatest id of a device is an error with the code INVALID_ARGUMENT.",
)
def _next_id(subject: Subject) -> None:
    subject.fails(_LOOKUP, "INVALID_ARGUMENT", client=subject.client, id=max(device_ids(subject)) + 1)


@check(
    "client.lookup_device.same_pointer",
    calls=(_LOOKUP,),
    rule="A device is owned by its client: the same id finds the same device each time.",
)
def _same_pointer(subject: Subject) -> None:
    number = next(iter(device_ids(subject)))
    matches = {subject.call(_LOOKUP, client=subject.client, id=number).device for _ in range(3)}
    subject.expect(len(matches) == 1, "the same device each time", f"{len(matches)} devices")


@check(
    "client.lookup_addressable_device.each_id",
    calls=(_LOOKUP_ADDRESSABLE, "PJRT_Device_LocalHardwareId"),
    rule="The local hardware id of each addressable device finds that device.",
)
def _each_local_id(subject: Subject) -> None:
    for number, device in local_hardware_ids(subject).items():
        result = subject.call(_LOOKUP_ADDRESSABLE, client=subject.client, local_hardware_id=number)
        match = result.addressable_device
        subject.expect(match == device, f"the device with the local hardware id {number}", "another device")


@check(
    "client.lookup_addressable_device.absent_id",
    calls=(_LOOKUP_ADDRESSABLE,),
    rule="A local hardware id that no addressable device has is an error with the code INVALID_ARGUMENT.",
    over=_ABSENT,
)
def _absent_local_id(subject: Subject, number: int) -> None:
    if number in local_hardware_ids(subject):
        return
    subject.fails(_LOOKUP_ADDRESSABLE, "INVALID_ARGUMENT", client=subject.client, local_hardware_id=number)
