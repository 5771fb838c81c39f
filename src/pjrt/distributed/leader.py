"""The leader's side of a job: the hub where the processes meet, XLA's coordination service, and a leader apart.

The hub listens at the coordinator's address. It knows which processes are there, reports to all of them who joined,
left or was lost, and passes the bytes of their channels to XLA's coordination service, which listens on a local socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pjrt import system
from pjrt.api.errors import DeadlineExceededError, StatusCode, UnavailableError
from pjrt.distributed import messages
from pjrt.distributed.agent import Service
from pjrt.distributed.messages import EventLoop, Message
from pjrt.distributed.relay import Channels, copy, either
from pjrt.distributed.settings import APART, Member, Protection, Reminder, Settings

_HELLO_SECONDS = 30.0
_BACKLOG = 4096  # all processes come at once
_LOOK_SECONDS = 1.0


class _Guest:
    """A process with a control connection."""

    def __init__(self, member: Member, writer: asyncio.StreamWriter) -> None:
        self.member = member
        self.writer = writer
        self.last_heard = asyncio.get_running_loop().time()
        self.leaving = False


class Hub:
    """The hub of a job.

    Coroutines and ``report`` run in the thread of the event loop.

    Args:
        leader: this process.
        token: the name of the job, which the other processes must know.
        process_count: the number of the job's processes.
        service_path: the local socket of XLA's coordination service.
        silence: the seconds of silence after which a process is lost.
        can_rejoin: whether a process that was lost may join again.
        notice: is called with each event, which goes to all other processes, too.
        context: the context of TLS; ``None`` in the clear.
    """

    def __init__(
        self,
        leader: Member,
        token: str,
        process_count: int,
        service_path: str,
        silence: float,
        can_rejoin: bool,
        notice: Callable[[Message], None],
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._leader = leader
        self._token = token
        self._process_count = process_count
        self._channels = Channels(service_path)
        self._service_path = service_path
        self._context = context
        self._silence = silence
        self._can_rejoin = can_rejoin
        self._notice = notice
        self._guests: dict[int, _Guest] = {}
        self._ended: dict[int, str] = {}
        self._rejoins: dict[int, int] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._started = False
        self._steps: dict[int, int] = {}
        self._agreed = False
        self._decrypted: set[int] = set()
        self._complete = asyncio.Event()
        self.check_complete()

    async def listen(self, host: str | None, port: int) -> int:
        """Listen; return the port."""
        listener = _listener(host, port)
        self._server = await asyncio.start_server(
            self._accept, sock=listener, limit=messages.MAX_BYTES, ssl=self._context
        )
        self._watch = asyncio.get_running_loop().create_task(self._watch_silence())
        return int(listener.getsockname()[1])

    @property
    def missing(self) -> list[int]:
        """The processes that are not there."""
        return [
            index
            for index in range(self._process_count)
            if index not in self._guests and index != self._leader.process_index
        ]

    def missing_text(self) -> str:
        """Return who is missing, human-readable."""
        return "; ".join(
            f"process {index}" + (f" ({self._ended[index]})" if index in self._ended else "") for index in self.missing
        )

    def check_complete(self) -> None:
        """Begin the job if all processes are there."""
        if not self._started and not self.missing:
            self._started = True
            self._complete.set()
            self._publish({"type": "ready", "members": [member.fields() for member in self._members()]})

    async def complete(self) -> None:
        """Wait until all processes are there."""
        await self._complete.wait()

    def _members(self) -> list[Member]:
        guests = [self._guests[index].member for index in sorted(self._guests)]
        return guests if self._leader.process_index == APART else [self._leader, *guests]

    def refuse_all(self, code: StatusCode, message: str) -> None:
        """Report to all processes that the job does not begin."""
        for guest in self._guests.values():
            messages.send(guest.writer, type="refused", code=code.name, message=message)

    def report(self, event: Message) -> None:
        """Report an event of this process, or one that goes to all."""
        if event["type"] == "step":
            self._steps[event["process_index"]] = event["step"]
            self._agree()
            return
        self._publish(event)

    def give_up(self, process_index: int, reason: str) -> None:
        """Report to all processes that one of them is lost; nothing happens if it is not there."""
        guest = self._guests.get(process_index)
        if guest is not None:
            self._end(guest, reason)

    def _agree(self) -> None:
        """Agree on a step when all processes that are there have reported theirs."""
        awaited = {member.process_index for member in self._members()}
        if self._steps and not self._agreed and awaited <= self._steps.keys():
            self._agreed = True
            self._publish({"type": "agreed", "step": max(self._steps.values()) + 1})

    def _publish(self, event: Message) -> None:
        for guest in self._guests.values():
            messages.send(guest.writer, **event)
        self._notice(event)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            hello = await asyncio.wait_for(messages.receive(reader), _HELLO_SECONDS)
            if hello is None:
                return
            if hello.get("type") == "channel":
                if self._is_own(hello) and self._context is not None:
                    await self._pass_on_decrypted(reader, writer)
                elif self._is_own(hello):
                    self._pass_on(writer)
            elif refusal := self._refusal(hello):
                code, message = refusal
                messages.send(writer, type="refused", code=code.name, message=message)
            else:
                await self._serve(hello, reader, writer)
        except (OSError, asyncio.CancelledError):  # asyncio would print that the task was cancelled
            pass
        finally:
            self._tasks.discard(task)
            await messages.hang_up(writer)

    def _is_own(self, hello: Message) -> bool:
        """Whether a process knows the name of the job; the time does not depend on the name that it gave."""
        return hmac.compare_digest(str(hello.get("token")).encode(), self._token.encode())

    def _refusal(self, hello: Message) -> tuple[StatusCode, str] | None:
        """Return why a process cannot join."""
        if hello.get("type") != "control" or hello.get("version") != messages.VERSION:
            return StatusCode.FAILED_PRECONDITION, (
                "the processes of the job have versions of pjrt that do not work together; install the same version "
                "everywhere"
            )
        if not self._is_own(hello):
            return StatusCode.FAILED_PRECONDITION, (
                f"another job has the address of {self._leader}; give each job an address of its own"
            )
        index, count = int(hello["process_index"]), int(hello["process_count"])
        if count != self._process_count:
            return StatusCode.INVALID_ARGUMENT, (
                f"process {index} was started for a job of {count} processes, but {self._leader} for one of "
                f"{self._process_count}; give all processes the same number"
            )
        if not 0 <= index < count:
            return StatusCode.INVALID_ARGUMENT, f"expected a process from 0 to {count - 1}, found process {index}"
        if index in self._guests or index == self._leader.process_index:
            present = self._guests[index].member if index in self._guests else self._leader
            return StatusCode.ALREADY_EXISTS, (
                f"{present} is in the job already; give each process a number of its own, and each job an address of "
                "its own"
            )
        if self._started and not self._can_rejoin:
            return StatusCode.ABORTED, (
                f"the job has begun, and process {index} cannot join it again "
                f"({self._ended.get(index, 'it was there')}); start the whole job again, or start it as recoverable"
            )
        return None

    async def _serve(self, hello: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        index = int(hello["process_index"])
        rejoins = self._rejoins[index] = self._rejoins.get(index, -1) + 1
        member = Member(index, str(hello["host"]), int(hello["pid"]), rejoins)
        guest = self._guests[index] = _Guest(member, writer)
        self._ended.pop(index, None)
        if self._started:
            members = [member.fields() for member in self._members()]
            messages.send(writer, type="ready", members=members)
            self._publish({"type": "joined", "member": member.fields()})
        else:
            self.check_complete()
        while (message := await messages.receive(reader)) is not None:
            guest.last_heard = asyncio.get_running_loop().time()
            if message["type"] == "leaving":
                guest.leaving = True
                self._publish({"type": "leaving", "process_index": index})
            elif message["type"] == "left":
                self._end(guest, "it has left", left=True)
                return
            elif message["type"] == "lost":
                self._end(guest, str(message["reason"]))
                return
            elif message["type"] in ("preempted", "step"):
                self.report(message)
            elif message["type"] == "who":
                messages.send(writer, type="missing", text=self.missing_text())
        self._end(guest, "its process ended, or its connection was lost")

    def _end(self, guest: _Guest, reason: str, *, left: bool = False) -> None:
        index = guest.member.process_index
        if self._guests.get(index) is not guest:
            return
        del self._guests[index]
        self._ended[index] = f"{guest.member} was there: {reason}"
        if not self._started:
            return
        if left:
            self._publish({"type": "left", "process_index": index})
            return
        event = {"type": "lost", "process_index": index, "reason": reason}
        messages.send(guest.writer, **event)
        self._publish(event)
        self._agree()

    async def _watch_silence(self) -> None:
        """Send signs of life, and end the processes that send none."""
        interval, clock = self._silence / 4, asyncio.get_running_loop().time
        while True:
            before = clock()
            await asyncio.sleep(interval)
            now = clock()
            late = now - before > 2 * interval  # this process itself stood still, so others only seem silent
            for guest in list(self._guests.values()):
                messages.send(guest.writer, type="ping")
                if late:
                    guest.last_heard = now
                elif now - guest.last_heard > self._silence:
                    self._end(guest, f"it gave no sign of life for {self._silence:g} s")

    def _pass_on(self, writer: asyncio.StreamWriter) -> None:
        """Connect a channel with the service, outside of the event loop."""
        transport = writer.transport
        transport.pause_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            self._channels.serve(socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())))

    async def _pass_on_decrypted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect a channel with the service until one of the two ends: TLS is Python's, and so is this loop."""
        near_reader, near_writer = await asyncio.open_unix_connection(self._service_path)
        ends = [end.get_extra_info("socket").fileno() for end in (writer, near_writer)]
        self._decrypted.update(ends)
        try:
            writer.write(messages.ACCEPTED)
            await either(copy(reader, near_writer), copy(near_reader, writer))
        finally:
            self._decrypted.difference_update(ends)
            near_writer.close()

    async def close(self) -> None:
        """Close all connections, when what was sent has arrived or cannot arrive."""
        if self._watch is not None:
            self._watch.cancel()
        if self._server is not None:
            self._server.close()
        for guest in list(self._guests.values()):
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(guest.writer.drain(), 1)
            guest.writer.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def descriptors(self) -> list[int]:
        """Return the file descriptors of the connections."""
        own = [] if self._server is None else [end.fileno() for end in self._server.sockets]
        guests = [guest.writer.get_extra_info("socket").fileno() for guest in self._guests.values()]
        return [*own, *guests, *self._decrypted, *self._channels.descriptors()]

    def close_channels(self) -> None:
        """End the channels of other processes."""
        self._channels.close()


def _listener(host: str | None, port: int) -> socket.socket:
    """Return a socket that listens on an address, or on all addresses with one port."""
    if host is not None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    return socket.create_server(("", port), backlog=_BACKLOG)


class Leader:
    """The leader's side of a job.

    Args:
        settings: the settings of the job.
        folder: a folder for the service's socket.
        loop: the thread of the connections.
        notice: is called with each event.
        listening: is called with the port, before the others are waited for; ``None`` if nobody waits for it.
        context: the context of TLS; ``None`` in the clear.

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
        context: ssl.SSLContext | None = None,
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
            context,
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
        reminder = Reminder()
        while not self._is_complete_within(min(_LOOK_SECONDS, deadline - time.monotonic())):
            if time.monotonic() < deadline:
                reminder.remind(lambda: f"the job waits for {hub.missing_text()}")
                continue
            message = (
                f"the job of {settings.process_count} processes has not begun in time; missing: {hub.missing_text()}; "
                "see why they were not started or have ended, or give initialize() a longer initialization_timeout"
            )
            self._loop.call(hub.refuse_all, StatusCode.DEADLINE_EXCEEDED, message)
            raise DeadlineExceededError(message)

    def _is_complete_within(self, seconds: float) -> bool:
        try:
            self._loop.run(self._hub.complete(), max(0.0, seconds))
        except DeadlineExceededError:
            return False
        return True

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
        protection: the protection of the connections by TLS; ``None`` in the clear.

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
        protection: Protection | None = None,
    ) -> None:
        self._protection = protection
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
        self._folder = system.TemporaryFolder("job")
        self._loop = EventLoop()
        self._leader: Leader | None = None
        try:
            context = None if protection is None else protection.context
            self._leader = Leader(self._settings, self._folder.path, self._loop, self._notice, context=context)
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
            authority="" if self._protection is None else self._protection.authority,
            certified_name="" if self._protection is None else self._protection.certified_name,
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
        self._folder.close()


_of_the_parent: list[object] = []
