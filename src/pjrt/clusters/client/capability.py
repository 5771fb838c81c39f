"""The capabilities of a cluster: those that its members declare, without what needs memory of this process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pjrt.api.capability import Capabilities, Feature
from pjrt.clusters.client.host_functions import can_call

if TYPE_CHECKING:
    from pjrt.clusters.client.client import ClusterClient

_LACKING = (
    Feature.ALIAS_BUFFERS,
    Feature.CROSS_HOST_TRANSFERS,
    Feature.DEVICE_VIEWS,
    Feature.DMA_MAPPING,
    Feature.EXECUTE_CONTEXTS,
)
"""The features whose calls name memory or functions of one process."""


def describe(client: ClusterClient) -> Capabilities:
    """Return the capabilities of a cluster's devices."""
    of_member = client.members[0].client.capabilities
    features = {**of_member.features, **dict.fromkeys(_LACKING, False), Feature.HOST_CALLBACKS: can_call(client)}
    if can_call(client):  # the workers are asked, who may have them or not
        features.pop(Feature.MEMORY_STATISTICS, None)
    return replace(of_member, num_devices=len(client.devices), features=features)
