"""The link of a worker to its controller: the handshake, the assignment, reports, and the controller's end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import pjrt
from pjrt.api.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    PjrtError,
    StatusCode,
    UnauthenticatedError,
    UnavailableError,
)
from pjrt.clusters.workers import handshake
from pjrt.clusters.workers.assignment import Assignment
from pjrt.clusters.workers.bootstrap import Bootstrap
from pjrt.clusters.workers.inner_node_assignment import InnerNodeAssignment
from pjrt.distributed import messages
from pjrt.distributed.messages import EventLoop
from pjrt.distributed.settings import split_address

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_CONNECT_SECONDS = 10.0


class ControllerLink:
    """The connection of a worker to its controller.

    Args:
        bootstrap: where the controller is.
        on_end: is called with the reason when the controller asks the worker to end, or is gone.

    Attributes:
        assignment: the worker's assignment.
        own_address: the address of this host on the way to the controller.
        on_message: is called with each further message of the controller, in the link's thread.

    Raises:
        DeadlineExceededError: no controller answers at the addresses.
        UnauthenticatedError: the controller has another token.
        PjrtError: the controller refuses the worker.
    """

    def __init__(self, bootstrap: Bootstrap, on_end: Callable[[str], object]) -> None:
        self._bootstrap = bootstrap
        self._on_end = on_end
        self._loop = EventLoop()
        self._writer: asyncio.StreamWriter | None = None
        self.own_address = ""
        self.on_message: Callable[[messages.Message], object] = lambda message: None
        try:
            self.assignment = self._loop.run(self._begin())
        except BaseException:
            self._loop.stop()
            raise

    def report(self, kind: str, **fields: Any) -> None:
        """Report something to the controller."""
        self._loop.call(self._send, {"type": kind, **fields})

    def close(self) -> None:
        """Send what was reported, and close the connection."""
        with contextlib.suppress(PjrtError):
            self._loop.run(self._close(), 2)
        self._loop.stop()

    def _send(self, message: messages.Message) -> None:
        if self._writer is not None:
            messages.send(self._writer, **message)

    async def _begin(self) -> Assignment | InnerNodeAssignment:
        deadline = time.monotonic() + self._bootstrap.timeout
        reader, writer = await self._connect(deadline)
        try:
            async with asyncio.timeout(max(0.1, deadline - time.monotonic())):
                assignment = await self._shake_hands(reader, writer)
        except BaseException as error:
            await messages.hang_up(writer)
            if isinstance(error, TimeoutError):
                raise DeadlineExceededError(
                    f"the program at {' or '.join(self._bootstrap.addresses)} has not answered a worker within "
                    f"{self._bootstrap.timeout:g} s; see whether it is a controller of a cluster"
                ) from None
            raise
        self._writer = writer
        self.own_address = str(writer.get_extra_info("sockname")[0])
        self._task = asyncio.create_task(self._listen(reader))
        return assignment

    async def _connect(self, deadline: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        pause, why = _FIRST_PAUSE, "no answer"
        while (left := deadline - time.monotonic()) > 0:
            for address in self._bootstrap.addresses:
                try:
                    async with asyncio.timeout(min(left, _CONNECT_SECONDS)):
                        return await asyncio.open_connection(
                            *split_address(address), limit=messages.MAX_BYTES, ssl=self._context()
                        )
                except OSError as error:  # TimeoutError and SSLError, too
                    why = os.strerror(error.errno) if error.errno else str(error) or "no answer"
            await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise DeadlineExceededError(
            f"no controller of a cluster answered within {self._bootstrap.timeout:g} s at "
            f"{' or '.join(self._bootstrap.addresses)} ({why}); see whether it runs, and whether this host can reach it"
        )

    def _context(self) -> ssl.SSLContext | None:
        if not self._bootstrap.encrypted:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the handshake of the token checks the certificate
        return context

    async def _shake_hands(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Assignment | InnerNodeAssignment:
        encryption = writer.get_extra_info("ssl_object")
        certificate = b"" if encryption is None else encryption.getpeercert(binary_form=True)
        own_nonce, token = handshake.new_nonce(), self._bootstrap.token
        facts = {
            "index": self._bootstrap.index,
            "version": pjrt.__version__,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        messages.send(writer, type="worker", nonce=own_nonce, facts=facts)
        nonces = own_nonce, str(_expect(await messages.receive(reader), "challenge").get("nonce"))
        own_proof = handshake.proof(token, "worker", nonces, certificate, facts)
        messages.send(writer, type="proof", proof=own_proof)
        answer = _expect(await messages.receive(reader), "assignment")
        if not handshake.is_valid(
            answer.get("proof"), handshake.proof(token, "controller", nonces, certificate, facts)
        ):
            raise UnauthenticatedError(
                f"the controller at {' or '.join(self._bootstrap.addresses)} has not the token of this worker; give "
                "both the same one"
            )
        fields = answer["assignment"]
        return InnerNodeAssignment.read(fields) if "children" in fields else Assignment.read(fields)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while (message := await messages.receive(reader)) is not None:
            if message["type"] == "end":
                self._on_end("")
                return
            self.on_message(message)
        self._on_end("the controller is gone: its process ended, or its connection was lost")

    async def _close(self) -> None:
        self._task.cancel()
        if self._writer is not None:
            await messages.hang_up(self._writer)


def _expect(message: messages.Message | None, kind: str) -> messages.Message:
    if message is None:
        raise UnavailableError("the controller has closed the connection; see its output for the cause")
    if message.get("type") == "refused":
        raise PjrtError.of(StatusCode[message["code"]], message["message"])
    if message.get("type") != kind:
        raise FailedPreconditionError("the program at the controller's address is not a controller of this version")
    return message
