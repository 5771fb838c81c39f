"""Messages between the processes of a job, and the thread that serves their connections.

A message is a line with one JSON object. Each process has a control connection to the leader, which carries messages,
and a channel, whose first line is a message and whose other bytes are those of XLA's coordination service.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pjrt.api.errors import DeadlineExceededError

VERSION = 2
"""The version of the messages; all processes of a job must have the same one."""

MAX_BYTES = 1 << 20
"""The longest line."""

ACCEPTED = b"+"
"""The leader's answer to a new channel."""

_FAREWELL_SECONDS = 1.0

Message = dict[str, Any]


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """Return the next message; ``None`` at the end of the connection, and for a line that is no message."""
    try:
        line = await reader.readline()
        message = json.loads(line) if line.endswith(b"\n") else None
    except (OSError, ValueError, RecursionError):  # a stranger's may nest without end
        return None
    return message if isinstance(message, dict) else None


def line(**message: Any) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def send(writer: asyncio.StreamWriter, **message: Any) -> None:
    """Send a message, without waiting."""
    if not writer.is_closing():
        writer.write(line(**message))


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a connection when what was sent has arrived, or cannot arrive."""
    writer.close()
    try:
        with contextlib.suppress(OSError):  # TimeoutError and SSLError, too
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await writer.wait_closed()
    finally:
        writer.transport.abort()


T = TypeVar("T")


class EventLoop:
    """An asyncio event loop in a thread of its own.

    The thread is a daemon: the end of the process does not wait for it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, name="pjrt-job", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine, and return its result.

        Raises:
            DeadlineExceededError: the coroutine took longer than ``timeout`` seconds; it was cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:
            if future.done():  # the coroutine's own error
                raise
            raise DeadlineExceededError(f"not done within {timeout} s") from None
        finally:
            future.cancel()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have a function called in the thread, soon; nothing happens if the loop has stopped."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def call_later(self, seconds: float, function: Callable[..., object], *arguments: Any) -> None:
        """Have a function called later; this is called in the thread of the loop."""
        self._loop.call_later(seconds, function, *arguments)

    def stop(self) -> None:
        """Cancel what still runs, and end the thread."""
        if self._loop.is_closed():
            return

        async def finish() -> None:
            tasks = [task for task in asyncio.all_tasks(self._loop) if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._loop.stop()

        asyncio.run_coroutine_threadsafe(finish(), self._loop)
        if threading.current_thread() is not self.thread:
            self.thread.join(5)
