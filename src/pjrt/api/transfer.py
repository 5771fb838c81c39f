"""Transfers to a device in pieces (``AsyncHostToDeviceTransferManager``, ``PJRT_CopyToDeviceStream``)."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pjrt.api.attributes import Attributes
    from pjrt.api.buffer import Buffer
    from pjrt.api.device import Device
    from pjrt.api.errors import PjrtError
    from pjrt.api.future import Future


class AsyncHostToDeviceTransferManager(abc.ABC):
    """Fills new buffers in pieces; a context manager (``PJRT_AsyncHostToDeviceTransferManager``).

    ``retrieve_buffer`` returns the buffers at once; each has its value when the last of its pieces has arrived. Closing
    the manager fails the buffers that lack pieces.
    """

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def device(self) -> Device:
        """The device of the buffers."""

    @property
    @abc.abstractmethod
    def buffer_count(self) -> int:
        """The number of buffers."""

    @abc.abstractmethod
    def buffer_size(self, index: int) -> int:
        """Return the number of bytes that a buffer takes on the device."""

    @abc.abstractmethod
    def retrieve_buffer(self, index: int) -> Buffer:
        """Return a buffer, once; it may not have its value yet.

        Raises:
            FailedPreconditionError: the buffer was retrieved already.
        """

    @abc.abstractmethod
    def transfer_data(self, index: int, data: Any, offset: int = 0, *, is_last_transfer: bool = True) -> Future[None]:
        """Copy bytes into a buffer (``PJRT_AsyncHostToDeviceTransferManager_TransferData``).

        Args:
            index: the buffer's number.
            data: an object with the buffer protocol, C-contiguous; must stay unchanged until the future is done.
            offset: the first byte of the buffer to write.
            is_last_transfer: whether the buffer has its value after this.

        Returns:
            A future that is done when the bytes are copied.

        Raises:
            OutOfRangeError: there is no such buffer, or it is too small for the bytes.
            FailedPreconditionError: the buffer has had its last transfer, or has failed.
        """

    @abc.abstractmethod
    def transfer_literal(self, index: int, array: Any) -> Future[None]:
        """Copy a whole array of the buffer's shape; it is the buffer's value (``..._TransferLiteral``)."""

    @abc.abstractmethod
    def set_buffer_error(self, index: int, error: PjrtError) -> None:
        """Fail a buffer: waiting for its value raises the error (``..._SetBufferError``)."""

    @abc.abstractmethod
    def add_metadata(self, metadata: Attributes) -> None:
        """Add facts about the transfer for tracing (``..._AddMetadata``)."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the transfers (``..._Destroy``). A second call does nothing."""

    def __enter__(self) -> AsyncHostToDeviceTransferManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CopyToDeviceStream(abc.ABC):
    """Takes the chunks of a value that a program receives from the host (``PJRT_CopyToDeviceStream``)."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def total_bytes(self) -> int:
        """The number of bytes of the whole transfer."""

    @property
    @abc.abstractmethod
    def granule_size(self) -> int:
        """The number of bytes of which every chunk must be a multiple."""

    @property
    @abc.abstractmethod
    def current_bytes(self) -> int:
        """The number of bytes that were added so far."""

    @abc.abstractmethod
    def add_chunk(self, data: Any) -> Future[None]:
        """Add the next bytes (``PJRT_CopyToDeviceStream_AddChunk``); they are copied before the call returns.

        Raises:
            InvalidArgumentError: the size is not a multiple of the granule, or more bytes than are missing.
        """
