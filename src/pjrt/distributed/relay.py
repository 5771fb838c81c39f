"""The relay between XLA's agent and the leader: a local socket that stays open when the leader is lost.

The agent ends the process when its connection ends (see ``agent``). So the relay keeps the agent's end open until the
agent was stopped.

Functions of jaxlib may wait for the coordination service while they hold the interpreter's lock, and Python's TLS needs
that lock. So what goes to a leader with TLS passes through a process of its own: this module, run as a program.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any

from pjrt.api.errors import UnavailableError
from pjrt.distributed import messages
from pjrt.distributed._pump import pump
from pjrt.distributed.settings import Settings
from pjrt.system.python_process import module_command, module_environment

_CONNECT_SECONDS = 10.0


class Relay:
    """The relay of a process.

    Args:
        path: the local socket for the agent.
        address: the leader's address.
        token: the name that the leader gave to the job.
    """

    def __init__(self, path: str, address: tuple[str, int], token: str) -> None:
        self._path = path
        self._address = address
        self._token = token
        self._closing = False
        self._near: list[socket.socket] = []
        self._far: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._start(self._accept)

    def _start(self, function: Callable[..., object], *arguments: int) -> None:
        thread = threading.Thread(target=function, args=arguments, name="pjrt-job-relay", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            if self._closing:
                near.close()
                return
            self._near.append(near)
            with contextlib.suppress(OSError):
                far = open_channel(self._address, self._token)
                self._far.append(far)
                near.setblocking(False)
                self._start(pump, near.fileno(), far.fileno())

    def descriptors(self) -> list[int]:
        """Return the file descriptors of the connections."""
        return [end.fileno() for end in (self._listener, *self._near, *self._far)]

    def close(self, *, keep_agent_connection: bool = False) -> None:
        """End the relay; the agent's end stays open for ever if it has not stopped."""
        self._closing = True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as last:
            last.connect(self._path)  # wakes the thread that accepts
        for far in self._far:
            _shut(far)
        for thread in self._threads:
            thread.join(5)
        self._listener.close()
        for far in self._far:
            far.close()
        if keep_agent_connection:
            _kept.extend(self._near)
        else:
            for near in self._near:
                near.close()


_kept: list[socket.socket] = []


def open_channel(address: tuple[str, int], token: str) -> socket.socket:
    """Return a connection to the coordination service of the leader."""
    far = socket.create_connection(address, timeout=_CONNECT_SECONDS)
    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    far.sendall(messages.line(type="channel", token=token))
    if far.recv(1) != messages.ACCEPTED:
        far.close()
        raise ConnectionError
    far.setblocking(False)
    return far


class Channels:
    """The channels of other processes, in the leader: their bytes go to the coordination service.

    Args:
        path: the local socket of the service.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, tuple[socket.socket, socket.socket]] = {}

    def serve(self, far: socket.socket) -> None:
        """Connect a channel with the service."""
        near = socket.socket(socket.AF_UNIX)
        near.connect(self._path)
        near.setblocking(False)
        far.sendall(messages.ACCEPTED)
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        far.setblocking(False)
        thread = threading.Thread(target=self._pump, args=(near, far), name="pjrt-job-channel", daemon=True)
        with self._lock:
            self._open[thread] = near, far
        thread.start()

    def _pump(self, near: socket.socket, far: socket.socket) -> None:
        pump(near.fileno(), far.fileno())
        with self._lock:
            self._open.pop(threading.current_thread(), None)
        near.close()
        far.close()

    def descriptors(self) -> list[int]:
        """Return the file descriptors of the connections."""
        return [end.fileno() for ends in self._open.values() for end in ends]

    def close(self) -> None:
        """End all channels."""
        with self._lock:
            channels = dict(self._open)
            for near, far in channels.values():
                _shut(near)
                _shut(far)
        for thread in channels:
            thread.join(5)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


# With TLS.

_READY = b"ready\n"
_SIZE = 1 << 16


class EncryptedRelay:
    """The relay of a process, as that sees it.

    Args:
        path: the local socket for the agent.
        address: the leader's address.
        settings: the settings of the job.

    Raises:
        UnavailableError: the process of the relay cannot be started.
    """

    def __init__(self, path: str, address: tuple[str, int], settings: Settings) -> None:
        given = {"path": path, "address": address, "settings": asdict(settings)}
        try:
            self._process = subprocess.Popen(
                module_command(__name__),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=module_environment(),
                start_new_session=True,  # Ctrl-C is this process's matter
            )
        except OSError as error:
            raise UnavailableError(f"the process for connections with TLS cannot be started: {error}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin
        with contextlib.suppress(OSError), self._process.stdout as output:
            self._input.write(json.dumps(given).encode() + b"\n")
            self._input.flush()
            if output.readline() == _READY:
                return
        self.close()
        raise UnavailableError("the process for connections with TLS ended at its start; see its output for the cause")

    def descriptors(self) -> list[int]:
        """Return the file descriptors that keep it alive."""
        return [self._input.fileno()]

    def close(self, *, keep_agent_connection: bool = False) -> None:
        """End the relay; one that is to keep the agent's end open ends with this process."""
        if keep_agent_connection:
            _kept_processes.append(self._process)
            return
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            self._process.wait(_CONNECT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_kept_processes: list[subprocess.Popen[bytes]] = []


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy what comes until its sender ends it."""
    with contextlib.suppress(OSError):  # SSLError, too
        while data := await reader.read(_SIZE):
            writer.write(data)
            await writer.drain()


async def either(*ways: Coroutine[Any, Any, None]) -> None:
    """Wait until one of several coroutines has ended, and end the others."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# The process of the relay.


class _Process:
    def __init__(self, address: tuple[str, int], settings: Settings) -> None:
        self._address = address
        self._settings = settings

    async def serve(self, path: str) -> None:
        """Serve the agent until the standard input ends."""
        server = await asyncio.start_unix_server(self._connect, path)
        sys.stdout.buffer.write(_READY)
        sys.stdout.buffer.flush()
        await asyncio.to_thread(sys.stdin.buffer.read)
        server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_CONNECT_SECONDS):
                far_reader, far_writer = await asyncio.open_connection(
                    *self._address, ssl=self._settings.client_context(), server_hostname=self._settings.certified_name
                )
                far_writer.write(messages.line(type="channel", token=self._settings.token))
                accepted = await far_reader.read(len(messages.ACCEPTED))
            if accepted == messages.ACCEPTED:
                await either(copy(reader, far_writer), copy(far_reader, writer))
            far_writer.close()
        await asyncio.Event().wait()  # the agent's end stays open


def _main() -> None:
    given = json.loads(sys.stdin.buffer.readline())
    host, port = given["address"]
    process = _Process((host, port), Settings(**given["settings"]))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(process.serve(given["path"]))


if __name__ == "__main__":
    _main()
