"""Buffers of the ``cpu`` device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pjrt.api.buffer import Buffer
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError
from pjrt.api.future import Future
from pjrt.api.layout import Layout, TiledLayout
from pjrt.api.memory_space import MemorySpace
from pjrt.api.shape_spec import expect_shape
from pjrt.devices.xla import _jaxlib, buffer_views, to_host
from pjrt.devices.xla._jaxlib import TURNS, collect_released
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.errors import converted
from pjrt.devices.xla.future import READY, ArrayFuture, nothing
from pjrt.host_memory.dlpack import HOST_DEVICE
from pjrt.host_memory.external_reference import HostExternalReference

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient
    from pjrt.devices.xla.device import XlaDevice
    from pjrt.devices.xla.memory_space import XlaMemorySpace

T = TypeVar("T")

Source = Any
"""Where an array is to be had: the array itself, a ``Part``, or a future of either."""


class XlaBuffer(Buffer):
    """An array of jaxlib's, with its type.

    Deleting a buffer only lets go of the array: whoever still computes with the memory or reads it holds it too, and
    the last to let go frees it.

    Attributes:
        array: the array; ``None`` if there is none, or none yet.
        type: what it is but for its value.
    """

    __slots__ = ("array", "type")

    array: _jaxlib.Array | None
    type: ArrayType

    def __init__(self, array: _jaxlib.Array | None, array_type: ArrayType) -> None:
        self.array = array
        self.type = array_type

    # What it is.

    @property
    def client(self) -> XlaClient:
        return self.type.client

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
    def dynamic_dimensions(self) -> tuple[int, ...]:
        return self.type.dynamic_dimensions

    @property
    def unpadded_shape(self) -> tuple[int, ...]:
        if not self.type.dynamic_dimensions:
            return self.type.shape
        shape: tuple[int, ...] = self.to_host().result().shape
        return shape

    @property
    def on_device_size(self) -> int:
        self.check_usable()
        if self.array is not None and 0 not in self.shape:  # which a token is, too, whose size jaxlib does not tell
            return _jaxlib.size_on_device(self.array)
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def device(self) -> XlaDevice:
        return self.type.memory_space.device

    @property
    def memory_space(self) -> XlaMemorySpace:
        return self.type.memory_space

    @property
    def is_on_cpu(self) -> bool:
        return True

    # Its life.

    @property
    def is_deleted(self) -> bool:
        return self.array is None or self.array.is_deleted()

    def delete(self) -> None:
        self.array = None

    def check_usable(self) -> None:
        """Returns if the buffer has a value, or will have one.

        Raises:
            FailedPreconditionError: it was deleted or donated, or its client closed.
        """
        self.client.check_open()
        if self.is_deleted:
            how = "deleted" if self.array is None else "donated to an execution"
            raise FailedPreconditionError(
                f"the buffer {self.type} on {self.device} was {how} and has no value any more"
            )

    def source(self) -> Source:
        """Where the array is to be had, whatever becomes of the buffer later.

        Raises:
            FailedPreconditionError: as ``check_usable``.
        """
        self.check_usable()
        return self.array

    def hold(self) -> XlaBuffer:
        """Another buffer of the same memory, which stays when this one is deleted."""
        return type(self)(self.source(), self.type)

    def consume(self) -> Source:
        """Takes the array away from the buffer, which is donated from now on."""
        taken = self.source()
        self.array = _jaxlib.DONATED
        return taken

    def ready(self) -> Future[None]:
        array = self.array
        if next(TURNS):
            collect_released()
        try:
            if not self.type.client.ended and array.is_ready():  # type: ignore[union-attr]  # None has no is_ready
                array.block_until_ready()  # type: ignore[union-attr]  # raises what the execution failed with
                return READY
        except Exception:
            pass  # the long way tells what it is
        return self.when_there(nothing)

    def when_there(self, take: Callable[[_jaxlib.Array], T]) -> Future[T]:
        """A future of what ``take`` makes of the array when it has its value."""
        self.check_usable()
        return waiting(self.array, self.client, take)

    # To the host.

    def to_host(
        self, out: np.ndarray[Any, Any] | None = None, *, layout: Layout | None = None
    ) -> Future[np.ndarray[Any, Any]]:
        if out is None and layout is None:
            return self.when_there(_jaxlib.view_of_dynamic if self.type.dynamic_dimensions else _jaxlib.view)
        return to_host.copy_array(self, out, layout)

    def copy_raw_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        return to_host.copy_raw(self, out, offset, size)

    def copy_raw_to_host_future(self, out: Future[Any], offset: int = 0, size: int | None = None) -> Future[None]:
        return to_host.copy_raw_later(self, out, offset, size)

    # To other places and other hands.

    def copy_to(self, destination: Device | MemorySpace) -> XlaBuffer:
        self.check_usable()
        client = self.client
        if not self.type.is_row_major:  # jaxlib before 0.10 copies the bytes and forgets how they lie
            straight = client.relaid(self, TiledLayout.row_major(self.ndim))
            return client.relaid(straight.copy_to(destination), self.type.layout)
        kind = client.array_type_like(self.type, client.space_of(destination))
        try:
            return XlaBuffer(_jaxlib.copy(self.array, kind.memory_space), kind)
        except Exception as error:
            raise converted(error) from error

    def bitcast(self, element_type: ElementType, shape: Sequence[int], layout: Layout | None = None) -> Buffer:
        return buffer_views.bitcast(self, element_type, expect_shape(shape), layout)

    def donate_with_control_dependency(self, dependency: Future[Any]) -> Buffer:
        return buffer_views.depend(self, dependency)

    def external_reference(self) -> HostExternalReference:
        return HostExternalReference(self.when_there(to_host.raw_bytes).result())

    def unsafe_pointer(self) -> int:
        self.check_usable()
        if self.array is None:
            raise FailedPreconditionError(
                "the buffer has no memory yet: what makes its value has not begun; wait for buffer.ready() first"
            )
        return _jaxlib.pointer(self.array)

    def raw(self) -> buffer_views.XlaRawBuffer:
        return buffer_views.XlaRawBuffer(self)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        return self.when_there(to_host.dlpack(dl_device, copy)).result()

    def __dlpack_device__(self) -> tuple[int, int]:
        return HOST_DEVICE


def waiting(array: _jaxlib.Array, client: XlaClient, take: Callable[[_jaxlib.Array], T]) -> Future[T]:
    """A future of what ``take`` makes of an array when it has its value, which a donation does not disturb."""
    if next(TURNS):
        collect_released()
    # Small programs are mostly done by now, and then no future has to be made that could wait.
    try:
        if array.is_ready() and not client.watcher.lost:
            array.block_until_ready()  # raises what the execution failed with
            return READY if take is nothing else Future.completed(take(array))
    except Exception:
        pass  # it failed, or is donated: the future below tells which
    future = ArrayFuture(array, client.watcher, take)
    if not future.done():
        client.watcher.donations.add(future)
    return future
