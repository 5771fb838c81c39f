"""The memory spaces of a cluster's devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pjrt.api.device import MemorySpace

if TYPE_CHECKING:
    from pjrt.clusters.client.client import ClusterClient
    from pjrt.clusters.client.device import ClusterDevice
    from pjrt.clusters.client.member import Member


class ClusterMemorySpace(MemorySpace):
    """A memory space of one member.

    Args:
        client: the client of the cluster.
        member: the member.
        inner: the memory space of the member's client.
        number: the id among the memory spaces of the cluster: several members may use the same numbers.
        kind_id: the number of its kind in the cluster.

    Attributes:
        member: the member.
        inner: the memory space of the member's client.
    """

    __slots__ = ("client", "devices", "id", "inner", "kind", "kind_id", "member")

    client: ClusterClient
    devices: Sequence[ClusterDevice]
    id: int
    kind: str
    kind_id: int

    def __init__(self, client: ClusterClient, member: Member, inner: MemorySpace, number: int, kind_id: int) -> None:
        self.client = client
        self.member = member
        self.inner = inner
        self.id = number
        self.kind = inner.kind
        self.kind_id = kind_id
        self.devices = ()  # the devices come later: each knows its memory spaces

    @property
    def debug_string(self) -> str:
        return f"{self.inner.debug_string} ({self.member})"

    def __str__(self) -> str:
        return f"{self.inner} ({self.member})"
