"""Custom calls that stand for ops whose sizes are operands: what JAX exports for shapes that are not known yet.

When such a call runs its sizes are known; then it is the op itself, compiled for these sizes once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.devices.reference.core import registry
from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.custom_calls import custom_call
from pjrt.devices.reference.core.op_view import OpView
from pjrt.stablehlo.types import TensorType

Array = Any


def _compiled_once(view: OpView, name: str, build: Callable[..., OpView]) -> Callable[..., Kernel]:
    """What compiles the op ``name`` for sizes given as tuples, and remembers it."""
    rule = registry.find(name)
    if rule is None:
        raise view.unimplemented(f"there is no op {name}")
    known: dict[Any, Kernel] = {}

    def kernel_for(*sizes: Any) -> Kernel:
        if sizes not in known:
            known[sizes] = rule.compile(build(*sizes))
        return known[sizes]

    return kernel_for


def _tuple(array: Array) -> tuple[int, ...]:
    return tuple(int(n) for n in np.ravel(array))


@custom_call("stablehlo.dynamic_reduce_window")
def dynamic_reduce_window(view: OpView) -> Kernel:
    """``reduce_window``; the last five operands are window, strides, dilations of base and window, and padding."""
    count = len(view.results)
    body = view.function(view.attr("called_computations")[0])
    operands = view.operands[: 2 * count]

    def build(window: Any, strides: Any, base: Any, dilations: Any, padding: Any) -> OpView:
        attributes = {
            "window_dimensions": window,
            "window_strides": strides,
            "base_dilations": base,
            "window_dilations": dilations,
            "padding": np.reshape(padding, (-1, 2)),
        }
        return OpView("stablehlo.reduce_window", operands, view.results, attributes, [body], view.location)

    kernel_for = _compiled_once(view, "stablehlo.reduce_window", build)
    return lambda environment, *values: kernel_for(*map(_tuple, values[2 * count :]))(environment, *values[: 2 * count])


@custom_call("stablehlo.dynamic_rng_bit_generator")
def dynamic_rng_bit_generator(view: OpView) -> Kernel:
    """``rng_bit_generator``; the last operand is the shape."""
    state, made = view.results
    if not isinstance(made, TensorType):
        raise view.invalid(f"expected a tensor as result, found {made}")
    element = made.element

    def build(shape: Any) -> OpView:
        results = [state, TensorType(shape, element)]
        return OpView("stablehlo.rng_bit_generator", view.operands[:1], results, view.attributes, (), view.location)

    kernel_for = _compiled_once(view, "stablehlo.rng_bit_generator", build)
    return lambda environment, key, shape: kernel_for(_tuple(shape))(key)


@custom_call("stablehlo.dynamic_top_k")
def dynamic_top_k(view: OpView) -> Kernel:
    """``chlo.top_k``; the last operand is ``k``."""

    def build(k: int) -> OpView:
        return OpView("chlo.top_k", view.operands[:1], view.results, {"k": k}, (), view.location)

    kernel_for = _compiled_once(view, "chlo.top_k", build)
    return lambda environment, x, k: kernel_for(int(k))(x)
