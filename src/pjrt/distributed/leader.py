"""The leader's side of a job: the hub where the processes meet, and XLA's coordination service."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pjrt.api.errors import DeadlineExceededError, StatusCode, UnavailableError
from pjrt.distributed._jaxlib import Service
from pjrt.distributed.event_loop import EventLoop
from pjrt.distributed.hub import Hub
from pjrt.distributed.member import Member
from pjrt.distributed.messages import Message
from pjrt.distributed.settings import APART, Settings


class Leader:
    """The leader's side of a job.

    Args:
        settings: the settings of the job.
        folder: a folder for the service's socket.
        loop: the thread of the connections.
        notice: is called with each event.
        listening: is called with the port, before the others are waited for; ``None`` if nobody waits for it.

    Attributes:
        address: where the others reach it: ``HOST:PORT``.
        agent_path: the local socket for the agent of this process.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        loop: EventLoop,
        notice: Callable[[Message], None],
        listening: Callable[[int], None] | None = None,
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._listening = listening
        self.agent_path = folder / "service"
        self.service = Service(f"unix:{self.agent_path}", settings.process_count, settings.can_rejoin)
        self._hub = Hub(
            Member.here(settings.process_index, leads=True),
            settings.token,
            settings.process_count,
            str(self.agent_path),
            settings.heartbeat_timeout,
            settings.can_rejoin,
            notice,
        )
        self.address = ""

    def meet(self, deadline: float) -> None:
        """Listen, and wait until all processes are there.

        Raises:
            UnavailableError: the port is in use.
            DeadlineExceededError: not all processes came in time.
        """
        settings, hub = self._settings, self._hub
        port = self.listen()
        if self._listening is not None:
            self._listening(port)
        try:
            self._loop.run(hub.complete(), max(0.0, deadline - time.monotonic()))
        except DeadlineExceededError:
            message = (
                f"the job of {settings.process_count} processes has not begun in time; missing: {hub.missing_text()}; "
                "see why they were not started or have ended, or give initialize() a longer initialization_timeout"
            )
            self._loop.call(hub.refuse_all, StatusCode.DEADLINE_EXCEEDED, message)
            raise DeadlineExceededError(message) from None

    def listen(self) -> int:
        """Listen, and return the port.

        Raises:
            UnavailableError: the port is in use.
        """
        settings, hub = self._settings, self._hub
        host, port = settings.addresses[0]
        try:
            port = self._loop.run(hub.listen(settings.bind_host, port))
        except OSError as error:
            leader = "the leader of the job" if settings.leader_index == APART else f"process {settings.leader_index}"
            raise UnavailableError(
                f"{leader} cannot listen on port {port} of {settings.bind_host or 'this host'} "
                f"({error.strerror or error}); another job may use it: choose another port"
            ) from None
        self.address = f"{host}:{port}"
        return port

    def report(self, event: Message) -> None:
        """Report an event to all processes."""
        self._loop.call(self._hub.report, event)

    def give_up(self, process_index: int, reason: str) -> None:
        """Report to all processes that one of them is lost, although its connection is open."""
        self._loop.call(self._hub.give_up, process_index, reason)

    def descriptors(self) -> list[int]:
        """Return the file descriptors of the connections."""
        return self._hub.descriptors()

    def close(self, agent_has_stopped: bool) -> None:
        """Close all connections, and stop the service."""
        self._loop.run(self._hub.close())
        self._hub.close_channels()
        self.service.stop()
