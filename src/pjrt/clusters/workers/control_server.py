"""The control server: where the workers of a cluster reach their controller."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any

import pjrt
from pjrt import system
from pjrt.api.errors import StatusCode, UnavailableError
from pjrt.clusters.workers import handshake
from pjrt.clusters.workers.place import Place
from pjrt.distributed import messages
from pjrt.distributed.messages import EventLoop, Message

_HELLO_SECONDS = 30.0
_BACKLOG = 4096  # all workers come at once

Refusal = tuple[StatusCode, str]

_FACTS = (str, int, type(None))


class ControlServer:
    """The connections of the workers to their controller.

    Args:
        token: the secret that the workers know.
        place: where it listens, and how the connections are protected.
        assign: returns the number of a worker that has proven to know the token, and its assignment as values that
            JSON has; or why it is refused. It gets the worker's own facts.
        notice: is called with the number of a worker and each of its messages; with one of the type ``gone`` when its
            connection has ended.

    Attributes:
        port: the port.

    Raises:
        UnavailableError: the port is in use, or the address is not of this host.
    """

    def __init__(
        self,
        token: str,
        place: Place,
        assign: Callable[[Mapping[str, Any]], tuple[int, dict[str, Any]] | Refusal],
        notice: Callable[[int, Message], object],
    ) -> None:
        self._token = token
        self._context = place.context
        self._certificate = place.certificate
        self._assign = assign
        self._notice = notice
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._loop = EventLoop()
        try:
            self.port = self._loop.run(self._listen(place.bind_host, place.port))
        except OSError as error:
            self._loop.stop()
            raise UnavailableError(
                f"the controller cannot listen on port {place.port} of {place.bind_host or 'this host'} "
                f"({error.strerror or error}); choose another controller_address"
            ) from None

    def end(self, index: int) -> None:
        """Ask a worker to end; nothing happens if it is not connected."""
        self.send(index, {"type": "end"})

    def send(self, index: int, message: Message) -> None:
        """Send a message to a worker; nothing happens if it is not connected."""
        self._loop.call(self._send, index, message)

    def forget(self) -> None:
        """Leave the connections to the parent process, in the child of a fork."""
        own = [end.fileno() for end in self._server.sockets]
        system.close_in_child([*own, *(writer.get_extra_info("socket").fileno() for writer in self._writers.values())])

    def close(self) -> None:
        """Close all connections, which ends the workers. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.run(self._close())
        self._loop.stop()

    async def _listen(self, host: str | None, port: int) -> int:
        if host is None and socket.has_dualstack_ipv6():
            listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
        else:
            family = socket.AF_INET6 if ":" in (host or "") else socket.AF_INET
            listener = socket.create_server((host or "", port), family=family, backlog=_BACKLOG)
        self._server = await asyncio.start_server(
            self._accept, sock=listener, limit=messages.MAX_BYTES, ssl=self._context
        )
        return int(listener.getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                index = await self._shake_hands(reader, writer)
            if index is not None:
                await self._follow(index, reader, writer)
        except (TimeoutError, OSError, asyncio.CancelledError):  # asyncio would print that the task was cancelled
            pass
        finally:
            await messages.hang_up(writer)
            self._tasks.discard(task)

    async def _shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int | None:
        """Return the number of a worker that knows the token and has its assignment; ``None`` for others."""
        hello = await messages.receive(reader)
        if hello is None or hello.get("type") != "worker":
            return None
        facts, own_nonce = hello.get("facts"), handshake.new_nonce()
        if not isinstance(facts, dict) or not all(isinstance(each, _FACTS) for each in facts.values()):
            return None  # a stranger's
        nonces = str(hello.get("nonce")), own_nonce
        # The worker proves itself first: a proof of ours would let strangers try tokens on machines of their own.
        messages.send(writer, type="challenge", nonce=own_nonce)
        answer = await messages.receive(reader)
        expected = handshake.proof(self._token, "worker", nonces, self._certificate, facts)
        if answer is None or not handshake.is_valid(answer.get("proof"), expected):
            reason = "the controller has not the token of this worker; give both the same one"
            self._refuse(writer, StatusCode.UNAUTHENTICATED, reason)
            return None
        if facts.get("version") != pjrt.__version__:
            self._refuse(
                writer,
                StatusCode.FAILED_PRECONDITION,
                f"the worker on {facts.get('host')} has version {facts.get('version')} of pjrt, and the controller has "
                f"version {pjrt.__version__}; install the same version everywhere",
            )
            return None
        number, assignment = self._assign(facts)
        if isinstance(number, StatusCode):
            self._refuse(writer, number, str(assignment))
            return None
        self._writers[number] = writer
        own_proof = handshake.proof(self._token, "controller", nonces, self._certificate, facts)
        messages.send(writer, type="assignment", proof=own_proof, assignment=assignment)
        return number

    def _refuse(self, writer: asyncio.StreamWriter, code: StatusCode, message: str) -> None:
        messages.send(writer, type="refused", code=code.name, message=message)

    async def _follow(self, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (message := await messages.receive(reader)) is not None:
            self._notice(index, message)
        if self._writers.get(index) is writer:
            del self._writers[index]
        self._notice(index, {"type": "gone"})

    def _send(self, index: int, message: Message) -> None:
        writer = self._writers.get(index)
        if writer is not None:
            messages.send(writer, **message)

    async def _close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
