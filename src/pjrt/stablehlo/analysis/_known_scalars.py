"""Scalars whose values are known before a program runs: the counters of loops, and what is computed from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.stablehlo.mlir_attributes import decode_attribute_of
from pjrt.stablehlo.mlir_types import decode_type
from pjrt.stablehlo.types import TensorType

Scalar = Any
"""A numpy array without dimensions, of an integer type or bool."""

_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_COMPARISONS: dict[str, Callable[..., Any]] = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}
_UNARY = frozenset(("convert", "reshape"))
_OTHER = frozenset(("compare", "select", "clamp", "negate", "not"))
FOLDED = frozenset(f"stablehlo.{name}" for name in (*_BINARY, *_UNARY, *_OTHER))
"""The operations that ``fold`` computes."""


class Known:
    """A scalar whose value is known.

    Attributes:
        varies: whether it depends on the iteration of a loop. It is then an argument, so that the operations of all
            iterations are the same; otherwise a constant.
    """

    def __init__(self, value: Scalar, type_: Any, varies: bool) -> None:
        self.value = value
        self.type = type_
        self.varies = varies
        self.native: Any = None


def is_scalar(type_: Any) -> bool:
    """Whether a type of MLIR's is that of an integer or bool without dimensions."""
    text = str(type_)
    return text.startswith(("tensor<i", "tensor<ui")) and "x" not in text


def scalar(value: Any, type_: Any) -> Scalar:
    """Return a number as an array without dimensions, of the numpy type of MLIR's type."""
    decoded = decode_type(type_)
    assert isinstance(decoded, TensorType)
    array = np.asarray(value).astype(decoded.dtype).reshape(())
    array.setflags(write=False)
    return array


def fold(operation: Any, operands: Sequence[Scalar]) -> Scalar:
    """Return the result of an operation of ``FOLDED`` on known scalars; integers wrap around."""
    name = operation.name.removeprefix("stablehlo.")
    with np.errstate(over="ignore"):
        return scalar(_value(operation, name, operands), operation.results[0].type)


def _value(operation: Any, name: str, operands: Sequence[Scalar]) -> Any:
    if name in _BINARY:
        return _BINARY[name](*operands)
    if name in _UNARY:
        return operands[0]
    if name == "compare":
        return _COMPARISONS[str(decode_attribute_of(operation, "comparison_direction"))](*operands)
    if name == "select":
        return operands[1] if operands[0] else operands[2]
    if name == "clamp":
        low, value, high = operands
        return np.minimum(np.maximum(value, low), high)
    return np.negative(operands[0]) if name == "negate" else np.invert(operands[0])
