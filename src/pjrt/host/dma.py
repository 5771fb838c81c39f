"""Memory of the host that was made fit for direct transfers: on a host device all memory is, so it is only noted."""

from __future__ import annotations

from typing import Any

from pjrt.api.errors import AlreadyExistsError, NotFoundError
from pjrt.host_memory.byte_range import bytes_of


class DmaMappings:
    """The pieces of memory that are mapped, kept alive until they are unmapped."""

    __slots__ = ("_by_address",)

    def __init__(self) -> None:
        self._by_address: dict[int, Any] = {}

    def add(self, memory: Any) -> None:
        """Maps an object with the buffer protocol.

        Raises:
            AlreadyExistsError: it is mapped already.
        """
        view = bytes_of(memory)
        address = int(view.ctypes.data)
        if self._by_address.setdefault(address, view) is not view:
            raise AlreadyExistsError(f"the memory at {address:#x} is mapped already; unmap it first")

    def remove(self, memory: Any) -> None:
        """Unmaps it.

        Raises:
            NotFoundError: it is not mapped.
        """
        address = int(bytes_of(memory).ctypes.data)
        if self._by_address.pop(address, None) is None:
            raise NotFoundError(f"the memory at {address:#x} is not mapped")
