"""Platform selection: from a program for several platforms to the program for one of them.

``jax.export`` writes a program for several platforms once: its first argument is the index of the platform, and the
parts that differ between platforms are branches. A device that gets the branches of other platforms may refuse the
program over custom calls that only another platform has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.stablehlo import _mlir, jaxlib
from pjrt.stablehlo._diagnostics import senseless_refused
from pjrt.stablehlo.conversion import to_module
from pjrt.stablehlo.reader import read

_PURPOSE = "select the platform of a program"
_ATTRIBUTE = "jax.global_constant"
_PLATFORM_INDEX = "_platform_index"


def select_platform(program: AnyProgram, index: int, *, trusted: bool = False) -> Program:
    """Return a program for several platforms as the program for one of them, without the argument for the platform.

    Args:
        program: a program in any encoding. One without an argument for the platform is returned as it is.
        index: the index of the platform in the list that was given to ``jax.export``.
        trusted: as for ``to_module``.

    Raises:
        InvalidArgumentError: the index is negative.
        PjrtError: as for ``to_module``.
    """
    if index < 0:
        raise InvalidArgumentError(f"expected the index of a platform, from 0 up, found {index}")
    program = read(program)
    if program.format != ProgramFormat.MLIR or _PLATFORM_INDEX.encode() not in program.code:
        return program
    module = to_module(program, trusted=trusted)
    with module as mlir, senseless_refused():
        mains = [function for function in _functions(mlir) if function.attributes["sym_name"].value == "main"]
        position = _position(mains[0]) if mains else None
        if position is None:
            return program
        for function in _functions(mlir):
            at = _position(function)
            if at is not None:
                _fix(function.regions[0].blocks[0], at, index)
        _drop_argument(mains[0], position)
    # A case of a constant becomes its branch; functions that only other branches call are not needed any more.
    _mlir.run_passes(module, "builtin.module(canonicalize,symbol-dce)")
    return Program(_mlir.write_bytecode(module))


def _functions(mlir: Any) -> Iterator[Any]:
    for inner in mlir.body:
        if inner.operation.name == "func.func" and len(inner.operation.regions[0].blocks):
            yield inner.operation


def _position(function: Any) -> int | None:
    """Return which of a function's arguments is the index of the platform."""
    if "arg_attrs" not in function.attributes:
        return None
    for position, row in enumerate(function.attributes["arg_attrs"]):
        if _ATTRIBUTE in row and row[_ATTRIBUTE].value == _PLATFORM_INDEX:
            type_ = function.regions[0].blocks[0].arguments[position].type
            if str(type_) not in ("tensor<i32>", "tensor<i64>"):
                raise InvalidArgumentError(f"expected an integer as the index of the platform, found {type_}")
            return position
    return None


def _fix(block: Any, position: int, index: int) -> None:
    """Replace the index of the platform inside of a function by a constant."""
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    argument = block.arguments[position]
    value = ir.Attribute.parse(f"dense<{index}> : {argument.type}")
    begin = ir.InsertionPoint.at_block_begin(block)
    with ir.Location.unknown():
        constant = ir.Operation.create("stablehlo.constant", [value.type], attributes={"value": value}, ip=begin)
    argument.replace_all_uses_with(constant.result)


def _drop_argument(main: Any, position: int) -> None:
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    block = main.regions[0].blocks[0]
    block.erase_argument(position)
    type_ = ir.FunctionType(main.attributes["function_type"].value)
    inputs = [each for number, each in enumerate(type_.inputs) if number != position]
    rows = [row for number, row in enumerate(main.attributes["arg_attrs"]) if number != position]
    with main.location:
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, type_.results))
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(rows)
