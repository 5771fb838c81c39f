"""DMA mappings: host memory that was mapped for direct transfers. A host device needs no
mapping, so it keeps a list.
"""

from __future__ import annotations

from typing import Any

from pjrt.api.errors import AlreadyExistsError, NotFoundError
from pjrt.host_memory.array import bytes_of


class DmaMappings:
    """The mapped memory, kept alive until it is unmapped."""

    __slots__ = ("_by_address",)

    def __init__(self) -> None:
        self._by_address: dict[int, Any] = {}

    def add(self, memory: Any) -> None:
        """Map an object with the buffer protocol.

        Raises:
            AlreadyExistsError: the memory is mapped already.
        """
        view = bytes_of(memory)
        address = int(view.ctypes.data)
        if self._by_address.setdefault(address, view) is not view:
            raise AlreadyExistsError(f"the memory at {address:#x} is mapped already; unmap it first")

    def remove(self, memory: Any) -> None:
        """Unmap an object that was mapped.

        Raises:
            NotFoundError: the memory is not mapped.
        """
        address = int(bytes_of(memory).ctypes.data)
        if self._by_address.pop(address, None) is None:
            raise NotFoundError(f"the memory at {address:#x} is not mapped")
