"""Custom calls and composites: ops that the specification does not define."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from pjrt.api.printable import perhaps
from pjrt.devices.reference.core import registry
from pjrt.devices.reference.core.block import (
    TOKEN,
    Environment,
    Kernel,
    context_of,
    leaves,
    one_or_all,
    packed,
    unpacked,
)
from pjrt.devices.reference.core.op_view import OpView, Region
from pjrt.devices.reference.core.registry import config, custom_call, find_target, op, targets
from pjrt.devices.reference.numerics.element_types import BOOLEAN
from pjrt.devices.reference.ops.data_movement import Order, order_by
from pjrt.stablehlo.ir.types import TensorType, TupleType


@op("stablehlo.composite", environment=True, quantized=True)
def composite(view: OpView) -> Kernel:
    """Run the decomposition of an op that is expressed by others."""
    function = view.function(view.attr("decomposition"))
    return lambda environment, *values: one_or_all(function.run(environment, values))


@op("stablehlo.custom_call", environment=True, quantized=True, foldable=False)
def call_outside(view: OpView) -> Kernel:
    """Call a function outside the program, by its name."""
    target = view.attr("call_target_name")
    compile_call = find_target(target)
    if compile_call is None and view.has_handler(target):
        compile_call = partial(call_handler, target=target)
    if compile_call is None:
        raise view.unimplemented(
            f"there is no custom call {target!r} on the reference device{perhaps(target, targets(), cutoff=0.8)}: give "
            "the client a function for it with register_ffi_handler"
        )
    if not any(isinstance(type_, TupleType) for type_ in (*view.operands, *view.results)):
        return compile_call(view)
    types = view.results
    kernel = compile_call(view.derive(operands=list(leaves(view.operands)), results=list(leaves(types))))
    single = len(list(leaves(types))) == 1

    def run(environment: Environment, *values: Any) -> Any:
        results = kernel(environment, *unpacked(values))
        return one_or_all(packed(types, iter([results] if single else results or ())))

    return run


def call_handler(view: OpView, target: str) -> Kernel:
    """Call a function that the client has as a handler: ``function(*operands, *results, **attributes)``.

    It fills the results, which are zero before: old memory must not become visible through a function that leaves some
    of them alone. A result that takes over an operand's memory has the operand's value. Tokens are empty arrays.
    """
    attributes = {name: np.array(value) if isinstance(value, tuple) else value for name, value in config(view).items()}
    types = [t if isinstance(t, TensorType) else None for t in view.results]
    aliases = {
        sum(alias.output_tuple_indices): alias.operand_index for alias in view.attr("output_operand_aliases", ())
    }

    def run(environment: Environment, *values: Any) -> Any:
        host = context_of(environment).host
        if host is None:
            raise FailedPreconditionError(
                f"the handler of the custom call {target!r} belongs to a client: run the program on that client"
            )
        function = host.device.client.ffi_handlers.find(target).function
        if not callable(function):
            raise UnimplementedError(
                f"the handler of the custom call {target!r} is native code: give a Python function"
            )
        operands = [_read_only(value) for value in values]
        results = [np.empty(0, np.uint8) if t is None else np.zeros(t.sizes, t.dtype) for t in types]
        for number, operand in aliases.items():
            results[number][...] = operands[operand]
        function(*operands, *results, **attributes)
        return one_or_all([TOKEN if t is None else result for t, result in zip(types, results, strict=True)])

    return run


def _read_only(value: Any) -> Any:
    if value is TOKEN:
        return np.empty(0, np.uint8)
    array = np.asarray(value).view()
    array.flags.writeable = False
    return array


@custom_call(
    "Sharding",
    "annotate_device_placement",
    "LayoutConstraint",
    "MoveToHost",
    "MoveToDevice",
    "PinToDevice",
    "xla.sdy.FuncResultSharding",
)
def annotation(view: OpView) -> Kernel:
    """Return the operands: the call is a hint where they should be."""
    return lambda environment, *values: one_or_all(values)


_AS_CHLO = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "erf", "square", "tan")


@custom_call(*(f"mhlo.{name}" for name in _AS_CHLO))
def as_chlo(view: OpView) -> Kernel:
    """Compute ops of XLA's own dialect that CHLO has too: in portable artifacts they are custom calls."""
    name = view.attr("call_target_name").removeprefix("mhlo.")
    kernel = view.derive(name=f"chlo.{name}" if registry.find(f"chlo.{name}") else f"stablehlo.{name}").compile()
    return lambda environment, *values: kernel(*values)


@custom_call("mhlo.topk", "TopK")
def top_k(view: OpView) -> Kernel:
    """Compute ``chlo.top_k``; ``k`` is the last size of the result by default."""
    if not view.operands or not view.results:
        raise view.invalid(f"expected an operand and results, found {len(view.operands)} and {len(view.results)}")
    values, count = view.results[0], len(view.results)
    if count != 2 or not isinstance(values, TensorType) or values.rank == 0 or view.operand().rank != values.rank:
        raise view.invalid(
            "expected an operand of at least one dimension, and values and their places of the same rank as results"
        )
    parameters = {"k": values.shape[-1], **config(view)}
    plain = view.derive(name="chlo.top_k", operands=view.operands[:1], attributes=parameters)
    kernel = plain.compile()
    return lambda environment, x: kernel(x)


@custom_call("ApproxTopK")
def approx_top_k(view: OpView) -> Kernel:
    """Return the first elements along a dimension in the order of a comparator: the exact ones."""
    return approx_top_k_in(view, order_by)


def approx_top_k_in(view: OpView, order_of: Callable[[Region], Order]) -> Kernel:
    """Return the kernel of ``ApproxTopK``, by a function that returns the order of a comparator."""
    parameters = config(view)
    if "reduction_dim" not in parameters:
        raise view.invalid("expected a reduction_dim among its parameters, found none")
    axis = parameters["reduction_dim"]
    order = order_of(view.function(view.attr("called_computations")[0]))
    count = view.result().sizes[axis]
    operands = len(view.operands) // 2

    def run(environment: Environment, *values: Any) -> Any:
        moved = [np.moveaxis(x, axis, -1) for x in values[:operands]]
        tables = [x.reshape(-1, x.shape[-1]) for x in moved]
        places = order(environment, tables)[:, :count]
        shape = (*moved[0].shape[:-1], count)
        results = [np.moveaxis(np.take_along_axis(t, places, 1).reshape(shape), -1, axis) for t in tables]
        return one_or_all(results)

    return run


@custom_call("shape_assertion", gives=(0,))
def shape_assertion(view: OpView) -> Kernel:
    """Fail with a message where a condition does not hold: programs with unknown sizes check them so."""
    message = view.attr("error_message", "a shape assertion does not hold")
    if not view.operands:
        raise view.invalid("expected its condition, a tensor<i1>, as the first operand, found no operand")
    for number, type_ in enumerate(view.operands):
        if (
            not isinstance(type_, TensorType)
            or type_.shape
            or not (type_.element.is_integer or type_.element in BOOLEAN)
        ):
            wanted = "size for its message, a scalar such as tensor<i32>" if number else "condition, a tensor<i1>"
            raise view.invalid(f"expected a {wanted}, as operand {number}, found {type_}")

    def run(environment: Environment, condition: Any, *values: Any) -> None:
        if not condition:
            text = message
            for number, value in enumerate(values):
                text = text.replace(f"{{{number}}}", str(int(value)))
            raise InvalidArgumentError(text)

    return run


@custom_call("AllocateBuffer", takes=(), gives=(1,))
def allocate_buffer(view: OpView) -> Kernel:
    """Return memory with any content: zeros here."""
    sizes, dtype = view.result().sizes, view.result().dtype
    return lambda environment: np.zeros(sizes, dtype)
