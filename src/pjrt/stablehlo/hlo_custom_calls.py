"""The custom calls of a program in HLO, with the types of their operands and results."""

from __future__ import annotations

from typing import Any, NamedTuple

from pjrt.stablehlo import _xla_protos
from pjrt.stablehlo.primitive_type import ELEMENT_TYPES, TUPLE

_TAG = b"\xe2\x01"
"""The tag of ``HloInstructionProto.custom_call_target``: a program without these bytes has no custom call."""

DIVIDED_TARGET = "pjrt_divided_python_callback"
"""The target of callbacks without results that XLA divides as their operands are divided, into one for each part.

XLA knows no such target of its own; see ``prepare_calls`` of the partitioner.
"""


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
    for computation in _xla_protos.parse("HloModuleProto", module).computations:
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
