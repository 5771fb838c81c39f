"""External references: memory of buffers that code outside of the runtime uses."""

from __future__ import annotations

from pjrt.api.buffer import ExternalReference
from pjrt.api.errors import FailedPreconditionError
from pjrt.host_memory.aligned import HostArray


class HostExternalReference(ExternalReference):
    """Keeps a buffer's memory alive and in place until it is released, even if the buffer is deleted before.

    Args:
        array: the buffer's value.
        owner: what keeps the memory from being written to or given to another buffer, besides the array.
    """

    __slots__ = ("_held", "_pointer")

    def __init__(self, array: HostArray, owner: object = None) -> None:
        self._held: tuple[HostArray, object] | None = (array, owner)
        self._pointer = int(array.ctypes.data)

    @property
    def pointer(self) -> int:
        if self._held is None:
            raise FailedPreconditionError("the external reference was released; take a new one")
        return self._pointer

    def release(self) -> None:
        self._held = None
