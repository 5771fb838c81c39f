"""The operations of an MLIR module, one after the other, and the symbols that their attributes refer to."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any


def walk(operation: Any) -> Iterator[Any]:
    """Yield an operation and each one inside it, in the order of the text.

    MLIR's own walk calls back from C++. A daemon thread that Python ends in such a call, at the end of the interpreter,
    takes the process with it.
    """
    for inner, _ in walk_with_depths(operation):
        yield inner


def walk_with_depths(operation: Any) -> Iterator[tuple[Any, int]]:
    """Yield what ``walk`` yields, each operation with the number of operations that it lies in."""
    waiting: list[Iterator[Any]] = [iter((operation,))]
    while waiting:
        operation = next(waiting[-1], None)
        if operation is None:
            waiting.pop()
            continue
        inner = operation.operation
        yield inner, len(waiting) - 1
        regions = inner.regions
        if len(regions):
            waiting.append(chain.from_iterable(block.operations for region in regions for block in region.blocks))


def top_level(module: Any) -> Iterator[Any]:
    """Yield the operations of a module that lie in no other one, such as its functions."""
    for operation in module.body.operations:
        yield operation.operation


def symbols(attribute: Any) -> Iterator[str]:
    """Yield the names of the functions and meshes that an attribute refers to."""
    kind = type(attribute).__name__
    if kind == "FlatSymbolRefAttr":
        yield attribute.value
    elif kind == "SymbolRefAttr":
        yield attribute.value[-1]
    elif kind == "ArrayAttr":
        for inner in attribute:
            yield from symbols(inner)
    elif kind == "DictAttr":
        for item in attribute:
            yield from symbols(item.attr)


def inline(operation: Any) -> None:
    """Put the operations of a region in the place of the operation that has it."""
    block = operation.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, operation.operands, strict=True):
        argument.replace_all_uses_with(operand)
    *inner, last = list(block.operations)
    for each in inner:
        each.operation.move_before(operation)
    for result, value in zip(operation.results, last.operation.operands, strict=True):
        result.replace_all_uses_with(value)
    operation.erase()
