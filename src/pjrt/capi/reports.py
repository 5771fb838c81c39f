"""Reports of plugins: the capabilities of their devices, and the words of their allocators when memory is out.

Capabilities are read from attributes, functions and extensions, and from facts of the devices. Where a function is not
in the table, its feature is missing. A function in the table may still be unimplemented; an exported device of this
package declares that in the attribute ``pjrt.capabilities``, which counts before the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pjrt.api.capability import ATTRIBUTE, Capabilities, Feature
from pjrt.api.device import Attributes, Device, DeviceDescription, NamedValue
from pjrt.api.errors import PjrtError, ResourceExhaustedError

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
_OF_XLA = frozenset({"TpuExecutable", "TpuTopology", "Triton"})
"""Extensions of plugins that are made of XLA, which has no arrays of unknown sizes: some of its compilers crash."""

_OF_EXPORT = frozenset({Feature.EXECUTE_CONTEXTS})
"""Features that exporting adds to every device."""

_NO_VARIANTS = frozenset({"xla_version", ATTRIBUTE})
_LONGEST_VARIANT = 100


def plugin_capabilities(api: Any, attributes: Attributes) -> Capabilities:
    """Return the capabilities that a plugin reports without a device.

    Args:
        api: the plugin's table (``_api.Api``).
        attributes: the plugin's attributes.
    """
    functions, extensions = frozenset(api.functions), api.extensions
    has = {feature: functions.issuperset(names) for feature, names in _FUNCTIONS.items()}
    has |= {feature: name in extensions for feature, name in _EXTENSIONS.items()}
    missing = Capabilities(features={feature: False for feature, available in has.items() if not available})
    if not _OF_XLA.isdisjoint(extensions):
        has[Feature.DYNAMIC_SHAPES] = False
    inferred = Capabilities(features=has, variants=_facts(attributes))
    return missing.completed(Capabilities.from_attributes(attributes)).completed(inferred)


def device_capabilities(
    api: Any, attributes: Attributes, topology: Any, memory_kinds: Sequence[str] | None
) -> Capabilities:
    """Return the capabilities that a plugin reports for devices.

    Args:
        api: the plugin's table (``_api.Api``).
        attributes: the plugin's attributes.
        topology: the ``TopologyDescription`` of the devices; ``None`` where the plugin has none.
        memory_kinds: the kinds of the devices' memory, if they are known.
    """
    if topology is None:
        return Capabilities(memory_kinds=tuple(memory_kinds or ()) or None).completed(
            plugin_capabilities(api, attributes)
        )
    try:
        own_attributes = topology.attributes
    except PjrtError:
        own_attributes = {}
    descriptions = topology.device_descriptions
    facts = Capabilities(
        num_devices=len(descriptions),
        memory_kinds=tuple(memory_kinds or _memory_kinds(descriptions)) or None,
        variants={**_facts(own_attributes), **_variants(descriptions)},
    )
    return facts.completed(plugin_capabilities(api, {**attributes, **own_attributes}))


def stated_capabilities(of: Any, added: frozenset[Feature] = _OF_EXPORT) -> dict[str, NamedValue]:
    """Return the attribute by which an exported topology declares its capabilities; nothing where reading them fails.

    Args:
        of: the client or topology whose capabilities are declared.
        added: the features that are there whether the device has them or not.
    """
    try:
        own = of.capabilities
        features = {feature: has for feature, has in own.features.items() if feature not in added}
        return {ATTRIBUTE: replace(own, features=features).to_json()}
    except Exception:  # a device's author may have written anything; a topology is needed all the same
        return {}


def _memory_kinds(descriptions: Iterable[DeviceDescription]) -> tuple[str, ...]:
    try:
        kinds = dict.fromkeys(space.kind for device in descriptions for space in device.memory_space_descriptions)
    except PjrtError:
        return ()
    return tuple(kinds)


def _variants(descriptions: Sequence[DeviceDescription]) -> dict[str, NamedValue]:
    """Return the names of the kinds of devices, and the attributes that are the same for all devices."""
    if not descriptions:
        return {}
    kinds = tuple(dict.fromkeys(device.kind for device in descriptions))
    first, *others = [_facts(device.attributes) for device in descriptions]
    shared = {name: value for name, value in first.items() if all(each.get(name) == value for each in others)}
    shared["device_kind"] = ", ".join(kinds)
    if len(kinds) == 1 and kinds[0].startswith("TPU "):
        shared["tpu_generation"] = kinds[0].removeprefix("TPU ")
    return shared


def _facts(attributes: Attributes) -> dict[str, NamedValue]:
    """Return the attributes that fit into a table."""
    return {
        name: value
        for name, value in attributes.items()
        if name not in _NO_VARIANTS
        and isinstance(value, (str, int, float, bool))
        and not (isinstance(value, str) and (len(value) > _LONGEST_VARIANT or "\n" in value))
    }


def explained_out_of_memory(
    error: PjrtError, devices: Iterable[Device], options: Mapping[str, Any]
) -> ResourceExhaustedError:
    """Return an out-of-memory error with the state of the allocators and the client's options.

    Programs find both as payloads; people read them in a note of the exception.
    """
    stats = _allocator_stats(devices)
    payloads = dict(error.payloads)
    payloads["pjrt.client_options"] = json.dumps(options, default=str).encode()
    payloads["pjrt.allocator_stats"] = json.dumps(stats).encode()
    explanation = ResourceExhaustedError(error.message, payloads=payloads)
    lines = [f"{device}: {_in_use(values)}" for device, values in stats.items()]
    explanation.add_note("\n".join([*lines, f"options of the client: {options or 'none given'}"]))
    return explanation


def _allocator_stats(devices: Iterable[Device]) -> dict[str, dict[str, int]]:
    all_stats = {}
    for device in devices:
        try:
            stats = device.memory_stats()
        except PjrtError:
            continue
        all_stats[str(device)] = {name: value for name, value in stats._asdict().items() if value is not None}
    return all_stats


def _in_use(stats: Mapping[str, int]) -> str:
    """Return the figures of an allocator that the plugin reports, in one line."""
    limit = stats.get("bytes_limit")
    of = "" if limit is None else f" of {limit:,}"
    line = f"{stats['bytes_in_use']:,}{of} bytes in use"
    for name in ("peak_bytes_in_use", "largest_free_block_bytes", "num_allocs"):
        if stats.get(name) is not None:
            line += f", {name} {stats[name]:,}"
    return line
