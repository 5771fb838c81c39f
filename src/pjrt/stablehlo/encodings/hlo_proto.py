"""HLO protos and other messages of XLA, as far as they can be told apart, checked and written without XLA.

Three messages of XLA hold a module: ``HloModuleProto`` is the module itself, ``HloModuleProtoWithConfig`` a module
with the configuration it is compiled under, ``HloProto`` what XLA dumps to disk.

The protobuf library copies what it parses, weights and all, and takes 13 ms to import. A scan of the fields of a
message costs neither, and only the fields of interest are then given to the library, as messages stated by their field
numbers (see ``api.protobuf``). Names are bytes there, not strings: of a string protobuf demands UTF-8, which XLA does
not.

With XLA's own debug options minimum, maximum and clamp lose a NaN, against StableHLO's specification; not with
jaxlib's. And XLA converts a program by the options that it is given, and compiles it by jaxlib's where it is given
none: the two kinds of shardings that it then takes a program to have contradict each other. So each compilation gets
jaxlib's debug options where the caller states none.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from pjrt.api.errors import DataLossError
from pjrt.stablehlo.encodings import jaxlib

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, int, int]
"""A field: its number, its wire type, and its value (of a varint, then 0) or where its content begins and ends."""


def fields(data: bytes, begin: int = 0, end: int | None = None) -> Iterator[Field]:
    """Yield the fields of the message between two positions, in order.

    Raises:
        DataLossError: the bytes are not a message, or end inside a field; the message says where.
    """
    position = begin
    stop = len(data) if end is None else end
    while position < stop:
        start = position
        key, position = varint(data, position, stop)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise DataLossError(f"not a protocol buffer: a field numbered 0 at byte {start}")
        if kind == VARINT:
            value, position = varint(data, position, stop)
            yield number, kind, value, 0
            continue
        if kind == BYTES:
            length, position = varint(data, position, stop)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise DataLossError(f"not a protocol buffer: wire type {kind} at byte {start}")
        if length > stop - position:
            raise DataLossError(
                f"truncated protocol buffer: field {number} needs {length} bytes at byte {position}, "
                f"only {stop - position} follow"
            )
        yield number, kind, position, position + length
        position += length


def varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the number that begins at a position, and the position after it.

    Raises:
        DataLossError: the number is not complete, or longer than any.
    """
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise DataLossError(f"not a protocol buffer: a number of more than ten bytes before byte {position}")
    raise DataLossError(f"truncated protocol buffer: a number ends at byte {end}, before it is complete")


def message(number: int, content: bytes) -> bytes:
    """Return a field with a message, a string or bytes as its content."""
    return _encoded(number << 3 | BYTES) + _encoded(len(content)) + content


def _encoded(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


# message: {field: (number, type)}; a type in brackets is repeated. Enums are written as int64.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "LayoutProto": {"minor_to_major": (1, "[int64]")},
    "ShapeProto": {
        "element_type": (2, "int64"),
        "dimensions": (3, "[int64]"),
        "tuple_shapes": (4, "[ShapeProto]"),
        "layout": (5, "LayoutProto"),
        "is_dynamic_dimension": (6, "[bool]"),
    },
    "SliceDimensions": {"start": (1, "int64"), "limit": (2, "int64"), "stride": (3, "int64")},
    "HloInstructionProto": {
        "name": (1, "bytes"),
        "opcode": (2, "bytes"),
        "shape": (3, "ShapeProto"),
        "metadata": (7, "OpMetadata"),
        "slice_dimensions": (17, "[SliceDimensions]"),
        "custom_call_target": (28, "bytes"),
        "id": (35, "int64"),
        "operand_ids": (36, "[int64]"),
        "called_computation_ids": (38, "[int64]"),
        "backend_config": (43, "bytes"),
        "custom_call_api_version": (77, "int64"),
        "collective_device_list": (87, "CollectiveDeviceListProto"),
        "mesh_axes_replica_group_list": (93, "MeshAxesReplicaGroupListProto"),
    },
    "CollectiveDeviceListProto": {"replica_groups": (1, "[ReplicaGroup]")},
    "ReplicaGroup": {"replica_ids": (1, "[int64]")},
    "MeshAxesReplicaGroupListProto": {"mesh": (1, "MeshProto"), "axes": (2, "[AxisRefProto]")},
    "HloComputationProto": {"instructions": (2, "[HloInstructionProto]"), "id": (5, "int64")},
    "ProgramShapeProto": {"parameters": (1, "[ShapeProto]"), "result": (2, "ShapeProto")},
    "HloModuleProto": {
        "computations": (3, "[HloComputationProto]"),
        "spmd_output_sharding": (12, "optional bytes"),
        "spmd_parameters_shardings": (14, "[bytes]"),
    },
    "HloModuleConfigProto": {
        "entry_computation_layout": (1, "bytes"),
        "replica_count": (4, "int64"),
        "num_partitions": (5, "int64"),
    },
    "HloModuleProtoWithConfig": {"hlo_module": (1, "bytes"), "config": (2, "HloModuleConfigProto")},
    "OpSharding": {
        "type": (1, "int64"),
        "tile_assignment_dimensions": (3, "[int64]"),
        "tile_assignment_devices": (4, "[int64]"),
        "tuple_shardings": (5, "[bytes]"),
        "replicate_on_last_tile_dim": (6, "bool"),
        "metadata": (7, "[OpMetadata]"),
        "last_tile_dims": (8, "[int64]"),
        "iota_reshape_dims": (9, "[int64]"),
        "iota_transpose_perm": (10, "[int64]"),
        "named_sharding": (14, "NamedShardingProto"),
    },
    "OpMetadata": {"op_type": (1, "bytes"), "op_name": (2, "bytes")},
    "NamedShardingProto": {
        "mesh": (2, "MeshProto"),
        "dim_shardings": (3, "[DimensionSharding]"),
        "replicated_axes": (4, "[AxisRefProto]"),
        "unreduced_axes": (5, "[AxisRefProto]"),
        "manual_axes": (7, "[AxisRefProto]"),
        "reduction_op": (8, "int64"),
    },
    "DimensionSharding": {"axes": (1, "[AxisRefProto]"), "is_closed": (2, "bool")},
    "AxisRefProto": {"mesh_axis_index": (1, "int64"), "sub_axis_info": (2, "SubAxis")},
    "SubAxis": {"pre_size": (1, "int64"), "size": (2, "int64")},
    "MeshProto": {
        "axes": (1, "[MeshAxis]"),
        "device_ids": (2, "[int64]"),
        "iota_transform": (3, "IotaTransform"),
    },
    "MeshAxis": {"name": (1, "bytes"), "size": (2, "int64")},
    "IotaTransform": {"reshape_dims": (1, "[int64]"), "transpose_perm": (2, "[int64]")},
}


def new_message(name: str, /, **fields: Any) -> Any:
    """Return a new message with these fields."""
    return _classes()[name](**fields)


def parse_message(name: str, serialized: bytes) -> Any:
    """Return the message that is serialized in the bytes.

    Raises:
        DataLossError: the bytes are not such a message.
    """
    from google.protobuf.message import DecodeError

    try:
        return _classes()[name].FromString(serialized)
    except DecodeError as error:
        raise DataLossError(f"expected a serialized {name}, found {len(serialized)} other bytes: {error}") from error


@functools.cache
def _classes() -> dict[str, Any]:
    from pjrt.api.protobuf import message_classes

    return message_classes("pjrt.xla", _MESSAGES)


# HloModuleProto and HloComputationProto
_COMPUTATIONS, _PROGRAM_SHAPE, _ENTRY_ID = 3, 4, 6
_COMPUTATION_ID = 5
# HloInstructionProto and OpSharding
_INSTRUCTIONS, _SHARDING, _TUPLE_SHARDINGS, _NAMED_SHARDING = 2, 40, 5, 14
_MAY_BE_NAMED = re.compile(rb"\xc2\x02[\x00-\xff]{1,5}?(?:\x72|\x08\x02\x2a)")
"""The beginning of a sharding of an instruction that may be over the axes of a mesh."""
# HloModuleProtoWithConfig and HloProto both have the module first.
_MODULE, _CONFIG, _BUFFER_ASSIGNMENT = 1, 2, 3


class HloModule(NamedTuple):
    """The place of an ``HloModuleProto`` in the bytes that were read.

    Attributes:
        begin: where it begins.
        end: where it ends.
        has_config: whether a configuration lies beside it (``HloModuleProtoWithConfig``).
    """

    begin: int
    end: int
    has_config: bool


def screen(code: bytes) -> HloModule:
    """Return where the module lies in an HLO proto of any of the three kinds, after a check of its structure.

    Raises:
        DataLossError: the bytes are no such proto, or one that is truncated or corrupt.
    """
    module = _wrapped_module(code) or HloModule(0, len(code), has_config=False)
    _check(code, module.begin, module.end)
    return module


def with_config(module: bytes, replicas: int, partitions: int) -> bytes:
    """Return an ``HloModuleProtoWithConfig`` of a module that states its entry layout, replicas and partitions."""
    shape = next((module[begin:end] for number, _, begin, end in fields(module) if number == _PROGRAM_SHAPE), b"")
    config = {"entry_computation_layout": shape, "replica_count": replicas, "num_partitions": partitions}
    return bytes(new_message("HloModuleProtoWithConfig", hlo_module=module, config=config).SerializeToString())


def device_counts(code: bytes) -> tuple[int, int]:
    """Return how many replicas and partitions the configuration beside a module states; 1 where it does not.

    Raises:
        DataLossError: the bytes are no message, or end inside a field.
    """
    for number, kind, begin, end in fields(code):
        if number == _CONFIG and kind == BYTES:
            config = parse_message("HloModuleConfigProto", code[begin:end])
            return max(config.replica_count, 1), max(config.num_partitions, 1)
    return 1, 1


def has_mesh_shardings(code: bytes) -> bool:
    """Whether an instruction of a module has a sharding over the axes of a mesh: XLA's third kind of shardings.

    Raises:
        DataLossError: as ``screen``.
    """
    if _MAY_BE_NAMED.search(code) is None:
        return False
    module = screen(code)
    return any(
        _is_over_mesh(code, *sharding)
        for computation in _inner(code, module.begin, module.end, _COMPUTATIONS)
        for instruction in _inner(code, *computation, _INSTRUCTIONS)
        for sharding in _inner(code, *instruction, _SHARDING)
    )


def _is_over_mesh(code: bytes, begin: int, end: int) -> bool:
    return any(True for _ in _inner(code, begin, end, _NAMED_SHARDING)) or any(
        _is_over_mesh(code, *element) for element in _inner(code, begin, end, _TUPLE_SHARDINGS)
    )


def _inner(code: bytes, begin: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Yield where each message in a field of another one begins and ends."""
    for number, kind, first, last in fields(code, begin, end):
        if number == wanted and kind == BYTES:
            yield first, last


def looks_like_hlo(code: bytes) -> bool:
    """Whether the first field is that of an HLO proto: a name, or a module that begins with a name."""
    try:
        number, kind, begin, end = next(fields(code))
    except (DataLossError, StopIteration):
        return _is_cut_module(code)
    return number == 1 and kind == BYTES and (_is_name(code[begin:end]) or looks_like_hlo(code[begin:end]))


def _is_cut_module(code: bytes) -> bool:
    """Whether the bytes begin like a wrapped module that is cut off: its field reaches past the end."""
    if len(code) < 4 or code[0] != 0x0A:
        return False
    inner = next((i + 1 for i in range(1, min(len(code), 11)) if code[i] < 0x80), len(code))
    return code[inner : inner + 1] == b"\x0a" and looks_like_hlo(code[inner:])


def _is_name(text: bytes) -> bool:
    return 0 < len(text) < 4096 and text.isascii() and text.decode().isprintable()


def _wrapped_module(code: bytes) -> HloModule | None:
    """Return the module in a message that wraps one; None if the message wraps none."""
    module: tuple[int, int] | None = None
    has_config = False
    for number, kind, begin, end in fields(code):
        if kind != BYTES or number > _BUFFER_ASSIGNMENT:
            return None
        if number == _MODULE:
            module = (begin, end)
        has_config = has_config or number == _CONFIG
    if module is None or _is_name(code[module[0] : module[1]]):
        return None
    return HloModule(*module, has_config)


def _check(code: bytes, begin: int, end: int) -> None:
    """Check that a module has its program shape and its entry computation, which one that is cut off lacks."""
    ids: list[int] = []
    entry_id, has_shape = 0, False
    for number, kind, first, last in fields(code, begin, end):
        if number == _COMPUTATIONS and kind == BYTES:
            ids.append(_computation_id(code, first, last))
        elif number == _ENTRY_ID and kind == VARINT:
            entry_id = first
        has_shape = has_shape or number == _PROGRAM_SHAPE
    if not ids:
        raise DataLossError(f"not an HLO module, or a truncated one: {end - begin} bytes that hold no computation")
    if not has_shape or entry_id not in ids:
        raise DataLossError(
            f"truncated HLO module: {end - begin} bytes that hold {len(ids)} computations, but not which is the entry"
        )


def _computation_id(code: bytes, begin: int, end: int) -> int:
    identifier = 0
    for number, kind, value, _ in fields(code, begin, end):
        if number == _COMPUTATION_ID and kind == VARINT:
            identifier = value
    return identifier


_BUILD_OPTIONS = 3
"""The number of ``executable_build_options`` in ``CompileOptionsProto``."""

_DEBUG_OPTIONS = 3
"""The number of ``debug_options`` in ``ExecutableBuildOptionsProto``."""

_MESH_SHARDINGS = 452
"""The number of ``xla_enable_hlo_sharding_v3`` in ``DebugOptions``."""


def with_debug_options(options: bytes) -> bytes:
    """Return a serialized ``CompileOptionsProto`` with jaxlib's default debug options, unless it has some."""
    # Messages one behind the other are merged when they are parsed.
    return options if _debug_options(options) else _defaults() + options


def mesh_shardings_enabled(options: bytes) -> bool:
    """Whether XLA compiles shardings over the axes of a mesh by a serialized ``CompileOptionsProto``.

    jaxlib does so by default since 0.12. The options of JAX have what its own jaxlib does.
    """
    stated = fields(_debug_options(with_debug_options(options)))
    return any(bool(value) for number, kind, value, _ in stated if (number, kind) == (_MESH_SHARDINGS, VARINT))


@functools.cache
def _defaults() -> bytes:
    """Return compile options with nothing but jaxlib's default debug options."""
    serialized = jaxlib.load("_jax", "know the defaults of compile options").CompileOptions().SerializeAsString()
    debug_options = _debug_options(serialized)
    return message(_BUILD_OPTIONS, message(_DEBUG_OPTIONS, debug_options)) if debug_options else b""


def _debug_options(options: bytes) -> bytes:
    for number, kind, begin, end in fields(options):
        if (number, kind) != (_BUILD_OPTIONS, BYTES):
            continue
        for inner, inner_kind, inner_begin, inner_end in fields(options, begin, end):
            if (inner, inner_kind) == (_DEBUG_OPTIONS, BYTES):
                return options[inner_begin:inner_end]
    return b""
