"""The operations of a block whose results are used, or that have an effect; compilers drop the others."""

from __future__ import annotations

from pjrt.stablehlo.inspection import SIDE_EFFECTS
from pjrt.stablehlo.operation import Block, Operation
from pjrt.stablehlo.outline import COLLECTIVES


def live_operations(block: Block) -> list[Operation]:
    """Return the operations of a block that a compiler keeps, in their order."""
    used: set[int] = set()
    live = []
    for operation in reversed(block.operations):
        if _has_effect(operation) or any(id(result) in used for result in operation.results):
            live.append(operation)
            for user in (operation, *operation.walk()):
                used.update(map(id, user.operands))
    return live[::-1]


def _has_effect(operation: Operation) -> bool:
    """Whether an operation must run although its results are not used."""
    if not operation.results or operation.name in SIDE_EFFECTS or operation.name in COLLECTIVES:
        return True
    if operation.name == "func.call" or operation.attributes.get("has_side_effect", False):
        return True
    return any(map(_has_effect, (inner for inner in operation.walk() if inner.results)))
