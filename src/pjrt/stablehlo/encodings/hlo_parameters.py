"""The parameters and the custom calls of an HLO module, with their types; a parameter's name is the author's.

Parameters are read from the bytes of the proto in place, so a large module costs next to nothing and needs no other
library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, InvalidArgumentError
from pjrt.api.program import Program
from pjrt.api.shape_spec import ShapeSpec
from pjrt.stablehlo.encodings import hlo_proto
from pjrt.stablehlo.encodings.hlo_proto import BYTES, VARINT, fields, varint

_NAMES = (
    "INVALID PRED S8 S16 S32 S64 U8 U16 U32 U64 F16 F32 F64 TUPLE OPAQUE C64 BF16 TOKEN C128 F8E5M2 F8E4M3FN S4 U4 "
    "F8E4M3B11FNUZ F8E5M2FNUZ F8E4M3FNUZ S2 U2 F8E4M3 F8E3M4 S1 U1 F4E2M1FN F8E8M0FNU "
    "- F6E3M2FN F6E2M3FN"
)

ELEMENT_TYPES = {
    number: ElementType[name]
    for number, name in enumerate(_NAMES.split())
    if name not in ("INVALID", "TUPLE", "OPAQUE", "-")
}
"""The element types by their number."""

TUPLE = 13
"""The number of tuples, which PJRT has no type for."""


# HloModuleProto, HloComputationProto, HloInstructionProto, OpMetadata, ShapeProto, ProgramShapeProto
_COMPUTATIONS, _PROGRAM_SHAPE, _ENTRY_ID = 3, 4, 6
_INSTRUCTIONS, _COMPUTATION_ID = 2, 5
_OPCODE, _METADATA, _PARAMETER_NUMBER = 2, 7, 9
_OP_NAME = 2
_ELEMENT_TYPE, _DIMENSIONS, _TUPLE_SHAPES = 2, 3, 4
_PARAMETERS, _RESULT = 1, 2


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
    module = hlo_proto.screen(code)
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


def hlo_results(program: Program) -> tuple[ShapeSpec, ...]:
    """Return the types of the results of an HLO proto; those of a tuple are taken apart.

    Raises:
        DataLossError: the bytes are no HLO proto, or a truncated or corrupt one.
        InvalidArgumentError: a result has an element type that PJRT does not have.
    """
    code = program.code
    module = hlo_proto.screen(code)
    shapes = _messages(code, module.begin, module.end, _PROGRAM_SHAPE)
    return tuple(
        spec for place in shapes for result in _messages(code, *place, _RESULT) for spec in _specs(code, *result)
    )


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


_TAG = b"\xe2\x01"
"""The tag of ``HloInstructionProto.custom_call_target``: a program without these bytes has no custom call."""

DIVIDED_TARGET = "pjrt_divided_python_callback"
"""The target of callbacks without results that XLA divides as their operands are divided, into one for each part.

XLA knows no such target of its own; see ``prepare_calls`` in ``shardings.custom_calls``.
"""

INSPECTED_TARGET = "pjrt_inspected_sharding"
"""The target of calls that tell a function of JAX's process how XLA divides a value."""


class HloArray(NamedTuple):
    """The type of an operand or result.

    Attributes:
        element: the name of the element type, such as ``F32``; empty for what is no array, or has sizes that are known
            only when the program runs.
        shape: the sizes.
    """

    element: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.element.lower()}[{','.join(map(str, self.shape))}]" if self.element else "no array"


class HloCustomCall(NamedTuple):
    """A custom call.

    Attributes:
        target: the target's name.
        api_version: XLA's number of the interface to the handler; 4 is the foreign function interface (FFI).
        operands: the types of its operands.
        results: the types of its results.
        config: the text of its configuration: of the FFI, the attributes as MLIR writes them.
    """

    target: str
    api_version: int
    operands: tuple[HloArray, ...]
    results: tuple[HloArray, ...]
    config: str


def custom_calls(module: bytes) -> list[HloCustomCall]:
    """Return all custom calls of a serialized ``HloModuleProto``, those in functions that it calls included.

    Raises:
        DataLossError: the bytes are not such a module.
    """
    if _TAG not in module:
        return []
    found = []
    for computation in hlo_proto.parse_message("HloModuleProto", module).computations:
        calls = [each for each in computation.instructions if each.custom_call_target]
        shapes = {each.id: each.shape for each in computation.instructions} if calls else {}
        found += [_custom_call(call, shapes) for call in calls]
    return found


def _custom_call(call: Any, shapes: dict[int, Any]) -> HloCustomCall:
    operands = [shapes.get(number) for number in call.operand_ids]
    results = call.shape.tuple_shapes if call.shape.element_type == TUPLE else [call.shape]
    return HloCustomCall(
        call.custom_call_target.decode(errors="surrogateescape"),
        call.custom_call_api_version,
        tuple(map(_array, operands)),
        tuple(map(_array, results)),
        call.backend_config.decode(errors="replace"),
    )


def _array(shape: Any) -> HloArray:
    element = None if shape is None or any(shape.is_dynamic_dimension) else ELEMENT_TYPES.get(shape.element_type)
    if element is None or element.name == "TOKEN" or min(shape.dimensions, default=0) < 0:
        return HloArray("", ())
    return HloArray(element.name, tuple(shape.dimensions))
