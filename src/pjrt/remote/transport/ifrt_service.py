"""The service of the IFRT proxy protocol: the methods of ``GrpcIfrtService`` on a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import PjrtError
from pjrt.remote.protocol.messages import parsed, wire
from pjrt.remote.protocol.values import status_proto
from pjrt.remote.protocol.versions import Version, agreed, requests_in
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
from pjrt.remote.transport.host_buffer_calls import HostBufferCalls

if TYPE_CHECKING:
    from pjrt.remote.server.server import Server

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
            self._session.receive(parsed(wire.IfrtRequest, request))

    def close(self, reason: str) -> None:
        self._server.close_session(self._session, reason)


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
