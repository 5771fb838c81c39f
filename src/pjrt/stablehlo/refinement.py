"""Refinement: from a program with dynamic sizes to a static one, for given shapes of its arguments.

XLA propagates the shapes of the arguments through the program and evaluates the conditions that the program states
about them. Everything here needs jaxlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import AnyProgram, Program
from pjrt.api.shape_spec import Shapes
from pjrt.stablehlo import jaxlib
from pjrt.stablehlo._mlir import MlirModule
from pjrt.stablehlo.argument_shapes import (
    Shape,
    StatedShape,
    is_dynamic,
    resolve_shapes,
    spelled_shape,
)
from pjrt.stablehlo.conversion import to_module
from pjrt.stablehlo.inspection import signature_of
from pjrt.stablehlo.outline import Outline
from pjrt.stablehlo.parser import parse_module
from pjrt.stablehlo.reader import read
from pjrt.stablehlo.shape_propagation import propagate

_PURPOSE = "refine the shapes of a program"


def refine(program: AnyProgram, shapes: Shapes, *, trusted: bool = False) -> Program:
    """Return the program with static shapes, for these shapes of its arguments.

    Args:
        program: a program in any encoding. One that has static shapes only is returned as it is.
        shapes: the shapes of the arguments: a sequence with one for each (``None`` for one that is static), or a
            mapping. Its keys are indices and names of arguments, with shapes as values, and the symbols for sizes that
            the program states, as ``jax.export`` has them: ``{"b": 8}``. Sizes that follow from others need not be
            given.
        trusted: as for ``to_module``.

    Raises:
        InvalidArgumentError: a shape does not fit its argument or contradicts a condition that the program states, a
            shape is missing, or sizes depend on more than the shapes of the arguments.
        PjrtError: as for ``to_module``.
    """
    program = read(program)
    module = to_module(program, trusted=trusted)
    outline = Outline.of(module)
    outline.check()
    arguments = _arguments(module)
    resolved = resolve_shapes(shapes, arguments)
    if not outline.has_dynamic_shapes and not any(is_dynamic(argument.shape) for argument in arguments):
        return program
    _set_shapes(module, resolved)
    try:
        return Program(propagate(module))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"the program does not take arguments of these shapes ({_described(arguments, resolved)}): {error.message}"
        ) from error


@dataclass(frozen=True)
class _Argument:
    name: str
    shape: StatedShape


def _arguments(module: MlirModule) -> list[_Argument]:
    return [
        _Argument(each.name, each.symbolic_shape)
        for each in signature_of(parse_module(module, bodies=False), module).arguments
    ]


def _described(arguments: Sequence[_Argument], shapes: Sequence[Shape]) -> str:
    return ", ".join(
        f"{argument.name or index} {spelled_shape(shape)}"
        for index, (argument, shape) in enumerate(zip(arguments, shapes, strict=True))
        if is_dynamic(argument.shape)
    )


_WRAPPER = "stablehlo.shape_refinement_operand_wrapper"


def _set_shapes(module: MlirModule, shapes: Sequence[Shape]) -> None:
    """Give the arguments of the main function static shapes.

    Operations still expect the dynamic types: each argument reaches them through a custom call that refinement removes.
    """
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    with module as mlir, ir.Location.unknown():
        main = _main(mlir)
        block = main.regions[0].blocks[0]
        begin = ir.InsertionPoint.at_block_begin(block)
        for argument, shape in zip(block.arguments, shapes, strict=True):
            dynamic = argument.type
            if not isinstance(dynamic, ir.RankedTensorType) or dynamic.has_static_shape:
                continue
            argument.set_type(ir.RankedTensorType.get(shape, dynamic.element_type))
            sizes = ir.Attribute.parse(f"dense<{list(shape)}> : tensor<{len(shape)}xi64>")
            constant = ir.Operation.create("stablehlo.constant", [sizes.type], attributes={"value": sizes}, ip=begin)
            wrapper = ir.Operation.create(
                "stablehlo.custom_call",
                [dynamic],
                [argument, constant.result],
                {
                    "call_target_name": ir.StringAttr.get(_WRAPPER),
                    "indices_of_shape_operands": ir.Attribute.parse("dense<1> : tensor<1xi64>"),
                },
                ip=begin,
            )
            argument.replace_all_uses_except(wrapper.result, wrapper)
        results = ir.FunctionType(main.attributes["function_type"].value).results
        type_ = ir.FunctionType.get([argument.type for argument in block.arguments], results)
        main.attributes["function_type"] = ir.TypeAttr.get(type_)


def _main(mlir: Any) -> Any:
    for inner in mlir.body:
        operation = inner.operation
        if operation.name == "func.func" and operation.attributes["sym_name"].value == "main":
            return operation
    raise InvalidArgumentError("expected a dynamic program with a function 'main', found none")
