"""Which parameters an executable donates, read from the compiled module's serialized proto.

The proto is walked as it lies (``HloModuleProto``: field 8 ``input_output_alias``, field 18 ``buffer_donor``), without
a protobuf library: start-up would feel its import.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_MODULE_ALIAS, _MODULE_DONOR = 8, 18
_ENTRIES = 1  # in both: the list of entries
_ALIAS_PARAMETER, _ALIAS_PARAMETER_INDEX = 2, 3
_DONOR_PARAMETER, _DONOR_PARAMETER_INDEX = 1, 2


def donated_parameters(module: bytes) -> frozenset[int]:
    """The numbers of the parameters whose memory an execution takes over, by aliasing or as a donor."""
    donated: set[int] = set()
    for field, value in _fields(memoryview(module)):
        if field == _MODULE_ALIAS:
            donated |= _parameters(value, _ALIAS_PARAMETER, _ALIAS_PARAMETER_INDEX)
        elif field == _MODULE_DONOR:
            donated |= _parameters(value, _DONOR_PARAMETER, _DONOR_PARAMETER_INDEX)
    return frozenset(donated)


def _parameters(config: memoryview | int, parameter_field: int, index_field: int) -> set[int]:
    found: set[int] = set()
    if isinstance(config, int):
        return found
    for field, entry in _fields(config):
        if field != _ENTRIES or isinstance(entry, int):
            continue
        number, index = 0, None
        for inner, value in _fields(entry):
            if inner == parameter_field and isinstance(value, int):
                number = value
            elif inner == index_field:  # parameters that are one tuple are counted by their place in it
                index = value if isinstance(value, int) else _varint(value, 0)[0]
        found.add(number if index is None else index)
    return found


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
        else:
            size = 8 if kind == _FIXED64 else 4
            if kind == _BYTES:
                size, at = _varint(message, at)
            yield tag >> 3, message[at : at + size]
            at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
