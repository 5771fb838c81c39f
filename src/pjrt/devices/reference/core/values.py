"""The types of values that this device computes with, and the value of a token.

Types are read from MLIR when a program is compiled, so that no MLIR object is alive (or needs a lock) while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pjrt.stablehlo.types import FutureType, OpaqueType, TupleType, ValueType

EXPECTED = "expected ranked tensors of StableHLO's element types, tuples or tokens"
"""The first half of the message of errors about other types."""


class _Token:
    def __repr__(self) -> str:
        return "TOKEN"


TOKEN = _Token()
"""The one value of type ``TokenType``."""


def unknown_type(types: Iterable[ValueType]) -> OpaqueType | None:
    """Return the first of the types, or of their elements, that this device does not compute with; None if all are
    supported.
    """
    for type_ in types:
        if isinstance(type_, OpaqueType):
            return type_
        if isinstance(type_, TupleType | FutureType) and (inner := unknown_type(type_.elements)) is not None:
            return inner
    return None


def leaves(types: Iterable[ValueType]) -> Iterator[ValueType]:
    """Return the types with tuples taken apart: PJRT, and what is outside of the program, have their elements one by
    one.
    """
    for type_ in types:
        if isinstance(type_, TupleType):
            yield from leaves(type_.elements)
        else:
            yield type_


def unpacked(values: Iterable[Any]) -> Iterator[Any]:
    """Return values with tuples taken apart."""
    for value in values:
        if isinstance(value, tuple):
            yield from unpacked(value)
        else:
            yield value


def packed(types: Sequence[ValueType], values: Iterator[Any]) -> list[Any]:
    """Return values of some types, put together from their leaves."""
    return [tuple(packed(t.elements, values)) if isinstance(t, TupleType) else next(values) for t in types]
