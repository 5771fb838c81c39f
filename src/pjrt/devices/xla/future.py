"""Futures of what jaxlib computes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pjrt.api.future import Future
from pjrt.devices.xla import _raw
from pjrt.devices.xla._errors import converted

T = TypeVar("T")


class ArrayFuture(Future[T]):
    """Done when an array of jaxlib's has its value; what it then gives is what ``take`` makes of the array."""

    __slots__ = ("_array", "_notifier", "_take")

    def __init__(self, array: _raw.Array, notifier: Notifier, take: Callable[[_raw.Array], T]) -> None:
        super().__init__()
        self._array: _raw.Array | None = array
        self._notifier = notifier
        self._take = take

    def _poll(self) -> None:
        array = self._array
        if array is None or array.is_deleted() or array.is_ready():
            self._settle(array)

    def _block(self, timeout: float | None) -> None:
        self._notifier.watch(self)
        super()._block(timeout)

    def _watch(self) -> None:
        self._notifier.watch(self)

    def _wait(self, timeout: float | None) -> None:
        if timeout is None:
            self._settle(self._array)  # waits in jaxlib, which looks for Ctrl-C meanwhile
        if not self._done:
            super()._wait(timeout)

    def _settle(self, array: _raw.Array | None) -> None:
        """Waits for the array and completes; leaves it to another thread if that is doing it already."""
        if array is None:
            return
        try:
            array.block_until_ready()
            value = self._take(array)
        except Exception as error:
            self._complete(None, converted(error))
        else:
            self._complete(value)
        self._array = None


class Notifier:
    """Notices that arrays have their values and completes their futures: one thread a client, which lives while a
    future is being watched.

    jaxlib tells nobody when an array is ready; it can be asked. So the thread asks, the more seldom the longer it has
    waited: at intervals of a tenth of the time waited, from 20 µs to 1 ms.
    """

    _SHORTEST_SECONDS, _LONGEST_SECONDS, _SHARE = 20e-6, 1e-3, 0.1

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: set[ArrayFuture[Any]] = set()
        self._changed = False
        self._running = False

    def watch(self, future: ArrayFuture[Any]) -> None:
        """Completes the future without anyone asking, when it is time."""
        with self._lock:
            if future in self._watched:
                return
            self._watched.add(future)
            self._changed = True
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, name="pjrt-cpu-notifier", daemon=True).start()

    def _run(self) -> None:
        since = time.monotonic()
        while True:
            with self._lock:
                if not self._watched:
                    self._running = False
                    return
                if self._changed:
                    self._changed = False
                    since = time.monotonic()
                watched = tuple(self._watched)
            finished = [future for future in watched if future.done()]
            if finished:
                with self._lock:
                    self._watched.difference_update(finished)
                continue
            waited = (time.monotonic() - since) * self._SHARE
            time.sleep(min(max(waited, self._SHORTEST_SECONDS), self._LONGEST_SECONDS))
