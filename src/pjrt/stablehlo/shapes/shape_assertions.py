"""Shape assertions: the custom calls by which a program states conditions on the shapes of its arguments.

``jax.export`` writes them. Beside the condition, each has the message for shapes that do not meet it, and the message
has the symbolic shapes of all dynamic arguments. No other part of the program has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pjrt.stablehlo._diagnostics import senseless_refused
from pjrt.stablehlo._mlir import MlirModule
from pjrt.stablehlo.mlir_walk import walk
from pjrt.stablehlo.shapes.argument_shapes import StatedShape, is_dynamic

_TARGET = "shape_assertion"

_ADVICE = r"[\s.,]*Please see \S+ for more details\.?$"
_SPECIFICATIONS = "polymorphic shapes specifications: "
_SPECIFICATION = r"\.shape = \("


def symbolic_shapes(module: MlirModule, shapes: Sequence[StatedShape]) -> list[StatedShape]:
    """Return the shapes of a program's arguments with symbolic sizes where the program's shape assertions state them.

    Args:
        module: the program.
        shapes: the shapes of its arguments by their types.
    """
    dynamic = [index for index, shape in enumerate(shapes) if is_dynamic(shape)]
    if not dynamic:
        return list(shapes)
    with module as mlir, senseless_refused():
        message = next(_messages(mlir), "")
    stated = list(_specifications(message))
    if len(stated) != len(dynamic) or not all(map(_agree, stated, (shapes[index] for index in dynamic))):
        return list(shapes)
    symbolic = list(shapes)
    for index, shape in zip(dynamic, stated, strict=True):
        symbolic[index] = shape
    return symbolic


def is_assertion(operation: Any) -> bool:
    """Whether an operation of MLIR's is a shape assertion."""
    return operation.name == "stablehlo.custom_call" and bool(operation.attributes["call_target_name"].value == _TARGET)


def without_advice(message: str) -> str:
    """Return the message of a shape assertion without the address of JAX's documentation."""
    return re.sub(_ADVICE, "", message.strip()).replace(" (= ", " (").replace("), .", ")")


def _messages(mlir: Any) -> Iterator[str]:
    for operation in walk(mlir.operation):
        if is_assertion(operation) and "error_message" in operation.attributes:
            yield str(operation.attributes["error_message"].value)


def _specifications(message: str) -> Iterator[StatedShape]:
    """Yield the shapes in ``…specifications: args[0].shape = (b, 16),args[1].shape = (b,).``"""
    text = message.partition(_SPECIFICATIONS)[2]
    for match in re.finditer(_SPECIFICATION, text):
        yield tuple(int(size) if size.isdigit() else size for size in _sizes(text, match.end()))


def _sizes(text: str, begin: int) -> Iterator[str]:
    """Yield the sizes of a shape, up to the bracket that closes it."""
    depth = 0
    for end in range(begin, len(text)):
        character = text[end]
        if depth == 0 and character in ",)":
            if size := text[begin:end].strip():
                yield size
            if character == ")":
                return
            begin = end + 1
        depth += (character == "(") - (character == ")")


def _agree(symbolic: StatedShape, by_type: StatedShape) -> bool:
    return len(symbolic) == len(by_type) and all(
        isinstance(size, str) if stated is None else size == stated
        for size, stated in zip(symbolic, by_type, strict=True)
    )
