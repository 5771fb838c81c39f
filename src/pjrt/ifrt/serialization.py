"""Serialization of device lists, shardings, array specs and remap plans (IFRT's ``SerDes``).

The bytes are a mark, a checksum and a message. The message holds the name of a type, the version of its format and its
data, as IFRT's ``Serialized`` does; an object inside another one is such a message too. Devices are written as their
ids, and are looked up in the client of the reader. Equal objects give equal bytes.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pjrt.api.checks import expect, expect_bytes
from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, InvalidArgumentError
from pjrt.api.shape_spec import Layout, StridedLayout, TiledLayout
from pjrt.ifrt.array import ArraySpec
from pjrt.ifrt.client import Client
from pjrt.ifrt.hlo_sharding import HloSharding, ShardingParam, ShardingParamSharding
from pjrt.ifrt.remap_plan import Interval, Mapping, RemapPlan
from pjrt.ifrt.sharding import (
    ConcreteEvenSharding,
    ConcreteSharding,
    DeviceList,
    IndexDomain,
    OpaqueSharding,
    Shape,
    Sharding,
    SingleDeviceSharding,
)
from pjrt.stablehlo.ir.sharding import REDUCTIONS
from pjrt.stablehlo.ir.sharding import Sharding as Tiling

_MARK = b"IFRT"
_HEADER = len(_MARK) + 4  # the checksum is a 32-bit number, the least significant byte first

# message: {field: (number, type)}; a type in brackets is repeated. A field keeps its number for ever.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Serialized": {"type_name": (1, "string"), "version": (2, "int64"), "data": (3, "bytes")},
    "Numbers": {"values": (1, "[int64]")},
    "DeviceList": {"ids": (1, "[int64]")},
    "Placement": {"device_ids": (1, "[int64]"), "memory_kind": (2, "string")},
    "SingleDeviceSharding": {"placement": (1, "Placement")},
    "OpaqueSharding": {"placement": (1, "Placement")},
    "ConcreteSharding": {
        "placement": (1, "Placement"),
        "shape": (2, "[int64]"),
        "shard_shapes": (3, "[Numbers]"),
        "origins": (4, "[Numbers]"),
    },
    "ConcreteEvenSharding": {
        "placement": (1, "Placement"),
        "shape": (2, "[int64]"),
        "shard_shape": (3, "[int64]"),
        "is_fully_replicated": (4, "bool"),
    },
    "HloSharding": {
        "placement": (1, "Placement"),
        "tiles": (2, "[int64]"),
        "places": (3, "[Numbers]"),
        "terms": (4, "[int64]"),
        "reduction": (5, "string"),
    },
    "ShardingParamSharding": {
        "placement": (1, "Placement"),
        "dim_shards": (2, "[int64]"),
        "permutation": (3, "[int64]"),
        "axis_sizes": (4, "[int64]"),
    },
    "TiledLayout": {"minor_to_major": (1, "[int64]"), "tiles": (2, "[Numbers]")},
    "ArraySpec": {
        "shape": (1, "[int64]"),
        "element_type": (2, "int64"),
        "sharding": (3, "Serialized"),
        "tiled_layout": (4, "TiledLayout"),
        "strided_layout": (5, "Numbers"),
    },
    "Interval": {"start": (1, "int64"), "end": (2, "int64"), "step": (3, "int64")},
    "Mapping": {
        "in_array": (1, "int64"),
        "out_array": (2, "int64"),
        "from_": (3, "[Interval]"),
        "to": (4, "[Interval]"),
    },
    "RemapPlan": {
        "input_specs": (1, "[Serialized]"),
        "output_specs": (2, "[Serialized]"),
        "mappings": (3, "[Mapping]"),
    },
}


def serialize(value: DeviceList | Sharding | ArraySpec | RemapPlan) -> bytes:
    """Return an object as bytes for ``deserialize``, which may read them in another process.

    Raises:
        InvalidArgumentError: the object is of a type that has no serialized form.
    """
    message: bytes = _pack(value).SerializeToString()
    return _MARK + _checksum(message) + message


def deserialize(client: Client, serialized: bytes) -> Any:
    """Return the object that ``serialize`` made bytes of.

    Args:
        client: the client whose devices have the ids that the object names.
        serialized: the bytes.

    Raises:
        DataLossError: the bytes are damaged, or are not from ``serialize``.
        InvalidArgumentError: the object's type is unknown, or its format is newer than this version of pjrt.
        NotFoundError: the object names a device that the client lacks, or a kind of memory that its devices lack.
    """
    expect(client, Client, "a pjrt.ifrt.Client to look devices up in")
    data = expect_bytes(serialized, "the bytes that pjrt.ifrt.serialize returned")
    if len(data) < _HEADER or not data.startswith(_MARK):
        raise DataLossError(
            f"expected bytes from pjrt.ifrt.serialize, which begin with {_MARK!r}, found {len(data)} bytes that begin "
            f"with {data[: len(_MARK)]!r}"
        )
    message = data[_HEADER:]
    stated, computed = data[len(_MARK) : _HEADER].hex(), _checksum(message).hex()
    if stated != computed:
        raise DataLossError(
            f"the serialized IFRT object is damaged: expected {len(message)} bytes of the checksum {stated}, found "
            f"{computed}"
        )
    return _unpack(client, _parse("Serialized", message))


class _Format(NamedTuple):
    """The serialized form of one type.

    Attributes:
        type: the type.
        write: returns the fields of the message for an object.
        read: returns the object of a message.
        version: the version that is written; older ones are read as well.
    """

    type: type[Any]
    write: Callable[[Any], dict[str, Any]]
    read: Callable[[Client, Any], Any]
    version: int = 1


def _pack(value: Any) -> Any:
    name = type(value).__name__
    form = _FORMATS.get(name)
    if form is None or form.type is not type(value):
        raise InvalidArgumentError(
            f"expected an object of one of the types {', '.join(_FORMATS)} to serialize, found {value!r} of type {name}"
        )
    data = _classes()[name](**form.write(value)).SerializeToString()
    return _classes()["Serialized"](type_name=name, version=form.version, data=data)


def _unpack(client: Client, message: Any, expected: type[Any] = object) -> Any:
    form = _FORMATS.get(message.type_name)
    if form is None or not issubclass(form.type, expected):
        types = [name for name, each in _FORMATS.items() if issubclass(each.type, expected)]
        raise InvalidArgumentError(
            f"expected a serialized object of one of the types {', '.join(types)}, found one of the type "
            f"{message.type_name!r}"
        )
    if not 1 <= message.version <= form.version:
        raise InvalidArgumentError(
            f"expected a {message.type_name} in a format up to version {form.version}, found version "
            f"{message.version}; read it with the version of pjrt that wrote it, or a newer one"
        )
    return form.read(client, _parse(message.type_name, message.data))


def _parse(name: str, data: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return _classes()[name].FromString(data)
    except DecodeError as error:
        raise DataLossError(f"expected a serialized {name}, found {len(data)} other bytes: {error}") from error


def _checksum(message: bytes) -> bytes:
    return zlib.crc32(message).to_bytes(4, "little")


@functools.cache
def _classes() -> dict[str, Any]:
    from pjrt.api.protobuf import message_classes  # takes 13 ms, and most programs serialize nothing

    return message_classes("pjrt.ifrt", _MESSAGES)


# The parts of messages.


def _numbers(rows: Sequence[Shape]) -> list[dict[str, Shape]]:
    return [{"values": row} for row in rows]


def _rows(messages: Any) -> list[Shape]:
    return [tuple(message.values) for message in messages]


def _write_placement(sharding: Sharding) -> dict[str, Any]:
    return {"device_ids": sharding.devices.ids, "memory_kind": sharding.memory_kind}


def _read_placement(client: Client, message: Any) -> tuple[DeviceList, str | None]:
    placement = message.placement
    return _devices(client, placement.device_ids), placement.memory_kind or None


def _devices(client: Client, ids: Sequence[int]) -> DeviceList:
    return DeviceList([client.lookup_device(number) for number in ids])


def _read_single_device(client: Client, message: Any) -> SingleDeviceSharding:
    devices, kind = _read_placement(client, message)
    if len(devices) != 1:
        raise DataLossError(f"expected one device in a serialized SingleDeviceSharding, found {devices}")
    return SingleDeviceSharding(devices[0], kind)


def _write_concrete(sharding: ConcreteSharding) -> dict[str, Any]:
    return {
        "placement": _write_placement(sharding),
        "shape": sharding.shape,
        "shard_shapes": _numbers(sharding.shard_shapes),
        "origins": _numbers([domain.origin for domain in sharding.domains or ()]),
    }


def _read_concrete(client: Client, message: Any) -> ConcreteSharding:
    devices, kind = _read_placement(client, message)
    shapes, origins = _rows(message.shard_shapes), _rows(message.origins)
    domains = [IndexDomain(origin, shape) for origin, shape in zip(origins, shapes, strict=False)] or None
    return ConcreteSharding(devices, message.shape, shapes, domains, kind)


def _write_concrete_even(sharding: ConcreteEvenSharding) -> dict[str, Any]:
    return {
        "placement": _write_placement(sharding),
        "shape": sharding.shape,
        "shard_shape": sharding.shard_shape(sharding.shape),
        "is_fully_replicated": sharding.is_fully_replicated,
    }


def _read_concrete_even(client: Client, message: Any) -> ConcreteEvenSharding:
    devices, kind = _read_placement(client, message)
    return ConcreteEvenSharding(
        devices, message.shape, message.shard_shape, kind, is_fully_replicated=message.is_fully_replicated
    )


def _write_hlo(sharding: HloSharding) -> dict[str, Any]:
    tiling = sharding.tiling
    return {
        "placement": _write_placement(sharding),
        "tiles": tiling.tiles,
        "places": _numbers(tiling.places),
        "terms": tiling.terms,
        "reduction": "" if tiling.reduction == "sum" else tiling.reduction,
    }


def _read_hlo(client: Client, message: Any) -> HloSharding:
    devices, kind = _read_placement(client, message)
    tiles, places, terms = tuple(message.tiles), tuple(_rows(message.places)), tuple(message.terms)
    fits = all(
        len(place) == len(tiles) and all(0 <= i < count for i, count in zip(place, tiles, strict=True))
        for place in places
    )
    reduction = message.reduction or "sum"
    if not fits or len(terms) not in (0, len(places)) or bool(tiles) > bool(places) or reduction not in REDUCTIONS:
        raise DataLossError(
            f"expected the places of {len(devices)} partitions among {tiles} tiles in a serialized HloSharding, found "
            f"{places} with the terms {terms} of a {reduction}"
        )
    return HloSharding(devices, Tiling(tiles, places, terms, reduction), kind)


def _write_sharding_param(sharding: ShardingParamSharding) -> dict[str, Any]:
    param = sharding.param
    return {
        "placement": _write_placement(sharding),
        "dim_shards": param.dim_shards,
        "permutation": param.permutation,
        "axis_sizes": param.axis_sizes,
    }


def _read_sharding_param(client: Client, message: Any) -> ShardingParamSharding:
    devices, kind = _read_placement(client, message)
    param = ShardingParam(tuple(message.dim_shards), tuple(message.permutation), tuple(message.axis_sizes))
    return ShardingParamSharding(devices, param, kind)


def _write_spec(spec: ArraySpec) -> dict[str, Any]:
    fields = {"shape": spec.shape, "element_type": int(spec.element_type), "sharding": _pack(spec.sharding)}
    if isinstance(spec.layout, TiledLayout):
        fields["tiled_layout"] = {"minor_to_major": spec.layout.minor_to_major, "tiles": _numbers(spec.layout.tiles)}
    elif spec.layout is not None:
        fields["strided_layout"] = {"values": spec.layout.byte_strides}
    return fields


def _read_spec(client: Client, message: Any) -> ArraySpec:
    try:
        element_type = ElementType(message.element_type)
    except ValueError as error:
        raise DataLossError(
            f"expected an element type in a serialized ArraySpec, found the number {message.element_type}"
        ) from error
    layout: Layout | None = None
    if message.HasField("tiled_layout"):
        tiled = message.tiled_layout
        layout = TiledLayout(tuple(tiled.minor_to_major), tuple(_rows(tiled.tiles)))
    elif message.HasField("strided_layout"):
        layout = StridedLayout(tuple(message.strided_layout.values))
    return ArraySpec(message.shape, element_type, _unpack(client, message.sharding, Sharding), layout)


def _write_plan(plan: RemapPlan) -> dict[str, Any]:
    return {
        "input_specs": [_pack(spec) for spec in plan.input_specs],
        "output_specs": [_pack(spec) for spec in plan.output_specs],
        "mappings": [
            {
                "in_array": mapping.in_array,
                "out_array": mapping.out_array,
                "from_": [_write_interval(each) for each in mapping.from_],
                "to": [_write_interval(each) for each in mapping.to],
            }
            for mapping in plan.mappings
        ],
    }


def _write_interval(interval: Interval) -> dict[str, int]:
    return {"start": interval.start, "end": interval.end, "step": interval.step}


def _read_plan(client: Client, message: Any) -> RemapPlan:
    inputs, outputs = (
        tuple(_unpack(client, spec, ArraySpec) for spec in specs)
        for specs in (message.input_specs, message.output_specs)
    )
    mappings = tuple(
        Mapping(each.in_array, each.out_array, _intervals(each.from_), _intervals(each.to)) for each in message.mappings
    )
    return RemapPlan(inputs, outputs, mappings)


def _intervals(messages: Any) -> tuple[Interval, ...]:
    return tuple(Interval(message.start, message.end, message.step) for message in messages)


_FORMATS = {
    form.type.__name__: form
    for form in (
        _Format(
            DeviceList, lambda devices: {"ids": devices.ids}, lambda client, message: _devices(client, message.ids)
        ),
        _Format(SingleDeviceSharding, lambda s: {"placement": _write_placement(s)}, _read_single_device),
        _Format(
            OpaqueSharding,
            lambda sharding: {"placement": _write_placement(sharding)},
            lambda client, message: OpaqueSharding(*_read_placement(client, message)),
        ),
        _Format(ConcreteSharding, _write_concrete, _read_concrete),
        _Format(ConcreteEvenSharding, _write_concrete_even, _read_concrete_even),
        _Format(HloSharding, _write_hlo, _read_hlo),
        _Format(ShardingParamSharding, _write_sharding_param, _read_sharding_param),
        _Format(ArraySpec, _write_spec, _read_spec),
        _Format(RemapPlan, _write_plan, _read_plan),
    )
}
