"""Facts: what a client or a topology says about itself and its devices; native/library/facts.c reads the messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

from pjrt.api.capability import Feature
from pjrt.api.client import Client
from pjrt.api.device import Attributes, Device, DeviceDescription, MemorySpace, NamedValue
from pjrt.api.errors import UnimplementedError
from pjrt.api.protobuf import message_classes
from pjrt.api.topology import TopologyDescription
from pjrt.capi.reports import stated_capabilities

_CLASSES = message_classes(
    "pjrt_native_facts",
    {
        "Facts": {
            "platform": (1, "string"),
            "platform_version": (2, "string"),
            "process_index": (3, "int64"),
            "devices": (4, "[Device]"),
            "attributes": (5, "[Attribute]"),
            "plugin_attributes": (7, "[Attribute]"),
            "has_layouts": (8, "bool"),
        },
        "Device": {
            "kind": (1, "string"),
            "memory_kinds": (2, "[string]"),
            "limits": (3, "[int64]"),
            "id": (4, "int64"),
            "process_index": (5, "int64"),
            "is_addressable": (6, "bool"),
            "local_hardware_id": (7, "int64"),
            "text": (8, "string"),
            "debug_text": (9, "string"),
            "attributes": (10, "[Attribute]"),
        },
        "Attribute": {
            "name": (1, "string"),
            "type": (2, "int64"),
            "text": (3, "string"),
            "integers": (4, "[int64]"),
            "real": (5, "uint64"),
        },
    },
)

ADDED = frozenset({Feature.DMA_MAPPING, Feature.EXECUTE_CONTEXTS})
"""The features that the runtime adds to every device."""

_TEXT, _INTEGER, _INTEGERS, _REAL, _BOOLEAN = range(5)


def client_facts(client: Client, spaces: Sequence[Sequence[MemorySpace]]) -> bytes:
    """Return what a client says about itself and its devices, whose memory spaces are given, the default one first."""
    facts = _facts(client, {**client.topology.attributes, **stated_capabilities(client, ADDED)})
    facts.process_index = client.process_index
    facts.has_layouts = any(space.has_layouts for own in spaces for space in own)
    facts.plugin_attributes.extend(_attribute(name, value) for name, value in client.attributes.items())
    for device, own in zip(client.devices, spaces, strict=True):
        each = _device_facts(device.description, [space.kind for space in own])
        each.limits[:] = [_limit(device) if n == 0 else 0 for n in range(len(own))]
        each.is_addressable = device.is_addressable
        each.local_hardware_id = device.local_hardware_id
        facts.devices.append(each)
    return bytes(facts.SerializeToString())


def topology_facts(topology: TopologyDescription) -> bytes:
    """Return what a topology says about devices that need not be here."""
    facts = _facts(topology, {**topology.attributes, **stated_capabilities(topology, ADDED)})
    for description in topology.device_descriptions:
        try:
            kinds = [space.kind for space in description.memory_space_descriptions]
        except UnimplementedError:
            kinds = []
        facts.devices.append(_device_facts(description, kinds))
    return bytes(facts.SerializeToString())


def plugin_facts(attributes: Attributes) -> bytes:
    """Return what a plugin says about itself before it has a client."""
    facts = _CLASSES["Facts"](plugin_attributes=[_attribute(name, value) for name, value in attributes.items()])
    return bytes(facts.SerializeToString())


def _facts(of: Client | TopologyDescription, attributes: Attributes) -> Any:
    return _CLASSES["Facts"](
        platform=of.platform_name,
        platform_version=of.platform_version,
        attributes=[_attribute(name, value) for name, value in attributes.items()],
    )


def _device_facts(description: DeviceDescription, memory_kinds: Sequence[str]) -> Any:
    return _CLASSES["Device"](
        kind=description.kind,
        memory_kinds=memory_kinds,
        limits=[0] * len(memory_kinds),
        id=description.id,
        process_index=description.process_index,
        text=str(description),
        debug_text=description.debug_string,
        attributes=[_attribute(name, value) for name, value in description.attributes.items()],
    )


def _attribute(name: str, value: NamedValue) -> Any:
    make = partial(_CLASSES["Attribute"], name=name)
    if isinstance(value, str):
        return make(type=_TEXT, text=value)
    if isinstance(value, bool):
        return make(type=_BOOLEAN, integers=[int(value)])
    if isinstance(value, int):
        return make(type=_INTEGER, integers=[value])
    if isinstance(value, float):
        return make(type=_REAL, real=struct.unpack("<I", struct.pack("<f", value))[0])
    return make(type=_INTEGERS, integers=value)


def _limit(device: Device) -> int:
    if not device.is_addressable:
        return 0
    try:
        return device.memory_stats().bytes_limit or 0
    except UnimplementedError:
        return 0
