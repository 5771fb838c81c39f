"""Ops whose shapes are known at run time, and the custom calls that frameworks write for them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError
from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import custom_call, op
from pjrt.devices.reference.numerics.indexing import PadPlan
from pjrt.devices.reference.ops.data_movement import counted, spread
from pjrt.stablehlo.ir.types import TensorType

# Calls of frameworks that stand for an op with sizes as operands. When one runs its sizes are known; then it is the op
# itself, compiled for these sizes once.

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


@op("stablehlo.dynamic_reshape", quantized=True)
def dynamic_reshape(view: OpView) -> Kernel:
    """Put the same elements in a computed shape."""

    def run(x: Array, shape: Array) -> Array:
        sizes = _shape(shape)
        if math.prod(sizes) != x.size:
            raise InvalidArgumentError(
                f"expected a shape of {x.size} elements, found {sizes}: the operand has {x.shape}"
            )
        return x.reshape(sizes)

    return view.fitted(run)


@op("stablehlo.dynamic_broadcast_in_dim", quantized=True)
def dynamic_broadcast_in_dim(view: OpView) -> Kernel:
    """Repeat the operand to a computed shape."""
    dimensions = tuple(view.attr("broadcast_dimensions"))

    def run(x: Array, shape: Array) -> Array:
        sizes = _shape(shape)
        for size, dimension in zip(x.shape, dimensions, strict=True):
            if size not in (1, sizes[dimension]):
                raise InvalidArgumentError(
                    f"expected dimension {dimension} of {sizes} to be {size}, for an operand of shape {x.shape}"
                )
        return spread(x, sizes, dimensions)

    return view.fitted(run)


@op("stablehlo.dynamic_iota")
def dynamic_iota(view: OpView) -> Kernel:
    """Count along one dimension of a computed shape."""
    along, element = view.attr("iota_dimension"), view.result().element
    return view.fitted(lambda shape: counted(_shape(shape), along, element))


@op("stablehlo.dynamic_pad", quantized=True)
def dynamic_pad(view: OpView) -> Kernel:
    """Compute ``pad`` with computed amounts."""

    def run(x: Array, value: Array, low: Array, high: Array, interior: Array) -> Array:
        between = _sizes(interior)
        if min(between, default=0) < 0:
            raise InvalidArgumentError(f"expected interior padding of zero or more, found {between}")
        return PadPlan.of(x.shape, _sizes(low), _sizes(high), between).run(x, value)

    return view.fitted(run)


@op("stablehlo.real_dynamic_slice", quantized=True)
def real_dynamic_slice(view: OpView) -> Kernel:
    """Compute ``slice`` with computed bounds."""

    def run(x: Array, starts: Array, limits: Array, strides: Array) -> Array:
        index = []
        for size, start, limit, stride in zip(x.shape, _sizes(starts), _sizes(limits), _sizes(strides), strict=True):
            if not 0 <= start <= limit <= size or stride < 1:
                raise InvalidArgumentError(
                    f"expected 0 <= start <= limit <= {size} and a stride of 1 or more, "
                    f"found {start}, {limit} and {stride}"
                )
            index.append(slice(start, limit, stride))
        return x[tuple(index)]

    return view.fitted(run)


@op("stablehlo.set_dimension_size", quantized=True)
def set_dimension_size(view: OpView) -> Kernel:
    """Keep the first elements along one dimension.

    A dimension that grows, within its bound, gets zeros: the specification leaves them open.
    """
    dimension = view.attr("dimension")
    static = view.result().shape[dimension]
    bounds = view.result().bounds
    bound = view.operand().shape[dimension] or (bounds[dimension] if bounds else None)

    def run(x: Array, size: Array) -> Array:
        count = int(size)
        if count < 0 or (bound is not None and count > bound) or (static is not None and count != static):
            expected = (
                f"{static}" if static is not None else f"a size from 0 to {bound if bound is not None else 'any'}"
            )
            raise InvalidArgumentError(f"expected {expected} for dimension {dimension}, found {count}")
        if count <= x.shape[dimension]:
            return x[(slice(None),) * dimension + (slice(count),)]
        out = np.zeros((*x.shape[:dimension], count, *x.shape[dimension + 1 :]), x.dtype)
        out[(slice(None),) * dimension + (slice(x.shape[dimension]),)] = x
        return out

    return run


def _shape(values: Array) -> tuple[int, ...]:
    sizes = _sizes(values)
    if min(sizes, default=0) < 0:
        raise InvalidArgumentError(f"expected a shape of sizes that are zero or more, found {sizes}")
    return sizes


def _sizes(values: Array) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
