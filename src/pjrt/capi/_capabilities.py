"""What the devices of a plugin can do, as far as the plugin tells: its attributes, the functions in its table, its
extensions, and what its devices are called.

A function that is not in the table is a feature that is lacking. One that is there may still answer that it is not
implemented; an exported device of this package says so in the attribute ``pjrt.capabilities``, which comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pjrt.api.attributes import Attributes, NamedValue
from pjrt.api.capability import ATTRIBUTE, Capabilities, Feature
from pjrt.api.device import DeviceDescription
from pjrt.api.errors import PjrtError

_FUNCTIONS = {
    Feature.ALIAS_BUFFERS: ("PJRT_Client_CreateAliasBuffer", "PJRT_Client_FulfillAliasBuffer"),
    Feature.AOT_TOPOLOGIES: ("PJRT_Compile",),
    Feature.ASYNC_TRANSFERS: ("PJRT_Client_CreateBuffersForAsyncHostToDevice",),
    Feature.DEVICE_VIEWS: ("PJRT_Client_CreateViewOfDeviceBuffer",),
    Feature.DMA_MAPPING: ("PJRT_Client_DmaMap", "PJRT_Client_DmaUnmap"),
    Feature.ERROR_BUFFERS: ("PJRT_Client_CreateErrorBuffer",),
    Feature.EXECUTE_CONTEXTS: ("PJRT_ExecuteContext_Create",),
    Feature.MEMORY_STATISTICS: ("PJRT_Device_MemoryStats",),
    Feature.SERIALIZATION: ("PJRT_Executable_Serialize", "PJRT_Executable_DeserializeAndLoad"),
    Feature.UNINITIALIZED_BUFFERS: ("PJRT_Client_CreateUninitializedBuffer",),
}
_EXTENSIONS = {
    Feature.CROSS_HOST_TRANSFERS: "CrossHostTransfers",
    Feature.HOST_CALLBACKS: "FFI",
}
_OF_EXPORT = frozenset({Feature.EXECUTE_CONTEXTS})
"""What exporting gives a device, whether it has it or not."""

_NO_VARIANTS = frozenset({"xla_version", ATTRIBUTE})
_LONGEST_VARIANT = 100


def of_plugin(api: Any, attributes: Attributes) -> Capabilities:
    """What a plugin tells without a device.

    Args:
        api: its table (``_api.Api``).
        attributes: its attributes.
    """
    functions, extensions = frozenset(api.functions), api.extensions
    has = {feature: functions.issuperset(names) for feature, names in _FUNCTIONS.items()}
    has |= {feature: name in extensions for feature, name in _EXTENSIONS.items()}
    lacking = Capabilities(features={feature: False for feature, there in has.items() if not there})
    there = Capabilities(features=has, variants=_facts(attributes))
    return lacking.completed(Capabilities.from_attributes(attributes)).completed(there)


def of_devices(api: Any, attributes: Attributes, topology: Any, memory_kinds: Sequence[str] | None) -> Capabilities:
    """What a plugin tells of devices.

    Args:
        api: its table (``_api.Api``).
        attributes: its attributes.
        topology: the ``TopologyDescription`` of the devices; ``None`` where the plugin gives none.
        memory_kinds: the kinds of their memory, if they are known.
    """
    if topology is None:
        return Capabilities(memory_kinds=tuple(memory_kinds or ()) or None).completed(of_plugin(api, attributes))
    try:
        told = topology.attributes
    except PjrtError:
        told = {}
    descriptions = topology.device_descriptions
    facts = Capabilities(
        num_devices=len(descriptions),
        memory_kinds=tuple(memory_kinds or _memory_kinds(descriptions)) or None,
        variants={**_facts(told), **_variants(descriptions)},
    )
    return facts.completed(of_plugin(api, {**attributes, **told}))


def stated(of: Any) -> dict[str, NamedValue]:
    """The attribute by which an exported topology says what its devices can do; nothing where that fails.

    Args:
        of: the client or topology that is asked.
    """
    try:
        told = of.capabilities
        features = {feature: has for feature, has in told.features.items() if feature not in _OF_EXPORT}
        return {ATTRIBUTE: replace(told, features=features).to_json()}
    except Exception:  # a device's author may have written anything; a topology is needed all the same
        return {}


def _memory_kinds(descriptions: Iterable[DeviceDescription]) -> tuple[str, ...]:
    try:
        found = dict.fromkeys(space.kind for device in descriptions for space in device.memory_space_descriptions)
    except PjrtError:
        return ()
    return tuple(found)


def _variants(descriptions: Sequence[DeviceDescription]) -> dict[str, NamedValue]:
    """What devices are called, and those of their attributes that are the same for all."""
    if not descriptions:
        return {}
    kinds = tuple(dict.fromkeys(device.kind for device in descriptions))
    first, *others = [_facts(device.attributes) for device in descriptions]
    found = {name: value for name, value in first.items() if all(each.get(name) == value for each in others)}
    found["device_kind"] = ", ".join(kinds)
    if len(kinds) == 1 and kinds[0].startswith("TPU "):
        found["tpu_generation"] = kinds[0].removeprefix("TPU ")
    return found


def _facts(attributes: Attributes) -> dict[str, NamedValue]:
    """Attributes that fit into a table."""
    return {
        name: value
        for name, value in attributes.items()
        if name not in _NO_VARIANTS
        and isinstance(value, (str, int, float, bool))
        and not (isinstance(value, str) and (len(value) > _LONGEST_VARIANT or "\n" in value))
    }
