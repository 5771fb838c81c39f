"""The service of a server, as a client calls it: versions, the session's stream, and host buffers."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pjrt.api.attributes import Attributes
from pjrt.api.errors import (
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    PjrtError,
    StatusCode,
    UnavailableError,
    UnimplementedError,
)
from pjrt.api.printable import printable
from pjrt.remote.client.delayed_calls import DelayedCalls
from pjrt.remote.client.transfer_files import SMALLEST_FILE, TransferFiles
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import attributes_proto
from pjrt.remote.protocol.versions import (
    BATCHES,
    LARGEST_REQUEST,
    MOST_REQUESTS,
    NEWEST,
    OLDEST_PROTOCOL,
    Version,
    batch,
)
from pjrt.remote.transport.channel import Channel, Stream
from pjrt.remote.transport.host_buffers import SUBDIRECTORY_ATTRIBUTE, piece_data, pieces

_log = logging.getLogger("pjrt.remote")

_SERVICE = "/xla.ifrt.proxy.GrpcIfrtService/"
_SESSION_METADATA = "ifrt-proxy-grpc-ifrt-session-metadata-bin"
_STORE_METADATA = "ifrt-proxy-grpc-host-buffer-store-metadata-bin"

_TRANSFER_THREADS = 4

_MOST_REQUESTS = 4096
"""The requests that may wait for the server before its client starts no further executions."""

_MOST_BYTES = 1 << 30
"""The bytes of arrays that may wait for the server before its client sends no further ones."""

# A request that comes this soon after another one waits for more of them. A program that is enqueued ahead is not
# delayed by it, and a burst of tiny programs on several servers costs a message for many of them: each message wakes
# the thread that reads the connection, which takes the interpreter's lock from the thread that enqueues.
_BATCH_SECONDS = 0.0003
_flushes: DelayedCalls[Service] = DelayedCalls(_BATCH_SECONDS, lambda service: service.flush(), "pjrt-remote-flush")


_REASONS_OF_SERVER = frozenset(
    (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED, StatusCode.RESOURCE_EXHAUSTED)
)
"""The codes with which a server ends a session on purpose."""


class Service:
    """The calls of one server.

    Args:
        channel: the channel to the server.
        address: the server's address, for messages.
        initialization_data: facts by name that the session begins with, such as a token.
        files: the files in which large arrays are left for the server.
    """

    def __init__(
        self,
        channel: Channel,
        address: str,
        initialization_data: Attributes | None = None,
        files: TransferFiles | None = None,
    ) -> None:
        self.address = address
        self._channel = channel
        self._data = {**(initialization_data or {}), BATCHES: True}
        self._files = files
        self._takes_files = True
        if files is not None:
            self._data[SUBDIRECTORY_ATTRIBUTE] = files.subdirectory
        self._stream: Stream | None = None
        self._sends_batches = False
        self._is_flush_due = False
        self._last_sent = 0.0
        # Each transfer waits for the server, so it has a thread while it lasts.
        self._transfers = ThreadPoolExecutor(_TRANSFER_THREADS, "pjrt-remote-transfer")
        self._lock = threading.Lock()
        self._bytes_to_send = 0

    def agree(self, timeout: float) -> Version:
        """Return the newest versions that the server and this client speak.

        Raises:
            PjrtError: the server cannot be reached, refuses this client, or speaks other versions.
        """
        request = wire.GrpcGetVersionRequest(
            min_version=Version(OLDEST_PROTOCOL, 0).to_proto(), max_version=NEWEST.to_proto()
        )
        response = self._unary("GetVersion", request, timeout)
        return Version.from_proto(wire.GrpcGetVersionResponse.FromString(response).version)

    def open(self, version: Version, receive: Callable[[Any], object], end: Callable[[PjrtError], object]) -> None:
        """Begin the session.

        Args:
            version: the versions that both sides speak.
            receive: takes each response (``IfrtResponse``), on one thread.
            end: takes the reason of the session's end, once.
        """
        metadata = wire.GrpcIfrtSessionMetadata(
            version=version.to_proto(), initialization_data=attributes_proto(self._data)
        )
        self._stream = self._channel.stream(
            f"{_SERVICE}IfrtSession",
            lambda message: receive(wire.IfrtResponse.FromString(message)),
            lambda error: end(self._broken(error)),
            metadata=((_SESSION_METADATA, metadata.SerializeToString()),),
        )

    def send(self, request: Any, *, is_urgent: bool = True) -> None:
        """Send a request (``IfrtRequest``) after all earlier ones; never blocks.

        Args:
            request: the request.
            is_urgent: whether it is sent at once; else it may wait a fraction of a millisecond for others.
        """
        stream: Stream = self._stream  # type: ignore[assignment]  # the session was opened
        message = request.SerializeToString()
        if is_urgent or not self._sends_batches:
            stream.send(message)
            return
        now = time.monotonic()
        if now - self._last_sent >= _BATCH_SECONDS:
            self._last_sent = now
            stream.send(message)
            return
        stream.hold(message)
        if not self._is_flush_due:
            self._is_flush_due = True
            _flushes.wake(self)

    def flush(self) -> None:
        """Send the requests that wait for others."""
        # First, so that a request that comes from now on has another flush.
        self._is_flush_due = False
        self._last_sent = time.monotonic()
        if self._stream is not None:
            self._stream.flush()

    def send_batches(self) -> None:
        """From now on, send short requests in one message where many come: the server takes batches."""
        self._sends_batches = True
        self._stream.join_by(_next_message)  # type: ignore[union-attr]  # the session was opened

    @property
    def is_full(self) -> bool:
        """Whether more waits for the server than a client should keep in memory, and the calling thread can wait."""
        stream = self._stream
        is_full = self._bytes_to_send > _MOST_BYTES or (stream is not None and stream.waiting > _MOST_REQUESTS)
        return is_full and not Stream.is_read_here()

    def store(self, session_id: int, handle: int, data: memoryview, done: Callable[[], object] | None) -> None:
        """Send the bytes of a host buffer, and call ``done`` once afterwards, also if that failed."""
        with self._lock:
            self._bytes_to_send += data.nbytes
        self._begin(self._store, session_id, handle, data, done)

    def fetch(self, session_id: int, handle: int, out: memoryview, done: Callable[[PjrtError | None], object]) -> None:
        """Receive the bytes of a host buffer, delete it there, and call ``done`` once, with an error if that failed."""
        self._begin(self._fetch, session_id, handle, out, done)

    def close(self) -> None:
        """End the session and all calls. May be called again."""
        if self._stream is not None:
            self._stream.close()
        self._transfers.shutdown(wait=False)
        self._channel.close()
        if self._files is not None:
            self._files.close()

    def _begin(self, transfer: Callable[..., None], session_id: int, handle: int, data: Any, done: Any) -> None:
        try:
            self._transfers.submit(transfer, session_id, handle, data, done)
        except RuntimeError:  # after close, or at the interpreter's end
            transfer(session_id, handle, data, done)

    def _store(self, session_id: int, handle: int, data: memoryview, done: Callable[[], object] | None) -> None:
        metadata = wire.GrpcHostBufferStoreMetadata(session_id=session_id, handle=handle, buffer_size=data.nbytes)
        try:
            if not self._store_as_file(metadata, data):
                self._channel.client_streaming(
                    f"{_SERVICE}HostBufferStore",
                    pieces(data),
                    metadata=((_STORE_METADATA, metadata.SerializeToString()),),
                )
        except PjrtError as error:
            self._fail(f"a host buffer could not be sent: {error.message}")
        finally:
            with self._lock:
                self._bytes_to_send -= data.nbytes
            if done is not None:
                done()

    def _store_as_file(self, metadata: Any, data: memoryview) -> bool:
        """Leave a host buffer in a file and have the server read it; return whether that was done."""
        files = self._files
        if files is None or not self._takes_files or data.nbytes < SMALLEST_FILE:
            return False
        path = files.write(metadata.handle, data)
        if path is None:
            return False
        try:
            self._unary("HostBufferReadFromDisk", wire.GrpcHostBufferReadFromDiskRequest(metadata=metadata))
        except (FailedPreconditionError, NotFoundError, UnimplementedError) as error:
            if self._takes_files:
                self._takes_files = False
                _log.warning("%s; arrays are sent over the connection", printable(error.message))
            return False
        finally:
            files.done(metadata.handle, path, data.nbytes)
        return True

    def _fetch(self, session_id: int, handle: int, out: memoryview, done: Callable[[PjrtError | None], object]) -> None:
        error: PjrtError | None = None
        try:
            self._receive(wire.GrpcHostBufferLookupRequest(session_id=session_id, handle=handle), out)
        except BaseException as failure:
            error = self._named(PjrtError.wrap(failure))
        done(error)
        if error is None:
            with contextlib.suppress(PjrtError):  # the session's end deletes it
                self._unary("HostBufferDelete", wire.GrpcHostBufferDeleteRequest(session_id=session_id, handle=handle))

    def _receive(self, request: Any, out: memoryview) -> None:
        position = 0
        for message in self._channel.server_streaming(f"{_SERVICE}HostBufferLookup", request.SerializeToString()):
            data = piece_data(message).data
            end = position + len(data)
            if end > out.nbytes:
                break
            out[position:end] = data
            position = end
        else:
            end = position
        if end != out.nbytes:
            raise DataLossError(f"expected {out.nbytes} bytes of a host buffer, found {end} or more")

    def _fail(self, reason: str) -> None:
        """End the session: arrays that wait for a host buffer which never comes would wait for ever."""
        if self._stream is not None:
            self._stream.close()

    def _unary(self, method: str, request: Any, timeout: float | None = None) -> bytes:
        try:
            return self._channel.unary(f"{_SERVICE}{method}", request.SerializeToString(), timeout=timeout)
        except PjrtError as error:
            raise self._named(error) from None

    def _broken(self, error: PjrtError) -> PjrtError:
        """Return the error of everything that waits for an answer at the session's end."""
        if error.code in _REASONS_OF_SERVER:
            return self._named(error)
        return UnavailableError(
            f"the connection to the server at {self.address} is broken, and the arrays on it are gone: make a new "
            f"client ({error.message})"
        )

    def _named(self, error: PjrtError) -> PjrtError:
        """Return an error with the server's address."""
        return type(error)(f"the server at {self.address}: {error.message}", payloads=error.payloads)


def _next_message(waiting: deque[bytes]) -> bytes:
    """Remove the requests of the next message from the front of those that wait, and return the message."""
    first = waiting.popleft()
    if len(first) >= LARGEST_REQUEST or not waiting:
        return first
    requests = [first]
    while waiting and len(requests) < MOST_REQUESTS and len(waiting[0]) < LARGEST_REQUEST:
        requests.append(waiting.popleft())
    return batch(requests) if len(requests) > 1 else first
