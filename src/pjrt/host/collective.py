"""Collectives among the devices of this process: each device gets the values of all, and does the rest itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pjrt.host_memory.array import HostArray

Combine = Callable[[Sequence[Sequence[HostArray]]], Sequence[HostArray]]
"""A function that combines rows of arrays, one row for each participant, to one row."""


class Collective(Protocol):
    """One collective of a launch, as one of its devices sees it. Each device calls one method of it, once.

    Values must not be written to afterwards, neither by the device that gave them nor by those that get them.
    """

    def rendezvous(self, value: Any) -> list[Any]:
        """Return the values of all participants, in their order."""

    def all_reduce(
        self, arrays: Sequence[HostArray], combine: Combine, reduction: str | None = None
    ) -> Sequence[HostArray]:
        """Return the arrays of all participants, combined.

        Args:
            arrays: those of this device.
            combine: combines the arrays of several participants, given as one row for each.
            reduction: ``add``, ``multiply``, ``minimum`` or ``maximum``, if ``combine`` does nothing else. Then large
                arrays are combined on their way between processes, in any order.
        """

    def reduce_scatter(self, parts: Sequence[HostArray], combine: Combine, reduction: str | None = None) -> HostArray:
        """Return this device's part of the values of all participants, combined.

        Args:
            parts: the parts of this device's value, one for each participant.
            combine, reduction: as ``all_reduce`` has them.
        """

    def all_to_all(self, parts: Sequence[HostArray]) -> list[HostArray]:
        """Return a part from each participant: the part that is for this one. All parts have one type.

        Args:
            parts: those of this device, one for each participant.
        """

    def broadcast(self, value: HostArray) -> HostArray:
        """Return the value of the first participant. All values have one type."""

    def permute(self, value: HostArray, pairs: Sequence[tuple[int, int]]) -> HostArray | None:
        """Return the value of the participant that sends to this one; ``None`` if none does.

        Args:
            value: that of this device. All values have one type.
            pairs: the positions of the sender and of the receiver among the participants.
        """


class LaunchCollective:
    """A collective among devices of this process.

    Args:
        exchange: returns the values of all participants for that of this device.
        me: the position of this device among the participants.
    """

    def __init__(self, exchange: Callable[[Any], list[Any]], me: int) -> None:
        self.rendezvous, self._me = exchange, me

    def all_reduce(
        self, arrays: Sequence[HostArray], combine: Combine, reduction: str | None = None
    ) -> Sequence[HostArray]:
        """Return the arrays of all participants, combined."""
        return combine(self.rendezvous(arrays))

    def reduce_scatter(self, parts: Sequence[HostArray], combine: Combine, reduction: str | None = None) -> HostArray:
        """Return this device's part of the values of all participants, combined."""
        return combine([[row[self._me]] for row in self.rendezvous(parts)])[0]

    def all_to_all(self, parts: Sequence[HostArray]) -> list[HostArray]:
        """Return a part from each participant."""
        return [row[self._me] for row in self.rendezvous(parts)]

    def broadcast(self, value: HostArray) -> HostArray:
        """Return the value of the first participant."""
        first: HostArray = self.rendezvous(value)[0]
        return first

    def permute(self, value: HostArray, pairs: Sequence[tuple[int, int]]) -> HostArray | None:
        """Return the value of the participant that sends to this one; ``None`` if none does."""
        values = self.rendezvous(value)
        return next((values[source] for source, target in pairs if target == self._me), None)
