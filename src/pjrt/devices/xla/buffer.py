"""Buffers of the ``cpu`` device: with their array, with an array that comes later, and as a shard of a larger one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, unimplemented
from pjrt.api.future import Future
from pjrt.api.shape_spec import Layout, TiledLayout, expect_layout, expect_shape
from pjrt.devices.xla import _jaxlib, to_host
from pjrt.devices.xla._jaxlib import TURNS, collect_released, converted
from pjrt.devices.xla._short_path import ArrayHolder
from pjrt.devices.xla.device import memory_space_of
from pjrt.devices.xla.future import flattened, nothing, when_ready
from pjrt.devices.xla.shards import Part, Shards, Source, array_of
from pjrt.host_memory.external import DLPACK_HOST_DEVICE

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.api.device import Device, MemorySpace
    from pjrt.devices.xla.array_type import ArrayType
    from pjrt.devices.xla.device import XlaDevice
    from pjrt.devices.xla.memory_space import XlaMemorySpace
    from pjrt.devices.xla.raw_buffer import XlaRawBuffer
    from pjrt.host_memory.external import HostExternalReference

T = TypeVar("T")


class XlaBuffer(ArrayHolder, Buffer):
    """An array of jaxlib with its type.

    To delete a buffer is only to drop the array. Computations and reads under way hold it too, and its memory is freed
    when the last of them drops it.

    Attributes:
        array: the array; ``None`` after ``delete``.
        type: the type.
    """

    __slots__ = ()

    array: _jaxlib.Array | None
    type: ArrayType

    def __init__(self, array: _jaxlib.Array | None, array_type: ArrayType) -> None:
        self.array = array
        self.type = array_type

    @property
    def client(self) -> Client:
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
        array = self.available_array()
        if array is not None and 0 not in self.shape:  # jaxlib does not know the size of a token, which has a zero here
            return _jaxlib.size_on_device(array)
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

    # The life of the buffer.

    def available_array(self) -> _jaxlib.Array | None:
        """Return the array if there is one already; ``None`` also after ``delete``."""
        return self.array

    @property
    def is_deleted(self) -> bool:
        return self.array is None or self.array.is_deleted()

    def delete(self) -> None:
        self.array = None

    def check_usable(self) -> None:
        """Return if the buffer has a value, or will have one.

        Raises:
            FailedPreconditionError: the buffer was deleted or donated, or its client was closed.
        """
        self.type.runtime.check_open()
        if self.is_deleted:
            how = "deleted" if self.available_array() is None else "donated to an execution"
            raise FailedPreconditionError(
                f"the buffer {self.type} on {self.device} was {how} and has no value any more"
            )

    def source(self) -> Source:
        """Return the source of the array, which stays valid when the buffer is deleted.

        Raises:
            FailedPreconditionError: as ``check_usable``.
        """
        self.check_usable()
        return self.array

    def hold(self) -> XlaBuffer:
        """Return another buffer of the same memory, which stays when this one is deleted."""
        return type(self)(self.source(), self.type)

    def consume(self) -> Source:
        """Take the array away from the buffer, which is donated from now on, and return its source."""
        source = self.source()
        self.array = _jaxlib.DONATED
        return source

    def when_there(self, take: Callable[[_jaxlib.Array], T]) -> Future[T]:
        """Return a future of the result of ``take`` for the array when it has its value."""
        self.check_usable()
        return when_ready(self.array, self.type.runtime.watcher, take)

    # To the host.

    def to_host(
        self, out: np.ndarray[Any, Any] | None = None, *, layout: Layout | None = None
    ) -> Future[np.ndarray[Any, Any]]:
        if out is None and layout is None:
            return self.when_there(_jaxlib.view_of_dynamic if self.type.dynamic_dimensions else _jaxlib.view)
        return to_host.copy_array(self, out, layout)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        type_ = self.type
        # NumPy comes here where the buffer protocol does not serve it. The common case first, without a future: the
        # value is there, and nothing asks for another form of it.
        if dtype is None and not copy and not type_.dynamic_dimensions and not type_.runtime.ended:
            if next(TURNS):
                collect_released()
            try:
                array = self.array
                if array.is_ready() and not type_.runtime.watcher.lost:  # type: ignore[union-attr]  # None has no is_ready
                    return _jaxlib.view(array)
            except Exception:
                pass  # the array failed, is gone or is not there yet: the future below finds out which
        return super().__array__(dtype, copy)

    def copy_raw_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        return to_host.copy_raw(self, out, offset, size)

    def copy_raw_to_host_future(self, out: Future[Any], offset: int = 0, size: int | None = None) -> Future[None]:
        return to_host.copy_raw_later(self, out, offset, size)

    def external_reference(self) -> HostExternalReference:
        from pjrt.host_memory.external import HostExternalReference

        return HostExternalReference(self.when_there(to_host.raw_bytes).result())

    def unsafe_pointer(self) -> int:
        self.check_usable()
        array = self.available_array()
        if array is None:
            raise FailedPreconditionError(
                "the buffer has no memory yet, because the work that fills it has not begun; wait for buffer.ready() "
                "first"
            )
        return when_ready(array, self.type.runtime.watcher, _jaxlib.pointer).result()

    def raw(self) -> XlaRawBuffer:
        from pjrt.devices.xla.raw_buffer import XlaRawBuffer

        return XlaRawBuffer(self)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        return self.when_there(to_host.dlpack(dl_device, copy)).result()

    def __dlpack_device__(self) -> tuple[int, int]:
        return DLPACK_HOST_DEVICE

    # To other buffers.

    def copy_to(self, destination: Device | MemorySpace) -> XlaBuffer:
        self.check_usable()
        target = self.type.runtime.type_in(self.type, memory_space_of(destination, self.type.runtime))
        try:
            if self.type.is_row_major:
                return XlaBuffer(_jaxlib.copy(self.array, target.memory_space.placement), target)
            from pjrt.devices.xla.relayout import relaid  # here: few buffers need it

            # jaxlib 0.9 copies the bytes of another layout but not the layout: the copy goes by way of row-major.
            straight = XlaBuffer(*relaid(self.array, self.type, TiledLayout.row_major(self.ndim))).copy_to(destination)
            return XlaBuffer(*relaid(straight.array, straight.type, self.type.layout))
        except Exception as error:
            raise converted(error) from error

    def bitcast(self, element_type: ElementType, shape: Sequence[int], layout: Layout | None = None) -> XlaBuffer:
        target = self.type.runtime.array_type(expect_shape(shape), ElementType.of(element_type), self.memory_space)
        if target.is_packed or self.type.is_packed:
            raise unimplemented("cpu", "Buffer.bitcast of elements of less than a byte", "copy by way of the host")
        if layout is not None and expect_layout(layout) != TiledLayout.row_major(len(target.shape)):
            raise unimplemented("cpu", "Buffer.bitcast to a layout that is not row-major")
        size, target_size = self.on_device_size, math.prod(target.shape) * target.aval.dtype.itemsize
        if size != target_size:
            raise InvalidArgumentError(
                f"expected a type of the same size as {self.type}, {size} bytes, found {target} of {target_size} bytes"
            )

        def reinterpret(array: _jaxlib.Array) -> _jaxlib.Array:
            memory = to_host.raw_bytes(array).view(target.aval.dtype).reshape(target.shape)
            return _jaxlib.put(memory, target.aval, target.memory_space.placement, _jaxlib.ZERO_COPY)

        held = self.hold()
        self.consume()
        return PendingBuffer(held.when_there(reinterpret), target)

    def donate_with_control_dependency(self, dependency: Future[Any]) -> XlaBuffer:
        expect(dependency, Future, "a future to wait for")
        source = self.consume()
        if isinstance(source, Future):
            return PendingBuffer(flattened(dependency, lambda _: source), self.type)
        return PendingBuffer(dependency.then(lambda _: source), self.type)


class PendingBuffer(XlaBuffer):
    """A buffer whose array comes later, or whose error comes instead.

    jaxlib has no arrays without an execution or a transfer behind them. So this is the buffer of a transfer in pieces,
    of an execution that waits for its other devices, of an alias that is not fulfilled, and of an error.
    """

    __slots__ = ("_arrival",)

    def __init__(self, arrival: Future[Source], array_type: ArrayType) -> None:
        self._arrival: Future[Source] | None = arrival
        self.type = array_type

    @staticmethod
    def failed(error: PjrtError, array_type: ArrayType) -> PendingBuffer:
        """Return a buffer that holds an error."""
        return PendingBuffer(Future.failed(error), array_type)

    @property
    def array(self) -> _jaxlib.Array | None:  # type: ignore[override]  # the slot of the base class is not used
        """The array.

        Raises:
            AttributeError: the array has not arrived. The short path of executions reads this attribute, and leaves
                such an argument to the long path.
        """
        array = self.available_array()
        if array is None:
            raise AttributeError("the buffer has no array yet")
        return array

    def available_array(self) -> _jaxlib.Array | None:
        arrival = self._arrival
        if arrival is None or not arrival.done() or arrival.exception() is not None:
            return None
        return array_of(arrival.result())

    @property
    def is_deleted(self) -> bool:
        array = self.available_array()
        return self._arrival is None or (array is not None and array.is_deleted())

    def delete(self) -> None:
        self._arrival = None

    def source(self) -> Source:
        self.check_usable()
        array = self.available_array()
        return self._promise() if array is None else array

    def hold(self) -> XlaBuffer:
        self.check_usable()
        return PendingBuffer(self._promise(), self.type)

    def consume(self) -> Source:
        source = self.source()
        self._arrival = Future.completed(_jaxlib.DONATED)
        return source

    def when_there(self, take: Callable[[_jaxlib.Array], T]) -> Future[T]:
        self.check_usable()
        watcher = self.type.runtime.watcher
        return flattened(self._promise(), lambda source: when_ready(array_of(source), watcher, take))

    def copy_to(self, destination: Device | MemorySpace) -> XlaBuffer:
        self.check_usable()
        target = self.type.runtime.type_in(self.type, memory_space_of(destination, self.type.runtime))
        copied = self._promise().then(lambda source: _jaxlib.copy(array_of(source), target.memory_space.placement))
        return PendingBuffer(copied, target)

    def _promise(self) -> Future[Source]:
        if self._arrival is None:
            raise FailedPreconditionError(f"the buffer {self.type} on {self.device} was deleted in another thread")
        return self._arrival


class ShardBuffer(XlaBuffer):
    """One device's part of a result, which is taken apart only when its array is needed."""

    __slots__ = ("_part",)

    def __init__(self, part: Part, array_type: ArrayType) -> None:
        self._part: Part | None = part
        self.type = array_type

    @property
    def array(self) -> _jaxlib.Array | None:  # type: ignore[override]  # the slot of the base class is not used
        """The array of this device."""
        part = self._part
        return None if part is None else part.shards.part(part.index)

    @property
    def is_deleted(self) -> bool:
        part = self._part
        return part is None or part.shards.array.is_deleted()

    def delete(self) -> None:
        self._part = None

    def source(self) -> Source:
        self.check_usable()
        return self._part

    def consume(self) -> Source:
        source = self.source()
        self._part = Part(Shards(_jaxlib.DONATED), 0)
        return source

    def ready(self) -> Future[None]:
        # All parts of a result are ready together, so the whole array can be asked, and stays whole.
        return when_ready(self.source().shards.array, self.type.runtime.watcher, nothing)
