"""Collectives: the exchange of bytes and arrays between the processes of a job, for the devices of one client."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt.api.errors import PjrtError
from pjrt.api.key_value_store import KeyValueStore
from pjrt.host_memory.array import HostArray

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Processes that exchange values: one device of each, which stands for all devices of its process that take part.

    Attributes:
        members: the process index, and the number of the device among those of its process, in an order that is the
            same in all of these processes.
        index: the position of this process among the members.
    """

    members: tuple[tuple[int, int], ...]
    index: int

    @property
    def process_indices(self) -> tuple[int, ...]:
        """The process indices of the members."""
        return tuple(process for process, _ in self.members)


class Collectives(abc.ABC):
    """The exchange of values between processes: the part of collectives that needs a network.

    The host runtime calls it once for all devices of this process that take part in a collective. The members of a
    group make the same calls in the same order, and one at a time. Calls for different groups overlap, and come in any
    order: two groups that differ in a device must not wait for each other.

    Only ``gather``, ``fail`` and ``close`` are required. The others are for large arrays. Where one is missing,
    ``gather`` takes its place, which moves more bytes.

    A method waits for the others as long as it takes. It raises a ``PjrtError`` that names the process if one is lost
    or has failed, and ends soon after ``fail`` was called in any of the processes.
    """

    @abc.abstractmethod
    def gather(self, group: ProcessGroup, message: Bytes) -> list[Bytes]:
        """Return the messages of all members, in the order of the group; they may have different lengths.

        The calls for a group all begin with this one. So members whose programs differ meet here, and see each other's
        messages.

        Args:
            group: the processes.
            message: the message of this process.
        """

    def can_reduce(self, reduction: str, dtype: np.dtype[Any]) -> bool:
        """Whether ``all_reduce`` and ``reduce_scatter`` combine values of an element type.

        Args:
            reduction: ``add``, ``multiply``, ``minimum`` or ``maximum``.
            dtype: the element type.
        """
        return False

    def all_reduce(self, group: ProcessGroup, array: HostArray, reduction: str) -> HostArray:
        """Return the arrays of all members, combined: an array of the same type and shape."""
        raise NotImplementedError

    def reduce_scatter(self, group: ProcessGroup, array: HostArray, reduction: str) -> HostArray:
        """Return this member's row of the combined arrays, which have a row for each member."""
        raise NotImplementedError

    can_exchange: bool = False
    """Whether ``all_to_all`` and ``permute`` are there."""

    def all_to_all(self, group: ProcessGroup, rows: Bytes) -> Bytes:
        """Return a row from each member: the row that is for this one. All rows have one length."""
        raise NotImplementedError

    def permute(self, group: ProcessGroup, message: Bytes, pairs: Sequence[tuple[int, int]]) -> Bytes:
        """Return the message of the member that sends to this one, zeros if none does. All messages have one length.

        Args:
            group: the processes.
            message: the message of this process.
            pairs: the positions of the sender and of the receiver; each occurs once among the senders and once among
                the receivers.
        """
        raise NotImplementedError

    def failure(self, group: ProcessGroup) -> PjrtError | None:
        """Return the error with which exchanges in a group end, or will never end; ``None`` as long as there is none.

        It is asked for about ten times a second while a call is under way.
        """
        return None

    @abc.abstractmethod
    def fail(self, error: PjrtError) -> None:
        """End all exchanges, because a program failed here: the others must not wait for this process, and get the
        error.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """End all exchanges. Nothing is under way."""


CollectivesFactory = Callable[[str, KeyValueStore, int, Sequence[int]], Collectives]
"""A function that makes the collectives of a client: ``make(name, key_value_store, process_index, device_counts)``.

It is called in all processes, when the client is made. The name is the same in all of them, and the store is for this
client alone. ``device_counts`` has the number of devices of each process.
"""
