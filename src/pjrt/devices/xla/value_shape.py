"""The shapes of the parameters and results of programs, as XLA's modules have them."""

from __future__ import annotations

from typing import Any, NamedTuple

from pjrt.api.element_type import AnyDType
from pjrt.devices.xla import _jaxlib
from pjrt.stablehlo.jaxlib import load


class ValueShape(NamedTuple):
    """One parameter or result of an executable, on one device."""

    shape: tuple[int, ...]
    dtype: AnyDType | None
    """``None`` for a token."""
    minor_to_major: tuple[int, ...]
    dynamic_dimensions: tuple[int, ...]
    is_in_host_memory: bool


def program_shape(module: bytes) -> tuple[list[ValueShape], list[ValueShape]]:
    """Return the parameters and results of a compiled module, an ``HloModuleProto``, on one device."""
    shape = _jaxlib.hlo.XlaComputation(module).program_shape()
    parameters = shape.parameter_shapes()
    if len(parameters) == 1 and parameters[0].is_tuple():
        parameters = parameters[0].tuple_shapes()
    result = shape.result_shape()
    results = result.tuple_shapes() if result.is_tuple() else [result]
    return [_value_shape(p) for p in parameters], [_value_shape(r) for r in results]


def result_shapes(module: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the results of an MLIR module's main function; ``()`` for those that are no arrays."""
    ir = load("mlir.ir", "read the types of programs")
    main = next((each for each in module.body.operations if _is_main(each)), None)
    results = () if main is None else ir.FunctionType(main.attributes["function_type"].value).results
    return [tuple(each.shape) if isinstance(each, ir.RankedTensorType) else () for each in results]


def _is_main(operation: Any) -> bool:
    attributes = operation.attributes
    return bool(operation.operation.name == "func.func" and attributes["sym_name"].value == "main")


_HOST_MEMORY = ":S(5)"  # XLA's spelling of the host's memory space in a layout


def _value_shape(shape: Any) -> ValueShape:
    if not shape.is_array():
        return ValueShape((), None, (), (), False)
    layout = shape.layout()
    sizes = tuple(shape.dimensions())
    dynamic = tuple(d for d in range(len(sizes)) if shape.is_dynamic_dimension(d)) if shape.is_dynamic() else ()
    is_in_host_memory = _HOST_MEMORY in layout.to_string()
    return ValueShape(sizes, shape.numpy_dtype(), tuple(layout.minor_to_major()), dynamic, is_in_host_memory)
