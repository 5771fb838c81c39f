"""The side of every process of a job that does not lead it: the link to the leader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pjrt.distributed.event_loop import EventLoop
from pjrt.distributed.link import Link
from pjrt.distributed.member import Member
from pjrt.distributed.messages import Message
from pjrt.distributed.settings import Settings


class Follower:
    """A follower's side of a job.

    Args:
        settings: the settings of the job.
        folder: a folder for the relay's socket.
        loop: the thread of the connections.
        notice: is called with each event.

    Attributes:
        agent_path: the local socket for the agent of this process.
    """

    service = None

    def __init__(self, settings: Settings, folder: Path, loop: EventLoop, notice: Callable[[Message], None]) -> None:
        self._loop = loop
        self.agent_path = folder / "relay"
        self._link = Link(
            settings.addresses,
            settings.token,
            Member.here(settings.process_index),
            settings.process_count,
            settings.leader_index,
            settings.heartbeat_timeout,
            settings.leader_timeout or settings.heartbeat_timeout,
            notice,
        )

    @property
    def address(self) -> str:
        """The address of the leader: ``HOST:PORT``."""
        return self._link.address

    def meet(self, deadline: float) -> None:
        """Connect to the leader, and wait until all processes are there; raise the errors of ``Link.join``."""
        self._loop.run(self._link.join(deadline))
        self._link.open_relay(str(self.agent_path))

    def report(self, event: Message) -> None:
        """Report an event to the leader."""
        self._loop.call(self._link.report, event)

    def descriptors(self) -> list[int]:
        """Return the file descriptors of the connections."""
        return self._link.descriptors()

    def close(self, agent_has_stopped: bool) -> None:
        """Close all connections.

        An agent that did not connect would try again and again if it saw that its connection ends, so that one stays.
        """
        self._loop.run(self._link.close())
        self._link.close_relay(keep_agent_connection=not agent_has_stopped)
