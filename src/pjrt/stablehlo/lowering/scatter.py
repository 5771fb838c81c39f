"""``stablehlo.scatter`` as an update at places given by arrays."""

from __future__ import annotations

from dataclasses import dataclass

from pjrt.stablehlo.lowering._indexing import IndexedDimensions, indexed_dimensions
from pjrt.stablehlo.lowering._types import Shape, expect_operation, sizes
from pjrt.stablehlo.lowering.reducer import reducer
from pjrt.stablehlo.operation import Operation


@dataclass(frozen=True, slots=True)
class NdScatter:
    """Updates of elements, or of whole slices, of an operand at places given by arrays.

    Transpose the operand by ``operand_permutation``, so that the indexed dimensions come first, and the updates by
    ``update_permutation``, so that the dimensions of the batch shape come first, and reshape these to
    ``update_shape``. Combine the operand at the indexed places with the updates, leave out those with an index below 0
    or above ``indexed.limits``, and transpose back. Several updates of one place are all combined.

    Attributes:
        indexed: the indexed dimensions, and their indices.
        operand_permutation: the indexed dimensions of the operand, then the others.
        update_permutation: the dimensions of the updates: batch shape, then slices.
        update_shape: the batch shape, and the sizes of the operand's other dimensions.
        reducer: the function that combines an element with its update, by its name; ``"second"`` overwrites.
        unique_indices: whether the program promises that no place is updated twice.
    """

    indexed: IndexedDimensions
    operand_permutation: Shape
    update_permutation: Shape
    update_shape: Shape
    reducer: str
    unique_indices: bool


def nd_scatter(operation: Operation) -> NdScatter | None:
    """Return ``stablehlo.scatter`` of one operand as an update at places, or ``None`` if it has no such form.

    It has none if it scatters slices that move by parts, has several operands, or combines by an unknown function.
    """
    expect_operation(operation, "stablehlo.scatter")
    name = reducer(operation)
    if len(operation.operands) != 3 or name is None:
        return None
    operand, indices, updates = (sizes(value) for value in operation.operands)
    numbers = operation.attribute("scatter_dimension_numbers")
    window_dims = tuple(numbers.update_window_dims)
    batching = tuple(numbers.input_batching_dims)
    inserted = {*numbers.inserted_window_dims, *batching}
    indexed = indexed_dimensions(
        operand,
        indices,
        tuple(numbers.scattered_dims_to_operand_dims),
        batching,
        tuple(numbers.scatter_indices_batching_dims),
        int(numbers.index_vector_dim),
    )
    kept = [d for d in range(len(operand)) if d not in inserted]
    window = {d: updates[window_dims[kept.index(d)]] for d in kept}
    others = tuple(d for d in range(len(operand)) if d not in indexed.axes)
    if not indexed.axes or any(d in inserted for d in others):
        return None
    if any(window.get(d, 1) != 1 for d in indexed.axes) or any(window[d] != operand[d] for d in others):
        return None
    batch = tuple(d for d in range(len(updates)) if d not in window_dims)
    of_slices = [window_dims[kept.index(d)] for d in others]
    alone = [window_dims[kept.index(d)] for d in kept if d in indexed.axes]
    return NdScatter(
        indexed=indexed,
        operand_permutation=(*indexed.axes, *others),
        update_permutation=(*batch, *alone, *of_slices),
        update_shape=(*indexed.batch_shape, *(operand[d] for d in others)),
        reducer=name,
        unique_indices=bool(operation.attribute("unique_indices", False)),
    )
