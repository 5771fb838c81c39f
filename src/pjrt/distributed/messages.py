"""Messages between the leader of a job and its other processes: one JSON object a line.

Each process has a control connection to the leader, which carries messages, and a channel, whose first line is a
message and whose other bytes are those of XLA's coordination service.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

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
