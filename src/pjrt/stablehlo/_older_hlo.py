"""Older forms of HLO instructions, rewritten as XLA's converter to StableHLO knows them.

``dynamic-slice`` and ``dynamic-update-slice`` once took their start indices in one operand, a vector; XLA still
accepts and compiles that (PyTorch/XLA sends it for ``torch.randperm``), but its converter does not. Each such operand
becomes one scalar a dimension here: a slice of the vector, reshaped.
"""

from __future__ import annotations

from typing import Any

from pjrt.stablehlo import _xla_protos

_VECTOR_AT = {b"dynamic-slice": 1, b"dynamic-update-slice": 2}
"""The index of the operand that is the vector of start indices, which is the last operand then."""


def modernized(module: bytes) -> bytes:
    """Return the ``HloModuleProto`` without older forms; the same object if it has none.

    Raises:
        DataLossError: the module is corrupt.
    """
    if not any(opcode in module for opcode in _VECTOR_AT):
        return module
    proto = _xla_protos.parse("HloModuleProto", module)
    ids = {instruction.id for computation in proto.computations for instruction in computation.instructions}
    rewritten = [_rewrite(computation.instructions, ids) for computation in proto.computations]
    return bytes(proto.SerializeToString()) if any(rewritten) else module


def _rewrite(instructions: Any, ids: set[int]) -> bool:
    """Rewrite the older instructions of a computation; return whether there were any."""
    by_id = {instruction.id: instruction for instruction in instructions}
    highest = max(by_id, default=0)
    older = [
        (at, instruction, by_id[instruction.operand_ids[-1]])
        for at, instruction in enumerate(instructions)
        if _takes_a_vector(instruction, by_id)
    ]
    for at, instruction, vector in reversed(older):  # the last first: the places of the others stay as they are
        element_type, scalars = vector.shape.element_type, []
        for index in range(vector.shape.dimensions[0]):
            name = b"%s.start.%d" % (instruction.name, index)
            slice_id, scalar_id = _free_id(highest, ids), _free_id(highest, ids)
            _insert(
                instructions,
                at + 2 * index,
                element_type,
                [1],
                name=name + b".slice",
                opcode=b"slice",
                slice_dimensions=[{"start": index, "limit": index + 1, "stride": 1}],
                id=slice_id,
                operand_ids=[vector.id],
            )
            _insert(
                instructions,
                at + 2 * index + 1,
                element_type,
                [],
                name=name,
                opcode=b"reshape",
                id=scalar_id,
                operand_ids=[slice_id],
            )
            scalars.append(scalar_id)
        instruction.operand_ids[-1:] = scalars
    return bool(older)


def _takes_a_vector(instruction: Any, by_id: dict[int, Any]) -> bool:
    at, operands = _VECTOR_AT.get(instruction.opcode), instruction.operand_ids
    if at is None or len(operands) != at + 1 or operands[0] not in by_id or operands[at] not in by_id:
        return False
    # One index for each dimension of the operand: a damaged size must not make endless work.
    return list(by_id[operands[at]].shape.dimensions) == [len(by_id[operands[0]].shape.dimensions)]


def _free_id(above: int, ids: set[int]) -> int:
    """Take an id that no instruction has, near those of the computation: ids may say which computation it is."""
    id_ = above + 1
    while id_ in ids:
        id_ += 1
    ids.add(id_)
    return id_


def _insert(instructions: Any, at: int, element_type: int, dimensions: list[int], **fields: Any) -> None:
    layout = {"minor_to_major": range(len(dimensions))}
    shape = {"element_type": element_type, "dimensions": dimensions, "layout": layout}
    instructions.insert(at, _xla_protos.new("HloInstructionProto", shape=shape, **fields))
