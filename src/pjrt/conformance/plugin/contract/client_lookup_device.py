"""Checks of ``PJRT_Client_LookupDevice`` and ``PJRT_Client_LookupAddressableDevice``."""

from __future__ import annotations

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject

_LOOKUP = "PJRT_Client_LookupDevice"


@check(
    "client.lookup_device.negative_id",
    calls=(_LOOKUP,),
    rule="An id that no device has is an error with the code INVALID_ARGUMENT.",
)
def _negative_id(subject: Subject) -> None:
    subject.fails(_LOOKUP, "INVALID_ARGUMENT", client=subject.client, id=-1)


@check(
    "client.lookup_device.each_id",
    calls=(_LOOKUP, "PJRT_Client_Devices", "PJRT_DeviceDescription_Id"),
    rule="The id of each device of the client finds that device.",
)
def _each_id(subject: Subject) -> None:
    for device in subject.call("PJRT_Client_Devices", client=subject.client).devices:
        number = subject.call("PJRT_DeviceDescription_Id", device_description=subject.description(device)).id
        match = subject.call(_LOOKUP, client=subject.client, id=number).device
        subject.expect(match == device, f"the device with the id {number}", "another device")
