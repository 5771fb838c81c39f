"""``stablehlo.dot_general`` as a batched product of matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pjrt.stablehlo.lowering._types import Shape, expect_operation, sizes
from pjrt.stablehlo.operation import Operation


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A product of stacks of matrices.

    The result is ``matmul(x', y')`` reshaped to ``result_shape``, where ``x'`` is ``x`` transposed by
    ``lhs_permutation`` and reshaped to ``(batch, m, k)``, and ``y'`` is ``y`` transposed by ``rhs_permutation`` and
    reshaped to ``(batch, k, n)``.

    Attributes:
        batch: the number of matrices in each stack; 1 without batching dimensions.
        m, k, n: the sizes of the matrices.
        lhs_permutation: the dimensions of the left operand: batching, free, contracting.
        rhs_permutation: the dimensions of the right operand: batching, contracting, free.
        result_shape: the shape of the result.
    """

    batch: int
    m: int
    k: int
    n: int
    lhs_permutation: Shape
    rhs_permutation: Shape
    result_shape: Shape

    @property
    def lhs_shape(self) -> Shape:
        """The shape of the left stack."""
        return self.batch, self.m, self.k

    @property
    def rhs_shape(self) -> Shape:
        """The shape of the right stack."""
        return self.batch, self.k, self.n


def matrix_product(operation: Operation) -> MatrixProduct:
    """Return ``stablehlo.dot_general`` or ``stablehlo.dot`` as a product of stacks of matrices."""
    expect_operation(operation, "stablehlo.dot_general", "stablehlo.dot")
    left, right = (sizes(value) for value in operation.operands)
    lhs_batch, rhs_batch, lhs_sum, rhs_sum = _dimensions(operation, len(left))
    lhs_free = tuple(d for d in range(len(left)) if d not in (*lhs_batch, *lhs_sum))
    rhs_free = tuple(d for d in range(len(right)) if d not in (*rhs_batch, *rhs_sum))
    return MatrixProduct(
        batch=math.prod(left[d] for d in lhs_batch),
        m=math.prod(left[d] for d in lhs_free),
        k=math.prod(left[d] for d in lhs_sum),
        n=math.prod(right[d] for d in rhs_free),
        lhs_permutation=(*lhs_batch, *lhs_free, *lhs_sum),
        rhs_permutation=(*rhs_batch, *rhs_sum, *rhs_free),
        result_shape=sizes(operation.results[0]),
    )


def _dimensions(operation: Operation, left_rank: int) -> tuple[Shape, Shape, Shape, Shape]:
    if operation.name == "stablehlo.dot":
        return (), (), (left_rank - 1,), (0,)
    numbers = operation.attribute("dot_dimension_numbers")
    return (
        tuple(numbers.lhs_batching_dimensions),
        tuple(numbers.rhs_batching_dimensions),
        tuple(numbers.lhs_contracting_dimensions),
        tuple(numbers.rhs_contracting_dimensions),
    )
