"""The processes of a server in which the programs of its clients run, and the process that forks them.

A server starts a Python process that calls ``main``, with a socket as standard input. That process loads what its
children need, but makes no client and reads nothing of a stranger. Each child makes a client of the devices, confined
by the system, and serves the sessions that the server gives it: the same sessions as those in a server's own process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import logging
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import pjrt
from pjrt.api.errors import PjrtError, StatusCode
from pjrt.host_memory.array import aligned_empty
from pjrt.ifrt.client import Client
from pjrt.remote.connection_log import LOGGER
from pjrt.remote.protocol.versions import Version
from pjrt.remote.server.isolation import DIVISIBLE
from pjrt.remote.server.server import TimeLimits
from pjrt.remote.server.session import ServeOptions, Session, Workers
from pjrt.remote.transport.host_buffers import CHUNK_BYTES
from pjrt.remote.transport.worker_frames import (
    KINDS,
    PACKET,
    REQUEST,
    UNCOUNTED,
    Frames,
    Kind,
    Packet,
    Response,
    response_frame,
)
from pjrt.system import keep_freed_memory
from pjrt.system.confinement import PROCESSES, confine, fork_apart, kill_others, limit_memory

_LONGEST_COMMAND = 1 << 16
_OPEN_FILES = 1024
_MOST_LOG_LINES = 100
_MOST_HELD = 64
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
_READ = 1 << 18


def main(may: list[str]) -> None:
    """Fork the processes of clients, as the server asks, until it closes its end of the socket.

    Args:
        may: what the processes may do all the same, as ``confinement.begin`` has found.
    """
    control = socket.socket(fileno=os.dup(0))
    woken, wakes = socket.socketpair()
    for each in (woken, wakes):
        each.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    keep_freed_memory()
    served: dict[str, Any] = pickle.loads(control.recv(_LONGEST_COMMAND))
    numbers: dict[int, int] = {}  # by process
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                woken.recv(4096)
            _report_ended(control, numbers, orphans=PROCESSES in may)
        if control not in ready:
            continue
        data, files, _, _ = socket.recv_fds(control, _LONGEST_COMMAND, 1)
        if not data:
            os._exit(0)  # and with this process all that it has started
        command: dict[str, Any] = pickle.loads(data)
        if "load" in command:
            for name in command["load"]:
                importlib.import_module(name)
        elif "end" in command:
            for pid, number in numbers.items():
                if number == command["end"]:
                    os.kill(pid, signal.SIGKILL)
        else:
            child = fork_apart()
            if not child:
                for each in (control, woken, wakes):
                    each.detach()
                os.closerange(3, files[0])
                os.closerange(files[0] + 1, 1 << 12)
                _be_worker(socket.socket(fileno=files[0]), served, command["folder"], may)
            numbers[child] = command["start"]
            os.close(files[0])


def _report_ended(control: socket.socket, numbers: dict[int, int], *, orphans: bool) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        if pid in numbers:  # others are those of workers, which have lost their parent
            number = numbers.pop(pid)
            if orphans:
                kill_others(numbers)
            control.send(json.dumps({"worker": number, "status": os.waitstatus_to_exitcode(status)}).encode())


def _be_worker(control: socket.socket, served: dict[str, Any], folder: str, may: list[str]) -> NoReturn:
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        options: ServeOptions = served["options"]
        files, start = options.limits.host_buffer_bytes, os.getcwd()
        may = confine(
            folder,
            served["secrets"],
            may,
            readable=_readable(served["device"]),
            open_files=_OPEN_FILES,
            file_bytes=files,
        )
        os.umask(0o077)
        # Nobody else's programs are in its caches.
        os.environ |= {"TMPDIR": folder, "XDG_CACHE_HOME": folder}
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # what native code prints is the client's to choose
            os.dup2(nothing, descriptor)
        os.close(nothing)
        try:
            os.chdir(start)  # the device may be that of a file there
            client = pjrt.client(served["device"], **served["client_options"])
            os.chdir(folder)
            limit_memory(options.limits.process_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        except Exception as error:
            failure = PjrtError.wrap(error)
            _tell(control, {"code": int(failure.code), "message": failure.message[:4096]})
        else:
            hello = {
                "platform": client.platform_name,
                "devices": len(client.addressable_devices),
                "may": may,
                "modules": [name for name in sys.modules if name.partition(".")[0] in _SAFE],
            }
            _tell(control, {"ready": hello})
            _Worker(client, options, control).serve()
        status = 0
    finally:
        os._exit(status)


def _readable(device: str) -> list[str] | None:
    """Return the folders that a device reads beside its packages; ``None`` for all, where they are not known."""
    if device in DIVISIBLE:
        return []
    file = device.removeprefix("worker:").rpartition(":")[0]  # FILE.py:NAME
    return [str(Path(file).resolve().parent)] if os.path.exists(file) else None


_SAFE = ("pjrt", "jaxlib", "numpy", "ml_dtypes", "google", "iree")
"""Packages whose modules start no threads when they are imported: they may be imported before a fork."""


def _tell(control: socket.socket, message: dict[str, Any]) -> None:
    control.send(json.dumps(message).encode())


class _Log(logging.Handler):
    """Sends the server's owner what happens in an unexpected way; not all of it, as clients could fill the disk."""

    def __init__(self, control: socket.socket) -> None:
        super().__init__(logging.WARNING)
        self._control = control
        self._left = _MOST_LOG_LINES

    def emit(self, record: logging.LogRecord) -> None:
        if self._left:
            self._left -= 1
            _tell(self._control, {"log": self.format(record)[-4096:]})


class _Worker:
    """The process of one client: its devices, and its sessions.

    Args:
        client: the client of the devices.
        options: what the server does for its clients.
        control: the socket on which sessions come.
    """

    def __init__(self, client: pjrt.Client, options: ServeOptions, control: socket.socket) -> None:
        self._client = Client(client)
        self._options = options
        self._control = control
        self._workers = Workers()
        self._sessions: dict[int, Session] = {}
        self._put_off = 0.0
        LOGGER.handlers[:] = [_Log(control)]
        LOGGER.propagate = False

    def serve(self) -> None:
        """Serve the sessions that come, until the server closes its end of the socket."""
        self._show_life(time.monotonic())
        TimeLimits(self._options.limits, lambda: list(self._sessions.values()), lambda: (), self._show_life)
        while True:
            data, files, _, _ = socket.recv_fds(self._control, _LONGEST_COMMAND, 2)
            if not data:
                return
            facts = pickle.loads(data)
            connection, buffers = (socket.socket(fileno=file) for file in files)
            threading.Thread(target=self._serve, args=(facts, connection, buffers), daemon=True).start()

    def _show_life(self, now: float) -> bool:
        """Put off the end of this process, which needs no lock of Python's and comes where nobody can put it off."""
        seconds = self._options.limits.stuck_seconds
        if now >= self._put_off:
            self._put_off = now + min(seconds / 4, 10.0)
            faulthandler.dump_traceback_later(seconds, exit=True)
        return False

    def _serve(self, facts: dict[str, Any], connection: socket.socket, buffers: socket.socket) -> None:
        answers = _Answers(connection)
        session = Session(
            self._client,
            answers.respond,
            self._workers.for_session(),
            Version(*facts["version"]),
            self._options,
            answers if facts["is_counted"] else None,
        )
        answers.session = session
        session.id, session.takes_batches = facts["id"], facts["takes_batches"]
        packets = _Packets(session, buffers)
        session.hang_up = packets.hang_up
        self._sessions[session.id] = session
        threading.Thread(target=packets.serve, name="pjrt host buffers", daemon=True).start()
        reason = "the connection of the client has ended"
        try:
            answers.receive()
        except Exception as error:
            reason = PjrtError.wrap(error).message
            packets.hang_up(PjrtError.wrap(error))
        del self._sessions[session.id]
        session.close(reason)
        packets.close()
        answers.close()


class _Answers:
    """The stream of a session: its requests, and its responses with what the server counts.

    Responses wait until no further request is there, as those of a conversation over gRPC do.

    Args:
        connection: the socket.

    Attributes:
        session: the session.
    """

    session: Session

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()

    def request_answered(self, kind: str, status: str, seconds: float) -> None:
        """Note what the server counts about a request; its response follows, if there is one."""
        self._add(b"", _NUMBERS.get(kind, len(KINDS)), StatusCode[status], seconds)

    def respond(self, response: Any) -> None:
        """Send a response."""
        self._add(response.SerializeToString(), UNCOUNTED, 0, 0.0)

    def _add(self, message: bytes, kind: int, status: int, seconds: float) -> None:
        session = self.session
        counts = len(session.arrays), len(session.executables), session.usage.bytes
        self._waiting.append(response_frame(Response(message, kind, status, seconds, *counts)))
        if threading.get_ident() != self._thread:
            self._flush()

    def _flush(self) -> None:
        # The thread that has the lock also sends what others add meanwhile. A destructor may be here, in the middle of
        # a sending of the same thread, so nothing waits for the lock.
        while self._waiting and self._lock.acquire(blocking=False):
            try:
                parts = [self._waiting.popleft() for _ in range(len(self._waiting))]
                with contextlib.suppress(OSError):  # the other end is gone
                    self._connection.sendall(b"".join(parts))
            finally:
                self._lock.release()

    def receive(self) -> None:
        """Give the session its requests until the other end is gone."""
        frames = Frames(REQUEST, sys.maxsize)
        with contextlib.suppress(ConnectionError):
            while data := self._connection.recv(_READ):
                for _, message in frames.add(data):
                    self.session.receive_message(message)
                    if len(self._waiting) >= _MOST_HELD:
                        self._flush()
                self._flush()

    def close(self) -> None:
        """Send nothing any more."""
        self._connection.close()


class _Packets:
    """The packets about the host buffers of a session.

    Args:
        session: the session.
        connection: the socket.
    """

    def __init__(self, session: Session, connection: socket.socket) -> None:
        self._session = session
        self._connection = connection
        self._lock = threading.Lock()
        self._head = memoryview(bytearray(PACKET.size))
        self._arriving: dict[int, np.ndarray[Any, Any] | PjrtError] = {}

    def serve(self) -> None:
        """Answer packets until the other end is gone."""
        with contextlib.suppress(OSError, EOFError):
            while True:
                self._receive(self._head)
                kind, call, handle, size, length = PACKET.unpack(self._head)
                try:
                    answer, data = self._handle(kind, handle, size, length)
                except Exception as error:
                    failure = PjrtError.wrap(error)
                    self._send(Packet(Kind.ANSWER, call, failure.code, 0, _text(failure)))
                else:
                    if call:
                        self._send(Packet(Kind.ANSWER, call, StatusCode.OK, answer, data))

    def hang_up(self, error: PjrtError) -> None:
        """Ask the server to end the session with an error."""
        with contextlib.suppress(OSError):
            self._send(Packet(Kind.HANG_UP, 0, error.code, 0, _text(error)))

    def close(self) -> None:
        """End: nothing more comes."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _receive(self, into: memoryview) -> None:
        while into:
            count = self._connection.recv_into(into)
            if not count:
                raise EOFError
            into = into[count:]

    def _send(self, packet: Packet) -> None:
        with self._lock:
            self._connection.sendall(packet.head)
            self._connection.sendall(packet.data)

    def _handle(self, kind: int, handle: int, size: int, length: int) -> tuple[int, Any]:
        """Handle a packet; return the size and the data of the answer to it."""
        buffers = self._session.host_buffers
        if kind == Kind.EXPECT:
            self._arriving[handle] = self._expect(handle, size)
        elif kind == Kind.PIECE:
            arriving = self._arriving.get(handle)
            if isinstance(arriving, np.ndarray):
                self._receive(arriving.data[size : size + length])
            else:
                self._receive(memoryview(bytearray(length)))
            buffers.progress()
        elif kind == Kind.ABANDON:
            if isinstance(self._arriving.pop(handle, None), np.ndarray):
                buffers.abandon(handle)
        elif kind == Kind.PROGRESS:
            buffers.progress()
        elif kind == Kind.STORE:
            arrived = self._arriving.pop(handle)
            if isinstance(arrived, PjrtError):
                raise arrived
            buffers.store(handle, arrived)
        elif kind == Kind.LOOKUP:
            data = memoryview(buffers.lookup(handle)).cast("B")
            return data.nbytes, data[size : size + CHUNK_BYTES]
        else:
            buffers.delete(handle)
        return 0, b""

    def _expect(self, handle: int, size: int) -> np.ndarray[Any, Any] | PjrtError:
        """Return memory for a host buffer; an error for one that cannot be stored, as it is for its end."""
        try:
            self._session.host_buffers.expect(handle, size)
            try:
                return aligned_empty((size,), np.dtype(np.uint8))
            except BaseException:
                self._session.host_buffers.abandon(handle)
                raise
        except Exception as error:
            return PjrtError.wrap(error)


def _text(error: PjrtError) -> bytes:
    return error.message.encode()[:4096]
