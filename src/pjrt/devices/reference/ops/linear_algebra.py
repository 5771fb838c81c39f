"""Linear algebra, and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.element_types import COMPLEX, FLOAT, compute_dtype, converter, precision_reducer
from pjrt.devices.reference.numerics.linear_algebra import adjoint, matmul_of, solve_triangular
from pjrt.devices.reference.numerics.linear_algebra import cholesky as factorize
from pjrt.stablehlo.ir.types import OpaqueType, TensorType, ValueType

Shape = tuple[int, ...]
Product = Callable[[Any, Any], Any]


@op("stablehlo.dot_general")
def dot_general(view: OpView) -> Kernel:
    """Add up products over the contracting dimensions, for each index of the batching ones.

    The precision is at least that of the program: ``precision_config`` changes nothing. An ``algorithm`` of one
    primitive operation rounds the operands to its types first. Those of several (``X3``, ``X6``, …) stand for more
    precision, up to the full one, and here they have the full one.
    """
    numbers = view.attr("dot_dimension_numbers")
    dimensions = (
        tuple(numbers.lhs_batching_dimensions),
        tuple(numbers.rhs_batching_dimensions),
        tuple(numbers.lhs_contracting_dimensions),
        tuple(numbers.rhs_contracting_dimensions),
    )
    kernel = _contraction(view, dimensions)
    algorithm = view.attr("algorithm", None)
    if algorithm is None or algorithm.num_primitive_operations > 1:
        return kernel
    return _rounded_first(view, kernel, algorithm.lhs_precision_type, algorithm.rhs_precision_type)


@op("stablehlo.dot")
def dot(view: OpView) -> Kernel:
    """Multiply vectors and matrices: the last dimension of one with the first of the other."""
    return _contraction(view, ((), (), (view.operand(0).rank - 1,), (0,)))


def _contraction(view: OpView, dimensions: tuple[Shape, Shape, Shape, Shape]) -> Kernel:
    left, right = view.operand(0), view.operand(1)
    product = matmul_of(left.element, right.element, view.result().element)
    if not (left.is_static and right.is_static):
        return lambda x, y: _plan(x.shape, y.shape, dimensions, product)(x, y)
    return _plan(left.sizes, right.sizes, dimensions, product)


def _plan(left: Shape, right: Shape, dimensions: tuple[Shape, Shape, Shape, Shape], product: Product) -> Product:
    """Return the product as one of stacks of matrices: transposed and reshaped before, reshaped after."""
    left_batch, right_batch, left_inner, right_inner = dimensions
    left_free = tuple(d for d in range(len(left)) if d not in left_batch + left_inner)
    right_free = tuple(d for d in range(len(right)) if d not in right_batch + right_inner)
    batch = tuple(left[d] for d in left_batch)
    rows, columns = tuple(left[d] for d in left_free), tuple(right[d] for d in right_free)
    inner = math.prod(left[d] for d in left_inner)
    left_order, right_order = left_batch + left_free + left_inner, right_batch + right_inner + right_free
    left_shape = (*batch, math.prod(rows), inner)
    right_shape = (*batch, inner, math.prod(columns))
    result = batch + rows + columns
    if len(left_free) == len(right_free) == len(left_inner) == 1:  # matrices already, but for the order
        if left_order == tuple(range(len(left))) and right_order == tuple(range(len(right))):
            return product
        return lambda x, y: product(x.transpose(left_order), y.transpose(right_order))

    def run(x: Any, y: Any) -> Any:
        stacked = product(x.transpose(left_order).reshape(left_shape), y.transpose(right_order).reshape(right_shape))
        return stacked.reshape(result)

    return run


def _rounded_first(view: OpView, kernel: Kernel, left: ValueType, right: ValueType) -> Kernel:
    """Return the kernel on operands that are rounded to the types of an algorithm."""
    round_left, round_right = (
        _rounding(view, view.operand(0).element, left),
        _rounding(view, view.operand(1).element, right),
    )
    return lambda x, y: kernel(round_left(x), round_right(y))


def _rounding(view: OpView, element: ElementType, precision: ValueType) -> Callable[[Any], Any]:
    if precision == OpaqueType("tf32"):  # not an element type: products are computed in it
        return precision_reducer(element, 8, 10) if element is ElementType.F32 else lambda x: x
    target = precision.element if isinstance(precision, TensorType) else None
    if target is element:
        return lambda x: x
    if element not in FLOAT or target is None or target not in FLOAT:
        raise view.unimplemented(f"an algorithm that rounds {element.mlir} to {precision}")
    there, back = converter(element, target), converter(target, element)
    return lambda x: back(there(x))


@op("stablehlo.einsum")
def einsum(view: OpView) -> Kernel:
    """Compute Einstein's summation of two operands."""
    return _einsum(view, view.attr("einsum_config"))


@op("stablehlo.unary_einsum")
def unary_einsum(view: OpView) -> Kernel:
    """Compute Einstein's summation of one operand."""
    return _einsum(view, view.attr("einsum_config"))


def _einsum(view: OpView, config: str) -> Kernel:
    result = view.result().element
    wide = np.dtype(np.complex128) if result in COMPLEX else compute_dtype(result)
    narrow = converter(ElementType.of(wide), result)
    fast = result is not ElementType.C128  # as for other products, see ``numerics.matmul``
    return lambda *args: narrow(np.asarray(np.einsum(config, *(x.astype(wide) for x in args), optimize=fast)))


@op("stablehlo.cholesky")
def cholesky(view: OpView) -> Kernel:
    """Return the triangular factor of positive definite matrices; NaN for others. The other triangle is zero."""
    element = view.operand().element
    if element not in FLOAT | COMPLEX:
        raise view.unimplemented(f"the specification does not define it on {element.mlir}")
    lower, wide, dtype = view.attr("lower", False), compute_dtype(element), element.dtype

    def run(x: Any) -> Any:
        matrices = x.astype(wide, copy=False)
        if lower:
            return factorize(matrices).astype(dtype, copy=False)
        return adjoint(factorize(adjoint(matrices))).astype(dtype, copy=False)

    return run


@op("stablehlo.triangular_solve")
def triangular_solve(view: OpView) -> Kernel:
    """Solve ``op(a) x = b``, or ``x op(a) = b``, where ``a`` is triangular."""
    element = view.operand().element
    if element not in FLOAT | COMPLEX:
        raise view.unimplemented(f"the specification does not define it on {element.mlir}")
    left, lower, unit = view.attr("left_side"), view.attr("lower"), view.attr("unit_diagonal")
    transpose = view.attr("transpose_a")
    wide, dtype = compute_dtype(element), element.dtype

    def run(a: Any, b: Any) -> Any:
        matrix, right, is_lower = a.astype(wide, copy=False), b.astype(wide, copy=False), lower
        if transpose != "NO_TRANSPOSE":
            matrix = adjoint(matrix) if transpose == "ADJOINT" else matrix.swapaxes(-1, -2)
            is_lower = not is_lower
        if left:
            return solve_triangular(matrix, right, is_lower, unit).astype(dtype, copy=False)
        turned = solve_triangular(matrix.swapaxes(-1, -2), right.swapaxes(-1, -2), not is_lower, unit)
        return turned.swapaxes(-1, -2).astype(dtype, copy=False)

    return run


_TRANSFORMS: dict[str, Any] = {
    "FFT": np.fft.fftn,
    "IFFT": np.fft.ifftn,
    "RFFT": np.fft.rfftn,
    "IRFFT": np.fft.irfftn,
}


@op("stablehlo.fft")
def fft(view: OpView) -> Kernel:
    """Transform the last dimensions, in double precision, and round."""
    kind, lengths = view.attr("fft_type"), tuple(view.attr("fft_length"))
    transform = _TRANSFORMS[kind]
    axes = tuple(range(-len(lengths), 0))
    result = view.result()
    dtype, wide = result.dtype, np.float64 if kind == "RFFT" else np.complex128
    empty = result.sizes if result.is_static and result.size == 0 else None

    def run(x: Any) -> Any:
        if empty is not None or 0 in lengths:
            return np.zeros(empty or x.shape, dtype)
        return transform(x.astype(wide), s=lengths, axes=axes).astype(dtype)

    return run
