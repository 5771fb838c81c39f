"""The calls of jaxlib's MLIR bindings that the reference device makes, in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pjrt.api.program import SourceLocation
from pjrt.stablehlo import read, to_module
from pjrt.stablehlo.encodings.jaxlib import load
from pjrt.stablehlo.ir.location import Location
from pjrt.stablehlo.ir.mlir_module import widen

_PURPOSE = "interpret programs"


def decompose(module: Any, is_known: Callable[[str], bool]) -> Any:
    """Return the module's operation, with unknown CHLO ops expressed in StableHLO by the StableHLO project's own pass.

    A module with such ops is copied first: the caller's stays as it is.
    """
    if not _unknown(module.operation, is_known):
        return module.operation
    load("mlir.dialects.stablehlo", _PURPOSE).register_stablehlo_passes()
    with module.context:
        copy = module.operation.clone()
        for operation in _unknown(copy.operation, is_known):
            if operation.name in _FUNCTIONS:
                widen(operation)
            _decompose(operation)
    return copy.operation


_FUNCTIONS = frozenset({"chlo.bessel_i1e", "chlo.polygamma", "chlo.zeta"})


def _unknown(operation: Any, is_known: Callable[[str], bool]) -> list[Any]:
    found = []
    for inner in [
        each.operation for region in operation.regions for block in region.blocks for each in block.operations
    ]:
        found += _unknown(inner, is_known)
        if inner.name.startswith("chlo.") and not is_known(inner.name):
            found.append(inner)
    return found


def _decompose(operation: Any) -> None:
    """Put what the pass makes of an operation in its place. The pass takes modules, and all their CHLO ops."""
    ir = load("mlir.ir", _PURPOSE)
    taken, given = [value.type for value in operation.operands], [value.type for value in operation.results]
    with operation.location:
        alone = ir.Module.create()
        signature = {
            "sym_name": ir.StringAttr.get("f"),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(taken, given)),
        }
        function = ir.Operation.create("func.func", attributes=signature, regions=1, ip=ir.InsertionPoint(alone.body))
        block = ir.Block.create_at_start(function.regions[0], taken)
        inside = operation.clone(ir.InsertionPoint(block))
        for number, argument in enumerate(block.arguments):
            inside.operands[number] = argument
        ir.Operation.create("func.return", operands=list(inside.results), ip=ir.InsertionPoint(block))
    passes = load("mlir.passmanager", _PURPOSE).PassManager
    passes.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(alone.operation)
    *steps, end = function.regions[0].blocks[0].operations
    values = dict(zip(function.regions[0].blocks[0].arguments, operation.operands, strict=True))
    for step in steps:
        copy = step.operation.clone(ir.InsertionPoint(operation))
        _take(copy, values)
        values |= zip(step.operation.results, copy.results, strict=True)
    for result, value in zip(operation.results, end.operation.operands, strict=True):
        result.replace_all_uses_with(values[value])
    operation.erase()


def _take(operation: Any, values: Mapping[Any, Any]) -> None:
    """Let an operation, and those in its regions, use other values."""
    for number, operand in enumerate(operation.operands):
        if operand in values:
            operation.operands[number] = values[operand]
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                _take(inner.operation, values)


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
