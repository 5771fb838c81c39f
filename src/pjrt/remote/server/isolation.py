"""Sessions in processes of their own: each client of a server has one, with the devices in it.

The server's process gives them the bytes of the client as they come, and reads no program. A process has what the
system confines it to. It ends with its client, and another one of them notices nothing. ``worker`` is the other end.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pjrt.api.device import NamedValue
from pjrt.api.errors import (
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    InternalError,
    PjrtError,
    StatusCode,
    UnavailableError,
    UnimplementedError,
)
from pjrt.api.future import Future, Promise
from pjrt.api.printable import printable
from pjrt.remote.connection_log import log_event
from pjrt.remote.protocol.versions import Version
from pjrt.remote.security.limits import Limits, SessionUsage
from pjrt.remote.server.session import ServeOptions, new_session_id
from pjrt.remote.transport.grpc_server import CallContext
from pjrt.remote.transport.host_buffers import CHUNK_BYTES, Pieces, piece
from pjrt.remote.transport.worker_frames import (
    KINDS,
    LONGEST_PACKET,
    PACKET,
    REQUEST,
    RESPONSE,
    UNCOUNTED,
    Frames,
    Kind,
    Packet,
    Response,
)
from pjrt.system import TemporaryFolder, describe_exit
from pjrt.system.confinement import CAN_CONFINE, hide_memory
from pjrt.system.python_process import module_command, module_environment

if TYPE_CHECKING:
    from pjrt.remote.metrics import ServerMetrics

DIVISIBLE = ("cpu", "reference", "iree")
"""The devices of which each process may have its own."""

_START_SECONDS = 120.0
_END_SECONDS = 10.0
_MESSAGE_BYTES = 1 << 18
_MOST_RESPONSES = 8192
_MOST_AHEAD = 3
_MANY_CALLS = 32
_READ_BYTES = 1 << 20
_MOST_SAID = 200
_STATUS_NAMES = {int(code): code.name for code in StatusCode}
_CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP)
_ADVICE = ", as a compiler ends it over a damaged program; a server with --vet-programs looks at programs first"
_STUCK = ", as it does where a parser does not come back from a damaged program"
_SENDER = struct.Struct("3i")  # what the system says of the sender of a message: process, user, group
_WAIT_SECONDS = 0.1


class Isolated:
    """Devices of which each client of a server has its own, in a process of its own; ``pjrt.remote.serve`` takes it.

    A client is an access token, or the name in a certificate; where a server knows no clients, each session is one.
    Another process is always ready, so that a session begins at once.

    Args:
        device: the name of a device.
        options: the options of its clients.

    Raises:
        UnimplementedError: this system cannot confine processes; Linux can.
    """

    def __init__(self, device: str, options: Mapping[str, NamedValue] | None = None) -> None:
        if not CAN_CONFINE:
            raise UnimplementedError(
                "this system cannot confine the processes of clients; serve a client of the device"
            )
        self.device = device
        self._client_options = dict(options or {})
        self._changed = threading.Condition()
        self._workers: dict[int, Worker] = {}
        self._of_client: dict[str, Worker] = {}
        self._next: Worker | None = None
        self._count = 0
        self._closed = False
        self._facts: dict[str, Any] = {}
        self._parent: socket.socket | None = None

    def start(self, options: ServeOptions) -> None:
        """Start the process that the others come from, and the first of those; wait until that is ready.

        Args:
            options: what the server does for its clients.

        Raises:
            PjrtError: the devices cannot be made.
        """
        self._served = replace(
            options, metrics=None, tls_certificate=None, tls_key=None, client_ca=None, token_file=None
        )
        files = (options.tls_key, options.token_file)
        self._secrets = [os.path.abspath(file) for file in files if file is not None]
        hide_memory()
        self._events = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._thread = threading.Thread(target=self._watch, name="pjrt worker processes", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._next is not None or not self._thread.is_alive())
            first = self._next
        if first is None:
            raise UnavailableError("no process for clients can be started: the system has no room for further ones")
        try:
            self._facts = first.wait()
            self._command(load=self._facts["modules"])
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<{self.device} with a process for each client>"

    @property
    def platform_name(self) -> str:
        """The platform's name, as the devices say it."""
        return str(self._facts["platform"])

    @property
    def count(self) -> int:
        """The number of the devices that each client has."""
        return int(self._facts["devices"])

    @property
    def may(self) -> list[str]:
        """What the processes may do although it is not theirs to do, as this system does not take it from them."""
        return list(self._facts["may"])

    def take(self, client: str) -> Worker:
        """Return the process of a client for one more session; ``leave`` gives it back.

        Args:
            client: the name of the client; empty for one that has no other sessions.

        Raises:
            PjrtError: it cannot be started.
        """
        with self._changed:
            worker = self._of_client.get(client)
            if worker is None or worker.is_over:
                worker = self._next
                if worker is None or worker.is_over:
                    worker = self._start()
                self._next = self._start()
                worker.client = client
                if client:
                    self._of_client[client] = worker
            worker.sessions += 1
        try:
            worker.wait()
        except BaseException:
            self.leave(worker)
            raise
        return worker

    def leave(self, worker: Worker) -> None:
        """End a process if this was its last session."""
        with self._changed:
            worker.sessions -= 1
            if worker.sessions:
                return
            if self._of_client.get(worker.client) is worker:
                del self._of_client[worker.client]
            self._kill(worker)

    def kill(self, worker: Worker) -> None:
        """End a process that serves a session no more; nothing happens if it has ended itself."""
        with self._changed:
            self._kill(worker)

    def _kill(self, worker: Worker) -> None:
        if worker.number in self._workers and self._parent is not None:
            self._command(end=worker.number)

    def close(self) -> None:
        """End all processes. May be called again."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            if self._parent is not None:
                self._parent.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _start(self) -> Worker:
        """Have a process forked; the caller holds the lock."""
        if self._closed:
            raise CancelledError("the server has stopped")
        self._count += 1
        worker = Worker(self._count, TemporaryFolder("client"))
        self._workers[worker.number] = worker
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            worker.control = ours
            self._handlers[ours.fileno()] = lambda: self._hear_worker(worker)
            self._events.register(ours, select.EPOLLIN)
            self._command(start=worker.number, folder=str(worker.folder.path), file=theirs.fileno())
        return worker

    def _command(self, file: int = -1, **command: Any) -> None:
        parent = self._parent
        if parent is None:
            raise UnavailableError("the processes of clients are started anew; try it again")
        with contextlib.suppress(OSError):  # it has ended, which its thread sees
            socket.send_fds(parent, [pickle.dumps(command)], [file] if file >= 0 else [])

    # The thread that starts the first process lives as long as this one: the system ends that process with it.

    def _watch(self) -> None:
        try:
            while self._run():
                log_event(logging.ERROR, "the processes of all clients ended", device=self.device)
        except CancelledError:
            pass  # the server has stopped meanwhile
        except OSError as error:
            log_event(logging.ERROR, "no process for clients can be started", device=self.device, reason=str(error))
        finally:
            self._events.close()
            with self._changed:
                self._changed.notify_all()

    def _run(self) -> bool:
        """Start the process that the others come from, and watch it; return whether it is to be started again."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                module_command("pjrt.system.confinement", str(os.getpid()), "pjrt.remote.server.worker"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=module_environment(),
                start_new_session=True,  # Ctrl-C is the server's
            )
        served = {
            "device": self.device,
            "client_options": self._client_options,
            "options": self._served,
            "secrets": self._secrets,
        }
        ours.send(pickle.dumps(served))
        is_over = threading.Event()
        self._handlers[ours.fileno()] = lambda: self._hear(ours, is_over)
        self._events.register(ours, select.EPOLLIN)
        with self._changed:
            self._parent = ours
            if self._facts:
                self._command(load=self._facts["modules"])
            self._next = self._start()
            self._changed.notify_all()
        while not is_over.is_set():
            for descriptor, _ in self._events.poll():
                if (handler := self._handlers.get(descriptor)) is not None:
                    handler()
        with self._changed:
            self._parent = None
            self._events.unregister(ours)
            del self._handlers[ours.fileno()]
            ours.close()
            process.kill()
            process.wait()
            for worker in list(self._workers.values()):
                self._forget(worker, -signal.SIGKILL)
            return not self._closed and bool(self._facts)

    def _hear(self, parent: socket.socket, is_over: threading.Event) -> None:
        data = b""
        with contextlib.suppress(ConnectionError):  # it has left commands unread
            data = parent.recv(_MESSAGE_BYTES)
        if not data:
            is_over.set()
            return
        message = json.loads(data)
        with self._changed:
            worker = self._workers.get(message["worker"])
            if worker is not None:
                self._forget(worker, message["status"])

    def _hear_worker(self, worker: Worker) -> None:
        if not worker.receive():
            self._events.unregister(worker.control)
            worker.is_heard = False

    def _forget(self, worker: Worker, status: int) -> None:
        del self._workers[worker.number]
        del self._handlers[worker.control.fileno()]
        if worker.is_heard:
            self._events.unregister(worker.control)
            while worker.receive():
                pass
        worker.control.close()
        worker.folder.close()
        worker.ended(status)


class Worker:
    """The process of a client, as its server sees it.

    Args:
        number: its number.
        folder: the folder for its files, which goes with it.

    Attributes:
        client: the name of the client; empty for one that has no other sessions.
        sessions: the number of its sessions.
        control: the socket on which it is given sessions.
        process: its process identifier; 0 until it is known.
        is_heard: whether what it says is still listened to.
        is_over: whether it has ended.
    """

    control: socket.socket

    def __init__(self, number: int, folder: TemporaryFolder) -> None:
        self.number = number
        self.folder = folder
        self.client = ""
        self.sessions = 0
        self.process = 0
        self.is_heard = True
        self.is_over = False
        self._left = _MOST_SAID
        self._ready: Promise[dict[str, Any]] = Promise()
        self._end: Promise[int] = Promise()

    def wait(self) -> dict[str, Any]:
        """Wait until it is ready, and return what it says about itself; raise its error."""
        return self._ready.future.result(_START_SECONDS)

    def receive(self) -> bool:
        """Take what it says, of which nothing is trusted; return whether there may be more."""
        self._left -= 1
        try:
            room = socket.CMSG_SPACE(_SENDER.size)
            data, sender, _, _ = self.control.recvmsg(_MESSAGE_BYTES, room, socket.MSG_DONTWAIT)
            message = json.loads(data)
        except (OSError, ValueError, RecursionError):
            return False
        if not isinstance(message, dict) or self._left < 0:
            return False
        if "log" in message:
            log_event(logging.WARNING, "a client's process", process=self.number, text=printable(str(message["log"])))
        elif not self._ready.future.done():
            if "ready" in message:
                self.process = _SENDER.unpack(sender[0][2])[0]
                self._ready.set_result(message["ready"])
            else:
                self._ready.set_error(PjrtError.of(message.get("code", 0), str(message.get("message"))))
        return True

    def ended(self, status: int) -> None:
        """Note that it has ended."""
        self.is_over = True
        if not self._ready.future.done():
            how = describe_exit(status)
            self._ready.set_error(UnavailableError(f"the process for the client ended before it was ready: {how}"))
        self._end.set_result(status)

    def why_over(self) -> PjrtError:
        """Wait for its end, and return the error for its client."""
        try:
            status = self._end.future.result(_END_SECONDS)
        except PjrtError:
            return InternalError("the process of this client serves the session no more")
        advice = _ADVICE if -status in _CRASHES else _STUCK if status == 1 else ""
        return UnavailableError(f"the process of this client has ended: {describe_exit(status)}{advice}")

    def when_over(self, callback: Callable[[], object]) -> None:
        """Have a function called once, when it has ended."""
        self._end.future.add_done_callback(lambda _: callback())

    def open(self, facts: dict[str, Any]) -> tuple[socket.socket, socket.socket]:
        """Give it a session, and return the sockets for the requests and for the host buffers."""
        requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        buffers, their_buffers = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, their_buffers:
            for end in (buffers, their_buffers):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHUNK_BYTES)  # as much of it as the system allows
            try:
                socket.send_fds(self.control, [pickle.dumps(facts)], [theirs.fileno(), their_buffers.fileno()])
            except OSError as error:
                raise UnavailableError(f"the process of this client has ended: {error}") from None
        return requests, buffers


class IsolatedSession:
    """A session in the process of its client, as the server sees it. It offers what ``Session`` offers to a server.

    A thread of its own takes what the process sends.

    Args:
        devices: the processes.
        client: the name of the client; empty for one that has no other sessions.
        number: the number of the session in the server's log.
        version: the versions that both ends speak.
        takes_batches: whether the client knows of batches.
        send: sends a response to the client.
        context: the call of the client.
        limits: the limits of the server.
        metrics: the counts of the server; ``None`` where nothing is counted.

    Attributes:
        id: the number by which the client names the session when it sends host buffers. It cannot be guessed.
        number: the number of the session in the server's log.
        caller: the name of the client.
        peer: the address of the client.
        process: the process identifier of the client's process.
        opened: the time at which it was opened, on the clock of ``time.monotonic``.
        requests: the number of messages with requests so far.
        transfer_subdirectory: the client's subdirectory for large arrays.
        hang_up: ends the connection with an error.
        arrays: as many numbers as the session has arrays.
        executables: as many numbers as it has executables.
        usage: the memory that it uses.
        host_buffers: the bytes of arrays on their way.
    """

    def __init__(
        self,
        devices: Isolated,
        client: str,
        number: int,
        version: Version,
        takes_batches: bool,
        send: Callable[[bytes], object],
        context: CallContext,
        limits: Limits,
        metrics: ServerMetrics | None,
    ) -> None:
        self.id, self.number = new_session_id(), number
        self.opened = time.monotonic()
        self.requests = 0
        self.transfer_subdirectory = ""
        self.hang_up = context.hang_up
        self.arrays: range = range(0)
        self.executables: range = range(0)
        self.usage = Counted()
        self._context = context
        self._send = send
        self._metrics = metrics
        self._longest = limits.message_bytes
        self._devices = devices
        self._is_closed = threading.Event()
        self._failure: PjrtError | None = None
        self.caller, self.peer = client, context.peer
        self._worker = devices.take(client)
        self.process = self._worker.process
        try:
            facts = {"id": self.id, "version": tuple(version), "takes_batches": takes_batches}
            facts["is_counted"] = metrics is not None
            self._connection, buffers = self._worker.open(facts)
        except BaseException:
            devices.leave(self._worker)
            raise
        self._connection.setblocking(False)
        self.host_buffers = IsolatedHostBuffers(buffers, limits)
        log_event(
            logging.INFO, "session in a process", device=devices.device, session=number, process=self._worker.process
        )
        self._thread = threading.Thread(target=self._take_answers, name=f"pjrt session {number}", daemon=True)
        self._thread.start()

    def receive_message(self, message: bytes) -> None:
        """Pass on a message with requests; wait while the process does not take it, and the client is there."""
        self.requests += 1
        parts = memoryview(REQUEST.pack(len(message)) + message)
        while parts:
            try:
                parts = parts[self._connection.send(parts) :]
            except BlockingIOError:
                if not self._context.is_there() or self._is_closed.is_set():
                    raise CancelledError("the session has ended") from None
                select.select([], [self._connection], [], _WAIT_SECONDS)
            except OSError:
                raise self._why_over() from None

    def _why_over(self) -> PjrtError:
        self._devices.kill(self._worker)  # it may have closed the sockets, and go on
        self._failure = self._worker.why_over()
        return self._failure

    def idle_seconds(self, now: float) -> float:
        """Return 0: the process itself ends sessions that are idle for too long."""
        return 0.0

    def when_idle(self, callback: Callable[[], object]) -> None:
        """Have a function called once, as soon as no work of the session goes on."""
        if self._worker.sessions:  # the process goes on for other sessions of the client
            callback()
        else:
            self._worker.when_over(callback)

    def close(self, reason: str) -> None:
        """End the session, and the process if this was its last session. May be called again."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        self._devices.leave(self._worker)
        self.host_buffers.close(self._failure or CancelledError(f"the session has ended: {reason}"))
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()
        self.host_buffers.free()

    def _take_answers(self) -> None:
        frames, poll = Frames(RESPONSE, self._longest), self.host_buffers.poll
        poll.register(self._connection, select.POLLIN)
        try:
            while not self._is_closed.is_set():
                for descriptor, _ in poll.poll():
                    if descriptor == self._connection.fileno():
                        data = self._connection.recv(_MESSAGE_BYTES)
                        if not data:
                            raise ConnectionError
                        for fields, message in frames.add(data):
                            self._take(Response(message, *fields[1:]))
                    elif (error := self.host_buffers.handle(descriptor)) is not None:
                        self._fail(error)
                while self._context.waiting() > _MOST_RESPONSES and not self._is_closed.wait(_WAIT_SECONDS):
                    pass  # the client does not read them
        except OSError:
            if not self._is_closed.is_set():
                error = self.host_buffers.last_words() or self._why_over()
                self._fail(error)  # first: the client takes the error that comes first
                self.host_buffers.close(error)
        except Exception as error:  # it sends what no session of ours sends
            self._fail(PjrtError.wrap(error))

    def _fail(self, error: PjrtError) -> None:
        """End the connection with an error, which is also that of the calls that wait."""
        self._failure = error
        self.hang_up(error)

    def _take(self, response: Response) -> None:
        self.arrays, self.executables = range(response.arrays), range(response.executables)
        self.usage.bytes = response.bytes
        if response.message:
            self._send(response.message)
        if self._metrics is not None and response.kind != UNCOUNTED:
            kind = KINDS[response.kind] if response.kind < len(KINDS) else "unknown"
            status = _STATUS_NAMES.get(response.status, "UNKNOWN")
            self._metrics.request_answered(kind, status, response.seconds)


class Counted:
    """The memory of a session in a process of its own, as that counts it.

    Attributes:
        bytes: the bytes.
    """

    def __init__(self) -> None:
        self.bytes = 0


class IsolatedHostBuffers:
    """The host buffers of a session in a process of its own. The transport uses them in several threads.

    None of these methods waits for the process. What it does not take at once is sent by the thread of the session.

    Args:
        connection: the socket for packets about them.
        limits: the limits of the server.

    Attributes:
        poll: waits for what ``handle`` handles.
    """

    def __init__(self, connection: socket.socket, limits: Limits) -> None:
        self._connection = connection
        self._connection.setblocking(False)
        self._usage = SessionUsage(limits)
        self._lock = threading.RLock()
        self._calls: dict[int, Promise[Found]] = {}
        self._count = 0
        self._arriving: set[int] = set()
        self._waiting: deque[tuple[Any, Promise[None] | None]] = deque()
        self._frames = Frames(PACKET, LONGEST_PACKET, field=4)
        self._closed: PjrtError | None = None
        self._progress = 0.0
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.poll = select.poll()
        self.poll.register(self._connection, select.POLLIN)
        self.poll.register(self._wake, select.POLLIN)

    def expect(self, handle: int, size: int) -> None:
        """Count the memory of a buffer that begins to arrive; raise as ``HostBuffers`` does."""
        with self._lock:
            if self._closed is not None:
                raise self._closed
            if handle in self._arriving:
                raise AlreadyExistsError(f"expected a new handle for a host buffer, found {handle}, which arrives")
            self._usage.add_host_buffer(handle, size)
            self._arriving.add(handle)
            self._tell(Packet(Kind.EXPECT, 0, handle, size))

    def write(self, handle: int, position: int, data: np.ndarray[Any, Any]) -> Future[None] | None:
        """Give the process a piece of a buffer; return a future if it does not take it at once."""
        return self._tell(Packet(Kind.PIECE, 0, handle, position, data.data))

    def progress(self) -> None:
        """Note that something of a buffer has come."""
        now = time.monotonic()
        if now > self._progress + 1.0:
            self._progress = now
            self._tell(Packet(Kind.PROGRESS, 0, 0, 0))

    def complete(self, handle: int) -> Future[Any]:
        """Have the process store a buffer that has arrived; the future is done when it has."""
        with self._lock:
            self._arriving.discard(handle)
        stored = self._ask(Packet(Kind.STORE, 0, handle, 0))
        stored.add_done_callback(lambda _: self._usage.remove_host_buffer(handle))
        return stored

    def store(self, handle: int, data: np.ndarray[Any, Any]) -> Future[Any]:
        """Have the process store a buffer that is expected; the future is done when it has."""
        self.write(handle, 0, data)
        return self.complete(handle)

    def abandon(self, handle: int) -> None:
        """Forget a buffer that does not arrive any more."""
        with self._lock:
            if handle not in self._arriving:
                return
            self._arriving.discard(handle)
            self._usage.remove_host_buffer(handle)
            self._tell(Packet(Kind.ABANDON, 0, handle, 0))

    def pieces(self, handle: int) -> Future[Pieces]:
        """Return a future of the pieces of a buffer; the first one is there with it."""
        return self._ask(Packet(Kind.LOOKUP, 0, handle, 0)).then(
            lambda found: Pieces(found.size, self._pieces(handle, found))
        )

    def _pieces(self, handle: int, first: Found) -> Iterator[Future[bytes]]:
        """Yield the messages with the pieces; a few are asked for before they are needed."""
        asked: deque[Future[Found]] = deque((Future.completed(first),))
        starts = iter(range(CHUNK_BYTES, first.size, CHUNK_BYTES))
        while asked:
            ahead = _MOST_AHEAD if len(self._calls) < _MANY_CALLS else 1
            for start in itertools.islice(starts, max(0, ahead - len(asked))):
                asked.append(self._ask(Packet(Kind.LOOKUP, 0, handle, start)))
            yield asked.popleft().then(lambda found: piece(memoryview(found.data)))
            if not asked:
                asked.extend(self._ask(Packet(Kind.LOOKUP, 0, handle, start)) for start in itertools.islice(starts, 1))

    def delete(self, handle: int) -> Future[Any]:
        """Have the process forget a buffer; the future is done when it has."""
        return self._ask(Packet(Kind.DELETE, 0, handle, 0))

    def give_up_after(self, seconds: float) -> None:
        """Do nothing: the process itself waits no longer for buffers that do not come."""

    def close(self, error: PjrtError) -> None:
        """End: all that waits for the process fails with an error."""
        with self._lock:
            if self._closed is not None:
                return
            self._closed = error
            calls: list[Promise[Any]] = [
                *self._calls.values(),
                *(each for _, each in self._waiting if each is not None),
            ]
            self._calls.clear()
            self._arriving.clear()
            self._waiting.clear()
            os.eventfd_write(self._wake, 1)
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        for call in calls:
            call.set_error(error)

    def free(self) -> None:
        """Give up the descriptors after ``close``, when nobody waits for them."""
        with self._lock:
            self._connection.close()
            os.close(self._wake)

    # The thread of the session.

    def last_words(self) -> PjrtError | None:
        """Return the error with which the process has asked to end the session, before it closed its sockets."""
        with contextlib.suppress(OSError, DataLossError):
            return self.handle(self._connection.fileno())
        return None

    def handle(self, descriptor: int) -> PjrtError | None:
        """Handle that a descriptor is ready; return the error with which the process asks to end the session."""
        if descriptor == self._wake:
            os.eventfd_read(self._wake)
        self._flush()
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        if not data:
            raise ConnectionError
        for (kind, call, code, size, _), content in self._frames.add(data):
            if kind == Kind.HANG_UP:
                return PjrtError.of(code, content.decode("utf-8", "replace"))
            with self._lock:
                promise = self._calls.pop(call, None)
            if promise is None:
                raise DataLossError("the process of the client answered what nobody had asked")
            if code:
                promise.set_error(PjrtError.of(code, content.decode("utf-8", "replace")))
            else:
                promise.set_result(Found(size, content))
        return None

    def _ask(self, packet: Packet) -> Future[Found]:
        promise: Promise[Found] = Promise()
        with self._lock:
            if self._closed is not None:
                return Future.failed(self._closed)
            self._count = self._count % 0xFFFFFFFF + 1
            self._calls[self._count] = promise
            self._tell(packet._replace(call=self._count))
        return promise.future

    def _tell(self, packet: Packet) -> Future[None] | None:
        promise: Promise[None] | None = None
        with self._lock:
            if self._closed is not None:
                return None
            was_empty = not self._waiting
            self._waiting.append((packet.head, None))
            if len(packet.data):
                promise = Promise()
                self._waiting.append((memoryview(packet.data), promise))
            if was_empty:
                self._flush()
                if self._waiting:
                    os.eventfd_write(self._wake, 1)
        return None if promise is None or promise.future.done() else promise.future

    def _flush(self) -> None:
        done, lost = [], []
        with self._lock:
            while self._waiting:
                data, promise = self._waiting[0]
                try:
                    count = self._connection.send(data)
                except BlockingIOError:
                    break
                except OSError:  # the other end is gone, which the thread of the session sees
                    lost = [each for _, each in self._waiting if each is not None]
                    self._waiting.clear()
                    break
                if count < len(data):
                    self._waiting[0] = data[count:], promise
                    continue
                self._waiting.popleft()
                if promise is not None:
                    done.append(promise)
            self.poll.modify(self._connection, select.POLLIN | (select.POLLOUT if self._waiting else 0))
        for each in done:
            each.set_result(None)
        for each in lost:
            each.set_error(UnavailableError("the process of this client has ended"))


class Found(NamedTuple):
    """What a process answers.

    Attributes:
        size: the length of the host buffer.
        data: a piece of it.
    """

    size: int
    data: bytes
