"""The connection of a client: the calls of a server's service, and the session with its requests and their answers.

Nothing here blocks while it sends a request, and nothing holds a lock while it does: the garbage collector may end a
buffer at any moment, also in the middle of a send, and that sends too.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import secrets
import shutil
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union

from pjrt.api.device import Attributes
from pjrt.api.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PjrtError,
    StatusCode,
    UnavailableError,
    UnimplementedError,
)
from pjrt.api.future import Future
from pjrt.api.printable import printable
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import attributes_of, attributes_proto, error_of
from pjrt.remote.protocol.versions import (
    BATCHES,
    ERRORS_ONLY,
    INLINE,
    LARGEST_BATCHED_REQUEST,
    MOST_BATCHED_REQUESTS,
    MOST_INLINE_BYTES,
    NEWEST,
    OLDEST_PROTOCOL,
    Version,
    batch,
)
from pjrt.remote.transport.channel import Channel, Stream
from pjrt.remote.transport.host_buffers import SUBDIRECTORY_ATTRIBUTE, file_name, piece_data, pieces
from pjrt.system import after_fork_in_child

if TYPE_CHECKING:
    from pjrt.remote.client.buffer import ShardedArray

T = TypeVar("T")

_log = logging.getLogger("pjrt")
_transfer_log = logging.getLogger("pjrt.remote")


class DelayedCalls(Generic[T]):
    """A thread that calls a function on objects a moment after they ask for it; it starts with the first object.

    Args:
        seconds: the moment.
        call: the function.
        name: the name of the thread.
    """

    def __init__(self, seconds: float, call: Callable[[T], object], name: str) -> None:
        self._seconds = seconds
        self._call = call
        self._name = name
        self._reset()
        after_fork_in_child(self._reset)

    def _reset(self) -> None:
        # Its methods can be interrupted by the garbage collector and called again, unlike those of other queues.
        self._due: queue.SimpleQueue[weakref.ref[T]] = queue.SimpleQueue()
        self._starts = threading.Lock()
        self._runs = False

    def wake(self, subject: T) -> None:
        """Have the function called on an object soon, unless the object is gone by then; never blocks."""
        if (
            sys.is_finalizing()
        ):  # a new thread would end on the spot, and its start, before Python 3.12, would not return
            return
        self._due.put(weakref.ref(subject))
        if not self._runs and self._starts.acquire(blocking=False):
            try:
                if not self._runs:
                    threading.Thread(target=self._run, args=(self._due,), name=self._name, daemon=True).start()
                    self._runs = True
            except RuntimeError:  # the interpreter is ending; the session's end releases everything
                pass
            finally:
                self._starts.release()

    def _run(self, due: queue.SimpleQueue[weakref.ref[T]]) -> None:
        while True:
            references = [due.get()]
            time.sleep(self._seconds)
            while not due.empty():
                references.append(due.get())
            while references:
                subject = references.pop()()
                if subject is not None:
                    try:
                        self._call(subject)
                    except Exception:  # the other objects need the thread
                        _log.exception("a delayed call of %r failed", subject)
                del subject


SMALLEST_FILE = 1 << 20
"""The bytes from which on arrays are left in files; smaller ones take longer so than by the connection."""

_MOST_SPARE_BYTES = 256 << 20


class TransferFiles:
    """The files of one client, in a subdirectory of its own.

    The server removes the name of a file when it opens it. The file itself has a second name here, and serves again
    for the next array of the same size: the memory of a new one would have to be zeroed by the system first.

    Args:
        directory: the server's directory for transfers.

    Attributes:
        subdirectory: the name of the client's directory in it.

    Raises:
        InvalidArgumentError: no subdirectory can be made there.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.subdirectory = f"client-{secrets.token_hex(8)}"
        self._path = Path(directory, self.subdirectory)
        try:
            self._path.mkdir(mode=0o700)
        except (OSError, TypeError) as error:
            raise InvalidArgumentError(
                f"expected a directory that this client may write to as transfer_directory, found {directory!r}: "
                f"{error}"
            ) from None
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._spare: dict[int, list[Path]] = {}
        self._spare_bytes = 0

    def write(self, handle: int, data: memoryview) -> Path | None:
        """Write the file of a host buffer; return the file for ``done``, or ``None`` if there is no room for it."""
        path = self._taken(data.nbytes)
        try:
            with open(path, "r+b" if path.exists() else "xb", buffering=0, opener=_private) as file:
                position = 0
                while position < data.nbytes:
                    position += file.write(data[position:])
            os.link(path, self._path / file_name(handle))
        except OSError:
            self._remove(path)
            return None
        return path

    def done(self, handle: int, path: Path, size: int) -> None:
        """Keep a file that the server has read for the next array, or remove it; the server may be gone."""
        with contextlib.suppress(OSError):
            (self._path / file_name(handle)).unlink()
        with self._lock:
            if self._spare_bytes + size <= _MOST_SPARE_BYTES:
                self._spare_bytes += size
                self._spare.setdefault(size, []).append(path)
                return
        self._remove(path)

    def close(self) -> None:
        """Remove all files. May be called again."""
        shutil.rmtree(self._path, ignore_errors=True)

    def _taken(self, size: int) -> Path:
        with self._lock:
            if spare := self._spare.get(size):
                self._spare_bytes -= size
                return spare.pop()
            return self._path / f"spare-{next(self._numbers)}"

    def _remove(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


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
                _transfer_log.warning("%s; arrays are sent over the connection", printable(error.message))
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
    if len(first) >= LARGEST_BATCHED_REQUEST or not waiting:
        return first
    requests = [first]
    while waiting and len(requests) < MOST_BATCHED_REQUESTS and len(waiting[0]) < LARGEST_BATCHED_REQUEST:
        requests.append(waiting.popleft())
    return batch(requests) if len(requests) > 1 else first


Reply = Callable[[Any, "PjrtError | None"], object]
"""A function that takes the response to a request, or the error that came instead."""

Garbage = Union[int, "tuple[ShardedArray, int]", Callable[[], object]]

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
        most_inline: the bytes of an array up to which it travels in the message, and not beside the session.

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
        self.most_inline = 0
        self.version = service.agree(timeout)
        service.open(self.version, *_without_owner(self))
        # The interpreter's end calls it as well: the server learns at once that the session is over.
        self._finalizer = weakref.finalize(self, _close, service, _generation)
        self.session = self.call("init", wire.InitRequest()).result(timeout)
        self.attributes = attributes_of(self.session.client_attributes)
        if self.attributes.get(BATCHES) is True:
            self._unanswered = ERRORS_ONLY
            service.send_batches()
        if self.attributes.get(INLINE) is True:
            self.most_inline = MOST_INLINE_BYTES

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


class AskedFuture(Future[None]):
    """A future that the client asks the server for, once, when the caller wants it."""

    __slots__ = ("_is_asked",)

    def __init__(self) -> None:
        super().__init__()
        self._is_asked = False

    def _send_question(self) -> None:
        """Send the request for the answer, which completes the future."""
        raise NotImplementedError

    def _ask(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self._send_question()

    def _poll(self) -> None:
        self._ask()

    def _block(self, timeout: float | None) -> None:
        self._ask()
        super()._block(timeout)

    def _watch(self) -> None:
        self._ask()


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
