"""gRPC's core: completion queues, batches of operations and calls, as grpcio's compiled module offers them.

This is the only module that touches names that grpcio does not document. grpcio's own Python layers are written with
the same names. The tests passed with 1.66 and 1.85, the oldest and the newest supported version; an import with a
version that lacks one of the names is an error. The reason to go below those layers is their speed: a synchronous
server of grpcio hands each message from a polling thread to a thread of the call, and back, and ``grpc.aio`` hands it
from a polling thread to the event loop. Here the thread that waits for a call's messages is the thread that handles
them. The round trip of 100 bytes on a loopback of two processors, the same client each time, and what a message of a
long sequence costs:

=====================================  ===========  =========  ===================
server                                 minimum, µs  median     µs for each message
=====================================  ===========  =========  ===================
``grpc.server``, responses by a queue  109          189 - 244  79 - 115
``grpc.aio``                           94           167 - 188  95 - 132
a completion queue for each session    34           64         12 - 31
=====================================  ===========  =========  ===================
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from pjrt.api.errors import FailedPreconditionError

try:
    import grpc
    from grpc._cython import cygrpc
except ImportError as _error:
    raise FailedPreconditionError(
        f"remote devices need the package grpcio, which cannot be imported ({_error}): pip install 'pjrt[remote]'"
    ) from _error

__all__ = ["NO_FLAGS", "NO_LIMIT", "Outbox", "arguments", "cygrpc", "grpc", "raw_credentials"]

_NAMES = (
    *("CompletionQueue", "CompletionType", "InitialMetadataFlags", "Server", "Channel", "StatusCode", "WriteFlag"),
    *("ReceiveCloseOnServerOperation", "ReceiveInitialMetadataOperation", "ReceiveMessageOperation"),
    *("ReceiveStatusOnClientOperation", "SendCloseFromClientOperation", "SendInitialMetadataOperation"),
    *("SendMessageOperation", "SendStatusFromServerOperation", "auth_context"),
)
_missing = [name for name in _NAMES if not hasattr(cygrpc, name)]
if _missing:
    raise FailedPreconditionError(
        f"remote devices need names of grpcio's core that grpcio {grpc.__version__} does not have "
        f"({', '.join(_missing)}); install a version that the tests ran with: pip install 'grpcio>=1.66,<=1.85.1'"
    )

NO_FLAGS = 0
NO_LIMIT = -1
"""The length of messages that is unlimited."""

_MORE_FOLLOW = cygrpc.WriteFlag.buffer_hint

Start = Callable[[tuple[Any, ...], object], object]
"""Starts a batch of operations of a call; the completion queue returns the second argument when they are done."""


class Outbox:
    """The messages of one call on their way out: in order, and one at a time, as gRPC's core demands.

    Any thread may send, and so may a destructor that the garbage collector calls in the middle of a send: nothing waits
    for the lock to send. The thread that polls the completion queue reports by ``sent`` that a message is on its way.

    Args:
        start: starts operations of the call.
        tag: the tag of the sending.

    Attributes:
        join: removes messages from the front of those that wait, and returns one message in their place; ``None`` sends
            each as it is.
    """

    def __init__(self, start: Start, tag: object) -> None:
        self._start = start
        self._tag = tag
        self.join: Callable[[deque[bytes]], bytes] | None = None
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._sending = False
        self._corked = False
        self._closed = False
        self._ended = False

    def __len__(self) -> int:
        """Return the number of messages that wait for an earlier one."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way, and nothing waits."""
        return not self._sending and not self._waiting

    def send(self, message: bytes) -> None:
        """Send a message, now or after the earlier ones. After the end of the call it is dropped."""
        if not self._closed:
            self._corked = False
            self._waiting.append(message)
            self._start_next()

    def hold(self, message: bytes, *, cork: bool = False) -> None:
        """Take a message that ``flush`` sends; ``send`` of a later one sends it too.

        Args:
            message: the message.
            cork: whether it waits also when the earlier ones are on their way; else ``sent`` sends it too.
        """
        if not self._closed:
            self._corked = cork
            self._waiting.append(message)

    def flush(self) -> None:
        """Send the messages that were held."""
        self._corked = False
        self._start_next()

    def sent(self, success: bool = True) -> None:
        """Send the next message, because the last one is on its way; without success the call is at its end."""
        self._sending = False
        if not success:
            self.close(drop=True)
        if not self._corked:
            self._start_next()

    def close(self, *, drop: bool) -> None:
        """Take no more messages; drop those that wait if ``drop``."""
        self._closed = True
        if drop:
            self._waiting.clear()

    def end(self) -> None:
        """Start no more operations: the completion queue is shut down after this."""
        self.close(drop=True)
        with self._lock:
            self._ended = True

    def _start_next(self) -> None:
        # The thread that has the lock also sends the messages that others add meanwhile: they need not wait for it.
        while self._waiting and not self._sending and self._lock.acquire(blocking=False):
            try:
                if self._waiting and not self._sending and not self._ended:
                    self._sending = True
                    message = self._waiting.popleft() if self.join is None else self.join(self._waiting)
                    # A message that another one follows may stay in gRPC's buffer: one write takes all to the socket.
                    flags = _MORE_FOLLOW if self._waiting else NO_FLAGS
                    self._start((cygrpc.SendMessageOperation(message, flags),), self._tag)
                elif self._ended:
                    return
            finally:
                self._lock.release()


def arguments(max_message_bytes: int, options: tuple[tuple[str, Any], ...] = ()) -> tuple[tuple[str, Any], ...]:
    """Return the arguments of a channel or server.

    Args:
        max_message_bytes: the longest message that is taken in.
        options: further arguments by gRPC's names, which go before ours.
    """
    ours: dict[str, Any] = {
        "grpc.max_receive_message_length": max_message_bytes,
        "grpc.max_send_message_length": NO_LIMIT,  # programs and metadata of executables can be long
    }
    return tuple({**ours, **dict(options)}.items())


def raw_credentials(credentials: Any) -> Any:
    """Return credentials of grpcio in the form of gRPC's core; ``None`` is a connection in the clear."""
    return None if credentials is None else credentials._credentials
