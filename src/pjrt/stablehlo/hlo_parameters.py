"""The parameters of an HLO module: their names in the author's program, their types and shapes.

They are read from the bytes of the proto in place, so a large module costs next to nothing and needs no other library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pjrt.api.errors import DataLossError, InvalidArgumentError
from pjrt.api.program import Program
from pjrt.api.shape_spec import ShapeSpec
from pjrt.stablehlo import _hlo
from pjrt.stablehlo.primitive_type import ELEMENT_TYPES, TUPLE
from pjrt.stablehlo.protobuf_wire import BYTES, VARINT, fields, varint

# HloModuleProto, HloComputationProto, HloInstructionProto, OpMetadata, ShapeProto, ProgramShapeProto
_COMPUTATIONS, _PROGRAM_SHAPE, _ENTRY_ID = 3, 4, 6
_INSTRUCTIONS, _COMPUTATION_ID = 2, 5
_OPCODE, _METADATA, _PARAMETER_NUMBER = 2, 7, 9
_OP_NAME = 2
_ELEMENT_TYPE, _DIMENSIONS, _TUPLE_SHAPES = 2, 3, 4
_PARAMETERS = 1


class HloParameter(NamedTuple):
    """A parameter of an HLO module.

    Attributes:
        name: its name in the author's program, which XLA keeps as the instruction's ``op_name``; empty if unknown.
        spec: its shape and element type.
    """

    name: str
    spec: ShapeSpec


def hlo_parameters(program: Program) -> tuple[HloParameter, ...]:
    """Return the parameters of the entry computation of an HLO proto; those of one tuple are taken apart.

    Raises:
        DataLossError: the bytes are no HLO proto, or a truncated or corrupt one.
        InvalidArgumentError: a parameter has an element type that PJRT does not have.
    """
    code = program.code
    module = _hlo.screen(code)
    entry_id = 0
    computations: list[tuple[int, int]] = []
    specs: list[ShapeSpec] = []
    for number, kind, begin, end in fields(code, module.begin, module.end):
        if number == _COMPUTATIONS and kind == BYTES:
            computations.append((begin, end))
        elif number == _PROGRAM_SHAPE and kind == BYTES:
            specs = [spec for shape in _messages(code, begin, end, _PARAMETERS) for spec in _specs(code, *shape)]
        elif number == _ENTRY_ID and kind == VARINT:
            entry_id = begin
    entry = next((place for place in computations if _number(code, *place, _COMPUTATION_ID) == entry_id), None)
    names = {} if entry is None else _names(code, *entry)
    # Parameters that are one tuple have one name, of which nothing is known about the members.
    one_tuple = len(names) != len(specs)
    return tuple(HloParameter("" if one_tuple else names.get(i, ""), spec) for i, spec in enumerate(specs))


def _names(code: bytes, begin: int, end: int) -> dict[int, str]:
    """Return the names of a computation's parameters by number; empty where they are unknown."""
    names: dict[int, str] = {}
    for first, last in _messages(code, begin, end, _INSTRUCTIONS):
        opcode, number, name = b"", 0, b""
        for field, kind, start, stop in fields(code, first, last):
            if field == _OPCODE and kind == BYTES:
                opcode = code[start:stop]
                if opcode != b"parameter":
                    break
            elif field == _PARAMETER_NUMBER and kind == VARINT:
                number = start
            elif field == _METADATA and kind == BYTES:
                name = next((code[slice(*place)] for place in _messages(code, start, stop, _OP_NAME)), b"")
        if opcode == b"parameter":
            names[number] = name.decode(errors="replace")
    return names


def _specs(code: bytes, begin: int, end: int) -> Iterator[ShapeSpec]:
    """Yield the arrays of a shape: one, or those of a tuple."""
    element_type = _number(code, begin, end, _ELEMENT_TYPE)
    if element_type == TUPLE:
        for place in _messages(code, begin, end, _TUPLE_SHAPES):
            yield from _specs(code, *place)
        return
    if element_type not in ELEMENT_TYPES:
        raise InvalidArgumentError(f"expected arrays as parameters, found XLA's element type {element_type}")
    sizes: list[int] = []
    for field, kind, first, last in fields(code, begin, end):
        if field == _DIMENSIONS:
            sizes += [first] if kind == VARINT else _packed(code, first, last)
    yield ShapeSpec(tuple(sizes), ELEMENT_TYPES[element_type])


def _packed(code: bytes, begin: int, end: int) -> list[int]:
    sizes = []
    while begin < end:
        size, begin = varint(code, begin, end)
        if size >> 63:
            raise DataLossError(f"corrupt HLO module: a size of {size} before byte {begin}")
        sizes.append(size)
    return sizes


def _messages(code: bytes, begin: int, end: int, number: int) -> Iterator[tuple[int, int]]:
    for field, kind, first, last in fields(code, begin, end):
        if field == number and kind == BYTES:
            yield first, last


def _number(code: bytes, begin: int, end: int, number: int) -> int:
    """Return the value of a field; the last one counts, and 0 where the message lacks it."""
    return next((v for f, kind, v, _ in reversed(list(fields(code, begin, end))) if f == number and kind == VARINT), 0)
