"""Buffers whose array is not there yet, or never will be."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pjrt.api.device import Device
from pjrt.api.errors import FailedPreconditionError, PjrtError
from pjrt.api.future import Future
from pjrt.api.memory_space import MemorySpace
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.buffer import Source, XlaBuffer, waiting
from pjrt.devices.xla.future import flattened
from pjrt.devices.xla.shards import array_of

T = TypeVar("T")


class PendingBuffer(XlaBuffer):
    """A buffer whose array, or the error that comes instead, is promised.

    jaxlib has no arrays without a runtime behind them, so this is how a buffer waits for a transfer, for the other
    devices of its execution or for whoever fulfils an alias, and how it holds an error.
    """

    __slots__ = ("_arrival",)

    def __init__(self, arrival: Future[Source], array_type: ArrayType) -> None:
        self._arrival: Future[Source] | None = arrival
        self.type = array_type

    @staticmethod
    def failed(error: PjrtError, array_type: ArrayType) -> PendingBuffer:
        """A buffer that holds an error."""
        return PendingBuffer(Future.failed(error), array_type)

    @property
    def array(self) -> _jaxlib.Array | None:  # type: ignore[override]  # the slot of the base class is not used
        """The array if it has arrived."""
        arrival = self._arrival
        if arrival is None or not arrival.done() or arrival.exception() is not None:
            return None
        return array_of(arrival.result())

    @property
    def is_deleted(self) -> bool:
        array = self.array
        return self._arrival is None or (array is not None and array.is_deleted())

    def delete(self) -> None:
        self._arrival = None

    def source(self) -> Source:
        self.check_usable()
        array = self.array
        return self._promise() if array is None else array

    def hold(self) -> XlaBuffer:
        self.check_usable()
        return PendingBuffer(self._promise(), self.type)

    def consume(self) -> Source:
        taken = self.source()
        self._arrival = Future.completed(_jaxlib.DONATED)
        return taken

    def when_there(self, take: Callable[[_jaxlib.Array], T]) -> Future[T]:
        self.check_usable()
        client = self.client
        return flattened(self._promise(), lambda source: waiting(array_of(source), client, take))

    def copy_to(self, destination: Device | MemorySpace) -> XlaBuffer:
        self.check_usable()
        client = self.client
        kind = client.array_type_like(self.type, client.space_of(destination))
        copied = self._promise().then(lambda source: _jaxlib.copy(array_of(source), kind.memory_space))
        return PendingBuffer(copied, kind)

    def _promise(self) -> Future[Source]:
        if self._arrival is None:
            raise FailedPreconditionError(f"the buffer {self.type} on {self.device} was deleted in another thread")
        return self._arrival
