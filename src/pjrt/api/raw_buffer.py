"""Raw buffers: the bytes behind a buffer (``PjRtRawBuffer``, the RawBuffer extension)."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from pjrt.api.future import Future

if TYPE_CHECKING:
    from pjrt.api.memory_space import MemorySpace


class RawBuffer(abc.ABC):
    """Memory of a device without shape or type, shared with the buffer that it was made from (``PJRT_RawBuffer``)."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def memory_space(self) -> MemorySpace:
        """The memory space of the bytes (``PJRT_RawBuffer_GetMemorySpace``)."""

    @property
    @abc.abstractmethod
    def on_device_size(self) -> int:
        """Its size in bytes (``PJRT_RawBuffer_GetOnDeviceSizeInBytes``)."""

    @abc.abstractmethod
    def host_pointer(self) -> int:
        """Return the address if the host can read the bytes in place, else 0 (``PJRT_RawBuffer_GetHostPointer``)."""

    @abc.abstractmethod
    def copy_from_host(self, source: Any, offset: int = 0) -> Future[None]:
        """Write the bytes of an object with the buffer protocol, from an offset on
        (``PJRT_RawBuffer_CopyRawHostToDevice``).

        Raises:
            OutOfRangeError: the buffer is too small for the bytes.
        """

    @abc.abstractmethod
    def copy_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        """Read bytes into a writable object with the buffer protocol (``PJRT_RawBuffer_CopyRawDeviceToHost``).

        Raises:
            OutOfRangeError: the buffer does not have these bytes.
        """

    @abc.abstractmethod
    def release(self) -> None:
        """Release the memory (``PJRT_RawBuffer_Destroy``). A second call does nothing."""
