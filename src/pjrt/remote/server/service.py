"""The methods of a server: the service of the IFRT proxy protocol, ``GrpcIfrtService``, and gRPC's health service.

A client of the first opens its session, stores host buffers in pieces or in a file, looks them up, and deletes them. Of
the second (``grpc.health.v1``), for probes and load balancers, there is the method ``Check``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, NotFoundError, PjrtError
from pjrt.api.future import Future
from pjrt.api.protobuf import message_classes
from pjrt.remote.protocol.messages import parsed, wire
from pjrt.remote.protocol.values import status_proto
from pjrt.remote.protocol.versions import Version, agreed
from pjrt.remote.transport.grpc_server import (
    SHORT,
    Bidirectional,
    CallContext,
    ClientStreaming,
    Method,
    Receiver,
    Refusal,
    ServerStreaming,
    Unary,
)
from pjrt.remote.transport.host_buffers import Pieces, piece_data

if TYPE_CHECKING:
    from pjrt.remote.server.server import Server

Messages = Iterable[bytes | Future[bytes]]

_HEALTH_SERVICES = ("", "xla.ifrt.proxy.GrpcIfrtService")
_SERVING, _NOT_SERVING = 1, 2

# The status is an enumeration, which is a number on the wire.
_HEALTH_MESSAGES = {"HealthCheckRequest": {"service": (1, "string")}, "HealthCheckResponse": {"status": (1, "int64")}}


def health_methods(is_healthy: Callable[[], bool]) -> dict[str, Method]:
    """Return the methods of the health service, by their paths.

    Args:
        is_healthy: whether the server accepts sessions.
    """

    def check(request: bytes, context: CallContext) -> bytes:
        messages = _health_messages()
        service = parsed(messages["HealthCheckRequest"], request).service
        if service not in _HEALTH_SERVICES:
            raise NotFoundError(f"expected no service or {_HEALTH_SERVICES[1]}, found another one")
        response: bytes = messages["HealthCheckResponse"](
            status=_SERVING if is_healthy() else _NOT_SERVING
        ).SerializeToString()
        return response

    return {"/grpc.health.v1.Health/Check": Unary(check, SHORT)}


@functools.cache
def _health_messages() -> dict[str, Any]:
    return message_classes("pjrt.health", _HEALTH_MESSAGES)


_STORE_METADATA = "ifrt-proxy-grpc-host-buffer-store-metadata-bin"


class HostBufferCalls:
    """The methods of host buffers of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def store(self, context: CallContext) -> StoredHostBuffer:
        """Take in a host buffer (``HostBufferStore``)."""
        metadata = parsed(wire.GrpcHostBufferStoreMetadata, context.metadata.get(_STORE_METADATA, b""))
        return StoredHostBuffer(self._server, metadata.session_id, metadata.handle, metadata.buffer_size)

    def read_from_disk(self, request: bytes, context: CallContext) -> Answer:
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
            stored = session.host_buffers.store(handle, directory.take(session, handle, size))
        except BaseException:
            session.host_buffers.abandon(handle)
            raise
        if self._server.metrics is not None:
            self._server.metrics.received(size)
        return _when_done(stored)

    def lookup(self, request: bytes, context: CallContext) -> Messages | Future[Messages]:
        """Send a host buffer in pieces (``HostBufferLookup``); an empty one is an empty piece."""
        message = parsed(wire.GrpcHostBufferLookupRequest, request)
        found = self._server.session(message.session_id).host_buffers.pieces(message.handle)
        return found.then(self._counted) if isinstance(found, Future) else self._counted(found)

    def _counted(self, found: Pieces) -> Messages:
        if self._server.metrics is not None:
            self._server.metrics.sent(found.size)
        return found.messages

    def delete(self, request: bytes, context: CallContext) -> Answer:
        """Forget a host buffer (``HostBufferDelete``)."""
        message = parsed(wire.GrpcHostBufferDeleteRequest, request)
        return _when_done(self._server.session(message.session_id).host_buffers.delete(message.handle))


Answer = bytes | Future[bytes]


def _when_done(work: Future[None] | None) -> Answer:
    """Return the empty answer, which comes when the work of another process is done, if there is any."""
    return b"" if work is None else work.then(lambda _: b"")


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
        self._buffers = server.session(session_id).host_buffers
        self._buffers.expect(handle, size)
        self._metrics = server.metrics
        self._handle = handle
        self._size = size
        self._position = 0

    def receive(self, message: bytes) -> Future[None] | None:
        """Take a piece; return a future if the next one has to wait."""
        data = piece_data(message)
        start, self._position = self._position, self._position + len(data)
        if self._position > self._size:
            raise DataLossError(f"expected a host buffer of {self._size} bytes, found at least {self._position}")
        return self._buffers.write(self._handle, start, data)

    def finish(self) -> Answer:
        """Give the buffer to the session."""
        if self._position != self._size:
            raise DataLossError(f"expected a host buffer of {self._size} bytes, found {self._position}")
        stored = self._buffers.complete(self._handle)
        if self._metrics is not None:
            self._metrics.received(self._position)
        return _when_done(stored)

    def cancel(self) -> None:
        """Drop the pieces."""
        self._buffers.abandon(self._handle)


SERVICE = "/xla.ifrt.proxy.GrpcIfrtService/"
SESSION_METADATA = "ifrt-proxy-grpc-ifrt-session-metadata-bin"


def ifrt_methods(server: Server) -> dict[str, Method]:
    """Return the methods of the service of a server, by their paths."""
    host_buffers = HostBufferCalls(server)

    def get_version(request: bytes, context: CallContext) -> bytes:
        message = parsed(wire.GrpcGetVersionRequest, request)
        oldest, newest = Version.from_proto(message.min_version), Version.from_proto(message.max_version)
        version = agreed(oldest, newest, server.newest)
        return _serialized(wire.GrpcGetVersionResponse(version=version.to_proto()))

    def open_session(context: CallContext, send: Callable[[bytes], None]) -> Receiver:
        try:
            return _Connection(server, context, send)
        except PjrtError as error:
            if not server.await_refused(context):
                raise
            raise _refusal(server, context, error, send) from error

    return {
        f"{SERVICE}GetVersion": Unary(get_version, SHORT),
        f"{SERVICE}IfrtSession": Bidirectional(open_session),
        f"{SERVICE}HostBufferStore": ClientStreaming(host_buffers.store),
        f"{SERVICE}HostBufferLookup": ServerStreaming(host_buffers.lookup, SHORT),
        f"{SERVICE}HostBufferDelete": Unary(host_buffers.delete, SHORT),
        f"{SERVICE}HostBufferReadFromDisk": Unary(host_buffers.read_from_disk, SHORT),
    }


class _Connection:
    """The connection of a session: its requests and responses as messages of protobuf."""

    def __init__(self, server: Server, context: CallContext, send: Callable[[bytes], None]) -> None:
        self._server = server
        self._counter = counter = server.metrics

        def send_response(message: bytes) -> None:
            if counter is not None:
                counter.sent(len(message))
            send(message)

        self._session = server.open_session(_session_metadata(context), send_response, context)

    def receive(self, message: bytes) -> None:
        if self._counter is not None:
            self._counter.received(len(message))
        self._session.receive_message(message)

    def close(self, reason: str, failure: PjrtError | None) -> None:
        self._server.close_session(self._session, reason, failure)


def _refusal(server: Server, context: CallContext, error: PjrtError, send: Callable[[bytes], None]) -> Refusal:
    """Return the refusal of a client that gets no session: its first request fails, and then the connection ends.

    The client of jaxlib does not show why a connection ended, but it shows the error of its first request.
    """

    def answer(message: bytes) -> None:
        response = wire.IfrtResponse()
        response.response_metadata.op_id = parsed(wire.IfrtRequest, message).request_metadata.op_id
        response.response_metadata.status.CopyFrom(status_proto(error))
        send(_serialized(response))

    return Refusal(error, answer, lambda: server.forget_refused(context))


def _session_metadata(context: CallContext) -> Any:
    return parsed(wire.GrpcIfrtSessionMetadata, context.metadata.get(SESSION_METADATA, b""))


def _serialized(message: Any) -> bytes:
    serialized: bytes = message.SerializeToString()
    return serialized
