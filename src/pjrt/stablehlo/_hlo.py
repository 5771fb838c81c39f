"""HLO protos, as far as they can be told apart and held to their structure without XLA.

Three messages of XLA hold a module: ``HloModuleProto`` is the module itself, ``HloModuleProtoWithConfig`` a module
with the configuration it is compiled under, ``HloProto`` what XLA dumps to disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from pjrt.api.errors import DataLossError
from pjrt.stablehlo import _wire
from pjrt.stablehlo._wire import BYTES, VARINT, fields

# HloModuleProto
_NAME, _ENTRY_NAME, _COMPUTATIONS, _PROGRAM_SHAPE, _ENTRY_ID = 1, 2, 3, 4, 6
# HloComputationProto
_INSTRUCTIONS, _COMPUTATION_ID = 2, 5
# HloModuleProtoWithConfig and HloProto both have the module first.
_MODULE, _CONFIG, _BUFFER_ASSIGNMENT = 1, 2, 3
# HloModuleConfigProto
_ENTRY_LAYOUT, _REPLICA_COUNT, _PARTITION_COUNT = 1, 4, 5


@dataclass(frozen=True, slots=True)
class HloModule:
    """The outside of an HLO module.

    Attributes:
        name: the module's name.
        entry: the entry computation's name.
        computations: the number of computations.
        instructions: the number of instructions in all of them.
        begin: where the ``HloModuleProto`` begins in the bytes that were read.
        end: where it ends.
        has_config: whether a configuration lies beside it (``HloModuleProtoWithConfig``).
    """

    name: str
    entry: str
    computations: int
    instructions: int
    begin: int
    end: int
    has_config: bool


def screen(code: bytes) -> HloModule:
    """The outside of an HLO proto of any of the three kinds, held to its structure.

    Raises:
        DataLossError: the bytes are no such proto, or one that is truncated or corrupt.
    """
    wrapped = _wrapped_module(code)
    if wrapped is None:
        return _read_module(code, 0, len(code), has_config=False)
    begin, end, has_config = wrapped
    return _read_module(code, begin, end, has_config=has_config)


def with_config(module: bytes, replicas: int, partitions: int) -> bytes:
    """An ``HloModuleProtoWithConfig`` of a module: its entry layout, replicas and partitions, no more."""
    shape = next((module[begin:end] for number, _, begin, end in fields(module) if number == _PROGRAM_SHAPE), b"")
    config = _wire.bytes_field(_ENTRY_LAYOUT, shape)
    config += _wire.varint_field(_REPLICA_COUNT, replicas) + _wire.varint_field(_PARTITION_COUNT, partitions)
    return _wire.bytes_field(_MODULE, module) + _wire.bytes_field(_CONFIG, config)


def device_counts(code: bytes) -> tuple[int, int]:
    """Return how many replicas and partitions the configuration beside a module states; 1 where it does not.

    Raises:
        DataLossError: the bytes are no message, or end inside a field.
    """
    counts = {_REPLICA_COUNT: 1, _PARTITION_COUNT: 1}
    for number, kind, begin, end in fields(code):
        if number == _CONFIG and kind == BYTES:
            found = ((inner, value) for inner, kind, value, _ in fields(code, begin, end) if kind == VARINT)
            counts |= {inner: max(value, 1) for inner, value in found if inner in counts}
    return counts[_REPLICA_COUNT], counts[_PARTITION_COUNT]


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


def _wrapped_module(code: bytes) -> tuple[int, int, bool] | None:
    """Where the module lies in a message that wraps one, and whether a configuration follows; None if it wraps none."""
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
    return (*module, has_config)


def _read_module(code: bytes, begin: int, end: int, *, has_config: bool) -> HloModule:
    names = {_NAME: "", _ENTRY_NAME: ""}
    entry_id = instructions = 0
    ids: list[int] = []
    has_shape = False
    for number, kind, first, second in fields(code, begin, end):
        if number in names and kind == BYTES:
            names[number] = code[first:second].decode(errors="replace")
        elif number == _COMPUTATIONS and kind == BYTES:
            identifier, count = _read_computation(code, first, second)
            ids.append(identifier)
            instructions += count
        elif number == _ENTRY_ID and kind == VARINT:
            entry_id = first
        has_shape = has_shape or number == _PROGRAM_SHAPE
    if not ids or instructions == 0:
        raise DataLossError(f"not an HLO module, or a truncated one: {end - begin} bytes that hold no computation")
    if not has_shape or entry_id not in ids:
        raise DataLossError(
            f"truncated HLO module: {end - begin} bytes that hold {len(ids)} computations, but not which is the entry"
        )
    return HloModule(names[_NAME], names[_ENTRY_NAME], len(ids), instructions, begin, end, has_config)


def _read_computation(code: bytes, begin: int, end: int) -> tuple[int, int]:
    identifier = count = 0
    for number, kind, value, _ in fields(code, begin, end):
        if number == _COMPUTATION_ID and kind == VARINT:
            identifier = value
        elif number == _INSTRUCTIONS and kind == BYTES:
            count += 1
    return identifier, count
