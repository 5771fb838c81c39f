"""Element types, shapes, statuses and attributes inside messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pjrt.api.attributes import Attributes, NamedValue
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.shape_spec import expect_shape
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
