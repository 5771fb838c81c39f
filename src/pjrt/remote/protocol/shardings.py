"""Device lists and shardings inside messages, in the serialized form that jaxlib gives them (``ShardingProto``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.ifrt.client import Client
from pjrt.ifrt.concrete_sharding import ConcreteEvenSharding, ConcreteSharding
from pjrt.ifrt.device_list import DeviceList
from pjrt.ifrt.hlo_sharding import HloSharding
from pjrt.ifrt.sharding import OpaqueSharding, Sharding, SingleDeviceSharding
from pjrt.ifrt.sharding_param import ShardingParam, ShardingParamSharding
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import shape_of, shape_proto


def device_list_of(client: Client, proto: Any) -> DeviceList:
    """Return the devices in a ``DeviceListProto``.

    Raises:
        NotFoundError: the client has no device of an id.
        InvalidArgumentError: the list is empty, or has a device twice.
    """
    return DeviceList([client.lookup_device(number) for number in proto.device_ids])


def device_list_proto(devices: DeviceList) -> Any:
    """Return devices as a ``DeviceListProto``."""
    return wire.DeviceListProto(device_ids=devices.ids)


def sharding_of(client: Client, proto: Any) -> Sharding:
    """Return the sharding in a ``ShardingProto``.

    Raises:
        InvalidArgumentError: the bytes are not a sharding, or one that its devices contradict.
        NotFoundError: the client lacks a device, or a device lacks the kind of memory.
        UnimplementedError: the sharding is of a kind that is not known here.
    """
    serialized = proto.serialized_sharding
    form = _FORMS.get(serialized.type_name)
    if form is None:
        raise UnimplementedError(
            f"expected a sharding of one of the types {', '.join(_FORMS)}, found {serialized.type_name!r}"
        )
    try:
        message = form.message.FromString(serialized.data)
    except DecodeError as error:
        raise InvalidArgumentError(f"expected a serialized {serialized.type_name}, found other bytes") from error
    return form.read(client, message, message.memory_kind or None)


def sharding_proto(sharding: Sharding) -> Any:
    """Return a sharding as a ``ShardingProto``."""
    name = _NAMES[type(sharding)]
    form = _FORMS[name]
    message = form.write(sharding)
    if sharding.memory_kind is not None:
        message.memory_kind = sharding.memory_kind
    serialized = wire.Serialized(type_name=name, data=message.SerializeToString())
    return wire.ShardingProto(serialized_sharding=serialized)


class _Form(NamedTuple):
    """The serialized form of a kind of sharding.

    Attributes:
        type: the class.
        message: the class of its message.
        read: returns the sharding of a message and a memory kind.
        write: returns the message of a sharding, without the memory kind.
    """

    type: type[Sharding]
    message: Any
    read: Callable[[Client, Any, str | None], Sharding]
    write: Callable[[Any], Any]


def _read_concrete(client: Client, message: Any, memory_kind: str | None) -> ConcreteSharding:
    if message.HasField("dynamic_shape"):
        raise UnimplementedError("expected a sharding of a static shape, found one of a dynamic shape")
    shapes = [shape_of(shape) for shape in message.shard_shapes]
    return ConcreteSharding(device_list_of(client, message.devices), shape_of(message.shape), shapes, None, memory_kind)


def _write_concrete(sharding: ConcreteSharding) -> Any:
    return wire.ConcreteShardingProto(
        devices=device_list_proto(sharding.devices),
        shape=shape_proto(sharding.shape),
        shard_shapes=[shape_proto(shape) for shape in sharding.shard_shapes],
    )


def _read_concrete_even(client: Client, message: Any, memory_kind: str | None) -> ConcreteEvenSharding:
    return ConcreteEvenSharding(
        device_list_of(client, message.devices),
        shape_of(message.shape),
        shape_of(message.shard_shape),
        memory_kind,
        is_fully_replicated=message.is_fully_replicated,
    )


def _write_concrete_even(sharding: ConcreteEvenSharding) -> Any:
    return wire.ConcreteEvenShardingProto(
        devices=device_list_proto(sharding.devices),
        shape=shape_proto(sharding.shape),
        shard_shape=shape_proto(sharding.shard_shape(sharding.shape)),
        is_fully_replicated=sharding.is_fully_replicated,
    )


def _read_param(client: Client, message: Any, memory_kind: str | None) -> ShardingParamSharding:
    proto = message.sharding_param
    if proto.unreduced_axes:
        raise UnimplementedError("expected a ShardingParam without unreduced axes, found some")
    param = ShardingParam(tuple(proto.dim_shards), tuple(proto.permutation), tuple(proto.axis_sizes))
    return ShardingParamSharding(device_list_of(client, message.devices), param, memory_kind)


def _write_param(sharding: ShardingParamSharding) -> Any:
    param = sharding.param
    return wire.ShardingParamShardingProto(
        devices=device_list_proto(sharding.devices),
        sharding_param=wire.ShardingParamProto(
            dim_shards=param.dim_shards, permutation=param.permutation, axis_sizes=param.axis_sizes
        ),
    )


def _read_hlo(client: Client, message: Any, memory_kind: str | None) -> HloSharding:
    return HloSharding.from_proto(device_list_of(client, message.devices), message.xla_op_sharding, memory_kind)


def _write_hlo(sharding: HloSharding) -> Any:
    return wire.HloShardingProto(
        devices=device_list_proto(sharding.devices), xla_op_sharding=sharding.tiling.to_proto()
    )


_FORMS = {
    "xla::ifrt::SingleDeviceSharding": _Form(
        SingleDeviceSharding,
        wire.SingleDeviceShardingProto,
        lambda client, message, kind: SingleDeviceSharding(client.lookup_device(message.device_id), kind),
        lambda sharding: wire.SingleDeviceShardingProto(device_id=sharding.devices.ids[0]),
    ),
    "xla::ifrt::OpaqueSharding": _Form(
        OpaqueSharding,
        wire.OpaqueShardingProto,
        lambda client, message, kind: OpaqueSharding(device_list_of(client, message.devices), kind),
        lambda sharding: wire.OpaqueShardingProto(devices=device_list_proto(sharding.devices)),
    ),
    "xla::ifrt::ConcreteSharding": _Form(ConcreteSharding, wire.ConcreteShardingProto, _read_concrete, _write_concrete),
    "xla::ifrt::ConcreteEvenSharding": _Form(
        ConcreteEvenSharding, wire.ConcreteEvenShardingProto, _read_concrete_even, _write_concrete_even
    ),
    "xla::ifrt::ShardingParamSharding": _Form(
        ShardingParamSharding, wire.ShardingParamShardingProto, _read_param, _write_param
    ),
    "xla::ifrt::HloSharding": _Form(HloSharding, wire.HloShardingProto, _read_hlo, _write_hlo),
}
_NAMES = {form.type: name for name, form in _FORMS.items()}
