"""The service of the IFRT proxy protocol: the methods of ``GrpcIfrtService`` on a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.remote.protocol.batches import requests_in
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import status_proto
from pjrt.remote.protocol.versions import Version, agreed
from pjrt.remote.transport.calls import (
    Bidirectional,
    CallContext,
    ClientStreaming,
    Method,
    Receiver,
    ServerStreaming,
    Unary,
)
from pjrt.remote.transport.host_buffer_calls import HostBufferCalls

if TYPE_CHECKING:
    from pjrt.remote.server.server import Server

SERVICE = "/xla.ifrt.proxy.GrpcIfrtService/"
SESSION_METADATA = "ifrt-proxy-grpc-ifrt-session-metadata-bin"


def ifrt_methods(server: Server) -> dict[str, Method]:
    """Return the methods of the service of a server, by their paths."""
    host_buffers = HostBufferCalls(server)

    def get_version(request: bytes, context: CallContext) -> bytes:
        message = wire.GrpcGetVersionRequest.FromString(request)
        oldest, newest = Version.from_proto(message.min_version), Version.from_proto(message.max_version)
        version = agreed(oldest, newest, server.newest)
        return _serialized(wire.GrpcGetVersionResponse(version=version.to_proto()))

    def open_session(context: CallContext, send: Callable[[bytes], None]) -> Receiver:
        try:
            return _Connection(server, context, send)
        except PjrtError as error:
            if not server.await_refused(context):
                raise
            return _Refusal(server, context, error, send)

    return {
        f"{SERVICE}GetVersion": Unary(get_version),
        f"{SERVICE}IfrtSession": Bidirectional(open_session),
        f"{SERVICE}HostBufferStore": ClientStreaming(host_buffers.store),
        f"{SERVICE}HostBufferLookup": ServerStreaming(host_buffers.lookup),
        f"{SERVICE}HostBufferDelete": Unary(host_buffers.delete),
        f"{SERVICE}HostBufferReadFromDisk": Unary(host_buffers.read_from_disk),
    }


class _Connection:
    """The connection of a session: its requests and responses as messages of protobuf."""

    def __init__(self, server: Server, context: CallContext, send: Callable[[bytes], None]) -> None:
        self._server = server
        self._counter = server.metrics

        def send_response(response: Any) -> None:
            message = response.SerializeToString()
            if self._counter is not None:
                self._counter.sent(len(message))
            send(message)

        self._session = server.open_session(_session_metadata(context), send_response, context)

    def receive(self, message: bytes) -> None:
        if self._counter is not None:
            self._counter.received(len(message))
        for request in requests_in(message):
            self._session.receive(_request(request))

    def close(self, reason: str) -> None:
        self._server.close_session(self._session, reason)


class _Refusal:
    """The connection of a client that gets no session: its first request fails, and then the connection ends.

    The client of jaxlib does not show why a connection ended, but it shows the error of its first request.
    """

    def __init__(self, server: Server, context: CallContext, error: PjrtError, send: Callable[[bytes], None]) -> None:
        self._server = server
        self._context = context
        self._error = error
        self._send = send

    def receive(self, message: bytes) -> None:
        response = wire.IfrtResponse()
        response.response_metadata.op_id = _request(message).request_metadata.op_id
        response.response_metadata.status.CopyFrom(status_proto(self._error))
        self._send(_serialized(response))
        raise self._error

    def close(self, reason: str) -> None:
        self._server.forget_refused(self._context)


def _request(message: bytes) -> Any:
    try:
        return wire.IfrtRequest.FromString(message)
    except DecodeError as error:
        raise InvalidArgumentError(f"expected a request of the IFRT proxy protocol, found {error}") from None


def _session_metadata(context: CallContext) -> Any:
    try:
        return wire.GrpcIfrtSessionMetadata.FromString(context.metadata.get(SESSION_METADATA, b""))
    except (DecodeError, TypeError) as error:
        raise InvalidArgumentError(f"expected the metadata of a session in {SESSION_METADATA}, found {error}") from None


def _serialized(message: Any) -> bytes:
    serialized: bytes = message.SerializeToString()
    return serialized
