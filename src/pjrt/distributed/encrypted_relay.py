"""The relay between XLA's agent and a leader with TLS: a process of its own.

Functions of jaxlib may wait for the coordination service while they hold the interpreter's lock, and Python's TLS needs
that lock. So what goes to such a leader passes through another process. Like the relay of a leader in the clear, it
keeps the agent's end open when the leader is lost; it ends with the process of the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Coroutine
from dataclasses import asdict
from typing import Any

from pjrt.api.errors import UnavailableError
from pjrt.distributed import messages
from pjrt.distributed.settings import Settings
from pjrt.system.python_process import module_command, module_environment

_CONNECT_SECONDS = 10.0
_READY = b"ready\n"
_SIZE = 1 << 16


class EncryptedRelay:
    """The relay of a process, as that sees it.

    Args:
        path: the local socket for the agent.
        address: the leader's address.
        settings: the settings of the job.

    Raises:
        UnavailableError: the process of the relay cannot be started.
    """

    def __init__(self, path: str, address: tuple[str, int], settings: Settings) -> None:
        given = {"path": path, "address": address, "settings": asdict(settings)}
        try:
            self._process = subprocess.Popen(
                module_command(__name__),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=module_environment(),
                start_new_session=True,  # Ctrl-C is this process's matter
            )
        except OSError as error:
            raise UnavailableError(f"the process for connections with TLS cannot be started: {error}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin
        with contextlib.suppress(OSError), self._process.stdout as output:
            self._input.write(json.dumps(given).encode() + b"\n")
            self._input.flush()
            if output.readline() == _READY:
                return
        self.close()
        raise UnavailableError("the process for connections with TLS ended at its start; see its output for the cause")

    def descriptors(self) -> list[int]:
        """Return the file descriptors that keep it alive."""
        return [self._input.fileno()]

    def close(self, *, keep_agent_connection: bool = False) -> None:
        """End the relay; one that is to keep the agent's end open ends with this process."""
        if keep_agent_connection:
            _kept.append(self)
            return
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            self._process.wait(_CONNECT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_kept: list[EncryptedRelay] = []


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy what comes until its sender ends it."""
    with contextlib.suppress(OSError):  # SSLError, too
        while data := await reader.read(_SIZE):
            writer.write(data)
            await writer.drain()


async def either(*ways: Coroutine[Any, Any, None]) -> None:
    """Wait until one of several coroutines has ended, and end the others."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# The process of the relay.


class _Process:
    def __init__(self, address: tuple[str, int], settings: Settings) -> None:
        self._address = address
        self._settings = settings

    async def serve(self, path: str) -> None:
        """Serve the agent until the standard input ends."""
        server = await asyncio.start_unix_server(self._connect, path)
        sys.stdout.buffer.write(_READY)
        sys.stdout.buffer.flush()
        await asyncio.to_thread(sys.stdin.buffer.read)
        server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_CONNECT_SECONDS):
                far_reader, far_writer = await asyncio.open_connection(
                    *self._address, ssl=self._settings.client_context(), server_hostname=self._settings.certified_name
                )
                far_writer.write(messages.line(type="channel", token=self._settings.token))
                accepted = await far_reader.read(len(messages.ACCEPTED))
            if accepted == messages.ACCEPTED:
                await either(copy(reader, far_writer), copy(far_reader, writer))
            far_writer.close()
        await asyncio.Event().wait()  # the agent's end stays open


def _main() -> None:
    given = json.loads(sys.stdin.buffer.readline())
    host, port = given["address"]
    process = _Process((host, port), Settings(**given["settings"]))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(process.serve(given["path"]))


if __name__ == "__main__":
    _main()
