"""Buffers of the ``cpu`` device, and the ways from the host's memory into them and back."""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pjrt.api.buffer import Buffer, HostBufferSemantics, RawBuffer
from pjrt.api.checks import expect, expect_array, expect_callable, expect_out, unexpected
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, unimplemented
from pjrt.api.future import Future
from pjrt.api.shape_spec import Layout, TiledLayout, expect_layout, expect_shape
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla._jaxlib import TURNS, collect_released, converted
from pjrt.devices.xla._short_path import ArrayHolder, Putter
from pjrt.devices.xla.device import memory_space_of
from pjrt.devices.xla.future import READY, flattened, nothing, when_ready
from pjrt.host_memory.array import HostArray, aligned_empty, order_of, source_bytes, target_bytes
from pjrt.host_memory.external import DLPACK_HOST_DEVICE, ExternalMemory, check_dlpack_device, notify_owner

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.api.device import Device, MemorySpace
    from pjrt.devices.xla.device import XlaDevice, XlaMemorySpace
    from pjrt.devices.xla.future import CompletionWatcher
    from pjrt.devices.xla.runtime import ArrayType
    from pjrt.host_memory.external import HostExternalReference


T = TypeVar("T")

Source = Any
"""The origin of an array that a buffer or an argument has: the array itself, a ``Part``, or a future of either."""


class Shards:
    """An array with a shard on each of several devices.

    jaxlib takes some ten microseconds a shard to take it apart, and most results go whole into the next execution.

    Args:
        array: the array of all devices.
        device_ids: the ids of the devices, also of those of other processes, in the array's order.

    Attributes:
        array: the array of all devices.
        device_ids: the ids of the devices.
        is_ready: whether the array is known to have its value.
    """

    __slots__ = ("_parts", "array", "device_ids", "is_ready")

    _lock = threading.Lock()

    def __init__(self, array: _jaxlib.Array, device_ids: Sequence[int] = ()) -> None:
        self.array = array
        self.device_ids = device_ids
        self.is_ready = False
        self._parts: list[_jaxlib.Array] | None = None

    def part(self, index: int) -> _jaxlib.Array:
        """Return the array of one device."""
        if self.array.is_deleted():
            return self.array
        if self._parts is None:
            with Shards._lock:
                if self._parts is None:
                    self._parts = _jaxlib.shards(self.array)
        return self._parts[index]

    @property
    def is_apart(self) -> bool:
        """Whether the array was taken apart, so that a part of it may be in use."""
        return self._parts is not None


class Part:
    """One device's place in ``Shards``: its index among the devices of this process."""

    __slots__ = ("index", "shards")

    def __init__(self, shards: Shards, index: int) -> None:
        self.shards = shards
        self.index = index


def array_of(source: Source) -> _jaxlib.Array:
    """Return the array behind a source that is available."""
    if isinstance(source, Future):
        source = source.result()
    if isinstance(source, Part):
        return source.shards.part(source.index)
    return source


def arrays_in_use(source: Source) -> list[_jaxlib.Array]:
    """Return the arrays through which the memory behind an available source may be in use."""
    if isinstance(source, Future):
        source = source.result()
    if not isinstance(source, Part):
        return [source]
    whole = source.shards.array
    return [whole, array_of(source)] if source.shards.is_apart else [whole]


def gathered(column: Sequence[Source], device_ids: Sequence[int], aval: _jaxlib.Aval, sharding: Any) -> _jaxlib.Array:
    """Return the array of all devices from one available source for each device of this process."""
    column = [source.result() if isinstance(source, Future) else source for source in column]
    first = column[0]
    # The devices of this process can be those of both arrays, although one of them has shards in other processes, too.
    same = isinstance(first, Part) and (first.shards.device_ids is device_ids or first.shards.device_ids == device_ids)
    if same and all(
        isinstance(source, Part) and source.shards is first.shards and source.index == number
        for number, source in enumerate(column)
    ):
        return first.shards.array
    return _jaxlib.assembled([array_of(source) for source in column], aval, sharding)


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

    def carried_out(self, work: Callable[[_jaxlib.Array], T]) -> Future[T]:
        """Return what ``when_there`` returns, of work that is done even if no caller waits for it."""
        future = self.when_there(work)
        # A future with a callback is watched, and the watcher does the work.
        future.add_done_callback(lambda _: None)
        return future

    # To the host.

    def to_host(
        self, out: np.ndarray[Any, Any] | None = None, *, layout: Layout | None = None
    ) -> Future[np.ndarray[Any, Any]]:
        if out is not None:
            target = expect_out(out, self.shape, self.dtype)
        elif layout is not None:
            target = aligned_empty(self.shape, self.dtype, order_of(layout, self.shape, self.element_type))
        else:
            return self.when_there(_jaxlib.view_of_dynamic if self.type.dynamic_dimensions else _jaxlib.view)

        def copy(array: _jaxlib.Array) -> HostArray:
            np.copyto(target, _jaxlib.view(array))
            return target

        return self.carried_out(copy)

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
        target = target_bytes(out, offset, size, self.on_device_size)

        def copy(array: _jaxlib.Array) -> None:
            target[:] = _raw_bytes(array)[offset : offset + target.nbytes]

        return self.carried_out(copy)

    def copy_raw_to_host_future(self, out: Future[Any], offset: int = 0, size: int | None = None) -> Future[None]:
        expect(out, Future, "a future of the memory to copy to")
        held = self.hold()
        return flattened(out, lambda memory: held.copy_raw_to_host(memory, offset, size))

    def external_reference(self) -> HostExternalReference:
        from pjrt.host_memory.external import HostExternalReference

        return HostExternalReference(self.when_there(_raw_bytes).result())

    def unsafe_pointer(self) -> int:
        self.check_usable()
        array = self.available_array()
        if array is None and (peers := self.type.runtime.peers) is not None:
            peers.launches.join()  # the work may have all that it needs here, and wait for other processes
            array = self.available_array()
        if array is None:
            raise FailedPreconditionError(
                "the buffer has no memory yet, because the work that fills it has not begun; wait for buffer.ready() "
                "first"
            )
        return when_ready(array, self.type.runtime.watcher, _jaxlib.pointer).result()

    def raw(self) -> XlaRawBuffer:
        return XlaRawBuffer(self)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        check_dlpack_device(dl_device)
        if copy:
            raise unimplemented("cpu", "Buffer.__dlpack__ with copy=True", "copy with numpy.array(buffer)")
        return self.when_there(_jaxlib.capsule).result()

    def __dlpack_device__(self) -> tuple[int, int]:
        return DLPACK_HOST_DEVICE

    # To other buffers.

    def copy_to(self, destination: Device | MemorySpace) -> XlaBuffer:
        self.check_usable()
        target = self.type.runtime.type_in(self.type, memory_space_of(destination, self.type.runtime))
        try:
            if self.type.is_row_major:
                return XlaBuffer(_jaxlib.copy(self.array, target.memory_space.placement), target)
            from pjrt.devices.xla.compilation import relaid  # here: few buffers need it

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
            memory = _raw_bytes(array).view(target.aval.dtype).reshape(target.shape)
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


def _raw_bytes(array: _jaxlib.Array) -> HostArray:
    """Return the memory of an array that is ready, as bytes that keep it alive."""
    size = _jaxlib.size_on_device(array)
    if not size:
        return np.empty(0, np.uint8)
    return ExternalMemory(_jaxlib.pointer(array), size, (array, _jaxlib.view(array))).bytes()


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
        shards, watcher = self.source().shards, self.type.runtime.watcher
        if shards.is_ready and not watcher.lost:
            return READY
        future = when_ready(shards.array, watcher, nothing)
        shards.is_ready = future is READY
        return future


class XlaRawBuffer(RawBuffer):
    """The bytes of a buffer, read and written in place when its value is there."""

    __slots__ = ("_buffer", "_size", "_space")

    def __init__(self, buffer: XlaBuffer) -> None:
        self._space = buffer.memory_space
        self._size = buffer.on_device_size
        self._buffer: XlaBuffer | None = buffer.hold()

    @property
    def memory_space(self) -> XlaMemorySpace:
        return self._space

    @property
    def on_device_size(self) -> int:
        return self._size

    def host_pointer(self) -> int:
        return self._held().unsafe_pointer()

    def copy_from_host(self, source: Any, offset: int = 0) -> Future[None]:
        data = source_bytes(source, offset, self._size)

        def write(array: _jaxlib.Array) -> None:
            _raw_bytes(array)[offset : offset + data.nbytes] = data

        return self._held().carried_out(write)

    def copy_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        return self._held().copy_raw_to_host(out, offset, size)

    def release(self) -> None:
        self._buffer = None

    def _held(self) -> XlaBuffer:
        if self._buffer is None:
            raise FailedPreconditionError("the raw buffer was released; make a new one with buffer.raw()")
        return self._buffer


def putter(array_type: ArrayType) -> Putter | None:
    """Return the way of numpy arrays into arguments of a type; ``None`` for a type that numpy arrays do not have."""
    if not array_type.is_row_major or array_type.dynamic_dimensions or array_type.element_type is ElementType.TOKEN:
        return None
    return Putter(array_type.aval, array_type.memory_space.placement)


_SEMANTICS = {
    HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL: _jaxlib.COPY_DURING_CALL,
    HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES: _jaxlib.COPY_LATER,
    HostBufferSemantics.IMMUTABLE_ZERO_COPY: _jaxlib.ZERO_COPY,
    # XLA never writes to memory that it was lent: a donation of such a buffer makes a new one. So the permission to
    # write changes nothing.
    HostBufferSemantics.MUTABLE_ZERO_COPY: _jaxlib.ZERO_COPY,
}


def buffer_from_host(
    array: Any,
    space: XlaMemorySpace,
    layout: Layout | None,
    semantics: HostBufferSemantics,
    on_done: Callable[[], object] | None,
) -> XlaBuffer:
    """Return a buffer with a host array's value."""
    source = _host_array(array)
    array_type = space.device.runtime.row_major_type(source.shape, source.dtype, space)
    if type(semantics) is not HostBufferSemantics:
        raise unexpected(semantics, "one of pjrt.HostBufferSemantics as semantics")
    if on_done is not None:
        expect_callable(on_done, "a function, or None, as on_done_with_host_buffer")
    if layout is not None:
        order = TiledLayout(order_of(layout, source.shape, array_type.element_type)[::-1])
        if not order.is_row_major:
            buffer = _relaid(source, array_type, order)
            if on_done is not None:
                notify_owner(on_done)
            return buffer
    if on_done is not None and _SEMANTICS[semantics] is _jaxlib.ZERO_COPY:
        return _lent(source, array_type, on_done)
    buffer = XlaBuffer(_put(source, array_type, _SEMANTICS[semantics]), array_type)
    if on_done is None:
        return buffer
    if semantics is HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL:
        notify_owner(on_done)
    else:
        when_ready(buffer.array, array_type.runtime.watcher, nothing).add_done_callback(lambda _: notify_owner(on_done))
    return buffer


class LentBuffer(XlaBuffer):
    """A buffer over memory of the host whose owner is notified when it is not used any more."""

    __slots__ = ("_release",)

    def __init__(self, array: _jaxlib.Array, array_type: ArrayType, release: Release) -> None:
        super().__init__(array, array_type)
        self._release = release

    def hold(self) -> XlaBuffer:
        return XlaBuffer(self.source(), self.type)

    def delete(self) -> None:
        super().delete()
        self._release.watch()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Bound as a default, because the names of the module may be gone at the end of the interpreter.
        release = getattr(self, "_release", None)
        if release is not None and not is_finalizing():
            self.array = None
            release.watch()


class Release(Future[None]):
    """A future that is done when jaxlib does not hold the lent memory any more.

    jaxlib holds a numpy array, and the end of that array is the sign. It may come late: an execution under way may
    still read the memory when the buffer is gone, and jaxlib drops released objects only when it is called again.
    """

    __slots__ = ("_watcher",)

    def __init__(self, watcher: CompletionWatcher, lent: HostArray, on_done: Callable[[], object]) -> None:
        super().__init__()
        self._watcher = watcher
        weakref.finalize(lent, self._released, on_done).atexit = False

    def watch(self) -> None:
        """Complete the future soon after the memory is released."""
        if not self.done():
            self._watcher.watch(self)

    def _poll(self) -> None:
        _jaxlib.collect_released()

    def _released(self, on_done: Callable[[], object]) -> None:
        notify_owner(on_done)
        self._complete(None)


def _lent(source: HostArray, array_type: ArrayType, on_done: Callable[[], object]) -> XlaBuffer:
    watcher = array_type.runtime.watcher
    lent = source.view()
    release = Release(watcher, lent, on_done)
    buffer = LentBuffer(_put(lent, array_type, _jaxlib.ZERO_COPY), array_type, release)
    del lent  # only jaxlib may hold it
    if not shares_memory(buffer.array, source):
        # XLA makes a copy, because the memory is not aligned: the owner is notified when that is finished.
        when_ready(buffer.array, watcher, nothing).add_done_callback(lambda _: release.watch())
    return buffer


def shares_memory(jaxlib_array: _jaxlib.Array, array: HostArray) -> bool:
    """Whether an array of jaxlib uses a host array's memory in place."""
    # What is used in place is ready at once.
    try:
        is_shared: bool = jaxlib_array.is_ready() and _jaxlib.pointer(jaxlib_array) == array.ctypes.data
    except _jaxlib.jax.JaxRuntimeError:  # its copy found no memory
        return False
    return is_shared


def _host_array(array: Any) -> HostArray:
    source: HostArray = array if type(array) is np.ndarray else expect_array(array)
    if not source.dtype.isnative:
        source = source.astype(source.dtype.newbyteorder("="))
    return source


def _relaid(source: HostArray, array_type: ArrayType, layout: TiledLayout) -> XlaBuffer:
    from pjrt.devices.xla.compilation import relaid  # here: few buffers need it

    row_major = _put(source, array_type, _jaxlib.COPY_DURING_CALL)
    try:
        return XlaBuffer(*relaid(row_major, array_type, layout))
    except Exception as error:
        raise converted(error) from error


def _put(source: HostArray, array_type: ArrayType, semantics: Any) -> _jaxlib.Array:
    try:
        return _jaxlib.put(source, array_type.aval, array_type.memory_space.placement, semantics)
    except Exception as error:
        raise converted(error) from error
