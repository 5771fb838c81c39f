"""The limits of a server: how much one client may use, and how long a server waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from typing import Any

from pjrt.api.errors import InvalidArgumentError, ResourceExhaustedError
from pjrt.api.printable import readable_bytes

_NO_ZERO = "expected a number above 0, or None where there may be no limit"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a server; a call above one of them fails with ``ResourceExhaustedError``.

    Args:
        message_bytes: the size of one message; a program with its constants is one.
        host_buffer_bytes: the size of one array that is sent or fetched.
        sessions: the sessions that are open at one time; each connection of a client is one.
        sessions_per_client: those of one client: of an access token, or of the name in a certificate. A server that
            knows no clients has no such limit.
        session_arrays: the arrays of one session.
        session_executables: the loaded programs of one session.
        session_bytes: the memory of the arrays of one session, of host buffers on their way, of its programs as they
            were sent and of requests that wait, in bytes; ``None`` for as much as the devices have. Arrays that share
            memory count each.
        requests_per_second: the requests of one session in one second; further ones wait. ``None`` for any number.
        strangers: the connections whose callers have not shown who they are yet. If there are more, the oldest ones of
            the address that has the most are ended.
        open_seconds: how long such a connection may stay, and how long a client may take to open its session.
        host_buffer_seconds: how long a request waits for its array while nothing of it comes.
        process_bytes: the addresses that the process of an isolated client may use beyond what its devices have at
            first, in bytes; ``None`` for as many as this machine has memory. Files that it maps count.
        stuck_seconds: how long the process of an isolated client may do one thing that cannot be interrupted, such as a
            parse that does not come back from a damaged program. It is ended then.
        idle_seconds: how long a session may stay without a request, once all have been answered; it is ended then.
            ``None`` for any time.
    """

    message_bytes: int = 1 << 30
    host_buffer_bytes: int = 16 << 30
    sessions: int = 64
    sessions_per_client: int = 32
    session_arrays: int = 1_000_000
    session_executables: int = 10_000
    session_bytes: int | None = None
    process_bytes: int | None = None
    requests_per_second: float | None = None
    strangers: int = 256
    open_seconds: float = 30.0
    host_buffer_seconds: float = 60.0
    stuck_seconds: float = 600.0
    idle_seconds: float | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None and item.default is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InvalidArgumentError(f"{item.name}: {_NO_ZERO}, found {value!r}")
        if self.message_bytes >= 1 << 31:
            raise InvalidArgumentError(f"message_bytes: gRPC has at most 2 GiB - 1, found {self.message_bytes}")

    def check_host_buffer(self, size: int) -> None:
        """Raise an error if an array that is sent is larger than allowed, before any of it is read.

        Raises:
            InvalidArgumentError: the size is negative.
            ResourceExhaustedError: the size is above the limit.
        """
        if size < 0:
            raise InvalidArgumentError(f"expected the size of a host buffer, found {size}")
        if size > self.host_buffer_bytes:
            raise ResourceExhaustedError(
                f"the server takes arrays of at most {readable_bytes(self.host_buffer_bytes)} at a time, and this one "
                f"has {readable_bytes(size)}; shard it, or start the server with a larger limit"
            )


class SessionUsage:
    """The memory that one session uses, and the pace of its requests; its methods may be called by any thread.

    Args:
        limits: the limits of the server.
        is_deleted: whether the array of a handle is deleted; looked at before an array is refused.
    """

    def __init__(self, limits: Limits, is_deleted: Callable[[int], bool] = lambda handle: False) -> None:
        self._limits = limits
        self._is_deleted = is_deleted
        self._lock = threading.Lock()
        self._arrays: dict[int, int] = {}  # by handle: bytes
        self._host_buffers: dict[int, int] = {}
        self._others: dict[Hashable, int] = {}
        self._bytes = 0
        self._next_request = time.monotonic()

    @property
    def bytes(self) -> int:
        """The memory of the arrays, of host buffers on their way, and of what else counts, in bytes."""
        return self._bytes

    def add_array(self, handle: int, size: int) -> None:
        """Count an array of so many bytes on all devices.

        Raises:
            ResourceExhaustedError: the session would use too much memory. The array does not count then.
        """
        with self._lock:
            self._add(self._arrays, handle, size)

    def remove_array(self, handle: int) -> None:
        """Count an array no more; one that is not counted is ignored."""
        with self._lock:
            self._bytes -= self._arrays.pop(handle, 0)

    def add_host_buffer(self, handle: int, size: int) -> None:
        """Count a host buffer on its way; one that has the handle already is replaced.

        Raises:
            ResourceExhaustedError: it is too large, or the session would use too much memory.
            InvalidArgumentError: the size is negative.
        """
        self._limits.check_host_buffer(size)
        with self._lock:
            self._add(self._host_buffers, handle, size)

    def remove_host_buffer(self, handle: int) -> None:
        """Count a host buffer no more; one that is not counted is ignored."""
        with self._lock:
            self._bytes -= self._host_buffers.pop(handle, 0)

    def add_other(self, key: Hashable, size: int) -> None:
        """Count something else of so many bytes: a program, the text of an error, a request that waits.

        Raises:
            ResourceExhaustedError: the session would use too much memory. It does not count then.
        """
        with self._lock:
            self._add(self._others, key, size)

    def remove_other(self, key: Hashable) -> None:
        """Count something else no more; what is not counted is ignored."""
        if key in self._others:
            with self._lock:
                self._bytes -= self._others.pop(key, 0)

    def clear(self) -> None:
        """Count nothing any more."""
        with self._lock:
            self._others.clear()
            self._arrays.clear()
            self._host_buffers.clear()
            self._bytes = 0

    def seconds_to_wait(self) -> float:
        """Return how long the session waits before its next request, which is counted; 0 without a limit.

        After a pause, the requests of one second may come at once.
        """
        rate = self._limits.requests_per_second
        if rate is None:
            return 0.0
        now = time.monotonic()
        with self._lock:
            self._next_request = max(self._next_request, now - 1.0) + 1.0 / rate
            return max(0.0, self._next_request - now)

    def _add(self, sizes: dict[Any, int], handle: Hashable, size: int) -> None:
        allowed = self._limits.session_bytes
        more = size - sizes.get(handle, 0)
        if allowed is not None and self._bytes + more > allowed and more > 0:
            self._forget_deleted()
            if self._bytes + more > allowed:
                raise ResourceExhaustedError(
                    f"a session may use {readable_bytes(allowed)}; it uses {readable_bytes(self._bytes)}, and this "
                    f"request asks for {readable_bytes(more)} more; delete arrays, or start the server with a larger "
                    "limit"
                )
        sizes[handle] = size
        self._bytes += more

    def _forget_deleted(self) -> None:
        """Count donated and deleted arrays no more: their handles live on until the client forgets them."""
        for handle in [handle for handle, size in self._arrays.items() if size and self._is_deleted(handle)]:
            self._bytes -= self._arrays[handle]
            self._arrays[handle] = 0
