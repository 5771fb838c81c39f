"""Which types of values this device computes with, and the value of a token.

Types are read once from MLIR when a program is compiled, so that nothing of MLIR is alive (or needs a lock) while it
runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from pjrt.stablehlo.types import FutureType, OpaqueType, TupleType, ValueType

EXPECTED = "expected ranked tensors of StableHLO's element types, tuples or tokens"
"""What an error says that finds another type."""


class _Token:
    def __repr__(self) -> str:
        return "TOKEN"


TOKEN = _Token()
"""The one value of type ``TokenType``."""


def unknown_type(types: Iterable[ValueType]) -> OpaqueType | None:
    """The first of the types, or of what they consist of, that this device does not compute with; None if there is
    none.
    """
    for type_ in types:
        if isinstance(type_, OpaqueType):
            return type_
        if isinstance(type_, TupleType | FutureType) and (found := unknown_type(type_.elements)) is not None:
            return found
    return None
