"""The table of operations: for each operation, the function that makes its cases for an element type."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

from pjrt.api.element_type import ElementType
from pjrt.conformance.operation_case import OperationCase

Maker = Callable[[str, ElementType], Iterable[OperationCase]]
"""Makes the cases of an operation for an element type."""

_CHAPTERS = (
    "elementwise",
    "data_movement",
    "conversion",
    "reductions",
    "indexing",
    "linear_algebra",
    "control_flow",
    "dynamic_shapes",
    "random_numbers",
)

_table: dict[str, tuple[tuple[ElementType, ...], Maker]] = {}


def cases(names: str, types: Collection[ElementType]) -> Callable[[Maker], Maker]:
    """Add a function to the table: it makes the cases of these operations, for each of these types.

    Args:
        names: the names of operations, with spaces between them; ``stablehlo.`` may be left out.
        types: the element types that the operations are defined on.
    """

    def add(maker: Maker) -> Maker:
        for name in names.split():
            _table[name if "." in name else f"stablehlo.{name}"] = tuple(types), maker
        return maker

    return add


@functools.cache
def operations() -> Mapping[str, tuple[ElementType, ...]]:
    """Return the operations of the table, each with its element types."""
    for chapter in _CHAPTERS:
        importlib.import_module(f"pjrt.conformance.operations.{chapter}")
    return MappingProxyType({name: types for name, (types, _) in sorted(_table.items())})


def cases_of(operation: str, element_type: ElementType) -> Iterator[OperationCase]:
    """Return the cases of an operation for an element type; none if it is not defined on that type."""
    if element_type in operations().get(operation, ()):
        yield from _table[operation][1](operation, element_type)
