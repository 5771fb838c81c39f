"""Checks of devices and their descriptions."""

from __future__ import annotations

import ctypes

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject, expect_named_values, read_named_values

_DESCRIPTION = "PJRT_DeviceDescription_"
_GETTERS = ("Id", "ProcessIndex", "Attributes", "Kind", "DebugString", "ToString")
_DEVICE_GETTERS = ("GetDescription", "IsAddressable", "LocalHardwareId", "AddressableMemories", "DefaultMemory")
_ATTRIBUTES = "PJRT_Device_GetAttributes"


def _devices(subject: Subject) -> list[int]:
    return list(subject.call("PJRT_Client_Devices", client=subject.client).devices or ())


@check(
    "device_description.getters.stable",
    calls=[f"{_DESCRIPTION}{name}" for name in _GETTERS],
    rule="What a getter of a description returns lives as long as the description: the same comes each time.",
    over=_GETTERS,
)
def _stable(subject: Subject, name: str) -> None:
    function = f"{_DESCRIPTION}{name}"
    for device in _devices(subject):
        description = subject.description(device)
        answers = {subject.call(function, device_description=description).struct_bytes for _ in range(2)}
        subject.expect(len(answers) == 1, "the same answer as before", "another one")


@check(
    "device.getters.stable",
    calls=[f"PJRT_Device_{name}" for name in _DEVICE_GETTERS],
    rule="What a getter of a device returns lives as long as the device: the same comes each time.",
    over=_DEVICE_GETTERS,
)
def _device_stable(subject: Subject, name: str) -> None:
    function = f"PJRT_Device_{name}"
    subject.require(function)
    for device in subject.devices:
        answers = {subject.call(function, device=device).struct_bytes for _ in range(2)}
        subject.expect(len(answers) == 1, "the same answer as before", "another one")


@check(
    "device_description.id.unique",
    calls=(f"{_DESCRIPTION}Id",),
    rule="Each device of a client has an id of its own, of at least 0.",
)
def _unique_ids(subject: Subject) -> None:
    ids = [
        subject.call(f"{_DESCRIPTION}Id", device_description=subject.description(device)).id
        for device in _devices(subject)
    ]
    subject.expect(len(set(ids)) == len(ids), "different ids", ids)
    subject.expect(min(ids) >= 0, "ids of at least 0", ids)


@check(
    "device_description.texts",
    calls=[f"{_DESCRIPTION}{name}" for name in ("Kind", "DebugString", "ToString")],
    rule="A device has a kind and two descriptions, as text in UTF-8 that is not empty.",
    over={"Kind": "device_kind", "DebugString": "debug_string", "ToString": "to_string"},
)
def _texts(subject: Subject, field: str) -> None:
    name = {"device_kind": "Kind", "debug_string": "DebugString", "to_string": "ToString"}[field]
    for device in _devices(subject):
        result = subject.call(f"{_DESCRIPTION}{name}", device_description=subject.description(device))
        text = result.fields[field]
        subject.expect(text and _is_text(text), "a text in UTF-8", repr(text))


@check(
    "device_description.debug_string.distinct",
    calls=(f"{_DESCRIPTION}DebugString",),
    rule="The debug string describes the device unambiguously: two devices have different ones.",
)
def _distinct(subject: Subject) -> None:
    devices = _devices(subject)
    texts = [
        subject.call(f"{_DESCRIPTION}DebugString", device_description=subject.description(device)).debug_string
        for device in devices
    ]
    subject.expect(len(set(texts)) == len(devices), "different debug strings", repr(texts))


@check(
    "device_description.kind.size",
    calls=(f"{_DESCRIPTION}Kind",),
    rule="The kind is a text of its own, and the number of its bytes is stated.",
)
def _kind_size(subject: Subject) -> None:
    for device in _devices(subject):
        result = subject.call(f"{_DESCRIPTION}Kind", device_description=subject.description(device))
        subject.expect(result.device_kind_size == len(result.device_kind or b""), "the size of the kind", result)
        subject.expect(b"\0" not in (result.device_kind or b""), "a kind without zeros", repr(result.device_kind))


@check(
    "device_description.attributes.types",
    calls=(f"{_DESCRIPTION}Attributes",),
    rule="The attributes of a device have names of their own, are texts, numbers or lists of numbers, and state their "
    "struct sizes.",
)
def _attributes(subject: Subject) -> None:
    for device in _devices(subject):
        result = subject.call(f"{_DESCRIPTION}Attributes", device_description=subject.description(device))
        expect_named_values(subject, result, "attributes")


@check(
    "device.get_attributes.types",
    calls=(_ATTRIBUTES,),
    rule="The attributes of a device that may change have names of their own, and live until their deleter is called.",
)
def _device_attributes(subject: Subject) -> None:
    subject.require(_ATTRIBUTES)
    result = subject.call(_ATTRIBUTES, device=subject.device)
    expect_named_values(subject, result, "attributes")
    subject.expect(result.attributes_deleter, "a deleter", "a null pointer")
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(result.attributes_deleter)(result.device_attributes)


@check(
    "device.get_attributes.independent",
    calls=(_ATTRIBUTES,),
    rule="Each call returns attributes of its own: those of one call stay when those of another are deleted.",
)
def _independent_attributes(subject: Subject) -> None:
    subject.require(_ATTRIBUTES)
    first, second = (subject.call(_ATTRIBUTES, device=subject.device) for _ in range(2))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(first.attributes_deleter)(first.device_attributes)
    after = read_named_values(second, "attributes", second.num_attributes)
    subject.expect(after == (second.attributes or []), "the same attributes", repr(after))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(second.attributes_deleter)(second.device_attributes)


@check(
    "device.local_hardware_id.unique",
    calls=("PJRT_Device_LocalHardwareId",),
    rule="The local hardware ids of the addressable devices are different, but for -1, which means that there is none.",
)
def _local_hardware_ids(subject: Subject) -> None:
    ids = [subject.call("PJRT_Device_LocalHardwareId", device=device).local_hardware_id for device in subject.devices]
    defined = [number for number in ids if number != -1]
    subject.expect(len(set(defined)) == len(defined), "different ids", ids)


@check(
    "device.get_description.own",
    calls=("PJRT_Device_GetDescription",),
    rule="Each device has a description of its own.",
)
def _own_description(subject: Subject) -> None:
    devices = _devices(subject)
    descriptions = {subject.description(device) for device in devices}
    subject.expect(len(descriptions) == len(devices), f"{len(devices)} descriptions", len(descriptions))


@check(
    "device_description.coordinates",
    calls=(f"{_DESCRIPTION}Attributes",),
    rule="The coordinates of a device, where the attribute coords states them, are a list of whole numbers, of the "
    "same length for all devices.",
)
def _coordinates(subject: Subject) -> None:
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
