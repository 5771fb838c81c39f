"""The coordinator: the leader of a job in a process that is not one of the job's."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from pjrt import system
from pjrt.distributed.event_loop import EventLoop
from pjrt.distributed.leader import Leader
from pjrt.distributed.member import Member
from pjrt.distributed.messages import Message
from pjrt.distributed.settings import APART, Settings


class Coordinator:
    """The leader of a job in a process that is not one of the job's: no loss of a process ends the job.

    It listens from the beginning on. The job begins when all of its processes have joined, and goes on without those
    that are lost, which cannot join again.

    Args:
        process_count: the number of the job's processes.
        hosts: the names or addresses of this host, at which the processes reach it.
        bind_host: the address on which it listens; ``None`` for all of this host.
        heartbeat_timeout: the seconds of silence after which a process is lost.
        leader_timeout: the seconds of silence after which the processes lose this leader; the default is the heartbeat
            timeout.
        on_begin: is called with the processes when all have joined.
        on_lost: is called with the number of a process that is lost, and the reason; not with one that has left.

    Raises:
        UnavailableError: no port is free, or the address is not of this host.
        FailedPreconditionError: jaxlib is not installed.
    """

    def __init__(
        self,
        process_count: int,
        hosts: Sequence[str],
        *,
        bind_host: str | None = None,
        heartbeat_timeout: float = 100,
        leader_timeout: float | None = None,
        on_begin: Callable[[Sequence[Member]], object] = lambda members: None,
        on_lost: Callable[[int, str], object] = lambda process_index, reason: None,
    ) -> None:
        self._on_begin = on_begin
        self._on_lost = on_lost
        self._settings = Settings(
            [(host, 0) for host in hosts],
            process_count,
            APART,
            token=secrets.token_hex(16),
            bind_host=bind_host,
            heartbeat_timeout=heartbeat_timeout,
            leader_timeout=leader_timeout,
            recoverable=True,
            leader_index=APART,
        )
        self._lock = threading.Lock()
        self._is_closed = False
        self._folder = Path(tempfile.mkdtemp(prefix="pjrt-job-"))
        self._loop = EventLoop()
        self._leader: Leader | None = None
        try:
            self._leader = Leader(self._settings, self._folder, self._loop, self._notice)
            self._port = self._leader.listen()
        except BaseException:
            self.close()
            raise

    def settings_of(self, process_index: int, *, initialization_timeout: float, shutdown_timeout: float) -> Settings:
        """Return the settings with which a process joins the job."""
        return Settings(
            [(host, self._port) for host, _ in self._settings.addresses],
            self._settings.process_count,
            process_index,
            token=self._settings.token,
            initialization_timeout=initialization_timeout,
            heartbeat_timeout=self._settings.heartbeat_timeout,
            leader_timeout=self._settings.leader_timeout,
            shutdown_timeout=shutdown_timeout,
            recoverable=True,
            leader_index=APART,
        )

    def give_up(self, process_index: int, reason: str) -> None:
        """Report to the other processes that one is lost, although its connection is open; work with it then fails."""
        if self._leader is not None:
            self._leader.give_up(process_index, reason)

    def _notice(self, event: Message) -> None:
        """Report an event; this runs in the thread of the event loop."""
        match event["type"]:
            case "ready":
                self._on_begin([Member.read(fields) for fields in event["members"]])
            case "lost":
                self._on_lost(event["process_index"], event["reason"])

    def forget(self) -> None:
        """Leave the job to the parent process, in the child of a fork."""
        self._is_closed = True
        if self._leader is not None:
            system.close_in_child(self._leader.descriptors())
        _of_the_parent.append((self._leader, self._loop))  # their ends would wait for the threads

    def close(self) -> None:
        """End the job: the processes that are still in it lose their leader."""
        with self._lock:
            first, self._is_closed = not self._is_closed, True
        if not first:
            return
        if self._leader is not None:
            with contextlib.suppress(OSError):
                self._leader.close(agent_has_stopped=True)
        self._loop.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


_of_the_parent: list[object] = []
