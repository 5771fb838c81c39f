"""Requests that make arrays of host buffers, and host buffers of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError, ResourceExhaustedError
from pjrt.api.host_buffer_semantics import HostBufferSemantics
from pjrt.ifrt.array import ArraySpec
from pjrt.ifrt.from_host import parts_of_whole
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import array_spec_of, element_type_of, error_of, layout_of, shape_of, sharding_of
from pjrt.remote.server.array_memory import shortened
from pjrt.remote.server.host_memory import array_in, bytes_of
from pjrt.remote.server.requests.table import handles

if TYPE_CHECKING:
    from pjrt.remote.server.session import Session

# The bytes of a host buffer are the session's alone, and nobody writes them again, so devices that can use them in
# place do. They may not write to them, because several devices may have the same bytes.
_SEMANTICS = HostBufferSemantics.IMMUTABLE_ZERO_COPY


@handles(
    "make_array_from_host_buffer",
    results=("array_handle",),
    host_buffers=lambda request: (request.host_buffer_handle,),
)
def make_array_from_host_buffer(session: Session, request: Any) -> Any:
    """Put a whole array on devices."""
    data = session.host_buffers.take(request.host_buffer_handle)
    element_type, shape = element_type_of(request.dtype), shape_of(request.shape)
    value = array_in(data, element_type, shape, _strides(request))
    sharding = sharding_of(session.client, request.sharding)
    if request.HasField("layout"):
        spec = ArraySpec(shape, element_type, sharding, layout_of(request.layout))
        parts = parts_of_whole(spec, value)
        array = session.client.make_array_from_host_buffer_shards(spec, parts, semantics=_SEMANTICS)
    else:
        array = session.client.make_array(value, sharding, semantics=_SEMANTICS)
    return wire.MakeArrayFromHostBufferResponse(array_handle=session.arrays.add(array, request.array_handle))


def _shards_handles(request: Any) -> Iterator[int]:
    return (buffer.host_buffer_handle for spec in request.specs for buffer in spec.host_buffers)


@handles("make_arrays_from_host_buffer_shards", results=("array_handles",), host_buffers=_shards_handles)
def make_arrays_from_host_buffer_shards(session: Session, request: Any) -> Any:
    """Put arrays on devices, each shard from a host buffer; devices with equal shards share a buffer."""
    buffers = {handle: session.host_buffers.take(handle) for handle in _shards_handles(request)}
    arrays = []
    for message in request.specs:
        spec = array_spec_of(session.client, message.array_spec)
        arrays.append(
            session.client.make_array_from_host_buffer_shards(
                spec, _shards(spec, message, buffers), semantics=_SEMANTICS
            )
        )
    handles = session.arrays.add_all(arrays, request.array_handles)
    return wire.MakeArraysFromHostBufferShardsResponse(array_handles=handles)


def _shards(spec: ArraySpec, message: Any, buffers: dict[int, Any]) -> list[Any]:
    shards: list[Any] = [None] * len(spec.sharding.devices.addressable_devices)
    if len(message.addressable_shard_indices) != len(message.host_buffers):
        raise InvalidArgumentError(
            f"expected the indices of the shards of each of {len(message.host_buffers)} host buffers, found "
            f"{len(message.addressable_shard_indices)}"
        )
    for row, buffer in zip(message.addressable_shard_indices, message.host_buffers, strict=True):
        data = buffers[buffer.host_buffer_handle]
        value = array_in(data, element_type_of(buffer.dtype), shape_of(buffer.shape), _strides(buffer))
        for index in row.indices:
            if not 0 <= index < len(shards):
                raise InvalidArgumentError(
                    f"expected the index of one of {len(shards)} shards of {spec}, found {index}"
                )
            shards[index] = value
    if missing := [index for index, shard in enumerate(shards) if shard is None]:
        raise InvalidArgumentError(f"expected a host buffer for each shard of {spec}, found none for {missing}")
    return shards


@handles("make_error_arrays", results=("array_handles",))
def make_error_arrays(session: Session, request: Any) -> Any:
    """Make arrays that have failed already."""
    error = error_of(request.error)
    if error is None:
        raise InvalidArgumentError("expected the status of an error for error arrays, found OK")
    error = shortened(error)
    specs = [array_spec_of(session.client, spec) for spec in request.array_specs]
    arrays = session.client.make_error_arrays(error, specs)
    handles = session.arrays.add_all(arrays, request.array_handles)
    try:
        for handle in handles:
            session.array_memory.hold_text(handle, error)
    except ResourceExhaustedError:
        for handle in handles:
            session.arrays.forget(handle)
        raise
    return wire.MakeErrorArraysResponse(array_handles=handles)


@handles("copy_to_host_buffer", inputs=("array_handle",))
def copy_to_host_buffer(session: Session, request: Any) -> Any:
    """Copy a whole array to a host buffer, which the client fetches."""
    strides, handle, host_buffers = _strides(request), request.host_buffer_handle, session.host_buffers

    def keep(value: np.ndarray[Any, Any]) -> Any:
        host_buffers.store(handle, bytes_of(value, strides))
        return wire.CopyToHostBufferResponse()

    return session.arrays.get(request.array_handle).to_host().then(keep)


def _strides(message: Any) -> tuple[int, ...] | None:
    return tuple(message.byte_strides.strides) if message.HasField("byte_strides") else None
