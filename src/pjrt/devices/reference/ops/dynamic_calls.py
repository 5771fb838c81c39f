"""Custom calls for ops whose sizes are operands: JAX exports them for shapes that are not known yet.

When such a call runs its sizes are known; then it is the op itself, compiled for these sizes once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.custom_calls import custom_call
from pjrt.devices.reference.core.op_view import OpView
from pjrt.stablehlo.types import TensorType

Array = Any


def _compiled_once(view: OpView, name: str, changes: Callable[..., dict[str, Any]]) -> Callable[..., Kernel]:
    """Return the function that compiles the op ``name`` for sizes, and keeps the kernel.

    ``changes`` are the op's differences to the call: operands, results, attributes and regions.
    """

    @functools.cache
    def kernel_for(*sizes: Any) -> Kernel:
        return view.derive(name=name, **changes(*sizes)).compile()

    return kernel_for


def _tuple(array: Array) -> tuple[int, ...]:
    return tuple(int(n) for n in np.ravel(array))


@custom_call("stablehlo.dynamic_reduce_window")
def dynamic_reduce_window(view: OpView) -> Kernel:
    """Compute ``reduce_window``; the last operands are window, strides, dilations of base and window, padding."""
    count = len(view.results)
    body = view.function(view.attr("called_computations")[0])
    operands = view.operands[: 2 * count]

    def changes(window: Any, strides: Any, base: Any, dilations: Any, padding: Any) -> dict[str, Any]:
        attributes = {
            "window_dimensions": window,
            "window_strides": strides,
            "base_dilations": base,
            "window_dilations": dilations,
            "padding": np.reshape(padding, (-1, 2)),
        }
        return {"operands": operands, "attributes": attributes, "regions": [body]}

    kernel_for = _compiled_once(view, "stablehlo.reduce_window", changes)
    return lambda environment, *values: kernel_for(*map(_tuple, values[2 * count :]))(environment, *values[: 2 * count])


@custom_call("stablehlo.dynamic_rng_bit_generator")
def dynamic_rng_bit_generator(view: OpView) -> Kernel:
    """Compute ``rng_bit_generator``; the last operand is the shape."""
    state, element = view.results[0], view.result(1).element

    def changes(shape: Any) -> dict[str, Any]:
        return {"operands": view.operands[:1], "results": [state, TensorType(shape, element)]}

    kernel_for = _compiled_once(view, "stablehlo.rng_bit_generator", changes)
    return lambda environment, key, shape: kernel_for(_tuple(shape))(key)


@custom_call("stablehlo.dynamic_top_k")
def dynamic_top_k(view: OpView) -> Kernel:
    """Compute ``chlo.top_k``; the last operand is ``k``."""
    kernel_for = _compiled_once(view, "chlo.top_k", lambda k: {"operands": view.operands[:1], "attributes": {"k": k}})
    return lambda environment, x, k: kernel_for(int(k))(x)
