"""The rendezvous of launches whose devices get their arguments one by one.

jaxlib starts a program on all of its devices in one call. So the contributions wait here until the last device has its
arguments. To the threads that contribute it looks as if the collectives of the program waited, as they do on separate
devices. Threads that each compile the same program for themselves, as those of PyTorch/XLA do, meet here too.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from pjrt.api.errors import CancelledError, PjrtError
from pjrt.api.future import Future, Promise
from pjrt.devices.xla.shards import Source


class Started:
    """One device's part of a launch that has started.

    Attributes:
        sources: the sources of its results.
        completion: done when the execution is.
    """

    __slots__ = ("completion", "sources")

    def __init__(self, sources: Sequence[Source], completion: Future[None]) -> None:
        self.sources = sources
        self.completion = completion


class Contribution:
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
        """A future that is done when the launch has started."""
        return self._promise.future

    def start(self, started: Started) -> None:
        """Complete ``started``."""
        self._promise.set_result(started)

    def fail(self, error: PjrtError) -> None:
        """Fail ``started``: the launch will never start."""
        self._promise.set_error(error)


class Joiner(Protocol):
    """An executor that contributes to launches, and can start them."""

    def start_when_there(self, contributions: Sequence[Contribution], kept: frozenset[int], launch_id: int) -> None:
        """Start a launch when the arguments are available.

        Args:
            contributions: those of all devices, in the order of the devices.
            kept: the numbers of the arguments that no device donates.
            launch_id: the launch.
        """


class Rendezvous:
    """The incomplete launches of one program, compiled once or several times.

    Args:
        places: the number of devices.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._lock = threading.Lock()
        self._waiting: list[_Launch] = []

    def join(
        self, place: int, contribution: Contribution, kept: frozenset[int], launch_id: int, joiner: Joiner
    ) -> None:
        """Give one device's contribution to the first launch with this id that does not have it yet.

        Args:
            place: the index of the device.
            contribution: its contribution.
            kept: the numbers of the arguments that are not donated.
            launch_id: the launch.
            joiner: the executor that contributes; it starts the launch if this contribution is the last one.
        """
        with self._lock:
            launch = next((w for w in self._waiting if w.launch_id == launch_id and place not in w.contributions), None)
            if launch is None:
                launch = _Launch(launch_id)
                self._waiting.append(launch)
            launch.contributions[place] = contribution
            launch.kept |= kept
            launch.joiners.add(joiner)
            if len(launch.contributions) < self._places:
                return
            self._waiting.remove(launch)
        contributions = [launch.contributions[number] for number in range(self._places)]
        joiner.start_when_there(contributions, launch.kept, launch_id)

    def cancel(self, joiner: Joiner, reason: str) -> None:
        """Fail the incomplete launches that an executor has contributed to."""
        with self._lock:
            cancelled = [launch for launch in self._waiting if joiner in launch.joiners]
            self._waiting = [launch for launch in self._waiting if joiner not in launch.joiners]
        for launch in cancelled:
            for contribution in launch.contributions.values():
                contribution.fail(CancelledError(reason))


class _Launch:
    """A launch that lacks the arguments of at least one device."""

    def __init__(self, launch_id: int) -> None:
        self.launch_id = launch_id
        self.kept: frozenset[int] = frozenset()
        self.joiners: set[Joiner] = set()
        self.contributions: dict[int, Contribution] = {}
