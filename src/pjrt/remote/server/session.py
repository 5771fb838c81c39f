"""Sessions: one connection of a client, with all that it made, by handle.

The sessions of a server share the threads for requests that wait fairly. A handle is the number by which a client names
an object of its session. The backlog is the executions that were started and have not ended.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect_all
from pjrt.api.device import Device
from pjrt.api.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    PjrtError,
    ResourceExhaustedError,
    StatusCode,
    UnimplementedError,
)
from pjrt.api.future import Future, Promise, when_all_done
from pjrt.api.program import Stranger, for_stranger
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host_memory.array import HostArray
from pjrt.ifrt.array import Array
from pjrt.ifrt.client import Client
from pjrt.ifrt.sharding import Sharding
from pjrt.remote.protocol.messages import parsed, wire
from pjrt.remote.protocol.values import sharding_of, status_proto
from pjrt.remote.protocol.versions import ERRORS_ONLY, NEWEST, Version, requests_in
from pjrt.remote.security.limits import Limits, SessionUsage
from pjrt.remote.server.executables import Call, HostCallback, SessionExecutable
from pjrt.remote.server.memory import ArrayMemory, HostBuffers, ProgramMemory, shortened
from pjrt.remote.server.requests import HANDLERS, Handler
from pjrt.remote.transport.addresses import DEFAULT_KEEPALIVE, checked_keepalive

if TYPE_CHECKING:
    from pjrt.remote.metrics import MetricsServer

_log = logging.getLogger("pjrt.remote")

_Work = tuple[Callable[..., object], tuple[Any, ...]]


class Workers:
    """The threads of one server.

    A session that has no thread gets one at once, whatever the others do: nobody waits for a stranger's compilation
    that does not end. It gets further ones from those that all share; the session that has the fewest comes first.

    The threads are daemons. XLA's compiler cannot be stopped, and would keep the process from ending.

    Args:
        shared: the threads that sessions share, besides the first one of each.
    """

    def __init__(self, shared: int = min(32, (os.cpu_count() or 1) + 4)) -> None:
        self._shared = shared
        self._shared_in_use = 0
        self._changed = threading.Condition()
        self._waiting: list[SessionWorkers] = []
        self._ready: deque[tuple[SessionWorkers, _Work]] = deque()
        self._idle = 0
        self._count = 0
        self._is_closed = False

    def for_session(self) -> SessionWorkers:
        """Return the threads as one session may use them."""
        return SessionWorkers(self)

    def close(self, patience: float | None) -> bool:
        """Begin no further work, and wait for the work under way, at most so many seconds; return whether it ended."""
        with self._changed:
            self._is_closed = True
            for session in self._waiting:
                session._waiting.clear()
            self._waiting.clear()
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._count, patience)

    def _submit(self, session: SessionWorkers, work: _Work) -> None:
        with self._changed:
            if self._is_closed:
                return
            session._waiting.append(work)
            if len(session._waiting) == 1:
                self._waiting.append(session)
            self._hand_out()

    def _cancel(self, session: SessionWorkers) -> None:
        with self._changed:
            if session._waiting:
                session._waiting.clear()
                self._waiting.remove(session)

    def _hand_out(self) -> None:
        """Give the work that may begin to threads; the caller holds the lock."""
        while self._waiting:
            session = min(self._waiting, key=lambda each: each._busy)
            if session._busy:
                if self._shared_in_use >= self._shared:
                    break
                self._shared_in_use += 1
            session._busy += 1
            self._ready.append((session, session._waiting.popleft()))
            if not session._waiting:
                self._waiting.remove(session)
        while self._idle < len(self._ready):
            threading.Thread(target=self._serve, name="pjrt remote worker", daemon=True).start()
            self._idle += 1
            self._count += 1
        self._changed.notify(len(self._ready))

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._ready:
                    if self._is_closed or self._idle > self._shared + 1:
                        self._idle -= 1
                        self._count -= 1
                        self._changed.notify_all()
                        return
                    self._changed.wait()
                session, (function, arguments) = self._ready.popleft()
                self._idle -= 1
            try:
                function(*arguments)
            except Exception:
                _log.exception("the work of a session failed in an unexpected way")
            del function, arguments
            with self._changed:
                self._idle += 1
                session._busy -= 1
                if session._busy:
                    self._shared_in_use -= 1
                self._hand_out()
                callbacks = session._take_callbacks()
            del session
            for callback in callbacks:
                callback()


class SessionWorkers:
    """The threads of a server as one session uses them; ``Workers.for_session`` makes it."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._waiting: deque[_Work] = deque()
        self._busy = 0
        self._when_idle: list[Callable[[], object]] = []

    def submit(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have a function called by a thread, when the session gets one; after ``Workers.close`` do nothing."""
        self._workers._submit(self, (function, arguments))

    def cancel(self) -> None:
        """Drop the work that waits for a thread; what has begun goes on."""
        self._workers._cancel(self)

    def when_idle(self, callback: Callable[[], object]) -> None:
        """Have a function called once, as soon as the session has no work under way: now, or by a thread."""
        with self._workers._changed:
            self._when_idle.append(callback)
            callbacks = self._take_callbacks()
        for each in callbacks:
            each()

    def _take_callbacks(self) -> list[Callable[[], object]]:
        if self._busy or self._waiting:
            return []
        callbacks, self._when_idle = self._when_idle, []
        return callbacks


T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

_FIRST_OF_SERVER = 1 << 62
"""Clients count from 1, so that their handles and those of the server stay apart."""


class HeldMemory(Protocol[T_contra]):
    """The count of the memory of objects by their handles."""

    def hold(self, handle: int, value: T_contra | PjrtError) -> None:
        """Count an object, or the error that came instead of it.

        Raises:
            ResourceExhaustedError: there would be too much memory. It does not count then.
        """

    def release(self, handle: int) -> None:
        """Count the object of a handle no more."""


class HandleStore(Generic[T]):
    """The objects of one noun that a session holds, by handle.

    An object that could not be made is held as its error, because the client names it without waiting for the response:
    each use of the handle raises that error.

    Args:
        noun: the name of such objects, for errors.
        numbers: the counter of the session for handles that the server makes.
        most: the number of objects that a session may hold.
        memory: counts the bytes of the objects; ``None`` for objects without memory that counts.
    """

    def __init__(
        self, noun: str, numbers: Iterator[int], most: int = sys.maxsize, memory: HeldMemory[T] | None = None
    ) -> None:
        self._noun = noun
        self._numbers = numbers
        self._most = most
        self._memory = memory
        self._objects: dict[int, T | PjrtError] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, handle: object) -> bool:
        return handle in self._objects

    def add(self, value: T | PjrtError, handle: int = 0) -> int:
        """Hold an object, or the error that came instead of it, and return its handle.

        Args:
            value: the object or the error.
            handle: the handle that the client made; 0 makes one here.

        Raises:
            InvalidArgumentError: the handle is in use.
            ResourceExhaustedError: the session would hold too many objects, or too much memory.
        """
        if len(self._objects) >= self._most:
            raise ResourceExhaustedError(
                f"a session may hold {self._most} {self._noun}s, and it holds them; delete some, or start the server "
                "with a larger limit"
            )
        if not handle:
            handle = next(self._numbers)
        elif handle in self._objects:
            raise InvalidArgumentError(f"expected a new handle for the {self._noun}, found {handle}, which is in use")
        if self._memory is not None:
            self._memory.hold(handle, value)
        self._objects[handle] = value
        return handle

    def add_all(self, values: Iterable[T], handles: Iterable[int]) -> list[int]:
        """Hold objects under handles that the client made, or under new ones if it made none.

        Raises:
            InvalidArgumentError: there is not one handle for each object, or a handle is in use.
        """
        values, handles = list(values), list(handles)
        if not handles:
            return [self.add(value) for value in values]
        if len(handles) != len(values):
            raise InvalidArgumentError(f"expected {len(values)} handles of {self._noun}s, found {len(handles)}")
        return [self.add(value, handle) for value, handle in zip(values, handles, strict=True)]

    def get(self, handle: int) -> T:
        """Return the object of a handle.

        Raises:
            NotFoundError: the session has no such handle.
            PjrtError: the object could not be made; this is the error that came instead.
        """
        value = self._objects.get(handle)
        if value is None:
            raise self._unknown(handle)
        if isinstance(value, PjrtError):
            raise value.with_traceback(None)
        return value

    def get_all(self, handles: Iterable[int]) -> list[T]:
        """Return the objects of handles; raise the errors of ``get``."""
        return [self.get(handle) for handle in handles]

    def pop(self, handle: int) -> T:
        """Return the object of a handle and forget it; raise the errors of ``get``."""
        value = self.get(handle)
        self.forget(handle)
        return value

    def forget(self, handle: int) -> None:
        """Forget a handle, also one of an error.

        Raises:
            NotFoundError: the session has no such handle.
        """
        if self._objects.pop(handle, None) is None:
            raise self._unknown(handle)
        if self._memory is not None:
            self._memory.release(handle)

    def clear(self) -> list[T]:
        """Forget all handles and return the objects, without the errors."""
        objects = [value for value in self._objects.values() if not isinstance(value, PjrtError)]
        self._objects.clear()
        return objects

    def _unknown(self, handle: int) -> NotFoundError:
        return NotFoundError(f"expected the handle of an {self._noun} of this session, found {handle}")


def server_handles() -> Iterator[int]:
    """Return a counter of the handles that a server makes."""
    return itertools.count(_FIRST_OF_SERVER)


_STEP = 16
_WAIT_SECONDS = 0.2


class ExecutionBacklog:
    """The executions of a session that have not ended, roughly counted: of each 16, one is looked at.

    A client that starts programs faster than the devices run them is held back: the session handles no request while
    the backlog is full, so gRPC's flow control stops the client, and the server's memory does not grow without limit.

    Args:
        most: the executions that may be under way.
    """

    def __init__(self, most: int = 1024) -> None:
        self._most = most // _STEP
        self._started = 0
        self._samples: deque[Future[None]] = deque()

    def add(self, outputs: list[Array]) -> None:
        """Note an execution by its results."""
        self._started += 1
        if not self._started % _STEP and outputs:
            self._samples.append(outputs[0].ready())

    def wait(self, ended: threading.Event) -> None:
        """Wait while the backlog is full, or until the session has ended."""
        samples = self._samples
        while samples and samples[0].done():
            samples.popleft()
        while len(samples) > self._most and not ended.is_set():
            try:
                samples[0].exception(_WAIT_SECONDS)
            except DeadlineExceededError:
                continue
            samples.popleft()


# jaxlib's client drops its record of a request when it has dropped all responses up to the one that names the record.
# It keeps the response to ``init`` for ever, and does not look at the numbers of those to requests that it collects.
_UNCOUNTED = -1

_BYTES_OF_CALL = 2048
"""The memory of a request that waits, beside its message."""

CallFunction = Callable[[bytes, Sequence[HostArray]], tuple[bytes, Sequence[Any]]]
"""A function that a client has called here, with bytes and the values of arrays; it returns bytes and arrays."""

PassOnCall = Callable[
    [int, bytes, Sequence[Buffer], Sequence[tuple[ShapeSpec, Device]]], tuple[Future[bytes], Sequence[Buffer]]
]
"""Has another server call a function, given the number of a worker, the call, its arguments, and types and devices of
its results; it returns a future of the answer, and the buffers of the results."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of a server: what it does for its clients; the keyword arguments of ``serve``.

    Args:
        tls_certificate: the file of the server's certificate, in PEM; connections are encrypted then.
        tls_key: the file of the certificate's private key.
        client_ca: the file of the CA certificates whose clients may connect.
        token_file: the file of the access tokens with which clients may open sessions.
        limits: how much a client may use.
        metrics: the metrics that the server counts in; several servers may share one.
        transfer_directory: a directory, best in shared memory, in which clients of this machine leave large arrays for
            the server. Every user who may write to it can have the server read and remove files in it.
        name: the name of the device in the log and the metrics; by default that of the platform.
        platform_name: the platform's name for clients; by default its own. JAX decides some things by that name: as
            ``cpu``, any device has donation and LAPACK's functions in JAX without this package.
        vet_programs: whether each new program is parsed in a subprocess first, which takes a fraction of a second:
            the native parsers do not survive all damaged programs, and the server would end with them. By default it
            is done where other machines can connect, unless each client has a process of its own.
        save_executables: whether this package's clients may save executables and load saved ones. Those hold machine
            code, which the server runs: allow it only to clients that you trust as you trust its owner.
        allow_options: further compile options that clients may set, by name. By default these are options that concern
            the program alone; others, such as ``xla_dump_to``, have the server write and read files. ``None`` allows
            all, and lets programs call all custom calls of this process: only to clients that you trust so.
        call_function: a function that this package's clients may have called here, with the bytes and the arrays that
            they send. It returns bytes and arrays. The workers of a cluster run functions of their controller so; by
            default no function is called.
        pass_on_call: has another server call such functions: the inner nodes of a cluster pass them on to its workers.
        heartbeat_timeout: the seconds of silence after which a client is lost, at least 2. A client has a time of its
            own for the server; give both the same where the network may fail for longer.
    """

    tls_certificate: str | os.PathLike[str] | None = None
    tls_key: str | os.PathLike[str] | None = None
    client_ca: str | os.PathLike[str] | None = None
    token_file: str | os.PathLike[str] | None = None
    limits: Limits = field(default_factory=Limits)
    metrics: MetricsServer | None = None
    transfer_directory: str | os.PathLike[str] | None = None
    name: str = ""
    platform_name: str = ""
    vet_programs: bool | None = None
    save_executables: bool = False
    allow_options: Collection[str] | None = ()
    call_function: CallFunction | None = None
    pass_on_call: PassOnCall | None = None
    heartbeat_timeout: float = DEFAULT_KEEPALIVE

    def __post_init__(self) -> None:
        checked_keepalive(self.heartbeat_timeout)
        if self.allow_options is not None:
            names = frozenset(expect_all(self.allow_options, str, "the name of a compile option"))
            object.__setattr__(self, "allow_options", names)


_DEFAULT_OPTIONS = ServeOptions()


def new_session_id() -> int:
    """Return a number for a session that nobody can guess."""
    return secrets.randbits(63) | 1


class RequestCounts(Protocol):
    """What counts the requests of sessions."""

    def request_answered(self, kind: str, status: str, seconds: float) -> None:
        """Count a request, by its kind and the name of the status code of its response."""


_SHARDINGS_KEPT, _LONGEST_SHARDING_KEPT = 64, 1 << 10
"""The number of shardings that a session keeps, and the bytes of the longest."""


class Session:
    """One connection of a client.

    Requests that name the same handle are handled in their order. A request that has to wait, for a host buffer that is
    on its way or for work in another thread, holds up those that name its handles, and no others.

    Args:
        client: the client whose devices are served.
        send: sends a response to the client; called from several threads, and must not wait.
        workers: threads for requests that wait.
        version: the versions that both ends speak.
        options: what the server does for the client. Programs are vetted only where they say so.
        metrics: counts the requests; ``None`` where nothing is counted.

    Attributes:
        id: the number by which the client names the session when it sends host buffers. It cannot be guessed.
        client: the client whose devices are served.
        platform_name: the platform's name for the client.
        options: what the server does for the client.
        version: the versions that both ends speak.
        workers: threads for work that waits.
        arrays: the arrays.
        array_memory: the count of their memory.
        executables: the executables.
        callbacks: the functions of the client that programs call.
        calls: the calls of such functions that the client makes now.
        futures: the futures that the client may wait for by handle.
        deletions: the ends of deletions of arrays, which the client may wait for by handle.
        host_buffers: the bytes of arrays on their way.
        backlog: the executions that have not ended.
        usage: the memory that the session uses, and the pace of its requests.
        requests: the number of requests so far.
        opened: the time at which it was opened, on the clock of ``time.monotonic``.
        number: the number of the session in the server's log.
        caller: the name of the client's token or certificate; empty where it has none.
        peer: the address of the client.
        process: the process in which the client's programs run.
        takes_batches: whether the client knows of batches, and of requests whose success is not answered.
        hang_up: ends the connection with an error.
    """

    def __init__(
        self,
        client: Client,
        send: Callable[[Any], object],
        workers: SessionWorkers,
        version: Version = NEWEST,
        options: ServeOptions = _DEFAULT_OPTIONS,
        metrics: RequestCounts | None = None,
    ) -> None:
        numbers = server_handles()
        self.id = new_session_id()
        self.client = client
        self.platform_name = options.platform_name or client.platform_name
        self.options: ServeOptions = options
        self.version = version
        self.workers = workers
        self.usage = SessionUsage(options.limits, self._is_deleted)
        self.array_memory, most = ArrayMemory(self.usage), options.limits.session_arrays
        self.arrays: HandleStore[Array] = HandleStore("array", numbers, most, self.array_memory)
        self.executables: HandleStore[SessionExecutable] = HandleStore(
            "executable", numbers, options.limits.session_executables, ProgramMemory(self.usage)
        )
        self.callbacks: HandleStore[HostCallback] = HandleStore("host callback", numbers, most)
        self.calls: HandleStore[Call] = HandleStore("call of a host callback", numbers, most)
        self.futures: HandleStore[Future[Any]] = HandleStore("future", numbers, most)
        self.deletions: HandleStore[Future[Any]] = HandleStore("deletion", numbers, most)
        self.host_buffers = HostBuffers(self.usage)
        self.backlog = ExecutionBacklog()
        self.requests = 0
        self.opened = time.monotonic()
        self.number = 0
        self.caller, self.peer = "", ""
        self.process = os.getpid()
        self.transfer_subdirectory = ""
        self.takes_batches = False
        self.hang_up: Callable[[PjrtError], None] = lambda error: None
        self._stranger = Stranger()
        self._shardings: dict[bytes, Sharding] = {}  # a client names few, again and again
        self._metrics = metrics
        self._send = send
        # A done callback may be called inside of a handler.
        self._lock = threading.RLock()
        self._held: dict[int, Future[None]] = {}
        self._due: collections.deque[tuple[_Call, Callable[[], None]]] = collections.deque()
        # Nothing here refers to the client's records about its callers, so the client may drop one with each response.
        self._contexts: collections.deque[int] = collections.deque()
        self._counted_responses = itertools.count()
        # One for each request without a response. Several threads respond, and need no lock for this.
        self._unanswered: collections.deque[None] = collections.deque()
        self._latest = self.opened
        self._closed = False
        self._ended = threading.Event()

    def receive_message(self, message: bytes) -> None:
        """Handle the requests in a message of the client, as ``receive`` does; raise an error if it is damaged."""
        for request in requests_in(message):
            self.receive(parsed(wire.IfrtRequest, request))

    def receive(self, request: Any) -> None:
        """Handle a request (``IfrtRequest``); the response is sent when it is there.

        The transport calls it for one request after the other, in the order of their arrival. It waits if the client
        sends more requests in a second than it may, and if too many executions are under way: the transport then reads
        no further ones.
        """
        self.requests += 1
        self._unanswered.append(None)
        self._latest = time.monotonic()
        if not self.callbacks:  # an execution may wait for the client's answer to a callback, which is a request
            self.backlog.wait(self._ended)
        if seconds := self.usage.seconds_to_wait():
            self._ended.wait(seconds)
        call = _Call.of(request, self.deletions)
        if call.handler is None:
            self._respond(call, UnimplementedError(f"this server does not offer {call.name}"))
            return
        handler, message = call.handler, call.message
        with self._lock:
            if self._closed:
                return
            inputs = self._missing(handler, message)
            named: list[int] = []
            if inputs or handler.blocking or self._held:
                queue = handler.queue_of(self, message)
                named = [*handler.handles(message), *([] if queue is None else [queue])]
                awaited = named if queue is None else [*named, *queue.awaited]
                inputs += [self._held[handle] for handle in awaited if handle in self._held]
            waits = bool(inputs) or handler.is_blocking(self, message)
            if waits:
                try:
                    self.usage.add_other(("call", id(call)), _BYTES_OF_CALL + message.ByteSize())
                except ResourceExhaustedError as error:
                    self._respond(call, self._failed(handler, message, error))
                    return
            if inputs:
                self._hold(named, lambda end: when_all_done(inputs, lambda: self._begin(call, end)))
            elif waits:
                self._hold(named, lambda end: self._begin(call, end))
            else:
                self._run(call)

    def idle_seconds(self, now: float) -> float:
        """Return how long the session has had no request, and no answer to one; 0 while one is not answered.

        Args:
            now: the time, on the clock of ``time.monotonic``.
        """
        return 0.0 if self._unanswered else now - self._latest

    def when_idle(self, callback: Callable[[], object]) -> None:
        """Have a function called once, as soon as no work of the session goes on."""
        self.workers.when_idle(callback)

    def sharding(self, proto: Any) -> Sharding:
        """Return the sharding in a ``ShardingProto``; raise the errors of ``sharding_of``."""
        key = proto.SerializeToString()
        sharding = self._shardings.get(key)
        if sharding is None:
            sharding = sharding_of(self.client, proto)
            if len(key) <= _LONGEST_SHARDING_KEPT:
                if len(self._shardings) >= _SHARDINGS_KEPT:
                    self._shardings.clear()
                self._shardings[key] = sharding
        return sharding

    def as_stranger(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which programs are compiled and begun: a stranger's, unless the client is trusted."""
        return contextlib.nullcontext() if self.options.allow_options is None else for_stranger(self._stranger)

    def close(self, reason: str) -> None:
        """End the session: forget and free all that it made. May be called again."""
        error = CancelledError(f"the session has ended: {reason}")
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._ended.set()
        self.workers.cancel()
        self._stranger.leave()
        self.host_buffers.close(error)
        # Programs that wait for the client end first: the arrays that they use can be deleted then.
        for callback in self.callbacks.clear():
            callback.close(error)
        for call in self.calls.clear():
            call.results.set_error(error)
        with self._lock:
            self.futures.clear()
            self.deletions.clear()
            held: list[Array | SessionExecutable] = [*self.arrays.clear(), *self.executables.clear()]
        self.usage.clear()
        for value in held:
            try:
                value.delete()
            except PjrtError as failure:
                _log.debug("a session's %r could not be deleted: %s", value, failure)
        self.hang_up, self._send = lambda error: None, lambda response: None  # gRPC's memory is freed at once

    def _is_deleted(self, handle: int) -> bool:
        """Whether an array that counts was deleted or donated; its handle lives on until the client forgets it."""
        try:
            return self.arrays.get(handle).is_deleted
        except PjrtError:
            return True

    def _missing(self, handler: Handler, message: Any) -> list[Future[None]]:
        """Return futures of the host buffers that a request needs and that are not there yet."""
        if handler.host_buffers is None:
            return []
        futures = [self.host_buffers.stored(handle) for handle in handler.host_buffers(message)]
        return [future for future in futures if future is not None]

    def _hold(self, named: list[int], start: Callable[[Callable[[], None]], object]) -> None:
        """Let the requests that follow and name these handles wait until ``start``'s argument is called."""
        promise: Promise[None] = Promise()
        for handle in named:
            self._held[handle] = promise.future

        def end() -> None:
            with self._lock:
                for handle in named:
                    if self._held.get(handle) is promise.future:
                        del self._held[handle]
            promise.set_result(None)

        start(end)

    def _begin(self, call: _Call, end: Callable[[], None]) -> None:
        """Handle a request whose time has come, here or in another thread, and then call ``end``."""
        if call.handler is not None and call.handler.is_blocking(self, call.message):
            self.workers.submit(self._run, call, end)
            return
        with self._lock:
            self._due.append((call, end))
            if len(self._due) > 1:
                return
            # The end of a request lets others begin: they come here, and wait for this loop, so that a long chain of
            # requests does not become a deep recursion.
            while self._due:
                try:
                    self._run(*self._due[0])
                finally:
                    self._due.popleft()

    def _run(self, call: _Call, end: Callable[[], None] | None = None) -> None:
        assert call.handler is not None
        if end is not None:  # it has waited
            self.usage.remove_other(("call", id(call)))
        outcome: Any
        try:
            if self._closed:
                raise CancelledError("the session has ended")
            outcome = call.handler.handle(self, call.message)
        except Exception as error:
            outcome = self._failed(call.handler, call.message, error)
        if end is not None:
            end()
        if isinstance(outcome, Future):
            outcome.add_done_callback(lambda future: self._respond(call, future.exception() or future.result()))
        else:
            self._respond(call, outcome)

    def _failed(self, handler: Handler, message: Any, error: Exception) -> PjrtError:
        """Return the error of a request; the handles that the request would have made hold it."""
        failure = PjrtError.wrap(error)
        if not isinstance(error, PjrtError):
            _log.error("the request %s failed in an unexpected way", handler.kind, exc_info=error)
        # The session holds the error, and the frames of its traceback would hold the arrays that the request used.
        link: BaseException | None = failure
        seen: set[int] = set()
        while link is not None and id(link) not in seen:  # an error that is raised again may be its own context
            seen.add(id(link))
            link.__traceback__ = None
            link = link.__cause__ or link.__context__
        held = shortened(failure)
        # Where a session holds as many objects as it may, not even errors are held, and their handles are unknown.
        with self._lock, contextlib.suppress(ResourceExhaustedError):
            for handle in handler.result_handles(message):
                if handle not in self.arrays:
                    self.arrays.add(held, handle)
            for handle in handler.future_handles(message):
                if handle not in self.futures:
                    self.futures.add(Future.failed(held), handle)
        return failure

    def _respond(self, call: _Call, outcome: Any) -> None:
        self._latest = time.monotonic()
        self._unanswered.pop()
        if self._metrics is not None:
            code = outcome.code if isinstance(outcome, PjrtError) else StatusCode.OK
            kind = "unknown" if call.handler is None else call.handler.kind
            self._metrics.request_answered(kind, code.name, time.monotonic() - call.received)
        if self.takes_batches and call.op_id & ERRORS_ONLY and not isinstance(outcome, PjrtError):
            return
        response = wire.IfrtResponse()
        metadata = response.response_metadata
        metadata.op_id = call.op_id
        if call.context_id:
            self._contexts.append(call.context_id)
        if isinstance(outcome, PjrtError):
            metadata.status.CopyFrom(status_proto(outcome))
        else:
            getattr(response, call.response).CopyFrom(outcome)
            metadata.seq_num = next(self._counted_responses) if call.is_counted else _UNCOUNTED
            if call.is_counted:
                while self._contexts:
                    metadata.destroyed_user_context_ids.append(self._contexts.popleft())
        self._send(response)


class _Call(NamedTuple):
    """A request on its way through the session.

    Attributes:
        handler: the handler; ``None`` if the request is of a kind that is not offered.
        name: the name of the request.
        response: the name of the response.
        message: the request.
        op_id: the number by which the client finds the request of a response.
        context_id: the number of the client's record about its caller, kept until the server no longer refers to it.
        is_counted: whether the client counts the response.
        received: the time of its arrival, on the clock of ``time.monotonic``.
    """

    handler: Handler | None
    name: str
    response: str
    message: Any
    op_id: int
    context_id: int
    is_counted: bool
    received: float

    @staticmethod
    def of(request: Any, deletions: Container[int]) -> _Call:
        """Return the call of an ``IfrtRequest``."""
        name = request.WhichOneof("request")
        handler = HANDLERS.get(name)
        metadata = request.request_metadata
        if handler is None:
            unknown = name or "a request of a newer version of the protocol"
            return _Call(None, unknown, "", None, metadata.op_id, metadata.user_context_id, False, time.monotonic())
        message = getattr(request, name)
        # The client of jaxlib itself asks for the end of the deletions that it collected.
        is_counted = handler.counted and not (handler.kind == "check_future" and message.future_handle in deletions)
        response = f"{handler.kind}_response"
        now = time.monotonic()
        return _Call(handler, name, response, message, metadata.op_id, metadata.user_context_id, is_counted, now)
