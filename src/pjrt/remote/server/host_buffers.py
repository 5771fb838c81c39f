"""Host buffers: the bytes of arrays on their way between a client and its session, by handle."""

from __future__ import annotations

import threading
import time
from typing import Any

from pjrt.api.errors import AlreadyExistsError, DeadlineExceededError, NotFoundError, PjrtError
from pjrt.api.future import Future, Promise
from pjrt.remote.security.limits import Limits, SessionUsage

HostBuffer = Any
"""Bytes with the buffer protocol: ``bytes``, a ``memoryview`` or a numpy array of ``uint8``."""


class HostBuffers:
    """The host buffers of one session. The transport and the session's requests use them in several threads.

    Args:
        usage: counts the memory of the buffers.
    """

    def __init__(self, usage: SessionUsage | None = None) -> None:
        self._usage = SessionUsage(Limits()) if usage is None else usage
        self._lock = threading.Lock()
        self._buffers: dict[int, HostBuffer | PjrtError] = {}
        self._arriving: set[int] = set()
        self._awaited: dict[int, Promise[None]] = {}
        self._progress = time.monotonic()
        self._closed: PjrtError | None = None

    def expect(self, handle: int, size: int) -> None:
        """Count the memory of a buffer that begins to arrive, before it is allocated.

        Raises:
            AlreadyExistsError: there is a buffer under that handle, or one arrives.
            ResourceExhaustedError: it is too large, or the session would use too much memory.
            PjrtError: the session has ended.
        """
        with self._lock:
            self._check_new(handle)
            if handle in self._arriving:
                raise AlreadyExistsError(f"expected a new handle for a host buffer, found {handle}, which arrives")
            self._usage.add_host_buffer(handle, size)
            self._arriving.add(handle)
        self.progress()

    def progress(self) -> None:
        """Note that something of a buffer has come."""
        self._progress = time.monotonic()

    def abandon(self, handle: int) -> None:
        """Forget a buffer that does not arrive any more; one that is complete stays."""
        with self._lock:
            if handle in self._arriving:
                self._arriving.discard(handle)
                self._usage.remove_host_buffer(handle)

    def store(self, handle: int, data: HostBuffer) -> None:
        """Keep bytes, which nobody changes any more, under a handle.

        Raises:
            AlreadyExistsError: there is a buffer under that handle.
            ResourceExhaustedError: it is too large, or the session would use too much memory.
            PjrtError: the session has ended.
        """
        with self._lock:
            self._check_new(handle)
            self._usage.add_host_buffer(handle, memoryview(data).nbytes)
            self._arriving.discard(handle)
            self._buffers[handle] = data
            promise = self._awaited.pop(handle, None)
        self.progress()
        if promise is not None:
            promise.set_result(None)

    def stored(self, handle: int) -> Future[None] | None:
        """Return a future that is done when the buffer of a handle is there, or ``None`` if it is there already.

        It is also done when the buffer comes no more; ``take`` raises the error then.
        """
        with self._lock:
            if handle in self._buffers:
                return None
            if self._closed is not None:
                return Future.failed(self._closed)
            promise = self._awaited.get(handle)
            if promise is None:
                promise = self._awaited[handle] = Promise()
                self._progress = time.monotonic()
            return promise.future

    def give_up_after(self, seconds: float) -> None:
        """Wait no more for buffers if nothing of any buffer has come for so long; their requests fail."""
        with self._lock:
            if not self._awaited or time.monotonic() - self._progress < seconds:
                return
            awaited, self._awaited = self._awaited, {}
            for handle in awaited:
                self._buffers[handle] = DeadlineExceededError(
                    f"the host buffer {handle} did not come within {seconds:g} s"
                )
        for promise in awaited.values():
            promise.set_result(None)

    def lookup(self, handle: int) -> HostBuffer:
        """Return the bytes under a handle.

        Raises:
            NotFoundError: there is no such host buffer.
            DeadlineExceededError: the host buffer did not come.
        """
        with self._lock:
            data = self._buffers.get(handle)
        return self._checked(handle, data)

    def take(self, handle: int) -> HostBuffer:
        """Return the bytes under a handle and forget them; raise the errors of ``lookup``."""
        with self._lock:
            data = self._buffers.pop(handle, None)
            self._usage.remove_host_buffer(handle)
        return self._checked(handle, data)

    def delete(self, handle: int) -> None:
        """Forget the bytes under a handle; raise the errors of ``lookup``."""
        self.take(handle)

    def close(self, error: PjrtError) -> None:
        """Forget all bytes, and fail all futures of buffers, those of now and those of later."""
        with self._lock:
            self._closed = error
            self._buffers.clear()
            awaited, self._awaited = self._awaited, {}
        for promise in awaited.values():
            promise.set_error(error)

    def _check_new(self, handle: int) -> None:
        if self._closed is not None:
            raise self._closed
        if handle in self._buffers:
            raise AlreadyExistsError(f"expected a new handle for a host buffer, found {handle}, which is in use")

    def _checked(self, handle: int, data: HostBuffer | PjrtError | None) -> HostBuffer:
        if isinstance(data, PjrtError):
            raise data.with_traceback(None)
        if data is not None:
            return data
        if self._closed is not None:
            raise NotFoundError(f"the host buffer {handle} is gone: {self._closed.message}")
        raise NotFoundError(f"expected the handle of a host buffer of this session, found {handle}")
