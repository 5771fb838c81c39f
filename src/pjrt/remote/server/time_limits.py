"""The time limits of a server: sessions that are not used, and host buffers that never come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from pjrt.api.errors import DeadlineExceededError
from pjrt.remote.security.limits import Limits
from pjrt.remote.server.session import Session
from pjrt.remote.transport.grpc_server import CallContext

_LONGEST_PAUSE = 1.0


class TimeLimits:
    """A thread that looks at the open sessions of a server, about once in a second, until ``stop``.

    Args:
        limits: the limits.
        sessions: returns the open sessions.
        refused: returns the calls of clients that were refused a session and are still there, and since when.
    """

    def __init__(
        self,
        limits: Limits,
        sessions: Callable[[], Iterable[Session]],
        refused: Callable[[], Iterable[tuple[CallContext, float]]],
    ) -> None:
        self._limits = limits
        self._sessions = sessions
        self._refused = refused
        idle = _LONGEST_PAUSE if limits.idle_seconds is None else limits.idle_seconds / 4
        self._pause = min(_LONGEST_PAUSE, limits.open_seconds / 4, limits.host_buffer_seconds / 4, idle)
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="pjrt time limits", daemon=True).start()

    def stop(self) -> None:
        """End the thread. May be called again."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self._pause):
            self.check(time.monotonic())

    def check(self, now: float) -> None:
        """End what has used up its time at a moment of the clock of ``time.monotonic``."""
        error = DeadlineExceededError(f"the client sent no request within {self._limits.open_seconds:g} s")
        latest, idle = now - self._limits.open_seconds, self._limits.idle_seconds
        for session in self._sessions():
            session.host_buffers.give_up_after(self._limits.host_buffer_seconds)
            if not session.requests:
                if session.opened < latest:
                    session.hang_up(error)
            elif idle is not None and session.idle_seconds(now) > idle:
                session.hang_up(DeadlineExceededError(f"the session was idle for more than {idle:g} s"))
        for context, since in self._refused():
            if since < latest:
                context.hang_up(error)
