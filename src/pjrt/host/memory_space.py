"""The memory spaces of a host device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.checks import expect_int
from pjrt.api.device import MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.host.accounting import MemoryAccount

if TYPE_CHECKING:
    from pjrt.api.shape_spec import ShapeSpec
    from pjrt.host.client import HostClient
    from pjrt.host.device import HostDevice


class HostMemorySpace(MemorySpace):
    """One kind of memory of one device. All kinds are memory of this process, with separate accounts."""

    __slots__ = ("account", "devices", "id", "kind", "kind_id")

    devices: tuple[HostDevice, ...]
    id: int
    kind: str
    kind_id: int

    def __init__(self, device: HostDevice, space_id: int, kind: str, kind_id: int, limit: int | None) -> None:
        self.devices = (device,)
        self.id = space_id
        self.kind = kind
        self.kind_id = kind_id
        self.account = MemoryAccount(f"{device.description}, memory '{kind}'", limit, device.wait_for_memory)

    @property
    def client(self) -> HostClient:
        return self.devices[0].client

    def size_of(self, spec: ShapeSpec) -> int:
        """Return the bytes that an array takes in this memory."""
        memory = self.client.memory
        if memory is None or spec.element_type is ElementType.TOKEN:
            return spec.size_in_bytes
        return expect_int(memory.size_of(spec, self), f"a number of bytes from {type(memory).__name__}.size_of")

    def __str__(self) -> str:
        return f"{self.kind}(id={self.id}) of {self.devices[0]}"
