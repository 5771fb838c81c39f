"""The side of every process of a job that does not lead it: the link to the leader."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pjrt.api.errors import DeadlineExceededError, PjrtError, StatusCode, UnauthenticatedError, UnavailableError
from pjrt.distributed import messages
from pjrt.distributed.messages import EventLoop, Message
from pjrt.distributed.relay import EncryptedRelay, Relay
from pjrt.distributed.settings import Member, Settings, leader_name

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.5
_CONNECT_SECONDS = 10.0
_FAREWELL_SECONDS = 2.0


class Link:
    """The link of one process to the leader.

    Coroutines and ``report`` run in the thread of the event loop.

    Args:
        addresses: the leader's addresses, of which the first one that answers is taken.
        token: the name that the leader gave to the job.
        member: this process.
        process_count: the number of the job's processes.
        leader_index: the number of the process that leads the job, or ``APART``.
        silence: the seconds of silence after which the leader loses this process.
        leader_silence: the seconds of silence after which the leader is lost.
        notice: is called with each event.
        context: the context of TLS; ``None`` in the clear.
        certified_name: the name in the leader's certificate.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        token: str,
        member: Member,
        process_count: int,
        leader_index: int,
        silence: float,
        leader_silence: float,
        notice: Callable[[Message], None],
        context: ssl.SSLContext | None = None,
        certified_name: str = "",
    ) -> None:
        self._context = context
        self._certified_name = certified_name or None
        self._addresses = addresses
        self._address = addresses[0]
        self._token = token
        self._member = member
        self._process_count = process_count
        self._leader_index = leader_index
        self._leader = leader_name(leader_index)
        self._silence = silence
        self._leader_silence = leader_silence
        self._notice = notice
        self._writer: asyncio.StreamWriter | None = None
        self._relay: Relay | EncryptedRelay | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._missing: asyncio.Future[str] | None = None
        self._last_heard = 0.0
        self._closed = False
        self._says_farewell = False

    async def join(self, deadline: float) -> None:
        """Connect to the leader, and wait until the job begins.

        Raises:
            DeadlineExceededError: the leader, or another process, was not there in time.
            PjrtError: the leader refused this process.
            UnauthenticatedError: what listens there has not the leader's certificate.
            UnavailableError: the leader was lost while this process waited.
        """
        reader, writer = await self._connect(deadline)
        self._writer = writer
        hello = {
            "token": self._token,
            "version": messages.VERSION,
            "process_count": self._process_count,
            **self._member.fields(),
        }
        messages.send(writer, type="control", **hello)
        self._last_heard = asyncio.get_running_loop().time()
        self._tasks.append(asyncio.create_task(self._watch_silence()))
        ready: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._tasks.append(asyncio.create_task(self._listen(reader, ready)))
        done, _ = await asyncio.wait((ready,), timeout=deadline - time.monotonic())
        if done:
            ready.result()
            return
        self._missing = asyncio.get_running_loop().create_future()
        messages.send(writer, type="who")
        awaited: list[asyncio.Future[Any]] = [self._missing, ready]
        await asyncio.wait(awaited, timeout=1, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
            return
        who = self._missing.result() if self._missing.done() else "unknown, because the leader does not answer"
        raise DeadlineExceededError(
            f"the job of {self._process_count} processes has not begun in time; missing: {who}; see why they were not "
            "started or have ended, or give initialize() a longer initialization_timeout"
        )

    async def _connect(self, deadline: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        pause, why = _FIRST_PAUSE, "no answer"
        while (left := deadline - time.monotonic()) > 0:
            for address in self._addresses:
                try:
                    async with asyncio.timeout(min(left, _CONNECT_SECONDS)):
                        streams = await asyncio.open_connection(
                            *address,
                            limit=messages.MAX_BYTES,
                            ssl=self._context,
                            server_hostname=self._certified_name,
                        )
                    self._address = address
                    return streams
                except ssl.SSLCertVerificationError as error:
                    raise UnauthenticatedError(
                        f"what listens at {address[0]}:{address[1]} is not {self._leader}: {error.verify_message}"
                    ) from None
                except ssl.SSLError as error:
                    why = str(error)
                except OSError as error:  # TimeoutError, too
                    why = os.strerror(error.errno) if error.errno else str(error) or "no answer"
            await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise DeadlineExceededError(
            f"{self._leader} did not answer in time at {self._spelled()} ({why}); see whether it was "
            "started, and whether this address is its own"
        )

    @property
    def address(self) -> str:
        """The leader's address: ``HOST:PORT``."""
        host, port = self._address
        return f"{host}:{port}"

    def _spelled(self) -> str:
        return " or ".join(f"{host}:{port}" for host, port in self._addresses)

    async def _listen(self, reader: asyncio.StreamReader, ready: asyncio.Future[Message]) -> None:
        while (message := await messages.receive(reader)) is not None:
            self._last_heard = asyncio.get_running_loop().time()
            match message["type"]:
                case "ready":
                    if not ready.done():
                        self._notice(message)  # in order with the events that follow
                        ready.set_result(message)
                case "refused":
                    if not ready.done():
                        ready.set_exception(PjrtError.of(StatusCode[message["code"]], message["message"]))
                case "missing":
                    if self._missing is not None and not self._missing.done():
                        self._missing.set_result(message["text"])
                case "ping":
                    pass
                case _:
                    self._notice(message)
        self._lose("its process ended, or its connection was lost", ready)

    def _lose(self, reason: str, ready: asyncio.Future[Message] | None = None) -> None:
        if self._closed:
            return
        if ready is not None and not ready.done():
            ready.set_exception(
                UnavailableError(f"{self._leader} was lost before the job began, at {self._spelled()}: {reason}")
            )
            ready.exception()  # it need not be asked for
        self._notice({"type": "lost", "process_index": self._leader_index, "reason": reason})

    async def _watch_silence(self) -> None:
        """Send signs of life, and report a leader that sends none."""
        interval, clock = self._silence / 4, asyncio.get_running_loop().time
        while True:
            before = clock()
            await asyncio.sleep(interval)
            now = clock()
            self.report({"type": "ping"})
            if now - before > 2 * interval:  # this process itself stood still
                self._last_heard = now
            elif now - self._last_heard > self._leader_silence:
                self._lose(f"it gave no sign of life for {self._leader_silence:g} s")
                return

    def report(self, event: Message) -> None:
        """Report an event of this process to the leader."""
        if self._writer is not None:
            self._says_farewell |= event["type"] in ("left", "lost")
            messages.send(self._writer, **event)

    def open_relay(self, path: str, settings: Settings) -> None:
        """Listen on a local socket for the agent, whose bytes go to the leader."""
        encrypted = bool(settings.authority)
        self._relay = (
            EncryptedRelay(path, self._address, settings) if encrypted else Relay(path, self._address, self._token)
        )

    async def close(self) -> None:
        """Close the control connection."""
        self._closed = True
        if self._writer is not None and self._says_farewell:
            # To close a connection with data that were not read would reset it, and the last message could be lost. So
            # the leader closes it first.
            with contextlib.suppress(OSError):
                if self._writer.can_write_eof():  # not with TLS; the leader closes it after the last message, too
                    self._writer.write_eof()
            await asyncio.wait(self._tasks[-1:], timeout=_FAREWELL_SECONDS)
        for task in self._tasks:
            task.cancel()
        if self._writer is not None:
            await messages.hang_up(self._writer)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def descriptors(self) -> list[int]:
        """Return the file descriptors of the connections."""
        own = [] if self._writer is None else [self._writer.get_extra_info("socket").fileno()]
        return [*own, *([] if self._relay is None else self._relay.descriptors())]

    def close_relay(self, *, keep_agent_connection: bool) -> None:
        """End the relay; the agent's end stays open for ever if it has not stopped."""
        if self._relay is not None:
            self._relay.close(keep_agent_connection=keep_agent_connection)


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
        self._settings = settings
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
            settings.client_context(),
            settings.certified_name,
        )

    @property
    def address(self) -> str:
        """The address of the leader: ``HOST:PORT``."""
        return self._link.address

    def meet(self, deadline: float) -> None:
        """Connect to the leader, and wait until all processes are there; raise the errors of ``Link.join``."""
        self._loop.run(self._link.join(deadline))
        self._link.open_relay(str(self.agent_path), self._settings)

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
