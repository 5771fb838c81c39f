"""Rendezvous: the shares of one launch on several devices, which are given one by one, come together.

jaxlib starts a program on all of its devices in one call. So the shares wait here until the last one is given; to
whoever gives them it looks as if the collectives of the program waited, as they do on devices of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pjrt.api.errors import CancelledError, PjrtError
from pjrt.api.future import Future, Promise
from pjrt.devices.xla.buffer import Source


class Started:
    """What one device has of a launch that has started.

    Attributes:
        sources: the sources of its results.
        completion: done when the execution is.
    """

    __slots__ = ("completion", "sources")

    def __init__(self, sources: Sequence[Source], completion: Future[None]) -> None:
        self.sources = sources
        self.completion = completion


class Share:
    """One device's part of a launch that starts later.

    Attributes:
        sources: the sources of its arguments.
    """

    __slots__ = ("_promise", "sources")

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self._promise: Promise[Started] = Promise()

    @property
    def started(self) -> Future[Started]:
        """Done when the launch has started."""
        return self._promise.future

    def start(self, started: Started) -> None:
        """Says that it has."""
        self._promise.set_result(started)

    def fail(self, error: PjrtError) -> None:
        """Says that it never will."""
        self._promise.set_error(error)


class Rendezvous:
    """The incomplete launches of one executable.

    Args:
        places: the number of devices.
        start: called with the shares of a complete launch in the order of the devices, the numbers of the arguments
            that are not to be donated, and the launch id.
    """

    def __init__(self, places: int, start: Callable[[list[Share], frozenset[int], int], object]) -> None:
        self._places = places
        self._start = start
        self._lock = threading.Lock()
        self._waiting: list[_Launch] = []

    def join(self, place: int, share: Share, kept: frozenset[int], launch_id: int) -> None:
        """Gives one device's share to the first launch with this id that does not have it yet; the last one starts
        the launch.
        """
        with self._lock:
            launch = next((w for w in self._waiting if w.launch_id == launch_id and place not in w.shares), None)
            if launch is None:
                launch = _Launch(launch_id)
                self._waiting.append(launch)
            launch.shares[place] = share
            launch.kept |= kept
            if len(launch.shares) < self._places:
                return
            self._waiting.remove(launch)
        self._start([launch.shares[number] for number in range(self._places)], launch.kept, launch_id)

    def cancel(self, reason: str) -> None:
        """Fails the shares of launches that are not complete."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for launch in waiting:
            for share in launch.shares.values():
                share.fail(CancelledError(reason))


class _Launch:
    def __init__(self, launch_id: int) -> None:
        self.launch_id = launch_id
        self.kept: frozenset[int] = frozenset()
        self.shares: dict[int, Share] = {}
