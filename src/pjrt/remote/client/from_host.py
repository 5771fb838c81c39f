"""Buffers from host arrays: the bytes go ahead on a stream of their own, and one request makes the array of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.checks import expect_array, expect_callable, unexpected
from pjrt.api.element_type import ElementType
from pjrt.api.errors import UnimplementedError
from pjrt.api.host_buffer_semantics import HostBufferSemantics
from pjrt.api.layout import Layout, TiledLayout
from pjrt.host_memory.aligned import HostArray
from pjrt.host_memory.external import notify_owner
from pjrt.host_memory.layout import array_dtype, order_and_layout
from pjrt.remote.client.buffer import BufferType, RemoteBuffer
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import element_type_proto, layout_proto
from pjrt.remote.protocol.versions import LAYOUT_OF_NEW_ARRAY

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient
    from pjrt.remote.client.device import RemoteDevice
    from pjrt.remote.client.memory_space import RemoteMemorySpace


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
    buffer = new_buffer(client, source.shape, element_type, device, space, layout)
    dtype = array_dtype(element_type)
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
