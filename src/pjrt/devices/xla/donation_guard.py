"""The guard of donations: the futures and launches that wait, and use an array whose memory an execution takes."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pjrt.devices.xla import _jaxlib

if TYPE_CHECKING:
    from pjrt.devices.xla.future import ArrayFuture

T = TypeVar("T")


class DonationGuard:
    """The futures that wait for arrays which may be donated before they have their value.

    An execution that donates takes the memory at once, whatever waits for it. So a future that only waits until the
    array is ready waits for another result of the same execution, or else for the results of the execution that
    donates: they come later, and fail with the array. A future that reads the array does so before the execution
    starts.

    A launch that waits for one of its arguments uses the values that the others have now. It may wait for what the
    caller does after the donation, so the donation cannot wait for it: the execution that donates takes a copy.

    Attributes:
        lock: held while an execution donates, until all waiting futures know.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._waiting: weakref.WeakSet[ArrayFuture[Any]] = weakref.WeakSet()
        self._held: Counter[int] = Counter()

    def hold(self, arrays: Sequence[_jaxlib.Array]) -> None:
        """Keep the values of arrays for a launch that waits; the launch keeps the arrays alive."""
        with self.lock:
            self._held.update(map(id, arrays))

    def release(self, arrays: Sequence[_jaxlib.Array]) -> None:
        """End a hold."""
        with self.lock:
            self._held.subtract(map(id, arrays))
            self._held = +self._held

    def holds(self, arrays: Sequence[_jaxlib.Array]) -> bool:
        """Whether a launch that waits uses one of the arrays."""
        return bool(self._held) and any(id(array) in self._held for array in arrays)

    def add(self, future: ArrayFuture[Any]) -> None:
        """Guard a future that waits for an array that is not ready."""
        with self.lock:
            self._waiting.add(future)

    @property
    def has_waiting(self) -> bool:
        """Whether there may be any such future, or launch."""
        return len(self._waiting) > 0 or bool(self._held)

    def donate(self, donated: Sequence[_jaxlib.Array], execute: Callable[[], tuple[_jaxlib.Array, T]]) -> T:
        """Donate arrays to an execution.

        Args:
            donated: the arrays.
            execute: starts the execution, and returns one of its results and the value to return.
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
                        future.follow(successor, donated)
                    return outcome
            # Without the lock: a reader may wait for a function of the host that needs it.
            for future in readers:
                future.exception()
