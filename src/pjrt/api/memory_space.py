"""Memory spaces: the places of buffers (``PjRtMemorySpace``, ``PJRT_Memory``)."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.api.device import Device


class MemorySpace(abc.ABC):
    """One memory of one or more devices, such as a device's own memory or pinned memory of the host."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def client(self) -> Client:
        """The client that this memory space belongs to."""

    @property
    @abc.abstractmethod
    def id(self) -> int:
        """The id, unique among the client's memory spaces (``PJRT_Memory_Id``)."""

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """The kind, such as ``device``, ``pinned_host`` or ``unpinned_host`` (``PJRT_Memory_Kind``)."""

    @property
    @abc.abstractmethod
    def kind_id(self) -> int:
        """A number that is the same for memory spaces of the same kind (``PJRT_Memory_Kind_Id``)."""

    @property
    @abc.abstractmethod
    def devices(self) -> Sequence[Device]:
        """The devices that can address it (``PJRT_Memory_AddressableByDevices``)."""

    @property
    def debug_string(self) -> str:
        """A long description for debugging (``PJRT_Memory_DebugString``)."""
        return str(self)

    def __str__(self) -> str:
        """Return a short description (``PJRT_Memory_ToString``)."""
        return f"{self.kind}(id={self.id})"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


class MemorySpaceDescription(NamedTuple):
    """A kind of memory that a described device has (``PJRT_MemoryDescription`` of the MemoryDescriptions extension).

    Attributes:
        kind: the kind, such as ``device``.
        kind_id: a number that is the same for the same kind.
    """

    kind: str
    kind_id: int
