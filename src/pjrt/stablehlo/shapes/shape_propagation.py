"""Shape propagation: XLA's passes that compute all shapes of a program from those of its arguments.

XLA does not survive every program here: it divides where a program that computes shapes divides by zero, and it
recurses into calls and copies each called function to its callers. Ordinary programs are recognized; every other
program is refined in a subprocess, which costs a fraction of a second. Where XLA gives up over a division, it is given
one that has a result for every divisor.

As a program, this module is the subprocess.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import Any

from pjrt.api.errors import DeadlineExceededError, InvalidArgumentError, PjrtError
from pjrt.stablehlo import _mlir, jaxlib
from pjrt.stablehlo._mlir import MlirModule
from pjrt.stablehlo.mlir_walk import walk
from pjrt.stablehlo.outline import Outline
from pjrt.stablehlo.safe_parse import run_module
from pjrt.stablehlo.shapes.shape_assertions import is_assertion, without_advice
from pjrt.stablehlo.shapes.shape_functions import hide, restore

TIME_LIMIT = 120.0
"""The time limit of the subprocess, in seconds."""

_DIALECTS = frozenset(("builtin", "func", "stablehlo", "chlo", "sdy"))
_DEEPEST_CALLS = 50
_MOST_OPERATIONS = 200_000
_DIVISIONS = ("stablehlo.divide", "stablehlo.remainder")
_EXIT_REFUSED = 3


def propagate(module: MlirModule) -> bytes:
    """Return a module, whose main function has arguments of static shapes, with static shapes only, as bytecode.

    Raises:
        InvalidArgumentError: a condition that the program states about the shapes does not hold, shapes do not fit
            together, or a shape depends on more than the shapes of the arguments. The message is XLA's or the
            program's own.
        DeadlineExceededError: XLA does not finish.
    """
    hidden = hide(module)
    try:
        code = _propagate_safely(module)
        return restore(code, hidden) if hidden else code
    except InvalidArgumentError:
        # XLA stops at the first fault, which often follows from a condition that does not hold: ask for those alone.
        _propagate_safely(_conditions_of(module))
        raise


def _propagate_safely(module: MlirModule) -> bytes:
    code = _mlir.write_bytecode(module)
    if _is_ordinary(module):
        return _propagate(code)
    try:
        return _propagate_in_subprocess(code)
    except InvalidArgumentError as error:
        # XLA ends its process over a division by zero, or leaves it alone, as its version is.
        if not error.message.startswith(_ENDS) and not error.message.endswith(_ON_VALUES):
            raise
        if not _guard_divisions(module):
            raise
    return _propagate_in_subprocess(_mlir.write_bytecode(module))


def _guard_divisions(module: MlirModule) -> bool:
    """Give divisions of integers a result for every divisor, that of XLA's programs; return whether there are any.

    These are -1 by zero, and the smallest integer by -1; the remainders are the dividend and 0.
    """
    ir = jaxlib.load("mlir.ir", "refine the shapes of a program")
    functions: dict[tuple[str, Any], str] = {}
    with module as mlir, ir.Location.unknown():
        for operation in list(walk(mlir.operation)):
            type_ = operation.results[0].type if operation.name in _DIVISIONS else None
            if type_ is None or not type_.has_static_shape or not isinstance(type_.element_type, ir.IntegerType):
                continue
            name = functions.setdefault((operation.name, type_), f"pjrt.guarded_division.{len(functions)}")
            place: dict[str, Any] = {"ip": ir.InsertionPoint(operation), "loc": operation.location}
            callee = {"callee": ir.FlatSymbolRefAttr.get(name)}
            call = ir.Operation.create("func.call", [type_], list(operation.operands), callee, **place)
            operation.results[0].replace_all_uses_with(call.result)
            operation.erase()
        for (kind, type_), name in functions.items():
            element = type_.element_type
            text = _GUARDED.format(
                name=name,
                kind=kind,
                type=type_,
                sign="UNSIGNED" if element.is_unsigned else "SIGNED",
                lowest=0 if element.is_unsigned else -(1 << element.width - 1),
                all_ones=(1 << element.width) - 1 if element.is_unsigned else -1,
                otherwise="%a" if kind == "stablehlo.remainder" else "%all_ones",
                flags=ir.RankedTensorType.get(type_.shape, ir.IntegerType.get_signless(1)),
            )
            guarded = ir.Module.parse(text)
            mlir.body.append(guarded.body.operations[0].operation.clone())
    return bool(functions)


_GUARDED = """
func.func private @{name}(%a: {type}, %b: {type}) -> {type} {{
  %zero = stablehlo.constant dense<0> : {type}
  %one = stablehlo.constant dense<1> : {type}
  %lowest = stablehlo.constant dense<{lowest}> : {type}
  %all_ones = stablehlo.constant dense<{all_ones}> : {type}
  %by_zero = stablehlo.compare EQ, %b, %zero, {sign} : ({type}, {type}) -> {flags}
  %of_lowest = stablehlo.compare EQ, %a, %lowest, {sign} : ({type}, {type}) -> {flags}
  %by_ones = stablehlo.compare EQ, %b, %all_ones, {sign} : ({type}, {type}) -> {flags}
  %overflows = stablehlo.and %of_lowest, %by_ones : {flags}
  %is_none = stablehlo.or %by_zero, %overflows : {flags}
  %divisor = stablehlo.select %is_none, %one, %b : {flags}, {type}
  %result = {kind} %a, %divisor : {type}
  %guarded = stablehlo.select %by_zero, {otherwise}, %result : {flags}, {type}
  return %guarded : {type}
}}
"""


def _conditions_of(module: MlirModule) -> MlirModule:
    """Return the part of a module that checks the conditions on shapes, without results."""
    ir = jaxlib.load("mlir.ir", "refine the shapes of a program")
    conditions = _mlir.parse(_mlir.write_bytecode(module))
    with conditions as mlir, ir.Location.unknown():
        functions = [each.operation for each in mlir.body if each.operation.name == "func.func"]
        main = next(function for function in functions if function.attributes["sym_name"].value == "main")
        *operations, end = main.regions[0].blocks[0].operations
        ir.Operation.create("func.return", ip=ir.InsertionPoint(end))
        end.operation.erase()
        type_ = ir.FunctionType.get(ir.FunctionType(main.attributes["function_type"].value).inputs, [])
        main.attributes["function_type"] = ir.TypeAttr.get(type_)
        if "res_attrs" in main.attributes:
            del main.attributes["res_attrs"]
        for operation in reversed(operations):
            is_used = any(True for result in operation.operation.results for _ in result.uses)
            if not is_used and not is_assertion(operation.operation):
                operation.operation.erase()
    _mlir.run_passes(conditions, "builtin.module(symbol-dce)")
    return conditions


_STILL_DYNAMIC = "op has dynamic shapes"
_ON_VALUES = ": its sizes depend on values, and only those that depend on shapes can be refined"
_ENDS = "XLA ends its process while it computes the program's shapes"
_FAILURE = re.compile(r'error: (?:(?:loc\(.*?\)|"[^"]*":\d+:\d+|<unknown>:0): )*(.*)')


def _propagate(code: bytes) -> bytes:
    xla = jaxlib.load("_jax", "refine the shapes of a program")
    try:
        refined: bytes = xla.mlir.refine_polymorphic_shapes(
            mlir_module=code, enable_shape_assertions=True, validate_static_shapes=True, enable_shardy=b"sdy" in code
        )
    except (RuntimeError, ValueError) as error:
        match = _FAILURE.search(str(error))
        message = without_advice(match[1] if match else str(error))
        if message.endswith(_STILL_DYNAMIC):
            message += _ON_VALUES
        raise InvalidArgumentError(message) from error
    return refined


def _propagate_in_subprocess(code: bytes) -> bytes:
    try:
        ended = run_module(__name__, str(len(code)), given=code, time_limit=TIME_LIMIT)
    except TimeoutError as error:
        raise DeadlineExceededError(f"XLA did not compute the program's shapes within {TIME_LIMIT:.0f} s") from error
    if ended is None:  # no Python can be started here
        return _propagate(code)
    if ended.status == _EXIT_REFUSED:
        raise InvalidArgumentError(ended.output.decode(errors="replace"))
    if ended.status:
        raise InvalidArgumentError(f"{_ENDS} ({ended})")
    return ended.output


def _is_ordinary(module: MlirModule) -> bool:
    """Whether a module is of the kind that XLA is known to survive."""
    outline = Outline.of(module)
    if any(name.partition(".")[0] not in _DIALECTS for name in outline.operations):
        return False
    if outline.functions.bodiless or outline.functions.depth() > _DEEPEST_CALLS:
        return False
    with module as mlir:
        return _inlined_size(mlir) <= _MOST_OPERATIONS and not any(map(_is_delicate, walk(mlir.operation)))


def _is_delicate(operation: Any) -> bool:
    """Whether XLA may end the process over an operation: a division of integers, or a custom call for refinement."""
    name = operation.name
    if name in _DIVISIONS:
        return _OF_INTEGERS.search(str(operation.results[0].type)) is not None
    return name == "stablehlo.custom_call" and "indices_of_shape_operands" in operation.attributes


_OF_INTEGERS = re.compile(r"[<x]u?i\d")


def _inlined_size(mlir: Any) -> int:
    """Return how many operations the main function has when each call is replaced by the function that is called."""
    sizes: dict[str, int] = {}
    calls: dict[str, Counter[str]] = {}
    for inner in mlir.body:
        if inner.operation.name != "func.func":
            continue
        name = inner.operation.attributes["sym_name"].value
        sizes[name], calls[name] = 0, Counter()
        for operation in walk(inner.operation):
            sizes[name] += 1
            if operation.name == "func.call":
                calls[name][operation.attributes["callee"].value] += 1
    inlined: dict[str, int] = {}

    def size_of(name: str) -> int:
        if name not in inlined:
            inlined[name] = sizes[name] + sum(count * size_of(callee) for callee, count in calls[name].items())
        return inlined[name]

    return size_of("main")


def _main(size: int) -> int:
    from pjrt.stablehlo.safe_parse import limit_memory

    limit_memory(size)
    try:
        sys.stdout.buffer.write(_propagate(sys.stdin.buffer.read(size)))
    except PjrtError as error:
        sys.stdout.write(error.message)
        sys.stdout.flush()
        return _EXIT_REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1])))
