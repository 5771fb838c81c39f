"""External references: memory of host buffers in the hands of others."""

from __future__ import annotations

from pjrt.api.buffer import ExternalReference
from pjrt.api.errors import FailedPreconditionError
from pjrt.host.storage import Storage


class HostExternalReference(ExternalReference):
    """Keeps a buffer's memory alive and in place until it is released, whatever becomes of the buffer."""

    __slots__ = ("_pointer", "_storage")

    def __init__(self, storage: Storage) -> None:
        storage.definition.result()
        assert storage.array is not None
        self._storage: Storage | None = storage
        self._pointer = int(storage.array.ctypes.data)

    @property
    def pointer(self) -> int:
        if self._storage is None:
            raise FailedPreconditionError("the external reference was released; its address means nothing any more")
        return self._pointer

    def release(self) -> None:
        self._storage = None
