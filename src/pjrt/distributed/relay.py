"""The relay between XLA's agent and the leader: a local socket that stays open when the leader is lost.

The agent ends the process when its connection ends (see ``agent``). So the relay keeps the agent's end open until the
agent was stopped.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from pjrt.distributed import messages
from pjrt.distributed._pump import pump

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
