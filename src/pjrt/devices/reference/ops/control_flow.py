"""Control flow: while, if, case, calls, barriers, tuples and tokens."""

from __future__ import annotations

from typing import Any

from pjrt.devices.reference.core.block import Environment, Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.core.values import TOKEN
from pjrt.stablehlo.types import TensorType


@op("stablehlo.while")
def while_(view: OpView) -> Kernel:
    """Runs the body as long as the condition says so, each on the values that the round before left."""
    condition, body = view.regions
    single = len(view.results) == 1

    def run(environment: Environment, *values: Any) -> Any:
        current = list(values)
        while condition.run(environment, current)[0]:
            current = body.consume(environment, current)
        return current[0] if single else current

    return run


@op("stablehlo.if")
def if_(view: OpView) -> Kernel:
    """Runs one of two regions."""
    then, otherwise = view.regions
    single = len(view.results) == 1

    def run(environment: Environment, predicate: Any) -> Any:
        results = (then if predicate else otherwise).run(environment, ())
        return results[0] if single else results

    return run


@op("stablehlo.case")
def case(view: OpView) -> Kernel:
    """Runs the region with the index given; the last one where the index is out of range."""
    branches = view.regions
    last = len(branches) - 1
    single = len(view.results) == 1

    def run(environment: Environment, index: Any) -> Any:
        chosen = int(index)
        results = branches[chosen if 0 <= chosen < last else last].run(environment, ())
        return results[0] if single else results

    return run


@op("func.call", environment=True)
def call(view: OpView) -> Kernel:
    """Runs another function of the module."""
    function = view.function(view.attr("callee"))
    single = len(view.results) == 1

    def run(environment: Environment, *values: Any) -> Any:
        results = function.run(environment, values)
        return results[0] if single else results

    return run


@op("stablehlo.optimization_barrier", quantized=True)
def optimization_barrier(view: OpView) -> Kernel:
    """Gives its operands: there is nothing here that moves ops."""
    if len(view.results) == 1:
        return lambda value: value
    return lambda *values: values


@op("stablehlo.tuple", quantized=True)
def tuple_(view: OpView) -> Kernel:
    """Makes a tuple of values."""
    return lambda *values: values


@op("stablehlo.get_tuple_element", quantized=True)
def get_tuple_element(view: OpView) -> Kernel:
    """Takes one value out of a tuple."""
    index = view.attr("index")
    return lambda values: values[index]


@op("stablehlo.after_all", "stablehlo.create_token", foldable=False)
def after_all(view: OpView) -> Kernel:
    """Makes a token. Steps run in program order, so a token has nothing to wait for."""
    return lambda *tokens: TOKEN


@op("stablehlo.get_dimension_size", quantized=True)
def get_dimension_size(view: OpView) -> Kernel:
    """The size of one dimension of a value."""
    dimension, dtype = view.attr("dimension"), view.result().dtype.type
    static = view.operand()
    if isinstance(static, TensorType) and static.shape[dimension] is not None:
        size = dtype(static.shape[dimension])
        return lambda value: size
    return lambda value: dtype(value.shape[dimension])
