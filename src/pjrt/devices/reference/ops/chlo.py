"""CHLO, the client dialect above StableHLO: the ops that numpy or scipy has a function for, and implicit broadcasting.

The StableHLO project's own decompositions express the others in StableHLO before a program is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.devices.reference.core.block import Environment, Kernel, one_or_all
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics import complex_numbers
from pjrt.devices.reference.numerics.element_types import COMPLEX, FLOAT, INTEGER, compute_dtype, lift, widen
from pjrt.devices.reference.ops.elementwise import total_order

_UNARY: dict[str, tuple[frozenset[ElementType], Callable[[Any], Any]]] = {
    "acos": (FLOAT | COMPLEX, np.arccos),
    "acosh": (FLOAT | COMPLEX, np.arccosh),
    "asin": (FLOAT | COMPLEX, np.arcsin),
    "asinh": (FLOAT | COMPLEX, np.arcsinh),
    "atan": (FLOAT | COMPLEX, np.arctan),
    "atanh": (FLOAT | COMPLEX, np.arctanh),
    "conj": (FLOAT | COMPLEX, np.conjugate),
    "cosh": (FLOAT | COMPLEX, np.cosh),
    "is_inf": (FLOAT, np.isinf),
    "is_neg_inf": (FLOAT, np.isneginf),
    "is_pos_inf": (FLOAT, np.isposinf),
    "sinh": (FLOAT | COMPLEX, np.sinh),
}


def unary(view: OpView) -> Kernel:
    """Compute a function of one number."""
    group, function = _UNARY[view.name.removeprefix("chlo.")]
    element = view.operand().element
    if element not in group:
        raise view.unimplemented(f"CHLO does not define it on {element.mlir}")
    return lift(function, element, view.result().element)


for _name, (_group, _) in _UNARY.items():
    op(f"chlo.{_name}", elementwise=True, types=_group)(unary)


@op("chlo.digamma", "chlo.erf", "chlo.erf_inv", "chlo.erfc", "chlo.lgamma", elementwise=True, types=FLOAT)
def special(view: OpView) -> Kernel:
    """Compute a special function in f64, and round."""
    from pjrt.devices.reference.numerics import special_functions  # imports scipy, which takes a while

    element = view.operand().element
    if element not in FLOAT:
        raise view.unimplemented(f"CHLO does not define it on {element.mlir}")
    return special_functions.rounded(getattr(special_functions, view.name.removeprefix("chlo.")), element.dtype)


@op("chlo.square", elementwise=True, types=INTEGER | FLOAT | COMPLEX)
def square(view: OpView) -> Kernel:
    """Multiply a number by itself."""
    element = view.operand().element
    if element in COMPLEX:
        return lambda x: complex_numbers.multiply(x, x)
    if element not in INTEGER | FLOAT:
        raise view.unimplemented(f"CHLO does not define it on {element.mlir}")
    return lift(np.square, element, view.result().element)


@op("chlo.next_after", elementwise=True)
def next_after(view: OpView) -> Kernel:
    """Return the next value of the type after the first operand, in the direction of the second."""
    element = view.operand().element
    if element.dtype.isbuiltin == 1 and element.bits > 16:  # of two zeros of f16 numpy before 2.5 takes the first one
        return np.nextafter
    whole = np.dtype(f"i{element.dtype.itemsize}").type
    sign = whole(np.iinfo(whole).min)

    def run(x: Any, y: Any) -> Any:
        wide_x, wide_y = x.astype(np.float32), y.astype(np.float32)
        bits = np.asarray(x).view(whole)
        away = np.equal(np.greater(wide_y, wide_x), np.greater_equal(wide_x, 0))
        moved = np.add(bits, np.where(away, whole(1), whole(-1)))
        from_zero = np.where(np.less(wide_y, 0), np.bitwise_or(sign, whole(1)), whole(1))
        following = np.where(np.equal(wide_x, 0), from_zero, moved).view(element.dtype)
        nan = np.logical_or(np.isnan(wide_x), np.isnan(wide_y))
        following = np.where(nan, np.full((), np.nan, np.float32).astype(element.dtype), following)
        return np.where(np.equal(wide_x, wide_y), y, following)

    return run


@op("chlo.constant_like", elementwise=True)
def constant_like(view: OpView) -> Kernel:
    """Repeat a constant over the operand's shape, as one element in memory."""
    value = view.attr("value")
    filled = np.full((), value, np.float64 if isinstance(value, float) else None).astype(view.result().dtype)
    return lambda x: np.broadcast_to(filled, x.shape)


@op("chlo.mulhi", elementwise=True, types=INTEGER)
def mulhi(view: OpView) -> Kernel:
    """Return the upper half of the product of two integers."""
    element = view.operand().element
    bits, dtype = element.bits, element.dtype
    if element not in INTEGER:
        raise view.unimplemented(f"CHLO does not define it on {element.mlir}")
    if bits <= 32:
        wide = np.int64 if element.name[0] == "S" else np.uint64
        return lambda x, y: np.right_shift(np.multiply(x.astype(wide), y.astype(wide)), bits).astype(dtype)
    return lambda x, y: _high_product(np.asarray(x), np.asarray(y))


def _high_product(x: Any, y: Any) -> Any:
    """Return the upper 64 bits of a product, from the four products of 32-bit halves."""
    low_x, low_y = np.bitwise_and(x, 0xFFFFFFFF), np.bitwise_and(y, 0xFFFFFFFF)
    high_x, high_y = np.right_shift(x, 32), np.right_shift(y, 32)
    low = np.multiply(low_x.astype(np.uint64), low_y.astype(np.uint64))
    middle = np.add(np.multiply(high_x, low_y), np.right_shift(low, np.uint64(32)).astype(x.dtype))
    crossed = np.add(np.multiply(low_x, high_y), np.bitwise_and(middle, 0xFFFFFFFF))
    return np.add(np.add(np.multiply(high_x, high_y), np.right_shift(middle, 32)), np.right_shift(crossed, 32))


_BROADCASTING = """
add and atan2 compare complex divide maximum minimum multiply or power remainder select shift_left
shift_right_arithmetic shift_right_logical subtract xor
"""


@op(*(f"chlo.broadcast_{name}" for name in _BROADCASTING.split()), elementwise=True)
def broadcasting(view: OpView) -> Kernel:
    """Broadcast the operands to one shape, by numpy's rules or by ``broadcast_dimensions``, for an op of StableHLO."""
    kernel = view.derive(name="stablehlo." + view.name.removeprefix("chlo.broadcast_")).compile()
    dimensions = view.attr("broadcast_dimensions", None)
    ranks = [t.rank for t in map(view.operand, range(len(view.operands)))]
    if dimensions is None or len(set(ranks)) == 1:
        return kernel
    small, large = ranks.index(min(ranks)), max(ranks)

    def run(*args: Any) -> Any:
        shape = [1] * large
        for dimension, size in zip(dimensions, args[small].shape, strict=True):
            shape[dimension] = size
        return kernel(*(a.reshape(shape) if i == small else a for i, a in enumerate(args)))

    return run


@op("chlo.broadcast_next_after", elementwise=True)
def broadcast_next_after(view: OpView) -> Kernel:
    """Compute ``next_after`` with broadcasting."""
    return next_after(view)


@op("chlo.top_k")
def top_k(view: OpView) -> Kernel:
    """Return the ``k`` largest of each row in falling total order, with their positions; the first of equals comes
    first.
    """
    return top_k_in(view, lambda keys, k: np.argsort(keys, axis=1, kind="stable")[:, :k])


def top_k_in(view: OpView, order: Callable[[Any, int], Any]) -> Kernel:
    """Return the kernel of ``top_k``, by a function that returns the positions of the ``k`` least keys of each row."""
    k, element = view.attr("k"), view.operand().element
    largest = view.attr("largest", True)
    wide, positions = widen(element), view.result(1).dtype
    # In f32, like XLA's: then NaNs of one sign are equal in the types below it.
    sortable = total_order(ElementType.of(compute_dtype(element))) if element in FLOAT else _same

    def run(x: Any) -> Any:
        if k == 0 or x.size == 0:
            empty = (*x.shape[:-1], k)
            return np.empty(empty, x.dtype), np.empty(empty, positions)
        keys = sortable(wide(x))
        keys = np.invert(keys) if largest else keys
        places = order(keys.reshape(-1, keys.shape[-1]), k).reshape(*keys.shape[:-1], k)
        return np.take_along_axis(x, places, -1), places.astype(positions)

    return run


@op("chlo.scan", quantized=True)
def scan(view: OpView) -> Kernel:
    """Run a region on one slice of the inputs after the other, along a dimension, with values that are carried on.

    (The StableHLO project's decomposition runs a reverse scan forwards, and refuses one of no slices.)
    """
    region, axis, backwards = view.regions[0], view.attr("dimension"), view.attr("is_reverse", False)
    num_inputs, num_outputs = view.attr("operandSegmentSizes")[0], view.attr("resultSegmentSizes")[0]
    types = [view.result(index) for index in range(num_outputs)]
    size = view.attr("scan_dim_size", 0)

    def run(environment: Environment, *values: Any) -> Any:
        inputs, carried = values[:num_inputs], list(values[num_inputs:])
        steps = range(inputs[0].shape[axis] if inputs else size)
        slices: list[list[Any]] = []
        for step in reversed(steps) if backwards else steps:
            results = region.run(environment, [*(x.take(step, axis) for x in inputs), *carried])
            slices.append(results[:num_outputs])
            carried = results[num_outputs:]
        if backwards:
            slices.reverse()
        stacks = [np.stack(each, axis) for each in zip(*slices, strict=True)]
        return one_or_all([*(stacks if steps else (np.empty(t.sizes, t.dtype) for t in types)), *carried])

    return run


def _same(x: Any) -> Any:
    return x
