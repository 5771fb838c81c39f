"""Array specs inside messages, and the numbers for how an operation treats its inputs."""

from __future__ import annotations

from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.ifrt.array import ArrayCopySemantics, ArraySpec
from pjrt.ifrt.client import Client
from pjrt.ifrt.sharding import SingleDeviceShardSemantics
from pjrt.remote.protocol.layouts import layout_of_spelling, layout_spelling
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.shardings import sharding_of, sharding_proto
from pjrt.remote.protocol.values import element_type_of, element_type_proto, shape_of, shape_proto

_COPY_SEMANTICS = {
    1: ArrayCopySemantics.ALWAYS_COPY,
    2: ArrayCopySemantics.REUSE_INPUT,
    3: ArrayCopySemantics.DONATE_INPUT,
}
_SHARD_SEMANTICS = {
    1: SingleDeviceShardSemantics.ADDRESSABLE_SHARDS,
    2: SingleDeviceShardSemantics.ALL_SHARDS,
}


def copy_semantics_of(number: int) -> ArrayCopySemantics:
    """Return the rule for the memory of an operation's input.

    Raises:
        InvalidArgumentError: the number is none of the protocol.
    """
    semantics = _COPY_SEMANTICS.get(number)
    if semantics is None:
        raise InvalidArgumentError(f"expected ArrayCopySemantics 1, 2 or 3, found {number}")
    return semantics


def shard_semantics_of(number: int) -> SingleDeviceShardSemantics:
    """Return the choice of an array's shards.

    Raises:
        InvalidArgumentError: the number is none of the protocol.
    """
    semantics = _SHARD_SEMANTICS.get(number)
    if semantics is None:
        raise InvalidArgumentError(f"expected SingleDeviceShardSemantics 1 or 2, found {number}")
    return semantics


def array_spec_of(client: Client, proto: Any) -> ArraySpec:
    """Return the array in an ``ArraySpecProto``; raise the errors of its parts."""
    layout = layout_of_spelling(proto.layout) if proto.HasField("layout") else None
    return ArraySpec(shape_of(proto.shape), element_type_of(proto.dtype), sharding_of(client, proto.sharding), layout)


def array_spec_proto(spec: ArraySpec) -> Any:
    """Return an array as an ``ArraySpecProto``."""
    proto = wire.ArraySpecProto(
        dtype=element_type_proto(spec.element_type),
        shape=shape_proto(spec.shape),
        sharding=sharding_proto(spec.sharding),
    )
    if spec.layout is not None:
        proto.layout = layout_spelling(spec.layout)
    return proto
