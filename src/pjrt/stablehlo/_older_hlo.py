"""Older forms of HLO instructions, rewritten as XLA's converter to StableHLO knows them.

``dynamic-slice`` and ``dynamic-update-slice`` once took their start indices in one operand, a vector; XLA still
accepts and compiles that (PyTorch/XLA sends it for ``torch.randperm``), but its converter does not. Each such operand
becomes one scalar a dimension here: a slice of the vector, reshaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pjrt.stablehlo._wire import BYTES, VARINT, bytes_field, fields, unpacked, varint_field

# HloModuleProto and HloComputationProto
_COMPUTATIONS = 3
_INSTRUCTIONS = 2
# HloInstructionProto
_NAME, _OPCODE, _SHAPE, _SLICE, _ID, _OPERANDS = 1, 2, 3, 17, 35, 36
# ShapeProto
_ELEMENT_TYPE, _DIMENSIONS = 2, 3

_VECTOR_AT = {b"dynamic-slice": 1, b"dynamic-update-slice": 2}
"""The number of the operand that is the vector of start indices, which is the last one then."""


def modernized(module: bytes) -> bytes:
    """The ``HloModuleProto`` without older forms; the same object if it has none.

    Raises:
        DataLossError: it is corrupt.
    """
    if not any(opcode in module for opcode in _VECTOR_AT):
        return module
    computations = [
        [_Instruction.read(module, first, last) for _, first, last in _messages(module, begin, end, _INSTRUCTIONS)]
        for _, begin, end in _messages(module, 0, len(module), _COMPUTATIONS)
    ]
    ids = {instruction.id for instructions in computations for instruction in instructions}
    if not any(_old_indices(instructions) for instructions in computations):
        return module
    parts, position = [], 0
    found = _messages(module, 0, len(module), _COMPUTATIONS)
    for (start, begin, end), instructions in zip(found, computations, strict=True):
        parts.append(module[position:start])
        parts.append(bytes_field(_COMPUTATIONS, _rewritten(module, begin, end, instructions, ids)))
        position = end
    return b"".join([*parts, module[position:]])


@dataclass(frozen=True, slots=True)
class _Instruction:
    """An instruction, as far as rewriting it needs: names, numbers and the place of its bytes."""

    begin: int
    end: int
    name: bytes
    opcode: bytes
    id: int
    operands: tuple[int, ...]
    element_type: int
    dimensions: tuple[int, ...]

    @staticmethod
    def read(code: bytes, begin: int, end: int) -> _Instruction:
        texts = {_NAME: b"", _OPCODE: b""}
        identifier, element_type = 0, 0
        operands: list[int] = []
        dimensions: list[int] = []
        for number, kind, first, last in fields(code, begin, end):
            if number in texts and kind == BYTES:
                texts[number] = code[first:last]
            elif number == _ID and kind == VARINT:
                identifier = first
            elif number == _OPERANDS:
                operands += [first] if kind == VARINT else unpacked(code[first:last])
            elif number == _SHAPE and kind == BYTES:
                for inner, inner_kind, value, stop in fields(code, first, last):
                    if inner == _ELEMENT_TYPE and inner_kind == VARINT:
                        element_type = value
                    elif inner == _DIMENSIONS:
                        dimensions += [value] if inner_kind == VARINT else unpacked(code[value:stop])
        return _Instruction(
            begin, end, texts[_NAME], texts[_OPCODE], identifier, tuple(operands), element_type, tuple(dimensions)
        )


def _messages(code: bytes, begin: int, end: int, wanted: int) -> Iterator[tuple[int, int, int]]:
    """Yield for each message of a field number where its key begins, and where its content begins and ends."""
    position = begin
    for number, kind, first, last in fields(code, begin, end):
        start, position = position, last if kind != VARINT else -1
        if number == wanted and kind == BYTES:
            yield start, first, last
        if position < 0:  # after a varint: its length is not told, so the next field's key is looked for from here
            position = _after_varint(code, start)


def _after_varint(code: bytes, position: int) -> int:
    for _ in range(2):  # the key and the value
        while code[position] >= 0x80:
            position += 1
        position += 1
    return position


def _old_indices(instructions: list[_Instruction]) -> dict[int, _Instruction]:
    """The instructions in the older form, by their numbers, with those that give the vectors of indices."""
    by_id = {instruction.id: instruction for instruction in instructions}
    found = {}
    for instruction in instructions:
        at = _VECTOR_AT.get(instruction.opcode)
        if at is not None and len(instruction.operands) == at + 1:
            indices = by_id.get(instruction.operands[at])
            if indices is not None and len(indices.dimensions) == 1:
                found[instruction.id] = indices
    return found


def _rewritten(code: bytes, begin: int, end: int, instructions: list[_Instruction], ids: set[int]) -> bytes:
    """A computation with the instructions that each older one needs in front of it."""
    old = _old_indices(instructions)
    highest = max((instruction.id for instruction in instructions), default=0)
    parts, position = [], begin
    for (start, first, last), instruction in zip(_messages(code, begin, end, _INSTRUCTIONS), instructions, strict=True):
        indices = old.get(instruction.id)
        if indices is None:
            continue
        parts.append(code[position:start])
        scalars = []
        for number in range(indices.dimensions[0]):
            name = b"%s.start.%d" % (instruction.name, number)
            one, scalar = _free(highest, ids), _free(highest, ids)
            limits = varint_field(1, number) + varint_field(2, number + 1) + varint_field(3, 1)
            parts += [
                _made(name + b".slice", b"slice", indices, (1,), one, indices.id, bytes_field(_SLICE, limits)),
                _made(name, b"reshape", indices, (), scalar, one),
            ]
            scalars.append(scalar)
        operands = [*instruction.operands[:-1], *scalars]
        parts.append(bytes_field(_INSTRUCTIONS, _with_operands(code, first, last, operands)))
        position = last
    return b"".join([*parts, code[position:end]])


def _free(above: int, ids: set[int]) -> int:
    """A number that no instruction has: near those of the computation, for they may say which computation it is."""
    number = above + 1
    while number in ids:
        number += 1
    ids.add(number)
    return number


def _made(
    name: bytes, opcode: bytes, like: _Instruction, shape: tuple[int, ...], number: int, operand: int, more: bytes = b""
) -> bytes:
    layout = bytes_field(1, b"\0") if shape else b""  # its one dimension is the minor one
    type_ = varint_field(_ELEMENT_TYPE, like.element_type)
    type_ += b"".join(varint_field(_DIMENSIONS, size) for size in shape) + bytes_field(5, layout)
    return bytes_field(
        _INSTRUCTIONS,
        bytes_field(_NAME, name)
        + bytes_field(_OPCODE, opcode)
        + bytes_field(_SHAPE, type_)
        + more
        + varint_field(_ID, number)
        + varint_field(_OPERANDS, operand),
    )


def _with_operands(code: bytes, begin: int, end: int, operands: list[int]) -> bytes:
    """An instruction's bytes with other operands."""
    parts, position = [], begin
    for number, kind, _, last in fields(code, begin, end):
        stop = last if kind != VARINT else _after_varint(code, position)
        if number != _OPERANDS:
            parts.append(code[position:stop])
        position = stop
    return b"".join(parts) + b"".join(varint_field(_OPERANDS, operand) for operand in operands)
