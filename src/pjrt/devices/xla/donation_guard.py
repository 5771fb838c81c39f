"""The guard of donations: futures that wait for an array whose memory an execution takes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pjrt.devices.xla import _jaxlib

if TYPE_CHECKING:
    from pjrt.devices.xla.future import ArrayFuture

T = TypeVar("T")


class DonationGuard:
    """The futures that wait for arrays which may be donated before they have their value.

    An execution that donates takes the memory at once, whoever waits. So whoever only wants to know when the array is
    ready is told when the execution's results are, which comes after and fails with it; and whoever wants to read it
    does so first.

    Attributes:
        lock: held while an execution donates, until everybody who waited knows.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._waiting: weakref.WeakSet[ArrayFuture[Any]] = weakref.WeakSet()

    def add(self, future: ArrayFuture[Any]) -> None:
        """A future that waits for an array that is not ready."""
        with self.lock:
            self._waiting.add(future)

    @property
    def has_waiting(self) -> bool:
        """Whether there may be any such future."""
        return len(self._waiting) > 0

    def carry_out(self, donated: Sequence[_jaxlib.Array], execute: Callable[[], tuple[_jaxlib.Array, T]]) -> T:
        """Donates arrays to an execution.

        Args:
            donated: the arrays.
            execute: starts the execution; gives one of its results, and what is returned.
        """
        while True:
            with self.lock:
                for future in [f for f in self._waiting if f.is_settled]:
                    self._waiting.discard(future)
                concerned = [f for f in self._waiting if any(f.waits_for(array) for array in donated)]
                readers = [future for future in concerned if future.needs_value and not future.done()]
                if not readers:
                    successor, outcome = execute()
                    for future in concerned:
                        future.follow(successor)
                    return outcome
            # Without the lock: what they wait for may be a function of the host that needs it.
            for future in readers:
                future.exception()
