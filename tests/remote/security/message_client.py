"""A client of a server that sends the protocol's messages over a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import PjrtError
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import attributes_proto, element_type_proto, error_of, shape_proto
from pjrt.remote.protocol.versions import NEWEST
from pjrt.remote.security.credentials import ClientSecurity
from pjrt.remote.server.service import SERVICE, SESSION_METADATA
from pjrt.remote.transport.addresses import client_keepalive, parse_address
from pjrt.remote.transport.channel import Channel
from pjrt.remote.transport.host_buffers import pieces

PATIENCE = 120.0
_STORE_METADATA = "ifrt-proxy-grpc-host-buffer-store-metadata-bin"


class MessageClient:
    """Speaks to a server over gRPC.

    Args:
        address: the address of the server.
        security: the files of the client.
        initialization_data: what the session begins with.
        waits: whether to send the first request.
    """

    def __init__(
        self,
        address: str,
        security: ClientSecurity | None = None,
        initialization_data: Mapping[str, Any] | None = None,
        *,
        begins: bool = True,
    ) -> None:
        security = security or ClientSecurity()
        place = security.check(parse_address(address))
        self.channel = Channel(
            place.target,
            credentials=security.credentials(place),
            metadata=security.metadata(),
            options=(*client_keepalive(), *security.channel_options()),
        )
        self._arrived = threading.Condition()
        self._responses: dict[int, Any] = {}
        self._next = 1
        self.end: PjrtError | None = None
        try:
            request = wire.GrpcGetVersionRequest(min_version=NEWEST.to_proto(), max_version=NEWEST.to_proto())
            self.channel.unary(f"{SERVICE}GetVersion", request.SerializeToString(), timeout=PATIENCE)
            metadata = wire.GrpcIfrtSessionMetadata(
                version=NEWEST.to_proto(), initialization_data=attributes_proto(initialization_data or {})
            ).SerializeToString()
            self._stream = self.channel.stream(
                f"{SERVICE}IfrtSession", self._receive, self._finish, metadata=((SESSION_METADATA, metadata),)
            )
            if begins:
                self.session_id = self.ask("init").session_id
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection."""
        self.channel.close()

    def __enter__(self) -> MessageClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _receive(self, message: bytes) -> None:
        response = wire.IfrtResponse.FromString(message)
        with self._arrived:
            self._responses[response.response_metadata.op_id] = response
            self._arrived.notify_all()

    def _finish(self, error: PjrtError) -> None:
        with self._arrived:
            self.end = error
            self._arrived.notify_all()

    def new_number(self) -> int:
        """Return a number for a request."""
        number, self._next = self._next, self._next + 1
        return number

    def send(self, kind: str, **fields: Any) -> int:
        """Send a request, and return its number."""
        number = self.new_number()
        request = wire.IfrtRequest()
        request.request_metadata.op_id = number
        message = getattr(request, f"{kind}_request")
        message.SetInParent()
        message.MergeFrom(type(message)(**fields))
        self._stream.send(request.SerializeToString())
        return number

    def has_answered(self, number: int, seconds: float) -> bool:
        """Return whether the response to a request, or the end of the connection, comes in time."""
        with self._arrived:
            return self._arrived.wait_for(lambda: number in self._responses or self.end is not None, seconds)

    def wait(self, number: int) -> Any:
        """Return the response to a request; raise its error, or that of the connection."""
        assert self.has_answered(number, PATIENCE)
        with self._arrived:
            response = self._responses.pop(number, None)
        if response is None:
            assert self.end is not None
            raise self.end
        error = error_of(response.response_metadata.status)
        if error is not None:
            raise error
        return getattr(response, response.WhichOneof("response"))

    def ask(self, kind: str, **fields: Any) -> Any:
        """Send a request, and return its response or raise its error."""
        return self.wait(self.send(kind, **fields))

    def wait_for_end(self) -> PjrtError:
        """Return the error with which the server ends the connection."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.end is not None, PATIENCE)
        assert self.end is not None
        return self.end

    def store(self, handle: int, data: bytes, *, size: int | None = None, session_id: int | None = None) -> None:
        """Send a host buffer."""
        metadata = wire.GrpcHostBufferStoreMetadata(
            session_id=self.session_id if session_id is None else session_id,
            handle=handle,
            buffer_size=len(data) if size is None else size,
        )
        self.channel.client_streaming(
            f"{SERVICE}HostBufferStore",
            pieces(memoryview(data)),
            metadata=((_STORE_METADATA, metadata.SerializeToString()),),
        )

    def put(self, handle: int, value: Any) -> Any:
        """Make an array on the first device, and return the response."""
        array = np.ascontiguousarray(value)
        self.store(handle, array.tobytes())
        return self.ask(
            "make_array_from_host_buffer", **array_fields(array), host_buffer_handle=handle, array_handle=handle
        )

    def get(self, handle: int, buffer: int, *, session_id: int | None = None) -> bytes:
        """Return the bytes of an array, by a new host buffer."""
        self.ask("copy_to_host_buffer", array_handle=handle, host_buffer_handle=buffer)
        return self.lookup(buffer)

    def lookup(self, buffer: int, session_id: int | None = None) -> bytes:
        """Return the bytes of a host buffer."""
        request = wire.GrpcHostBufferLookupRequest(
            session_id=self.session_id if session_id is None else session_id, handle=buffer
        )
        replies = self.channel.server_streaming(f"{SERVICE}HostBufferLookup", request.SerializeToString())
        return b"".join(wire.GrpcHostBufferLookupResponse.FromString(reply).data for reply in replies)


def array_fields(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the fields of a request that makes an array on the device 0."""
    sharding = wire.ShardingProto()
    sharding.serialized_sharding.type_name = "xla::ifrt::SingleDeviceSharding"
    sharding.serialized_sharding.data = wire.SingleDeviceShardingProto(device_id=0).SerializeToString()
    return {
        "dtype": element_type_proto(ElementType.of(array.dtype)),
        "shape": shape_proto(array.shape),
        "sharding": sharding,
    }
