"""The capabilities of a server's devices: the part of the server's declarations that the protocol carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.capability import Capabilities, Feature
from pjrt.remote.protocol.versions import LAYOUT_OF_NEW_ARRAY

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient

_OF_PROTOCOL = {
    Feature.ALIAS_BUFFERS: False,
    Feature.AOT_TOPOLOGIES: True,
    Feature.ASYNC_TRANSFERS: True,
    Feature.CROSS_HOST_TRANSFERS: False,
    Feature.DEVICE_VIEWS: False,
    Feature.DMA_MAPPING: False,
    Feature.DONATION: True,
    Feature.ERROR_BUFFERS: True,
    Feature.EXECUTE_CONTEXTS: False,
    Feature.HOST_CALLBACKS: False,
    Feature.MEMORY_STATISTICS: False,
    Feature.SERIALIZATION: True,
    Feature.UNINITIALIZED_BUFFERS: True,
}
"""The features whose requests the protocol has or lacks. The server's devices make no difference to them."""


def describe(client: RemoteClient) -> Capabilities:
    """Return the capabilities of a client's devices."""
    features = dict(_OF_PROTOCOL)
    if client.connection.version.protocol < LAYOUT_OF_NEW_ARRAY:
        features[Feature.LAYOUTS] = False
    devices = client.addressable_devices
    kinds = dict.fromkeys(space.kind for device in devices for space in device.memory_spaces)
    names = dict.fromkeys(device.kind for device in client.devices)
    facts = Capabilities(
        num_devices=len(client.devices),
        memory_kinds=tuple(kinds) or None,
        features=features,
        variants={"device_kind": ", ".join(names)},
    )
    return facts.completed(Capabilities.from_attributes(client.attributes))
