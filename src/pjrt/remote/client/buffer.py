"""Remote buffers: arrays on one device of a server."""

from __future__ import annotations

import dataclasses
import math
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect, unexpected
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError
from pjrt.api.future import Future, Promise
from pjrt.api.layout import Layout, TiledLayout
from pjrt.api.memory_space import MemorySpace
from pjrt.api.placement import choose_place
from pjrt.api.shape_spec import expect_shape
from pjrt.host_memory.layout import array_dtype, order_and_layout
from pjrt.remote.client import to_host
from pjrt.remote.client.connection import Connection
from pjrt.remote.client.sharded_array import ShardedArray
from pjrt.remote.protocol.messages import wire

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient
    from pjrt.remote.client.device import RemoteDevice
    from pjrt.remote.client.memory_space import RemoteMemorySpace

T = TypeVar("T")

ALWAYS_COPY, REUSE_INPUT, DONATE_INPUT = 1, 2, 3
"""The numbers of ``ArrayCopySemantics`` in the protocol."""

BITCAST = 24
"""The first version of the protocol with ``BitcastArrays``."""


@dataclass(frozen=True, slots=True)
class BufferType:
    """The facts of a buffer that all results of a program at one place have in common."""

    client: RemoteClient
    connection: Connection
    device: RemoteDevice
    memory_space: RemoteMemorySpace
    shape: tuple[int, ...]
    element_type: ElementType
    layout: TiledLayout

    @property
    def size_in_bytes(self) -> int:
        """The bytes of the elements in host memory."""
        if self.element_type is ElementType.TOKEN:
            return 0
        return math.prod(self.shape) * array_dtype(self.element_type).itemsize

    def at(self, space: RemoteMemorySpace, device: RemoteDevice) -> BufferType:
        """Return the type of a copy in another place."""
        return dataclasses.replace(self, device=device, memory_space=space)


class RemoteBuffer(Buffer):
    """An array on one device of a server, known by its handle, or by its place in an array over several devices.

    Its end releases the handle, and with it the server's memory; the garbage collector may end it at any moment.

    Attributes:
        type: the facts of the buffer.
        array: the array over several devices that it is a part of; ``None`` if it is an array of its own.
        index: its place among the parts of that array.
        failure: the error of the request or the transfer that should have made the array, if the answer has one.
    """

    __slots__ = ("_handle", "_is_deleted", "_ready", "array", "failure", "index", "type")

    def __init__(
        self, buffer_type: BufferType, handle: int = 0, array: ShardedArray | None = None, index: int = 0
    ) -> None:
        self.type = buffer_type
        self._handle = handle
        self.array = array
        self.index = index
        self._is_deleted = False
        self._ready: Future[None] | None = None
        self.failure: PjrtError | None = None

    # Its metadata.

    @property
    def client(self) -> RemoteClient:
        return self.type.client

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def element_type(self) -> ElementType:
        return self.type.element_type

    @property
    def layout(self) -> TiledLayout:
        return self.type.layout

    @property
    def on_device_size(self) -> int:
        return self.type.size_in_bytes

    @property
    def device(self) -> RemoteDevice:
        return self.type.device

    @property
    def memory_space(self) -> RemoteMemorySpace:
        return self.type.memory_space

    @property
    def is_on_cpu(self) -> bool:
        return False  # its memory is in another process

    # Its lifetime.

    @property
    def is_deleted(self) -> bool:
        return self._is_deleted

    def delete(self) -> None:
        if not self._is_deleted:
            self._is_deleted = True
            self.release()

    def donate(self) -> None:
        """Mark the buffer as used up; ``release`` follows when the request that uses it up is sent."""
        self._is_deleted = True

    def release(self) -> None:
        """Let the server release its array; a destructor may call it."""
        array = self.array
        self.type.connection.release(self._handle if array is None else (array, self.index))

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Bound as a default, because the names of the module may be gone at the end of the interpreter.
        if not getattr(self, "_is_deleted", True) and not is_finalizing():
            self.release()

    def check(self) -> None:
        """Raise an error if the buffer cannot be used.

        Raises:
            FailedPreconditionError: it was deleted or donated, or its client is closed.
            UnavailableError: the connection is broken.
        """
        if self._is_deleted:
            raise FailedPreconditionError(f"{self!r} was deleted or donated; its value is gone")
        self.type.connection.check()

    def handle(self) -> int:
        """Return the handle of the array, for a request that is sent at once; ``check`` comes before."""
        return self._handle or self.array.part(self.index)  # type: ignore[union-attr]  # it has one or the other

    def use(self) -> int:
        """Return the handle of the array, for a request that is sent at once; raise the errors of ``check``."""
        self.check()
        return self.handle()

    def join(self, array: ShardedArray, index: int) -> None:
        """Make the buffer a part of an array that was assembled of it and others."""
        self.array, self.index = array, index

    def ready(self) -> Future[None]:
        self.check()
        return self._ready or self._when_sent() or ReadyFuture(self)

    def outcome(self) -> Callable[[Any, PjrtError | None], None]:
        """Return a function that takes the answer to the request that makes the array, and keeps its error.

        Servers give the error to the array, too, but not where they do not know the request.
        """
        reference = weakref.ref(self)

        def keep(_: Any, error: PjrtError | None) -> None:
            buffer = None if error is None else reference()
            if buffer is not None and buffer.failure is None:
                buffer.failure = error

        return keep

    def set_ready(self, ready: Future[None]) -> None:
        """Give the buffer a future that is done when its value is there."""
        self._ready = ready

    def _when_sent(self) -> Future[None] | None:
        """Return the readiness of a result whose launch still lacks devices; ``None`` if its launch was sent."""
        sent = None if self.array is None else self.array.sent
        return None if sent is None else after(sent, lambda: ReadyFuture(self))

    # To the host.

    def to_host(
        self, out: np.ndarray[Any, Any] | None = None, *, layout: Layout | None = None
    ) -> Future[np.ndarray[Any, Any]]:
        self.check()
        sent = None if self.array is None else self.array.sent
        if sent is not None:  # a result whose launch still lacks devices
            return after(sent, lambda: to_host.array(self, out, layout))
        return to_host.array(self, out, layout)

    def copy_raw_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        return to_host.raw_bytes(self, out, offset, size)

    def copy_raw_to_host_future(self, out: Future[Any], offset: int = 0, size: int | None = None) -> Future[None]:
        return to_host.raw_bytes_later(self, out, offset, size)

    # Copies elsewhere.

    def copy_to(self, destination: Device | MemorySpace) -> Buffer:
        handle = self.use()
        client = self.client
        if isinstance(destination, MemorySpace):
            # The device stays where it can: other devices may share the memory space.
            same = self.device if self.device in destination.devices else None
            device, space = choose_place(client, same, destination)
        elif isinstance(destination, Device):
            device, space = choose_place(client, destination, None)
        else:
            raise unexpected(destination, "a device or a memory space of this client as the destination")
        buffer_type = self.type.at(space, device)  # type: ignore[arg-type]  # of this client, as choose_place checks
        connection = self.type.connection
        request = wire.IfrtRequest()
        body = request.copy_arrays_request
        body.array_handles.append(handle)
        body.device_ids.append(device.id)
        body.memory_kind = space.kind
        body.copy_semantics = ALWAYS_COPY
        copy = RemoteBuffer(buffer_type, connection.new_handle())
        body.result_handles.append(copy._handle)
        connection.send(request, copy.outcome())
        return copy

    def bitcast(self, element_type: ElementType, shape: Sequence[int], layout: Layout | None = None) -> Buffer:
        handle = self.use()
        expect(element_type, ElementType, "an element type as pjrt.ElementType")
        shape = expect_shape(shape)
        _, tiled = order_and_layout(layout, shape, element_type)
        new_type = dataclasses.replace(
            self.type, shape=shape, element_type=element_type, layout=tiled or TiledLayout.row_major(len(shape))
        )
        if new_type.size_in_bytes != self.type.size_in_bytes:
            raise InvalidArgumentError(
                f"expected a type and shape of {self.type.size_in_bytes} bytes for a bitcast of {self}, found "
                f"{element_type.name}{list(shape)} of {new_type.size_in_bytes}"
            )
        connection = self.type.connection
        connection.require_version(BITCAST, "Buffer.bitcast")
        request = wire.IfrtRequest()
        body = request.bitcast_arrays_request
        body.array_handles.append(handle)
        body.array_specs.append(self.client.spec_proto(new_type))
        body.copy_semantics = DONATE_INPUT
        cast = RemoteBuffer(new_type, connection.new_handle())
        body.result_handles.append(cast._handle)
        connection.send(request, cast.outcome())
        self.delete()
        return cast


class ReadyFuture(Future[None]):
    """The readiness of a buffer; the client asks the server for it when the caller asks for it."""

    __slots__ = ("_buffer", "_is_asked")

    def __init__(self, buffer: RemoteBuffer) -> None:
        super().__init__()
        # Kept until the answer: the request needs the array, and the answer may need the buffer's own error.
        self._buffer: RemoteBuffer | None = buffer
        self._is_asked = False

    def _poll(self) -> None:
        self._ask()

    def _block(self, timeout: float | None) -> None:
        self._ask()
        super()._block(timeout)

    def _watch(self) -> None:
        self._ask()

    def _ask(self) -> None:
        buffer = self._buffer
        if self._is_asked or buffer is None:
            return
        self._is_asked = True
        try:
            handle = buffer.use()
        except PjrtError as error:
            self._buffer = None
            self._complete(None, error)
            return
        buffer.set_ready(self)
        request = wire.IfrtRequest()
        request.check_value_ready_request.value_handles.append(handle)
        buffer.type.connection.send(request, self._arrive)

    def _arrive(self, _: Any, error: PjrtError | None) -> None:
        buffer, self._buffer = self._buffer, None
        if error is not None and buffer is not None:
            error = buffer.failure or error
        self._complete(None, error)


def after(first: Future[Any], function: Callable[[], Future[T]]) -> Future[T]:
    """Return the future of ``function()``, which is called when another future is done; it fails if that fails."""
    promise: Promise[T] = Promise()
    promise.future.need(first)

    def begin(done: Future[Any]) -> None:
        try:
            done.result()
            function().add_done_callback(settle)
        except BaseException as error:
            promise.set_error(error)

    def settle(done: Future[T]) -> None:
        error = done.exception()
        if error is None:
            promise.set_result(done.result())
        else:
            promise.set_error(error)

    first.add_done_callback(begin)
    return promise.future
