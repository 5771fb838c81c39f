"""What the devices of a host client can do: what the runtime gives them all, and what their author says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pjrt.api.attributes import Attributes
from pjrt.api.capability import Capabilities, Feature

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
"""What comes with the runtime; what programs may hold is for the author to say."""


def describe(
    compiler: HostCompiler, descriptions: Sequence[HostDeviceDescription], attributes: Attributes
) -> Capabilities:
    """What described devices can do: the author's word first, then the attributes and the runtime."""
    kinds = dict.fromkeys(memory.kind for device in descriptions for memory in device.memory_space_descriptions)
    names = dict.fromkeys(device.kind for device in descriptions)
    runtime = Capabilities(
        num_devices=len(descriptions),
        memory_kinds=tuple(kinds),
        program_formats=compiler.formats,
        features=_RUNTIME,
        variants={"device_kind": ", ".join(names)},
    )
    return compiler.stated().completed(Capabilities.from_attributes(attributes)).completed(runtime)
