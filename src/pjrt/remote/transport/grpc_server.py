"""A gRPC server of functions of bytes: a few threads for all short calls, and one for each bidirectional call.

A method is one of four: a ``Unary`` one, a ``ClientStreaming``, a ``ServerStreaming`` or a ``Bidirectional`` one. The
first three are driven by the events of the server's completion queue, which the few threads poll. A bidirectional call
has a completion queue and a thread of its own, which handles its messages: a ``Conversation``.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from pjrt.api.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    PjrtError,
    ResourceExhaustedError,
    StatusCode,
    UnavailableError,
    UnimplementedError,
)
from pjrt.api.future import Future
from pjrt.remote.transport.grpc_core import NO_FLAGS, NO_LIMIT, Outbox, arguments, cygrpc, raw_credentials

# The first messages of callers that have not shown who they are: few at a time, and for a short time only. gRPC's core
# holds a message in memory before its receiver sees any of it. Until a receiver asks for a message, the core takes in
# no more than some MiB of it. So the messages of strangers are asked for one by one: a small one is there at once, and
# a large one is given up before much of it has come.

FIRST_MESSAGES_AT_ONCE = 1
"""The messages of strangers that are received at one time."""

FIRST_MESSAGE_SECONDS = 0.05
"""The time for one of them. It begins when the core is asked for the message, which has mostly come by then."""

MOST_FIRST_MESSAGES = 16
"""The calls of strangers that may wait for their turn; the core may hold some MiB of each."""


class Call(Protocol):
    """A call that has its turn, or has lost it."""

    def receive_first(self) -> None:
        """Ask for the first message."""

    def give_up(self) -> None:
        """End the call: its message has not come in time."""


class _Turn(NamedTuple):
    call: Call
    end: float


class FirstMessages:
    """The turns of calls; the methods may be called by any thread. Somebody must call ``expire`` at ``deadline``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: list[_Turn] = []
        self._waiting: deque[Call] = deque()

    def request(self, call: Call) -> bool:
        """Let a call have its turn, now or later; return whether so many may wait."""
        with self._lock:
            if len(self._waiting) >= MOST_FIRST_MESSAGES:
                return False
            self._waiting.append(call)
        self._begin()
        return True

    def leave(self, call: Call) -> bool:
        """End the turn of a call whose message has come or whose caller is gone; return whether it was waiting."""
        with self._lock:
            was_waiting = call in self._waiting
            if was_waiting:
                self._waiting.remove(call)
            self._turns = [turn for turn in self._turns if turn.call is not call]
        self._begin()
        return was_waiting

    def deadline(self) -> float | None:
        """Return when the next turn ends, on the clock of ``time.time``; ``None`` without one."""
        with self._lock:
            left = self._turns[0].end - time.monotonic() if self._turns else None
        return None if left is None else time.time() + left

    def expire(self) -> None:
        """Give up the calls whose time is over."""
        now = time.monotonic()
        with self._lock:
            late = [turn.call for turn in self._turns if turn.end <= now]
            self._turns = [turn for turn in self._turns if turn.end > now]
        for call in late:
            call.give_up()
        self._begin()

    def _begin(self) -> None:
        """Begin the turns of calls that wait, as many as may be."""
        while True:
            with self._lock:
                if len(self._turns) >= FIRST_MESSAGES_AT_ONCE or not self._waiting:
                    return
                call = self._waiting.popleft()
                self._turns.append(_Turn(call, time.monotonic() + FIRST_MESSAGE_SECONDS))
            call.receive_first()


_log = logging.getLogger("pjrt.remote")
T = TypeVar("T")


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
        is_there: whether the client of a bidirectional call is still there; for a receiver that has to wait.
        waiting: the messages to the client of a bidirectional call that wait for it.
    """

    method: str
    metadata: Mapping[str, str | bytes]
    peer: str
    identity: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    hang_up: Callable[[PjrtError], None] = field(default_factory=lambda: lambda error: None)
    is_there: Callable[[], bool] = field(default_factory=lambda: lambda: True)
    waiting: Callable[[], int] = field(default_factory=lambda: lambda: 0)


class Sink(Protocol):
    """A receiver of the messages of one call. Its methods are called one after the other."""

    def receive(self, message: bytes) -> Future[None] | None:
        """Take a message, and return a future if the next one has to wait; an exception ends the call."""

    def finish(self) -> bytes | Future[bytes]:
        """Return the response, or a future of it: no more messages come.

        A client that goes between two messages can look as if it had sent the last one, so a sink must know what it
        has to get; its exception ends the call, and ``cancel`` follows.
        """

    def cancel(self) -> None:
        """Drop the messages so far: the call has ended before its last one."""


class Receiver(Protocol):
    """A receiver of the messages of a bidirectional call, which is called from one thread."""

    def receive(self, message: bytes) -> None:
        """Take a message; an exception ends the call."""

    def close(self, reason: str, failure: PjrtError | None) -> None:
        """End: no more messages come, and none can be sent.

        Args:
            reason: the reason.
            failure: the error with which this side has ended the call, if it has.
        """


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
    """A method of one request, of at most so many bytes, and one response, which may come later."""

    function: Callable[[bytes, CallContext], bytes | Future[bytes]]
    longest: int = NO_LIMIT


@dataclass(frozen=True)
class ClientStreaming:
    """A method of many requests and one response; the function opens a sink for one call."""

    open: Callable[[CallContext], Sink]


@dataclass(frozen=True)
class ServerStreaming:
    """A method of one request, of at most so many bytes, and many responses, which may come later."""

    function: Callable[[bytes, CallContext], Iterable[bytes | Future[bytes]] | Future[Iterable[bytes | Future[bytes]]]]
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
        self._responses: Iterator[bytes | Future[bytes]] = iter(())
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
                    self._when_there(sink.receive(message), lambda _: self._receive())
                elif self._cancelled or not event.success:  # the notice of the end may come later than this
                    sink.cancel()
                else:
                    self._when_there(sink.finish(), self._finish_with)
            elif message is None:
                raise InvalidArgumentError("expected a request, found none")
            elif isinstance(method, (Unary, ServerStreaming)) and len(message) > method.longest != NO_LIMIT:
                raise ResourceExhaustedError(
                    f"expected a request of at most {method.longest} bytes, found {len(message)}"
                )
            elif isinstance(method, Unary):
                self._when_there(method.function(message, self._context), self._finish_with)
            elif isinstance(method, ServerStreaming):
                self._when_there(method.function(message, self._context), self._stream)
        except Exception as error:
            self._drop(error)

    def _when_there(
        self, result: T | Future[T], then: Callable[[T], None], fail: Callable[[Exception], None] | None = None
    ) -> None:
        """Give a result, which may come later, to a function, or its error to another one, which ends the call."""
        if not isinstance(result, Future):
            then(result)
            return
        with self._lock:
            self._due += 1

        def go_on(future: Future[T]) -> None:
            try:
                then(future.result())
            except Exception as error:
                (fail or self._drop)(error)
            finally:
                self._done()

        result.add_done_callback(go_on)

    def _drop(self, error: Exception) -> None:
        if self._sink is not None:
            self._sink.cancel()
        self._fail(error)

    def _stream(self, responses: Iterable[bytes | Future[bytes]]) -> None:
        self._responses = iter(responses)
        first = next(self._responses, None)
        if first is None:
            self._finish(int(StatusCode.OK), b"")
        else:
            metadata = cygrpc.SendInitialMetadataOperation(None, NO_FLAGS)
            self._when_there(first, lambda message: self._send(message, metadata))

    def _send(self, message: bytes, *before: Any) -> None:
        self._start(self._on_sent, *before, cygrpc.SendMessageOperation(message, NO_FLAGS))

    def _on_sent(self, event: Any) -> None:
        if not event.success:
            self._responses = iter(())  # the client is gone
        try:
            message = next(self._responses, None)
        except Exception as error:
            self._end_with(error)
            return
        if message is None:
            self._end(int(StatusCode.OK), b"")
        else:
            self._when_there(message, self._send, self._end_with)

    def _end_with(self, error: Exception) -> None:
        self._end(*status_of(error, self._context.method))

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


_NOW = 0.0
"""The deadline of a poll that does not wait: it is in the past."""

_PATIENCE = 1.0
"""The seconds that the first message of a refused caller may take to come; the core holds some MiB of it."""

_MAX_HELD = 64
"""The responses that may wait while more requests are there to be handled."""

_REFUSING = threading.Semaphore(FIRST_MESSAGES_AT_ONCE)

_RECEIVED, _SENT, _CLOSED, _STARTED, _ENDED = "received", "sent", "closed", "started", "ended"


class Conversation:
    """One bidirectional call, with a completion queue of its own, which one thread polls.

    The thread handles one message after the other. It asks for the next one before it handles one, and for no more: the
    flow control of HTTP/2 holds back a client that sends faster than its requests are handled. Nor does it ask while
    many responses wait for a client that does not read them.

    Responses wait until no further request is there: the requests of one step of a program, which a client sends in a
    row, are answered by one write to the socket, and wake the client once.

    Args:
        call: the call.
        queue: its completion queue.
        context: the facts about the call.
        method: its method.
    """

    MAX_WAITING = 4096
    """The responses that may wait for the client before its further requests are held back."""

    def __init__(self, call: Any, queue: Any, context: CallContext, method: Bidirectional) -> None:
        self._call = call
        self._queue = queue
        self._context = context
        self._early: deque[Any] = deque()
        self._method = method
        self._lock = threading.Lock()
        self._status_sent = False
        self._failure: PjrtError | None = None
        self._outbox = Outbox(call.start_server_batch, _SENT)
        self._thread = 0

    def run(self) -> None:
        """Handle the call until its end."""
        self._thread = threading.get_ident()
        start = self._call.start_server_batch
        start((cygrpc.ReceiveCloseOnServerOperation(NO_FLAGS),), _CLOSED)
        start((cygrpc.SendInitialMetadataOperation(None, NO_FLAGS),), _STARTED)
        code, details = int(StatusCode.OK), b""
        # It knows this conversation, so it is none of its attributes: gRPC's memory is freed at the end of the call and
        # does not wait for the garbage collector.
        context = dataclasses.replace(
            self._context, hang_up=self._hang_up, is_there=self._is_there, waiting=lambda: len(self._outbox)
        )
        try:
            receiver = self._method.open(context, self._send)
        except Refusal as refusal:
            code, details = status_of(refusal.error, self._context.method)
            self._refuse(refusal)
        except Exception as error:
            code, details = status_of(error, self._context.method)
        else:
            try:
                self._converse(receiver)
            except Exception as error:
                code, details = status_of(error, self._context.method)
                self._failure = self._failure or PjrtError.of(code, details.decode(errors="replace"))
            finally:
                receiver.close("the connection of the client has ended", self._failure)
        self._end(code, details)

    def _send(self, message: bytes) -> None:
        """Send a message. One that answers the request in hand waits until no request is there to be handled."""
        if threading.get_ident() == self._thread:
            self._outbox.hold(message)
        else:
            self._outbox.send(message)

    def _refuse(self, refusal: Refusal) -> None:
        """Answer the first message of a caller that is refused, if it has come and is short."""
        try:
            self._poll_for(_RECEIVED, time.time() + _PATIENCE)
            with _REFUSING:
                self._call.start_server_batch((cygrpc.ReceiveMessageOperation(NO_FLAGS),), _RECEIVED)
                event = self._poll_for(_RECEIVED, time.time() + FIRST_MESSAGE_SECONDS)
                if event is None:  # the core takes in more of it until the call has ended: the next one waits for that
                    self._send_status(*status_of(refusal.error, self._context.method))
                    self._poll_for(_RECEIVED, time.time() + _PATIENCE)
                    return
                message = event.batch_operations[0].message()
                if message is None or len(message) > SHORT:
                    return
            refusal.answer(message)
        except PjrtError:  # what it sent is no request
            pass
        finally:
            refusal.forget()

    def _poll_for(self, tag: str, deadline: float) -> Any:
        """Return the event of a tag that comes before a time; ``None`` if there is none."""
        while (event := self._queue.poll(deadline)).tag is not None:
            if event.tag is tag:
                return event
        return None

    def _converse(self, receiver: Receiver) -> None:
        call, poll, outbox, receive = self._call, self._queue.poll, self._outbox, receiver.receive
        early = self._early
        call.start_server_batch((cygrpc.ReceiveMessageOperation(NO_FLAGS),), _RECEIVED)
        is_receiving = True
        holds_messages = False
        while True:
            event = early.popleft() if early else poll(_NOW) if holds_messages else poll()
            tag = event.tag
            if tag is _RECEIVED:
                message = event.batch_operations[0].message()
                if message is None:
                    return
                is_receiving = len(outbox) < self.MAX_WAITING
                if is_receiving:
                    call.start_server_batch((cygrpc.ReceiveMessageOperation(NO_FLAGS),), _RECEIVED)
                receive(message)
                if not is_receiving and len(outbox) < self.MAX_WAITING // 2:  # it has waited, and the client has read
                    call.start_server_batch((cygrpc.ReceiveMessageOperation(NO_FLAGS),), _RECEIVED)
                    is_receiving = True
                holds_messages = not outbox.idle
                if len(outbox) >= _MAX_HELD:
                    outbox.flush()
            elif tag is _SENT:
                outbox.sent(event.success)
                if not is_receiving and len(outbox) < self.MAX_WAITING // 2:
                    call.start_server_batch((cygrpc.ReceiveMessageOperation(NO_FLAGS),), _RECEIVED)
                    is_receiving = True
            elif tag is None:  # no request is there
                outbox.flush()
                holds_messages = False
            elif tag is _CLOSED and event.batch_operations[0].cancelled() and not is_receiving:
                return

    def _is_there(self) -> bool:
        """Look at the events that have come while the receiver waits; return whether the client is still there."""
        while (event := self._queue.poll(_NOW)).tag is not None:
            if event.tag is _SENT:
                self._outbox.sent(event.success)
            else:
                self._early.append(event)
        return not any(event.tag is _CLOSED and event.batch_operations[0].cancelled() for event in self._early)

    def _end(self, code: int, details: bytes) -> None:
        """Send the status after the last message, and wait for the end of all operations."""
        self._outbox.close(drop=False)
        self._outbox.flush()
        while not self._outbox.idle:
            event = self._queue.poll()
            if event.tag is _SENT:
                self._outbox.sent(event.success)
        self._outbox.end()
        self._send_status(code, details)
        self._queue.shutdown()
        while self._queue.poll().completion_type != cygrpc.CompletionType.queue_shutdown:
            pass

    def _hang_up(self, error: PjrtError) -> None:
        """End the call from another thread: the client gets the status, and the polling thread the end of the call."""
        self._failure = self._failure or error
        self._outbox.close(drop=True)
        self._send_status(*status_of(error, self._context.method))

    def _send_status(self, code: int, details: bytes) -> None:
        with self._lock:  # after the queue's shutdown nothing may start
            if self._status_sent:
                return
            self._status_sent = True
            status = cygrpc.SendStatusFromServerOperation(None, code, details, NO_FLAGS)
            self._call.start_server_batch((status,), _ENDED)


_WAITING_CALLS = (
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
)
"""The calls that may wait until the server takes them.

gRPC cancels some of more than 1,000 by default, and all of more than 3,000. A client that sends that many small arrays
at once would lose its session: jaxlib's client does not send an array again. A limit of the streams of a connection
does not help, because gRPC refuses those that come before the client knows the limit.
"""

_UNCOMPRESSED = ("grpc.compression_enabled_algorithms_bitset", 1)
"""Only messages that are not compressed: gRPC would take a gigabyte of memory for a message of a megabyte."""

Authorize = Callable[[CallContext], bool | None]
"""A function that checks a call before its method; an exception refuses the call.

It returns false for a caller that has not shown who it is: its method decides, but no long message of it is taken in.
"""


class GrpcServer:
    """A gRPC server.

    Args:
        address: the address and port, such as ``127.0.0.1:0``, or ``unix:PATH``; port 0 is a free one.
        methods: the methods by their paths.
        credentials: grpcio's credentials of a server; ``None`` serves in the clear.
        authorize: refuses calls, by an error.
        max_message_bytes: the longest message that is taken in; -1 is no limit. Host buffers come in pieces.
        threads: the threads for calls that are not bidirectional.
        options: further arguments of gRPC's core.

    Raises:
        UnavailableError: the address cannot be served.
    """

    def __init__(
        self,
        address: str,
        methods: Mapping[str, Method],
        *,
        credentials: Any = None,
        authorize: Authorize | None = None,
        max_message_bytes: int = NO_LIMIT,
        threads: int = 2,
        options: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        self._methods = dict(methods)
        self._authorize = authorize
        self._lock = threading.Lock()
        self._stopping = False
        self._shut = False
        self._active = 0
        self._stopped = threading.Event()
        self._conversations: set[threading.Thread] = set()
        self._first_messages = FirstMessages()
        self._queue = cygrpc.CompletionQueue()
        # Without this option a second server could share the port, and clients would reach the one or the other.
        options = (("grpc.so_reuseport", 0), _UNCOMPRESSED, *_WAITING_CALLS, *options)
        self._server = cygrpc.Server(arguments(max_message_bytes, options), False)
        self._server.register_completion_queue(self._queue)
        self._bidirectional = [path for path, method in self._methods.items() if isinstance(method, Bidirectional)]
        for path in self._bidirectional:
            self._server.register_method(path)
        self._address = self._bind(address, raw_credentials(credentials))
        self._threads = [
            threading.Thread(target=self._serve, name=f"pjrt-remote-calls-{number}", daemon=True)
            for number in range(threads)
        ]

    def _bind(self, address: str, credentials: Any) -> str:
        arguments = () if credentials is None else (credentials,)
        if address.startswith("unix:"):
            _check_socket(Path(address.removeprefix("unix:")))
        try:
            port = self._server.add_http2_port(address.encode(), *arguments)
        except RuntimeError as error:
            raise InvalidArgumentError(f"expected an address such as 127.0.0.1:0, found {address!r}: {error}") from None
        if not port:
            raise UnavailableError(f"cannot serve at {address}: the address is not of this machine, or it is in use")
        return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"

    @property
    def address(self) -> str:
        """The address with its port."""
        return self._address

    def start(self) -> None:
        """Begin to take calls."""
        self._server.start()
        for path in self._bidirectional:
            self._accept_conversation(path)
        self._accept_call()
        for thread in self._threads:
            thread.start()

    def stop(self, grace: float | None = None) -> None:
        """End all calls, and wait until they are gone. May be called again.

        Args:
            grace: the seconds that calls have to end by themselves; ``None`` ends them at once.
        """
        with self._lock:
            first, self._stopping = not self._stopping, True
            if first:
                self._server.shutdown(self._queue, _STOPPED)
        if first:
            self._stopped.wait(grace or 0)
            with self._lock:
                if not self._stopped.is_set():
                    self._server.cancel_all_calls()
        self._stopped.wait()
        for thread in [*self._conversations, *self._threads]:
            if thread is not threading.current_thread():
                thread.join()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the server has stopped, and return whether it has.

        Args:
            timeout: the limit in seconds; ``None`` waits forever.
        """
        return self._stopped.wait(timeout)

    def _serve(self) -> None:
        """Handle the events of all calls, until the queue is shut down."""
        while True:
            # A message that has come is handled before its time is looked at.
            event = self._queue.poll(self._first_messages.deadline())
            if event.completion_type == cygrpc.CompletionType.queue_shutdown:
                return
            try:
                if event.completion_type == cygrpc.CompletionType.queue_timeout:
                    self._first_messages.expire()
                else:
                    self._handle(event)
            except Exception:  # one call's trouble must not end the service of the others
                _log.exception("a call failed in an unexpected way")
            del event  # it may hold the last reference to a call, which the server's end waits for

    def _handle(self, event: Any) -> None:
        tag = event.tag
        if tag is _STOPPED:
            with self._lock:
                self._shut = True
            self._count(0)
        elif (tag is _CALL or isinstance(tag, _Accept)) and not event.success:
            self._count(-1)  # no call came before the end of the server
        elif tag is _CALL:
            self._accept_call()
            self._begin(event)
        elif isinstance(tag, _Accept):
            self._accept_conversation(tag.path)
            self._converse(event, tag)
        else:
            tag(event)

    # A call counts from the moment that it is asked for. If it counted only when its event is handled, another thread
    # could see the end of the server between the two, and shut the queue down: the next operation of the call would
    # then make gRPC's core end the process.

    def _accept_call(self) -> None:
        """Ask for the next call, unless the server stops."""
        with self._lock:
            if not self._stopping:
                self._server.request_call(self._queue, self._queue, _CALL)
                self._active += 1

    def _accept_conversation(self, path: str) -> None:
        """Ask for the next call of a bidirectional method, unless the server stops."""
        with self._lock:
            if not self._stopping:
                accept = _Accept(path)
                self._server.request_registered_call(accept.queue, self._queue, path, accept)
                self._active += 1

    @contextmanager
    def _until_begun(self) -> Iterator[None]:
        """Count a call as ended if an error keeps it from beginning."""
        try:
            yield
        except BaseException:
            self._count(-1)
            raise

    def _begin(self, event: Any) -> None:
        with self._until_begun():
            path = event.call_details.method.decode()
            context = context_of(event, path)
            method = self._methods.get(path)
            call = ServedCall(event.call, context, method, lambda: self._count(-1), self._first_messages)
        try:
            if method is None:
                raise UnimplementedError(f"this server has no method {path}")
            is_known = self._authorize is None or self._authorize(context) is not False
        except Exception as error:
            call.refuse(error)
        else:
            call.begin(is_known=is_known)

    def _count(self, change: int) -> None:
        """Count the calls; after the last one of a stopped server, free their resources."""
        with self._lock:
            self._active += change
            if self._shut and not self._active and not self._stopped.is_set():
                self._server.destroy()
                self._queue.shutdown()
                self._stopped.set()

    def _converse(self, event: Any, accept: _Accept) -> None:
        with self._until_begun():
            method = self._methods[accept.path]
            assert isinstance(method, Bidirectional)
            context = context_of(event, accept.path)
            conversation = Conversation(event.call, accept.queue, context, self._authorized(method))

            def run() -> None:
                nonlocal conversation
                try:
                    conversation.run()
                finally:
                    del conversation  # and with it the call, before the server may be freed
                    with self._lock:
                        self._conversations.discard(thread)
                    self._count(-1)

            thread = threading.Thread(target=run, name=f"pjrt-remote-{context.peer}", daemon=True)
            with self._lock:  # the thread may end at once, and leaves the set only after this has added it
                thread.start()
                self._conversations.add(thread)

    def _authorized(self, method: Bidirectional) -> Bidirectional:
        authorize = self._authorize
        if authorize is None:
            return method

        def open_authorized(context: CallContext, send: Callable[[bytes], None]) -> Any:
            authorize(context)
            return method.open(context, send)

        return Bidirectional(open_authorized)


class _Accept:
    """The request for the next bidirectional call of a method, with the completion queue of that call."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.queue = cygrpc.CompletionQueue()


_CALL, _STOPPED = "call", "stopped"


def _check_socket(path: Path) -> None:
    """Raise an error if a local socket is in use: gRPC would take the path from the server that listens there.

    Raises:
        UnavailableError: a server listens there, or something else than a socket is there.
    """
    if not path.exists():
        return
    if not path.is_socket():
        raise UnavailableError(
            f"cannot serve at unix:{path}: something else than a socket is there; choose another path"
        )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return  # its server ended without removing it, and gRPC replaces it
        except OSError:
            pass  # it is another user's, or many clients wait there
    raise UnavailableError(f"cannot serve at unix:{path}: another server uses the path; choose another one")
