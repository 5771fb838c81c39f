"""Values of any length in the messages between a worker and its controller, each of which is a short line."""

from __future__ import annotations

import base64
from collections.abc import Hashable, Iterator

from pjrt.distributed.messages import MAX_BYTES, Message

_PIECE_BYTES = MAX_BYTES // 2  # base64 and the rest of the line need less than the other half


def messages_with(kind: str, number: int, value: bytes) -> Iterator[Message]:
    """Yield the messages that carry a value.

    Args:
        kind: the type of the messages.
        number: the number that the values of one sender differ in.
        value: the value.
    """
    for begin in range(0, len(value) or 1, _PIECE_BYTES):
        end = begin + _PIECE_BYTES
        piece = base64.b64encode(value[begin:end]).decode()
        yield {"type": kind, "number": number, "piece": piece, "is_last": end >= len(value)}


class LongValues:
    """The values of which some messages have come."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[Hashable, int], list[bytes]] = {}

    def add(self, sender: Hashable, message: Message) -> bytes | None:
        """Take a message, and return the value if it is whole now."""
        key = sender, message["number"]
        pieces = self._pieces.setdefault(key, [])
        pieces.append(base64.b64decode(message["piece"]))
        return b"".join(self._pieces.pop(key)) if message["is_last"] else None

    def forget(self, sender: Hashable) -> None:
        """Drop the pieces of a sender that is gone."""
        self._pieces = {key: pieces for key, pieces in self._pieces.items() if key[0] != sender}
