"""Workers: the threads of a server for requests that wait, shared fairly by its sessions."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

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

    def __init__(self, shared: int) -> None:
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
