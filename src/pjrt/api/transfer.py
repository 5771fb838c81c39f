"""Transfers to a device that go in pieces (``AsyncHostToDeviceTransferManager``, ``PJRT_CopyToDeviceStream``)."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pjrt.api.attributes import Attributes
from pjrt.api.errors import PjrtError
from pjrt.api.future import Future

if TYPE_CHECKING:
    from pjrt.api.buffer import Buffer
    from pjrt.api.device import Device


class AsyncHostToDeviceTransferManager(abc.ABC):
    """Fills a number of new buffers piece by piece; a context manager (``PJRT_AsyncHostToDeviceTransferManager``).

    The buffers can be taken and used at once with ``retrieve_buffer``; each has its value when the last of its pieces
    has arrived. When the manager is closed, buffers that did not get all of theirs fail.
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
        """The bytes that a buffer takes on the device."""

    @abc.abstractmethod
    def retrieve_buffer(self, index: int) -> Buffer:
        """The buffer, once; it may not have its value yet.

        Raises:
            FailedPreconditionError: it was retrieved already.
        """

    @abc.abstractmethod
    def transfer_data(self, index: int, data: Any, offset: int = 0, *, is_last_transfer: bool = True) -> Future[None]:
        """Copies bytes into a buffer (``..._TransferData``).

        Args:
            index: which buffer.
            data: an object with the buffer protocol, C-contiguous; must stay unchanged until the future is done.
            offset: where to put it, in bytes.
            is_last_transfer: whether the buffer has its value after this.
        """

    @abc.abstractmethod
    def transfer_literal(self, index: int, array: Any) -> Future[None]:
        """Copies a whole array of the buffer's shape, and that is its value (``..._TransferLiteral``)."""

    @abc.abstractmethod
    def set_buffer_error(self, index: int, error: PjrtError) -> None:
        """Fails a buffer: the error arrives where its value would have (``..._SetBufferError``)."""

    @abc.abstractmethod
    def add_metadata(self, metadata: Attributes) -> None:
        """Adds facts about the transfer for tracing (``..._AddMetadata``)."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the transfers (``..._Destroy``); may be called again."""

    def __enter__(self) -> AsyncHostToDeviceTransferManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CopyToDeviceStream(abc.ABC):
    """Takes chunks for a program that receives from the host (``PJRT_CopyToDeviceStream``)."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def total_bytes(self) -> int:
        """The bytes of the whole transfer."""

    @property
    @abc.abstractmethod
    def granule_size(self) -> int:
        """Every chunk's size must be a multiple of this number of bytes."""

    @property
    @abc.abstractmethod
    def current_bytes(self) -> int:
        """The bytes that were added so far."""

    @abc.abstractmethod
    def add_chunk(self, data: Any) -> Future[None]:
        """Adds the next bytes (``PJRT_CopyToDeviceStream_AddChunk``); the data is copied before the call returns.

        Raises:
            InvalidArgumentError: the size is no multiple of the granule, or more than is left.
        """
