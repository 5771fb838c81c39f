"""The capabilities of a host client's devices: the runtime's, and the author's declarations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pjrt.api.capability import Capabilities, Feature
from pjrt.api.device import Attributes

if TYPE_CHECKING:
    from pjrt.host.compiler import HostCompiler
    from pjrt.host.device import HostDeviceDescription

_RUNTIME = {
    Feature.ALIAS_BUFFERS: True,
    Feature.AOT_TOPOLOGIES: True,
    Feature.ASYNC_TRANSFERS: True,
    Feature.CROSS_HOST_TRANSFERS: False,
    Feature.DEVICE_VIEWS: True,
    Feature.DMA_MAPPING: True,
    Feature.DONATION: True,
    Feature.ERROR_BUFFERS: True,
    Feature.EXECUTE_CONTEXTS: True,
    Feature.HOST_CALLBACKS: True,
    Feature.LAYOUTS: True,
    Feature.MEMORY_STATISTICS: True,
    Feature.SERIALIZATION: True,
    Feature.STRIDED_LAYOUTS: False,
    Feature.TILED_LAYOUTS: False,
    Feature.UNINITIALIZED_BUFFERS: True,
}
"""The abilities of the runtime; the author declares what programs may contain."""


def describe(
    compiler: HostCompiler, descriptions: Sequence[HostDeviceDescription], attributes: Attributes
) -> Capabilities:
    """Return the capabilities of described devices: the author's declarations first, then attributes and runtime."""
    kinds = dict.fromkeys(memory.kind for device in descriptions for memory in device.memory_space_descriptions)
    names = dict.fromkeys(device.kind for device in descriptions)
    memory = compiler.memory
    lacking = {} if memory is None else {Feature.DEVICE_VIEWS: memory.is_on_host, Feature.LAYOUTS: False}
    runtime = Capabilities(
        num_devices=len(descriptions),
        memory_kinds=tuple(kinds),
        program_formats=compiler.formats,
        features={**_RUNTIME, **lacking},
        variants={"device_kind": ", ".join(names)},
    )
    return compiler.declared_capabilities().completed(Capabilities.from_attributes(attributes)).completed(runtime)
