"""Refinement: from a program with dynamic sizes to a static one, for given shapes of its arguments.

XLA propagates the shapes of the arguments through the program and evaluates the conditions that the program states
about them. Everything here needs jaxlib.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import AnyProgram, Program
from pjrt.api.shape_spec import Shapes
from pjrt.stablehlo import _mlir, jaxlib
from pjrt.stablehlo._mlir import MlirModule
from pjrt.stablehlo.conversion import to_module
from pjrt.stablehlo.entry_signature import ArgumentInfo, signature_of
from pjrt.stablehlo.outline import Outline
from pjrt.stablehlo.parser import parse_module
from pjrt.stablehlo.reader import read
from pjrt.stablehlo.shapes.argument_shapes import (
    Shape,
    StatedShape,
    is_dynamic,
    resolve_shapes,
    spelled_shape,
)
from pjrt.stablehlo.shapes.shape_propagation import propagate
from pjrt.stablehlo.types import TensorType

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
    for argument, shape in zip(arguments, resolved, strict=True):
        argument.check_bounds(shape)
    if any(argument.bounds for argument in arguments):
        module = _without_bounds(module)
    _set_names(module, arguments)
    _set_shapes(module, resolved)
    try:
        return Program(propagate(module))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"the program does not take arguments of these shapes ({_described(arguments, resolved)}): {error.message}"
        ) from error


@dataclass(frozen=True)
class _Argument:
    index: int
    name: str
    shape: StatedShape
    bounds: tuple[int | None, ...]

    @staticmethod
    def of(index: int, argument: ArgumentInfo) -> _Argument:
        bounds = argument.type.bounds if isinstance(argument.type, TensorType) else None
        return _Argument(index, argument.name, argument.symbolic_shape, bounds or ())

    @property
    def label(self) -> str:
        return self.name or str(self.index)

    def check_bounds(self, shape: Shape) -> None:
        """Raise an error if a size is above its upper bound."""
        if any(bound is not None and size > bound for size, bound in zip(shape, self.bounds, strict=False)):
            raise InvalidArgumentError(
                f"expected sizes within the bounds {spelled_shape(self.bounds)} of argument {self.label}, found "
                f"{spelled_shape(shape)}"
            )


def _arguments(module: MlirModule) -> list[_Argument]:
    signature = signature_of(parse_module(module, bodies=False), module)
    return [_Argument.of(index, argument) for index, argument in enumerate(signature.arguments)]


_BOUNDS = re.compile(r",\s*#stablehlo\.bounds<[^>]*>")


def _without_bounds(module: MlirModule) -> MlirModule:
    """Return the module with the same types, but without upper bounds: XLA takes a bounded size for a known one."""
    return _mlir.parse(_BOUNDS.sub("", _mlir.write_text(module, locations=True)).encode())


def _described(arguments: Sequence[_Argument], shapes: Sequence[Shape]) -> str:
    return ", ".join(
        f"{argument.label} {spelled_shape(shape)}"
        for argument, shape in zip(arguments, shapes, strict=True)
        if is_dynamic(argument.shape)
    )


def _set_names(module: MlirModule, arguments: Sequence[_Argument]) -> None:
    """Give the arguments of the main function their names.

    In a program of ``jax.export`` only the function that the main function wraps has them, and that is inlined.
    """
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    with module as mlir:
        block = _main(mlir).regions[0].blocks[0]
        for argument, named in zip(block.arguments, arguments, strict=True):
            if named.name:
                argument.set_location(ir.Location.name(named.name))


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
