"""The calls that carry host buffers: a client stores one in pieces or in a file, looks one up, and deletes one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from pjrt.host_memory.aligned import aligned_empty
from pjrt.remote.protocol.messages import parsed, wire
from pjrt.remote.transport.grpc_server import CallContext
from pjrt.remote.transport.host_buffers import piece_data, pieces

if TYPE_CHECKING:
    from pjrt.remote.server.server import Server

_STORE_METADATA = "ifrt-proxy-grpc-host-buffer-store-metadata-bin"


class HostBufferCalls:
    """The methods of host buffers of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def store(self, context: CallContext) -> StoredHostBuffer:
        """Take in a host buffer (``HostBufferStore``)."""
        metadata = parsed(wire.GrpcHostBufferStoreMetadata, context.metadata.get(_STORE_METADATA, b""))
        return StoredHostBuffer(self._server, metadata.session_id, metadata.handle, metadata.buffer_size)

    def read_from_disk(self, request: bytes, context: CallContext) -> bytes:
        """Take in a host buffer that a client on this machine left in a file (``HostBufferReadFromDisk``)."""
        directory = self._server.transfer_directory
        if directory is None:
            raise FailedPreconditionError(
                "this server has no directory for transfers: start it with --transfer-directory, or unset "
                "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_THRESHOLD_BYTES for the client"
            )
        metadata = parsed(wire.GrpcHostBufferReadFromDiskRequest, request).metadata
        session, handle, size = self._server.session(metadata.session_id), metadata.handle, metadata.buffer_size
        if size < 0:
            raise InvalidArgumentError(f"expected a host buffer of at least 0 bytes, found {size}")
        session.host_buffers.expect(handle, size)
        try:
            data = directory.take(session, handle, size)
            session.host_buffers.store(handle, data)
        except BaseException:
            session.host_buffers.abandon(handle)
            raise
        if self._server.metrics is not None:
            self._server.metrics.received(size)
        return b""

    def lookup(self, request: bytes, context: CallContext) -> Iterator[bytes]:
        """Send a host buffer in pieces (``HostBufferLookup``); an empty one is an empty piece."""
        message = parsed(wire.GrpcHostBufferLookupRequest, request)
        data = memoryview(self._server.session(message.session_id).host_buffers.lookup(message.handle)).cast("B")
        if self._server.metrics is not None:
            self._server.metrics.sent(data.nbytes)
        yield from pieces(data)

    def delete(self, request: bytes, context: CallContext) -> bytes:
        """Forget a host buffer (``HostBufferDelete``)."""
        message = parsed(wire.GrpcHostBufferDeleteRequest, request)
        self._server.session(message.session_id).host_buffers.delete(message.handle)
        return b""


class StoredHostBuffer:
    """A host buffer that arrives in pieces.

    Args:
        server: the server.
        session_id: the number of the session that it belongs to.
        handle: its handle.
        size: the number of bytes that its client declares.
    """

    def __init__(self, server: Server, session_id: int, handle: int, size: int) -> None:
        if size < 0:
            raise InvalidArgumentError(f"expected a host buffer of at least 0 bytes, found {size}")
        self._session = server.session(session_id)
        self._session.host_buffers.expect(handle, size)
        self._metrics = server.metrics
        self._handle = handle
        self._data: Any = aligned_empty((size,), np.dtype(np.uint8))
        self._position = 0

    def receive(self, message: bytes) -> None:
        """Take a piece."""
        data = piece_data(message)
        end = self._position + len(data)
        if end > len(self._data):
            raise DataLossError(f"expected a host buffer of {len(self._data)} bytes, found at least {end}")
        self._data[self._position : end] = data
        self._position = end
        self._session.host_buffers.progress()

    def finish(self) -> bytes:
        """Give the buffer to the session."""
        if self._position != len(self._data):
            raise DataLossError(f"expected a host buffer of {len(self._data)} bytes, found {self._position}")
        self._session.host_buffers.store(self._handle, self._data)
        if self._metrics is not None:
            self._metrics.received(self._position)
        return b""

    def cancel(self) -> None:
        """Drop the pieces."""
        self._session.host_buffers.abandon(self._handle)
        self._data = self._data[:0]
