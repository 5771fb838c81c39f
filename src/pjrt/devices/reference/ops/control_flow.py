"""Control flow: while, if, case, calls, barriers, tuples and tokens."""

from __future__ import annotations

from typing import Any

from pjrt.devices.reference.core.block import TOKEN, Environment, Kernel, context_of, one_or_all
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op
from pjrt.stablehlo.ir.types import TensorType

_ROUNDS_PER_CHECK = 16


@op("stablehlo.while", quantized=True)
def while_(view: OpView) -> Kernel:
    """Run the body as long as the condition holds, each on the values from the round before."""
    condition, body = view.regions

    def run(environment: Environment, *values: Any) -> Any:
        current = list(values)
        host = context_of(environment).host
        rounds = 0
        while condition.run(environment, current)[0]:
            # A loop may have no end. It is left when nobody waits for it any more.
            if host is not None and not rounds % _ROUNDS_PER_CHECK:
                host.check()
            rounds += 1
            current = body.consume(environment, current)
        return one_or_all(current)

    return run


@op("stablehlo.if", quantized=True)
def if_(view: OpView) -> Kernel:
    """Run one of two regions."""
    then, otherwise = view.regions
    return lambda environment, predicate: one_or_all((then if predicate else otherwise).run(environment, ()))


@op("stablehlo.case", quantized=True)
def case(view: OpView) -> Kernel:
    """Run the region with an index; the last one where the index is out of range."""
    branches = view.regions
    last = len(branches) - 1

    def run(environment: Environment, index: Any) -> Any:
        chosen = int(index)
        return one_or_all(branches[chosen if 0 <= chosen < last else last].run(environment, ()))

    return run


@op("func.call", environment=True, quantized=True)
def call(view: OpView) -> Kernel:
    """Run another function of the module."""
    function = view.function(view.attr("callee"))
    return lambda environment, *values: one_or_all(function.run(environment, values))


@op("stablehlo.optimization_barrier", quantized=True)
def optimization_barrier(view: OpView) -> Kernel:
    """Return the operands: this device does not reorder ops."""
    return lambda *values: one_or_all(values)


@op("stablehlo.tuple", quantized=True)
def tuple_(view: OpView) -> Kernel:
    """Make a tuple of values."""
    return lambda *values: values


@op("stablehlo.get_tuple_element", quantized=True)
def get_tuple_element(view: OpView) -> Kernel:
    """Return one value of a tuple."""
    index = view.attr("index")
    return lambda values: values[index]


@op("stablehlo.after_all", "stablehlo.create_token", foldable=False)
def after_all(view: OpView) -> Kernel:
    """Make a token. Steps run in program order, so a token has nothing to wait for."""
    return lambda *tokens: TOKEN


@op("stablehlo.get_dimension_size", quantized=True)
def get_dimension_size(view: OpView) -> Kernel:
    """Return the size of one dimension of a value."""
    dimension, dtype = view.attr("dimension"), view.result().dtype.type
    static = view.operand()
    if isinstance(static, TensorType) and static.shape[dimension] is not None:
        size = dtype(static.shape[dimension])
        return lambda value: size
    return lambda value: dtype(value.shape[dimension])
