"""HLO protos, as far as they can be told apart and checked without XLA.

Three messages of XLA hold a module: ``HloModuleProto`` is the module itself, ``HloModuleProtoWithConfig`` a module
with the configuration it is compiled under, ``HloProto`` what XLA dumps to disk.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pjrt.api.errors import DataLossError
from pjrt.stablehlo import _xla_protos
from pjrt.stablehlo.protobuf_wire import BYTES, VARINT, fields

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
    return bytes(_xla_protos.new("HloModuleProtoWithConfig", hlo_module=module, config=config).SerializeToString())


def device_counts(code: bytes) -> tuple[int, int]:
    """Return how many replicas and partitions the configuration beside a module states; 1 where it does not.

    Raises:
        DataLossError: the bytes are no message, or end inside a field.
    """
    for number, kind, begin, end in fields(code):
        if number == _CONFIG and kind == BYTES:
            config = _xla_protos.parse("HloModuleConfigProto", code[begin:end])
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
