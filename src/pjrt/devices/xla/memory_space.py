"""Memory spaces of the ``cpu`` device: three kinds for each device, all in the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.client import Client
from pjrt.api.device import MemorySpace
from pjrt.devices.xla import _jaxlib

if TYPE_CHECKING:
    from pjrt.devices.xla.device import XlaDevice

DEVICE, PINNED_HOST, UNPINNED_HOST = KINDS = ("device", "pinned_host", "unpinned_host")
"""The kinds of memory in the order of their ``kind_id``; a device's default kind comes first."""


class XlaMemorySpace(MemorySpace):
    """One kind of memory of one device.

    Attributes:
        placement: the same place in jaxlib's terms.
    """

    __slots__ = ("_device", "_id", "_kind", "_text", "placement")

    def __init__(self, device: XlaDevice, jaxlib_memory: Any, number: int) -> None:
        self._device = device
        self._id = number
        self._kind: str = jaxlib_memory.kind
        self._text = str(jaxlib_memory)
        self.placement = _jaxlib.Placement(device.jaxlib_device, self._kind)

    @property
    def client(self) -> Client:
        return self._device.client

    @property
    def id(self) -> int:
        return self._id

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def kind_id(self) -> int:
        return KINDS.index(self._kind)

    @property
    def device(self) -> XlaDevice:
        """The one device that can address it."""
        return self._device

    @property
    def devices(self) -> Sequence[XlaDevice]:
        return (self._device,)

    @property
    def debug_string(self) -> str:
        return self._text
