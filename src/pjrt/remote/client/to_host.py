"""Copies from remote buffers to the host: the server stores the value as a host buffer, and the channel fetches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.checks import expect, expect_out
from pjrt.api.element_type import ElementType
from pjrt.api.errors import PjrtError
from pjrt.api.future import Future, Promise, when_all_done
from pjrt.api.layout import Layout, TiledLayout
from pjrt.host_memory.byte_range import target_bytes
from pjrt.host_memory.layout import array_dtype, order_and_layout
from pjrt.remote.protocol.messages import wire

if TYPE_CHECKING:
    from pjrt.remote.client.buffer import RemoteBuffer

HostArray = np.ndarray[Any, Any]


def array(buffer: RemoteBuffer, out: HostArray | None, layout: Layout | None) -> Future[HostArray]:
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
        self._connection.send(request, self._stored)

    def _stored(self, _: Any, error: PjrtError | None) -> None:
        # Dropped, so that the thread that fetches does not keep a client alive that nobody has any more.
        buffer, self._buffer = self._buffer, None
        if error is not None:
            self._complete(None, (None if buffer is None else buffer.failure) or error)
            return
        memory = self._target.reshape(-1).view(np.uint8).data if self._target.size else memoryview(bytearray())
        self._connection.fetch(self._handle, memory, self._fetched)

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

    return array(buffer, None, None).then(take)


def raw_bytes_later(buffer: RemoteBuffer, out: Future[Any], offset: int, size: int | None) -> Future[None]:
    """Return a future of such a copy to memory that is allocated later."""
    expect(out, Future, "a future of the memory to copy to")
    # Copied from now on: the buffer may be deleted before there is memory to copy to.
    value = array(buffer, None, None)
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
