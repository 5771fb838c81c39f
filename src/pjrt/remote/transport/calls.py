"""The calls that a server takes, and its methods: functions of bytes, without a thread for each call.

A method is one of four: a ``Unary`` one, a ``ClientStreaming``, a ``ServerStreaming`` or a ``Bidirectional`` one. The
first three are driven by the events of the server's completion queue, which a few threads poll. A bidirectional call
has a completion queue and a thread of its own: see ``conversation``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pjrt.api.errors import DeadlineExceededError, InvalidArgumentError, PjrtError, ResourceExhaustedError, StatusCode
from pjrt.remote.transport.first_messages import FirstMessages
from pjrt.remote.transport.grpc_core import NO_FLAGS, NO_LIMIT, cygrpc

_log = logging.getLogger("pjrt.remote")


SHORT = 1 << 16
"""The length of a request that only names things."""


@dataclass(frozen=True, eq=False)
class CallContext:
    """The facts that a server knows about a call.

    Attributes:
        method: the path of the method, such as ``/xla.ifrt.proxy.GrpcIfrtService/GetVersion``.
        metadata: the headers; the values of keys that end in ``-bin`` are bytes.
        peer: the address of the client, as gRPC spells it.
        identity: the properties of the client that TLS proves, by name, such as ``x509_common_name``.
        hang_up: ends a bidirectional call with an error, from any thread; nothing where the call is of another kind.
    """

    method: str
    metadata: Mapping[str, str | bytes]
    peer: str
    identity: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    hang_up: Callable[[PjrtError], None] = field(default_factory=lambda: lambda error: None)


class Sink(Protocol):
    """A receiver of the messages of one call. Its methods are called one after the other."""

    def receive(self, message: bytes) -> None:
        """Take a message; an exception ends the call."""

    def finish(self) -> bytes:
        """Return the response: no more messages come.

        A client that goes between two messages can look as if it had sent the last one, so a sink must know what it
        has to get; its exception ends the call, and ``cancel`` follows.
        """

    def cancel(self) -> None:
        """Drop the messages so far: the call has ended before its last one."""


class Receiver(Protocol):
    """A receiver of the messages of a bidirectional call, which is called from one thread."""

    def receive(self, message: bytes) -> None:
        """Take a message; an exception ends the call."""

    def close(self, reason: str) -> None:
        """End: no more messages come, and none can be sent."""


class Refusal(Exception):  # noqa: N818  # what is refused is no error of the server
    """The refusal of a bidirectional call, which its caller learns from an answer too.

    Args:
        error: the reason.
        answer: answers the first message of the caller, if that is short and comes at once.
        forget: called when the call has ended.
    """

    def __init__(self, error: PjrtError, answer: Callable[[bytes], object], forget: Callable[[], object]) -> None:
        super().__init__(error)
        self.error = error
        self.answer = answer
        self.forget = forget


@dataclass(frozen=True)
class Unary:
    """A method of one request, of at most so many bytes, and one response."""

    function: Callable[[bytes, CallContext], bytes]
    longest: int = NO_LIMIT


@dataclass(frozen=True)
class ClientStreaming:
    """A method of many requests and one response; the function opens a sink for one call."""

    open: Callable[[CallContext], Sink]


@dataclass(frozen=True)
class ServerStreaming:
    """A method of one request, of at most so many bytes, and many responses."""

    function: Callable[[bytes, CallContext], Iterable[bytes]]
    longest: int = NO_LIMIT


@dataclass(frozen=True)
class Bidirectional:
    """A method of many requests and many responses. The function gets a sender of messages, for any thread.

    It may raise a ``Refusal``, or any other error.
    """

    open: Callable[[CallContext, Callable[[bytes], None]], Receiver]


Method = Unary | ClientStreaming | ServerStreaming | Bidirectional


def context_of(event: Any, method: str) -> CallContext:
    """Return the context of the call that an event brings."""
    call = event.call
    identity = cygrpc.auth_context(call) or {}
    return CallContext(
        method=method,
        metadata=dict(event.invocation_metadata),
        peer=call.peer().decode(),
        identity={key.decode(): tuple(values) for key, values in identity.items()},
    )


def status_of(error: BaseException, method: str) -> tuple[int, bytes]:
    """Return the gRPC status of an error of a handler; log one that is not a ``PjrtError``."""
    if not isinstance(error, PjrtError):
        _log.error("%s failed in an unexpected way", method, exc_info=error)
    failure = PjrtError.wrap(error)
    return int(failure.code), failure.message.encode()[:_MAX_DETAILS]


_MAX_DETAILS = 4096  # the details travel in a header, and gRPC takes 8 KiB of headers


class ServedCall:
    """One call of a method that is not bidirectional, driven by the events of its operations.

    Its operations complete one after the other, but for the notice of its end, so only their number is locked.

    Args:
        call: the call of gRPC's core.
        context: the facts about the call.
        method: its method; ``None`` where there is none.
        on_end: called when no operation of the call is left.
        first_messages: the turns of callers that have not shown who they are.
    """

    def __init__(
        self,
        call: Any,
        context: CallContext,
        method: Method | None,
        on_end: Callable[[], None],
        first_messages: FirstMessages,
    ) -> None:
        self._call = call
        self._first_messages = first_messages
        self._context = context
        self._method = method
        self._on_end = on_end
        self._lock = threading.Lock()
        self._due = 1  # the beginning: in another thread the notice of the end may come before it
        self._cancelled = False
        self._is_stranger = False
        self._awaits_first = False
        self._sink: Sink | None = None
        self._responses: Iterator[bytes] = iter(())
        self._start(self._on_close, cygrpc.ReceiveCloseOnServerOperation(NO_FLAGS))

    def begin(self, *, is_known: bool = True) -> None:
        """Start the call.

        Args:
            is_known: whether the caller has shown who it is. The message of another one is received in its turn.
        """
        try:
            if isinstance(self._method, ClientStreaming):
                self._sink = self._method.open(self._context)
        except Exception as error:
            self._fail(error)
        else:
            self._is_stranger = not is_known and self._sink is None  # a sink is of a session, whose number is a secret
            if self._is_stranger:
                self._await_turn()
            else:
                self._receive()
        finally:
            self._done()

    def _await_turn(self) -> None:
        with self._lock:
            self._due += 1  # until its turn
            self._awaits_first = True
        if not self._first_messages.request(self):
            self._done()
            self._fail(ResourceExhaustedError("too many calls of clients without an access token wait; try it later"))

    def receive_first(self) -> None:
        """Ask for the message of a caller that has not shown who it is: it has its turn."""
        self._receive()
        self._done()

    def give_up(self) -> None:
        """End the call of such a caller, whose message has not come in time."""
        if self._stop_waiting():
            self._fail(DeadlineExceededError("expected a short message at once from a client without an access token"))

    def _stop_waiting(self) -> bool:
        """Return whether the first message of such a caller was awaited until now."""
        with self._lock:
            awaited, self._awaits_first = self._awaits_first, False
        return awaited

    def refuse(self, error: BaseException) -> None:
        """End the call with an error in place of ``begin``."""
        try:
            self._fail(error)
        finally:
            self._done()

    def _fail(self, error: BaseException) -> None:
        code, details = status_of(error, self._context.method)
        self._finish(code, details)

    def _start(self, then: Callable[[Any], None], *operations: Any) -> None:
        with self._lock:
            self._due += 1
        self._call.start_server_batch(operations, lambda event: self._completed(then, event))

    def _completed(self, then: Callable[[Any], None], event: Any) -> None:
        try:
            then(event)
        finally:
            self._done()

    def _done(self) -> None:
        """Note that an operation or the beginning is done; after the last one the call has ended."""
        with self._lock:
            self._due -= 1
            last = not self._due
        if last:
            self._on_end()

    def _receive(self) -> None:
        self._start(self._on_message, cygrpc.ReceiveMessageOperation(NO_FLAGS))

    def _on_close(self, event: Any) -> None:
        self._cancelled = event.batch_operations[0].cancelled()
        if self._awaits_first and self._first_messages.leave(self):
            self._done()

    def _on_message(self, event: Any) -> None:
        if self._is_stranger:
            self._first_messages.leave(self)
            if not self._stop_waiting():
                return
        message = event.batch_operations[0].message()
        method, sink = self._method, self._sink
        try:
            if sink is not None:
                if message is not None:
                    sink.receive(message)
                    self._receive()
                elif self._cancelled or not event.success:  # the notice of the end may come later than this
                    sink.cancel()
                else:
                    self._finish_with(sink.finish())
            elif message is None:
                raise InvalidArgumentError("expected a request, found none")
            elif isinstance(method, (Unary, ServerStreaming)) and len(message) > method.longest != NO_LIMIT:
                raise ResourceExhaustedError(
                    f"expected a request of at most {method.longest} bytes, found {len(message)}"
                )
            elif isinstance(method, Unary):
                self._finish_with(method.function(message, self._context))
            elif isinstance(method, ServerStreaming):
                self._responses = iter(method.function(message, self._context))
                self._send(next(self._responses), cygrpc.SendInitialMetadataOperation(None, NO_FLAGS))
        except StopIteration:
            self._finish(int(StatusCode.OK), b"")
        except Exception as error:
            if sink is not None:
                sink.cancel()
            self._fail(error)

    def _send(self, message: bytes, *before: Any) -> None:
        self._start(self._on_sent, *before, cygrpc.SendMessageOperation(message, NO_FLAGS))

    def _on_sent(self, event: Any) -> None:
        if not event.success:
            self._responses = iter(())  # the client is gone
        try:
            message = next(self._responses, None)
        except Exception as error:
            self._end(*status_of(error, self._context.method))
            return
        if message is None:
            self._end(int(StatusCode.OK), b"")
        else:
            self._send(message)

    def _finish_with(self, response: bytes) -> None:
        self._finish(int(StatusCode.OK), b"", cygrpc.SendMessageOperation(response, NO_FLAGS))

    def _finish(self, code: int, details: bytes, *operations: Any) -> None:
        """End a call that has sent nothing yet."""
        self._end(code, details, cygrpc.SendInitialMetadataOperation(None, NO_FLAGS), *operations)

    def _end(self, code: int, details: bytes, *before: Any) -> None:
        status = cygrpc.SendStatusFromServerOperation(None, code, details, NO_FLAGS)
        self._start(_nothing, *before, status)


def _nothing(event: Any) -> None:
    """Take notice of the end of operations after which nothing follows."""
