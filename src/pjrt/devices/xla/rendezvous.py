"""The rendezvous of launches whose devices get their arguments one by one.

jaxlib starts a program on all of its devices in one call. So the contributions wait here until the last device has its
arguments. To the threads that contribute it looks as if the collectives of the program waited, as they do on separate
devices. Threads that each compile the same program for themselves, as those of PyTorch/XLA do, meet here too.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pjrt.api.errors import CancelledError
from pjrt.api.future import Future, Promise
from pjrt.devices.xla.shards import Source


class Started(NamedTuple):
    """One device's part of a launch that has started."""

    sources: Sequence[Source]
    """The sources of its results."""
    completion: Future[None]
    """A future that is done when the execution is."""


class Contribution:
    """One device's part of a launch that starts later.

    Attributes:
        sources: the sources of its arguments.
        start: the promise that is kept when the launch starts.
    """

    __slots__ = ("sources", "start")

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.start: Promise[Started] = Promise()


class Joiner(Protocol):
    """An executor that contributes to launches, and can start them."""

    def start_when_there(
        self, contributions: Sequence[Contribution], non_donatable: frozenset[int], launch_id: int
    ) -> None:
        """Start a launch when the arguments are available.

        Args:
            contributions: those of all devices, in the order of the devices.
            non_donatable: the numbers of the arguments that no device donates.
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
        self, place: int, contribution: Contribution, non_donatable: frozenset[int], launch_id: int, joiner: Joiner
    ) -> None:
        """Give one device's contribution to the first launch with this id that does not have it yet.

        Args:
            place: the index of the device.
            contribution: its contribution.
            non_donatable: the numbers of the arguments that are not donated.
            launch_id: the launch.
            joiner: the executor that contributes; it starts the launch if this contribution is the last one.
        """
        with self._lock:
            launch = next((w for w in self._waiting if w.launch_id == launch_id and place not in w.contributions), None)
            if launch is None:
                launch = _Launch(launch_id)
                self._waiting.append(launch)
            launch.contributions[place] = contribution
            launch.non_donatable |= non_donatable
            launch.joiners.add(joiner)
            if len(launch.contributions) < self._places:
                return
            self._waiting.remove(launch)
        contributions = [launch.contributions[number] for number in range(self._places)]
        joiner.start_when_there(contributions, launch.non_donatable, launch_id)

    def cancel(self, joiner: Joiner, reason: str) -> None:
        """Fail the incomplete launches that an executor has contributed to."""
        with self._lock:
            cancelled = [launch for launch in self._waiting if joiner in launch.joiners]
            self._waiting = [launch for launch in self._waiting if joiner not in launch.joiners]
        for launch in cancelled:
            for contribution in launch.contributions.values():
                contribution.start.set_error(CancelledError(reason))


class _Launch:
    """A launch that lacks the arguments of at least one device."""

    def __init__(self, launch_id: int) -> None:
        self.launch_id = launch_id
        self.non_donatable: frozenset[int] = frozenset()
        self.joiners: set[Joiner] = set()
        self.contributions: dict[int, Contribution] = {}
