"""Connections: the session of one server, its requests in order, and the futures of their answers.

Nothing here blocks while it sends, and nothing holds a lock while it does: the garbage collector may end a buffer at
any moment, also in the middle of a send, and that sends too.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Union

from pjrt.api.errors import FailedPreconditionError, PjrtError, UnimplementedError
from pjrt.api.future import Future
from pjrt.remote.client.delayed_calls import DelayedCalls
from pjrt.remote.client.service import Service
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import attributes_of, error_of
from pjrt.remote.protocol.versions import BATCHES, ERRORS_ONLY
from pjrt.system import after_fork_in_child

if TYPE_CHECKING:
    from pjrt.remote.client.sharded_array import ShardedArray

Reply = Callable[[Any, "PjrtError | None"], object]
"""A function that takes the response to a request, or the error that came instead."""

Garbage = Union[int, "tuple[ShardedArray, int]", Callable[[], object]]

_log = logging.getLogger("pjrt")

_TIMEOUT_SECONDS = 60.0
_PAUSE_SECONDS = 0.001

# Long enough that a loop of executions costs a message for many results, not one for each; short enough that memory
# is not missed. Destructors only note unused handles.
_RELEASE_SECONDS = 0.003
_releases: DelayedCalls[Connection] = DelayedCalls(
    _RELEASE_SECONDS, lambda connection: connection.release_now(), "pjrt-remote-release"
)

_generation = 0


def _after_fork() -> None:
    global _generation
    _generation += 1


after_fork_in_child(_after_fork)


class Connection:
    """One session with one server.

    Args:
        service: the calls of the server.
        timeout: how long the server may take to open the session, in seconds.

    Attributes:
        address: the server's address.
        version: the version of the protocol that both sides speak.
        session: the server's ``InitResponse``: its devices and memories.
        attributes: the attributes of the server's client.

    Raises:
        UnavailableError: the server cannot be reached.
    """

    def __init__(self, service: Service, *, timeout: float = _TIMEOUT_SECONDS) -> None:
        self.address = service.address
        self._service = service
        self._generation = _generation
        self._error: PjrtError | None = None
        self._pending: dict[int, Reply] = {}
        self._operations = itertools.count(1)
        self._handles = itertools.count(1)
        self._garbage: deque[Garbage] = deque()
        self._is_release_due = False
        self._on_loss: list[Callable[[PjrtError], object]] = []
        self._unanswered = 0
        self.version = service.agree(timeout)
        service.open(self.version, *_without_owner(self))
        # The interpreter's end calls it as well: the server learns at once that the session is over.
        self._finalizer = weakref.finalize(self, _close, service, _generation)
        self.session = self.call("init", wire.InitRequest()).result(timeout)
        self.attributes = attributes_of(self.session.client_attributes)
        if self.attributes.get(BATCHES) is True:
            self._unanswered = ERRORS_ONLY
            service.send_batches()

    # Requests.

    def new_handle(self) -> int:
        """Return a new handle, for an array, a host buffer or a future of this session."""
        return next(self._handles)

    def send(self, request: Any, reply: Reply | None = None) -> None:
        """Send a request after all earlier ones; do not wait for the answer.

        Args:
            request: an ``IfrtRequest`` without an operation id.
            reply: called once with the response or the error, on the thread that receives; without one, errors of this
                request are logged, and arrive at the arrays that it would have made.
        """
        operation = next(self._operations)
        if reply is None:
            request.request_metadata.op_id = operation | self._unanswered
        else:
            request.request_metadata.op_id = operation
            self._pending[operation] = reply
        self._service.send(request, is_urgent=reply is not None)
        if self._error is not None and reply is not None and self._pending.pop(operation, None) is not None:
            reply(None, self._fresh_error())

    def post(self, kind: str, message: Any) -> None:
        """Send a request of a kind, such as ``copy_arrays``, whose answer nobody needs."""
        request = wire.IfrtRequest()
        getattr(request, f"{kind}_request").CopyFrom(message)
        self.send(request)

    def call(self, kind: str, message: Any) -> Future[Any]:
        """Send a request of a kind and return the future of its response."""
        request = wire.IfrtRequest()
        getattr(request, f"{kind}_request").CopyFrom(message)
        return self.ask(request, f"{kind}_response")

    def ask(self, request: Any, field: str) -> Future[Any]:
        """Send a request and return the future of a field of its response."""
        response = ResponseFuture(self, field)
        self.send(request, response.arrive)
        return response

    def wait_for_room(self) -> None:
        """Wait while the server takes requests more slowly than they are sent, so that memory has a limit.

        Callers that start executions or send arrays call it, before they hold anything.
        """
        while self._service.is_full and self._error is None:
            time.sleep(_PAUSE_SECONDS)

    # Host buffers.

    def store(self, handle: int, data: memoryview, done: Callable[[], object] | None = None) -> None:
        """Send the bytes of a host buffer.

        Args:
            handle: the handle by which requests name the host buffer.
            data: the bytes; they must not change until they are sent.
            done: called once, when the bytes are sent or the connection is broken.
        """
        self._service.store(self.session.session_id, handle, data, done)

    def fetch(self, handle: int, out: memoryview, done: Callable[[PjrtError | None], object]) -> None:
        """Receive the bytes of a host buffer, and delete it on the server.

        Args:
            handle: the host buffer.
            out: memory of its size to receive to.
            done: called once, with an error if that failed.
        """
        self._service.fetch(self.session.session_id, handle, out, done)

    # Handles that nobody uses any more.

    def release(self, garbage: Garbage) -> None:
        """Have an object of the server released soon; a destructor may call it.

        Args:
            garbage: the handle of an array; a part of an array over several devices, with its index; or a function that
                sends a request.
        """
        self._garbage.append(garbage)
        if not self._is_release_due:
            self._is_release_due = True
            _releases.wake(self)

    def release_now(self) -> None:
        """Send the batch of handles that ``release`` collected; two threads may do it at once."""
        # First, so that a handle that is released from now on wakes the releaser again.
        self._is_release_due = False
        handles: list[int] = []
        arrays: dict[ShardedArray, None] = {}
        garbage = self._garbage
        while True:
            try:
                item = garbage.popleft()
            except IndexError:
                break
            if isinstance(item, int):
                handles.append(item)
            elif isinstance(item, tuple):
                item[0].forget(item[1])
                arrays[item[0]] = None
            elif self._error is None:
                item()
        if self._error is not None:
            return
        for array in arrays:
            handles += array.to_release()
        if handles:
            request = wire.IfrtRequest()
            request.destruct_array_request.array_handle.extend(handles)
            self.send(request)

    # Its end.

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return not self._finalizer.alive

    def require_version(self, protocol: int, operation: str) -> None:
        """Raise an error if the server speaks an older version of the protocol than an operation needs.

        Raises:
            UnimplementedError: the protocol is older.
        """
        if self.version.protocol < protocol:
            raise UnimplementedError(
                f"{operation} needs version {protocol} of the IFRT proxy protocol, and the server {self.address} "
                f"speaks version {self.version.protocol}"
            )

    def check(self) -> None:
        """Raise an error if requests cannot be sent.

        Raises:
            FailedPreconditionError: the connection was closed, or belongs to the parent of a forked process.
            UnavailableError: the connection is broken.
        """
        if self._error is not None:
            raise self._fresh_error()
        if self._generation != _generation:
            raise FailedPreconditionError(
                "this client was made before the process forked, and its connection belongs to the parent; "
                "make a new client in the child"
            )

    def close(self, reason: PjrtError) -> None:
        """End the session: the server releases its objects, and futures of responses fail with the reason."""
        self._error = reason
        self._finalizer()
        self._fail_pending()

    def receive(self, response: Any) -> None:
        """Take a response of the server; its service calls this from one thread."""
        metadata = response.response_metadata
        reply = self._pending.pop(metadata.op_id, None)
        error = error_of(metadata.status) if metadata.HasField("status") and metadata.status.code else None
        if reply is not None:
            try:
                reply(response, error)
            except Exception as failure:
                _log.exception("a response of the server %s could not be handled", self.address)
                reply(None, PjrtError.wrap(failure))  # so that nobody waits for ever
        elif error is not None:
            _log.debug("the server %s refused a request: %s", self.address, error)

    def on_loss(self, callback: Callable[[PjrtError], object]) -> None:
        """Have a function called once with the error when the connection breaks, at once if it has; not by ``close``.

        It is called before anything fails because of it. So it may have found the cause by the time that others ask.
        """
        self._on_loss.append(callback)
        if self._error is not None:
            self._report_loss(self._error)

    def end(self, error: PjrtError) -> None:
        """Fail all futures, because the connection broke, or the server is given up; its service may call this, too."""
        if self._error is None:
            self._report_loss(error)
            self._error = error
            self._report_loss(error)  # to those that came meanwhile
        self._fail_pending()

    def _report_loss(self, error: PjrtError) -> None:
        # What this side has closed, also at the interpreter's end, is no loss.
        while self._on_loss and self._finalizer.alive:
            with contextlib.suppress(IndexError):  # another thread took the last one
                self._on_loss.pop()(error)

    def _fail_pending(self) -> None:
        while self._pending:
            try:
                _, reply = self._pending.popitem()
            except KeyError:  # another thread took the last one
                return
            reply(None, self._fresh_error())

    def _fresh_error(self) -> PjrtError:
        """Return the error of the connection, as an object of its own: tracebacks of several threads must not mix."""
        assert self._error is not None
        return PjrtError.of(self._error.code, self._error.message)


class ResponseFuture(Future[Any]):
    """The future of the response to one request; it keeps its connection alive."""

    __slots__ = ("_connection", "_field")

    def __init__(self, connection: Connection, field: str) -> None:
        super().__init__()
        self._connection = connection
        self._field = field

    def arrive(self, response: Any, error: PjrtError | None) -> None:
        """Complete the future with the response or the error."""
        self._complete(None if error is not None else getattr(response, self._field), error)


def _without_owner(connection: Connection) -> tuple[Callable[[Any], None], Callable[[PjrtError], None]]:
    """Return the functions that the service calls; they do not keep a forgotten connection alive."""
    reference = weakref.ref(connection)

    def receive(response: Any) -> None:
        owner = reference()
        if owner is not None:
            owner.receive(response)

    def end(error: PjrtError) -> None:
        owner = reference()
        if owner is not None:
            owner.end(error)

    return receive, end


def _close(service: Service, generation: int) -> None:
    if generation == _generation:  # it belongs to the parent of a forked process
        service.close()
