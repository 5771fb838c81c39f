"""The calls of jaxlib's MLIR bindings that the reference device makes, in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pjrt.stablehlo import read, to_module
from pjrt.stablehlo.jaxlib import load

_PURPOSE = "interpret programs"


def decompose(module: Any, is_known: Callable[[str], bool]) -> Any:
    """Return the module's operation, with unknown CHLO ops expressed in StableHLO by the StableHLO project's own pass.

    A module with such ops is copied first: the caller's stays as it is.
    """
    names: set[str] = set()
    _collect(module.operation, names)
    if all(is_known(name) or not name.startswith("chlo.") for name in names):
        return module.operation
    load("mlir.dialects.stablehlo", _PURPOSE).register_stablehlo_passes()
    passes = load("mlir.passmanager", _PURPOSE).PassManager
    with module.context:
        copy = module.operation.clone()
        passes.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(copy.operation)
    return copy.operation


def _collect(operation: Any, names: set[str]) -> None:
    names.add(operation.name)
    for region in operation.regions:
        for block in region.blocks:
            for item in block.operations:
                _collect(item.operation, names)


def parse(program: str | bytes) -> Any:
    """Return the module of a program in any format, in an MLIR context of its own."""
    with to_module(read(program), trusted=True) as module:
        return module


def operations(dialect: str) -> frozenset[str]:
    """Return the names of a dialect's operations."""
    module = load(f"mlir.dialects.{dialect}", _PURPOSE)
    return frozenset(thing.OPERATION_NAME for thing in vars(module).values() if hasattr(thing, "OPERATION_NAME"))
