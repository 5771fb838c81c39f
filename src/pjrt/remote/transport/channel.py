"""A client's connection to a gRPC server: blocking calls of bytes, and streams in both directions.

Each call has a completion queue of its own, so the thread that waits for a response is the first that learns of it.
Calls of one channel share its connection, and may be made by several threads at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pjrt.api.errors import CancelledError, PjrtError, StatusCode, UnavailableError
from pjrt.remote.transport.grpc_core import NO_FLAGS, NO_LIMIT, Outbox, arguments, cygrpc, raw_credentials

_log = logging.getLogger("pjrt.remote")

Metadata = tuple[tuple[str, str | bytes], ...]

_of_thread = threading.local()

_RECEIVED, _SENT, _HEADERS, _STARTED, _STATUS = "received", "sent", "headers", "started", "status"


class Channel:
    """A connection to a gRPC server, made at the first call and again after it broke.

    Args:
        address: the address and port, or ``unix:PATH``.
        credentials: grpcio's credentials of a channel; ``None`` connects in the clear.
        metadata: the headers of each call.
        options: further arguments of gRPC's core.
    """

    def __init__(
        self,
        address: str,
        *,
        credentials: Any = None,
        metadata: Metadata = (),
        options: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        self._metadata = metadata
        # Without a pool of its own, channels to one address share a connection, and their bulk data its bandwidth.
        options = (("grpc.use_local_subchannel_pool", 1), *options)
        self._channel = cygrpc.Channel(address.encode(), arguments(NO_LIMIT, options), raw_credentials(credentials))

    def close(self) -> None:
        """End all calls with an error, and wait for their ends, so not from a callback of one. May be called again."""
        self._channel.close(cygrpc.StatusCode.cancelled, "the channel is closed")

    def unary(
        self, path: str, request: bytes, *, metadata: Metadata = (), timeout: float | None = None, wait: bool = False
    ) -> bytes:
        """Call a method of one request and one response, and return the response.

        Args:
            path: the path of the method.
            request: the request.
            metadata: the headers of this call.
            timeout: the limit in seconds; ``None`` waits forever.
            wait: whether to wait for a server that cannot be reached yet.

        Raises:
            PjrtError: the call failed, with the code and the message of the server.
        """
        call = self._call(path, metadata, timeout=timeout, wait=wait)
        call.start(_SENT, cygrpc.SendMessageOperation(request, NO_FLAGS), _last())
        try:
            return call.response()
        finally:
            call.end()

    def client_streaming(self, path: str, requests: Iterable[bytes], *, metadata: Metadata = ()) -> bytes:
        """Call a method of many requests and one response, and return the response; raise the errors of ``unary``."""
        call = self._call(path, metadata)
        try:
            for request in requests:
                call.start(_SENT, cygrpc.SendMessageOperation(request, NO_FLAGS))
                if not call.wait_until_sent():
                    break  # the status says why
            else:
                call.start(_SENT, _last())
            return call.response()
        finally:
            call.end()

    def server_streaming(self, path: str, request: bytes, *, metadata: Metadata = ()) -> Iterator[bytes]:
        """Call a method of one request and many responses, and yield the responses; raise the errors of ``unary``."""
        call = self._call(path, metadata)
        call.start(_SENT, cygrpc.SendMessageOperation(request, NO_FLAGS), _last())
        try:
            yield from call.messages()
        finally:
            call.end()

    def stream(
        self,
        path: str,
        on_message: Callable[[bytes], object],
        on_end: Callable[[PjrtError], object],
        *,
        metadata: Metadata = (),
    ) -> Stream:
        """Call a bidirectional method, and return the stream of its messages.

        Args:
            path: the path of the method.
            on_message: takes each message of the server, in the stream's own thread.
            on_end: takes the reason of the end, once, in the same thread; also if the server cannot be reached.
            metadata: the headers of this call.
        """
        return Stream(self._call(path, metadata), on_message, on_end)

    def _call(self, path: str, metadata: Metadata, *, timeout: float | None = None, wait: bool = False) -> _Call:
        deadline = None if timeout is None else time.time() + timeout
        flags = cygrpc.InitialMetadataFlags
        bits = flags.wait_for_ready | flags.wait_for_ready_explicitly_set if wait else NO_FLAGS
        batches = (
            ((cygrpc.SendInitialMetadataOperation(self._metadata + metadata, bits),), _STARTED),
            ((cygrpc.ReceiveInitialMetadataOperation(NO_FLAGS),), _STARTED),
            ((cygrpc.ReceiveMessageOperation(NO_FLAGS),), _RECEIVED),
            ((cygrpc.ReceiveStatusOnClientOperation(NO_FLAGS),), _STATUS),
        )
        try:
            call = self._channel.segregated_call(NO_FLAGS, path.encode(), None, deadline, None, None, batches)
        except ValueError as error:  # the channel is closed
            raise CancelledError(f"the call of {path} cannot begin: {error}") from None
        return _Call(call, path, len(batches))


class Stream:
    """A bidirectional call of a client, with a thread that takes the server's messages.

    Args:
        call: the call.
        on_message: takes each message.
        on_end: takes the reason of the end.
    """

    def __init__(
        self, call: _Call, on_message: Callable[[bytes], object], on_end: Callable[[PjrtError], object]
    ) -> None:
        self._call = call
        self._on_message = on_message
        self._on_end = on_end
        self._outbox = Outbox(lambda operations, tag: call.start(tag, *operations), _SENT)
        threading.Thread(target=self._read, name="pjrt-remote-reader", daemon=True).start()

    @property
    def waiting(self) -> int:
        """The number of messages that gRPC has not taken yet."""
        return len(self._outbox)

    @staticmethod
    def is_read_here() -> bool:
        """Whether the calling thread takes the messages of a stream, so that it must not wait for a stream's room."""
        return getattr(_of_thread, "reads", False)

    def send(self, message: bytes) -> None:
        """Send a message without waiting; after the end of the stream it is dropped, and ``on_end`` knows why."""
        self._outbox.send(message)

    def hold(self, message: bytes) -> None:
        """Take a message that ``flush`` sends; ``send`` of a later one sends it too."""
        self._outbox.hold(message, cork=True)

    def flush(self) -> None:
        """Send the messages that were held."""
        self._outbox.flush()

    def join_by(self, join: Callable[[deque[bytes]], bytes]) -> None:
        """From now on, let a function make one message of those that wait for an earlier one: see ``Outbox.join``."""
        self._outbox.join = join

    def close(self) -> None:
        """End the stream at once. May be called again."""
        self._outbox.close(drop=True)
        self._call.cancel()

    def _read(self) -> None:
        _of_thread.reads = True
        call, outbox = self._call, self._outbox
        for event in call.events:
            if event.tag is _RECEIVED:
                message = event.batch_operations[0].message()
                if message is not None:
                    call.start(_RECEIVED, cygrpc.ReceiveMessageOperation(NO_FLAGS))
                    try:
                        self._on_message(message)
                    except Exception:
                        _log.exception("a response of the server could not be handled")
            elif event.tag is _SENT:
                outbox.sent(event.success)
            elif event.tag is _STATUS:
                outbox.end()
        self._on_end(call.error())


class _Call:
    """One call of a client.

    Args:
        call: the call of gRPC's core, with its own completion queue.
        path: the path of the method.
        due: the number of batches of operations that were started with it.
    """

    def __init__(self, call: Any, path: str, due: int) -> None:
        self._call = call
        self._path = path
        self._due = due
        self._lock = threading.Lock()
        self._status: Any = None
        self._responses: deque[bytes] = deque()
        self.events = self._events()
        """The ends of operations, until there is nothing more to wait for."""

    def start(self, tag: object, *operations: Any) -> None:
        """Start a batch of operations; after the end of the call nothing happens."""
        with self._lock:  # the core starts nothing for a call whose last event was taken
            if self._due and self._call.operate(operations, tag):
                self._due += 1

    def cancel(self) -> None:
        """End the call, if it has not ended."""
        with self._lock:
            if self._due:
                self._call.cancel(cygrpc.StatusCode.cancelled, "the client has ended the call")

    def end(self) -> None:
        """End the call, if it has not ended, and wait for its last event, for which the channel's end waits too."""
        self.cancel()
        for _ in self.events:
            pass

    def wait_until_sent(self) -> bool:
        """Wait until the last message is on its way; return whether the call goes on."""
        for event in self.events:
            if event.tag is _SENT:
                return bool(event.success)
            self._keep(event)
        return False

    def messages(self) -> Iterator[bytes]:
        """Yield the responses; raise the error of the call at its end, if it failed."""
        for event in self.events:
            self._keep(event)
            while self._responses:
                yield self._responses.popleft()
        yield from self._responses
        if self._status.code() != StatusCode.OK:
            raise self.error()

    def _keep(self, event: Any) -> None:
        if event.tag is _RECEIVED:
            message = event.batch_operations[0].message()
            if message is not None:
                self.start(_RECEIVED, cygrpc.ReceiveMessageOperation(NO_FLAGS))
                self._responses.append(message)

    def _events(self) -> Iterator[Any]:
        """Yield the ends of operations, until there is nothing more to wait for."""
        while True:
            event = self._call.next_event()
            if event.tag is _STATUS:
                self._status = event.batch_operations[0]
            yield event
            with self._lock:
                self._due -= 1
                if not self._due:
                    return

    def response(self) -> bytes:
        """Return the only response, or raise the error of the call."""
        messages = list(self.messages())
        if len(messages) != 1:
            raise UnavailableError(f"expected one response of {self._path}, found {len(messages)}")
        return messages[0]

    def error(self) -> PjrtError:
        """Return the reason of the end; the end of a call that should go on is an error even without a failure."""
        status = self._status
        if status.code() == StatusCode.OK:
            return UnavailableError("the server has ended the connection")
        return PjrtError.of(StatusCode(status.code()), status.details())


def _last() -> Any:
    return cygrpc.SendCloseFromClientOperation(NO_FLAGS)
