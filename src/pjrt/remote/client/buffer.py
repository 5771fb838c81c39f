"""Remote buffers: arrays on one device of a server, their ways to and from the host, and arrays over several devices.

To the server, the bytes go ahead on a stream of their own, and one request makes the array of them. To the host, the
server stores the value as a host buffer, and the channel fetches it.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pjrt.api.buffer import Buffer, HostBufferSemantics
from pjrt.api.checks import expect, expect_all, expect_array, expect_callable, expect_out, unexpected
from pjrt.api.device import Device, MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    PjrtError,
    UnimplementedError,
)
from pjrt.api.executable import choose_place
from pjrt.api.future import Future, Promise, when_all_done
from pjrt.api.shape_spec import Layout, ShapeSpec, TiledLayout, expect_shape
from pjrt.host_memory.array import HostArray, array_dtype, order_and_layout, order_of_spec, source_bytes, target_bytes
from pjrt.host_memory.external import notify_owner
from pjrt.host_memory.transfer_manager import TransferManager
from pjrt.remote.client.connection import AskedFuture, Connection
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import element_type_proto, layout_proto, status_proto
from pjrt.remote.protocol.versions import LAYOUT_OF_NEW_ARRAY

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient
    from pjrt.remote.client.device import RemoteDevice, RemoteMemorySpace

# The protocol's executions take and return whole arrays; this API has a buffer on each device. A result becomes buffers
# without a message: the client asks the server for the parts when the caller uses one alone. Buffers that together are
# an array of the server again go into an execution as that array.

_REUSE_INPUT = 2
ADDRESSABLE_SHARDS = 1
"""The number of ``SingleDeviceShardSemantics`` for the shards of the server's own process."""


class ShardedArray:
    """An array over several devices, as a server has it.

    Args:
        connection: the server's connection.
        handle: the array's handle.
        sharding: its devices and shards, as a serialized ``ShardingProto``.
        count: the number of its parts on the server's devices.
        parts: the handles of the parts, if the array was made of them.
        sent: as the attribute.

    Attributes:
        handle: the array's handle.
        sharding: its devices and shards, as a serialized ``ShardingProto``.
        is_whole: whether the server still has the array, and not only its parts.
        sent: done when the request that makes the array is sent; ``None`` if it was sent.
    """

    __slots__ = (
        "_alive", "_connection", "_count", "_gone", "_lock", "_parts", "handle", "is_whole",
        "sent", "sharding",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        handle: int,
        sharding: bytes,
        count: int,
        parts: Sequence[int] | None = None,
        sent: Future[None] | None = None,
    ) -> None:
        self._connection = connection
        self.handle = handle
        self.sharding = sharding
        self.is_whole = True
        self.sent = sent
        self._parts = None if parts is None else list(parts)
        self._alive = self._count = count
        self._gone: list[int] = []
        self._lock = threading.Lock()

    def part(self, index: int) -> int:
        """Return the handle of a part, for a request that is sent at once."""
        if self._parts is None:
            with self._lock:
                if self._parts is None:
                    self._parts = self._taken_apart()
        return self._parts[index]

    def _taken_apart(self) -> list[int]:
        if self.sent is not None:
            raise FailedPreconditionError(
                "this result has no value yet: execute_sharded was called for some devices of the program only; call "
                "it for the others first"
            )
        request = wire.IfrtRequest()
        body = request.disassemble_into_single_device_arrays_request
        body.array_handle = self.handle
        body.copy_semantics = _REUSE_INPUT
        body.single_device_shard_semantics = ADDRESSABLE_SHARDS
        parts = [self._connection.new_handle() for _ in range(self._count)]
        body.result_handles.extend(parts)
        self._connection.send(request)
        return parts

    def forget(self, index: int) -> None:
        """Note that a part is not used any more; ``to_release`` follows soon."""
        with self._lock:
            self._alive -= 1
            self._gone.append(index)

    def to_release(self) -> list[int]:
        """Return the handles of the array and of the parts that are not used any more.

        The array holds the memory of all parts. If some are gone and others are not, it goes, and leaves the others.
        """
        with self._lock:
            if self._alive and self._parts is None:
                self._parts = self._taken_apart()
            handles = [self.handle] if self.is_whole else []
            self.is_whole = False
            gone, self._gone = self._gone, []
            return handles if self._parts is None else handles + [self._parts[index] for index in gone]


def array_of(column: Sequence[Any], sharding: bytes) -> ShardedArray | None:
    """Return the array whose parts a column of buffers is, in order; ``None`` if there is none of this sharding."""
    array: ShardedArray | None = column[0].array
    if array is None or array.sharding != sharding or not array.is_whole:
        return None
    for index, buffer in enumerate(column):
        if buffer.array is not array or buffer.index != index:
            return None
    return array


def host_array(buffer: RemoteBuffer, out: HostArray | None, layout: Layout | None) -> Future[HostArray]:
    """Return a future of the buffer's value."""
    handle = buffer.use()
    shape = buffer.shape
    dtype = array_dtype(buffer.element_type)
    order, _ = order_and_layout(layout, shape, buffer.element_type)
    if out is not None:
        expect_out(out, shape, dtype)
    if buffer.element_type is ElementType.TOKEN:
        return buffer.ready().then(lambda _: np.zeros((), dtype))
    # The bytes arrive in row-major order, in the caller's memory if that is so ordered.
    direct = out is not None and out.flags.c_contiguous
    target = out if direct else np.empty(shape, dtype)
    assert target is not None

    def finish() -> HostArray:
        if out is not None:
            if not direct:
                np.copyto(out, target)
            return out
        if order is None:
            return target
        return np.ascontiguousarray(target.transpose(order)).transpose(np.argsort(order))

    download = Download(buffer, target, finish)
    download.start(handle)
    return download


class Download(Future[HostArray]):
    """A copy of an array's value to host memory."""

    __slots__ = ("_buffer", "_connection", "_finish", "_handle", "_target")

    def __init__(self, buffer: RemoteBuffer, target: HostArray, finish: Callable[[], HostArray]) -> None:
        super().__init__()
        self._buffer: RemoteBuffer | None = buffer
        self._connection = connection = buffer.type.connection
        self._target = target
        self._finish = finish
        self._handle = connection.new_handle()

    def start(self, array_handle: int) -> None:
        """Ask the server to store the value."""
        request = wire.IfrtRequest()
        body = request.copy_to_host_buffer_request
        body.array_handle = array_handle
        body.host_buffer_handle = self._handle
        if self._connection.most_inline:
            body.most_inline = self._connection.most_inline
        self._connection.send(request, self._stored)

    def _stored(self, response: Any, error: PjrtError | None) -> None:
        # Dropped, so that the thread that fetches does not keep a client alive that nobody has any more.
        buffer, self._buffer = self._buffer, None
        if error is not None:
            self._complete(None, (None if buffer is None else buffer.failure) or error)
            return
        memory = self._target.reshape(-1).view(np.uint8).data if self._target.size else memoryview(bytearray())
        answer = response.copy_to_host_buffer_response
        if not answer.HasField("inline"):
            self._connection.fetch(self._handle, memory, self._fetched)
        elif len(answer.inline) == memory.nbytes:
            memory[:] = answer.inline
            self._fetched(None)
        else:
            self._fetched(DataLossError(f"expected {memory.nbytes} bytes of an array, found {len(answer.inline)}"))

    def _fetched(self, error: PjrtError | None) -> None:
        if error is not None:
            self._complete(None, error)
            return
        try:
            self._complete(self._finish())
        except BaseException as failure:
            self._complete(None, failure)


def raw_bytes(buffer: RemoteBuffer, out: Any, offset: int, size: int | None) -> Future[None]:
    """Return a future of a copy of bytes, in the order of the buffer's layout; the whole value is transferred."""
    buffer.use()
    target = target_bytes(out, offset, size, buffer.on_device_size)

    def take(value: HostArray) -> None:
        target[:] = _bytes_in(buffer.layout, value)[offset : offset + len(target)]

    return host_array(buffer, None, None).then(take)


def raw_bytes_later(buffer: RemoteBuffer, out: Future[Any], offset: int, size: int | None) -> Future[None]:
    """Return a future of such a copy to memory that is allocated later."""
    expect(out, Future, "a future of the memory to copy to")
    # Copied from now on: the buffer may be deleted before there is memory to copy to.
    value = host_array(buffer, None, None)
    layout, available = buffer.layout, buffer.on_device_size
    promise: Promise[None] = Promise()
    promise.future.need(value, out)

    def copy() -> None:
        try:
            target = target_bytes(out.result(), offset, size, available)
            target[:] = _bytes_in(layout, value.result())[offset : offset + len(target)]
        except BaseException as error:
            promise.set_error(error)
        else:
            promise.set_result(None)

    when_all_done((value, out), copy)
    return promise.future


def _bytes_in(layout: TiledLayout, value: HostArray) -> HostArray:
    """Return the bytes of an array in the order of a layout."""
    return np.ascontiguousarray(value.transpose(layout.minor_to_major[::-1])).reshape(-1).view(np.uint8)


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
            return after(sent, lambda: host_array(self, out, layout))
        return host_array(self, out, layout)

    def copy_raw_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        return raw_bytes(self, out, offset, size)

    def copy_raw_to_host_future(self, out: Future[Any], offset: int = 0, size: int | None = None) -> Future[None]:
        return raw_bytes_later(self, out, offset, size)

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


class ReadyFuture(AskedFuture):
    """The readiness of a buffer."""

    __slots__ = ("_buffer",)

    def __init__(self, buffer: RemoteBuffer) -> None:
        super().__init__()
        # Kept until the answer: the request needs the array, and the answer may need the buffer's own error.
        self._buffer: RemoteBuffer | None = buffer

    def _send_question(self) -> None:
        buffer = self._buffer
        assert buffer is not None
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


def buffer_from_host(
    client: RemoteClient,
    array: Any,
    device: RemoteDevice,
    space: RemoteMemorySpace,
    layout: Layout | None,
    semantics: HostBufferSemantics,
    on_done: Callable[[], object] | None,
) -> RemoteBuffer:
    """Return the buffer of a host array; its bytes are on their way."""
    source: HostArray = array if type(array) is np.ndarray else expect_array(array)
    if type(semantics) is not HostBufferSemantics:
        raise unexpected(semantics, "one of pjrt.HostBufferSemantics as semantics")
    if on_done is not None:
        expect_callable(on_done, "a function, or None, as on_done_with_host_buffer")
    element_type = ElementType.of(source.dtype)
    client.connection.wait_for_room()
    dtype = array_dtype(element_type)
    if source.size * dtype.itemsize <= client.connection.most_inline:
        inline = source.astype(dtype, order="C", copy=False).tobytes()
        buffer = new_buffer(client, source.shape, element_type, device, space, layout, inline=inline)
        if on_done is not None:
            notify_owner(on_done)
        return buffer
    buffer = new_buffer(client, source.shape, element_type, device, space, layout)
    # The other semantics allow to read the caller's memory until the transfer is done, without a copy where the bytes
    # lie in order. Zero copies need memory that the device shares, which another process does not.
    is_copied = semantics is HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL or not (
        source.flags.c_contiguous and source.dtype == dtype
    )
    if is_copied:
        source = np.array(source, dtype, order="C", copy=True)
    release = None if on_done is None else lambda: notify_owner(on_done)
    if release is not None and is_copied:
        release()
        release = None
    store(buffer, source, release)
    return buffer


def new_buffer(
    client: RemoteClient,
    shape: tuple[int, ...],
    element_type: ElementType,
    device: RemoteDevice,
    space: RemoteMemorySpace,
    layout: Layout | None,
    *,
    is_in_layout: bool = False,
    inline: bytes | None = None,
) -> RemoteBuffer:
    """Return a buffer for which the server has a request, and waits for the bytes that ``store`` sends.

    Args:
        client: the client.
        shape: the shape of the array.
        element_type: the type of its elements.
        device: the device of the buffer.
        space: the memory space of the buffer.
        layout: the layout of the buffer; the default is row-major.
        is_in_layout: whether the bytes that are sent are in the order of ``layout``; otherwise they are row-major.
        inline: the bytes, to be sent with the request: nothing is to be stored.

    Raises:
        PjrtError: the layout does not fit the shape, or the protocol lacks it or the element type.
    """
    order, tiled = order_and_layout(layout, shape, element_type)
    connection = client.connection
    # The array has the handle of the host buffer that it is made of, as jaxlib's own client has it.
    handle = connection.new_handle()
    request = wire.IfrtRequest()
    body = request.make_array_from_host_buffer_request
    body.dtype.CopyFrom(element_type_proto(element_type))
    body.shape.SetInParent()
    body.shape.dims.extend(shape)
    body.sharding.CopyFrom(client.place_proto(device, space))
    body.host_buffer_handle = body.array_handle = handle
    if inline is not None:
        body.inline = inline
    if tiled is not None:
        if connection.version.protocol < LAYOUT_OF_NEW_ARRAY:
            raise UnimplementedError(
                f"expected the default layout, found {tiled}: the server speaks version {connection.version.protocol} "
                f"of the IFRT proxy protocol, and layouts of new arrays begin with version {LAYOUT_OF_NEW_ARRAY}"
            )
        body.layout.CopyFrom(layout_proto(tiled))
    if is_in_layout and order is not None:
        body.byte_strides.strides.extend(_byte_strides(shape, order, array_dtype(element_type).itemsize))
    layout_ = tiled or TiledLayout.row_major(len(shape))
    buffer = RemoteBuffer(BufferType(client, connection, device, space, shape, element_type, layout_), handle)
    connection.send(request, buffer.outcome())
    return buffer


def _byte_strides(shape: tuple[int, ...], order: tuple[int, ...], itemsize: int) -> list[int]:
    """Return the strides of a dense array whose dimensions are in this order, the outermost first."""
    strides, step = [0] * len(shape), itemsize
    for dimension in reversed(order):
        strides[dimension] = step
        step *= shape[dimension]
    return strides


def store(buffer: RemoteBuffer, source: HostArray, release: Callable[[], object] | None) -> None:
    """Send the bytes of a new buffer.

    Args:
        buffer: the buffer.
        source: an array whose bytes are in the order that the request states. It must not change until ``release`` is
            called.
        release: called once, when the bytes are sent.
    """
    data = source.reshape(-1).view(np.uint8).data if source.size else memoryview(b"")
    buffer.type.connection.store(buffer.use(), data, release)


def uninitialized_buffer(
    client: RemoteClient, spec: ShapeSpec, device: RemoteDevice, space: RemoteMemorySpace
) -> RemoteBuffer:
    """Return a buffer of zeros, which are sent: the protocol has no request for memory without a value."""
    buffer = new_buffer(client, spec.shape, spec.element_type, device, space, spec.layout)
    store(buffer, np.zeros(spec.shape, array_dtype(spec.element_type)), None)
    return buffer


def failed_buffer(
    client: RemoteClient, error: PjrtError, spec: ShapeSpec, device: RemoteDevice, space: RemoteMemorySpace
) -> RemoteBuffer:
    """Return a buffer that has failed already (``MakeErrorArrays``)."""
    _, tiled = order_and_layout(spec.layout, spec.shape, spec.element_type)
    layout = tiled or TiledLayout.row_major(len(spec.shape))
    connection = client.connection
    buffer_type = BufferType(client, connection, device, space, spec.shape, spec.element_type, layout)
    buffer = RemoteBuffer(buffer_type, connection.new_handle())
    message = wire.MakeErrorArraysRequest(error=status_proto(error), array_handles=[buffer.handle()])
    message.array_specs.append(client.spec_proto(buffer_type))
    connection.post("make_error_arrays", message)
    buffer.set_ready(Future.failed(error))
    return buffer


# Of a transfer in pieces, the array is there at once. Its bytes follow when the last piece is there.


class RemoteTransferManager(TransferManager["_Filling"]):
    """Fills new buffers of a server in pieces."""

    __slots__ = ("device",)

    device: RemoteDevice

    def __init__(
        self, client: RemoteClient, device: RemoteDevice, space: RemoteMemorySpace, specs: Sequence[ShapeSpec]
    ) -> None:
        self.device = device
        super().__init__(
            [
                _Filling(
                    spec,
                    new_buffer(client, spec.shape, spec.element_type, device, space, spec.layout, is_in_layout=True),
                )
                for spec in expect_all(specs, ShapeSpec, "a pjrt.ShapeSpec")
            ]
        )

    def buffer_size(self, index: int) -> int:
        return self.filling(index).spec.size_in_bytes

    def retrieve_buffer(self, index: int) -> RemoteBuffer:
        return self.filling(index).retrieve()

    def transfer_data(self, index: int, data: Any, offset: int = 0, *, is_last_transfer: bool = True) -> Future[None]:
        filling = self.filling(index)
        return filling.add(source_bytes(data, offset, filling.spec.size_in_bytes), offset, is_last_transfer)

    def transfer_literal(self, index: int, array: Any) -> Future[None]:
        source, filling = self.literal(index, array), self.filling(index)
        spec = filling.spec
        ordered = np.ascontiguousarray(source.transpose(order_of_spec(spec)), array_dtype(spec.element_type))
        return filling.add(ordered.reshape(-1).view(np.uint8), 0, True)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Bound as a default, because the names of the module may be gone at the end of the interpreter.
        if hasattr(self, "_fillings") and not is_finalizing():
            self.close()


class _Filling:
    """One buffer that is being filled.

    Attributes:
        spec: its type.
    """

    def __init__(self, spec: ShapeSpec, buffer: RemoteBuffer) -> None:
        self.spec = spec
        self._buffer = buffer
        self._is_retrieved = False
        self._is_over = False
        # Made at the first piece: a transfer of one piece needs no copy.
        self._pieces: np.ndarray[Any, Any] | None = None
        self._lock = threading.Lock()

    def retrieve(self) -> RemoteBuffer:
        """Return the buffer, once."""
        with self._lock:
            if self._is_retrieved:
                raise FailedPreconditionError("the buffer was retrieved already; each can be retrieved once")
            self._is_retrieved = True
            return self._buffer

    def add(self, data: np.ndarray[Any, Any], offset: int, is_last: bool) -> Future[None]:
        """Take a piece; after the last one, send all."""
        with self._lock:
            self._check()
            self._is_over = is_last
            if is_last and self._pieces is None and data.nbytes == self.spec.size_in_bytes:
                promise: Promise[None] = Promise()
                self._send(data, lambda: promise.set_result(None))
                return promise.future
            if self._pieces is None:
                self._pieces = np.zeros(self.spec.size_in_bytes, np.uint8)
            self._pieces[offset : offset + data.nbytes] = data
            if is_last:
                self._send(self._pieces, None)
            return Future.completed(None)

    def fail(self, error: PjrtError) -> None:
        """Fail the buffer."""
        with self._lock:
            self._check()
            self._give_up(error)

    def abandon(self, error: PjrtError) -> None:
        """Fail the buffer unless all its data has come."""
        with self._lock:
            if not self._is_over:
                self._give_up(error)

    def _give_up(self, error: PjrtError) -> None:
        self._is_over = True
        self._buffer.failure = error
        # Bytes of another number than the array's: the server fails it, and all that was computed of it.
        self._send(np.zeros(0 if self.spec.size_in_bytes else 1, np.uint8), None)

    def _check(self) -> None:
        if self._is_over:
            raise FailedPreconditionError("the buffer has had its last transfer, or has failed")

    def _send(self, data: np.ndarray[Any, Any], done: Any) -> None:
        buffer = self._buffer
        buffer.type.connection.store(buffer.handle(), data.data, done)
