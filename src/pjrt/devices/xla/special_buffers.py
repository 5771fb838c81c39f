"""Buffers that come from neither an array nor an execution: filled in pieces, uninitialized, aliases, views."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.buffer import AliasFulfillment
from pjrt.api.checks import expect, expect_callable, expect_int
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, unimplemented
from pjrt.api.future import Future, Promise
from pjrt.api.shape_spec import ShapeSpec, TiledLayout, expect_spec
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla._jaxlib import converted
from pjrt.devices.xla.buffer import LentBuffer, PendingBuffer, Release, XlaBuffer, shares_memory
from pjrt.devices.xla.future import pass_on
from pjrt.host_memory.array import ALIGNMENT, HostArray, aligned_empty, source_bytes
from pjrt.host_memory.external import ExternalMemory
from pjrt.host_memory.transfer_manager import TransferManager

if TYPE_CHECKING:
    from pjrt.api.buffer import Buffer
    from pjrt.devices.xla.buffer import Source
    from pjrt.devices.xla.device import XlaDevice, XlaMemorySpace
    from pjrt.devices.xla.runtime import ArrayType


class XlaTransferManager(TransferManager["_Filling"]):
    """A transfer that fills new buffers piece by piece; each piece is copied before the call returns."""

    __slots__ = ("_device",)

    def __init__(self, specs: Sequence[ShapeSpec], space: XlaMemorySpace) -> None:
        self._device = space.device
        super().__init__([_Filling(spec, type_of_spec(spec, space)) for spec in specs])

    @property
    def device(self) -> XlaDevice:
        return self._device

    def buffer_size(self, index: int) -> int:
        return self.filling(index).memory.nbytes

    def retrieve_buffer(self, index: int) -> PendingBuffer:
        return self.filling(index).retrieve()

    def transfer_data(self, index: int, data: Any, offset: int = 0, *, is_last_transfer: bool = True) -> Future[None]:
        filling = self.filling(index)
        source = source_bytes(data, offset, filling.memory.nbytes)
        if filling.type.is_packed:
            raise unimplemented(
                "cpu", "transfer_data of elements of less than a byte", "use transfer_literal with the whole array"
            )

        def copy() -> None:
            filling.memory.reshape(-1).view(np.uint8)[offset : offset + source.nbytes] = source

        filling.transfer(copy, is_last_transfer)
        return Future.completed(None)

    def transfer_literal(self, index: int, array: Any) -> Future[None]:
        literal, filling = self.literal(index, array), self.filling(index)
        filling.transfer(lambda: np.copyto(filling.memory, literal), True)
        return Future.completed(None)


class _Filling:
    """One buffer of a transfer: its memory, and the promise of its array."""

    def __init__(self, spec: ShapeSpec, array_type: ArrayType) -> None:
        self.spec = spec
        self.type = array_type
        self.memory = aligned_empty(array_type.shape, array_type.aval.dtype)
        self._promise: Promise[Source] = Promise()
        self._buffer: PendingBuffer | None = PendingBuffer(self._promise.future, array_type)
        self._lock = threading.Lock()

    def retrieve(self) -> PendingBuffer:
        with self._lock:
            buffer, self._buffer = self._buffer, None
        if buffer is None:
            raise FailedPreconditionError("the buffer was retrieved already; it can be retrieved once")
        return buffer

    def transfer(self, copy: Callable[[], None], is_last: bool) -> None:
        with self._lock:
            self._check_pending()
            copy()
            array = self._array() if is_last else None
        if array is not None:
            self._promise.set_result(array)

    def fail(self, error: PjrtError) -> None:
        with self._lock:
            self._check_pending()
        self._promise.set_error(error)

    def abandon(self, error: PjrtError) -> None:
        if not self._promise.future.done():
            self._promise.set_error(error)

    def _check_pending(self) -> None:
        if self._promise.future.done():
            raise FailedPreconditionError("the buffer has had its last transfer already, or an error was set")

    def _array(self) -> _jaxlib.Array:
        try:
            return _jaxlib.put(self.memory, self.type.aval, self.type.memory_space.placement, _jaxlib.ZERO_COPY)
        except Exception as error:
            raise converted(error) from error


def type_of_spec(spec: ShapeSpec, space: XlaMemorySpace) -> ArrayType:
    """Return the type of a new buffer for a spec.

    Raises:
        UnimplementedError: the spec has a layout that new buffers cannot have.
    """
    expect_spec(spec)
    if spec.layout is not None and spec.layout != TiledLayout.row_major(len(spec.shape)):
        raise unimplemented(
            "cpu", f"new buffers with the layout {spec.layout}", "use buffer_from_host with layout=, or row-major"
        )
    return space.device.runtime.array_type(spec.shape, spec.element_type, space)


def uninitialized(spec: ShapeSpec, space: XlaMemorySpace) -> XlaBuffer:
    """Return a buffer with memory and no particular value."""
    array_type = type_of_spec(spec, space)
    memory = aligned_empty(array_type.shape, array_type.aval.dtype)
    if array_type.is_packed or array_type.aval.dtype == bool:
        memory.view("u1").fill(0)  # not every byte is a valid element
    return XlaBuffer(_jaxlib.put(memory, array_type.aval, space.placement, _jaxlib.ZERO_COPY), array_type)


def alias(spec: ShapeSpec, space: XlaMemorySpace) -> tuple[XlaBuffer, XlaAliasFulfillment]:
    """Return a buffer that will become the alias of another, and the means to name the other."""
    array_type = type_of_spec(spec, space)
    promise: Promise[Source] = Promise()
    return PendingBuffer(promise.future, array_type), XlaAliasFulfillment(promise, array_type)


class XlaAliasFulfillment(AliasFulfillment):
    """The promise of the buffer that an alias buffer stands for."""

    __slots__ = ("_lock", "_promise", "_type")

    def __init__(self, promise: Promise[Source], array_type: ArrayType) -> None:
        self._promise: Promise[Source] | None = promise
        self._type = array_type
        self._lock = threading.Lock()

    def fulfill(self, buffer: Buffer) -> None:
        if not isinstance(buffer, XlaBuffer) or not self._type.accepts(buffer.type):
            raise InvalidArgumentError(
                f"the alias is {self._type} on {self._type.memory_space.device}, found {buffer!r}"
            )
        source = buffer.source()
        promise = self._take_promise()
        if isinstance(source, Future):
            pass_on(source, promise)
        else:
            promise.set_result(source)

    def fail(self, error: PjrtError) -> None:
        self._take_promise().set_error(expect(error, PjrtError, "an error as pjrt.PjrtError"))

    def _take_promise(self) -> Promise[Source]:
        with self._lock:
            promise, self._promise = self._promise, None
        if promise is None:
            raise FailedPreconditionError("the alias buffer was fulfilled or failed already; that is done once")
        return promise


def view(
    pointer: int,
    spec: ShapeSpec,
    space: XlaMemorySpace,
    on_delete: Callable[[], object] | None,
    stream: int | None,
) -> XlaBuffer:
    """Return a buffer over memory that the caller owns."""
    array_type = type_of_spec(spec, space)
    expect_int(pointer, "the address of memory as a whole number")
    if on_delete is not None:
        expect_callable(on_delete, "a function, or None, as on_delete")
    if stream is not None:
        raise unimplemented("cpu", "create_view_of_device_buffer with a stream", "pass the memory when it is ready")
    if array_type.is_packed:
        raise unimplemented("cpu", "create_view_of_device_buffer of elements of less than a byte")
    if not pointer or pointer % ALIGNMENT:
        raise InvalidArgumentError(
            f"the memory at {pointer:#x} is not aligned to {ALIGNMENT} bytes, so XLA cannot use it in place; copy it "
            "with client.buffer_from_host"
        )
    memory = ExternalMemory(pointer, math.prod(array_type.shape) * array_type.aval.dtype.itemsize)
    return over(memory.array(array_type.shape, array_type.aval.dtype), array_type, on_delete)


def over(array: HostArray, array_type: ArrayType, on_done: Callable[[], Any] | None) -> XlaBuffer:
    """Return a buffer that uses an array's memory in place.

    Raises:
        InvalidArgumentError: XLA cannot use the memory in place.
    """
    lent = array.view()  # jaxlib holds this object, so its end is the end of jaxlib's use
    jaxlib_array = _jaxlib.put(lent, array_type.aval, array_type.memory_space.placement, _jaxlib.ZERO_COPY)
    if math.prod(array_type.shape) and not shares_memory(jaxlib_array, array):
        raise InvalidArgumentError(
            f"XLA uses memory of the host in place only if it is row-major and aligned to {ALIGNMENT} bytes; this is "
            f"at {array.ctypes.data:#x} with strides {array.strides}: copy it with client.buffer_from_host"
        )
    if on_done is None:
        return XlaBuffer(jaxlib_array, array_type)
    return LentBuffer(jaxlib_array, array_type, Release(array_type.runtime.watcher, lent, on_done))
