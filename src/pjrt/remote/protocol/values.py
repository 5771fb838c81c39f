"""The objects of ``pjrt.api`` and ``pjrt.ifrt`` inside messages: types, shapes, errors, shardings and the like.

A function ``NOUN_of`` reads one, and ``NOUN_proto`` makes its message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pjrt.api.device import Attributes, NamedValue
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.shape_spec import Layout, TiledLayout, expect_shape
from pjrt.ifrt.array import ArrayCopySemantics, ArraySpec
from pjrt.ifrt.client import Client
from pjrt.ifrt.hlo_sharding import HloSharding, ShardingParam, ShardingParamSharding
from pjrt.ifrt.remap_plan import Interval, RemapPlan
from pjrt.ifrt.remap_plan import Mapping as RemapMapping
from pjrt.ifrt.sharding import (
    ConcreteEvenSharding,
    ConcreteSharding,
    DeviceList,
    OpaqueSharding,
    Sharding,
    SingleDeviceSharding,
    SingleDeviceShardSemantics,
)
from pjrt.remote.protocol.messages import wire

_KINDS = {
    1: ElementType.PRED,
    32: ElementType.S1,
    26: ElementType.S2,
    21: ElementType.S4,
    2: ElementType.S8,
    3: ElementType.S16,
    4: ElementType.S32,
    5: ElementType.S64,
    33: ElementType.U1,
    27: ElementType.U2,
    22: ElementType.U4,
    6: ElementType.U8,
    7: ElementType.U16,
    8: ElementType.U32,
    9: ElementType.U64,
    10: ElementType.F16,
    11: ElementType.F32,
    12: ElementType.F64,
    16: ElementType.BF16,
    15: ElementType.C64,
    18: ElementType.C128,
    17: ElementType.TOKEN,
    29: ElementType.F8E3M4,
    28: ElementType.F8E4M3,
    20: ElementType.F8E4M3FN,
    23: ElementType.F8E4M3B11FNUZ,
    25: ElementType.F8E4M3FNUZ,
    19: ElementType.F8E5M2,
    24: ElementType.F8E5M2FNUZ,
    31: ElementType.F8E8M0FNU,
    30: ElementType.F4E2M1FN,
    34: ElementType.F6E2M3FN,
    35: ElementType.F6E3M2FN,
}
"""The element types by the numbers of ``xla::ifrt::DType::Kind``."""
_NUMBERS = {element_type: kind for kind, element_type in _KINDS.items()}
_WITHOUT_ELEMENTS = {14: "opaque values", 99: "strings"}


def element_type_of(dtype: Any) -> ElementType:
    """Return the element type in a ``DTypeProto``.

    Raises:
        UnimplementedError: the type is one of strings or of opaque values, which devices do not have.
        InvalidArgumentError: the type is unknown.
    """
    element_type = _KINDS.get(dtype.kind)
    if element_type is not None:
        return element_type
    if dtype.kind in _WITHOUT_ELEMENTS:
        raise UnimplementedError(
            f"expected arrays of numbers, found an array of {_WITHOUT_ELEMENTS[dtype.kind]}, which no device of this "
            "server holds"
        )
    raise InvalidArgumentError(f"expected one of the kinds {sorted(_KINDS)} of a DTypeProto, found {dtype.kind}")


def element_type_proto(element_type: ElementType) -> Any:
    """Return an element type as a ``DTypeProto``.

    Raises:
        UnimplementedError: the protocol has no number for it.
    """
    kind = _NUMBERS.get(element_type)
    if kind is None:
        raise UnimplementedError(f"the IFRT proxy protocol has no element type {element_type.name}")
    return wire.DTypeProto(kind=kind)


_MOST_DIMENSIONS = 64
"""The dimensions that an array of numpy may have."""


def shape_of(proto: Any) -> tuple[int, ...]:
    """Return the shape in a ``ShapeProto``.

    Raises:
        InvalidArgumentError: a dimension is negative, or there are too many.
    """
    if len(proto.dims) > _MOST_DIMENSIONS:
        raise InvalidArgumentError(f"expected at most {_MOST_DIMENSIONS} dimensions, found {len(proto.dims)}")
    return expect_shape(tuple(proto.dims))


def shape_proto(shape: Sequence[int]) -> Any:
    """Return a shape as a ``ShapeProto``."""
    return wire.ShapeProto(dims=shape)


def error_of(status: Any) -> PjrtError | None:
    """Return the error in a ``StatusProto``; ``None`` for the status OK."""
    if not status.code:
        return None
    return PjrtError.of(status.code, status.message, {entry.key: entry.value for entry in status.payload})


def status_proto(error: PjrtError) -> Any:
    """Return an error as a ``StatusProto``."""
    # A message may have half of a surrogate pair, which protobuf refuses, for example from a file's name.
    message = error.message.encode("utf-8", "backslashreplace").decode()
    status = wire.StatusProto(code=int(error.code), message=message)
    status.payload.extend(wire.StatusProto_PayloadEntry(key=key, value=value) for key, value in error.payloads.items())
    return status


def attributes_of(proto: Any) -> Attributes:
    """Return the named values in an ``AttributeMapProto``.

    Raises:
        InvalidArgumentError: an attribute has no value.
    """
    return {entry.key: _attribute(entry) for entry in proto.attributes}


def attributes_proto(attributes: Mapping[str, NamedValue]) -> Any:
    """Return named values as an ``AttributeMapProto``."""
    proto = wire.AttributeMapProto()
    for name, value in attributes.items():
        if isinstance(value, bool):
            fields: dict[str, Any] = {"bool_value": value}
        elif isinstance(value, int):
            fields = {"int64_value": value}
        elif isinstance(value, float):
            fields = {"float_value": value}
        elif isinstance(value, str):
            fields = {"string_value": value.encode("utf-8", "backslashreplace")}
        else:
            fields = {"int64_list_value": wire.AttributeMapProto_Value_Int64List(elements=value)}
        proto.attributes.add(key=name, value=wire.AttributeMapProto_Value(**fields))
    return proto


def _attribute(entry: Any) -> NamedValue:
    case = entry.value.WhichOneof("value")
    if case is None:
        raise InvalidArgumentError(f"expected a value for the attribute {entry.key!r}, found none")
    if case == "string_value":
        text: str = entry.value.string_value.decode("utf-8", "backslashreplace")
        return text
    if case == "int64_list_value":
        return tuple(entry.value.int64_list_value.elements)
    value: NamedValue = getattr(entry.value, case)
    return value


# Layouts: XLA's spelling, its ``LayoutProto``, and IFRT's ``LayoutProto``.

_PJRT_LAYOUT = "xla::ifrt::PjRtLayout"


def layout_spelling(layout: Layout) -> bytes:
    """Return a layout as ``xla::PjRtLayout`` serializes it: XLA's spelling, such as ``{1,0}``.

    Raises:
        UnimplementedError: the layout is one of strides, which XLA does not have.
    """
    return str(_tiled(layout)).encode()


def layout_of_spelling(spelling: bytes) -> TiledLayout:
    """Return the layout with a spelling of XLA.

    Raises:
        InvalidArgumentError: the bytes are not the spelling of a layout.
    """
    return TiledLayout.parse(spelling.decode("utf-8", "replace"))


def xla_layout_proto(layout: Layout) -> Any:
    """Return a layout as an ``xla.LayoutProto``; raise the error of ``layout_spelling``."""
    tiled = _tiled(layout)
    return wire.XlaLayoutProto(
        minor_to_major=tiled.minor_to_major, tiles=[wire.TileProto(dimensions=tile) for tile in tiled.tiles]
    )


def layout_of_xla_proto(proto: Any) -> TiledLayout:
    """Return the layout in an ``xla.LayoutProto``.

    Raises:
        InvalidArgumentError: it does not name each dimension once.
    """
    return TiledLayout(tuple(proto.minor_to_major), tuple(tuple(tile.dimensions) for tile in proto.tiles))


def layout_proto(layout: Layout) -> Any:
    """Return a layout as an IFRT ``LayoutProto``; raise the error of ``layout_spelling``."""
    name, message = _PJRT_LAYOUT, wire.PjRtLayoutProto(xla_layout=xla_layout_proto(layout))
    return wire.LayoutProto(serialized_layout=wire.Serialized(type_name=name, data=message.SerializeToString()))


def layout_of(proto: Any) -> TiledLayout:
    """Return the layout in an IFRT ``LayoutProto``.

    Raises:
        InvalidArgumentError: the bytes are not a layout.
        UnimplementedError: the layout is of a kind that is not known here.
    """
    serialized = proto.serialized_layout
    kinds = {_PJRT_LAYOUT: wire.PjRtLayoutProto, "xla::ifrt::CompactLayout": wire.CompactLayoutProto}
    kind = kinds.get(serialized.type_name)
    if kind is None:
        raise UnimplementedError(
            f"expected a layout of one of the types {', '.join(kinds)}, found {serialized.type_name!r}"
        )
    try:
        message = kind.FromString(serialized.data)
    except DecodeError as error:
        raise InvalidArgumentError(f"expected a serialized {serialized.type_name}, found other bytes") from error
    if kind is wire.PjRtLayoutProto:
        return layout_of_xla_proto(message.xla_layout)
    return TiledLayout(tuple(reversed(message.major_to_minor)))


def _tiled(layout: Layout) -> TiledLayout:
    if not isinstance(layout, TiledLayout):
        raise UnimplementedError(f"expected a layout of tiles, which the protocol can carry, found {layout}")
    return layout


# Device lists and shardings, in the serialized form that jaxlib gives them (``ShardingProto``).


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


# Array specs, and the numbers for how an operation treats its inputs.

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


def remap_plan_of(client: Client, proto: Any) -> RemapPlan:
    """Return the plan in a ``RemapPlanProto``.

    Raises:
        InvalidArgumentError: an interval is not complete, or a device has no shard in the input or the output.
    """
    inputs = tuple(array_spec_of(client, spec) for spec in proto.input_specs)
    outputs = tuple(array_spec_of(client, spec) for spec in proto.output_specs)
    if proto.input_devices_for_output:  # newer clients state the same in both forms
        return RemapPlan(inputs, outputs, tuple(_by_devices(client, proto, inputs, outputs)))
    mappings = tuple(
        RemapMapping(
            each.in_array,
            each.out_array,
            _intervals(each.from_start, each.from_end, each.from_step),
            _intervals(each.to_start, each.to_end, each.to_step),
        )
        for each in proto.mappings
    )
    return RemapPlan(inputs, outputs, mappings)


def _intervals(starts: Iterable[int], ends: Iterable[int], steps: Iterable[int]) -> tuple[Interval, ...]:
    try:
        return tuple(Interval(*row) for row in zip(starts, ends, steps, strict=True))
    except ValueError as error:
        raise InvalidArgumentError("expected a start, an end and a step for each interval of a remap plan") from error


def _by_devices(
    client: Client, proto: Any, inputs: tuple[ArraySpec, ...], outputs: tuple[ArraySpec, ...]
) -> Iterator[RemapMapping]:
    """Yield the mappings of the newer form of plans: the inputs of an output, each with the devices of its shards."""
    for output in proto.input_devices_for_output:
        for source in output.input_devices:
            for device in device_list_of(client, source.device_list):
                try:
                    start = inputs[source.in_array].sharding.devices.index(device)
                    end = outputs[output.out_array].sharding.devices.index(device)
                except (IndexError, ValueError) as error:
                    raise InvalidArgumentError(
                        f"expected a shard on {device} in input {source.in_array} and output {output.out_array} of a "
                        f"remap plan of {len(inputs)} inputs and {len(outputs)} outputs"
                    ) from error
                yield RemapMapping(
                    source.in_array, output.out_array, (Interval(start, start + 1),), (Interval(end, end + 1),)
                )
