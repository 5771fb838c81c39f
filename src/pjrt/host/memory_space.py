"""The memory spaces of a host device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.memory_space import MemorySpace
from pjrt.host.accounting import MemoryAccount

if TYPE_CHECKING:
    from pjrt.host.client import HostClient
    from pjrt.host.device import HostDevice


class HostMemorySpace(MemorySpace):
    """One kind of memory of one device. All kinds are memory of this process, with separate accounts."""

    __slots__ = ("_device", "_id", "_kind", "_kind_id", "account")

    def __init__(self, device: HostDevice, space_id: int, kind: str, kind_id: int, limit: int | None) -> None:
        self._device = device
        self._id = space_id
        self._kind = kind
        self._kind_id = kind_id
        self.account = MemoryAccount(f"{device.description}, memory '{kind}'", limit)

    @property
    def client(self) -> HostClient:
        return self._device.client

    @property
    def id(self) -> int:
        return self._id

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def kind_id(self) -> int:
        return self._kind_id

    @property
    def devices(self) -> tuple[HostDevice, ...]:
        return (self._device,)

    def __str__(self) -> str:
        return f"{self._kind}(id={self._id}) of {self._device}"
