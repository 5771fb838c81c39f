"""Buffers that do not come from a host array: uninitialized ones, and failed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pjrt.api.errors import PjrtError
from pjrt.api.future import Future
from pjrt.api.layout import TiledLayout
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host_memory.layout import array_dtype, order_and_layout
from pjrt.remote.client.buffer import BufferType, RemoteBuffer
from pjrt.remote.client.from_host import new_buffer, store
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import status_proto

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient
    from pjrt.remote.client.device import RemoteDevice
    from pjrt.remote.client.memory_space import RemoteMemorySpace


def uninitialized(
    client: RemoteClient, spec: ShapeSpec, device: RemoteDevice, space: RemoteMemorySpace
) -> RemoteBuffer:
    """Return a buffer of zeros, which are sent: the protocol has no request for memory without a value."""
    buffer = new_buffer(client, spec.shape, spec.element_type, device, space, spec.layout)
    store(buffer, np.zeros(spec.shape, array_dtype(spec.element_type)), None)
    return buffer


def failed(
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
