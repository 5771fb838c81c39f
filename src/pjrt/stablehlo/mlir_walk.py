"""The operations of an MLIR module, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def walk(operation: Any) -> Iterator[Any]:
    """Yield an operation and each one inside it, in the order of the text.

    MLIR's own walk calls back from C++. A daemon thread that Python ends in such a call, at the end of the interpreter,
    takes the process with it.
    """
    waiting: list[Iterator[Any]] = [iter((operation,))]
    while waiting:
        operation = next(waiting[-1], None)
        if operation is None:
            waiting.pop()
            continue
        inner = operation.operation
        yield inner
        regions = inner.regions
        if len(regions):
            waiting.append(_directly_inside(regions))


def _directly_inside(regions: Any) -> Iterator[Any]:
    for region in regions:
        for block in region.blocks:
            yield from block.operations
