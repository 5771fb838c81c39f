"""The parameters that an executable donates, read from the compiled module's serialized proto."""

from __future__ import annotations

from collections.abc import Iterator

from pjrt.stablehlo.hlo_proto import BYTES, VARINT, fields, varint

# HloModuleProto: the fields input_output_alias and buffer_donor. Each holds a list of entries.
_ALIAS, _DONOR, _ENTRIES = 8, 18, 1
# The fields of an entry: the number of the parameter, and its index where all parameters are one tuple.
_PARAMETER_NUMBER, _PARAMETER_INDEX = {_ALIAS: 2, _DONOR: 1}, {_ALIAS: 3, _DONOR: 2}


def donated_parameters(module: bytes) -> frozenset[int]:
    """Return the numbers of the parameters whose memory an execution takes, by aliasing or as a donor."""
    return frozenset(
        _parameter(module, *entry, _PARAMETER_NUMBER[field], _PARAMETER_INDEX[field])
        for field in (_ALIAS, _DONOR)
        for configuration in _messages(module, 0, len(module), field)
        for entry in _messages(module, *configuration, _ENTRIES)
    )


def _messages(module: bytes, begin: int, end: int, field: int) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each message in a field."""
    for number, kind, first, last in fields(module, begin, end):
        if number == field and kind == BYTES:
            yield first, last


def _parameter(module: bytes, begin: int, end: int, number_field: int, index_field: int) -> int:
    parameter, index = 0, None
    for field, kind, first, last in fields(module, begin, end):
        if field == number_field:
            parameter = first
        elif field == index_field:  # a list, packed or not; parameters that are one tuple are one place deep in it
            index = first if kind == VARINT else varint(module, first, last)[0]
    return parameter if index is None else index
