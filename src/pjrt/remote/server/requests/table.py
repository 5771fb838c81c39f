"""The table of requests: a handler for each kind.

A handler is a function of a session and a request. It returns the response, or a ``Future`` of it, and raises errors.
It never waits. One that has to wait is declared ``blocking``, and runs in a thread of the server's pool.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from pjrt.remote.protocol.messages import KINDS, OWN_KINDS

if TYPE_CHECKING:
    from pjrt.remote.server.session import Session

Handle = Callable[["Session", Any], Any]
_Predicate = Callable[["Session", Any], bool]
_Declare = Callable[[Handle], Handle]


class Queue(enum.IntEnum):
    """Requests that are handled one after the other; the values are handles that no object has."""

    PROCESSES = -1
    """Programs that span processes: each process waits for the others in them, so all must start them in one order."""
    CALLS = -2
    """Calls of functions. They also wait for the earlier programs that span processes."""

    @property
    def awaited(self) -> tuple[Queue, ...]:
        """The queues whose earlier requests a request of this queue waits for."""
        return (self, Queue.PROCESSES) if self is Queue.CALLS else (self,)


QueueOf = Callable[["Session", Any], "Queue | None"]


class Handler(NamedTuple):
    """The handler of a kind of request.

    Attributes:
        kind: the kind, such as ``copy_arrays``.
        handle: the function.
        inputs: the fields of the request with handles that it uses.
        results: the fields of the request with handles, made by the client, of arrays that it makes. If the request
            fails, they get its error.
        futures: the fields of the request with handles, made by the client, of futures that it makes. If the request
            fails, they get its error.
        host_buffers: returns the handles of host buffers that the request needs.
        blocking: whether the function may wait, and runs in a thread of its own; or a function of the session and the
            request that returns it.
        counted: whether clients count the responses (``seq_num``).
        queue: returns the queue that a request is in, if any: it waits for all earlier ones of its queue.
    """

    kind: str
    handle: Handle
    inputs: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    futures: tuple[str, ...] = ()
    host_buffers: Callable[[Any], Iterable[int]] | None = None
    blocking: bool | _Predicate = False
    counted: bool = True
    queue: QueueOf | None = None

    def handles(self, request: Any) -> list[int]:
        """Return the handles that a request uses and makes."""
        return _handles(request, self.inputs + self.results + self.futures)

    def is_blocking(self, session: Session, request: Any) -> bool:
        """Whether the function may wait for this request, whose inputs are there."""
        if isinstance(self.blocking, bool):
            return self.blocking
        try:
            return self.blocking(session, request)
        except Exception:  # the function raises it too, for the response
            return False

    def queue_of(self, session: Session, request: Any) -> Queue | None:
        """Return the queue that a request is in; ``None`` if it waits for its inputs alone."""
        try:
            return None if self.queue is None else self.queue(session, request)
        except Exception:  # the function raises it too, for the response
            return None

    def result_handles(self, request: Any) -> list[int]:
        """Return the handles of the arrays that a request makes."""
        return _handles(request, self.results)

    def future_handles(self, request: Any) -> list[int]:
        """Return the handles of the futures that a request makes."""
        return _handles(request, self.futures)


HANDLERS: dict[str, Handler] = {}
"""The handler of each kind of request that is offered, by the name of its field in ``IfrtRequest``."""


def handles(
    kind: str,
    *,
    inputs: tuple[str, ...] = (),
    results: tuple[str, ...] = (),
    futures: tuple[str, ...] = (),
    host_buffers: Callable[[Any], Iterable[int]] | None = None,
    blocking: bool | _Predicate = False,
    counted: bool = True,
    queue: QueueOf | None = None,
) -> _Declare:
    """Declare a function the handler of a kind of request; the arguments are those of ``Handler``."""
    assert kind in KINDS or kind in OWN_KINDS, kind

    def declare(function: Handle) -> Handle:
        HANDLERS[f"{kind}_request"] = Handler(
            kind, function, inputs, results, futures, host_buffers, blocking, counted, queue
        )
        return function

    return declare


def _handles(request: Any, fields: tuple[str, ...]) -> list[int]:
    handles = []
    for field in fields:
        value = getattr(request, field)
        if isinstance(value, int):
            if value:
                handles.append(value)
        else:
            handles.extend(value)
    return handles
