"""The memory spaces of remote devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.memory_space import MemorySpace

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient
    from pjrt.remote.client.device import RemoteDevice


class RemoteMemorySpace(MemorySpace):
    """A memory space of a server's devices, as its ``InitResponse.Memory`` describes it."""

    __slots__ = ("client", "debug_string", "devices", "id", "kind", "kind_id", "text")

    client: RemoteClient
    debug_string: str
    devices: Sequence[RemoteDevice]
    id: int
    kind: str
    kind_id: int

    def __init__(self, client: RemoteClient, proto: Any) -> None:
        self.client = client
        self.id = proto.id
        self.kind = proto.memory_space_kind
        self.kind_id = proto.kind_id
        self.debug_string = proto.debug_string
        self.text: str = proto.to_string
        self.devices = ()  # the devices come later: each knows its memory spaces

    def __str__(self) -> str:
        return self.text or super().__str__()
