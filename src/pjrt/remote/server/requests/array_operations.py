"""Requests that make arrays of arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.ifrt.array import Array, ArrayCopySemantics, ArraySpec
from pjrt.ifrt.from_host import buffer_shapes
from pjrt.ifrt.hlo_sharding import HloSharding
from pjrt.ifrt.sharding import Sharding
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import (
    array_spec_of,
    copy_semantics_of,
    element_type_of,
    remap_plan_of,
    shape_of,
    shard_semantics_of,
    sharding_of,
)
from pjrt.remote.server.requests.table import handles

if TYPE_CHECKING:
    from pjrt.remote.server.session import Session


def _makes_uneven(session: Session, request: Any) -> bool:
    return _is_uneven(sharding_of(session.client, request.sharding), shape_of(request.shape))


@handles(
    "assemble_array_from_single_device_arrays",
    inputs=("single_device_array_handles",),
    results=("result_handle",),
    blocking=_makes_uneven,
)
def assemble(session: Session, request: Any) -> Any:
    """Make one array of the arrays of single devices."""
    array = session.client.assemble_array_from_single_device_arrays(
        shape_of(request.shape),
        sharding_of(session.client, request.sharding),
        session.arrays.get_all(request.single_device_array_handles),
        copy_semantics_of(request.copy_semantics),
        element_type=element_type_of(request.dtype) if request.HasField("dtype") else None,
        shard_semantics=shard_semantics_of(request.single_device_shard_semantics),
    )
    handle = session.arrays.add(array, request.result_handle)
    return wire.AssembleArrayFromSingleDeviceArraysResponse(array_handle=handle)


def _cuts_uneven(session: Session, request: Any) -> bool:
    spec = session.arrays.get(request.array_handle).spec
    return _is_uneven(spec.sharding, spec.shape)


@handles(
    "disassemble_into_single_device_arrays",
    inputs=("array_handle",),
    results=("result_handles",),
    blocking=_cuts_uneven,
)
def disassemble(session: Session, request: Any) -> Any:
    """Make an array of each shard of an array."""
    arrays = session.arrays.get(request.array_handle).disassemble(
        copy_semantics_of(request.copy_semantics), shard_semantics_of(request.single_device_shard_semantics)
    )
    handles = session.arrays.add_all(arrays, request.result_handles)
    return wire.DisassembleIntoSingleDeviceArraysResponse(array_handles=handles)


@handles("copy_arrays", inputs=("array_handles",), results=("result_handles",))
def copy_arrays(session: Session, request: Any) -> Any:
    """Copy arrays to other devices, or to another kind of memory."""
    arrays = session.client.copy_arrays(
        session.arrays.get_all(request.array_handles),
        [session.client.lookup_device(number) for number in request.device_ids] or None,
        request.memory_kind or None,
        copy_semantics_of(request.copy_semantics),
    )
    return wire.CopyArraysResponse(array_handles=session.arrays.add_all(arrays, request.result_handles))


@handles("fully_replicated_shard", inputs=("array_handle",), results=("result_handle",))
def fully_replicated_shard(session: Session, request: Any) -> Any:
    """Make an array of one device of an array that each device has whole."""
    array = session.arrays.get(request.array_handle)
    shard = array.fully_replicated_shard(copy_semantics_of(request.copy_semantics))
    return wire.FullyReplicatedShardResponse(array_handle=session.arrays.add(shard, request.result_handle))


@handles("reshard_arrays", inputs=("array_handles",), results=("result_handles",), blocking=True)
def reshard_arrays(session: Session, request: Any) -> Any:
    """Make arrays of other shardings of arrays."""
    arrays = session.arrays.get_all(request.array_handles)
    specs = [array_spec_of(session.client, spec) for spec in request.array_specs]
    semantics = copy_semantics_of(request.copy_semantics)
    outputs = session.client.reshard_arrays(arrays, [spec.sharding for spec in specs], semantics)
    return wire.ReshardArraysResponse(array_handles=session.arrays.add_all(outputs, request.result_handles))


@handles("remap_arrays", inputs=("array_handles",), results=("result_handles",))
def remap_arrays(session: Session, request: Any) -> Any:
    """Make arrays of the shards of others."""
    plan = remap_plan_of(session.client, request.plan)
    arrays = session.arrays.get_all(request.array_handles)
    # A client may give an array's shards another meaning here, so only shapes, types and places are compared.
    if list(map(_place, plan.input_specs)) != [_place(array.spec) for array in arrays]:
        raise InvalidArgumentError(
            f"expected the arrays {[str(spec) for spec in plan.input_specs]}, found {[str(a.spec) for a in arrays]}"
        )
    plan = replace(plan, input_specs=tuple(array.spec for array in arrays))
    outputs = session.client.remap_arrays(plan, arrays, copy_semantics_of(request.copy_semantics))
    return wire.RemapArraysResponse(array_handles=session.arrays.add_all(outputs, request.result_handles))


def _place(spec: ArraySpec) -> tuple[Any, ...]:
    return spec.shape, spec.element_type, spec.sharding.devices, spec.sharding.memory_kind


@handles("bitcast_arrays", inputs=("array_handles",), results=("result_handles",))
def bitcast_arrays(session: Session, request: Any) -> Any:
    """Make arrays that read the same bytes as another type and shape; the inputs are used up."""
    if copy_semantics_of(request.copy_semantics) is not ArrayCopySemantics.DONATE_INPUT:
        raise UnimplementedError("expected the copy semantics DONATE_INPUT for a bitcast: its inputs lose their memory")
    arrays = session.arrays.get_all(request.array_handles)
    outputs = []
    for array, proto in zip(arrays, request.array_specs, strict=True):
        spec = array_spec_of(session.client, proto)
        buffers = [
            buffer.bitcast(spec.element_type, shape)
            for buffer, shape in zip(array.buffers, buffer_shapes(spec), strict=True)
        ]
        outputs.append(Array(session.client, spec, buffers))
    return wire.BitcastArraysResponse(array_handles=session.arrays.add_all(outputs, request.result_handles))


def _is_uneven(sharding: Sharding, shape: tuple[int, ...]) -> bool:
    """Whether some tiles are short: their shards are padded, and cut to size by the host, which waits for values."""
    return isinstance(sharding, HloSharding) and any(
        size % count for size, count in zip(shape, sharding.tiling.tiles, strict=False)
    )
