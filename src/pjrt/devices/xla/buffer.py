"""Buffers of the ``cpu`` device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.buffer import Buffer
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError
from pjrt.api.future import Future
from pjrt.api.layout import Layout
from pjrt.api.memory_space import MemorySpace
from pjrt.devices.xla import _raw
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.future import ArrayFuture

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient
    from pjrt.devices.xla.device import XlaDevice
    from pjrt.devices.xla.memory_space import XlaMemorySpace


class XlaBuffer(Buffer):
    """An array of jaxlib's, with its type."""

    __slots__ = ("array", "type")

    def __init__(self, array: _raw.Array | None, array_type: ArrayType) -> None:
        self.array = array
        self.type = array_type

    @property
    def client(self) -> XlaClient:
        return self.type.memory_space.client

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def element_type(self) -> ElementType:
        return self.type.element_type

    @property
    def layout(self) -> Layout:
        return self.type.layout

    @property
    def on_device_size(self) -> int:
        size: int = self._live().on_device_size_in_bytes()
        return size

    @property
    def device(self) -> XlaDevice:
        return self.type.memory_space.device

    @property
    def memory_space(self) -> XlaMemorySpace:
        return self.type.memory_space

    @property
    def is_on_cpu(self) -> bool:
        return True

    @property
    def is_deleted(self) -> bool:
        return self.array is None or self.array.is_deleted()

    def delete(self) -> None:
        # Only let go of: whoever still reads the memory holds it, and the last to let go frees it.
        self.array = None

    def ready(self) -> Future[None]:
        return ArrayFuture(self._live(), self.client.notifier, _nothing)

    def to_host(
        self, out: np.ndarray[Any, Any] | None = None, *, layout: Layout | None = None
    ) -> Future[np.ndarray[Any, Any]]:
        return ArrayFuture(self._live(), self.client.notifier, _raw.view)

    def copy_to(self, destination: Device | MemorySpace) -> XlaBuffer:
        array_type = self.client.array_type(self.type.shape, self.type.element_type, self.client.space_of(destination))
        return XlaBuffer(_raw.copy(self._live(), array_type.memory_space), array_type)

    def _live(self) -> _raw.Array:
        """The array.

        Raises:
            FailedPreconditionError: the buffer was deleted or donated, or the client closed.
        """
        self.client.check_open()
        array = self.array
        if array is None or array.is_deleted():
            raise gone(self)
        return array


def gone(buffer: XlaBuffer) -> FailedPreconditionError:
    """The error of using a buffer that was deleted or donated."""
    how = "deleted" if buffer.array is None else "donated to an execution"
    return FailedPreconditionError(f"the buffer {buffer.type} was {how} and has no value any more")


def _nothing(_: _raw.Array) -> None:
    return None
