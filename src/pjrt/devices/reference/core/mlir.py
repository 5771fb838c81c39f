"""The calls of jaxlib's MLIR bindings that the reference device makes, in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pjrt.api.program import SourceLocation
from pjrt.stablehlo import read, to_module
from pjrt.stablehlo.jaxlib import load
from pjrt.stablehlo.location import Location

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


UNKNOWN = "unknown location"


def describe(location: Any) -> str:
    """Return a location as ``name at file:line:column``, innermost frame first, as far as the program states it."""
    text = str(location)
    if "\\" in text:  # a name in it may not be UTF-8: the bindings end the process when that is read
        return _spelled(text)
    return _described(location)


def _described(location: Any) -> str:
    kind = type(location).__name__
    if kind == "FileLineColLoc":
        return f"{location.filename}:{location.start_line}:{location.start_col}"
    if kind == "NameLoc":
        inner = _described(location.child_loc)
        return str(location.name_str) if inner == UNKNOWN else f"{location.name_str} at {inner}"
    if kind == "CallSiteLoc":
        callee, caller = _described(location.callee), _described(location.caller)
        return callee if caller == UNKNOWN else f"{callee}, called from {caller}"
    if kind == "FusedLoc":
        parts = [part for part in map(_described, location.locations) if part != UNKNOWN]
        return ", ".join(dict.fromkeys(parts)) or UNKNOWN
    if kind == "Location":  # before jaxlib 0.10.2 the bindings have only its text
        return _spelled(str(location))
    return UNKNOWN


def _spelled(text: str) -> str:
    return ", called from ".join(map(_spell, Location(text).places)) or UNKNOWN


def _spell(place: SourceLocation) -> str:
    at = f"{place.file}:{place.line}:{place.column}" if place.file else ""
    return f"{place.name} at {at}" if place.name and at else place.name or at
