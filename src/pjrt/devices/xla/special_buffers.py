"""Buffers that come from neither an array nor an execution: uninitialized, failed, aliases, views."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pjrt.api.alias_fulfillment import AliasFulfillment
from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect, expect_callable, expect_int
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, unimplemented
from pjrt.api.future import Future, Promise
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.buffer import Source, XlaBuffer
from pjrt.devices.xla.from_host import ALIGNMENT, LentBuffer, Release, shares_memory
from pjrt.devices.xla.pending_buffer import PendingBuffer
from pjrt.devices.xla.transfer import spec_type
from pjrt.host_memory.aligned import aligned_empty
from pjrt.host_memory.external import ExternalMemory

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient
    from pjrt.devices.xla.memory_space import XlaMemorySpace


def uninitialized(client: XlaClient, spec: ShapeSpec, space: XlaMemorySpace) -> XlaBuffer:
    """A buffer with memory and no particular value."""
    kind = spec_type(client, spec, space)
    memory = aligned_empty(kind.shape, kind.aval.dtype)
    if kind.is_packed or kind.aval.dtype == bool:
        memory.view("u1").fill(0)  # not every byte is such an element
    return XlaBuffer(_jaxlib.put(memory, kind.aval, space, _jaxlib.ZERO_COPY), kind)


def failed(client: XlaClient, error: PjrtError, spec: ShapeSpec, space: XlaMemorySpace) -> XlaBuffer:
    """A buffer that has failed."""
    return PendingBuffer.failed(error, spec_type(client, spec, space))


def alias(client: XlaClient, spec: ShapeSpec, space: XlaMemorySpace) -> tuple[XlaBuffer, XlaAliasFulfillment]:
    """A buffer that will become another's alias."""
    kind = spec_type(client, spec, space)
    promise: Promise[Source] = Promise()
    return PendingBuffer(promise.future, kind), XlaAliasFulfillment(promise, kind)


class XlaAliasFulfillment(AliasFulfillment):
    """Says what an alias buffer is an alias of."""

    __slots__ = ("_kind", "_lock", "_promise")

    def __init__(self, promise: Promise[Source], kind: ArrayType) -> None:
        self._promise: Promise[Source] | None = promise
        self._kind = kind
        self._lock = threading.Lock()

    def fulfill(self, buffer: Buffer) -> None:
        if not isinstance(buffer, XlaBuffer) or not self._kind.takes(buffer.type):
            raise InvalidArgumentError(
                f"the alias is {self._kind} on {self._kind.memory_space.device}, found {buffer!r}"
            )
        source = buffer.source()
        promise = self._take()
        if isinstance(source, Future):
            source.add_done_callback(lambda arrived: _pass_on(arrived, promise))
        else:
            promise.set_result(source)

    def fail(self, error: PjrtError) -> None:
        self._take().set_error(expect(error, PjrtError, "an error as pjrt.PjrtError"))

    def _take(self) -> Promise[Source]:
        with self._lock:
            promise, self._promise = self._promise, None
        if promise is None:
            raise FailedPreconditionError("it was said already what the alias buffer is an alias of; that is said once")
        return promise


def _pass_on(arrived: Future[Source], promise: Promise[Source]) -> None:
    error = arrived.exception()
    if error is None:
        promise.set_result(arrived.result())
    else:
        promise.set_error(error)


def view(
    client: XlaClient,
    pointer: int,
    spec: ShapeSpec,
    space: XlaMemorySpace,
    on_delete: Callable[[], object] | None,
    stream: int | None,
) -> XlaBuffer:
    """A buffer over memory that somebody else owns."""
    kind = spec_type(client, spec, space)
    expect_int(pointer, "the address of memory as a whole number")
    if on_delete is not None:
        expect_callable(on_delete, "a function, or None, as on_delete")
    if stream is not None:
        raise unimplemented("cpu", "create_view_of_device_buffer with a stream", "pass the memory when it is ready")
    if kind.is_packed:
        raise unimplemented("cpu", "create_view_of_device_buffer of elements of less than a byte")
    if not pointer or pointer % ALIGNMENT:
        raise InvalidArgumentError(
            f"the memory at {pointer:#x} is not aligned to {ALIGNMENT} bytes, so XLA cannot use it in place; copy it "
            "with client.buffer_from_host"
        )
    size = math.prod(kind.shape) * kind.aval.dtype.itemsize
    return over(client, ExternalMemory(pointer, size).array(kind.shape, kind.aval.dtype), kind, on_delete)


def over(client: XlaClient, array: Any, kind: ArrayType, on_done: Callable[[], object] | None) -> XlaBuffer:
    """A buffer that uses an array's memory in place.

    Raises:
        InvalidArgumentError: it cannot.
    """
    lent = array.view()
    jaxlib_array = _jaxlib.put(lent, kind.aval, kind.memory_space, _jaxlib.ZERO_COPY)
    buffer = XlaBuffer(jaxlib_array, kind)
    if math.prod(kind.shape) and not shares_memory(buffer, array):
        raise InvalidArgumentError(
            f"XLA uses memory of the host in place only if it is row-major and aligned to {ALIGNMENT} bytes; this is "
            f"at {array.ctypes.data:#x} with strides {array.strides}: copy it with client.buffer_from_host"
        )
    return buffer if on_done is None else LentBuffer(jaxlib_array, kind, Release(client, lent, on_done))
